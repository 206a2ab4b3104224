"""The transcript on page lessons/EDITING.md is what the tools print: a bug made, found by their words, and mended.

``WORKBOOK_ALL=1 WRITE_TRANSCRIPT=1 python -m pytest tests/commands/test_transcript.py`` writes it anew.
"""

import os
import re
import shutil
from pathlib import Path

import pytest
from processes import python
from sampling import some_days

pytestmark = some_days(1)

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "lessons/EDITING.md"
STEP = "lessons/01_naive/gemm_naive.py"
LESSON = ("lessons.01_naive", "gemm_naive")
# What is edited before each command runs.
SESSION = (
    ([("THREADS_X = 32", "THREADS_X = 64"), ("THREADS_Y = 8", "THREADS_Y = 4"),
      ("if m < M and n < N:", "if m <= M and n <= N:")], LESSON),
    ([("if m <= M and n <= N:", "if m < M and n < N:")], LESSON),
    ([], ("common", "history", "gemm_naive")),
)  # fmt: skip
BLOCK = re.compile(r"(<!-- transcript -->\n```\n)(.*?)(```\n<!-- end transcript -->)", re.DOTALL)
# Seconds, dates, hashes, the number of shapes (a drawn one may be there already), and
# what depends on the compiler's version.
FIGURES = re.compile(
    r"\d+\.\d s\b|\d\d-\d\d \d\d:\d\d|\b[0-9a-f]{8}\b|\d+ (?=registers)|[─━]+| +(?=│)"
    r"|\d+\.\d(?= instructions)|(?<=version )\d+\.\d|\d+(?= shapes)"
)


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What the session prints in a copy of the checkout, without a GPU."""
    copy = tmp_path_factory.mktemp("session")
    for folder in ("common", "lessons"):
        # with what is compiled, but for what another worker may be writing
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("*.pyc.*", "*.png"))
    (copy / "results").mkdir()
    for record in (ROOT / "results").glob("*.json"):
        shutil.copy(record, copy / "results")
    env = {**os.environ, "COLUMNS": "100", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    lines = []
    for edits, words in SESSION:
        path = copy / STEP
        for old, new in edits:
            assert old in path.read_text()
            path.write_text(path.read_text().replace(old, new))
        done = python("-m", *words, code=None, cwd=copy, env=env)
        assert done.stderr == ""
        said = done.stdout.split("\nNo GPU here")[0]  # the records of other cards follow
        lines += [f"$ python -m {' '.join(words)}", *(line.rstrip() for line in said.rstrip().splitlines()), ""]
    return "\n".join(lines).rstrip() + "\n"


def plain(text):
    return FIGURES.sub("#", text)


def test_the_page_shows_what_is_printed(printed):
    page = PAGE.read_text(encoding="utf-8")
    if os.environ.get("WRITE_TRANSCRIPT"):
        page = BLOCK.sub(lambda found: found[1] + printed + found[3], page)
        PAGE.write_text(page, encoding="utf-8")
    assert plain(BLOCK.search(page)[2]) == plain(printed)


def test_the_bug_is_named_with_its_line_and_the_mended_kernel_is_right(printed):
    first, second, listed = printed.split("$ python")[1:]
    assert "its extent is" in first
    assert "look at: this index and its guard" in first
    assert re.search(r"right at \d+ shapes, and sound", second)
    assert re.search(r"│ 1 │.*wrong", listed)
    assert re.search(r"│ 2 │.*right", listed)
