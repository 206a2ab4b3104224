"""What may be rounded, and how: right and wrong arithmetic on float16 and TF32 operands, emulated in NumPy."""

from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace

from common.catalog import inputs, reference
from common.catalog.problems import FLOAT16, LADDERS, RAGGED, Gemm, Hgemm, on_ladder
from common.check import check

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

    rules = replace(check.RULES, precision=precision)
    return check.check_bench(check.Bench(SimpleNamespace(launch=launch), problem), rules)


def on_normals(problem, compute, precision="fp32", seed=2):
    """What is said of normals alone."""
    x, weight = inputs.normals(problem, seed)
    got = np.asarray(compute(x, weight)).astype(problem.output_dtype)
    return check.precision(problem, x, weight, got, precision)


def cases(*tables):
    """Shape, precision and computation for each, at short and at long sums."""
    found = [
        pytest.param(kind(*extents), precision, compute, id=f"{kind.ladder}, {length}: {name}")
        for kind, precision, table in tables
        for name, compute in table.items()
        for length, extents in SHAPES.items()
    ]
    return pytest.mark.parametrize(("problem", "precision", "compute"), found)


@cases((Hgemm, "fp32", HALF_RIGHT), (Gemm, "tf32", TF32_RIGHT))
def test_sums_in_float32_of_inputs_rounded_to_the_nearest_are_right(problem, precision, compute):
    found = verdict(problem, compute, precision)
    assert found.right, found.findings


@cases((Hgemm, "fp32", HALF_WRONG), (Gemm, "tf32", TF32_WRONG))
def test_other_arithmetic_is_found(problem, precision, compute):
    assert verdict(problem, compute, precision).findings[0].kind in ("wrong", "imprecise")


def test_inputs_that_are_cut_off_show_on_average_where_no_element_does():
    for problem in (p for p in RAGGED["gemm"] if p.M * p.N * p.K > 100):
        for name in (name for name in TF32_WRONG if "cut off" in name):
            (finding,) = on_normals(problem, TF32_WRONG[name], "tf32")
            assert "as from inputs that are cut off" in finding.message, (problem, name)
        assert on_normals(problem, TF32_RIGHT["to the nearest"], "tf32") == []
        assert on_normals(problem, TF32_RIGHT["to the nearest"])[0].kind == "imprecise"  # as float32


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
