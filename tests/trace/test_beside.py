"""The page's tables of what other tools show of the programs, and of numba-cuda's own tests."""

import json

import beside_sanitizer
import programs_page

from common.records import records
from common.timing import tools


def test_the_page_has_what_the_scripts_found():
    text = programs_page.PAGE.read_text(encoding="utf-8")
    assert programs_page.rendered(text) == text, "PYTHONPATH=. python tests/trace/programs_page.py"


def test_the_sanitizer_has_a_column_for_each_card(monkeypatch, tmp_path):
    def program(kind, *ends):
        by_tool = {tool: {"ended": end, "seconds": 2.5} for tool, end in zip(tools.TOOLS, ends, strict=True)}
        other = {"simulator": {"ended": "silent", "seconds": 1.0}, "tracer": {"faults": [], "seconds": 1.0}}
        return {**other, **beside_sanitizer.judged(kind, by_tool)}

    good = ["silent"] * 4
    found = {
        "right_one": program("right", *good), "right_two": program("right", *good[:3], "named"),
        "wrong_race": program("race", "silent", "named", "endless", "error"),
        "wrong_check": program("x", *["error"] * 4),
        "wrong_silent": program("overlap", *good), "wrong_endless": program("lock", *good[:3], "endless"),
    }  # fmt: skip
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "simulator.json").write_text(json.dumps(found))
    assert programs_page.simulator().header == ["", "Numba's simulator", "the tracer"]
    card = {"gpu": "NVIDIA Test 9", "driver": "1", "cuda": "13.0", "date": "2026-01-02", "programs": found}
    (tmp_path / "programs" / "sanitizer-nvidia-test-9.json").write_text(json.dumps(card))
    table = programs_page.simulator()
    assert table.header[-1] == "compute-sanitizer on NVIDIA Test 9"
    assert [row[-1] for row in table.rows] == ["1", "1", "2", "2", "10.0"]
    assert "compute-sanitizer on NVIDIA Test 9 is silent about `lock`, `overlap`." in table.note
