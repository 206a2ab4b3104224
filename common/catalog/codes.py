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
_halfway = (_positive[:126] + _positive[1:127]) / 2  # above each number but the largest
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
    with np.errstate(over="ignore", invalid="ignore"):
        exact = numbers.astype(np.float64)
        if dtype == E4M3:
            code = np.searchsorted(_halfway, np.abs(exact))  # of two numbers as near, the lower
            code += (code & 1) * (_halfway[np.minimum(code, 125)] == np.abs(exact))
            return (code | np.where(np.signbit(exact), 0x80, 0)).astype(np.uint8)
        last = np.maximum(np.frexp(exact)[1] - BFLOAT16_DIGITS, BFLOAT16_LEAST_EXPONENT)
        rounded = np.ldexp(np.rint(np.ldexp(exact, -last)), last).astype(np.float32)  # eight digits: exact in float32
    return np.asarray(rounded.view(np.uint32) >> 16, np.uint16)
