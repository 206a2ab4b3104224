"""What blocks have where engines work beside their threads: teams, clocks, registers, what is under way.

The matrix unit (:mod:`common.trace.hopper.wgmma`) and the copy engine (:mod:`common.trace.hopper.tma`) keep here what
they have begun.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from weakref import WeakSet

import numpy as np

from common.catalog.limits import REGISTERS
from common.trace import races
from common.trace.cost import WARP, Ints
from common.trace.hopper import tma, wgmma
from common.trace.hopper.clocks import Clocks
from common.trace.hopper.mbarriers import on_engines
from common.trace.hopper.pipeline import Pipeline
from common.trace.hopper.teams import WARPGROUP, AtBarrier, Teams
from common.trace.hopper.tiles import Tiles
from common.trace.intrinsics import one_number, shared_memory
from common.trace.shared import Local
from common.trace.state import BARRIER, State
from common.trace.values import Cast, Value
from common.trace.views import View


class Engines:
    """The state of the blocks that run at once; ``seed`` sets the order in which copies arrive."""

    def __init__(self, state: State, split: frozenset[int], together: bool, seed: int, recording: bool) -> None:
        self.state = state
        self.clocks = Clocks(len(state.lane_numbers) // WARP)
        self.teams = Teams(state, split, together, self._resume)
        self.order = np.random.default_rng(seed)
        self.pipeline = Pipeline(recording)
        self.queues: dict[int, Any] = {}  # a wgmma.Queue, by the warpgroup's first lane
        self.stores: dict[int, Any] = {}  # a tma.Stores, by lane
        self.loads: list[tuple[int, int, Any, str]] = []  # line, lane, mbarriers.Barrier, name of the tiles
        self.barriers: dict[object, Any] = {}  # an mbarriers.Barriers, by place in the code
        self.by_column: dict[int, Any] = {}  # an mbarriers.Barrier
        self.locals: defaultdict[object, WeakSet[Local]] = defaultdict(WeakSet)  # arrays of a team's threads
        self.syncs = 0  # barriers of the cluster that have been passed
        # by line, lane and block of an arrival elsewhere: syncs by then, and the phase of a column that tells of it
        self.remote: dict[tuple[int, int, int], tuple[int, int, int]] = {}
        self.registers: dict[int, tuple[int, int]] = {}  # by the warpgroup's first lane: for a thread, and the line

    # --- threads ---

    def barrier(self, line: int, of_cluster: bool) -> None:
        self.teams.until(AtBarrier(line, self.state.mask, of_cluster))

    def _resume(self, line: int, of_cluster: bool) -> None:
        """The active lanes have come to a barrier of their blocks, or of their clusters, and go on."""
        state = self.state
        if not of_cluster:
            races.pass_barrier(state, line)
        else:
            absent = state.waiting.bits & ~state.mask.bits
            if absent.any():
                count = int(np.count_nonzero(absent))
                text = f"{count} threads do not reach this barrier of the cluster, which others wait at"
                state.fault("divergent-barrier", line, "", text, lane=int(np.argmax(absent)), count=count)
            state.stamps = ((state.stamps >> BARRIER) + 1) << BARRIER
        self._met(of_cluster)

    def _met(self, of_cluster: bool) -> None:
        """The active lanes have waited for each other, each block's or each cluster's."""
        state = self.state
        self.syncs += of_cluster
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

    def set_registers(self, line: int, name: str, count: int, sign: int) -> None:
        """Each thread of the warpgroups that run holds so many registers from now on: more (1), or fewer (-1)."""
        lanes = np.flatnonzero(self.state.mask.bits)
        for lead in np.unique(lanes // WARPGROUP * WARPGROUP).tolist():
            text = ""
            if self.state.bounds is None:
                text = (
                    f"{name} in a kernel whose launch bounds nobody knows: jit(threads) of the toolkit's grid tells"
                )
            else:
                held, _ = self.registers.get(lead, (self._first_registers(), 0))
                if sign * (count - held) < 0:
                    text = f"{name} asks for {count} registers a thread, and each has {held}"
            if text:
                self.state.fault_of(lead, "operand", line, "", text)
            self.registers[lead] = count, line

    def _first_registers(self) -> int:
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
        self._add_up_registers()

    def _heard(self, block: int, column: int, number: int) -> bool:
        """Does a thread of the block know that the column has come to this number?"""
        size = self.state.lanes_per_block // WARP
        rows = [self.clocks.known[warp] for warp in range(block * size, block * size + size)]
        rows += [more for (warp, _), more in self.clocks.private.items() if warp // size == block]
        return any(len(row) > column and row[column] >= number for row in rows)

    def _add_up_registers(self) -> None:
        """What warpgroups take, others must have given: a block has no more than it began with."""
        state = self.state
        if not self.registers or state.bounds is None:
            return
        first = self._first_registers()
        most = first * state.lanes_per_block  # what a launch gives the block: the rest of the file is nobody's
        held: Ints = np.array([
            self.registers.get(lead, (first, 0))[0] for lead in range(0, state.lanes_per_block, WARPGROUP)
        ])  # fmt: skip
        if held.sum() * WARPGROUP > most:
            line = max(line for _, line in self.registers.values())
            counts = ", ".join(map(str, held.tolist()))
            text = (
                f"warpgroups hold {counts} registers a thread, {held.sum() * WARPGROUP:,} together, and the block "
                f"has {most:,}: take_registers waits for ever"
            )
            state.fault_of(0, "deadlock", line, "", text)


# --- the toolkit's functions for shared memory, clusters and registers ---

WAITS = frozenset({"barrier_wait"})  # those that wait for other threads of the block or the cluster
_STARTS = 1024  # bytes, on which tiles begin


@on_engines
def half_tiles(state: State, line: int) -> View:
    return shared_memory(state, line, 0, Cast(np.float16), _STARTS)


@on_engines
def float_tiles(state: State, line: int) -> View:
    return shared_memory(state, line, 0, Cast(np.float32), _STARTS)


@on_engines
def fence_async(state: State, line: int) -> None:
    for view in state.shared.values():
        assert isinstance(view.storage, Tiles)
        view.storage.fence(state, state.mask.bits)


# --- clusters, registers ---


@on_engines
def cluster_rank(state: State, line: int) -> Value:
    if len(state.peers[0]) == 1:
        return np.uint32(0)
    return state.ranks[state.block_number].astype(np.uint32)


@on_engines
def cluster_sync(state: State, line: int) -> None:
    state.engines.barrier(line, True)


def _registers(state: State, line: int, name: str, count: Value, sign: int) -> None:
    number = one_number(state, line, name, count)
    if number % 8 or not 24 <= number <= 256:
        raise state.error(line, f"{name} takes a multiple of 8 from 24 to 256, and this is {number}")
    wgmma.warpgroups(state, line, name)
    state.engines.set_registers(line, name, number, sign)


@on_engines
def take_registers(state: State, line: int, count: Value) -> None:
    _registers(state, line, "take_registers", count, 1)


@on_engines
def give_registers(state: State, line: int, count: Value) -> None:
    _registers(state, line, "give_registers", count, -1)


def end_engines(state: State) -> None:
    """All threads of the blocks that run have ended."""
    tma.end(state)
    wgmma.end(state)
    state.engines.end()
