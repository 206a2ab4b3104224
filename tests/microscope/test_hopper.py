"""Hopper's asynchronous machine in the simulator: right kernels, and kernels wrong in one place each.

It lets everything be late and judges nothing; what a check says of a kernel that is wrong, the tracer has told it.
"""

import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from sampling import some

from common.book import catalog, limits, problems, reference
from common.explain import diagnose, faults
from common.explain.faults import Fault
from common.jobs import tasks
from common.jobs.messages import Check
from common.measure import check, inputs
from common.microscope import boxes, hazards, lanes, order, simulated_copies, simulator, trace
from common.microscope.simulated_threads import AsynchronousError, DeadlockError
from common.run import child
from lessons import hopper

simulator.install()
RIGHT = Path(__file__).parents[1] / "patterns" / "hgemm_hopper.py"
PROBLEM = problems.Hgemm(M=72, N=136, K=328)
ONE_BLOCK = problems.Hgemm(M=40, N=120, K=328)  # enough for a mistake: all turns of the slots


def launched(path, problem=PROBLEM):
    bench = check.Bench(catalog.load(path, problem.ladder), problem)
    bench.load(*inputs.integers(problem, 0))
    bench.y.blank()
    bench.step.launch(bench.x.array, bench.y.array)  # in the order that is set; the bench's own launches have theirs
    return bench.y.get()


def checked(path, problem=ONE_BLOCK, **options):
    """What a check in the simulator says of a file, without a case beside it that is traced.

    What wrong values suggest is left out: that is of tests/explain.
    """
    tasks._kept.clear()  # the file is another one each time
    task = Check(path=str(path), ladder=problem.ladder, shape=problem.shape(), depth="once", **options)
    with mock.patch.object(diagnose, "explain", return_value=""):
        result = child._attempt(task)
    return result["status"], [Fault.of(one) for one in result.get("faults", [])]


def shown(path, problem=ONE_BLOCK):
    """Does a launch show, by its results or by an error, that the kernel is wrong?"""
    try:
        return not np.array_equal(launched(path, problem), expected(problem))
    except (AsynchronousError, IndexError):
        return True


@functools.cache
def expected(problem=PROBLEM):
    return reference.expected(problem, *inputs.integers(problem, 0))


def numbered(text, start):
    """The number of the first line that starts with these words."""
    return next(i for i, line in enumerate(text.splitlines(), 1) if line.strip().startswith(start))


@pytest.mark.parametrize("direction", simulator.ORDERS)
@pytest.mark.parametrize("problem", [PROBLEM, problems.Hgemm(M=1, N=8, K=8)])
def test_a_right_kernel_is_right_in_every_order(direction, problem):
    with simulator.order(direction):
        np.testing.assert_array_equal(launched(RIGHT, problem), expected(problem))


FULL = "            barrier_wait(bars, slot, turn % 2)\n"
FREE = "                barrier_wait(bars, STAGES + slot, turn % 2 ^ 1)\n"
RELEASE = "            if thread == 128:\n                barrier_arrive(bars, STAGES + slot)\n"
WAIT = "            wgmma_wait(0)\n"
WGMMA = "wgmma_f16_rows("

LOAD_A = "tma_load2(tiles, slot * STAGE, a"
FIRST = "            for k in range(4):\n"
STORE = "    if thread == 128:\n        for"
ONE_SLOT = "slot, turn = k0 // BLOCK_K % STAGES, k0 // BLOCK_K // STAGES\n                b"
EXPECT = "                barrier_expect(bars, slot, 2 * STAGE)\n"
OUT = "    out = STAGES * STAGE\n"
FENCE = "            wgmma_fence()\n"

# What stands in place of what; the kind of the fault, and the start of the line it names, unless that depends.
WRONG = {
    "no wait for the bytes": ((FULL, ""), "copy-not-awaited", WGMMA),
    "waits for the wrong parity": ((FULL, FULL.replace("% 2", "% 2 ^ 1")), "copy-not-awaited", WGMMA),
    "waits at another slot": ((FULL, FULL.replace("slot,", "0,")), "copy-not-awaited", WGMMA),
    "no wait for a free slot": ((FREE, ""), "mbarrier", "barrier_expect("),
    "free slots of the wrong parity": ((FREE, FREE.replace(" ^ 1", "")), "deadlock", "barrier_wait(bars, STAGES"),
    "released before it is read": ((WAIT + RELEASE, RELEASE + WAIT), "race", LOAD_A),
    "never released": ((RELEASE, ""), "deadlock", "barrier_wait(bars, STAGES"),
    "released by all": ((RELEASE, RELEASE.replace("== 128", ">= 128")), "mbarrier", "barrier_arrive("),
    "released twice": ((RELEASE, RELEASE + RELEASE[RELEASE.index("\n") + 1 :]), "mbarrier", ""),
    "one slot for all": ((ONE_SLOT, "slot, turn = 0, k0 // BLOCK_K\n                b"), "deadlock",
                         "barrier_wait(bars, STAGES"),
    "too few bytes": ((EXPECT, EXPECT.replace("STAGE)", "STAGE - 8192)")), "mbarrier", "barrier_expect("),
    "too many bytes": ((EXPECT, EXPECT.replace("STAGE)", "STAGE + 16)")), "deadlock", "barrier_wait(bars, slot"),
    "arrives in vain": ((EXPECT, EXPECT.replace("expect", "arrive").replace(", 2 * STAGE", "") + EXPECT), "mbarrier",
                        "barrier_expect("),
    "no publication": (("        publish_barriers()\n", ""), "mbarrier", "barrier_wait(bars, STAGES"),
    "no barrier after it": (("    cuda.syncthreads()\n    out", "    out"), "mbarrier", ""),
    "no barrier made": (("            barrier_init(bars, slot, 1)\n", ""), "mbarrier", ""),
    "a barrier of two arrivals": (("barrier_init(bars, slot, 1)", "barrier_init(bars, slot, 2)"), "deadlock",
                                  "barrier_wait(bars, slot"),
    "stride of A": (("slot * STAGE, 0, 1024)", "slot * STAGE, 0, 512)"), "descriptor", WGMMA),
    "stride of B": (("2 * PANEL, 1024)", "2 * PANEL, 2048)"), "descriptor", WGMMA),
    "leading offset of B": (("2 * PANEL, 1024)", "PANEL, 1024)"), "descriptor", WGMMA),
    "tiles that nobody wrote": (("slot * STAGE + A_TILE, 2", "slot * STAGE + 3 * STAGE, 2"), "read-before-write",
                                WGMMA),
    "no fence of the sums": ((FENCE, ""), "wgmma-order", WGMMA),
    "sums changed after the fence": ((FENCE, FENCE + "            acc[0] += float32(1.0)\n"), "wgmma-order", WGMMA),
    "sums changed before the wait": ((WAIT, "            acc[0] = float32(0.0)\n" + WAIT), "wgmma-order", WGMMA),
    "no wait for the sums": ((WAIT, ""), "race", LOAD_A),
    "half a warpgroup": ((FIRST, FIRST.replace("4", "4 if thread < 192 else 3")), "warp-sync", WGMMA),
    "other descriptors for half of it": (("slot * STAGE, 0, 1024)", "slot * STAGE + thread // 192 * 64, 0, 1024)"),
                                         "warp-sync", WGMMA),
    "written while a copy fills it": ((EXPECT, EXPECT.replace("                ", "                if slot:\n"
                                       "                    tiles[5] = to_half(float32(0.0))\n                ", 1)),
                                      "race", "tiles[5]"),
    "no fence of the tile": (("        fence_async()\n", ""), "proxy-fence", "tma_store2("),
    "no barrier before the store": (("    cuda.syncthreads()\n" + STORE, STORE), "proxy-fence", "tma_store2("),
    "no wait for the store": (("        tma_wait_read(0)\n", ""), "copy-not-awaited", "tma_store2("),
    "no group of stores": (("        tma_commit()\n", ""), "copy-not-awaited", "tma_store2("),
    "written before it is stored": (("        tma_commit()\n", "        tma_commit()\n        tiles[out + 5] = "
                                     "to_half(acc[0])\n"), "race", "tiles[out + 5]"),
    "a misaligned tile": ((LOAD_A, LOAD_A.replace("STAGE", "STAGE + 8")), "misaligned", "tma_load2(tiles, slot"),
    "a tile outside": ((OUT, OUT.replace("\n", " + PANEL\n")), "outside", "tiles[at] ="),
    "more registers than there are": (("take_registers(200)", "take_registers(256)"), "deadlock", "take_registers("),
}  # fmt: skip


# Of these some orders, or all, give the right result: the tracer alone knows.
SILENT = {
    "waits at another slot", "released before it is read", "no publication", "no barrier after it",
    "no fence of the sums", "sums changed before the wait", "written while a copy fills it", "no fence of the tile",
}  # fmt: skip


@pytest.fixture
def wrong(write):
    """The path and the text of a kernel that is wrong in this way."""

    def make(name):
        changes, _, _ = WRONG[name]
        text = RIGHT.read_text(encoding="utf-8")
        for old, new in zip(changes[::2], changes[1::2], strict=True):
            assert old in text
            text = text.replace(old, new)
        return write("hgemm_own.py", text), text

    return make


@pytest.mark.parametrize("name", some(list(WRONG), 4))
def test_what_is_wrong_is_told_by_a_check_with_its_line(wrong, name):
    path, text = wrong(name)
    status, found = checked(path)
    _, kind, start = WRONG[name]
    assert status in ("wrong", "crashed")
    assert found[0].kind == kind
    assert found[0].code
    assert not start or found[0].line == numbered(text, start)


@pytest.mark.parametrize("name", some([name for name in WRONG if name not in SILENT], 4))
@pytest.mark.parametrize("direction", simulator.ORDERS)
def test_what_is_wrong_shows_in_the_results(wrong, name, direction):
    path, _ = wrong(name)
    with simulator.order(direction):
        assert shown(path)


def test_a_case_beside_one_that_is_traced_leaves_it_what_is_unsound(wrong):
    path, _ = wrong("no fence of the sums")
    assert checked(path, sole=False) == ("right", [])
    status, (fault,) = checked(path, engine="traced")
    assert (status, fault.kind) == ("wrong", "wgmma-order")


def test_what_cannot_be_traced_is_judged_by_its_results(wrong, monkeypatch):
    def untraced(*_, **__):
        raise lanes.TraceError("not traced")

    monkeypatch.setattr(trace.Tracer, "run", untraced)
    status, found = checked(RIGHT, engine="traced")
    assert (status, found) == ("right", [])
    path, _ = wrong("no wait for the bytes")
    status, found = checked(path, engine="traced")
    assert (status, found[0].kind, found[0].line) == ("crashed", "mbarrier", 61)
    assert "has had its 1 arrival" in found[0].what
    path, _ = wrong("no wait for the store")
    status, found = checked(path, engine="traced")
    assert (status, found[0].kind) == ("wrong", "unwritten")


ONE_MORE = """        wgmma_fence()
        wgmma_f16_rows(acc, 0, tiles, a, b, BLOCK_N)
        wgmma_commit()
"""


@pytest.fixture
def early(write):
    """The path and text of a kernel that waits for its last wgmma by ``wait`` alone, after it has used the sums."""

    def make(wait):
        text = RIGHT.read_text(encoding="utf-8").replace("K, BLOCK_K)", "min(K, 64), BLOCK_K)")
        text = text.replace(WAIT + RELEASE, WAIT + ONE_MORE).replace(
            "        fence_async()\n", wait + "        fence_async()\n"
        )
        return write("hgemm_own.py", text), text

    return make


def test_sums_are_no_numbers_before_the_wait_and_a_watch_names_the_line_that_reads_them(early):
    path, text = early("        wgmma_wait(0)\n")
    assert np.isnan(launched(path)).all()
    with hazards.watching(str(path), 60.0) as watch, simulator.order("forward"):
        launched(path)
    assert [(note.kind, note.line) for note in watch.notes] == [("wgmma-order", numbered(text, "tiles[at] ="))]


def test_a_thread_must_not_end_before_it_has_waited_for_its_sums(early):
    path, text = early("")
    assert np.isnan(launched(path)).all()
    _, found = checked(path)
    assert (found[0].kind, found[0].line) == ("wgmma-order", numbered(text, ONE_MORE.splitlines()[1].strip()))


@pytest.mark.parametrize("direction", simulator.ORDERS)
def test_a_watch_sees_nothing_in_a_right_kernel(direction):
    with hazards.watching(str(RIGHT), 60.0) as watch, simulator.order(direction):
        np.testing.assert_array_equal(launched(RIGHT), expected())
    assert watch.notes == []


HANDED = """
@jit(64)
def kernel(out):
    shared = cuda.shared.array(32, float32)
    bars = barrier_array(1)
    thread = cuda.threadIdx.x
    if thread == 0:
        barrier_init(bars, 0, 32)
        publish_barriers()
    cuda.syncthreads()
    if thread < 32:
        shared[thread] = float32(thread)
        barrier_arrive(bars, 0)
    else:
        barrier_wait(bars, 0, 0)
        out[thread - 32] = shared[63 - thread]
"""


@pytest.mark.parametrize("waits", [True, False])
def test_a_barrier_that_counts_orders_ordinary_accesses(kernel, waits):
    made, path = kernel(HANDED if waits else HANDED.replace("        barrier_wait(bars, 0, 0)\n", ""))
    out = np.zeros(32, np.float32)
    with hazards.watching(str(path), 60.0) as watch, simulator.order("forward"):
        made[1, 64](out)
    assert not waits or np.array_equal(out, np.arange(32)[::-1])
    assert ("race" in {note.kind for note in watch.notes}) == (not waits)
    assert not waits or watch.notes == []


def test_copies_arrive_in_another_order_from_launch_to_launch(monkeypatch):
    arrived = []
    deliver = simulated_copies.CopyEngine.deliver

    def noted(engine):
        before = list(engine._flying)
        done = deliver(engine)
        arrived.extend(i for i, copy in enumerate(before) if copy not in engine._flying)
        return done

    monkeypatch.setattr(simulated_copies.CopyEngine, "deliver", noted)
    orders = []
    for direction in simulator.ORDERS:
        arrived.clear()
        with simulator.order(direction):
            launched(RIGHT)
        orders.append(tuple(arrived))
    assert len(set(orders)) == len(orders)


def test_tiles_that_are_free_may_be_used_again(write):
    text = RIGHT.read_text(encoding="utf-8").replace("    out = STAGES * STAGE\n", "    out = 0\n")
    np.testing.assert_array_equal(launched(write("hgemm_own.py", text)), expected())


# --- each helper on its own ---

HEAD = """
from numba import cuda, float32, uint64
from lessons.hopper import *
from lessons.tensorcores import to_half
"""


@pytest.fixture
def kernel(write):
    """The kernel of a text that stands behind HEAD, and the path of its file."""

    def make(text):
        path = write("hopper_own.py", HEAD + text)
        spec = importlib.util.spec_from_file_location("hopper_own", path)
        module = importlib.util.module_from_spec(spec)
        exec(compile(path.read_text(), path, "exec"), vars(module))  # two texts of one second may have one length
        return module.kernel, path

    return make


def raised(path, launch, *arguments):
    with pytest.raises(Exception) as caught:
        launch(*arguments)
    return faults.of_error(caught.value, path)


MULTIPLY = """
@jit(128)
def kernel(a_map, b_map, c):
    tiles = {dtype}_tiles()
    bars = barrier_array(1)
    acc = cuda.local.array({N} // 2, float32)
    thread = cuda.threadIdx.x
    if thread == 0:
        barrier_init(bars, 0, 1)
        publish_barriers()
        barrier_expect(bars, 0, {bytes})
        tma_load2(tiles, 0, a_map, bars, 0, 0, 0)
        for panel in range({panels}):
            tma_load2(tiles, {A} + panel * {B}, b_map, bars, 0, 0, panel * 64)
    cuda.syncthreads()
    barrier_wait(bars, 0, 0)
    for i in range({N} // 2):
        acc[i] = float32(1.0)
    wgmma_fence()
    for k in range(4):
        a = descriptor(tiles, 0, 0, 1024) + uint64(2 * k)
        {call}(acc, 0, tiles, a, descriptor(tiles, {A}, {leading}, 1024) + uint64({step} * k), {N})
    wgmma_commit()
    wgmma_wait(0)
    warp, lane = thread // 32, thread % 32
    for i in range({N} // 2):
        c[16 * warp + lane // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (lane % 4) + i % 2] = acc[i]
"""


@pytest.mark.parametrize("N", [8, 24, 64, 136, 256])
@pytest.mark.parametrize("call", ["wgmma_f16", "wgmma_f16_rows", "wgmma_tf32"])
def test_wgmma_multiplies_what_descriptors_name(kernel, call, N):
    dtype = np.float32 if call == "wgmma_tf32" else np.float16
    rng, row = np.random.default_rng(N), 128 // np.dtype(dtype).itemsize
    a, b = (rng.standard_normal((extent, row)).astype(dtype) for extent in (64, N))
    rows = call == "wgmma_f16_rows"
    panels = -(-N // 64) if rows else 1
    if rows:
        wide = np.zeros((64, 64 * panels), dtype)
        wide[:, :N] = b.T
        b_map, size = hopper.tensor_map(wide, (64, 64)), panels * 64 * 64
    else:
        b_map, size = hopper.tensor_map(b, (N, row)), N * row
    made, _ = kernel(
        MULTIPLY.format(
            dtype="float" if call == "wgmma_tf32" else "half", N=N, A=64 * row, B=64 * 64, panels=panels, call=call,
            bytes=(64 * row + size) * a.itemsize, leading=8192 if rows else 0, step=128 if rows else 2,
        )
    )  # fmt: skip
    c = np.full((64, N), np.nan, np.float32)
    made[1, 128, 0, (64 * row + size) * a.itemsize](hopper.tensor_map(a, (64, row)), b_map, c)
    if call == "wgmma_tf32":
        a, b = ((part.view(np.uint32) & 0xFFFFE000).view(np.float32) for part in (a, b))
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.T.astype(np.float64) + 1, atol=2e-5)


def test_a_descriptor_has_the_bits_that_the_matrix_unit_reads():
    # start address in bits 0 to 13, leading offset from 16 on, stride from 32 on, in 16 bytes; swizzle in 62 and 63
    assert boxes.encoded(0x400, 16, 1024) == 1 << 62 | 64 << 32 | 1 << 16 | 0x40
    assert boxes.decoded(boxes.encoded(0x3FFF0, 8192, 2048))[:3] == (0x3FFF0, 8192, 2048)
    for fields in ((8, 0, 1024), (0, 0, 1 << 18), (-16, 0, 1024)):
        with pytest.raises(ValueError, match="must be a multiple of 16 from 0 to 262128"):
            boxes.encoded(*fields)


def test_the_swizzle_of_128_bytes_changes_pieces_of_16_by_the_row():
    places = boxes.tile(0, 16, 64, 2)
    assert sorted(places.flat) == list(range(16 * 64))
    for row, column in ((0, 9), (1, 0), (3, 63), (13, 20)):
        assert places[row, column] == row * 64 + (column // 8 ^ row % 8) * 8 + column % 8
    np.testing.assert_array_equal(boxes.tile(3072, 8, 32, 4), 768 + boxes.tile(0, 8, 32, 4))


COPY = """
@jit(32)
def kernel(from_map, to_map, row, column, to_row, to_column):
    tiles = half_tiles()
    bars = barrier_array(1)
    if cuda.threadIdx.x == 0:
        barrier_init(bars, 0, 1)
        publish_barriers()
        barrier_expect(bars, 0, 2048)
        tma_load2(tiles, 0, from_map, bars, 0, row, column)
        barrier_wait(bars, 0, 0)
        tma_store2(to_map, to_row, to_column, tiles, 0)
        tma_commit()
        tma_wait(0)
"""


@pytest.mark.parametrize("at", [(0, 0), (3, 8), (-5, -16), (30, 90), (90, 0), (0, -64)])
@pytest.mark.parametrize("to", [(0, 0), (-7, 40), (25, -8), (0, 72)])
def test_boxes_are_zero_outside_and_nothing_is_written_there(kernel, at, to):
    made, _ = kernel(COPY)
    source = np.random.default_rng(0).integers(1, 99, (40, 96)).astype(np.float16)
    target = np.full((32, 72), -1, np.float16)
    made[1, 32, 0, 2048](hopper.tensor_map(source, (16, 64)), hopper.tensor_map(target, (16, 64)), *at, *to)
    for i in range(-8, 48):
        for j in range(-32, 144):
            if 0 <= to[0] + i < 32 and 0 <= to[1] + j < 72:
                inside = 0 <= at[0] + i < 40 and 0 <= at[1] + j < 96
                copied = 0 <= i < 16 and 0 <= j < 64
                wanted = -1 if not copied else source[at[0] + i, at[1] + j] if inside else 0
                assert target[to[0] + i, to[1] + j] == wanted, (i, j)


UNAWAITED = COPY[: COPY.index("        barrier_wait")]


IM2COL = """
@jit(32)
def kernel(x_map, out, n, d, h, w, c, t, r, s):
    tiles = half_tiles()
    bars = barrier_array(1)
    if cuda.threadIdx.x == 0:
        barrier_init(bars, 0, 1)
        publish_barriers()
        barrier_expect(bars, 0, 48 * 128)
        tma_load_im2col(tiles, 0, x_map, bars, 0, n, d, h, w, c, t, r, s)
        barrier_wait(bars, 0, 0)
        for row in range(48):
            for column in range(64):
                out[row, column] = tiles[row * 64 + (column ^ row % 8 * 8)]
"""


@pytest.mark.parametrize(
    ("stride", "pad", "dilation", "first", "channel"),
    [((1, 1, 1), (0, 0, 0), (1, 1, 1), 0, 0), ((1, 1, 1), (1, 1, 1), (1, 1, 1), 5, 32),
     ((2, 1, 3), (1, 0, 2), (1, 2, 1), 3, 0), ((1, 2, 2), (0, 2, 1), (2, 1, 2), 7, 64)],
)  # fmt: skip
def test_im2col_walks_over_the_windows(kernel, stride, pad, dilation, first, channel):
    made, _ = kernel(IM2COL)
    x = np.random.default_rng(1).integers(1, 99, (2, 5, 6, 7, 72)).astype(np.float16)
    taps, extents = (2, 2, 3), x.shape[1:4]
    per_axis = zip(extents, stride, pad, dilation, taps, strict=True)
    out = [(e + 2 * p - q * (k - 1) - 1) // s + 1 for e, s, p, q, k in per_axis]
    upper = [(o - 1) * s + 1 - e - p for o, s, e, p in zip(out, stride, extents, pad, strict=True)]
    x_map = hopper.im2col_map(x, [-p for p in pad], upper, 64, 48, stride)
    windows = [(n, *place) for n in range(2) for place in np.ndindex(*out)]
    padded = np.zeros((2, *(e + 2 * p for e, p in zip(extents, pad, strict=True)), 136), np.float16)
    padded[:, pad[0] : pad[0] + 5, pad[1] : pad[1] + 6, pad[2] : pad[2] + 7, :72] = x
    for tap in np.ndindex(*taps):
        offsets = [k * q for k, q in zip(tap, dilation, strict=True)]
        n, *base = windows[first]
        base = [o * s - p for o, s, p in zip(base, stride, pad, strict=True)]
        found = np.full((48, 64), np.nan, np.float16)
        made[1, 32, 0, 48 * 128](x_map, found, n, *base, channel, *offsets)
        wanted = np.zeros((48, 64), np.float16)
        for row, (n, *window) in enumerate(windows[first : first + 48]):
            at = [o * s + k for o, s, k in zip(window, stride, offsets, strict=True)]
            wanted[row] = padded[(n, *at)][channel : channel + 64]
        np.testing.assert_array_equal(found, wanted)


def test_a_base_pixel_that_no_window_has_is_told(kernel):
    made, path = kernel(IM2COL)
    x_map = hopper.im2col_map(np.ones((1, 4, 4, 4, 64), np.float16), (0, 0, 0), (-1, -1, -1), 64, 48, (1, 1, 1))
    out = np.zeros((48, 64), np.float16)
    fault = raised(path, made[1, 32, 0, 48 * 128], x_map, out, 0, 0, 3, 0, 0, 0, 0, 0)
    assert (fault.kind, fault.line) == ("operand", numbered(path.read_text(), "tma_load_im2col"))
    assert "h=3 of the base pixel is not among those from 0 to 2 in steps of 1" in fault.what
    fault = raised(path, made[1, 32, 0, 48 * 128], x_map, out, 0, 0, 0, 0, 0, 0, 0, 32)
    assert "the offsets (0, 0, 32) of a tap must be from 0 to 31" in fault.what


# --- clusters ---

CLUSTER = """
@jit(32, 1, 2)
def kernel(a_map, out, turns):
    tiles = half_tiles()
    bars = barrier_array(2)
    lane = cuda.threadIdx.x
    rank = cluster_rank()
    if lane == 0:
        barrier_init(bars, 0, 1)
        barrier_init(bars, 1, 2)
        publish_barriers()
    cluster_sync()
    for turn in range(turns):
        if lane == 0:
            barrier_wait(bars, 1, turn % 2 ^ 1)
            barrier_expect(bars, 0, 4096)
            tma_load2_multicast(tiles, 1024 * rank, a_map, bars, 0, 16 * rank, 64 * turn, 3)
        barrier_wait(bars, 0, turn % 2)
        for row in range(32):
            for column in range(lane, 64, 32):
                out[cuda.blockIdx.x, row, 64 * turn + column] = tiles[row * 64 + (column ^ row % 8 * 8)]
        cuda.syncwarp()
        if lane < 2:
            barrier_arrive_at(bars, 1, lane)
    cluster_sync()
"""
SYNC = "    cluster_sync()\n"


def cluster_arguments(turns=4):
    a = np.random.default_rng(2).integers(1, 99, (32, 64 * turns)).astype(np.float16)
    return a, hopper.tensor_map(a, (16, 64)), np.full((4, 32, 64 * turns), np.nan, np.float16), turns


@pytest.mark.parametrize("direction", simulator.ORDERS)
def test_blocks_of_a_cluster_fill_each_other_s_tiles(kernel, direction):
    made, _ = kernel(CLUSTER)
    a, *arguments = cluster_arguments()
    with simulator.order(direction):
        made[4, 32, 0, 4096](*arguments)
    for block in range(4):
        np.testing.assert_array_equal(arguments[1][block], a)


LOAD = "            tma_load2_multicast("
GIVEN_BACK = "        if lane < 2:\n            barrier_arrive_at(bars, 1, lane)\n"
ROWS = "        for row in range(32):\n"
READ = "                out[cuda.blockIdx.x, row"
WRONG_CLUSTERS = {
    "one block alone": (("turn, 3)", "turn, 1)"), "deadlock", "barrier_wait(bars, 0"),
    "a block that is not there": (("turn, 3)", "turn, 5)"), "operand", LOAD),
    "no barrier of the cluster": ((SYNC + "    for", "    cuda.syncthreads()\n    for"), "mbarrier", LOAD),
    "barriers not published": (("        publish_barriers()\n", ""), "mbarrier", ""),
    "left before the others are done": (("lane)\n" + SYNC, "lane)\n"), "left-cluster", "barrier_arrive_at("),
    "not released": ((GIVEN_BACK, ""), "deadlock", "barrier_wait(bars, 1"),
    "released by the own block alone": (("bars, 1, lane)", "bars, 1, rank)"), "race", LOAD),
    "released for the own block alone": (("bars, 1, 2)", "bars, 1, 1)"), "race", LOAD),
    "released before all lanes have read": (("        cuda.syncwarp()\n", ""), "race", LOAD),
    "released before the lane itself has read": ((GIVEN_BACK, "", ROWS, GIVEN_BACK + ROWS), "race", LOAD),
    "a rank that is not there": (("bars, 1, lane)", "bars, 1, lane + 1)"), "operand", "barrier_arrive_at("),
    "read before it is there": (("        barrier_wait(bars, 0, turn % 2)\n", ""), "copy-not-awaited", READ),
    "read by lanes that have not waited": (("        barrier_wait(bars, 0", "        if lane == 0:\n"
                                            "            barrier_wait(bars, 0"), "copy-not-awaited", READ),
    "one lane stays away": ((SYNC + "    for", "    if lane != 7:\n    " + SYNC + "    for"), "divergent-barrier",
                            "cluster_sync()"),
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name, (_, kind, _) in WRONG_CLUSTERS.items() if kind == "deadlock"])
@pytest.mark.parametrize("direction", simulator.ORDERS)
def test_blocks_of_a_cluster_that_wait_for_each_other_end(kernel, name, direction):
    changes, kind, start = WRONG_CLUSTERS[name]
    made, path = kernel(CLUSTER.replace(*changes))
    with simulator.order(direction), pytest.raises(DeadlockError) as caught:
        made[4, 32, 0, 4096](*cluster_arguments()[1:])
    fault = faults.of_error(caught.value, path)
    assert (fault.kind, fault.line) == (kind, numbered(path.read_text(), start.strip()))


@pytest.mark.parametrize("name", [name for name, (_, kind, _) in WRONG_CLUSTERS.items() if kind == "operand"])
def test_what_no_cluster_can_do_is_told(kernel, name):
    changes, kind, start = WRONG_CLUSTERS[name]
    made, path = kernel(CLUSTER.replace(*changes))
    fault = raised(path, made[4, 32, 0, 4096], *cluster_arguments()[1:])
    assert (fault.kind, fault.line) == (kind, numbered(path.read_text(), start.strip()))


MISUSED = {  # of CLUSTER: what stands in place of what, and what is said
    "a barrier beyond the array": ("bars, 0, turn % 2)", "bars, 2, turn % 2)", "bars[2]: index 2 is out of bounds"),
    "a barrier made twice": ("publish_barriers()", "barrier_init(bars, 0, 1)", "bars[0] was made at line"),
    "no arrivals": ("bars, 0, 1)", "bars, 0, 0)", "bars[0] is to wait for 0 arrivals: must be from 1 to 1048575"),
    "too many arrivals": ("bars, 1, 2)", "bars, 1, 1 << 20)", "bars[1] is to wait for 1048576 arrivals: must be"),
}


@pytest.mark.parametrize("name", MISUSED)
def test_what_no_barrier_can_do_is_told(kernel, name):
    old, new, says = MISUSED[name]
    assert old in CLUSTER
    made, path = kernel(CLUSTER.replace(old, new))
    assert says in raised(path, made[4, 32, 0, 4096], *cluster_arguments()[1:]).what


# A warp writes a slab in turns; one lane sends it, and waits until it has left.
SLAB = """
@jit(32)
def kernel(c_map):
    tiles = half_tiles()
    lane = cuda.threadIdx.x
    for turn in range(2):
        if lane == 0:
            tma_wait_read(0)
        cuda.syncwarp()
        for i in range(lane, 512, 32):
            tiles[i] = to_half(float32(turn + i % 64))
        fence_async()
        cuda.syncwarp()
        if lane == 0:
            tma_store2(c_map, 8 * turn, 0, tiles, 0)
            tma_commit()
    if lane == 0:
        tma_wait_read(0)
"""
MET = "        cuda.syncwarp()\n"
FENCED = "        fence_async()\n"
WRONG_SLABS = {
    "fenced after the warp has met": ((FENCED + MET, MET + FENCED), "proxy-fence", "tma_store2("),
    "fenced by the lane that sends it": ((FENCED, FENCED.replace("f", "if lane == 0:\n            f", 1)),
                                         "proxy-fence", "tma_store2("),
    "written before the warp knows that it has left": ((MET + "        for", "        for"), "race", "tiles[i] ="),
    "another lane waits": (("if lane == 0:\n            tma_wait", "if lane == 1:\n            tma_wait"), "race",
                           "tiles[i] ="),
}  # fmt: skip


def changed_slab(name):
    changes, kind, start = WRONG_SLABS[name]
    assert changes[0] in SLAB
    return SLAB.replace(*changes), kind, start


@pytest.mark.parametrize("direction", simulator.ORDERS)
def test_a_warp_may_write_what_its_lane_sends(kernel, direction):
    c = np.full((16, 64), np.nan, np.float16)
    with simulator.order(direction):
        kernel(SLAB)[0][1, 32, 0, 1024](hopper.tensor_map(c, (8, 64)))
    assert c[0].tolist() != c[8].tolist()
    assert not np.isnan(c).any()


# 384 threads are given 168 registers each, 504 for three of them together, where the file holds 512.
REGISTERS = """
@jit(384)
def kernel(out):
    if cuda.threadIdx.x < 128:
        give_registers({few})
    else:
        take_registers(232)
    out[cuda.threadIdx.x] = 1
"""


def test_registers_that_a_launch_does_not_give_are_nobody_s(kernel):
    out = np.zeros(384, np.int32)
    kernel(REGISTERS.format(few=40))[0][1, 384](out)
    assert out.all()
    made, path = kernel(REGISTERS.format(few=48))
    fault = raised(path, made[1, 384], out)
    assert (fault.kind, fault.line) == ("deadlock", numbered(path.read_text(), "take_registers("))


AT_END = """
@jit(32, 1, 2)
def kernel(out):
    bars = barrier_array(1)
    lane = cuda.threadIdx.x
    if lane == 0:
        barrier_init(bars, 0, 1)
        publish_barriers()
    cluster_sync()
    if lane == 0 and cluster_rank() == 0:
        barrier_arrive_at(bars, 0, 1)
    if {waits} and cluster_rank() == 1:
        barrier_wait(bars, 0, 0)
"""


def test_a_grid_is_whole_clusters(kernel):
    made, _ = kernel(CLUSTER)
    with pytest.raises(limits.LaunchLimitError, match="cluster"):
        made[3, 32, 0, 4096](*cluster_arguments()[1:])


# --- Numba's own simulator ---


PLAIN = """
import sys
import numpy as np
from lessons import hopper

@hopper.jit(32)
def kernel(out):
    hopper.half_tiles()

kernel[1, 32](np.zeros(1))
"""


def test_numba_s_own_simulator_is_told_to_be_the_wrong_one(root):
    done = subprocess.run(
        [sys.executable, "-c", PLAIN], cwd=root, env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}, capture_output=True,
        text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode != 0
    assert "this kernel needs the workbook's simulator: Numba's own has no asynchronous copies" in done.stderr


def test_what_a_thread_does_after_it_has_arrived_is_not_handed_on():
    clocks = order.Clocks(3)
    before = clocks.rows[0, 0]
    told = clocks.hand_on(0)
    clocks.hear(1, told)
    assert clocks.rows[1, 0] == before < clocks.rows[0, 0]
    clocks.meet(np.array([0, 1]))
    assert clocks.rows[1, 0] == before + 1 < clocks.rows[0, 0]
    assert clocks.rows[2, 0] == 0
