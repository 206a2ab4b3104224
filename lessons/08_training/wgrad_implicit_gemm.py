"""wgrad_implicit_gemm: the gradient of the filter as a matrix product, dy turned on its side times the windows of x.

Previous step: wgrad_direct
Builds on: conv3d_implicit_gemm_precomputed
New idea: dfilt is a product: GEMM_M = K filters, GEMM_N = T*R*S*C values of a window, GEMM_K = N*O*P*Q outputs. Both
    tiles are copied as they lie. Start and offset change places: what a thread copies of x is always of the same tap,
    so the tap's offset and bit stay in registers, and the table has an entry for each output: where its window
    begins, and which taps fall outside. The sum is long and the product small: most of the GPU has no block.
Loads per FMA: (THREAD_M + THREAD_N) / (THREAD_M * THREAD_N) = 0.25 shared values in 0.06 instructions;
    1 / BLOCK_M + 1 / BLOCK_N = 0.031 global values.
Run: python -m lessons.08_training wgrad_implicit_gemm
"""

import importlib
from functools import lru_cache

import numpy as np
from numba import cuda, float32, int32, int64, uint32

from lessons.toolkit.grid import jit
from lessons.toolkit.memory import aligned, fetch1_or_zero, fetch4_or_zero, shared_array
from lessons.toolkit.narrow import narrow
from lessons.toolkit.tiles import WORD, mask_words, require_offsets
from lessons.toolkit.unroll import inlined, unroll, unrolled

register_tiles = importlib.import_module("lessons.08_training.helpers.register_tiles")

TILE = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 8, "THREAD_M": 8, "THREAD_N": 8, "BLOCKS_PER_SM": 6}


@lru_cache
def specialise(wide_dy, wide, WORDS, BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N, BLOCKS_PER_SM):
    """Build the kernel, masks of WORDS words; `wide_dy` and `wide` promise 128-bit access to dy, to x and dfilt."""
    of = register_tiles.register_tiles(BLOCK_M, BLOCK_N, THREAD_M, THREAD_N, BLOCKS_PER_SM)
    THREADS, A_FRAG, B_FRAG, ACC, first_of_thread, _, _, row_of, store_row = of
    A_PIECE, A_COLUMNS, A_ROWS, A_ACROSS, A_TURNS = register_tiles.copies(BLOCK_K, BLOCK_M, wide_dy, THREADS)
    B_PIECE, B_COLUMNS, B_ROWS, B_ACROSS, B_TURNS = register_tiles.copies(BLOCK_K, BLOCK_N, wide, THREADS)
    A_SIZE, BOTH = BLOCK_K * BLOCK_M, 2 * BLOCK_K * (BLOCK_M + BLOCK_N)
    register_tiles.require_room(BOTH, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_K=BLOCK_K)
    ENTRY = 1 + WORDS  # of the table: where a window begins, and the bits of taps that fall outside
    # A thread has `here` the entries of its rows, and for each turn across a row where its tap lies, and its bits
    TAPS_AT = BLOCK_K // B_ROWS * ENTRY
    GEMM_K_AT = TAPS_AT + B_ACROSS * ENTRY  # and which output comes next
    HERE = GEMM_K_AT + 1
    fetch_a, fetch_b = (fetch4_or_zero if one else fetch1_or_zero for one in (wide_dy, wide))

    @inlined
    @narrow
    def read_entries(here, table):
        """The table's entries for the outputs whose windows the thread copies next."""
        for row in range(BLOCK_K // B_ROWS):
            k = here[GEMM_K_AT] + cuda.threadIdx.x // B_COLUMNS + row * B_ROWS
            for word in range(ENTRY):
                here[row * ENTRY + word] = table[k * ENTRY + word]

    @inlined
    @narrow
    @unroll
    def ask(source, here, tiles, start):
        """The next pair of tiles, on its way without waiting, and the entries of the one after; zeros outside."""
        x, dy, table, m0 = source
        N, O, P, Q, K = dy.shape
        GEMM_M, GEMM_K = uint32(K), uint32(N * O * P * Q)
        thread, gemm_k = cuda.threadIdx.x, here[GEMM_K_AT]  # of k in 32 bits a thread would need more registers
        for turn in unrolled(A_TURNS):
            k = int64(thread) // A_COLUMNS + turn // A_ACROSS * A_ROWS
            m = thread % A_COLUMNS * A_PIECE + turn % A_ACROSS * THREADS
            dy_at = uint32((gemm_k + k) * GEMM_M + m0 + m)
            fetch_a(tiles, start + k * BLOCK_M + m, dy, dy_at, gemm_k + k < GEMM_K and m0 + m < GEMM_M)
        for turn in unrolled(B_TURNS):
            k = int64(thread) // B_COLUMNS + turn // B_ACROSS * B_ROWS
            n = thread % B_COLUMNS * B_PIECE + turn % B_ACROSS * THREADS
            entry, tap = turn // B_ACROSS * ENTRY, TAPS_AT + turn % B_ACROSS * ENTRY
            outside = here[entry + 1] & here[tap + 1]
            for word in range(2, ENTRY):
                outside |= here[entry + word] & here[tap + word]
            fetch_b(tiles, start + A_SIZE + k * BLOCK_N + n, x, here[entry] + here[tap], outside == 0)
        here[GEMM_K_AT] = gemm_k + BLOCK_K
        read_entries(here, table)

    begin, multiply = register_tiles.double_buffered(of, BLOCK_M, BLOCK_N, BLOCK_K, ask)

    @jit(THREADS, BLOCKS_PER_SM)
    @narrow
    def wgrad_implicit_gemm(x, dy, table, dfilt, taps, geometry, tiles_k):
        tiles = shared_array(BOTH)
        here = cuda.local.array(HERE, uint32)
        a_frag, b_frag = cuda.local.array(A_FRAG, float32), cuda.local.array(B_FRAG, float32)
        acc = cuda.local.array(ACC, float32)
        _, _, H, W, C = x.shape
        N, O, P, Q, K = dy.shape
        T, R, S, C = uint32(taps[0]), uint32(taps[1]), uint32(taps[2]), uint32(C)
        GEMM_M, GEMM_N, GEMM_K = uint32(K), T * R * S * C, uint32(N * O * P * Q)

        # locate: the block; those that sum the same outputs run together, so that dy and x are shared in L2
        blocks_m, blocks_n = (GEMM_M + BLOCK_M - 1) // BLOCK_M, (GEMM_N + BLOCK_N - 1) // BLOCK_N
        split, block = cuda.blockIdx.x // (blocks_m * blocks_n), cuda.blockIdx.x % (blocks_m * blocks_n)
        m0, n0 = block % blocks_m * BLOCK_M, block // blocks_m * BLOCK_N
        here[GEMM_K_AT] = split * tiles_k * BLOCK_K
        left = (int64(GEMM_K) - here[GEMM_K_AT] + BLOCK_K - 1) // BLOCK_K

        # locate: the taps whose values of x the thread copies
        for across in range(B_ACROSS):
            gemm_n = n0 + cuda.threadIdx.x % B_COLUMNS * B_PIECE + across * THREADS
            c, tap = gemm_n % C, gemm_n // C
            s, r, t = tap % S, tap // S % R, tap // (S * R)
            tap_d, tap_h, tap_w = t * geometry.dilation_d, r * geometry.dilation_h, s * geometry.dilation_w
            at = TAPS_AT + across * ENTRY
            here[at] = ((tap_d * H + tap_h) * W + tap_w) * C + c
            for word in range(WORDS):
                here[at + 1 + word] = 0
                for bit in (t, T + r, T + R + s):
                    if bit // WORD == word:
                        here[at + 1 + word] |= 1 << bit % WORD
            if gemm_n >= GEMM_N:
                here[at + WORDS] |= 1 << WORD - 1  # which every output has

        # stage: the first pair of tiles
        source = x, dy, table, m0
        read_entries(here, table)
        begin(source, here, tiles, a_frag, b_frag)

        # multiply
        multiply(int32(min(tiles_k, left)), int64(0), source, here, tiles, a_frag, b_frag, acc)

        # store: partial gradients, one after another
        thread_m, thread_n = first_of_thread()
        for i in range(THREAD_M):
            m, n = m0 + thread_m + row_of(i), n0 + thread_n
            at = (int64(split) * GEMM_M + m) * GEMM_N + n
            store_row(dfilt, at, m < GEMM_M, n, GEMM_N, acc, i, wide)

    return wgrad_implicit_gemm, THREADS


def output_table(problem, beyond):
    """A flat device array with an entry for each output, and for `beyond` more, which all taps miss.

    An entry is where the window begins in x, then a bit for each t, r and s that falls outside, and a last one.
    """
    p, strides, pads, dilations = problem, problem.geometry[:3], problem.geometry[3:6], problem.geometry[6:]
    n, *opq = np.indices((p.N, p.O, p.P, p.Q)).reshape(4, -1)
    begins = np.transpose(opq) * strides - pads
    table = np.full((p.reduction + beyond, 1 + mask_words(p.T, p.R, p.S)), -1, np.int64)
    table[: p.reduction, 0] = (n * p.D * p.H * p.W + begins @ (p.H * p.W, p.W, 1)) * p.C
    table[: p.reduction, 1:] = 0
    table[: p.reduction, -1] = 1 << WORD - 1
    taps = [(axis, tap) for axis, extent in enumerate((p.T, p.R, p.S)) for tap in range(extent)]
    for bit, (axis, tap) in enumerate(taps):
        at = begins[:, axis] + tap * dilations[axis]
        missed = (at < 0) | (at >= (p.D, p.H, p.W)[axis])
        table[: p.reduction, 1 + bit // WORD] |= missed.astype(np.int64) << bit % WORD
    return cuda.to_device((table & 0xFFFFFFFF).astype(np.uint32).reshape(-1))


def multiply(x, dy, table, sums, filt_shape, geometry, splits, **tile):
    """Launch the kernel: `splits` partial gradients of the filter, one after another in the flat array `sums`."""
    K, T, R, S, C = filt_shape
    GEMM_N, GEMM_K = T * R * S * C, dy.size // K
    require_offsets("x, dy or the table", x.size, dy.size, table.size)
    wide = aligned(x.reshape(x.size // C, C), sums.reshape(sums.size // GEMM_N, GEMM_N))
    kernel, THREADS = specialise(aligned(dy.reshape(GEMM_K, K)), wide, mask_words(T, R, S), **tile)
    blocks = -(-K // tile["BLOCK_M"]) * -(-GEMM_N // tile["BLOCK_N"])
    tiles_k = -(-GEMM_K // (splits * tile["BLOCK_K"]))
    kernel[blocks * splits, THREADS](x, dy, table, sums, (T, R, S), geometry, tiles_k)


def workspace(problem):
    """The table: the last block asks for the pair after the last, and for the entries of the next."""
    return output_table(problem, 3 * TILE["BLOCK_K"])


def launch(x, dy, dfilt, geometry, table):
    multiply(x, dy, table, dfilt.reshape(dfilt.size), dfilt.shape, geometry, 1, **TILE)
