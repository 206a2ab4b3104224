"""Is a kernel right? One verdict per problem shape, each finding named for what it is, with the first few elements.

Integers come first: their sums are exact in float32, so a right kernel equals the oracle bit for bit; an output of 16
bits is the exact sum, rounded once. Normals come second, within an elementwise bound. The output is filled with NaN;
all arrays lie between margins of NaN, so an access beyond them shows.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from common.catalog import codes, inputs, reference
from common.catalog.problems import FLOAT16, UINT8, UINT16, Problem
from common.catalog.reference import Array
from common.check import arrays
from common.check.arrays import MARGIN, Guarded
from common.explain import diagnose
from common.machine_code.capture import BoundStep
from common.run import child
from common.run.messages import REPEATS as REPEATS
from common.run.messages import Check, Finding, StepResult

RELAUNCHES = 3  # of a thorough check on arrays that are left as they are, nothing prepared anew
# By precision, or by the operands' dtype if that is not float32: whose bound it is, and what usually exceeds it.
_BOUNDS: dict[object, tuple[str, str]] = {
    "fp32": ("float32", "float16 or TF32 arithmetic, inputs that lost some of their bits"),
    "tf32": ("TF32", "inputs that are cut off, float16 or bfloat16 arithmetic"),
    "tf32x3": ("float32", "a product or a low half left out, sums that are cut off"),
    FLOAT16: ("float16", "sums in float16, a sum rounded twice or cut off"),
    UINT16: ("bfloat16", "sums in bfloat16, a sum rounded twice or cut off"),
    UINT8: ("e4m3", "sums in float16"),
}
_ADDED = "each launch adds to the sums of the one before: launch is to set output and workspace to zero"
_RACE = "a race, such as a missing barrier, or a read of memory that nothing wrote"
_FILL = 0.5  # no sum of integers: an output filled with it shows whether the kernel reads it


RULES = Check()  # how a step is checked: its seed, repeats, precision and algorithm


class Bench:
    """One step bound to one problem: guarded operands, ``prepare``, workspace, ``launch``. ``tile``: as of a
    :class:`BoundStep`; ``margin``: of each :class:`Guarded`; ``beside``: a bench whose operands are used.

    ``tracer``: runs it in place of a GPU; every second launch takes blocks, and threads that write one element, in
    the opposite order. Without margins, as it sees accesses beyond an array itself. May raise TraceError."""

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
        self.x.set(x)
        self.weight.set(weight)
        with self._working():
            self.prepare()

    def prepare(self) -> None:
        self.step.prepare(self.weight.array)

    def launch(self) -> None:
        self.step.launch(self.x.array, self.y.array)

    def run(self) -> None:
        """Launch and wait."""
        if self._tracer:
            self._tracer.order = "backward" if self._launches % 2 else "forward"
        self._launches += 1
        with self._working():
            self.launch()

    def result(self, over: Array | None = None) -> Array:
        """The output of a launch over what nobody has written, or ``over`` these values."""
        if over is not None:
            self.y.set(over)
        elif self._tracer:
            self.y.array.poison()
            arrays.bits(np.asarray(self.y.array))[...] = arrays.UNWRITTEN[self.y.dtype]
        else:
            self.y.blank()
        self.run()
        return arrays.numbers(self.y.get())

    def seen_unwritten(self, places: Array) -> bool:
        """Did the tracer see that nobody has written these elements of the output?"""
        written = self.y.array.storage.written if self._tracer else None  # None: all is
        return written is not None and not written.reshape(places.shape)[places].any()

    @contextmanager
    def _working(self) -> Iterator[None]:
        from numba import cuda

        with self._tracer or nullcontext(), child.stage(child.KERNEL):
            yield
            cuda.synchronize()


@dataclass
class Verdict:
    """What a check of one shape has found, launch by launch, up to the first that is wrong; right if nothing."""

    bench: Bench
    rules: Check = RULES
    findings: list[Finding] = field(default_factory=list)
    elements_compared: int = 0
    first: tuple[Array, Array, Array] | None = None  # the operands of the first launch, and its output

    @property
    def right(self) -> bool:
        return not self.findings

    def result(self, **more: Any) -> StepResult:
        """The result of a task, with ``more`` fields."""
        return StepResult(
            status="right" if self.right else "wrong", shape=self.bench.problem.shape(), right=self.right,
            elements_compared=self.elements_compared, findings=self.findings, **more,
        )  # fmt: skip

    def integers(self, number: int = 0) -> tuple[Array, Array]:
        """Input and weight of integers: those of the first launch, or others for each ``number``."""
        return inputs.integers(self.bench.problem, self.rules.seed + number, self.rules.algorithm)

    def exact(
        self, x: Array, weight: Array, said: str = "", kind: str = "wrong", over: Array | None = None,
        repeats: int = 1, load: bool = True,
    ) -> None:  # fmt: skip
        """Launch on operands whose sums are exact, and compare; so many ``repeats`` must agree. Findings open with
        ``said``, and are of that ``kind`` if the output is wrong."""
        if not self.right:
            return
        bench, problem, first = self.bench, self.bench.problem, self.first
        if load:
            bench.load(x, weight)
        y, expected = bench.result(over), reference.stored(problem, arrays.full(problem, x, weight))
        self.elements_compared += y.size
        self.first = first or (x, weight, y)
        found, wrong = trespass(bench, x, weight), _compare(bench, x, weight, y, expected)
        alone = not found and [one.kind for one in wrong] == ["wrong"]
        why = ""
        # on an operand of the first launch again, an output like its own is no sign of which is kept
        if first and alone and not (np.array_equal(x, first[0]) or np.array_equal(weight, first[1])):
            why = diagnose.kept(problem, first[:2], (x, weight), first[2], y, expected)
        if why:
            kind, wrong = "stale", [Finding("wrong", f"{wrong[0].message.partition(' (')[0]}: {why}")]
        if not found and self.rules.repeats:
            # twice more: the tracer runs the threads of every second launch in the opposite order, and sees what
            # nobody writes in any: that takes one
            least = 2 if bench.seen_unwritten(y != expected) else 3
            found = _disagreement(bench, y, expected, max(repeats, least) if wrong else repeats, over)
        if not said or not any(one.kind == "unstable" for one in found):
            found = found + wrong
        for one in found:
            message = f"{said}: {one.message}" if said else one.message
            self.findings.append(Finding(kind if one.kind == "wrong" else one.kind, message))

    def on_normals(self, seed: int) -> None:
        """Launch on normals: is the error within the bound of the arithmetic?"""
        if self.right:
            bench, rules = self.bench, self.rules
            x, weight = inputs.normals(bench.problem, seed, rules.algorithm)
            bench.load(x, weight)
            y = bench.result()
            self.elements_compared += y.size
            imprecise = precision(bench.problem, x, weight, y, rules.precision, rules.algorithm)
            self.findings += trespass(bench, x, weight) + imprecise


def check_bench(bench: Bench, rules: Check = RULES) -> Verdict:
    """Check a step at one shape, element by element. ValueError from ``prepare`` (a refusal) passes through."""
    verdict = Verdict(bench, rules)
    verdict.exact(*verdict.integers())
    # new operands over the old output: nothing of the first launch may survive; and a race would show here, too
    old = verdict.first[2] if verdict.first else None
    verdict.exact(*verdict.integers(1), "on the second launch, with new inputs", "stale", old, rules.repeats)
    verdict.on_normals(rules.seed + 2)
    return verdict


def check_thoroughly(make: Callable[[], Bench], rules: Check = RULES) -> Verdict:
    """As :func:`check_bench`, then with other operands, changed ones, other buffers, and more launches. ``make``
    gives a bench of the same step and problem anew."""
    verdict = check_bench(make(), rules)
    for change in _changes(verdict.bench.problem, rules):
        verdict.exact(*change)
    if verdict.right:
        verdict.bench = make()
    for launch in range(RELAUNCHES + 1):
        said = f"at launch {launch} on the same arrays" if launch else "in other arrays of the same shape"
        verdict.exact(*verdict.integers(4), said, "stale", load=not launch)
    return verdict


def _changes(problem: Problem, rules: Check) -> Iterator[tuple[Array, Array, str, str]]:
    """Operands of each kind, then some that differ little from those before, with what was changed, and the kind of
    finding that a wrong output is."""
    for special, said in inputs.SPECIAL.items():
        operands = inputs.special(special, problem, rules.seed + 3, rules.precision, rules.algorithm)
        yield *operands, f"with {said}", "wrong"
    x, weight = inputs.integers(problem, rules.seed, rules.algorithm)
    yield x, weight, "back on the first inputs", "stale"
    for changed in _one_by_one(weight, rules.seed):
        yield x, changed, "after one element of the weights was changed", "stale"
    turned = inputs.pruned(np.flip(changed).copy(), rules.algorithm)
    yield x, turned, "after the weights were put in another order", "stale"
    for changed in _one_by_one(x, rules.seed):
        yield changed, turned, "after one element of the input was changed", "stale"
    yield np.flip(changed).copy(), turned, "after the input was put in another order", "stale"


def _one_by_one(values: Array, seed: int) -> Iterator[Array]:
    """Copies of ``values``, each with one more element changed: first, middle, an odd one, last, a drawn one. A key
    made of some of the elements misses one of these at least."""
    half, last = values.size // 2, values.size - 1
    drawn = int(np.random.default_rng(seed).integers(values.size))
    # of the drawn one the magnitude changes, which may be all that is looked at
    for place in (*dict.fromkeys((0, half, min(half | 1, last), last)), None):
        values, at = values.copy(), drawn if place is None else place
        number = codes.values(values.flat[at : at + 1])
        values.flat[at] = codes.held(number + np.sign(number) if place is None else -number, values.dtype)[0]
        yield values


def check_once(bench: Bench, rules: Check = RULES) -> Verdict:
    """The first part of :func:`check_bench`: a launch on integers, and one on operands of a special kind, if any; on
    normals alone, if it is that, and if they are wrong on integers, which say more if they are, too."""
    verdict, special = Verdict(bench, rules), rules.special
    if special == inputs.NORMALS:
        verdict.on_normals(rules.seed)
    imprecise, verdict.findings = verdict.findings, []
    if imprecise or special != inputs.NORMALS:
        verdict.exact(*verdict.integers())
    if special in inputs.SPECIAL:
        operands = inputs.special(special, bench.problem, rules.seed + 1, rules.precision, rules.algorithm)
        verdict.exact(*operands, f"with {inputs.SPECIAL[special]}")
    verdict.findings = verdict.findings or imprecise
    return verdict


# --- findings ---


def _disagreement(bench: Bench, y: Array, expected: Array, launches: int, over: Array | None) -> list[Finding]:
    """Do so many launches in all give ``y``, bit for bit?"""
    for _ in range(launches - 1):
        again = bench.result(over)
        if count := int(np.count_nonzero(arrays.bits(again) != arrays.bits(y))):
            added = np.array_equal(again.astype(np.float64) - y, expected)
            text = f"{count} of {y.size} elements differ between launches on equal inputs"
            return [Finding("unstable", f"{text}: {_ADDED if added else _RACE}")]
    return []


def trespass(bench: Bench, x: Array, weight: Array) -> list[Finding]:
    """What was written outside of the three arrays, and in the operands."""
    found = []
    guarded: list[tuple[Guarded, Array | None]] = [(bench.x, x), (bench.weight, weight), (bench.y, None)]
    for name, (array, sent) in zip(bench.problem.names, guarded, strict=False):
        if offsets := array.trespasses():
            size = array.size
            first = (f"{-o} before its start" if o < 0 else f"{o - size + 1} past its end" for o in offsets[:3])
            text = f"{len(offsets)} elements written outside {name}: {', '.join(first)}"
            found.append(Finding("wrote_outside", text))
        if sent is None or np.array_equal(got := array.get(), sent):
            continue
        changed = np.argwhere(got != sent)
        text = f"{len(changed)} elements of the input {name} were changed, the first at {_at(name, changed[0])}"
        found.append(Finding("modified_input", text))
    return found


def holes(problem: Problem, y: Array, read: str = "") -> list[Finding]:
    """Unwritten, NaN and infinite elements of y (in its own shape). ``read``: how the kernel takes what y held
    before, if it does."""
    name, missing = problem.names[2], arrays.missing(y)
    # a sum may keep the payload of the NaN it started from
    unwritten = missing & (arrays.bits(y) == arrays.UNWRITTEN[y.dtype]) & (not read)
    usual = "as from a read beyond an input's end or of uninitialised memory"
    cause = f"because the kernel {read}" if read else usual
    texts = {"unwritten": "were never written", "nan": f"are NaN or infinite, {cause}"}
    findings = []
    for (kind, text), mask in zip(texts.items(), (unwritten, missing & ~unwritten), strict=True):
        if mask.any():
            where = diagnose.where(problem, mask)
            if kind == "unwritten" and mask.all():
                where = "nothing was: does launch start the kernel, and does the kernel store?"
            first = _at(name, np.argwhere(mask)[0]) + (f" ({where})" if where else "")
            message = f"{int(mask.sum())} of {y.size} elements of {name} {text}, the first {first}"
            findings.append(Finding(kind, message))
    return findings


def _reads(bench: Bench, x: Array, weight: Array, got: Array) -> str:
    """How the NaN elements of ``got`` come of the output's old contents, if they do: over numbers they are none."""
    nan, name = np.isnan(got), bench.problem.names[2]
    if not nan.any() or bench.seen_unwritten(nan):
        return ""
    again = bench.result(np.full(got.shape, _FILL))[nan]
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
    if wrong.any():
        hint = diagnose.explain(problem, x, weight, got.astype(np.float64), expected)
        findings.append(Finding("wrong", tally(problem, wrong, got, expected, "elements are wrong", hint)))
    return findings


def precision(
    problem: Problem, x: Array, weight: Array, got: Array, precision: str, algorithm: str | None = None
) -> list[Finding]:
    """What is not precise in an output ``got`` on normals, if it is right on integers."""
    if missing := holes(problem, got):
        return missing
    expected = arrays.full(problem, x, weight)
    magnitude = arrays.full(problem, codes.magnitudes(x), codes.magnitudes(weight))
    minimal = reference.applies(problem, algorithm)
    transformed = reference.transformed_magnitude(problem, x, weight) if minimal else None
    bound = reference.error_bound(problem, magnitude, expected, precision, transformed)
    error = np.abs(got - expected)
    whose, usual = _BOUNDS.get(problem.input_dtype) or _BOUNDS[precision]
    if (beyond := error > bound).any():
        worst = float(np.max(error[bound > 0] / bound[bound > 0], initial=0.0))
        text, bound_of = "elements are right on integers but not precise", algorithm if minimal else whose
        hint = f"up to {worst:.3g} times the {bound_of} bound, as from {usual} or a dropped term"
        return [Finding("imprecise", tally(problem, beyond, got, expected, text, hint))]
    allowed = reference.typical_error(problem, x, weight, magnitude, expected, precision, transformed)
    if (found := reference.root_mean_square(error)) <= allowed:
        return []
    why = f"{found / allowed:.2f} times what {whose} arithmetic may give, as from {usual}"
    text = f"the elements are right on integers, but off by {found:.3g} (root mean square) on normals ({why})"
    return [Finding("imprecise", text)]


def tally(
    problem: Problem, which: Array, got: Array, expected: Array, text: str, hint: str = "", places: Any = None
) -> str:
    """Of how many elements something is true, those of the mask ``which``, with the first three; ``places`` are the
    indices of elements that are samples."""
    places = np.argwhere(which) if places is None else np.transpose(places)[which]
    first = zip(places[:3], got[which], expected[which], strict=False)
    name = problem.names[2]
    shown = "; ".join(f"{_at(name, place)} = {value:.9g}, expected {right:.9g}" for place, value, right in first)
    return f"{len(places)} of {got.size} {text}: {shown}" + (f" ({hint})" if hint else "")


def _at(name: str, index: Iterable[Any]) -> str:
    return f"{name}[{', '.join(map(str, index))}]"
