"""Large problems on the GPU: operands made once for all steps, and checks that leave the arrays where they are.

What :func:`common.check.check.sample_bench` asks is asked here as strictly: every element of the output written and
finite, sampled elements and the corners exact, inputs and margins as they were. But the arrays, gigabytes of them,
are looked at by small kernels. Only if something is amiss does the host look, to say what.

Arrays of more than 2^31 elements take the host too long to draw, so each element is a hash of its offset, which the
GPU writes (:func:`check_large`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.catalog import inputs, reference
from common.catalog.problems import FLOAT16, Problem
from common.check import arrays, check, findings, loading
from common.check.arrays import Guarded
from common.check.check import Bench, Verdict
from common.run.messages import Finding

Array = NDArray[Any]

LARGE_SAMPLES = 300
# Knuth's multiplicative hash, for 64 bits (The Art of Computer Programming 3, section 6.4).
MULTIPLIER = 0x9E3779B97F4A7C15
SHIFT = 61  # the three highest bits are kept
_INTEGERS = np.array([-4.0, -3.0, -2.0, -1.0, 1.0, 2.0, 3.0, 4.0])  # by those bits


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
    """Draw a problem's operands, and work out what is to be expected at some positions."""
    integers, positions = inputs.integers(problem, seed), findings.sample_positions(problem, samples, seed)
    expected = reference.stored(problem, arrays.at(problem, *integers, positions))
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
        copies = sum(array.nbytes for array in (*drawn.integers, *drawn.normals))
        fit = loading.copies_fit(problem, copies, room)
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
        from common.check import kernels

        kernels.blank(self.y)

    def sound(self) -> bool:
        """After a launch on the integers: is all as it must be?"""
        from common.check import kernels

        inputs_as_before = zip((self.x, self.weight), self._integers, strict=True)
        return (
            not kernels.any_infinite(self.y)
            and np.array_equal(kernels.elements(self.y, self._offsets), self.expected)
            and all(kernels.same(guarded, before) for guarded, before in inputs_as_before)
            and not any(guarded.trespasses() for guarded in (self.x, self.weight, self.y))
        )


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


# --- arrays of more than 2^31 elements ---


def numbers(problem: Problem) -> NDArray[np.float64]:
    """The eight numbers that elements are of: integers from -4 to 4 without zero, or nearer ones if sums are float16.

    Hashes of evenly spaced offsets are not independent, so even all products of one sign must not overflow.
    """
    if problem.output_dtype != FLOAT16:
        return _INTEGERS
    largest = math.isqrt(inputs.FLOAT16_LIMIT // problem.reduction) or 0.5
    nearer: NDArray[np.float64] = np.clip(_INTEGERS, -largest, largest)
    return nearer


def check_large(module: ModuleType, problem: Problem, samples: int = LARGE_SAMPLES) -> Verdict:
    """Every element of the output written and finite, sampled ones and the corners exact."""
    from numba import cuda

    from common.check import kernels

    bench = Bench(module, problem)
    verdict = Verdict(problem)
    for seed, guarded in enumerate((bench.x, bench.weight)):
        kernels.draw_hashed(guarded, numbers(problem), seed, MULTIPLIER, SHIFT)
    bench.prepare()
    kernels.blank(bench.y)
    bench.run()
    positions = findings.sample_positions(problem, samples, 0)
    offsets = np.ravel_multi_index(positions, problem.output_shape).astype(np.int64)
    got = kernels.elements(bench.y, cuda.to_device(offsets))
    wanted = reference.stored(problem, arrays.at(problem, bench.x.array, bench.weight.array, positions))
    verdict.elements_compared = len(wanted)
    verdict.findings += findings.compare_sampled(problem, positions, got, wanted)
    if kernels.any_infinite(bench.y):
        verdict.findings.append(Finding("unwritten", "elements were never written, or are NaN or infinite"))
    return verdict
