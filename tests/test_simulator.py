"""The harness's simulator does what the simulator's own does, and sees what that does not."""

import importlib

import numpy as np
import pytest
from numba import cuda, float32, int32

from common import limits, simulator

simulator.install()
SIZE = 64


def run(kernel, *arrays, grid=1, block=SIZE):
    kernel[grid, block](*arrays)
    return arrays[-1]


def test_threads_and_blocks_know_their_places():
    @cuda.jit
    def place(out):
        x, y, z = cuda.grid(3)
        out[x, y, z] += cuda.threadIdx.x + 10 * cuda.threadIdx.y + 100 * cuda.threadIdx.z + 1000 * cuda.blockIdx.x

    out = run(place, np.zeros((6, 2, 2), np.int32), grid=(2, 1, 1), block=(3, 2, 2))
    expected = np.fromfunction(lambda x, y, z: x % 3 + 10 * y + 100 * z + 1000 * (x // 3), (6, 2, 2))
    np.testing.assert_array_equal(out, expected)


def test_a_barrier_separates_what_comes_before_from_what_comes_after():
    @cuda.jit
    def rotate(rounds, out):
        shared = cuda.shared.array(SIZE, int32)
        i = cuda.threadIdx.x
        shared[i] = i
        for _ in range(rounds):
            cuda.syncthreads()
            neighbour = shared[(i + 1) % SIZE]
            cuda.syncthreads()
            shared[i] = neighbour
        out[i] = shared[i]

    np.testing.assert_array_equal(run(rotate, 5, np.zeros(SIZE, np.int32)), (np.arange(SIZE) + 5) % SIZE)


@pytest.mark.parametrize("step", [1, -1])
def test_a_missing_barrier_shows_whichever_neighbour_is_read(step):
    @cuda.jit
    def climb(step, out):
        shared = cuda.shared.array(SIZE, int32)
        i = cuda.threadIdx.x
        shared[i] = 0
        for _ in range(3):
            cuda.syncthreads()
            shared[i] = shared[(i + step) % SIZE] + 1  # the neighbour may have written in this round already
        out[i] = shared[i]

    assert (run(climb, step, np.zeros(SIZE, np.int32)) != 3).any()


def test_threads_may_leave_before_a_barrier():
    @cuda.jit
    def half(out):
        shared = cuda.shared.array(SIZE, int32)
        i = cuda.threadIdx.x
        if i >= SIZE // 2:
            return
        shared[i] = i
        cuda.syncthreads()
        out[i] = shared[SIZE // 2 - 1 - i]

    out = run(half, np.full(SIZE, -1, np.int32), grid=2)
    np.testing.assert_array_equal(out, [*range(SIZE // 2 - 1, -1, -1), *[-1] * (SIZE // 2)])


def test_counting_barriers():
    @cuda.jit
    def count(out):
        i = cuda.threadIdx.x
        out[i, 0] = cuda.syncthreads_count(i % 4 == 0)
        out[i, 1] = cuda.syncthreads_and(i >= 0)
        out[i, 2] = cuda.syncthreads_or(i < 0)

    np.testing.assert_array_equal(run(count, np.zeros((SIZE, 3), np.int32)), [[SIZE // 4, 1, 0]] * SIZE)


def test_atomics_and_device_functions():
    @cuda.jit(device=True)
    def twice(x):
        return x + x

    @cuda.jit
    def add(out):
        cuda.atomic.add(out, 0, twice(float32(1.0)))

    assert run(add, np.zeros(1, np.float32), grid=3)[0] == 6 * SIZE


def test_an_error_names_the_thread_and_leaves_the_next_launch_alone():
    @cuda.jit
    def fail(out):
        i = cuda.threadIdx.x
        cuda.syncthreads()
        if i == 5 and cuda.blockIdx.x == 1:
            out[i + 1000] = 1
        cuda.syncthreads()
        out[i] += 1

    out = np.zeros(SIZE, np.int32)
    with pytest.raises(IndexError, match=r"tid=\[5, 0, 0\] ctaid=\[1, 0, 0\]: "):
        run(fail, out, grid=3)

    @cuda.jit
    def fine(out):
        cuda.syncthreads()
        out[cuda.threadIdx.x] = 7

    assert (run(fine, np.zeros(SIZE, np.int32)) == 7).all()


# --- what the simulator's own lets pass ---


@cuda.jit
def copy(source, i, target, j):
    target[j] = source[i]


@cuda.jit
def stage(i, out):
    tile = cuda.shared.array(SIZE, int32)
    tile[i] = 1
    out[0] = tile[i]


@pytest.mark.parametrize(
    ("i", "j", "says"),
    [(0, -1, r"target\[-1\]: index -1 is negative, so it wraps around: target has shape \(4,\)"),
     (-2, 0, r"source\[-2\]: index -2 is negative"),
     (4, 0, r"source\[4\]: index 4 is out of bounds: source has shape \(4,\)"),
     (0, 9, r"target\[9\]: index 9 is out of bounds"),
     ((0, 1), 0, r"source\[0, 1\] has 2 indices, and source has shape \(4,\)")],
)  # fmt: skip
def test_an_index_outside_its_array_is_named_with_thread_and_shape(i, j, says):
    with pytest.raises(IndexError, match=r"tid=\[0, 0, 0\] ctaid=\[0, 0, 0\]: " + says):
        copy[1, 1](np.ones(4, np.int32), i, np.zeros(4, np.int32), j)


@pytest.mark.parametrize(("index", "says"), [(-1, r"tile\[-1\]: index -1 is negative"), (SIZE, "out of bounds")])
def test_an_index_outside_a_shared_array_is_named(index, says):
    with pytest.raises(IndexError, match=says):
        stage[1, 1](index, np.zeros(1, np.int32))


def test_the_axis_of_a_wrong_index_is_named():
    @cuda.jit
    def read(a, out):
        out[0] = a[1, 2, 3]

    with pytest.raises(
        IndexError, match=r"a\[1, 2, 3\]: index 2 on axis 1 is out of bounds: a has shape \(4, 2, 4\)"
    ):
        run(read, np.zeros((4, 2, 4), np.int32), np.zeros(1, np.int32))


def test_slices_and_views_may_still_be_taken():
    @cuda.jit
    def rows(a, out):
        row = a[1]
        out[:2] = row[1:]
        out[2] = a.flat[3:5][1]
        out[3] = a.shape[0] * len(a)

    out = run(rows, np.arange(9, dtype=np.int32).reshape(3, 3), np.zeros(4, np.int32), block=1)
    np.testing.assert_array_equal(out, [4, 5, 4, 9])


@pytest.mark.parametrize("start", [-1, 3])
def test_a_wide_access_outside_its_array_is_named(start):
    @cuda.jit
    def wide(start, a, out):
        out[:4] = a.flat[start : start + 4]

    with pytest.raises(IndexError, match=r"a\[(-1|6)\]: index"):
        run(wide, start, np.zeros((3, 2), np.int32), np.zeros(4, np.int32), block=1)


def test_shared_and_local_arrays_start_as_nan_in_every_block():
    @cuda.jit
    def peek(out):
        tile = cuda.shared.array(1, float32)
        own = cuda.local.array(1, float32)
        out[cuda.blockIdx.x, 0] = tile[0]
        out[cuda.blockIdx.x, 1] = own[0]
        tile[0] = 1.0

    assert np.isnan(run(peek, np.zeros((3, 2), np.float32), grid=3, block=1)).all()


def test_two_shared_arrays_of_one_line_are_two():
    @cuda.jit
    def two(out):
        first, second = cuda.shared.array(1, int32), cuda.shared.array(1, int32)
        first[0], second[0] = 1, 2
        out[0], out[1] = first[0], second[0]

    np.testing.assert_array_equal(run(two, np.zeros(2, np.int32), block=1), [1, 2])


def test_more_shared_memory_than_a_block_has_is_refused():
    @cuda.jit
    def greedy(shape, out):
        first = cuda.shared.array(shape, float32)
        second = cuda.shared.array(1, float32)
        first[0], second[0] = 1.0, 1.0

    run(greedy, 12287, np.zeros(1, np.int32), block=1)
    with pytest.raises(limits.LaunchLimitError, match="take 49156 bytes: a block has at most 49152"):
        run(greedy, 12288, np.zeros(1, np.int32), block=1)


def test_threads_at_different_barriers_are_told():
    @cuda.jit
    def diverge(out):
        if cuda.threadIdx.x < 3:
            cuda.syncthreads()
        else:
            out[0] = 1
            cuda.syncthreads()

    line = diverge.py_func.__code__.co_firstlineno
    with pytest.raises(simulator.DivergentBarrierError) as caught:
        run(diverge, np.zeros(1, np.int32), grid=2)
    assert f"3 threads, such as (0, 0, 0), wait at line {line + 3}" in str(caught.value)
    assert f"{SIZE - 3} threads, such as (3, 0, 0), wait at line {line + 6}" in str(caught.value)


def test_every_second_launch_goes_the_other_way():
    @cuda.jit
    def order(out):
        place = cuda.atomic.add(out, 0, 1)
        out[1 + place] = cuda.blockIdx.x * 10 + cuda.threadIdx.x

    orders = [run(order, np.zeros(5, np.int32), grid=2, block=2)[1:].tolist() for _ in range(2)]
    assert sorted(orders) == [[0, 1, 10, 11], [11, 10, 1, 0]]


def test_a_device_function_of_another_module_sees_the_kernels_threads():
    from lessons.wide import load4, shared_array

    @cuda.jit
    def wide(a, out):
        tile = shared_array(8)
        other = shared_array(8)
        own = cuda.local.array(4, float32)
        load4(own, 0, a, cuda.threadIdx.x * 4)
        for i in range(4):
            tile[cuda.threadIdx.x * 4 + i] = own[i]
            other[cuda.threadIdx.x * 4 + i] = -own[i]
        cuda.syncthreads()
        out[cuda.threadIdx.x] = tile[7 - cuda.threadIdx.x] + other[0]

    np.testing.assert_array_equal(run(wide, np.arange(8, dtype=np.float32), np.zeros(2, np.float32), block=2), [7, 6])


@pytest.mark.parametrize(("name", "width", "offset"), [("wide", 4, 2), ("unrolled", 2, 1)])
def test_a_wide_access_off_its_boundary_is_refused(name, width, offset):
    module = importlib.import_module(f"lessons.{name}")
    load = getattr(module, f"load{width}")

    @cuda.jit
    def wide(offset, a, out):
        own = cuda.local.array(4, float32)
        load(own, 0, a, offset)
        out[0] = own[0]

    a = np.arange(16, dtype=np.float32)
    assert run(wide, 2 * width, a, np.zeros(1, np.float32), block=1)[0] == 2 * width
    with pytest.raises(RuntimeError, match=f"misaligned {32 * width}-bit access: offset {offset} is not a multiple"):
        run(wide, offset, a, np.zeros(1, np.float32), block=1)


# --- what no GPU launches ---


@pytest.mark.parametrize(
    ("grid", "block", "says"),
    [((1, 1, 1), (33, 32, 1), "1056 threads: a block holds at most 1024"), ((1, 1, 1), (1, 1, 65), "z must be from"),
     ((1, 65536, 1), (1, 1, 1), "y must be from 1 to 65535"), ((0, 1, 1), (1, 1, 1), "x must be from 1")],
)  # fmt: skip
def test_limits_of_a_launch(grid, block, says):
    with pytest.raises(limits.LaunchLimitError, match=says):
        limits.require_launch(grid, block)
    limits.require_launch((2**31 - 1, 65535, 65535), (32, 32, 1))


def test_registers_are_given_to_whole_warps_in_pieces_of_256():
    limits.require_registers((1024, 1, 1), 64)
    with pytest.raises(limits.LaunchLimitError, match="65 registers for each of 1024 threads make 73728"):
        limits.require_registers((1024, 1, 1), 65)
    limits.require_registers((1, 1, 1), 255)
    with pytest.raises(limits.LaunchLimitError):
        limits.require_registers((257, 1, 1), 255)  # 9 warps
