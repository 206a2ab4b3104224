"""Tables and figures of pages, and a command's, from one made-up record whose figures are round."""

import re

import pytest
from made import GPU, of_now
from pictures import words

from common.catalog import catalog, problems
from common.catalog.device import Gpu
from common.records import records
from common.records.records import MachineCode, PeerRow, Record, StepRow
from common.report import charts, figures, pages, table, tables
from common.run.messages import Outcome
from common.timing import peers, timing
from common.timing.ceilings import Ceilings

NO_CODE = MachineCode()
CEILINGS = Ceilings(
    copy_gbs=1000.0, fma_gflops=10e3,
    tensor_gflops={"mma_f16": 600e3, "wgmma_f16": 800e3, "mma_tf32": 300e3, "wgmma_tf32": 400e3},
)  # fmt: skip
# c3d-conv3a is 177.6 GFLOP: 17.76 ms at 10 TFLOP/s; gemm-2048 is 17.18 GFLOP
FLOOR_MS = problems.preset("c3d-conv3a").flops / 1e10
DIRECT, TILED = "conv3d_direct", "conv3d_direct_tiled"
TIMES = {
    "gemm-2048": {"gemm_naive": 17.18, "gemm_naive_unsigned": 8.59, "cuBLAS FP32": 3.436, "cuBLAS TF32": 0.5},
    "gemm-4096": {"gemm_naive": 137.4, "cuBLAS FP32": 27.48},
    "hgemm-4096": {"hgemm_mma": 11.0, "hgemm_shared": 0.5, "cuBLAS FP16": 0.2},
    "ece408-layer2": {"conv2d_naive": 20.0, "conv2d_tensor_core": 2.0, "cuDNN FP32": 5.0, "cuDNN TF32": 2.5},
    "c3d-conv3a": {DIRECT: 20 * FLOOR_MS, TILED: 4 * FLOOR_MS, "cuDNN FP32": 2 * FLOOR_MS},
    "unet3d": {"cuDNN FP32": 50.0},
    "resnet50-conv3": {TILED: 4.0, "cuDNN FP32": 1.0},
}
KERNELS = {
    "c3d-conv3a": ["sm80_xmma_fprop_implicit_gemm_f32"], "resnet50-conv3": ["volta_scudnn_winograd_128x128_ldg1"],
}  # fmt: skip


def timed(ms):
    return timing.summarise([ms] * 10)


def beside(ratio, peer):
    return peers.Beside(timed(1.0), timed(1 / ratio), ratio, ratio - 0.01, ratio + 0.02, 0.004, peer=peer)


BESIDE = {"hgemm_shared": beside(0.36, "cuBLAS FP16"), "conv2d_tensor_core": beside(1.25, "cuDNN TF32")}


def made(preset, name, ms):
    known = {"shape": problems.preset(preset).shape(), "timing": timed(ms)}
    if " " in name:
        return PeerRow(**known, layout="row-major", library="CUDA 13", kernels=KERNELS.get(preset, []))
    precision = catalog.find(name).precision if name == "conv2d_tensor_core" else None
    fields = {"prepare_ms": None, "workspace_bytes": 0, "precision": precision, "beside": BESIDE.get(name)}
    return StepRow(**known, **fields, **of_now(name))


@pytest.fixture
def own(tmp_path):
    record = Record.open(Gpu(**GPU), tmp_path)
    record.start_run()
    record.set_ceilings(CEILINGS)
    for preset, rows in TIMES.items():
        record.keep("rows", preset, {name: made(preset, name, ms) for name, ms in rows.items()})
    return record


def page(words, record, code=NO_CODE):
    return pages.rendered(f"<!-- table: {words} -->\n<!-- end table -->", record, code)


def cells(words, record, code=NO_CODE):
    lines = [line.strip("|").split("|") for line in page(words, record, code).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines]


# --- times ---


def test_a_rate_of_integers_is_no_flop():
    nothing = records.nothing()
    assert "GOP/s" in tables.rows_of(nothing, "igemm-4096", []).header
    assert tables.rows_of(nothing, "fp8gemm-4096", []).header == tables.HEADER


def test_a_ladder_table(own):
    header, _, first, fp32, tf32 = cells("ladder gemm-2048", own)
    assert header == ["step", "ms", "p20–p80", "× first", "× previous", "GFLOP/s", "% of floor"]
    assert first == ["`gemm_naive`", "17.2", "17.2–17.2", "1.00", "1.00", "1,000", "10.0"]
    assert fp32 == ["*cuBLAS FP32* (row-major)", "3.44", "3.44–3.44", "5.00", "", "5,000", "50.0"]
    assert (tf32[3], tf32[-1]) == ("34.36", "")  # the FP32 floor does not bind the tensor cores


def test_a_layers_table(own):
    header, _, *rows = cells(f"layers {TILED}", own)
    assert header[1:4] == ["GEMM_M × GEMM_N × GEMM_K", "ms", "TFLOP/s"]
    rows = {row[0]: row for row in rows}
    assert list(rows)[:2] == ["`c3d-conv3a`", "`unet3d`"]
    expected = ["100,352 × 256 × 3,456", "71.0", "2.5", "35.5", "5.0", "**50**", "25.0", "implicit GEMM"]
    assert rows["`c3d-conv3a`"][1:] == expected
    assert rows["`unet3d`"][2:] == ["not timed yet", "", "50.0", "2.3", "", "", ""]
    assert rows["`resnet50-conv3`"][-1] == "Winograd"
    assert all(len(row) == len(header) for row in rows.values())


@pytest.mark.parametrize(("kernels", "what"), [
    (["volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"], "Winograd"),
    (["nchwToNhwcKernel", "cudnn::winograd_nonfused::winogradForwardData4x4", "sgemm_nn"], "Winograd"),
    (["void fft2d_r2c_32x32", "cutlass_80_simt_sgemm"], "FFT"),
    (["ampere_scudnn_128x64_relu_small_nn_v1"], "implicit GEMM"),
    (["Memset (Device)", "void wgrad_alg0_engine_NHWC<float, 128, 6, 7, 3, 3, 5, false, 512>"], "implicit GEMM"),
    (["void cudnn::im2col4d_kernel", "ampere_sgemm_32x128_nn"], "explicit GEMM"),
    (["ampere_sgemm_128x128_nn"], "GEMM"), (["mystery"], ""),
])  # fmt: skip
def test_the_method_by_the_names_of_kernels(kernels, what):
    assert figures.method(kernels) == what


# --- figures ---


@pytest.mark.parametrize(("words", "text"), [
    ("ms gemm-2048 gemm_naive", "17.2"), ("ms gemm-2048 cuBLAS-FP32", "3.44"),
    ("ratio gemm-2048 gemm_naive gemm_naive_unsigned", "2.00"), ("ratio gemm-2048 gemm_naive cuBLAS-FP32", "5.00"),
    ("share gemm-2048 gemm_naive", "10.0"), ("ms gemm-4096 gemm_naive_unsigned", "?"),
    ("ratio gemm-2048 gemm_naive gemm_lost", "?"), ("kernel gemm_naive perfma", "?"),
    ("counter gemm-2048 gemm_naive issue_pct", "?"), ("ceiling copy", "1.0"), ("ceiling fma", "10"),
])  # fmt: skip
def test_figures_in_a_sentence(own, words, text):
    opening = f"<!--= {words} -->"
    assert pages.rendered(f"{opening}old<!--/-->", own, NO_CODE) == f"{opening}{text}<!--/-->"


figures.load_kinds()


@pytest.mark.parametrize("kind", tables.TABLES)
def test_every_table_can_be_written_without_any_record(kind):
    arguments = {
        "ladder": "gemm-2048", "profile": "gemm-2048 gemm_naive stall", "layers": DIRECT, "exercises": "01_naive",
        "times": "gemm-2048 gemm_naive", "epilogues": "conv3d_implicit_gemm_precomputed c3d-conv3a",
    }.get(kind, "")  # fmt: skip
    new = page(f"{kind} {arguments}".rstrip(), None)
    assert len(new.splitlines()) > 2
    if kind not in ("problems", "exercises"):
        assert re.search(r"Nothing has been measured|not timed yet", new)


# --- steps on tensor cores ---


def test_steps_on_tensor_cores_have_their_sign_and_its_meaning_in_every_table(own):
    rounded, half, _, split, _ = (f"{sign} {said}" for sign, said in table.SIGNS.items())
    text = page("ladder hgemm-4096", own)
    assert "| `hgemm_mma` ‡ |" in text
    assert [one in text for one in (rounded, half, split)] == [False, True, False]
    text = page("ladder ece408-layer2", own)
    assert "| `conv2d_tensor_core` † |" in text
    assert "| `conv2d_naive` |" in text
    assert [one in text for one in (rounded, half, split)] == [True, False, False]
    assert "| `hgemm_mma` ‡ |" in pages.summary(own)
    assert "‡" not in page("ladder gemm-2048", own)


def test_the_chart_of_the_ladder_has_signs_ratios_and_the_floor(own):
    text = words(charts.speedups(own, "hgemm-4096"))
    for said in ("hgemm_mma ‡", "0.36× cuBLAS FP16", "floor (multiply-adds)", table.SIGNS["‡"]):
        assert said in text, said
    assert table.SIGNS["†"] not in text


def outcome(name, preset="hgemm-4096", status="right", ms=1.0, **fields):
    result = {"status": status, "timing": timed(ms), "prepare_ms": None, **fields}
    return Outcome(step=catalog.find(name), problem=problems.preset(preset), preset=preset, **result)


def shown(found):
    drawn = table.terminal(found, 200)
    return drawn, {" ".join(column.header.split()): list(column.cells) for column in drawn.columns}


def test_the_terminal_shows_ratio_and_sign(own):
    found = [outcome("hgemm_mma"), outcome("hgemm_shared", beside=BESIDE["hgemm_shared"])]
    found.append(outcome("hgemm_swizzled", status="wrong"))
    drawn, columns = shown(tables.times(found, CEILINGS, "a card"))
    assert columns["step"] == ["hgemm_mma ‡", "hgemm_shared ‡"]  # what is wrong has a complaint
    assert columns["× cuBLAS FP16"] == ["", "0.36 (0.35–0.38)"]
    assert drawn.caption == f"‡ {table.SIGNS['‡']}"
    drawn, columns = shown(tables.times([outcome("gemm_naive", "gemm-4096")], CEILINGS, "a card"))
    assert drawn.caption is None
    assert "× cuBLAS FP16" not in columns
    assert not tables.times([outcome("gemm_naive", "gemm-4096", "wrong")], CEILINGS, "a card").rows
    own.data.rows["hgemm-4096"]["hgemm_mma"].source = "0" * 64
    _, columns = shown(tables.recorded(own, "hgemm-4096", [one.step for one in found]))
    assert columns["step"][:2] == ["hgemm_mma ‡ (older code)", "hgemm_shared ‡"]
    assert columns["× cuBLAS FP16"][1] == "0.36 (0.35–0.38)"


def test_a_ratio_is_to_a_step_that_was_timed():
    def ratios(*outcomes):
        found = tables.times(list(outcomes), CEILINGS, "a card")
        columns = dict(zip(found.header, zip(*found.rows, strict=True), strict=True))
        return list(columns["× first"]), list(columns["× previous"])

    naive, tiled, coarse = (
        outcome(name, "gemm-2048", ms=ms)
        for name, ms in (("gemm_naive", 2.0), ("gemm_shared_tile", 1.0), ("gemm_coarsened", 0.5))
    )
    assert ratios(naive, tiled, coarse) == (["1.00", "2.00", "4.00"], ["1.00", "2.00", "2.00"])
    assert ratios(outcome("gemm_naive", "gemm-2048", "wrong"), tiled, coarse) == (["", ""], ["", "2.00"])
    assert ratios(coarse) == ([""], [""])
