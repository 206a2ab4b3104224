"""Launches on operands that single out a term: which products does one output element sum?

For kernels that are linear in either operand, as all of this book's are, whatever is wrong with them.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from common.catalog import reference
from common.catalog.problems import Problem
from common.explain import terms
from common.explain.terms import WEIGHT, X

Array = NDArray[Any]

LARGEST = 4_000_000  # FLOPs of a problem that is launched again
LAUNCHES = 16
SECONDS = 2.0  # of processor time, for all launches
_EXACT = 2**24
_FACTOR = 8


class Kernel(Protocol):
    """What can be launched on operands of one's choice: a check's bench."""

    problem: Problem
    y: Any

    def load(self, x: Array, weight: Array) -> None: ...

    def run(self) -> None: ...


class Deviation(NamedTuple):
    """A weight of one output element, and the element of x that belongs to it: none if the weight is another's.

    ``found`` is the element of x that it is multiplied by, if it is one; ``partner`` the weight that ``right`` is
    multiplied by instead; ``times`` how often ``right`` counts.
    """

    weight: tuple[Any, ...]
    right: tuple[Any, ...] | None
    found: tuple[Any, ...] | None
    partner: tuple[Any, ...] | None
    times: float


class OutOfBudget(Exception):  # noqa: N818
    """No more launches: too many, too slow, or the kernel ended with an error."""


class Prober:
    """A kernel to launch again; ``x`` and ``weight`` are what it gets back."""

    def __init__(self, kernel: Kernel, x: Array, weight: Array) -> None:
        self.kernel, self.problem = kernel, kernel.problem
        self._own = x, weight
        self._left = LAUNCHES if self.problem.flops <= LARGEST else 0
        self._end = time.process_time() + SECONDS
        self._used = False

    def restore(self) -> None:
        """Give the kernel its operands back."""
        if self._used:
            self.kernel.load(*self._own)

    def launch(self, x: Array, weight: Array) -> Array:
        """The output for these operands; raises OutOfBudget."""
        if self._left <= 0 or time.process_time() > self._end:
            raise OutOfBudget
        self._left -= 1
        self._used = True
        try:
            self.kernel.load(x.astype(np.float32), weight.astype(np.float32))
            self.kernel.y.blank()
            self.kernel.run()
            return np.asarray(self.kernel.y.get(), np.float64)
        except Exception as error:
            self._left = 0
            raise OutOfBudget from error

    def wide(self, seed: int = 7) -> tuple[Array, Array, Array, Array] | None:
        """Operands so large that hardly two sums are equal and all are exact, the output, and what it should be."""
        largest = max(2, int((_EXACT / self.problem.reduction) ** 0.5))
        rng = np.random.default_rng(seed)

        def draw(shape: tuple[int, ...]) -> Array:
            sign = rng.integers(0, 2, shape) * 2 - 1
            return (rng.integers(1, largest, shape, endpoint=True) * sign).astype(np.float32)

        x, weight = draw(self.problem.input_shape), draw(self.problem.weight_shape)
        try:
            return x, weight, self.launch(x, weight), reference.full(self.problem, x, weight)
        except OutOfBudget:
            return None

    def deviation(self, at: tuple[int, ...]) -> Deviation | None:
        """What one weight is multiplied by in the sum of output element ``at``, if that is not what belongs there.

        None when no weight stands out or no launch is left.
        """
        try:
            return self._deviation(at)
        except OutOfBudget:
            return None

    def _deviation(self, at: tuple[int, ...]) -> Deviation | None:
        problem = self.problem
        own = _own_terms(problem, at)
        rng = np.random.default_rng(11)
        size = int(np.prod(problem.input_shape))
        limit = _EXACT // (_FACTOR * problem.reduction)
        if limit < 2 * size:
            return None
        ids = (rng.choice(limit - 1, size, replace=False) + 1).astype(np.int64)
        x = ids.reshape(problem.input_shape)
        factors = rng.integers(1, _FACTOR, int(np.prod(problem.weight_shape)), endpoint=True)

        def surplus(chosen: Array) -> float:
            """What the element sums beyond its terms if only the ``chosen`` weights are not zero."""
            weight = np.zeros(factors.size)
            weight[chosen] = factors[chosen]
            value = self.launch(x, weight.reshape(problem.weight_shape))[at]
            right = sum(ids[own[j]] * factors[j] for j in chosen.tolist() if own.get(j) is not None)
            return float(value - right)

        if surplus(np.array([], np.intp)) != 0:
            return None  # something else than products is added
        every = np.arange(factors.size)
        if surplus(every) != surplus(every):  # traced, in the opposite order
            return None
        others = np.setdiff1d(np.arange(factors.size), list(own))
        chosen = np.array(list(own), np.intp)
        if surplus(chosen) == 0:
            chosen = others
            if not len(chosen) or surplus(chosen) == 0:
                return None
        while len(chosen) > 1:
            half, rest = np.array_split(chosen, 2)
            chosen = half if surplus(half) != 0 else rest
        j = int(chosen[0])
        right_x = own.get(j)
        total = (surplus(chosen) + (ids[right_x] * factors[j] if right_x is not None else 0)) / factors[j]
        found = self._decode(ids, right_x, total)
        partner = self._partner(at, right_x) if total == 0 and right_x is not None else None
        if partner == j:
            return None
        return Deviation(
            np.unravel_index(j, problem.weight_shape),
            None if right_x is None else np.unravel_index(right_x, problem.input_shape),
            None if found is None else np.unravel_index(found, problem.input_shape),
            None if partner is None else np.unravel_index(partner, problem.weight_shape),
            total / ids[right_x] if right_x is not None else 0.0,
        )

    def _decode(self, ids: Array, right: int | None, total: float) -> int | None:
        """Which element of x has this number, alone or besides the right one."""
        for wanted in (total, total - (ids[right] if right is not None else 0)):
            hit = np.flatnonzero(ids == wanted)
            if len(hit):
                return int(hit[0])
        return None

    def _partner(self, at: tuple[int, ...], i: int) -> int | None:
        """The weight that element ``i`` of x is multiplied by in the sum of ``at``."""
        problem = self.problem
        x = np.zeros(int(np.prod(problem.input_shape)))
        x[i] = 1
        numbers = np.arange(1, int(np.prod(problem.weight_shape)) + 1)
        value = self.launch(x.reshape(problem.input_shape), numbers.reshape(problem.weight_shape))[at]
        return int(value) - 1 if value == round(value) and 1 <= value <= numbers.size else None


def _own_terms(problem: Problem, at: tuple[int, ...]) -> dict[int, int | None]:
    """Flat index of each weight that belongs to output element ``at``: that of its element of x, None on padding."""
    env = terms.environment(problem, tuple(np.array([i]) for i in at))
    (xs, inside), (weights, _) = (terms.addresses(problem, operand, env) for operand in (X, WEIGHT))
    xs, inside, weights = np.broadcast_arrays(xs, True if inside is None else inside, weights)
    return {int(j): int(i) if ok else None for i, j, ok in zip(xs[0], weights[0], inside[0], strict=True)}
