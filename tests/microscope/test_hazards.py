"""A watched launch tells races and reads of nothing, each with its lines, and nothing about a sound kernel."""

import numpy as np
import pytest
from numba import cuda, float32

from common.book import catalog, problems
from common.measure import check, inputs
from common.microscope import hazards, simulator

simulator.install()
SIZE = 8


@pytest.fixture(autouse=True)
def forwards():
    """The order of launches changes from one to the next; here it does not."""
    with simulator.order("forward"):
        yield


def watched(kernel, *arrays, grid=1, block=SIZE):
    with hazards.watching(__file__, 30.0) as watch:
        kernel[grid, block](*arrays)
    return watch.notes


def line(kernel, offset):
    """The line this far below the kernel's decorator."""
    return kernel.py_func.__code__.co_firstlineno + offset


def zeros(*shape):
    return np.zeros(shape, np.float32)


@cuda.jit
def neighbours(barriers, out):
    tile = cuda.shared.array(SIZE, float32)
    i = cuda.threadIdx.x
    tile[i] = float32(i)
    if barriers > 0:
        cuda.syncthreads()
    value = tile[SIZE - 1 - i]
    if barriers > 1:
        cuda.syncthreads()
    tile[i] = value
    out[cuda.blockIdx.x, i] = tile[i]


def test_a_sound_kernel_shows_nothing():
    assert watched(neighbours, 2, zeros(3, SIZE), grid=3) == []


def test_a_read_before_the_barrier_is_a_race():
    notes = watched(neighbours, 0, zeros(1, SIZE))
    race = next(note for note in notes if note.kind == "race")
    assert {race.line, *[int(word) for word in race.what.replace(",", "").split() if word.isdigit()]} >= {
        line(neighbours, 4), line(neighbours, 7),
    }  # fmt: skip
    assert "tile[" in race.what
    assert "no barrier lies between" in race.what


@cuda.jit
def rounds(out):
    tile = cuda.shared.array(SIZE, float32)
    i = cuda.threadIdx.x
    for k in range(3):
        tile[i] = float32(k)
        cuda.syncthreads()
        out[0, i] += tile[SIZE - 1 - i]


def test_a_race_around_a_loop_s_end_is_told_as_one():
    race = next(note for note in watched(rounds, zeros(1, SIZE)) if note.kind == "race")
    stored, read = line(rounds, 5), line(rounds, 7)
    assert race.what.endswith(f"between line {read} and line {stored} in the next round of the loop")


def test_a_write_before_the_barrier_is_a_race():
    (race,) = [note for note in watched(neighbours, 1, zeros(1, SIZE)) if note.kind == "race"]
    assert race.line in (line(neighbours, 7), line(neighbours, 10))
    for words in (f"read at line {line(neighbours, 7)} in", f"written at line {line(neighbours, 10)} in thread ("):
        assert words in race.what


def test_a_barrier_that_some_threads_skip_is_told():
    @cuda.jit
    def kernel(a):
        i = cuda.threadIdx.x
        if i < 5:
            cuda.syncthreads()
        a[i] = float32(i)

    (note,) = watched(kernel, zeros(SIZE))
    assert (note.kind, note.line) == ("divergent-barrier", line(kernel, 4))
    assert note.what == (
        "3 of 8 threads of block (0, 0, 0), such as (5, 0, 0), end and never come to the barrier at line "
        f"{line(kernel, 4)} that the others wait at"
    )


def test_each_block_has_its_own_shared_memory():
    assert watched(neighbours, 2, zeros(2, SIZE), grid=2) == []


def test_two_blocks_that_write_one_element_overlap():
    @cuda.jit
    def overlap(out, same):
        out[cuda.threadIdx.x] = float32(1.0) if same else float32(cuda.blockIdx.x)

    (note,) = watched(overlap, zeros(SIZE), False, grid=2)
    assert (note.kind, note.line) == ("overlap", line(overlap, 2))
    assert "out[0]" in note.what
    assert "blocks do not wait for each other" in note.what
    assert watched(overlap, zeros(SIZE), True, grid=2) == []  # the same value twice harms nobody


def test_what_was_never_written_is_told_with_its_array():
    @cuda.jit
    def forgets(out):
        acc = cuda.local.array(2, float32)
        tile = cuda.shared.array(2, float32)
        acc[0] = float32(1.0)
        out[0] = acc[0] + acc[1]
        out[1] = tile[0]

    notes = watched(forgets, zeros(2), block=1)
    assert [(note.kind, note.line) for note in notes] == [
        ("read-before-write", line(forgets, 5)), ("read-before-write", line(forgets, 6)),
    ]  # fmt: skip
    assert notes[0].what.startswith("acc[1] is read at line")
    assert notes[1].what.startswith("tile[0] is read")


def test_a_second_launch_may_read_what_the_first_wrote():
    @cuda.jit
    def shift(a, out):
        out[cuda.threadIdx.x] = a[SIZE - 1 - cuda.threadIdx.x]

    first, second = cuda.to_device(zeros(SIZE)), cuda.to_device(zeros(SIZE))
    with hazards.watching(__file__, 30.0) as watch:
        shift[1, SIZE](first, second)
        shift[1, SIZE](second, first)
    assert watch.notes == []


def test_atomics_may_meet():
    @cuda.jit
    def count(out):
        cuda.atomic.add(out, 0, float32(1.0))

    assert watched(count, zeros(1), grid=2) == []


def test_wide_accesses_are_watched_element_by_element():
    @cuda.jit
    def wide(out):
        tile = cuda.shared.array(8, float32)
        own = cuda.local.array(4, float32)
        own[0] = own[1] = own[2] = own[3] = float32(cuda.threadIdx.x)
        tile.flat[4 * cuda.threadIdx.x : 4 * cuda.threadIdx.x + 4] = own.flat[0:4]
        out[cuda.threadIdx.x] = tile[7 - cuda.threadIdx.x]

    assert [note.kind for note in watched(wide, zeros(2), block=2)] == ["read-before-write", "race"]


def test_a_view_is_the_same_memory():
    @cuda.jit
    def rows(a):
        row = a[0]
        i = cuda.threadIdx.x
        row[i] = a[0, (i + 1) % SIZE]

    (race,) = watched(rows, zeros(2, SIZE))
    assert race.kind == "race"


def test_watching_ends_in_time():
    @cuda.jit
    def endless(out):
        while out[0] < 1:
            out[1] = float32(0.0)

    with hazards.watching(__file__, 0.2) as watch:
        endless[1, 1](zeros(2))
    assert watch.notes == []


@pytest.mark.parametrize(
    ("name", "problem"),
    [("gemm_shared_tile", problems.Gemm(M=1, N=1, K=33)), ("gemm_wide_loads", problems.Gemm(M=4, N=4, K=33)),
     ("conv2d_unroll_gemm", problems.FIRST["conv2d"])],
)  # fmt: skip
def test_shipped_steps_have_no_race(name, problem):
    step = catalog.find(name)
    bench = check.Bench(catalog.load(step.path, step.ladder), problem)
    bench.load(*inputs.integers(bench.problem, 0))
    with hazards.watching(str(step.path), 30.0) as watch:
        bench.launch()
    assert [note for note in watch.notes if note.kind != "read-before-write"] == []
