"""Weights pruned 2:4: of every four along k, the two of largest magnitude are kept; on a tie, the first.

What is kept of B lies K-major, in half as many columns. Its places are stored as the lanes of
`mma_sp_m16n8k32` supply them: for 32 columns of B and 32 k a word per lane. Lane 4 g + 2 h + s has those of columns
16 h + g and 16 h + g + 8, for the 16 k from 16 s on.
"""

import numpy as np
from numba import cuda, float32, int64

from lessons.toolkit.mma import to_half
from lessons.toolkit.narrow import narrow
from lessons.toolkit.unroll import inlined, unroll, unrolled

ROWS, DEPTH = 32, 32  # columns of B, and k, that 32 words are about
FOURS = 4  # of 16 k
THREADS = 128


@inlined
def greater(four, i, j):
    """Does value j come before value i: has it the larger magnitude, or the same and comes first?"""
    return abs(four[j]) > abs(four[i]) or (abs(four[j]) == abs(four[i]) and j < i)


@cuda.jit
@narrow
@unroll
def pack(b, kept, places):
    """A thread for a word: two columns of B, 16 k of each."""
    four = cuda.local.array(4, float32)
    at = int64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
    K, N = b.shape
    if at < places.size:
        lane, tile = at % 32, at // 32
        k_tiles = places.shape[1]
        n0 = tile // k_tiles * ROWS + lane // 4 + lane // 2 % 2 * 16
        k0 = tile % k_tiles * DEPTH + lane % 2 * 16
        word = 0
        for below in range(2):
            n = n0 + 8 * below
            for group in range(FOURS):
                k = k0 + 4 * group
                for i in unrolled(4):
                    four[i] = float32(b[k + i, n]) if k + i < K and n < N else float32(0.0)
                found = 0
                for i in unrolled(4):
                    before = 0
                    for j in unrolled(4):
                        if j != i and greater(four, i, j):
                            before += 1
                    if before < 2:
                        kept[n, k // 2 + found] = to_half(four[i])
                        word |= i << 16 * below + 4 * group + 2 * found
                        found += 1
        places[tile // k_tiles, tile % k_tiles, lane] = word


def packed(b, block_n, block_k):
    """What is kept of B [K, N], float16, and where it belongs, both of whole blocks: [N, K / 2] float16, and uint32
    [N / 32, K / 32, 32]."""
    K, N = b.shape
    rows, depth = -(-N // block_n) * block_n, -(-K // block_k) * block_k
    kept = cuda.device_array((rows, depth // 2), np.float16)
    places = cuda.device_array((rows // ROWS, depth // DEPTH, 32), np.uint32)
    pack[-(-places.size // THREADS), THREADS](b, kept, places)
    return kept, places
