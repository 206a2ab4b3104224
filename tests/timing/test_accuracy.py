"""Errors of products: over K, and of operands that a precision does not hold; tables of them from a record."""

from dataclasses import replace

import numpy as np
import pytest

from common.catalog import catalog, lessontext, sources
from common.catalog.device import Gpu
from common.jobs import messages
from common.records import recording, records
from common.records.entries import MachineCode
from common.records.records import Record
from common.report import charts, figures, pages
from common.timing import accuracy, peers
from tests.made import GPU

pytestmark = pytest.mark.usefixtures("traced")


def rounded(a, b, kind):
    return a.astype(kind).astype(np.float64) @ b.astype(kind).astype(np.float64)


@pytest.fixture
def few(monkeypatch):
    """Small sums, and libraries that round as float32 and float16."""
    kinds = {name: replace(kind, depths=(64, 128)[: len(kind.depths)]) for name, kind in accuracy.KINDS.items()}
    monkeypatch.setattr(accuracy, "KINDS", kinds)
    monkeypatch.setattr(peers, "available", lambda: True)

    def products(a, b):
        with np.errstate(over="ignore"):
            yield "cuBLAS FP32", "CUDA 13", rounded(a, b, np.float32).astype(np.float32)
            yield "cuBLAS FP16", "CUDA 13", rounded(a, b, np.float16).astype(np.float16)

    monkeypatch.setattr(peers, "products", products)


def test_every_product_is_measured_on_every_kind_of_operands(few):
    step = catalog.find("gemm_naive")
    found = accuracy.measure({step.name: (catalog.load(step.path, "gemm"), "gemm")}, extent=16)
    products = ["gemm_naive", "cuBLAS FP32", "cuBLAS FP16", accuracy.SUMS]
    assert [(one.operands, one.product) for one in found] == [(k, p) for k in accuracy.KINDS for p in products]
    assert [point.K for point in found[0].points] == [64, 128]
    by = {(one.operands, one.product): one for one in found}
    usual = {name: by[accuracy.USUAL, name].points[-1] for name in products}
    assert usual["gemm_naive"].rms < 1e-6
    assert usual["cuBLAS FP32"].rms < usual["gemm_naive"].rms  # summed in float64
    assert 1e-4 < usual["cuBLAS FP16"].rms < usual[accuracy.SUMS].rms < 2e-3
    assert all(point.rms <= point.largest for point in usual.values())
    # FP32 holds the others, FP16 none
    for kind in ("cancelling", "large", "small"):
        assert by[kind, "gemm_naive"].points[0].rms < 1e-3, kind
        assert not by[kind, "gemm_naive"].points[0].lost
        half = by[kind, "cuBLAS FP16"].points[0]
        assert half.lost > 0.9 or half.rms > 0.05, kind
    assert by["large", "cuBLAS FP16"].points[0].lost > 0.9
    assert by[accuracy.USUAL, "cuBLAS FP16"].library == "CUDA 13"


def test_a_step_on_float16_arrays_rounds_its_operands(few, monkeypatch):
    monkeypatch.setattr(accuracy, "KINDS", {accuracy.USUAL: accuracy.KINDS[accuracy.USUAL]})
    step = catalog.find("hgemm_mma")
    found = accuracy.measure({step.name: (catalog.load(step.path, "hgemm"), "hgemm")}, extent=16)
    errors = {one.product: one.points[0].rms for one in found}
    assert errors["hgemm_mma"] == pytest.approx(errors["cuBLAS FP16"], rel=0.05)


def test_some_rows_of_a_square_result_are_looked_at(few, monkeypatch):
    seen = []
    plain = accuracy.half_sums

    def half_sums(a, b):
        seen.append((a.shape, b.shape))
        return plain(a, b)

    monkeypatch.setattr(accuracy, "half_sums", half_sums)
    monkeypatch.setattr(accuracy, "KINDS", {"square": accuracy.KINDS["square"]})
    step = catalog.find("gemm_naive")
    found = accuracy.measure({step.name: (catalog.load(step.path, "gemm"), "gemm")}, extent=16)
    assert seen == [((16, 64), (64, 64))]
    errors = {one.product: one.points[0] for one in found}
    assert errors["gemm_naive"].rms < 1e-6
    assert 1e-4 < errors["cuBLAS FP16"].rms < 1e-3


def test_errors_are_over_the_root_mean_square_of_the_exact_results():
    exact = np.array([[3.0, 4.0], [3.0, 4.0]])
    off = accuracy.errors(np.array([[3.0, 4.5], [3.5, 4.0]]), exact, 8)
    scale = np.sqrt(12.5)
    assert (off.K, off.lost) == (8, 0)
    assert off.rms == pytest.approx(np.sqrt(0.5 / 4) / scale)
    assert off.largest == pytest.approx(0.5 / scale)
    half = accuracy.errors(np.array([[3.0, np.inf], [np.nan, 4.0]], np.float16), exact, 8)
    assert (half.rms, half.largest, half.lost) == (0, 0, 0.5)
    assert accuracy.errors(np.full((2, 2), np.inf), exact, 8) == accuracy.Errors(K=8, lost=1.0)


def test_half_sums_round_after_each_instruction():
    a, b = np.ones((1, 4096), np.float32), np.ones((4096, 1), np.float32)
    assert accuracy.half_sums(a, b) == 4096
    b[0] = 0.5  # beyond 2048, float16 has every other integer
    assert accuracy.half_sums(a, b) in (4094, 4096)
    a[:] = 1 / 3
    exact = rounded(a, b, np.float16)
    assert abs(accuracy.half_sums(a, b) - exact) > 4 * np.spacing(np.float16(exact[0, 0]))


def test_sums_in_float16_get_worse_with_k_and_sums_in_float32_do_not(few):
    def rms(depth):
        a, b = accuracy.KINDS[accuracy.USUAL].draw(np.random.default_rng(1), 32, depth)
        exact = a.astype(np.float64) @ b.astype(np.float64)
        one = rounded(a, b, np.float16).astype(np.float16)
        return [accuracy.errors(got, exact, depth).rms for got in (accuracy.half_sums(a, b), one)]

    (few_terms, few_fp32), (many, many_fp32) = rms(64), rms(4096)
    assert many > 2.5 * few_terms
    assert many_fp32 < 1.3 * few_fp32


def test_the_steps_that_are_measured_are_named_by_lessons_and_multiply_matrices():
    names = lessontext.accuracy(catalog.LESSONS)
    assert {catalog.find(name).ladder for name in names} == {"gemm", "hgemm"}


# --- records and pages ---


def point(depth, rms, lost=0.0):
    return accuracy.Errors(K=depth, rms=rms, largest=None if rms is None else 5 * rms, lost=lost)


@pytest.fixture
def record(tmp_path):
    record = Record.open(Gpu(**GPU), tmp_path)
    code = sources.provenance(catalog.find("gemm_naive").path)
    products = [
        accuracy.Measured(product="gemm_naive", operands="normals", points=[point(256, 2.5e-7), point(512, 3.2e-7)]),
        accuracy.Measured(
            product="cuBLAS FP16",
            operands="normals",
            points=[point(256, 4.1e-4), point(512, 0.012)],
            library="CUDA 13",
        ),
        accuracy.Measured(product="gemm_naive", operands="large", points=[point(4096, 2.5e-7)]),
        accuracy.Measured(product="cuBLAS FP16", operands="large", points=[point(4096, None, 1.0)]),
    ]
    result: messages.AccuracyResult = {"status": "right", "products": products, "code": {"gemm_naive": code}}
    recording.record_accuracy(record, record.start_run(), result)
    return Record.load(record.path)


def test_errors_are_recorded_with_the_code_or_the_library(record):
    found = record.data.accuracy
    assert found["normals"]["gemm_naive"].code == sources.provenance(catalog.find("gemm_naive").path)
    assert found["normals"]["cuBLAS FP16"].library == "CUDA 13"
    assert found["large"]["cuBLAS FP16"].points == [accuracy.Errors(K=4096, lost=1.0)]
    assert {one.run for mine in found.values() for one in mine.values()} == set(record.data.runs)


def test_pages_show_errors_over_k_and_what_float16_does_not_hold(record):
    text = pages.rendered(
        "<!-- table: accuracy -->\n<!-- end table -->\n<!-- table: unfit -->\n<!-- end table -->\n"
        "<!--= error normals cuBLAS-FP16 512 --><!--/--> <!--= error large cuBLAS-FP16 4096 --><!--/-->",
        record, MachineCode(),
    )  # fmt: skip
    assert "| product | K = 256 | K = 512 |" in text
    assert "| `gemm_naive` | 0.25, 1.2 | 0.32, 1.6 |" in text
    assert "| *cuBLAS FP16* | 410, 2,000 | 12,000, 60,000 |" in text
    assert "| *cuBLAS FP16* | 100% lost |" in text
    assert f"*large*: {accuracy.KINDS['large'].said}" in text
    assert "<!--= error normals cuBLAS-FP16 512 -->12,000<!--/-->" in text
    assert "<!--= error large cuBLAS-FP16 4096 -->?<!--/-->" in text


def test_pages_tell_an_error_by_another_and_the_largest(record):
    named = {
        "worst normals gemm_naive 256": "1.2",
        "against normals cuBLAS-FP16 gemm_naive 512 rms": "37500.00",
        "against normals gemm_naive cuBLAS-FP16 512 largest": "0.00",
        "against normals gemm_naive cuBLAS-FP32 512 rms": "?",
        "against large cuBLAS-FP16 gemm_naive 4096 rms": "?",
    }
    for words, shown in named.items():
        text = pages.rendered(f"<!--= {words} --><!--/-->", record, MachineCode())
        assert text == f"<!--= {words} -->{shown}<!--/-->"


def test_a_chart_has_a_line_for_each_product(record, tmp_path, no_pixels):
    figure = charts.errors(record)
    (axes,) = figure.axes
    lines = {line.get_label(): list(zip(*line.get_data(), strict=True)) for line in axes.lines}
    assert lines["gemm_naive"] == [(256, 2.5e-7), (512, 3.2e-7)]
    assert set(lines) == {"gemm_naive", "cuBLAS FP16"}
    written = charts.draw_all(record, tmp_path)
    assert [path.stem for path in written] == ["accuracy"]


def test_without_a_measurement_pages_say_so(tmp_path):
    empty = Record.open(Gpu(**GPU), tmp_path)
    for kind in ("accuracy", "unfit"):
        text = pages.rendered(f"<!-- table: {kind} -->\n<!-- end table -->", empty, MachineCode())
        assert "Nothing has been measured" in text
    assert figures.error(empty, "normals", "gemm_naive", "256") is None


def test_an_entry_of_an_unknown_run_is_refused(record):
    record.data.accuracy["normals"]["gemm_naive"].run = "2020"
    assert "accuracy.normals.gemm_naive.run" in records._flaw(record.data)
