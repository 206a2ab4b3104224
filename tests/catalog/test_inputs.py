"""Operands: exact where exactness is promised, reproducible, and never zero."""

import numpy as np
import pytest
from sampling import some

from common.catalog import inputs, reference
from common.catalog.problems import RAGGED, Conv2d, Gemm, Hgemm, Wgrad, on_ladder

SMALL = [
    *(p for ladder in ("gemm", "conv2d", "conv3d", "dgrad", "wgrad") for p in RAGGED[ladder]),
    Gemm(M=3, N=3, K=4096),
    Gemm(M=2, N=2, K=300_000),
    Wgrad(N=200, C=1, D=1, H=33, W=35, K=2, T=1, R=2, S=2, pad_h=1),  # of 231,200 terms
]


@pytest.mark.parametrize("problem", SMALL, ids=str)
def test_integers_are_whole_and_never_zero(problem):
    x, weight = inputs.integers(problem, 0)
    assert x.shape == problem.input_shape
    assert weight.shape == problem.weight_shape
    for array in (x, weight):
        assert array.dtype == np.float32
        assert (array == np.round(array)).all()
        assert (array != 0).all()
    # exact in float32 in any order: no partial sum can exceed the sum of all magnitudes
    assert float(np.abs(x).max()) * float(np.abs(weight).max()) * problem.reduction <= 2**24


@pytest.mark.parametrize("kind", inputs.SPECIAL)
@pytest.mark.parametrize("problem", some(SMALL, 3, 2), ids=str)
def test_sums_of_special_operands_are_exact_in_float32_in_any_order(problem, kind):
    x, weight = inputs.special(kind, problem, 5)
    right = reference.full(problem, x, weight)
    most = reference.full(problem, np.abs(x), np.abs(weight))
    assert (right == right.astype(np.float32)).all()
    if kind != "mixed":  # whose every sum has a power of two of its own
        unit = 2.0**-90 if kind == "tiny" else 1
        assert (most % unit == 0).all()
        assert (most <= 2**24 * unit).all()


@pytest.mark.parametrize("ladder", ["gemm", "igemm"])
def test_some_rows_are_zero_but_for_their_end_and_tiny_sums_lie_far_below_noise(ladder):
    problem = on_ladder(ladder, Gemm(M=12, N=12, K=40))
    x, weight = inputs.special("zeros", problem, 5)
    for rows in (x, weight.T):
        assert (rows[[2, 10], -1] != 0).all()
        assert not rows[[2, 10], :-1].any()
        assert rows[:, :8].any(axis=1).sum() == 7  # but for those two, and every fourth
    if ladder == "gemm":
        sums = reference.full(problem, *inputs.special("tiny", problem, 5))
        assert (np.abs(sums[sums != 0]) < 1e-20).all()
        assert (np.abs(sums[sums != 0]) > 1e-30).all()


@pytest.mark.parametrize("draw", [inputs.integers, inputs.normals])
def test_a_seed_gives_the_same_operands_and_another_seed_others(draw):
    problem = Conv2d(N=2, C=3, H=8, W=9, K=4, R=3, S=2)
    for same, again, other in zip(draw(problem, 5), draw(problem, 5), draw(problem, 6), strict=True):
        np.testing.assert_array_equal(same, again)
        assert (same != other).mean() > 0.5


def test_a_large_array_repeats_what_was_drawn_and_no_row_equals_another(monkeypatch):
    monkeypatch.setattr(inputs, "POOL", 997)
    for draw in (inputs.integers, inputs.normals):
        for x in draw(Hgemm(M=64, N=64, K=64), 0):
            assert len(np.unique(x, axis=0)) == len(np.unique(x, axis=1).T) == 64
            np.testing.assert_array_equal(np.abs(x.flat[997:]), np.abs(x.flat[:-997]))


def test_of_every_four_weights_the_two_largest_are_kept_and_of_equals_the_first():
    column = np.array([1, -3, 2, 2, 5, 5, -5, 5, 0, 0, 1, 0, 4], np.float16)
    kept = [0, -3, 2, 0, 5, 5, 0, 0, 0, 0, 1, 0, 4]
    np.testing.assert_array_equal(inputs.pruned(column[:, None], reference.PRUNED)[:, 0], kept)
