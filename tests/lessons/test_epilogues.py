"""Epilogues handed to two kernels, and the same as kernels of their own, against NumPy in float64."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda
from sampling import one_of_each

from common.catalog import catalog, reference
from common.catalog.problems import Conv3d
from common.check import inputs
from common.trace import trace
from tests.lessons.epilogue_layers import (
    ACROSS,
    DEEP,
    FP16,
    FP32,
    KINDS,
    RAGGED,
    SPLIT,
    WIDE,
    Layer,
    column_sums,
    columns,
    epilogues,
    separate,
)  # fmt: skip

pytestmark = [
    pytest.mark.usefixtures("traced"),
    pytest.mark.filterwarnings("ignore:overflow encountered in scalar:RuntimeWarning"),
]

CASES = [(name, shape) for name in (FP32, FP16) for shape in (RAGGED, WIDE, ACROSS)]
EACH = pytest.mark.parametrize(("name", "shape"), CASES, ids=lambda value: getattr(value, "K", value))
ALL = [(kind, name, shape) for kind in KINDS for name, shape in CASES]
# each epilogue in both kernels, and each shape
FUSED = list(dict.fromkeys([*one_of_each(ALL, lambda case: case[:2]), *one_of_each(ALL, lambda case: case[1:])]))


# --- fused ---


@pytest.mark.parametrize(("kind", "name", "shape"), FUSED, ids=lambda value: getattr(value, "K", value))
def test_an_epilogue_is_applied_to_every_sum_before_it_is_rounded_once(kind, name, shape):
    layer = Layer(name, shape)
    make, expected = layer.bound(kind)
    np.testing.assert_array_equal(layer.launch(make()), expected.astype(layer.dtype))


def test_rounding_the_sums_first_would_be_seen():
    layer = Layer(FP16, WIDE)
    twice = (layer.sums.astype(np.float16).astype(np.float64) + layer.bias[:]).astype(np.float16)
    assert (twice != layer.bound("add_bias")[1].astype(np.float16)).mean() > 0.1


@pytest.mark.parametrize("shape", [RAGGED, WIDE], ids=["ragged", "wide"])
def test_the_fp32_kernel_writes_float16(shape):
    layer = Layer(FP32, shape)
    make, expected = layer.bound("scale")
    np.testing.assert_array_equal(layer.launch(make(), np.float16), expected.astype(np.float16))


@pytest.mark.parametrize("shape", [RAGGED, WIDE], ids=["ragged", "wide"])
def test_a_residual_is_of_the_type_that_y_has(shape):
    layer = Layer(FP32, shape)
    residual = layer.residual.astype(np.float16)
    got = layer.launch(epilogues.add_residual(cuda.to_device(residual)), np.float16)
    np.testing.assert_array_equal(got, (layer.sums + residual).astype(np.float16))


def test_what_is_shaped_like_y_comes_last():
    with pytest.raises(ValueError, match="wrong: what is shaped like y must come last, and only once"):

        @epilogues.epilogue(residual=epilogues.LIKE_Y, bias=epilogues.PER_FILTER)
        def wrong(value, m, n, residual, bias):
            return value


def test_an_epilogue_reads_at_most_two_operands():
    with pytest.raises(ValueError, match=r"three reads 3 operands, \('a', 'b', 'c'\); allowed: at most 2"):

        @epilogues.epilogue(a=epilogues.PER_FILTER, b=epilogues.NUMBER, c=epilogues.LIKE_Y)
        def three(value, m, n, a, b, c):
            return value


@pytest.mark.parametrize(
    ("kind", "dtype", "splits"),
    [("bias_relu", np.float32, 3), ("add_residual", None, 1), ("add_bias", np.float16, 3)],
)
def test_where_blocks_share_a_tile_the_epilogue_follows_the_sum(kind, dtype, splits):
    layer = Layer(FP32, DEEP)
    make, expected = layer.bound(kind)
    got = layer.launch(make(), dtype, **{**SPLIT, "SPLIT_K": splits})
    np.testing.assert_array_equal(got, expected.astype(dtype or np.float32))


@EACH
def test_column_sums_come_beside_y(name, shape):
    layer = Layer(name, shape)
    sums, epilogue = column_sums(layer)
    np.testing.assert_array_equal(layer.launch(epilogue), layer.sums.astype(layer.dtype))
    np.testing.assert_array_equal(sums.copy_to_host(), layer.sums.reshape(-1, layer.problem.K).sum(axis=0))


def test_column_sums_of_tiles_that_blocks_share():
    layer = Layer(FP32, DEEP)
    sums, epilogue = column_sums(layer)
    layer.launch(epilogue, **SPLIT)
    np.testing.assert_array_equal(sums.copy_to_host(), layer.sums.reshape(-1, layer.problem.K).sum(axis=0))


@pytest.mark.parametrize("name", [FP32, FP16])
def test_column_sums_have_the_same_bits_every_time(name):
    layer = Layer(name, WIDE)
    layer.x = cuda.to_device(np.random.default_rng(7).standard_normal(tuple(layer.x.shape)).astype(layer.dtype))
    found = []
    for _ in range(3):
        sums, epilogue = column_sums(layer)
        layer.launch(epilogue)
        found.append(sums.copy_to_host())
    assert np.isfinite(found[0]).all()
    assert all((one == found[0]).all() for one in found[1:])


def test_an_epilogue_serves_layers_of_several_shapes():
    first, second = (Layer(FP32, shape) for shape in (WIDE, Conv3d(N=2, C=4, D=1, H=4, W=4, K=40, T=1, R=1, S=1)))
    epilogue = epilogues.bias_relu(cuda.to_device(first.bias))
    for layer in (first, second, first):
        expected = np.maximum(layer.sums + first.bias, 0)
        np.testing.assert_array_equal(layer.launch(epilogue), expected.astype(np.float32))
    with pytest.raises(ValueError, match=r"bias_relu: bias is \(40,\) of float32; allowed: \(5,\)"):
        Layer(FP32, RAGGED).launch(epilogue)


@pytest.mark.parametrize("name", [FP32, FP16])
def test_relu_keeps_nan_as_pytorch_does(name):
    layer = Layer(name, RAGGED)
    bias = layer.bias.copy()
    bias[1] = np.nan
    got = layer.launch(epilogues.bias_relu(cuda.to_device(bias)))
    assert np.isnan(got[..., 1]).all()
    assert not np.isnan(np.delete(got, 1, axis=-1)).any()


def test_a_student_writes_one():
    @epilogues.epilogue(slope=epilogues.NUMBER)
    def leaky_relu(value, m, n, slope):
        return value if value > 0 else value * slope

    expected = None
    for name in (FP32, FP16):
        layer = Layer(name, RAGGED)
        expected = np.where(layer.sums > 0, layer.sums, layer.sums * 0.125)
        got = layer.launch(leaky_relu(np.float32(0.125)))
        np.testing.assert_array_equal(got, expected.astype(layer.dtype))


def test_the_first_epilogue_runs_in_both_kernels(tmp_path):
    environment = {**os.environ}
    words = [sys.executable, "-m", "lessons.08_training.start.epilogue"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=catalog.ROOT, env=environment, timeout=120)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "conv3d_implicit_gemm_precomputed, float32: 0 of 392 outputs are wrong",
        "hconv3d_mma, float16: 0 of 392 outputs are wrong",
    ]
    # another function than NumPy's, in the file's place; then the same in both, of a factor that is rounded
    own = (catalog.LESSONS / "08_training/start/epilogue.py").read_text()
    files = {"wrong.py": own.replace("float32(0.125)", "float32(0.5)"), "rounded.py": own.replace("0.125", "0.1")}
    code = "import importlib, runpy; importlib.import_module('lessons.08_training.start')\n"
    for name, source in files.items():
        assert source != own
        (tmp_path / name).write_text(source)
        code += f"runpy.run_path({str(tmp_path / name)!r}, run_name='__main__')\n"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=catalog.ROOT, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert [": 0 of" in line for line in done.stdout.splitlines()] == [False, False, True, True]


@EACH
def test_the_tracer_runs_them_and_finds_no_fault(name, shape):
    layer = Layer(name, shape)

    def launch(x, weights, y, geometry, *scratch):
        bias, residual = cuda.to_device(layer.bias), cuda.to_device(layer.residual)
        layer.step.launch(x, weights, y, geometry, *scratch, epilogue=epilogues.bias_residual_relu(bias, residual))

    fused = SimpleNamespace(launch=launch, prepare=layer.step.prepare)
    if hasattr(layer.step, "workspace"):
        fused.workspace = layer.step.workspace
    found = trace.run(fused, layer.problem, every=True)
    assert found.faults == []
    reads = {access.array for kernel in found.kernels for access in kernel.select("global", "read")}
    assert "operands" in reads  # the arrays in the tuple
    x, filt = inputs.integers(layer.problem, 0)
    sums = reference.full(layer.problem, x, filt) + layer.bias + layer.residual
    np.testing.assert_array_equal(found.output, np.maximum(sums, 0).astype(layer.dtype))


# --- kernels of their own ---


@EACH
@pytest.mark.parametrize("kind", KINDS)
def test_apart_gives_what_fused_gives_of_sums_that_y_holds(name, shape, kind):
    layer = Layer(name, shape)
    layer.sums = np.asarray(layer.sums.astype(layer.dtype), np.float64)  # as y had them
    make, expected = layer.bound(kind)
    y, out = (
        cuda.to_device(values.astype(layer.dtype)) for values in (layer.sums, np.full(layer.sums.shape, np.nan))
    )
    separate.apart(make(), y, out)
    np.testing.assert_array_equal(out.copy_to_host(), expected.astype(layer.dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("M", "K"), [(1, 1), (33, 5), (70, 8), (64, 64), (1100, 24), (9, 300)])
def test_columns_are_summed(M, K, dtype):
    rng = np.random.default_rng(M)
    y = rng.integers(-9, 10, (M, K)).astype(dtype)
    sums = cuda.to_device(np.full(K, np.nan, np.float32))
    columns.sum_columns(cuda.to_device(y), columns.column_workspace((M, K)), sums)
    np.testing.assert_array_equal(sums.copy_to_host(), y.astype(np.float64).sum(axis=0))


def test_many_rows_of_partial_sums_are_added_up():
    partials = np.random.default_rng(0).integers(-9, 10, (310, 11)).astype(np.float32)
    sums = cuda.to_device(np.full(11, np.nan, np.float32))
    columns.add_rows(cuda.to_device(partials.ravel()), 300, sums)  # what lies beyond is of others
    np.testing.assert_array_equal(sums.copy_to_host(), partials[:300].sum(axis=0))


def test_apart_refuses_an_operand_that_does_not_fit():
    y = on_device(1, 1, 2, 2, 5)
    with pytest.raises(ValueError, match=r"bias is \(4,\) of float32; allowed: \(5,\)"):
        separate.apart(epilogues.add_bias(on_device(4)), y, y)


def test_more_elements_than_an_offset_reaches_are_refused():
    y = np.broadcast_to(np.float32(0), (1, 4, 2**14, 2**14, 4))
    with pytest.raises(ValueError, match="y has 4294967296 elements: 32-bit offsets reach"):
        separate.apart(epilogues.scale(np.float32(2)), y, y)


# --- what does not fit ---


def on_device(*shape, dtype=np.float32):
    return cuda.to_device(np.zeros(shape, dtype))


@pytest.mark.parametrize("name", [FP32, FP16])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda y: epilogues.bias_relu(on_device(4)),
            r"bias_relu: bias is \(4,\) of float32; allowed: \(5,\) of float32",
        ),
        (
            lambda y: epilogues.add_bias(on_device(5, dtype=np.float64)),
            r"add_bias: bias is \(5,\) of float64; allowed: \(5,\) of float32",
        ),
        (lambda y: epilogues.add_bias(0.5), r"add_bias: bias is 0.5; allowed: \(5,\) of float32"),
        (
            lambda y: epilogues.add_residual(on_device(*y.shape[:4], 6, dtype=y.dtype)),
            r"add_residual: residual is \(2, 1, 5, 2, 6\) of float\d\d; allowed: \(2, 1, 5, 2, 5\) of float\d\d",
        ),
        (
            lambda y: epilogues.add_residual(on_device(*y.shape, dtype=np.float64)),
            r"residual is \(2, 1, 5, 2, 5\) of float64; allowed: \(2, 1, 5, 2, 5\) of float(16|32)",
        ),
        (lambda y: epilogues.add_residual(3.0), r"residual is 3\.0; allowed: \(2, 1, 5, 2, 5\) of float(16|32)"),
        (lambda y: epilogues.scale(0.5), r"scale: factor is 0\.5; allowed: a float32 number, np\.float32"),
        (
            lambda y: epilogues.ColumnSums(on_device(4), on_device(5)),
            r"ColumnSums: sums is \(4,\) of float32; allowed: \(5,\) of float32",
        ),
        (
            lambda y: epilogues.ColumnSums(on_device(5), on_device(4)),
            r"ColumnSums: partials is \(4,\) of float32; allowed: \(5,\) of float32",
        ),
    ],
)  # fmt: skip
def test_operands_that_do_not_fit_are_refused_by_name(name, make, message):
    layer = Layer(name, RAGGED)
    with pytest.raises(ValueError, match=message):
        layer.launch(make(np.empty(layer.sums.shape, layer.dtype)))


def test_too_few_operands_are_refused():
    with pytest.raises(ValueError, match=r"bias_residual_relu reads bias, residual: 1 operands were given"):
        epilogues.bias_residual_relu(on_device(5))


def test_operands_are_described_by_name():
    with pytest.raises(ValueError, match=r"wrong reads \('slope',\), and \('bias',\) are described"):

        @epilogues.epilogue(bias=epilogues.PER_FILTER)
        def wrong(value, m, n, slope):
            return value


def test_an_output_of_another_type_is_refused():
    layer = Layer(FP32, RAGGED)
    with pytest.raises(
        ValueError, match=r"scale: y is \(2, 1, 5, 2, 5\) of float64; allowed: .* of float32 or float16"
    ):
        layer.launch(epilogues.scale(np.float32(1)), np.float64)


def test_column_sums_of_a_rounded_y_are_refused():
    layer = Layer(FP32, RAGGED)
    _, epilogue = column_sums(layer)
    with pytest.raises(ValueError, match=r"ColumnSums: y is of float16; allowed: float32"):
        layer.launch(epilogue, np.float16)


# --- compiled, and on a GPU ---

COMPILED = """
import importlib, json, sys
import numpy as np
from common.catalog import catalog, problems
from common.machine_code import codegen

epilogues = importlib.import_module("lessons.08_training.helpers.epilogues")
separate = importlib.import_module("lessons.08_training.helpers.apart")


def array(shape, dtype):
    return np.ones(shape, dtype).view(codegen._HostArray)


def launches(step, preset, kind):
    module, problem, seen = catalog.load(step.path, step.ladder), problems.preset(preset), []
    with codegen._recording(seen):
        x, filt, y = codegen._host_arrays(problem)
        K = problem.K
        made = {
            "bias_relu": lambda: epilogues.bias_relu(array(K, np.float32)),
            "add_residual": lambda: epilogues.add_residual(array(y.shape, y.dtype)),
            "scale": lambda: epilogues.scale(np.float32(2)),
            "column_sums": lambda: epilogues.ColumnSums(
                array(K, np.float32), array(epilogues.columns.workspace_size(y.shape), np.float32)
            ),
        }[kind]()
        if kind == "scale":
            y = array(y.shape, np.float16)
        scratch = [module.workspace(problem)] if hasattr(module, "workspace") else []
        module.launch(x, module.prepare(filt, problem), y, problem.geometry, *scratch, epilogue=made)
    return codegen.distinct(seen)


found = []
for name, preset, kind in json.loads(sys.argv[1]):
    step, kernels, newer = catalog.find(name), [], 0
    for launch in launches(step, preset, kind):
        text = codegen.ptx(launch, ["9.0"])["9.0"]
        newer += "max.NaN" in text
        try:
            code = codegen.assemble(text, launch.name, "9.0", launch.kernel.targetoptions.get("max_registers"), False)
            if code.stack_bytes:  # without a stack frame there is nothing to load from local memory
                code = codegen.machine_code(launch, "9.0", text)
        except codegen.ToolMissingError:
            code = None
        local = code and [name for name in code.hot.instructions if name in ("LDL", "STL")]
        kernels.append([launch.name, codegen.float64_arithmetic(text), code and code.stack_bytes, local])
    found.append([kernels, newer])
# the same function in a small kernel, for GPUs with max.NaN and without
y, alone = array((1, 1, 2, 2, 5), np.float32), []
with codegen._recording(alone):
    separate.apart(epilogues.bias_relu(array(5, np.float32)), y, y)
texts = codegen.ptx(alone[0], ["9.0", "8.0", "7.5"])
print(json.dumps([found, {architecture: "max.NaN" in text for architecture, text in texts.items()}]))
"""
OTHERS = (
    (FP32, "c3d-conv3a", "add_residual"),
    (FP32, "c3d-conv3a", "column_sums"),
    (FP32, "resnet50-conv5", "scale"),
    (FP16, "hresnet50-conv2", "add_residual"),
)
KERNELS = (
    (FP32, "c3d-conv3a", "bias_relu"),
    (FP16, "hc3d-conv3a", "bias_relu"),
    *one_of_each(OTHERS, lambda _: "drawn"),
)


@pytest.fixture(scope="module")
def compiled():
    """What became of each of KERNELS, and by architecture whether ReLU is one instruction there; one process has what
    they share only once."""
    words = [sys.executable, "-c", COMPILED, json.dumps(KERNELS)]
    environment = {**os.environ}
    done = subprocess.run(words, capture_output=True, text=True, cwd=catalog.ROOT, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    kernels, relu = json.loads(done.stdout)
    return dict(zip(KERNELS, kernels, strict=True)), relu


@pytest.mark.parametrize(("name", "preset", "kind"), KERNELS)
def test_the_sums_stay_in_registers_and_nothing_is_float64(compiled, name, preset, kind):
    kernels, _ = compiled[0][name, preset, kind]
    assert kernels
    for kernel, float64, stack, local_in_loop in kernels:
        assert float64 == [], kernel
        assert local_in_loop in (None, []), kernel
        # what the loop leaves no registers for may wait in memory until the epilogue, a few words
        assert stack in ((None, 0) if kind in ("bias_relu", "scale") else (None, *range(129))), kernel


def test_relu_is_one_instruction_where_there_is_one_that_keeps_nan(compiled):
    """And another way is taken for GPUs older than that. No other epilogue takes a maximum."""
    kernels, relu = compiled
    assert {case: newer for case, (_, newer) in kernels.items()} == {
        case: int(case[2] == "bias_relu") for case in KERNELS
    }
    assert relu == {"9.0": True, "8.0": True, "7.5": False}


@pytest.mark.gpu
@pytest.mark.xdist_group("gpu")
def test_on_a_gpu_they_are_right_and_give_the_same_bits():
    words = [sys.executable, "-m", "tests.lessons.epilogue_layers"]
    environment = {**os.environ}
    done = subprocess.run(words, capture_output=True, text=True, cwd=catalog.ROOT, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == 7
    for name, shape, tile, wrong in found:
        assert set(wrong) == {*KINDS, "column_sums"}
        assert all(count == [0, 0] for count in wrong.values()), (name, shape, tile, wrong)
