"""Is a kernel right? One verdict per problem shape, each finding named for what it is.

Runs in the process that owns the GPU, or traces. Integers come first: their sums are exact in float32, so a
right kernel equals the oracle bit for bit; an output of float16 is the exact sum, rounded once. Normals come second,
within an elementwise bound. The output is filled with NaN and lies between canary margins; the operands lie between
NaN margins, so a read beyond them shows in the result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray

from common.catalog import algorithms, catalog, ledger, reference
from common.catalog.boundstep import BoundStep
from common.catalog.problems import FLOAT16, FLOAT32, Problem
from common.check import blank, inputs, oracle
from common.explain import diagnose
from common.explain.faults import FindingFields

Array = NDArray[Any]

MARGIN = 4096  # elements before and after each array; keeps 128-bit alignment
SAMPLES = 20_000
REPEATS = 3  # launches on equal inputs that must agree, to catch races
RELAUNCHES = 3  # of a thorough check on arrays that are left as they are, nothing prepared anew
# By precision, or by the dtype of the output if that is not float32: whose bound it is, and what usually exceeds it;
# then whose error is typical, and what exceeds that.
_BOUNDS = {
    "fp32": (
        "float32", "float16 or TF32 arithmetic",
        "float32 sums", "inputs that lost some of their bits, or large terms that cancel",
    ),
    "tf32": (
        "TF32", "float16 or bfloat16 arithmetic",
        "inputs rounded to the nearest TF32 numbers", "inputs that are cut off",
    ),
    "tf32x3": (
        "float32", "a product or a low half left out, or sums that are cut off",
        "three products of TF32 numbers", "a product or a low half left out",
    ),
    "float16": (
        "float16", "sums in float16, a sum rounded twice or cut off",
        "sums rounded once to float16", "a sum rounded twice",
    ),
}  # fmt: skip
_ADDED = (
    "each launch adds to the sums of the one before: launch is to set them to zero, in the output or in a workspace"
)
_FILL = 0.5  # no sum of integers: an output filled with it shows whether the kernel reads it


# Launches of check_bench where repeats say nothing, and of check_thoroughly then.
USUAL_LAUNCHES, THOROUGH_LAUNCHES = 3, 30

KINDS = (
    "wrote_outside", "modified_input", "unwritten", "nan", "wrong", "imprecise", "stale", "unstable", "unsound",
    "refused",
)  # fmt: skip


class VerdictFields(TypedDict):
    """A :class:`Verdict` ready for JSON."""

    shape: dict[str, int]
    right: bool
    elements_compared: int
    findings: list[FindingFields]


@dataclass(frozen=True)
class Finding:
    """One thing that is not right. ``kind`` is one of KINDS."""

    kind: str
    message: str


@dataclass
class Verdict:
    """What a check of one shape found; right if nothing."""

    problem: Problem
    findings: list[Finding] = field(default_factory=list)
    elements_compared: int = 0

    @property
    def right(self) -> bool:
        return not self.findings

    def as_dict(self) -> VerdictFields:
        findings: list[FindingFields] = [{"kind": one.kind, "message": one.message} for one in self.findings]
        return {
            "shape": self.problem.shape(),
            "right": self.right,
            "elements_compared": self.elements_compared,
            "findings": findings,
        }


class Guarded:
    """A device array between two margins whose every element holds the unwritten pattern.

    Without a margin an access beyond the array leaves its allocation, where tools that watch from outside see it.
    """

    def __init__(self, shape: tuple[int, ...], margin: int = MARGIN, dtype: np.dtype[Any] = FLOAT32) -> None:
        from numba import cuda

        self.size, self.margin, self.dtype = math.prod(shape), margin, dtype
        self._flat = cuda.device_array(self.size + 2 * margin, dtype)
        if margin:
            edge = blank.filled(margin, dtype)
            self._flat[:margin].copy_to_device(edge)
            self._flat[margin + self.size :].copy_to_device(edge)
        self.array = self._flat[margin : margin + self.size].reshape(shape)

    def set(self, values: Array) -> None:
        start = self.margin
        self._flat[start : start + self.size].copy_to_device(np.ascontiguousarray(values, self.dtype).reshape(-1))

    def blank(self) -> None:
        """Fill with the unwritten pattern, in pieces so that the host never holds it all."""
        piece = blank.filled(min(self.size, 1 << 24), self.dtype)
        for start in range(0, self.size, len(piece)):
            stop = min(start + len(piece), self.size)
            self._flat[self.margin + start : self.margin + stop].copy_to_device(piece[: stop - start])

    def get(self) -> Array:
        return np.asarray(self.array.copy_to_host())

    def trespasses(self) -> list[int]:
        """Offsets written in the margins: negative before the array, from ``size`` on after it."""
        margins = (self._flat[: self.margin], self._flat[self.margin + self.size :])
        before, after = (np.asarray(part.copy_to_host()) for part in margins)
        return written_outside(before, after, self.size)


def written_outside(before: Array, after: Array, size: int) -> list[int]:
    """Offsets written in the margins before and after an array of ``size`` elements."""
    low, high = (np.flatnonzero(blank.bits(part) != blank.pattern(part.dtype)) for part in (before, after))
    return [int(i) - len(before) for i in low] + [int(i) + size for i in high]


class AnyBench(Protocol):
    """What a check needs: operands to set and get, and a way to launch. ``load`` prepares the weights too."""

    problem: Problem
    x: Any
    weight: Any
    y: Any

    def load(self, x: Array, weight: Array) -> None: ...

    def run(self) -> None: ...


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
        with ledger.stage(ledger.KERNEL):
            self.prepare()
            _wait()

    def prepare(self) -> None:
        self.step.prepare(self.weight.array)

    def launch(self) -> None:
        self.step.launch(self.x.array, self.y.array)

    def run(self) -> None:
        """Launch and wait."""
        with ledger.stage(ledger.KERNEL):
            self.launch()
            _wait()


def _wait() -> None:
    from numba import cuda

    cuda.synchronize()


def check(
    module: ModuleType,
    problem: Problem,
    seed: int = 0,
    repeats: int = REPEATS,
    precision: str = "fp32",
    algorithm: str | None = None,
) -> Verdict:
    """Check a step at one shape, element by element. ValueError from ``prepare`` (a refusal) passes through.

    ``precision``, one of :data:`common.catalog.catalog.PRECISIONS`: what the step may compute with. ``algorithm``:
    one of :data:`common.catalog.algorithms.NAMES`: how, if not as the definition does.
    """
    return check_bench(Bench(module, problem), seed, repeats, precision, algorithm)


def check_bench(
    bench: AnyBench, seed: int = 0, repeats: int = REPEATS, precision: str = "fp32", algorithm: str | None = None
) -> Verdict:
    """As :func:`check`, for anything with a bench's ``problem``, ``x``, ``weight``, ``y``, ``load`` and ``run``."""
    problem = bench.problem
    verdict = Verdict(problem)

    first, x, weight = _first(bench, verdict, seed, repeats, algorithm)
    if verdict.findings:
        return verdict

    # new operands over the old output: nothing of the first launch may survive
    x2, weight2 = inputs.integers(problem, seed + 1, algorithm)
    bench.load(x2, weight2)
    second = _run(bench)
    expected2 = oracle.expected(problem, x2, weight2)
    verdict.elements_compared += expected2.size
    if not np.array_equal(second, expected2):
        # a race would show in a second launch, too, and differently
        verdict.findings += _disagreement(bench, second, expected2, 3, over=first) or [
            _stale(problem, (x, weight), (x2, weight2), first, second, expected2)
        ]
        return verdict

    verdict.findings += _disagreement(bench, second, expected2, repeats)
    if verdict.findings:
        return verdict

    _on_normals(bench, verdict, seed + 2, precision, algorithm, exact=True)
    return verdict


def _on_normals(
    bench: AnyBench, verdict: Verdict, seed: int, precision: str, algorithm: str | None, exact: bool = False
) -> None:
    """Launch on normals: is the error within the bound of the arithmetic? ``exact``: integers were right."""
    x, weight = inputs.normals(bench.problem, seed)
    bench.load(x, weight)
    bench.y.blank()
    y = _run(bench)
    verdict.elements_compared += y.size
    verdict.findings += _trespass(bench, x, weight)
    verdict.findings += _precision(bench.problem, x, weight, y, precision, exact, algorithm)


def check_thoroughly(
    make: Callable[[], AnyBench],
    seed: int = 0,
    repeats: int = REPEATS,
    precision: str = "fp32",
    algorithm: str | None = None,
) -> Verdict:
    """As :func:`check_bench`, then with other operands, changed ones, other buffers, and more launches.

    ``make`` makes a bench of the same step and problem anew.
    """
    bench = make()
    verdict = check_bench(bench, seed, repeats, precision, algorithm)
    if verdict.findings:
        return verdict
    for kind in inputs.SPECIAL:
        x, weight = inputs.special(kind, bench.problem, seed + 3, precision, algorithm)
        if _differs(bench, verdict, x, weight, f"with {inputs.said(kind, bench.problem)}"):
            return verdict
    x, weight = inputs.integers(bench.problem, seed, algorithm)
    for changed_x, changed_weight, said in _changes(x, weight, seed):
        if _differs(bench, verdict, changed_x, changed_weight, said, kind="stale"):
            return verdict
    other = make()
    x2, weight2 = inputs.integers(bench.problem, seed + 4, algorithm)
    if _differs(other, verdict, x2, weight2, "in other arrays of the same shape", kind="stale"):
        return verdict
    bench.load(x, weight)
    for launch in range(1, RELAUNCHES + 1):
        if _differs(bench, verdict, x, weight, f"at launch {launch} on the same arrays", "stale", load=False):
            return verdict
    return verdict


class TooLargeError(RuntimeError):
    """One launch takes longer than there is time for: about ``seconds``."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"one launch takes about {seconds:.0f} s")
        self.seconds = seconds


class Budget:
    """Seconds of processor time that a check may take; begins when it is made."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._began = self._launched = time.process_time()

    @property
    def left(self) -> float:
        return self.seconds - (time.process_time() - self._began)

    def groups(self, done: int, total: int) -> None:
        """So many of a launch's groups of blocks are done; raises TooLargeError if the others do not fit."""
        ledger.advance()
        if not done:
            self._launched = time.process_time()
            return
        each = (time.process_time() - self._launched) / done
        if each * (total - done) > self.left:
            raise TooLargeError(each * total)


def check_measured(
    make: Callable[[], AnyBench],
    budget: Budget,
    seed: int = 0,
    precision: str = "fp32",
    algorithm: str | None = None,
) -> tuple[Verdict, Literal["once", "usual", "thorough"]]:
    """As deep a check as fits, by what its first launch took: a verdict, and as which of the others it was judged.

    ``make``: as of :func:`check_thoroughly`. Raises TooLargeError if not even one launch fits.
    """
    before, bench = budget.left, make()
    verdict = Verdict(bench.problem)
    _first(bench, verdict, seed, 1, algorithm)
    launch = before - budget.left
    if verdict.findings or budget.left < USUAL_LAUNCHES * launch:
        return verdict, "once"
    try:
        if budget.left >= THOROUGH_LAUNCHES * launch:
            return check_thoroughly(make, seed, 1, precision, algorithm), "thorough"
        return check_bench(make(), seed, 1, precision, algorithm), "usual"
    except TooLargeError:
        return verdict, "once"


def _changes(x: Array, weight: Array, seed: int) -> Iterator[tuple[Array, Array, str]]:
    """Operands that each differ little from the ones before, with what was changed."""
    yield x, weight, "back on the first inputs"
    changed = weight
    for changed in _one_by_one(weight, seed):
        yield x, changed, "after one element of the weights was changed"
    mirrored = changed.reshape(-1)[::-1].reshape(weight.shape).copy()
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
        values.flat[place] *= -1
        yield values
    values = values.copy()
    values.flat[drawn] += np.sign(values.flat[drawn])  # as its magnitude may be all that is looked at
    yield values


def _differs(
    bench: AnyBench, verdict: Verdict, x: Array, weight: Array, said: str, kind: str = "wrong", load: bool = True,
    before: tuple[Array, Array, Array] | None = None,
) -> bool:  # fmt: skip
    """Launch on these operands; adds a finding of ``kind`` that opens with ``said`` if the output is wrong.

    ``before``: the operands and the right output of the launch before.
    """
    if load:
        bench.load(x, weight)
    bench.y.blank()
    y = _run(bench)
    expected = oracle.expected(bench.problem, x, weight)
    verdict.elements_compared += expected.size
    found = _trespass(bench, x, weight) + _compare(bench, x, weight, y, expected)
    why = ""
    if before and [one.kind for one in found] == ["wrong"]:
        why = diagnose.kept(bench.problem, before[:2], (x, weight), before[2], y, expected)
    for one in found:
        own = "stale" if why else kind if one.kind == "wrong" else one.kind
        message = f"{one.message.partition(' (')[0]}: {why}" if why else one.message
        verdict.findings.append(Finding(own, f"{said}: {message}"))
    return bool(found)


def check_once(
    bench: AnyBench, seed: int = 0, special: str = "", precision: str = "fp32", algorithm: str | None = None
) -> Verdict:
    """The first part of :func:`check`: one launch on integers, and one on operands of a ``special`` kind if named.

    Where that is normals, one on these alone; if it is wrong, another on integers, which say more if they are, too.

    What passes may still be wrong.
    """
    verdict = Verdict(bench.problem)
    if special == inputs.NORMALS:
        _on_normals(bench, verdict, seed, precision, algorithm)
        if verdict.findings:
            plain = Verdict(bench.problem)
            _first(bench, plain, seed, 1, algorithm)
            verdict.findings = plain.findings or verdict.findings
        return verdict
    y, first_x, first_weight = _first(bench, verdict, seed, 1, algorithm)
    if special and not verdict.findings:
        x, weight = inputs.special(special, bench.problem, seed + 1, precision, algorithm)
        _differs(
            bench,
            verdict,
            x,
            weight,
            f"with {inputs.said(special, bench.problem)}",
            before=(first_x, first_weight, y),
        )
    return verdict


def _first(
    bench: AnyBench, verdict: Verdict, seed: int, repeats: int, algorithm: str | None
) -> tuple[Array, Array, Array]:
    """Launch on integers and compare; returns the output and the operands."""
    x, weight = inputs.integers(bench.problem, seed, algorithm)
    bench.load(x, weight)
    bench.y.blank()
    y = _run(bench)
    expected = oracle.expected(bench.problem, x, weight)
    verdict.elements_compared += expected.size
    verdict.findings += _trespass(bench, x, weight)
    wrong = _compare(bench, x, weight, y, expected)
    if wrong and not verdict.findings:
        # at least twice more: the tracer runs the threads of every second launch in the opposite order
        verdict.findings += _disagreement(bench, y, expected, max(repeats, 3))
    verdict.findings += wrong
    return y, x, weight


def sample_bench(bench: AnyBench, seed: int = 0, samples: int = SAMPLES) -> Verdict:
    """Check a large problem: every element written and finite, random positions and the corners exact.

    ``bench``: anything with a bench's methods. All of y comes to the host.
    """
    problem = bench.problem
    verdict = Verdict(problem)
    x, weight = inputs.integers(problem, seed)
    bench.load(x, weight)
    bench.y.blank()
    y = _run(bench)
    verdict.findings += _trespass(bench, x, weight)
    holes = _holes(problem, y)
    if holes:
        verdict.findings += holes
        return verdict
    positions = sample_positions(problem, samples, seed)
    expected = reference.stored(problem, reference.at(problem, x, weight, positions))
    verdict.elements_compared = len(expected)
    verdict.findings += compare_sampled(problem, positions, y[positions].astype(np.float64), expected, (x, weight))
    return verdict


def compare_sampled(
    problem: Problem,
    positions: reference.Indices,
    got: Array,
    expected: Array,
    operands: tuple[Array, Array] | None = None,
) -> list[Finding]:
    """Sampled elements that are wrong: nothing, or one finding."""
    wrong = np.flatnonzero(got != expected)
    if not len(wrong):
        return []
    at = tuple(axis[wrong] for axis in positions)
    if operands:
        hint = diagnose.explain_sampled(problem, *operands, at, got[wrong], expected[wrong])
    else:
        hint = diagnose.where_sampled(problem, at)
    total, text = len(expected), "sampled elements are wrong"
    return [Finding("wrong", _tally(problem, np.transpose(at), got[wrong], expected[wrong], total, text, hint))]


def sample_positions(problem: Problem, samples: int, seed: int) -> reference.Indices:
    """Random output positions over the whole batch, plus every corner."""
    rng = np.random.default_rng(seed)
    shape = problem.output_shape
    drawn = [rng.integers(0, extent, samples) for extent in shape]
    corners = np.indices((2,) * len(shape)).reshape(len(shape), -1)
    ends = [corner * (extent - 1) for corner, extent in zip(corners, shape, strict=True)]
    return tuple(np.concatenate(pair) for pair in zip(drawn, ends, strict=True))


def _run(bench: AnyBench) -> Array:
    bench.run()
    y: Array = bench.y.get()
    return y


def _disagreement(
    bench: AnyBench, earlier: Array, expected: Array, repeats: int, over: Array | None = None
) -> list[Finding]:
    """Do more launches on the same operands give what ``earlier`` is, bit for bit?

    Before each, the output is blank, or holds ``over``.
    """
    for _ in range(repeats - 1):
        if over is None:
            bench.y.blank()
        else:
            bench.y.set(over)
        again = _run(bench)
        count = int(np.count_nonzero(blank.bits(again) != blank.bits(earlier)))
        if count:
            text = f"{count} of {earlier.size} elements differ between launches on equal inputs"
            sums = np.array_equal(again.astype(np.float64) - earlier, expected)
            cause = _ADDED if sums else diagnose.differing(bench.problem, earlier, again, expected)
            return [Finding("unstable", f"{text}: {cause}")]
    return []


def _trespass(bench: AnyBench, x: Array, weight: Array) -> list[Finding]:
    names = catalog.LAUNCH_ARGUMENTS[bench.problem.ladder]
    findings = []
    for name, guarded in zip(names, (bench.x, bench.weight, bench.y), strict=False):
        offsets = guarded.trespasses()
        if offsets:
            shown = ", ".join(
                f"{-o} before its start" if o < 0 else f"{o - guarded.size + 1} past its end" for o in offsets[:3]
            )
            findings.append(Finding("wrote_outside", f"{len(offsets)} elements written outside {name}: {shown}"))
    for name, guarded, sent in ((names[0], bench.x, x), (names[1], bench.weight, weight)):
        changed = np.argwhere(guarded.get() != sent)
        if len(changed):
            text = f"{len(changed)} elements of the input {name} were changed, the first at {_at(name, changed[0])}"
            findings.append(Finding("modified_input", text))
    return findings


def _holes(problem: Problem, y: Array, read: str = "") -> list[Finding]:
    """Unwritten, NaN and infinite elements of y (in its own shape). ``read``: how the kernel takes what y held
    before, if it does."""
    name = _output_name(problem)
    flat = y.reshape(-1)
    missing = np.flatnonzero(~np.isfinite(flat))
    if not len(missing):
        return []
    # a sum may keep the payload of the NaN it started from
    unwritten = (blank.bits(flat[missing]) == blank.pattern(flat.dtype)) & (not read)
    cause = "as from a read beyond an input's end or of uninitialised memory"
    if read:
        cause = f"because the kernel {read.format(name)}"
    findings = []
    for kind, indices, text in (
        ("unwritten", missing[unwritten], "were never written"),
        ("nan", missing[~unwritten], f"are NaN or infinite, {cause}"),
    ):
        if len(indices):
            mask = np.zeros(flat.shape, np.bool_)
            mask[indices] = True
            region = diagnose.where(problem, mask.reshape(y.shape))
            if kind == "unwritten" and len(indices) == flat.size:
                region = "nothing was: does launch start the kernel, and does the kernel store?"
            first = _at(name, np.unravel_index(indices[0], y.shape))
            message = f"{len(indices)} of {flat.size} elements of {name} {text}, the first {first}"
            findings.append(Finding(kind, message + (f" ({region})" if region else "")))
    return findings


def _reads(bench: AnyBench, x: Array, weight: Array, got: Array) -> str:
    """How the NaN elements of ``got`` come of the output's old contents, if they do: over numbers they are none."""
    missing = np.isnan(got)
    if not missing.any():
        return ""
    bench.y.set(np.full(got.shape, _FILL))
    again = _run(bench)[missing]
    if not (again != _FILL).any() or not np.isfinite(again).all():
        return ""
    sums = oracle.full(bench.problem, x, weight)[missing]
    if np.array_equal(again, reference.stored(bench.problem, sums + _FILL)):
        return "adds to what {0} held before: it must assign"
    if (again != _FILL).all():
        return "reads {0}, which holds nothing yet: it must assign, without a term of {0}, as 0 times NaN is NaN"
    return ""


def _compare(bench: AnyBench, x: Array, weight: Array, got: Array, expected: Array) -> list[Finding]:
    problem = bench.problem
    findings = _holes(problem, got, _reads(bench, x, weight, got))
    wrong = (got != expected) & np.isfinite(got)
    if not wrong.any():
        return findings
    hint = diagnose.explain(problem, x, weight, got.astype(np.float64), expected, getattr(bench, "racy", False))
    places = np.argwhere(wrong)
    text = _tally(problem, places, got[wrong], expected[wrong], got.size, "elements are wrong", hint)
    return [*findings, Finding("wrong", text)]


def _precision(
    problem: Problem, x: Array, weight: Array, got: Array, precision: str, exact: bool, algorithm: str | None = None
) -> list[Finding]:
    holes = _holes(problem, got)
    if holes:
        return holes
    expected = oracle.full(problem, x, weight)
    magnitude = oracle.full(problem, np.abs(x), np.abs(weight))
    transformed = algorithms.magnitude(problem, x, weight) if algorithms.applies(problem, algorithm) else None
    bound = reference.error_bound(problem, magnitude, expected, precision, transformed)
    error = np.abs(got - expected)
    beyond = error > bound
    name, usual, typical, cause = _BOUNDS[problem.output_dtype.name if problem.output_dtype == FLOAT16 else precision]
    if not beyond.any():
        allowed = reference.typical_error(problem, x, weight, magnitude, expected, precision, transformed)
        found = reference.root_mean_square(error)
        if found <= allowed:
            return []
        text = "the elements are " + ("right on integers, but " if exact else "")
        text += f"off by {found:.3g} (root mean square) on normals"
        return [
            Finding("imprecise", f"{text} ({found / allowed:.2f} times what {typical} may give, as from {cause})")
        ]
    worst = float(np.max(error[bound > 0] / bound[bound > 0], initial=0.0))
    why = diagnose.imprecise(problem, x, weight, got, expected, bound)
    hint = f"up to {worst:.3g} times the {name if transformed is None else algorithm} bound"
    hint += f": {why}" if why else f", as from {usual} or a dropped term"
    places = np.argwhere(beyond)
    text = f"elements are {'right on integers but ' if exact else ''}not precise"
    return [Finding("imprecise", _tally(problem, places, got[beyond], expected[beyond], got.size, text, hint))]


def _stale(
    problem: Problem,
    old: tuple[Array, Array],
    new: tuple[Array, Array],
    first: Array,
    second: Array,
    expected: Array,
) -> Finding:
    wrong = second != expected
    count = int(wrong.sum())
    text = f"{count} of {second.size} elements are wrong on the second launch, with new inputs"
    why = diagnose.kept(problem, old, new, first, second, expected)
    unknown = ", and the first was right: something is kept between launches"
    return Finding("stale", text + (f": {why}" if why else unknown))


def _tally(problem: Problem, places: Array, got: Array, expected: Array, total: int, text: str, hint: str) -> str:
    """How many of ``total`` elements something is true of, those at ``places``, with the first three."""
    name = _output_name(problem)
    first = zip(places[:3], got, expected, strict=False)
    shown = "; ".join(f"{_at(name, place)} = {value:.9g}, expected {right:.9g}" for place, value, right in first)
    return f"{len(places)} of {total} {text}: {shown}" + (f" ({hint})" if hint else "")


def _at(name: str, index: Iterable[Any]) -> str:
    return f"{name}[{', '.join(map(str, index))}]"


def _output_name(problem: Problem) -> str:
    return catalog.LAUNCH_ARGUMENTS[problem.ladder][2]
