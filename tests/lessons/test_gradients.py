"""What the gradients' implicit GEMMs share: sums in a fixed order, loads or zeros."""

import importlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda

from lessons.toolkit import memory

pytestmark = pytest.mark.usefixtures("traced")
wait_async = memory.wait_async
long_sums = importlib.import_module("lessons.08_training.helpers.long_sums")


@settings(max_examples=12, deadline=None)
@given(outputs=st.integers(1, 70), splits=st.integers(2, 23), seed=st.integers(0, 99))
def test_partial_sums_are_added_run_after_run(outputs, splits, seed):
    partials = np.random.default_rng(seed).standard_normal((splits, outputs)).astype(np.float32)
    y = cuda.to_device(np.full(outputs, np.nan, np.float32))
    long_sums.add_up(cuda.to_device(partials.reshape(-1)), y, splits)
    rows = 8 if splits > long_sums.FEW else 1
    each = -(-splits // rows)
    wanted = np.zeros(outputs, np.float32)
    for first in range(0, rows * each, each):
        run = np.zeros(outputs, np.float32)
        for partial in partials[first : first + each]:
            run += partial
        wanted += run
    assert y.copy_to_host().tobytes() == wanted.tobytes()


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("kind", ["load", "fetch"])
def test_what_is_not_inside_is_zero_and_not_read(wide, kind):
    count = 4 if wide else 1
    load = getattr(memory, f"{kind}{count}_or_zero")

    @cuda.jit
    def kernel(array, found):
        shared = cuda.shared.array(12, np.float32)
        registers = cuda.local.array(4, np.float32)
        i = cuda.threadIdx.x
        target, at = (registers, 0) if kind == "load" else (shared, i * 4)
        load(target, at, array, np.uint32(i * 4 if i < 2 else 10**6), i < 2)
        wait_async()
        for v in range(count):
            found[i, v] = target[at + v]

    array, found = np.arange(8, dtype=np.float32) + 1, cuda.to_device(np.full((3, count), np.nan, np.float32))
    kernel[1, 3](cuda.to_device(array), found)
    assert found.copy_to_host().tolist() == [[1, 2, 3, 4][:count], [5, 6, 7, 8][:count], [0] * count]
