"""Epilogues handed to two kernels, and the same as kernels of their own, against NumPy in float64."""

import importlib
import json
from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda
from processes import python
from sampling import covering, one_of_each

from common.catalog import inputs, reference
from common.trace import trace
from tests.lessons.epilogue_layers import (
    ACROSS,
    DEEP,
    FP16,
    FP32,
    HIGH,
    KINDS,
    MANY_ROWS,
    RAGGED,
    SPLIT,
    TALL,
    WIDE,
    Layer,
    beside,
    column_moments,
    epilogues,
    expected_moments,
    moments,
)  # fmt: skip

pytestmark = [
    pytest.mark.usefixtures("traced"),
    pytest.mark.filterwarnings("ignore:overflow encountered in scalar:RuntimeWarning"),
]

CASES = [(name, shape) for name in (FP32, FP16) for shape in (RAGGED, WIDE, ACROSS)]
EACH = pytest.mark.parametrize(
    ("name", "shape"), covering(CASES, lambda case: case[0], lambda case: case[1]),
    ids=lambda value: getattr(value, "K", value),
)  # fmt: skip
ALL = [(kind, name, shape) for kind in KINDS for name, shape in CASES]
FUSED = covering(ALL, lambda case: case[0], lambda case: case[1:])  # each epilogue, and each kernel at each shape


# --- fused ---


@pytest.mark.parametrize(("kind", "name", "shape"), FUSED, ids=lambda value: getattr(value, "K", value))
def test_an_epilogue_is_applied_to_every_sum_before_it_is_rounded_once(kind, name, shape):
    layer = Layer(name, shape)
    make, expected = layer.bound(kind)
    np.testing.assert_array_equal(layer.launch(make()), expected.astype(layer.dtype))


@pytest.mark.parametrize(("kind", "dtype", "splits"), [
    ("bias_relu", np.float32, 3), ("add_residual", None, 1), ("add_bias", np.float16, 3),
])  # fmt: skip
def test_where_blocks_share_a_tile_the_epilogue_follows_the_sum(kind, dtype, splits):
    layer = Layer(FP32, DEEP)
    make, expected = layer.bound(kind)
    got = layer.launch(make(), dtype, **{**SPLIT, "SPLIT_K": splits})
    np.testing.assert_array_equal(got, expected.astype(dtype or np.float32))


@EACH
def test_mean_and_variance_of_columns_come_beside_y(name, shape):
    layer = Layer(name, shape)
    found, epilogue = column_moments(layer)
    np.testing.assert_array_equal(layer.launch(epilogue), layer.sums.astype(layer.dtype))
    np.testing.assert_allclose(found.copy_to_host(), expected_moments(layer.sums), rtol=1e-6, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "shape"), one_of_each([(FP32, HIGH), (FP16, HIGH), (FP16, TALL)], lambda case: case[0])
)
def test_a_large_mean_leaves_the_fused_variance_its_digits(name, shape):
    layer, rng = Layer(name, shape), np.random.default_rng(3)
    (x_shape, x_type), (filter_shape, filter_type) = layer.problem.operands[:2]
    x, filt = rng.normal(14, 0.35, x_shape).astype(x_type), rng.uniform(0.5, 1, filter_shape).astype(filter_type)
    factor = np.float32(1000 / reference.full(layer.problem, x, filt).mean())
    filt = (filt * factor).astype(filter_type)
    layer.x, layer.filt, layer.sums = cuda.to_device(x), cuda.to_device(filt), reference.full(layer.problem, x, filt)
    found, epilogue = column_moments(layer)
    layer.launch(epilogue)
    mean, variance = expected_moments(layer.sums)
    assert (mean > 800).all()
    assert (variance < 200).all()
    np.testing.assert_allclose(found.copy_to_host(), [mean, variance], rtol=2e-5)
    rows = layer.sums.reshape(-1, layer.problem.K).astype(np.float32)
    naive = np.cumsum(rows * rows, axis=0)[-1] / len(rows) - (np.cumsum(rows, axis=0)[-1] / len(rows)) ** 2
    assert np.abs(naive / variance - 1).max() > 1e-3


def test_the_same_sums_give_the_same_moments_whatever_stood_in_the_workspace():
    layer = Layer(FP16, MANY_ROWS)
    bits = []
    for before in (0.0, np.nan):
        found, epilogue = column_moments(layer)
        epilogue.operands[0][:] = before
        layer.launch(epilogue)
        bits.append(found.copy_to_host())
    np.testing.assert_array_equal(*bits)
    np.testing.assert_allclose(bits[0], expected_moments(layer.sums), rtol=1e-6, atol=1e-3)


@pytest.mark.parametrize("rows", [1, 127, 128, 129, 1024, 1025, 2100])
def test_any_number_of_blocks_is_merged(rows):
    """Blocks of 3 rows, the last of 2: as many as lanes, as are read at once, and one more."""
    y = np.random.default_rng(rows).normal(50, 2, (3 * rows - 1, 3))
    sets = [y[3 * i : 3 * i + 3] for i in range(rows)]
    partials = np.stack([[one.mean(axis=0), one.var(axis=0) * len(one)] for one in sets]).transpose(0, 2, 1)
    found = cuda.to_device(np.full((2, 3), np.nan, np.float32))
    moments.merge_rows(cuda.to_device(partials.astype(np.float32).reshape(-1)), len(y), 3, found)
    np.testing.assert_allclose(found.copy_to_host(), expected_moments(y), rtol=2e-5)


def test_where_blocks_share_a_tile_moments_follow_the_sum():
    layer = Layer(FP32, DEEP)
    found, epilogue = column_moments(layer)
    layer.launch(epilogue, **SPLIT)
    np.testing.assert_allclose(found.copy_to_host(), expected_moments(layer.sums), rtol=1e-6, atol=1e-3)


@pytest.mark.parametrize("name", [FP32, FP16])
def test_relu_keeps_nan_as_pytorch_does(name):
    layer = Layer(name, RAGGED)
    bias = layer.bias.copy()
    bias[1] = np.nan
    got = layer.launch(epilogues.bias_relu(cuda.to_device(bias)))
    assert np.isnan(got[..., 1]).all()
    assert not np.isnan(np.delete(got, 1, axis=-1)).any()


def test_the_first_epilogue_runs_in_both_kernels(capsys):
    importlib.import_module("lessons.08_training.start.epilogue").main()
    assert capsys.readouterr().out.splitlines() == [
        "conv3d_implicit_gemm_precomputed, float32: 0 of 392 outputs are wrong",
        "hconv3d_mma, float16: 0 of 392 outputs are wrong",
    ]


def traced(layer, launch):
    """A trace of the layer's step with another launch; there is no fault."""
    given = {name: getattr(layer.step, name) for name in ("prepare", "workspace") if hasattr(layer.step, name)}
    found = trace.run(SimpleNamespace(launch=launch, **given), layer.problem, every=True)
    assert found.faults == []
    return found


@EACH
def test_the_tracer_runs_them_and_finds_no_fault(name, shape):
    layer = Layer(name, shape)

    def launch(x, weights, y, geometry, *scratch):
        bias, residual = cuda.to_device(layer.bias), cuda.to_device(layer.residual)
        layer.step.launch(x, weights, y, geometry, *scratch, finish=epilogues.bias_residual_relu(bias, residual))

    found = traced(layer, launch)
    reads = {access.array for kernel in found.kernels for access in kernel.select("global", "read")}
    assert "operands" in reads  # the arrays in the tuple
    x, filt = inputs.integers(layer.problem, 0)
    sums = reference.full(layer.problem, x, filt) + layer.bias + layer.residual
    np.testing.assert_array_equal(found.output, np.maximum(sums, 0).astype(layer.dtype))


# TALL: hconv3d_mma's tile for more than 128 filters, with four warps side by side and two on top of each other
@pytest.mark.parametrize(("name", "shape"), [(FP32, RAGGED), (FP16, ACROSS), (FP16, TALL)])
def test_the_tracer_finds_no_fault_in_moments(name, shape):
    layer, found = Layer(name, shape), []

    def launch(x, weights, y, geometry, *scratch):
        found[:] = column_moments(layer)
        layer.step.launch(x, weights, y, geometry, *scratch, finish=found[1])

    assert traced(layer, launch).kernels[-1].name == "merge_partials"
    sums = reference.full(layer.problem, *inputs.integers(layer.problem, 0))
    np.testing.assert_allclose(found[0].copy_to_host(), expected_moments(sums), rtol=1e-6, atol=1e-3)


# --- kernels of their own ---


@pytest.mark.parametrize(("kind", "name", "shape"), FUSED, ids=lambda value: getattr(value, "K", value))
def test_apart_gives_what_fused_gives_of_sums_that_y_holds(kind, name, shape):
    layer = Layer(name, shape)
    layer.sums = np.asarray(layer.sums.astype(layer.dtype), np.float64)  # as y had them
    make, expected = layer.bound(kind)
    y, out = (
        cuda.to_device(values.astype(layer.dtype)) for values in (layer.sums, np.full(layer.sums.shape, np.nan))
    )
    beside.apart(make(), y, out)
    np.testing.assert_array_equal(out.copy_to_host(), expected.astype(layer.dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("M", "K"), [(1, 1), (33, 5), (70, 8), (64, 64), (1100, 24), (9, 300)])
def test_moments_of_columns(M, K, dtype):
    y = np.random.default_rng(M).normal(3, 2, (M, K)).astype(dtype)
    found = cuda.to_device(np.full((2, K), np.nan, np.float32))
    moments.moments_of_columns(cuda.to_device(y), moments.moment_workspace((M, K)), found)
    np.testing.assert_allclose(found.copy_to_host(), expected_moments(y), rtol=1e-5, atol=1e-6)


def test_a_large_mean_leaves_the_variance_its_digits():
    y = np.random.default_rng(0).normal(1000, 1, (3000, 4)).astype(np.float32)
    found = cuda.to_device(np.full((2, 4), np.nan, np.float32))
    moments.moments_of_columns(cuda.to_device(y), moments.moment_workspace(y.shape), found)
    variance = expected_moments(y)[1]
    np.testing.assert_allclose(found.copy_to_host()[1], variance, rtol=1e-5)
    naive = (y * y).sum(axis=0) / np.float32(3000) - (y.sum(axis=0) / np.float32(3000)) ** 2  # float32
    assert np.abs(naive / variance - 1).max() > 0.01


# --- what does not fit ---


def on_device(*shape, dtype=np.float32):
    return cuda.to_device(np.zeros(shape, dtype))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda y: epilogues.bias_relu(on_device(4)), r"bias is \(4,\) of float32; allowed: \(5,\) of float32"),
        (lambda y: epilogues.add_bias(0.5), r"add_bias: bias is 0.5; allowed: \(5,\) of float32"),
        (
            lambda y: epilogues.add_residual(on_device(*y.shape, dtype=np.float64)),
            r"residual is \(2, 1, 5, 2, 5\) of float64; allowed: \(2, 1, 5, 2, 5\) of float(16|32)",
        ),
        (lambda y: epilogues.scale(0.5), r"scale: factor is 0\.5; allowed: a float32 number, np\.float32"),
        (
            lambda y: moments.ColumnMoments(on_device(5), on_device(5)),
            r"moments is \(5,\) of float32; allowed: \(2, 5\)",
        ),
    ],
)
def test_operands_that_do_not_fit_are_refused_by_name(make, message):
    layer = Layer(FP32, RAGGED)
    with pytest.raises(ValueError, match=message):
        layer.launch(make(np.empty(layer.sums.shape, layer.dtype)))


# --- on a GPU ---


@pytest.mark.gpu
@pytest.mark.xdist_group("gpu")
def test_on_a_gpu_they_are_right_and_give_the_same_bits():
    said = python("-m", "tests.lessons.epilogue_layers").stdout
    found = [json.loads(line) for line in said.splitlines()]
    assert len(found) in (1, 7)  # another one each day
    for name, shape, tile, wrong in found:
        assert set(wrong) == {*KINDS, "column_moments"}
        assert all(count == [0, 0] for count in wrong.values()), (name, shape, tile, wrong)
