"""Registers that warpgroups of a block give away and take, in the simulator."""

from __future__ import annotations

from typing import Any

from common.book import occupancy
from common.microscope.simulated_threads import OperandError, Parked, Threads


class Registers:
    """``bounds``: what the kernel's launch bounds are, if it has any."""

    def __init__(self, threads: Threads, bounds: tuple[int, ...] | int | None) -> None:
        self._threads, self._bounds = threads, bounds
        self._held: dict[int, int] = {}  # by thread

    def take(self, count: Any) -> None:
        block, thread, frame = self._threads.here()
        more = int(count) - self._first("take_registers", thread, int(count), frame.f_lineno)
        if more < 0:
            raise OperandError(f"take_registers at line {frame.f_lineno} asks for {int(count)}, and the thread has "
                               f"{self._held[thread]}")  # fmt: skip
        while block.spare < more:
            block.asking.append(self._threads.module.thread)

            def wants(more: int = more, block: Any = block) -> str:
                return f"{more} registers more each, and the block has {block.spare} to give"

            block.park(Parked("take_registers", frame.f_lineno, wants, urgent=True))
        block.spare -= more
        self._held[thread] = int(count)

    def give(self, count: Any) -> None:
        block, thread, frame = self._threads.here()
        less = self._first("give_registers", thread, int(count), frame.f_lineno) - int(count)
        if less < 0:
            raise OperandError(f"give_registers at line {frame.f_lineno} keeps {int(count)}, and the thread has "
                               f"{self._held[thread]}")  # fmt: skip
        self._held[thread] = int(count)
        block.spare += less
        for sleeper in block.asking:
            block.wake(sleeper)
        block.asking.clear()

    def _first(self, call: str, thread: int, count: int, line: int) -> int:
        """What the thread holds until now."""
        if count % 8 or not 24 <= count <= 256:
            raise OperandError(f"{call} at line {line}: {count} registers: must be a multiple of 8 from 24 to 256")
        if thread not in self._held:
            if self._bounds is None:
                raise OperandError(f"{call} at line {line}: registers change hands in a kernel whose launch bounds "
                                   "are known: decorate it with jit(threads) of lessons/hopper.py")  # fmt: skip
            threads, blocks = (*self._bounds, 1)[:2] if isinstance(self._bounds, tuple) else (self._bounds, 1)
            self._held[thread] = min(256, occupancy.REGISTERS // (max(blocks, 1) * threads) // 8 * 8)
        return self._held[thread]
