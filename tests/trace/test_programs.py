"""Programs of anybody's: no right one is accused, and a wrong one is named for what it is."""

import re
from pathlib import Path

import pytest

from common.trace import script

PROGRAMS = sorted(Path(__file__).parent.joinpath("programs").glob("*.py"))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_is_told_for_what_it_is(path, capsys):
    """The first word of a program's docstring is its fault's kind; the line of it ends in ``# fault``."""
    text = path.read_text(encoding="utf-8")
    wanted = re.match(r'"""([\w-]+):', text)[1]
    lines = [number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# fault")]
    found = script.run(path, [])
    faults = [*found.others, *(fault for kernel in found.kernels for fault in kernel.faults)]
    if wanted == "right":
        assert (found.status, faults, found.unknown) == ("right", [], [])
    elif wanted == "unknown":
        assert (found.status, faults) == ("unjudged", [])
        assert f"{path.name}:{lines[0]}" in found.unknown[0]
    else:
        assert (faults[0].kind, faults[0].line) == (wanted, lines[0]), faults
