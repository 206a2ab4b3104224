"""The oracle against a second one in plain Python loops, and the error bound from both sides."""

import itertools
import operator
from functools import lru_cache

import numpy as np
import pytest
import shapes
from hypothesis import given
from hypothesis import strategies as st
from sampling import one_of_each, some

from common.catalog import catalog, inputs, reference
from common.catalog.problems import Conv2d, Conv3d, Dgrad, Gemm, Wgrad
from common.check import plan
from common.check.tasks import check_task
from common.run.messages import Check


def loops(problem, x, weight):
    """Every output from the definition of a convolution in space, element by element; a product of matrices is one of
    single taps, each of K channels."""
    if isinstance(problem, Dgrad | Wgrad):
        return given_back(problem, x, weight)
    if isinstance(problem, Gemm):
        flat = Conv3d(N=problem.M, C=problem.K, D=1, H=1, W=1, K=problem.N, T=1, R=1, S=1)
        x, weight = x.reshape(flat.input_shape), weight.T.reshape(flat.weight_shape)
        return loops(flat, x, weight).reshape(problem.output_shape)
    if isinstance(problem, Conv2d):
        x, weight = x.transpose(0, 2, 3, 1)[:, None], weight.transpose(0, 2, 3, 1)[:, None]
        return loops(Conv3d(**problem.shape(), D=1, T=1), x, weight)[:, 0].transpose(0, 3, 1, 2)
    y = np.zeros(problem.output_shape)
    for n, o, p, q, k in itertools.product(*map(range, problem.output_shape)):
        for t, r, s in itertools.product(*map(range, weight.shape[1:4])):
            d = o * problem.stride_d - problem.pad_d + t * problem.dilation_d
            h = p * problem.stride_h - problem.pad_h + r * problem.dilation_h
            w = q * problem.stride_w - problem.pad_w + s * problem.dilation_w
            if 0 <= d < problem.D and 0 <= h < problem.H and 0 <= w < problem.W:
                y[n, o, p, q, k] += sum(
                    float(x[n, d, h, w, c]) * float(weight[k, t, r, s, c]) for c in range(problem.C)
                )
    return y


def given_back(problem, first, second):
    """Both gradients from the chain rule: each product of the forward sum gives its share back to its two factors."""
    result = np.zeros(problem.output_shape)
    for n, o, p, q, k in itertools.product(*map(range, problem.extents("NOPQK"))):
        for t, r, s in itertools.product(*map(range, problem.extents("TRS"))):
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


# --- minimal filtering: where it applies, where float32 holds its sums, and what its bound allows ---


def minimal_filtering(problem, x, weight):
    """The output by F(2x2,3x3), every operation rounded to the operands' dtype."""
    of_inputs, of_taps, of_products = reference.MATRICES
    pads = problem.pad_h, problem.pad_w
    if problem.form == "wgrad":  # the sum is over patches: (4, 4, patches, C) and (4, 4, patches, K)
        extents = problem.P, problem.Q
        windows = both(reference.patches(x[:, 0], 4, pads, extents), of_inputs)
        doutputs = both(reference.patches(weight[:, 0], 2, (0, 0), extents), of_products.T)
        windows, doutputs = (part.reshape(4, 4, -1, part.shape[-1]) for part in (windows, doutputs))
        return np.moveaxis(both(summed(doutputs.swapaxes(2, 3), windows), of_taps.T), 2, 0)[:, None]
    filters = np.transpose(weight[:, 0], (1, 2, 3, 0))
    if problem.form == "dgrad":
        pads = 2 - problem.pad_h, 2 - problem.pad_w
        filters = np.transpose(weight[:, 0, ::-1, ::-1], (1, 2, 0, 3))
    rows, columns = problem.output_shape[2:4]
    inputs = both(reference.patches(x[:, 0], 4, pads, (rows, columns)), of_inputs)
    _, _, images, down, across, channels = inputs.shape
    sums = summed(inputs.reshape(4, 4, -1, channels), both(filters, of_taps))
    outputs = both(sums, of_products).reshape(2, 2, images, down, across, -1)
    y = np.transpose(outputs, (2, 3, 0, 4, 1, 5)).reshape(images, 2 * down, 2 * across, -1)
    return y[:, None, :rows, :columns]


def both(values, matrix):
    """The matrix from the left along the first two axes, term by term, so that every sum is rounded."""
    for _ in range(2):
        rows = [sum(map(operator.mul, row, values)) for row in matrix.astype(values.dtype)]
        values = np.stack(rows).swapaxes(0, 1)
    return values


def summed(left, right):
    """Matrix products along the last two axes, products summed one by one."""
    return sum(left[..., k, None] * right[..., None, k, :] for k in range(left.shape[-1]))


NAME = "F(2x2,3x3)"
LADDERS = {"conv3d": Conv3d, "dgrad": Dgrad, "wgrad": Wgrad}
PLAIN = {"N": 1, "C": 4, "D": 1, "H": 6, "W": 7, "K": 4, "T": 1, "R": 3, "S": 3}


@lru_cache
def asked(ladder):
    """Shapes of the whole plan that the algorithm applies to, but for large ones."""
    found = {case.problem for case in plan.cases(ladder, True, 3, full=True) if case.depth != "large"}
    found = {one for one in found if reference.applies(one, NAME) and plan.multiply_adds(one) < 1 << 22}
    assert len(found) > 10
    return some(sorted(found, key=str), 4, 2)


@pytest.mark.parametrize(("changed", "applies"), [
    ({}, True), ({"pad_h": 2, "pad_w": 3}, True), ({"R": 1}, False), ({"stride_w": 2}, False),
    ({"dilation_h": 2}, False), ({"D": 2}, False), ({"D": 2, "T": 2}, False), ({"pad_d": 1}, False),
])  # fmt: skip
def test_it_is_for_flat_filters_of_three_by_three(changed, applies):
    for kind in LADDERS.values():
        problem = kind(**PLAIN | changed)
        assert reference.applies(problem, NAME) is applies
        assert not reference.applies(problem, None)
        assert reference.exact_below(problem, NAME) == (466_033 if applies else 1 << 24)


@pytest.mark.parametrize("kind", [None, *inputs.SPECIAL])
@pytest.mark.parametrize("ladder", LADDERS)
def test_every_kind_of_operands_is_exact(ladder, kind):
    for problem in asked(ladder):
        made = (
            inputs.special(kind, problem, 5, algorithm=NAME) if kind else inputs.integers(problem, 5, algorithm=NAME)
        )
        assert np.array_equal(minimal_filtering(problem, *made), reference.full(problem, *made)), problem
        if kind in (None, "negative", "sums"):  # whatever the order: quarters of nothing beyond 2^24
            assert 4 * reference.transformed_magnitude(problem, *made).max() < 1 << 24, problem


@pytest.mark.parametrize("ladder", LADDERS)
def test_normals_are_within_its_bound_and_as_exact_as_is_typical(ladder):
    for problem in asked(ladder):
        x, weight = inputs.normals(problem, 5)
        sums, magnitude = reference.full(problem, x, weight), reference.full(problem, abs(x), abs(weight))
        transformed = reference.transformed_magnitude(problem, x, weight)
        error = minimal_filtering(problem, x, weight) - sums
        assert (abs(error) <= reference.error_bound(problem, magnitude, transformed=transformed)).all(), problem
        allowed = reference.typical_error(problem, x, weight, magnitude, sums, transformed=transformed)
        assert reference.root_mean_square(error) <= 0.8 * allowed, problem
        assert (transformed >= 0.999 * magnitude).all()


# --- uneven operands ---

UNEVEN = Dgrad(N=1, C=64, D=1, H=8, W=8, K=32, T=1, R=3, S=3, pad_h=1, pad_w=1)


def uneven_operands():
    """Normals, but for one pixel that is 2**12 times the others, and for a centre tap of 0.

    The element of dx in the pixel's place has no term with it; minimal filtering sums before it multiplies.
    """
    x, filt = inputs.normals(UNEVEN, 0)
    x[:, :, x.shape[2] // 2, x.shape[3] // 2] *= 2**12
    filt[:, :, 1, 1] = 0
    return x, filt


def verdict(name, problem, algorithm):
    """Of a step on normals, traced."""
    step = catalog.find(name)
    task = Check(
        path=str(step.path), ladder=step.ladder, shape=problem.shape(), engine="traced", depth="once",
        special=inputs.NORMALS, algorithm=algorithm,
    )  # fmt: skip
    return check_task(task)


def test_uneven_operands_part_the_definition_and_minimal_filtering(monkeypatch):
    uneven, problem = uneven_operands(), UNEVEN
    monkeypatch.setattr(inputs, "normals", lambda *_: tuple(part.copy() for part in uneven))
    for name in one_of_each(("dgrad_direct", "dgrad_implicit_gemm", "dgrad_strided"), lambda _: "a step"):
        assert verdict(name, problem, None).status == "right", name
    name = "dgrad_minimal_filtering"
    assert verdict(name, problem, catalog.find(name).algorithm).status == "right"
    (finding,) = verdict(name, problem, None).findings
    assert finding.kind == "imprecise"
    assert "times the float32 bound" in finding.message


@pytest.mark.parametrize(("even", "normwise", "said"), [
    (True, False, "our largest error is {} times that bound\nwith 32 filters and 64 channels"),
    (False, False, "the error is {} times the definition's bound"),
    (False, True, "our error is {} times that\nbound"),
])  # fmt: skip
def test_a_page_says_how_large_errors_of_minimal_filtering_are(even, normwise, said):
    x, filt = inputs.normals(UNEVEN, 0) if even else uneven_operands()
    error = abs(minimal_filtering(UNEVEN, x, filt) - reference.full(UNEVEN, x, filt))
    transformed = reference.transformed_magnitude(UNEVEN, x, filt) if normwise else None
    bound = reference.error_bound(UNEVEN, reference.full(UNEVEN, abs(x), abs(filt)), transformed=transformed)
    page = (catalog.LESSONS / "08_training" / "minimal_filtering.md").read_text(encoding="utf-8")
    assert said.format(f"{(error / bound).max():.2g}") in page


# --- the typical error of float32 sums ---


def share(problem, left, right, compute):
    """Of what is allowed of a product of normals."""
    sums, magnitude = reference.full(problem, left, right), reference.full(problem, abs(left), abs(right))
    allowed = reference.typical_error(problem, left, right, magnitude, sums)
    assert (abs(compute(left, right) - sums) <= reference.error_bound(problem, magnitude)).all()
    return reference.root_mean_square(compute(left, right) - sums) / allowed


def one_by_one(a, b):
    total = np.zeros((len(a), b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        total += a[:, k, None] * b[None, k]
    return total


@pytest.mark.parametrize("terms", [1, 2, 5, 64, 1048, 4099, 16384])
@pytest.mark.parametrize("extents", [(1, 1), (2, 3), (24, 16)], ids=str)
def test_sums_one_by_one_are_well_within_what_is_typical(terms, extents):
    for seed in range(1 if terms > 1048 else 5):
        problem = Gemm(*extents, terms)
        found = share(problem, *inputs.normals(problem, seed), one_by_one)
        assert found < (0.5 if extents == (24, 16) else 0.8)
