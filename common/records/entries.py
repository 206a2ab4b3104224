"""What record files hold: a struct for each kind of entry."""

from typing import Annotated

from msgspec import Struct, field

from common.catalog.catalog import PRECISIONS
from common.catalog.device import Gpu
from common.catalog.problems import PRESETS
from common.catalog.store import Amount, Count, Name, Positive, one_of
from common.machine_code.summaries import Kernel
from common.run.messages import Beside, Paired, Tile, Timing
from common.run.messages import PeerRow as PeerRow
from common.timing.ceilings import Ceilings
from common.timing.peers import Accuracy
from common.timing.timing import Epilogues, OfStep
from common.timing.tools import Counters, Counts

SCHEMA = "numba-cuda-workbook/1"
Preset = Annotated[str, one_of(PRESETS)]
Shape = dict[str, Count]


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

    shape: Shape
    timing: Timing
    prepare_ms: Amount | None
    workspace_bytes: Count
    first_launch_ms: Amount | None = None
    elements_compared: Count | None = None
    precision: Annotated[str, one_of(PRECISIONS)] | None = None  # if not the first
    requires: Name | None = None
    beside: Beside | None = None


Row = StepRow | PeerRow


class Profile(OfStep, kw_only=True):
    """Hardware counters of a step's launches at one shape."""

    kernels: list[Counters]
    shape: Shape


class Sanitized(OfStep, kw_only=True):
    """How many errors a tool of compute-sanitizer found in a step."""

    errors: Count


class Point(Struct, kw_only=True, omit_defaults=True):
    """A tile of a sweep: its time, or the ``reason`` why it has none."""

    tile: Tile
    status: Name
    median_ms: Positive | None = None
    reason: str | None = None


class Sweep(OfStep, kw_only=True):
    """A step's times over its tile constants, and those that it ships with."""

    points: list[Point]
    shipped: Tile = field(default_factory=dict)


class Counted(Struct, kw_only=True, omit_defaults=True):
    """What the hardware and the tracer count of a kernel; ``compiled`` with reads merged as the compiler does."""

    kernel: Name
    hardware: Counts
    trace: Counts
    compiled: Counts | None = None


class Agreement(OfStep, kw_only=True):
    """A step's kernels at one shape, counted by the hardware and by the tracer; the code is what the hardware ran."""

    shape: Shape
    kernels: list[Counted]


class Compilers(OfStep, kw_only=True):
    """A step's times in turn: numba-cuda's kernels, and those of the ``successor``, which has its version."""

    shape: Shape
    times: Paired
    successor: Name


Entry = Row | Ceilings | Profile | Sanitized | Sweep | Agreement | Accuracy | Epilogues | Compilers
"""What was measured in a run."""


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
