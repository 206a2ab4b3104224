"""What blocks have where engines work beside their threads: teams, clocks, registers, what is under way.

The matrix unit (:mod:`common.trace.hopper.wgmma`) and the copy engine (:mod:`common.trace.hopper.tma`) keep here what
they have begun. The *pipeline* tells when each stage of shared memory is filled, full, multiplied and free again: a
stage is what arrives at one barrier that counts bytes. Its clock counts what happens to any stage of the block that
is looked at: it orders, and measures nothing.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Literal
from weakref import WeakSet

import numpy as np

from common.catalog.limits import REGISTERS
from common.trace import races
from common.trace.cost import WARP
from common.trace.hopper import tma, wgmma
from common.trace.hopper.mbarriers import on_engines
from common.trace.hopper.tiles import Groups, Tiles
from common.trace.hopper.warps import WARPGROUP, Clocks, Teams, Wait
from common.trace.intrinsics import one_number
from common.trace.messages import TracedSpan
from common.trace.records import shared_memory
from common.trace.shared import Local
from common.trace.state import BARRIER, State
from common.trace.values import Cast, Value


class Engines:
    """The state of the blocks that run at once; ``seed`` sets the order in which copies arrive."""

    def __init__(self, state: State, split: frozenset[int], together: bool, seed: int, recording: bool) -> None:
        self.state = state
        self.clocks = Clocks(len(state.lane_numbers) // WARP)
        self.teams = Teams(state, split, together, self._resume)
        self.order = np.random.default_rng(seed)
        self.pipeline = Pipeline(recording)
        self.queues: defaultdict[int, Groups] = defaultdict(Groups)  # of wgmma, by the warpgroup's first lane
        self.stores: defaultdict[int, Groups] = defaultdict(Groups)  # bulk stores, by lane
        self.barriers: dict[object, Any] = {}  # an mbarriers.Barriers, by place in the code
        self.by_column: dict[int, Any] = {}  # an mbarriers.Barrier
        self.locals: defaultdict[object, WeakSet[Local]] = defaultdict(WeakSet)  # arrays of a team's threads
        self.syncs = 0  # barriers of the cluster that have been passed
        # by line, lane and block of an arrival elsewhere: syncs by then, and the phase of a column that tells of it
        self.remote: dict[tuple[int, int, int], tuple[int, int, int]] = {}
        self.registers: dict[int, tuple[int, int]] = {}  # by the warpgroup's first lane: for a thread, and the line

    # --- threads ---

    def barrier(self, line: int, of_cluster: bool) -> None:
        self.teams.until(Wait(line, self.state.mask, of_cluster))

    def _resume(self, line: int, of_cluster: bool) -> None:
        """The active lanes have come to a barrier of their blocks, or of their clusters, and go on: they have waited
        for each other."""
        state = self.state
        if not of_cluster:
            races.pass_barrier(state, line)
        else:
            absent = state.waiting.bits & ~state.mask.bits
            if absent.any():
                races.skipped(state, line, absent, barrier="barrier of the cluster")
            state.stamps = ((state.stamps >> BARRIER) + 1) << BARRIER
            self.syncs += 1
        warps = np.flatnonzero(state.mask.bits.reshape(-1, WARP).any(axis=1))
        blocks = warps * WARP // state.lanes_per_block
        keys = np.array([state.peers[block][0] for block in blocks.tolist()]) if of_cluster else blocks
        for key in np.unique(keys).tolist():
            self.clocks.meet(warps[keys == key].tolist())

    def cluster_of(self, block: int, mask: int, line: int, lane: int) -> list[int]:
        """The blocks of this block's cluster whose bit is set in the mask."""
        peers = self.state.peers[block]
        if mask <= 0 or mask >> len(peers):
            text = f"the mask {mask:#x} names blocks of a cluster of {len(peers)}"
            self.state.fault_of(lane, "operand", line, "", text)
        return [peer for rank, peer in enumerate(peers) if mask >> rank & 1]

    def first_registers(self) -> int:
        """What a launch gives a thread."""
        assert self.state.bounds is not None
        threads, resident = self.state.bounds
        return min(REGISTERS // max(resident, 1) // threads // 8 * 8, 256)

    # --- the end ---

    def end(self) -> None:
        """All threads have ended: an arrival at a block that may have ended is at fault, and registers nobody has."""
        for (line, lane, block), (syncs, column, phase) in self.remote.items():
            if syncs == self.syncs and not self._heard(block, column, phase):
                text = "the block whose barrier this arrives at may have ended: no cluster_sync comes after it"
                self.state.fault_of(lane, "left-cluster", line, "", text)
        if self.registers and self.state.bounds is not None:
            self._add_up_registers()

    def _heard(self, block: int, column: int, number: int) -> bool:
        """Does a thread of the block know that the column has come to this number?"""
        size = self.state.lanes_per_block
        rows = [self.clocks.row(lane) for lane in range(block * size, block * size + size)]
        return any(len(row) > column and row[column] >= number for row in rows)

    def _add_up_registers(self) -> None:
        """What warpgroups take, others must have given: a block has no more than it began with."""
        first, threads = self.first_registers(), self.state.lanes_per_block
        held = [self.registers.get(lead, (first, 0))[0] for lead in range(0, threads, WARPGROUP)]
        most = first * threads  # what a launch gives the block: the rest of the file is nobody's
        taken = sum(held) * WARPGROUP
        if taken > most:
            text = (
                f"warpgroups hold {', '.join(map(str, held))} registers a thread, {taken:,} together, and the block "
                f"has {most:,}: take_registers waits for ever"
            )
            self.state.fault_of(0, "deadlock", max(line for _, line in self.registers.values()), "", text)


# --- the pipeline over time ---

Stage = Literal["filling", "full", "multiplied", "free"]
STATES: tuple[Stage, ...] = ("filling", "full", "multiplied", "free")
MARKS: dict[str, str] = {"filling": "~", "full": "=", "multiplied": "#", "free": "."}
_MOST = 512  # fillings that are kept


@dataclass
class Filling:
    """One filling of a stage, and when it came to each state; ``reads`` of it are under way."""

    stage: str
    line: int
    begun: dict[Stage, int] = field(default_factory=dict)
    reads: int = 0
    read_in: int = 0


class Pipeline:
    """What happens to the stages of one block; nothing is kept unless ``recording``."""

    def __init__(self, recording: bool) -> None:
        self.recording = recording
        self.clock = 0
        self.fillings: list[Filling] = []
        self._now: dict[int, Filling] = {}  # by column of the barrier

    def _begin(self, now: Filling, stage: Stage) -> None:
        self.clock += 1
        now.begun[stage] = self.clock

    def filling(self, block: int, column: int, name: str, line: int) -> None:
        """A copy begins to a stage: it counts at the barrier of this name, block, and column of the clocks."""
        if not self.recording or block or len(self.fillings) >= _MOST:
            return
        if column not in self._now or "full" in self._now[column].begun:
            self._now[column] = Filling(name, line)
            self.fillings.append(self._now[column])
            self._begin(self._now[column], "filling")

    def full(self, column: int) -> None:
        """All bytes of the stage have arrived."""
        if column in self._now and "full" not in self._now[column].begun:
            self._begin(self._now[column], "full")

    def read(self, column: int, line: int) -> list[Filling]:
        """wgmma begins to read what was copied there; gives the stage."""
        if column not in self._now:
            return []
        now = self._now[column]
        if "multiplied" not in now.begun:
            self._begin(now, "multiplied")
            now.read_in = line
        now.reads += 1
        return [now]

    def multiplied(self, stages: list[Filling]) -> None:
        """One product has read these stages."""
        for now in stages:
            now.reads -= 1
            if not now.reads:
                self._begin(now, "free")

    def spans(self) -> list[TracedSpan]:
        """From when to when each stage is in which state, stage by stage."""
        found: list[TracedSpan] = []
        for stage in dict.fromkeys(one.stage for one in self.fillings):
            own = [one for one in self.fillings if one.stage == stage]
            ends = [later.begun["filling"] for later in own[1:]] + [self.clock + 1]
            for one, end in zip(own, ends, strict=True):
                for (state, start), until in zip(one.begun.items(), [*one.begun.values(), end][1:], strict=True):
                    line = one.read_in if state == "multiplied" else one.line
                    found.append(TracedSpan(stage, state, start, until, line))
        return found


def drawn(spans: list[TracedSpan], width: int) -> list[str]:
    """The stages as text, one a line, a character for each tick; as much of the beginning as ``width`` holds."""
    stages = list(dict.fromkeys(span.stage for span in spans))
    label = max(map(len, stages), default=0) + 2
    ticks = min(max((span.end for span in spans), default=1), max(width - label, 8))
    rows = []
    for stage in stages:
        cells = [" "] * ticks
        for span in spans:
            if span.stage == stage:
                for tick in range(span.start, min(span.end, ticks)):
                    cells[tick] = MARKS[span.state]
        rows.append(stage.ljust(label) + "".join(cells[1:]).rstrip())
    return rows


# --- the toolkit's functions for shared memory, clusters and registers ---

WAITS = frozenset({"barrier_wait"})  # those that wait for other threads of the block or the cluster
_STARTS = 1024  # bytes, on which tiles begin


_TILES = {"half_tiles": Cast(np.float16), "float_tiles": Cast(np.float32), "word_tiles": Cast(np.int32)}
for _name, _kind in _TILES.items():
    on_engines(lambda state, line, kind=_kind: shared_memory(state, line, 0, kind, _STARTS), _name)


@on_engines
def fence_async(state: State, line: int) -> None:
    for view in state.shared.values():
        assert isinstance(view.storage, Tiles)
        view.storage.fence(state, state.mask.bits)


@on_engines
def cluster_rank(state: State, line: int) -> Value:
    return np.uint32(0) if state.cluster == 1 else state.ranks[state.block_number].astype(np.uint32)


on_engines(lambda state, line: state.engines.barrier(line, True), "cluster_sync")


def _register_registers(name: str, sign: int) -> None:
    def ask(state: State, line: int, count: Value) -> None:
        """Each thread of the warpgroups that run holds so many registers from now on: more (1), or fewer (-1)."""
        number, engine = one_number(state, line, name, count), state.engines
        if number % 8 or not 24 <= number <= 256:
            raise state.error(line, f"{name} takes a multiple of 8 from 24 to 256, and this is {number}")
        wgmma.warpgroups(state, line, name)
        for lead in np.unique(np.flatnonzero(state.mask.bits) // WARPGROUP * WARPGROUP).tolist():
            text = f"{name} in a kernel whose launch bounds nobody knows: jit(threads) of the toolkit's grid tells"
            if state.bounds is not None:
                held, _ = engine.registers.get(lead, (engine.first_registers(), 0))
                wrong = sign * (number - held) < 0
                text = f"{name} asks for {number} registers a thread, and each has {held}" if wrong else ""
            if text:
                state.fault_of(lead, "operand", line, "", text)
            engine.registers[lead] = number, line

    on_engines(ask, name)


_register_registers("take_registers", 1)
_register_registers("give_registers", -1)


def end_engines(state: State) -> None:
    """All threads of the blocks that run have ended."""
    tma.end(state)
    wgmma.end(state)
    state.engines.end()
