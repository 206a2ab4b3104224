"""Minimal filtering: two neighbouring outputs of three taps by four products in place of six, F(2, 3).

    outputs = of_products @ ((of_taps @ taps) * (of_inputs @ inputs))
    dtaps = of_taps.T @ ((of_products.T @ doutputs) * (of_inputs @ inputs))

The same for the rows and for the columns of a window: 2 x 2 outputs, a patch, of 3 x 3 taps take 4 x 4 products.
Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2016.
"""

from functools import lru_cache
from importlib import import_module

from numba import cuda, float32, int32, int64, uint32

from lessons.toolkit.memory import VECTOR, copy4_async, load4, load4_or_zero, store4
from lessons.toolkit.pasted import pasted
from lessons.toolkit.tiles import ceil_div
from lessons.toolkit.unroll import inlined, unroll, unrolled

LANES_N = import_module("lessons.08_training.helpers.register_tiles").LANES_N
TAPS = 3  # along either axis
PATCH = 2  # outputs along either axis that share their products
WINDOW = PATCH + TAPS - 1  # inputs of them
PRODUCTS = WINDOW * WINDOW
LEAST_SUM = 64  # outputs in a sum of wgrad
FILTERS = 4  # that a block transforms
LEAST_FILTERS = 32  # in a sum of dgrad
PLACE = 0x10001  # of a value in a mask: two bits, as of a test of one the compiler makes a shift, too


def fits(problem, terms, least):
    """Is this a layer of 3 x 3 taps at a stride and dilation of 1, with whole fours of channels and of filters?

    With fewer than `least` of `terms` in a sum, the roundings here can exceed the bound of a plain sum.
    """
    p = problem
    taps, steps = (p.D, p.T, p.R, p.S), tuple(p.geometry)
    one = steps[:4] == (1, 1, 1, 0) and steps[6:] == (1, 1, 1)
    return one and taps == (1, 1, TAPS, TAPS) and p.C % VECTOR == 0 and p.K % VECTOR == 0 and terms >= least


@inlined
def of_inputs(d0, d1, d2, d3):
    return d0 - d2, d1 + d2, d2 - d1, d3 - d1


@inlined
def of_taps(g0, g1, g2):
    half = float32(0.5)
    return g0, (g0 + g1 + g2) * half, (g0 - g1 + g2) * half, g2


@inlined
def of_products(m0, m1, m2, m3):
    """The two outputs."""
    return m0 + m1 + m2, m1 - m2 + m3


@inlined
def of_doutputs(d0, d1):
    """of_products.T: what becomes of the gradients of the two outputs."""
    return d0, d0 + d1, d0 - d1, d1


@inlined
def dtaps_of(m0, m1, m2, m3):
    """of_taps.T: the gradients of the three taps."""
    half = float32(0.5)
    return m0 + (m1 + m2) * half, (m1 - m2) * half, (m1 + m2) * half + m3


@inlined
@unroll
def elements_of(products, v, elements):
    """Of channel v, the elements of a patch: sums of its products, down the columns and then along the rows."""
    for s in unrolled(WINDOW):
        m0, m1 = products[s * VECTOR + v], products[(WINDOW + s) * VECTOR + v]
        m2, m3 = products[(2 * WINDOW + s) * VECTOR + v], products[(3 * WINDOW + s) * VECTOR + v]
        products[s * VECTOR + v], products[(WINDOW + s) * VECTOR + v] = of_products(m0, m1, m2, m3)
    for r in unrolled(PATCH):
        first, to = r * WINDOW * VECTOR + v, r * PATCH * VECTOR + v
        m0, m1 = products[first], products[first + VECTOR]
        m2, m3 = products[first + 2 * VECTOR], products[first + 3 * VECTOR]
        elements[to], elements[to + VECTOR] = of_products(m0, m1, m2, m3)


@inlined
def first_of_lane():
    """The thread's first row and column of a product, as in gemm_tuned; a tile is one warp's."""
    lane = uint32(cuda.threadIdx.x) % 32
    return (lane // 16 * 2 + lane % 2) * VECTOR, lane // 2 % LANES_N * VECTOR


@pasted
def patch_at(number, patches_h, patches_w):
    """The image of patch `number`, and the row and column of its first element."""
    return number // (patches_h * patches_w), number // patches_w % patches_h * PATCH, number % patches_w * PATCH


@pasted
def window_row(dy, patch, r, k, pad_h, pad_w):
    """Where in dy row r of a patch's window begins, at filter k; and a bit for each pixel of it that lies inside."""
    N, _, P, Q, K = dy.shape
    n, h, w = patch
    p, q = int32(h + r) + int32(pad_h - TAPS + 1), int32(w) + int32(pad_w - TAPS + 1)
    inside = uint32(0)
    for s in range(WINDOW):
        if int64(n) < N and p >= 0 and p < P and q + s >= 0 and q + s < Q:
            inside |= uint32(PLACE) << uint32(s)
    return uint32(((int64(n) * P + p) * Q + q) * K + k), inside  # below zero it wraps, as do sums with it


def asking(BLOCK_K, B_STRIDE, THREADS):
    """Build the device function that asks for the next pair of tiles, of BLOCK_K filters.

    A `source` has a row of four filters' windows in registers (`window`), where in dy it begins (`at`), a bit for
    each pixel (`inside`), the first filter (`k`); where in a_tile its sums belong (`to`), the lane with the other
    row (`partner`), its `sign`; where copies of filters begin, and where they go.
    """
    COPIES = BLOCK_K * B_STRIDE // (THREADS * VECTOR)

    @inlined
    @unroll
    def ask(source, here, tiles, start):
        """The row of the next window to registers, the next filters on their way. The last pair is brought twice."""
        dy, filters, window, at, inside, k, _, _, _, filters_at, copied = source
        K, gemm_k = dy.shape[4], int64(here[0])
        inside = inside if gemm_k + k < K else uint32(0)
        for s in unrolled(WINDOW):
            dy_at = uint32(uint32(at + gemm_k) + s * uint32(K))
            load4_or_zero(window, s * VECTOR, dy, dy_at, inside & uint32(PLACE << s) != 0)
        for turn in unrolled(COPIES):  # in memory they lie as in shared memory
            piece = turn * THREADS * VECTOR
            copy4_async(tiles, start + copied + piece, filters, filters_at + gemm_k * B_STRIDE + piece)
        if gemm_k + BLOCK_K < K:
            here[0] = uint32(gemm_k + BLOCK_K)

    return ask


def leaving(of, BLOCK_M, THREAD_M, THREAD_N, ROW):
    """Build the device function that leaves a warp's row of products in shared memory, ROW values for each patch."""
    row_of, TILE = of.row_of, of.ACC

    @pasted
    @unroll
    def leave_products(tiles, acc):
        thread = uint32(cuda.threadIdx.x)
        warp, (thread_m, thread_n) = thread // 32, first_of_lane()
        for product in unrolled(WINDOW):
            for i in unrolled(THREAD_M):
                there = ((warp * WINDOW + product) * BLOCK_M + thread_m + row_of(i)) * ROW + thread_n
                for j in unrolled(THREAD_N // VECTOR):
                    store4(tiles, there + j * VECTOR * LANES_N, acc, product * TILE + i * THREAD_N + j * VECTOR)

    return leave_products


def storing(BLOCK_M, BLOCK_N, ROW, THREADS):
    """Build the device function that stores the patches of a block whose products lie in shared memory."""
    ROUNDS = BLOCK_M * BLOCK_N // (THREADS * VECTOR)
    COLUMNS = BLOCK_N // ROUNDS  # channels that leave at a time

    @pasted
    @unroll
    def store_patches(dx, tiles, N, first_patch, patches_h, patches_w, block_n):
        """Four channels of a patch at a time, a patch by neighbouring threads. Each row of tiles is a product."""
        products = cuda.local.array(PRODUCTS * VECTOR, float32)
        elements = cuda.local.array(PATCH * PATCH * VECTOR, float32)
        _, _, H, W, C = dx.shape
        thread = uint32(cuda.threadIdx.x)
        column = thread // (COLUMNS // VECTOR)
        n, h, w = patch_at(uint32(first_patch + column), patches_h, patches_w)
        for turn in range(ROUNDS):
            channel = turn * COLUMNS + thread % (COLUMNS // VECTOR) * VECTOR
            for i in unrolled(PRODUCTS):
                load4(products, i * VECTOR, tiles, (i * BLOCK_M + column) * ROW + channel)
            for v in unrolled(VECTOR):
                elements_of(products, v, elements)
            c = block_n * BLOCK_N + channel
            out = ((int64(n) * H + h) * W + w) * C + c
            for i in unrolled(PATCH * PATCH):
                if int64(n) < N and c < C and h + i // PATCH < H and w + i % PATCH < W:
                    store4(dx, out + (i // PATCH * W + i % PATCH) * C, elements, i * VECTOR)

    return store_patches


# --- the filter, flipped ---


@lru_cache
def transforming(BLOCK_N):
    """The kernel that works out what becomes of filters, BLOCK_N channels side by side."""

    @cuda.jit
    def transform_filters(filt, filters):
        """filters[block, k, product, c]: what becomes of filt[k, 0, r, s, c], flipped; zeros beyond K and C."""
        K, _, _, _, C = filt.shape
        block, c = cuda.blockIdx.y, cuda.threadIdx.x
        column, k = block * BLOCK_N + c, cuda.blockIdx.x * FILTERS + cuda.threadIdx.y
        if k < filters.shape[1]:
            across = cuda.local.array((TAPS, WINDOW), float32)
            for r in range(TAPS):
                g0 = g1 = g2 = float32(0.0)
                if k < K and column < C:
                    row = filt[k, 0, TAPS - 1 - r]
                    g0, g1, g2 = row[2, column], row[1, column], row[0, column]
                across[r, 0], across[r, 1], across[r, 2], across[r, 3] = of_taps(g0, g1, g2)
            for s in range(WINDOW):
                f0, f1, f2, f3 = of_taps(across[0, s], across[1, s], across[2, s])
                filters[block, k, s, c], filters[block, k, WINDOW + s, c] = f0, f1
                filters[block, k, 2 * WINDOW + s, c], filters[block, k, 3 * WINDOW + s, c] = f2, f3

    return transform_filters


def transform_taps(filt, filters):
    """Launch it: filters [block, k, product, c] gets what becomes of filt [K, 1, 3, 3, C]."""
    blocks, deep, _, channels = filters.shape
    transforming(channels)[(ceil_div(deep, FILTERS), blocks), (channels, FILTERS)](filt, filters)
