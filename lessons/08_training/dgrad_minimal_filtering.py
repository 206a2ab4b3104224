"""dgrad_minimal_filtering: four elements of dx by 16 multiplications in place of 36.

Previous step: dgrad_strided
Builds on: dgrad_implicit_gemm
New idea: minimal filtering (lesson 05) along both axes. Two neighbouring elements of 3 taps take 4 products, of sums
    and differences; so 2 x 2 elements, a patch, take 4 x 4. For each of these 16, the sum over filters is a matrix
    product of its own: GEMM_M = patches of dx, GEMM_N = C channels, GEMM_K = K. A block does all 16 at once, and
    what becomes of dy never leaves shared memory (Lavin and Gray, "Fast Algorithms for Convolutional Neural
    Networks", 2016). Each warp has two of the products, multiplied as in gemm_tuned (lesson 04).
    What becomes of the filter, a small kernel writes first: in training the filter is new at each step.
    For filters of 3 x 3 at a stride and dilation of 1, and C a multiple of 4; others go to dgrad_strided.
Loads per FMA: (THREAD_M + THREAD_N) / (THREAD_M * THREAD_N) = 0.25 shared values in 0.06 instructions;
    1 / BLOCK_M + 1 / BLOCK_N = 0.05 global values. And 4 multiply-adds where the definition has 9.
Run: python -m lessons.08_training dgrad_minimal_filtering
"""

import importlib
from typing import NamedTuple

import numpy as np
from numba import cuda, float32, int32, int64, uint32, uint64

from lessons.tiling import ceil_div, multiple
from lessons.unrolled import inlined, unroll, unrolled
from lessons.wide import VECTOR, aligned, copy4_async, jit, load4, store4, wait_async

strided = importlib.import_module("lessons.08_training.dgrad_strided")
offsets32 = importlib.import_module("lessons.08_training.helpers.offsets32")
register_tiles = importlib.import_module("lessons.08_training.helpers.register_tiles")

REQUIRES = "8.0"  # for the shared memory of a block
TAPS = 3  # along either axis
PATCH = 2  # elements of dx along either axis that share their products
WINDOW = PATCH + TAPS - 1  # of dy
PRODUCTS = WINDOW * WINDOW
BLOCK_M, BLOCK_N, BLOCK_K = 32, 64, 8  # patches, channels, filters
THREAD_M, THREAD_N = 8, 8
OF_WARP = 2  # products
THREADS = 32 * PRODUCTS // OF_WARP
A_STRIDE = PRODUCTS * BLOCK_M + VECTOR  # of a filter; keeps eight filters' stores apart
B_STRIDE = PRODUCTS * BLOCK_N
A_SIZE, SIZE = BLOCK_K * A_STRIDE, BLOCK_K * (A_STRIDE + B_STRIDE)
PLACE = 0x10001  # of a window in a mask: two bits, as the compiler makes three instructions of a test of one
SHARED_BYTES = 2 * 4 * SIZE  # two pairs of tiles
HALF_N = BLOCK_N // 2  # channels that leave at a time
B_PIECES = BLOCK_N // VECTOR
ROWS = THREADS // B_PIECES  # of b_tile, copied at a time
COPIES = BLOCK_K * PRODUCTS // ROWS
if THREADS != BLOCK_M * BLOCK_K or THREADS != BLOCK_M * HALF_N // VECTOR or PRODUCTS * BLOCK_M * HALF_N > 2 * SIZE:
    raise ValueError(
        f"{BLOCK_M=} {BLOCK_N=} {BLOCK_K=}: must make {THREADS=} windows of a patch and a filter, as many fours of a "
        f"patch's channels in half of a tile, and room for that half in two pairs of tiles"
    )

of = register_tiles.register_tiles(BLOCK_M, BLOCK_N, THREAD_M, THREAD_N, 1)
load_k, multiply_k, row_of = of.load_k, of.multiply_k, of.row_of
ACC, A_FRAG, B_FRAG = of.ACC, of.A_FRAG, of.B_FRAG
load1_or_zero = offsets32.load1_or_zero


@cuda.jit
def transform_filters(filt, filters):
    """filters[k, product, c]: what becomes of filt[k, 0, r, s, c], flipped; zeros beyond K and C."""
    c, k = cuda.grid(2)
    K, _, _, _, C = filt.shape
    if k < filters.shape[0] and c < filters.shape[2]:
        across = cuda.local.array((TAPS, WINDOW), float32)
        for r in range(TAPS):
            g0 = g1 = g2 = float32(0.0)
            if k < K and c < C:
                flipped = TAPS - 1 - r
                g0, g1, g2 = filt[k, 0, flipped, 2, c], filt[k, 0, flipped, 1, c], filt[k, 0, flipped, 0, c]
            half = float32(0.5)
            across[r, 0], across[r, 1] = g0, (g0 + g1 + g2) * half
            across[r, 2], across[r, 3] = (g0 - g1 + g2) * half, g2
        for s in range(WINDOW):
            g0, g1, g2 = across[0, s], across[1, s], across[2, s]
            filters[k, s, c], filters[k, WINDOW + s, c] = g0, (g0 + g1 + g2) * half
            filters[k, 2 * WINDOW + s, c], filters[k, 3 * WINDOW + s, c] = (g0 - g1 + g2) * half, g2


@inlined
@unroll
def load_window(dy, at, inside, row, K, window):
    """The thread's window of dy to registers, of one filter; what lies outside becomes zero."""
    for r in unrolled(WINDOW):
        for s in unrolled(WINDOW):
            offset = uint32(at + r * row + s * K)
            load1_or_zero(window, r * WINDOW + s, dy, offset, inside & uint32(PLACE << r * WINDOW + s) != 0)


@inlined
@unroll
def store_window(window, tiles, at):
    """What becomes of the window to shared memory, one value for each product."""
    for s in unrolled(WINDOW):
        d0, d1, d2, d3 = window[s], window[WINDOW + s], window[2 * WINDOW + s], window[3 * WINDOW + s]
        window[s], window[WINDOW + s] = d0 - d2, d1 + d2
        window[2 * WINDOW + s], window[3 * WINDOW + s] = d2 - d1, d3 - d1
    for r in unrolled(WINDOW):
        d0, d1, d2, d3 = window[r * WINDOW], window[r * WINDOW + 1], window[r * WINDOW + 2], window[r * WINDOW + 3]
        first = uint64(at + r * WINDOW * BLOCK_M)
        tiles[first], tiles[first + uint64(BLOCK_M)] = d0 - d2, d1 + d2
        tiles[first + uint64(2 * BLOCK_M)], tiles[first + uint64(3 * BLOCK_M)] = d2 - d1, d3 - d1


@inlined
@unroll
def copy_filters(filters, at, row, tiles, start):
    """The next tile of what became of the filters, on its way without waiting; `row` is the size of one."""
    thread = uint32(cuda.threadIdx.x)
    first = thread // B_PIECES
    for turn in unrolled(COPIES):  # rows of a filter's products, then of the next filter's, lie one after another
        to = start + A_SIZE + (first + turn * ROWS) * BLOCK_N + thread % B_PIECES * VECTOR
        copy4_async(tiles, to, filters, at + int64(turn * ROWS * row))


@inlined
@unroll
def add_products(products, v, elements):
    """Of channel v, the elements of a patch: sums of its products, along one axis and then along the other."""
    for s in unrolled(WINDOW):
        m0, m1 = products[s * VECTOR + v], products[(WINDOW + s) * VECTOR + v]
        m2, m3 = products[(2 * WINDOW + s) * VECTOR + v], products[(3 * WINDOW + s) * VECTOR + v]
        products[s * VECTOR + v], products[(WINDOW + s) * VECTOR + v] = m0 + m1 + m2, m1 - m2 + m3
    for r in unrolled(PATCH):
        first = r * WINDOW * VECTOR + v
        m0, m1 = products[first], products[first + VECTOR]
        m2, m3 = products[first + 2 * VECTOR], products[first + 3 * VECTOR]
        elements[r * PATCH * VECTOR + v] = m0 + m1 + m2
        elements[(r * PATCH + 1) * VECTOR + v] = m1 - m2 + m3


@jit(THREADS, 1)
@unroll
def dgrad_minimal_filtering(dy, filters, dx, pad_h, pad_w):
    tiles = cuda.shared.array(0, float32)
    window = cuda.local.array(PRODUCTS, float32)
    a_frag = cuda.local.array(A_FRAG, float32)
    b_frag = cuda.local.array(B_FRAG, float32)
    acc = cuda.local.array(ACC, float32)
    acc_next = cuda.local.array(ACC, float32)
    N, _, P, Q, K = dy.shape
    _, _, H, W, C = dx.shape

    # locate: the block; those of the same patches run together and share dy in L2
    blocks_n = (C + BLOCK_N - 1) // BLOCK_N
    first_patch, n0 = cuda.blockIdx.x // blocks_n * BLOCK_M, cuda.blockIdx.x % blocks_n * BLOCK_N

    # locate: the patch of the thread, its window, and which of that lies in dy. `k` is the filter of which the thread
    # brings the window; at the end it says which four channels of the patch it stores
    thread = uint32(cuda.threadIdx.x)
    k, column = thread % BLOCK_K, thread // BLOCK_K
    patches_h, patches_w = uint32((H + 1) // PATCH), uint32((W + 1) // PATCH)
    patch = uint32(first_patch + column)
    n, h, w = patch // (patches_h * patches_w), patch // patches_w % patches_h * PATCH, patch % patches_w * PATCH
    p, q = int32(h) + int32(pad_h - TAPS + 1), int32(w) + int32(pad_w - TAPS + 1)
    inside = uint32(0)
    for r in range(WINDOW):
        for s in range(WINDOW):
            if n < N and p + r >= 0 and p + r < P and q + s >= 0 and q + s < Q:
                inside |= uint32(PLACE) << uint32(r * WINDOW + s)
    at = uint32(((int64(n) * P + p) * Q + q) * K + k)  # below zero it wraps, as do sums with it
    row = uint32(Q * K)

    # locate: the first of the warp's two products, the thread's tile in either, and what it copies of the filters
    lane, product = thread % 32, thread // 32 * OF_WARP
    thread_m, thread_n = (lane // 16 * 2 + lane % 2) * VECTOR, lane // 2 % 8 * VECTOR
    a_at, b_at = product * BLOCK_M + thread_m, A_SIZE + product * BLOCK_N + thread_n
    width = filters.shape[2]
    filters_at = int64(thread // B_PIECES) * width + n0 + thread % B_PIECES * VECTOR
    to = k * A_STRIDE + column

    for i in range(ACC):
        acc[i], acc_next[i] = float32(0.0), float32(0.0)

    # stage: the first pair of tiles
    start = int64(0)
    load_window(dy, at, inside if k < K else uint32(0), row, uint32(K), window)
    copy_filters(filters, filters_at, width, tiles, start)
    store_window(window, tiles, start + to)
    wait_async()
    cuda.syncthreads()

    # multiply: the values of the first k and product; those of each next are read while one is multiplied
    load_k(int64(0), start + a_at, start + b_at, tiles, a_frag, b_frag)
    for gemm_k in range(0, K, BLOCK_K):
        # stage: ask for the next pair, which travels while this one is multiplied. The last is brought
        # twice: with an `if` around them, loads would move behind the multiplications
        following = min(gemm_k + BLOCK_K, (K - 1) // BLOCK_K * BLOCK_K)
        brought = inside if following + k < K else uint32(0)
        load_window(dy, uint32(at + following), brought, row, uint32(K), window)
        copy_filters(filters, filters_at + following * PRODUCTS * width, width, tiles, SIZE - start)

        for step in unrolled(BLOCK_K * OF_WARP):  # a filter, and one of the warp's products
            # stage: the next pair. Of this one, all threads have the last values in registers when they meet
            if step == BLOCK_K * OF_WARP - 1:
                store_window(window, tiles, SIZE - start + to)
                wait_async()
                cuda.syncthreads()
                start = SIZE - start

            # multiply
            ahead = (step + 1) % (BLOCK_K * OF_WARP)
            next_a = start + a_at + ahead // OF_WARP * A_STRIDE + ahead % OF_WARP * BLOCK_M
            next_b = start + b_at + ahead // OF_WARP * B_STRIDE + ahead % OF_WARP * BLOCK_N
            load_k(int64((step + 1) % 2), next_a, next_b, tiles, a_frag, b_frag)
            if step % OF_WARP == 0:
                multiply_k(int64(step % 2), a_frag, b_frag, acc)
            else:
                multiply_k(int64(step % 2), a_frag, b_frag, acc_next)

    # store: half of the channels at a time; the products of a patch meet in shared memory
    products = cuda.local.array(PRODUCTS * VECTOR, float32)
    elements = cuda.local.array(PATCH * PATCH * VECTOR, float32)
    for half in unrolled(2):
        cuda.syncthreads()
        for i in unrolled(THREAD_M):
            there = (product * BLOCK_M + thread_m + row_of(i)) * HALF_N + thread_n
            store4(tiles, there, acc, i * THREAD_N + half * VECTOR)
            store4(tiles, there + BLOCK_M * HALF_N, acc_next, i * THREAD_N + half * VECTOR)
        cuda.syncthreads()
        for i in unrolled(PRODUCTS):
            load4(products, i * VECTOR, tiles, (i * BLOCK_M + column) * HALF_N + k * VECTOR)
        for v in unrolled(VECTOR):
            add_products(products, v, elements)
        c = n0 + half * HALF_N + k * VECTOR
        out = ((int64(n) * H + h) * W + w) * C + c
        for i in unrolled(PATCH * PATCH):
            if n < N and c < C and h + i // PATCH < H and w + i % PATCH < W:
                store4(dx, out + (i // PATCH * W + i % PATCH) * C, elements, i * VECTOR)


def fits(problem):
    """Does the kernel do this layer?"""
    p = problem
    taps, steps = (p.D, p.T, p.R, p.S), tuple(p.geometry)
    return taps == (1, 1, TAPS, TAPS) and steps == (1, 1, 1, 0, *steps[4:6], 1, 1, 1) and p.C % VECTOR == 0


class Prepared(NamedTuple):
    """The filter as it is; for layers that the kernel does not do, what dgrad_strided prepares."""

    filt: object
    other: object = None


def prepare(filt, problem):
    return Prepared(filt, None if fits(problem) else strided.prepare(filt, problem))


def workspace(problem):
    """Room for what becomes of the filter: whole tiles of filters and channels."""
    if not fits(problem):
        return strided.workspace(problem)
    return cuda.device_array((multiple(problem.K, BLOCK_K), PRODUCTS, multiple(problem.C, BLOCK_N)), np.float32)


def launch(dy, prepared, dx, geometry, filters=None):
    if prepared.other is not None:
        return strided.launch(dy, prepared.other, dx, geometry, filters)
    N, _, H, W, C = dx.shape
    if dy.size >= 2**32:
        raise ValueError(f"dy has {dy.size} elements: 32-bit offsets reach 2**32 of them")
    if not aligned(dx.reshape(dx.size // C, C)):
        raise ValueError("dx must begin on a 16-byte boundary")
    deep, _, width = filters.shape
    transform_filters[(ceil_div(width, 64), ceil_div(deep, 4)), (64, 4)](prepared.filt, filters)
    blocks = ceil_div(N * ((H + 1) // PATCH) * ((W + 1) // PATCH), BLOCK_M) * (width // BLOCK_N)
    dgrad_minimal_filtering[blocks, THREADS, 0, SHARED_BYTES](dy, filters, dx, geometry.pad_h, geometry.pad_w)
