"""The table of classes on the page lessons/CHECK.md is what the tests of the wrong kernels hold.

``WRITE_CLASSES=1 python -m pytest tests/report/test_page_check.py`` writes it anew.
"""

import os
import re
from pathlib import Path

import classes
import mutants
from classes import PASSING, SIZES

from common.report.table import Table, markdown

PAGE = Path(__file__).resolve().parents[2] / "lessons/CHECK.md"
BLOCK = re.compile(r"(<!-- classes -->\n)(.*?)(<!-- end classes -->)", re.DOTALL)
MEANS = {
    "shapes": "wrong at some shapes alone",
    "values": "wrong for some operands alone",
    "state": "something is kept from one launch, shape or set of arrays to the next",
    "order": "right in one order of blocks or threads",
    "zero": "takes memory for zero that nobody has written",
    "sound": "races, barriers, unset reads, copies not waited for",
    "gpu": "runs as Python, and not on a GPU",
    "refusal": "refuses what it should compute",
}


def table():
    """Kernels tried and found by class, then what each of those that pass does."""
    passing = {name: mutants.everything()[name] for name in PASSING}
    rows = []
    for kind in classes.CLASSES:
        missed = sum(kernel.kind == kind for kernel in passing.values())
        rows.append([f"{kind}: {MEANS[kind]}", str(SIZES[kind]), str(SIZES[kind] - missed)])
    rows.append(["all", str(sum(SIZES.values())), str(sum(SIZES.values()) - len(passing))])
    said = sorted(f"- `{name}`: {kernel.mistake}" for name, kernel in passing.items())
    after = ["These still pass:", "", *said] if said else ["None of them passes."]
    return "\n".join([markdown(Table(["class", "tried", "found"], rows)), "", *after]) + "\n"


def test_the_page_says_what_is_found_and_what_passes():
    page = PAGE.read_text(encoding="utf-8")
    if os.environ.get("WRITE_CLASSES"):
        page = BLOCK.sub(lambda found: found[1] + table() + found[3], page)
        PAGE.write_text(page, encoding="utf-8")
    assert BLOCK.search(page)[2] == table()
