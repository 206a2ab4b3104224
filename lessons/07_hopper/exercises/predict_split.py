"""Exercise 07.12, predict: two numbers for one.

TF32 keeps 11 significant bits; to_tf32 rounds to the nearest, halfway cases away from zero, and the matrix unit by
itself cuts off. Replace each None by a whole number. All must be exact.
Grade: python -m common grade 07.12
"""

HIGH = None  # the high part of 4099
LOW = None  # and its low part
CUT = None  # what the matrix unit makes of 4099 by itself
HIGH_OF_2049 = None  # the high part of 2049
HIGH_OF_4098 = None  # and that of 4098
THREE_PRODUCTS = None  # 4099 * 4099 by three products
TWO_PRODUCTS = None  # and by two, if only the first factor is split, and the second is rounded by to_tf32
LEFT_OUT = None  # what the fourth would add
ADDITIONS = None  # to each total in registers at K = 4096, if the unit adds up 32 k at a time
REGISTERS = None  # of a thread for acc, total, high and low, for 64 x 192 of a consumer and 32 k
