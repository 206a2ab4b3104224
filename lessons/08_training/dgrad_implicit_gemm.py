"""dgrad_implicit_gemm: the gradient of the input as a matrix product that gathers dy and takes the filter as it lies.

Previous step: dgrad_direct
Builds on: conv3d_implicit_gemm_precomputed
New idea: dx is a convolution of dy: GEMM_M = N*D*H*W pixels, GEMM_N = C channels, GEMM_K = T*R*S*K. Pixel d meets
    tap t at output (d + pad_d - t*dilation_d) / stride_d, if that leaves no rest. With d + pad_d = stride_d*a + b and
    t*dilation_d = stride_d*e + f it is output a - e, if b == f. So offsets still add, one of the pixel and one of the
    tap, and a mask bit for each tap also drops those of another rest. A tile of GEMM_K stays within one tap, so the
    table needs an entry for each tile only.
    Filters are not turned round: as they lie, channels run along memory, and channels are the columns here. So b_tile
    has a row of channels for each k. If dy is transposed on its way, as gemm_tuned does with A (lesson 04), so has
    a_tile, and the multiplication is that of gemm_tuned.
Loads per FMA: (THREAD_M + THREAD_N) / (THREAD_M * THREAD_N) = 0.19 shared values in 0.05 instructions;
    1 / BLOCK_M + 1 / BLOCK_N = 0.023 global values. But with a stride of 2 in two dimensions, 3/4 of the
    multiply-adds are with zeros.
Run: python -m lessons.08_training dgrad_implicit_gemm
"""

import importlib
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numba import cuda, float32, int32, int64, uint32, uint64

from lessons.toolkit.grid import jit, partial_outputs
from lessons.toolkit.memory import (
    VECTOR,
    aligned,
    fetch1_or_zero,
    fetch4_or_zero,
    load1_or_zero,
    load4_or_zero,
    shared_array,
    store4,
    wait_async,
)
from lessons.toolkit.tiles import WORD, mask_words
from lessons.toolkit.unroll import inlined, unroll, unrolled

long_sums = importlib.import_module("lessons.08_training.helpers.long_sums")
register_tiles = importlib.import_module("lessons.08_training.helpers.register_tiles")
LANES_M, LANES_N = register_tiles.LANES_M, register_tiles.LANES_N

# What a full GPU reaches with a tile, as a share of the best, and the tile. BLOCKS_PER_SM leaves each thread at most
# 65536 / threads / BLOCKS_PER_SM registers
TILES = (
    (1.00, {"BLOCK_M": 64, "BLOCK_N": 128, "THREAD_M": 16, "THREAD_N": 8, "BLOCKS_PER_SM": 4}),
    (0.99, {"BLOCK_M": 128, "BLOCK_N": 64, "THREAD_M": 16, "THREAD_N": 8, "BLOCKS_PER_SM": 4}),
    (0.85, {"BLOCK_M": 64, "BLOCK_N": 64, "THREAD_M": 8, "THREAD_N": 8, "BLOCKS_PER_SM": 6}),
    (0.50, {"BLOCK_M": 32, "BLOCK_N": 32, "THREAD_M": 8, "THREAD_N": 4, "BLOCKS_PER_SM": 16}),
)
BLOCK_K = 8
GROUP_M = 8  # rows of blocks that run together and share filters in L2
TUNABLES = {
    "BLOCK_M": (32, 64, 128),
    "BLOCK_N": (32, 64, 128),
    "BLOCK_K": (8, 16),
    "THREAD_M": (8, 16),
    "THREAD_N": (4, 8),
    "BLOCKS_PER_SM": (2, 4, 6, 16),
    "GROUP_M": (1, 8),
    "SPLIT_K": long_sums.SPLITS,
}
SHARED_BYTES = 49152
PART = 9  # words that describe a class of pixels of dx: see `whole`


class Prepared(NamedTuple):
    """What `prepare` knows of a layer. The filter is used where it lies: new values need no new preparation."""

    filt: object
    table: object  # an entry for each tile of GEMM_K, see `tap_table`
    parts: object  # PART words for each class of pixels of dx, see `whole`
    step: tuple  # from one pixel of a class to the next, along d, h and w
    blocks_m: int
    tile: dict


@lru_cache
def plan(GEMM_M, GEMM_N, GEMM_K):
    """The tile for a matrix product of this size."""
    return {**long_sums.choose(TILES, GEMM_M, GEMM_N, GEMM_K), "BLOCK_K": BLOCK_K, "GROUP_M": GROUP_M}


def shipped(problem):
    """The tile that the problem runs with unless another is asked for."""
    return plan(problem.N * problem.D * problem.H * problem.W, problem.C, problem.reduction)


@lru_cache
def specialise(wide_dy, wide, WORDS, BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N, BLOCKS_PER_SM, GROUP_M):
    """Build the kernel, masks of WORDS words; `wide_dy` and `wide` promise 128-bit access to dy, to filt and dx."""
    A_STRIDE = BLOCK_M + VECTOR  # keeps the transposed stores apart, and each row on a 16-byte boundary
    of = register_tiles.register_tiles(BLOCK_M, BLOCK_N, THREAD_M, THREAD_N, BLOCKS_PER_SM)
    first_of_thread, load_k, multiply_k, row_of, moved = (
        of.first_of_thread, of.load_k, of.multiply_k, of.row_of, of.moved,
    )  # fmt: skip
    THREADS, A_FRAG, B_FRAG, ACC = of.THREADS, of.A_FRAG, of.B_FRAG, of.ACC
    A_PIECE, B_PIECE = VECTOR if wide_dy else 1, VECTOR if wide else 1  # values copied at a time
    A_COLUMNS, B_COLUMNS = BLOCK_K // A_PIECE, BLOCK_N // B_PIECE  # pieces along a row of dy, of the filter
    A_ROWS, B_ROWS = THREADS // A_COLUMNS, max(1, THREADS // B_COLUMNS)  # rows copied at a time
    ACROSS = max(1, B_COLUMNS // THREADS)  # turns for one row of b_tile
    if BLOCK_K % VECTOR or BLOCK_M % A_ROWS or BLOCK_K % B_ROWS or B_COLUMNS * B_ROWS % THREADS:
        raise ValueError(f"{BLOCK_M=} {BLOCK_N=} {BLOCK_K=} do not divide among {THREADS=}")
    A_TURNS, B_TURNS = BLOCK_M // A_ROWS, BLOCK_K // B_ROWS * ACROSS
    A_STAGE = A_TURNS * A_PIECE
    A_SIZE, SIZE = BLOCK_K * A_STRIDE, BLOCK_K * (A_STRIDE + BLOCK_N)
    BOTH = 2 * SIZE
    MASKS = BLOCK_M * WORDS
    ENTRY = 3 + WORDS  # of the table
    needed = 4 * (BOTH + 2 * BLOCK_M + MASKS)
    if needed > SHARED_BYTES:
        raise ValueError(
            f"{BLOCK_M=} {BLOCK_N=} {BLOCK_K=} {WORDS=}: tiles and masks take {needed} bytes, {SHARED_BYTES=}"
        )
    load_or_zero = load4_or_zero if wide_dy else load1_or_zero
    fetch_or_zero = fetch4_or_zero if wide else fetch1_or_zero

    @inlined
    def mark_missed(masks, first, bit, taps, a, b, stride, dilation, extent):
        """Set the bit of each tap along one axis whose output is not one of `extent`; `bit` is that of the first tap.

        The row's mask begins at masks[first]; the pixel is stride * a + b from the edge of the padding.
        """
        e, f = int32(uint32(dilation) // uint32(stride)), int32(uint32(dilation) % uint32(stride))
        for tap in range(taps):
            if b != 0 or a < 0 or a >= extent:
                masks[first + (bit + tap) // WORD] |= uint32(1) << uint32((bit + tap) % WORD)
            a, b = int32(a - e), int32(b - f)  # one tap on is a dilation back
            if b < 0:
                a, b = int32(a - 1), int32(b + stride)

    @inlined
    def read_entry(entry, table, tile):
        """An entry of the table, with a bit that every row has where the thread's k lie beyond the last filter."""
        for word in range(ENTRY):
            entry[word] = table[uint32(tile * ENTRY + word)]
        if uint32(cuda.threadIdx.x) % A_COLUMNS * A_PIECE >= entry[2]:
            entry[ENTRY - 1] |= uint32(1) << uint32(WORD - 1)

    @inlined
    @unroll
    def load_a(dy, starts, masks, entry, a_stage):
        """The next tile of dy to registers; what lies outside becomes zero."""
        row, column = uint32(cuda.threadIdx.x) // A_COLUMNS, uint32(cuda.threadIdx.x) % A_COLUMNS * A_PIECE
        for turn in unrolled(A_TURNS):
            at = uint32(int64(starts[row + turn * A_ROWS]) + entry[0] + column)
            outside = masks[(row + turn * A_ROWS) * WORDS] & entry[3]
            for word in range(1, WORDS):
                outside |= masks[(row + turn * A_ROWS) * WORDS + word] & entry[3 + word]
            load_or_zero(a_stage, turn * A_PIECE, dy, at, outside == 0)

    @inlined
    @unroll
    def store_a(a_stage, tiles, start):
        """Registers to shared memory, transposed on the way."""
        row, column = uint32(cuda.threadIdx.x) // A_COLUMNS, uint32(cuda.threadIdx.x) % A_COLUMNS * A_PIECE
        for turn in unrolled(A_TURNS):
            for v in range(A_PIECE):
                at = start + (column + v) * A_STRIDE + row + turn * A_ROWS
                tiles[uint64(at)] = a_stage[turn * A_PIECE + v]

    @inlined
    @unroll
    def copy_b(filt, entry, n0, GEMM_N, row_size, tiles, start):
        """The next tile of the filter, on its way without waiting; what lies outside becomes zero."""
        thread = uint32(cuda.threadIdx.x)
        for turn in unrolled(B_TURNS):
            k = uint32(thread // B_COLUMNS + turn // ACROSS * B_ROWS)
            n = uint32(thread % B_COLUMNS * B_PIECE + turn % ACROSS * THREADS)
            filt_at = uint32(entry[1] + k * row_size + n0 + n)
            inside = k < entry[2] and n0 + n < GEMM_N
            fetch_or_zero(tiles, start + A_SIZE + k * BLOCK_N + n, filt, filt_at, inside)

    @jit(THREADS, BLOCKS_PER_SM)
    @unroll
    def dgrad_implicit_gemm(dy, filt, table, parts, step, dx, inputs, geometry, blocks_m, splits):
        tiles = shared_array(BOTH)
        origin = cuda.shared.array(2, uint32)
        starts = cuda.shared.array(BLOCK_M, uint32)
        pixels = cuda.shared.array(BLOCK_M, uint32)
        masks = cuda.shared.array(MASKS, uint32)
        entry = cuda.local.array(ENTRY, uint32)
        a_stage = cuda.local.array(A_STAGE, float32)
        a_frag = cuda.local.array(A_FRAG, float32)
        b_frag = cuda.local.array(B_FRAG, float32)
        acc = cuda.local.array(ACC, float32)
        N, O, P, Q, K = dy.shape
        _, T, R, S, C = filt.shape
        D, H, W = inputs
        GEMM_M, GEMM_N = uint32(N * D * H * W), uint32(C)
        row_size = uint32(T * R * S * C)

        # locate: the block; blocks walk down GROUP_M rows before they move one column to the right
        blocks_n = (C + BLOCK_N - 1) // BLOCK_N
        split, block = cuda.blockIdx.x // (blocks_m * blocks_n), cuda.blockIdx.x % (blocks_m * blocks_n)
        group, place = block // (GROUP_M * blocks_n), block % (GROUP_M * blocks_n)
        height = min(blocks_m - group * GROUP_M, GROUP_M)
        block_m = group * GROUP_M + place % height
        n0 = uint32(place // height * BLOCK_N)

        # locate: its class of pixels of dx, and of that one's tiles of GEMM_K those of this split
        about = int64(0)
        while about + PART < parts.size and block_m >= parts[about + PART]:
            about += PART
        tiles_k = parts[about + 8]
        each = (tiles_k + splits - 1) // splits
        tile = uint32(parts[about + 7] + min(split * each, tiles_k))
        turns = min(each, tiles_k - split * each)

        # locate: the thread
        thread = uint32(cuda.threadIdx.x)
        thread_m, thread_n = first_of_thread()

        # locate: for each row which pixel it is, where in dy tap (0, 0, 0) meets it, and which taps miss
        for row in range(thread, BLOCK_M, THREADS):
            number = uint32(uint32(block_m - parts[about]) * BLOCK_M + row)
            n_d, n_h, n_w = uint32(parts[about + 1]), uint32(parts[about + 2]), uint32(parts[about + 3])
            n = int64(number // uint32(n_d * n_h * n_w))
            d = int32(number // uint32(n_h * n_w) % n_d) * step[0] + parts[about + 4]
            h = int32(number // n_w % n_h) * step[1] + parts[about + 5]
            w = int32(number % n_w) * step[2] + parts[about + 6]
            below_d, below_h, below_w = (
                uint32(d + geometry.pad_d),
                uint32(h + geometry.pad_h),
                uint32(w + geometry.pad_w),
            )
            a_d, b_d = int32(below_d // uint32(geometry.stride_d)), int32(below_d % uint32(geometry.stride_d))
            a_h, b_h = int32(below_h // uint32(geometry.stride_h)), int32(below_h % uint32(geometry.stride_h))
            a_w, b_w = int32(below_w // uint32(geometry.stride_w)), int32(below_w % uint32(geometry.stride_w))
            starts[row] = uint32((((n * O + a_d) * P + a_h) * Q + a_w) * K)  # beyond dy if all taps miss
            pixels[row] = uint32(((n * D + d) * H + h) * W + w) if n < N else GEMM_M
            for word in range(WORDS):
                masks[row * WORDS + word] = uint32(0) if n < N else uint32(0xFFFFFFFF)
            masks[row * WORDS + WORDS - 1] |= uint32(1) << uint32(WORD - 1)  # beyond the last filter
            mark_missed(masks, row * WORDS, 0, T, a_d, b_d, geometry.stride_d, geometry.dilation_d, O)
            mark_missed(masks, row * WORDS, T, R, a_h, b_h, geometry.stride_h, geometry.dilation_h, P)
            mark_missed(masks, row * WORDS, T + R, S, a_w, b_w, geometry.stride_w, geometry.dilation_w, Q)
        if thread == 0:  # what only the store needs takes no registers meanwhile
            origin[0], origin[1] = split, n0
        cuda.syncthreads()

        for i in range(ACC):
            acc[i] = float32(0.0)

        # stage: the first pair of tiles
        start = int64(0)
        read_entry(entry, table, tile)
        load_a(dy, starts, masks, entry, a_stage)
        copy_b(filt, entry, n0, GEMM_N, row_size, tiles, start)
        tile = uint32(tile + 1)
        read_entry(entry, table, tile)
        store_a(a_stage, tiles, start)
        wait_async()
        cuda.syncthreads()

        # multiply: the values of the first k; those of each next k are read while one is multiplied
        load_k(int64(0), start + thread_m, start + A_SIZE + thread_n, tiles, a_frag, b_frag)
        for _ in range(int32(turns)):
            # stage: ask for the next pair, which travels while this one is multiplied. After the last comes one that
            # is not needed: with an `if` around them, the loads would move behind the multiplications
            load_a(dy, starts, masks, entry, a_stage)
            copy_b(filt, entry, n0, GEMM_N, row_size, tiles, SIZE - start)

            for k in unrolled(BLOCK_K):  # int64(), as for a literal Numba would compile a function once more
                # stage: the next pair. Of this one, all threads have the last k in registers when they meet
                if k == BLOCK_K - 1:
                    store_a(a_stage, tiles, SIZE - start)
                    wait_async()
                    cuda.syncthreads()
                    start = SIZE - start
                    tile = uint32(tile + 1)  # what to ask for next: read here, it takes no registers before
                    read_entry(entry, table, tile)

                # multiply
                a_at = start + (k + 1) % BLOCK_K * A_STRIDE + thread_m
                b_at = start + A_SIZE + (k + 1) % BLOCK_K * BLOCK_N + thread_n
                load_k(int64((k + 1) % 2), a_at, b_at, tiles, a_frag, b_frag)
                multiply_k(int64(k % 2), a_frag, b_frag, acc)

        # store: SPLIT_K partial gradients, one after another
        split, n = origin[0], origin[1] + thread_n
        for i in unrolled(THREAD_M):
            m = pixels[thread_m + row_of(i)]
            at = (int64(split) * GEMM_M + m) * C + n
            for j in range(0, THREAD_N, VECTOR):
                moved(a_frag, acc, i * THREAD_N + j)
                if wide:
                    if m < GEMM_M and n + j * LANES_N < GEMM_N:
                        store4(dx, at + j * LANES_N, a_frag, 0)
                else:
                    for v in range(VECTOR):
                        if m < GEMM_M and n + j * LANES_N + v < GEMM_N:
                            dx[at + j * LANES_N + v] = a_frag[v]

    return dgrad_implicit_gemm, THREADS


def tap_table(problem, taps, BLOCK_K):
    """A flat device array with an entry for each tile of GEMM_K, tap by tap, and two that lie beyond all filters.

    `taps` is an array [number, 3] of t, r and s. An entry is how far from a pixel's start its tile of dy begins,
    where its tile of the filter begins, how many filters are left there, and the bits of its t, r and s.
    """
    p, g = problem, problem.geometry
    t, r, s = (axis[:, None] for axis in taps.T)
    k = np.arange(0, p.K, BLOCK_K)[None]
    e_d, e_h, e_w = t * g.dilation_d // g.stride_d, r * g.dilation_h // g.stride_h, s * g.dilation_w // g.stride_w
    words = mask_words(p.T, p.R, p.S)
    table = np.zeros((len(taps) * k.size + 2, 3 + words), np.int64)
    table[:-2, 0] = (k - ((e_d * p.P + e_h) * p.Q + e_w) * p.K).ravel()
    table[:-2, 1] = (((k * p.T + t) * p.R + r) * p.S * p.C + s * p.C).ravel()
    table[:-2, 2] = np.broadcast_to(p.K - k, (len(taps), k.size)).ravel()
    entry = np.arange(len(taps) * k.size)
    for bit in (t, p.T + r, p.T + p.R + s):
        bit = np.broadcast_to(bit, (len(taps), k.size)).ravel()
        table[entry, 3 + bit // WORD] |= 1 << bit % WORD
    return cuda.to_device((table & 0xFFFFFFFF).astype(np.uint32).reshape(-1))


def all_taps(problem):
    """Every t, r and s, in the filter's order, as an array [T*R*S, 3]."""
    return np.indices((problem.T, problem.R, problem.S)).reshape(3, -1).T


def whole(problem, tile):
    """dx as one class, which meets every tap: its first block, its pixels along d, h and w, the first of them along
    each, its first tile of GEMM_K, and the number of its tiles."""
    p = problem
    tiles = p.T * p.R * p.S * -(-p.K // tile["BLOCK_K"])
    return cuda.to_device(np.array([0, p.D, p.H, p.W, 0, 0, 0, 0, tiles], np.int32))


def prepare(filt, problem, **tile):
    """The filter as it is, and what depends on the layer's shape alone."""
    tile = {**shipped(problem), **tile}
    table = tap_table(problem, all_taps(problem), tile["BLOCK_K"])
    blocks_m = -(-problem.N * problem.D * problem.H * problem.W // tile["BLOCK_M"])
    return Prepared(filt, table, whole(problem, tile), (1, 1, 1), blocks_m, tile)


def workspace(problem, **tile):
    """Partial gradients, where SPLIT_K is more than 1."""
    return partial_outputs(problem, {**shipped(problem), **tile}["SPLIT_K"])


def launch(dy, prepared, dx, geometry, partials=None, **tile):
    filt, table, parts, step, blocks_m, chosen = prepared
    tile = {**chosen, **tile}
    N, D, H, W, C = dx.shape
    K = filt.shape[0]
    splits = tile.pop("SPLIT_K")
    largest = max(dy.size, filt.size, N * D * H * W + tile["BLOCK_M"])
    if largest >= 2**32:
        raise ValueError(f"dy, filt or a column of dx has {largest} elements: 32-bit offsets reach 2**32 of them")
    wide = aligned(filt.reshape(filt.size // C, C), dx.reshape(dx.size // C, C))
    kernel, THREADS = specialise(aligned(dy.reshape(dy.size // K, K)), wide, mask_words(*filt.shape[1:4]), **tile)
    blocks = blocks_m * -(-C // tile["BLOCK_N"])
    flat = dx.reshape(dx.size)
    sums = partials if splits > 1 else flat
    kernel[blocks * splits, THREADS](dy, filt, table, parts, step, sums, (D, H, W), geometry, blocks_m, splits)
    if splits > 1:
        long_sums.add_up(partials, flat, splits)
