"""What may be rounded, and how: right and wrong arithmetic on float16 and TF32 operands, emulated in NumPy."""

from types import SimpleNamespace

import numpy as np
import pytest

from common.catalog import reference
from common.catalog.problems import FLOAT16, LADDERS, RAGGED, Gemm, Hgemm, on_ladder
from common.check import check, findings, inputs

pytestmark = pytest.mark.usefixtures("traced")

SHAPES = {"short sums": (37, 45, 19), "long sums": (24, 24, 1000)}


def kept(bits, cut=False):
    """Rounds float32 numbers to so many significant bits: to the nearest, ties to even, or cut off."""

    def change(values):
        fraction, exponent = np.frexp(np.asarray(values, np.float64))
        whole = (np.trunc if cut else np.rint)(fraction * 2.0**bits)
        return np.ldexp(whole / 2.0**bits, exponent).astype(np.float32)

    return change


def in_float32(x, weight):
    total = np.zeros((len(x), weight.shape[1]), np.float32)
    for k in range(x.shape[1]):
        total = total + np.float32(x[:, k, None]) * np.float32(weight[None, k, :])
    return total


def in_float16(x, weight):
    total = np.zeros((len(x), weight.shape[1]), np.float16)
    for k in range(x.shape[1]):
        total = (total + x[:, k, None] * weight[None, k, :]).astype(np.float16)
    return total


def in_tiles_of_float16(x, weight):
    """Sums of 8 terms in float32, each put away in float16."""
    parts = [in_float32(x[:, k : k + 8], weight[k : k + 8]).astype(np.float16) for k in range(0, x.shape[1], 8)]
    return sum(part.astype(np.float32) for part in parts)


def towards_zero(sums):
    """Float16 numbers, cut off."""
    rounded = sums.astype(np.float16)
    beyond = np.abs(rounded.astype(np.float32)) > np.abs(sums)
    return np.where(beyond, np.nextafter(rounded, np.float16(0)), rounded)


def cutting_adder(x, weight):
    """Sums of 8 terms as tensor cores make them: each term is cut off at the last place of the largest."""
    total = np.zeros((len(x), weight.shape[1]), np.float64)
    for k in range(0, x.shape[1], 8):
        terms = np.float64(x[:, k : k + 8, None]) * np.float64(weight[None, k : k + 8, :])
        terms = np.concatenate([total[:, None], terms], axis=1)
        _, exponent = np.frexp(np.abs(terms).max(axis=1, keepdims=True))
        unit = np.ldexp(1.0, exponent - 24)
        total = kept(24, cut=True)((np.trunc(terms / unit) * unit).sum(axis=1)).astype(np.float64)
    return total.astype(np.float32)


HALF_RIGHT = {
    "in float32": in_float32,
    "backwards": lambda x, w: in_float32(x[:, ::-1], w[::-1]),
    "on tensor cores": cutting_adder,
}
HALF_WRONG = {
    "sums in float16": in_float16,
    "sums of tiles in float16": in_tiles_of_float16,
    "a result that is cut off": lambda x, w: towards_zero(in_float32(x, w)),
    "a result rounded twice": lambda x, w: kept(12)(in_float32(x, w)),
    "a result by way of bfloat16": lambda x, w: kept(8)(in_float32(x, w)),
    "inputs in bfloat16": lambda x, w: in_float32(kept(8)(x), kept(8)(w)),
    "a lost k": lambda x, w: in_float32(x[:, :-1], w[:-1]),
}
TF32_RIGHT = {
    "to the nearest": lambda x, w: in_float32(kept(11)(x), kept(11)(w)),
    "on tensor cores": lambda x, w: cutting_adder(kept(11)(x), kept(11)(w)),
    "weights not rounded": lambda x, w: in_float32(kept(11)(x), w),
    "not rounded at all": in_float32,
}
TF32_WRONG = {
    "both inputs cut off": lambda x, w: in_float32(kept(11, cut=True)(x), kept(11, cut=True)(w)),
    "the input cut off": lambda x, w: in_float32(kept(11, cut=True)(x), kept(11)(w)),
    "the weights cut off": lambda x, w: in_float32(kept(11)(x), kept(11, cut=True)(w)),
    "inputs in bfloat16": lambda x, w: in_float32(kept(8)(x), kept(8)(w)),
    "weights in bfloat16": lambda x, w: in_float32(kept(11)(x), kept(8)(w)),
    "a lost k": lambda x, w: in_float32(kept(11)(x[:, :-1]), kept(11)(w[:-1])),
}


def verdict(problem, compute, precision="fp32"):
    """The check's verdict on a step that computes so."""

    def launch(x, weight, y):
        x, weight, target = (np.array(array.copy_to_host()) for array in (x, weight, y))
        y.copy_to_device(np.asarray(compute(x, weight)).astype(target.dtype))

    return check.check_bench(check.Bench(SimpleNamespace(launch=launch), problem), precision=precision)


def on_normals(problem, compute, precision="fp32", seed=2):
    """What is said of normals alone."""
    x, weight = inputs.normals(problem, seed)
    got = np.asarray(compute(x, weight)).astype(problem.output_dtype)
    return findings.precision(problem, x, weight, got, precision, exact=True)


def shapes(kind):
    return pytest.mark.parametrize("problem", [kind(*extents) for extents in SHAPES.values()], ids=SHAPES)


def ways(table):
    return pytest.mark.parametrize("compute", table.values(), ids=table)


# --- float16 ---


@shapes(Hgemm)
@ways(HALF_RIGHT)
def test_float32_sums_rounded_once_are_right(problem, compute):
    found = verdict(problem, compute)
    assert found.right, found.findings


@ways(HALF_WRONG)
def test_other_arithmetic_is_found(compute):
    found = verdict(Hgemm(*SHAPES["short sums"]), compute)
    exact = compute is HALF_WRONG["inputs in bfloat16"]  # integers up to 255 are numbers of bfloat16
    assert [finding.kind for finding in found.findings] == ["imprecise" if exact else "wrong"], found.findings


# --- TF32 ---


@shapes(Gemm)
@ways(TF32_RIGHT)
def test_tf32_inputs_rounded_to_the_nearest_are_right(problem, compute):
    found = verdict(problem, compute, "tf32")
    assert found.right, found.findings


@shapes(Gemm)
@ways(TF32_WRONG)
def test_worse_inputs_than_tf32_are_wrong(problem, compute):
    found = verdict(problem, compute, "tf32")
    assert found.findings[0].kind in ("wrong", "imprecise"), found.findings


@pytest.mark.parametrize("problem", [p for p in RAGGED["gemm"] if p.M * p.N * p.K > 100], ids=str)
@ways({name: compute for name, compute in TF32_WRONG.items() if "cut off" in name})
def test_inputs_that_are_cut_off_show_on_average_where_no_element_does(problem, compute):
    (finding,) = on_normals(problem, compute, "tf32")
    assert "as from inputs that are cut off" in finding.message
    assert on_normals(problem, TF32_RIGHT["to the nearest"], "tf32") == []


@shapes(Gemm)
def test_tf32_that_calls_itself_fp32_is_imprecise(problem):
    assert on_normals(problem, TF32_RIGHT["to the nearest"], "tf32") == []
    (finding,) = on_normals(problem, TF32_RIGHT["to the nearest"])
    assert (finding.kind, "times the float32 bound" in finding.message) == ("imprecise", True)


def test_nearest_tf32_keeps_eleven_bits():
    values = np.concatenate([inputs.normals(Gemm(40, 40, 40), 0)[0].reshape(-1), [2048.0, -3.0, 0.0, 1 + 2.0**-11]])
    values = values.astype(np.float32)
    np.testing.assert_array_equal(reference.nearest_tf32(values), kept(11)(values))


# --- operands ---


HALF = [
    *(p for ladder in LADDERS for p in RAGGED[ladder] if p.output_dtype == FLOAT16),
    *(on_ladder("hgemm", Gemm(3, 4, k)) for k in (256, 4096, 8192, 65_000)),
]


@pytest.mark.parametrize("kind", [None, *inputs.SPECIAL])
@pytest.mark.parametrize("problem", HALF, ids=str)
def test_sums_of_float16_operands_are_exact_in_float32_and_do_not_overflow(problem, kind):
    x, weight = inputs.special(kind, problem, 3) if kind else inputs.integers(problem, 3)
    assert (x.dtype, weight.dtype) == (FLOAT16, FLOAT16)
    assert np.isfinite(x).all()
    assert np.isfinite(weight).all()
    sums, most = reference.full(problem, x, weight), reference.full(problem, np.abs(x), np.abs(weight))
    assert (sums == sums.astype(np.float32)).all()
    assert np.isfinite(reference.stored(problem, most)).all()
    unit = {"tiny": 2.0**-24, "mixed": 0.0}.get(kind, 1)
    if unit:  # those of mixed magnitudes have a power of two each
        assert (most % unit == 0).all()
        assert (most <= 2**24 * unit).all()
    if kind is None:
        assert (x != 0).all()
        assert (weight != 0).all()
