"""Exercise 01.4, predict: the sectors of one request.

A sector is 32 bytes, 8 floats, and every array here starts at the beginning of one. Lane l is thread l of a warp,
from 0 to 31. Replace each None by the number of sectors that the warp's request touches. Counts must be exact.
Grade: python -m common grade 01.4
"""

SHIFTED = None  # lane l reads float l + 1
REVERSED = None  # lane l reads float 31 - l
EVERY_THIRD = None  # lane l reads float 3 * l, the red of a pixel
EVERY_NINTH = None  # lane l reads float 9 * l
PAIRS = None  # lanes 2 * i and 2 * i + 1 both read float i

# blocks of 16 x 16 threads, x is n, K = N = 1001: what the first warp of the block at m = n = 0
# reads for k = 0, and writes in the end
OF_A = None  # a[m, k]
OF_B = None  # b[k, n]
OF_C = None  # c[m, n]
