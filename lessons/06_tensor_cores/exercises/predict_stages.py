"""Exercise 06.4, predict: how many stages fit.

A stage is a tile of A, BLOCK_M x BLOCK_K, and one of B, BLOCK_K x BLOCK_N, of float16. A multiprocessor has 228 KiB
of shared memory, and each block on it takes 1 KiB more than it asks for. Replace each None by a whole number. All
must be exact.
Grade: python -m common grade 06.4
"""

BYTES = None  # of a stage with BLOCK_M = BLOCK_N = 128, BLOCK_K = 64
STAGES = None  # that fit, if the block is alone on the multiprocessor
STAGES_WIDE = None  # that fit with BLOCK_M = BLOCK_N = 256, BLOCK_K = 64, alone
STAGES_OF_TWO = None  # of each block, with 128 x 128 x 64, if two share a multiprocessor
STAGES_OF_176 = None  # and with 176 x 128 x 64, if two blocks share it
PAIRS_AHEAD = None  # how many pairs ahead of the one that is multiplied the newest copy is, with four stages

# groups that may still be on their way when the next pair is needed, with four stages, if the tile of A and the tile
# of B are a group each
PENDING = None

# the same with a group for each pair, if a round first asks for a pair, three rounds ahead, commits it, and only then
# waits for its own pair
PENDING_AFTER = None
