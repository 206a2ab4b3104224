"""What wrong values say: one small mistake for each kind of sentence, computed by NumPy."""

import numpy as np
import pytest

from common.catalog import inputs, reference
from common.catalog.problems import RAGGED, Conv2d, Conv3d, Gemm, on_ladder
from common.explain import diagnose

GEMM = Gemm(M=20, N=24, K=12)
PLANE = Conv2d(N=2, C=3, H=9, W=10, K=4, R=3, S=2)
SPACE = Conv3d(N=1, C=3, D=3, H=5, W=6, K=4, T=2, R=3, S=2, stride_h=2, pad_h=1, pad_w=1, dilation_d=2)
APART = Conv3d(N=2, C=3, D=1, H=9, W=6, K=4, T=1, R=2, S=2, pad_h=1, dilation_h=2)
DGRAD, WGRAD = on_ladder("dgrad", SPACE), on_ladder("wgrad", SPACE)


def said(problem, compute, seed=0):
    """The sentence on a kernel that computes ``compute(x, weight)``."""
    x, weight = inputs.integers(problem, seed)
    got = np.asarray(compute(x.astype(np.float64), weight.astype(np.float64)), np.float64)
    return diagnose.explain(problem, x, weight, got, right(problem)(x, weight))


def right(problem):
    return lambda x, weight: reference.full(problem, x, weight)


def moved(problem, **other):
    """The right output read at other letters, such as ``n=lambda e: e["n"] // 4 * 4``."""

    def compute(x, weight):
        y = reference.full(problem, x, weight)
        names = diagnose.axes_of(problem)[2]
        env = dict(zip(names, np.indices(y.shape), strict=True))
        return y[tuple(other[u](env) if u in other else env[u] for u in names)]

    return compute


def everywhere(problem, x, weight):
    """Every element of the output."""
    positions = tuple(np.indices(problem.output_shape).reshape(len(problem.output_shape), -1))
    return diagnose.Evidence(problem, x, weight, positions, np.zeros(len(positions[0])), None)


def replaced(problem, operand, **changes):
    """Sums in which an operand is read at other letters."""

    def compute(x, weight):
        every = everywhere(problem, x, weight)
        other = every.env | {u: value(every.env) for u, value in changes.items()}
        return every.terms(**{f"{operand}_env": other}).sum(axis=1).reshape(problem.output_shape)

    return compute


def weighted(problem, change):
    """Sums after ``change`` of the terms, of shape (elements, terms), given the letters."""

    def compute(x, weight):
        every = everywhere(problem, x, weight)
        return change(every.table, every.env).sum(axis=1).reshape(problem.output_shape)

    return compute


# --- the model of a right kernel ---


@pytest.mark.parametrize("problem", [problem for each in RAGGED.values() for problem in each], ids=str)
def test_terms_add_up_to_the_oracle(problem):
    x, weight = inputs.integers(problem, 3)
    np.testing.assert_array_equal(weighted(problem, lambda table, e: table)(x, weight), right(problem)(x, weight))


# --- elements ---


@pytest.mark.parametrize(
    ("problem", "changes", "text"),
    [
        (GEMM, {"n": lambda e: e["n"] // 4 * 4}, "c[m, n] holds what c[m, n // 4 * 4] should"),
        (GEMM, {"m": lambda e: np.minimum(e["m"] + 1, 19)}, "shifted: at m stands the value of m + 1"),
        (Gemm(M=8, N=8, K=5), {"m": lambda e: e["n"], "n": lambda e: e["m"]}, "transposed"),
        (PLANE, {"n": lambda e: e["n"] * 0}, "y[n, k, p, q] holds what y[0, k, p, q] should"),
    ],
)  # fmt: skip
def test_an_element_that_holds_another_s_value_is_told_whose(problem, changes, text):
    assert text in said(problem, moved(problem, **changes))


# --- terms ---


def keep(test, factor=0.0):
    return lambda table, e: np.where(test(e), table, factor * table)


@pytest.mark.parametrize(
    ("problem", "change", "text"),
    [
        (GEMM, keep(lambda e: e["k"] != 7), "the term k = 7 is missing"),
        (GEMM, keep(lambda e: e["k"] != 11), "the last term, k = K - 1, is left out"),
        (GEMM, keep(lambda e: e["k"] < 8), "the sum stops at k = 8: the last 4 terms are left out"),
        (GEMM, keep(lambda e: e["k"] == 11), "only the term k = 11 counts"),
        (GEMM, keep(lambda e: e["k"] >= 8), "only the terms k >= 8 count"),
        (GEMM, keep(lambda e: e["k"] != 0, 2), "the term k = 0 is counted twice"),
        (GEMM, keep(lambda e: (e["k"] < 5) | (e["k"] > 8)), "the terms 5 <= k <= 8 are missing"),
        (PLANE, keep(lambda e: (e["r"] != 1) | (e["s"] != 0) | (e["c"] != 2)), "the term gemm_k = 14 is missing"),
        (PLANE, keep(lambda e: (e["c"] != 1) | (e["p"] != 0)), "channel c = 1 is left out, only p = 0"),
        (PLANE, keep(lambda e: e["p"] + e["r"] < 7), "x at h >= 7 counts as 0"),
        (SPACE, keep(lambda e: e["t"] == 0), "the last filter tap, t = 1, is left out"),
        (DGRAD, keep(lambda e: e["r"] != 2), "the last filter tap, r = 2, is left out"),
        (DGRAD, keep(lambda e: e["k"] != 3), "filter k = 3 is left out"),
        (WGRAD, keep(lambda e: np.arange(WGRAD.reduction) // 5 != 1),
         "the terms gemm_k from 5 to 9 (a part of the sum) are missing"),
        (WGRAD, keep(lambda e: e["p"] != 2), "the term p = 2 is missing"),
    ],
)  # fmt: skip
def test_terms_missing_or_repeated_are_named(problem, change, text):
    assert text in said(problem, weighted(problem, change))


@pytest.mark.parametrize(
    ("problem", "operand", "changes", "text"),
    [
        (GEMM, "weight", {"k": lambda e: e["k"] + 1}, "the terms pair a[m, k - 1] with b[k, n]"),
        (GEMM, "x", {"m": lambda e: e["k"]}, "a is read with k in place of m"),
        (PLANE, "x", {"r": lambda e: e["s"]}, "x is read with s in place of r"),
        (PLANE, "weight", {"c": lambda e: e["c"] * 0}, "filt is read with 0 in place of c"),
        (SPACE, "x", {"stride_h": lambda e: 1}, "stride_h is taken as 1"),
        (SPACE, "x", {"pad_w": lambda e: 0}, "pad_w is taken as 0"),
        (SPACE, "x", {"dilation_d": lambda e: 1}, "dilation_d is taken as 1"),
        (SPACE, "x", {"pad_h": lambda e: 2}, "pad_h + 1 stands in place of pad_h"),
        (APART, "x", {"pad_h": lambda e: 2}, "pad_h + 1 stands in place of pad_h"),
        (DGRAD, "x", {"pad_h": lambda e: 2}, "pad_h + 1 stands in place of pad_h"),
        (WGRAD, "x", {"stride_h": lambda e: 1}, "stride_h is taken as 1"),
    ],
)  # fmt: skip
def test_a_letter_taken_for_another_is_named_with_its_operand(problem, operand, changes, text):
    assert text in said(problem, replaced(problem, operand, **changes))


def test_a_layout_taken_for_another_is_told():
    transposed = "b is read transposed, b[n, k] in place of b[k, n]"
    assert said(GEMM, lambda a, b: a @ b.reshape(GEMM.N, GEMM.K).T) == transposed
    order = "filt is read in KCTRS order, and it is stored KTRSC"
    moved = lambda filt: np.moveaxis(filt.reshape(4, 3, 2, 3, 2), 1, -1)  # noqa: E731
    assert said(SPACE, lambda x, filt: reference.full(SPACE, x, moved(filt))) == order


# --- values ---


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda y: -y, "the sign is flipped"),
        (lambda y: np.maximum(y, 0), "negative results are 0"),
        (lambda y: y * 0, "each is 0"),
        (lambda y: y * 2, "each is twice the right value"),
        (lambda y: np.clip(y, -127, 127), "the result is clipped to -127 to 127"),
        (lambda y: (y + 128) % 256 - 128, "the result is kept in 8 bits"),
    ],
)
def test_what_became_of_a_value_is_said(change, text):
    found = said(GEMM, lambda x, weight: change(x @ weight))
    assert found == text or found.startswith(f"{text},")


def test_noise_is_not_explained():
    for problem in (GEMM, PLANE):
        noise = np.random.default_rng(0).integers(-300, 300, problem.output_shape)
        assert said(problem, lambda x, weight, noise=noise: noise) == ""


# --- earlier launches ---


def test_what_an_output_keeps_of_an_earlier_launch():
    old, new = inputs.integers(GEMM, 0), inputs.integers(GEMM, 1)
    first, expected = right(GEMM)(*old), right(GEMM)(*new)

    def kept(got):
        return diagnose.kept(GEMM, old, new, first, got, expected)

    assert kept(first) == "they still hold the first launch's output"
    assert kept(new[0] @ old[1].astype(np.float64)) == "b is the first launch's"
    assert kept(old[0] @ new[1].astype(np.float64)) == "a is the first launch's"
    assert kept(expected + first).startswith("they hold the first launch's sums, too: what is added to is to be set")
    assert kept(expected + 1) == ""


# --- where ---


def region(problem, *index):
    wrong = np.zeros(problem.output_shape, np.bool_)
    wrong[index] = True
    return wrong


def test_where_names_indices():
    assert diagnose.where(GEMM, region(GEMM, slice(None), slice(3, None, 4))) == "only n % 4 = 3"
    halves = np.flatnonzero(np.arange(24) % 8 >= 4)
    assert diagnose.where(GEMM, region(GEMM, slice(None), halves)) == "only 4 <= n % 8 <= 7"
    assert diagnose.where(GEMM, region(GEMM, slice(2, 5), slice(16, None))) == (
        "only 2 <= m <= 4 and n >= 16, the last tile of 16"
    )


# --- gradients ---


@pytest.mark.parametrize(
    ("problem", "compute", "sentence"),
    [
        (DGRAD, lambda dy, filt: reference.full(DGRAD, dy, filt[:, ::-1, ::-1, ::-1]), "the filter is flipped: a"),
        (WGRAD, lambda x, dy: reference.full(WGRAD, x, dy)[:, ::-1, ::-1, ::-1], "the filter is flipped: dfilt"),
    ],
    ids=lambda v: "" if callable(v) else str(v),  # a function's text has an address, another in each worker
)  # fmt: skip
def test_a_mistake_in_a_gradient_is_told(problem, compute, sentence):
    assert said(problem, compute).startswith(sentence)


def test_filters_and_channels_of_a_gradient_that_change_places_are_told():
    square = on_ladder("wgrad", Conv3d(N=2, C=4, D=2, H=5, W=4, K=4, T=1, R=2, S=3))
    found = said(square, lambda x, dy: reference.full(square, x, dy).swapaxes(0, 4))
    assert found.startswith("transposed: k and c of dfilt are stored in each other's place")


def test_a_region_that_is_nearly_all_says_nothing():
    def compute(x, weight):
        y = right(GEMM)(x, weight)
        noise = np.random.default_rng(0).integers(50, 99, y.shape)
        noise[0, 0] = 0
        return y + noise

    assert said(GEMM, compute) == ""
