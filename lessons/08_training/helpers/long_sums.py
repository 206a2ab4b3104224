"""A long sum over a small product: into how many parts to cut it, up to 128, and how to add the partial sums up."""

from functools import lru_cache
from math import sqrt

from numba import cuda, float32

from lessons.toolkit.grid import FMA_PER_BYTE, SECOND_KERNEL, multiprocessors
from lessons.toolkit.unroll import unroll, unrolled

SPLITS = tuple(range(1, 129))
START = 64  # products of each sum that a block could do before its first tiles are there
COLUMNS = 32  # outputs that a block adds up
FEW = 8  # partial sums that one thread adds up


def choose(tiles, GEMM_M, GEMM_N, GEMM_K):
    """The tile with the least estimated time, and its SPLIT_K; `tiles` maps what a full GPU reaches to constants."""
    sms = multiprocessors()

    def cost(choice):
        rate, tile, splits = choice
        size = tile["BLOCK_M"] * tile["BLOCK_N"]
        blocks = -(-GEMM_M // tile["BLOCK_M"]) * -(-GEMM_N // tile["BLOCK_N"]) * splits
        waves, rest = divmod(blocks, tile["BLOCKS_PER_SM"] * sms)
        alone = -(-rest // sms)  # blocks on a multiprocessor in the last wave: fewer are each faster, by less
        busy = waves * tile["BLOCKS_PER_SM"] + sqrt(alone * tile["BLOCKS_PER_SM"])
        adding = SECOND_KERNEL + 8 * splits * GEMM_M * GEMM_N * FMA_PER_BYTE if splits > 1 else 0
        return busy * size * (-(-GEMM_K // splits) + START) / rate + adding

    choices = [
        (rate, tile, splits) for rate, tile in tiles for splits in SPLITS if splits == 1 or splits * START <= GEMM_K
    ]
    _, tile, splits = min(choices, key=cost)
    return {**tile, "SPLIT_K": splits}


@lru_cache
def adding(ROWS):
    """A kernel in which ROWS threads add up each output's partial sums."""
    SUMS = ROWS * COLUMNS

    @cuda.jit
    @unroll
    def add_in_order(partials, y, each):
        """y[i] = sum of partials[split, i] over split, in ROWS runs of `each`, then run after run."""
        sums = cuda.shared.array(SUMS, float32)
        row, column = cuda.threadIdx.x // COLUMNS, cuda.threadIdx.x % COLUMNS
        i = cuda.blockIdx.x * COLUMNS + column
        total = float32(0.0)
        if i < y.size:
            first = row * each * y.size + i
            for at in range(first, min(first + each * y.size, partials.size), y.size):
                total += partials[at]
        sums[row * COLUMNS + column] = total
        cuda.syncthreads()
        if row == 0 and i < y.size:
            total = float32(0.0)
            for run in unrolled(ROWS):
                total += sums[run * COLUMNS + column]
            y[i] = total

    return add_in_order


def add_up(partials, y, splits):
    """Add the partial sums, one after another in a flat array, into y: always in the same order."""
    rows = 8 if splits > FEW else 1
    adding(rows)[-(-y.size // COLUMNS), rows * COLUMNS](partials, y, -(-splits // rows))
