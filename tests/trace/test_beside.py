"""What other tools show of the programs: how an end under compute-sanitizer is told, and the page's table."""

import json
import os
import shutil
import sys

import beside_sanitizer
import pytest

from common.records import records
from common.report import pages
from common.timing import tools

# Runs the program, prints the summary that its text asks for, and ends as compute-sanitizer does.
TOOL = f"""#!{sys.executable}
import re, subprocess, sys
program = sys.argv[-1]
code = subprocess.call(sys.argv[-2:])
text = open(program).read()
errors = int((re.search("errors ([0-9]+)", text) or [0, 0])[1])
if errors:
    print("========= Invalid __global__ write of size 4 bytes")
if "no summary" not in text:
    print(f"========= ERROR SUMMARY: {{errors}} errors")
sys.exit(code or (99 if errors else 0))
"""


@pytest.fixture
def watched(write, tmp_path, monkeypatch):
    """How a program of this text ends under a stand-in for a tool."""
    write("bin/compute-sanitizer", TOOL).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert shutil.which("compute-sanitizer").startswith(str(tmp_path))
    monkeypatch.setattr(beside_sanitizer, "SECONDS", 20.0)
    return lambda text: beside_sanitizer.watched("memcheck", write("program.py", text))


@pytest.mark.parametrize(
    ("text", "ended", "errors", "said"),
    [
        ("pass", "silent", 0, ""), ("'errors 2'", "named", 2, ""), ("raise SystemExit(1)", "error", 0, ""),
        ("raise SystemExit('errors 2')", "named", 2, ""),
        ("raise SystemExit('no summary in /own/folder/it.py')", "error", None, "no summary in it.py"),
    ],
)  # fmt: skip
def test_a_program_s_end_is_told_apart_from_what_the_tool_found(watched, text, ended, errors, said):
    found = watched(text)
    assert (found["ended"], found["errors"]) == (ended, errors)
    assert found.get("said") == {"named": "Invalid __global__ write of size 4 bytes", "error": said}.get(ended)


def test_a_program_that_does_not_end_is_killed(watched, monkeypatch):
    monkeypatch.setattr(beside_sanitizer, "SECONDS", 1.0)
    assert watched("import time; time.sleep(100)")["ended"] == "endless"


def test_a_tool_that_says_nothing_has_found_nothing_right(watched):
    with pytest.raises(tools.ToolError, match=r"program\.py: memcheck says nothing of it"):
        watched("'no summary'")


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
    assert pages.simulator().header == ["", "Numba's simulator", "the tracer"]
    card = {"gpu": "NVIDIA Test 9", "driver": "1", "cuda": "13.0", "date": "2026-01-02", "programs": found}
    (tmp_path / "programs" / "sanitizer-nvidia-test-9.json").write_text(json.dumps(card))
    table = pages.simulator()
    assert table.header[-1] == "compute-sanitizer on NVIDIA Test 9"
    assert [row[-1] for row in table.rows] == ["1", "1", "2", "2", "10.0"]
    assert "compute-sanitizer on NVIDIA Test 9 is silent about `lock`, `overlap`." in table.note
