"""Where the harness's own time goes: the main job in a copy of the checkout, from nothing, then with nothing changed.

Seconds of wall clock depend on what else the machine does, seconds of CPU hardly; both are told.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common.book import catalog, device, ledger

COPIED = ("common", "lessons", "results", "tests", "README.md", "pyproject.toml", "Makefile")
RUNS = {"from nothing": ["all", "--fresh"], "nothing changed": ["all"]}


def measure(runs: dict[str, list[str]] | None = None) -> dict[str, Any]:
    """Run each command in one copy, one after the other; by name ``wall`` and ``cpu`` seconds, the seconds of wall
    clock until the ``first_line``, the exit ``code``, and ``stages`` as :func:`common.book.ledger.read` gives
    them.
    """
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="workbook-") as folder:
        checkout = Path(folder, "checkout")
        checkout.mkdir()
        for name in COPIED:
            source = catalog.ROOT / name
            if source.is_dir():
                shutil.copytree(source, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                shutil.copy2(source, checkout / name)
        for name, words in (runs or RUNS).items():
            found[name] = _timed(words, checkout, Path(folder, f"{len(found)}.jsonl"))
    return {"processors": device.processors(), "gpu": device.gpu_count() > 0, "runs": found}


def _timed(words: list[str], checkout: Path, notes: Path) -> dict[str, Any]:
    env = {**os.environ, ledger.SWITCH: str(notes)}
    before, began = os.times(), time.monotonic()
    first = 0.0
    with subprocess.Popen(
        [sys.executable, "-m", "common", *words], cwd=checkout, env=env, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for _ in process.stdout:
            first = first or time.monotonic() - began
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {
        "wall": time.monotonic() - began,
        "cpu": cpu,
        "first_line": first,
        "code": process.returncode,
        "stages": ledger.read(notes) if notes.exists() else {},
    }
