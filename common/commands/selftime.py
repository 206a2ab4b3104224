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

import msgspec

from common.catalog import catalog, device, ledger

COPIED = ("common", "lessons", "results", "tests", "README.md", "pyproject.toml", "Makefile")
RUNS = {"from nothing": ["all", "--fresh"], "nothing changed": ["all"]}


class Measured(msgspec.Struct):
    """What ran where, by name."""

    processors: int
    gpu: bool
    runs: dict[str, ledger.Run]


def measure(runs: dict[str, list[str]] | None = None) -> Measured:
    """Run each command in one copy, one after the other."""
    found: dict[str, ledger.Run] = {}
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
    return Measured(device.processors(), device.gpu_count() > 0, found)


def _timed(words: list[str], checkout: Path, notes: Path) -> ledger.Run:
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
    stages = ledger.read(notes) if notes.exists() else {}
    return ledger.Run(time.monotonic() - began, cpu, first, process.returncode, stages)
