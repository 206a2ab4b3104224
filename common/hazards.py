"""Watches one simulated launch element by element: races, and reads of what nobody wrote, with their lines.

Slow, so only a kernel already known to be wrong is watched. Import it only where the simulator is switched on.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
from numba.cuda.simulator import kernel, kernelapi

from common import simulator
from common.simulator import LOCAL, SHARED, KernelArray


class Access(NamedTuple):
    """One access to one element: by which thread of which block, after how many barriers, at which line."""

    block: tuple[int, ...]
    barriers: int
    thread: tuple[int, ...]
    line: int


class Note(NamedTuple):
    """Something seen. ``kind`` is race, overlap (between blocks) or read-before-write."""

    kind: str
    line: int
    text: str


@dataclass
class Watch:
    """What was seen of the kernels in the file ``path``, the first of each kind at each pair of lines."""

    path: str
    notes: list[Note] = field(default_factory=list)
    _seen: set[tuple[Any, ...]] = field(default_factory=set)
    _global: _Shadow | None = None

    def note(self, kind: str, lines: tuple[int, ...], text: str) -> None:
        if (kind, *sorted(lines)) not in self._seen:
            self._seen.add((kind, *sorted(lines)))
            self.notes.append(Note(kind, lines[-1], text))

    def array(self, array: np.ndarray[Any, Any], space: str) -> Any:
        shadow = _Shadow(space)
        if space == simulator.GLOBAL:  # arguments may be views of one array
            shadow = self._global = self._global or shadow
        return _WatchedArray.of(array, self, shadow)

    def here(self) -> Access:
        module = kernel._get_kernel_context()
        frame: FrameType | None = sys._getframe(2)
        line = 0
        while frame is not None and not line:
            if frame.f_code.co_filename == self.path:
                line = frame.f_lineno
            frame = frame.f_back
        block = module.block
        return Access(tuple(block.index), block.barriers, tuple(module.thread.index), line)


@contextmanager
def watching(path: str) -> Iterator[Watch]:
    """Watch the kernels launched meanwhile; ``path`` is the file whose lines are named."""
    watch = Watch(path)
    with simulator.arrays_made_by(watch.array):
        yield watch


@dataclass
class _Shadow:
    """The last write and the last reads of each element, by its address."""

    space: str
    writes: dict[int, Access] = field(default_factory=dict)
    reads: dict[int, tuple[Access, ...]] = field(default_factory=dict)


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
        if not isinstance(value, KernelArray):
            self._read(self._place(index), index)
        return value

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(index, value)
        if not any(isinstance(i, slice) for i in _tuple(index)):
            self._write(self._place(index), index)

    def flat_read(self, start: int, stop: int) -> None:
        for i in range(start, stop):
            self._read(self._flat_place(i), i)

    def flat_write(self, start: int, stop: int) -> None:
        for i in range(start, stop):
            self._write(self._flat_place(i), i)

    def _flat_place(self, i: int) -> int:
        return self._place(np.unravel_index(i, self._array.shape))

    def _place(self, index: Any) -> int:
        offsets = (int(i) * step for i, step in zip(_tuple(index), self._strides, strict=True))
        return int(self._address + sum(offsets))

    def _read(self, place: int, index: Any) -> None:
        if _is_atomic():
            return
        now, shadow = self._watch.here(), self._shadow
        wrote = shadow.writes.get(place)
        if shadow.space == SHARED and wrote is not None and wrote.block != now.block:
            wrote = None
        if wrote is None:
            if shadow.space != simulator.GLOBAL:
                text = f"is read at line {now.line} in {_who(now)}, before anything was written to it"
                self._report("read-before-write", (now.line,), f"{self._at(index)} {text}")
        elif _unordered(wrote, now):
            self._race(wrote, now, index, f"is written at line {wrote.line} in {_who(wrote)} and read "
                       f"at line {now.line} in {_who(now)}")  # fmt: skip
        if shadow.space != LOCAL:
            # two readers are enough: one of them is another thread than the next writer
            others = tuple(old for old in shadow.reads.get(place, ()) if old.thread != now.thread)
            shadow.reads[place] = (now, *others[:1])

    def _write(self, place: int, index: Any) -> None:
        if _is_atomic():
            return
        now, shadow = self._watch.here(), self._shadow
        wrote = shadow.writes.get(place)
        if wrote is not None and _unordered(wrote, now):
            self._race(wrote, now, index, f"is written at line {wrote.line} in {_who(wrote)} and again "
                       f"at line {now.line} in {_who(now)}")  # fmt: skip
        for read in shadow.reads.get(place, ()):
            if _unordered(read, now) and (shadow.space != SHARED or read.block == now.block):
                self._race(read, now, index, f"is read at line {read.line} in {_who(read)} and written "
                           f"at line {now.line} in {_who(now)}")  # fmt: skip
                break
        shadow.writes[place] = now

    def _race(self, first: Access, second: Access, index: Any, text: str) -> None:
        if self._shadow.space == SHARED and first.block != second.block:
            return  # each block has its own
        if first.block == second.block:
            self._report("race", (first.line, second.line), f"{self._at(index)} {text}, and no barrier lies between")
        else:
            self._report("overlap", (first.line, second.line), f"{self._at(index)} {text}: blocks do not wait "
                         "for each other")  # fmt: skip

    def _report(self, kind: str, lines: tuple[int, ...], text: str) -> None:
        self._watch.note(kind, lines, text)

    def _at(self, index: Any) -> str:
        return f"{simulator.name_of(self)}[{', '.join(str(int(i)) for i in _tuple(index))}]"


def _tuple(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _unordered(first: Access, second: Access) -> bool:
    """May a GPU do the second access before the first?"""
    if first.block != second.block:
        return True
    return first.thread != second.thread and first.barriers == second.barriers


def _who(access: Access) -> str:
    thread, block = (", ".join(map(str, place)) for place in (access.thread, access.block))
    return f"thread ({thread}) of block ({block})"


def _is_atomic() -> bool:
    return sys._getframe(3).f_code.co_filename == str(kernelapi.__file__)
