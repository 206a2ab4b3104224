"""One JSON file per GPU: what was measured, on what, when, and from which source. Every change is written at once.

A user's records lie under ``.workbook/results/``; the shipped ones under ``results/``, which ``--record`` changes.
"""

from __future__ import annotations

import datetime
import platform
import re
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec import to_builtins
from msgspec.structs import asdict, replace

from common.catalog import catalog, device, problems, schema, sources, store
from common.catalog.device import Gpu
from common.catalog.problems import Problem
from common.catalog.sources import Code
from common.machine_code import summaries
from common.machine_code.summaries import Kernel
from common.records import entries
from common.records.entries import SCHEMA, Entry, MachineCode, PeerRow, Row, Run, StepCode, StepRow
from common.timing import ceilings as measured
from common.timing import timing
from common.timing.ceilings import Ceilings

if TYPE_CHECKING:
    from common.run.messages import Outcome, StepResult

RESULTS = catalog.ROOT / "results"  # shipped
OWN = catalog.ROOT / ".workbook" / "results"  # the user's
REFERENCE_GPU = "nvidia-h200"
CODE_FILE, VERDICTS_FILE = "machine-code.json", "verdicts.json"  # beside the records of GPUs
_PACKAGES = ("numba", "numba-cuda", "numpy", "torch")
_GROUPS = ("rows", "profile", "sanitizer", "sweeps", "agreement", "accuracy", "epilogues", "compilers")


class RecordError(ValueError):
    """A record file cannot be read as one; it is left as it is."""


@dataclass(frozen=True)
class Derived:
    """What follows from a row, its problem and the ceilings of its precision."""

    gflops: float
    gbs: float
    floor_ms: float
    percent_of_floor: float
    floor_kind: str


class Record:
    """The record of one GPU, as ``data``."""

    def __init__(self, path: Path, data: entries.Card) -> None:
        self.path, self.data = path, data
        self.slug, self.folder = path.stem, path.parent
        self.run = ""
        self._started: dict[str, Run] = {}

    @classmethod
    def load(cls, path: Path) -> Record:
        """Read a record; raises RecordError naming what is wrong with the file."""
        return cls(path, _read(path, entries.Card))

    @classmethod
    def open(cls, gpu: Gpu, folder: Path | None = None) -> Record:
        """The GPU's record, read from ``folder`` (default: OWN) or new."""
        path = (folder or OWN) / f"{gpu.slug}.json"
        record = cls.load(path) if path.exists() else cls(path, entries.Card(gpu=gpu, runs={}, rows={}))
        record.data.gpu = gpu
        return record

    @property
    def gpu_name(self) -> str:
        return self.data.gpu.name

    @property
    def ceilings(self) -> entries.Ceilings | None:
        return self.data.ceilings

    def start_run(self) -> str:
        """Add a run's provenance; entries that are stored from now on are of this ``run``. Returns its key."""
        now, gpu = datetime.datetime.now(datetime.timezone.utc), self.data.gpu
        self.run = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        self._started[self.run] = self.data.runs[self.run] = Run(
            date=now.date().isoformat(), driver=gpu.driver, cuda=gpu.cuda, python=platform.python_version(),
            packages=sources.versions(_PACKAGES),
        )  # fmt: skip
        return self.run

    def set_ceilings(self, ceilings: Ceilings, measure: int | None = None) -> None:
        """Store this GPU's ceilings and write the file."""
        entry = entries.Ceilings(**asdict(ceilings) | {"measure": measure, "run": self.run})
        self._change(lambda data: setattr(data, "ceilings", entry))

    def keep(self, group: str, outer: str, found: Mapping[str, Entry]) -> None:
        """Store a group's entries by name, and write the file: ``keep("sweeps", PRESET, {STEP: entry})``."""
        named = {name: replace(one, run=self.run) for name, one in found.items()}
        self._change(lambda data: getattr(data, group).setdefault(outer, {}).update(named))

    def _change(self, change: Callable[[entries.Card], object]) -> None:
        """Change what the file holds now, whoever wrote it last, and write it; raises StoreError or RecordError. Runs
        of which no entry is left go, but the newest."""
        with store.locked(self.path.parent):
            if self.path.exists():
                fresh = Record.load(self.path).data
                self.data = replace(fresh, gpu=self.data.gpu, runs={**fresh.runs, **self._started})
            change(self.data)
            used = {self.ceilings.run if self.ceilings else "", max(self.data.runs, default="")}
            for group in _GROUPS:
                used |= {entry.run for inner in getattr(self.data, group).values() for entry in inner.values()}
            self.data.runs = {key: run for key, run in self.data.runs.items() if key in used}
            store.write_json(self.path, to_builtins(self.data))

    def sweep(self, preset: str, name: str) -> entries.Sweep | None:
        return self.data.sweeps.get(preset, {}).get(name)

    def profile(self, preset: str, name: str) -> entries.Profile | None:
        return self.data.profile.get(preset, {}).get(name)

    def row(self, preset: str, name: str) -> Row | None:
        """Of a step, or of a library, whose name may have hyphens for blanks."""
        return self.rows(preset).get(name.replace("-", " "))

    def rows(self, preset: str) -> dict[str, Row]:
        return self.data.rows.get(preset, {})

    def run_of(self, entry: entries.Entry) -> Run:
        """The run that an entry was measured in."""
        return self.data.runs[entry.run]

    def problem(self, preset: str, row: Row) -> Problem:
        """The problem that ran, its batch as it was reduced, if it was."""
        return problems.from_shape(problems.preset(preset).ladder, row.shape)

    def usual(self, preset: str) -> Problem:
        """The size at which most of a measured preset's rows ran."""
        return statistics.mode(self.problem(preset, row) for row in self.rows(preset).values())

    def usual_rows(self, preset: str) -> dict[str, Row]:
        """Those of that size."""
        rows = self.rows(preset).items()
        return {name: row for name, row in rows if self.problem(preset, row) == self.usual(preset)}

    def derive(self, preset: str, row: Row) -> Derived | None:
        """Rates and the share of the floor; None without measured ceilings."""
        if self.ceilings is None:
            return None
        return derive(self.problem(preset, row), row.timing.median_ms, self.ceilings, _precision(row))

    def floors(self, preset: str) -> list[tuple[str, Derived]]:
        """The floors of a measured preset, each with what it is called: of FP32 or FP16; of TF32 if a step uses it,
        and of three products of it."""
        used = {"fp32", *(_precision(row) for row in self.rows(preset).values())}
        if self.ceilings is None or not self.rows(preset):
            return []
        names = zip(catalog.PRECISIONS, ("floor", "TF32 floor", "3×TF32 floor"), strict=True)
        found = [(name, derive(self.usual(preset), 1.0, self.ceilings, one)) for one, name in names if one in used]
        return [(name, floor) for name, floor in found if floor]


Kind = TypeVar("Kind", entries.Card, entries.MachineCode)


def _read(path: Path, kind: type[Kind]) -> Kind:
    """A JSON file of the workbook's schema and this kind; raises RecordError."""
    try:
        data = store.read_json(path)
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        if found != SCHEMA:
            raise schema.SchemaError(f"schema is {found!r:.80}, must be {SCHEMA!r}")
        return schema.read(data, kind)
    except store.StoreError as error:
        why = f"not a readable record ({error.why})"
    except schema.SchemaError as error:
        why = str(error)
    raise RecordError(f"{store.shown(path)}: {why}; move the file away to start anew")


def _precision(row: Row) -> str:
    """What a row's step computes with; a library's row does not say."""
    return (row.precision if isinstance(row, StepRow) else None) or catalog.PRECISIONS[0]


def derive(
    problem: Problem, median_ms: float, ceilings: Ceilings, precision: str = catalog.PRECISIONS[0]
) -> Derived | None:
    """GFLOP/s, GB/s of least traffic, and the floor: max(FLOPs / peak, least bytes / copy bandwidth). The peak is one
    for all rows of a precision, by the card's fastest instruction; None if it was not measured."""
    peak = measured.peak(ceilings, problem, precision)
    if peak is None:
        return None
    compute_ms, memory_ms = problem.flops / peak / 1e6, problem.least_bytes / ceilings.copy_gbs / 1e6
    floor = max(compute_ms, memory_ms)
    kind = "multiply-adds" if compute_ms >= memory_ms else "memory"
    return Derived(
        gflops=problem.flops / median_ms / 1e6, gbs=problem.least_bytes / median_ms / 1e6, floor_ms=floor,
        percent_of_floor=100 * floor / median_ms, floor_kind=kind,
    )  # fmt: skip


def rounds_operands(name: str) -> bool:
    """Does this row of a library round its float32 operands to TF32? The floor of FP32 does not bind it."""
    return name.endswith("TF32")


def all_records(folder: Path) -> Iterator[Record]:
    """Every GPU's record in ``folder``; raises RecordError."""
    return map(Record.load, files(folder))


def files(folder: Path) -> list[Path]:
    """The records of GPUs in a folder, but those that were made as another card."""
    found = (path for path in sorted(folder.glob("*.json")) if path.name not in (CODE_FILE, VERDICTS_FILE))
    return [path for path in found if not re.search(device.PLAYED, path.stem)]


def nothing() -> Record:
    """A record of no GPU, in which nothing was measured."""
    gpu = Gpu(name="", compute_capability="", multiprocessors=0, memory_bytes=0, l2_bytes=0, driver="", cuda="")
    return Record(Path(), entries.Card(gpu=gpu, runs={}, rows={}))


def other(slug: str) -> Record | None:
    """The shipped record of that name; None if there is none."""
    path = RESULTS / f"{slug}.json"
    return Record.load(path) if path.exists() else None


# --- machine code ---


def load_code(folder: Path = RESULTS) -> MachineCode:
    """The machine-code record, or an empty one; raises RecordError if the file is none."""
    path = folder / CODE_FILE
    return _read(path, MachineCode) if path.exists() else MachineCode()


def save_code(code: MachineCode, folder: Path = RESULTS) -> None:
    """Write the machine-code record."""
    store.write_json(folder / CODE_FILE, to_builtins(code))


def code_kernels(code: MachineCode, step: str, preset: str | None = None) -> list[Kernel]:
    """The recorded kernels of a step for a preset (default: its ladder's first); empty if it is not recorded."""
    entry = code.steps.get(step)
    return (entry.other_presets or {}).get(preset or "", entry.kernels) if entry else []


def main_kernel(code: MachineCode, step: str, preset: str | None = None) -> Kernel | None:
    """The main one of a step's recorded kernels (:func:`summaries.main_compiled`); None if none is recorded."""
    return summaries.main_compiled(code_kernels(code, step, preset))


def record_code(outcomes: list[Outcome]) -> None:
    """Write compiled outcomes (for one architecture, with machine code) as the machine-code record; code that became
    the same machine code, of which measurements hold, is noted with the new."""
    steps = load_code().steps
    for outcome in outcomes:
        now = schema.read({**outcome.told(), "preset": outcome.preset}, StepCode)
        before = steps.get(outcome.step.name)
        if before and now.digest and before.digest == now.digest:
            codes = [*before.earlier, Code(source=before.source, helpers=before.helpers)]
            now.earlier = [one for one in codes if (one.source, one.helpers) != (now.source, now.helpers)]
        steps[outcome.step.name] = now
    known = {step.name for step in catalog.everything()}
    steps = {name: value for name, value in steps.items() if name in known}
    tools = ("numba-cuda", "nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12", "nvidia-cuda-nvdisasm")
    save_code(MachineCode(tools=sources.versions(tools), steps=steps))


def record_step(record: Record, outcome: Outcome) -> None:
    """Store a timed outcome."""
    precision = outcome.step.precision if outcome.step.precision != catalog.PRECISIONS[0] else None
    said = {"precision": precision, "requires": outcome.step.requires}
    fields = {**outcome.told(), "kind": "step", "measure": timing.MEASURE_VERSION, **said}
    record.keep("rows", str(outcome.preset), {outcome.step.name: schema.read(fields, StepRow)})


def record_peers(record: Record, preset: str, result: StepResult) -> None:
    """Store a library's rows."""
    for row in result.rows:
        entry = PeerRow(
            shape=result.shape or {}, timing=row.timing, layout=row.layout, library=row.library, kernels=row.kernels,
            measure=timing.MEASURE_VERSION,
        )  # fmt: skip
        record.keep("rows", preset, {row.peer: entry})
