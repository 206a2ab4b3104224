"""wgrad_minimal_filtering: nine elements of dfilt from four of dy, by 16 multiplications in place of 36.

Previous step: wgrad_split_k
Builds on: wgrad_implicit_gemm
New idea: the gradient of a filter of 3 x 3 goes through the matrices of dgrad_minimal_filtering, two of them on
    their side. A patch of dy and its window of x become 16 values each, and for each of these 16 the sum over patches
    is a matrix product of its own: GEMM_M = K filters, GEMM_N = C channels, GEMM_K = patches. A value that became is
    multiplied by all channels or all filters, so two kernels write them to memory, once; the products read them as
    gemm_tuned (lesson 04) reads A and B, and find nothing to work out. The sums may be cut as in wgrad_split_k.
    For filters of 3 x 3 at a stride and dilation of 1, C and K multiples of 4, sums of 64 outputs or more, as long as
    32-bit offsets reach what becomes of either operand; others go to wgrad_split_k.
Loads per FMA: (THREAD_M + THREAD_N) / (THREAD_M * THREAD_N) = 0.19 shared values in 0.05 instructions;
    1 / BLOCK_M + 1 / BLOCK_N = 0.016 global values. And 4 multiply-adds where the definition has 9, for 4 times the
    values of x and dy, written and read.
Run: python -m lessons.08_training wgrad_minimal_filtering
"""

import importlib
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numba import cuda, float32, int32, int64, uint32, uint64

from lessons.toolkit.grid import jit
from lessons.toolkit.memory import VECTOR, aligned, fetch4_or_zero, load4_or_zero, shared_array, store4, wait_async
from lessons.toolkit.tiles import ceil_div, multiple
from lessons.toolkit.unroll import inlined, unroll, unrolled

split_k = importlib.import_module("lessons.08_training.wgrad_split_k")
filtering = importlib.import_module("lessons.08_training.helpers.filtering")
long_sums = importlib.import_module("lessons.08_training.helpers.long_sums")
register_tiles = importlib.import_module("lessons.08_training.helpers.register_tiles")
LANES_N = register_tiles.LANES_N
TAPS, PATCH, WINDOW, PRODUCTS = filtering.TAPS, filtering.PATCH, filtering.WINDOW, filtering.PRODUCTS
of_inputs, of_doutputs, dtaps_of = filtering.of_inputs, filtering.of_doutputs, filtering.dtaps_of

ALGORITHM = "F(2x2,3x3)"
TILES = split_k.TILES[:3]  # of 128 x 128, 64 x 128, 64 x 64
LEAST = 64  # the smallest of them
BLOCK_K = 8
ROW = WINDOW * VECTOR  # of a window, of four channels or filters
TRANSFORM_THREADS = 128
ADD_THREADS = 64


@inlined
def locate(patch, patches_h, patches_w):
    """The image of a patch, and its first row and column. Unsigned: a division takes a third of the instructions."""
    rows, columns = uint32(patches_h), uint32(patches_w)
    row = uint32(patch // columns)
    return int32(row // rows), int32(row % rows) * PATCH, int32(patch % columns) * PATCH


@inlined
def sum_inputs(values, at, step):
    """Of four values, `step` apart, what becomes of inputs, in their place."""
    d0, d1, d2, d3 = values[at], values[at + step], values[at + 2 * step], values[at + 3 * step]
    values[at], values[at + step], values[at + 2 * step], values[at + 3 * step] = of_inputs(d0, d1, d2, d3)


@inlined
def sum_doutputs(values, at, step):
    """Of two values, `step` apart, the four that become of gradients of outputs, there and behind."""
    d0, d1 = values[at], values[at + step]
    values[at], values[at + step], values[at + 2 * step], values[at + 3 * step] = of_doutputs(d0, d1)


@cuda.jit
@unroll
def transform_x(x, xs, pad_h, pad_w, patches_h, patches_w):
    """xs[product, patch, c]: what becomes of the patch's window of x; zeros beyond the last patch."""
    values = cuda.local.array(PRODUCTS * VECTOR, float32)
    N, _, H, W, C = x.shape
    fours, thread = uint32(C // VECTOR), uint32(cuda.grid(1))
    patch, c = thread // fours, thread % fours * VECTOR
    n, first_h, first_w = locate(patch, patches_h, patches_w)
    h, w = first_h - pad_h, first_w - pad_w
    first = uint32(((n * H + h) * W + w) * C + c)  # below zero it wraps, as do sums with it
    for r in unrolled(WINDOW):
        for s in unrolled(WINDOW):
            inside = n < N and h + r >= 0 and h + r < H and w + s >= 0 and w + s < W
            load4_or_zero(values, r * ROW + s * VECTOR, x, uint32(first + (r * W + s) * C), inside)
    for v in unrolled(VECTOR):
        for s in unrolled(WINDOW):
            sum_inputs(values, int64(s * VECTOR + v), int64(ROW))
        for r in unrolled(WINDOW):
            sum_inputs(values, int64(r * ROW + v), int64(VECTOR))
    if int64(patch) < xs.shape[1]:
        for product in unrolled(PRODUCTS):
            store4(xs, (int64(product) * xs.shape[1] + patch) * C + c, values, product * VECTOR)


@cuda.jit
@unroll
def transform_dy(dy, dys, patches_h, patches_w):
    """dys[product, patch, k]: what becomes of the patch of dy; zeros beyond the last patch."""
    values = cuda.local.array(PRODUCTS * VECTOR, float32)
    N, _, P, Q, K = dy.shape
    fours, thread = uint32(K // VECTOR), uint32(cuda.grid(1))
    patch, k = thread // fours, thread % fours * VECTOR
    n, p, q = locate(patch, patches_h, patches_w)
    first = uint32(((n * P + p) * Q + q) * K + k)
    for i in unrolled(PATCH):
        for j in unrolled(PATCH):
            inside = n < N and p + i < P and q + j < Q
            load4_or_zero(values, i * ROW + j * VECTOR, dy, uint32(first + (i * Q + j) * K), inside)
    for v in unrolled(VECTOR):
        for i in unrolled(PATCH):
            sum_doutputs(values, int64(i * ROW + v), int64(VECTOR))
        for s in unrolled(WINDOW):
            sum_doutputs(values, int64(s * VECTOR + v), int64(ROW))
    if int64(patch) < dys.shape[1]:
        for product in unrolled(PRODUCTS):
            store4(dys, (int64(product) * dys.shape[1] + patch) * K + k, values, product * VECTOR)


@cuda.jit
@unroll
def add_products(sums, dfilt, splits, C):
    """dfilt[k, 0, r, s, c] from sums[split, product, k, c], both flat: part after part, then the taps of the sums."""
    total = cuda.local.array(PRODUCTS, float32)
    across = cuda.local.array(TAPS * WINDOW, float32)
    size = uint32(dfilt.size // (TAPS * TAPS))
    i = uint32(cuda.grid(1))  # k and c
    if i < size:
        for product in unrolled(PRODUCTS):
            total[product] = float32(0.0)
        for split in range(splits):
            for product in unrolled(PRODUCTS):
                total[product] += sums[uint64(split * PRODUCTS + product) * size + i]
        for s in unrolled(WINDOW):
            g0, g1, g2 = dtaps_of(total[s], total[WINDOW + s], total[2 * WINDOW + s], total[3 * WINDOW + s])
            across[s], across[WINDOW + s], across[2 * WINDOW + s] = g0, g1, g2
        to = uint64(i // uint32(C)) * TAPS * TAPS * C + i % uint32(C)
        for r in unrolled(TAPS):
            row, first = r * WINDOW, uint64(to + r * TAPS * C)
            g0, g1, g2 = dtaps_of(across[row], across[row + 1], across[row + 2], across[row + 3])
            dfilt[first], dfilt[uint64(first + C)], dfilt[uint64(first + 2 * C)] = g0, g1, g2


@lru_cache
def specialise(BLOCK_M, BLOCK_N, THREAD_M, THREAD_N, BLOCKS_PER_SM):
    """Build the kernel of the products for a tile."""
    of = register_tiles.register_tiles(BLOCK_M, BLOCK_N, THREAD_M, THREAD_N, BLOCKS_PER_SM)
    first_of_thread, load_k, multiply_k, row_of, moved = (
        of.first_of_thread, of.load_k, of.multiply_k, of.row_of, of.moved,
    )  # fmt: skip
    THREADS, A_FRAG, B_FRAG, ACC = of.THREADS, of.A_FRAG, of.B_FRAG, of.ACC
    A_COLUMNS, B_COLUMNS = BLOCK_M // VECTOR, BLOCK_N // VECTOR  # 128-bit pieces in a row of the tile
    A_ROWS, B_ROWS = THREADS // A_COLUMNS, THREADS // B_COLUMNS  # rows copied at a time
    if BLOCK_K % A_ROWS or BLOCK_K % B_ROWS or THREADS % A_COLUMNS or THREADS % B_COLUMNS:
        raise ValueError(f"{BLOCK_M=} {BLOCK_N=} {BLOCK_K=} do not divide among {THREADS=}")
    A_SIZE, SIZE = BLOCK_K * BLOCK_M, BLOCK_K * (BLOCK_M + BLOCK_N)
    BOTH = 2 * SIZE

    @inlined
    @unroll
    def copy_tiles(xs, dys, a_from, b_from, a_inside, b_inside, tiles, start):
        """The next pair of tiles, on its way without waiting; what lies outside becomes zero."""
        thread = uint32(cuda.threadIdx.x)
        C, K = uint32(xs.shape[2]), uint32(dys.shape[2])
        for turn in unrolled(BLOCK_K // A_ROWS):
            at = uint32(a_from + turn * A_ROWS * K)
            fetch4_or_zero(tiles, start + (turn * THREADS + thread) * VECTOR, dys, at, a_inside)
        for turn in unrolled(BLOCK_K // B_ROWS):
            at = uint32(b_from + turn * B_ROWS * C)
            fetch4_or_zero(tiles, start + A_SIZE + (turn * THREADS + thread) * VECTOR, xs, at, b_inside)

    @jit(THREADS, BLOCKS_PER_SM)
    @unroll
    def wgrad_minimal_filtering(xs, dys, sums):
        tiles = shared_array(BOTH)
        a_frag = cuda.local.array(A_FRAG, float32)
        b_frag = cuda.local.array(B_FRAG, float32)
        acc = cuda.local.array(ACC, float32)
        splits, _, GEMM_M, GEMM_N = sums.shape
        patches = xs.shape[1]
        part = patches // splits

        # locate: the block; those of the same product and part run together and share xs and dys in L2
        blocks_m, blocks_n = (GEMM_M + BLOCK_M - 1) // BLOCK_M, (GEMM_N + BLOCK_N - 1) // BLOCK_N
        of_sums, block = cuda.blockIdx.x // (blocks_m * blocks_n), cuda.blockIdx.x % (blocks_m * blocks_n)
        m0, n0 = block % blocks_m * BLOCK_M, block // blocks_m * BLOCK_N
        first = of_sums % PRODUCTS * patches + of_sums // PRODUCTS * part

        # locate: the thread, and what it copies
        thread = uint32(cuda.threadIdx.x)
        thread_m, thread_n = first_of_thread()
        a_column, b_column = m0 + thread % A_COLUMNS * VECTOR, n0 + thread % B_COLUMNS * VECTOR
        a_inside, b_inside = a_column < GEMM_M, b_column < GEMM_N
        a_from = uint32((first + thread // A_COLUMNS) * GEMM_M + a_column)
        b_from = uint32((first + thread // B_COLUMNS) * GEMM_N + b_column)

        for i in range(ACC):
            acc[i] = float32(0.0)

        # stage: the first pair of tiles
        start = int64(0)
        copy_tiles(xs, dys, a_from, b_from, a_inside, b_inside, tiles, start)
        wait_async()
        cuda.syncthreads()

        # multiply: the values of the first k; those of each next k are read while one is multiplied
        load_k(int64(0), start + thread_m, start + A_SIZE + thread_n, tiles, a_frag, b_frag)
        for gemm_k in range(0, part, BLOCK_K):
            # stage: the next pair, which travels while this one is multiplied; the last is brought twice
            step = BLOCK_K if gemm_k + BLOCK_K < part else 0
            a_from, b_from = uint32(a_from + step * GEMM_M), uint32(b_from + step * GEMM_N)
            copy_tiles(xs, dys, a_from, b_from, a_inside, b_inside, tiles, SIZE - start)

            for k in unrolled(BLOCK_K):  # int64(), as for a literal Numba would compile a function once more
                # stage: the next pair is complete. Of this one, all threads have the last k in registers
                if k == BLOCK_K - 1:
                    wait_async()
                    cuda.syncthreads()
                    start = SIZE - start

                # multiply
                a_at = start + (k + 1) % BLOCK_K * BLOCK_M + thread_m
                b_at = start + A_SIZE + (k + 1) % BLOCK_K * BLOCK_N + thread_n
                load_k(int64((k + 1) % 2), a_at, b_at, tiles, a_frag, b_frag)
                multiply_k(int64(k % 2), a_frag, b_frag, acc)

        # store: the sums of a product, of one part
        for i in unrolled(THREAD_M):
            m, n = m0 + thread_m + row_of(i), n0 + thread_n
            at = (int64(of_sums) * GEMM_M + m) * GEMM_N + n
            for j in range(0, THREAD_N, VECTOR):
                moved(a_frag, acc, i * THREAD_N + j)
                if m < GEMM_M and n + j * LANES_N < GEMM_N:
                    store4(sums, at + j * LANES_N, a_frag, 0)

    return wgrad_minimal_filtering, THREADS


@lru_cache
def plan(K, C, patches):
    """The tile of the products, and into how many parts their sums are cut."""
    tiles = [
        (rate, tile)
        for rate, tile in TILES
        if tile["BLOCK_M"] <= multiple(K, LEAST) and tile["BLOCK_N"] <= multiple(C, LEAST)
    ]
    return long_sums.choose(tiles, PRODUCTS * multiple(K, LEAST), C, patches)


class Workspace(NamedTuple):
    """What becomes of x and dy, and the sums; for layers that the kernel does not do, wgrad_split_k's workspace."""

    xs: object
    dys: object
    sums: object
    other: object = None


def workspace(problem):
    p = problem
    patches = p.N * ceil_div(p.P, PATCH) * ceil_div(p.Q, PATCH)
    splits = plan(p.K, p.C, patches)["SPLIT_K"]
    padded = multiple(patches, splits * BLOCK_K)
    fits = filtering.fits(p, p.reduction, filtering.LEAST_SUM)
    if not fits or PRODUCTS * padded * max(p.C, p.K) >= 2**32:  # 32-bit offsets reach that far
        return Workspace(None, None, None, split_k.workspace(problem))
    shapes = (PRODUCTS, padded, p.C), (PRODUCTS, padded, p.K), (splits, PRODUCTS, p.K, p.C)
    return Workspace(*(cuda.device_array(shape, np.float32) for shape in shapes))


def launch(x, dy, dfilt, geometry, workspace):
    xs, dys, sums, other = workspace
    if xs is None:
        return split_k.launch(x, dy, dfilt, geometry, other)
    N, _, P, Q, K = dy.shape
    C = x.shape[4]
    if not aligned(x.reshape(x.size // C, C), dy.reshape(dy.size // K, K)):
        raise ValueError("x and dy must begin on a 16-byte boundary")
    patches_h, patches_w = ceil_div(P, PATCH), ceil_div(Q, PATCH)
    tile = {**plan(K, C, N * patches_h * patches_w)}
    splits = tile.pop("SPLIT_K")
    kernel, THREADS = specialise(**tile)

    blocks = ceil_div(xs.shape[1] * (C // VECTOR), TRANSFORM_THREADS)
    transform_x[blocks, TRANSFORM_THREADS](x, xs, geometry.pad_h, geometry.pad_w, patches_h, patches_w)
    blocks = ceil_div(dys.shape[1] * (K // VECTOR), TRANSFORM_THREADS)
    transform_dy[blocks, TRANSFORM_THREADS](dy, dys, patches_h, patches_w)
    flat = sums.reshape(sums.size)
    tiles = ceil_div(K, tile["BLOCK_M"]) * ceil_div(C, tile["BLOCK_N"])
    kernel[tiles * PRODUCTS * splits, THREADS](xs, dys, sums)
    add_products[ceil_div(K * C, ADD_THREADS), ADD_THREADS](flat, dfilt.reshape(dfilt.size), splits, C)
