"""wgrad_minimal_filtering: nine elements of dfilt from four of dy, by 16 multiplications in place of 36.

Previous step: wgrad_split_k
Builds on: wgrad_implicit_gemm
New idea: a patch of dy and its window of x become 16 values each, by the matrices of dgrad_minimal_filtering. For
    each of these 16 the sum over patches is a matrix product: GEMM_M = K filters, GEMM_N = C channels, GEMM_K =
    patches. Two kernels compute these values once and write them to memory. For filters of 3 x 3 at a stride and
    dilation of 1, C and K multiples of 4, sums of 64 outputs or more, as far as 32-bit offsets reach; others go to
    wgrad_split_k.
Loads per FMA: (THREAD_M + THREAD_N) / (THREAD_M * THREAD_N) = 0.19 shared values in 0.05 instructions;
    1 / BLOCK_M + 1 / BLOCK_N = 0.016 global values. And 4 multiply-adds where the definition has 9, for 4 times the
    values of x and dy, written and read.
Run: python -m lessons.08_training wgrad_minimal_filtering
"""

import importlib
from functools import lru_cache

import numpy as np
from numba import cuda, float32, int64, uint32

from lessons.toolkit.grid import jit
from lessons.toolkit.memory import VECTOR, aligned, fetch4_or_zero, shared_array
from lessons.toolkit.narrow import narrow
from lessons.toolkit.tiles import ceil_div, multiple
from lessons.toolkit.unroll import inlined, unroll, unrolled

split_k = importlib.import_module("lessons.08_training.wgrad_split_k")
filtering = importlib.import_module("lessons.08_training.helpers.filtering")
patches = importlib.import_module("lessons.08_training.helpers.patches")
long_sums = importlib.import_module("lessons.08_training.helpers.long_sums")
register_tiles = importlib.import_module("lessons.08_training.helpers.register_tiles")
PATCH, PRODUCTS = filtering.PATCH, filtering.PRODUCTS

ALGORITHM = "F(2x2,3x3)"
TILES = split_k.TILES[:3]  # of 128 x 128, 64 x 128, 64 x 64
LEAST = 64  # the smallest of them
BLOCK_K = 8
# A thread has `here` where its copies of the next pair of tiles begin, and how many pairs are left until they go on
# where NEXT says
A_FROM, B_FROM, LEFT, NEXT, HERE = 0, 1, 2, 3, 5


def copies(THREADS, BLOCK_M, BLOCK_N):
    """Device functions: `begin_at` says where the next rows of xs and dys begin, `ask` copies pairs of tiles."""
    _, A_COLUMNS, A_ROWS, _, A_TURNS = register_tiles.copies(BLOCK_K, BLOCK_M, True, THREADS)
    _, B_COLUMNS, B_ROWS, _, B_TURNS = register_tiles.copies(BLOCK_K, BLOCK_N, True, THREADS)
    A_SIZE = BLOCK_K * BLOCK_M

    @inlined
    def begin_at(here, first, m0, n0, source):
        """NEXT is what the thread copies of the tile at m0 and n0, from row `first` of xs and dys on."""
        xs, dys = source
        GEMM_M, GEMM_N = uint32(dys.shape[2]), uint32(xs.shape[2])
        thread = uint32(cuda.threadIdx.x)
        # beyond the last column, products are not stored: any column will do
        a_column = min(uint32(m0 + thread % A_COLUMNS * VECTOR), uint32(GEMM_M - VECTOR))
        b_column = min(uint32(n0 + thread % B_COLUMNS * VECTOR), uint32(GEMM_N - VECTOR))
        here[NEXT + A_FROM] = (first + thread // A_COLUMNS) * GEMM_M + a_column
        here[NEXT + B_FROM] = (first + thread // B_COLUMNS) * GEMM_N + b_column

    @inlined
    @narrow
    @unroll
    def ask(source, here, tiles, start):
        """The next pair of tiles, on its way without waiting."""
        xs, dys = source
        GEMM_M, GEMM_N = uint32(dys.shape[2]), uint32(xs.shape[2])
        thread = int64(cuda.threadIdx.x)
        if here[LEFT] == 0:
            here[A_FROM], here[B_FROM] = here[NEXT + A_FROM], here[NEXT + B_FROM]
        else:
            here[A_FROM], here[B_FROM] = here[A_FROM] + BLOCK_K * GEMM_M, here[B_FROM] + BLOCK_K * GEMM_N
        here[LEFT] -= 1
        for turn in unrolled(A_TURNS):
            at = here[A_FROM] + turn * A_ROWS * GEMM_M
            fetch4_or_zero(tiles, start + (turn * THREADS + thread) * VECTOR, dys, at, True)
        for turn in unrolled(B_TURNS):
            at = here[B_FROM] + turn * B_ROWS * GEMM_N
            fetch4_or_zero(tiles, start + A_SIZE + (turn * THREADS + thread) * VECTOR, xs, at, True)

    return begin_at, ask


@lru_cache
def specialise(BLOCK_M, BLOCK_N, THREAD_M, THREAD_N, BLOCKS_PER_SM):
    """Build the kernel of the products for a tile."""
    of = register_tiles.register_tiles(BLOCK_M, BLOCK_N, THREAD_M, THREAD_N, BLOCKS_PER_SM)
    THREADS, A_FRAG, B_FRAG, ACC, first_of_thread, _, _, row_of, store_row = of
    begin_at, ask = copies(THREADS, BLOCK_M, BLOCK_N)
    begin, multiply = register_tiles.double_buffered(of, BLOCK_M, BLOCK_N, BLOCK_K, ask)
    BOTH = 2 * BLOCK_K * (BLOCK_M + BLOCK_N)

    @jit(THREADS, BLOCKS_PER_SM)
    @unroll
    def wgrad_minimal_filtering(xs, dys, sums):
        tiles = shared_array(BOTH)
        here = cuda.local.array(HERE, uint32)
        a_frag, b_frag = cuda.local.array(A_FRAG, float32), cuda.local.array(B_FRAG, float32)
        acc = cuda.local.array(ACC, float32)
        splits, _, GEMM_M, GEMM_N = sums.shape
        patches = xs.shape[1]
        part = patches // splits

        # locate: the block; those of the same product and part run together and share xs and dys in L2
        blocks_m, blocks_n = (GEMM_M + BLOCK_M - 1) // BLOCK_M, (GEMM_N + BLOCK_N - 1) // BLOCK_N
        of_sums, block = cuda.blockIdx.x // (blocks_m * blocks_n), cuda.blockIdx.x % (blocks_m * blocks_n)
        m0, n0 = block % blocks_m * BLOCK_M, block // blocks_m * BLOCK_N
        first = of_sums % PRODUCTS * patches + of_sums // PRODUCTS * part

        # stage: the first pair of tiles; after the last comes the first again
        source = xs, dys
        begin_at(here, first, m0, n0, source)
        here[LEFT] = 0
        begin(source, here, tiles, a_frag, b_frag)

        # multiply
        here[LEFT] = part // BLOCK_K - 1
        multiply(part // BLOCK_K, int64(0), source, here, tiles, a_frag, b_frag, acc)

        # store: the sums of a product, of one part
        thread_m, thread_n = first_of_thread()
        for i in unrolled(THREAD_M):
            m, n = m0 + thread_m + row_of(i), n0 + thread_n
            at = (int64(of_sums) * GEMM_M + m) * GEMM_N + n
            store_row(sums, at, m < GEMM_M, n, GEMM_N, acc, int64(i), True)

    return wgrad_minimal_filtering, THREADS


def fitting(K, C):
    """The tiles that are no larger than the products."""
    most_m, most_n = multiple(K, LEAST), multiple(C, LEAST)
    return [(rate, tile) for rate, tile in TILES if tile["BLOCK_M"] <= most_m and tile["BLOCK_N"] <= most_n]


@lru_cache
def plan(K, C, number):
    """The tile of the products, and into how many parts their sums, over a `number` of patches, are cut."""
    return long_sums.choose(fitting(K, C), PRODUCTS * multiple(K, LEAST), C, number)


def workspace(problem):
    """What becomes of x and dy, and the sums; for layers that the kernel does not do, wgrad_split_k's workspace."""
    p = problem
    number = p.N * ceil_div(p.P, PATCH) * ceil_div(p.Q, PATCH)
    splits = plan(p.K, p.C, number)["SPLIT_K"]
    padded = multiple(number, splits * BLOCK_K)
    fits = filtering.fits(p, p.reduction, filtering.LEAST_SUM)
    if not fits or PRODUCTS * padded * max(p.C, p.K) >= 2**32:  # 32-bit offsets reach that far
        return None, None, None, split_k.workspace(problem)
    shapes = (PRODUCTS, padded, p.C), (PRODUCTS, padded, p.K), (splits, PRODUCTS, p.K, p.C)
    return *(cuda.device_array(shape, np.float32) for shape in shapes), None


def launch(x, dy, dfilt, geometry, workspace):
    xs, dys, sums, other = workspace
    if xs is None:
        return split_k.launch(x, dy, dfilt, geometry, other)
    N, _, P, Q, K = dy.shape
    C = x.shape[4]
    if not aligned(x.reshape(x.size // C, C), dy.reshape(dy.size // K, K)):
        raise ValueError("x and dy must begin on a 16-byte boundary")
    tile = {**plan(K, C, N * ceil_div(P, PATCH) * ceil_div(Q, PATCH))}
    splits = tile.pop("SPLIT_K")
    kernel, THREADS = specialise(**tile)

    patches.transform_operands(x, dy, xs, dys, geometry)
    tiles = ceil_div(K, tile["BLOCK_M"]) * ceil_div(C, tile["BLOCK_N"])
    kernel[tiles * PRODUCTS * splits, THREADS](xs, dys, sums)
    patches.add_parts(sums, dfilt)
