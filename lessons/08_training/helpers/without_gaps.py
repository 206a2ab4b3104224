"""What becomes of x and dy for F(2x2, 3x3), where each of the 16 products has patches of its own, without gaps.

Where a patch has one row of dy only, its last four products are zeros, and where it has one column only, four others:
these products do not have the patch.
"""

import importlib

from numba import cuda, float32, uint32, uint64

from lessons.toolkit.memory import VECTOR, store4
from lessons.toolkit.tiles import ceil_div
from lessons.toolkit.unroll import inlined, unroll, unrolled

minimal_filtering = importlib.import_module("lessons.08_training.wgrad_minimal_filtering")
filtering = importlib.import_module("lessons.08_training.helpers.filtering")
PATCH, WINDOW, ROW = filtering.PATCH, filtering.WINDOW, filtering.ROW
transform_window, transform_patch = filtering.transform_window, filtering.transform_patch
locate, VALUES = minimal_filtering.locate, minimal_filtering.VALUES

TRANSFORM_LANES, TRANSFORM_PATCHES = 16, 8  # threads that share a patch, and patches of a block
TRANSFORM_COLUMNS = TRANSFORM_LANES * VECTOR  # channels or filters of a block
TRANSFORM_THREADS = TRANSFORM_LANES * TRANSFORM_PATCHES


@inlined
def along(extent, product):
    """Patches along an axis that a product has there: for the last one, those with a second row or column of dy."""
    return uint32(uint32(extent + (product < WINDOW - 1)) // PATCH)


@inlined
@unroll
def store_products(values, to, patch, n, p, q, channel, shape):
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
    thread, groups = uint32(cuda.threadIdx.x), uint32((channels + TRANSFORM_COLUMNS - 1) // TRANSFORM_COLUMNS)
    row, group = uint32(block // groups), uint32(block % groups)
    patch = uint32(row * TRANSFORM_PATCHES + thread // TRANSFORM_LANES)
    return patch, uint32(group * TRANSFORM_COLUMNS + thread % TRANSFORM_LANES * VECTOR)


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
            store_products(values, xs, patch, n, p, q, c, (N, P, Q))
    else:
        patch, k = locate_patch(uint32(cuda.blockIdx.x - blocks_x), K)
        n, p, q = locate(patch, along(P, 0), along(Q, 0))
        transform_patch(values, dy, n, p, q, k)
        if patch < dys.shape[1] and k < K:
            store_products(values, dys, patch, n, p, q, k, (N, P, Q))


def transform_operands(x, dy, xs, dys, geometry):
    """Launch `transform`: xs and dys get what becomes of x and dy."""
    rows = ceil_div(xs.shape[1], TRANSFORM_PATCHES)
    blocks_x, blocks_dy = (rows * ceil_div(array.shape[4], TRANSFORM_COLUMNS) for array in (x, dy))
    blocks = blocks_x + blocks_dy
    transform[blocks, TRANSFORM_THREADS](x, dy, xs, dys, blocks_x, geometry.pad_h, geometry.pad_w)
