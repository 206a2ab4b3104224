"""How the threads of hgemm_wgmma copy tiles: in pieces of 16 bytes, to swizzled panels of 64 columns."""

from numba import cuda, uint32

from lessons.toolkit.memory import HALVES, copy8_async, copy8_guarded
from lessons.toolkit.pasted import pasted
from lessons.toolkit.unroll import inlined

ROW = 64  # columns of a panel


@inlined
def place(row, column, rows):
    """Where in a tile of so many rows an element lies: panels of 64 columns, whose pieces of eight change places."""
    panel, column = column // ROW, column % ROW
    return (panel * rows + row) * ROW + (column ^ row % 8 * HALVES)


def copying(BLOCK_M, BLOCK_N, BLOCK_K, THREADS, full):
    """Build `begin`, where in A and B a thread's copies begin for k0 = 0, and `copy_tiles`; `full`: no guards."""
    A_COLUMNS, B_COLUMNS = BLOCK_K // HALVES, BLOCK_N // HALVES  # pieces of 16 bytes in a row of the tile
    A_ROWS, B_ROWS = THREADS // A_COLUMNS, THREADS // B_COLUMNS  # rows that are copied at a time
    if BLOCK_M % A_ROWS or BLOCK_K % B_ROWS:
        raise ValueError(f"{BLOCK_M=} {BLOCK_N=} {BLOCK_K=} do not divide among {THREADS=}")
    A_SIZE = BLOCK_M * BLOCK_K

    @pasted
    def begin(m0, n0, N, K):
        thread = uint32(cuda.threadIdx.x)
        a_from = (m0 + thread // A_COLUMNS) * K + thread % A_COLUMNS * HALVES
        return a_from, thread // B_COLUMNS * N + n0 + thread % B_COLUMNS * HALVES

    @inlined
    def copy_tiles(tiles, start, a, b, m0, n0, a_from, b_from, k0, wide):
        """Start the pair of tiles from k0 on, to tiles[start]; what lies outside A or B counts as zero."""
        K, N = b.shape
        thread = uint32(cuda.threadIdx.x)
        row, column = thread // A_COLUMNS, thread % A_COLUMNS * HALVES
        for i in range(0, BLOCK_M, A_ROWS):
            at = start + place(row + i, column, BLOCK_M)
            if full:
                copy8_async(tiles, at, a, a_from + k0 + i * K)
            else:
                copy8_guarded(tiles, at, a, m0 + i + row, k0 + column, wide)
        row, column = thread // B_COLUMNS, thread % B_COLUMNS * HALVES
        for i in range(0, BLOCK_K, B_ROWS):
            at = start + A_SIZE + place(row + i, column, BLOCK_K)
            if full:
                copy8_async(tiles, at, b, b_from + (k0 + i) * N)
            else:
                copy8_guarded(tiles, at, b, k0 + i + row, n0 + column, wide)

    return begin, copy_tiles
