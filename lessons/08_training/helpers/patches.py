"""What becomes of x and dy for F(2x2, 3x3), written to memory: the operands of the 16 products of a wgrad.

xs[product, patch, c] and dys[product, patch, k] have a row for each patch of 2 x 2 elements of dy, numbered through
all images. In `transform_without_gaps` products do not have the patches, of one row or column, where they are zero.
The sums of the products become the nine taps of dfilt: their parts are added up first, in order.
"""

import importlib
from functools import lru_cache

from numba import cuda, float32, int32, int64, uint32, uint64

from lessons.toolkit.memory import VECTOR, load4_or_zero, shared_array, store4
from lessons.toolkit.tiles import ceil_div
from lessons.toolkit.unroll import inlined, unroll, unrolled

filtering = importlib.import_module("lessons.08_training.helpers.filtering")
TAPS, PATCH, WINDOW, PRODUCTS = filtering.TAPS, filtering.PATCH, filtering.WINDOW, filtering.PRODUCTS
of_inputs, of_doutputs, dtaps_of = filtering.of_inputs, filtering.of_doutputs, filtering.dtaps_of
ROW, VALUES = WINDOW * VECTOR, PRODUCTS * VECTOR  # values of a row of a window, of a window, of four channels
THREADS = 128  # of a block
LANES, BLOCK_PATCHES = 16, 8  # threads that share a patch, and patches of a block, without gaps
COLUMNS = LANES * VECTOR  # channels or filters of a block there
# Of the kernels that add up
PART_THREADS = 64
ADD = 32  # elements of k and c of whose segments a block adds up
ADD_LANES = ADD // VECTOR  # threads that each product has there
ADD_THREADS = PRODUCTS * ADD_LANES
TOTALS = PRODUCTS * ADD
ON_THE_WAY = 4  # segments that a thread asks for before it adds them


# --- of one patch ---


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


@inlined
@unroll
def transform_window(values, x, n, h, w, c):
    """values[product, v]: what becomes of the window of x that begins at [n, 0, h, w], of channels c to c + 3."""
    N, _, H, W, C = x.shape
    first = uint32(((n * H + h) * W + w) * C + c)  # below zero it wraps, as do sums with it
    for r in unrolled(WINDOW):
        for s in unrolled(WINDOW):
            inside = c < C and n < N and h + r >= 0 and h + r < H and w + s >= 0 and w + s < W
            load4_or_zero(values, r * ROW + s * VECTOR, x, uint32(first + (r * W + s) * C), inside)
    for v in unrolled(VECTOR):
        for s in unrolled(WINDOW):
            sum_inputs(values, int64(s * VECTOR + v), int64(ROW))
        for r in unrolled(WINDOW):
            sum_inputs(values, int64(r * ROW + v), int64(VECTOR))


@inlined
@unroll
def transform_patch(values, dy, n, p, q, k):
    """values[product, v]: what becomes of the patch of dy that begins at [n, 0, p, q], of filters k to k + 3."""
    N, _, P, Q, K = dy.shape
    first = uint32(((n * P + p) * Q + q) * K + k)
    for i in unrolled(PATCH):
        for j in unrolled(PATCH):
            inside = k < K and n < N and p + i < P and q + j < Q
            load4_or_zero(values, i * ROW + j * VECTOR, dy, uint32(first + (i * Q + j) * K), inside)
    for v in unrolled(VECTOR):
        for i in unrolled(PATCH):
            sum_doutputs(values, int64(i * ROW + v), int64(VECTOR))
        for s in unrolled(WINDOW):
            sum_doutputs(values, int64(s * VECTOR + v), int64(ROW))


# --- each product has all patches ---


@inlined
@unroll
def store_products(values, to, patch, channel):
    """to[product, patch, channel] for all products, of four channels or filters."""
    if int64(patch) < to.shape[1]:
        for product in unrolled(PRODUCTS):
            store4(to, (int64(product) * to.shape[1] + patch) * to.shape[2] + channel, values, product * VECTOR)


@cuda.jit
def transform_x(x, xs, pad_h, pad_w, patches_h, patches_w):
    """xs[product, patch, c]: what becomes of the patch's window of x; zeros beyond the last patch."""
    values = cuda.local.array(VALUES, float32)
    fours, thread = uint32(x.shape[4] // VECTOR), uint32(cuda.grid(1))
    patch, c = thread // fours, thread % fours * VECTOR
    n, h, w = locate(patch, patches_h, patches_w)
    transform_window(values, x, n, h - pad_h, w - pad_w, c)
    store_products(values, xs, patch, c)


@cuda.jit
def transform_dy(dy, dys, patches_h, patches_w):
    """dys[product, patch, k]: what becomes of the patch of dy; zeros beyond the last patch."""
    values = cuda.local.array(VALUES, float32)
    fours, thread = uint32(dy.shape[4] // VECTOR), uint32(cuda.grid(1))
    patch, k = thread // fours, thread % fours * VECTOR
    n, p, q = locate(patch, patches_h, patches_w)
    transform_patch(values, dy, n, p, q, k)
    store_products(values, dys, patch, k)


def transform_operands(x, dy, xs, dys, geometry):
    """Launch both: xs and dys get what becomes of x and dy."""
    patches_h, patches_w = (ceil_div(extent, PATCH) for extent in dy.shape[2:4])
    blocks_x, blocks_dy = (ceil_div(array.shape[1] * (array.shape[2] // VECTOR), THREADS) for array in (xs, dys))
    transform_x[blocks_x, THREADS](x, xs, geometry.pad_h, geometry.pad_w, patches_h, patches_w)
    transform_dy[blocks_dy, THREADS](dy, dys, patches_h, patches_w)


# --- without gaps ---


@inlined
def along(extent, product):
    """Patches along an axis that a product has there: for the last one, those with a second row or column of dy."""
    return uint32(uint32(extent + (product < WINDOW - 1)) // PATCH)


@inlined
@unroll
def store_products_without_gaps(values, to, patch, n, p, q, channel, shape):
    """to[product, patch, channel] for the products that have this patch; in each they are numbered without gaps.

    Patches of an image N are zeros, behind the last of each product.
    """
    N, P, Q = shape
    behind = uint32(patch - N * along(P, 0) * along(Q, 0))
    size = uint32(to.shape[1] * to.shape[2])
    for r in unrolled(WINDOW):
        for s in unrolled(WINDOW):
            rows, columns = along(P, r), along(Q, s)
            number = uint32((n * rows + p // PATCH) * columns + q // PATCH)
            if n >= N:
                number = uint32(N * rows * columns + behind)
            if n >= N or ((r < WINDOW - 1 or p + 1 < P) and (s < WINDOW - 1 or q + 1 < Q)):
                at = uint32(number * to.shape[2] + channel + (r * WINDOW + s) * size)
                store4(to, uint64(at), values, r * ROW + s * VECTOR)


@inlined
def locate_patch(block, channels):
    """The thread's patch and channel. A block has patches side by side: what their windows share is read from L1."""
    thread, groups = uint32(cuda.threadIdx.x), uint32((channels + COLUMNS - 1) // COLUMNS)
    row, group = uint32(block // groups), uint32(block % groups)
    patch = uint32(row * BLOCK_PATCHES + thread // LANES)
    return patch, uint32(group * COLUMNS + thread % LANES * VECTOR)


@cuda.jit
def transform(x, dy, xs, dys, blocks_x, pad_h, pad_w):
    """xs[product, patch, c] and dys[product, patch, k]: what becomes of the patches; zeros beyond the last.

    The first `blocks_x` blocks work on x, the others on dy: one launch less to wait for.
    """
    values = cuda.local.array(VALUES, float32)
    N, _, P, Q, K = dy.shape
    if cuda.blockIdx.x < blocks_x:
        patch, c = locate_patch(uint32(cuda.blockIdx.x), x.shape[4])
        n, p, q = locate(patch, along(P, 0), along(Q, 0))
        transform_window(values, x, n, p - pad_h, q - pad_w, c)
        if patch < xs.shape[1] and c < x.shape[4]:
            store_products_without_gaps(values, xs, patch, n, p, q, c, (N, P, Q))
    else:
        patch, k = locate_patch(uint32(cuda.blockIdx.x - blocks_x), K)
        n, p, q = locate(patch, along(P, 0), along(Q, 0))
        transform_patch(values, dy, n, p, q, k)
        if patch < dys.shape[1] and k < K:
            store_products_without_gaps(values, dys, patch, n, p, q, k, (N, P, Q))


def transform_without_gaps(x, dy, xs, dys, geometry):
    """Launch `transform`: xs and dys get what becomes of x and dy."""
    rows = ceil_div(xs.shape[1], BLOCK_PATCHES)
    blocks_x, blocks_dy = (rows * ceil_div(array.shape[4], COLUMNS) for array in (x, dy))
    blocks = blocks_x + blocks_dy
    transform[blocks, THREADS](x, dy, xs, dys, blocks_x, geometry.pad_h, geometry.pad_w)


# --- sums become taps ---


@cuda.jit
@unroll
def add_products(sums, dfilt, splits, C):
    """dfilt[k, 0, r, s, c] from sums[split, product, k, c], both flat: part after part, then the taps of the sums."""
    total, across = cuda.local.array(PRODUCTS, float32), cuda.local.array(TAPS * WINDOW, float32)
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


def add_parts(sums, dfilt):
    """Launch it: dfilt [K, 1, 3, 3, C] from sums [split, product, K, C]."""
    splits, _, K, C = sums.shape
    flat, dflat = sums.reshape(sums.size), dfilt.reshape(dfilt.size)
    add_products[ceil_div(K * C, PART_THREADS), PART_THREADS](flat, dflat, splits, C)


@lru_cache
def adding(BLOCK_M, BLOCK_N):
    """The kernel that adds up segments: sums of BLOCK_M x BLOCK_N elements of a product."""
    SLOT = BLOCK_M * BLOCK_N

    @cuda.jit
    @unroll
    def add_products(sums, dfilt, first_segments, K, C):
        """dfilt[k, 0, r, s, c], flat: the segments of each product in their order, then the taps."""
        totals = shared_array(TOTALS)
        parts, total = cuda.local.array(ON_THE_WAY * VECTOR, float32), cuda.local.array(VECTOR, float32)
        across = cuda.local.array(TAPS * WINDOW, float32)
        thread, block = uint32(cuda.threadIdx.x), uint32(cuda.blockIdx.x)
        tiles_of_product = uint32(first_segments.shape[0]) // PRODUCTS  # one number more is the end

        # locate: elements of a tile that each product has, and the segments of the thread's product
        tile, within = block // (SLOT // ADD), block % (SLOT // ADD) * ADD
        product, lane = thread // ADD_LANES, thread % ADD_LANES * VECTOR
        tile_of_all = product * tiles_of_product + tile
        segment, end = first_segments[tile_of_all], first_segments[tile_of_all + 1]

        # stage: the totals of all products
        for v in unrolled(VECTOR):
            total[v] = float32(0.0)
        while segment < end:
            for turn in unrolled(ON_THE_WAY):
                at = uint32((segment + turn) * SLOT + within + lane)
                load4_or_zero(parts, turn * VECTOR, sums, at, segment + turn < end)
            for turn in unrolled(ON_THE_WAY):
                for v in unrolled(VECTOR):
                    total[v] += parts[turn * VECTOR + v]
            segment = uint32(segment + ON_THE_WAY)
        store4(totals, product * ADD + lane, total, 0)
        cuda.syncthreads()

        # store: the taps of one element
        if thread < ADD:
            blocks_m = uint32((K + BLOCK_M - 1) // BLOCK_M)
            k = tile % blocks_m * BLOCK_M + (within + thread) // BLOCK_N
            c = tile // blocks_m * BLOCK_N + (within + thread) % BLOCK_N
            if k < K and c < C:
                for s in unrolled(WINDOW):
                    m0, m1 = totals[s * ADD + thread], totals[(WINDOW + s) * ADD + thread]
                    m2, m3 = totals[(2 * WINDOW + s) * ADD + thread], totals[(3 * WINDOW + s) * ADD + thread]
                    across[s], across[WINDOW + s], across[2 * WINDOW + s] = dtaps_of(m0, m1, m2, m3)
                to = uint64(k) * TAPS * TAPS * C + c
                for r in unrolled(TAPS):
                    row, at = r * WINDOW, uint64(to + r * TAPS * C)
                    g0, g1, g2 = dtaps_of(across[row], across[row + 1], across[row + 2], across[row + 3])
                    dfilt[at], dfilt[uint64(at + C)], dfilt[uint64(at + 2 * C)] = g0, g1, g2

    return add_products


def add_segments(sums, dfilt, first_segments, BLOCK_M, BLOCK_N):
    """Launch it: tile t of the products, counted one after another, has segments first_segments[t] to [t + 1]."""
    K, C = dfilt.shape[0], dfilt.shape[4]
    blocks = first_segments.size // PRODUCTS * BLOCK_M * BLOCK_N // ADD
    adding(BLOCK_M, BLOCK_N)[blocks, ADD_THREADS](sums, dfilt.reshape(dfilt.size), first_segments, K, C)
