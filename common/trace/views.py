"""Arrays as a kernel sees them: views of a storage, whose indices are checked and become offsets in elements, one int
for all threads or one per lane.

What nothing has written holds NaN where it can, and a lane that reads it is remembered: a NaN that the lane
stores later, or decides something by, is a fault. A value that is thrown away does no harm and is only noted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from common.trace.cost import Bools, Ints, count_nonzero
from common.trace.state import State
from common.trace.values import INT64, Value, dtype_of, signed, uniform

_MOST = np.maximum.reduce
Offsets = Any  # int, or an int64 per lane
Wrong: TypeAlias = "Bools | None"  # lanes whose index is wrong; None: no lane


class View:
    def __init__(
        self, storage: Any, start: Offsets, shape: tuple[int, ...], strides: tuple[int, ...], name: str = "",
        bounded: bool = False,
    ) -> None:  # fmt: skip
        self.storage, self.start, self.shape, self.strides, self.name = storage, start, shape, strides, name
        self.ndim, self.dtype = len(shape), storage.dtype
        self.size = math.prod(shape)
        self.bounded = bounded  # do indices within the shape stay within the storage?

    @staticmethod
    def of(storage: Any, shape: tuple[int, ...]) -> View:
        return View(storage, 0, shape, _row_major(shape), bounded=True)

    def __len__(self) -> int:
        return self.shape[0]

    @cached_property
    def flat_order(self) -> bool:
        """Is a row-major offset an address offset?"""
        parts = zip(self.shape, self.strides, _row_major(self.shape), strict=True)
        return all(extent == 1 or stride == wanted for extent, stride, wanted in parts)

    @property
    def T(self) -> View:  # noqa: N802 - NumPy's name
        return View(self.storage, self.start, self.shape[::-1], self.strides[::-1], self.name, self.bounded)

    def reshape(self, *given: Any) -> View:
        """Raises as NumPy does, and ValueError if the array is not contiguous."""
        wanted = given[0] if len(given) == 1 and isinstance(given[0], tuple) else given
        if not self.flat_order:
            raise ValueError(f"{self.name} is not contiguous, so it cannot be reshaped")
        shape = np.broadcast_to(0, self.size).reshape([as_offset(extent) for extent in wanted]).shape
        return View(self.storage, self.start, shape, _row_major(shape), self.name, self.bounded)

    @property
    def flat(self) -> View:
        return self.reshape(self.size)

    def element(self, offset: int) -> str:
        """The name of the element at a row-major offset from the view's start, as ``a[2, 3]``."""
        if not 0 <= offset < self.size:
            return f"{self.name}[{offset}]"
        return f"{self.name}[{', '.join(str(int(i)) for i in np.unravel_index(offset, self.shape))}]"

    def require(self, state: State, line: int, who: str, space: str, *kinds: Any) -> None:
        """Raise a MistakeError unless the array is in this memory (any, if ""), and of one of these types (any)."""
        if space not in ("", self.storage.space) or (kinds and self.dtype not in kinds):
            takes = " or ".join(str(np.dtype(kind)) for kind in kinds) + (space and f" in {space} memory")
            mine = f"{self.name} is {self.dtype} in {self.storage.space} memory"
            raise state.error(line, f"{mine}, and {who} takes {takes.strip()}")

    def load(self, state: State, index: Any, line: int) -> Any:
        if type(index) is str:
            if not self.dtype.names:
                raise state.error(line, f"{self.name} has no field {index!r}: its elements are {self.dtype}")
            return self.storage.of_all(state, self, index, line)
        place, wrong = self.place(state, index, line, "read")
        return place if type(place) is View else self.storage.read(state, self, place, 1, wrong, line)[0]

    def store(self, state: State, index: Any, value: Value, line: int) -> None:
        place, wrong = self.place(state, index, line, "written")
        if type(place) is View:
            place.fill(state, value, line)
        else:
            self.storage.write(state, self, place, [value], wrong, line)

    def place(self, state: State, index: Any, line: int, verb: str) -> tuple[Any, Wrong]:
        """The element offset of an index, or the view that is left of it; and the lanes whose index is wrong."""
        if type(index) is int and self.ndim == 1 and 0 <= index < self.shape[0]:
            return self.start + index * self.strides[0], None
        indices = index if type(index) is tuple else (index,)
        if len(indices) > self.ndim:
            raise state.error(line, f"{self.name} has {self.ndim} axes, not {len(indices)}")
        place, wrong = self.start, None
        shape: tuple[int, ...] = ()  # of what slices leave
        strides: tuple[int, ...] = ()
        for axis, (i, extent, stride) in enumerate(zip(indices, self.shape, self.strides, strict=False)):
            if type(i) is slice:
                i, length, step = self._range(state, i, extent, line)
                shape, strides = (*shape, length), (*strides, stride * step)
            else:
                i, bad = within(state, i, extent, line, self, axis, verb)
                if bad is not None:
                    wrong = bad if wrong is None else wrong | bad
            if stride != 1:
                i = i * stride
            place = i if type(place) is int and place == 0 else place + i
        shape, strides = (*shape, *self.shape[len(indices) :]), (*strides, *self.strides[len(indices) :])
        return (View(self.storage, place, shape, strides, self.name) if shape else place), wrong

    def fill(self, state: State, value: Any, line: int) -> None:
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
            chosen = range(extent)[slice(*ends)]
            return chosen.start, len(chosen), chosen.step
        both = (0 if ends[0] is None else ends[0]), (extent if ends[1] is None else ends[1])
        first, last = (np.clip(np.where(end < 0, end + extent, end), 0, extent) for end in both)
        lengths = np.unique(np.broadcast_to(last - first, state.mask.bits.shape)[state.mask.bits])
        to_the_end = ends[1] is None and ends[2] is None  # then what lies beyond it is beyond the array, too
        if ends[2] not in (None, 1) or (len(lengths) > 1 and not to_the_end):
            raise state.unknown(line, f"{self.name}: a slice whose length differs between threads is not traced")
        return np.broadcast_to(first, state.mask.bits.shape), max(0, *lengths.tolist()), 1

    def place_flat(
        self, state: State, offset: Value, width: int, line: int, verb: str, aligned: bool = True
    ) -> tuple[Offsets, Wrong]:
        """The element offset of ``width`` elements from a row-major offset on, which must suit the width."""
        if not self.flat_order:
            raise state.error(line, f"{self.name} is not contiguous: a flat offset does not address it")
        offset, wrong = within(state, offset, self.size - width + 1, line, self, None, verb)
        place = offset if type(self.start) is int and not self.start else self.start + offset
        if width > 1 and aligned:
            self.storage.require_aligned(state, self, place, width, line)
        return place, wrong

    def read_flat(
        self, state: State, line: int, offset: Value, width: int, aligned: bool = True, op: str = "read"
    ) -> list[Value]:
        place, wrong = self.place_flat(state, offset, width, line, "read", aligned)
        found: list[Value] = self.storage.read(state, self, place, width, wrong, line, op)
        return found

    def write_flat(self, state: State, line: int, offset: Value, elements: list[Value], aligned: bool = True) -> None:
        place, wrong = self.place_flat(state, offset, len(elements), line, "written", aligned)
        self.storage.write(state, self, place, elements, wrong, line)


def of_device(array: Any, name: str) -> View | None:
    """The array as a kernel sees it; None if it lies in the host's memory."""
    storage = getattr(array, "storage", None)
    if storage is None or storage.dtype != array.dtype:
        return None
    size = array.dtype.itemsize
    start, beyond = divmod(array.__array_interface__["data"][0] - storage.address, size) if array.size else (0, 0)
    strides = tuple(stride // size for stride in array.strides)
    last = start + sum((extent - 1) * stride for extent, stride in zip(array.shape, strides, strict=True))
    if beyond or not 0 <= start <= len(storage.data):
        return None
    return View(storage, start, array.shape, strides, name, bounded=0 <= last < len(storage.data))


# --- indices ---


def as_offset(value: Value) -> Offsets:
    """An index as a Python int or an int64 per lane."""
    if type(value) is not np.ndarray:
        return int(value)
    if value.dtype is INT64:
        return value
    if value.dtype.kind not in "iub":
        raise TypeError(f"an index must be an integer, and this is {value.dtype}")
    return signed(value)


def within(
    state: State, index: Value, extent: int, line: int, view: Any, axis: int | None, verb: str
) -> tuple[Offsets, Wrong]:
    """An index as an offset along an axis (None: a flat offset), and the lanes for which it is outside."""
    at: Any = index if type(index) is int else as_offset(index)
    if type(at) is int:
        if 0 <= at < extent:
            return at, None
        wrong = state.mask.bits
    else:
        if not len(at) or _MOST(at.view(np.uint64)) < max(extent, 0):
            return at, None
        wrong = ((at < 0) | (at >= extent)) & state.mask.bits
        if not count_nonzero(wrong):
            return at, None
    where, whole = f"axis {axis} of {view.name}" if view.ndim > 1 and axis is not None else view.name, extent
    if axis is not None and (type(index) is int or dtype_of(index).kind == "i"):  # it may count from the end
        below = wrong & (at < 0) & (at >= -extent)
        if count_nonzero(below):
            text = f"{where} is {verb} at {state.first(at, below)}, its extent is {extent}: a negative index counts "
            state.fault("negative-index", line, view.name, f"{text}from the end", below)
            at = at + extent if type(at) is int else np.where(below, at + extent, at)
            wrong = wrong & ~below
            if not count_nonzero(wrong):
                return at, None
    numbers = str(first := state.first(at, wrong))
    if axis is None and extent < view.size:  # several elements from this one on
        numbers, whole = f"{first} to {first + view.size - extent}", view.size
    state.fault("outside", line, view.name, f"{where} is {verb} at {numbers}, its extent is {whole}", wrong)
    return (0 if type(at) is int else at), wrong


def beyond(state: State, view: View, place: Offsets, width: int, wrong: Wrong, line: int, verb: str) -> Wrong:
    """Lanes whose access leaves the allocation, though not the array's stated shape, added to ``wrong``."""
    if view.bounded:
        return wrong
    limit = len(view.storage.data) - width
    lanes: Bools = state.among(wrong) & ((place < 0) | (place > limit))
    if not count_nonzero(lanes):
        return wrong
    number = state.first(place, lanes)
    past = f"{number - limit} past its end" if number > limit else f"{-number} before its start"
    state.fault("outside", line, view.name, f"the memory of {view.name} is {verb} {past}", lanes)
    return lanes if wrong is None else lanes | wrong


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


# --- what nothing has written ---


_RETURNED = "the return: a thread without an output still stages for its block, and comes to each of its barriers"


@dataclass(eq=False)
class Source:
    """Lanes that read what nothing had written; without a view, took what no thread gave."""

    view: View | None
    lanes: Bools
    offsets: Ints  # from the view's start


def require_written(state: State, value: Value, line: int = 0) -> None:
    """A fault if what is compared or made an integer comes from memory that nothing had written."""
    if state.tainted is not None and not uniform(value):
        reveal(state, value, "decides something" + (f" in line {line}" if line else ""))


def read_unwritten(state: State, line: int, view: View, offset: Offsets, lanes: Bools, nan: bool) -> None:
    """What nothing has written was read, ``offset`` from the view's start."""
    if nan:
        taint(state, line, lanes, view.name, view, offset)
    elif state.copied is not None:
        state.copied = state.copied | lanes
    else:  # an integer cannot be told apart later
        text = _unset(state, line, view, state.first(offset, lanes), lanes)
        state.unset = state.unset or (line, text)


def _unset(state: State, line: int, view: View, offset: int, lanes: Bools, became: str = "") -> str:
    """A fault of lanes that read what nothing has written; its words."""
    text, look_at = f"{view.element(offset)}, which nothing has written, is read{became}", view.storage.unset_look_at
    block, told = int(np.argmax(lanes)) // state.lanes_per_block, ""
    gone = count_nonzero(state.left.reshape(state.blocks_at_once, -1)[block])
    if gone and view.storage.space == "shared":
        told = f": {gone} of the block's {state.threads} threads had returned before the barrier"
        look_at = _RETURNED
    state.fault("read-before-write", line, view.name, text + told, lanes, look_at=look_at)
    return text


def taint(state: State, line: int, lanes: Bools, name: str, view: View | None = None, offsets: Offsets = 0) -> None:
    """These lanes read what nothing has written, or took what no thread gave: a fault if something comes of it."""
    state.tainted = lanes.copy() if state.tainted is None else state.tainted | lanes
    source = state.sources.setdefault((line, name), Source(view, state.none.bits, state.lane_numbers))
    source.lanes, source.offsets = source.lanes | lanes, np.where(lanes, offsets, source.offsets)


def reveal(state: State, value: Value, what: str) -> None:
    """A fault of a source of those lanes whose value is NaN; ``what`` becomes of it."""
    if dtype_of(value).kind != "f":
        return
    lanes = np.isnan(value) & state.tainted & state.mask.bits
    lane, became = int(np.argmax(lanes)), f", and what becomes of it {what}"
    key = next((key for key, one in state.sources.items() if one.lanes[lane]), None) if count_nonzero(lanes) else None
    if key is None:
        return
    (line, name), source = key, state.sources.pop(key)
    if source.view is None:
        state.fault("warp-sync", line, "", f"{name}{became}", lanes)
    else:
        _unset(state, line, source.view, int(source.offsets[lane]), lanes, became)


def take_taint(state: State, giver: Ints) -> None:
    """Each lane takes a value from another, its giver: what that one read unwritten, it may hold now."""
    if state.tainted is None:
        return
    state.tainted = state.tainted | state.tainted[giver]
    for source in state.sources.values():
        source.offsets = np.where(source.lanes, source.offsets, source.offsets[giver])
        source.lanes = source.lanes | source.lanes[giver]


def spread_taint(state: State) -> None:
    """The lanes of a warp have worked something out together: what one read unwritten, each may hold now."""
    for step in () if state.tainted is None else (1, 2, 4, 8, 16):
        take_taint(state, state.lane_numbers ^ step)


def note_unwritten(state: State) -> None:
    if any(kind == "read-before-write" for kind, *_ in state.ledger.faults):
        return  # what was stored may have come from here
    for (line, name), source in state.sources.items():
        if source.view is not None:
            text = f"line {line} reads elements of {name} that nothing has written"
            state.ledger.notes[f"{text}; no such value is stored"] += 1
