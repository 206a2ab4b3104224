"""Errors of products: over K, and of operands that a precision does not hold."""

from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from sampling import some_days

from common.catalog import catalog
from common.records import records
from common.report import pages, tables
from common.timing import peers

accuracy = import_module("lessons.06_tensor_cores.figures.accuracy")

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
    assert [(kind, *mine) for kind, mine in found.items()] == [(kind, *products) for kind in accuracy.KINDS]
    assert [point.K for point in next(iter(found.values()))["gemm_naive"].points] == [64, 128]
    by = {(kind, name): one for kind, mine in found.items() for name, one in mine.items()}
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


@some_days(5)
def test_bfloat16_errs_eight_times_as_much_as_float16_and_on_short_numbers_only_sums_err(few):
    steps = {
        step.name: (catalog.load(step.path, step.ladder), step.ladder)
        for step in map(catalog.find, ("bfgemm_wgmma", "fp8gemm_wgmma", "fp8gemm_promoted"))
    }
    measured = accuracy.measure(steps, extent=16)
    found = {(kind, name): one.points[-1] for kind, mine in measured.items() for name, one in mine.items()}
    usual = {name: found[accuracy.USUAL, name].rms for name in (*steps, "cuBLAS FP16")}
    assert 6 < usual["bfgemm_wgmma"] / usual["cuBLAS FP16"] < 10
    assert 0.02 < usual["fp8gemm_wgmma"] < 0.06  # four bits of each operand
    short = {name: found[accuracy.SHORT, name].rms for name in steps}
    assert short["fp8gemm_promoted"] <= short["fp8gemm_wgmma"] < usual["fp8gemm_wgmma"] / 50
    assert short["bfgemm_wgmma"] < 2.0**-8  # the rounding of the result
    assert found["large", "bfgemm_wgmma"].lost == 0


def test_lessons_show_their_own_products():
    narrow = [name for name in ("bfgemm_wgmma", "fp8gemm_promoted", "cuBLAS BF16") if accuracy.of_fewer_bits(name)]
    assert len(narrow) == 3
    assert not any(map(accuracy.of_fewer_bits, ("hgemm_pipelined", "gemm_tuned", "cuBLAS FP16", accuracy.SUMS)))


def test_the_table_of_fewer_bits_has_a_column_for_each_depth_of_both_kinds(monkeypatch):
    points = [peers.Errors(K=depth, rms=depth * 1e-6, largest=1.0) for depth in (1024, 2048, 4096, 16384)]
    entry = records.Accuracy(points=points, library="CUDA 13")
    record = records.nothing()
    short = dict.fromkeys(("cuBLAS BF16", "gemm_tuned"), entry)
    record.data.accuracy = {accuracy.USUAL: {**short, "cuBLAS FP16": entry}, accuracy.SHORT: short}
    monkeypatch.setattr(tables, "machine", lambda *_: "GPU")
    found = pages.table("fewer_bits", record)
    assert found.rows == [
        ["*cuBLAS BF16*", "1,000", "4,100", "16,000", "1,000", "4,100", "16,000"],
        ["*cuBLAS FP16*", "1,000", "4,100", "16,000", "", "", ""],
    ]
    wide = pages.table("accuracy", record)
    assert [row[0] for row in wide.rows] == ["*gemm_tuned*", "*cuBLAS FP16*"]


def test_errors_are_over_the_root_mean_square_of_the_exact_results():
    exact = np.array([[3.0, 4.0], [3.0, 4.0]])
    off = accuracy.errors(np.array([[3.0, 4.5], [3.5, 4.0]]), exact, 8)
    scale = np.sqrt(12.5)
    assert (off.K, off.lost) == (8, 0)
    assert off.rms == pytest.approx(np.sqrt(0.5 / 4) / scale)
    assert off.largest == pytest.approx(0.5 / scale)
    half = accuracy.errors(np.array([[3.0, np.inf], [np.nan, 4.0]], np.float16), exact, 8)
    assert (half.rms, half.largest, half.lost) == (0, 0, 0.5)
    assert accuracy.errors(np.full((2, 2), np.inf), exact, 8) == peers.Errors(K=8, lost=1.0)
