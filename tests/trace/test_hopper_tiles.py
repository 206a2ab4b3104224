"""Hopper, traced: narrow swizzles, copies that round, A in registers.

One block goes over several tiles, as a large problem makes it do.
"""

import functools
import importlib
from functools import partial
from unittest import mock

import numpy as np
import pytest
from sampling import covering, one_of_each
from small_kernels import BODIES

from common.catalog import catalog, inputs, problems, reference
from common.check import check, tasks
from common.run import child
from common.run.messages import Check
from common.trace.hopper import wgmma
from lessons.toolkit import hopper

pytestmark = pytest.mark.usefixtures("traced")
ORDERS = ("forward", "backward", 1)
LESSON = catalog.LESSONS / "07_hopper"
CONV = {"N": 2, "C": 8, "D": 1, "H": 11, "W": 16, "K": 8, "T": 1, "R": 3, "S": 3, "pad_h": 1, "pad_w": 1}
GEMM = problems.Gemm(M=140, N=136, K=72)
ONE_BLOCK = problems.Gemm(M=60, N=72, K=72)  # enough for a mistake
TILES = (
    {"BLOCK_M": 128, "BLOCK_N": 64, "CONSUMERS": 2, "RESIDENT": 0},
    {"BLOCK_M": 128, "BLOCK_N": 64, "CONSUMERS": 2, "RESIDENT": 9},
    {"BLOCK_M": 192, "BLOCK_N": 128, "CONSUMERS": 3, "RESIDENT": 0},
    {"BLOCK_M": 128, "BLOCK_N": 256, "CONSUMERS": 2, "RESIDENT": 0},
)


def checked(path, problem=ONE_BLOCK, **options):
    """What a check says of a file at one shape."""
    tasks._kept.clear()  # the file is another one each time
    shape = problem.shape()
    result = child.attempt(Check(path=str(path), ladder=problem.ladder, shape=shape, depth="once", **options))
    return result.status, result.faults


def conv(ladder, **changes):
    return problems.on_ladder(ladder, problems.Conv3d(**(CONV | changes)))


def launched(path, problem, operands, helpers=None, **tile):
    """What a launch on a GPU of one multiprocessor, or one pair of them, leaves."""
    module = catalog.load(path, problem.ladder, helpers=helpers)
    if tile:
        module.launch = partial(module.launch, **(module.shipped(problem) | tile))
    with mock.patch.object(hopper, "multiprocessors", return_value=2 if problem.form == "gemm" else 1):
        bench = check.Bench(module, problem)
        bench.load(*operands)
        bench.y.blank()
        bench.run()
        return bench.y.get()


EACH_TILE = [(tile, C) for tile in range(len(TILES)) for C in (8, 24, 72)]


@pytest.mark.parametrize(("tile", "C"), one_of_each(EACH_TILE, lambda case: TILES[case[0]]["RESIDENT"] > 0))
def test_a_convolution_is_right_with_every_kind_of_tile(tile, C):
    problem, tile = conv("hconv3d", C=C, stride_h=2), TILES[tile]
    if tile["RESIDENT"]:
        tile = tile | {"RESIDENT": 9 * -(-C // 64)}
    operands = inputs.integers(problem, 0)
    got = launched(LESSON / "hconv3d_im2col.py", problem, operands, **tile)
    np.testing.assert_array_equal(got, reference.expected(problem, *operands))


FEW = (
    {"C": 32, "K": 64, "N": 6, "D": 2, "H": 5, "W": 9, "T": 3, "pad_d": 1},
    {"C": 72, "K": 40, "N": 6, "H": 6, "W": 21, "R": 2, "pad_w": 0, "dilation_w": 2, "stride_h": 2},
    {"H": 13, "W": 30, "R": 2, "S": 5, "pad_w": 2},
    {"H": 7, "W": 100, "S": 2, "pad_w": 3, "pad_h": 2, "dilation_h": 2},
    # of int8: rows of 64 bytes, of 128 and of 32
    {"ladder": "iconv3d", "C": 64, "K": 60, "H": 7, "W": 100, "S": 2, "pad_w": 3, "pad_h": 2, "dilation_h": 2},
    {"ladder": "iconv3d", "C": 144, "K": 40, "H": 6, "W": 21, "R": 2, "pad_w": 0, "dilation_w": 2, "stride_h": 2},
    {"ladder": "iconv3d", "C": 16, "K": 64, "H": 13, "W": 30, "R": 2, "S": 5, "pad_w": 2},
    # a stage serves all rows of taps
    {"ladder": "iconv3d", "C": 48, "K": 36, "H": 16, "W": 22, "D": 3, "T": 2, "pad_d": 1},
    {"C": 64, "K": 64, "H": 9, "W": 30, "N": 4, "R": 2, "pad_h": 0},
)
# each of them, and each order
IN_ORDER = [(number, direction) for number in range(len(FEW)) for direction in ORDERS]
FEW_TRIED = covering(IN_ORDER, lambda case: case[0], lambda case: case[1])
few_filters = importlib.import_module("lessons.07_hopper.helpers.few_filters")
KINDS = {"hconv3d": ("07_hopper", "hconv3d_im2col", "FP16"), "iconv3d": ("09_fewer_bits", "iconv3d_im2col", "INT8")}


@pytest.fixture
def one_multiprocessor(monkeypatch):
    monkeypatch.setattr(few_filters, "multiprocessors", lambda: 1)
    monkeypatch.setattr(hopper, "multiprocessors", lambda: 1)


@functools.cache
def expected(problem):
    """The operands, and what is right."""
    operands = inputs.integers(problem, 0)
    return operands, reference.expected(problem, *operands)


def planned(problem):
    lesson, step, name = KINDS[problem.ladder]
    kind = getattr(importlib.import_module(f"lessons.{lesson}.{step}"), name)
    *taps, C = problem.weight_shape
    return few_filters.plan(kind, problem.output_shape, (*taps, C // kind.packed), problem.geometry)


@pytest.mark.usefixtures("one_multiprocessor")
@pytest.mark.parametrize(("number", "direction"), FEW_TRIED)
def test_few_filters_are_right(number, direction, traced):
    problem = conv(**{"ladder": "hconv3d"} | FEW[number])
    assert planned(problem)
    operands, right = expected(problem)
    traced.order = direction
    lesson, step, _ = KINDS[problem.ladder]
    got = launched(catalog.LESSONS / lesson / f"{step}.py", problem, operands)
    np.testing.assert_array_equal(got, right)


@pytest.mark.usefixtures("one_multiprocessor")
@pytest.mark.parametrize(
    "changes",
    [{"K": 72}, {"S": 1, "pad_w": 0}, {"stride_w": 2}, {"pad_w": 9}, {"C": 256, "T": 3, "pad_d": 1}, {"W": 255}],
)
def test_what_is_not_for_few_filters_is_left_to_the_others(changes):
    assert planned(conv("hconv3d", **changes)) is None


RELEASED = "                hopper.wgmma_wait(0)\n                if leads"
LEFT = "                    hopper.tma_wait_read(0)  # what lay here has left\n"


FEW_WRONG = (
    ("s % S * X_TAP + k", "k"),  # each tap finds the pixels of the first
    ("s // S * X_ROW + ", ""),  # each row of taps finds those of the first
    ('upper[1] += tile["ROWS"] - 1', "pass"),  # a tile's last rows are not walked to
    ("start = low ^ 8 * half", "start = low ^ 8 - 8 * half"),  # upper filters for lower ones
    ("[start + second + at]", "[start + first + at]"),  # the second of two pixels in the first one's place
    ("if 8 * j % LINE < Q:", "if 8 * j % LINE < Q - 8:"),  # a row's last pixels
    ("                hopper.fence_async()\n", ""),
    ("                hopper.barrier_wait(yours, team, parity)\n", ""),
    (LEFT, LEFT.replace("hopper.tma_wait_read(0)", "pass")),
    (RELEASED, RELEASED.replace("hopper.wgmma_wait(0)", "pass")),
)


@pytest.mark.parametrize(("old", "new"), [("", ""), *one_of_each(FEW_WRONG, lambda _: "a mistake")])
def test_mistakes_with_few_filters_are_found(old, new, write):
    text = (LESSON / "helpers" / "few_filters.py").read_text(encoding="utf-8")
    assert not old or text.count(old) == 1
    text = text.replace(old, new).replace("multiprocessors()", "1").replace("hopper.persistent(", "min(1, ")
    own = write("few_own.py", text)
    problem = conv("hconv3d", N=3, H=10, W=20)
    status, _ = checked(LESSON / "hconv3d_im2col.py", problem, helpers={"few_filters": str(own)})
    assert status in ("wrong", "crashed") if old else status == "right"


@pytest.mark.parametrize("tile", one_of_each(TILES, lambda _: "a tile"))
def test_the_copy_engine_rounds_to_tf32(tile):
    problem = conv("conv3d")
    x, filt = inputs.normals(problem, 0)
    got = launched(LESSON / "conv3d_tf32_im2col.py", problem, (x, filt), **tile)
    rounded = reference.full(problem, reference.nearest_tf32(x), reference.nearest_tf32(filt))
    np.testing.assert_allclose(got, rounded, rtol=0, atol=1e-4)
    assert np.abs(got - reference.full(problem, x, filt)).max() > 1e-3


ROUNDED = {  # as an H200 does
    0x3F801000: 0x3F800000, 0x3F803000: 0x3F804000, 0x3F801001: 0x3F802000, 0x3F800FFF: 0x3F800000,
    0xBF801000: 0xBF800000, 0xBF803000: 0xBF804000, 0x7F7FFFFF: 0x7F800000,
}  # fmt: skip


def test_ties_are_rounded_to_even():
    found = reference.nearest_tf32(np.array([*ROUNDED], np.uint32).view(np.float32)).view(np.uint32)
    assert [hex(value) for value in found] == [hex(value) for value in ROUNDED.values()]
    not_numbers = np.array([0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(reference.nearest_tf32(not_numbers)).all()


COPIED = BODIES["copied"]


def test_ties_are_rounded_to_even_as_they_are_copied(write):
    problem = problems.Gemm(M=1, N=32, K=32)
    bench = check.Bench(catalog.load(write("gemm_own.py", COPIED), "gemm"), problem)
    a, b = inputs.integers(problem, 0)
    a.view(np.uint32)[0, : len(ROUNDED)] = [*ROUNDED]
    bench.load(a, b)
    bench.y.blank()
    bench.run()
    found = bench.y.get().view(np.uint32)[0, : len(ROUNDED)]
    assert [hex(value) for value in found] == [hex(value) for value in ROUNDED.values()]


@pytest.mark.parametrize(("row", "mask"), [(128, 7), (64, 3), (32, 1)])
def test_a_tile_is_swizzled_as_wide_as_its_rows_and_a_descriptor_finds_it(row, mask):
    descriptor = wgmma.Descriptor.of(int(wgmma.encoded(2048, 0, 8 * row)))
    assert (descriptor.swizzle, descriptor.wrong(2)) == (row, "")
    places = wgmma.operand(16, row // 2, 2, descriptor)
    r, piece = np.ogrid[:16, : row // 16]
    address = 2048 + r * row + piece * 16
    np.testing.assert_array_equal(2 * places[:, ::8], address ^ ((address >> 7) & mask) << 4)


@pytest.mark.parametrize("direction", one_of_each(ORDERS, lambda _: "an order"))
def test_three_products_are_right(direction, traced):
    operands = inputs.normals(GEMM, 0)
    traced.order = direction
    got = launched(LESSON / "gemm_tf32x3.py", GEMM, operands)
    bound = reference.error_bound(GEMM, reference.full(GEMM, *map(np.abs, operands)))
    assert (np.abs(got - reference.full(GEMM, *operands)) <= bound).all()


COMMIT = "                hopper.wgmma_commit()\n"
SPLIT = "                split_a(tiles, a_at + stage * uint32(STAGE), swizzle, high, low)\n"
FENCE = "                hopper.wgmma_fence()\n"


CHANGED = [
    (COMMIT, COMMIT + "                low[0] = float32(0.0)\n"),
    (FENCE, FENCE + "                high[0] = float32(0.0)\n"),
]


@pytest.mark.parametrize(("old", "new"), one_of_each(CHANGED, lambda _: "a place"))
def test_fragments_that_are_changed_under_way_are_found(write, old, new):
    text = (LESSON / "gemm_tf32x3.py").read_text(encoding="utf-8")
    assert old in text
    status, found = checked(write("gemm_own.py", text.replace(old, new)), ONE_BLOCK, precision="tf32x3")
    assert (status, found[0].kind) == ("wrong", "wgmma-order")
    assert "high is" in found[0].what or "low is" in found[0].what


SYNC = "                    cuda.syncwarp()  # threads have read A: a stage is empty when every warp says so\n"
SWIZZLED = "(right ^ row % 8)"


REGISTERS_WRONG = {
    "one set": ("s * FRAG", "0 * FRAG", "wgmma-order"),
    "no syncwarp": (SYNC, "", "race"),
    "too few arrivals": ("STAGES, CONSUMERS * 4", "STAGES, CONSUMERS", "mbarrier"),
    "no swizzle": (SWIZZLED, "right", ""),
    "changed under way": (
        "b_k, BLOCK_N)\n", f"b_k, BLOCK_N)\n{' ' * 8}frag[s * FRAG] = frag[0]\n", "wgmma-order"
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", one_of_each(list(REGISTERS_WRONG), lambda _: "a mistake"))
def test_mistakes_with_a_in_registers_are_found(write, mistake):
    old, new, kind = REGISTERS_WRONG[mistake]
    text = (LESSON / "hgemm_register_operand.py").read_text(encoding="utf-8")
    assert old in text
    problem = problems.Hgemm(M=60, N=72, K=328)
    status, found = checked(write("hgemm_own.py", text.replace(old, new)), problem)
    assert status in ("wrong", "crashed")
    assert [one.kind for one in found[:1]] == ([kind] if kind else [])
