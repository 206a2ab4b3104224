"""Arrays as a kernel sees them: views of a storage, whose indices are checked and become offsets.

An array is a storage, a start, a shape, and strides in elements. Offsets are one int for all threads, or one per
lane.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from common.trace.cost import Bools
from common.trace.state import State
from common.trace.values import INT64, UINT64, Value, dtype_of, signed, uniform, widened

Offsets = Any  # int, or an int64 per lane

_FILLED = 4096  # elements that one statement may assign
_REMEMBERED = 64  # indices that are known to be within an array, or times a stride


class View:
    """An array as a kernel sees it."""

    def __init__(
        self, storage: Any, start: Offsets, shape: tuple[int, ...], strides: tuple[int, ...], name: str = "",
        bounded: bool = False,
    ) -> None:  # fmt: skip
        self.storage, self.start, self.shape, self.strides, self.name = storage, start, shape, strides, name
        self.ndim, self.dtype = len(shape), storage.dtype
        self.size = math.prod(shape)
        self.bounded = bounded  # do indices within the shape stay within the storage?
        self.known: dict[Any, int] = {}  # offsets of constant indices into registers

    @staticmethod
    def of(storage: Any, shape: tuple[int, ...]) -> View:
        """All of a storage, in row-major order."""
        return View(storage, 0, shape, _row_major(shape), bounded=True)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def flat_order(self) -> bool:
        """Is a row-major offset an address offset?"""
        wanted = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent != 1 and stride != wanted:
                return False
            wanted *= extent
        return True

    def reshape(self, *given: Any) -> View:
        """The same elements in another shape: whole numbers or a tuple of them, one of which may be -1.

        Raises ValueError if the array is not contiguous or the shape has not as many elements.
        """
        wanted = given[0] if len(given) == 1 and isinstance(given[0], tuple) else given
        extents = [as_offset(extent) for extent in wanted]
        if not self.flat_order:
            raise ValueError(f"{self.name} is not contiguous, so it cannot be reshaped")
        if not all(type(extent) is int for extent in extents):
            raise ValueError(f"{self.name}: a shape that differs between threads is not traced")
        known = math.prod(extent for extent in extents if extent != -1)
        shape = tuple(self.size // max(known, 1) if extent == -1 else extent for extent in extents)
        if extents.count(-1) > 1 or min(shape, default=1) < 0 or math.prod(shape) != self.size:
            raise ValueError(f"{self.name} has {self.size} elements, and is reshaped to {tuple(extents)}")
        return View(self.storage, self.start, shape, _row_major(shape), self.name, self.bounded)

    def element(self, offset: int) -> str:
        """The name of the element at a row-major offset from the view's start, as ``a[2, 3]``."""
        if not 0 <= offset < self.size:
            return f"{self.name}[{offset}]"
        return f"{self.name}[{', '.join(str(int(i)) for i in np.unravel_index(offset, self.shape))}]"

    def load(self, state: State, index: Any, line: int) -> Any:
        place, wrong = self.place(state, index, line, "read")
        if type(place) is View:
            return place
        if type(place) is int and wrong is None and self.storage.space == "local":
            self.known[index] = place
        return self.storage.read(state, self, place, 1, wrong, line)[0]

    def store(self, state: State, index: Any, value: Value, line: int) -> None:
        place, wrong = self.place(state, index, line, "written")
        if type(place) is int and wrong is None and self.storage.space == "local":
            self.known[index] = place
        if type(place) is View:
            place.fill(state, value, line)
            return
        self.storage.write(state, self, place, [value], wrong, line)

    def place(self, state: State, index: Any, line: int, verb: str) -> tuple[Any, Bools | None]:
        """The element offset of an index, or the view that is left of it; and the lanes whose index is wrong."""
        indices = index if type(index) is tuple else (index,)
        if len(indices) > self.ndim:
            raise state.error(line, f"{self.name} has {self.ndim} axes, not {len(indices)}")
        place, wrong = self.start, None
        shape, strides = [], []  # of what slices leave
        for axis, (i, extent, stride) in enumerate(zip(indices, self.shape, self.strides, strict=False)):
            if type(i) is slice:
                i, length, step = self._range(state, i, extent, line)
                shape.append(length)
                strides.append(stride * step)
            else:
                i, bad = within(state, i, extent, line, self, axis, verb)
                if bad is not None:
                    wrong = bad if wrong is None else wrong | bad
            if stride != 1:
                i = i * stride if type(i) is int else _scaled(state, i, stride)
            place = i if type(place) is int and place == 0 else place + i
        left = len(indices)
        if shape or left < self.ndim:
            shape, strides = [*shape, *self.shape[left:]], [*strides, *self.strides[left:]]
            return View(self.storage, place, tuple(shape), tuple(strides), self.name), wrong
        return place, wrong

    def fill(self, state: State, value: Any, line: int) -> None:
        """Assign to every element a number, or the elements of an array of the same shape."""
        if self.size > _FILLED:
            raise state.unknown(line, f"{self.name}: {self.size} elements are assigned at once, which is not traced")
        for at in np.ndindex(*self.shape):
            if type(value) is View:
                if value.shape != self.shape[self.ndim - value.ndim :]:
                    raise state.error(line, f"{self.name} with {self.shape} elements is assigned {value.shape}")
                self.store(state, at, value.load(state, at[self.ndim - value.ndim :], line), line)
            else:
                self.store(state, at, value, line)

    def _range(self, state: State, part: slice, extent: int, line: int) -> tuple[Offsets, int, int]:
        """The first element of a slice, how many it has, and its step. Ends beyond the array are cut, as in NumPy."""
        ends = [None if end is None else as_offset(end) for end in (part.start, part.stop, part.step)]
        if all(end is None or type(end) is int for end in ends):
            chosen = range(*slice(*ends).indices(extent))
            return chosen.start, len(chosen), chosen.step
        low = 0 if ends[0] is None else ends[0]
        high = extent if ends[1] is None else ends[1]
        first, last = np.broadcast_arrays(np.clip(np.where(low < 0, low + extent, low), 0, extent),
                                          np.clip(np.where(high < 0, high + extent, high), 0, extent))  # fmt: skip
        lengths = np.unique((last - first)[state.mask.bits])
        if ends[2] not in (None, 1) or len(lengths) > 1:
            raise state.unknown(line, f"{self.name}: a slice whose length differs between threads is not traced")
        whole = np.broadcast_to(first, state.mask.bits.shape)
        return whole, max(int(lengths[0]), 0) if len(lengths) else 0, 1

    def place_flat(
        self, state: State, offset: Value, width: int, line: int, verb: str, aligned: bool = True
    ) -> tuple[Offsets, Bools | None]:
        """The element offset of ``width`` elements from a row-major offset on, which must suit the width."""
        if not self.flat_order:
            raise state.error(line, f"{self.name} is not contiguous: a flat offset does not address it")
        offset, wrong = within(state, offset, self.size - width + 1, line, self, None, verb)
        place = self.start + offset
        if width > 1 and aligned:
            self.storage.require_aligned(state, self, place, width, line)
        return place, wrong


# --- indices ---


def as_offset(value: Value) -> Offsets:
    """An index as a Python int or an int64 per lane."""
    if type(value) is int:
        return value
    if uniform(value):
        return int(value)
    if value.dtype == INT64:
        return value
    if value.dtype.kind not in "iub":
        raise TypeError(f"an index must be an integer, and this is {value.dtype}")
    return value.view(INT64) if value.dtype == UINT64 else signed(widened(value))


def _scaled(state: State, at: Offsets, stride: int) -> Offsets:
    """Indices times the stride; most are those of the turn before."""
    key = id(at), stride
    found = state.scaled.get(key)
    if found is None:
        if len(state.scaled) >= _REMEMBERED:
            state.scaled.clear()
        found = state.scaled[key] = at, at * stride
    return found[1]


def within(
    state: State, index: Value, extent: int, line: int, view: View, axis: int | None, verb: str
) -> tuple[Offsets, Bools | None]:
    """An index as an offset along an axis (None: a flat offset), and the lanes for which it is outside."""
    may_wrap = axis is not None and (type(index) is int or dtype_of(index).kind == "i")
    at = as_offset(index)
    if type(at) is int:
        if 0 <= at < extent:
            return at, None
        wraps = may_wrap and -extent <= at < 0
        _outside(state, at, state.mask.bits, wraps, extent, line, view, axis, verb)
        return (at + extent, None) if wraps else (0, np.ones(len(state.lane_numbers), np.bool_))
    key = id(at), extent
    if key in state.inside:
        return at, None
    wrong = (at < 0) | (at >= extent) if extent <= 0 else at.view(np.uint64) >= np.uint64(extent)
    if not np.count_nonzero(wrong):
        if len(state.inside) >= _REMEMBERED:
            state.inside.clear()
        state.inside[key] = at
        return at, None
    wrong &= state.mask.bits
    if not np.count_nonzero(wrong):
        return at, None
    if may_wrap:
        below = wrong & (at < 0) & (at >= -extent)
        if np.count_nonzero(below):
            _outside(state, at, below, True, extent, line, view, axis, verb)
            at = np.where(below, at + extent, at)
            wrong &= ~below
            if not np.count_nonzero(wrong):
                return at, None
    _outside(state, at, wrong, False, extent, line, view, axis, verb)
    return at, wrong


def _outside(
    state: State, at: Offsets, lanes: Bools, wraps: bool, extent: int, line: int, view: View, axis: int | None,
    verb: str,
) -> None:  # fmt: skip
    lane = int(np.argmax(lanes))
    number = at if type(at) is int else int(at[lane])
    where = f"axis {axis} of {view.name}" if view.ndim > 1 and axis is not None else view.name
    numbers = str(number)
    if axis is None and extent < view.size:  # several elements from this one on
        numbers, extent = f"{number} to {number + view.size - extent}", view.size
    text = f"{where} is {verb} at {numbers}, its extent is {extent}"
    if wraps:
        text += ": a negative index counts from the end"
    state.fault("negative-index" if wraps else "outside", line, view.name, text, lanes)


def beyond(
    state: State, view: View, place: Offsets, width: int, wrong: Bools | None, line: int, verb: str
) -> Bools | None:
    """Lanes whose access leaves the allocation, though not the array's stated shape, added to ``wrong``."""
    if view.bounded:
        return wrong
    limit = len(view.storage.data) - width
    outside = (place < 0) | (place > limit)
    if not np.any(outside):
        return wrong
    lanes = np.broadcast_to(outside, state.mask.bits.shape) & state.mask.bits
    if wrong is not None:
        lanes = lanes & ~wrong
    if not lanes.any():
        return wrong
    lane = int(np.argmax(lanes))
    number = int(np.broadcast_to(place, lanes.shape)[lane])
    past = f"{number - limit} past its end" if number > limit else f"{-number} before its start"
    state.fault("outside", line, view.name, f"the memory of {view.name} is {verb} {past}", lanes)
    return lanes if wrong is None else lanes | wrong


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
