"""Shapes that decide at the edges of a copy engine: which of them there are, whatever a check makes of them."""

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
        # as little work as lets the last tile be reached in the middle of the pipeline
        assert shapes.multiply_adds(problem) < 20e6
    steps = [-(-problem.reduction // BLOCK_K) for problem in many]
    if ladder == "hgemm":
        assert any(count % STAGES for count in steps)
        assert max(steps) > 1


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
