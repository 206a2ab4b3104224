"""Exercise 07.12, predict: two numbers for one.

TF32 keeps 11 significant bits; to_tf32 rounds to the nearest, halfway cases away from zero, and the matrix unit by
itself cuts off. Replace each None by a whole number. All must be exact.
Grade: python -m common grade 07.12
"""

HIGH = 4100  # the high part of 4099
LOW = 0 - 1  # and its low part
CUT = 4096  # what the matrix unit makes of 4099 by itself
HIGH_OF_2049 = 2050  # the high part of 2049
HIGH_OF_4098 = 4100  # and that of 4098
THREE_PRODUCTS = 4100 * 4100 - 2 * 4100  # 4099 * 4099 by three products
TWO_PRODUCTS = 16805900  # and by two, if only the first factor is split, and the second is rounded by to_tf32
LEFT_OUT = 1  # what the fourth would add
ADDITIONS = 4096 // 32  # to each total in registers at K = 4096, if the unit adds up 32 k at a time
REGISTERS = (
    2 * (64 * 192 // 128) + 2 * 16
)  # of a thread for acc, total, high and low, for 64 x 192 of a consumer and 32 k
