"""What a check runs: shapes that are data, and some drawn anew."""

import math

import pytest

from common.catalog import inputs, problems
from common.catalog.problems import LADDERS
from common.check import plan

MOST = 80  # cases of a ladder without a GPU


@pytest.mark.parametrize("ladder", LADDERS)
def test_a_plan_begins_thoroughly_goes_far_out_and_is_small(ladder):
    found = plan.cases(ladder, False, 3)
    assert (found[0].problem, found[0].depth) == (problems.FIRST[ladder], "thorough")
    assert {case.engine for case in found} == {"traced"}
    assert len(found) <= MOST
    asked = [case.problem for case in found]
    for key in ("M", "N", "K", "C", "H", "W", "R", "S"):
        longest = max((getattr(one, key) for one in asked if hasattr(one, key)), default=None)
        assert longest is None or longest > (10 if key in "RS" else 256), key
    for key in ("stride", "pad", "dilation"):
        for axis in "dhw":
            furthest = max((getattr(one, f"{key}_{axis}") for one in asked if hasattr(one, "stride_d")), default=None)
            assert furthest is None or furthest > 3, f"{key}_{axis}"
    assert max(one.reduction for one in asked) > 2048
    assert any(case.special == inputs.NORMALS and case.problem.reduction > 1000 for case in found)


@pytest.mark.parametrize("ladder", LADDERS)
def test_a_gpu_runs_a_part_of_it_and_what_only_it_can(ladder):
    found = [case for case in plan.cases(ladder, True, 3) if case.engine == "gpu"]
    assert {case.problem for case in found} >= {*plan.listed("large", ladder)}
    assert len(found) <= (18 if LADDERS[ladder].form == "conv2d" else 40)
    assert not any(case.small for case in found)


def test_the_pairwise_plan_is_asked_for():
    small, full = ({case.problem for case in plan.cases("conv2d", False, 0, full)} for full in (False, True))
    assert {*plan.listed("covering", "conv2d")} <= full
    assert len(small) < len(full)


def test_a_line_that_cannot_be_read_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(plan, "SHAPES", tmp_path / "shapes.toml")
    plan.SHAPES.write_text("gemm = ['M=1 N=2 K=3 | twice']\n")
    plan.chosen.cache_clear()
    try:
        with pytest.raises(ValueError, match=r"shapes.toml, gemm: 'M=1 N=2 K=3 \| twice': marks must be"):
            plan.chosen("gemm")
    finally:
        plan.chosen.cache_clear()


@pytest.mark.parametrize("ladder", LADDERS)
def test_drawn_shapes_keep_to_their_work_and_go_far_out_on_every_axis(ladder):
    found = plan.drawn(ladder, 7, 300)
    assert found == plan.drawn(ladder, 7, 300)
    assert found[:4] != plan.drawn(ladder, 8, 4)
    for one in found:
        assert plan.multiply_adds(one) <= plan.MOST
        assert one.reduction <= plan.MOST_TERMS
        assert plan.ordinary(one)
        assert math.prod(one.output_shape) >= 1
    for key in ("M", "N", "C", "H", "W"):
        longest = max((getattr(one, key) for one in found if hasattr(one, key)), default=None)
        assert longest is None or longest > 100, key
