"""Grids for matrices that are taller than one grid may be."""

MAX_BLOCKS_Y = 65535  # blocks that a grid holds at most along y, and along z; along x 2**31 - 1


def row_slices(M, N, block_m, block_n):
    """For an M x N matrix in blocks of block_m x block_n: slices of its rows, and for each its grid (x, y) of blocks.

    One slice, but where the grid would be more than 65,535 blocks high.
    """
    most = MAX_BLOCKS_Y * block_m
    for m0 in range(0, M, most):
        rows = slice(m0, min(m0 + most, M))
        yield rows, (-(-N // block_n), -(-(rows.stop - m0) // block_m))
