"""Tensor cores and copies in groups on the tracer: right, and wrong in many ways."""

from pathlib import Path

import numpy as np
import pytest
from sampling import some
from small_kernels import BODIES, changed, numbered

from common.catalog import catalog, inputs, problems, reference
from common.check import check
from common.trace import helpers, trace

RIGHT = Path(__file__).parent / "hgemm_tensor_cores.py"
pytestmark = pytest.mark.usefixtures("traced")
PROBLEM = problems.Hgemm(M=32, N=64, K=256)


def traced(path, problem=PROBLEM):
    return trace.run(catalog.load(path, problem.ladder), problem, every=True)


def expected(problem=PROBLEM):
    return reference.expected(problem, *inputs.integers(problem, 0))


@pytest.mark.parametrize("order", ["forward", "backward"])
def test_a_right_kernel_is_right_and_sound_in_every_order(order):
    found = trace.run(catalog.load(RIGHT, PROBLEM.ladder), PROBLEM, every=True, order=order)
    np.testing.assert_array_equal(found.output, expected())
    assert found.faults == []


WAIT = "            wait_group(STAGES - 2)\n"
BARRIER = "            cuda.syncthreads()\n"
FIRST = "mma_m16n8k16(acc, 4 * n, a_frag, 0, b_frag, 0)"
SECOND = "mma_m16n8k16(acc, 4 * n + 4, a_frag, 0, b_frag, 4)"
ZERO = "    for i in range(32):"

# What stands in place of what; the kind of fault, if one is to be found at all, and the start of the line it names.
WRONG = {
    "fragments swapped": ((SECOND, SECOND.replace("4)", "0)")), "", ""),
    "A and B swapped": ((FIRST, FIRST.replace("a_frag, 0, b_frag", "b_frag, 0, a_frag")), "", ""),
    "not transposed": (("    ldmatrix4_transposed(b_frag", "    ldmatrix4(b_frag"), "", ""),
    "no wait": ((WAIT, ""), "copy-not-awaited", "ldmatrix4("),
    "one group too many pending": ((WAIT, WAIT.replace("2", "1")), "copy-not-awaited", "ldmatrix4("),
    "no barrier": ((BARRIER, ""), "race", "ldmatrix4("),
    "barrier before the wait": ((WAIT + BARRIER, BARRIER + WAIT), "race", "ldmatrix4("),
    "slot refilled early": (("% STAGES\n", "% (STAGES - 1)\n"), "race", "ldmatrix4("),
    "half a warp": ((SECOND, f"if lane < 16:\n{' ' * 24}{SECOND}"), "warp-sync", SECOND),
    "half a warp has ended": ((ZERO, f"    if lane >= 16:\n        return\n{ZERO}"), "warp-sync", "ldmatrix4("),
    "misaligned": (("8 * (kk ^ m % 8))", "8 * (kk ^ m % 8) + 4)"), "misaligned", "ldmatrix4("),
    "beyond the tile": (
        ("kk, nn = k + lane % 16", "kk, nn = STAGES * BLOCK_K + k + lane % 16"), "outside", "ldmatrix4_transposed(b",
    ),
    "unset fragment": ((SECOND, SECOND.replace("4)", "8)"), "local.array(8", "local.array(12"), "read-before-write",
                       SECOND[:-2]),
    "unset sum": ((ZERO, ZERO.replace("32", "31")), "read-before-write", SECOND),
}  # fmt: skip


@pytest.mark.parametrize("name", some(list(WRONG), 7, 2))
def test_what_is_wrong_is_found_with_its_line(write, name):
    changes, kind, start = WRONG[name]
    text = changed(RIGHT.read_text(encoding="utf-8"), changes)
    found = traced(write("hgemm_own.py", text))
    if kind:
        line = numbered(text, start)
        assert (kind, line) in {(fault.kind, fault.line) for fault in found.faults}
    else:
        assert found.faults == []
        assert (found.output != expected()).any()


def test_rows_of_128_bytes_conflict_unless_they_are_swizzled(write):
    def wavefronts(path):
        reads = [access for access in traced(path).main.select("shared", "read") if access.array.endswith("tiles")]
        return {(access.array, access.bits, access.per_request, access.ideal_per_request) for access in reads}

    assert wavefronts(RIGHT) == {("a_tiles", 128, 4.0, 4.0), ("b_tiles", 128, 4.0, 4.0)}
    text = RIGHT.read_text(encoding="utf-8")
    for swizzled in (" ^ m % 8", " ^ k % 8", " ^ kk % 8"):
        text = text.replace(swizzled, "")
    plain = write("hgemm_plain.py", text)
    assert wavefronts(plain) == {("a_tiles", 128, 32.0, 4.0), ("b_tiles", 128, 32.0, 4.0)}
    np.testing.assert_array_equal(traced(plain).output, expected())


def test_what_is_counted():
    kernel = traced(RIGHT).main
    assert kernel.fma == PROBLEM.M * PROBLEM.N * PROBLEM.K
    assert set(kernel.fma_lines) == {
        str(numbered(RIGHT.read_text(encoding="utf-8"), text)) for text in (FIRST, SECOND)
    }
    totals = kernel.totals
    # each of two warps reads its 16 rows of A, and all of B, once; a request is 512 bytes
    assert totals["shared_load_requests"] == (32 * 256 + 2 * 256 * 64) * 2 // 512
    assert totals["copy_requests"] == (32 * 256 + 256 * 64) * 2 // 512
    assert totals["copy_sectors"] == (32 * 256 + 256 * 64) * 2 // 32
    assert totals["shared_conflicts"] == 0


def test_each_lane_holds_what_the_ptx_manual_says():
    def held(places):
        return [list(zip(*map(np.ndarray.tolist, pair), strict=True)) for pair in zip(*places, strict=True)]

    for lane in range(32):
        g, t = divmod(lane, 4)
        assert held(helpers.SUMS)[lane] == [(g, 2 * t), (g, 2 * t + 1), (g + 8, 2 * t), (g + 8, 2 * t + 1)]
        assert held(helpers.K16.a)[lane] == [
            (g + down, 2 * t + right + one) for right in (0, 8) for down in (0, 8) for one in (0, 1)
        ]
        assert held(helpers.K16.b)[lane] == [(2 * t, g), (2 * t + 1, g), (2 * t + 8, g), (2 * t + 9, g)]
        assert held(helpers.K8.a)[lane] == [(g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4)]
        assert held(helpers.K8.b)[lane] == [(t, g), (t + 4, g)]


TF32 = BODIES["tf32"]


@pytest.mark.parametrize(("how", "nearest"), [("", True), ("pass  # ", False)])
def test_tf32_is_cut_off_unless_it_was_rounded(write, how, nearest):
    problem = problems.Gemm(M=16, N=8, K=8)
    module = catalog.load(write("gemm_own.py", TF32.format(round=how)), "gemm")
    # the low 13 bits of float32 are what TF32 lacks: a half of its last place, and less, below and above 1
    bits = np.array([0x3F801000, 0x3F800FFF, 0xBF801000, 0x3F803000], np.uint32)
    rounded = np.array([0x3F802000, 0x3F800000, 0xBF802000, 0x3F804000], np.uint32)
    cut = bits & 0xFFFFE000
    a = np.resize(bits.view(np.float32), (16, 8))
    b = np.eye(8, dtype=np.float32)
    taken = np.resize((rounded if nearest else cut).view(np.float32), (16, 8))
    bench = check.Bench(module, problem)
    bench.load(a, b)
    bench.run()
    np.testing.assert_array_equal(bench.y.get(), taken)


HALVED = BODIES["halved"]


def test_halves_are_copied_filled_with_zeros_and_rounded(write):
    problem = problems.Hgemm(M=8, N=32, K=1)
    path = write("hgemm_own.py", HALVED.format(wait="wait_async()"))
    b = inputs.integers(problem, 0)[1]
    wanted = np.zeros((32, 8), np.float16)
    wanted[:3] = b.reshape(4, 8)[:3]
    wanted[31, :2] = b[0, 24], 2048
    found = traced(path, problem)
    np.testing.assert_array_equal(found.output.reshape(32, 8), wanted)
    assert found.faults == []
    assert found.main.select("global", "copy")[0].accesses == 3
    late = write("hgemm_late.py", HALVED.format(wait="pass"))
    assert {fault.kind for fault in traced(late, problem).faults} == {"copy-not-awaited", "read-before-write"}


@pytest.mark.parametrize(
    ("commits", "pending", "sound"), [(1, 0, True), (1, 1, False), (2, 1, True), (3, 1, True), (0, 0, False)]
)
def test_groups_are_waited_for_one_by_one_the_oldest_first(write, commits, pending, sound):
    problem = problems.Hgemm(M=1, N=32, K=1)
    path = write("hgemm_own.py", BODIES["groups"].format(commits=commits, pending=pending))
    assert ("copy-not-awaited" not in {fault.kind for fault in traced(path, problem).faults}) == sound


ONE_WARP = BODIES["one_warp"]


def test_what_one_lane_did_not_set_reaches_another_s_sum(write):
    problem = problems.Hgemm(M=1, N=32, K=1)
    # lane 5 holds B[2, 1], which the sums of column 1 need; lane 0 has those of columns 0 and 1, acc[0] of column 0
    text = ONE_WARP.replace("acc[0])", "acc[1])").format(lane=0)
    (fault,) = traced(write("hgemm_one.py", text), problem).faults
    assert (fault.kind, fault.line) == ("read-before-write", numbered(text, "mma_m16n8k16("))
    assert fault.what.startswith("b_frag[0], which nothing has written")
    assert traced(write("hgemm_other.py", ONE_WARP.format(lane=0)), problem).faults == []


def test_neighbours_with_one_row_share_no_pass(write):
    found = traced(write("hgemm_one.py", ONE_WARP.format(lane=0)), problems.Hgemm(M=1, N=32, K=1))
    (read,) = found.main.select("shared", "read")
    assert (read.requests, read.per_request, read.ideal_per_request) == (1, 4.0, 4.0)


STORED = BODIES["stored"]


def test_stmatrix_stores_rows_as_ldmatrix_loads_them(write):
    problem = problems.Hgemm(M=1, N=256, K=1)
    found = traced(write("hgemm_stored.py", STORED), problem)
    assert found.faults == []
    b = inputs.integers(problem, 0)[1]
    np.testing.assert_array_equal(found.output, b.reshape(32, 8)[::-1].reshape(1, 256))
    line = numbered(STORED, "stmatrix4(")
    (stored,) = [one for one in found.main.select("shared", "write") if one.line == line]
    assert (stored.requests, stored.per_request) == (1, 4.0)


@pytest.mark.parametrize("kind", ["float32", "int32"])
def test_ldmatrix_gives_each_lane_a_word_of_each_matrix(write, kind):
    problem = problems.Gemm(M=1, N=128, K=1)
    found = traced(write("gemm_words.py", BODIES["words"].format(kind=kind)), problem)
    assert found.faults == []
    b = inputs.integers(problem, 0)[1]  # row 31 - n is named by lane n; four lanes share a row
    np.testing.assert_array_equal(found.output, b.reshape(32, 4)[::-1].reshape(1, 128))


def test_stmatrix_transposed_stores_columns(write):
    text = STORED.replace("stmatrix4", "stmatrix4_transposed")
    problem = problems.Hgemm(M=1, N=256, K=1)
    found = traced(write("hgemm_stored.py", text), problem)
    assert found.faults == []
    matrices = inputs.integers(problem, 0)[1].reshape(4, 8, 8).swapaxes(1, 2)
    np.testing.assert_array_equal(found.output, matrices.reshape(32, 8)[::-1].reshape(1, 256))
