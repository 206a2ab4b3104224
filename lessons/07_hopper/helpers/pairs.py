"""Two blocks that share what they both read: a cluster, whose tiles of C lie below each other and need the same B.

Each block asks for half of B's tile, for it to arrive in both (multicast), so that L2 sends a third less. A stage is
empty when the consumers of both blocks say so, to both. No block may end while the other one still sends to it.
"""

from numba import uint32

from lessons.toolkit import hopper
from lessons.toolkit.pasted import pasted
from lessons.toolkit.unroll import inlined

CLUSTER = 2  # blocks, below each other
ALL = (1 << CLUSTER) - 1  # of them


def locating(GROUP_M, BLOCK_M, BLOCK_N):
    """Build the device function that says which tile is a block's."""

    @inlined
    def locate(tile, blocks_m, blocks_n, rank):
        """Row and column of a block's tile; pairs walk down GROUP_M rows of pairs before they move one column on."""
        group, turn = tile // (uint32(GROUP_M) * blocks_n), tile % (uint32(GROUP_M) * blocks_n)
        m = group * uint32(GROUP_M)
        rows = min(blocks_m - m, uint32(GROUP_M))
        return ((m + turn % rows) * uint32(CLUSTER) + rank) * uint32(BLOCK_M), turn // rows * uint32(BLOCK_N)

    return locate


def loading(BLOCK_M, BLOCK_N, BLOCK_K, ROW):
    """Build the device function that asks for a pair of tiles, float16; those of B are panels of ROW columns."""
    A_SIZE, STAGE, PANEL = BLOCK_M * BLOCK_K, (BLOCK_M + BLOCK_N) * BLOCK_K, BLOCK_K * ROW
    STAGE_BYTES = 2 * STAGE
    SHARE = BLOCK_N // ROW // CLUSTER  # panels of a tile of B that one block asks for

    @inlined
    def load_tiles(tiles, bars, stage, a_map, b_map, m0, n0, k0, rank):
        """Ask for the tile of A from k0 on, and for a share of B's, for all; what lies outside counts as zero."""
        start = stage * uint32(STAGE)
        hopper.barrier_expect(bars, stage, STAGE_BYTES)
        hopper.tma_load2(tiles, start, a_map, bars, stage, m0, k0)
        for i in range(SHARE):
            panel = rank * uint32(SHARE) + uint32(i)
            at = start + uint32(A_SIZE) + panel * uint32(PANEL)
            hopper.tma_load2_multicast(tiles, at, b_map, bars, stage, k0, n0 + panel * uint32(ROW), ALL)

    return load_tiles


@pasted
def release(emptied, stage, thread):
    """The first two of the threads that call tell both blocks that a stage is empty."""
    if thread < uint32(CLUSTER):
        hopper.barrier_arrive_at(emptied, stage, thread)
