"""One JSON file per GPU: what was measured, on what, when, and from which source; and which of it still holds.

A user's records lie under ``.workbook/results/``; the shipped ones under ``results/``, which ``--record`` changes.
Every change is written at once. A row holds while these are as they were: the code, or the machine code that it
compiles to; GPU, driver and compiling packages; the shape that would run; how times are taken. Other entries
hold while the code does.
"""

from __future__ import annotations

import contextlib
import datetime
import platform
import re
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

from common.catalog import cache, catalog, device, problems, sources, store
from common.catalog.catalog import PRECISIONS, Step
from common.catalog.device import Gpu
from common.catalog.problems import PRESETS, Problem
from common.catalog.store import Amount, Count, Name, one_of
from common.check import loading
from common.machine_code import summaries
from common.machine_code.summaries import Kernel
from common.run.messages import Beside, PeerRow, Timing
from common.timing import ceilings as measured
from common.timing import peers, timing
from common.timing.ceilings import Ceilings
from common.timing.peers import Accuracy
from common.timing.timing import Compilers, Epilogues, OfStep, Sweep
from common.timing.tools import Agreement, Profile, Sanitized

if TYPE_CHECKING:
    from common.run.messages import Outcome

RESULTS = catalog.ROOT / "results"  # shipped
OWN = catalog.ROOT / ".workbook" / "results"  # the user's
REFERENCE_GPU = "nvidia-h200"
CODE_FILE, VERDICTS_FILE = "machine-code.json", "verdicts.json"  # beside the records of GPUs
_COMPILING = ("numba", "numba-cuda", "numpy")
_PACKAGES = (*_COMPILING, "torch")


SCHEMA = "numba-cuda-workbook/1"
Preset = Annotated[str, one_of(PRESETS)]


class Run(Struct, kw_only=True, omit_defaults=True):
    """A run's provenance. ``date`` is the day, ``packages`` are their versions by name, ``measure`` is the
    :data:`common.timing.timing.MEASURE_VERSION` then."""

    date: Name
    driver: str
    cuda: str
    packages: dict[str, str]
    python: str | None = None
    measure: Count = 1


class StepRow(OfStep, kw_only=True, tag_field="kind", tag="step"):
    """A step's time at one ``shape``."""

    shape: dict[str, Count]
    timing: Timing
    prepare_ms: Amount | None
    workspace_bytes: Count
    first_launch_ms: Amount | None = None
    elements_compared: Count | None = None
    precision: Annotated[str, one_of(PRECISIONS)] | None = None  # if not the first
    requires: Name | None = None
    beside: Beside | None = None


Row = StepRow | PeerRow
Entry = Row | Ceilings | Profile | Sanitized | Sweep | Agreement | Accuracy | Epilogues | Compilers
"""What was measured in a run; each type stands beside what measures it."""


class Card(Struct, kw_only=True, omit_defaults=True, tag_field="schema", tag=SCHEMA):
    """The record of one GPU. Sanitizer results are keyed by step and tool, agreements by step and shape, accuracy by
    kind of operands and by product, all others by preset and by step or library."""

    gpu: Gpu
    runs: dict[str, Run]
    rows: dict[Preset, dict[str, Row]]
    ceilings: Ceilings | None = None
    profile: dict[Preset, dict[str, Profile]] = field(default_factory=dict)
    sanitizer: dict[str, dict[str, Sanitized]] = field(default_factory=dict)
    sweeps: dict[Preset, dict[str, Sweep]] = field(default_factory=dict)
    agreement: dict[str, dict[str, Agreement]] = field(default_factory=dict)
    accuracy: dict[str, dict[str, Accuracy]] = field(default_factory=dict)
    epilogues: dict[Preset, dict[str, Epilogues]] = field(default_factory=dict)
    compilers: dict[Preset, dict[str, Compilers]] = field(default_factory=dict)


class StepCode(Struct, kw_only=True, omit_defaults=True):
    """A step's kernels for its default ``preset``; ``other_presets`` has those that differ. ``digest``: of all the
    machine code that it launches, with grids and blocks; ``source``: of the code, ``earlier``: of code that became
    the same."""

    source: Name
    kernels: list[Kernel]
    preset: Preset | None = None
    other_presets: dict[Preset, list[Kernel]] | None = None
    digest: str = ""
    earlier: list[Name] = field(default_factory=list)


class MachineCode(Struct, kw_only=True, omit_defaults=True, tag_field="schema", tag=SCHEMA):
    """What the assembler made of each step's kernels, and the versions of the tools."""

    tools: dict[str, str] = field(default_factory=dict)
    steps: dict[str, StepCode] = field(default_factory=dict)


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

    def __init__(self, path: Path, data: Card) -> None:
        self.path, self.data, self.run = path, data, ""
        self.slug, self.folder = path.stem, path.parent

    @classmethod
    def load(cls, path: Path) -> Record:
        """Read a record; raises RecordError naming what is wrong with the file."""
        return cls(path, _read(path, Card))

    @classmethod
    def open(cls, gpu: Gpu, folder: Path | None = None) -> Record:
        """The GPU's record, read from ``folder`` (default: OWN) or new."""
        path = (folder or OWN) / f"{gpu.slug}.json"
        record = cls.load(path) if path.exists() else cls(path, Card(gpu=gpu, runs={}, rows={}))
        record.data.gpu = gpu
        return record

    @property
    def gpu_name(self) -> str:
        return self.data.gpu.name

    @property
    def ceilings(self) -> Ceilings | None:
        return self.data.ceilings

    def start_run(self) -> str:
        """Add a run's provenance; entries that are stored from now on are of this ``run``. Returns its key."""
        now, gpu = datetime.datetime.now(datetime.timezone.utc), self.data.gpu
        self.run = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        self.data.runs[self.run] = Run(
            date=now.date().isoformat(), driver=gpu.driver, cuda=gpu.cuda, python=platform.python_version(),
            packages=sources.versions(_PACKAGES), measure=timing.MEASURE_VERSION,
        )  # fmt: skip
        return self.run

    def set_ceilings(self, ceilings: Ceilings) -> None:
        """Store this GPU's ceilings and write the file."""
        with self._changed() as data:
            data.ceilings = replace(ceilings, run=self.run)

    def keep(self, group: str, outer: str, found: Mapping[str, Entry]) -> None:
        """Store a group's entries by name, and write the file: ``keep("sweeps", PRESET, {STEP: entry})``."""
        with self._changed() as data:
            known = getattr(data, group).setdefault(outer, {})
            known.update((name, replace(one, run=self.run)) for name, one in found.items())

    @contextlib.contextmanager
    def _changed(self) -> Iterator[Card]:
        """What the file holds now, whoever wrote it last, to be changed and written; raises StoreError or
        RecordError."""
        with store.locked(self.path.parent):
            if self.path.exists():
                fresh = Record.load(self.path).data
                self.data = replace(fresh, gpu=self.data.gpu, runs={**fresh.runs, **self.data.runs})
            yield self.data
            store.write_json(self.path, to_builtins(self.data))

    def sweep(self, preset: str, name: str) -> Sweep | None:
        return self.data.sweeps.get(preset, {}).get(name)

    def profile(self, preset: str, name: str) -> Profile | None:
        return self.data.profile.get(preset, {}).get(name)

    def row(self, preset: str, name: str) -> Row | None:
        """Of a step, or of a library, whose name may have hyphens for blanks."""
        return self.rows(preset).get(name.replace("-", " "))

    def rows(self, preset: str) -> dict[str, Row]:
        return self.data.rows.get(preset, {})

    def run_of(self, entry: Entry) -> Run:
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
        names = zip(PRECISIONS, ("floor", "TF32 floor", "3×TF32 floor"), strict=True)
        found = [(name, derive(self.usual(preset), 1.0, self.ceilings, one)) for one, name in names if one in used]
        return [(name, floor) for name, floor in found if floor]


def _read(path: Path, kind: type[store.Found]) -> store.Found:
    """A JSON file of this kind; raises RecordError."""
    try:
        return store.convert(store.read_json(path), kind)
    except store.StoreError as error:
        why = f"not a readable record ({error.why})"
    except store.SchemaError as error:
        why = str(error)
    raise RecordError(f"{store.shown(path)}: {why}; move the file away to start anew")


def _precision(row: Row) -> str:
    """What a row's step computes with; a library's row does not say."""
    return (row.precision if isinstance(row, StepRow) else None) or PRECISIONS[0]


def derive(problem: Problem, median_ms: float, ceilings: Ceilings, precision: str = PRECISIONS[0]) -> Derived | None:
    """GFLOP/s, GB/s of least traffic, and the floor: max(FLOPs / peak, least bytes / copy bandwidth). The peak is one
    for all rows of a precision, by the card's fastest instruction; None if it was not measured."""
    peak = measured.peak(ceilings, problem, precision)
    if peak is None:
        return None
    compute_ms, memory_ms = problem.flops / peak / 1e6, problem.least_bytes / ceilings.copy_gbs / 1e6
    floor, kind = max((compute_ms, "multiply-adds"), (memory_ms, "memory"))
    return Derived(
        gflops=problem.flops / median_ms / 1e6, gbs=problem.least_bytes / median_ms / 1e6, floor_ms=floor,
        percent_of_floor=100 * floor / median_ms, floor_kind=kind,
    )  # fmt: skip


def rounds_operands(name: str) -> bool:
    """Does this row of a library round its float32 operands to TF32? The floor of FP32 does not bind it."""
    return name.endswith("TF32")


def files(folder: Path) -> list[Path]:
    """The records of GPUs in a folder, but those that were made as another card."""
    found = (path for path in sorted(folder.glob("*.json")) if path.name not in (CODE_FILE, VERDICTS_FILE))
    return [path for path in found if not re.search(device.PLAYED, path.stem)]


def nothing() -> Record:
    """A record of no GPU, in which nothing was measured."""
    gpu = Gpu(name="", compute_capability="", multiprocessors=0, memory_bytes=0, l2_bytes=0, driver="", cuda="")
    return Record(Path(), Card(gpu=gpu, runs={}, rows={}))


def other(slug: str) -> Record | None:
    """The shipped record of that name; None if there is none."""
    path = RESULTS / f"{slug}.json"
    return Record.load(path) if path.exists() else None


def record_step(record: Record, outcome: Outcome) -> None:
    """Store a timed outcome."""
    precision = outcome.step.precision if outcome.step.precision != PRECISIONS[0] else None
    fields = {**outcome.told(), "kind": "step", "precision": precision, "requires": outcome.step.requires}
    record.keep("rows", str(outcome.preset), {outcome.step.name: store.convert(fields, StepRow)})


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
        now = store.convert({**outcome.told(), "preset": outcome.preset}, StepCode)
        before = steps.get(outcome.step.name)
        if before and now.digest and before.digest == now.digest:
            now.earlier = [one for one in (*before.earlier, before.source) if one != now.source]
        steps[outcome.step.name] = now
    known = {step.name for step in catalog.everything()}
    steps = {name: value for name, value in steps.items() if name in known}
    tools = ("numba-cuda", "nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12", "nvidia-cuda-nvdisasm")
    save_code(MachineCode(tools=sources.versions(tools), steps=steps))


# --- what still holds ---


@store.kept_by_stamp
def _compiled(path: Path) -> dict[str, StepCode]:
    return load_code(path.parent).steps


def holds(entry: object, step: Step) -> bool:
    """Is what was measured of a step there, and of its code as it is, or of code that became the same machine code?
    Times with epilogues are of the epilogues' code, too. A row may be another driver's."""
    if isinstance(entry, Epilogues):
        ways = catalog.ROOT / f"{entry.ways.replace('.', '/')}.py"
        if entry.ways_source != cache.code(ways):
            return False
    source, now = getattr(entry, "source", ""), cache.code(step.path)
    compiled = _compiled(RESULTS / CODE_FILE).get(step.name)
    return source == now or (compiled is not None and compiled.source == now and source in compiled.earlier)


def older(entry: object, name: str) -> bool:
    """Is what was measured of a step of another version of its code, or is it gone? A library has no versions."""
    known = [step for step in catalog.everything() if step.name == name]
    return bool(getattr(entry, "source", "")) and not any(holds(entry, step) for step in known)


def errors_hold(record: Record, steps: list[Step]) -> bool:
    """Are the errors over K of all these steps there, and of their code as it is?"""
    found = [(kind.get(step.name), step) for kind in record.data.accuracy.values() for step in steps]
    return bool(record.data.accuracy) and all(holds(entry, step) for entry, step in found)


def ceilings_hold(record: Record) -> bool:
    """Are the GPU's ceilings there, and of this driver?"""
    found, capability = record.ceilings, record.data.gpu.compute_capability
    return found is not None and measured.complete(found, capability) and _measured_here(record, found, ())


def row_holds(record: Record, step: Step, preset: str, room_bytes: int, in_turn: bool = True) -> bool:
    """Does the step's row hold, on a GPU with room for so many bytes? With ``in_turn``, its time in turn with the
    library, too, if it is on tensor cores."""
    found = record.row(preset, step.name)
    if not isinstance(found, StepRow) or not holds(found, step) or not _measured_here(record, found, _COMPILING):
        return False
    beside = found.beside is not None and _measured_here(record, found, ("torch",))
    if in_turn and not beside and catalog.on_tensor_cores(step, problems.preset(preset)) and peers.available():
        return False
    return _same_size(record, preset, found, room_bytes)


def libraries_hold(record: Record, preset: str, room_bytes: int) -> bool:
    """Do the preset's rows of cuBLAS or cuDNN hold?"""
    found = [row for row in record.rows(preset).values() if isinstance(row, PeerRow)]
    return len(found) >= len(peers.precisions(problems.preset(preset))) and all(
        _measured_here(record, row, ("torch",)) and _same_size(record, preset, row, room_bytes) for row in found
    )


def _measured_here(record: Record, entry: Row | Ceilings, names: tuple[str, ...]) -> bool:
    """By this driver, these packages, and the way a time is taken now?"""
    run, versions = record.run_of(entry), sources.versions(names)
    same = all(run.packages.get(name) == versions.get(name) for name in names)
    return same and run.driver == record.data.gpu.driver and run.measure == timing.MEASURE_VERSION


def _same_size(record: Record, preset: str, row: Row, room_bytes: int) -> bool:
    """Would the preset run now at the row's shape?"""
    ran, seconds = record.problem(preset, row), row.timing.median_ms / 1e3
    return loading.runs_at(problems.preset(preset), ran, seconds, room_bytes)
