"""A problem at full size on the GPU: its operands, made once for all steps, and a check that stays on the GPU.

What :func:`common.check.check.sample_bench` asks is asked here as strictly: every element of the output written
and finite, sampled elements and the corners exact, inputs and margins as they were. But the arrays, gigabytes of
them, are looked at where they are, by four small kernels. Only if something is amiss does the host look, to say what.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.catalog import reference
from common.catalog.problems import Problem
from common.check import blank, budget, check, inputs
from common.check.check import Bench, Finding, Guarded, Verdict

Array = NDArray[Any]


@dataclass(frozen=True)
class Drawn:
    """A problem's operands on the host, drawn without a GPU: integers to check with, normals to time with.

    ``expected`` are the oracle's values for the integers at ``positions``.
    """

    problem: Problem
    seed: int
    integers: tuple[Array, Array]
    normals: tuple[Array, Array]
    positions: reference.Indices
    expected: NDArray[np.float64]


def draw(problem: Problem, seed: int, samples: int = check.SAMPLES) -> Drawn:
    """Draw a problem's operands."""
    integers, positions = inputs.integers(problem, seed), check.sample_positions(problem, samples, seed)
    expected = reference.stored(problem, reference.at(problem, *integers, positions))
    return Drawn(problem, seed, integers, inputs.normals(problem, seed + 2), positions, expected)


class Operands:
    """Input, weight and output of a problem between margins, for one step after the other.

    Integers and normals wait in copies: on the GPU if the budget ``room`` has bytes for them, else on the host.
    """

    def __init__(self, drawn: Drawn, room: int) -> None:
        from numba import cuda

        problem = drawn.problem
        self.problem, self.seed, self.expected = problem, drawn.seed, drawn.expected
        self.x, self.weight, self.y = (Guarded(shape, dtype=dtype) for shape, dtype in problem.operands)
        offsets = np.ravel_multi_index(drawn.positions, problem.output_shape)
        self._offsets = cuda.to_device(offsets.astype(np.int64))
        self._taken = cuda.device_array(len(offsets), blank.pattern(self.y.dtype).dtype)
        copies = sum(array.nbytes for array in (*drawn.integers, *drawn.normals))
        fit = budget.copies_fit(problem, copies, room)
        self._integers, self._normals = (
            tuple(cuda.to_device(array) if fit else array for array in pair)
            for pair in (drawn.integers, drawn.normals)
        )

    def put_integers(self) -> None:
        self._put(self._integers)

    def put_normals(self) -> None:
        self._put(self._normals)

    def _put(self, pair: tuple[Any, ...]) -> None:
        for guarded, values in zip((self.x, self.weight), pair, strict=True):
            guarded.array.copy_to_device(values)

    def blank(self) -> None:
        """Fill the output with the unwritten pattern."""
        from common.check import arraykernels as kernels

        kernels.fill[kernels.grid(self.y.size)](blank.words(self.y.array), blank.pattern(self.y.dtype))

    def sound(self) -> bool:
        """After a launch on the integers: is all as it must be?"""
        from numba import cuda

        from common.check import arraykernels as kernels

        found = cuda.to_device(np.zeros(1, np.int32))
        words, dtype = blank.words(self.y.array), self.y.dtype
        kernels.mark_infinite[kernels.grid(self.y.size)](words, blank.exponent(dtype), found)
        same = True
        for guarded, before in zip((self.x, self.weight), self._integers, strict=True):
            if isinstance(before, np.ndarray):
                same &= np.array_equal(guarded.get(), before)
            else:
                kernels.mark_changed[kernels.grid(guarded.size)](
                    blank.words(guarded.array), blank.words(before), found
                )
        kernels.gather[kernels.grid(len(self.expected))](words, self._offsets, self._taken)
        exact = np.array_equal(self._taken.copy_to_host().view(dtype).astype(np.float64), self.expected)
        outside = any(guarded.trespasses() for guarded in (self.x, self.weight, self.y))
        return bool(same and exact and not outside and int(found.copy_to_host()[0]) == 0)


def verify(bench: Bench, operands: Operands) -> Verdict:
    """Check a bench on these operands at full size; the verdict is :func:`common.check.check.sample_bench`'s."""
    operands.put_integers()
    bench.prepare()
    operands.blank()
    bench.run()
    if operands.sound():
        return Verdict(operands.problem, [], len(operands.expected))
    verdict = check.sample_bench(bench, operands.seed)
    if verdict.right:
        text = "a launch left wrong elements behind, and the same launch again did not"
        verdict.findings.append(Finding("unstable", f"{text}: a race, or a read of memory that nothing wrote"))
    return verdict
