"""What is done to large arrays where they are, on the GPU, by five small kernels. Imported late: it brings Numba."""

from typing import Any

import numpy as np
from numba import cuda, uint64
from numpy.typing import NDArray

from common.check import arrays
from common.check.arrays import Guarded

THREADS = 256
BLOCKS = 4096  # at most: the kernels walk over the array in strides of the grid


def grid(size: int) -> tuple[int, int]:
    """Blocks, and threads in each, for so many elements."""
    return max(1, min(BLOCKS, -(-size // THREADS))), THREADS


@cuda.jit
def fill(words: Any, pattern: Any) -> None:
    """Every word becomes the pattern."""
    for i in range(cuda.grid(1), words.size, cuda.gridsize(1)):
        words[i] = pattern


@cuda.jit
def mark_infinite(words: Any, exponent: Any, found: Any) -> None:
    """found[0] becomes 1 if the exponent of any word is all ones."""
    for i in range(cuda.grid(1), words.size, cuda.gridsize(1)):
        if (words[i] & exponent) == exponent:
            found[0] = 1


@cuda.jit
def mark_changed(words: Any, before: Any, found: Any) -> None:
    """found[0] becomes 1 if any word is not what it was."""
    for i in range(cuda.grid(1), words.size, cuda.gridsize(1)):
        if words[i] != before[i]:
            found[0] = 1


@cuda.jit
def gather(values: Any, offsets: Any, taken: Any) -> None:
    """The values at these offsets."""
    for i in range(cuda.grid(1), offsets.size, cuda.gridsize(1)):
        taken[i] = values[offsets[i]]


@cuda.jit
def hash_offsets(words: Any, table: Any, seed: Any, multiplier: Any, shift: Any) -> None:
    """Each word becomes one of the table, chosen by its offset's hash (:mod:`common.check.fullsize`)."""
    for i in range(cuda.grid(1), words.size, cuda.gridsize(1)):
        words[i] = table[(uint64(i) + seed) * multiplier >> shift]


def blank(array: Guarded) -> None:
    """Fill with the unwritten pattern."""
    fill[grid(array.size)](arrays.words(array.array), arrays.pattern(array.dtype))


def any_infinite(array: Guarded) -> bool:
    """Is any element infinite or NaN, as one that nobody has written is?"""
    found = cuda.to_device(np.zeros(1, np.int32))
    mark_infinite[grid(array.size)](arrays.words(array.array), arrays.exponent(array.dtype), found)
    return bool(found.copy_to_host()[0])


def same(array: Guarded, before: Any) -> bool:
    """Is each element what it was? ``before``: an array on the device, or on the host."""
    if isinstance(before, np.ndarray):
        return np.array_equal(array.get(), before)
    found = cuda.to_device(np.zeros(1, np.int32))
    mark_changed[grid(array.size)](arrays.words(array.array), arrays.words(before), found)
    return not found.copy_to_host()[0]


def elements(array: Guarded, offsets: Any) -> NDArray[np.float64]:
    """The elements at these offsets, an array of int64 on the device."""
    taken = cuda.device_array(offsets.size, arrays.pattern(array.dtype).dtype)
    gather[grid(offsets.size)](arrays.words(array.array), offsets, taken)
    return np.asarray(taken.copy_to_host().view(array.dtype).astype(np.float64))


def draw_hashed(array: Guarded, numbers: NDArray[Any], seed: int, multiplier: int, shift: int) -> None:
    """Each element becomes one of ``numbers``, by the hash of its offset (:mod:`common.check.fullsize`)."""
    table = cuda.to_device(arrays.bits(numbers.astype(array.dtype)))
    words = arrays.words(array.array)
    hash_offsets[grid(array.size)](words, table, np.uint64(seed), np.uint64(multiplier), np.uint64(shift))
