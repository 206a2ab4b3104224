"""The check's own parts: guarded arrays, sampling, descriptions. Whole wrong kernels are tried elsewhere."""

from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace

from common.catalog import inputs, reference
from common.catalog.problems import RAGGED, Conv2d, Gemm
from common.check import check, fullsize
from common.check.check import MARGIN

GEMM = Gemm(M=37, N=45, K=19)
SMALL = Gemm(M=3, N=4, K=2)

pytestmark = pytest.mark.usefixtures("traced")


def host(array):
    return np.array(array.copy_to_host())


def surroundings(array):
    """The flat memory that holds ``array`` and its margins."""
    return array.storage.data


def step(problem, change=lambda y: None, **extra):
    """A step that launches the oracle, then lets ``change`` spoil the output."""

    def launch(x, weight, y, *rest):
        right = reference.full(problem, host(x), host(weight)).astype(np.float32)
        change(right)
        y.copy_to_device(right)

    return SimpleNamespace(launch=launch, **extra)


def checked(module, problem, **options):
    return check.check_bench(check.Bench(module, problem), replace(check.RULES, **options))


def kinds(verdict):
    return [finding.kind for finding in verdict.findings]


# --- what a usual check reports ---


def trespassing(offset):
    def launch(a, b, c):
        c.copy_to_device(reference.full(SMALL, host(a), host(b)).astype(np.float32))
        surroundings(c)[MARGIN + offset] = 5.0

    return SimpleNamespace(launch=launch)


def test_a_write_past_the_end_of_the_output_is_reported():
    (finding,) = checked(trespassing(12), SMALL).findings
    assert finding.kind == "wrote_outside"
    assert "1 elements written outside c: 1 past its end" in finding.message


def test_a_modified_input_is_named_with_its_first_element():
    def launch(a, b, c):
        c.copy_to_device(reference.full(SMALL, host(a), host(b)).astype(np.float32))
        changed = host(b)
        changed[1, 2:] = 99
        b.copy_to_device(changed)

    (finding,) = checked(SimpleNamespace(launch=launch), SMALL).findings
    assert finding.kind == "modified_input"
    assert "2 elements of the input b were changed, the first at b[1, 2]" in finding.message


def test_counts_indices_and_values_of_wrong_elements():
    def spoil(y):
        y[36, 40:] += 1

    (finding,) = checked(step(GEMM, spoil), GEMM).findings
    x, weight = inputs.integers(GEMM, 0)
    expected = reference.full(GEMM, x, weight)
    assert finding.kind == "wrong"
    assert finding.message.startswith("5 of 1665 elements are wrong: ")
    for n in (40, 41, 42):  # the first three
        assert f"c[36, {n}] = {expected[36, n] + 1:.9g}, expected {expected[36, n]:.9g}" in finding.message
    assert "c[36, 43]" not in finding.message
    assert "(each is 1 too large, only m = 36, the last and n >= 40, the last tile of 8)" in finding.message


def test_unwritten_and_nan_elements_are_told_apart():
    def launch(a, b, c):
        y = reference.full(SMALL, host(a), host(b)).astype(np.float32)
        y[0, 0] = np.nan
        y[2] = host(c)[2]
        c.copy_to_device(y)

    findings = checked(SimpleNamespace(launch=launch), SMALL).findings
    assert [finding.kind for finding in findings] == ["unwritten", "nan"]
    assert "4 of 12 elements of c were never written, the first c[2, 0] (only m = 2, the last)" in findings[0].message
    assert "1 of 12 elements of c are NaN" in findings[1].message


def test_weights_kept_from_the_first_prepare_are_named():
    kept = []

    def prepare(b, problem):
        kept.append(host(b))
        return kept[0]

    def launch(a, b, c):
        c.copy_to_device(reference.full(SMALL, host(a), b).astype(np.float32))

    (finding,) = checked(SimpleNamespace(prepare=prepare, launch=launch), SMALL).findings
    assert finding.kind == "stale"
    assert "b is the first launch's" in finding.message


def spoilt_at(launch, launches):
    """What makes a step's output wrong at this launch alone; it notes each launch."""

    def spoil(y):
        launches.append(1)
        y[0, 0] += len(launches) == launch

    return spoil


@pytest.mark.parametrize(
    ("launch", "told"), [(1, ["unstable", "wrong"]), (2, ["unstable"]), (3, ["unstable"]), (4, ["unstable"])]
)
def test_a_launch_that_differs_from_the_one_before_is_told(launch, told):
    """Of the four on integers; the first is compared with the oracle alone."""
    assert kinds(checked(step(SMALL, spoilt_at(launch, [])), SMALL)) == told


# --- what check_once() reports ---


def once(module, special):
    return kinds(check.check_once(check.Bench(module, SMALL), replace(check.RULES, special=special)))


def test_operands_of_a_kind_are_launched_on_besides_and_normals_alone():
    launches = []
    right = step(SMALL, launches.append)
    assert [once(right, special) for special in ("", *inputs.SPECIAL, inputs.NORMALS)] == [[]] * (
        2 + len(inputs.SPECIAL)
    )
    assert len(launches) == 1 + 2 * len(inputs.SPECIAL) + 1
    launches.clear()

    def spoil(y):  # all but the first launch: one on operands of the kind, and two that must agree
        launches.append(1)
        y[0, 0] += len(launches) % 4 != 1

    assert [once(step(SMALL, spoil), special) for special in inputs.SPECIAL] == [["wrong"]] * len(inputs.SPECIAL)
    assert once(half(SMALL), inputs.NORMALS) == ["imprecise"]


# --- what check_thoroughly() reports ---

SIX = Gemm(M=4, N=5, K=6)
CHECKS = 3  # of the usual check: integers, others, normals


def thoroughly(module, problem=SIX, **options):
    return check.check_thoroughly(lambda: check.Bench(module, problem), replace(check.RULES, **options))


def test_a_right_step_is_right_after_every_change():
    verdict = thoroughly(step(SIX))
    assert verdict.right
    x, weight = inputs.integers(SIX, 0)
    changes = 1 + sum(len(list(check._one_by_one(part, 0))) + 1 for part in (x, weight))
    loads = CHECKS + len(inputs.SPECIAL) + changes + 1
    assert verdict.elements_compared == (loads + check.RELAUNCHES) * 4 * 5


def kept_from(call):
    """A ``prepare`` that gives from this call on what the one before got."""
    got = []

    def prepare(weight, problem):
        got.append(host(weight))
        return got[min(len(got), call - 1) - 1]

    return prepare


def kept_by_values():
    """A ``prepare`` that knows weights by their values, in whatever order."""
    held = {}
    return lambda weight, problem: held.setdefault(np.sort(host(weight), None).tobytes(), host(weight))


FIRST_AGAIN = CHECKS + len(inputs.SPECIAL) + 1


@pytest.mark.parametrize(("prepare", "said"), [
    (kept_from(FIRST_AGAIN), "back on the first inputs: "),
    (kept_from(FIRST_AGAIN + 1), "after one element of the weights was changed: "),
    (kept_by_values(), "after the weights were put in another order: "),
])  # fmt: skip
def test_stale_weights_are_told_with_what_was_changed(prepare, said):
    def launch(x, weight, y):
        y.copy_to_device(reference.full(SIX, host(x), weight).astype(np.float32))

    verdict = thoroughly(SimpleNamespace(launch=launch, prepare=prepare), repeats=1)
    assert kinds(verdict) == ["stale"]
    assert verdict.findings[0].message.startswith(said)
    assert "first launch's output" not in verdict.findings[0].message  # it was computed, from the weights before


def test_a_launch_that_differs_at_last_is_told_with_its_number():
    launch, launches = 2, []
    thoroughly(step(SIX, spoilt_at(0, launches)))
    last = len(launches) - check.RELAUNCHES + launch
    verdict = thoroughly(step(SIX, spoilt_at(last, [])))
    assert kinds(verdict) == ["unstable"]
    assert verdict.findings[0].message.startswith(f"at launch {launch} on the same arrays: 1 of 20 elements")


# --- precision ---


def half(problem):
    """A step that multiplies in float16 where that is exact for the small integers, not for normals."""

    def launch(x, weight, y, *rest):
        operands = (host(array).astype(np.float16).astype(np.float32) for array in (x, weight))
        y.copy_to_device(reference.full(problem, *operands).astype(np.float32))

    return SimpleNamespace(launch=launch)


@pytest.mark.parametrize("problem", [GEMM, RAGGED["conv3d"][0]], ids=str)
def test_half_precision_passes_on_integers_and_not_on_normals(problem):
    (finding,) = checked(half(problem), problem).findings
    assert finding.kind == "imprecise"
    x, weight = inputs.normals(problem, 2)
    rounded = (array.astype(np.float16).astype(np.float32) for array in (x, weight))
    error = np.abs(reference.full(problem, *rounded).astype(np.float32) - reference.full(problem, x, weight))
    bound = reference.error_bound(problem, reference.full(problem, np.abs(x), np.abs(weight)))
    times = error[bound > 0] / bound[bound > 0]
    assert f"(up to {times.max():.3g} times the float32 bound" in finding.message
    beyond = int(np.count_nonzero(error > bound))
    assert finding.message.startswith(f"{beyond} of {error.size} elements are right on integers but not precise: ")
    assert finding.message.count(", expected ") == min(3, beyond)


# --- sampled ---


BATCH = Conv2d(N=40, C=1, H=9, W=9, K=4, R=2, S=2)


def sampled(module, problem, samples):
    operands = fullsize.Operands(problem, 0, samples=samples)
    return fullsize.verify(check.Bench(module, problem, beside=operands), operands)


def test_sampling_finds_one_unwritten_element_anywhere():
    def launch(x, filt, y):
        right = reference.full(BATCH, host(x), host(filt)).astype(np.float32)
        right[17, 1, 3, 5] = host(y)[17, 1, 3, 5]
        y.copy_to_device(right)

    (finding,) = sampled(SimpleNamespace(launch=launch), BATCH, samples=1).findings
    assert finding.kind == "unwritten"
    assert "1 of 10240 elements of y were never written, the first y[17, 1, 3, 5]" in finding.message


def test_sampling_compares_every_corner():
    def spoil(y):
        y[-1, -1, -1, -1] += 1

    (finding,) = sampled(step(BATCH, spoil), BATCH, samples=1).findings
    assert finding.kind == "wrong"
    assert finding.message.startswith("1 of 17 sampled elements are wrong: y[39, 3, 7, 7]")
