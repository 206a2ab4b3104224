"""conv2d_register_tiled: a thread holds ROWS x FILTERS sums in registers, and the channels stream past.

Previous step: conv2d_coarsened
New idea: registers are the fastest memory, so they hold what is used longest: with many channels the sums. One column
    of ROWS + R - 1 pixels after the other comes through L1, and meets R x FILTERS taps. These lie in shared memory in
    the order of use, so that one 128-bit read brings the taps of four filters. And no lane is idle at an image's
    edge, as threads are numbered through the tiles of all images.
Loads per FMA: 10 x 8 outputs, 5 x 5 taps: (14 + 10) / 400 = 0.06, of which 10 are 128 bits wide and shared.
Run: python -m lessons.04_register_blocking conv2d_register_tiled
"""

from functools import lru_cache

from numba import cuda, float32, uint32, uint64

from lessons.toolkit import tiles
from lessons.toolkit.grid import jit
from lessons.toolkit.memory import VECTOR, load4, shared_array
from lessons.toolkit.unroll import inlined, unroll, unrolled

ROWS, FILTERS = 10, 8  # a thread computes ROWS pixels below each other in each of FILTERS maps
THREADS, BLOCKS = 128, 4  # threads of a block, blocks that a multiprocessor is to hold at a time
TUNABLES = {"ROWS": (2, 3, 6, 10), "FILTERS": (2, 4, 6, 8, 12)}
STAGED = 4096  # floats of the filter in shared memory at a time
MOST_R = 11  # rows of a filter that are written out
ADDRESSES = 8  # registers that a thread needs besides its sums, pixels and taps


def plan(C, H, W, K, R, S, ROWS=ROWS, FILTERS=FILTERS, THREADS=THREADS, BLOCKS=BLOCKS):
    """The tile asked for, cut to fit the shape, and as many blocks as there are registers for."""
    if min(ROWS, FILTERS, THREADS, BLOCKS) < 1:
        raise ValueError(f"{ROWS=} {FILTERS=} {THREADS=} {BLOCKS=} must be at least 1")
    ROWS, FILTERS = tiles.even(H - R + 1, ROWS), min(FILTERS, K)
    column = ROWS + part(R, S, FILTERS)[0] - 1
    registers = ROWS * FILTERS + column + tiles.multiple(FILTERS, VECTOR) + ADDRESSES
    blocks = tiles.resident_blocks(BLOCKS, registers, THREADS)
    return {"ROWS": ROWS, "FILTERS": FILTERS, "THREADS": THREADS, "BLOCKS": blocks}


def shipped(problem):
    """The tile that the problem runs with unless another is asked for."""
    return plan(problem.C, problem.H, problem.W, problem.K, problem.R, problem.S)


def part(R, S, FILTERS):
    """Rows and columns of a filter that are staged together: all, or an equal part of a large one."""
    return tiles.largest_part(R, S, lambda r, s: r <= MOST_R and r * s * tiles.multiple(FILTERS, VECTOR) <= STAGED)


@lru_cache
def specialise(C, H, W, K, R, S, ROWS, FILTERS, THREADS, BLOCKS):
    """The kernel for K filters of C x R x S taps and images of H x W, and the number of tiles in an image."""
    P, Q = H - R + 1, W - S + 1
    LAST_P, LAST_K = P - ROWS, K - FILTERS
    TILES = tiles.ceil_div(P, ROWS) * Q
    GROUPS = tiles.ceil_div(K, FILTERS)
    IMAGE, PLANE = C * H * W, P * Q
    COLUMN_TAPS = tiles.multiple(FILTERS, VECTOR)  # of one row of the filters, padded to align 128-bit reads
    PART_R, PART_S = part(R, S, FILTERS)
    PARTS, begin = tiles.parts_of(C, H, W, R, S, PART_R, PART_S)
    PART = PART_S * PART_R * COLUMN_TAPS
    CHUNK = min(PARTS, STAGED // PART)  # parts staged at a time
    TILE, COLUMN, ACC = CHUNK * PART, ROWS + PART_R - 1, ROWS * FILTERS
    locate = tiles.numbering(TILES, THREADS)

    @inlined
    @unroll
    def multiply_column(x, corner, tile, at, column, taps, acc):
        """One column of pixels, from x[corner] down, with the taps of all filters that it meets, from tile[at] on."""
        for i in range(COLUMN):
            column[i] = x[uint64(corner + i * W)]
        for r in unrolled(PART_R):
            for f in range(0, FILTERS, VECTOR):
                load4(taps, f, tile, at + r * COLUMN_TAPS + f)
            for f in unrolled(FILTERS):
                for i in range(ROWS):
                    acc[f * ROWS + i] += column[i + r] * taps[f]

    @jit(THREADS, BLOCKS)
    @unroll
    def conv2d_register_tiled(x, packed, y, images):
        tile = shared_array(TILE)
        column, taps = cuda.local.array(COLUMN, float32), cuda.local.array(COLUMN_TAPS, float32)
        acc = cuda.local.array(ACC, float32)

        # locate: the last tile moves back over its neighbour, so no store needs a guard; spare threads repeat a tile
        block, group = uint32(cuda.blockIdx.x) // uint32(GROUPS), uint32(cuda.blockIdx.x) % uint32(GROUPS)
        n, number = locate(block, images)
        p, q = min(number // uint32(Q) * ROWS, LAST_P), number % uint32(Q)
        k = min(group * FILTERS, LAST_K)
        corner = n * IMAGE + p * W + q
        pixel = (n * K + k) * PLANE + p * Q + q

        for i in range(ACC):
            acc[i] = float32(0.0)
        for first in range(0, PARTS, CHUNK):
            # stage
            size = min(CHUNK, PARTS - first) * PART
            if first > 0:
                cuda.syncthreads()
            tiles.stage_chunk(tile, packed, (group * PARTS + first) * PART, size, THREADS)
            cuda.syncthreads()

            # multiply: one column of one channel after the other
            at, i = 0, first
            while at < size:
                for _ in range(PART_S):
                    multiply_column(x, corner, tile, at, column, taps, acc)
                    corner += 1
                    at += PART_R * COLUMN_TAPS
                corner += begin(i + 1) - begin(i) - PART_S  # where the next part's window begins
                i += 1

        # store
        for f in unrolled(FILTERS):
            for i in range(ROWS):
                y[uint64(pixel + f * PLANE + i * Q)] = acc[f * ROWS + i]

    return conv2d_register_tiled, TILES


def prepare(filt, problem, **tile):
    """The filter in the order of use: by group of FILTERS, channel and part, column, row."""
    K, C, R, S = filt.shape
    FILTERS = plan(C, problem.H, problem.W, K, R, S, **tile)["FILTERS"]
    weights = tiles.in_parts(filt.copy_to_host(), *part(R, S, FILTERS)).transpose(1, 3, 2, 0)
    return tiles.padded(tiles.by_groups(weights, FILTERS))


def launch(x, packed, y, **tile):
    N, C, H, W = x.shape
    K, P, Q = y.shape[1:]
    tile = plan(C, H, W, K, H - P + 1, W - Q + 1, **tile)
    kernel, per_image = specialise(C, H, W, K, H - P + 1, W - Q + 1, **tile)
    blocks = tiles.ceil_div(N * per_image, tile["THREADS"]) * tiles.ceil_div(K, tile["FILTERS"])
    kernel[blocks, tile["THREADS"]](x.reshape(x.size), packed, y.reshape(y.size), N)
