"""Hopper's asynchronous machine in the simulator: barriers that count bytes, the copy engine, wgmma, clusters.

What the plain halves of ``lessons/hopper.py`` call. It carries out, and judges nothing: everything is as late as it
may be, in an order that changes from launch to launch, so that what is not waited for shows in the results, or as
threads that nobody wakes. What cannot be carried out at all raises an AsynchronousError.

Whether a kernel is sound the tracer says (:mod:`common.microscope.engines`), and names the line, of what fails here,
too: :func:`common.jobs.tasks.check_task` and :mod:`common.grading.grade` ask it then. A kernel that the tracer cannot
run is judged by its results in several orders, and by :mod:`common.microscope.hazards`, for which the clocks are kept
here: what its threads access, they and copies that bring it. Of what engines read in it, and of fences, nobody tells.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from common.microscope import boxes
from common.microscope.order import Row
from common.microscope.simulated_barriers import Barriers
from common.microscope.simulated_copies import CopyEngine
from common.microscope.simulated_registers import Registers
from common.microscope.simulated_threads import DeadlockError, DescriptorError, Parked, Threads
from common.microscope.simulated_wgmma import MatrixUnit


class Machine:
    """What belongs to the blocks of a cluster as long as they run. ``turn`` numbers the launch.

    Methods named as the helpers do what these say.
    """

    def __init__(self, blocks: list[Any], turn: int, bounds: tuple[int, ...] | int | None) -> None:
        self._threads = threads = Threads(blocks)
        self._in_cluster: list[Any] = []
        barriers, registers, unit = Barriers(threads), Registers(threads, bounds), MatrixUnit(threads)
        self._engine = engine = CopyEngine(threads, barriers, turn)
        self.deliver = engine.deliver
        self.barrier_array, self.barrier_init = barriers.array, barriers.init
        self.publish_barriers, self.barrier_expect = barriers.publish, barriers.expect
        self.barrier_arrive, self.barrier_arrive_at = barriers.arrive, barriers.arrive_at
        self.barrier_wait = barriers.wait
        self.load, self.store, self.tma_commit, self.tma_wait = engine.load, engine.store, engine.commit, engine.wait
        self.multiply, self.wgmma_fence = unit.multiply, unit.fence
        self.wgmma_commit, self.wgmma_wait = unit.commit, unit.wait
        self.take_registers, self.give_registers = registers.take, registers.give

    # --- tiles ---

    def tiles(self, dtype: Any) -> Any:
        return self._threads.module.block.allocations.dynamic(np.dtype(dtype))

    def descriptor(self, tiles: Any, offset: Any, leading: Any, stride: Any) -> Any:
        line = self._threads.here()[2].f_lineno
        itemsize = self._threads.require_tiles("descriptor", line, tiles)
        try:
            return np.uint64(boxes.encoded(int(offset) * itemsize, int(leading), int(stride)))
        except ValueError as error:
            raise DescriptorError(f"descriptor at line {line}: {error}") from None

    def fence_async(self) -> None:
        """Here the engines see at once what a thread writes."""

    # --- the block and the cluster ---

    def rank(self) -> int:
        return int(self._threads.module.block.rank)

    def cluster_sync(self) -> None:
        block, number, frame = self._threads.here()
        self._in_cluster.append((block, self._threads.module.thread, number))
        if self._missing():
            block.park(Parked("cluster_sync", frame.f_lineno, self._wants))
        else:
            self._meet()

    def _missing(self) -> int:
        alive: int = sum(one.size - len(one.ended) for one in self._threads.blocks)
        return alive - len(self._in_cluster)

    def _wants(self) -> str:
        return f"{self._missing()} other threads of the cluster, which do not come"

    def _meet(self) -> None:
        self._threads.clocks.meet(np.array([number for _, _, number in self._in_cluster]))
        for block, thread, _ in reversed(self._in_cluster):
            block.wake(thread)
        self._in_cluster.clear()

    def synced(self, block: Any) -> None:
        """All threads of a block have waited for each other."""
        first = block.rank * self._threads.size
        self._threads.clocks.meet(np.arange(first, first + self._threads.size))

    def lanes_synced(self, block: Any, numbers: list[int]) -> None:
        """These threads of a block have."""
        self._threads.clocks.meet(np.array(numbers) + block.rank * self._threads.size)

    def heard(self, block: Any, number: int) -> tuple[int, int, Row]:
        """Where others hear of what a thread of a block does now, and what it has heard itself."""
        thread = block.rank * self._threads.size + number
        rows = self._threads.clocks.rows
        return thread, int(rows[thread, thread]), rows[thread]

    # --- ends ---

    def ended(self, block: Any, number: int) -> None:
        """A thread has ended: nobody in the cluster waits for it any longer."""
        self._engine.leave(block.rank * self._threads.size + number)
        if self._in_cluster and not self._missing():
            self._meet()

    def deadlock(self) -> DeadlockError:
        """Nobody can go on: who waits where, and for what."""
        found: dict[tuple[bool, int, str], list[tuple[Any, int]]] = defaultdict(list)
        for block in self._threads.blocks:
            for thread, parked in block.parked.items():
                text = f"{parked.call} at line {parked.line}: {{}} for {parked.wants()}"
                found[not parked.urgent, parked.line, text].append((block, thread.number))
            for thread in block.blocked:
                line = thread.barrier[2]
                found[True, line, f"cuda.syncthreads at line {line}: {{}} for the other threads"].append(
                    (block, thread.number)
                )
        parts = []
        for (_, _, text), threads in sorted(found.items()):
            block, number = min(threads, key=lambda one: (one[0].rank, one[1]))
            who = f"thread {block.place(number)}"
            if len(threads) > 1:
                who = f"{len(threads)} threads, such as {block.place(number)},"
            parts.append(text.format(f"{who} of block {block.point} {'waits' if len(threads) == 1 else 'wait'}"))
        return DeadlockError(f"nobody can go on. {'; '.join(parts)}")
