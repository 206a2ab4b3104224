"""Arrays of codes, in place of a type that NumPy lacks: uint8 of e4m3, uint16 of bfloat16; others hold numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.catalog import bfloat16, e4m3

_FORMATS: dict[np.dtype[Any], Any] = {e4m3.CODES: e4m3, bfloat16.CODES: bfloat16}


def are(dtype: np.dtype[Any]) -> bool:
    """Are an array's elements codes?"""
    return dtype in _FORMATS


def values(array: NDArray[Any]) -> NDArray[np.float64]:
    """An array's numbers in float64, whatever its dtype; those that codes stand for."""
    found = _FORMATS[array.dtype].values(array) if are(array.dtype) else array.astype(np.float64)
    return np.asarray(found)


def magnitudes(array: NDArray[Any]) -> NDArray[Any]:
    """The array without signs."""
    if not are(array.dtype):
        return np.asarray(np.abs(array))
    return np.asarray(array & array.dtype.type(_FORMATS[array.dtype].SIGN - 1))


def held(numbers: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Numbers as an array of this dtype: rounded to the nearest; of codes, theirs."""
    if not are(dtype):
        return numbers.astype(dtype, copy=False)
    encoded = _FORMATS[dtype].encoded
    if numbers.dtype == np.int8:  # of which there are few
        every = np.arange(256, dtype=np.uint8)
        return np.asarray(encoded(every.view(np.int8).astype(np.float64))[numbers.view(np.uint8)])
    return np.asarray(encoded(numbers))
