"""Copies of the checkout, and what their command line prints."""

import json
import os
import shutil
from pathlib import Path

from processes import python

from common.catalog import catalog

COPIED = ("common", "lessons", "results")

# Each command as a process of its own would run it, but for the imports, which are done once.
RUN = """
import contextlib, io, json, sys
from common import cli
for words in json.loads(sys.argv[1]):
    said, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors):
        try:
            code = cli.main(words)
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([code, said.getvalue(), errors.getvalue()]), flush=True)
"""


def copied(folder: Path) -> Path:
    """A copy of the checkout's own code and records below ``folder``."""
    copy = folder / "copy"
    for name in COPIED:
        ignored = shutil.ignore_patterns("*.pyc.*", "charts")  # another worker may be writing one
        shutil.copytree(catalog.ROOT / name, copy / name, ignore=ignored)
    return copy


def printed(copy: Path, *commands: list[str]) -> list[str]:
    """What ``python -m common`` prints in the copy, given each of these lists of words; all must succeed."""
    env = {**os.environ, "COLUMNS": "200", "PYTHONPATH": ""}
    said = python("-c", RUN, json.dumps(commands), cwd=copy, env=env).stdout
    found = [json.loads(line) for line in said.splitlines()]
    assert len(found) == len(commands)
    for command, (code, said, errors) in zip(commands, found, strict=True):
        assert code == 0, f"{' '.join(command)}: {said}{errors}"
    return [said for _, said, _ in found]
