"""The oracle against a second one in plain Python loops, and the error bound from both sides."""

import itertools

import numpy as np
import pytest
import shapes
from hypothesis import given
from hypothesis import strategies as st

from common.catalog import inputs, reference
from common.catalog.problems import RAGGED, Conv2d, Dgrad, Gemm, Wgrad

ALL_RAGGED = [problem for shapes in RAGGED.values() for problem in shapes]


def loops(problem, x, weight):
    """Every output from the definition, element by element."""
    if isinstance(problem, Dgrad | Wgrad):
        return given_back(problem, x, weight)
    y = np.zeros(problem.output_shape)
    for place in itertools.product(*map(range, problem.output_shape)):
        total = 0.0
        if isinstance(problem, Gemm):
            m, n = place
            for k in range(problem.K):
                total += float(x[m, k]) * float(weight[k, n])
        elif isinstance(problem, Conv2d):
            n, k, p, q = place
            for c in range(problem.C):
                for r in range(problem.R):
                    for s in range(problem.S):
                        total += float(x[n, c, p + r, q + s]) * float(weight[k, c, r, s])
        else:
            n, o, p, q, k = place
            for t in range(problem.T):
                d = o * problem.stride_d - problem.pad_d + t * problem.dilation_d
                for r in range(problem.R):
                    h = p * problem.stride_h - problem.pad_h + r * problem.dilation_h
                    for s in range(problem.S):
                        w = q * problem.stride_w - problem.pad_w + s * problem.dilation_w
                        if not (0 <= d < problem.D and 0 <= h < problem.H and 0 <= w < problem.W):
                            continue
                        for c in range(problem.C):
                            total += float(x[n, d, h, w, c]) * float(weight[k, t, r, s, c])
        y[place] = total
    return y


def given_back(problem, first, second):
    """Both gradients from the chain rule: each product of the forward sum gives its share back to its two factors."""
    result = np.zeros(problem.output_shape)
    for n, o, p, q, k in itertools.product(*map(range, problem.y_shape)):
        for t, r, s in itertools.product(*map(range, problem.filt_shape[1:4])):
            d = o * problem.stride_d - problem.pad_d + t * problem.dilation_d
            h = p * problem.stride_h - problem.pad_h + r * problem.dilation_h
            w = q * problem.stride_w - problem.pad_w + s * problem.dilation_w
            if not (0 <= d < problem.D and 0 <= h < problem.H and 0 <= w < problem.W):
                continue
            if isinstance(problem, Dgrad):
                result[n, d, h, w] += first[n, o, p, q, k].astype(np.float64) * second[k, t, r, s]
            else:
                result[k, t, r, s] += first[n, d, h, w].astype(np.float64) * second[n, o, p, q, k]
    return result


def draw_operands(problem, seed):
    rng = np.random.default_rng(seed)
    return tuple(
        rng.integers(-9, 10, shape).astype(np.float32) for shape in (problem.input_shape, problem.weight_shape)
    )


@given(
    problem=st.one_of(shapes.gemm, shapes.conv2d, shapes.conv3d, shapes.dgrad, shapes.wgrad),
    seed=st.integers(0, 2**32 - 1),
)
def test_full_equals_the_definition(problem, seed):
    x, weight = draw_operands(problem, seed)
    got = reference.full(problem, x, weight)
    assert got.dtype == np.float64
    np.testing.assert_array_equal(got, loops(problem, x, weight))


# --- the error bound ---


def terms(problem, seed):
    """Products to be summed, shape (outputs, reduction), and how far a sum of them may be off."""
    x, weight = inputs.normals(problem, seed)
    products = x[:, None, :] * weight.T[None, :, :]  # rounded to float32, as in a kernel without FMA
    exact = reference.full(problem, x, weight)
    bound = reference.error_bound(problem, reference.full(problem, np.abs(x), np.abs(weight)))
    return products.reshape(-1, problem.K), exact.reshape(-1), bound.reshape(-1)


def in_sequence(products):
    total = np.zeros(len(products), products.dtype)
    for k in range(products.shape[1]):
        total = total + products[:, k]
    return total


ORDERS = {
    "forwards": in_sequence,
    "backwards": lambda p: in_sequence(p[:, ::-1]),
    "smallest first": lambda p: in_sequence(np.sort(p, axis=1)),
    "pairwise": lambda p: p.sum(axis=1, dtype=np.float32),
    "in tiles of 16": lambda p: in_sequence(
        np.stack([in_sequence(p[:, k : k + 16]) for k in range(0, p.shape[1], 16)], axis=1)
    ),
}


@pytest.mark.parametrize("length", [1, 19, 1000, 4096])
@pytest.mark.parametrize("order", ORDERS)
def test_the_bound_accepts_float32_sums_in_any_order(order, length):
    products, exact, bound = terms(Gemm(M=24, N=24, K=length), seed=length)
    got = ORDERS[order](products)
    assert got.dtype == np.float32
    assert (np.abs(got - exact) <= bound).all()


@pytest.mark.parametrize("length", [2, 19, 70, 1000])
def test_the_bound_rejects_a_dropped_term(length):
    products, exact, bound = terms(Gemm(M=24, N=24, K=length), seed=length)
    assert (np.abs(in_sequence(products[:, :-1]) - exact) > bound).mean() > 0.9
