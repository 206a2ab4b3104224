"""conv3d_implicit_gemm: a tiled GEMM whose matrix A is never stored: each load works out which pixel it wants.

Previous step: conv3d_direct_tiled
New idea: once a convolution is read as a matrix product, everything that made the GEMM fast applies: block, warp and
    thread tiles, 128-bit loads along the channels, two pairs of tiles in shared memory, copies that no thread waits
    for. Only the load of A differs: from (gemm_m, gemm_k) to (n, d, h, w, c), with three divisions for either
    number, and zeros where the window hangs over the edge. What says where elements lie is an *iterator*, a few
    device functions; the kernel takes any.
    The kernel is gemm_tuned's (lesson 04) with other lanes (helpers/implicit_gemm_plan.py): an asynchronous copy
    cannot transpose, so a 128-bit read brings four k of one row, not four rows of one k, and neighbouring lanes take
    neighbouring rows, to read from different banks. A store wants four neighbouring filters: the copy shuffles them.
Loads per FMA: 1 / BLOCK_M + 1 / BLOCK_N = 0.018 from global memory; (THREAD_M + THREAD_N) / (THREAD_M * THREAD_N)
    = 0.21 from shared memory, four values at a time. But for 1536 multiply-adds a thread copies 3 pieces of A: 3
    divisions for gemm_k and 3 x 3 for gemm_m, of about 20 instructions each, besides the addresses.
Run: python -m lessons.05_implicit_gemm conv3d_implicit_gemm
"""

import importlib
from functools import lru_cache

from numba import boolean, cuda, float32, int32, int64, uint32

from lessons.toolkit.grid import add_up, jit
from lessons.toolkit.memory import aligned, copy1_or_zero, copy4_or_zero, load4, shared_array, store4, wait_async
from lessons.toolkit.tiles import keep, require_offsets
from lessons.toolkit.unroll import inlined, unroll, unrolled

planning = importlib.import_module("lessons.05_implicit_gemm.helpers.implicit_gemm_plan")
Layer, Iterator, digits, nothing = planning.Layer, planning.Iterator, planning.digits, planning.nothing
LANES_M, LANES_N, VECTOR, TUNABLES = planning.LANES_M, planning.LANES_N, planning.VECTOR, planning.TUNABLES
# What a full GPU reaches with a tile, as a share of the best, and the tile. BLOCKS_PER_SM leaves each thread at most
# 65536 / threads / BLOCKS_PER_SM registers
TILES = (
    (1.00, {"BLOCK_M": 96, "BLOCK_N": 128, "THREAD_M": 12, "THREAD_N": 8, "BLOCKS_PER_SM": 2}),
    (0.90, {"BLOCK_M": 64, "BLOCK_N": 64, "THREAD_M": 8, "THREAD_N": 8, "BLOCKS_PER_SM": 6}),
    (0.50, {"BLOCK_M": 32, "BLOCK_N": 32, "THREAD_M": 8, "THREAD_N": 4, "BLOCKS_PER_SM": 16}),
)
plan, shipped, workspace = planning.planned(TILES)


# --- the iterator: where the elements lie that a block copies ---


@inlined
def begin_tile(here, gemm_k, layer):
    C, S, R = layer.x.shape[4], layer.filt.shape[3], layer.filt.shape[2]
    here[0], here[1], here[2], here[3] = digits(uint32(gemm_k), C, S, R)


@inlined
def of_x(rows, row, here, gemm_m, layer):
    x, filt, outputs, geometry, _ = layer
    N, D, H, W, C = x.shape
    O, P, Q = outputs
    c, s, r, t = int32(here[0]), int32(here[1]), int32(here[2]), int32(here[3])
    q, p, o, n = digits(gemm_m, Q, P, O)
    d = o * geometry.stride_d - geometry.pad_d + t * geometry.dilation_d
    h = p * geometry.stride_h - geometry.pad_h + r * geometry.dilation_h
    w = q * geometry.stride_w - geometry.pad_w + s * geometry.dilation_w
    inside = n < N and t < filt.shape[1] and 0 <= d < D and 0 <= h < H and 0 <= w < W
    return uint32((((n * D + d) * H + h) * W + w) * C + c), inside


@inlined
def of_filt(rows, row, here, k, gemm_k, layer):
    K, T, R, S, C = layer.filt.shape
    c, s, r, t = int32(here[0]), int32(here[1]), int32(here[2]), int32(here[3])
    return uint32((((k * T + t) * R + r) * S + s) * C + c), k < K and t < T


ANALYTIC = Iterator(nothing, nothing, begin_tile, of_x, of_filt, ROWS=0, HERE=4)


@lru_cache
def specialise(
    iterator, wide, wide_y, BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N, BLOCKS_PER_SM, GROUP_M,
    finish=keep, store4=store4, rounded=float32,
):  # fmt: skip
    """Build the kernel over an iterator; `wide` and `wide_y` promise 128-bit access to x and filt, and to y.

    `finish` works on a thread's sums and may read `operands`; `store4` and `rounded` are of y's type.
    """
    tile = BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N, BLOCKS_PER_SM
    THREADS, PIECE, COLUMNS, ROWS, STRIDE, A_SIZE, SIZE, *lanes = planning.layout(iterator.ROWS, wide, *tile)
    first_of_thread, filter_of, copied_row = lanes
    A_TURNS, B_TURNS, BOTH = BLOCK_M // ROWS, BLOCK_N // ROWS, 2 * SIZE
    PARTS = BLOCK_K // VECTOR  # the multiplication, and with it the copy, goes on in parts of four k
    B_FRAG, ACC = THREAD_N * VECTOR, THREAD_M * THREAD_N
    REMEMBERED, HERE = max(1, iterator.ROWS), iterator.HERE
    copy_or_zero = copy4_or_zero if wide else copy1_or_zero
    begin_row, begin_filter, begin_tile, of_x, of_filt, _, _ = iterator

    @inlined
    @unroll
    def copy_part(part, layer, rows, here, m0, n0, gemm_k, tiles, start):
        """A part of the next pair of tiles, on its way without waiting; what lies outside becomes zero."""
        x, filt, _, _, _ = layer
        x_at, x_inside = cuda.local.array(A_TURNS, uint32), cuda.local.array(A_TURNS, boolean)
        filt_at, filt_inside = cuda.local.array(B_TURNS, uint32), cuda.local.array(B_TURNS, boolean)
        row = copied_row(uint32(cuda.threadIdx.x))
        to = start + row * STRIDE + uint32(cuda.threadIdx.x) % COLUMNS * PIECE
        # addresses first: the compiler does not move reads of shared memory past copies
        for turn in unrolled(A_TURNS):
            if turn % PARTS == part:
                of_row = row + turn * ROWS
                x_at[turn], x_inside[turn] = of_x(rows, of_row, here, uint32(m0 + of_row), layer)
        for turn in unrolled(B_TURNS):
            if turn % PARTS == part:
                of_row = row + turn * ROWS
                filt_at[turn], filt_inside[turn] = of_filt(rows, of_row, here, n0 + filter_of(of_row), gemm_k, layer)
        for turn in unrolled(A_TURNS):
            if turn % PARTS == part:
                copy_or_zero(tiles, to + turn * ROWS * STRIDE, x, int64(x_at[turn]), x_inside[turn])
        for turn in unrolled(B_TURNS):
            if turn % PARTS == part:
                copy_or_zero(tiles, to + A_SIZE + turn * ROWS * STRIDE, filt, int64(filt_at[turn]), filt_inside[turn])

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
    def conv3d_implicit_gemm(x, filt, y, outputs, geometry, extra, tiles_k, operands):
        tiles = shared_array(BOTH)
        origin = cuda.shared.array(3, uint32)
        rows = cuda.shared.array(REMEMBERED, uint32)
        here = cuda.local.array(HERE, uint32)
        a_frag, b_frag = cuda.local.array(VECTOR, float32), cuda.local.array(B_FRAG, float32)
        acc = cuda.local.array(ACC, float32)
        N, (O, P, Q), K = x.shape[0], outputs, filt.shape[0]
        GEMM_M, GEMM_N = uint32(N * O * P * Q), uint32(K)
        layer = Layer(x, filt, outputs, geometry, extra)

        # locate: the block; blocks walk down GROUP_M rows before they move one column to the right
        blocks_m, blocks_n = (GEMM_M + BLOCK_M - 1) // BLOCK_M, (GEMM_N + BLOCK_N - 1) // BLOCK_N
        split, block = cuda.blockIdx.x // (blocks_m * blocks_n), cuda.blockIdx.x % (blocks_m * blocks_n)
        group, place = block // (GROUP_M * blocks_n), block % (GROUP_M * blocks_n)
        height = min(blocks_m - group * GROUP_M, GROUP_M)
        m0 = uint32((group * GROUP_M + place % height) * BLOCK_M)
        n0 = uint32(place // height * BLOCK_N)

        # locate: the thread, which has every LANES_M-th row of its warp's piece of a_tile, every LANES_N-th of b_tile
        thread = uint32(cuda.threadIdx.x)
        thread_m, thread_n = first_of_thread(thread)
        gemm_k = uint32(split * tiles_k * BLOCK_K + thread % COLUMNS * PIECE)

        # locate: what the iterator remembers of the block's rows
        for row in range(thread, BLOCK_M, THREADS):
            begin_row(rows, row, uint32(m0 + row), layer)
        for row in range(thread, BLOCK_N, THREADS):
            begin_filter(rows, row, n0 + filter_of(row), layer)
        if thread == 0:  # what only the store needs takes no registers meanwhile
            origin[0], origin[1], origin[2] = split, m0, n0
        cuda.syncthreads()

        for i in range(ACC):
            acc[i] = float32(0.0)

        # stage: the first pair of tiles
        start = int64(0)
        begin_tile(here, int64(gemm_k), layer)
        for part in unrolled(PARTS):  # int64(part), as for a literal Numba would compile copy_part once more
            copy_part(int64(part), layer, rows, here, m0, n0, gemm_k, tiles, start)
        begin_tile(here, gemm_k + BLOCK_K, layer)
        wait_async()
        cuda.syncthreads()

        for _ in range(int32(tiles_k)):
            gemm_k = uint32(gemm_k + BLOCK_K)
            for part in unrolled(PARTS):
                # stage: a part of the next pair; all of it at once would hold up the reads of this one
                copy_part(int64(part), layer, rows, here, m0, n0, gemm_k, tiles, SIZE - start)

                # multiply: four k
                multiply_part(start + part * VECTOR, thread_m, thread_n, tiles, a_frag, b_frag, acc)
            begin_tile(here, gemm_k + BLOCK_K, layer)  # of the pair after the next: a table takes its time

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

    return conv3d_implicit_gemm, THREADS


def multiply(iterator, x, filt, y, geometry, extra, partials, finish=None, *, SPLIT_K, **tile):
    """y = the convolution, through partial outputs where SPLIT_K is more than 1.

    A `finish` works on sums before they are stored: `hooks(y, **sums_of_a_thread)` and `stores(y)` are what
    `specialise` gets of it. `complete(partials, y)` follows the kernel; if that wrote y, there are no partials.
    """
    N, O, P, Q, K = y.shape
    C, GEMM_M, GEMM_K = x.shape[4], N * O * P * Q, filt.size // K
    require_offsets("x, filt or a column of y", x.size, filt.size, GEMM_M + tile["BLOCK_M"])
    wide = aligned(x.reshape(x.size // C, C), filt.reshape(filt.size // C, C))
    hooks, operands, sums = {}, (), y.reshape(y.size)
    if finish is not None:
        sums_of_a_thread = planning.sums_of_a_thread(**tile)
        hooks, operands = {**finish.hooks(y, **sums_of_a_thread), **finish.stores(y)}, finish.operands
    if SPLIT_K > 1:
        hooks, operands, sums = {}, (), partials
    kernel, THREADS = specialise(iterator, wide, aligned(y.reshape(GEMM_M, K)), **tile, **hooks)
    blocks = -(-GEMM_M // tile["BLOCK_M"]) * -(-K // tile["BLOCK_N"]) * SPLIT_K
    tiles_k = -(-GEMM_K // (tile["BLOCK_K"] * SPLIT_K))
    kernel[blocks, THREADS](x, filt, sums, (O, P, Q), geometry, extra, tiles_k, operands)
    if finish is not None:
        finish.complete(partials if SPLIT_K > 1 else None, y)
    elif SPLIT_K > 1:
        add_up(partials, y.reshape(y.size))


def launch(x, filt, y, geometry, partials=None, **tile):
    K, C = y.shape[4], x.shape[4]
    tile = {**plan(y.size // K, K, filt.size // K, C), **tile}
    multiply(ANALYTIC, x, filt, y, geometry, (), partials, **tile)
