"""Numbers of 16 bits, bfloat16: a sign, float32's eight bits of exponent and seven of fraction: its upper half.

NumPy has no such type: arrays hold the codes, uint16.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

CODES = np.dtype(np.uint16)
SIGN, INFINITY = 0x8000, 0x7F80
DIGITS = 8  # significant bits of a normal number
LEAST_EXPONENT = -133  # every number is a multiple of 2 to this power


def values(codes: NDArray[Any]) -> NDArray[np.float64]:
    """The numbers that codes stand for."""
    with np.errstate(invalid="ignore"):  # of some NaN
        return (np.asarray(codes).astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def encoded(numbers: NDArray[Any]) -> NDArray[np.uint16]:
    """The codes of the nearest numbers, ties to even: numbers of float64 are rounded once."""
    exact = np.asarray(numbers)
    if exact.dtype.kind in "iu" and exact.dtype.itemsize <= 2:  # float32 holds all of these
        exact = exact.astype(np.float32)
    if exact.dtype != np.float32:  # to eight digits, which float32 holds
        with np.errstate(over="ignore", invalid="ignore"):
            _, exponent = np.frexp(exact.astype(np.float64))
            last = np.maximum(exponent - DIGITS, LEAST_EXPONENT)
            exact = np.ldexp(np.rint(np.ldexp(exact.astype(np.float64), -last)), last).astype(np.float32)
    bits = np.ascontiguousarray(exact).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    found = np.where(np.isnan(exact), bits | np.uint32(1 << 22), rounded) >> np.uint32(16)
    return np.asarray(found, np.uint16)
