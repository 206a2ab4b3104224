"""Exercise 07.4, predict: who holds what.

A block has 65,536 registers; a thread has a multiple of 8 of them, and at most 255. A block has a producer's
warpgroup and three consumers', which multiply 64 x 256 each. Replace each None by a whole number. All must be
exact.
Grade: python -m common grade 07.4
"""

AT_FIRST = 65536 // 512 // 8 * 8  # registers that each thread has when the kernel starts
MANY = (65536 - 128 * 24) // 384 // 8 * 8  # registers of a consumer, if the producer keeps 24
WIDEST = 160 - 24  # the most columns, a multiple of 8, of a consumer with 128 rows, if MANY less 24 are for sums
MANY_OF_ONE = 248  # registers of a consumer, if there is only one
SUMS_OF_TALL = 128 * 192 // 128  # sums of a thread if a consumer multiplies 128 x 192
CLOCKS = 192 * 256 * 64 // 2048  # that the matrix unit needs for a stage of 64 k of this block
STAGES = 232448 // ((192 + 256) * 64 * 2)  # that fit in 232,448 bytes of shared memory
ROUNDS = 11  # of tiles of 192 x 256 for each of 132 blocks, if C is 8192 x 8192
BLOCKS = 43 * 32 // 11 + 1  # the fewest blocks that need no more rounds
LAST_ROUND = 56  # tiles that are left for the last round, with 132 blocks
