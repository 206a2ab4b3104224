"""The shapes of `check --full`."""

import contextlib
import importlib

import mutants
import pytest

from common.catalog import catalog, problems
from common.check import plan
from common.check.tasks import check_task
from common.machine_code import capture
from common.run.messages import Check

pytestmark = pytest.mark.usefixtures("traced")

LISTS = ("wide", "large", "tiled", "copied", "rounded", "long_sums", "small_card", "layers", "covering")


@pytest.mark.parametrize("ladder", problems.LADDERS)
def test_every_list_is_of_the_ladders_own_problems(ladder):
    for listed in (*LISTS, "familiar", "twins"):
        assert {problem.ladder for problem in plan.listed(listed, ladder)} <= {ladder}
    assert {*plan.listed("rounded", ladder)} <= {*plan.tiled(ladder)}
    assert all(problem.reduction > 1000 and plan.ordinary(problem) for problem in plan.listed("long_sums", ladder))
    assert all(max(problem.shape().values()) > plan.MAX_GRID_YZ for problem in plan.listed("wide", ladder))
    largest = [
        max(array for shape in problem.shapes for array in [_size(shape)]) for problem in plan.listed("large", ladder)
    ]
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


def test_a_finding_on_a_small_card_says_so(monkeypatch):
    path = mutants.path("conv3d_stride_w_lost_on_a_full_card")
    problem = next(problem for problem in plan.listed("small_card", "conv3d") if problem.stride_w > 1)
    for small in (False, True):
        case = plan.Case(problem, "traced", small=small)
        found = check_task(Check(path=str(path), ladder="conv3d", shape=problem.shape(), **case.fields(), repeats=1))
        messages = [one.message for one in found.findings]
        assert [message.endswith("(on a card of 4 multiprocessors)") for message in messages] == [True] * small
