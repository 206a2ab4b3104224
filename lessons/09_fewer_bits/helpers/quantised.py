"""Sums of int32 become int8 again: what a layer of a network gives to the next one.

The scales of A, of a column of B and of the result make one factor for each column of C, by which a sum is
multiplied, in float32, while it is in a register; then it is rounded once, ties to even, and limited to -128 and 127.

    launch(a, prepare(b, problem), c, finish=quantised(factors))  # c is int8, factors float32, one for each column
"""

import importlib
from functools import lru_cache, partial
from types import SimpleNamespace

import numpy as np
from numba import cuda, float32, int32

from lessons.toolkit import hopper
from lessons.toolkit.memory import VECTOR, load4
from lessons.toolkit.mma import to_int8
from lessons.toolkit.narrow import narrow
from lessons.toolkit.unroll import inlined, unroll, unrolled

stores = importlib.import_module("lessons.07_hopper.hgemm_tma_stores")

THREADS = 256
SPREAD = 40.0  # of the results that are timed, as a standard deviation: some are beyond 127
BYTE = 0xFF
ROW = 32  # words of a row of results on its way, four columns each
SLABS, SLAB = stores.SLABS, stores.WARP_M * ROW


@inlined
def store_quantised(c, m, n, acc, i, paired, operands):
    """c[m, n:n+2] = acc[i:i+2] times the columns' factors, as int8, nothing outside."""
    (factors,) = operands
    M, N = c.shape
    if m < M:
        for v in range(2):
            if n + v < N:
                c[m, n + v] = to_int8(float32(acc[i + v]) * factors[n + v])


@inlined
@narrow(signed=True)
def packed(acc, i, near, far):
    """acc[i] and acc[i + 1] times their factors, as int8 in the lower half of a word."""
    low, high = int32(to_int8(float32(acc[i]) * near)), int32(to_int8(float32(acc[i + 1]) * far))
    return low & BYTE | (high & BYTE) << 8


@lru_cache
def leaving(BOXES):
    """Build the function by which a warp's 16 rows of sums leave as int8, as in hgemm_tma_stores: BOXES of 128
    columns to (m0 + row, n0), through slabs at tiles[own]."""
    PENDING = 0 if BOXES % SLABS else SLABS - 1  # slabs that may still be leaving: each tile begins with the first

    @inlined
    @narrow
    @unroll
    def leave(to_map, m0, row, n0, tiles, own, acc, lane, N, operands):
        (factors,) = operands
        group, pair, odd = lane // 4, lane % 4, lane % 2
        for box in unrolled(BOXES):
            slab = own + box % SLABS * SLAB
            if lane == 0:
                hopper.tma_wait_read(PENDING)  # what lay here has left
            cuda.syncwarp()
            # of two times 8 columns a lane has two pairs: its neighbour completes one to a word, and gets the other
            for two in unrolled(ROW // 4):
                first, n = 8 * (box * (ROW // 4) + two), n0 + 128 * box + 16 * two + pair * 2
                n = n if n < N else 0  # what is outside is clipped
                near, far, near_8, far_8 = factors[n], factors[n + 1], factors[n + 8], factors[n + 9]
                word = (4 * two + odd * 2 + pair // 2) ^ group * 4  # swizzled
                at = slab + group * ROW + word
                for half in unrolled(2):
                    left = packed(acc, first + 2 * half, near, far)
                    right = packed(acc, first + 4 + 2 * half, near_8, far_8)
                    theirs = cuda.shfl_xor_sync(0xFFFFFFFF, left if odd else right, 1)
                    four = theirs | right << 16 if odd else left | theirs << 16
                    tiles[at + 8 * ROW * half] = int32(four)
            hopper.fence_async()
            cuda.syncwarp()
            if lane == 0:
                hopper.tma_store2(to_map, m0 + row, n0 // 4 + ROW * box, tiles, slab)
                hopper.tma_commit()

    return leave


def quantised(factors):
    """The finish that multiplies each column of C by its factor, float32 on the GPU, and makes int8 of it.

    `store` stores a pair of sums, `leaving` builds the function by which all leave; both read `operands`.
    """
    return SimpleNamespace(store=store_quantised, leaving=leaving, operands=(factors,))


# --- the same in a kernel of its own, to be timed beside it ---


@cuda.jit
def quantise_fours(sums, factors, words):
    """words[i] = four neighbours of a row of sums, times their columns' factors, as int8."""
    four = cuda.local.array(VECTOR, int32)
    i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if i < words.size:
        load4(four, 0, sums, VECTOR * i)
        n = VECTOR * i % factors.size
        low = packed(four, 0, factors[n], factors[n + 1])
        words[i] = int32(low | packed(four, 2, factors[n + 2], factors[n + 3]) << 16)


def apart(sums, factors, c):
    """c [M, N] of int8 = the sums, int32, each times its column's factor, rounded and limited as by `quantised`; N is
    a multiple of 4."""
    words = c.reshape(c.size).view(np.int32)
    quantise_fours[-(-words.size // THREADS), THREADS](sums.reshape(sums.size), factors, words)


def ways(launch, y, seed=5):
    """By name, what becomes of the product that `launch(y, None)` computes of int8 normals, 32 times as large.

    `fused()` and `separate()` leave the same in `found`; `saved_bytes` are those of the sums, written and read again.
    """
    a, *_ = launch(y, None, by=lambda *arguments, finish: arguments)
    M, N = y.shape
    scale = SPREAD / (32 * 32 * np.sqrt(a.shape[1]))
    factors = cuda.to_device((np.random.default_rng(seed).uniform(0.5, 1.5, N) * scale).astype(np.float32))
    found = cuda.device_array((M, N), np.int8)

    fused = partial(launch, found, quantised(factors))

    def separate():
        launch(y, None)
        apart(y, factors, found)

    return {"quantised": SimpleNamespace(fused=fused, separate=separate, found=found, saved_bytes=2 * y.nbytes)}
