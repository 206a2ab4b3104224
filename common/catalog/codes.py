"""Arrays of codes, in place of types that NumPy lacks; arrays of other types hold numbers.

E4M3, uint8: a sign, four bits of exponent and three of fraction. From 2^-9 to 448, zero, and NaN, but no infinity
(Micikevicius et al. 2022, "FP8 Formats for Deep Learning"). BFLOAT16, uint16: the upper half of a float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

E4M3, BFLOAT16 = np.dtype(np.uint8), np.dtype(np.uint16)
BFLOAT16_INFINITY = 0x7F80
BFLOAT16_DIGITS = 8  # significant bits of a normal number
BFLOAT16_LEAST_EXPONENT = -133  # every number is a multiple of 2 to this power

_exponent, _fraction = np.arange(128) >> 3, np.arange(128) & 7
_positive = np.where(_exponent > 0, np.ldexp(8.0 + _fraction, _exponent - 10), np.ldexp(1.0 * _fraction, -9))
_positive[127] = np.nan
E4M3_NUMBERS = np.concatenate([_positive, -_positive])


def are(dtype: np.dtype[Any]) -> bool:
    """Are an array's elements codes?"""
    return dtype in (E4M3, BFLOAT16)


def values(array: NDArray[Any]) -> NDArray[np.float64]:
    """An array's numbers in float64, whatever its dtype; those that codes stand for."""
    if array.dtype == E4M3:
        return np.asarray(E4M3_NUMBERS[array])
    if array.dtype == BFLOAT16:
        array = (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    with np.errstate(invalid="ignore"):  # of some NaN
        return np.asarray(array.astype(np.float64))


def magnitudes(array: NDArray[Any]) -> NDArray[Any]:
    """The array without signs."""
    if not are(array.dtype):
        return np.asarray(np.abs(array))
    return np.asarray(array & array.dtype.type(np.iinfo(array.dtype).max >> 1))


def held(numbers: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Numbers as an array of this dtype, or their codes: the nearest, ties to even; of e4m3 at most the largest."""
    if not are(dtype):
        return numbers.astype(dtype, copy=False)
    if numbers.dtype == np.int8:  # of which there are few
        every = np.arange(256, dtype=np.uint8)
        return np.asarray(held(every.view(np.int8).astype(np.float64), dtype)[numbers.view(np.uint8)])
    return _e4m3(numbers) if dtype == E4M3 else _bfloat16(numbers)


def _e4m3(numbers: NDArray[Any]) -> NDArray[np.uint8]:
    exact = numbers if numbers.dtype == np.float32 else np.asarray(numbers, np.float64)
    # bits of its fraction that go, and how much more its exponent is
    integer, cut, more = (np.int32, 20, 120) if exact.dtype == np.float32 else (np.int64, 49, 1016)
    magnitude = np.fmin(np.abs(exact), exact.dtype.type(448))
    bits = magnitude.view(integer)
    normal = ((bits + ((1 << cut - 1) - 1) + (bits >> cut & 1)) >> cut) - (more << 3)
    # below the least normal number, 2^-6, all are multiples of 2^-9
    code = np.where(magnitude < 2**-6, np.rint(magnitude * 512), normal).astype(np.uint8)
    return np.asarray(np.where(np.signbit(exact), code | 0x80, code), np.uint8)


def _bfloat16(numbers: NDArray[Any]) -> NDArray[np.uint16]:
    exact = numbers
    if exact.dtype != np.float32:  # first to eight digits, which float32 holds: numbers are rounded once
        exact = exact.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            last = np.maximum(np.frexp(exact)[1] - BFLOAT16_DIGITS, BFLOAT16_LEAST_EXPONENT)
            exact = np.ldexp(np.rint(np.ldexp(exact, -last)), last).astype(np.float32)
    bits = np.ascontiguousarray(exact).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    found = np.where(np.isnan(exact), bits | np.uint32(1 << 22), rounded) >> np.uint32(16)
    return np.asarray(found, np.uint16)
