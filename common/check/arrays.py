"""Arrays on the device between margins, where what nobody has written holds a NaN that no arithmetic makes; and the
right answers: by the GPU if there is one and the problem is large, else by NumPy."""

import math
from typing import Any

import numpy as np

from common.catalog import codes, device, reference
from common.catalog.problems import FLOAT16, FLOAT32, INT8, INT32, UINT8, UINT16, Problem
from common.catalog.reference import Array, Float64
from common.run import child

ON_GPU_FROM = 100_000_000  # multiply-adds
MARGIN = 4096  # elements before and after each array; keeps 128-bit alignment
# The bits of an element that nobody has written. Quiet NaNs with a payload: what arithmetic makes is 0x7FFFFFFF and
# 0x7FFF on a GPU (PTX ISA, "Floating Point"). Of int32 a number that no sum comes to, of int8 one far from zero.
UNWRITTEN: dict[np.dtype[Any], Any] = {
    FLOAT32: np.uint32(0x7FC0BEEF), FLOAT16: np.uint16(0x7EEF), INT32: np.uint32(0x7FC0BEEF), INT8: np.uint8(0x6D),
    UINT8: np.uint8(0x7F), UINT16: np.uint16(0x7FCB),
}  # fmt: skip
# All ones in infinities and in every NaN, the patterns among them. An integer is missing if it is the pattern.
_EXPONENTS: dict[np.dtype[Any], Any] = {
    FLOAT32: np.uint32(0x7F800000), FLOAT16: np.uint16(0x7C00), UINT16: np.uint16(codes.BFLOAT16_INFINITY),
}  # fmt: skip


def missing_bits(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """A mask, and what it leaves of the bits of an element that is missing: unwritten, NaN or infinite."""
    unwritten, exponent = UNWRITTEN[dtype], _EXPONENTS.get(dtype)
    return (~type(unwritten)(0), unwritten) if exponent is None else (exponent, exponent)


def missing(values: Array) -> Array:
    """Which elements nobody has written, or are NaN or infinite."""
    mask, left = missing_bits(values.dtype)
    return np.asarray((bits(values) & mask) == left)


def bits(array: Any) -> Any:
    """The elements of an array, or of a flat one on the device, as unsigned integers."""
    return array.view(UNWRITTEN[np.dtype(array.dtype)].dtype)


def numbers(array: Array) -> Array:
    """An output's elements as numbers: codes of bfloat16 as float32, an unwritten one as one of that."""
    if array.dtype != codes.BFLOAT16:
        return array
    return np.where(array == UNWRITTEN[array.dtype], filled(1, FLOAT32), codes.values(array).astype(FLOAT32))


def filled(count: int, dtype: np.dtype[Any]) -> Array:
    """``count`` elements that nobody has written."""
    return np.full(count, UNWRITTEN[dtype]).view(dtype)


class Guarded:
    """A device array between two margins of unwritten elements. Without a margin an access beyond the array leaves
    its allocation, where tools that watch from outside see it."""

    def __init__(self, shape: tuple[int, ...], margin: int = MARGIN, dtype: np.dtype[Any] = FLOAT32) -> None:
        from numba import cuda

        self.size, self.dtype = math.prod(shape), dtype
        flat, end = cuda.device_array(self.size + 2 * margin, dtype), margin + self.size
        self._inside = flat[margin:end]
        self._margins = {-margin: flat[:margin], self.size: flat[end:]} if margin else {}  # by the first one's offset
        for outside in self._margins.values():
            outside.copy_to_device(filled(margin, dtype))
        self.array = self._inside.reshape(shape)

    def set(self, values: Array) -> None:
        taken = codes.held(values, self.dtype) if values.dtype.kind == "f" else values
        self._inside.copy_to_device(np.ascontiguousarray(taken, self.dtype).reshape(-1))

    def blank(self) -> None:
        """Make it what nobody has written."""
        self._inside.copy_to_device(filled(self.size, self.dtype))

    def get(self) -> Array:
        return np.asarray(self.array.copy_to_host())

    def trespasses(self) -> list[int]:
        """Offsets written in the margins: negative before the array, from ``size`` on after it."""
        found = []
        for first, margin in self._margins.items():
            here = bits(np.asarray(margin.copy_to_host()))
            found += [int(place) + first for place in np.flatnonzero(here != UNWRITTEN[self.dtype])]
        return found


def full(problem: Problem, x: Array, weight: Array) -> Float64:
    """All right answers, as :func:`common.catalog.reference.full` gives them."""
    with child.stage(child.ORACLE):
        if problem.flops < 2 * ON_GPU_FROM or not device.gpu_count():
            return reference.full(problem, x, weight)
        from common.check import fullsize

        return fullsize.at(problem, x, weight).reshape(problem.output_shape)


def at(problem: Problem, x: Any, weight: Any, positions: reference.Indices) -> Float64:
    """The right answers at ``positions``, one index array for each axis of the output: by the GPU if there is one.
    The operands may be on the device."""
    with child.stage(child.ORACLE):
        if not device.gpu_count():
            return reference.full(problem, np.asarray(x), np.asarray(weight))[positions]
        from common.check import fullsize

        return fullsize.at(problem, x, weight, np.ravel_multi_index(positions, problem.output_shape))


def sample_positions(problem: Problem, samples: int, seed: int) -> reference.Indices:
    """Random output positions over the whole batch, plus every corner."""
    rng, shape = np.random.default_rng(seed), problem.output_shape
    drawn = [rng.integers(0, extent, samples) for extent in shape]
    corners = np.indices((2,) * len(shape)).reshape(len(shape), -1) * (np.array(shape)[:, None] - 1)
    return tuple(np.concatenate([drawn, corners], axis=1))
