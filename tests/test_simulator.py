"""The harness's simulator does what the simulator's own does, and sees what that does not."""

import numpy as np
import pytest
from numba import cuda, float32, int32

from common import simulator

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
