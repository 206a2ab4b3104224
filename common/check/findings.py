"""What is wrong with an output, each finding named for what it is, with the first few elements and a hint."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from common.catalog import catalog, codes, reference
from common.catalog.problems import FLOAT16, UINT8, UINT16, Problem
from common.check import arrays
from common.explain import diagnose, letters
from common.run.messages import Finding

if TYPE_CHECKING:
    from common.check.check import Bench

Array = NDArray[Any]

KINDS = (
    "wrote_outside", "modified_input", "unwritten", "nan", "wrong", "imprecise", "stale", "unstable", "unsound",
    "refused",
)  # fmt: skip
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
    "bfloat16": (
        "bfloat16", "sums in bfloat16, a sum rounded twice or cut off",
        "sums rounded once to bfloat16", "a sum rounded twice",
    ),
    "e4m3": (
        "e4m3", "sums in float16",
        "sums that keep 14 bits", "sums in float16",
    ),
}  # fmt: skip
_ADDED = (
    "each launch adds to the sums of the one before: launch is to set them to zero, in the output or in a workspace"
)
_RACE = "a race, such as a missing barrier, or a read of memory that nothing wrote"
_FILL = 0.5  # no sum of integers: an output filled with it shows whether the kernel reads it


def run(bench: Bench) -> Array:
    bench.run()
    return arrays.numbers(bench.y.get())


def compare_sampled(
    problem: Problem,
    positions: reference.Indices,
    got: Array,
    expected: Array,
) -> list[Finding]:
    """Sampled elements that are wrong: nothing, or one finding."""
    wrong = np.flatnonzero(got != expected)
    if not len(wrong):
        return []
    at = tuple(axis[wrong] for axis in positions)
    total, text = len(expected), "sampled elements are wrong"
    return [Finding("wrong", _tally(problem, np.transpose(at), got[wrong], expected[wrong], total, text, ""))]


def sample_positions(problem: Problem, samples: int, seed: int) -> reference.Indices:
    """Random output positions over the whole batch, plus every corner."""
    rng = np.random.default_rng(seed)
    shape = problem.output_shape
    drawn = [rng.integers(0, extent, samples) for extent in shape]
    corners = np.indices((2,) * len(shape)).reshape(len(shape), -1)
    ends = [corner * (extent - 1) for corner, extent in zip(corners, shape, strict=True)]
    return tuple(np.concatenate(pair) for pair in zip(drawn, ends, strict=True))


def disagreement(
    bench: Bench, earlier: Array, expected: Array, repeats: int, over: Array | None = None
) -> list[Finding]:
    """Do more launches on the same operands give what ``earlier`` is, bit for bit?

    Before each, the output is blank, or holds ``over``.
    """
    for _ in range(repeats - 1):
        if over is None:
            bench.y.blank()
        else:
            bench.y.set(over)
        again = run(bench)
        count = int(np.count_nonzero(arrays.bits(again) != arrays.bits(earlier)))
        if count:
            text = f"{count} of {earlier.size} elements differ between launches on equal inputs"
            sums = np.array_equal(again.astype(np.float64) - earlier, expected)
            return [Finding("unstable", f"{text}: {_ADDED if sums else _RACE}")]
    return []


def trespass(bench: Bench, x: Array, weight: Array) -> list[Finding]:
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


def holes(problem: Problem, y: Array, read: str = "") -> list[Finding]:
    """Unwritten, NaN and infinite elements of y (in its own shape). ``read``: how the kernel takes what y held
    before, if it does."""
    name = _output_name(problem)
    flat = y.reshape(-1)
    missing = np.flatnonzero(arrays.missing(flat))
    if not len(missing):
        return []
    # a sum may keep the payload of the NaN it started from
    unwritten = (arrays.bits(flat[missing]) == arrays.pattern(flat.dtype)) & (not read)
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
            region = letters.where(problem, mask.reshape(y.shape))
            if kind == "unwritten" and len(indices) == flat.size:
                region = "nothing was: does launch start the kernel, and does the kernel store?"
            first = _at(name, np.unravel_index(indices[0], y.shape))
            message = f"{len(indices)} of {flat.size} elements of {name} {text}, the first {first}"
            findings.append(Finding(kind, message + (f" ({region})" if region else "")))
    return findings


def _reads(bench: Bench, x: Array, weight: Array, got: Array) -> str:
    """How the NaN elements of ``got`` come of the output's old contents, if they do: over numbers they are none."""
    missing = np.isnan(got)
    if not missing.any():
        return ""
    bench.y.set(np.full(got.shape, _FILL))
    again = run(bench)[missing]
    if not (again != _FILL).any() or not np.isfinite(again).all():
        return ""
    sums = arrays.full(bench.problem, x, weight)[missing]
    if np.array_equal(again, reference.stored(bench.problem, sums + _FILL)):
        return "adds to what {0} held before: it must assign"
    if (again != _FILL).all():
        return "reads {0}, which holds nothing yet: it must assign, without a term of {0}, as 0 times NaN is NaN"
    return ""


def compare(bench: Bench, x: Array, weight: Array, got: Array, expected: Array) -> list[Finding]:
    problem = bench.problem
    findings = holes(problem, got, _reads(bench, x, weight, got))
    wrong = (got != expected) & ~arrays.missing(got)
    if not wrong.any():
        return findings
    hint = diagnose.explain(problem, x, weight, got.astype(np.float64), expected)
    places = np.argwhere(wrong)
    text = _tally(problem, places, got[wrong], expected[wrong], got.size, "elements are wrong", hint)
    return [*findings, Finding("wrong", text)]


def precision(
    problem: Problem, x: Array, weight: Array, got: Array, precision: str, exact: bool, algorithm: str | None = None
) -> list[Finding]:
    missing = holes(problem, got)
    if missing:
        return missing
    expected = arrays.full(problem, x, weight)
    magnitude = arrays.full(problem, codes.magnitudes(x), codes.magnitudes(weight))
    transformed = (
        reference.transformed_magnitude(problem, x, weight) if reference.applies(problem, algorithm) else None
    )
    bound = reference.error_bound(problem, magnitude, expected, precision, transformed)
    error = np.abs(got - expected)
    beyond = error > bound
    bounded = {FLOAT16: "float16", UINT16: "bfloat16", UINT8: "e4m3"}.get(problem.input_dtype, precision)
    name, usual, typical, cause = _BOUNDS[bounded]
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


def stale(
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
