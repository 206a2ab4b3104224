"""The libraries beside a step: in which precision, which layout, and in turn. Without them: all of it stands in."""

import sys
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from common.catalog import device, inputs, reference
from common.catalog.problems import PRESETS, RAGGED, parse_shape
from common.check import loading
from common.timing import peers, timing


@pytest.mark.parametrize(
    ("capability", "wanted"), [("7.5", ("FP32",)), ("8.0", ("FP32", "TF32")), (None, ("FP32", "TF32"))]
)
def test_tf32_is_asked_of_cards_that_have_it(capability, wanted, monkeypatch):
    monkeypatch.setattr(device, "compute_capability", lambda: capability)
    assert peers.precisions(PRESETS["gemm-4096"]) == wanted
    assert peers.precisions(PRESETS["hgemm-4096"]) == ("FP16",)


@pytest.fixture
def library(monkeypatch):
    """A library with two layouts, the second faster; gives the precisions that it was asked for."""
    asked = []
    monkeypatch.setattr(loading, "beside", {})
    monkeypatch.setattr(peers, "_faster", {})
    monkeypatch.setitem(
        sys.modules, "torch",
        SimpleNamespace(cuda=SimpleNamespace(synchronize=lambda: None, empty_cache=lambda: None)),
    )  # fmt: skip
    monkeypatch.setattr(peers, "_normals", lambda problem: ("x", "weight"))
    monkeypatch.setattr(peers, "_choose", asked.append)
    monkeypatch.setattr(
        peers, "_variants", lambda *_: [(name, lambda name=name: name, None) for name in ("NCHW", "NHWC")]
    )
    return asked


class Stopwatch:
    """Says how long what it is given takes, by what that returns."""

    ms: ClassVar = {"NCHW": 2.0, "NHWC": 1.0, "step": 0.8}

    def measure(self, launch, **limits):
        return timing.summarise([self.ms[launch()]] * 10)

    def measure_pairs(self, first, second, **_):
        times = iter([(self.ms[first()], self.ms[second()] * slower) for slower in (1.0, 1.25, 1.0) * 2])
        return timing.collect_pairs(lambda swapped: next(times), clock=lambda: 0.0, max_seconds=0.0)


@pytest.mark.parametrize(("preset", "precision", "peer"), [
    ("gemm-4096", "tf32", "cuBLAS TF32"), ("gemm-4096", "fp32", "cuBLAS FP32"), ("hgemm-4096", "fp32", "cuBLAS FP16"),
    ("ece408-layer1", "tf32", "cuDNN TF32"),
])  # fmt: skip
def test_a_step_is_timed_in_turn_with_the_faster_layout(library, preset, precision, peer):
    found = peers.measure_beside(lambda: "step", PRESETS[preset], precision, Stopwatch())
    assert found.peer == peer
    assert set(library) == {peer.split()[1]}
    assert found.first.median_ms == 1.0  # the library's
    assert found.second.p20_ms == 0.8
    assert found.ratio == pytest.approx(1.25)  # above 1: the step is faster
    assert found.ratio_p20 == pytest.approx(1.0)
    assert found.ratio_p80 == pytest.approx(1.25)


def test_the_layout_is_found_once_for_all_steps_on_a_problem(library, monkeypatch):
    tried = []
    monkeypatch.setattr(peers, "fastest", lambda problem, *_: (tried.append(problem), ("NHWC", lambda: "NHWC"))[1])
    one, other = PRESETS["hgemm-4096"], PRESETS["hgemm-8192"]
    for problem in (one, one, other, one):
        assert peers.measure_beside(lambda: "step", problem, "fp32", Stopwatch()).first.median_ms == 1.0
        assert list(loading.beside) == [(problem, "FP16")]  # operands of one problem at a time
    assert tried == [one, other, one]
    assert library == ["FP16"] * 4  # others may have asked for another precision in between


def test_a_library_s_rows_are_checked_but_for_tf32_and_take_the_layout_that_was_found(library, monkeypatch):
    checked, timed, measure, problem = [], [], Stopwatch.measure, PRESETS["ece408-layer1"]
    monkeypatch.setattr(
        Stopwatch, "measure", lambda self, run, **limits: timed.append(run()) or measure(self, run, **limits)
    )
    monkeypatch.setattr(peers, "_oracle", lambda _: checked.append)
    monkeypatch.setattr(peers, "_kernels", lambda run: [run()])
    monkeypatch.setattr(peers, "version", lambda _: "9")
    monkeypatch.setattr(device, "compute_capability", lambda: "9.0")
    peers.measure_beside(lambda: "step", problem, "tf32", Stopwatch())
    assert timed == ["NCHW", "NHWC"]
    rows, lacking = peers.measure(problem, Stopwatch())
    assert lacking == ""
    assert [(name, row.layout, row.kernels) for name, row in rows.items()] == [
        ("cuDNN FP32", "NHWC", ["NHWC"]), ("cuDNN TF32", "NHWC", ["NHWC"]),
    ]  # fmt: skip
    assert timed[2:] == ["NCHW", "NHWC", "NHWC", "NHWC"]
    assert checked == ["NCHW", "NHWC"]


POINTWISE = parse_shape("conv3d", "N=2 C=3 D=1 H=4 W=5 K=7 T=1 R=1 S=1")


@pytest.mark.parametrize("problem", [POINTWISE, *RAGGED["conv3d"], *RAGGED["dgrad"], *RAGGED["wgrad"]], ids=repr)
def test_each_layout_of_the_library_computes_the_problem(problem):
    torch = pytest.importorskip("torch")
    x, weight = inputs.integers(problem, 3)
    expected = reference.full(problem, x, weight)
    layouts = []
    for layout, run_it, to_output in peers._variants(problem, torch.from_numpy(x), torch.from_numpy(weight)):
        layouts.append(layout)
        # whole numbers, but for what a transform of its own rounds
        np.testing.assert_allclose(to_output(run_it()).numpy(), expected, rtol=0, atol=0.01)
    assert layouts[-2:] == ["NDHWC", "NCDHW"]
    assert layouts[:-2] == [peers.PRODUCT] or problem != POINTWISE


def test_a_library_that_runs_out_of_memory_leaves_out_itself_alone(library, monkeypatch):
    def full(*_, **__):
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")

    def broken(*_, **__):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(peers, "_normals", full)
    monkeypatch.setattr(peers, "_oracle", lambda _: None)
    assert peers.measure(PRESETS["hgemm-4096"], Stopwatch()) == ({}, "cuBLAS FP16 ran out of GPU memory")
    assert peers.measure_beside(lambda: "step", PRESETS["gemm-4096"], "fp32", Stopwatch()) is None
    monkeypatch.setattr(peers, "_normals", broken)
    with pytest.raises(RuntimeError, match="illegal"):
        peers.measure_beside(lambda: "step", PRESETS["gemm-4096"], "fp32", Stopwatch())
