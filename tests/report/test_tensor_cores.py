"""Steps on tensor cores in tables and charts: their signs, the ratio to the library in turn, their floors."""

import copy
import re

import pytest

from common.catalog import catalog, problems
from common.catalog.device import Gpu
from common.jobs.run import Outcome
from common.records.entries import MachineCode, PeerRow, StepRow
from common.records.records import Record
from common.report import charts, pages, table, tables
from common.timing import peers, timing
from common.timing.ceilings import Ceilings
from tests.made import GPU, of_now

CEILINGS = Ceilings(
    copy_gbs=4000.0, fma_gflops=60e3, mma_f16_gflops=600e3, wgmma_f16_gflops=800e3, mma_tf32_gflops=300e3,
    wgmma_tf32_gflops=400e3,
)  # fmt: skip
NO_CODE = MachineCode()


def timed(ms):
    return timing.summarise([ms] * 10)


def beside(ratio, peer):
    return peers.Beside(timed(1.0), timed(1 / ratio), ratio, ratio - 0.01, ratio + 0.02, 0.004, peer=peer)


def step_row(preset, name, ms, **fields):
    known = {"prepare_ms": None, "workspace_bytes": 0, **of_now(name)}
    return StepRow(shape=problems.preset(preset).shape(), timing=timed(ms), **known, **fields)


def peer_row(preset, ms):
    return PeerRow(shape=problems.preset(preset).shape(), timing=timed(ms), layout="row-major", library="CUDA 13")


@pytest.fixture
def record(tmp_path, monkeypatch):
    """Two hgemm steps at 4096, and a conv2d step that rounds to TF32, beside cuBLAS and cuDNN."""
    signs = table.signs() | {"conv2d_coarsened": "†"}
    for module in (table, charts):
        monkeypatch.setattr(module, "signs", lambda: signs)
    record = Record.open(Gpu(**GPU), tmp_path)
    key = record.start_run()
    record.set_ceilings(CEILINGS, key)
    rows = {
        "hgemm-4096": {
            "hgemm_mma": step_row("hgemm-4096", "hgemm_mma", 11.0),
            "hgemm_shared": step_row("hgemm-4096", "hgemm_shared", 0.5, beside=beside(0.36, "cuBLAS FP16")),
            "cuBLAS FP16": peer_row("hgemm-4096", 0.2),
        },
        "ece408-layer2": {
            "conv2d_naive": step_row("ece408-layer2", "conv2d_naive", 20.0),
            "conv2d_coarsened": step_row(
                "ece408-layer2", "conv2d_coarsened", 2.0, precision="tf32", beside=beside(1.25, "cuDNN TF32")
            ),
            "cuDNN FP32": peer_row("ece408-layer2", 5.0),
            "cuDNN TF32": peer_row("ece408-layer2", 2.5),
        },
    }  # fmt: skip
    for preset, found in rows.items():
        for name, row in found.items():
            record.put(preset, name, row, key)
    return record


def page(record, arguments):
    return pages.rendered(f"<!-- table: {arguments} -->\n<!-- end table -->", record, NO_CODE)


def line(text, name):
    (found,) = [one for one in text.splitlines() if one.startswith(f"| {name}")]
    return [cell.strip() for cell in found.split("|")[1:-1]]


def svg(figure, tmp_path):
    charts.save(figure, tmp_path / "chart")
    return re.sub(r"<[^>]*>", "", (tmp_path / "chart.svg").read_text(encoding="utf-8"))


def test_steps_on_tensor_cores_have_their_sign_and_its_meaning_in_every_table(record):
    rounded, half, split = (f"{sign} {said}" for sign, said in table.SIGNS.items())
    text = page(record, "ladder hgemm-4096")
    assert "| `hgemm_mma` ‡ |" in text
    assert half in text
    assert rounded not in text
    assert split not in text
    text = page(record, "ladder ece408-layer2")
    assert "| `conv2d_coarsened` † |" in text
    assert "| `conv2d_naive` |" in text
    assert rounded in text
    assert half not in text
    for text in (pages.summary(record), page(record, "steps 06_tensor_cores")):
        assert re.search(r"^\| \[`hgemm_mma`\]\([\w./]+\) ‡ \|", text, re.MULTILINE)
    assert "| `hgemm_mma` ‡ |" in page(record, "times hgemm-4096 hgemm_mma hgemm_shared")
    assert "‡" not in page(record, "code gemm_naive")


def test_the_shipped_steps_have_the_sign_of_their_precision():
    signs = table.signs()
    for step in (*catalog.steps(), *catalog.experiments()):
        expected = "‡" if step.ladder in ("hgemm", "hconv3d") else {"tf32": "†", "tf32x3": "§"}.get(step.precision)
        assert signs.get(step.name) == expected, step.name


def test_the_chart_of_the_ladder_has_signs_ratios_and_both_floors(record, tmp_path, no_pixels):
    text = svg(charts.speedups(record, "hgemm-4096"), tmp_path)
    for said in ("hgemm_mma ‡", "0.36× cuBLAS FP16", "floor (multiply-adds)", "floor by wgmma", table.SIGNS["‡"]):
        assert said in text, said
    assert table.SIGNS["†"] not in text


def test_the_terminal_shows_ratio_and_sign(record):
    def outcome(name, **fields):
        step = catalog.find(name)
        result = {"status": "right", "timing": timed(1.0), "prepare_ms": None, **fields}
        return Outcome(step, problems.preset("hgemm-4096"), "hgemm-4096", result)

    found = [outcome("hgemm_mma"), outcome("hgemm_shared", beside=beside(0.36, "cuBLAS FP16"))]
    found.append(outcome("hgemm_swizzled", status="wrong"))
    shown = table.terminal(tables.times(found, CEILINGS, "a card"), 200)
    columns = {column.header: list(column.cells) for column in shown.columns}
    assert columns["step"] == ["hgemm_mma ‡", "hgemm_shared ‡", "hgemm_swizzled ‡"]
    assert columns["× cuBLAS FP16"] == ["", "0.36 (0.35–0.38)", ""]
    assert "wrong" in columns["ms"][2]
    assert shown.caption == f"Shipped: the record of NVIDIA H200.\n‡ {table.SIGNS['‡']}"
    plain = [replace_step(one) for one in copy.copy(found)[:1]]
    shown = table.terminal(tables.times(plain, CEILINGS, "a card"), 200)
    assert shown.caption == "Shipped: the record of NVIDIA H200."
    assert "× cuBLAS FP16" not in [column.header for column in shown.columns]
    record.data.rows["hgemm-4096"]["hgemm_mma"].source = "0" * 64
    recorded = table.terminal(tables.recorded(record, "hgemm-4096", [one.step for one in found]), 200)
    columns = {column.header: list(column.cells) for column in recorded.columns}
    assert columns["step"][:2] == ["hgemm_mma ‡ (older code)", "hgemm_shared ‡"]
    assert columns["× cuBLAS FP16"][1] == "0.36 (0.35–0.38)"


def replace_step(outcome):
    return Outcome(catalog.find("gemm_naive"), problems.preset("gemm-4096"), "gemm-4096", outcome.result)
