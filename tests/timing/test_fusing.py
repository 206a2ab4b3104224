"""Epilogues timed three ways: what runs, what is compared, what the record and the pages say of it."""

import importlib
from types import SimpleNamespace

import numpy as np
import pytest

from common.catalog import catalog, problems, sources
from common.catalog.device import Gpu
from common.jobs import messages
from common.records import records
from common.records.entries import MachineCode
from common.records.records import Record
from common.report import pages
from common.timing import peers
from common.timing.timing import Fused, Paired, Timing
from tests.made import GPU

fusing = importlib.import_module("lessons.08_training.figures.fusing")

pytestmark = [
    pytest.mark.usefixtures("traced"),
    pytest.mark.filterwarnings("ignore:overflow encountered in scalar:RuntimeWarning"),
]

WAYS = "lessons.08_training.helpers.beside"
NAMES = ["add_bias", "bias_relu", "scale", "add_residual", "column_sums"]


def timed(milliseconds):
    return Timing(milliseconds, milliseconds, milliseconds, 0.001, 12)


def paired(first, second):
    return Paired(timed(first), timed(second), first / second, first / second, first / second, 0.001)


class Watch:
    """Notes what it is given to time; all of it has run once before, so as to be compiled."""

    def __init__(self):
        self.pairs = []

    def measure_pairs(self, first, second, **limits):
        self.pairs.append((first, second))
        return paired(1.02, 1.0)


def load(name):
    step = catalog.find(name)
    return catalog.load(step.path, step.ladder)


# a single tile, and one step along gemm_k
SMALL = problems.Conv3d(N=1, C=3, D=1, H=3, W=3, K=5, T=1, R=2, S=1)


@pytest.mark.parametrize("name", ["conv3d_implicit_gemm_precomputed", "hconv3d_mma"])
def test_every_epilogue_finds_the_same_fused_and_in_a_kernel_of_its_own(name, monkeypatch):
    monkeypatch.setattr(peers, "available", lambda: False)
    problem, watch = problems.on_ladder(catalog.find(name).ladder, SMALL), Watch()
    made, launched = {}, []

    def ways(launch, y):
        def counted(to, epilogue):
            launched.append(epilogue)
            launch(to, epilogue)

        made.update(importlib.import_module(WAYS).ways(counted, y))
        return made

    found = fusing.measure(load(name), ways, problem, watch)
    names = [one and getattr(one, "made", SimpleNamespace(name="column_sums")).name for one in launched]
    assert names == [one for name in NAMES for one in (name, None)]  # each way was run once
    alone = watch.pairs[0][1]
    assert watch.pairs == [pair for way in made.values() for pair in ((way.fused, alone), (way.separate, way.fused))]
    assert [one.epilogue for one in found] == NAMES
    y = np.prod(problem.output_shape) * problem.operands[2][1].itemsize
    assert [one.saved_bytes for one in found] == [2 * y] * 4 + [y]
    assert [one.eager for one in found] == [None] * 5


@pytest.mark.parametrize("wrong", [np.inf, np.nan, 1.01])
def test_an_epilogue_that_finds_something_else_fused_is_refused(wrong):
    problem = problems.preset("tiny-conv3d")
    held = np.ones(8, np.float32)
    found = SimpleNamespace(dtype=held.dtype, copy_to_host=held.copy)

    def put(value):
        held[3] = value

    way = SimpleNamespace(fused=lambda: put(wrong), separate=lambda: put(1), found=found)
    with pytest.raises(RuntimeError, match="bias: fused it differs from a kernel of its own by up to"):
        fusing._require_same("bias", way, problem)
    fusing._require_same("bias", SimpleNamespace(fused=lambda: put(1), separate=lambda: put(1), found=found), problem)


# --- records and pages ---

STEP, PRESET = "conv3d_implicit_gemm_precomputed", "c3d-conv3a"


@pytest.fixture
def record(tmp_path):
    record = Record.open(Gpu(**GPU), tmp_path)
    step = catalog.find(STEP)
    result = messages.EpiloguesResult(
        shape=problems.preset(PRESET).shape(),
        found=[
            Fused(
                epilogue="bias_relu", saved_bytes=205_520_896, alone=paired(3.06, 3.0), separate=paired(3.2, 3.06),
                eager=paired(4.0, 3.06), layout="NDHWC",
            ),
            Fused(
                epilogue="column_sums", saved_bytes=102_760_448, alone=paired(3.0, 3.0), separate=paired(3.1, 3.0),
            ),
        ],
        code=sources.provenance(step.path),
        ways=sources.provenance(catalog.LESSONS / "08_training/helpers/beside.py"),
        library="cuDNN 9.1.2, PyTorch 2.11",
    )  # fmt: skip
    records.record_epilogues(record, record.start_run(), step, PRESET, WAYS, result)
    return Record.load(record.path)


def rendered(record):
    return pages.rendered(f"<!-- table: epilogues {STEP} {PRESET} -->\n<!-- end table -->", record, MachineCode())


def test_a_page_counts_the_bytes_and_shows_the_times(record):
    text = rendered(record)
    assert "| epilogue | bytes saved | takes | convolution alone ms | fused ms | over alone |" in text
    assert "| `bias_relu` | 206 MB |  | 3.00 | 3.06 | +2.0% | 3.20 | 4.00 |" in text
    assert "| `column_sums` | 103 MB |  | 3.00 | 3.00 | +0.0% | 3.10 |  |" in text
    assert "cuDNN 9.1.2, PyTorch 2.11, NDHWC." in text
