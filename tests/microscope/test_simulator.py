"""The harness's simulator does what the simulator's own does, and sees what that does not."""

import importlib

import numpy as np
import pytest
from numba import cuda, float32, int32

from common.book import catalog, limits, occupancy
from common.code import capture
from common.microscope import frozen, simulator, warps

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


def test_threads_that_leave_before_a_barrier_are_told():
    @cuda.jit
    def half(out):
        shared = cuda.shared.array(SIZE, int32)
        i = cuda.threadIdx.x
        if i >= SIZE // 2:
            return
        shared[i] = i
        cuda.syncthreads()
        out[i] = shared[SIZE // 2 - 1 - i]

    with pytest.raises(simulator.DivergentBarrierError) as caught:
        run(half, np.full(SIZE, -1, np.int32), grid=2)
    line = half.py_func.__code__.co_firstlineno + 7
    assert (
        f"32 of 64 threads of block (0, 0, 0), such as (32, 0, 0), end and never come to the barrier at line {line}"
        in str(caught.value)
    )


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


def test_arrays_in_a_tuple_are_watched_and_come_back():
    @cuda.jit
    def put(arrays, i):
        arrays[1][i] = arrays[0][i] + 1

    source, target = np.ones(4, np.int32), np.zeros(4, np.int32)
    put[1, 1]((source, target), 3)
    assert target.tolist() == [0, 0, 0, 2]
    with pytest.raises(IndexError, match=r"index -1 is negative"):
        put[1, 1]((source, target), -1)


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


def test_dynamic_shared_memory_may_be_more():
    @cuda.jit
    def last(out):
        own = cuda.shared.array(1, int32)
        tile = cuda.shared.array(0, float32)
        own[0] = tile.shape[0] - 1
        tile[own[0]] = 7.0
        out[0] = tile[own[0]]

    for size in (65536, 232444):
        out = np.zeros(1, np.int32)
        last[1, 1, 0, size](out)
        assert out[0] == 7
    with pytest.raises(limits.LaunchLimitError, match="232452 together: a block has at most 232448"):
        last[1, 1, 0, 232448](np.zeros(1, np.int32))


def test_clusters_are_declared_and_divide_the_grid():
    @cuda.jit(launch_bounds=(32, 1, 2))
    def pair(out):
        out[cuda.blockIdx.x] = 1

    @cuda.jit(launch_bounds=(32, 1, 16))
    def crowd(out):
        out[cuda.blockIdx.x] = 1

    assert (capture.cluster(pair), capture.cluster(pair[2, 32]), capture.cluster(cuda.jit(len))) == (2, 2, 1)
    out = np.zeros(4, np.int32)
    pair[4, 32](out)
    assert out.tolist() == [1] * 4
    with pytest.raises(limits.LaunchLimitError, match="in clusters of 2 blocks: x must be a multiple of 2"):
        pair[3, 32](out)
    with pytest.raises(limits.LaunchLimitError, match="a cluster of 16 blocks: must be of 1 to 8"):
        crowd[16, 32](out)


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


@cuda.jit
def place_in_order(out):
    place = cuda.atomic.add(out, 0, 1)
    out[1 + place] = cuda.blockIdx.x * 10 + cuda.threadIdx.x


def order_of(kernel=place_in_order, grid=2):
    return run(kernel, np.zeros(1 + 2 * grid, np.int32), grid=grid, block=2)[1:].tolist()


def test_each_kernel_runs_in_every_order_whatever_else_is_launched():
    @cuda.jit
    def first(out):
        place_in_order(out)

    @cuda.jit
    def other(out):
        out[0] = 0

    forward, backward = [0, 1, 10, 11, 20, 21], [21, 20, 11, 10, 1, 0]
    orders = []
    for _ in range(4):
        orders.append(order_of(first, 3))
        run(other, np.zeros(1, np.int32), block=1)
    assert orders[0] == orders[3] == forward
    assert orders[1] == backward
    assert sorted(orders[2]) == forward
    assert orders[2] not in (forward, backward)


@pytest.mark.parametrize(("direction", "expected"), [("forward", [0, 1, 10, 11]), ("backward", [11, 10, 1, 0])])
def test_an_order_is_kept_while_it_is_set(direction, expected):
    with simulator.order(direction):
        assert [order_of() for _ in range(3)] == [expected] * 3
    with pytest.raises(ValueError, match="must be one of forward, backward, shuffled"), simulator.order("sideways"):
        pass


@pytest.mark.parametrize("count", [1, 2, 3, 5, 32, 1000])
def test_a_shuffle_has_every_block_once(count):
    assert sorted(simulator._numbers(count, "shuffled")) == list(range(count))
    assert sorted(simulator._threads(count, "shuffled")) == list(range(count))


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


def test_a_launch_is_refused_where_no_block_of_it_fits():
    for threads in range(1, 1025, 31):
        for registers in range(1, 256):
            fits = occupancy.occupancy("9.0", threads, registers, 0).block_limits["registers"]
            try:
                limits.require_registers((threads,), registers)
                refused = False
            except limits.LaunchLimitError:
                refused = True
            assert refused == (fits == 0), (threads, registers)


def test_registers_are_given_to_whole_warps_in_pieces_of_256():
    limits.require_registers((1024, 1, 1), 64)
    with pytest.raises(limits.LaunchLimitError, match="65 registers for each of 1024 threads make 73728"):
        limits.require_registers((1024, 1, 1), 65)
    limits.require_registers((1, 1, 1), 255)
    with pytest.raises(limits.LaunchLimitError):
        limits.require_registers((257, 1, 1), 255)  # 9 warps


@pytest.mark.parametrize(
    ("configuration", "says"),
    [(8, r"copy\[8\] has a grid and no block: write copy\[grid, block\]"), ((8,), "has 1 items"),
     ((1, 1, 0, 0, 0), "has 5 items"), ((1.0, 32), r"grid 1\.0 holds 1\.0, a float: .* // a whole number"),
     ((np.float32(4), 32), "a float32"), ((True, 1), "grid True holds True, a bool"), ((1, None), "a NoneType"),
     ((-1, 1), "x must be from 1"), ((1, 0), "x must be from 1 to 1024"), (((1, 1, 1, 1), 1), "has 4 axes"),
     ((1, ()), "has 0 axes"), ((2**40, 1), "x must be from 1 to 2147483647"), ((1, 1, 4096), "is a stream"),
     ((1, 1, 0, -4), "must be a whole number from 0 on"), ((1, 1, 0, 4.0), "must be a whole number"),
     ((1, 1, 0, 232449), "asks for 232449 bytes of dynamic shared memory: a block has at most 232448")],
)  # fmt: skip
def test_a_launch_says_what_its_configuration_lacks(configuration, says):
    with pytest.raises(limits.LaunchLimitError, match=says):
        copy[configuration]


@pytest.mark.parametrize("stream", [lambda: 0, lambda: None, cuda.default_stream, cuda.legacy_default_stream])
def test_sizes_may_be_of_numpy_and_the_default_stream_may_be_given(stream):
    out = np.zeros(1, np.int32)
    copy[np.int64(1), (np.int32(1), 1), stream(), 64](np.ones(1, np.int32), 0, out, 0)
    assert out[0] == 1


def test_no_other_stream_is_taken():
    for make in (
        cuda.stream,
        cuda.per_thread_default_stream,
        lambda: cuda.external_stream(1),
        lambda: copy[1, 1, object()],
    ):
        with pytest.raises(limits.StreamError, match="work on another stream"):
            make()


def test_a_kernel_without_grid_and_block_is_told_even_after_a_launch():
    arguments = np.ones(1, np.int32), 0, np.zeros(1, np.int32), 0
    copy[1, 1](*arguments)
    with pytest.raises(limits.LaunchLimitError, match=r"started by copy\[grid, block\]"):
        copy(*arguments)
    with pytest.raises(limits.LaunchLimitError, match="by their order, not by name"):
        copy[1, 1](*arguments[:3], j=0)
    with pytest.raises(limits.LaunchLimitError, match="only kernels may call it"):
        cuda.jit(device=True)(lambda x: x)(1)


# --- memory that nobody wrote ---


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int32", "uint64", "bool", "complex64"])
def test_what_nobody_wrote_is_neither_zero_nor_a_number(dtype):
    made = cuda.device_array((3, 5), dtype)
    arrays = [
        made,
        cuda.device_array_like(made),
        cuda.device_array((3, 5), dtype, order="F"),
        cuda.device_array(0, dtype),
    ]
    for array in arrays:
        found = array.copy_to_host()
        assert np.isnan(found).all() if found.dtype.kind in "fc" else (found != 0).all()


def test_every_kind_of_shared_and_local_array_starts_poisoned_in_every_block():
    @cuda.jit
    def peek(floats, integers):
        i = cuda.blockIdx.x
        dynamic, numbers = cuda.shared.array(0, float32), cuda.shared.array(0, int32)
        tile, own = cuda.shared.array(1, int32), cuda.local.array(1, int32)
        floats[i] = dynamic[0]
        integers[i, 0], integers[i, 1], integers[i, 2] = tile[0], own[0], numbers[1]
        dynamic[0] = 1.0
        tile[0] = own[0] = numbers[1] = 0

    floats, integers = np.zeros(3, np.float32), np.zeros((3, 3), np.int32)
    peek[3, 1, 0, 8](floats, integers)
    assert np.isnan(floats).all()
    assert (integers != 0).all()


def test_shared_memory_of_both_kinds_is_limited_together():
    @cuda.jit
    def both(out):
        tile = cuda.shared.array(1024, float32)
        rest = cuda.shared.array(0, float32)
        tile[0] = rest[0] = 1.0

    both[1, 1, 0, 228352](np.zeros(1))
    with pytest.raises(
        limits.LaunchLimitError, match=r"take 4096 bytes and the launch asks for 228356 bytes .* 232452 together"
    ):
        both[1, 1, 0, 228356](np.zeros(1))


# --- functions and what they know, as Numba compiles them ---


@cuda.jit(device=True)
def own_place(out, i):
    tile = cuda.shared.array(1, int32)
    if i == 0:
        tile[0] = 7
    out[i] = tile[0]


@cuda.jit(device=True, inline="always")
def place_of_the_caller(out, i):
    tile = cuda.shared.array(1, int32)
    if i == 0:
        tile[0] = 7
    out[i] = tile[0]


@pytest.mark.parametrize(("function", "one"), [(own_place, True), (place_of_the_caller, False)])
def test_a_device_function_has_one_shared_array_unless_it_is_inlined(function, one):
    # as in the PTX of such kernels: one symbol, or two
    @cuda.jit
    def twice(out):
        function(out, 0)
        function(out, 1)

    out = run(twice, np.zeros(2, np.int32), block=1)
    assert (out[1] == 7) == one


def test_a_device_function_has_a_shared_array_for_each_type_that_it_is_given():
    @cuda.jit
    def twice(integers, floats):
        own_place(integers, 0)
        own_place(floats, 1)

    assert run(twice, np.zeros(2, np.int32), np.zeros(2, np.float32), block=1)[1] != 7


SCALE = 2
TABLE = np.ones(2, np.float32)


@cuda.jit(device=True)
def scale_of_the_module():
    return SCALE


def test_globals_and_constants_are_those_of_the_first_launch(monkeypatch):
    closed = 2
    table = TABLE

    @cuda.jit
    def read(out):
        constant = cuda.const.array_like(TABLE)
        out[0], out[1], out[2], out[3] = SCALE, closed, constant[0], table[1]
        out[4] = scale_of_the_module()

    first = run(read, np.zeros(5, np.float32), block=1)
    monkeypatch.setitem(globals(), "SCALE", 3)
    closed = 3
    TABLE[:] = 3
    try:
        np.testing.assert_array_equal(first, [2, 2, 1, 1, 2])
        np.testing.assert_array_equal(run(read, np.zeros(5, np.float32), block=1), first)
        # other types: compiled anew, but for the device function, which is there already
        np.testing.assert_array_equal(run(read, np.zeros(5), block=1), [3, 3, 3, 3, 2])
    finally:
        TABLE[:] = 1


def test_a_constant_array_has_bounds_too():
    @cuda.jit
    def read(i, out):
        out[0] = TABLE[i]

    with pytest.raises(IndexError, match="index -1 is negative"):
        run(read, -1, np.zeros(1, np.float32), block=1)


def test_cuda_may_have_any_name(write):
    text = """
import numba
import numba.cuda as gpu
from numba.cuda import grid, syncthreads, threadIdx, shared

def make(local_name):
    @gpu.jit
    def kernel(out):
        tile = shared.array(4, numba.float32)
        tile[threadIdx.x] = gpu.blockDim.x
        syncthreads()
        out[grid(1)] = tile[3 - numba.cuda.threadIdx.x] + local_name.blockIdx.x
    return kernel

kernel = make(gpu)

def plain(out):
    out[0] = gpu.grid(1)
"""
    module = catalog.load_file(write("gemm_names.py", text))
    np.testing.assert_array_equal(run(module.kernel, np.zeros(8, np.float32), grid=2, block=4), [4] * 4 + [5] * 4)
    with pytest.raises(frozen.OutsideKernelError, match=r"cuda\.grid is used outside a kernel"):
        module.plain(np.zeros(1))


# --- warps ---


def lanes(kernel, block=64, dtype=np.int64):
    out = np.zeros(block, dtype)
    return run(kernel, out, block=block)


def test_lanes_hear_each_other():
    @cuda.jit
    def sums(out):
        value = int32(cuda.laneid)
        for delta in (16, 8, 4, 2, 1):
            value += cuda.shfl_down_sync(0xFFFFFFFF, value, delta)
        out[cuda.threadIdx.x] = cuda.shfl_sync(0xFFFFFFFF, value, 0)

    @cuda.jit
    def neighbours(out):
        i = cuda.threadIdx.x
        up = cuda.shfl_up_sync(0xFFFFFFFF, i, 1)
        out[i] = 100 * up + cuda.shfl_xor_sync(0xFFFFFFFF, i, 1)

    for direction in simulator.ORDERS:
        with simulator.order(direction):
            np.testing.assert_array_equal(lanes(sums), [496] * 64)
            expected = [100 * (i - 1 if i % 32 else i) + (i ^ 1) for i in range(64)]
            np.testing.assert_array_equal(lanes(neighbours), expected)


def test_a_lane_that_takes_no_part_is_heard_as_nothing():
    @cuda.jit
    def half(out):
        i = cuda.threadIdx.x
        if i < 16:
            out[i] = cuda.shfl_down_sync(0xFFFF, float32(i), 8)

    found = lanes(half, 32, np.float32)
    np.testing.assert_array_equal(found[:8], range(8, 16))
    assert np.isnan(found[8:16]).all()


def test_votes_and_matches():
    @cuda.jit
    def vote(out):
        i = cuda.threadIdx.x
        out[i, 0] = cuda.ballot_sync(0xFFFFFFFF, i % 2)
        out[i, 1] = cuda.all_sync(0xFFFFFFFF, i >= 32)
        out[i, 2] = cuda.any_sync(0xFFFFFFFF, i == 40)
        out[i, 3] = cuda.eq_sync(0xFFFFFFFF, i < 32)
        out[i, 4] = cuda.match_any_sync(0xFFFFFFFF, i // 16)
        out[i, 5] = cuda.match_all_sync(0xFFFFFFFF, i // 32)[1]
        out[i, 6] = cuda.popc(cuda.ballot_sync(0xFFFFFFFF, 1))
        out[i, 7] = cuda.lanemask_lt()

    found = run(vote, np.zeros((64, 8), np.int64))
    odd = 0xAAAAAAAA - 2**32
    np.testing.assert_array_equal(found[3], [odd, 0, 0, 1, 0xFFFF, 1, 32, 7])
    np.testing.assert_array_equal(found[63], [odd, 1, 1, 1, 0xFFFF0000 - 2**32, 1, 32, 2**31 - 1])


def test_the_active_lanes_are_those_of_a_branch():
    @cuda.jit
    def active(out):
        i = cuda.threadIdx.x
        if i % 4 == 0:
            out[i] = cuda.activemask()
        else:
            out[i] = cuda.activemask()

    np.testing.assert_array_equal(lanes(active, 40)[[0, 1, 32]], [0x11111111, 0xEEEEEEEE, 0x11])


def test_a_block_barrier_is_not_replaced_by_one_of_a_warp():
    @cuda.jit
    def across(out):
        tile = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        tile[i] = i
        cuda.syncwarp()
        out[i] = tile[63 - i]

    assert np.isnan(lanes(across, dtype=np.float32)).any()


@pytest.mark.parametrize("missing", [True, False])
def test_a_warp_barrier_orders_its_lanes(missing):
    @cuda.jit
    def within(out):
        tile = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        tile[i] = i
        if not missing:
            cuda.syncwarp()
        out[i] = tile[i ^ 31]

    assert np.isnan(lanes(within, dtype=np.float32)).any() == missing


def astray(kernel, block=64):
    with pytest.raises(warps.WarpSyncError) as caught:
        lanes(kernel, block)
    return str(caught.value).partition(": ")[2] if "tid=" in str(caught.value) else str(caught.value)


def test_a_lane_that_its_own_mask_leaves_out_is_told():
    @cuda.jit
    def short(out):
        cuda.syncwarp(0xFFFF)

    line = short.py_func.__code__.co_firstlineno + 2
    assert (
        astray(short)
        == f"cuda.syncwarp at line {line}: lane 16 calls it with the mask 0x0000ffff, which does not name it"
    )


def test_lanes_at_different_places_are_told_with_both_lines():
    @cuda.jit
    def split(out):
        if cuda.laneid < 16:
            cuda.syncwarp()
        else:
            cuda.shfl_sync(0xFFFFFFFF, 1, 0)

    line = split.py_func.__code__.co_firstlineno
    assert astray(split) == (
        f"cuda.syncwarp at line {line + 3}: lanes 0 to 15 of warp 0 of block (0, 0, 0) wait, with the mask "
        "0xffffffff, for lanes 16 to 31, which wait elsewhere: "
        f"lanes 16 to 31 at line {line + 5}, cuda.shfl_sync with the mask 0xffffffff"
    )


def test_a_lane_at_a_barrier_of_the_block_is_waited_for_in_vain():
    @cuda.jit
    def split(out):
        if cuda.threadIdx.x == 40:
            cuda.syncthreads()
        else:
            cuda.syncwarp()
            cuda.syncthreads()

    assert "of warp 1 of block (0, 0, 0) wait, with the mask 0xffffffff, for lane 8, which wait" in astray(split)


def test_lanes_that_have_ended_are_not_waited_for():
    @cuda.jit
    def early(out):
        i = cuda.threadIdx.x
        if i % 32 < 5:
            return
        cuda.syncwarp()
        out[i] = cuda.ballot_sync(0xFFFFFFFF, True)

    assert lanes(early, 48)[40] == 0xFFE0


def test_what_only_kernels_have_is_no_attribute_of_the_host():
    assert not hasattr(cuda.threadIdx, "shape")
    assert getattr(cuda.blockIdx, "__cuda_array_interface__", None) is None
