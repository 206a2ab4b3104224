"""Every fault of a wrong kernel is found, and none of a right one."""

from concurrent.futures import ThreadPoolExecutor

import mutants
import numpy as np
import pytest
from sampling import some
from small_kernels import BODIES, HEAD, file_of, kinds, named, sections, traced

from common.catalog import catalog, exercises, inputs, limits
from common.catalog.problems import Conv2d, Gemm
from common.run import isolate
from common.run.messages import Launch
from common.timing import tools
from common.trace import trace

pytestmark = pytest.mark.usefixtures("traced")
LESSON = catalog.LESSONS / "02_shared_tiling"

# --- wrong kernels: what racecheck, memcheck and initcheck say on a GPU, found on the CPU ---


def test_a_fault_names_line_thread_and_block():
    found = traced(mutants.path("gemm_no_guard_m"), Gemm(M=37, N=45, K=19))
    fault = found.faults[0]
    assert (fault.kind, fault.array, fault.thread, fault.block) == ("outside", "a", (0, 5, 0), (0, 4, 0))
    assert fault.code == "acc += a[m, k] * b[k, n]"
    assert fault.what == "axis 0 of a is read at 37, its extent is 37"
    assert fault.count == 3 * 45 * 19
    path = mutants.path("gemm_missing_barrier")
    race = traced(path, Gemm(M=5, N=7, K=3)).faults[0]
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    read = lines.index("acc += a_tile[ty, k] * b_tile[k, tx]") + 1
    written = lines.index("a_tile[row, tx] = a[block_m + row, k0 + tx]") + 1
    assert race.what == (
        f"a_tile[0, 0] is read by thread (0, 0, 0) in line {read} "
        f"and written by thread (0, 31, 0) in line {written}, with no barrier between"
    )


ROUNDS = BODIES["rounds"]


@pytest.mark.parametrize(
    ("first", "second", "between"),
    [
        ("cuda.syncthreads()", "pass", "no barrier between line 17 and line 15 in the next round of the loop"),
        ("pass", "cuda.syncthreads()", "no barrier between"),
        ("for _ in range(1):\n        cuda.syncwarp()", "pass", "no barrier between"),
    ],
)
def test_a_race_around_a_loop_s_end_is_told_as_one(kernel, first, second, between):
    race = kernel(ROUNDS.format(first=first, second=second), block=64).faults[0]
    assert race.what.endswith(f", with {between}")


@pytest.mark.parametrize(
    "body",
    [
        "flat = c.reshape(c.size)\nfor k in range(4):\n    flat[k * 32 + cuda.threadIdx.x] = a.reshape((32,))[k]",
        "flat = c.reshape(-1)\nflat[cuda.threadIdx.x] = a.reshape(8, -1)[7, 3]",
        "tile = cuda.shared.array((4, 8), float32)\nrow = tile.reshape(32)\nrow[cuda.threadIdx.x] = 1.0\n"
        "cuda.syncthreads()\nc[0, cuda.threadIdx.x] = tile[0, 0] + tile[3, 7]",
    ],
)
def test_a_contiguous_array_may_be_reshaped(kernel, body):
    assert kinds(kernel(body)) == set()


STAGED = """
tile = cuda.shared.array(64, float32)
i = cuda.threadIdx.x
{body}
"""


@pytest.mark.parametrize(("expected", "body"), sections("shared"))
def test_faults_in_shared_and_global_memory(kernel, expected, body):
    assert kinds(kernel(STAGED.format(body=body), block="64, 0, 1024")) == named(expected)


@pytest.mark.parametrize(("order", "at_once"), [("forward", 1), ("backward", 1 << 14)])
@pytest.mark.parametrize(("expected", "body"), sections("global"))
def test_races_in_global_memory_and_between_blocks(kernel, monkeypatch, expected, body, order, at_once):
    monkeypatch.setattr(trace, "_LANES_AT_ONCE", at_once)
    text = f"i = cuda.threadIdx.x\ng = cuda.blockIdx.x\n{body}"
    first = float(inputs.integers(Gemm(M=4, N=32, K=8), 0)[0][0, 0])
    helper = f"a0 = float32({first})\n@cuda.jit(device=True)\ndef put(rows, i, value):\n    rows[0, i] = value\n"
    found = kinds(kernel(text, grid=2, extra=helper, order=order))
    if named(expected) == {"overlap"}:
        found.discard("read-before-write")  # in some orders
    assert found == named(expected)


@pytest.mark.parametrize(("order", "at_once"), [("forward", 1), ("backward", 1 << 14)])
@pytest.mark.parametrize(("expected", "body"), sections("block"))
def test_races_between_the_warps_of_a_block(kernel, monkeypatch, expected, body, order, at_once):
    monkeypatch.setattr(trace, "_LANES_AT_ONCE", at_once)
    found = kernel(f"i = cuda.threadIdx.x\ng = cuda.blockIdx.x\n{body}", block=128, grid=2, order=order)
    assert kinds(found) - {"read-before-write"} == named(expected)  # in some orders of threads


def test_between_kernels_there_is_order(write):
    found = traced(write("gemm_own.py", HEAD + BODIES["in_order"]), Gemm(M=4, N=32, K=8))
    assert found.faults == []


def test_arrays_of_a_tuple_are_watched_as_arguments_are(write):
    text = f"""{HEAD}
@cuda.jit
def kernel(pair):
    pair[1][0, 0] = pair[0][0, cuda.threadIdx.x % 2]

def launch(a, b, c):
    kernel[1, 32]((a, c))
"""
    found = traced(write("gemm_own.py", text), Gemm(M=4, N=32, K=8))
    assert "race" in kinds(found), found.faults


def test_an_overlap_names_both_blocks_and_lines(kernel):
    body = "g = cuda.blockIdx.x\nif g == 0:\n    c[0, 1] = 1.0\nelse:\n    c[0, 1] = 2.0"
    (fault,) = kernel(body, grid=2, block=1).faults
    assert (fault.kind, fault.line, fault.block) == ("overlap", 16, (1, 0, 0))
    assert fault.what == (
        "c[0, 1] is written by block (1, 0, 0) in line 16 and written by block (0, 0, 0) in line 14: "
        "blocks do not wait for each other"
    )


def test_threads_that_divide_by_zero_get_zero(kernel):
    found = kernel("i = cuda.threadIdx.x\nc[0, i] = 64 // (i - 5) + 64 % (i - 5)")
    assert (found.faults[0].kind, found.faults[0].count) == ("zero-division", 2)
    apart = np.array([i - 5 or 100 for i in range(32)])  # 64 // 100 is 0
    np.testing.assert_array_equal(found.output[0], 64 // apart + np.where(apart == 100, 0, 64 % apart))


def test_a_float_that_is_divided_by_zero_is_infinite_and_no_fault(kernel):
    found = kernel("i = cuda.threadIdx.x\nc[0, i] = float32(1.0) / float32(i // 16)")
    assert found.faults == []
    np.testing.assert_array_equal(found.output[0], [np.inf] * 16 + [1.0] * 16)


def test_only_accesses_within_an_array_are_counted_and_shown(kernel):
    found = kernel("i = cuda.threadIdx.x\nif i % 2 == 0:\n    c[0, 16 + i] = 1.0")
    (access,) = found.main.select("global", "write")
    assert (access.accesses, access.requests, access.distinct) == (8, 1, 8)
    assert access.sample[:5] == [16, None, 18, None, 20]
    assert len(access.sample) == 32


def test_a_barrier_in_two_branches_names_both_lines(kernel):
    body = "i = cuda.threadIdx.x\nif i < 40:\n    cuda.syncthreads()\nelse:\n    cuda.syncthreads()"
    faults = {fault.line: fault.what for fault in kernel(body, block=64).faults}
    where = "do not reach this barrier, which others wait at: they come to the one in line 16"
    assert faults[14] == f"24 of the block's 64 threads {where}"


def test_threads_that_write_an_element_at_once_are_told_to_look_at_the_index(kernel):
    (race,) = kernel("tile = cuda.shared.array(1, float32)\ntile[0] = cuda.threadIdx.x").faults
    assert (
        race.what == "tile[0] is written by threads (0, 0, 0) and (31, 0, 0) at once in line 13: their values differ"
    )
    assert race.look_at.startswith("the index of this store")


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize(
    ("before", "after", "told"), [("if i >= 40:\n    return", "", True), ("", "if i >= 40:\n    return", False)]
)
def test_threads_that_returned_before_a_barrier_are_told_where_what_they_owed_is_read(
    kernel, dtype, before, after, told
):
    """Those that return behind the last barrier owe the others nothing: there the store is missing."""
    stored = "tile[i] = 1" if before else "if i < 40:\n    tile[i] = 1"
    body = f"i = cuda.threadIdx.x\ntile = cuda.shared.array(64, {dtype})\n{before}\n{stored}\ncuda.syncthreads()\n"
    body += f"{after}\nc[0, i % 32] = tile[63 - i]"
    (fault,) = [one for one in kernel(body, block=64).faults if one.kind == "read-before-write"]
    assert ("24 of the block's 64 threads had returned before the barrier" in fault.what) == told
    assert fault.look_at.startswith("the return: ") == told


@pytest.mark.parametrize(("order", "first"), [("forward", 1), ("backward", 0)])
def test_blocks_and_writers_run_in_the_order_that_is_asked_for(kernel, order, first):
    body = "c[0, 0] = cuda.blockIdx.x\nc[1, 0] = cuda.threadIdx.x"
    values = kernel(body, grid=300, block=32, order=order).output
    assert (values[0, 0], values[1, 0]) == (299 * first, 31 * first)


PHASES = BODIES["phases"]
MISSED = "32 of the block's 32 threads do not reach this barrier of the whole grid, which others wait at"


@pytest.mark.parametrize(
    ("leave", "barrier", "kind", "says"),
    [
        ("pass", "grid.sync()", None, ""),
        ("pass", "cuda.syncthreads()", "overlap", "blocks do not wait for each other"),
        ("if g == 3:\n    return", "grid.sync()", "divergent-barrier", MISSED),
        ("pass", "if g != 3:\n    grid.sync()", "divergent-barrier", MISSED),
    ],
)
@pytest.mark.parametrize("order", ["forward", "backward"])
def test_a_sum_in_two_phases_needs_a_barrier_of_the_whole_grid(kernel, leave, barrier, kind, says, order):
    found = kernel(PHASES.format(leave=leave, barrier=barrier), grid=4, order=order)
    assert kind is None or kinds(found) >= {kind}
    if kind is None:
        assert found.faults == []
        assert found.output[1, 0] == 4 * sum(range(32))
    else:
        assert says in " ".join(fault.what for fault in found.faults if fault.kind == kind)


def test_one_block_of_a_grid_with_a_barrier_is_traced_with_all_others(kernel):
    found = kernel(PHASES.format(leave="pass", barrier="grid.sync()"), grid=4, every=False)
    assert (found.main.blocks, found.main.first_block, found.faults) == (4, (0, 0, 0), [])


def test_a_grid_that_waits_for_itself_must_fit_the_gpu(kernel):
    with pytest.raises(
        limits.LaunchLimitError, match="all 4225 blocks resident at once: 132 multiprocessors hold at"
    ):
        kernel("cuda.cg.this_grid().sync()", grid=4225)


# Kernels with a race, and without: what racecheck says of them on a GPU is what the trace says. It says nothing of an
# atomic operation that meets a plain read (0 hazards on an H200), which CUDA's memory model calls a race as well.
UNSEEN_BY_RACECHECK = {"race: an atomic operation and a plain read"}
RACES = [
    (title, body)
    for title, body in sections("shared")
    if named(title) <= {"race"} and title not in UNSEEN_BY_RACECHECK
]
RACY_FILES = {
    mutants.path("gemm_missing_barrier"): True,
    LESSON / "exercises" / "gemm_once_in_a_while.py": True,
    exercises.find("gemm_once_in_a_while").write_solution(): False,
}


# each is a process of its own under the tool, which takes seconds
RACES_ON_GPU = some(RACES, len(RACES), 1)


@pytest.fixture(scope="module")
def racechecked(tmp_path_factory):
    """The hazards that racecheck counts, by title or file."""
    folder, problem = tmp_path_factory.mktemp("races"), Gemm(M=4, N=32, K=8)
    cases = {path: (path, Gemm(M=37, N=45, K=35)) for path in RACY_FILES}
    for number, (title, body) in enumerate(RACES_ON_GPU):
        cases[title] = folder / f"gemm_race{number}.py", problem
        cases[title][0].write_text(file_of(STAGED.format(body=body), block=64))

    def hazards(case):
        path, problem = case
        task = Launch(path=str(path), ladder="gemm", shape=problem.shape())
        results, output = isolate.watched([task], tools.sanitizer("racecheck"), 120.0)
        assert [result.status for result in results] == ["right"], (path.name, results, output[-500:])
        return tools.errors(output)

    with ThreadPoolExecutor(4) as pool:
        return dict(zip(cases, pool.map(hazards, cases.values()), strict=True))


@pytest.mark.gpu
@pytest.mark.xdist_group("gpu")
@pytest.mark.parametrize(("title", "_body"), RACES_ON_GPU)
def test_racecheck_says_the_same_of_a_race(racechecked, title, _body):
    assert bool(racechecked[title]) == ("race" in named(title)), racechecked


@pytest.mark.gpu
@pytest.mark.xdist_group("gpu")
@pytest.mark.parametrize("path", RACY_FILES, ids=lambda path: path.stem)
def test_racecheck_says_the_same_of_a_file(racechecked, path):
    assert bool(racechecked[path]) == RACY_FILES[path], racechecked


def test_an_uninitialised_value_that_is_not_stored_is_a_note():
    found = traced(catalog.find("conv2d_shared_tile").path, Conv2d(N=1, C=1, H=10, W=10, K=1, R=3, S=3))
    assert found.faults == []
    assert any("patch that nothing has written" in note for note in found.kernels[0].notes)


ASYNC = """
tile = shared_array(128)
i = cuda.threadIdx.x
{body}
"""


@pytest.mark.parametrize(("expected", "body"), sections("copy"))
def test_faults_of_asynchronous_copies(kernel, expected, body):
    assert kinds(kernel(ASYNC.format(body=body), problem=Gemm(M=4, N=32, K=4))) == named(expected)


def test_a_copy_that_fills_with_zeros_reads_only_inside(kernel):
    helper = "from lessons.toolkit.memory import copy1_or_zero\n"
    body = ASYNC.format(body="copy1_or_zero(tile, i, b, i, i < 10)\nwait_async()\nc[0, i] = tile[i]")
    problem = Gemm(M=1, N=32, K=1)
    found = kernel(body, extra=helper, problem=problem)
    weight = inputs.integers(problem, 0)[1]
    np.testing.assert_array_equal(found.output[0], np.where(np.arange(32) < 10, weight[0], 0))
    assert found.kernels[0].select("global", "copy")[0].accesses == 10
    assert found.faults == []


@pytest.mark.parametrize(("expected", "body"), sections("alignment"))
def test_128_bit_accesses_must_be_aligned(kernel, expected, body):
    assert kinds(kernel(body, block=4)) == named(expected)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("load4(r, 0, b, 4 * cuda.threadIdx.x + 2)\nc[0, 0] = r[0]",
         "128-bit access to b[0, 2], whose address is no multiple of 16 bytes"),
        ("load4(r, 0, b, 32 + 4 * cuda.threadIdx.x)\nc[0, 0] = r[0]", "b is read at 36 to 39, its extent is 36"),
        ("t = cuda.shared.array((2, 3), float32)\nc[0, cuda.threadIdx.x % 4] = t[1, cuda.threadIdx.x % 2]",
         "t[1, 0], which nothing has written, is read, and what becomes of it is stored to c in line "),
        ("t = cuda.shared.array((2, 3), int32)\nc[0, 0] = float32(t[1, 2])",
         "t[1, 2], which nothing has written, is read"),
        ("c[0, 0] = float32(r[3])", "r[3], which nothing has written, is read"),
    ],
)  # fmt: skip
def test_a_fault_names_the_element(kernel, body, message):
    text = "r = cuda.local.array(4, float32)\n" + body
    found = kernel(text, block=2, problem=Gemm(M=4, N=6, K=6)).faults[0]
    assert found.what.startswith(message)


def test_a_copy_that_no_wait_follows_is_a_fault(kernel):
    body = "copy1_async(tile, i, b, i)\nwait_async()\nc[0, i] = tile[i]\ncopy1_async(tile, i, b, i)"
    (fault,) = kernel(ASYNC.format(body=body), problem=Gemm(M=4, N=32, K=4)).faults
    assert (fault.kind, fault.line, fault.count) == ("copy-not-awaited", 17, 32)
    assert "still under way when the thread ends: no wait comes after it" in fault.what


def test_a_read_before_it_arrived_is_told_before_a_copy_that_is_left_over(kernel):
    body = "copy1_async(tile, i, b, i)\nif i < 4:\n    c[0, i] = tile[i]"
    found = kernel(ASYNC.format(body=body), problem=Gemm(M=4, N=32, K=4)).faults
    assert [fault.line for fault in found if fault.kind == "copy-not-awaited"] == [16, 14]


# --- warps: what each lane gets, worked out by hand ---

LANE = np.arange(32)
WARPS = {
    "cuda.shfl_sync(-1, i * 3, i + 1)": (LANE + 1) % 32 * 3,
    "cuda.shfl_sync(0xFFFFFFFF, float32(i), 5)": np.full(32, 5),
    "cuda.shfl_up_sync(-1, i, 4)": np.where(LANE < 4, LANE, LANE - 4),
    "cuda.shfl_down_sync(-1, i, 4)": np.where(LANE > 27, LANE, LANE + 4),
    "cuda.shfl_xor_sync(-1, i, 1)": LANE ^ 1,
    "cuda.ballot_sync(-1, i < 5)": np.full(32, 0b11111),
    "float32(cuda.all_sync(-1, i < 31))": np.zeros(32),
    "float32(cuda.any_sync(-1, i == 31))": np.ones(32),
    "float32(cuda.eq_sync(-1, i < 32))": np.ones(32),
    "cuda.popc(cuda.match_any_sync(-1, i % 4))": np.full(32, 8),
    "cuda.match_all_sync(-1, i // 32)[1]": np.ones(32),
    "cuda.popc(cuda.activemask())": np.full(32, 32),
    "cuda.popc(cuda.lanemask_lt())": LANE,
    "cuda.clz(int32(i))": [32 - int(i).bit_length() for i in LANE],
    "cuda.brev(uint32(i)) // uint32(2**27)": [int(f"{i:05b}"[::-1], 2) for i in LANE],
    "cuda.syncthreads_count(i % 3 == 0)": np.full(32, 11),
    "cuda.syncthreads_and(i >= 0) + 2 * cuda.syncthreads_or(i > 31)": np.ones(32),
    "cuda.laneid + cuda.warpsize": LANE + 32,
    "np.int8(i * 20)": (LANE * 20).astype(np.int8),
    "np.uint8(i * 30)": LANE * 30 % 256,
    "np.uint8(i * 30) + np.uint8(200)": LANE * 30 % 256 + 200,
    "np.float16(i * 0.1)": (LANE * 0.1).astype(np.float16),
    "int32(i - 5) // 2": (LANE - 5) // 2,
    "cuda.fp16.hadd(np.float16(2048.0), np.float16(i))": np.float16(2048) + LANE.astype(np.float16),
}


@pytest.mark.parametrize("expression", WARPS)
def test_what_threads_of_a_warp_exchange(kernel, expression):
    found = kernel(f"i = cuda.threadIdx.x\nc[0, i] = {expression}")
    np.testing.assert_array_equal(found.output[0], WARPS[expression])
    assert found.faults == []


@pytest.mark.parametrize(("expected", "body"), sections("warp"))
def test_faults_of_warps(kernel, expected, body):
    assert kinds(kernel(f"i = cuda.threadIdx.x\n{body}")) == named(expected)


@pytest.mark.parametrize("order", ["forward", "backward"])
@pytest.mark.parametrize("memory", ["cuda.shared.array(32, float32)", "c[2 * g]"], ids=["shared", "global"])
@pytest.mark.parametrize(("expected", "body"), sections("halves"))
def test_a_half_of_a_warp_that_waits_alone_orders_nothing_of_the_other(kernel, expected, body, memory, order):
    body = body.replace("c[1", "c[2 * g + 1")
    text = f"i = cuda.threadIdx.x\ng = cuda.blockIdx.x\nt = {memory}\n{body}"
    assert kinds(kernel(text, grid=2, order=order)) == named(expected)
