"""Sums of int32 become int8 again: what a layer of a network gives to the next one.

A column of B, a filter, has a scale: y = q * scale for its integers q. With those of A and of the result it makes one
factor for each column of C, by which a sum is multiplied, in float32, while it is in a register; then it is rounded
once, ties to even, and limited to -128 and 127. So C is written in a fourth of the bytes, and never read again.

    launch(a, prepare(b, problem), c, finish=quantised(factors))  # c is int8, factors float32, one for each column
"""

from typing import Any, NamedTuple

from numba import float32

from lessons.toolkit.mma import to_int8
from lessons.toolkit.unroll import inlined


@inlined
def store_quantised(c, m, n, acc, i, paired, operands):
    """c[m, n:n+2] = acc[i:i+2] times the columns' factors, as int8, nothing outside."""
    (factors,) = operands
    M, N = c.shape
    if m < M:
        for v in range(2):
            if n + v < N:
                c[m, n + v] = to_int8(float32(acc[i + v]) * factors[n + v])


class Quantised(NamedTuple):
    """A `finish`: how a pair of sums is stored, and what that reads."""

    store: Any
    operands: tuple


def quantised(factors):
    """The finish that multiplies each column of C by its factor, float32 on the GPU, and makes int8 of it."""
    return Quantised(store_quantised, (factors,))
