"""Records of training: kept whole, read with care, shown as figures, tables and charts."""

import base64
import json
from importlib import import_module

import numpy as np
import pytest

from common.catalog import catalog
from common.catalog.device import Gpu
from common.records import records
from common.records.records import MachineCode, Run
from common.report import figures, pages
from common.run.messages import Timing

training = import_module("lessons.08_training.network.record")
Compared, Epoch, Mistake = training.Compared, training.Epoch, training.Mistake
Speed, Trained = training.Speed, training.Trained
GPU = Gpu("NVIDIA Test", "9.0", 132, 10**9, 10**6, "580", "13.0")
RUN = Run(date="2026-11-22", driver="580", cuda="13.0", packages={"numba": "0.68"})


def trained():
    pixels = base64.b64encode(np.arange(16, dtype=np.uint8).tobytes()).decode()
    history = [
        Epoch(loss=2.0 / n, held_out_loss=2.5 / n, held_out_accuracy=1 - 0.3 / n, seconds=0.25) for n in (1, 2, 3)
    ]
    return Trained(
        data="digits", learned=4000, held_out=1000, seed=0, batch=32, rate=0.05, momentum=0.9, decay=0.0005,
        kernels="fused", launches=9, history=history, code={"fused": "0" * 64}, run=RUN,
        mistakes=[Mistake(number=17, label=4, said=9, pixels=pixels)] * 100,
    )  # fmt: skip


def compared():
    def speed(name, batch, ms):
        return Speed(name=name, batch=batch, timing=Timing(ms, ms, ms, 0.0, 7), launches=None if "Py" in name else 8)

    return Compared(
        batch=64, rate=0.05, library="PyTorch 2.11",
        losses={"PyTorch": [2.0, 1.0], "fused": [2.0, 1.00005], "layered": [2.0, 1.0]},
        gradients={"fused": {"filt1": 1e-6}}, code=training.code(), run=RUN,
        speeds=[
            speed("fused, graph", 64, 0.05), speed("PyTorch", 64, 0.5), speed("PyTorch, graph", 64, 0.1),
            speed("fused, graph", 1024, 0.5), speed("PyTorch", 1024, 1.25), speed("PyTorch, graph", 1024, 1.0),
        ],
    )  # fmt: skip


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "OWN", tmp_path)
    training.change(GPU, trained())
    training.change(GPU, compared())
    return tmp_path


@pytest.mark.parametrize(("change", "said"), [
    (lambda data: data["trained"].update(learned=-1), "Expected `int` >= 1 - at `$.trained.learned`"),
    (lambda data: data["trained"]["history"][1].update(loss="nan"), "`$.trained.history[1].loss`"),
    (lambda data: data["trained"].update(history=[]), "Expected `array` of length >= 1 - at `$.trained.history`"),
    (lambda data: data.update(schema="other"), "Invalid value 'other' - at `$.schema`"),
])  # fmt: skip
def test_a_file_that_is_no_record_is_named_with_what_is_wrong(results, change, said):
    path = training.path_of("nvidia-test")
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(records.RecordError) as caught:
        training.load("nvidia-test")
    assert said in str(caught.value)
    assert str(caught.value).endswith("move the file away to start anew")


@pytest.mark.parametrize(("words", "text"), [
    ("accuracy", "90.0"), ("epochs", "3"), ("seconds", "0.75"), ("apart fused", "5.0e-05"),
    ("faster fused-graph 64", "10"), ("faster fused-graph 1024", "2.5"),
    ("faster fused-graph 64 PyTorch-graph", "2"),
])  # fmt: skip
def test_figures_are_the_records(results, words, text):
    found = figures.named("training", records.Record.open(GPU, results), MachineCode(), words.split())
    assert found == text


def test_pages_take_figures_and_the_table_from_there(results):
    record = records.Record.open(GPU, results)
    text = "<!--= training accuracy -->?<!--/--> of <!-- table: training 64 -->\n<!-- end table -->"
    written = pages.rendered(text, record, MachineCode())
    assert "<!--= training accuracy -->90.0<!--/-->" in written
    assert "| fused, graph | 8 | 50 (10×) |" in written
    assert "| *PyTorch, graph* |  | 100 (5×) |" in written
    assert "1,024" not in written
    nothing = pages.rendered(text, None, MachineCode())
    assert "(not measured yet)" in nothing


def test_all_files_of_the_network_and_all_they_run_are_its_code():
    code = training.code()
    assert {"fused", "wgrad_split_k", "wgrad_implicit_gemm", "long_sums"} <= code.keys()
    folder, declared = catalog.trained_network()
    run = import_module(f"lessons.{folder.name}.{declared.code}.layered")
    assert tuple(declared.steps) == run.STEPS
