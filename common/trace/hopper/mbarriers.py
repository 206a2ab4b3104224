"""Barriers in shared memory that count arrivals and bytes (mbarrier), and threads that wait for one of their phases.

PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier". A phase is complete when as many threads
have arrived as the barrier was made for, and all bytes that it was told to expect; what those who arrived knew is
known to those who wait for it. The *pipeline* tells when each stage, what arrives at one barrier that counts bytes,
is filled, full, multiplied and free again. Its clock counts these events in one block: it measures nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
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

MOST = (1 << 20) - 1  # that a phase counts, of arrivals or of bytes


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
        self.made: tuple[int, int] | None = None  # by which warp, in which of its intervals
        self.made_in = 0  # the line; 0: it was used before
        self.published = False
        self.gathered: Ints = np.zeros(0, np.int64)  # what those know who have arrived in this phase
        self.known: Ints = np.zeros(0, np.int64)  # what those knew who arrived in complete phases

    def make(self, warp: int, arrivals: int, line: int) -> None:
        self.arrivals = self.missing = arrivals
        self.made, self.made_in, self.published = (warp, int(self.state.engines.clocks.now[warp])), line, False

    def passed(self, parity: int) -> bool:
        """Is the phase of this parity complete, the last one that has it?"""
        return self.phase % 2 != parity % 2

    def arrive(self, given: Ints, count: int, line: int) -> None:
        """One of the missing arrivals, with what it hands over; it expects so many bytes more."""
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
            self.arrived += load.bytes
        self._complete()
        return True

    def _complete(self) -> None:
        if self.missing or self.arrived < self.expected:
            return
        if self.arrived > self.expected:
            text = f"{self.arrived} bytes arrive at {self.name} in a phase that expects {self.expected}"
            first = self.block * self.state.lanes_per_block
            self.state.fault_of(first, "mbarrier", self.expected_in, self.name, text)
        self.phase += 1
        if self.arrived:
            self.state.engines.pipeline.full(self.column)
        self.missing, self.expected, self.arrived = self.arrivals, 0, 0
        self.known = joined(joined(self.known, self.gathered), np.zeros(self.column + 1, np.int64))
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


def usable(state: State, line: int, barrier: Barrier, lane: int) -> None:
    """A fault unless the barrier is made and published, and this lane knows it."""
    text = ""
    if barrier.made is None:
        text = f"{barrier.name} is used, and no barrier_init has made it"
        barrier.make(lane // WARP, 1, 0)
    elif state.engines.clocks.known[lane, barrier.made[0]] < barrier.made[1]:
        text = f"{barrier.name} is used with no barrier of the block, or the cluster, after its barrier_init"
    elif not barrier.published:
        text = f"{barrier.name} is used, and no publish_barriers follows its barrier_init"
    if text:
        state.fault_of(lane, "mbarrier", line, barrier.name, text, "barriers that are not there")


@on_engines
def barrier_wait(state: State, line: int, bars: Barriers, i: Value, parity: Value) -> None:
    waiting: defaultdict[tuple[Barrier, int], list[int]] = defaultdict(list)  # lanes, by barrier and parity
    for lane, number in bars.named(line, i, "waited for"):
        bit = at(parity, lane)
        if bit not in (0, 1):
            state.fault_of(lane, "operand", line, bars.name, f"the parity of a phase is 0 or 1, and this is {bit}")
        waiting[bars.at(int(state.block_number[lane]), number), bit & 1].append(lane)
    for (barrier, _), lanes in waiting.items():
        for lane in {lane // WARP: lane for lane in reversed(lanes)}.values():  # one of each warp
            usable(state, line, barrier, lane)
    if waiting:
        state.engines.teams.wait(line, phases=list(waiting))
    for (barrier, _), lanes in waiting.items():
        state.engines.clocks.acquire(lanes, barrier.known)


def _arrive(state: State, line: int, bars: Barriers, i: Value, count: Value = 0, rank: Value | None = None) -> None:
    """The active lanes arrive, each at the barrier that it names: of its block, or of that rank in its cluster."""
    engine = state.engines
    named = bars.named(line, i, "used")
    by_warp: defaultdict[int, list[int]] = defaultdict(list)
    for lane, _ in named:
        by_warp[lane // WARP].append(lane)
    given = {warp: engine.clocks.release(lanes) for warp, lanes in by_warp.items()}
    for lane, number in named:
        blocks, expects = [int(state.block_number[lane])], at(count, lane)
        if rank is not None:
            other = at(rank, lane)
            blocks = engine.cluster_of(blocks[0], 1 << min(other, 16) if other >= 0 else 0, line, lane)
        for block in blocks:
            barrier = bars.at(block, number)
            usable(state, line, barrier, lane)
            for text in _wrong(state, barrier, lane, expects):
                state.fault_of(lane, "mbarrier", line, barrier.name, text)
            if block != state.block_number[lane]:
                engine.remote[line, lane, block] = engine.syncs, barrier.column, barrier.phase + 1
            if barrier.missing:
                barrier.arrive(given[lane // WARP], expects, line)


def _wrong(state: State, barrier: Barrier, lane: int, count: int) -> Iterator[str]:
    """What is wrong with one lane's arrival, which expects so many bytes more."""
    if state.engines.clocks.known[lane, barrier.column] < barrier.phase:
        yield (
            f"an arrival at {barrier.name} may come in the phase before: nothing that this thread has waited for "
            f"says that its {barrier.arrivals} arrivals, and its bytes, have come"
        )
    left = barrier.expected - barrier.arrived
    if not 0 <= left + count <= MOST or count < 0:
        yield f"{barrier.name} is to wait for {count} bytes: a phase counts up to {MOST}"
    if not barrier.missing:
        still = f", and {left} bytes have not" if barrier.expected else ""
        came = f"all {barrier.arrivals} arrivals of the phase have come{still}"
        yield f"one arrival at {barrier.name} is too many: {came}"


# --- the toolkit's functions ---


@on_engines
def barrier_array(state: State, line: int, count: Value) -> Barriers:
    known: dict[object, Barriers] = state.engines.barriers
    return known.setdefault(state.here(), Barriers(state, one_number(state, line, "barrier_array", count)))


@on_engines
def barrier_init(state: State, line: int, bars: Barriers, i: Value, arrivals: Value) -> None:
    for lane, number in bars.named(line, i, "made"):
        barrier, count = bars.at(int(state.block_number[lane]), number), at(arrivals, lane)
        text = f"{barrier.name} is to wait for {count} arrivals, which must be from 1 to {MOST}"
        if barrier.made_in:
            text = f"{barrier.name} is made again: it was made in line {barrier.made_in}"
        if barrier.made_in or not 1 <= count <= MOST:
            state.fault_of(lane, "mbarrier", line, barrier.name, text)
        barrier.make(lane // WARP, max(count, 1), line)


@on_engines
def publish_barriers(state: State, line: int) -> None:
    warps = set((np.flatnonzero(state.mask.bits) // WARP).tolist())
    for barrier in state.engines.by_column.values():
        if barrier.made and barrier.made[0] in warps:
            barrier.published = True


on_engines(_arrive, "barrier_expect")
on_engines(_arrive, "barrier_arrive")
on_engines(lambda state, line, bars, i, rank: _arrive(state, line, bars, i, rank=rank), "barrier_arrive_at")


# --- the pipeline over time ---

MARKS: dict[str, str] = {"filling": "~", "full": "=", "multiplied": "#", "free": "."}
_MOST = 2048  # events that are kept


class Pipeline:
    """What happens to the stages of one block, by column of their barriers; nothing is kept unless ``recording``."""

    def __init__(self, recording: bool) -> None:
        self.recording, self.clock = recording, 0
        self.stages: dict[int, list[TracedSpan]] = {}  # the last span of each goes on
        self.reads: Counter[int] = Counter()  # that are under way

    def _begin(self, column: int, state: str, name: str, line: int) -> None:
        self.clock += 1
        own = self.stages.setdefault(column, [])
        if own:
            own[-1].end = self.clock
        own.append(TracedSpan(name, state, self.clock, 0, line))

    def filling(self, block: int, column: int, name: str, line: int) -> None:
        begun = column in self.stages and self.stages[column][-1].state == "filling"
        if self.recording and not block and not begun and self.clock < _MOST:
            self._begin(column, "filling", name, line)

    def full(self, column: int) -> None:
        if (own := self.stages.get(column)) and own[-1].state == "filling":
            self._begin(column, "full", own[-1].stage, own[-1].line)

    def read(self, column: int, line: int) -> None:
        """wgmma begins to read what was copied there."""
        if own := self.stages.get(column):
            if own[-1].state == "free":  # it goes on
                own.pop()
            elif own[-1].state != "multiplied":
                self._begin(column, "multiplied", own[-1].stage, line)
            self.reads[column] += 1

    def multiplied(self, column: int) -> None:
        """One product has read this stage."""
        if own := self.stages.get(column):
            self.reads[column] -= 1
            if not self.reads[column]:
                copied = next(one for one in own[::-1] if one.state == "filling")
                self._begin(column, "free", copied.stage, copied.line)

    def spans(self) -> list[TracedSpan]:
        for own in self.stages.values():
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
