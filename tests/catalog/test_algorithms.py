"""Minimal filtering: where it applies, where float32 holds its sums, and what its bound and a typical error allow."""

from functools import lru_cache
from importlib import import_module

import numpy as np
import pytest

from common.catalog import catalog, inputs, reference
from common.catalog.problems import Conv3d, Dgrad, Gemm, Wgrad
from common.check import plan
from common.check.tasks import check_task
from common.run.messages import Check

NAME = "F(2x2,3x3)"
LADDERS = {"conv3d": Conv3d, "dgrad": Dgrad, "wgrad": Wgrad}
PLAIN = {"N": 1, "C": 4, "D": 1, "H": 6, "W": 7, "K": 4, "T": 1, "R": 3, "S": 3}


@lru_cache
def asked(ladder):
    """Shapes of the whole plan that the algorithm applies to, but for large ones."""
    found = {case.problem for case in plan.cases(ladder, True, 3, full=True) if case.depth != "large"}
    found = {one for one in found if reference.applies(one, NAME) and plan.multiply_adds(one) < 1 << 22}
    assert len(found) > 10
    return sorted(found, key=str)


@pytest.mark.parametrize(
    ("changed", "applies"),
    [
        ({}, True), ({"pad_h": 2, "pad_w": 3}, True), ({"R": 1}, False), ({"stride_w": 2}, False),
        ({"dilation_h": 2}, False), ({"D": 2}, False), ({"D": 2, "T": 2}, False), ({"pad_d": 1}, False),
    ],
)  # fmt: skip
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
        assert np.array_equal(reference.minimal_filtering(problem, *made), reference.full(problem, *made)), problem
        if kind in (None, "negative", "sums"):  # whatever the order: quarters of nothing beyond 2^24
            assert 4 * reference.transformed_magnitude(problem, *made).max() < 1 << 24, problem


@pytest.mark.parametrize("ladder", LADDERS)
def test_normals_are_within_its_bound_and_as_exact_as_is_typical(ladder):
    for problem in asked(ladder):
        x, weight = inputs.normals(problem, 5)
        sums, magnitude = reference.full(problem, x, weight), reference.full(problem, abs(x), abs(weight))
        transformed = reference.transformed_magnitude(problem, x, weight)
        error = reference.minimal_filtering(problem, x, weight) - sums
        assert (abs(error) <= reference.error_bound(problem, magnitude, transformed=transformed)).all(), problem
        allowed = reference.typical_error(problem, x, weight, magnitude, sums, transformed=transformed)
        assert reference.root_mean_square(error) <= 0.8 * allowed, problem
        assert (transformed >= 0.999 * magnitude).all()


# --- uneven operands ---

kinds = import_module("lessons.08_training.figures.kinds")


def verdict(name, problem, algorithm):
    """Of a step on normals, traced."""
    step = catalog.find(name)
    task = Check(
        path=str(step.path), ladder=step.ladder, shape=problem.shape(), engine="traced", depth="once",
        special=inputs.NORMALS, algorithm=algorithm,
    )  # fmt: skip
    return check_task(task)


def test_uneven_operands_part_the_definition_and_minimal_filtering(monkeypatch):
    uneven = kinds.uneven_operands(kinds.UNEVEN, 0)
    monkeypatch.setattr(inputs, "normals", lambda *_: tuple(part.copy() for part in uneven))
    problem = kinds.UNEVEN
    for name in ("dgrad_direct", "dgrad_implicit_gemm", "dgrad_strided"):
        assert verdict(name, problem, None).status == "right", name
    name = "dgrad_minimal_filtering"
    assert verdict(name, problem, catalog.find(name).algorithm).status == "right"
    (finding,) = verdict(name, problem, None).findings
    assert finding.kind == "imprecise"
    assert "times the float32 bound" in finding.message


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
    for seed in range(1 if terms > 1048 else 20):
        problem = Gemm(*extents, terms)
        found = share(problem, *inputs.normals(problem, seed), one_by_one)
        assert found < (0.5 if extents == (24, 16) else 0.8)
