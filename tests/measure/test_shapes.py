"""Shapes that decide at the edges of a copy engine: which of them there are, whatever a check makes of them."""

import importlib
import math

import pytest

from common.measure import plan, shapes

H200 = 132  # multiprocessors
PIECE = 16  # bytes
STAGES, BLOCK_K = 4, 64


def mappable(problem):
    """Are rows of both operands, and of the output, whole pieces?"""
    return all(shape[-1] * dtype.itemsize % PIECE == 0 for shape, dtype in problem.operands)


def rows(problem):
    return math.prod(problem.output_shape[:-1])


@pytest.mark.parametrize("ladder", ["gemm", "hgemm", "conv3d", "hconv3d"])
def test_blocks_that_stay_have_more_than_one_tile(ladder):
    many = [problem for problem in shapes.tiled(ladder) if rows(problem) == shapes.MANY]
    assert many
    for problem in many:
        assert mappable(problem)
        assert -(-shapes.MANY // 128) > H200
        assert -(-shapes.MANY // 256) > H200 // 2  # in clusters of two, which lie below each other
        # as little work as lets a block come again to the stage that its first tile left last: the same step of the
        # second tile lies more than a round of the pipeline later
        deep = {"gemm": 32, "hgemm": 64}.get(ladder, 0)  # of the sum, in a stage
        assert shapes.multiply_adds(problem) <= max(20e6, shapes.MANY * 8 * (STAGES * deep + 8))
        steps = -(-problem.reduction // deep) if deep else 0
        assert not deep or (steps > STAGES and steps % STAGES)


@pytest.mark.parametrize("name", ["hconv3d_im2col", "conv3d_tf32_im2col"])
def test_blocks_of_convolutions_stay_and_come_again_to_a_stage(name, monkeypatch):
    step, ladder = importlib.import_module(f"lessons.07_hopper.{name}"), name.split("_")[0]
    monkeypatch.setattr(step, "multiprocessors", lambda: H200)
    stays, wide = False, False
    for problem in shapes.copied(ladder):
        taps = problem.T * problem.R * problem.S
        tile = step.plan.__wrapped__(rows(problem), problem.C, problem.K, taps)
        tiles = -(-rows(problem) // tile["BLOCK_M"]) * -(-problem.K // tile["BLOCK_N"])
        turns, steps = -(-tiles // H200), taps * -(-problem.C // tile["BLOCK_K"])
        # with an odd number of slabs a tile: the next one begins with the slab that left last
        one = tile["BLOCK_M"] // tile["CONSUMERS"] * tile["BLOCK_N"] == 64 * 64
        stays |= one and turns > 1 and steps > step.room(**tile) and steps % step.room(**tile) > 0
        wide |= tile["BLOCK_N"] == 256
    assert stays
    assert wide or ladder == "conv3d"
    assert max(shapes.multiply_adds(problem) for problem in shapes.copied(ladder)) < 40e6


@pytest.mark.parametrize("ladder", ["gemm", "hgemm", "conv3d", "hconv3d"])
def test_the_simulator_runs_what_a_copy_engine_takes(ladder):
    asked = [case.problem for case in plan.cases(ladder, False, 3) if case.engine == "simulator"]
    assert shapes.copied(ladder)[0] in asked
    assert mappable(shapes.copied(ladder)[0])


def test_rows_of_whole_pieces_miss_every_tile_and_the_pipelines_end():
    found = [problem for problem in shapes.tiled("hgemm") if mappable(problem)]
    for extent in ("M", "N"):
        values = [getattr(problem, extent) for problem in found]
        for tile in (64, 128, 256):
            assert any(value < tile for value in values), (extent, tile)
            assert any(value > tile and value % tile for value in values), (extent, tile)
    # of a tile of the sum, or of the columns, one piece
    assert {8} <= {problem.K % BLOCK_K for problem in found if problem.K > BLOCK_K}
    assert {8, 72} <= {problem.N % 256 for problem in found}
    # of two blocks, the second one is all outside, or has a piece of a row's tile
    assert any(problem.M <= 128 for problem in found)
    assert any(0 < problem.M % 256 - 128 <= 8 for problem in found)
    depths = {-(-problem.K // BLOCK_K) for problem in found}
    assert {1, 2, 3, STAGES, STAGES + 1} <= depths
    assert max(depths) > 2 * STAGES


def test_channels_of_one_piece_and_of_a_box_and_one_are_copied():
    found = [problem for problem in shapes.tiled("hconv3d") if mappable(problem)]
    assert {8, 72} <= {problem.C for problem in found}
    taken = {(problem.T, problem.R, problem.S) for problem in found}
    assert {(1, 3, 1), (2, 1, 3), (1, 1, 1)} <= taken
    assert any(problem.stride_h > 1 and problem.dilation_w > 1 and problem.pad_w > 1 for problem in found)
    assert any(rows(problem) == 1 for problem in found)


@pytest.mark.parametrize("engine", ["traced", "gpu"])
def test_each_engine_is_asked_for_them(engine):
    asked = {case.problem for case in plan.cases("hgemm", True, 3) if case.engine == engine}
    assert set(shapes.tiled("hgemm")) <= asked


def test_a_large_shape_has_more_time_on_the_tracer():
    limits = {case.problem: case.fields()["seconds"] for case in plan.cases("hgemm", False, 3) if not case.wide}
    assert {limits[problem] for problem in shapes.copied("hgemm") if problem.M == shapes.MANY} == {
        plan.TRACED_SECONDS
    }
    assert limits[shapes.copied("hgemm")[0]] is None
