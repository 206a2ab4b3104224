"""The traces that the book shows: compact, whole, of the steps as they are."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.catalog import catalog, schema, store
from common.report import traces
from common.trace import trace

PLACES = st.lists(st.none() | st.integers(-(2**40), 2**40), max_size=40)


@given(PLACES)
def test_packed_places_come_back(places):
    assert traces.unpacked(traces.packed(places)) == places


def test_what_is_kept_is_current():
    """``python -m common charts`` writes them."""
    assert [step.name for step in traces.stale()] == []


def test_there_is_one_for_every_step_and_none_more():
    found = {path.stem for path in traces.FOLDER.glob("*.json")} - {"made"}
    assert found == {step.name for step in catalog.steps()} == set(traces.fitting())


def test_no_step_has_a_fault():
    assert not [fault for found in traces.fitting().values() for kernel in found.kernels for fault in kernel.faults]


@pytest.mark.parametrize("name", ["gemm_naive", "gemm_shared_tile", "conv2d_constant_weights", "hgemm_shared"])
def test_a_kept_trace_is_the_step_s_trace(name):
    step = catalog.find(name)
    (found,) = trace.results([trace.task(step, traces.problem(step), kept=traces.KEPT)])
    assert traces.of(found, traces.problem(step)) == traces.load(step)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """One step's trace, taken anew."""
    step = catalog.find("conv2d_naive")
    monkeypatch.setattr(catalog, "steps", lambda: [step])
    assert list(traces.renew([step], tmp_path, workers=1)) == [(step, "")]
    return tmp_path, step


def test_it_is_stale_when_the_tracer_or_a_file_changes(folder, monkeypatch):
    folder, step = folder
    assert traces.stale(folder=folder) == []
    assert traces.stale(fresh=True, folder=folder) == [step]
    with monkeypatch.context() as patch:
        patch.setattr(traces.cache, "key", lambda *_, **options: "a" * 64)
        assert traces.stale(folder=folder) == [step]
        assert traces.fitting(folder)  # its lines are those of the file all the same
    (folder / "conv2d_naive.json").unlink()
    assert traces.stale(folder=folder) == [step]
    assert traces.fitting(folder) == {}


def test_a_changed_step_is_not_shown_by_its_old_lines(folder, monkeypatch, tmp_path):
    folder, step = folder
    other = tmp_path / "conv2d_naive.py"
    other.write_text("# one line more\n" + step.path.read_text())
    monkeypatch.setattr(catalog, "steps", lambda: [replace(step, path=other)])
    assert traces.fitting(folder) == {}


def test_a_trace_that_is_none_is_named(folder):
    folder, step = folder
    path = folder / "conv2d_naive.json"
    data = json.loads(path.read_text())
    data["kernels"][0]["fma"] = -1
    path.write_text(json.dumps(data))
    with pytest.raises(schema.SchemaError, match=r"kernels\[0\]\.fma must be an integer from 0 on, is -1"):
        traces.load(step, folder)
    path.write_text("")
    with pytest.raises(store.StoreError, match=r"conv2d_naive\.json: not readable as JSON: it is empty"):
        traces.load(step, folder)
