"""Arrays of codes, in place of types that NumPy lacks; arrays of other types hold numbers.

E4M3, uint8: a sign, four bits of exponent and three of fraction. From 2^-9 to 448, zero, and NaN, but no infinity
(Micikevicius et al. 2022, "FP8 Formats for Deep Learning"). BFLOAT16, uint16: the upper half of a float32.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

E4M3, BFLOAT16 = np.dtype(np.uint8), np.dtype(np.uint16)
BFLOAT16_INFINITY = 0x7F80
# By type, the significant bits of a normal number, and 2 to what power every number is a multiple of.
_DIGITS = {E4M3: (4, -9), BFLOAT16: (8, -133), np.dtype(np.float16): (11, -24)}

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


def last_place(numbers: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[np.float64]:
    """What the last place of numbers of these magnitudes is worth in a type of 16 or 8 bits."""
    digits, least = _DIGITS[dtype]
    exponent = np.frexp(numbers)[1] - digits
    return np.asarray(np.ldexp(1.0, np.where(numbers == 0, least, np.maximum(exponent, least))))


def held(numbers: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Numbers as an array of this dtype, or their codes: the nearest, ties to even; of e4m3 at most the largest."""
    if not are(dtype):
        return numbers.astype(dtype, copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        exact = numbers.astype(np.float64)
        place = last_place(exact, dtype)
        rounded = np.rint(exact / place) * place
        if dtype == BFLOAT16:  # exact in float32, but for an overflow
            return np.asarray(rounded.astype(np.float32).view(np.uint32) >> 16, np.uint16)
        code = np.searchsorted(_positive[:127], np.minimum(np.abs(rounded), _positive[126]))
        return np.asarray(code | np.where(np.signbit(exact), 0x80, 0), np.uint8)
