"""Exercise 04.1, predict: wavefronts of shared memory.

Float i of shared memory lies in bank i % 32. Lane l is thread l of a warp, from 0 to 31. Replace each None by the
number of wavefronts that the warp's read takes. All must be exact.
Grade: python -m common grade 04.1
"""

# each lane reads one float
STRIDE_24 = 8  # lane l reads float 24 * l
STRIDE_25 = 1  # lane l reads float 25 * l
EIGHT_ROWS = 8  # a tile with rows of 32 floats: lane l reads row l % 8, column l // 8
PADDED = 4  # the same, with rows of 33 floats
BROADCAST = 1  # lane l reads float 100 * (l // 32)
TWO_HALVES = 2  # lanes 0 to 15 read floats 0 to 15, lanes 16 to 31 floats 64 to 79

# each lane reads four neighbouring floats with one 128-bit load
WIDE_ROW = 4  # lane l reads floats from 4 * l on
WIDE_SHARED = 2  # lane l reads floats from 4 * (l // 2) on
WIDE_APART = 8  # lane l reads floats from 8 * l on
