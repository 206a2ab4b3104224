"""Barriers in shared memory that count arrivals and bytes (mbarrier), and threads that wait for one of their phases.

PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier". A phase is complete when as many threads
have arrived as the barrier was made for, and all bytes that it was told to expect; what those who arrived knew is
known to those who wait for it. The *pipeline* tells when each stage, what arrives at one barrier that counts bytes,
is filled, full, multiplied and free again. Its clock counts these events in one block: it measures nothing.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from functools import partial
from typing import Any

import numpy as np

from common.trace.cost import WARP, Ints
from common.trace.hopper.tiles import joined
from common.trace.intrinsics import intrinsic, one_number
from common.trace.messages import TracedSpan
from common.trace.state import State
from common.trace.values import Value, spread
from common.trace.views import within

on_engines = partial(intrinsic, engines=True)

_MOST_ARRIVALS = (1 << 20) - 1  # in a phase


def at(value: Value, lane: int) -> int:
    return int(value) if np.ndim(value) == 0 else int(value[lane])


class Barrier:
    """One barrier of one block. ``phase`` counts those that are complete."""

    def __init__(self, state: State, name: str, block: int) -> None:
        self.state, self.name, self.block, self.phase = state, name, block, 0
        self.arrivals = self.missing = 0  # of a phase, 0 until barrier_init; those of this one that have not come
        self.expected = self.arrived = 0  # bytes of this phase
        self.expected_in = 0  # the line of the last barrier_expect
        self.copies: list[Any] = []  # tma.Load, whose bytes count in this phase
        self.column = state.engines.clocks.column()
        state.engines.by_column[self.column] = self
        # by which warp, in which of its intervals, in which line (0: it was used before)
        self.made: tuple[int, int, int] | None = None
        self.published = False
        self.gathered: Ints = np.zeros(0, np.int64)  # what those know who have arrived in this phase
        self.known: Ints = np.zeros(self.column + 1, np.int64)  # what those knew who arrived in complete phases

    def make(self, warp: int, arrivals: int, line: int) -> None:
        self.arrivals = self.missing = arrivals
        self.made, self.published = (warp, int(self.state.engines.clocks.now[warp]), line), False

    def fault(self, lane: int, line: int, text: str, cause: str = "") -> None:
        self.state.fault_of(lane, "mbarrier", line, self.name, text, cause)

    def require_usable(self, lane: int, line: int) -> None:
        """A fault unless it is made and published, and this lane knows it."""
        missing = "barriers that are not there"
        if self.made is None:
            self.fault(lane, line, f"{self.name} is used, and no barrier_init has made it", missing)
            self.make(lane // WARP, 1, 0)
        elif self.state.engines.clocks.known[lane, self.made[0]] < self.made[1]:
            text = f"{self.name} is used with no barrier of the block, or the cluster, after its barrier_init"
            self.fault(lane, line, text, missing)
        elif not self.published:
            self.fault(lane, line, f"{self.name} is used, and no publish_barriers follows its barrier_init", missing)

    def passed(self, parity: int) -> bool:
        """Is the phase of this parity complete, the last one that has it?"""
        return self.phase % 2 != parity % 2

    def arrive(self, lane: int, given: Ints, count: int, line: int) -> None:
        """An arrival, with what it hands over; it expects so many bytes more."""
        if self.state.engines.clocks.known[lane, self.column] < self.phase:
            text = f"an arrival at {self.name} may come in the phase before: nothing that this thread has waited for "
            text += f"says that its {self.arrivals} arrivals, and its bytes, have come"
            self.fault(lane, line, text)
        if not self.missing:
            still = f", and {self.expected - self.arrived} bytes have not" if self.expected else ""
            came = f"all {self.arrivals} arrivals of the phase have come{still}"
            self.fault(lane, line, f"one arrival at {self.name} is too many: {came}")
            return
        self.expected, self.expected_in = self.expected + count, line
        self.missing -= 1
        self.gathered = joined(self.gathered, given)
        self._complete()

    def deliver(self) -> bool:
        """Let the bytes arrive that alone are missing; False if there are none."""
        if self.missing or not self.copies:
            return False
        copies, self.copies = self.copies, []
        for number in self.state.engines.order.permutation(len(copies)).tolist():
            load = copies[number]
            load.tiles.storage.arrive(load.places, load.values)
            self.gathered = joined(self.gathered, load.known)
            self.arrived += load.values.nbytes
        self._complete()
        return True

    def _complete(self) -> None:
        if self.missing or self.arrived < self.expected:
            return
        if self.arrived > self.expected:
            text = f"{self.arrived} bytes arrive at {self.name} in a phase that expects {self.expected}"
            self.fault(self.block * self.state.lanes_per_block, self.expected_in, text)
        self.phase += 1
        if self.arrived:
            self.state.engines.pipeline.turn(self.column, "full")
        self.missing, self.expected, self.arrived = self.arrivals, 0, 0
        self.known = joined(self.known, self.gathered)
        self.known[self.column] = self.phase
        self.gathered = np.zeros(0, np.int64)

    def lacks(self) -> str:
        text = f"{self.arrivals - self.missing} of {self.arrivals} arrivals have come"
        where = f" that line {self.expected_in} expects" if self.expected else ""
        some = self.expected or self.arrived
        return text + f" and {self.arrived} of {self.expected} bytes{where}" if some else text


class Barriers:
    ndim = 1

    def __init__(self, state: State, count: int) -> None:
        self.state, self.size, self.name = state, count, ""
        self.known: dict[tuple[int, int], Barrier] = {}  # by block and number

    def at(self, block: int, i: int) -> Barrier:
        if (block, i) not in self.known:
            self.known[block, i] = Barrier(self.state, f"{self.name}[{i}]", block)
        return self.known[block, i]

    def named(self, line: int, i: Value, verb: str) -> list[tuple[int, int]]:
        """The active lanes, and the barrier that each names; one beyond the array is a fault."""
        numbers, wrong = within(self.state, i, self.size, line, self, None, verb)
        lanes = np.flatnonzero(self.state.among(wrong))
        return list(zip(lanes.tolist(), spread(numbers, self.state.mask.bits.shape)[lanes].tolist(), strict=True))


def _by_warp(lanes: list[int]) -> dict[int, list[int]]:
    return {warp: list(own) for warp, own in itertools.groupby(lanes, lambda lane: lane // WARP)}


# --- the toolkit's functions ---


@on_engines
def barrier_wait(state: State, line: int, bars: Barriers, i: Value, parity: Value) -> None:
    waiting: defaultdict[tuple[Barrier, int], list[int]] = defaultdict(list)  # lanes, by barrier and parity
    for lane, number in bars.named(line, i, "waited for"):
        bit = at(parity, lane)
        if bit not in (0, 1):
            state.fault_of(lane, "operand", line, bars.name, f"the parity of a phase is 0 or 1, and this is {bit}")
        waiting[bars.at(int(state.block_number[lane]), number), bit & 1].append(lane)
    for (barrier, _), lanes in waiting.items():
        for own in _by_warp(lanes).values():
            barrier.require_usable(own[0], line)
    if waiting:
        state.engines.teams.wait(line, "phases", list(waiting))
    for (barrier, _), lanes in waiting.items():
        state.engines.clocks.acquire(lanes, barrier.known)


def _arrive(state: State, line: int, bars: Barriers, i: Value, count: Value = 0, rank: Value | None = None) -> None:
    """The active lanes arrive, each at the barrier that it names: of its block, or of that rank in its cluster."""
    engine, named = state.engines, bars.named(line, i, "used")
    given = {warp: engine.clocks.release(own) for warp, own in _by_warp([lane for lane, _ in named]).items()}
    for lane, number in named:
        block = int(state.block_number[lane])
        to = [block]
        if rank is not None:
            other = at(rank, lane)
            to = engine.cluster_of(block, 1 << other if 0 <= other <= 16 else 0, line, lane)
        for barrier in [bars.at(target, number) for target in to]:
            barrier.require_usable(lane, line)
            if barrier.block != block:
                engine.remote[line, lane, barrier.block] = engine.syncs, barrier.column, barrier.phase + 1
            barrier.arrive(lane, given[lane // WARP], at(count, lane), line)


on_engines(_arrive, "barrier_expect")
on_engines(_arrive, "barrier_arrive")
on_engines(lambda state, line, bars, i, rank: _arrive(state, line, bars, i, rank=rank), "barrier_arrive_at")


@on_engines
def barrier_array(state: State, line: int, count: Value) -> Barriers:
    known: dict[object, Barriers] = state.engines.barriers
    return known.setdefault(state.here(), Barriers(state, one_number(state, line, "barrier_array", count)))


@on_engines
def barrier_init(state: State, line: int, bars: Barriers, i: Value, arrivals: Value) -> None:
    for lane, number in bars.named(line, i, "made"):
        barrier, count = bars.at(int(state.block_number[lane]), number), at(arrivals, lane)
        if barrier.made and barrier.made[2]:
            barrier.fault(lane, line, f"{barrier.name} is made again: it was made in line {barrier.made[2]}")
        elif not 1 <= count <= _MOST_ARRIVALS:
            text = f"{barrier.name} is to wait for {count} arrivals, which must be from 1 to {_MOST_ARRIVALS}"
            barrier.fault(lane, line, text)
        barrier.make(lane // WARP, max(count, 1), line)


@on_engines
def publish_barriers(state: State, line: int) -> None:
    warps = set((np.flatnonzero(state.mask.bits) // WARP).tolist())
    for barrier in state.engines.by_column.values():
        if barrier.made and barrier.made[0] in warps:
            barrier.published = True


# --- the pipeline over time ---

MARKS: dict[str, str] = {"filling": "~", "full": "=", "multiplied": "#", "free": "."}
_MOST = 2048  # events that are kept


class Pipeline:
    """What happens to the stages of one block, by column of their barriers; nothing is kept unless ``recording``."""

    def __init__(self, recording: bool) -> None:
        self.recording, self.clock = recording, 0
        self.stages: defaultdict[int, list[TracedSpan]] = defaultdict(list)  # the last span of each goes on
        self.reads: Counter[int] = Counter()  # products under way that read a stage

    def turn(self, column: int, state: str, line: int = 0, name: str = "") -> None:
        """A stage is ``filling``, ``full``, ``multiplied`` as one more product reads it, or ``free`` as one has."""
        own = self.stages[column]
        before = own[-1].state if own else ""
        self.reads[column] += {"multiplied": 1, "free": -1}.get(state, 0)
        if state == "multiplied" and before == "free":  # it goes on
            own.pop()
            return
        begins = {
            "filling": self.recording and before != "filling" and self.clock < _MOST, "full": before == "filling",
            "multiplied": before not in ("", "multiplied"), "free": before != "" and not self.reads[column],
        }  # fmt: skip
        if begins[state]:
            self.clock += 1
            for last in own[-1:]:
                last.end, name = self.clock, last.stage
            line = line or next(one.line for one in own[::-1] if one.state == "filling")
            own.append(TracedSpan(name, state, self.clock, 0, line))

    def spans(self) -> list[TracedSpan]:
        for own in filter(None, self.stages.values()):
            own[-1].end = self.clock + 1
        return [span for own in self.stages.values() for span in own]


def drawn(spans: list[TracedSpan], width: int) -> list[str]:
    """The stages as text, one a line, a character for each tick; as much of the beginning as ``width`` holds."""
    label = max((len(span.stage) for span in spans), default=0) + 2
    ticks = min(max((span.end for span in spans), default=1), max(width - label, 8))
    rows: dict[str, str] = {}
    for span in spans:
        row = rows.setdefault(span.stage, " " * (span.start - 1))
        rows[span.stage] = row + MARKS[span.state] * (span.end - span.start)
    return [stage.ljust(label) + row[: ticks - 1].rstrip() for stage, row in rows.items()]
