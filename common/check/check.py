"""Is a kernel right? One verdict per problem shape, each finding named for what it is.

Runs in the process that owns the GPU, or traces. Integers come first: their sums are exact in float32, so a
right kernel equals the oracle bit for bit; an output of 16 bits is the exact sum, rounded once. Normals come second,
within an elementwise bound. The output is filled with NaN and lies between canary margins; the operands lie between
NaN margins, so a read beyond them shows in the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.catalog import codes, inputs
from common.catalog.problems import Problem
from common.check import arrays, findings
from common.check.arrays import MARGIN, Guarded
from common.explain import diagnose
from common.machine_code.capture import BoundStep
from common.run import stages
from common.run.messages import REPEATS as REPEATS
from common.run.messages import Finding as Finding

Array = NDArray[Any]

RELAUNCHES = 3  # of a thorough check on arrays that are left as they are, nothing prepared anew


class Rules(NamedTuple):
    """How a step is checked: the ``seed`` of operands; ``repeats``, launches on equal inputs that must agree.

    ``precision``, one of :data:`common.catalog.catalog.PRECISIONS`: what the step may compute with. ``algorithm``:
    one of :data:`common.catalog.reference.ALGORITHMS`: how, if not as the definition does.
    """

    seed: int = 0
    repeats: int = REPEATS
    precision: str = "fp32"
    algorithm: str | None = None


RULES = Rules()


@dataclass
class Verdict:
    """What a check of one shape found; right if nothing."""

    problem: Problem
    findings: list[Finding] = field(default_factory=list)
    elements_compared: int = 0

    @property
    def right(self) -> bool:
        return not self.findings


class Bench:
    """One step bound to one problem: guarded operands, ``prepare``, workspace, ``launch``.

    ``tile`` overrides tile constants, for steps whose ``launch`` and ``prepare`` take them by name. ``margin``: see
    :class:`Guarded`. With ``beside``, the operands are that bench's.
    """

    def __init__(
        self,
        module: ModuleType,
        problem: Problem,
        tile: dict[str, int] | None = None,
        margin: int = MARGIN,
        beside: Bench | None = None,
    ) -> None:
        self.problem, self.step = problem, BoundStep(module, problem, tile)
        self.x: Guarded
        self.weight: Guarded
        self.y: Guarded
        if beside:
            self.x, self.weight, self.y = beside.x, beside.weight, beside.y
        else:
            self.x, self.weight, self.y = (Guarded(shape, margin, dtype) for shape, dtype in problem.operands)
        self.step.allocate()

    def load(self, x: Array, weight: Array) -> None:
        """Copy operands to the device and prepare the weights."""
        self.x.set(x)
        self.weight.set(weight)
        with stages.stage(stages.KERNEL):
            self.prepare()
            _wait()

    def prepare(self) -> None:
        self.step.prepare(self.weight.array)

    def launch(self) -> None:
        self.step.launch(self.x.array, self.y.array)

    def run(self) -> None:
        """Launch and wait."""
        with stages.stage(stages.KERNEL):
            self.launch()
            _wait()


def _wait() -> None:
    from numba import cuda

    cuda.synchronize()


def check_bench(bench: Bench, rules: Rules = RULES) -> Verdict:
    """Check a step at one shape, element by element. ValueError from ``prepare`` (a refusal) passes through."""
    problem = bench.problem
    verdict = Verdict(problem)

    first, x, weight = _first(bench, verdict, rules)
    if verdict.findings:
        return verdict

    # new operands over the old output: nothing of the first launch may survive
    x2, weight2 = inputs.integers(problem, rules.seed + 1, rules.algorithm)
    bench.load(x2, weight2)
    second, expected2 = _launched(bench, verdict, x2, weight2)
    if not np.array_equal(second, expected2):
        # a race would show in a second launch, too, and differently
        verdict.findings += findings.disagreement(bench, second, expected2, 3, over=first) or [
            findings.stale(problem, (x, weight), (x2, weight2), first, second, expected2)
        ]
        return verdict

    verdict.findings += findings.disagreement(bench, second, expected2, rules.repeats)
    if verdict.findings:
        return verdict

    _on_normals(bench, verdict, rules._replace(seed=rules.seed + 2), exact=True)
    return verdict


def _on_normals(bench: Bench, verdict: Verdict, rules: Rules, exact: bool = False) -> None:
    """Launch on normals: is the error within the bound of the arithmetic? ``exact``: integers were right."""
    x, weight = inputs.normals(bench.problem, rules.seed, rules.algorithm)
    bench.load(x, weight)
    bench.y.blank()
    y = findings.run(bench)
    verdict.elements_compared += y.size
    verdict.findings += findings.trespass(bench, x, weight)
    verdict.findings += findings.precision(bench.problem, x, weight, y, rules.precision, exact, rules.algorithm)


def check_thoroughly(make: Callable[[], Bench], rules: Rules = RULES) -> Verdict:
    """As :func:`check_bench`, then with other operands, changed ones, other buffers, and more launches.

    ``make`` makes a bench of the same step and problem anew.
    """
    bench, seed = make(), rules.seed
    verdict = check_bench(bench, rules)
    if verdict.findings:
        return verdict
    for kind in inputs.SPECIAL:
        x, weight = inputs.special(kind, bench.problem, seed + 3, rules.precision, rules.algorithm)
        if _differs(bench, verdict, x, weight, f"with {inputs.SPECIAL[kind]}"):
            return verdict
    x, weight = inputs.integers(bench.problem, seed, rules.algorithm)
    for changed_x, changed_weight, said in _changes(x, weight, seed, rules.algorithm):
        if _differs(bench, verdict, changed_x, changed_weight, said, kind="stale"):
            return verdict
    other = make()
    x2, weight2 = inputs.integers(bench.problem, seed + 4, rules.algorithm)
    if _differs(other, verdict, x2, weight2, "in other arrays of the same shape", kind="stale"):
        return verdict
    bench.load(x, weight)
    for launch in range(1, RELAUNCHES + 1):
        if _differs(bench, verdict, x, weight, f"at launch {launch} on the same arrays", "stale", load=False):
            return verdict
    return verdict


def _changes(x: Array, weight: Array, seed: int, algorithm: str | None) -> Iterator[tuple[Array, Array, str]]:
    """Operands that each differ little from the ones before, with what was changed."""
    yield x, weight, "back on the first inputs"
    changed = weight
    for changed in _one_by_one(weight, seed):
        yield x, changed, "after one element of the weights was changed"
    mirrored = inputs.pruned(changed.reshape(-1)[::-1].reshape(weight.shape).copy(), algorithm)
    yield x, mirrored, "after the weights were put in another order"
    changed = x
    for changed in _one_by_one(x, seed):
        yield changed, mirrored, "after one element of the input was changed"
    turned = changed.reshape(-1)[::-1].reshape(x.shape).copy()  # of the same sum
    yield turned, mirrored, "after the input was put in another order"


def _one_by_one(values: Array, seed: int) -> Iterator[Array]:
    """Copies of ``values``, each with one more element changed: first, middle, an odd one, last, a drawn one.

    A key made of some of the elements misses one of these at least.
    """
    half, last = values.size // 2, values.size - 1
    drawn = int(np.random.default_rng(seed).integers(values.size))
    for place in dict.fromkeys((0, half, min(half | 1, last), last)):
        values = values.copy()
        values.flat[place] = codes.held(-codes.values(values.flat[place : place + 1]), values.dtype)[0]
        yield values
    values = values.copy()
    # as its magnitude may be all that is looked at
    if values.dtype == codes.BFLOAT16:  # the next code's number has bits far below the others'
        number = codes.values(values.flat[drawn : drawn + 1])
        values.flat[drawn] = codes.held(number + np.sign(number), values.dtype)[0]
    else:
        values.flat[drawn] += np.sign(values.flat[drawn])
    yield values


def _differs(
    bench: Bench, verdict: Verdict, x: Array, weight: Array, said: str, kind: str = "wrong", load: bool = True,
    before: tuple[Array, Array, Array] | None = None,
) -> bool:  # fmt: skip
    """Launch on these operands; adds a finding of ``kind`` that opens with ``said`` if the output is wrong.

    ``before``: the operands and the right output of the launch before.
    """
    if load:
        bench.load(x, weight)
    bench.y.blank()
    y, expected = _launched(bench, verdict, x, weight)
    found = findings.trespass(bench, x, weight) + findings.compare(bench, x, weight, y, expected)
    why = ""
    if before and [one.kind for one in found] == ["wrong"]:
        why = diagnose.kept(bench.problem, before[:2], (x, weight), before[2], y, expected)
    for one in found:
        own = "stale" if why else kind if one.kind == "wrong" else one.kind
        message = f"{one.message.partition(' (')[0]}: {why}" if why else one.message
        verdict.findings.append(Finding(own, f"{said}: {message}"))
    return bool(found)


def _launched(bench: Bench, verdict: Verdict, x: Array, weight: Array) -> tuple[Array, Array]:
    """Launch on the operands that are loaded; returns the output, and what it is to be."""
    y, expected = findings.run(bench), arrays.expected(bench.problem, x, weight)
    verdict.elements_compared += expected.size
    return y, expected


def check_once(bench: Bench, rules: Rules = RULES, special: str = "") -> Verdict:
    """The first part of :func:`check_bench`: a launch on integers, and one on operands of a ``special`` kind, if any.

    Where that is normals, one on these alone; if it is wrong, another on integers, which say more if they are, too.
    What passes may still be wrong.
    """
    verdict, rules = Verdict(bench.problem), rules._replace(repeats=1)
    if special == inputs.NORMALS:
        _on_normals(bench, verdict, rules)
        if verdict.findings:
            plain = Verdict(bench.problem)
            _first(bench, plain, rules)
            verdict.findings = plain.findings or verdict.findings
        return verdict
    y, first_x, first_weight = _first(bench, verdict, rules)
    if special and not verdict.findings:
        x, weight = inputs.special(special, bench.problem, rules.seed + 1, rules.precision, rules.algorithm)
        said, before = f"with {inputs.SPECIAL[special]}", (first_x, first_weight, y)
        _differs(bench, verdict, x, weight, said, before=before)
    return verdict


def _first(bench: Bench, verdict: Verdict, rules: Rules) -> tuple[Array, Array, Array]:
    """Launch on integers and compare; returns the output and the operands."""
    x, weight = inputs.integers(bench.problem, rules.seed, rules.algorithm)
    bench.load(x, weight)
    bench.y.blank()
    y, expected = _launched(bench, verdict, x, weight)
    verdict.findings += findings.trespass(bench, x, weight)
    wrong = findings.compare(bench, x, weight, y, expected)
    if wrong and not verdict.findings:
        # at least twice more: the tracer runs the threads of every second launch in the opposite order
        verdict.findings += findings.disagreement(bench, y, expected, max(rules.repeats, 3))
    verdict.findings += wrong
    return y, x, weight
