"""Asynchronous copies of a few bytes a thread from global to shared memory (cp.async), in groups, waited for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from common.trace.cost import Bools
from common.trace.shared import Shared
from common.trace.state import State
from common.trace.values import Value, choose, truth, uniform
from common.trace.views import View

LEFT_OVER = "no wait comes after it"  # of a copy: said last, as a read before it arrived says more


@dataclass
class Copy:
    """One element per lane on its way to shared memory, in the group with this number, by thread."""

    view: View
    place: Any
    lanes: Bools
    value: Value
    line: int
    group: Any

    @property
    def storage(self) -> Shared:
        storage: Shared = self.view.storage
        return storage


def read_or_zero(
    state: State, line: int, array: View, offset: Value, width: int, inside: Value, action: str = "read"
) -> list[Value]:
    """``width`` elements from a flat offset on, as a load or a copy takes them; zeros where not ``inside``."""
    mask = state.mask
    state.mask = state.part(truth(inside)) if not uniform(inside) else mask if inside else state.none
    places: list[Value] = [array.dtype.type(0)] * width
    if state.mask is not state.none:
        source, bad = array.place_flat(state, offset, width, line, "read")
        places = array.storage.read(state, array, source, width, bad, line, action)
        if state.mask is not mask:
            places = [choose(state.mask.bits, value, array.dtype.type(0)) for value in places]
    state.mask = mask
    return places


def start(
    state: State, line: int, shared: View, i: Value, array: View, offset: Value, width: int, inside: Value, op: str
) -> None:
    """Begin a copy of ``width`` elements from global to shared memory; where not ``inside``, of zeros.

    ``op``: copy, or PAST_L1.
    """
    target, wrong = shared.place_flat(state, i, width, line, "written")
    if not isinstance(shared.storage, Shared):
        raise state.error(line, f"{shared.name} is not in shared memory: a copy goes from global to shared memory")
    places = read_or_zero(state, line, array, offset, width, inside, op)
    shared.storage.record(state, shared, target, width, "copy", line)
    lanes = state.among(wrong)
    storage = shared.storage
    if storage.pending is None:
        storage.pending = np.zeros(len(storage.data), np.bool_)
    for v, value in enumerate(places):
        at = np.broadcast_to(np.asarray(storage.flat_offset(target + v)), lanes.shape)
        storage.pending[at[lanes]] = True
        storage.noted_write(state, shared, at, lanes, value, line)
        state.copies.append(Copy(shared, at, lanes, value, line, state.groups))


def commit(state: State) -> None:
    """The copies that the active lanes started since they did this last are a group from now on."""
    whole = state.mask is state.waiting and not state.has_engines
    state.groups = state.groups + 1 if whole else state.groups + state.mask.bits


def wait(state: State, keep: int | None = None) -> None:
    """What the active lanes' copies bring is there now, but for the last ``keep`` groups and what is in none."""
    left: list[Copy] = []
    for copy in state.copies:
        lanes = copy.lanes & state.mask.bits
        if keep is not None:
            lanes = lanes & (copy.group < state.groups - keep)
        if not lanes.any():
            left.append(copy)
            continue
        storage = copy.storage
        assert storage.pending is not None
        assert storage.written is not None
        storage.pending[copy.place[lanes]] = False
        storage.data[copy.place[lanes]] = copy.value if np.ndim(copy.value) == 0 else copy.value[lanes]
        storage.written[copy.place[lanes]] = True
        storage.noted_write(state, copy.view, copy.place, lanes, copy.value, copy.line)
        if np.count_nonzero(lanes) < np.count_nonzero(copy.lanes):
            left.append(replace(copy, lanes=copy.lanes & ~lanes))
    state.copies = left
    if keep and left:  # the first is the oldest
        behind = np.broadcast_to(state.groups - left[0].group, left[0].lanes.shape)
        state.ledger.under_way = max(state.ledger.under_way, int(behind[left[0].lanes].max()))


def end(state: State) -> None:
    """A fault for each copy that is under way when the threads end."""
    for copy in state.copies:
        text = f"a copy to {copy.view.name} is still under way when the thread ends: {LEFT_OVER}"
        state.fault("copy-not-awaited", copy.line, copy.view.name, text, copy.lanes)
