"""Exercise 06.6, predict: how many stages fit.

A stage is a tile of A, BLOCK_M x BLOCK_K, and one of B, BLOCK_K x BLOCK_N, of float16. A block may ask for 227 KiB of
shared memory. Replace each None by a whole number. All must be exact.
Grade: python -m common grade 06.6
"""

BYTES = None  # of a stage with BLOCK_M = BLOCK_N = 128, BLOCK_K = 64
STAGES = None  # that fit
STAGES_WIDE = None  # that fit with BLOCK_M = 128, BLOCK_N = 256, BLOCK_K = 64
STAGES_OF_TWO = None  # that fit with 128 x 128 x 64, if two blocks share 227 KiB
AHEAD = None  # pairs on their way while one is multiplied, with four stages
PENDING = None  # groups that may still be on their way when the next pair is needed, with four stages
