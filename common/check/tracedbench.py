"""A step on the tracer, as a check's bench: every block of every launch, with what is unsound about it."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.catalog.problems import Problem
from common.check import arrays
from common.check.arrays import Guarded
from common.check.check import Bench
from common.trace.trace import Launch, Tracer, in_place_of_the_device


class _Output(Guarded):
    """What is blank was not written, which the tracer is to know."""

    def blank(self) -> None:
        self.array.poison()
        arrays.bits(np.asarray(self.array))[...] = arrays.pattern(self.dtype)


class TracedBench(Bench):
    """One step bound to one problem on a tracer, which sees accesses beyond an array itself: no margins.

    Every second launch takes blocks, and threads that write one element, in the opposite order. ``tile``: as a
    bench's. Raises TraceError for what the tracer does not know.
    """

    def __init__(
        self, module: ModuleType, problem: Problem, tracer: Tracer, tile: dict[str, int] | None = None
    ) -> None:
        self._tracer, self._turn = tracer, 0
        with tracer:
            super().__init__(module, problem, tile, margin=0)
            self.y = _Output(problem.output_shape, margin=0, dtype=problem.output_dtype)
        for guarded in (self.x, self.weight):
            guarded.array.storage.read_only = True

    def load(self, x: NDArray[Any], weight: NDArray[Any]) -> None:
        with self._tracer:
            super().load(x, weight)

    def run(self) -> None:
        self._tracer.order = "backward" if self._turn % 2 else "forward"
        self._turn += 1
        with self._tracer:
            super().run()


def widest(module: ModuleType, problem: Problem) -> int:
    """Blocks along y or z of the widest grid that a step starts for a problem; none of it is carried out."""
    launches: list[Launch] = []
    with in_place_of_the_device(launches.append):
        bench = Bench(module, problem, margin=0)
        bench.load(*(np.ones(shape, dtype) for shape, dtype in problem.operands[:2]))
        bench.run()
    return max((extent for launch in launches for extent in launch.grid[1:]), default=0)
