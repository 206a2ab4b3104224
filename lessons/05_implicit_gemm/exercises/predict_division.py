"""Exercise 05.3, predict: division without dividing.

A GPU has no instruction that divides integers. But n // 28 is n * M >> S, for a whole number M that is 2**S / 28
rounded up, as long as n is not too large: M is a little too large, and the error grows with n. Replace each None by
a number. All must be exact; you may use Python to find them.
Grade: python -m common grade 05.3
"""

MULTIPLIER_16 = None  # M for S = 16
FIRST_WRONG_8 = None  # the least n from 0 on for which S = 8 gives another result than n // 28
FIRST_WRONG_12 = None  # and S = 12
LEAST_SHIFT_784 = None  # the least S that is right for all n below 784, the pixels of a map of 28 x 28
LEAST_SHIFT_100352 = None  # and for all n below 100,352, the rows of c3d-conv3a

# bits that n * M takes at most for that S and n below 100,352
BITS = None

# the largest S for which n * M fits in 32 bits for all n below 100,352, right or not
LARGEST_SHIFT_32 = None
