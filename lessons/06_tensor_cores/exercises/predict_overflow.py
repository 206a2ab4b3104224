"""Exercise 06.6, predict: where float16 ends.

The largest float16 is 65,504; from 65,520 on a number rounds to infinity. float16 has 11 significant bits, as has
TF32. Every element of A is the first number, every element of B the second. Replace each None by a whole number. All
must be exact.
Grade: python -m common grade 06.6
"""

K_OF_8_8 = None  # the least K for which C, summed in float32, becomes infinite in float16: 8 and 8
K_OF_3_5 = None  # the same for 3 and 5
SUM_OF_ONES = None  # 1 and 1, K = 5,000, summed in float16 one by one: what C becomes
SUM_OF_TWOS = None  # 2 and 1, K = 5,000, summed in the same way
SUM_OF_THREES = None  # 3 and 1, K = 5,000, summed in the same way
FIRST_LOST = None  # the least whole number above 0 that is no float16
STEP = None  # how far apart float16 are just below 65,504
