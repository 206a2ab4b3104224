"""Shapes that decide at the edges of a copy engine: which of them there are, whatever a check makes of them."""

import importlib
import math

import numpy as np
import pytest

from common.catalog import catalog, problems
from common.check import inputs, plan, shapes
from common.jobs.messages import Check
from common.jobs.tasks import check_task
from common.trace import card

pytestmark = pytest.mark.usefixtures("traced")

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


def few(problem, monkeypatch):
    """The plan of the kernel for few filters; None where it is not taken."""
    kernel = importlib.import_module("lessons.07_hopper.helpers.few_filters")
    monkeypatch.setattr(kernel, "multiprocessors", lambda: H200)
    return kernel, kernel.plan(problem.output_shape, problem.weight_shape, problem.geometry)


def test_teams_of_few_filters_stay_and_come_again_to_a_stage(monkeypatch):
    stays = False
    for problem in shapes.copied("hconv3d"):
        kernel, tile = few(problem, monkeypatch)
        if tile:
            tiles = -(-problem.N * problem.O * problem.P // tile["LINES"])
            steps = problem.T * problem.R * -(-problem.C // tile["BLOCK_K"])
            turns = -(-tiles // H200)  # of the two teams together
            stays |= turns > 1 and turns * steps > kernel.room(**tile)
    assert stays


@pytest.mark.parametrize("name", ["hconv3d_im2col", "conv3d_tf32_im2col"])
def test_blocks_of_convolutions_stay_and_come_again_to_a_stage(name, monkeypatch):
    step, ladder = importlib.import_module(f"lessons.07_hopper.{name}"), name.split("_")[0]
    monkeypatch.setattr(step, "multiprocessors", lambda: H200)
    stays, wide = False, False
    for problem in shapes.copied(ladder):
        if ladder == "hconv3d" and few(problem, monkeypatch)[1]:
            continue
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
    asked = {case.problem for case in plan.cases("hgemm", True, 3, full=True) if case.engine == engine}
    assert set(shapes.tiled("hgemm")) <= asked


def test_a_large_shape_has_more_time_on_the_tracer():
    limits = {
        case.problem: case.fields()["seconds"] for case in plan.cases("hgemm", False, 3, full=True) if not case.wide
    }
    assert {limits[problem] for problem in shapes.copied("hgemm") if problem.M == shapes.MANY} == {
        plan.TRACED_SECONDS
    }
    assert limits[shapes.copied("hgemm")[0]] is None


@pytest.mark.parametrize("ladder", ["dgrad", "wgrad"])
def test_gradients_are_checked_at_all_that_trips_them_up(ladder):
    asked = [case.problem for case in plan.cases(ladder, False, 3, full=True)]
    assert {problem.ladder for problem in asked} == {ladder}
    found = set().union(*(shapes.conditions(problem) for problem in asked))
    for axis, extent in zip("dhw", "DHW", strict=True):
        assert {f"stride_{axis}=2?", f"stride_{axis}=3?", f"dilation_{axis}", f"pad_{axis}"} <= found
        if ladder == "dgrad":
            # a residue without taps, and elements that no window reaches
            assert {f"fewer taps than stride_{axis}", f"{extent} ends beyond the last window?"} <= found
            assert {f"stride_{axis}, dilation_{axis}?", f"stride_{axis}, dilation_{axis} coprime?"} <= found
    assert "C=K" in found
    if ladder == "wgrad":
        sums = {problem.reduction for problem in asked}
        assert {1} < sums
        assert max(sums) > 4_000  # many parts of a sum that is split
        assert {f"sum%{tile}={rest}?" for tile in (8, 16, 32, 64) for rest in (0, 1, -1)} <= found


@pytest.mark.parametrize("ladder", ["dgrad", "wgrad"])
def test_a_gradient_refuses_no_filter_for_its_size(ladder):
    large = problems.PRESETS[f"{ladder}-c3d-conv3a"]
    assert shapes.ordinary(large)
    assert not shapes.ordinary(problems.on_ladder("conv3d", large))  # which may lie in constant memory


@pytest.mark.parametrize("ladder", ["dgrad", "wgrad"])
@pytest.mark.parametrize("engine", ["traced", "gpu"])
def test_gradients_are_checked_at_layers_beyond_what_is_drawn(ladder, engine):
    asked = {case.problem for case in plan.cases(ladder, True, 3, full=True) if case.engine == engine}
    found = shapes.layers(ladder)
    assert set(found) <= asked
    assert max(problem.R * problem.S for problem in found) > 64
    assert any(problem.T + problem.R + problem.S > 32 for problem in found)
    for what in ("stride", "dilation", "pad"):
        assert any(getattr(problem, f"{what}_h") > 3 for problem in found)
    assert any(problem.N > 8 and problem.D > 1 for problem in found)
    assert any((problem.T, problem.R, problem.S) == (1, 3, 3) and problem.dilation_h > 1 for problem in found)
    pixels = [(math.prod(problem.x_shape[:4]), max(problem.x_shape)) for problem in found]
    assert any(count > 1 << 16 and longest < 256 for count, longest in pixels)
    whole = [problem for problem in found if problem.C % 4 == problem.K % 4 == 0]
    for axis, taps in zip("dhw", "TRS", strict=True):
        pairs = {
            (getattr(problem, f"stride_{axis}"), getattr(problem, f"dilation_{axis}"))
            for problem in whole
            if getattr(problem, taps) > 1
        }
        assert {(3, 2), (2, 2), (1, 3)} <= pairs


@pytest.mark.parametrize("ladder", ["conv3d", "hconv3d", "dgrad", "wgrad"])
@pytest.mark.parametrize("engine", ["traced", "gpu"])
def test_filters_of_3_x_3_are_checked_as_kernels_that_take_no_others_see_them(ladder, engine):
    asked = {case.problem for case in plan.cases(ladder, True, 3, full=True) if case.engine == engine}
    found = [
        problem
        for problem in asked
        if (problem.D, problem.T, problem.R, problem.S) == (1, 1, 3, 3)
        and all(getattr(problem, f"{what}_{axis}") == 1 for what in ("stride", "dilation") for axis in "hw")
        and problem.C % 4 == problem.K % 4 == 0
    ]
    for rests in ((0, 0), (0, 1), (1, 0), (1, 1)):
        assert any(rests == (problem.H % 2, problem.W % 2) for problem in found)
    assert {(problem.pad_h, problem.pad_w) for problem in found} >= {(1, 1), (0, 2), (3, 1)}
    patches = [problem.N * -(-problem.H // 2) * -(-problem.W // 2) for problem in found]
    assert any(count > 64 and count % 32 for count in patches)
    assert any(problem.C > 64 for problem in found)
    assert any(problem.K % 8 and problem.K > 64 for problem in found)
    assert any(problem.H == 1 for problem in found)


# Filters and strides that kernels have paths of their own for: T, R, S, the stride and the padding of each axis.
PATHS = {
    "1 x 1": ((1, 1, 1), (1, 1, 1), (0, 0, 0)),
    "1 x 1, halved": ((1, 1, 1), (1, 2, 2), (0, 0, 0)),
    "3 x 3, halved": ((1, 3, 3), (1, 2, 2), (0, 1, 1)),
    "5 x 5": ((1, 5, 5), (1, 1, 1), (0, 2, 2)),
    "7 x 7, halved": ((1, 7, 7), (1, 2, 2), (0, 3, 3)),
    "a row": ((1, 1, 7), (1, 1, 1), (0, 0, 3)),
    "a column": ((1, 7, 1), (1, 1, 1), (0, 3, 0)),
    "2 x 2, halved": ((1, 2, 2), (1, 2, 2), (0, 0, 0)),
    "4 x 4, halved": ((1, 4, 4), (1, 2, 2), (0, 1, 1)),
    "depth alone": ((3, 1, 1), (1, 1, 1), (1, 0, 0)),
    "cube": ((3, 3, 3), (1, 1, 1), (1, 1, 1)),
    "cube, halved": ((3, 3, 3), (2, 2, 2), (1, 1, 1)),
}


@pytest.mark.parametrize("ladder", ["conv3d", "hconv3d", "dgrad", "wgrad"])
@pytest.mark.parametrize("engine", ["traced", "gpu"])
def test_filters_that_kernels_have_paths_for_are_checked_with_several_images_and_a_rest(ladder, engine):
    asked = {case.problem for case in plan.cases(ladder, True, 3, full=True) if case.engine == engine}

    def of(path):
        taps, strides, pads = PATHS[path]
        return [
            problem
            for problem in asked
            if taps == (problem.T, problem.R, problem.S) and problem.geometry == (*strides, *pads, 1, 1, 1)
        ]

    for path in PATHS:
        found = of(path)
        assert any(problem.N > 1 and problem.P * problem.Q % 8 for problem in found), path
        assert any(problem.H != problem.W for problem in found), path
    for path in ("1 x 1", "1 x 1, halved", "3 x 3, halved"):
        whole = [problem for problem in of(path) if problem.C % 4 == problem.K % 4 == 0]
        assert any(problem.C > 32 < problem.K and problem.C % 8 and problem.N > 1 for problem in whole), path
        assert any(problem.C > 4 < problem.K and problem.C % 4 and problem.K % 4 for problem in of(path)), path
    assert any(problem.D > 1 for problem in of("1 x 1"))
    assert any(problem.C > 128 for problem in of("1 x 1"))
    assert any(problem.K > 128 for problem in of("1 x 1"))
    for path in ("1 x 1, halved", "3 x 3, halved"):  # odd and even extents, and the other way round
        assert {(0, 1), (1, 0)} <= {(problem.H % 2, problem.W % 2) for problem in of(path)}
    assert any(problem.C == 3 and problem.K > 32 for problem in of("7 x 7, halved"))
    flat = [problem for problem in asked if (problem.T, problem.R, problem.S) == (1, 3, 3)]
    assert any(problem.D > 1 < problem.N and problem.pad_h == problem.pad_w == 1 for problem in flat)
    assert any(problem.geometry[4:] == (2, 2, 1, 2, 2) and problem.C > 8 for problem in flat)
    assert any(problem.W % 32 == 0 and problem.W > 32 for problem in flat)


@pytest.mark.parametrize("taps", [(1, 3), (3, 1), (1, 7), (7, 1), (3, 3), (4, 4), (5, 5), (7, 7)])
def test_conv2d_is_checked_at_usual_filters_with_several_images_channels_and_filters(taps):
    asked = {case.problem for case in plan.cases("conv2d", False, 3, full=True)}
    found = [problem for problem in asked if taps == (problem.R, problem.S)]
    assert any(problem.N > 1 < problem.C and problem.K > 4 for problem in found)
    assert any(max(problem.P, problem.Q) > 16 and problem.P != problem.Q for problem in found)
    if taps in ((3, 3), (5, 5), (7, 7)):  # more tiles than one along both axes, and a rest
        assert any(min(problem.P, problem.Q) > 16 and problem.N > 1 for problem in found)
    if taps in ((3, 3), (7, 7)):
        assert any(problem.C == 3 and problem.K > 4 and problem.N > 1 for problem in found)
    if taps == (3, 3):
        assert any(problem.C % 4 == problem.K % 4 == problem.Q % 4 == 0 and problem.C % 8 for problem in found)
        assert any(problem.P % 16 == problem.Q % 16 == 0 and problem.P != problem.Q for problem in found)


@pytest.mark.parametrize("ladder", ["gemm", "hgemm"])
@pytest.mark.parametrize("engine", ["traced", "gpu"])
def test_vectors_pairs_squares_and_whole_tiles_but_for_one_axis_are_checked(ladder, engine):
    asked = {case.problem for case in plan.cases(ladder, True, 3, full=True) if case.engine == engine}
    extents = [(problem.M, problem.N, problem.K) for problem in asked]
    assert any(M == 1 < N and K > 512 and K % 4 for M, N, K in extents)
    assert any(N == 1 < M and K > 512 and K % 4 for M, N, K in extents)
    assert any(K == 1 and min(M, N) > 128 for M, N, K in extents)
    for few in (0, 1):
        assert any(extent[few] == 2 and extent[1 - few] > 32 and extent[2] > 64 for extent in extents)
    assert any(M == N == K > 128 and M % 64 for M, N, K in extents)
    for odd in range(3):
        assert any(
            extent[odd] > 64 and extent[odd] % 4 and all(extent[axis] % 64 == 0 for axis in {0, 1, 2} - {odd})
            for extent in extents
        )
    assert any(M > 1024 and M % 4 and N % 2 and N > 1 for M, N, _ in extents)
    assert any(N > 1024 and N % 4 and M % 2 and M > 1 for M, N, _ in extents)


@pytest.mark.parametrize("ladder", problems.LADDERS)
def test_familiar_shapes_have_kin_that_are_drawn_anew_and_are_small(ladder):
    found = {seed: shapes.kin(ladder, seed) for seed in range(20)}
    assert found[3] == shapes.kin(ladder, 3)
    assert len({problem for kin in found.values() for problem in kin}) > 40
    for problem in (problem for kin in found.values() for problem in kin):
        assert problem.ladder == ladder
        assert shapes.multiply_adds(problem) <= 2 * shapes.LARGEST_DRAWN
    asked = [case.problem for case in plan.cases(ladder, False, 3, full=True)]
    assert set(found[3]) <= set(asked)


def test_a_path_of_its_own_that_rounds_more_is_seen():
    special = {case.problem: case.special for case in plan.cases("conv3d", False, 3, full=True)}
    assert {special[problem] for problem in shapes.familiar("conv3d")} == {inputs.NORMALS}


@pytest.mark.parametrize("ladder", ["dgrad", "wgrad"])
@pytest.mark.parametrize("axis", ["D", "H", "W"])
def test_among_the_twins_two_extents_of_x_have_the_same_outputs(ladder, axis):
    orders = set()
    first = {}
    for problem in shapes.twins(ladder):
        key, extent = (problem.y_shape, problem.filt_shape, problem.geometry), getattr(problem, axis)
        before = first.setdefault(key, extent)
        orders.add((extent > before) - (extent < before))
    assert {-1, 1} <= orders


@pytest.mark.parametrize("ladder", problems.LADDERS)
def test_precision_shows_at_whole_tiles_and_in_long_sums(ladder):
    rounded = [case.problem for case in plan.cases(ladder, False, 3, full=True) if case.special == inputs.NORMALS]
    rounded = set(rounded) - {*shapes.familiar(ladder), *shapes.kin(ladder, 3)}
    assert rounded == {*shapes.rounded(ladder), *shapes.long_sums(ladder)}
    assert set(shapes.rounded(ladder)) <= set(shapes.tiled(ladder))
    if problems.LADDERS[ladder].form == "gemm":
        assert max(problem.K for problem in rounded) > 1000
        assert any(all(extent % 64 == 0 for extent in problem.shape().values()) for problem in rounded)


@pytest.mark.parametrize("ladder", problems.LADDERS)
@pytest.mark.parametrize("engine", ["traced", "gpu"])
def test_every_ladder_has_sums_of_a_thousand_terms_and_more_of_normals(ladder, engine):
    found = [
        case.problem
        for case in plan.cases(ladder, True, 3)
        if (case.engine, case.special) == (engine, inputs.NORMALS) and case.problem.reduction > 1000
    ]
    assert set(shapes.long_sums(ladder)) <= set(found)
    assert max(problem.reduction for problem in found) > 2000
    for problem in shapes.long_sums(ladder):
        assert np.prod(problem.output_shape) >= 96, problem  # enough for a mean
        assert shapes.ordinary(problem), problem


def test_what_lies_just_beyond_the_limits_of_a_copy_engine_is_asked_for():
    step = importlib.import_module("lessons.07_hopper.hconv3d_im2col")
    found = [problem for problem in shapes.copied("hconv3d") if mappable(problem)]
    beyond = {name: set() for name in ("stride", "pad", "reach", "lower", "upper")}
    for problem in found:
        pads, strides, reach = step.corners(problem.geometry, (problem.T, problem.R, problem.S))
        upper = [pad - far for pad, far in zip(pads, reach, strict=True)]
        crossed = {
            "stride": max(strides) > 8, "pad": max(pads) > 16, "reach": max(reach) > 31, "lower": min(upper) < -16,
            "upper": max(upper) > 15,
        }  # fmt: skip
        for name, axis in zip(crossed, map(_furthest, (strides, pads, reach, reach, pads)), strict=True):
            if crossed[name] and sum(crossed.values()) == 1:
                beyond[name].add(axis)
    assert beyond["stride"] == {0, 1, 2}
    assert all(beyond.values())


def _furthest(along):
    return max(range(3), key=along.__getitem__)


@pytest.mark.parametrize("name", ["hconv3d_im2col", "conv3d_tf32_im2col"])
def test_a_small_card_has_all_tiles_of_a_step(name):
    step, ladder = importlib.import_module(f"lessons.07_hopper.{name}"), name.split("_")[0]
    with card.of(shapes.FEW, step) as asked:
        assert asked
        found = [step.shipped(problem) for problem in shapes.on_small_card(ladder)]
    taken = {(tile["BLOCK_M"], tile["BLOCK_N"]) for tile in found}
    assert taken == {(tile["BLOCK_M"], tile["BLOCK_N"]) for _, tile in step.TILES}


@pytest.mark.parametrize(
    ("step", "ladder"),
    [
        ("05_implicit_gemm.conv3d_implicit_gemm_precomputed", "conv3d"),
        ("08_training.dgrad_implicit_gemm", "dgrad"),
        ("08_training.wgrad_split_k", "wgrad"),
    ],
)
def test_a_small_card_has_most_tiles_of_a_step_and_parts_of_sums(step, ladder):
    module = importlib.import_module(f"lessons.{step}")
    with card.of(shapes.FEW, module):
        found = [module.shipped(problem) for problem in shapes.on_small_card(ladder)]
    taken = {(tile["BLOCK_M"], tile["BLOCK_N"]) for tile in found}
    largest = {(tile["BLOCK_M"], tile["BLOCK_N"]) for rate, tile in module.TILES if rate >= 0.98}
    assert len(taken & largest) >= 2
    assert max(tile["SPLIT_K"] for tile in found) > 1


def test_a_small_card_has_few_filters_with_all_that_its_kernel_knows():
    kernel = importlib.import_module("lessons.07_hopper.helpers.few_filters")
    with card.of(shapes.FEW, kernel):
        plans = {
            problem: kernel.plan(problem.y_shape, problem.filt_shape, problem.geometry)
            for problem in shapes.on_small_card("hconv3d")
        }
    (taken,) = (problem for problem, tile in plans.items() if tile)
    assert min(taken.T, taken.R, taken.stride_d, taken.stride_h, *taken.geometry[6:]) > 1
    assert plans[taken]["BLOCK_K"] < taken.C
    rest = [problem for problem, tile in plans.items() if not tile]
    assert any(problem.stride_w > 1 for problem in rest)
    # its rows, filled up to a multiple of eight, would reach beyond the engine's corners
    padded = next(problem for problem in rest if problem.pad_w > kernel.MOST_PAD)
    filled = kernel.line_of(padded.Q, padded.S, padded.dilation_w) - padded.Q - (padded.S - 1) * padded.dilation_w
    assert filled + padded.pad_w > 15
    assert any(problem.K > kernel.MMA_M and problem.S > 1 for problem in rest)


def test_a_card_is_small_for_a_while_and_nothing_of_it_is_kept():
    step = importlib.import_module("lessons.07_hopper.hconv3d_im2col")
    problem = shapes.on_small_card("hconv3d")[4]
    before = step.shipped(problem)
    with card.of(shapes.FEW, step):
        assert step.multiprocessors() == shapes.FEW
        assert step.shipped(problem) != before
    assert step.multiprocessors() != shapes.FEW
    assert step.shipped(problem) == before


def test_a_step_that_does_not_ask_how_large_the_card_is(write):
    with card.of(shapes.FEW, catalog.load_file(write("gemm_x.py", "def launch(a, b, c):\n    pass\n"))) as asked:
        assert not asked


def test_a_finding_on_a_small_card_says_so(monkeypatch):
    path = catalog.ROOT / "tests" / "wrong_kernels" / "conv3d_stride_w_lost_on_a_full_card.py"
    problem = next(problem for problem in shapes.on_small_card("conv3d") if problem.stride_w > 1)
    for small in (False, True):
        case = plan.Case(problem, "traced", small=small)
        found = check_task(Check(path=str(path), ladder="conv3d", shape=problem.shape(), **case.fields(), repeats=1))
        messages = [one["message"] for one in found["findings"]]
        assert [message.endswith("(on a card of 4 multiprocessors)") for message in messages] == [True] * small


def test_a_shape_for_a_small_card_is_tried_on_one_where_it_is_asked_for():
    for problem, tried in ((shapes.on_small_card("dgrad")[0], True), (problems.FIRST["dgrad"], False)):
        assert any(case.small for case in plan.cases_at(problem, False, 0)) == tried


def test_convolutions_have_more_taps_than_a_block_stages_and_more_rows_than_a_step_keeps():
    many, tall = shapes.layers("conv2d")
    step = importlib.import_module("lessons.04_register_blocking.conv2d_register_tiled")
    assert many.reduction * step.multiple(min(step.FILTERS, many.K), step.VECTOR) > step.STAGED
    assert step.part(tall.R, tall.S, step.FILTERS)[0] < tall.R
    tensor = importlib.import_module("lessons.06_tensor_cores.conv2d_tensor_core")
    assert tensor.plan(*(getattr(many, name) for name in "CHWKRS"))["CHANNELS"] < many.C
    assert tensor.plan(*(getattr(tall, name) for name in "CHWKRS"))["PARTS"] > 1
