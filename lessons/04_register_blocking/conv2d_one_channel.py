"""conv2d_one_channel: a thread holds a window of pixels in registers, and the filters stream past.

Previous step: conv2d_register_tiled
Builds on: conv2d_register_tiled
New idea: with one channel the sums are short-lived, a filter's 25 products each, and what every filter uses again are
    the pixels. So the roles are swapped: a thread holds the window of ROWS x COLS pixels of the map, the filters
    stream past, and each leaves its sums at once. With more channels the window must be read anew for every filter.
Loads per FMA: 2 x 2 outputs, 5 x 5 taps, 12 filters: (18 + 84) / 1200 = 0.09; the 18 are 64 bits wide, the 84 are
    128 bits wide and shared.
Run: python -m lessons.04_register_blocking conv2d_one_channel
"""

from functools import lru_cache

from numba import cuda, float32, uint32

from lessons.toolkit import tiles
from lessons.toolkit.grid import jit
from lessons.toolkit.memory import VECTOR, aligned, load4, shared_array
from lessons.toolkit.unroll import inlined, unroll, unrolled

ROWS, COLS = 2, 2  # a thread computes ROWS x COLS pixels of every map
FILTERS = 6  # filters that are written out one after the other
THREADS, BLOCKS = 256, 4  # threads of a block, blocks that a multiprocessor is to hold at a time
TUNABLES = {"ROWS": (1, 2, 3, 6), "FILTERS": (1, 2, 4, 6, 12)}
STAGED = 4096  # floats of the filter in shared memory at a time
MOST_WINDOW, MOST_TAPS = 80, 7 * 7  # pixels that a thread holds, taps that are written out
ADDRESSES, MORE = 14, 16  # registers besides sums, pixels and four taps; and more to read windows anew


def plan(C, H, W, K, R, S, ROWS=ROWS, COLS=COLS, FILTERS=FILTERS, THREADS=THREADS, BLOCKS=BLOCKS):
    """The tile asked for, cut to fit the shape, and as many blocks as there are registers for."""
    if min(ROWS, COLS, FILTERS, THREADS, BLOCKS) < 1:
        raise ValueError(f"{ROWS=} {COLS=} {FILTERS=} {THREADS=} {BLOCKS=} must be at least 1")
    ROWS, COLS = tiles.even(H - R + 1, ROWS), min(W - S + 1, COLS)
    rows, columns = part(R, S, ROWS, COLS)
    once = rows * columns == C * R * S  # is the window read only once?
    registers = (ROWS + rows - 1) * (COLS + columns - 1) + ROWS * COLS + VECTOR + ADDRESSES + (0 if once else MORE)
    blocks = tiles.resident_blocks(BLOCKS, registers, THREADS)
    FILTERS = tiles.divisor(K, FILTERS) if once else 1
    return {"ROWS": ROWS, "COLS": COLS, "FILTERS": FILTERS, "THREADS": THREADS, "BLOCKS": blocks}


def shipped(problem):
    """The tile that the problem runs with unless another is asked for."""
    return plan(problem.C, problem.H, problem.W, problem.K, problem.R, problem.S)


def part(R, S, ROWS, COLS):
    """Rows and columns of a filter whose window is held at a time: all, or an equal part of a large one."""
    if ROWS * COLS > MOST_WINDOW:
        raise ValueError(f"{ROWS=} {COLS=}: a thread holds at most {MOST_WINDOW} pixels")
    return tiles.largest_part(
        R, S, lambda r, s: r * s <= MOST_TAPS and (ROWS + r - 1) * (COLS + s - 1) <= MOST_WINDOW
    )


@lru_cache
def specialise(C, H, W, K, R, S, paired, ROWS, COLS, FILTERS, THREADS, BLOCKS):
    """The kernel for K filters of C x R x S taps and images of H x W, and the number of tiles in an image.

    `paired` promises that every row of x and y starts on an 8-byte boundary.
    """
    P, Q = H - R + 1, W - S + 1
    LAST_P, LAST_Q = P - ROWS, Q - COLS
    TILES_Q = tiles.ceil_div(Q, COLS)
    TILES = tiles.ceil_div(P, ROWS) * TILES_Q
    IMAGE, PLANE = C * H * W, P * Q
    PART_R, PART_S = part(R, S, ROWS, COLS)
    PARTS, begin = tiles.parts_of(C, H, W, R, S, PART_R, PART_S)
    PART = tiles.multiple(PART_R * PART_S, VECTOR)  # padded so that 128-bit reads are aligned
    TOTAL = K * PARTS
    CHUNK = FILTERS * max(1, min(TOTAL, STAGED // PART) // FILTERS)  # parts staged at a time
    WINDOW_H, WINDOW_W = ROWS + PART_R - 1, COLS + PART_S - 1
    TILE, WINDOW, ACC = CHUNK * PART, WINDOW_H * WINDOW_W, ROWS * COLS
    LOAD_PAIRS, STORE_PAIRS = paired and PART_S == S and WINDOW_W % 2 == 0, paired and COLS % 2 == 0
    locate = tiles.numbering(TILES, THREADS)

    @inlined
    @unroll
    def multiply_part(window, tile, at, taps, acc):
        """The window with the taps of a filter's part, from tile[at] on."""
        for i in range(0, PART, VECTOR):
            load4(taps, i, tile, at + i)
        for r in unrolled(PART_R):
            for s in range(PART_S):
                for i in range(ROWS):
                    for j in range(COLS):
                        acc[i * COLS + j] += window[(i + r) * WINDOW_W + j + s] * taps[r * PART_S + s]

    @jit(THREADS, BLOCKS)
    @unroll
    def conv2d_one_channel(x, packed, y, images):
        tile = shared_array(TILE)
        window, taps = cuda.local.array(WINDOW, float32), cuda.local.array(PART, float32)
        acc = cuda.local.array(ACC, float32)

        # locate: the last tile moves back over its neighbour, so no store needs a guard; spare threads repeat a tile
        n, number = locate(cuda.blockIdx.x, images)
        p, q = min(number // uint32(TILES_Q) * ROWS, LAST_P), min(number % uint32(TILES_Q) * COLS, LAST_Q)
        corner = n * IMAGE + p * W + q
        pixel = n * K * PLANE + p * Q + q

        for i in unrolled(WINDOW_H):
            tiles.load_run(window, i * WINDOW_W, x, corner + i * W, WINDOW_W, LOAD_PAIRS)
        for first in range(0, TOTAL, CHUNK):
            # stage
            last = min(first + CHUNK, TOTAL)
            if first > 0:
                cuda.syncthreads()
            tiles.stage_filter(tile, packed, first * PART, (last - first) * PART, THREADS)
            cuda.syncthreads()

            for start in range(first, last, FILTERS):
                for f in unrolled(FILTERS):
                    # stage: what another part or channel looks at
                    k, i = (start + f) // PARTS, (start + f) % PARTS
                    if PARTS > 1:
                        for h in unrolled(WINDOW_H):
                            tiles.load_run(window, h * WINDOW_W, x, corner + begin(i) + h * W, WINDOW_W, LOAD_PAIRS)

                    # multiply
                    if i == 0:
                        for j in range(ACC):
                            acc[j] = float32(0.0)
                    multiply_part(window, tile, (start - first + f) * PART, taps, acc)

                    # store
                    if i == PARTS - 1:
                        for h in range(ROWS):
                            tiles.store_run(y, pixel + k * PLANE + h * Q, acc, h * COLS, COLS, STORE_PAIRS)

    return conv2d_one_channel, TILES


def prepare(filt, problem, **tile):
    """The filters one after the other, cut into parts that are padded to a multiple of four taps."""
    K, C, R, S = filt.shape
    tile = plan(C, problem.H, problem.W, K, R, S, **tile)
    rows, columns = part(R, S, tile["ROWS"], tile["COLS"])
    return tiles.padded(tiles.in_parts(filt.copy_to_host(), rows, columns).reshape(-1, rows * columns))


def launch(x, packed, y, **tile):
    N, C, H, W = x.shape
    K, P, Q = y.shape[1:]
    tile = plan(C, H, W, K, H - P + 1, W - Q + 1, **tile)
    paired = W % 2 == 0 and Q % 2 == 0 and aligned(x, y, to=8)
    kernel, per_image = specialise(C, H, W, K, H - P + 1, W - Q + 1, paired, **tile)
    blocks = tiles.ceil_div(N * per_image, tile["THREADS"])
    kernel[blocks, tile["THREADS"]](x.reshape(x.size), packed, y.reshape(y.size), N)
