"""Five small kernels that look at large arrays where they are. Imported late, as it brings Numba."""

from typing import Any

from numba import cuda, uint64

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
