"""What an element holds that nobody has written: a NaN that no arithmetic makes, for float32 and for float16."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.catalog.problems import FLOAT16, FLOAT32

Array = NDArray[Any]

# Quiet NaNs with a payload: what arithmetic makes is 0x7FFFFFFF and 0x7FFF on a GPU (PTX ISA, "Floating Point").
_PATTERNS: dict[np.dtype[Any], Any] = {FLOAT32: np.uint32(0x7FC0BEEF), FLOAT16: np.uint16(0x7EEF)}
# All ones in infinities and in every NaN, the patterns among them.
_EXPONENTS: dict[np.dtype[Any], Any] = {FLOAT32: np.uint32(0x7F800000), FLOAT16: np.uint16(0x7C00)}


def pattern(dtype: np.dtype[Any]) -> Any:
    """The bits of an element that nobody has written, an unsigned integer as wide as ``dtype``."""
    return _PATTERNS[dtype]


def exponent(dtype: np.dtype[Any]) -> Any:
    """The bits of the exponent, as :func:`pattern` gives its."""
    return _EXPONENTS[dtype]


def bits(array: Array) -> Array:
    """The array's elements as unsigned integers."""
    return array.view(_PATTERNS[array.dtype].dtype)


def filled(count: int, dtype: np.dtype[Any]) -> Array:
    """``count`` elements that nobody has written."""
    return np.full(count, pattern(dtype)).view(dtype)


def words(array: Any) -> Any:
    """A device array as a flat one of its elements' bits."""
    return array.reshape(array.size).view(_PATTERNS[np.dtype(array.dtype)].dtype)
