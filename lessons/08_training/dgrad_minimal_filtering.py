"""dgrad_minimal_filtering: four elements of dx by 16 multiplications in place of 36.

Previous step: dgrad_strided
Builds on: dgrad_implicit_gemm
New idea: minimal filtering (lesson 05) along both axes: 2 x 2 elements, a patch, take 4 x 4 products. For each of
    these 16, the sum over filters is a matrix product of its own: GEMM_M = patches of dx, GEMM_N = C channels,
    GEMM_K = K. A block does all 16 at once, each of its four warps a row of four, and what becomes of dy never leaves
    shared memory (Lavin and Gray 2016). For filters of 3 x 3 at a stride and dilation of 1, C and K multiples of 4,
    K at least 32; others go to dgrad_strided.
Loads per FMA: (THREAD_M + THREAD_N) / (THREAD_M * THREAD_N) = 0.38 shared values in 0.09 instructions;
    1 / BLOCK_M + 1 / BLOCK_N = 0.08 global values. And 4 multiply-adds where the definition has 9.
Run: python -m lessons.08_training dgrad_minimal_filtering
"""

import importlib

import numpy as np
from numba import cuda, float32, int32, int64, uint32, uint64

from lessons.toolkit import card
from lessons.toolkit.grid import jit
from lessons.toolkit.memory import VECTOR, aligned
from lessons.toolkit.tiles import ceil_div, multiple, require_offsets
from lessons.toolkit.unroll import inlined, unroll, unrolled

strided = importlib.import_module("lessons.08_training.dgrad_strided")
filtering = importlib.import_module("lessons.08_training.helpers.filtering")
register_tiles = importlib.import_module("lessons.08_training.helpers.register_tiles")
TAPS, PATCH, WINDOW, PRODUCTS = filtering.TAPS, filtering.PATCH, filtering.WINDOW, filtering.PRODUCTS
of_inputs = filtering.of_inputs

ALGORITHM = "F(2x2,3x3)"
BLOCK_M, BLOCK_K = 16, 8  # patches, filters
THREAD_M = 4
THREADS = 32 * WINDOW  # a warp for each row of products
BLOCKS_PER_SM = 2  # one works while the other begins or ends
PAD = VECTOR  # keeps the stores of a warp apart, and each row on a 16-byte boundary
A_ROW = WINDOW * BLOCK_M + PAD  # a row of products, of one filter
# Channels of a block, of a thread, and what follows the last row: -PAD is to do without that of the row
TILES = (64, 8, PAD), (64, 8, -PAD), (32, 4, -PAD)
BLOCK_N, THREAD_N, GAP = card.largest(
    TILES, lambda tile: 2 * 4 * BLOCK_K * (WINDOW * A_ROW + tile[2] + PRODUCTS * tile[0]), BLOCKS_PER_SM
)
A_STRIDE, B_STRIDE = WINDOW * A_ROW + GAP, PRODUCTS * BLOCK_N  # all products, of one filter
A_SIZE, SIZE = BLOCK_K * A_STRIDE, BLOCK_K * (A_STRIDE + B_STRIDE)  # of a tile of A, of a pair
SHARED_BYTES = 2 * 4 * SIZE  # two pairs of tiles
LANES_K = BLOCK_K // VECTOR
OUT_ROW = BLOCK_N + PAD  # channels of a patch, as they meet at the end
of = register_tiles.register_tiles(BLOCK_M, BLOCK_N, THREAD_M, THREAD_N, BLOCKS_PER_SM)
if of.THREADS != 32 or THREADS != BLOCK_M * LANES_K * WINDOW or PRODUCTS * BLOCK_M * OUT_ROW > 2 * SIZE:
    raise ValueError(
        f"{BLOCK_M=} {BLOCK_N=} {BLOCK_K=} {THREAD_M=} {THREAD_N=} must fill {THREADS=}, two pairs hold all products"
    )
A_FRAG, B_FRAG, TILE = of.A_FRAG, of.B_FRAG, of.ACC
ACC = WINDOW * TILE
ask = filtering.asking(BLOCK_K, B_STRIDE, THREADS)  # its docstring says what a `source` is
leave_products = filtering.leaving(of, BLOCK_M, THREAD_M, THREAD_N, OUT_ROW)
store_patches = filtering.storing(BLOCK_M, BLOCK_N, OUT_ROW, THREADS)


@inlined
@unroll
def arrive(source, here, tiles, start):
    """What becomes of the window to shared memory. A sum has two rows: the thread's, and that of `partner`."""
    _, _, window, _, _, _, to, partner, sign, _, _ = source
    at = start + to
    for v in unrolled(VECTOR):
        d0, d1, d2, d3 = of_inputs(window[v], window[VECTOR + v], window[2 * VECTOR + v], window[3 * VECTOR + v])
        e0, e1 = cuda.shfl_sync(0xFFFFFFFF, d0, partner), cuda.shfl_sync(0xFFFFFFFF, d1, partner)
        e2, e3 = cuda.shfl_sync(0xFFFFFFFF, d2, partner), cuda.shfl_sync(0xFFFFFFFF, d3, partner)
        first = uint64(at + v * A_STRIDE)
        tiles[first], tiles[first + uint64(BLOCK_M)] = d0 + sign * e0, d1 + sign * e1
        tiles[first + uint64(2 * BLOCK_M)], tiles[first + uint64(3 * BLOCK_M)] = d2 + sign * e2, d3 + sign * e3


@inlined
def first_of_thread():
    """Where the thread's values of its warp's row of products begin, in either tile."""
    warp = uint32(cuda.threadIdx.x) // 32
    thread_m, thread_n = filtering.first_of_lane()
    return warp * A_ROW + thread_m, warp * WINDOW * BLOCK_N + thread_n


begin, multiply = register_tiles.double_buffered(
    of, A_STRIDE, B_STRIDE, BLOCK_K, ask, arrive, PRODUCTS=WINDOW, A_APART=BLOCK_M, B_APART=BLOCK_N,
    first_of_thread=first_of_thread,
)  # fmt: skip


@jit(THREADS, BLOCKS_PER_SM)
@unroll
def dgrad_minimal_filtering(dy, filters, dx, pad_h, pad_w):
    tiles = cuda.shared.array(0, float32)
    here = cuda.local.array(1, uint32)  # the first filter of the next pair of tiles
    window = cuda.local.array(WINDOW * VECTOR, float32)
    a_frag, b_frag = cuda.local.array(A_FRAG, float32), cuda.local.array(B_FRAG, float32)
    acc = cuda.local.array(ACC, float32)
    N, K = dy.shape[0], dy.shape[4]
    _, _, H, W, C = dx.shape

    # locate: the block; those of the same patches run together and share dy in L2
    blocks_n = (C + BLOCK_N - 1) // BLOCK_N
    first_patch, block_n = cuda.blockIdx.x // blocks_n * BLOCK_M, cuda.blockIdx.x % blocks_n

    # locate: the thread: the patch, the row of its window and the four filters that it brings
    thread = uint32(cuda.threadIdx.x)
    k, r, column = thread % LANES_K * VECTOR, thread // LANES_K % WINDOW, thread // (LANES_K * WINDOW)
    patches_h, patches_w = uint32((H + 1) // PATCH), uint32((W + 1) // PATCH)
    patch = filtering.patch_at(uint32(first_patch + column), patches_h, patches_w)
    at, inside = filtering.window_row(dy, patch, r, k, pad_h, pad_w)
    to = k * A_STRIDE + r * A_ROW + column

    # locate: the other row of its sums, as of_inputs has them, and the lane that brings it
    other, sign = uint32(2) if r < 2 else uint32(1), float32(1.0) if r == 1 else float32(-1.0)
    partner = int32(thread % 32 + other * LANES_K - r * LANES_K)

    # locate: what it copies of the filters
    filters_at, copied = int64(block_n) * filters.shape[1] * B_STRIDE + thread * VECTOR, A_SIZE + thread * VECTOR

    # stage: the first pair of tiles
    source = dy, filters, window, at, uint32(inside), k, to, partner, sign, filters_at, copied
    here[0] = uint32(0)
    begin(source, here, tiles, a_frag, b_frag)

    # multiply: for each filter the four products of the warp's row
    multiply((K + BLOCK_K - 1) // BLOCK_K, int64(0), source, here, tiles, a_frag, b_frag, acc)

    # store: the products of a patch meet in shared memory, and leave four channels at a time
    cuda.syncthreads()
    leave_products(tiles, acc)
    cuda.syncthreads()
    store_patches(dx, tiles, N, first_patch, patches_h, patches_w, block_n)


def fits(problem):
    return filtering.fits(problem, problem.K, filtering.LEAST_FILTERS)


def prepare(filt, problem):
    """The filter as it is; for layers that the kernel does not do, what dgrad_strided prepares besides."""
    return filt, None if fits(problem) else strided.prepare(filt, problem)


def workspace(problem):
    """Room for what becomes of the filter, as whole tiles."""
    if not fits(problem):
        return strided.workspace(problem)
    shape = ceil_div(problem.C, BLOCK_N), multiple(problem.K, BLOCK_K), PRODUCTS, BLOCK_N
    return cuda.device_array(shape, np.float32)


def launch(dy, prepared, dx, geometry, filters=None):
    filt, other = prepared
    if other is not None:
        return strided.launch(dy, other, dx, geometry, filters)
    N, _, H, W, C = dx.shape
    K = dy.shape[4]
    require_offsets("dy", dy.size)
    if not aligned(dy.reshape(dy.size // K, K), dx.reshape(dx.size // C, C)):
        raise ValueError("dy and dx must begin on a 16-byte boundary")
    filtering.transform_taps(filt, filters)
    blocks = ceil_div(N * ((H + 1) // PATCH) * ((W + 1) // PATCH), BLOCK_M) * filters.shape[0]
    dgrad_minimal_filtering[blocks, THREADS, 0, SHARED_BYTES](dy, filters, dx, geometry.pad_h, geometry.pad_w)
