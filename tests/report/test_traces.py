"""The traces that the book shows: compact, whole, of the steps as they are."""

import json
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import unpacked

from common.catalog import catalog
from common.report import traces
from common.trace import trace

PLACES = st.lists(st.none() | st.integers(-(2**40), 2**40), max_size=40)


@given(PLACES)
def test_packed_places_come_back(places):
    assert unpacked(traces.packed(places)) == places


def test_there_is_one_for_every_step_as_it_is_and_none_has_a_fault():
    """``python -m common charts --record`` writes them."""
    names = {path.stem for path in traces.FOLDER.glob("*.json")}
    found = traces.fitting()
    assert names == {step.name for step in catalog.steps()} == set(found)
    assert not [fault for one in found.values() for kernel in one["kernels"] for fault in kernel["faults"]]


@pytest.mark.parametrize("name", ["gemm_shared_tile", "conv2d_constant_weights", "hgemm_shared"])
def test_a_kept_trace_is_the_step_s_trace(name):
    step = catalog.find(name)
    (found,) = trace.results([trace.task(step, traces.problem(step), kept=traces.KEPT)])
    kept = traces.load(step)
    now = {**traces.of(found, traces.problem(step)), "source": kept["source"]}
    assert json.loads(msgspec.json.encode(now)) == kept


@pytest.fixture
def taken(tmp_path, monkeypatch):
    """One step, and a folder with its trace taken anew."""
    step = catalog.find("conv2d_naive")
    monkeypatch.setattr(catalog, "steps", lambda: [step])
    assert traces.write(step, tmp_path) == tmp_path / "conv2d_naive.json"
    assert traces.load(step, tmp_path) == traces.load(step)
    return tmp_path, step


def test_a_changed_step_is_not_shown_by_its_old_lines(taken, monkeypatch, tmp_path):
    folder, step = taken
    assert list(traces.fitting(folder)) == [step.name]
    other = tmp_path / "conv2d_naive.py"
    other.write_text("# one line more\n" + step.path.read_text())
    monkeypatch.setattr(catalog, "steps", lambda: [replace(step, path=other)])
    assert traces.fitting(folder) == {}
    (folder / "conv2d_naive.json").unlink()
    assert traces.fitting(folder) == {}
