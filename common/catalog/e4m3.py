"""Numbers of 8 bits, e4m3: a sign, four bits of exponent and three of fraction. Arrays hold the codes, uint8.

From 2^-9 to 448, zero, and NaN, but no infinity (Micikevicius et al. 2022, "FP8 Formats for Deep Learning").
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

CODES = np.dtype(np.uint8)
LARGEST = 448.0
LEAST_NORMAL = 2.0**-6  # below, numbers are multiples of 2^-9
SIGN, NAN = 0x80, 0x7F


def _numbers() -> NDArray[np.float64]:
    codes = np.arange(256)
    exponent, fraction = codes >> 3 & 15, codes & 7
    magnitude = np.where(exponent > 0, np.ldexp(8.0 + fraction, exponent - 10), np.ldexp(fraction * 1.0, -9))
    magnitude[codes & NAN == NAN] = np.nan
    return np.asarray(np.where(codes & SIGN, -magnitude, magnitude))


NUMBERS = _numbers()


def values(codes: NDArray[Any]) -> NDArray[np.float64]:
    """The numbers that codes stand for."""
    return np.asarray(NUMBERS[codes])


def encoded(numbers: NDArray[Any]) -> NDArray[np.uint8]:
    """The codes of the nearest numbers, ties to even; what is beyond the largest becomes the largest."""
    exact = numbers if numbers.dtype == np.float32 else np.asarray(numbers, np.float64)
    # bits of its fraction that go, and how much more its exponent is
    integer, cut, more = (np.int32, 20, 120) if exact.dtype == np.float32 else (np.int64, 49, 1016)
    magnitude = np.fmin(np.abs(exact), exact.dtype.type(LARGEST))
    bits = magnitude.view(integer)
    normal = ((bits + ((1 << cut - 1) - 1) + (bits >> cut & 1)) >> cut) - (more << 3)
    code = np.where(magnitude < LEAST_NORMAL, np.rint(magnitude * 512), normal).astype(np.uint8)
    return np.asarray(np.where(np.signbit(exact), code | SIGN, code), np.uint8)
