"""Numbers of 8 bits, e4m3: a sign, four bits of exponent and three of fraction. Arrays hold the codes, uint8.

From 2^-9 to 448, zero, and NaN, but no infinity (Micikevicius et al. 2022, "FP8 Formats for Deep Learning").
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

CODES = np.dtype(np.uint8)
LARGEST = 448.0
SIGN, NAN = 0x80, 0x7F


def _numbers() -> NDArray[np.float64]:
    codes = np.arange(256)
    exponent, fraction = codes >> 3 & 15, codes & 7
    magnitude = np.where(exponent > 0, np.ldexp(8.0 + fraction, exponent - 10), np.ldexp(fraction * 1.0, -9))
    magnitude[codes & NAN == NAN] = np.nan
    return np.asarray(np.where(codes & SIGN, -magnitude, magnitude))


NUMBERS = _numbers()
_POSITIVE = NUMBERS[:NAN]


def values(array: NDArray[Any]) -> NDArray[np.float64]:
    """An array's numbers in float64, whatever its dtype; of uint8 those that the codes stand for."""
    return NUMBERS[array] if array.dtype == CODES else array.astype(np.float64)


def magnitudes(array: NDArray[Any]) -> NDArray[Any]:
    """The array without signs."""
    return array & np.uint8(NAN) if array.dtype == CODES else np.abs(array)


def encoded(numbers: NDArray[Any]) -> NDArray[np.uint8]:
    """The codes of the nearest numbers, ties to even; what is beyond the largest becomes the largest."""
    magnitude = np.minimum(np.abs(numbers).astype(np.float64), LARGEST)
    above = np.clip(np.searchsorted(_POSITIVE, magnitude), 1, NAN - 1)
    low, high = magnitude - _POSITIVE[above - 1], _POSITIVE[above] - magnitude
    down = (low < high) | ((low == high) & (above % 2 == 1))
    code = np.where(down, above - 1, above)
    return np.asarray(np.where(np.signbit(numbers), code | SIGN, code), np.uint8)


def held(numbers: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Numbers as an array of this dtype; of uint8, their codes."""
    return encoded(numbers) if dtype == CODES else numbers.astype(dtype, copy=False)
