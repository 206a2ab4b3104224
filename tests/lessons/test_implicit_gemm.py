"""The implicit-GEMM steps at the geometries where index arithmetic goes wrong, in the tracer."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import covering

from common.catalog import catalog, inputs, problems, reference
from common.catalog.problems import Conv3d
from common.check import check

STEPS = ("conv3d_implicit_gemm", "conv3d_implicit_gemm_fast_division", "conv3d_implicit_gemm_precomputed")
EACH = pytest.mark.parametrize("name", STEPS)
# Sums of row and table offsets that are thrown away may wrap around.
pytestmark = [
    pytest.mark.usefixtures("traced"),
    pytest.mark.filterwarnings("ignore:overflow encountered in scalar:RuntimeWarning"),
]


@functools.cache
def module(name):
    return catalog.load(catalog.find(name).path, "conv3d")


def require_exact(name, problem, seed=0, **tile):
    """Every element of one launch on integers equals the oracle; nothing outside y is written."""
    bench = check.Bench(module(name), problem, tile)
    x, weight = inputs.integers(problem, seed)
    bench.load(x, weight)
    bench.y.blank()
    bench.launch()
    np.testing.assert_array_equal(bench.y.get(), reference.full(problem, x, weight))
    assert bench.y.trespasses() == []


EXTREMES = (
    # all of the first and last windows is padding
    "N=1 C=4 D=1 H=3 W=3 K=2 T=1 R=1 S=2 pad_d=2 pad_h=2 pad_w=2",
    # steps over input that no window sees
    "N=2 C=3 D=7 H=5 W=9 K=3 T=1 R=2 S=1 stride_d=3 stride_h=3 stride_w=4",
    # one output of every axis
    "N=1 C=5 D=2 H=3 W=5 K=3 T=2 R=3 S=5",
    # a filter of more taps than a word of the mask has bits, on each axis and on one
    "N=1 C=4 D=2 H=2 W=29 K=1 T=2 R=2 S=29",
    "N=1 C=1 D=1 H=1 W=40 K=2 T=1 R=1 S=67 pad_w=30",
    "N=1 C=1 D=1 H=2 W=3 K=2 T=1 R=1 S=29 pad_w=14",
    "N=1 C=1 D=1 H=2 W=3 K=2 T=1 R=1 S=30 pad_w=14",
    # more rows and filters than one small tile, more of gemm_k than one pair of tiles
    "N=5 C=8 D=1 H=3 W=3 K=37 T=1 R=3 S=3 pad_h=1 pad_w=1",
)
# each of them, and each step
AT_EXTREMES = covering(
    [(name, text) for text in EXTREMES for name in STEPS], lambda case: case[0], lambda case: case[1]
)


@pytest.mark.parametrize(("name", "text"), AT_EXTREMES)
def test_exact_at_the_extremes(name, text):
    require_exact(name, problems.parse_shape("conv3d", text))


@pytest.mark.parametrize(
    ("name", "C"), covering([(name, C) for name in STEPS for C in (3, 4)], lambda case: case[0], lambda case: case[1])
)
def test_parts_of_gemm_k_add_up(name, C):
    """Splits that divide gemm_k, that do not, and more splits than there are tiles."""
    problem = Conv3d(N=1, C=C, D=1, H=4, W=4, K=5, T=1, R=3, S=3, pad_h=1, pad_w=1)
    for splits in (2, 3, 8):
        require_exact(name, problem, **{**module(name).shipped(problem), "SPLIT_K": splits})


@EACH
def test_arrays_off_a_16_byte_boundary_are_copied_one_by_one(name):
    problem = Conv3d(N=1, C=4, D=1, H=3, W=3, K=4, T=1, R=2, S=2)
    x, weight = inputs.integers(problem, 0)
    padded = [np.empty(array.size + 1, np.float32) for array in (x, weight)]
    shifted = [memory[1:].reshape(array.shape) for memory, array in zip(padded, (x, weight), strict=True)]
    for memory, array in zip(shifted, (x, weight), strict=True):
        memory[:] = array
    from numba import cuda

    x_device, weight_device = (cuda.to_device(memory) for memory in shifted)
    y = cuda.device_array(problem.output_shape, np.float32)
    step = module(name)
    prepared = step.prepare(weight_device, problem) if hasattr(step, "prepare") else weight_device
    step.launch(x_device, prepared, y, problem.geometry)
    np.testing.assert_array_equal(y.copy_to_host(), reference.full(problem, x, weight))


@EACH
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"BLOCK_K": 64, "BLOCK_M": 128, "BLOCK_N": 128, "THREAD_M": 16, "THREAD_N": 8, "BLOCKS_PER_SM": 2},
         r"BLOCK_M=128 BLOCK_N=128 BLOCK_K=64.* take \d+ bytes.*SHARED_BYTES=49152"),
        ({"BLOCK_M": 48}, r"BLOCK_M=48 BLOCK_N=32 must be multiples of WARP_M=32 WARP_N=32"),
        ({"BLOCKS_PER_SM": 64}, r"THREAD_M=8 THREAD_N=4 BLOCKS_PER_SM=64: more than registers=32"),
        ({"BLOCK_K": 6}, r"BLOCK_K=6 do not divide among THREADS=32"),
    ],
)  # fmt: skip
def test_a_tile_that_does_not_fit_is_refused_with_its_size(name, changes, message):
    problem = Conv3d(N=1, C=3, D=1, H=4, W=4, K=5, T=1, R=1, S=1)
    with pytest.raises(ValueError, match=message):
        require_exact(name, problem, **{**module(name).shipped(problem), **changes})


# --- division by a multiplication ---


def quotient(by, number):
    """What `divide` does with 32-bit registers."""
    value, multiplier, first, second = map(int, by)
    high = number * multiplier >> 32
    total = high + (number - high >> first)
    assert 0 <= multiplier < 2**32  # fits its register
    assert total < 2**32  # and so does the sum
    return total >> second


@given(value=st.integers(1, 2**32 - 1), number=st.integers(0, 2**32 - 1), near=st.integers(-1, 1))
@settings(max_examples=300)
def test_a_multiplication_and_two_shifts_divide_every_number_by_every_extent(value, number, near):
    by = module("conv3d_implicit_gemm_fast_division").divisor(value)
    assert int(by.value) == value
    for numerator in (number, number // value * value + near, 2**32 - 1):  # about a multiple the quotient changes
        if 0 <= numerator < 2**32:
            assert quotient(by, numerator) == numerator // value
