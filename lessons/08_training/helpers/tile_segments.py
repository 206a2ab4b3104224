"""How the sums of segments become C, in gemm_equal_shares: those of a tile are added in the order of the blocks."""

from functools import lru_cache

from numba import cuda, float32

from lessons.toolkit.grid import SUM_THREADS
from lessons.toolkit.tiles import ceil_div


@lru_cache
def adding(BLOCK_M, BLOCK_N):
    """Build the kernel for tiles of BLOCK_M x BLOCK_N; sums[tile + block] are a block's, of its segment of a tile."""
    TILE = BLOCK_M * BLOCK_N

    @cuda.jit
    def add_segments(sums, c, tiles, steps, blocks):
        """Step s of all `tiles` * `steps` is in the share of block ((s + 1) * blocks - 1) // (tiles * steps)."""
        i, N = cuda.grid(1), c.shape[1]
        if i < c.size:
            m, n = i // N, i % N
            tile = m // BLOCK_M * ((N + BLOCK_N - 1) // BLOCK_N) + n // BLOCK_N
            first, last = (tile * steps + 1) * blocks - 1, (tile + 1) * steps * blocks - 1
            total = float32(0.0)
            for block in range(first // (tiles * steps), last // (tiles * steps) + 1):
                total += sums[(tile + block) * TILE + m % BLOCK_M * BLOCK_N + n % BLOCK_N]
            c[m, n] = total

    return add_segments


def add_up(sums, c, tiles, steps, blocks, BLOCK_M, BLOCK_N):
    """c = the sums of all segments; `steps` of each tile, shared out among so many blocks."""
    kernel = adding(BLOCK_M, BLOCK_N)
    kernel[ceil_div(c.size, SUM_THREADS), SUM_THREADS](sums, c, tiles, steps, blocks)
