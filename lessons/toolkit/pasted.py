"""Pieces of kernels that stand once and are copied into each kernel before it is compiled."""

from numba import cuda


def pasted(function):
    """A device function that Numba copies into every caller, as if it were written there.

    It leaves no trace in the machine code, where `inlined` may; it takes the caller's types, literals too, and is
    compiled anew for each call. Other functions may be its arguments, by way of what it closes over.
    """
    return cuda.jit(device=True, inline="always")(function)


@pasted
def walk(block, rows, columns, group_rows, height, width):
    """Where a block's tile of height x width begins, of rows x columns: down `group_rows` rows, then to the right.

    Blocks that run together so share tiles of both operands in L2.
    """
    group, turn = block // (group_rows * columns), block % (group_rows * columns)
    below = min(rows - group * group_rows, group_rows)
    return (group * group_rows + turn % below) * height, turn // below * width
