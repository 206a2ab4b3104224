"""Exercise 09.1, predict: half the bytes, and what they hold.

A stage of igemm_wgmma is a tile of A, 128 x 128, and one of B, 256 x 128, of int8, in rows of 128 bytes. An
instruction multiplies 64 x 32 by 32 x 256. Replace each None by a number. All must be exact.
Grade: python -m common grade 09.1
"""

STAGE_BYTES = None  # bytes of a stage
K_OF_A_ROW = None  # values of k in a row of 128 bytes
NEXT_K = None  # what is added to a descriptor, in units of 16 bytes, for the next instruction's k
INSTRUCTIONS = None  # that a consumer, who has 64 rows, starts for a stage
MOST_K = None  # the largest K for which no sum leaves int32, whatever A and B hold
K_OF_A_LANE = None  # the first k of the four that lane 6 holds in its third register of A, of 16 x 32
CODE_45 = None  # the number of e4m3 whose code is 0x45
FIRST_GAP = None  # the least positive integer that e4m3 does not hold
