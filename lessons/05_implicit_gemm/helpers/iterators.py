"""What conv3d_implicit_gemm asks of an iterator, which says where the elements lie that a block copies."""

from typing import NamedTuple

from numba import int32, uint32

from lessons.toolkit.unroll import inlined


class Layer(NamedTuple):
    """What an iterator is told of a layer."""

    x: object
    filt: object
    outputs: tuple  # O, P, Q
    geometry: object
    extra: object  # what a `launch` has for its own iterator


class Iterator(NamedTuple):
    """Device functions, and how much they may remember.

    A block has `rows`, words of shared memory, which `begin_row` and `begin_filter` fill once, for each row of
    a_tile and of b_tile. A thread has `here`, words in registers, which `begin_tile` fills for each pair of tiles.
    """

    begin_row: object  # (rows, row, gemm_m, layer)
    begin_filter: object  # (rows, row, gemm_n, layer)
    begin_tile: object  # (here, gemm_k, layer)
    of_x: object  # (rows, row, here, gemm_m, layer): the offset in x, and whether the element is inside
    of_filt: object  # (rows, row, here, gemm_n, gemm_k, layer): the same in filt
    ROWS: int
    HERE: int


@inlined
def digits(number, first, second, third):
    """The number's digits in a mixed base, lowest first."""
    high = uint32(number // uint32(first))
    higher = uint32(high // uint32(second))
    highest = uint32(higher // uint32(third))
    low, middle, upper = number - high * first, high - higher * second, higher - highest * third
    return int32(low), int32(middle), int32(upper), int32(highest)


@inlined
def nothing(rows, row, number, layer):
    pass  # for an iterator that remembers no rows
