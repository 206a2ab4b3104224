"""What stands in for a while in the places of what Numba offers on the host."""

import numpy as np
import pytest
from numba import cuda
from numba.cuda.dispatcher import CUDADispatcher, ForAll, _LaunchConfiguration

from common.catalog import limits
from common.machine_code import capture

# --- Numba's host functions and launches ---


@cuda.jit
def kernel(array):
    array[0] = 1


def test_arrays_are_made_by_one_function_and_launches_answered_by_another():
    made, launched = [], []

    def allocate(name, shape, dtype, values):
        made.append((name, shape, np.dtype(dtype).name, None if values is None else values.tolist()))
        return np.zeros(shape, dtype)

    def called(configured, *arguments):
        name = configured.dispatcher.py_func.__name__
        launched.append((name, tuple(configured.griddim), tuple(configured.blockdim), arguments))

    before, call = dict(vars(cuda)), _LaunchConfiguration.__call__
    with (
        capture.no_device(),
        capture.launches(called) as known,
        capture.host(**capture.arrays(allocate), synchronize=lambda: "waited"),
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
        ("device_array", 3, "float64", None),
        ("device_array_like", (3,), "float64", None),
        ("to_device", (2,), "int64", [1, 2]),
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
