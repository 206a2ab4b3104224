"""A step's functions are called in order, and what they ask of Numba on the host is answered."""

from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda
from numba.cuda import dispatcher
from numba.cuda.cudadrv import driver
from numba.cuda.dispatcher import CUDADispatcher, ForAll, _LaunchConfiguration

from common.catalog import device, limits, problems
from common.machine_code import capture


def test_workspace_and_prepare_are_called_in_order_and_the_workspace_comes_last():
    called = []
    module = SimpleNamespace(
        workspace=lambda problem: called.append(problem) or "workspace",
        prepare=lambda weight, problem: called.append((weight, problem)) or "prepared",
        launch=lambda *given: called.append(given),
    )
    problem = problems.Conv3d(N=1, C=1, D=3, H=3, W=3, K=1, T=1, R=1, S=1)
    step = capture.BoundStep(module, problem)
    step.run("x", "weight", "y")
    step.launch("x2", "y")
    assert called == [
        problem,
        ("weight", problem),
        ("x", "prepared", "y", problem.geometry, "workspace"),
        ("x2", "prepared", "y", problem.geometry, "workspace"),
    ]


def test_tile_constants_go_to_what_takes_them():
    called = []

    def workspace(problem):
        called.append({})

    def prepare(weight, problem, **tile):
        called.append(tile)
        return weight

    def launch(a, b, c, BLOCK_M=8):
        called.append(BLOCK_M)

    module = SimpleNamespace(workspace=workspace, prepare=prepare, launch=launch)
    capture.BoundStep(module, problems.Gemm(M=2, N=3, K=4), {"BLOCK_M": 16}).run("a", "b", "c")
    assert called == [{}, {"BLOCK_M": 16}, 16]
    called.clear()
    capture.BoundStep(module, problems.Gemm(M=2, N=3, K=4)).run("a", "b", "c")
    assert called == [{}, {}, 8]


# --- Numba's host functions and launches ---


@cuda.jit
def kernel(array):
    array[0] = 1


def test_arrays_are_made_by_one_function_and_launches_answered_by_another():
    made, launched = [], []

    def allocate(shape, dtype, values=None, order="C"):
        made.append((shape, np.dtype(dtype).name, None if values is None else values.tolist()))
        return np.zeros(shape, dtype)

    def called(configured, *arguments):
        name = configured.dispatcher.py_func.__name__
        launched.append((name, tuple(configured.griddim), tuple(configured.blockdim), arguments))

    before, call = dict(vars(cuda)), _LaunchConfiguration.__call__
    with (
        capture.no_device(),
        capture.launches(called) as known,
        capture.replaced(cuda, **capture.arrays(allocate), synchronize=lambda: "waited"),
    ):
        array = cuda.device_array(3)
        cuda.device_array_like(array)
        cuda.to_device([1, 2])
        assert cuda.synchronize() == "waited"
        assert cuda.default_stream() == 0
        with pytest.raises(limits.StreamError):
            cuda.stream()
        kernel[2, 32](array)
    assert known is call is _LaunchConfiguration.__call__
    assert vars(cuda) == before
    assert made == [
        (3, "float64", None),
        ((3,), "float64", None),
        ((2,), "int64", [1, 2]),
    ]
    ((name, grid, block, (given,)),) = launched
    assert (name, grid, block) == ("kernel", (2, 1, 1), (32, 1, 1))
    assert given is array
    assert array.tolist() == [0, 0, 0]


def test_without_a_device_what_a_step_asks_of_one_is_answered_and_all_comes_back():
    before = dict(vars(cuda)), dict(vars(CUDADispatcher)), dict(vars(ForAll))
    seen = []
    with (
        capture.no_device(7),
        capture.launches(lambda launched, *_: seen.append((launched.griddim, launched.sharedmem))),
    ):
        card = cuda.get_current_device()
        assert (card.MULTIPROCESSOR_COUNT, card.compute_capability) == (7, (9, 0))
        assert cuda.current_context().get_memory_info().free > 1 << 30
        kernel[(2, 3), 32, 0, 64](1)
        kernel.configure(5, 32)(1)
        kernel.forall(129)(1)
        with pytest.raises(limits.LaunchFormError, match="has a grid and no block"):
            kernel[3]
        with pytest.raises(limits.LaunchFormError, match="has no grid and no block"):
            kernel(1)
    assert seen == [((2, 3, 1), 64), ((5, 1, 1), 0), ((2, 1, 1), 0)]
    assert (dict(vars(cuda)), dict(vars(CUDADispatcher)), dict(vars(ForAll))) == before


# --- launches on a GPU, with one made up ---


@pytest.fixture
def on_gpu(monkeypatch):
    """Launches a kernel with a cluster; what the driver was told, and what Numba's launch was given."""
    told, taken = [], []

    def launch(self, args, grid, block, stream, shared):
        if args == ("too many registers",):
            raise RuntimeError("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES")
        taken.append(dispatcher.LaunchConfig(grid=grid, block=block))

    def tell(attribute, value, *_):
        told.append((attribute.name.partition("ATTRIBUTE_")[2], value))
        if "WIDTH" in attribute.name and value == 4:
            raise driver.CudaAPIError(1, "not here")

    monkeypatch.setattr(device, "_capability", lambda: "9.0")
    for owner, name, value in (
        (dispatcher._Kernel, "launch", launch), (dispatcher, "LaunchConfig", lambda **given: given),
        (CUDADispatcher, "__getitem__", CUDADispatcher.__getitem__),
        (driver, "driver", SimpleNamespace(cuKernelSetAttribute=tell)),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, value)
    capture.opt_in()
    capture.opt_in()  # once is enough
    function = SimpleNamespace(attrs=SimpleNamespace(shared=16), handle=1, device=SimpleNamespace(id=0))

    def start(grid, block, shared=0, cluster=1, args=()):
        library = SimpleNamespace(get_cufunc=lambda: function)
        made = SimpleNamespace(launch_bounds=(128, 1, cluster), _codelibrary=library, regs_per_thread=255)
        dispatcher._Kernel.launch(made, args, grid, block, 0, shared)
        return told, taken

    return start


def test_launches_opt_in_to_what_they_take_and_are_refused_beyond_it(on_gpu):
    block = (32, 1, 1)
    assert on_gpu((3, 1, 1), block) == ([], [{"grid": (3, 1, 1), "block": block}])
    told, taken = on_gpu((4, 1, 1), block, 100_000, cluster=2)
    on_gpu((8, 1, 1), block, cluster=4)
    for shared in (
        limits.MAX_SHARED - 16,
        limits.MAX_SHARED - 15,
    ):  # 16 are static: what any has, and more
        on_gpu((1, 1, 1), block, shared)
    large = [value for name, value in told if name == "MAX_DYNAMIC_SHARED_SIZE_BYTES"]
    assert large == [100_000, limits.MAX_SHARED - 15]
    assert told[:2] == [("MAX_DYNAMIC_SHARED_SIZE_BYTES", 100_000), ("REQUIRED_CLUSTER_WIDTH", 2)]
    assert taken[1]["grid"] == (4, 1, 1)
    assert (taken[2]["grid"], taken[2]["cluster"]) == ((2, 1, 1), (4, 1, 1))  # as the driver would not hear of it
    for given, said in (
        (((1, 1, 1), (2048, 1, 1)), "2048 threads"), (((1, 1, 1), block, 300_000), "at most 232448 on"),
        (((3, 1, 1), block, 0, 2), "must be a multiple of 2"), (((16, 1, 1), block, 0, 16), "must be of 1 to 8"),
        (((1, 1, 1), (1024, 1, 1), 0, 1, ("too many registers",)), "255 registers for each of 1024 threads"),
    ):  # fmt: skip
        with pytest.raises(limits.LaunchLimitError, match=said):
            on_gpu(*given)
    assert len(taken) == 5
    with pytest.raises(limits.LaunchLimitError, match=r"8\.9 has no clusters"):
        limits.require_cluster((6, 1, 1), 2, "8.9")
