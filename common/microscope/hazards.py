"""Watches simulated launches element by element: races, reads of what nobody wrote, barriers that some threads skip.

Slow, so only a kernel already known to be wrong is watched. Import it only where the simulator is switched on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
from numba.cuda.simulator import kernel, kernelapi

from common.book.occupancy import WARP
from common.explain.faults import Fault
from common.microscope import simulator
from common.microscope.rounds import across
from common.microscope.simulator import LOCAL, SHARED, KernelArray

_ATOMIC = str(kernelapi.__file__)


class Access(NamedTuple):
    """One access to one element: by which thread of which block, after how many barriers, at which line.

    ``number`` is the thread's in its block, ``clock`` what it has heard by then of the lanes of its warp. Beside
    barriers that count (:mod:`common.microscope.asynchronous`) ``column`` and ``epoch`` tell when others have heard
    of this access, and ``row`` is what its thread has heard so far.
    """

    block: tuple[int, ...]
    barriers: int
    thread: tuple[int, ...]
    number: int
    clock: tuple[int, ...]
    line: int
    column: int = 0
    epoch: int = 0
    row: Any = None

    @property
    def warp(self) -> tuple[Any, ...]:
        return self.block, self.number // WARP

    def __str__(self) -> str:
        thread, block = (", ".join(map(str, place)) for place in (self.thread, self.block))
        return f"at line {self.line} in thread ({thread}) of block ({block})"


@dataclass
class Watch:
    """What was seen of the kernels in the file ``path``, the first of each kind at each pair of lines."""

    path: str
    deadline: float
    notes: list[Fault] = field(default_factory=list)
    _seen: set[tuple[Any, ...]] = field(default_factory=set)
    _launch: int = 0
    _arguments: _Shadow = field(default_factory=lambda: _Shadow())
    _blocks: _Shadow = field(default_factory=lambda: _Shadow())

    def note(self, kind: str, lines: tuple[int, ...], text: Callable[[], str]) -> None:
        """Only the first of its kind at these lines is worded: a loop may come to them thousands of times."""
        if (kind, *sorted(lines)) not in self._seen:
            self._seen.add((kind, *sorted(lines)))
            self.notes.append(Fault(kind, text(), lines[-1]))

    def array(self, array: np.ndarray[Any, Any], space: str) -> Any:
        """The array, watched. One launch's arguments are watched together: they may be views of one array.

        So are its shared arrays: all dynamic ones are one memory.
        """
        if space == LOCAL:
            return _LocalArray.of(array, self, _Shadow())
        if self._launch != simulator.launches():
            self._launch, self._arguments, self._blocks = simulator.launches(), _Shadow(), _Shadow()
        if space == SHARED:
            return _SharedArray.of(array, self, self._blocks)
        return _GlobalArray.of(array, self, self._arguments)

    def skipped(self, block: Any) -> None:
        """Note that some of a block's threads have ended while others wait at a barrier."""
        code, _, line = block.ready[0].barrier
        self.note("divergent-barrier", (line if code.co_filename == self.path else 0,), block.skipping)

    def here(self) -> Access:
        """The access that is being made."""
        if time.monotonic() > self.deadline:
            raise TimeoutError("watched long enough")
        block = kernel._get_kernel_context().block
        thread = block.module.thread
        machine = block.cluster.machine
        heard = machine.heard(block, thread.number) if machine else (0, 0, None)
        return Access(block.point, block.barriers, thread.point, thread.number, thread.clock, self.line(), *heard)

    def line(self) -> int:
        """The line of the watched file that is being run; 0 outside it."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            if frame.f_code.co_filename == self.path:
                return frame.f_lineno
            frame = frame.f_back
        return 0


@contextmanager
def watching(path: str, seconds: float) -> Iterator[Watch]:
    """Watch the kernels launched meanwhile; ``path`` is the file whose lines are named.

    After ``seconds`` the launch ends with a TimeoutError, which ends the context.
    """
    watch = Watch(path, time.monotonic() + seconds)
    with simulator.watched_by(watch.array, watch.skipped), suppress(TimeoutError):
        yield watch


@dataclass
class _Shadow:
    """The last write, what it wrote and the last reads of each element, by its address; where copies go, or came."""

    writes: dict[int, Access] = field(default_factory=dict)
    values: dict[int, Any] = field(default_factory=dict)
    reads: dict[int, tuple[Access, ...]] = field(default_factory=dict)
    copies: set[int] = field(default_factory=set)
    brought: set[int] = field(default_factory=set)  # by the copy engine, and not written since


class _WatchedArray(KernelArray):
    __slots__ = ("_address", "_shadow", "_strides", "_watch")

    _watch: Watch
    _shadow: _Shadow
    _address: int
    _strides: tuple[int, ...]

    @classmethod
    def of(cls, array: np.ndarray[Any, Any], watch: Watch, shadow: _Shadow) -> _WatchedArray:
        made = cls(array)
        made._watch, made._shadow = watch, shadow
        made._address, made._strides = array.__array_interface__["data"][0], array.strides
        return made

    def _view(self, array: np.ndarray[Any, Any]) -> KernelArray:
        return self.of(array, self._watch, self._shadow)

    def __getitem__(self, index: Any) -> Any:
        value = super().__getitem__(index)
        # an atomic operation is one access, and may meet another
        if not isinstance(value, KernelArray) and sys._getframe(1).f_code.co_filename != _ATOMIC:
            self._read(index)
        return value

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(index, value)
        whole = not any(isinstance(i, slice) for i in _tuple(index))
        if whole and sys._getframe(1).f_code.co_filename != _ATOMIC:
            self._write(index, value)

    def flat_read(self, start: int, stop: int) -> None:
        for index in self._indices(start, stop):
            self._read(index)

    def flat_write(self, start: int, stop: int, values: Any) -> None:
        for index, value in zip(self._indices(start, stop), np.broadcast_to(values, stop - start), strict=True):
            self._write(index, value)

    def under_way(self, start: int, stop: int) -> None:
        self._shadow.copies.update(map(self._place, self._indices(start, stop)))

    def arrived(self, start: int, stop: int) -> None:
        shadow = self._shadow
        for place in map(self._place, self._indices(start, stop)):
            shadow.writes.pop(place, None)
            shadow.reads.pop(place, None)
            shadow.brought.add(place)
            shadow.copies.discard(place)

    def _indices(self, start: int, stop: int) -> Iterator[Any]:
        """Those of the elements start to stop in memory order."""
        if self._array.ndim == 1:
            return iter(range(start, stop))
        return zip(*np.unravel_index(range(start, stop), self._array.shape), strict=True)

    def _place(self, index: Any) -> int:
        if type(index) is not tuple and len(self._strides) == 1:  # as most are
            return self._address + int(index) * self._strides[0]
        return self._address + sum(int(i) * step for i, step in zip(_tuple(index), self._strides, strict=True))

    def _at(self, index: Any) -> str:
        return f"{simulator.name_of(self)}[{', '.join(str(int(i)) for i in _tuple(index))}]"

    def _read(self, index: Any) -> None:
        raise NotImplementedError

    def _write(self, index: Any, value: Any) -> None:
        raise NotImplementedError


class _LocalArray(_WatchedArray):
    """An array of one thread: only what it reads before it writes matters."""

    __slots__ = ()

    def _read(self, index: Any) -> None:
        place = self._place(index)
        if place in self._shadow.copies:
            now = self._watch.here()
            late = "before wgmma_wait: until then it is the matrix unit's"
            self._watch.note("wgmma-order", (now.line,), lambda: f"{self._at(index)} is read {now}, {late}")
        elif place not in self._shadow.values:
            _unwritten(self, index)

    def _write(self, index: Any, value: Any) -> None:
        place = self._place(index)
        self._shadow.values[place] = True
        self._shadow.copies.discard(place)


class _GlobalArray(_WatchedArray):
    """An argument: blocks run in any order, threads of a block in any order between two barriers."""

    __slots__ = ()

    _starts_empty = False

    def flat_read(self, start: int, stop: int) -> None:
        now = self._watch.here()
        for index in self._indices(start, stop):
            self._read_by(now, index)

    def flat_write(self, start: int, stop: int, values: Any) -> None:
        now = self._watch.here()
        for index, value in zip(self._indices(start, stop), np.broadcast_to(values, stop - start), strict=True):
            self._write_by(now, index, value)

    def _read(self, index: Any) -> None:
        self._read_by(self._watch.here(), index)

    def _write(self, index: Any, value: Any) -> None:
        self._write_by(self._watch.here(), index, value)

    def _read_by(self, now: Access, index: Any) -> None:
        place, shadow = self._place(index), self._shadow
        wrote = self._last_write(place, now)
        if wrote is None and self._starts_empty and not (place in shadow.copies or place in shadow.brought):
            _unwritten(self, index)
        if place in shadow.copies:
            early = "while a copy to it is under way"
            self._watch.note("copy-not-awaited", (now.line,), lambda: f"{self._at(index)} is read {now}, {early}")
        elif wrote is not None and _unordered(wrote, now):
            self._race(wrote, now, index, "is written {} and read {}")
        # two readers of a warp, or of two, are enough: one of them is unordered with the next writer if any is
        others = [old for old in shadow.reads.get(place, ()) if old.number != now.number or old.block != now.block]
        if not others:
            shadow.reads[place] = (now,)
            return
        beside = [old for old in others if old.warp == now.warp]
        shadow.reads[place] = (now, *beside[:1], *[old for old in others if old.warp != now.warp][:1])

    def _write_by(self, now: Access, index: Any, value: Any) -> None:
        place, shadow = self._place(index), self._shadow
        wrote = self._last_write(place, now)
        if wrote is not None and _unordered(wrote, now) and shadow.values[place] != value:
            self._race(wrote, now, index, "is written {} and again, otherwise, {}")
        for read in shadow.reads.get(place, ()):
            if _unordered(read, now) and self._same_memory(read, now):
                self._race(read, now, index, "is read {} and written {}")
                break
        shadow.writes[place], shadow.values[place] = now, value
        shadow.copies.discard(place)
        shadow.brought.discard(place)

    def _last_write(self, place: int, now: Access) -> Access | None:
        wrote = self._shadow.writes.get(place)
        return wrote if wrote is None or self._same_memory(wrote, now) else None

    def _same_memory(self, first: Access, second: Access) -> bool:
        return True

    def _race(self, first: Access, second: Access, index: Any, text: str) -> None:
        """``text`` has a place for either access."""
        alike = first.block == second.block
        lines, end = (first.line, second.line), ": blocks do not wait for each other"
        if alike:
            end = f", and no barrier lies between{across(self._watch.path, *lines)}"
        said = "race" if alike else "overlap"
        self._watch.note(said, lines, lambda: f"{self._at(index)} {text.format(first, second)}{end}")


class _SharedArray(_GlobalArray):
    """A block's array: the next block's lies at the same address, and starts unwritten."""

    __slots__ = ()

    _starts_empty = True

    def _same_memory(self, first: Access, second: Access) -> bool:
        return first.block == second.block


def _unwritten(array: _WatchedArray, index: Any) -> None:
    now = array._watch.here()
    text = "before anything was written to it"
    array._watch.note("read-before-write", (now.line,), lambda: f"{array._at(index)} is read {now}, {text}")


def _tuple(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _unordered(first: Access, second: Access) -> bool:
    """May a GPU do the second access before the first?"""
    if first.block != second.block:
        return True
    if first.epoch and second.row is not None:
        return bool(first.epoch > second.row[first.column])
    if first.number == second.number or first.barriers != second.barriers:
        return False
    lane = first.number % WARP
    # lanes of a warp may have waited for each other since
    return first.warp != second.warp or first.clock[lane] > second.clock[lane]
