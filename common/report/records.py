"""One JSON file per GPU under ``results/``: what was measured, on what, when, and from which source.

A row is raw measurement; rates, floors and speed-ups are derived from it by :func:`derive`. Every change is written
at once and atomically, so an interrupted run keeps what it has. A replaced row is appended to
``results/history/<gpu>.jsonl``.
"""

from __future__ import annotations

import datetime
import json
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.book import catalog, packages, problems, schema, store
from common.book.catalog import Step
from common.book.problems import Problem
from common.book.schema import (
    AMOUNT,
    COUNT,
    EXTENT,
    NAME,
    NUMBER,
    POSITIVE,
    SETTING,
    TEXT,
    Each,
    Maybe,
    Optional,
    one_of,
)
from common.code import loops
from common.measure import ceilings as measured
from common.measure import profiler

RESULTS = catalog.ROOT / "results"
SCHEMA = "numba-cuda-workbook/1"
REFERENCE_GPU = "nvidia-h200"
CODE_FILE = "machine-code.json"
_PACKAGES = ("numba", "numba-cuda", "numpy", "torch")

Row = dict[str, Any]

# --- what the files look like ---

_TIMING = {"median_ms": POSITIVE, "p20_ms": POSITIVE, "p80_ms": POSITIVE}
_CODE_OF = {"source": NAME, "helpers": Maybe(Each(NAME)), "run": NAME}
_STEP_ROW = {
    "kind": one_of("step"), "shape": Each(COUNT), "timing": _TIMING, "prepare_ms": Optional(AMOUNT),
    "workspace_bytes": COUNT, "precision": Maybe(one_of(*catalog.PRECISIONS)), **_CODE_OF,
}  # fmt: skip
_PEER_ROW = {
    "kind": one_of("peer"), "shape": Each(COUNT), "timing": _TIMING, "layout": Maybe(TEXT), "library": Maybe(TEXT),
    "kernels": Maybe([TEXT]), "run": NAME,
}  # fmt: skip
_PROFILED = {"kernel": NAME, "stalls": Each(NUMBER), **{name: Optional(NUMBER) for name in profiler.METRICS}}
_PROFILED["time_ns"] = POSITIVE
_COUNTED = {name: AMOUNT for name in profiler.COUNTED if not name.endswith("conflicts")}
_COUNTERS = {"kernel": NAME, "hardware": _COUNTED, "trace": _COUNTED, "compiled": Maybe(_COUNTED)}
_POINT = {
    "tile": Each(SETTING), "status": NAME, "median_ms": Maybe(POSITIVE), "reason": Maybe(TEXT),
}  # fmt: skip
_PRESET = one_of(*problems.PRESETS)
_RECORD = {
    "gpu": {
        "name": NAME, "compute_capability": NAME, "multiprocessors": EXTENT, "memory_bytes": EXTENT,
        "l2_bytes": COUNT, "driver": TEXT, "cuda": TEXT,
    },
    "ceilings": Maybe(Optional({"copy_gbs": POSITIVE, "fma_gflops": POSITIVE, "run": NAME})),
    "runs": Each({"date": NAME, "driver": TEXT, "cuda": TEXT, "packages": Each(TEXT)}),
    "rows": Each(Each({"kind": one_of("step", "peer")}), _PRESET),
    "profile": Maybe(Each(Each({"kernels": [_PROFILED], **_CODE_OF}), _PRESET)),
    "sanitizer": Maybe(Each(Each({"errors": COUNT, **_CODE_OF}))),
    "sweeps": Maybe(Each(Each({"shipped": Maybe(Each(SETTING)), "points": [_POINT], **_CODE_OF}), _PRESET)),
    "agreement": Maybe(Each(Each({"shape": Each(COUNT), "kernels": [_COUNTERS], **_CODE_OF}))),
}  # fmt: skip
_HOT = {"what": TEXT, "widths": Each(Each(COUNT)), "lines": [{"text": TEXT, "mix": Each(COUNT)}]}
KERNEL = {
    "kernel": NAME, "architecture": NAME, "registers": COUNT, "stack_bytes": COUNT, "shared_bytes": COUNT,
    "instructions": Each(COUNT), "loop": Each(COUNT), "block": Maybe([EXTENT]), "hot": Maybe(_HOT),
    "occupancy": Maybe({
        "blocks": COUNT, "warps": COUNT, "max_warps": EXTENT, "fraction": AMOUNT, "limited_by": [TEXT],
    }),
}  # fmt: skip
_CODE = {
    "tools": Maybe(Each(TEXT)),
    "steps": Each({
        "preset": Maybe(_PRESET), "source": Maybe(NAME), "helpers": Maybe(Each(NAME)), "kernels": [KERNEL],
        "other_presets": Maybe(Each([KERNEL], _PRESET)),
    }),
}  # fmt: skip


class RecordError(ValueError):
    """A record file cannot be read as one; it is left as it is."""


@dataclass(frozen=True)
class Derived:
    """Figures that follow from a row, its problem and the ceilings of its precision."""

    gflops: float
    gbs: float
    floor_ms: float
    percent_of_floor: float
    floor_kind: str


class Record:
    """The record of one GPU. ``rows`` are keyed by preset and by step or peer name."""

    def __init__(self, path: Path, data: dict[str, Any]) -> None:
        self.path, self.data = path, data
        self._seen = _stamp(path)
        self._started: dict[str, Any] = {}

    @classmethod
    def load(cls, path: Path) -> Record:
        """Read a record; raises RecordError naming what is wrong with the file."""
        data = _read(path, _RECORD)
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
        self._started[key] = self.data["runs"][key] = {
            "date": now.date().isoformat(),
            "driver": gpu["driver"],
            "cuda": gpu["cuda"],
            "python": platform.python_version(),
            "packages": packages.versions(_PACKAGES),
        }
        return key

    def set_ceilings(self, ceilings: dict[str, Any], run: str) -> None:
        """Store this GPU's ceilings and write the file."""
        self._change(lambda data: data.update(ceilings={**ceilings, "run": run}))

    def put(self, preset: str, name: str, row: Row, run: str) -> None:
        """Store a row and write the file; the row it replaces goes to the history."""

        def change(data: dict[str, Any]) -> None:
            rows = data["rows"].setdefault(preset, {})
            old = rows.get(name)
            if old is not None:
                self._remember(preset, name, old)
            rows[name] = {**row, "run": run}

        self._change(change)

    def sweep(self, preset: str, name: str) -> dict[str, Any] | None:
        """``source``, ``shipped`` and ``points``: a list of ``tile``, ``status`` and ``median_ms`` or ``reason``."""
        found: dict[str, Any] | None = self.data.get("sweeps", {}).get(preset, {}).get(name)
        return found

    def put_sweep(self, preset: str, name: str, sweep: dict[str, Any], run: str) -> None:
        """Store a sweep, finished or not, and write the file."""
        self._put("sweeps", preset, name, {**sweep, "run": run})

    def put_profile(self, preset: str, name: str, profile: dict[str, Any], run: str) -> None:
        """Store a step's hardware counters on a preset and write the file."""
        self._put("profile", preset, name, {**profile, "run": run})

    def profile(self, preset: str, name: str) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.data.get("profile", {}).get(preset, {}).get(name)
        return found

    def put_agreement(self, name: str, shape: str, entry: dict[str, Any], run: str | None = None) -> None:
        """Store a step's counters at a shape, as the hardware and as the tracer have them, and write the file.

        Without ``run`` the hardware's part is the old one, and so is its run.
        """
        key = run or self.agreement()[name][shape]["run"]
        self._put("agreement", name, shape, {**entry, "run": key})

    def agreement(self) -> dict[str, dict[str, dict[str, Any]]]:
        """By step, then by shape: ``shape``, ``source``, ``kernels`` and the run."""
        found: dict[str, dict[str, dict[str, Any]]] = self.data.get("agreement", {})
        return found

    def put_sanitizer(self, tool: str, name: str, errors: int, code: dict[str, Any], run: str) -> None:
        """Store how many errors a sanitizer tool found in a step, with its ``code``'s hashes, and write the file."""
        entry = {"errors": errors, **code, "run": run}
        self._put("sanitizer", name, tool, entry)

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
        precision = row.get("precision", catalog.PRECISIONS[0])
        return derive(self.problem(preset, row), row["timing"]["median_ms"], self.ceilings, precision)

    def _put(self, group: str, outer: str, inner: str, entry: dict[str, Any]) -> None:
        self._change(lambda data: data.setdefault(group, {}).setdefault(outer, {}).update({inner: entry}))

    def _change(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change what the file holds now, whoever wrote it last, and write it; raises StoreError or RecordError."""
        with store.locked(self.path.parent):
            if self.path.exists() and _stamp(self.path) != self._seen:
                fresh = Record.load(self.path).data
                runs = {**fresh["runs"], **self._started}
                self.data = {**fresh, "gpu": self.data["gpu"], "runs": runs}
            change(self.data)
            self._prune()
            _write(self.path, self.data)
            self._seen = _stamp(self.path)

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
        provenance = self.data["runs"].get(row["run"])
        store.append(history, json.dumps({"preset": preset, "name": name, "row": row, "run": provenance}))


def _read(path: Path, shape: dict[str, Any]) -> dict[str, Any]:
    """A JSON file of the workbook's schema and this shape; raises RecordError."""
    try:
        data = store.read_json(path)
    except store.StoreError as error:
        raise RecordError(
            f"{_shown(path)}: not a readable record ({error.why}); move it away to start anew"
        ) from None
    found = data.get("schema") if isinstance(data, dict) else type(data).__name__
    if found != SCHEMA:
        raise RecordError(f"{_shown(path)}: schema is {found!r:.80}, must be {SCHEMA!r}; move it away to start anew")
    flaw = schema.flaw(data, shape)
    if flaw:
        raise RecordError(f"{_shown(path)}: {flaw}; move the file away to start anew")
    return dict(data)


def _flaw(data: dict[str, Any]) -> str:
    """What of a record's inside does not fit the rest of it; empty if all does."""
    for preset, rows in data["rows"].items():
        for name, row in rows.items():
            place = f"rows.{preset}.{name}"
            found = schema.flaw(row, _STEP_ROW if row["kind"] == "step" else _PEER_ROW, place)
            if found:
                return found
            try:
                problems.from_shape(problems.preset(preset).ladder, row["shape"])
            except (ValueError, TypeError) as error:
                return f"{place}.shape is no {preset}: {error}"
    for name, shapes in data.get("agreement", {}).items():
        for shape, entry in shapes.items():
            try:
                problems.from_shape(name.partition("_")[0], entry["shape"])
            except (KeyError, ValueError, TypeError) as error:
                return f"agreement.{name}.{shape}.shape is no shape of {name}: {error}"
    runs = ", ".join(list(data["runs"])[:3]) or "none"
    ceilings = data.get("ceilings")
    if ceilings is not None and ceilings["run"] not in data["runs"]:
        return f"ceilings.run is {ceilings['run']!r}: must be one of the runs: {runs}"
    for group in ("rows", "profile", "sanitizer", "sweeps", "agreement"):
        for outer, entries in data.get(group, {}).items():
            for inner, entry in entries.items():
                if entry["run"] not in data["runs"]:
                    return f"{group}.{outer}.{inner}.run is {entry['run']!r}: must be one of the runs: {runs}"
    return ""


def derive(
    problem: Problem, median_ms: float, ceilings: dict[str, Any], precision: str = catalog.PRECISIONS[0]
) -> Derived | None:
    """GFLOP/s, GB/s of least traffic, and the floor: max(FLOPs / peak, least bytes / copy bandwidth).

    The peak is that of the units that the precision is for; None if it was not measured.
    """
    peak = measured.peak(ceilings, problem, precision)
    if peak is None:
        return None
    compute_ms = problem.flops / peak / 1e6
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


def other(slug: str) -> Record | None:
    """The record of that name in RESULTS; None if there is none."""
    path = RESULTS / f"{slug}.json"
    return Record.load(path) if path.is_file() else None


def load_code(folder: Path = RESULTS) -> dict[str, Any]:
    """What the assembler made of each kernel: ``{"tools": {...}, "steps": {step: {...}}}``.

    A step has ``kernels`` for its default ``preset``; ``other_presets`` holds those that differ.
    Raises RecordError if the file is not such a record.
    """
    path = folder / CODE_FILE
    if not path.exists():
        return {"schema": SCHEMA, "tools": {}, "steps": {}}
    data = _read(path, _CODE)
    return {"tools": {}, **data}


def code_kernels(code: dict[str, Any], step: str, preset: str | None = None) -> list[dict[str, Any]]:
    """The recorded kernels of a step for a preset (default: its ladder's first); empty if it is not recorded.

    A record of an older workbook, without ``hot``, counts as none.
    """
    entry = code["steps"].get(step, {})
    kernels: list[dict[str, Any]] = entry.get("other_presets", {}).get(preset, entry.get("kernels", []))
    return kernels if all("hot" in kernel for kernel in kernels) else []


def main_kernel(code: dict[str, Any], step: str, preset: str | None = None) -> dict[str, Any] | None:
    """The main one of a step's recorded kernels (:func:`loops.main_compiled`); None if none is recorded."""
    return loops.main_compiled(code_kernels(code, step, preset))


def save_code(steps: dict[str, dict[str, Any]], tools: dict[str, str], folder: Path = RESULTS) -> None:
    """Write the machine-code record."""
    _write(folder / CODE_FILE, {"schema": SCHEMA, "tools": tools, "steps": steps})


def _write(path: Path, data: dict[str, Any]) -> None:
    store.write_json(path, data)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes whenever the file is written; None without one."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _shown(path: Path) -> str:
    try:
        return path.relative_to(catalog.ROOT).as_posix()
    except ValueError:
        return path.name
