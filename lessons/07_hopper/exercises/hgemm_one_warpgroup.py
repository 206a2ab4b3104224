"""Exercise 07.13, write: one warpgroup, 64 x 64 of C, from a blank file.

Write kernel and launch, for any M, and N and K that are multiples of 8: a block is 128 threads and computes 64 x
64 of C, 64 k at a time, with one stage. One thread asks for both tiles, the barrier counts their bytes, four
wgmma_f16_rows multiply. The next tiles are asked for when these are multiplied. At most 16,384 bytes of shared
memory, which launch asks for as dynamic; nothing is read from global memory by threads.
Grade: python -m common grade 07.13
"""

from numba import cuda, float32

from lessons.toolkit import hopper
from lessons.toolkit.grid import jit
from lessons.toolkit.maps import Maps
from lessons.toolkit.mma import to_half
from lessons.toolkit.unroll import unroll, unrolled

REQUIRES = "9.0a"
MAPS = Maps()


# >>> your code: 37 lines
def launch(a, b, c):
    pass


# <<<
