"""What a check runs: shapes that are data, and some drawn anew."""

import contextlib
import importlib
import math

import mutants
import numpy as np
import pytest
from msgspec.structs import replace

from common.catalog import catalog, inputs, problems, reference
from common.catalog.problems import LADDERS
from common.check import plan
from common.check.tasks import check_task
from common.machine_code import capture

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
def test_of_no_shape_that_is_listed_all_taps_lie_on_padding(ladder):
    for one in {case.problem for case, _ in plan.chosen(ladder)}:
        if one.axes:
            assert reference.full(one, np.ones(one.input_shape), np.ones(one.weight_shape)).any(), one


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
        # not all taps of all outputs lie on padding
        assert reference.full(one, np.ones(one.input_shape), np.ones(one.weight_shape)).any(), one
    for key in ("M", "N", "C", "H", "W"):
        longest = max((getattr(one, key) for one in found if hasattr(one, key)), default=None)
        assert longest is None or longest > 100, key


# --- the shapes of `check --full` ---


LISTS = ("wide", "large", "tiled", "copied", "rounded", "long_sums", "small_card", "layers", "covering")


@pytest.mark.parametrize("ladder", problems.LADDERS)
def test_every_list_is_of_the_ladders_own_problems(ladder):
    for listed in (*LISTS, "familiar", "twins"):
        assert {problem.ladder for problem in plan.listed(listed, ladder)} <= {ladder}
    assert {*plan.listed("rounded", ladder)} <= {*plan.tiled(ladder)}
    assert all(problem.reduction > 1000 and plan.ordinary(problem) for problem in plan.listed("long_sums", ladder))
    assert all(max(problem.shape().values()) > plan.MAX_GRID_YZ for problem in plan.listed("wide", ladder))
    large = plan.listed("large", ladder)
    largest = [max(_size(shape) for shape, _ in problem.operands) for problem in large]
    assert min(largest) > 2**31


def _size(shape):
    size = 1
    for extent in shape:
        size *= extent
    return size


def test_what_a_step_may_refuse():
    large = problems.PRESETS["dgrad-c3d-conv3a"]
    assert plan.ordinary(large)
    assert not plan.ordinary(problems.on_ladder("conv3d", large))  # which may lie in constant memory
    assert not plan.ordinary(plan.listed("wide", "gemm")[0])
    assert max(plan.narrow(problem).N for problem in plan.listed("wide", "gemm")) == 1025


@contextlib.contextmanager
def on_small_card(name):
    """A module of a lesson, imported anew, and the card of few multiprocessors that it asks."""
    with catalog.anew(), capture.no_device(plan.FEW) as gpu:
        yield importlib.import_module(name), gpu


@pytest.mark.parametrize("name", ["hconv3d_im2col", "conv3d_tf32_im2col"])
def test_a_small_card_has_all_tiles_of_a_step(name):
    ladder = name.split("_")[0]
    with on_small_card(f"lessons.07_hopper.{name}") as (step, gpu):
        found = [step.shipped(problem) for problem in plan.listed("small_card", ladder)]
        assert gpu.asked
    taken = {(tile["BLOCK_M"], tile["BLOCK_N"]) for tile in found}
    assert taken == {(tile["BLOCK_M"], tile["BLOCK_N"]) for _, tile in getattr(step, "im2col", step).planning.TILES}


@pytest.mark.parametrize("ladder", ["gemm", "hgemm", "igemm", "fp8gemm", "bfgemm", "conv2d", "hconv3d", "iconv3d"])
def test_blocks_stay_for_several_tiles_in_a_check_and_at_a_shape_that_is_asked_for(ladder):
    small = [case.problem for case in plan.cases(ladder, False, 0) if case.small]
    assert small
    for problem in small:
        assert [case.small for case in plan.cases_at(problem, False, 0)] == [False, True]


def test_a_finding_on_a_small_card_says_so():
    path = mutants.path("conv3d_stride_w_lost_on_a_full_card")
    problem = next(problem for problem in plan.listed("small_card", "conv3d") if problem.stride_w > 1)
    for small in (False, True):
        found = check_task(replace(plan.case(problem, "traced", small=small), path=str(path)))
        messages = [one.message for one in found.findings]
        assert [message.endswith("(on a card of 4 multiprocessors)") for message in messages] == [True] * small
