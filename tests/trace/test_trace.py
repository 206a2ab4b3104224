"""The tracer: right results, the counts worked out by hand, every fault of a wrong kernel, none of a right one."""

import itertools
import os
import re
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mutants
import numpy as np
import pytest
from msgspec.structs import replace
from numba import cuda
from sampling import some

from common import cli
from common.catalog import catalog, inputs, limits, problems, reference
from common.catalog.problems import RAGGED, Conv2d, Gemm
from common.explain.faults import UNSOUND, Fault
from common.records import records
from common.records.records import Record
from common.report import agreement, tracetables
from common.run import child, isolate
from common.run.messages import Launch
from common.timing import tools
from common.trace import result, trace
from common.trace.state import TraceError

pytestmark = pytest.mark.usefixtures("traced")
FILES = [*catalog.steps(), *catalog.experiments()]
LESSON = Path(__file__).parents[2] / "lessons" / "02_shared_tiling"
HEAD = """
import math
import numpy as np
from numba import cuda, float32, float64, int32, uint32, uint64
from lessons.toolkit.memory import copy1_async, copy4_async, load4, shared_array, store4, wait_async
from lessons.toolkit.unroll import unrolled
"""


def sections(text):
    """Title and body of each piece of code that starts with a comment line."""
    pieces = re.split(r"^# (.+)\n", textwrap.dedent(text).strip("\n"), flags=re.MULTILINE)[1:]
    return list(zip(pieces[::2], (body.strip("\n") for body in pieces[1::2]), strict=True))


def named(expected):
    """The kinds of faults in a section's title."""
    kinds = expected.split(":")[0]
    return set() if kinds == "nothing" else set(kinds.split(", "))


def traced(path, problem, constants=None, **options):
    module = catalog.load(path, problem.ladder, constants=constants)
    return trace.run(module, problem, **{"every": True, **options})


def kinds(found):
    return {fault.kind for fault in found.faults}


def file_of(body, block=32, extra="", grid=1):
    """The text of a step whose kernel of (a, b, c) has this body."""
    lines = "\n".join("    " + line for line in body.strip("\n").splitlines())
    text = f"{HEAD}\n{extra}\n\n@cuda.jit\ndef kernel(a, b, c):\n{lines}\n\n"
    return text + f"def launch(a, b, c):\n    kernel[{grid}, {block}](a, b, c)\n"


@pytest.fixture
def kernel(write):
    """Trace a kernel of (a, b, c), given by its body, on one block; a is M x K, b K x N, c M x N."""

    def trace_it(body, block=32, problem=None, extra="", grid=1, **options):
        path = write("gemm_own.py", file_of(body, block, extra, grid))
        return traced(path, problem or Gemm(M=4, N=32, K=8), **options)

    return trace_it


@pytest.fixture
def here(monkeypatch):
    """Traces in this process in place of a child's."""

    def run(tasks, without_gpu, seconds):
        for task in tasks:
            yield task, child.attempt(task)

    monkeypatch.setattr(isolate, "run", run)


# --- right kernels ---


def test_asynchronous_copies_arrive_when_they_are_waited_for():
    problem = Gemm(M=37, N=45, K=19)
    found = traced(catalog.find("gemm_double_buffered_async").path, problem)
    np.testing.assert_array_equal(found.output, reference.full(problem, *inputs.integers(problem, 0)))
    assert found.faults == []
    totals = found.main.totals
    assert 0 < totals["copy_requests"] <= totals["load_requests"]  # the hardware counts copies as loads
    assert 0 < totals["copy_sectors"] <= totals["load_sectors"]


def test_one_block_computes_its_part_of_the_output():
    problem = Gemm(M=128, N=96, K=40)
    found = traced(catalog.find("gemm_shared_tile").path, problem, every=False, block=(2, 1, 0))
    oracle = reference.full(problem, *inputs.integers(problem, 0))
    mine = np.zeros(found.output.shape, np.bool_)
    mine[32:64, 64:96] = True
    np.testing.assert_array_equal(found.output[mine], oracle[mine])
    assert np.isnan(found.output[~mine]).all()
    assert found.kernels[0].first_block == (2, 1, 0)


@pytest.mark.parametrize("name", ["gemm_rectangular_tiles", "conv2d_unroll_gemm"])
def test_a_kernel_whose_output_the_next_one_needs_runs_whole(name):
    step = catalog.find(name)
    problem = trace.SHAPES[step.ladder][0]
    found = traced(step.path, problem, every=False)
    assert [kernel.blocks for kernel in found.kernels] == [1, 1]
    assert found.faults == []
    written = ~np.isnan(found.output)
    assert 0 < written.sum() < written.size
    oracle = reference.full(problem, *inputs.integers(problem, 0))
    np.testing.assert_array_equal(found.output[written], oracle[written])


def test_blocks_run_together_count_as_blocks_run_alone(monkeypatch):
    step, problem = catalog.find("conv2d_coarsened"), Conv2d(N=3, C=2, H=20, W=18, K=3, R=3, S=2)
    together = traced(step.path, problem)
    monkeypatch.setattr(trace, "_LANES_AT_ONCE", 1)
    alone = traced(step.path, problem)
    assert together.kernels[0].totals == alone.kernels[0].totals
    np.testing.assert_array_equal(together.output, alone.output)


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


ROUNDS = """
tile = cuda.shared.array(64, float32)
i = cuda.threadIdx.x
for k in range(4):
    tile[i] = k
    {first}
    c[i // 32, i % 32] += tile[63 - i]
    {second}
"""


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


@pytest.mark.parametrize(
    ("body", "says"),
    [("c[::2].reshape(64)[0] = 1.0", "c is not contiguous"), ("c.reshape(5, 5)[0, 0] = 1.0", r"reshaped to \(5, 5\)"),
     ("c.reshape(-1, -1)[0, 0] = 1.0", "c has 128 elements"),
     ("c.reshape(-2, -64, 1)[0, 0, 0] = 1.0", "c has 128"), ("c.reshape(cuda.threadIdx.x)[0] = 1.0", "differs")],
)  # fmt: skip
def test_a_shape_that_an_array_cannot_take_is_told(kernel, body, says):
    with pytest.raises(TraceError, match=says):
        kernel(body)


STAGED = """
tile = cuda.shared.array(64, float32)
i = cuda.threadIdx.x
{body}
"""


SHARED_FAULTS = """
# nothing: a barrier between
tile[i] = 1.0
cuda.syncthreads()
c[i // 32, i % 32] = tile[63 - i]

# race: no barrier, the other warp
tile[i] = 1.0
c[i // 32, i % 32] = tile[63 - i]

# race: no barrier, a neighbour in the same warp
tile[i] = 1.0
c[i // 32, i % 32] = tile[i ^ 1]

# nothing: syncwarp orders a warp
tile[i] = 1.0
cuda.syncwarp()
c[i // 32, i % 32] = tile[i ^ 1]

# race: syncwarp does not order two warps
tile[i] = 1.0
cuda.syncwarp()
c[i // 32, i % 32] = tile[63 - i]

# race: all write different values
tile[0] = float32(i)
cuda.syncthreads()
c[i // 32, i % 32] = tile[0]

# race: two writers
tile[i] = 1.0
tile[63 - i] = 2.0
cuda.syncthreads()
c[i // 32, i % 32] = tile[i]

# race: read, then overwritten
tile[i] = 1.0
cuda.syncthreads()
x = tile[63 - i]
tile[i] = 2.0
c[i // 32, i % 32] = x

# read-before-write: nothing wrote the upper half
if i < 32:
    tile[i] = 1.0
cuda.syncthreads()
c[i // 32, i % 32] = tile[i]

# nothing: read, but not stored
if i < 32:
    tile[i] = 1.0
cuda.syncthreads()
x = tile[i]
if i < 32:
    c[0, i] = x

# divergent-barrier: half of the threads wait
if i < 32:
    cuda.syncthreads()
c[i // 32, i % 32] = 1.0

# nothing: who has ended is not waited for
if i >= 32:
    return
cuda.syncthreads()
c[0, i] = 1.0

# divergent-barrier: two barriers are not one
if i < 40:
    cuda.syncthreads()
else:
    cuda.syncthreads()
c[i // 32, i % 32] = 1.0

# nothing: those alone read that are within
if i < 32 and b[0, i] != 0:
    c[0, i] = 1.0
if i >= 32 or b[0, i] != 0:
    c[2 + i // 32, i % 32] = 1.0 if i >= 32 else b[0, i]

# outside: past the end
c[0, i] = 1.0

# negative-index: counted from the end
c[0, i % 32 - 32] = 1.0

# negative-index, outside: before the start
c[0, i % 32 - 33] = 1.0

# outside: past a shared array
tile[i + 1] = 1.0

# nothing: atomics do not race
if i == 0:
    tile[0] = 0.0
cuda.syncthreads()
cuda.atomic.add(tile, 0, 1.0)
cuda.syncthreads()
c[i // 32, i % 32] = tile[0]

# race: an atomic operation and a plain read
if i == 0:
    tile[0] = 0.0
cuda.syncthreads()
cuda.atomic.add(tile, 0, 1.0)
c[i // 32, i % 32] = tile[0]

# read-before-write: an atomic operation on what nothing has written
cuda.atomic.add(tile, 0, 1.0)

# divergent-barrier: a loop with as many turns as the thread's number
for j in range(i % 2 + 1):
    cuda.syncthreads()

# race: a barrier of another branch orders nothing
tile[i] = 1.0
if cuda.blockIdx.x > 0:
    cuda.syncthreads()
c[i // 32, i % 32] = tile[63 - i]

# read-before-write: what nothing has written is compared
if i < 32:
    tile[i] = 1.0
cuda.syncthreads()
x = 1.0 if tile[i] > 0 else 0.0
c[i // 32, i % 32] = x

# nothing: compared by those alone that have written it
if i < 32:
    tile[i] = 1.0
cuda.syncthreads()
x = tile[i]
if i < 32 and x > 0:
    c[0, i] = 1.0 if x < 2 else 0.0

# read-before-write: what nothing has written becomes an integer
if i < 32:
    tile[i] = 1.0
cuda.syncthreads()
c[i // 32, i % 32] = int(tile[i])

# read-before-write: what nothing has written is the larger one
if i < 32:
    tile[i] = 1.0
cuda.syncthreads()
c[i // 32, i % 32] = max(tile[i], 0.0)

# read-before-write: a register that only some threads have written
r = cuda.local.array(2, float32)
if i < 32:
    r[0] = 1.0
c[i // 32, i % 32] = r[0]

# read-before-write: a counter in registers that starts from nothing
r = cuda.local.array(2, int32)
r[0] += 1
c[i // 32, i % 32] = r[0]

# read-before-write: dynamic shared memory
d = cuda.shared.array(0, float32)
c[i // 32, i % 32] = d[i]

# zero-division: of an integer
c[i // 32, i % 32] = 7 // (i - 5)

# nothing: threads that divide by zero are not there
if i != 5:
    c[i // 32, i % 32] = 7 % (i - 5)

# raises: an exception ends threads
if i == 5:
    raise ValueError
c[i // 32, i % 32] = 1.0

# raises: and so does an assertion
assert i != 5
c[i // 32, i % 32] = 1.0
"""


@pytest.mark.parametrize(("expected", "body"), sections(SHARED_FAULTS))
def test_faults_in_shared_and_global_memory(kernel, expected, body):
    assert kinds(kernel(STAGED.format(body=body), block="64, 0, 1024")) == named(expected)


GLOBAL_FAULTS = """
# race: two threads of a block write one element
c[g, i // 2] = i

# race: no barrier between two writers
c[g, i] = 1.0
c[g, 31 - i] = 2.0

# race: a neighbour's element is read
c[g, i] = 1.0
c[2 + g, i] = c[g, i ^ 1]

# race: read, then overwritten by a neighbour
c[g, i] = 1.0
cuda.syncthreads()
x = c[g, i ^ 1]
c[g, i] = 2.0 + x

# race: syncwarp before the read, none after it
c[g, i] = 1.0
cuda.syncwarp()
x = c[g, i ^ 1]
c[g, i] = x + 1.0

# overlap: two blocks write one element
c[0, i] = g

# overlap: a block reads what another has written
c[g, i] = 1.0
cuda.syncthreads()
c[2 + g, i] = c[1 - g, i]

# overlap: a block overwrites what another has read
x = a[g, i % 8]
a[1 - g, i % 8] = 5.0
c[g, i] = x

# overlap: a barrier is a block's own
if g == 0:
    c[0, i] = 1.0
cuda.syncthreads()
if g == 1:
    c[1, i] = c[0, i]

# nothing: atomic operations of blocks meet
cuda.atomic.exch(c, (0, i), 0.0)

# overlap: an atomic operation and a plain write of another block
if g == 0:
    c[0, i] = 0.0
cuda.syncthreads()
cuda.atomic.add(c, (0, i), 1.0)

# overlap: an atomic operation on what another block has read
if g == 0:
    c[0, i] = a[0, i % 8]
elif i < 8:
    cuda.atomic.add(a, (0, i), 1.0)

# overlap: an atomic operation and a plain read of another block
cuda.atomic.exch(c, (0, i), 1.0)
cuda.syncthreads()
c[1 + g, i] = c[0, i]

# nothing: the last block of all reads what the others have handed over
c[g, i] = g
cuda.threadfence()
cuda.syncthreads()
if i == 0:
    cuda.atomic.add(a, (0, 0), 1.0)
cuda.syncthreads()
if g == 1:
    c[2, i] = c[0, i] + c[1, i]

# nothing: a warp hands over with syncwarp
c[g, i] = g
cuda.syncwarp()
if i == 0:
    cuda.threadfence()
    cuda.atomic.add(a, (0, 0), 1.0)
cuda.syncwarp()
if g == 1:
    c[2, i] = c[0, i] + c[1, i]

# overlap: no barrier between the threadfence and the atomic operation of one thread
c[g, i] = g
cuda.threadfence()
if i == 0:
    cuda.atomic.add(a, (0, 0), 1.0)
cuda.syncthreads()
if g == 1:
    c[2, i] = c[0, i] + c[1, i]

# overlap: one thread calls threadfence before the barrier
c[g, i] = g
if i == 0:
    cuda.threadfence()
cuda.syncthreads()
if i == 0:
    cuda.atomic.add(a, (0, 0), 1.0)
cuda.syncthreads()
if g == 1:
    c[2, i] = c[0, i] + c[1, i]

# overlap: without a threadfence nothing is handed over
c[g, i] = g
cuda.syncthreads()
if i == 0:
    cuda.atomic.add(a, (0, 0), 1.0)
cuda.syncthreads()
if g == 1:
    c[2, i] = c[0, i] + c[1, i]

# nothing: the last of all puts the counter back
c[g, i] = 1.0
if i == 0 and cuda.atomic.add(a, (0, 0), 1.0) == a0 + 1.0:
    a[0, 0] = a0

# overlap: the first of all puts the counter back
c[g, i] = 1.0
if i == 0 and cuda.atomic.add(a, (0, 0), 1.0) == a0:
    a[0, 0] = a0

# race: read by a neighbour, then by the thread that overwrites it
c[g, i] = 1.0
cuda.syncthreads()
x = c[g, i ^ 1]
y = c[g, i]
c[g, i] = x + y + 1.0

# race: the first thread of all alone reads
c[g, i] = 1.0
cuda.syncthreads()
if g == 0 and i == 0:
    c[2, 0] = c[0, 5]
if g == 0 and i == 5:
    c[0, 5] = 2.0

# overlap: read by the first thread of all, then by another block, which overwrites it
if i == 0:
    x = a[0, 0]
    if g == 1:
        a[0, 0] = x + 1.0

# overlap: both blocks clear what the last one sums up
c[0, i] = 0.0
if g == 1:
    c[0, i] = c[0, i] + 1.0

# race: a first syncwarp is missing
tile = cuda.shared.array(32, float32)
tile[i] = i
x = tile[i ^ 1]
cuda.syncwarp()
tile[i] = x
cuda.syncwarp()
c[g, i] = tile[i ^ 1]

# race: another block's barrier orders nothing
tile = cuda.shared.array(32, float32)
tile[i] = 1.0
if g == 1:
    cuda.syncthreads()
c[g, i] = tile[i ^ 1]

# read-before-write: a sum that starts from nothing
cuda.atomic.add(c, (g, i), 1.0)

# overlap: through a function
put(c, i, g)
"""


@pytest.mark.parametrize(("order", "at_once"), [("forward", 1), ("backward", 1 << 14)])
@pytest.mark.parametrize(("expected", "body"), sections(GLOBAL_FAULTS))
def test_races_in_global_memory_and_between_blocks(kernel, monkeypatch, expected, body, order, at_once):
    monkeypatch.setattr(trace, "_LANES_AT_ONCE", at_once)
    text = f"i = cuda.threadIdx.x\ng = cuda.blockIdx.x\n{body}"
    first = float(inputs.integers(Gemm(M=4, N=32, K=8), 0)[0][0, 0])
    helper = f"a0 = float32({first})\n@cuda.jit(device=True)\ndef put(rows, i, value):\n    rows[0, i] = value\n"
    found = kinds(kernel(text, grid=2, extra=helper, order=order))
    if named(expected) == {"overlap"}:
        found.discard("read-before-write")  # in some orders
    assert found == named(expected)


BLOCK_FAULTS = """
# race: both warps clear what the last one sums up
tile = cuda.shared.array(32, float32)
tile[i % 32] = 0.0
cuda.syncwarp()
if i >= 96:
    tile[i % 32] += 1.0
cuda.syncthreads()
c[g, i % 32] = tile[i % 32]

# race: the last of those that changed it atomically reads it
tile = cuda.shared.array(1, float32)
if i == 0:
    tile[0] = 0.0
cuda.syncthreads()
cuda.atomic.add(tile, 0, 1.0)
cuda.syncwarp()
if i == 127:
    c[g, 0] = tile[0]

# race: read by the first warp, then by the last, which writes it after a syncwarp
if i == 0:
    x = a[g, 0]
if i >= 96:
    y = a[g, 0]
    cuda.syncwarp()
    if i == 96:
        a[g, 0] = 3.0
c[g, i % 32] = 1.0

# race: a reader leaves the value that it read
tile = cuda.shared.array(32, float32)
if i < 32:
    tile[i] = 0.0
if i >= 96:
    c[g, i % 32] = tile[i % 32]
    tile[i % 32] = 0.0

# nothing: a barrier between the readers and the one that writes
x = a[g, 0]
cuda.syncthreads()
if i == 127:
    a[g, 0] = 3.0
c[g, i % 32] = 1.0
"""


@pytest.mark.parametrize(("order", "at_once"), [("forward", 1), ("backward", 1 << 14)])
@pytest.mark.parametrize(("expected", "body"), sections(BLOCK_FAULTS))
def test_races_between_the_warps_of_a_block(kernel, monkeypatch, expected, body, order, at_once):
    monkeypatch.setattr(trace, "_LANES_AT_ONCE", at_once)
    found = kernel(f"i = cuda.threadIdx.x\ng = cuda.blockIdx.x\n{body}", block=128, grid=2, order=order)
    assert kinds(found) - {"read-before-write"} == named(expected)  # in some orders of threads


def test_between_kernels_there_is_order(write):
    body = """
        @cuda.jit
        def first(c):
            c[0, cuda.threadIdx.x] = 1.0
            c[1, cuda.threadIdx.x] = 0.0

        @cuda.jit
        def second(c):
            cuda.atomic.add(c, (1, cuda.threadIdx.x), c[0, 31 - cuda.threadIdx.x])

        def launch(a, b, c):
            first[1, 32](c)
            second[4, 32](c)
            first[1, 32](c)
    """
    found = traced(write("gemm_own.py", HEAD + textwrap.dedent(body)), Gemm(M=4, N=32, K=8))
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


def test_only_accesses_within_an_array_are_counted_and_shown(kernel):
    found = kernel("i = cuda.threadIdx.x\nif i % 2 == 0:\n    c[0, 16 + i] = 1.0")
    (access,) = found.main.select("global", "write")
    assert (access.accesses, access.requests, access.distinct) == (8, 1, 8)
    assert access.sample[:5] == [16, None, 18, None, 20]
    assert len(access.sample) == 32


def test_a_barrier_in_two_branches_names_both_lines(kernel):
    body = "i = cuda.threadIdx.x\nif i < 40:\n    cuda.syncthreads()\nelse:\n    cuda.syncthreads()"
    faults = {fault.line: fault.what for fault in kernel(body, block=64).faults}
    where = "24 threads do not reach this barrier, which others wait at: they come to the one in line 16"
    assert faults[14] == where


@pytest.mark.parametrize(("order", "first"), [("forward", 1), ("backward", 0)])
def test_blocks_and_writers_run_in_the_order_that_is_asked_for(kernel, order, first):
    body = "c[0, 0] = cuda.blockIdx.x\nc[1, 0] = cuda.threadIdx.x"
    values = kernel(body, grid=300, block=32, order=order).output
    assert (values[0, 0], values[1, 0]) == (299 * first, 31 * first)


PHASES = """
i, g = cuda.threadIdx.x, cuda.blockIdx.x
grid = cuda.cg.this_grid()
{leave}
if i == 0:
    c[0, g] = 0.0
cuda.syncthreads()
cuda.atomic.add(c, (0, g), float32(i))
{barrier}
if cuda.grid(1) == 0:
    total = float32(0.0)
    for k in range(cuda.gridDim.x):
        total += c[0, k]
    c[1, 0] = total
"""
MISSED = "32 threads do not reach this barrier of the whole grid, which others wait at"


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
    for title, body in sections(SHARED_FAULTS)
    if named(title) <= {"race"} and title not in UNSEEN_BY_RACECHECK
]
RACY_FILES = {
    mutants.path("gemm_missing_barrier"): True,
    LESSON / "exercises" / "gemm_once_in_a_while.py": True,
    LESSON / "solutions" / "gemm_once_in_a_while.py": False,
}


# each is a process of its own under the tool, which takes seconds
RACES_ON_GPU = some(RACES, 5, 2)


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


COPY_FAULTS = """
# copy-not-awaited, read-before-write: not waited for
copy1_async(tile, i, b, i)
c[0, i] = tile[i]

# race: only one's own copies are waited for
copy1_async(tile, i, b, i)
wait_async()
c[0, i] = tile[31 - i]

# nothing: a barrier after the wait
copy1_async(tile, i, b, i)
wait_async()
cuda.syncthreads()
c[0, i] = tile[31 - i]

# race: a barrier does not wait for copies
copy1_async(tile, i, b, i)
cuda.syncthreads()
wait_async()
c[0, i] = tile[31 - i]

# nothing: four at a time
copy4_async(tile, 4 * i, b, 4 * i)
wait_async()
c[0, i] = tile[4 * i + 1]

# misaligned, outside: a source off the boundary
copy4_async(tile, 4 * i, b, 4 * i + 1)
wait_async()
c[0, i] = tile[4 * i]

# race: overwritten while a copy is under way
copy1_async(tile, i, b, i)
cuda.syncthreads()
tile[31 - i] = 2.0
cuda.syncthreads()
wait_async()
cuda.syncthreads()
c[0, i] = tile[i]
"""


@pytest.mark.parametrize(("expected", "body"), sections(COPY_FAULTS))
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


ALIGNMENT = """
# nothing: from a boundary on
r = cuda.local.array(4, float32)
load4(r, 0, b, 4 * cuda.threadIdx.x)
c[0, cuda.threadIdx.x] = r[0]

# misaligned: off the boundary
r = cuda.local.array(4, float32)
load4(r, 0, b, 4 * cuda.threadIdx.x + 2)
c[0, cuda.threadIdx.x] = r[0]

# misaligned: in shared memory, off the boundary
r = cuda.local.array(4, float32)
t = shared_array(8)
r[0] = r[1] = r[2] = r[3] = 1.0
store4(t, 3, r, 0)

# misaligned: an array that may start anywhere
r = cuda.local.array(4, float32)
t = cuda.shared.array(8, float32)
r[0] = r[1] = r[2] = r[3] = 1.0
store4(t, 4, r, 0)
"""


@pytest.mark.parametrize(("expected", "body"), sections(ALIGNMENT))
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


# --- the language: what a kernel may say, against Python, thread by thread ---

LANGUAGE = dict(
    sections(
        """
        # divergent if
        if i % 3 == 0:
            x = 1.0
        elif i % 3 == 1:
            x = 2.0
        else:
            x = 3.0
        c[0, i] = x

        # stale variable
        x = 5.0
        if i % 2:
            x = float32(i)
        c[0, i] = x

        # stale variable that is added to
        x = 5.0
        if i % 2:
            x = float32(i)
        x += 1.0
        c[0, i] = x

        # swap
        x, y = float32(i), float32(2 * i)
        if i > 9:
            x, y = y, x
        c[0, i] = x - 3 * y

        # varying while
        n = 0
        while n * n < i:
            n += 1
        c[0, i] = n

        # varying range
        t = 0
        for j in range(i, 40, 3):
            t += j
        c[0, i] = t

        # down
        t = 0
        for j in range(i, 3, -2):
            t = t * 2 + j
        c[0, i] = t

        # last loop value
        j = -1
        for j in range(i % 5):
            pass
        c[0, i] = j

        # break
        t = 0
        for j in range(20):
            if j * 2 > i:
                break
            t += j
        c[0, i] = t + 100 * j

        # continue
        t = 0
        for j in range(9):
            if (i + j) % 3 == 0:
                continue
            t += j
            t += 1
        c[0, i] = t

        # while break
        t = 0
        while True:
            t += 1
            if t > i % 7:
                break
            if t == 3:
                continue
            t += 1
        c[0, i] = t

        # nested
        t = 0
        for j in range(4):
            for k in range(j + i % 3):
                if k == 2:
                    break
                t += 10 * j + k
            if t > 30:
                break
        c[0, i] = t

        # return
        c[0, i] = 1
        if i > 20:
            return
        for j in range(5):
            if j == i:
                return
            c[0, i] = j
        c[0, i] = 50

        # select
        c[0, i] = a[0, i] if i < 8 else (b[0, i] if i % 2 else -1.0)

        # guard
        if i < 8 and a[0, i] > 0:
            c[0, i] = 1
        elif i >= 8 or a[1, i] < 0:
            c[0, i] = 2
        else:
            c[0, i] = 3

        # not
        c[0, i] = 1.0 if not (i < 5 or i > 9) else 0.0

        # chain
        c[0, i] = 1.0 if 4 <= i * 2 < 20 else 2.0

        # integers
        c[0, i] = (7 * i - 40) // 6 + (i - 9) % 4 + (i << 2) + (i >> 1)
        c[0, i] += (i & 6) + (i | 1) + (i ^ 3) + i**2

        # min max abs
        c[0, i] = min(i, 7) + max(3, i - 10, 1) + abs(i - 5)

        # local
        r = cuda.local.array(4, float32)
        for j in range(4):
            r[j] = j * i
        if i > 5:
            r[2] += 100
        c[0, i] = r[0] + r[1] + r[2] + r[i % 4]

        # local varying
        r = cuda.local.array(3, float32)
        for j in range(3):
            r[j] = 0
        r[i % 3] = i
        c[0, i] = r[0] + 10 * r[1] + 100 * r[2]

        # local rows
        r = cuda.local.array((2, 2), float32)
        for j in range(2):
            r[j, 0] = j
            r[j, 1] = i
        c[0, i] = r[0, 1] + r[1, 0]

        # atomic
        old = cuda.atomic.add(c, (0, i // 4), 1.0)
        cuda.atomic.max(c, (1, 0), float32(i))

        # function
        c[0, i] = half(i, 3)

        # math
        c[0, i] = math.floor(math.sqrt(float32(i * i))) + float32(math.pi)

        # uniform
        for j in range(3):
            if j == 1:
                continue
            if j == 2 and i < 4:
                break
            c[j, i] = j + 1

        # grid
        n = cuda.grid(1)
        c[0, n] = cuda.blockIdx.x * 100 + cuda.blockDim.x + cuda.gridDim.x + cuda.gridsize(1)

        # tuple
        shape = c.shape
        c[0, i] = shape[1] + len(c) + c.size + c.ndim

        # augmented
        c[0, i] = 1
        c[0, i] += i
        c[0, i] *= 2

        # slices
        row = c[1, 4:20:3]
        if i < len(row):
            row[i] = i
        c[0, i] = a[1:3][1, i % 8] + b[:, i][2] + c[2:].shape[0]

        # slices that begin elsewhere in each thread
        part = b[i % 3, i % 4 : i % 4 + 3]
        c[0, i] = part[0] + 10 * part[2] + len(part)

        # assigned slices
        r = cuda.local.array(4, float32)
        r[:] = 3.0
        r[1:3] = a[0, 2:4]
        c[0, i] = r[0] + r[1] * i + r[2] + r[3]

        # negative ends
        c[0, i] = a[0, -3:].shape[0] + a[0, -3:][1] + a[0, 6:2].shape[0]

        # enumerate, zip
        t = 0
        for j, k in enumerate(range(3)):
            t += j * 10 + k
        for j, k in zip((1, 2), (3, 4)):
            t += j * k * i
        c[0, i] = t

        # unpacked
        (x, y), z = (i, 2), 3
        x = y = x + z
        c[0, i] = x * 100 + y

        # compare and swap
        old = cuda.atomic.cas(c, (0, i), c[0, i], 5.0) if False else 0.0
        c[0, i] = old

        # atomics
        c[0, i] = i
        c[1, i] = 3.0
        cuda.atomic.exch(c, (0, i), 4.0)
        cuda.atomic.sub(c, (1, i), 1.0)
        cuda.atomic.min(c, (1, i), float32(i))

        # atomics that begin anew
        t = cuda.shared.array(32, uint32)
        t[i % 16] = i % 16
        cuda.atomic.inc(t, i % 16, uint32(9))
        t[16 + i % 16] = i % 16
        cuda.atomic.dec(t, 16 + i % 16, uint32(9))
        c[0, i] = t[i % 16] + 100 * t[16 + i % 16]

        # a product whose factor changes memory
        c[1, i] = 1.0
        r = cuda.local.array(1, float32)
        r[0] = 0.0
        for j in range(3):
            r[0] += cuda.atomic.add(c, (1, i), 1.0) * float32(2.0)
        c[0, i] = r[0]

        # strides
        c[0, i] = 1000 * c.strides[0] + c.strides[1]

        # bits
        c[0, i] = cuda.popc(i) + 100 * cuda.ffs(int32(i)) + cuda.selp(i > 3, 7, 8)

        # fused
        c[0, i] = cuda.fma(float32(i), float32(2.0), float32(1.0)) + cuda.cbrt(float32(8.0))

        # rounding
        c[0, i] = round(i / 4) + math.fabs(float32(i) - 9)
        c[1, round(i / 1)] = i

        # pow
        c[0, i] = pow(i, 2) + 2.0**3

        # whole numbers that are one for all threads, until they are not
        last, total = 7, 0
        for j in range(5):
            k = j if j % 2 == 0 else 4 - j
            if j * 7 > i:
                last = -k
                break
            total += k // 2 - -j % 3
        while last < 9:
            last += i % 2 + 1
        c[0, i] = total + 100 * last
        c[1, i] = k + 10 * half(j, 3) + last // (j + 1)

        # a row at a time
        t = 0.0
        for value in a[i % 4]:
            t += value
        c[0, i] = t
        """
    )
)
HALF = """
@cuda.jit(device=True)
def half(i, limit):
    if i < limit:
        return 1000
    for j in range(100):
        if 2 * j >= i:
            return j
    return -1
"""


PLAIN = """
import math
import sys
import numpy as np
from numba import cuda, float32, int32, uint32
"""


def language(name, number=""):
    """The text of a kernel that a section is."""
    body = textwrap.indent(LANGUAGE[name], "    ")
    return f"\n\n@cuda.jit\ndef kernel{number}(a, b, c):\n    i = cuda.grid(1)\n{body}\n"


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """By section, what Numba's own simulator makes of it, thread by thread, in a process of its own."""
    folder, (x, weight) = tmp_path_factory.mktemp("language"), inputs.integers(Gemm(M=4, N=32, K=8), 0)
    np.savez(folder / "given.npz", x=x, weight=weight)
    kernels = "".join(language(name, number) for number, name in enumerate(LANGUAGE))
    script = f"""{PLAIN}{HALF}{kernels}
given, found = np.load("given.npz"), []
for number in range({len(LANGUAGE)}):
    c = np.full((4, 32), np.nan, np.float32)
    globals()[f"kernel{{number}}"][2, 16](given["x"].copy(), given["weight"].copy(), c)
    found.append(c)
np.save("found.npy", found)
"""
    (folder / "simulated.py").write_text(script)
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    subprocess.run([sys.executable, "-W", "ignore", "simulated.py"], cwd=folder, env=environment, check=True)
    return dict(zip(LANGUAGE, np.load(folder / "found.npy"), strict=True))


@pytest.mark.parametrize("name", LANGUAGE)
def test_the_language_means_what_it_means_thread_by_thread(write, simulated, name):
    text = HEAD + HALF + language(name) + "\n\ndef launch(a, b, c):\n    kernel[2, 16](a, b, c)\n"
    found = traced(write("gemm_own.py", text), Gemm(M=4, N=32, K=8))
    np.testing.assert_array_equal(found.output, simulated[name])


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("uint32(3) - uint32(5) > uint32(0)", True),  # two unsigned: computed in 64 bits, unsigned
        ("uint32(3) - 5 < 0", True),  # a literal is an int64
        ("uint32(uint32(3) - uint32(5))", 2**32 - 2),
        ("uint32(-1)", 2**32 - 1),
        ("int32(2**31)", -(2**31)),
        ("uint64(7) // uint64(2) - 4", -1),
        ("float32(16777216.0) + float32(1.0)", 16777216),  # a float32 sum
        ("float32(16777216.0) + 1", 16777217),  # with an int64 it is a float64
        ("float32(16777216.0) + 1.0", 16777217),
        ("-7 // 2", -4),
        ("-7 % 3", 2),
        ("np.float16(2049.0)", 2048),
    ],
)
def test_numbers_have_numba_s_types(kernel, expression, value):
    for i in ("", "+ 0 * cuda.threadIdx.x"):  # one value for all threads, and one per lane
        text = re.sub(r"\b(uint32|uint64|int32)\((-?\d[\d*]*)\)", rf"\1(\2 {i})", expression)
        found = kernel(f"c[0, cuda.threadIdx.x] = 1.0 if ({text}) == {value} else -1.0", block=8)
        assert (found.output[0, :8] == 1.0).all(), text


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("try:\n    pass\nexcept ValueError:\n    pass", "line 12: a Try statement is not traced"),
        ("c[0, 0] = [j for j in range(3)][0]", r"line 12: \[j for j in range\(3\)\] is not traced"),
        ("cuda.libdevice.sin(1.0)", r"kernel: line \d+: cuda\.libdevice is not known to the tracer"),
        ("x = c[0, cuda.threadIdx.x :]", "line 12: c: a slice whose length differs between threads is not traced"),
        ("for j in range(3):\n    c[0, j] = j\nelse:\n    c[0, 0] = 9", "line 12: the else of a loop is not traced"),
        ("x = c[0, 0, 0]", "line 12: c has 2 axes, not 3"),
    ],
)
def test_what_is_not_traced_is_named(kernel, body, says):
    with pytest.raises(TraceError, match=says):
        kernel(body)


@pytest.mark.parametrize(("zero", "noted"), [("0.0", True), ("float32(0.0)", False)])
def test_sums_in_float64_are_noted(kernel, zero, noted):
    i = "i = cuda.threadIdx.x"
    (found,) = kernel(f"{i}\nacc = {zero}\nfor k in range(4):\n    acc += a[0, k] * b[k, i]\nc[0, i] = acc").kernels
    assert any("multiplies and adds in float64" in note for note in found.notes) == noted
    assert found.fma == 4 * 32


def test_what_a_launch_writes_on_the_host_is_read_by_its_kernel(write):
    text = file_of("c[0, cuda.threadIdx.x] = a[0, 0]").replace(
        "    kernel[1, 32]", "    a[0, 0] = 50\n    kernel[1, 32]"
    )
    found = traced(write("gemm_own.py", text), Gemm(M=4, N=32, K=8))
    assert (found.output[0] == 50).all()
    assert found.faults == []


# --- counts ---


def test_the_counts_of_gemm_naive_are_those_of_lesson_01():
    found = traced(catalog.find("gemm_naive").path, Gemm(M=64, N=64, K=32), every=False)
    (kernel,) = found.kernels
    a, b = (next(x for x in kernel.select("global", "read") if x.array == name) for name in "ab")
    (c,) = kernel.select("global", "write")
    assert (a.requests, a.per_request, a.lanes_per_address) == (8 * 32, 1, 32)
    assert (b.requests, b.per_request, b.lanes_per_address) == (8 * 32, 4, 1)
    assert (c.requests, c.moved, c.bytes_moved) == (8, 32, 1024)
    assert kernel.fma == kernel.fma_lines[str(a.line)] == 256 * 32
    assert kernel.per_fma["global"]["loads"] == 2
    swapped = traced(catalog.find("gemm_naive_uncoalesced").path, Gemm(M=64, N=64, K=32), every=False).kernels[0]
    assert [x.per_request for x in swapped.select("global", "read")] == [32, 1]
    assert [x.efficiency for x in swapped.select("global")] == [4 / 32, 1, 4 / 32]


@pytest.mark.parametrize(
    ("name", "instructions", "values"),
    [
        ("gemm_shared_tile", 2, 2), ("gemm_coarsened", 9 / 8, 9 / 8), ("gemm_wide_loads", 6 / 32, 24 / 32),
        ("gemm_rectangular_tiles", 12 / 32, 36 / 32), ("gemm_register_blocked", 4 / 64, 16 / 64),
        ("gemm_warp_tiles", 4 / 64, 16 / 64), ("gemm_double_buffered", 4 / 64, 16 / 64),
        ("gemm_tuned", 6 / 128 * 33 / 32, 24 / 128 * 33 / 32),  # it reads one k ahead, beyond the 32 that there are
    ],
)  # fmt: skip
def test_the_promises_of_lesson_04_are_kept(name, instructions, values):
    kernel = traced(catalog.find(name).path, Gemm(M=128, N=128, K=32), every=False).main
    rates = kernel.per_fma["shared"]
    assert (rates["loads"], rates["loaded_values"]) == (instructions, values)


def test_a_padded_tile_has_fewer_conflicts():
    turns = []
    for pad in (0, 1, 2):
        path = catalog.find("gemm_rectangular_tiles").path
        kernel = traced(path, Gemm(M=64, N=64, K=32), constants={"PAD": pad}).main
        (access,) = (a for a in kernel.select("shared", "read") if a.array == "b_tile")
        turns.append(access.per_request)
    assert turns == [32, 1, 2]


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


WARP_FAULTS = """
# nothing: half of a warp, by its mask
if i < 16:
    c[0, i] = cuda.shfl_xor_sync(0xFFFF, i, 1)

# nothing: what comes from no thread is thrown away
if i < 16:
    x = cuda.shfl_down_sync(0xFFFF, float32(i), 8)
    if i < 8:
        c[0, i] = x

# warp-sync: half of a warp, and the mask names the other half
if i < 16:
    c[0, i] = cuda.shfl_xor_sync(0xFFFFFFFF, i, 1)

# warp-sync: a mask without the thread itself
if i < 16:
    cuda.syncwarp(0xFF)

# warp-sync: the value of a thread that is not there
if i < 16:
    c[0, i] = cuda.shfl_sync(0xFFFF, i, 20)

# nothing: with those that are there
if i % 3 == 0:
    c[0, i] = cuda.ballot_sync(cuda.activemask(), i > 4)

# race: a shuffle orders no memory
tile = cuda.shared.array(32, float32)
tile[i] = 1.0
x = cuda.shfl_xor_sync(-1, i, 1)
c[0, i] = tile[i ^ 1] + x

"""


@pytest.mark.parametrize(("expected", "body"), sections(WARP_FAULTS))
def test_faults_of_warps(kernel, expected, body):
    assert kinds(kernel(f"i = cuda.threadIdx.x\n{body}")) == named(expected)


HALVES = """
# race: the half that reads waits alone
t[i] = 1.0
if i < 16:
    cuda.syncwarp(0xFFFF)
    c[1, i] = t[i + 16]

# nothing: a half waits for itself
t[i] = 1.0
if i < 16:
    cuda.syncwarp(0xFFFF)
    c[1, i] = t[i ^ 1]

# race: a half has waited once more, before
if i < 16:
    cuda.syncwarp(0xFFFF)
t[i] = 1.0
c[1, i] = t[i ^ 16]

# race: the half that overwrites what the other reads waits alone
t[i] = 1.0
cuda.syncwarp()
if i < 16:
    c[1, i] = t[i + 16]
else:
    cuda.syncwarp(0xFFFF0000)
    t[i] = 2.0

# race: the half that reads what the other changed atomically waits alone
t[i] = 1.0
cuda.syncwarp()
cuda.atomic.add(t, i, 1.0)
if i < 16:
    cuda.syncwarp(0xFFFF)
    c[1, i] = t[i + 16]

# nothing: all wait for an atomic operation
if i < 16:
    cuda.syncwarp(0xFFFF)
t[i] = 1.0
cuda.syncwarp()
cuda.atomic.add(t, i ^ 16, 1.0)
cuda.syncwarp()
c[1, i] = t[i]
"""


@pytest.mark.parametrize("order", ["forward", "backward"])
@pytest.mark.parametrize("memory", ["cuda.shared.array(32, float32)", "c[2 * g]"], ids=["shared", "global"])
@pytest.mark.parametrize(("expected", "body"), sections(HALVES))
def test_a_half_of_a_warp_that_waits_alone_orders_nothing_of_the_other(kernel, expected, body, memory, order):
    body = body.replace("c[1", "c[2 * g + 1")
    text = f"i = cuda.threadIdx.x\ng = cuda.blockIdx.x\nt = {memory}\n{body}"
    assert kinds(kernel(text, grid=2, order=order)) == named(expected)


# --- as a GPU would ---


def stood_in(write, text, names=("gemm_own.py",), **options):
    """A tracer, and the modules whose texts are given."""
    modules = [catalog.load(write(name, HEAD + textwrap.dedent(text)), "gemm") for name in names]
    return trace.Tracer(**options), modules[0]


ONE = Gemm(M=1, N=32, K=1)


def launched(tracer, module, value=0.0):
    """What a launch makes of an output that nothing has written."""
    with tracer:
        x = cuda.to_device(np.full((1, 1), value, np.float32))
        weight, y = cuda.to_device(np.ones((1, 32), np.float32)), cuda.device_array((1, 32), np.float32)
        module.launch(x, weight, y)
        return y.copy_to_host()[0]


FROZEN = """
    SCALE, TABLE = 1.0, np.zeros(32, np.float32)

    @cuda.jit
    def kernel(a, c, extra):
        table = cuda.const.array_like(TABLE)
        i = cuda.threadIdx.x
        c[0, i] = SCALE + 10 * table[i] + 100 * extra

    def launch(a, b, c):
        global SCALE
        SCALE = float(a.copy_to_host()[0, 0])
        TABLE[:] = SCALE
        kernel[1, 32](a, c, 0 if SCALE < 5 else 0.0)
"""


def test_globals_are_those_of_the_first_launch_for_each_type_of_arguments(write):
    tracer, module = stood_in(write, FROZEN)
    assert [launched(tracer, module, value)[0] for value in (1, 2, 5, 6, 3)] == [11, 11, 55, 55, 11]
    assert [launched(trace.Tracer(), module, value)[0] for value in (1, 2)] == [11, 22]


@pytest.mark.parametrize("read", ["TABLE[i]", "cuda.const.array_like(TABLE)[i]"])
def test_host_arrays_beyond_constant_memory_are_refused_with_their_bytes_and_line(kernel, read):
    extra = "import numpy as np\n\nOTHER = np.ones(8192, np.float32)\nTABLE = np.ones({}, np.float32)"
    body = f"i = cuda.threadIdx.x\nc[0, i] = OTHER[i] + OTHER[i + 32]\nc[1, i] = {read}"
    assert not {"raises"} & kinds(kernel(body, extra=extra.format(8192)))  # 64 KiB together, however often it is read
    with pytest.raises(limits.LaunchLimitError, match="take 65540 bytes of constant memory") as raised:
        kernel(body, extra=extra.format(8193))
    path, line = [(entry.path, entry.lineno) for entry in raised.traceback if str(entry.path).endswith("_own.py")][-1]
    assert "OTHER[i]" in path.read_text().splitlines()[line]


SHARED_BY_FUNCTION = """
    @cuda.jit(device=True{option})
    def keep(value):
        kept = cuda.shared.array(32, float32)
        i = cuda.threadIdx.x
        before = kept[i] if value < 0 else float32(0.0)
        if value >= 0:
            kept[i] = value
        return before

    @cuda.jit
    def kernel(c):
        keep(3.0)
        c[0, cuda.threadIdx.x] = keep(-1.0)

    def launch(a, b, c):
        kernel[1, 32](c)
"""


@pytest.mark.parametrize(("option", "fault"), [("", set()), (", inline='always'", {"read-before-write"})])
def test_shared_memory_belongs_to_its_function_unless_that_is_written_out(write, option, fault):
    tracer, module = stood_in(write, SHARED_BY_FUNCTION.replace("{option}", option))
    launched(tracer, module)
    assert {fault.kind for fault in tracer.faults()} == fault


def test_dynamic_shared_memory_is_one_and_has_a_limit(kernel):
    body = "d = cuda.shared.array(0, float32)\ne = cuda.shared.array(0, float32)\ni = cuda.threadIdx.x\n"
    found = kernel(body + "d[i] = i\nc[0, i] = e[i]", block="32, 0, 128")
    assert found.output[0, 31] == 31
    with pytest.raises(limits.LaunchLimitError, match="232576 together: a block has at most 232448"):
        kernel(body + "s = cuda.shared.array(32, float32)\ns[i] = 0.0", block="32, 0, 232448")


def test_a_grid_is_a_multiple_of_the_cluster_that_its_kernel_declares(write):
    source = """
    @cuda.jit(launch_bounds=(32, 1, 2))
    def kernel(c):
        if cuda.grid(1) < 32:
            c[0, cuda.grid(1)] = 1.0

    def launch(a, b, c):
        kernel[{blocks}, 32](c)
    """
    tracer, module = stood_in(write, source.replace("{blocks}", "2"))
    launched(tracer, module)
    assert not tracer.faults()
    tracer, module = stood_in(write, source.replace("{blocks}", "3"))
    with pytest.raises(limits.LaunchLimitError, match="in clusters of 2 blocks: x must be a multiple of 2"):
        launched(tracer, module)


def test_more_than_48_kib_of_shared_memory_is_dynamic(kernel):
    body = "d = cuda.shared.array(0, float32)\ni = cuda.threadIdx.x\nd[i + 50000] = i\nc[0, i] = d[i + 50000]"
    assert kernel(body, block="32, 0, 232448").output[0, 31] == 31
    with pytest.raises(limits.LaunchLimitError, match="shared arrays take 49280 bytes: a block has at most 49152"):
        kernel("s = cuda.shared.array(12320, float32)\ns[0] = 0.0\nc[0, 0] = s[0]", block="32")


INTEGERS = """
    @cuda.jit
    def kernel(c, w):
        i = cuda.threadIdx.x
        c[0, i] = {value}

    def launch(a, b, c):
        kernel[1, 32](c, cuda.device_array(32, np.{kind}))
"""


@pytest.mark.parametrize("kind", ["int32", "uint8", "int64"])
def test_integers_in_a_workspace_are_not_zero(write, kind):
    tracer, module = stood_in(write, INTEGERS.replace("{kind}", kind).replace("{value}", "w[i]"))
    assert (launched(tracer, module) != 0).all()
    assert [fault.kind for fault in tracer.faults()] == ["read-before-write"]


def test_what_the_host_copies_or_stores_is_written(write):
    tracer, module = stood_in(write, INTEGERS.replace("{kind}", "int32").replace("{value}", "a[0, i] + w[i]"))
    with tracer:
        array = cuda.device_array((2, 8), np.int32)
        array[0].copy_to_device(np.arange(8, dtype=np.int32))
        array[1, ::2] = 5
        assert array.storage.written.reshape(2, 8).tolist() == [[True] * 8, [True, False] * 4]
        array[0].poison()
        assert not array.storage.written[:8].any()
        array.copy_to_device(np.zeros((2, 8), np.int32))
        assert array.storage.written.all()


def test_launches_run_at_once_and_host_arrays_come_back(write):
    text = """
        @cuda.jit
        def kernel(c, v):
            c[0, cuda.threadIdx.x] = v

        def launch(a, b, c):
            host = np.zeros((1, 32), np.float32)
            kernel[1, 32](host, 2.0)
            kernel[1, 32](c, host[0, 3])
    """
    tracer, module = stood_in(write, text)
    assert (launched(tracer, module) == 2).all()
    (report,) = tracer.reports()
    assert (report.launches, report.blocks, report.accesses) == (2, 2, [])
    tracer.forget()
    assert tracer.reports() == []


def test_without_recording_the_faults_are_the_same(kernel):
    body = STAGED.format(body="tile[i] = 1.0\nc[i // 32, i % 32] = tile[63 - i]")
    counted, quick = kernel(body, block=64), kernel(body, block=64, recording=False)
    assert counted.faults == quick.faults != []
    assert counted.main.accesses
    assert not quick.main.accesses


def test_divergence_is_counted_by_line(kernel):
    found = kernel("i = cuda.threadIdx.x\nif i < 40:\n    c[0, 0] = 1.0\nif i < 32:\n    c[0, 1] = 1.0", block=64)
    assert found.kernels[0].branches == {"13": (1, 2), "15": (0, 2)}


def test_register_arrays_that_cannot_stay_in_registers_are_named(kernel):
    found = kernel("r = cuda.local.array(2, float32)\nr[0] = 1.0\nr[1] = 2.0\nc[0, 0] = r[cuda.threadIdx.x % 2]")
    assert any(note.startswith("r is indexed by a value that differs") for note in found.kernels[0].notes)


def test_what_helpers_do_is_booked_on_the_line_that_calls_them():
    step = catalog.find("gemm_wide_loads")
    lines = step.path.read_text(encoding="utf-8").splitlines()
    for access in traced(step.path, Gemm(M=33, N=33, K=5)).main.accesses:
        assert access.array in lines[access.line - 1], access


def test_figures_of_memory_for_a_resource_card(here):
    problem = trace.reduced(problems.preset("gemm-4096"))
    (found,) = trace.results([trace.task(catalog.find("gemm_register_blocked"), problem)])
    kernel = found.main
    conflicts = round((16 * 12 + 16 + 8) / (16 * 12 + 8 + 8), 3)
    assert result.traffic(found) == {
        "gemm_register_blocked": {"sectors_per_request": 16.0, "conflicts": conflicts, "bytes_per_fma": 0.0729}
    }
    assert result.loads_per_fma(found) == {"global": 0.0039, "shared": 0.0625, "constant": 0.0}
    shared = kernel.per_fma["shared"]
    assert 4 * (shared["loaded_values"] + shared["stored_values"]) == pytest.approx(1.0625, abs=5e-5)
    outside = kernel.select("global")
    assert {access.op for access in outside} == {"read", "write"}
    assert all(access.per_request == access.ideal_per_request == 16.0 for access in outside)
    assert found.faults == []


# --- against the hardware ---


def shipped():
    return Record.load(records.RESULTS / f"{records.REFERENCE_GPU}.json")


def test_hardware_and_tracer_agree_or_the_note_says_why():
    table = agreement.table(shipped().data.agreement)
    assert "Not explained" not in table.note
    for cells in table.rows:
        ratios = [float(found) for found in re.findall(r"\((\d+\.\d+|inf)\)", " ".join(cells[2:-1]))]
        assert cells[-1] or all(0.99 <= ratio <= 1.01 for ratio in ratios), cells


def test_a_profile_at_full_size_agrees():
    # counted before the tracer was there: 4096 is 32 blocks each way, and 128 times as long a sum as here
    profile = shipped().profile("gemm-4096", "gemm_register_blocked").kernels[0]
    totals = traced(catalog.find("gemm_register_blocked").path, Gemm(M=128, N=128, K=32)).main.totals
    for key in ("load_requests", "load_sectors", "ffma_threads"):
        assert getattr(profile, key) == 32 * 32 * 128 * totals[key]


CASES = [("gemm_naive", "gemm_naive"), ("conv2d_unroll_gemm", "multiply_columns")]


@pytest.fixture
def counted_by_a_pretended_gpu(monkeypatch, tmp_path, here):
    """A record in which the hardware counted 1000 of everything, twice for a kernel launched twice."""
    names = {"gemm_naive": ["gemm_naive"], "conv2d_unroll_gemm": ["unroll_windows", "multiply_columns"] * 2}

    def watched(tasks, command, seconds):
        launched = [names[task.step] for task in tasks]
        rows = [[str(i), name, *["1,000"] * len(tools.COUNTED)] for i, name in enumerate(itertools.chain(*launched))]
        table = [["ID", "Kernel Name", *tools.COUNTED.values()], ["", "", *["u"] * len(tools.COUNTED)], *rows]
        output = "==PROF== ...\n" + "\n".join(",".join(f'"{cell}"' for cell in line) for line in table)
        return [{"status": "right", "kernels": kernels} for kernels in launched], output

    monkeypatch.setattr(isolate, "watched", watched)
    monkeypatch.setattr(agreement.device, "require_gpu", lambda what: None)
    monkeypatch.setattr(tools.shutil, "which", lambda name: "/usr/bin/" + name)
    monkeypatch.setattr(trace, "SHAPES", {ladder: RAGGED[ladder][:1] for ladder in RAGGED})
    record = Record(tmp_path / "nvidia-test.json", replace(shipped().data, agreement={}))
    pairs = agreement.cases([catalog.find(step) for step, _ in CASES])
    key = record.start_run()
    for step, problem, entry in agreement.refresh(pairs):
        record.keep("agreement", step.name, {str(problem): entry}, key)
    assert [str(problem) for step, problem in pairs] == [next(iter(record.data.agreement[s.name])) for s, _ in pairs]
    return Record.load(record.path), pairs


def test_an_agreement_is_counted_summed_and_recorded(counted_by_a_pretended_gpu):
    record, pairs = counted_by_a_pretended_gpu
    for (step, kernel), (_, problem) in zip(CASES, pairs, strict=True):
        entry = record.data.agreement[step][str(problem)]
        found = next(k for k in entry.kernels if k.kernel == kernel)
        launches = 2 if step == "conv2d_unroll_gemm" else 1
        assert found.hardware.load_requests == 1000 * launches
        assert found.trace.load_requests > 0
        assert (found.compiled is not None) == (kernel == "multiply_columns")
        ratio = agreement.ratio(found.hardware, "load_requests", found.trace)
        assert ratio == 1000 * launches / found.trace.load_requests
    table = agreement.table(record.data.agreement)
    notes = table.note.split("\n\n")
    assert [cells[0] for cells in table.rows] == ["`gemm_naive`", "`unroll_windows`", "`multiply_columns`"]
    assert notes[0] == "(1) Not explained."
    assert "128-bit load. Counted that way:" in notes[1]


def test_the_recorded_trace_is_what_the_tracer_counts_now(here):
    recorded = shipped().data.agreement
    for name in ("gemm_tuned", "conv2d_unroll_gemm", "conv2d_register_tiled"):
        pairs = agreement.cases([catalog.find(name)])
        for (step, problem), (traced, merged) in zip(pairs, agreement.count(pairs), strict=True):
            for kernel in recorded[step.name][str(problem)].kernels:
                assert (kernel.trace, kernel.compiled) == (traced[kernel.kernel], merged.get(kernel.kernel))


def test_an_edited_file_is_said_to_be_edited(counted_by_a_pretended_gpu):
    record, pairs = counted_by_a_pretended_gpu
    record.data.agreement["gemm_naive"][str(pairs[0][1])].source = "old"
    first = agreement.table(record.data.agreement).note.partition("\n")[0]
    assert first == "(1) The file has changed since the hardware counted."


# --- the command line ---


@pytest.fixture
def call(capsys, monkeypatch, here):
    def call(*words):
        monkeypatch.setenv("COLUMNS", "150")
        code = cli.main(words)
        return (code, *capsys.readouterr())

    return call


def test_a_trace_as_tables(call):
    code, out, _ = call("trace", "gemm_wide_loads", "--shape", "M=40 N=36 K=8", "--block", "1")
    assert code == 0
    assert "block (1, 0, 0) of (2, 2, 1), (8, 16, 1) threads" in out
    assert re.search(r"48\s+read a\s+128\s", out)
    assert "load4_guarded(stage, 0, a" in out
    assert re.search(r"total\s+18\s+4\.00\s+2\.89\s+72%\s+1\s+2,304", out)
    assert "Must stay in registers: " in out
    assert "No fault" in out


def test_faults_are_told_and_set_the_exit_code(call):
    file = str(mutants.path("gemm_no_guard_m"))
    code, out, _ = call("trace", "gemm_naive", "--file", file, "--shape", "M=5 N=33 K=2")
    assert code == 1
    assert re.search(r"line \d+: out of bounds: axis 0 of a is read at 5, its extent is 5 \(", out)
    assert "No fault" not in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["gemm_naive", "--block", "1,x"], "--block '1,x': must be one to three integers, X,Y,Z"),
        (["gemm_naive", "--block", "1,2,3,4"], "must be one to three integers"),
        (["gemm_naive", "--block", "99"], "block 99,0,0 lies outside every grid: gemm_naive (12, 48, 1)"),
        ([], "trace takes one STEP or two, and 0 are named"),
        (["gemm_naive", "gemm_tuned", "gemm_shared_tile"], "trace takes one STEP or two, and 3 are named"),
        (["conv2d_naive", "--shape", "M=1"], "'M' is unknown"),
    ],
)
def test_unusable_arguments(call, words, says):
    code, out, err = call("trace", *words)
    assert (code, out) == (2, "")
    assert says in " ".join(err.split())


def test_a_failed_check_points_to_the_trace_that_shows_why(here):
    step, problem = catalog.find("gemm_naive"), Gemm(M=5, N=33, K=2)
    sentence, command = tracetables.suspicion(step, problem, mutants.path("gemm_no_guard_m"))
    assert re.match(r"line \d+: out of bounds: axis 0 of a is read at 5", sentence)
    assert command.startswith('python -m common trace gemm_naive --shape "M=5 N=33 K=2" --block 0,0,0 --file ')
    told = "in thread (0, 1, 0) of block (1, 0, 0): a[5, 0]: out of bounds"
    assert " --block 1,0,0 --file " in tracetables.suspicion(step, problem, mutants.path("gemm_no_guard_m"), told)[1]
    assert tracetables.suspicion(step, problem) is None
    assert tracetables.suspicion(step, problem, mutants.path("gemm_transposed")) is None
    assert tracetables.suspicion(step, problem, mutants.path("gemm_raises")) is None


def test_every_kind_of_fault_has_words():
    for kind in UNSOUND:
        fault = Fault(kind, "m", 1, thread=(0, 0, 0), block=(0, 0, 0))
        assert tracetables.fault_sentence(fault).startswith(f"line 1: {UNSOUND[kind]}: m (by thread (0, 0, 0)")
