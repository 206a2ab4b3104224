"""conv3d_implicit_gemm_precomputed: offsets come from a table, padding from a mask; a load adds and tests.

Previous step: conv3d_implicit_gemm
New idea: the address of an element of A is a sum. Where the window begins depends on gemm_m alone, how far into the
    window the element lies on gemm_k alone. So the first is worked out once per block, the second once per layer,
    in a table. Padding falls apart in the same way: each row has a mask with a bit for every t, r and s that falls
    outside the image, each gemm_k the bits of its own t, r and s. A load is one addition and one AND.
Loads per FMA: 0.023 from global and 0.19 from shared memory. But for 2048 multiply-adds a thread now spends 12
    additions, 12 conversions to an address and 4 ANDs, where there would be 15 divisions.
Run: python -m lessons.05_implicit_gemm conv3d_implicit_gemm_precomputed
"""

from functools import lru_cache
from math import gcd

from numba import cuda, float32, int32, int64, uint32

from lessons.toolkit.grid import add_up, choose, jit, partial_outputs
from lessons.toolkit.memory import (
    VECTOR,
    aligned,
    copy1_or_zero,
    copy4_or_zero,
    load4,
    shared_array,
    store4,
    wait_async,
)
from lessons.toolkit.tiles import WORD, mark_padding, mask_words, window_table
from lessons.toolkit.unroll import inlined, unroll, unrolled

LANES_M, LANES_N = 4, 8  # the 32 lanes of a warp, as rows and columns
# What a full GPU reaches with a tile, as a share of the best, and the tile. BLOCKS_PER_SM leaves each thread at most
# 65536 / threads / BLOCKS_PER_SM registers
TILES = (
    (1.00, {"BLOCK_M": 64, "BLOCK_N": 128, "THREAD_M": 16, "THREAD_N": 8, "BLOCKS_PER_SM": 4}),
    (0.98, {"BLOCK_M": 128, "BLOCK_N": 64, "THREAD_M": 16, "THREAD_N": 8, "BLOCKS_PER_SM": 4}),
    (0.98, {"BLOCK_M": 64, "BLOCK_N": 64, "THREAD_M": 8, "THREAD_N": 8, "BLOCKS_PER_SM": 6}),
    (0.50, {"BLOCK_M": 32, "BLOCK_N": 32, "THREAD_M": 8, "THREAD_N": 4, "BLOCKS_PER_SM": 16}),
)
BLOCK_K, NARROW_BLOCK_K = 16, 8  # the latter where values are copied one by one, four times as many copies
GROUP_M = 8  # rows of blocks that run together and share filters in L2
TUNABLES = {
    "BLOCK_M": (32, 64, 96, 128),
    "BLOCK_N": (32, 64, 128),
    "BLOCK_K": (8, 16),
    "THREAD_M": (8, 12, 16),
    "THREAD_N": (4, 8),
    "BLOCKS_PER_SM": (2, 3, 4, 6, 16),
    "GROUP_M": (1, 8),
    "SPLIT_K": (1, 2, 3, 4, 6, 8, 16),
}
SHARED_BYTES = 49152


@lru_cache
def plan(GEMM_M, GEMM_N, GEMM_K, C):
    """The tile for a matrix product of this size, of windows with C channels."""
    block_k = NARROW_BLOCK_K if C % VECTOR else BLOCK_K
    return {**choose(TILES, GEMM_M, GEMM_N, GEMM_K), "BLOCK_K": block_k, "GROUP_M": GROUP_M}


def shipped(problem):
    """The tile that the problem runs with unless another is asked for."""
    return plan(problem.N * problem.O * problem.P * problem.Q, problem.K, problem.reduction, problem.C)


@inlined
def keep(acc, m, n, GEMM_M, GEMM_N, operands):
    pass  # nothing follows the convolution


@lru_cache
def specialise(
    wide, wide_y, WORDS, BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N, BLOCKS_PER_SM, GROUP_M,
    finish=keep, store4=store4, rounded=float32,
):  # fmt: skip
    """Build the kernel, masks of WORDS words; `wide` and `wide_y` promise 128-bit access to x and filt, and to y.

    An epilogue brings `finish`, which works on a thread's sums and may read `operands`; `store4` and `rounded` are of
    y's type.
    """
    WARP_M, WARP_N = LANES_M * THREAD_M, LANES_N * THREAD_N
    if BLOCK_M % WARP_M or BLOCK_N % WARP_N or THREAD_N % VECTOR:
        raise ValueError(f"{BLOCK_M=} {BLOCK_N=} must be multiples of {WARP_M=} {WARP_N=}")
    WARPS_N = BLOCK_N // WARP_N
    THREADS = BLOCK_M // WARP_M * WARPS_N * 32
    registers = min(255, 65536 // (THREADS * BLOCKS_PER_SM))
    if THREADS > 1024 or registers < THREAD_M * THREAD_N + THREAD_N * VECTOR + VECTOR:
        raise ValueError(f"{THREAD_M=} {THREAD_N=} {BLOCKS_PER_SM=}: more than {registers=} for each of {THREADS=}")
    PIECE = VECTOR if wide else 1  # values copied at a time
    COLUMNS = BLOCK_K // PIECE  # pieces in a row of either tile
    ROWS = THREADS // COLUMNS  # rows copied at a time
    if BLOCK_K % VECTOR or THREADS % COLUMNS or BLOCK_M % ROWS or BLOCK_N % ROWS:
        raise ValueError(f"{BLOCK_M=} {BLOCK_N=} {BLOCK_K=} do not divide among {THREADS=}")
    GROUP = gcd(8, ROWS)  # of 8 rows, as many as fill the 32 banks are copied together
    TOGETHER = min(GROUP, max(1, 32 // BLOCK_K))
    APART = GROUP // TOGETHER
    A_TURNS, B_TURNS = BLOCK_M // ROWS, BLOCK_N // ROWS
    PARTS = BLOCK_K // VECTOR  # the multiplication, and with it the copy, goes on in parts of four k
    STRIDE = BLOCK_K + VECTOR  # padded: rows start on 16-byte boundaries, neighbours in different banks
    A_SIZE, SIZE = BLOCK_M * STRIDE, (BLOCK_M + BLOCK_N) * STRIDE
    BOTH = 2 * SIZE
    STARTS, MASKS = BLOCK_M + BLOCK_N, BLOCK_M * WORDS
    ENTRY = 1 + WORDS  # of the table: an offset and the bits it needs
    needed = 4 * (BOTH + STARTS + MASKS)
    if needed > SHARED_BYTES:
        raise ValueError(
            f"{BLOCK_M=} {BLOCK_N=} {BLOCK_K=} {WORDS=}: tiles and masks take {needed} bytes, {SHARED_BYTES=}"
        )
    B_FRAG, ACC = THREAD_N * VECTOR, THREAD_M * THREAD_N
    copy_or_zero = copy4_or_zero if wide else copy1_or_zero

    @inlined
    def filter_of(row):
        """Which filter a row of b_tile holds: lanes read neighbouring rows, and yet each owns filters in fours."""
        j = row % WARP_N // LANES_N
        return row // WARP_N * WARP_N + j // VECTOR * VECTOR * LANES_N + row % LANES_N * VECTOR + j % VECTOR

    @inlined
    def copied_row(thread):
        """The row of either tile that a thread copies: neighbouring rows, padded as they are, would share banks."""
        row = thread // COLUMNS
        return row // GROUP * GROUP + row % GROUP // TOGETHER + row % TOGETHER * APART

    @inlined
    @unroll
    def copy_part(part, x, filt, starts, masks, entry, gemm_k, GEMM_K, x_at, outside, filt_at, tiles, start):
        """A part of the next pair of tiles, on its way without waiting; what lies outside becomes zero."""
        row = copied_row(uint32(cuda.threadIdx.x))
        to = start + row * STRIDE + uint32(cuda.threadIdx.x) % COLUMNS * PIECE
        # addresses first: the compiler does not move reads of shared memory past copies
        for turn in unrolled(A_TURNS):
            if turn % PARTS == part:
                x_at[turn] = uint32(int64(starts[row + turn * ROWS]) + entry[0])
                outside[turn] = masks[(row + turn * ROWS) * WORDS] & entry[1]
                for word in range(1, WORDS):
                    outside[turn] |= masks[(row + turn * ROWS) * WORDS + word] & entry[1 + word]
        for turn in unrolled(B_TURNS):
            if turn % PARTS == part:
                filt_at[turn] = starts[BLOCK_M + row + turn * ROWS] + gemm_k
        for turn in unrolled(A_TURNS):
            if turn % PARTS == part:
                copy_or_zero(tiles, to + turn * ROWS * STRIDE, x, int64(x_at[turn]), outside[turn] == 0)
        for turn in unrolled(B_TURNS):
            if turn % PARTS == part:
                copy_or_zero(tiles, to + A_SIZE + turn * ROWS * STRIDE, filt, int64(filt_at[turn]), gemm_k < GEMM_K)

    @inlined
    @unroll
    def multiply_part(k, thread_m, thread_n, tiles, a_frag, b_frag, acc):
        """The products of four k."""
        for j in range(THREAD_N):
            load4(b_frag, j * VECTOR, tiles, k + A_SIZE + (thread_n + j * LANES_N) * STRIDE)
        for i in unrolled(THREAD_M):
            load4(a_frag, 0, tiles, k + (thread_m + i * LANES_M) * STRIDE)
            for v in range(VECTOR):
                for j in range(THREAD_N):
                    acc[i * THREAD_N + j] += a_frag[v] * b_frag[j * VECTOR + v]

    @jit(THREADS, BLOCKS_PER_SM)
    @unroll
    def conv3d_implicit_gemm_precomputed(x, filt, table, y, outputs, geometry, tiles_k, operands):
        tiles = shared_array(BOTH)
        origin = cuda.shared.array(3, uint32)
        starts = cuda.shared.array(STARTS, uint32)
        masks = cuda.shared.array(MASKS, uint32)
        entry = cuda.local.array(ENTRY, uint32)
        x_at = cuda.local.array(A_TURNS, uint32)
        outside = cuda.local.array(A_TURNS, uint32)
        filt_at = cuda.local.array(B_TURNS, uint32)
        a_frag = cuda.local.array(VECTOR, float32)
        b_frag = cuda.local.array(B_FRAG, float32)
        acc = cuda.local.array(ACC, float32)
        N, D, H, W, C = x.shape
        K, T, R, S, _ = filt.shape
        O, P, Q = outputs
        GEMM_M, GEMM_N, GEMM_K = uint32(N * O * P * Q), uint32(K), uint32(T * R * S * C)

        # locate: the block; blocks walk down GROUP_M rows before they move one column to the right
        blocks_m, blocks_n = (GEMM_M + BLOCK_M - 1) // BLOCK_M, (GEMM_N + BLOCK_N - 1) // BLOCK_N
        split, block = cuda.blockIdx.x // (blocks_m * blocks_n), cuda.blockIdx.x % (blocks_m * blocks_n)
        group, place = block // (GROUP_M * blocks_n), block % (GROUP_M * blocks_n)
        height = min(blocks_m - group * GROUP_M, GROUP_M)
        m0 = uint32((group * GROUP_M + place % height) * BLOCK_M)
        n0 = uint32(place // height * BLOCK_N)

        # locate: the thread, which has every LANES_M-th row of its warp's piece of a_tile, every LANES_N-th of b_tile
        thread = uint32(cuda.threadIdx.x)
        warp, lane = thread // 32, thread % 32
        thread_m = warp // WARPS_N * WARP_M + lane // 16 * 2 + lane % 2
        thread_n = warp % WARPS_N * WARP_N + lane // 2 % LANES_N
        gemm_k = uint32(split * tiles_k * BLOCK_K + thread % COLUMNS * PIECE)

        # locate: where each row of A begins in x, and which of its taps fall outside; where each filter begins
        for row in range(thread, BLOCK_M, THREADS):
            gemm_m = uint32(m0 + row)
            n = gemm_m // uint32(O * P * Q)
            d = int32(gemm_m // uint32(P * Q) % uint32(O)) * geometry.stride_d - geometry.pad_d
            h = int32(gemm_m // uint32(Q) % uint32(P)) * geometry.stride_h - geometry.pad_h
            w = int32(gemm_m % uint32(Q)) * geometry.stride_w - geometry.pad_w
            starts[row] = uint32(int64(((n * D + d) * H + h) * W + w) * C)  # if it wraps around, the sum wraps back
            for word in range(WORDS):
                masks[row * WORDS + word] = uint32(0) if gemm_m < GEMM_M else uint32(0xFFFFFFFF)
            masks[row * WORDS + WORDS - 1] |= uint32(1) << uint32(WORD - 1)  # beyond the last gemm_k
            mark_padding(masks, row * WORDS, 0, T, d, geometry.dilation_d, D)
            mark_padding(masks, row * WORDS, T, R, h, geometry.dilation_h, H)
            mark_padding(masks, row * WORDS, T + R, S, w, geometry.dilation_w, W)
        for row in range(thread, BLOCK_N, THREADS):
            gemm_n = min(n0 + filter_of(row), GEMM_N - 1)  # beyond the last: its products are not stored
            starts[BLOCK_M + row] = gemm_n * GEMM_K
        if thread == 0:  # what only the store needs takes no registers meanwhile
            origin[0], origin[1], origin[2] = split, m0, n0
        cuda.syncthreads()

        for i in range(ACC):
            acc[i] = float32(0.0)

        # stage: the first pair of tiles
        start = int64(0)
        for word in range(ENTRY):
            entry[word] = table[gemm_k * ENTRY + word]
        for part in unrolled(PARTS):  # int64(part), as for a literal Numba would compile copy_part once more
            copy_part(
                int64(part), x, filt, starts, masks, entry, gemm_k, GEMM_K, x_at, outside, filt_at, tiles, start
            )
        for word in range(ENTRY):
            entry[word] = table[(gemm_k + BLOCK_K) * ENTRY + word]
        wait_async()
        cuda.syncthreads()

        for _ in range(int32(tiles_k)):
            gemm_k = uint32(gemm_k + BLOCK_K)
            for part in unrolled(PARTS):
                # stage: a part of the next pair; all of it at once would hold up the reads of this one
                copy_part(
                    int64(part), x, filt, starts, masks, entry, gemm_k, GEMM_K, x_at, outside, filt_at, tiles,
                    SIZE - start,
                )  # fmt: skip

                # multiply: four k
                multiply_part(start + part * VECTOR, thread_m, thread_n, tiles, a_frag, b_frag, acc)
            for word in range(ENTRY):  # of the pair after the next: reading takes its time
                entry[word] = table[(gemm_k + BLOCK_K) * ENTRY + word]

            # stage: the next pair is complete once all threads have it in shared memory
            wait_async()
            cuda.syncthreads()
            start = SIZE - start

        # store: SPLIT_K partial outputs, one after another
        split, m0, n0 = origin[0], origin[1], origin[2]
        n = n0 + filter_of(thread_n)
        finish(acc, m0 + thread_m, n, GEMM_M, GEMM_N, operands)
        for i in unrolled(THREAD_M):
            m = m0 + thread_m + i * LANES_M
            at = (int64(split) * GEMM_M + m) * GEMM_N + n
            for j in range(0, THREAD_N, VECTOR):
                if wide_y:
                    if m < GEMM_M and n + j * LANES_N < GEMM_N:
                        store4(y, at + j * LANES_N, acc, i * THREAD_N + j)
                else:
                    for v in range(VECTOR):
                        if m < GEMM_M and n + j * LANES_N + v < GEMM_N:
                            y[at + j * LANES_N + v] = rounded(acc[i * THREAD_N + j + v])

    return conv3d_implicit_gemm_precomputed, THREADS


def sums_of_a_thread(BLOCK_M, BLOCK_N, THREAD_M, THREAD_N, **_):
    """Where in a block's tile the sums of a thread lie, as an epilogue is told; rows and groups are a step apart."""
    return {
        "BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "ROWS": THREAD_M, "ROW_STEP": LANES_M,
        "GROUPS": THREAD_N // VECTOR, "GROUP_STEP": VECTOR * LANES_N, "WIDTH": VECTOR, "TOGETHER": 1,
    }  # fmt: skip


def prepare(filt, problem, **tile):
    """The filter, and for each gemm_k its offset from the start of a window and the bits of its t, r and s."""
    tile = {**shipped(problem), **tile}
    beyond = (tile["SPLIT_K"] + 2) * tile["BLOCK_K"]  # the last block asks for the pair after the last, and the next
    return filt, window_table(problem, beyond)


def workspace(problem, **tile):
    """Partial outputs, where SPLIT_K is more than 1."""
    return partial_outputs(problem, {**shipped(problem), **tile}["SPLIT_K"])


def launch(x, prepared, y, geometry, partials=None, epilogue=None, **tile):
    """y = the convolution; an `epilogue` follows before the store or, where partial outputs are added, after that.

    It has `check(y)`; for `specialise` `hooks(**sums_of_a_thread)` and `stores(y)`; `operands`; and
    `complete(partials, y)`, which gets None in place of partial outputs if the kernel wrote y.
    """
    filt, table = prepared
    N, O, P, Q, K = y.shape
    GEMM_M, GEMM_K = N * O * P * Q, filt.size // K
    tile = {**plan(GEMM_M, K, GEMM_K, x.shape[4]), **tile}
    splits = tile.pop("SPLIT_K")
    largest = max(x.size, filt.size, GEMM_M + tile["BLOCK_M"])
    if largest >= 2**32:
        raise ValueError(f"x, filt or a column of y has {largest} elements: 32-bit offsets reach 2**32 of them")
    wide = aligned(x.reshape(x.size // x.shape[4], x.shape[4]), filt.reshape(K * GEMM_K // x.shape[4], x.shape[4]))
    hooks, operands = {}, ()
    if epilogue is not None:
        epilogue.check(y)
        if splits == 1:
            hooks, operands = {**epilogue.hooks(**sums_of_a_thread(**tile)), **epilogue.stores(y)}, epilogue.operands
    kernel, THREADS = specialise(wide, aligned(y.reshape(GEMM_M, K)), mask_words(*filt.shape[1:4]), **hooks, **tile)
    blocks = -(-GEMM_M // tile["BLOCK_M"]) * -(-K // tile["BLOCK_N"])
    tiles_k = -(-GEMM_K // (tile["BLOCK_K"] * splits))
    flat = y.reshape(y.size)
    sums = partials if splits > 1 else flat
    kernel[blocks * splits, THREADS](x, filt, table, sums, (O, P, Q), geometry, tiles_k, operands)
    if epilogue is not None:
        epilogue.complete(partials if splits > 1 else None, y)
    elif splits > 1:
        add_up(partials, flat)
