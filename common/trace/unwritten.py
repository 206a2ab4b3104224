"""What nothing has written: which lanes read it, and whether something came of it.

It holds NaN where it can, and a lane that read it is remembered: a NaN that the lane stores later, or decides
something by, is a fault. A value that is thrown away does no harm and is only noted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from common.trace.cost import WARP, Bools, Ints
from common.trace.state import State
from common.trace.values import Value, dtype_of, uniform
from common.trace.views import Offsets, View


@dataclass
class Source:
    """Lanes that read what nothing had written, in a line: at which offsets from the view's start; without a view,
    what they took from no thread."""

    lanes: Bools
    line: int
    view: View | None
    offsets: Ints
    said: str = ""

    @property
    def name(self) -> str:
        return self.view.name if self.view else self.said


def defined(state: State, value: Value, line: int = 0) -> None:
    """A fault if what is compared or made an integer comes from memory that nothing had written."""
    if state.tainted is None or uniform(value) or value.dtype.kind != "f":
        return
    _reveal(state, np.isnan(value) & state.tainted & state.mask.bits, "decides something" + _in(line))


def read(state: State, line: int, view: View, offset: Offsets, lanes: Bools, nan: bool) -> None:
    """What nothing has written was read, ``offset`` from the view's start."""
    if not nan:  # an integer cannot be told apart later
        text = f"{view.element(state.first(offset, lanes))}, which nothing has written, is read"
        state.fault("read-before-write", line, view.name, text, lanes)
        state.unset = state.unset or (line, text)
        return
    _taint(state, Source(lanes.copy(), line, view, np.broadcast_to(offset, lanes.shape)))


def taken_from_nobody(state: State, line: int, name: str, lanes: Bools) -> None:
    """A shuffle took what no thread gave: a fault if something comes of it."""
    said = f"{name} takes the value of a thread that does not come to it"
    _taint(state, Source(lanes.copy(), line, None, np.zeros(lanes.shape, np.int64), said))


def _taint(state: State, new: Source) -> None:
    state.tainted = new.lanes.copy() if state.tainted is None else state.tainted | new.lanes
    for source in state.sources:
        if (source.line, source.name) == (new.line, new.name):
            source.offsets = np.where(new.lanes, new.offsets, source.offsets)
            source.lanes |= new.lanes
            return
    state.sources.append(new)


def reveal(state: State, value: Value, line: int, view: View) -> None:
    """A fault if a value that is stored comes from memory that nothing had written."""
    if state.tainted is None or dtype_of(value).kind != "f":
        return
    _reveal(state, np.isnan(value) & state.tainted & state.mask.bits, f"is stored to {view.name}{_in(line)}")


def _reveal(state: State, lanes: Bools, what: str) -> None:
    if not lanes.any():
        return
    lane = int(np.argmax(lanes))
    for i, source in enumerate(state.sources):
        if source.lanes[lane]:
            if source.view is None:
                state.fault("warp-sync", source.line, "", f"{source.said}, and what becomes of it {what}", lanes)
            else:
                element = source.view.element(int(source.offsets[lane]))
                text = f"{element}, which nothing has written, is read, and what becomes of it {what}"
                look_at = source.view.storage.unset_look_at
                state.fault("read-before-write", source.line, source.view.name, text, lanes, look_at=look_at)
            del state.sources[i]
            return


def spread(state: State) -> None:
    """The lanes of a warp have worked something out together: what one read unwritten, each may hold now."""
    if state.tainted is None:
        return
    state.tainted = state.tainted | np.repeat(state.tainted.reshape(-1, WARP).any(axis=1), WARP)
    for source in state.sources:
        rows = source.lanes.reshape(-1, WARP)
        first = np.arange(len(rows)) * WARP + rows.argmax(axis=1)
        source.offsets = np.where(source.lanes, source.offsets, np.repeat(source.offsets[first], WARP))
        source.lanes = np.repeat(rows.any(axis=1), WARP)


def end(state: State) -> None:
    """Note what was read and came to nothing."""
    for source in state.sources:
        if source.view is not None:
            text = f"line {source.line} reads elements of {source.view.name} that nothing has written"
            state.ledger.notes[f"{text}; no such value is stored"] += 1


def _in(line: int) -> str:
    return f" in line {line}" if line else ""
