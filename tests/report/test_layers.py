"""One step across layers beside the library: figures, tables and the chart, with rows missing or not."""

import math

import pytest
from made import card, kernel, of_now
from made import code as made_code
from msgspec import to_builtins

from common.catalog import problems, schema
from common.catalog.problems import Conv2d, Conv3d, Dgrad, Gemm, Wgrad
from common.records.entries import MachineCode, Row
from common.records.records import Record
from common.report import pages, speeds

RUN = "2026-01-02T00:00:00Z"
RECORD = {
    "ceilings": {"copy_gbs": 1000.0, "fma_gflops": 10_000.0, "run": RUN},
    "runs": {RUN: {"date": "2026-01-02", "driver": "1.2", "cuda": "13.0", "packages": {}}},
}
# c3d-conv3a is 177.6 GFLOP: 17.76 ms at 10 TFLOP/s, the floor of this made-up card
FLOOR_MS = problems.preset("c3d-conv3a").flops / 1e10
DIRECT, TILED = "conv3d_direct", "conv3d_direct_tiled"


def made(preset, ms, kind="step", step=TILED, **extra):
    timing = {"median_ms": ms, "p20_ms": ms, "p80_ms": ms, "median_error": 0.001, "repeats": 10}
    shape = problems.preset(preset).shape()
    row = {"kind": kind, "shape": shape, "timing": timing, "run": RUN, "prepare_ms": None, "workspace_bytes": 0}
    row |= of_now(step) if kind == "step" else {}
    known = {**row, **({"layout": "NDHWC", "library": "cuDNN 9"} if kind == "peer" else {}), **extra}
    return schema.read(known, Row)


@pytest.fixture
def own(tmp_path):
    rows = {
        "c3d-conv3a": {
            DIRECT: made("c3d-conv3a", 20 * FLOOR_MS, step=DIRECT),
            TILED: made("c3d-conv3a", 4 * FLOOR_MS),
            "cuDNN FP32": made("c3d-conv3a", 2 * FLOOR_MS, "peer", kernels=["sm80_xmma_fprop_implicit_gemm_f32"]),
        },
        "unet3d": {"cuDNN FP32": made("unet3d", 50.0, "peer")},
        "resnet50-conv3": {
            TILED: made("resnet50-conv3", 4.0),
            "cuDNN FP32": made("resnet50-conv3", 1.0, "peer", kernels=["volta_scudnn_winograd_128x128_ldg1"]),
        },
    }
    return Record(tmp_path / "nvidia-test-9.json", card(**RECORD, rows=to_builtins(rows)))


def by_preset(record, step=TILED):
    return {layer.preset: layer for layer in speeds.compare(record, "conv3d", step)}


def table(text, record, code=None):
    new = pages.rendered(f"<!-- table: {text} -->\n<!-- end table -->", record, code or MachineCode())
    lines = [line.strip("|").split("|") for line in new.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines]


# --- figures ---


@pytest.mark.parametrize(
    ("problem", "extents"),
    [
        (Gemm(M=37, N=45, K=19), (37, 45, 19)),
        (Conv2d(N=2, C=3, H=10, W=19, K=7, R=3, S=2), (2 * 8 * 18, 7, 18)),
        (Conv3d(N=1, C=3, D=1, H=4, W=4, K=4, T=1, R=2, S=2), (9, 4, 12)),
        (Conv3d(N=2, C=5, D=4, H=6, W=6, K=6, T=3, R=3, S=3, stride_h=2, pad_d=1, pad_h=1), (2 * 4 * 3 * 4, 6, 135)),
        # 5 x 5 pixels of 3 channels, each tap of 4 filters; 2 x 2 taps of 3 channels, each sum over 6 x 6 outputs
        (Dgrad(N=1, C=3, D=1, H=5, W=5, K=4, T=1, R=2, S=2, pad_h=1, pad_w=1), (25, 3, 16)),
        (Wgrad(N=1, C=3, D=1, H=5, W=5, K=4, T=1, R=2, S=2, pad_h=1, pad_w=1), (4, 12, 36)),
    ],
)
def test_the_matrices_of_a_problem(problem, extents):
    assert speeds.matrix(problem) == extents
    if problem.form == "dgrad":  # taps of no window among them
        assert 2 * math.prod(extents) == 2 * math.prod(problem.output_shape) * problem.reduction
    else:
        assert 2 * math.prod(extents) == problem.flops


def test_a_layer_beside_the_library(own):
    layer = by_preset(own)["c3d-conv3a"]
    assert (layer.ms, layer.peer_ms) == (4 * FLOOR_MS, 2 * FLOOR_MS)
    assert layer.tflops == pytest.approx(2.5)
    assert layer.peer_tflops == pytest.approx(5.0)
    assert layer.percent_of_peer == pytest.approx(50)
    assert layer.percent_of_floor == pytest.approx(25)
    assert layer.peer_method == "implicit GEMM"


@pytest.mark.parametrize(
    ("kernels", "what"),
    [
        (["volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"], "Winograd"),
        (["nchwToNhwcKernel", "void cudnn::winograd_nonfused::winogradForwardData4x4", "ampere_sgemm_128x64_nn"],
         "Winograd"),
        (["void fft2d_r2c_32x32", "cutlass_80_simt_sgemm"], "FFT"),
        (["ampere_scudnn_128x64_relu_small_nn_v1"], "implicit GEMM"),
        (["sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nhwckrsc_nhwc"], "implicit GEMM"),
        (["void implicit_convolve_sgemm<float>"], "implicit GEMM"),
        (["void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>"], "implicit GEMM"),
        (["Memset (Device)", "void wgrad_alg0_engine_NHWC<float, 128, 6, 7, 3, 3, 5, false, 512>"], "implicit GEMM"),
        (["sm80_xmma_gemm_f32f32", "void cudnn::winograd_nonfused::winogradWgradData4x4<float, float>"], "Winograd"),
        (["void cudnn::im2col4d_kernel", "ampere_sgemm_32x128_nn"], "explicit GEMM"),
        (["ampere_sgemm_128x128_nn"], "GEMM"),
        (["mystery"], ""),
        ([], ""),
    ],
)  # fmt: skip
def test_the_method_by_the_names_of_kernels(kernels, what):
    assert speeds.method(kernels) == what


# --- tables ---


def test_a_layers_table(own):
    header, _, *rows = table(f"layers {TILED}", own)
    assert header[1:4] == ["GEMM_M × GEMM_N × GEMM_K", "ms", "TFLOP/s"]
    rows = {row[0]: row for row in rows}
    assert list(rows)[:2] == ["`c3d-conv3a`", "`unet3d`"]
    assert rows["`c3d-conv3a`"][1:] == [
        "100,352 × 256 × 3,456", "71.0", "2.5", "35.5", "5.0", "**50**", "25.0", "implicit GEMM",
    ]  # fmt: skip
    assert rows["`unet3d`"][2:] == ["not timed yet", "", "50.0", "2.3", "", "", ""]
    assert rows["`resnet50-conv3`"][-1] == "Winograd"
    assert all(len(row) == len(header) for row in rows.values())


def test_a_mix_table_and_its_figures():
    loop = {"FFMA": 8, "LDS": 2, "STS": 1, "IMAD": 3, "ISETP": 1, "BRA": 1, "BAR": 1}
    code = made_code(**{TILED: [kernel("transpose", "kernel"), kernel("k", loop=loop)]})
    _, _, ours, lost = table(f"mix {TILED} conv3d_lost", None, code)
    assert ours == ["`k`", "8", "0.375", "0.500", "0.250"]
    assert lost[1:] == ["not compiled yet"] * 4
    inline = pages.rendered(f"<!--= kindfma {TILED} integer -->x<!--/-->", None, code)
    assert inline.endswith("-->0.500<!--/-->")
    assert "-->?<!" in pages.rendered("<!--= kindfma conv3d_lost integer -->x<!--/-->", None, code)
    with pytest.raises(
        ValueError, match="'integers' is unknown: kinds of instructions are multiply-adds, memory, integer, other"
    ):
        pages.rendered(f"<!--= kindfma {TILED} integers -->x<!--/-->", None, code)


# --- charts ---
