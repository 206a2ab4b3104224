"""What blocks that run at once have where engines work beside the threads: teams, clocks, copies, products."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING
from weakref import WeakSet

import numpy as np

from common.catalog.limits import REGISTERS
from common.trace.bulk import LEFT_OVER, Stores
from common.trace.clocks import Clocks
from common.trace.mbarriers import Barrier, Barriers
from common.trace.memory import WARP, Ints
from common.trace.pipeline import Pipeline
from common.trace.spaces import Local
from common.trace.teams import WARPGROUP, AtBarrier, Teams
from common.trace.wgmma import Queue

if TYPE_CHECKING:
    from common.trace.lanes import Machine


class Asynchronous:
    """The state of the blocks that run at once; ``seed`` sets the order in which copies arrive."""

    def __init__(self, machine: Machine, split: frozenset[int], together: bool, seed: int, recording: bool) -> None:
        self.machine = machine
        self.clocks = Clocks(len(machine.lane_numbers) // WARP)
        self.teams = Teams(machine, split, together)
        self.order = np.random.default_rng(seed)
        self.pipeline = Pipeline(recording)
        self.queues: dict[int, Queue] = {}  # by the warpgroup's first lane
        self.stores: dict[int, Stores] = {}  # by lane
        self.loads: list[tuple[int, int, Barrier, str]] = []
        self.barriers: dict[object, Barriers] = {}  # by place in the code
        self.by_column: dict[int, Barrier] = {}
        self.locals: defaultdict[object, WeakSet[Local]] = defaultdict(WeakSet)  # arrays of a team's threads
        self.syncs = 0  # barriers of the cluster that have been passed
        # by line, lane and block of an arrival elsewhere: syncs by then, and the phase of a column that tells of it
        self.remote: dict[tuple[int, int, int], tuple[int, int, int]] = {}
        self.registers: dict[int, tuple[int, int]] = {}  # by the warpgroup's first lane: for a thread, and the line

    # --- threads ---

    def barrier(self, line: int, of_cluster: bool) -> None:
        self.teams.until(AtBarrier(line, self.machine.mask, of_cluster))

    def met(self, of_cluster: bool) -> None:
        """The active lanes have waited for each other, each block's or each cluster's."""
        machine = self.machine
        self.syncs += of_cluster
        warps = np.flatnonzero(machine.mask.bits.reshape(-1, WARP).any(axis=1))
        blocks = warps * WARP // machine.lanes_per_block
        keys = np.array([machine.peers[block][0] for block in blocks.tolist()]) if of_cluster else blocks
        for key in np.unique(keys).tolist():
            self.clocks.meet(warps[keys == key].tolist())

    def cluster_of(self, block: int, mask: int, line: int, lane: int) -> list[int]:
        """The blocks of this block's cluster whose bit is set in the mask."""
        peers = self.machine.peers[block]
        if mask <= 0 or mask >> len(peers):
            text = f"the mask {mask:#x} names blocks of a cluster of {len(peers)}"
            self.machine.fault("operand", line, "", text, lane=lane, count=1)
        return [peer for rank, peer in enumerate(peers) if mask >> rank & 1]

    def set_registers(self, line: int, name: str, count: int, sign: int) -> None:
        """Each thread of the warpgroups that run holds so many registers from now on: more (1), or fewer (-1)."""
        lanes = np.flatnonzero(self.machine.mask.bits)
        for lead in np.unique(lanes // WARPGROUP * WARPGROUP).tolist():
            text = ""
            if self.machine.bounds is None:
                text = f"{name} in a kernel whose launch bounds nobody knows: jit(threads) of lessons/hopper.py tells"
            else:
                held, _ = self.registers.get(lead, (self._first_registers(), 0))
                if sign * (count - held) < 0:
                    text = f"{name} asks for {count} registers a thread, and each has {held}"
            if text:
                self.fault_of(lead, "operand", line, "", text)
            self.registers[lead] = count, line

    def _first_registers(self) -> int:
        """What a launch gives a thread."""
        assert self.machine.bounds is not None
        threads, resident = self.machine.bounds
        return min(REGISTERS // max(resident, 1) // threads // 8 * 8, 256)

    # --- faults ---

    def fault_of(self, lane: int, kind: str, line: int, array: str, text: str, cause: str = "") -> None:
        self.machine.fault(kind, line, array, text, lane=lane, count=1, cause=cause)

    def fault_at(self, block: int, kind: str, line: int, array: str, text: str) -> None:
        self.machine.fault(kind, line, array, text, lane=block * self.machine.lanes_per_block, count=1)

    def end(self) -> None:
        """All threads have ended: what is still under way is at fault."""
        machine = self.machine
        for line, lane, barrier, name in self.loads:
            if barrier.copies:
                text = f"a copy to {name}, counted at {barrier.name}, is under way when the block ends: {LEFT_OVER}"
                machine.fault("copy-not-awaited", line, name, text, lane=lane, count=1)
        for lane, stores in self.stores.items():
            for store in stores.under_way:
                what = "tma_wait_read" if store.group <= stores.committed else "tma_commit and no tma_wait_read"
                name = store.map.name
                text = f"a store to {name} is still under way when its thread ends: no {what} comes after it"
                machine.fault("copy-not-awaited", store.line, name, text, lane=lane, count=1)
                store.carry_out(machine)
        for lead, queue in self.queues.items():
            for group, product in queue.products:
                what = "wgmma_wait" if group <= queue.committed else "wgmma_commit and no wgmma_wait"
                text = f"wgmma is still under way when its threads end: no {what} comes after it"
                name, cause = product.sums.view.name, "no wait for wgmma"
                machine.fault("wgmma-order", product.line, name, text, lane=lead, count=1, cause=cause)
        for (line, lane, block), (syncs, column, phase) in self.remote.items():
            if syncs == self.syncs and not self._heard(block, column, phase):
                text = "the block whose barrier this arrives at may have ended: no cluster_sync comes after it"
                machine.fault("left-cluster", line, "", text, lane=lane, count=1)
        self._add_up_registers()

    def _heard(self, block: int, column: int, number: int) -> bool:
        """Does a thread of the block know that the column has come to this number?"""
        size = self.machine.lanes_per_block // WARP
        rows = [self.clocks.known[warp] for warp in range(block * size, block * size + size)]
        rows += [more for (warp, _), more in self.clocks.private.items() if warp // size == block]
        return any(len(row) > column and row[column] >= number for row in rows)

    def _add_up_registers(self) -> None:
        """What warpgroups take, others must have given: a block has no more than it began with."""
        machine = self.machine
        if not self.registers or machine.bounds is None:
            return
        first = self._first_registers()
        most = first * machine.lanes_per_block  # what a launch gives the block: the rest of the file is nobody's
        held: Ints = np.array([
            self.registers.get(lead, (first, 0))[0] for lead in range(0, machine.lanes_per_block, WARPGROUP)
        ])  # fmt: skip
        if held.sum() * WARPGROUP > most:
            line = max(line for _, line in self.registers.values())
            counts = ", ".join(map(str, held.tolist()))
            text = (
                f"warpgroups hold {counts} registers a thread, {held.sum() * WARPGROUP:,} together, and the block "
                f"has {most:,}: take_registers waits for ever"
            )
            self.fault_at(0, "deadlock", line, "", text)
