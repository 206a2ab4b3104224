"""The implicit-GEMM steps at the geometries where index arithmetic goes wrong, in the tracer."""

import functools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.catalog import catalog, problems, reference
from common.catalog.problems import Conv3d
from common.check import check, inputs
from common.jobs.messages import Compile
from common.run import isolate
from common.trace import trace
from lessons import split_k

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


@st.composite
def layers(draw):
    """A conv3d with one axis at a time drawn from the whole range of strides, paddings and dilations."""
    shape = {
        "N": draw(st.integers(1, 3)),
        "C": draw(st.sampled_from((1, 2, 3, 4, 5, 8))),
        "K": draw(st.integers(1, 6)),
    }
    for axis, taps, extent in (("d", "T", "D"), ("h", "R", "H"), ("w", "S", "W")):
        count = draw(st.integers(1, 5 if axis == "w" else 3))
        stride, pad, dilation = draw(st.integers(1, 3)), draw(st.integers(0, 2)), draw(st.integers(1, 3))
        reach = (count - 1) * dilation + 1
        least = max(1, reach - 2 * pad)
        shape |= {taps: count, extent: least + draw(st.integers(0, 3))}
        shape |= {f"stride_{axis}": stride, f"pad_{axis}": pad, f"dilation_{axis}": dilation}
    return Conv3d(**shape)


@EACH
@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(problem=layers(), seed=st.integers(0, 1000))
def test_exact_at_any_geometry(name, problem, seed):
    require_exact(name, problem, seed)


@EACH
@pytest.mark.parametrize(
    "text",
    [
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
    ],
)
def test_exact_at_the_extremes(name, text):
    require_exact(name, problems.parse_shape("conv3d", text))


@EACH
@pytest.mark.parametrize("C", [3, 4])
def test_parts_of_gemm_k_add_up(name, C):
    """Splits that divide gemm_k, that do not, and more splits than there are tiles."""
    problem = Conv3d(N=1, C=C, D=1, H=4, W=4, K=5, T=1, R=3, S=3, pad_h=1, pad_w=1)
    for splits in (2, 3, 8):
        require_exact(name, problem, **{**module(name).shipped(problem), "SPLIT_K": splits})


@EACH
def test_partial_outputs_are_workspace_only_where_there_are_parts(name):
    problem = Conv3d(N=1, C=4, D=1, H=4, W=4, K=5, T=1, R=1, S=1)
    assert module(name).shipped(problem)["SPLIT_K"] == 1
    assert module(name).workspace(problem) is None
    assert module(name).workspace(problem, SPLIT_K=3).size == 3 * 4 * 4 * 5


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


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("stride_d", 0, "stride_d=0: must be a positive integer"),
        ("stride_w", -1, "stride_w=-1: must be a positive integer"),
        ("dilation_h", 0, "dilation_h=0: must be a positive integer"),
        ("dilation_w", -2, "dilation_w=-2: must be a positive integer"),
        ("pad_d", -1, "pad_d=-1: must be an integer of at least 0"),
        ("pad_h", -3, "pad_h=-3: must be an integer of at least 0"),
        ("R", 8, r"R=8: the dilated filter spans 8, which must not exceed the padded input, H \+ 2\*pad_h = 4"),
    ],
)
def test_geometry_without_an_output_is_refused_by_name(field, value, message):
    shape = {"N": 1, "C": 1, "D": 4, "H": 4, "W": 4, "K": 1, "T": 1, "R": 1, "S": 1}
    with pytest.raises(ValueError, match=message):
        Conv3d(**{**shape, field: value})


def test_the_table_holds_offset_and_bits_of_each_gemm_k():
    problem = Conv3d(N=1, C=2, D=4, H=5, W=6, K=1, T=2, R=2, S=2, dilation_d=2, dilation_h=3, dilation_w=1)
    step = module("conv3d_implicit_gemm_precomputed")
    _, table = step.prepare(None, problem)
    entries = table.copy_to_host().reshape(-1, 2)
    x = np.arange(4 * 5 * 6 * 2).reshape(4, 5, 6, 2)
    taps = [(t, r, s, c) for t in (0, 1) for r in (0, 1) for s in (0, 1) for c in (0, 1)]
    assert [int(offset) for offset in entries[:16, 0]] == [int(x[2 * t, 3 * r, s, c]) for t, r, s, c in taps]
    assert [int(bits) for bits in entries[:16, 1]] == [1 << t | 4 << r | 16 << s for t, r, s, _ in taps]
    # whatever lies beyond needs the bit that every row misses
    assert len(entries) > 16 + 16
    assert {int(bits) for bits in entries[16:, 1]} == {1 << 31}


def test_128_bit_copies_compile_for_old_and_new_gpus():
    step = catalog.find("conv3d_implicit_gemm_precomputed")
    shape = Conv3d(N=1, C=8, D=1, H=6, W=6, K=8, T=1, R=3, S=3).shape()
    task = Compile(path=str(step.path), ladder="conv3d", shape=shape, architectures=["7.5", "12.0"])
    ((_, result),) = isolate.run([task], False, 180.0)
    assert result["status"] == "right", result.get("message")
    assert [kernel["float64"] for kernel in result["kernels"]] == [[]] * 2


# --- which tile ---

TILES = (
    (1.0, {"BLOCK_M": 128, "BLOCK_N": 128, "THREAD_M": 16, "THREAD_N": 8, "BLOCKS_PER_SM": 2}),
    (0.9, {"BLOCK_M": 64, "BLOCK_N": 64, "THREAD_M": 8, "THREAD_N": 8, "BLOCKS_PER_SM": 4}),
)


@pytest.mark.parametrize(
    ("GEMM_M", "GEMM_N", "GEMM_K", "block", "splits"),
    [
        (132 * 2 * 128, 128, 1024, 128, 1),  # fills the card once
        (132 * 20 * 128, 64, 1024, 64, 1),  # half of the large tile would be empty
        (132 * 4 * 64, 64, 1024, 64, 1),
        (132 * 128, 128, 8192, 128, 2),  # one block per multiprocessor where two are needed
        (132 * 128, 128, 32, 64, 1),  # a second kernel would cost more than it saves
    ],
)
def test_the_tile_that_fills_the_card_is_chosen(monkeypatch, GEMM_M, GEMM_N, GEMM_K, block, splits):
    monkeypatch.setattr(split_k, "multiprocessors", lambda: 132)
    chosen = split_k.choose(TILES, GEMM_M, GEMM_N, GEMM_K)
    assert (chosen["BLOCK_M"], chosen["SPLIT_K"]) == (block, splits)


@pytest.mark.parametrize("channels", [8, 5], ids=["wide", "one-by-one"])
@EACH
def test_the_copies_of_a_wavefront_meet_every_bank_once(name, channels):
    """Rows that are copied together lie apart, as the padding has neighbours in some of the same banks."""
    problem = Conv3d(N=1, C=channels, D=1, H=7, W=7, K=64, T=1, R=3, S=3)
    tile = {"BLOCK_M": 64, "BLOCK_N": 64, "THREAD_M": 8, "THREAD_N": 8, "BLOCKS_PER_SM": 6}
    copies = trace.run(module(name), problem, tile=tile).main.select("shared", "copy")
    assert len(copies) >= 2
    assert [copy.moved for copy in copies] == [copy.ideal for copy in copies]


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


@pytest.mark.parametrize("value", [1, 2, 3, 7, 28, 641, 2**16, 2**16 + 1, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1])
def test_divisors_at_powers_of_two_divide_all_that_is_near_their_multiples(value):
    by = module("conv3d_implicit_gemm_fast_division").divisor(value)
    last = (2**32 - 1) // value
    for multiple in {0, 1, 2, last // 2, last - 1, last}:
        for number in range(max(0, multiple * value - 2), min(2**32, multiple * value + 3)):
            assert quotient(by, number) == number // value
