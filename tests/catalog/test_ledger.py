"""What each stage of a process took: stages within stages count once, and nothing is noted without the switch."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from common.catalog import catalog, ledger


@pytest.fixture
def clock(monkeypatch):
    """Both clocks, set by hand: wall seconds, and CPU seconds."""
    now = SimpleNamespace(wall=100.0, cpu=7.0)
    monkeypatch.setattr(ledger, "time", SimpleNamespace(perf_counter=lambda: now.wall, process_time=lambda: now.cpu))
    return now


@pytest.fixture
def notes(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBOOK_LEDGER", str(tmp_path / "notes.jsonl"))
    return tmp_path / "notes.jsonl"


def passes(clock, wall, cpu):
    clock.wall += wall
    clock.cpu += cpu


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_stage_notes_its_seconds_without_those_of_the_stages_within(clock, notes):
    with ledger.stage("outer"):
        passes(clock, 1.0, 0.5)
        with ledger.stage("first"):
            passes(clock, 8.0, 4.0)
            with ledger.stage("innermost"):
                passes(clock, 64.0, 32.0)
        with ledger.stage("second"):
            passes(clock, 16.0, 2.0)
        passes(clock, 2.0, 0.25)
    with ledger.stage("outer"):
        passes(clock, 4.0, 1.0)
    assert lines(notes) == [
        {"stage": "innermost", "wall": 64.0, "cpu": 32.0},
        {"stage": "first", "wall": 8.0, "cpu": 4.0},
        {"stage": "second", "wall": 16.0, "cpu": 2.0},
        {"stage": "outer", "wall": 3.0, "cpu": 0.75},
        {"stage": "outer", "wall": 4.0, "cpu": 1.0},
    ]
    assert ledger._inner == []


def test_nothing_is_measured_or_noted_without_the_switch(monkeypatch, tmp_path):
    monkeypatch.delenv("WORKBOOK_LEDGER", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ledger, "time", None)  # not even asked
    with ledger.stage("outer"):
        assert ledger._inner == []
    ledger.note("outer", 1.0, 1.0)
    monkeypatch.setenv("WORKBOOK_LEDGER", "")
    ledger.note("outer", 1.0, 1.0)
    assert list(tmp_path.iterdir()) == []


def test_several_processes_note_in_one_file_and_are_summed_by_stage(notes):
    code = "from common.catalog import ledger; ledger.note('check', 1.5, 0.5); ledger.note('timing', 2.0, 8.0)"
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code], check=True, cwd=catalog.ROOT)
    ledger.note("check", 4.0, 0.25)
    found = ledger.read(notes)
    assert found == {
        "timing": ledger.Spent(wall=4.0, cpu=16.0, times=2),
        "check": ledger.Spent(wall=7.0, cpu=1.25, times=3),
    }
    assert list(found) == ["timing", "check"]  # in order of CPU seconds
