"""Is a kernel right? One verdict per problem shape, each finding named for what it is, with the first few elements.

Integers come first: their sums are exact in float32, so a right kernel equals the oracle bit for bit; an output of 16
bits is the exact sum, rounded once. Normals come second, within an elementwise bound. The output is filled with NaN;
all arrays lie between margins of NaN, so an access beyond them shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.catalog import codes, inputs, reference
from common.catalog.problems import FLOAT16, UINT8, UINT16, Problem
from common.check import arrays
from common.check.arrays import MARGIN, Guarded
from common.explain import diagnose
from common.machine_code.capture import BoundStep
from common.run import stages
from common.run.messages import REPEATS as REPEATS
from common.run.messages import Engine, StepResult
from common.run.messages import Finding as Finding

Array = NDArray[Any]

RELAUNCHES = 3  # of a thorough check on arrays that are left as they are, nothing prepared anew
# By precision, or by the dtype of the output if that is not float32: whose bound it is, and what usually exceeds it.
_BOUNDS = {
    "fp32": ("float32", "float16 or TF32 arithmetic, inputs that lost some of their bits"),
    "tf32": ("TF32", "inputs that are cut off, float16 or bfloat16 arithmetic"),
    "tf32x3": ("float32", "a product or a low half left out, sums that are cut off"),
    "float16": ("float16", "sums in float16, a sum rounded twice or cut off"),
    "bfloat16": ("bfloat16", "sums in bfloat16, a sum rounded twice or cut off"),
    "e4m3": ("e4m3", "sums in float16"),
}
_ADDED = (
    "each launch adds to the sums of the one before: launch is to set them to zero, in the output or in a workspace"
)
_RACE = "a race, such as a missing barrier, or a read of memory that nothing wrote"
_FILL = 0.5  # no sum of integers: an output filled with it shows whether the kernel reads it


class Rules(NamedTuple):
    """How a step is checked: ``repeats`` are launches on equal inputs that must agree; ``precision``, ``algorithm``:
    a step's (:class:`common.catalog.catalog.Step`)."""

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

    def result(self, engine: Engine | None = None, seed: int | None = None) -> StepResult:
        """The result of a task."""
        return StepResult(
            status="right" if self.right else "wrong", shape=self.problem.shape(), right=self.right, engine=engine,
            elements_compared=self.elements_compared, findings=self.findings, seed=seed,
        )  # fmt: skip


class Bench:
    """One step bound to one problem: guarded operands, ``prepare``, workspace, ``launch``. ``tile``: as of a
    :class:`BoundStep`; ``margin``: of each :class:`Guarded`; ``beside``: a bench whose operands are used.

    ``tracer``: runs it in place of a GPU. It sees accesses beyond an array itself, so there are no margins; every
    second launch takes blocks, and threads that write one element, in the opposite order. Raises TraceError for what
    it does not know.
    """

    def __init__(
        self, module: ModuleType, problem: Problem, tile: dict[str, int] | None = None, margin: int = MARGIN,
        beside: Any = None, tracer: Any = None,
    ) -> None:  # fmt: skip
        self.problem, self.step, self._tracer, self._launches = problem, BoundStep(module, problem, tile), tracer, 0
        made: list[Guarded] = [beside.x, beside.weight, beside.y] if beside else []
        margin = 0 if tracer else margin
        with tracer or nullcontext():
            self.x, self.weight, self.y = made or [Guarded(shape, margin, dtype) for shape, dtype in problem.operands]
            self.step.allocate()
        for guarded in (self.x, self.weight) if tracer else ():
            guarded.array.storage.read_only = True

    def load(self, x: Array, weight: Array) -> None:
        """Copy operands to the device and prepare the weights."""
        with self._tracer or nullcontext():
            self.x.set(x)
            self.weight.set(weight)
            self._wait_for(self.prepare)

    def blank(self) -> None:
        """Make the output what nobody has written."""
        if not self._tracer:
            self.y.blank()
            return
        self.y.array.poison()
        arrays.bits(np.asarray(self.y.array))[...] = arrays.UNWRITTEN[self.y.dtype]

    def prepare(self) -> None:
        self.step.prepare(self.weight.array)

    def launch(self) -> None:
        self.step.launch(self.x.array, self.y.array)

    def run(self) -> None:
        """Launch and wait."""
        if self._tracer:
            self._tracer.order = "backward" if self._launches % 2 else "forward"
        self._launches += 1
        with self._tracer or nullcontext():
            self._wait_for(self.launch)

    def result(self) -> Array:
        """Launch; returns the output."""
        self.run()
        return arrays.numbers(self.y.get())

    def _wait_for(self, work: Callable[[], None]) -> None:
        from numba import cuda

        with stages.stage(stages.KERNEL):
            work()
            cuda.synchronize()


# --- checks ---


def check_bench(bench: Bench, rules: Rules = RULES) -> Verdict:
    """Check a step at one shape, element by element. ValueError from ``prepare`` (a refusal) passes through."""
    verdict, problem = Verdict(bench.problem), bench.problem
    before = _first(bench, verdict, rules)
    if verdict.findings:
        return verdict
    # new operands over the old output: nothing of the first launch may survive
    new = inputs.integers(problem, rules.seed + 1, rules.algorithm)
    got, expected = _launched(bench, verdict, *new, blank=False), _right(problem, *new)
    wrong = int(np.count_nonzero(got != expected))
    # a race would show in a second launch, too, and differently
    repeats, over = (3, before[2]) if wrong else (rules.repeats, None)
    verdict.findings += _disagreement(bench, got, expected, repeats, over)
    if wrong and not verdict.findings:
        why = diagnose.kept(problem, before[:2], new, before[2], got, expected)
        text = f"{wrong} of {got.size} elements are wrong on the second launch, with new inputs"
        unknown = ", and the first was right: something is kept between launches"
        verdict.findings.append(Finding("stale", text + (f": {why}" if why else unknown)))
    if not verdict.findings:
        _on_normals(bench, verdict, rules._replace(seed=rules.seed + 2), exact=True)
    return verdict


def check_thoroughly(make: Callable[[], Bench], rules: Rules = RULES) -> Verdict:
    """As :func:`check_bench`, then with other operands, changed ones, other buffers, and more launches. ``make``
    gives a bench of the same step and problem anew."""
    bench = make()
    verdict = check_bench(bench, rules)
    for attempt in _attempts(make, bench, rules) if verdict.right else ():
        if _differs(verdict, *attempt):
            break
    return verdict


def _attempts(
    make: Callable[[], Bench], bench: Bench, rules: Rules
) -> Iterator[tuple[Bench, Array, Array, str, str, bool]]:
    """What :func:`_differs` is given: operands that differ little from those before, with what was changed."""
    seed, problem = rules.seed, bench.problem
    for special, said in inputs.SPECIAL.items():
        operands = inputs.special(special, problem, seed + 3, rules.precision, rules.algorithm)
        yield bench, *operands, f"with {said}", "wrong", True
    x, weight = inputs.integers(problem, seed, rules.algorithm)
    yield bench, x, weight, "back on the first inputs", "stale", True
    weights, xs = _one_by_one(weight, seed), _one_by_one(x, seed)
    for one in weights:
        yield bench, x, one, "after one element of the weights was changed", "stale", True
    turned = inputs.pruned(np.flip(weights[-1]).copy(), rules.algorithm)
    yield bench, x, turned, "after the weights were put in another order", "stale", True
    for one in xs:
        yield bench, one, turned, "after one element of the input was changed", "stale", True
    # of the same sum
    yield bench, np.flip(xs[-1]).copy(), turned, "after the input was put in another order", "stale", True
    other = inputs.integers(problem, seed + 4, rules.algorithm)
    yield make(), *other, "in other arrays of the same shape", "stale", True
    bench.load(x, weight)
    for launch in range(1, RELAUNCHES + 1):
        yield bench, x, weight, f"at launch {launch} on the same arrays", "stale", False


def check_once(bench: Bench, rules: Rules = RULES, special: str = "") -> Verdict:
    """The first part of :func:`check_bench`: a launch on integers, and one on operands of a ``special`` kind, if any;
    on normals alone, if it is that, and if they are wrong on integers, which say more if they are, too."""
    verdict, plain, rules = Verdict(bench.problem), Verdict(bench.problem), rules._replace(repeats=1)
    if special == inputs.NORMALS:
        _on_normals(bench, verdict, rules)
        if verdict.findings:
            _first(bench, plain, rules)
        verdict.findings = plain.findings or verdict.findings
        return verdict
    before = _first(bench, verdict, rules)
    if special and not verdict.findings:
        x, weight = inputs.special(special, bench.problem, rules.seed + 1, rules.precision, rules.algorithm)
        _differs(verdict, bench, x, weight, f"with {inputs.SPECIAL[special]}", "wrong", True, before)
    return verdict


def _first(bench: Bench, verdict: Verdict, rules: Rules) -> tuple[Array, Array, Array]:
    """Launch on integers and compare; returns the operands and the output."""
    x, weight = inputs.integers(bench.problem, rules.seed, rules.algorithm)
    y, expected = _launched(bench, verdict, x, weight), _right(bench.problem, x, weight)
    outside, wrong = trespass(bench, x, weight), _compare(bench, x, weight, y, expected)
    if wrong and not outside:
        # at least twice more: the tracer runs the threads of every second launch in the opposite order
        wrong = _disagreement(bench, y, expected, max(rules.repeats, 3)) + wrong
    verdict.findings += outside + wrong
    return x, weight, y


def _launched(
    bench: Bench, verdict: Verdict, x: Array, weight: Array, load: bool = True, blank: bool = True
) -> Array:
    """The output of a launch on these operands."""
    if load:
        bench.load(x, weight)
    if blank:
        bench.blank()
    y = bench.result()
    verdict.elements_compared += y.size
    return y


def _right(problem: Problem, x: Array, weight: Array) -> Array:
    return reference.stored(problem, arrays.full(problem, x, weight))


def _on_normals(bench: Bench, verdict: Verdict, rules: Rules, exact: bool = False) -> None:
    """Launch on normals: is the error within the bound of the arithmetic? ``exact``: integers were right."""
    x, weight = inputs.normals(bench.problem, rules.seed, rules.algorithm)
    y = _launched(bench, verdict, x, weight)
    verdict.findings += trespass(bench, x, weight)
    verdict.findings += precision(bench.problem, x, weight, y, rules.precision, exact, rules.algorithm)


def _one_by_one(values: Array, seed: int) -> list[Array]:
    """Copies of ``values``, each with one more element changed: first, middle, an odd one, last, a drawn one. A key
    made of some of the elements misses one of these at least."""
    half, last, found = values.size // 2, values.size - 1, []
    drawn = int(np.random.default_rng(seed).integers(values.size))
    # of the drawn one the magnitude changes, which may be all that is looked at
    for place in (*dict.fromkeys((0, half, min(half | 1, last), last)), None):
        values, at = values.copy(), drawn if place is None else place
        number = codes.values(values.flat[at : at + 1])
        values.flat[at] = codes.held(number + np.sign(number) if place is None else -number, values.dtype)[0]
        found.append(values)
    return found


def _differs(
    verdict: Verdict, bench: Bench, x: Array, weight: Array, said: str, kind: str, load: bool,
    before: tuple[Array, Array, Array] | None = None,
) -> bool:  # fmt: skip
    """Launch on these operands; adds findings that open with ``said``, of ``kind`` if the output is wrong.
    ``before``: the operands and the right output of the launch before."""
    y, expected, why = _launched(bench, verdict, x, weight, load), _right(bench.problem, x, weight), ""
    found = trespass(bench, x, weight) + _compare(bench, x, weight, y, expected)
    if before and [one.kind for one in found] == ["wrong"]:
        why = diagnose.kept(bench.problem, before[:2], (x, weight), before[2], y, expected)
    for one in found:
        own = "stale" if why else kind if one.kind == "wrong" else one.kind
        message = f"{one.message.partition(' (')[0]}: {why}" if why else one.message
        verdict.findings.append(Finding(own, f"{said}: {message}"))
    return bool(found)


# --- findings ---


def _disagreement(
    bench: Bench, earlier: Array, expected: Array, repeats: int, over: Array | None = None
) -> list[Finding]:
    """Do more launches give what ``earlier`` is, bit for bit? Before each, the output is blank, or holds ``over``."""
    for _ in range(repeats - 1):
        if over is None:
            bench.blank()
        else:
            bench.y.set(over)
        again = bench.result()
        count = int(np.count_nonzero(arrays.bits(again) != arrays.bits(earlier)))
        if count:
            text = f"{count} of {earlier.size} elements differ between launches on equal inputs"
            sums = np.array_equal(again.astype(np.float64) - earlier, expected)
            return [Finding("unstable", f"{text}: {_ADDED if sums else _RACE}")]
    return []


def trespass(bench: Bench, x: Array, weight: Array) -> list[Finding]:
    """What was written outside of the three arrays, and in the operands."""
    names, findings = bench.problem.names, []
    for name, guarded in zip(names, (bench.x, bench.weight, bench.y), strict=False):
        if offsets := guarded.trespasses():
            first = (
                f"{-o} before its start" if o < 0 else f"{o - guarded.size + 1} past its end" for o in offsets[:3]
            )
            text = f"{len(offsets)} elements written outside {name}: {', '.join(first)}"
            findings.append(Finding("wrote_outside", text))
    for name, guarded, sent in zip(names, (bench.x, bench.weight), (x, weight), strict=False):
        changed = np.argwhere(guarded.get() != sent)
        if len(changed):
            text = f"{len(changed)} elements of the input {name} were changed, the first at {_at(name, changed[0])}"
            findings.append(Finding("modified_input", text))
    return findings


def holes(problem: Problem, y: Array, read: str = "") -> list[Finding]:
    """Unwritten, NaN and infinite elements of y (in its own shape). ``read``: how the kernel takes what y held
    before, if it does."""
    name, missing = problem.names[2], arrays.missing(y)
    # a sum may keep the payload of the NaN it started from
    unwritten = missing & (arrays.bits(y) == arrays.UNWRITTEN[y.dtype]) & (not read)
    cause = (
        f"because the kernel {read}" if read else "as from a read beyond an input's end or of uninitialised memory"
    )
    findings = []
    for kind, mask, text in (
        ("unwritten", unwritten, "were never written"),
        ("nan", missing & ~unwritten, f"are NaN or infinite, {cause}"),
    ):
        if mask.any():
            region = diagnose.where(problem, mask)
            if kind == "unwritten" and mask.all():
                region = "nothing was: does launch start the kernel, and does the kernel store?"
            message = f"{int(mask.sum())} of {y.size} elements of {name} {text}, the first "
            message += _at(name, np.argwhere(mask)[0]) + (f" ({region})" if region else "")
            findings.append(Finding(kind, message))
    return findings


def _reads(bench: Bench, x: Array, weight: Array, got: Array) -> str:
    """How the NaN elements of ``got`` come of the output's old contents, if they do: over numbers they are none."""
    nan, name = np.isnan(got), bench.problem.names[2]
    if not nan.any():
        return ""
    bench.y.set(np.full(got.shape, _FILL))
    again = bench.result()[nan]
    if not (again != _FILL).any() or not np.isfinite(again).all():
        return ""
    sums = arrays.full(bench.problem, x, weight)[nan]
    if np.array_equal(again, reference.stored(bench.problem, sums + _FILL)):
        return f"adds to what {name} held before: it must assign"
    unset = f"reads {name}, which holds nothing yet: it must assign, without a term of {name}, as 0 times NaN is NaN"
    return unset if (again != _FILL).all() else ""


def _compare(bench: Bench, x: Array, weight: Array, got: Array, expected: Array) -> list[Finding]:
    problem = bench.problem
    findings = holes(problem, got, _reads(bench, x, weight, got))
    wrong = (got != expected) & ~arrays.missing(got)
    if not wrong.any():
        return findings
    hint = diagnose.explain(problem, x, weight, got.astype(np.float64), expected)
    text = tally(problem, np.argwhere(wrong), got[wrong], expected[wrong], got.size, "elements are wrong", hint)
    return [*findings, Finding("wrong", text)]


def precision(
    problem: Problem, x: Array, weight: Array, got: Array, precision: str, exact: bool, algorithm: str | None = None
) -> list[Finding]:
    """What is not precise in an output ``got`` on normals; ``exact``: integers were right."""
    if missing := holes(problem, got):
        return missing
    expected = arrays.full(problem, x, weight)
    magnitude = arrays.full(problem, codes.magnitudes(x), codes.magnitudes(weight))
    minimal = reference.applies(problem, algorithm)
    transformed = reference.transformed_magnitude(problem, x, weight) if minimal else None
    bound = reference.error_bound(problem, magnitude, expected, precision, transformed)
    error = np.abs(got - expected)
    beyond = error > bound
    rounded = {FLOAT16: "float16", UINT16: "bfloat16", UINT8: "e4m3"}.get(problem.input_dtype, precision)
    whose, usual = _BOUNDS[rounded]
    if not beyond.any():
        allowed = reference.typical_error(problem, x, weight, magnitude, expected, precision, transformed)
        found = reference.root_mean_square(error)
        if found <= allowed:
            return []
        text = f"the elements are {'right on integers, but ' if exact else ''}off by {found:.3g} (root mean square)"
        why = f"{found / allowed:.2f} times what {whose} arithmetic may give, as from {usual}"
        return [Finding("imprecise", f"{text} on normals ({why})")]
    worst = float(np.max(error[bound > 0] / bound[bound > 0], initial=0.0))
    hint = f"up to {worst:.3g} times the {algorithm if minimal else whose} bound, as from {usual} or a dropped term"
    text = f"elements are {'right on integers but ' if exact else ''}not precise"
    said = tally(problem, np.argwhere(beyond), got[beyond], expected[beyond], got.size, text, hint)
    return [Finding("imprecise", said)]


def tally(problem: Problem, places: Array, got: Array, expected: Array, total: int, text: str, hint: str = "") -> str:
    """How many of ``total`` elements something is true of, those at ``places``, with the first three."""
    first, name = zip(places[:3], got, expected, strict=False), problem.names[2]
    shown = "; ".join(f"{_at(name, place)} = {value:.9g}, expected {right:.9g}" for place, value, right in first)
    return f"{len(places)} of {total} {text}: {shown}" + (f" ({hint})" if hint else "")


def _at(name: str, index: Iterable[Any]) -> str:
    return f"{name}[{', '.join(map(str, index))}]"
