"""One JSON file per GPU under ``results/``: what was measured, on what, when, and from which source.

A row is raw measurement; rates, floors and speed-ups are derived from it by :func:`derive`. Every change is written
at once and atomically, so an interrupted run keeps what it has. A replaced row is appended to
``results/history/<gpu>.jsonl``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import catalog, device, problems
from common.catalog import Step
from common.problems import Problem

RESULTS = catalog.ROOT / "results"
SCHEMA = "numba-cuda-workbook/1"
REFERENCE_GPU = "nvidia-h200"
CODE_FILE = "machine-code.json"
_PACKAGES = ("numba", "numba-cuda", "numpy", "torch")

Row = dict[str, Any]


class RecordError(ValueError):
    """A record file cannot be read as one; it is left as it is."""


@dataclass(frozen=True)
class Derived:
    """Figures that follow from a row, its problem and the ceilings."""

    gflops: float
    gbs: float
    floor_ms: float
    percent_of_floor: float
    floor_kind: str


class Record:
    """The record of one GPU. ``rows`` are keyed by preset and by step or peer name."""

    def __init__(self, path: Path, data: dict[str, Any]) -> None:
        self.path, self.data = path, data

    @classmethod
    def load(cls, path: Path) -> Record:
        """Read a record; raises RecordError naming what is wrong with the file."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RecordError(
                f"{_shown(path)}: not a readable record ({error}); move it away to start anew"
            ) from None
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            found = data.get("schema") if isinstance(data, dict) else type(data).__name__
            raise RecordError(f"{_shown(path)}: schema is {found!r}, must be {SCHEMA!r}; move it away to start anew")
        for key, kind in (("gpu", dict), ("runs", dict), ("rows", dict)):
            if not isinstance(data.get(key), kind):
                raise RecordError(f"{_shown(path)}: {key} must be an object; move the file away to start anew")
        flaw = _flaw(data)
        if flaw:
            raise RecordError(f"{_shown(path)}: {flaw}; move the file away to start anew")
        return cls(path, data)

    @classmethod
    def open(cls, gpu: dict[str, Any], slug: str, folder: Path = RESULTS) -> Record:
        """The GPU's record, read from ``folder`` or new."""
        path = folder / f"{slug}.json"
        if path.exists():
            record = cls.load(path)
            record.data["gpu"] = gpu
            return record
        return cls(path, {"schema": SCHEMA, "gpu": gpu, "ceilings": None, "runs": {}, "rows": {}})

    @property
    def slug(self) -> str:
        return self.path.stem

    @property
    def gpu_name(self) -> str:
        return str(self.data["gpu"]["name"])

    @property
    def ceilings(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.data.get("ceilings")
        return found

    def start_run(self) -> str:
        """Add this run's provenance; returns its key for the rows to come."""
        gpu = self.data["gpu"]
        now = datetime.datetime.now(datetime.timezone.utc)
        key = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        self.data["runs"][key] = {
            "date": now.date().isoformat(),
            "driver": gpu["driver"],
            "cuda": gpu["cuda"],
            "python": platform.python_version(),
            "packages": package_versions(_PACKAGES),
        }
        return key

    def set_ceilings(self, ceilings: dict[str, Any], run: str) -> None:
        self.data["ceilings"] = {**ceilings, "run": run}
        self._save()

    def put(self, preset: str, name: str, row: Row, run: str) -> None:
        """Store a row and write the file; the row it replaces goes to the history."""
        rows = self.data["rows"].setdefault(preset, {})
        old = rows.get(name)
        if old is not None:
            self._remember(preset, name, old)
        rows[name] = {**row, "run": run}
        self._prune()
        self._save()

    def sweep(self, preset: str, name: str) -> dict[str, Any] | None:
        """``source``, ``shipped`` and ``points``: a list of ``tile``, ``status`` and ``median_ms`` or ``reason``."""
        found: dict[str, Any] | None = self.data.get("sweeps", {}).get(preset, {}).get(name)
        return found

    def put_sweep(self, preset: str, name: str, sweep: dict[str, Any], run: str) -> None:
        """Store a sweep, finished or not, and write the file."""
        self.data.setdefault("sweeps", {}).setdefault(preset, {})[name] = {**sweep, "run": run}
        self._prune()
        self._save()

    def put_profile(self, preset: str, name: str, profile: dict[str, Any], run: str) -> None:
        """Store a step's hardware counters on a preset and write the file."""
        self.data.setdefault("profile", {}).setdefault(preset, {})[name] = {**profile, "run": run}
        self._prune()
        self._save()

    def profile(self, preset: str, name: str) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.data.get("profile", {}).get(preset, {}).get(name)
        return found

    def put_agreement(self, name: str, shape: str, entry: dict[str, Any], run: str | None = None) -> None:
        """Store a step's counters at a shape, as the hardware and as the tracer have them, and write the file.

        Without ``run`` the hardware's part is the old one, and so is its run.
        """
        shapes = self.data.setdefault("agreement", {}).setdefault(name, {})
        shapes[shape] = {**entry, "run": run or shapes[shape]["run"]}
        self._prune()
        self._save()

    def agreement(self) -> dict[str, dict[str, dict[str, Any]]]:
        """By step, then by shape: ``shape``, ``source``, ``kernels`` and the run."""
        found: dict[str, dict[str, dict[str, Any]]] = self.data.get("agreement", {})
        return found

    def put_sanitizer(self, tool: str, name: str, errors: int, code: dict[str, Any], run: str) -> None:
        """Store how many errors a sanitizer tool found in a step, with its ``code``'s hashes, and write the file."""
        entry = {"errors": errors, **code, "run": run}
        self.data.setdefault("sanitizer", {}).setdefault(name, {})[tool] = entry
        self._prune()
        self._save()

    def sanitizer(self) -> dict[str, dict[str, Any]]:
        """By step, then by tool: errors found, the code's hashes and the run."""
        found: dict[str, dict[str, Any]] = self.data.get("sanitizer", {})
        return found

    def row(self, preset: str, name: str) -> Row | None:
        found: Row | None = self.data["rows"].get(preset, {}).get(name)
        return found

    def rows(self, preset: str) -> dict[str, Row]:
        found: dict[str, Row] = self.data["rows"].get(preset, {})
        return found

    def channels_last(self, preset: str) -> list[tuple[Step, Row]]:
        """The steps that ran the preset's layer channels-last, in ladder order, with their rows; mostly none."""
        found = self.rows(problems.CHANNELS_LAST.get(preset, ""))
        return [(step, found[step.name]) for step in catalog.steps() if step.name in found]

    def date(self, row: Row) -> str:
        """The day a row was measured."""
        return str(self.data["runs"][row["run"]]["date"])

    def problem(self, preset: str, row: Row) -> Problem:
        """The problem that ran, its batch as it was reduced, if it was."""
        return problems.from_shape(problems.preset(preset).ladder, row["shape"])

    def derive(self, preset: str, row: Row) -> Derived | None:
        """Rates and the share of the floor; None without measured ceilings."""
        if self.ceilings is None:
            return None
        return derive(self.problem(preset, row), row["timing"]["median_ms"], self.ceilings)

    def _prune(self) -> None:
        groups = (
            *self.data["rows"].values(),
            *self.data.get("profile", {}).values(),
            *self.data.get("sanitizer", {}).values(),
            *self.data.get("sweeps", {}).values(),
            *self.data.get("agreement", {}).values(),
        )
        used = {row["run"] for rows in groups for row in rows.values()}
        if self.ceilings:
            used.add(self.ceilings["run"])
        newest = max(self.data["runs"], default=None)
        self.data["runs"] = {k: v for k, v in self.data["runs"].items() if k in used or k == newest}

    def _remember(self, preset: str, name: str, row: Row) -> None:
        history = self.path.parent / "history" / f"{self.slug}.jsonl"
        history.parent.mkdir(parents=True, exist_ok=True)
        provenance = self.data["runs"].get(row["run"])
        with history.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"preset": preset, "name": name, "row": row, "run": provenance}) + "\n")

    def _save(self) -> None:
        _write(self.path, self.data)


def _flaw(data: dict[str, Any]) -> str:
    """What of a record's inside is not as it must be; empty if nothing is."""
    missing = [f.name for f in dataclasses.fields(device.Gpu) if f.name not in data["gpu"]]
    if missing:
        return f"gpu has no {missing[0]}"
    for key, run in data["runs"].items():
        if not isinstance(run, dict) or not all(name in run for name in ("date", "driver", "cuda", "packages")):
            return f"runs.{key} must be an object with date, driver, cuda, packages"
    ceilings = data.get("ceilings")
    wanted = ("copy_gbs", "fma_gflops", "run")
    if ceilings is not None:
        if not isinstance(ceilings, dict) or not all(key in ceilings for key in wanted):
            return f"ceilings must be an object with {', '.join(wanted)}"
        if ceilings["run"] not in data["runs"]:
            return "ceilings.run is not among the runs"
    for group in ("profile", "sanitizer", "sweeps", "agreement"):
        outer = data.get(group, {})
        inner = outer.values() if isinstance(outer, dict) else [None]
        entries = [entry for names in inner for entry in (names.values() if isinstance(names, dict) else [None])]
        if not all(isinstance(entry, dict) and entry.get("run") in data["runs"] for entry in entries):
            return f"{group} must hold objects of objects, each with one of the runs"
    for preset, rows in data["rows"].items():
        if preset not in problems.PRESETS:
            return f"rows.{preset} is no preset"
        if not isinstance(rows, dict):
            return f"rows.{preset} must be an object"
        for name, row in rows.items():
            place = f"rows.{preset}.{name}"
            if not isinstance(row, dict):
                return f"{place} must be an object"
            if not isinstance(row.get("timing"), dict) or not isinstance(row["timing"].get("median_ms"), float | int):
                return f"{place}.timing.median_ms must be a number"
            if row.get("kind") not in ("step", "peer") or not isinstance(row.get("shape"), dict):
                return f"{place} must have a kind, step or peer, and a shape"
            if row.get("run") not in data["runs"]:
                return f"{place}.run is not among the runs"
    return ""


def derive(problem: Problem, median_ms: float, ceilings: dict[str, Any]) -> Derived:
    """GFLOP/s, GB/s of least traffic, and the floor: max(FLOPs / FMA ceiling, least bytes / copy bandwidth)."""
    compute_ms = problem.flops / ceilings["fma_gflops"] / 1e6
    memory_ms = problem.least_bytes / ceilings["copy_gbs"] / 1e6
    floor = max(compute_ms, memory_ms)
    return Derived(
        gflops=problem.flops / median_ms / 1e6,
        gbs=problem.least_bytes / median_ms / 1e6,
        floor_ms=floor,
        percent_of_floor=100 * floor / median_ms,
        floor_kind="multiply-adds" if compute_ms >= memory_ms else "memory",
    )


def spoken(name: str, row: Row) -> str:
    """A row's name, and for a peer the algorithm that its kernels' names betray: ``cuDNN FP32, Winograd``."""
    known = {"winograd": "Winograd", "fft": "FFT"}
    kernels = " ".join(row.get("kernels", [])).lower()
    return ", ".join([name, *(title for word, title in known.items() if word in kernels)])


def all_records(folder: Path | None = None) -> Iterator[Record]:
    """Every GPU's record in ``folder`` (default: RESULTS); raises RecordError at one that is not."""
    folder = folder or RESULTS
    for path in sorted(folder.glob("*.json")):
        if path.name != CODE_FILE:
            yield Record.load(path)


def load_code(folder: Path = RESULTS) -> dict[str, Any]:
    """What the assembler made of each kernel: ``{"tools": {...}, "steps": {step: {...}}}``.

    A step has ``kernels`` for its default ``preset``; ``other_presets`` holds those that differ.
    Raises RecordError if the file is not such a record.
    """
    path = folder / CODE_FILE
    if not path.exists():
        return {"schema": SCHEMA, "tools": {}, "steps": {}}
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"{_shown(path)}: not readable ({error}); move it away to start anew") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA or not isinstance(data.get("steps"), dict):
        raise RecordError(f"{_shown(path)}: schema must be {SCHEMA!r}; move it away to start anew")
    return data


def code_kernels(code: dict[str, Any], step: str, preset: str | None = None) -> list[dict[str, Any]]:
    """The recorded kernels of a step for a preset (default: its ladder's first); empty if it is not recorded.

    A record of an older workbook, without ``hot``, counts as none.
    """
    entry = code["steps"].get(step, {})
    kernels: list[dict[str, Any]] = entry.get("other_presets", {}).get(preset, entry.get("kernels", []))
    return kernels if all("hot" in kernel for kernel in kernels) else []


def main_kernel(code: dict[str, Any], step: str, preset: str | None = None) -> dict[str, Any] | None:
    """Of a step's recorded kernels the one that multiplies most in its hot loop; None if none is recorded."""
    return max(code_kernels(code, step, preset), key=lambda kernel: int(kernel["hot"]["multiply_adds"]), default=None)


def save_code(steps: dict[str, dict[str, Any]], tools: dict[str, str], folder: Path = RESULTS) -> None:
    """Write the machine-code record."""
    _write(folder / CODE_FILE, {"schema": SCHEMA, "tools": tools, "steps": steps})


def package_versions(names: tuple[str, ...]) -> dict[str, str]:
    """Versions of those of the packages that are installed."""
    versions = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def _write(path: Path, data: dict[str, Any]) -> None:
    """Replace a JSON file in one step: it is never seen half written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(json.dumps(data, indent=1, sort_keys=True) + "\n")
        Path(temporary).chmod(0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _shown(path: Path) -> str:
    try:
        return path.relative_to(catalog.ROOT).as_posix()
    except ValueError:
        return path.name
