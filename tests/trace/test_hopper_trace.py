"""Hopper's asynchronous machine on the tracer: right kernels, and kernels wrong in one place each; the pipeline."""

import importlib.util
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hopper_kernels import (
    AT_END,
    CLUSTER,
    COPY,
    HANDED,
    HEAD,
    IM2COL,
    MULTIPLY,
    ONE_BLOCK,
    PROBLEM,
    REGISTERS,
    RIGHT,
    SLAB,
    TABLES,
    UNAWAITED,
    WRONG,
    WRONG_CLUSTERS,
    WRONG_SLABS,
    changed_slab,
    cluster_arguments,
    expected,
)  # fmt: skip
from sampling import one_of_each, some
from small_kernels import BODIES, changed, numbered

from common.catalog import catalog, problems
from common.report import traces
from common.trace import trace
from common.trace.hopper import mbarriers, wgmma
from lessons.toolkit.maps import Maps

ROOT = Path(__file__).parents[2]


def traced(path, problem=PROBLEM, **options):
    return trace.run(catalog.load(path, problem.ladder), problem, **{"every": True, **options})


@pytest.fixture
def launched(write):
    """Launch the kernel of a text that stands behind HEAD; the faults, or the trace itself."""

    def launch(text, configuration, *arguments, order="forward"):
        path = write("hopper_own.py", HEAD + text)
        spec = importlib.util.spec_from_file_location("hopper_own", path)
        module = importlib.util.module_from_spec(spec)
        exec(compile(path.read_text(), path, "exec"), vars(module))  # two texts of one second may have one length
        tracer = trace.Tracer(order, recording=True)
        with tracer:
            module.kernel[configuration](*arguments)
        (report,) = tracer.reports()
        return report, path

    return launch


def kinds(report):
    return {(fault.kind, fault.line) for fault in report.faults}


def first(report):
    """What is told first."""
    return report.faults[0].kind, report.faults[0].line


# --- right kernels ---


@pytest.mark.parametrize("order", ["forward", "backward"])
@pytest.mark.parametrize("problem", [PROBLEM, problems.Hgemm(M=1, N=8, K=8)])
def test_a_right_kernel_is_right_and_sound_in_every_order(order, problem):
    found = traced(RIGHT, problem, order=order)
    np.testing.assert_array_equal(found.output, expected(problem))
    assert found.faults == []


@pytest.mark.parametrize("order", ["forward", "backward"])
def test_blocks_of_a_cluster_fill_each_other_s_tiles(launched, order):
    a, *arguments = cluster_arguments()
    report, _ = launched(CLUSTER, (4, 32, 0, 4096), *arguments, order=order)
    assert report.faults == []
    for block in range(4):
        np.testing.assert_array_equal(arguments[1][block], a)


@pytest.mark.parametrize("N", [8, 136, 256])
@pytest.mark.parametrize("call", ["wgmma_f16", "wgmma_f16_rows", "wgmma_tf32"])
def test_wgmma_multiplies_what_descriptors_name(launched, call, N):
    dtype = np.float32 if call == "wgmma_tf32" else np.float16
    rng, row = np.random.default_rng(N), 128 // np.dtype(dtype).itemsize
    a, b = (rng.integers(-4, 5, (extent, row)).astype(dtype) for extent in (64, N))
    expected = a.astype(np.float64) @ b.T.astype(np.float64) + 1
    if call == "wgmma_tf32":  # of whose bits the last 13 are not read
        for part in (a, b):
            part.view(np.uint32)[:] += rng.integers(0, 1 << 13, part.shape, np.uint32)
    rows = call == "wgmma_f16_rows"
    panels = -(-N // 64) if rows else 1
    if rows:
        wide = np.zeros((64, 64 * panels), dtype)
        wide[:, :N] = b.T
        b_map, size = Maps().tiled(wide, (64, 64)), panels * 64 * 64
    else:
        b_map, size = Maps().tiled(b, (N, row)), N * row
    text = MULTIPLY.format(
        dtype="float" if call == "wgmma_tf32" else "half", N=N, A=64 * row, B=64 * 64, panels=panels, call=call,
        bytes=(64 * row + size) * a.itemsize, leading=8192 if rows else 0, step=128 if rows else 2,
    )  # fmt: skip
    c = np.full((64, N), np.nan, np.float32)
    shared = (64 * row + size) * a.itemsize
    report, _ = launched(text, (1, 128, 0, shared), Maps().tiled(a, (64, row)), b_map, c)
    assert report.faults == []
    np.testing.assert_array_equal(c, expected)
    assert report.fma == 64 * N * row


def product_of_ones(launched, changes):
    """What is told of a changed product of 64 x 8 sums of ones; the line that multiplies, and the sums."""
    text = MULTIPLY.format(
        dtype="half", N=8, A=4096, B=4096, panels=1, call="wgmma_f16", bytes=9216, leading=0, step=2,
    )  # fmt: skip
    maps = (Maps().tiled(np.ones((extent, 64), np.float16), (extent, 64)) for extent in (64, 8))
    c = np.full((64, 8), np.nan, np.float32)
    report, path = launched(changed(text, changes), (1, 128, 0, 9216), *maps, c)
    return report, numbered(path.read_text(), "wgmma_f16("), c


@pytest.mark.parametrize(
    ("add", "kind"), [("k > 0", None), ("k >= 0", "read-before-write"), ("thread > 9", "warp-sync")]
)
def test_a_product_that_is_not_added_takes_the_place_of_sums_that_nobody_has_set(launched, add, kind):
    changes = "        acc[i] = float32(1.0)", "        pass", " * k), 8)", f" * k), 8, {add})"
    report, line, c = product_of_ones(launched, changes)
    assert first(report) == (kind, line) if kind else report.faults == []
    if kind is None:
        assert (c == 64).all()


@pytest.mark.parametrize("old", ["descriptor(tiles, 0, 0, 1024) +", "descriptor(tiles, 4096, 0, 1024) +"])
def test_a_descriptor_that_names_no_swizzle_is_told_and_nothing_is_multiplied(launched, old):
    report, line, c = product_of_ones(launched, (old, "uint64(0) *"))
    assert kinds(report) == {("descriptor", line)}
    assert all("names no swizzle" in fault.what for fault in report.faults)
    assert (c == 1).all()


@pytest.mark.parametrize("at", [(0, 0), (3, 8), (-5, -16), (30, 90), (90, 0)])
@pytest.mark.parametrize("to", [(0, 0), (-7, 40), (0, 72)])
def test_boxes_are_zero_outside_and_nothing_is_written_there(launched, at, to):
    source = np.arange(1, 40 * 96 + 1).reshape(40, 96).astype(np.float16)
    target = np.full((32, 72), -1, np.float16)
    padded = np.zeros((300, 500), np.float16)
    padded[100:140, 100:196] = source
    box = padded[100 + at[0] : 116 + at[0], 100 + at[1] : 164 + at[1]]
    wanted = np.full((300, 500), -1, np.float16)
    wanted[100 + to[0] : 116 + to[0], 100 + to[1] : 164 + to[1]] = box
    report, _ = launched(
        COPY, (1, 32, 0, 2048), Maps().tiled(source, (16, 64)), Maps().tiled(target, (16, 64)), *at, *to
    )
    assert report.faults == []
    np.testing.assert_array_equal(target, wanted[100:132, 100:172])


WALKS = [
    ((1, 1, 1), (1, 1, 1), (1, 1, 1), 5, 32), ((2, 1, 3), (1, 0, 2), (1, 2, 1), 3, 0),
    ((1, 2, 2), (0, 2, 1), (2, 1, 2), 7, 64),
]  # fmt: skip


@pytest.mark.parametrize(("stride", "pad", "dilation", "first", "channel"), one_of_each(WALKS, lambda _: "a walk"))
def test_im2col_walks_over_the_windows(launched, stride, pad, dilation, first, channel):
    x = np.random.default_rng(1).integers(1, 99, (2, 5, 6, 7, 72)).astype(np.float16)
    taps, extents = (2, 2, 3), x.shape[1:4]
    per_axis = zip(extents, stride, pad, dilation, taps, strict=True)
    out = [(e + 2 * p - q * (k - 1) - 1) // s + 1 for e, s, p, q, k in per_axis]
    upper = [(o - 1) * s + 1 - e - p for o, s, e, p in zip(out, stride, extents, pad, strict=True)]
    x_map = Maps().im2col(x, [-p for p in pad], upper, 64, 48, stride)
    windows = [(n, *place) for n in range(2) for place in np.ndindex(*out)]
    padded = np.zeros((2, *(e + 2 * p for e, p in zip(extents, pad, strict=True)), 136), np.float16)
    padded[:, pad[0] : pad[0] + 5, pad[1] : pad[1] + 6, pad[2] : pad[2] + 7, :72] = x
    for tap in ((0, 0, 0), (1, 1, 2)):
        offsets = [k * q for k, q in zip(tap, dilation, strict=True)]
        n, *base = windows[first]
        base = [o * s - p for o, s, p in zip(base, stride, pad, strict=True)]
        found = np.full((48, 64), np.nan, np.float16)
        report, _ = launched(IM2COL, (1, 32, 0, 48 * 128), x_map, found, n, *base, channel, *offsets)
        wanted = np.zeros((48, 64), np.float16)
        for row, (n, *window) in enumerate(windows[first : first + 48]):
            at = [o * s + k for o, s, k in zip(window, stride, offsets, strict=True)]
            wanted[row] = padded[(n, *at)][channel : channel + 64]
        np.testing.assert_array_equal(found, wanted)
        assert report.faults == []


def test_a_warp_may_write_what_its_lane_sends(launched):
    c = np.full((16, 64), np.nan, np.float16)
    report, _ = launched(SLAB, (1, 32, 0, 1024), Maps().tiled(c, (8, 64)))
    assert report.faults == []
    assert not np.isnan(c).any()


@pytest.mark.parametrize("name", WRONG_SLABS)
def test_a_slab_that_may_not_leave_as_it_was_written_is_found(launched, name):
    text, kind, start = changed_slab(name)
    report, path = launched(text, (1, 32, 0, 1024), Maps().tiled(np.zeros((16, 64), np.float16), (8, 64)))
    assert first(report) == (kind, numbered(path.read_text(), start))


@pytest.mark.parametrize("order", ["forward", "backward"])
def test_a_slab_is_waited_for_by_the_thread_that_sent_it(launched, order):
    """A thread waits for groups of its own: the next one's wait says nothing of them."""
    c, own = np.full((32, 64), np.nan, np.float16), "if lane == 0: tma_wait_read(0)"
    for before, after, wrong in (("pass", "tma_wait_read(0)", []), (own, "pass", ["race"])):
        text = BODIES["handed_slab"].format(before=before, after=after)
        report, path = launched(text, (1, 64, 0, 1024), Maps().tiled(c, (8, 64)), order=order)
        assert kinds(report) == {(kind, numbered(path.read_text(), "tiles[i] =")) for kind in wrong}


def test_registers_that_a_launch_does_not_give_are_nobody_s(launched):
    out = np.zeros(384, np.int32)
    report, _ = launched(REGISTERS.format(few=40), (1, 384), out)
    assert report.faults == []
    report, path = launched(REGISTERS.format(few=48), (1, 384), out)
    assert kinds(report) == {("deadlock", numbered(path.read_text(), "take_registers("))}


WARPS = BODIES["warps"]


def test_warps_of_one_warpgroup_wait_for_each_other(launched):
    a = np.arange(24 * 64).reshape(24, 64).astype(np.float16)
    out = np.zeros((3, 32), np.float16)
    report, _ = launched(WARPS, (1, 128, 0, 1024), Maps().tiled(a, (8, 64)), out)
    assert report.faults == []
    np.testing.assert_array_equal(out, a[::8, :32])
    assert sum(one.accesses for one in report.select("global", "tma")) == 3  # not those of the launch that got stuck
    report, path = launched(
        WARPS.replace("barrier_arrive(bars, 1)", "barrier_init"[:0] + "pass"), (1, 128, 0, 1024),
        Maps().tiled(a, (8, 64)), out,
    )  # fmt: skip
    waits = {i for i, line in enumerate(path.read_text().splitlines(), 1) if "barrier_wait(" in line}
    assert {fault.kind for fault in report.faults} == {"deadlock"}
    assert {fault.line for fault in report.faults} <= waits


# --- wrong kernels ---


def in_an_order(names):
    """Each name with an order of threads and blocks, the other one on some days."""
    return one_of_each([(name, order) for name in names for order in ("forward", "backward")], lambda case: case[0])


@pytest.mark.parametrize(("name", "order"), some(in_an_order(WRONG), 8))
def test_what_is_wrong_is_found_at_its_line(write, name, order):
    changes, kind, start = WRONG[name]
    text = changed(RIGHT.read_text(encoding="utf-8"), changes)
    found = traced(write("hgemm_own.py", text), ONE_BLOCK, order=order)
    fault = found.faults[0]
    assert (fault.kind, fault.line) == (kind, numbered(text, start) if start else fault.line), found.faults


@pytest.mark.parametrize(("name", "order"), some(in_an_order(WRONG_CLUSTERS), 4, 2))
def test_what_is_wrong_in_a_cluster_is_found_at_its_line(launched, name, order):
    changes, kind, start = WRONG_CLUSTERS[name]
    report, path = launched(changed(CLUSTER, changes), (4, 32, 0, 4096), *cluster_arguments()[1:], order=order)
    assert first(report) == (kind, numbered(path.read_text(), start.strip()) if start else first(report)[1])


@pytest.mark.parametrize("order", ["forward", "backward"])
def test_a_block_must_not_end_before_others_have_reached_it(launched, order):
    report, path = launched(AT_END.format(waits=False), (2, 32), np.zeros(1), order=order)
    assert kinds(report) == {("left-cluster", numbered(path.read_text(), "barrier_arrive_at("))}
    report, _ = launched(AT_END.format(waits=True), (2, 32), np.zeros(1), order=order)
    assert report.faults == []


def test_a_block_must_not_end_before_a_copy_is_there(launched):
    source = Maps().tiled(np.ones((16, 64), np.float16), (16, 64))
    report, path = launched(UNAWAITED, (1, 32, 0, 2048), source, source, 0, 0, 0, 0)
    assert kinds(report) == {("copy-not-awaited", numbered(path.read_text(), "tma_load2("))}
    assert "counted at bars[0], is under way when the block ends" in report.faults[0].what


@pytest.mark.parametrize("waits", [True, False])
def test_a_barrier_that_counts_orders_ordinary_accesses(launched, waits):
    text = HANDED if waits else HANDED.replace("        barrier_wait(bars, 0, 0)\n", "")
    report, path = launched(text, (1, 64), np.zeros(32, np.float32))
    told = set() if waits else {("race", numbered(path.read_text(), "out[thread - 32]"))}
    assert kinds(report) == told


LATER_WARPS = BODIES["later_warps"]


@pytest.mark.parametrize("ordered", [True, False])
def test_each_warp_that_waits_must_know_that_the_barrier_is_made(launched, ordered):
    source, out = Maps().tiled(np.ones((16, 64), np.float16), (16, 64)), np.zeros(64, np.float16)
    text = LATER_WARPS if ordered else LATER_WARPS.replace("    cuda.syncthreads()\n", "")
    report, path = launched(text, (1, 64, 0, 2048), source, out)
    told = set() if ordered else {("mbarrier", numbered(path.read_text(), "barrier_wait("))}
    assert kinds(report) == told


ARGUMENTS = {  # what an instruction does not take
    "a base pixel that no window has": ((0, 0, 3, 0, 0, 0, 0, 0), "where no window begins"),
    "an offset of 32": ((0, 0, 0, 0, 0, 0, 0, 32), "the offsets (0, 0, 32) of a tap must be from 0 to 31"),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_what_im2col_does_not_take_is_told(launched, name):
    place, says = ARGUMENTS[name]
    x_map = Maps().im2col(np.ones((1, 4, 4, 4, 64), np.float16), (0, 0, 0), (-1, -1, -1), 64, 48, (1, 1, 1))
    report, path = launched(IM2COL, (1, 32, 0, 48 * 128), x_map, np.zeros((48, 64), np.float16), *place)
    assert first(report) == ("operand", numbered(path.read_text(), "tma_load_im2col"))
    assert says in report.faults[0].what


REFUSED = TABLES["refused"]  # of REGISTERS or CLUSTER


@pytest.mark.parametrize("name", some(list(REFUSED), 3, 2))
def test_what_no_instruction_takes_is_told_first(launched, name):
    ((old, new),), kind, start, says = REFUSED[name].values()
    registers = old in REGISTERS.format(few=40)
    text = changed(REGISTERS.format(few=40) if registers else CLUSTER, (old, new))
    if registers:
        report, path = launched(text, (1, 384), np.zeros(384, np.int32))
    else:
        report, path = launched(text, (4, 32, 0, 4096), *cluster_arguments()[1:])
    assert report.faults[0].kind == kind, report.faults
    assert says in report.faults[0].what
    lines = path.read_text().splitlines()
    assert not start or lines[report.faults[0].line - 1].strip().startswith(start)


@pytest.mark.parametrize("fields", one_of_each(["8, 1024", "0, 1025", "0, 1 << 18"], lambda _: "a field"))
def test_a_descriptor_holds_multiples_of_16_bytes(write, fields):
    text = changed(RIGHT.read_text(encoding="utf-8"), ("slot * STAGE, 0, 1024)", f"slot * STAGE, {fields})"))
    fault = traced(write("hgemm_own.py", text)).faults[0]
    assert (fault.kind, fault.line) == ("descriptor", numbered(text, "a = descriptor("))


def test_sums_are_the_matrix_unit_s_between_two_wgmma_and_before_they_land(write):
    one = "                wgmma_f16_rows(acc, 0, tiles, a + uint64(2 * k), b + uint64(128 * k), BLOCK_N)\n"
    for touched, start in (("acc[3] += float32(1.0)", "acc[3]"), ("acc[3] = float32(1.0)", "wgmma_f16_rows(")):
        text = changed(RIGHT.read_text(encoding="utf-8"), (one, one + f"                {touched}\n"))
        fault = traced(write("hgemm_own.py", text)).faults[0]
        assert (fault.kind, fault.line) == ("wgmma-order", numbered(text, start)), fault


def test_a_deadlock_says_what_is_missing(write):
    for name, words in (
        ("too many bytes", "24576 of 24592 bytes that line 61 expects"),
        ("a barrier of two arrivals", "1 of 2 arrivals have come"),
        ("never released", "of parity 0 of bars[3] is never complete: 0 of 1 arrivals have come"),
    ):
        found = traced(write("hgemm_own.py", changed(RIGHT.read_text(encoding="utf-8"), WRONG[name][0])))
        told = [fault.what for fault in found.faults if fault.kind == "deadlock"]
        assert any(words in text for text in told), told
        assert not any(" 0 of 0 bytes" in text for text in told), told


# --- what is counted ---


def test_what_is_counted():
    kernel = traced(RIGHT, problems.Hgemm(M=64, N=128, K=128)).main
    assert kernel.fma == 64 * 128 * 128
    loads, stores = kernel.select("global", "tma"), kernel.select("global", "tma store")
    assert sum(one.requests for one in loads) == 2 * 3
    assert sum(one.moved for one in loads) == (64 * 128 + 128 * 128) * 2 // 32
    assert sum(one.moved for one in stores) == 64 * 128 * 2 // 32
    assert sum(one.bytes_moved for one in loads) == 64 * 128 * 2 + 128 * 128 * 2
    (read,) = kernel.select("shared", "wgmma")
    assert read.requests == 2 * 4  # 16 k each
    assert read.moved == 8 * (64 * 16 + 16 * 128) * 2 // 128
    assert sum(one.moved for one in kernel.select("shared", "tma")) == 2 * (64 * 64 + 64 * 128) * 2 // 128
    msgspec.json.encode(kernel)


def test_a_box_at_the_edge_touches_fewer_sectors():
    loads = traced(RIGHT, problems.Hgemm(M=8, N=8, K=8)).main.select("global", "tma")
    assert [one.moved for one in loads if one.array == "a_map"] == [4]  # 8 rows of 16 bytes, one after the other


# --- clocks, descriptors ---


@pytest.mark.parametrize(("swizzle", "seen"), [(128, True), (64, True), (32, True)])
def test_only_b_along_k_may_begin_at_any_row(swizzle, seen):
    for row in range(9):
        found = wgmma.Descriptor.of(int(wgmma.encoded(8192 + row * swizzle, 0, 8 * swizzle)))
        assert bool(found.wrong(8)) == (row % 8 > 0)
        assert bool(found.wrong(8, any_row=True)) == (row % 8 > 0 and not seen)
        assert "stride" in found._replace(stride=4 * swizzle, start=8192).wrong(8, any_row=True)


# --- the pipeline over time ---


@pytest.fixture(scope="module")
def four_stages():
    step = catalog.find("hgemm_specialised")
    problem = problems.Hgemm(M=128, N=256, K=640)
    return traced(step.path, problem)


def test_stages_are_filled_full_multiplied_and_free_in_turn(four_stages):
    spans = four_stages.main.pipeline
    stages = [f"filled[{i}]" for i in range(4)]
    assert list(dict.fromkeys(span.stage for span in spans)) == stages
    for stage in stages:
        own = [span for span in spans if span.stage == stage]
        states = [span.state for span in own]
        assert states == list(mbarriers.MARKS) * (len(own) // 4)
        assert len(own) // 4 == (3 if stage in stages[:2] else 2)  # ten steps
        for before, after in pairwise(own):
            assert before.end == after.start
    # while one is multiplied, others are being filled
    multiplied = next(s for s in spans if s.state == "multiplied" and s.start > 20)
    assert any(s.state == "filling" and s.start <= multiplied.start < s.end for s in spans)


def test_a_block_is_traced_with_its_cluster():
    step = catalog.find("gemm_tf32x3")
    found = trace.run(
        catalog.load(step.path, step.ladder), problems.Gemm(M=512, N=512, K=128), block=(3, 0, 0), every=False
    )
    kernel = found.main
    assert (kernel.blocks, kernel.first_block) == (2, (2, 0, 0))
    assert kernel.fma == 3 * 2 * 128 * 128 * 128
    assert kernel.faults == []
    # each block asks for its own A, and for halves of the two parts of B that arrive in both
    moved = sorted((one.array, one.moved) for one in kernel.select("global", "tma"))
    assert moved == [("a_map", 2 * 128 * 128 * 4 // 32), *[("b_map", 128 * 128 * 4 // 32)] * 2]
    assert sum(one.moved for one in kernel.select("shared", "tma")) == 2 * (128 + 2 * 128) * 128 * 4 // 128
    (table, *_) = traces.traced(kernel)
    assert "the cluster of 2 that begins with block (2, 0, 0)" in str(table.title)


def test_the_steps_are_right_and_sound_at_edges():
    steps = [step for step in catalog.steps() if step.path.parent.name == "07_hopper" and step.ladder == "hgemm"]
    for step in one_of_each(steps, lambda _: "a step"):
        for problem in (problems.Hgemm(M=136, N=264, K=72), problems.Hgemm(M=300, N=24, K=136)):
            found = traced(step.path, problem)
            np.testing.assert_array_equal(found.output, expected(problem))
            assert found.faults == [], step.name


PARTLY = BODIES["partly"]


@pytest.mark.parametrize("rows", [8, 7])
def test_only_what_is_written_may_be_copied(write, rows):
    head = HEAD + "import numpy as np\nfloat16 = np.float16\n"
    path = write("hgemm_own.py", head + PARTLY.replace("ROWS", str(rows)))
    found = trace.run(catalog.load(path, "hgemm"), problems.Hgemm(M=1, N=8, K=8), every=True)
    line = numbered(path.read_text(), "tma_load2(")
    faults = {(fault.kind, fault.line) for kernel in found.kernels for fault in kernel.faults}
    assert faults == (set() if rows == 8 else {("read-before-write", line)})
