"""Exercise 04.1, predict: wavefronts of shared memory.

Float i of shared memory lies in bank i % 32. Lane l is thread l of a warp, from 0 to 31. Replace each None by the
number of wavefronts that the warp's read takes. All must be exact.
Grade: python -m common grade 04.1
"""

# each lane reads one float
STRIDE_24 = None  # lane l reads float 24 * l
STRIDE_25 = None  # lane l reads float 25 * l
EIGHT_ROWS = None  # a tile with rows of 32 floats: lane l reads row l % 8, column l // 8
PADDED = None  # the same, with rows of 33 floats
BROADCAST = None  # lane l reads float 100 * (l // 32)
TWO_HALVES = None  # lanes 0 to 15 read floats 0 to 15, lanes 16 to 31 floats 64 to 79

# each lane reads four neighbouring floats with one 128-bit load
WIDE_ROW = None  # lane l reads floats from 4 * l on
WIDE_SHARED = None  # lane l reads floats from 4 * (l // 2) on
WIDE_APART = None  # lane l reads floats from 8 * l on
