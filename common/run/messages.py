"""What child processes are asked, and what they answer.

A :class:`Task` is tagged with its name: ``check.check`` is done by ``check_task`` of ``common/check/tasks.py``. It
travels as a pickle; what comes back is JSON, read as the type of its results: a child runs a file that may say
anything, and reading JSON runs nothing. Paths are absolute.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, get_args

from msgspec import UNSET, Struct, UnsetType, field, json, structs

from common.catalog import problems
from common.catalog.catalog import Step
from common.catalog.device import Gpu
from common.catalog.problems import Problem
from common.catalog.store import Amount, Count, Positive
from common.explain.faults import Fault
from common.machine_code.summaries import Kernel

REPEATS = 3  # launches on equal inputs that must agree, to catch races
MAX_SECONDS = 1.5  # that launches are repeated for, to time them

# --- answers ---

Status = Literal["right", "wrong", "refused", "unjudged", "unusable", "crashed", "timed_out"]
Engine = Literal["traced", "gpu"]
Depth = Literal["once", "usual", "thorough", "large"]
Show = Literal["ptx", "sass"]
Tile = dict[str, int | bool]  # values by the names of a step's tile constants
Shape = dict[str, int]  # extents by name, as :meth:`common.catalog.problems.Problem.shape` gives them


@dataclass(frozen=True)
class Finding:
    """One thing that is not right. ``kind`` is a key of ``common.explain.faults.LOOK_AT``, or wrong."""

    kind: str
    message: str


class Timing(Struct, frozen=True, omit_defaults=True):
    """Milliseconds per launch; ``median_error``: the median's 95% half-width over the median; ``sm_mhz``: a clock."""

    median_ms: Positive
    p20_ms: Positive
    p80_ms: Positive
    median_error: Amount
    repeats: Count
    sm_mhz: Count | None = None


class Paired(Struct, frozen=True):
    """Two launches timed in turn: ``ratio`` is the first's time over the second's, the median over pairs."""

    first: Timing
    second: Timing
    ratio: float
    ratio_p20: float
    ratio_p80: float
    ratio_error: float


class Beside(Paired, frozen=True):
    """A step timed in turn with a library: ``peer``, its name and precision; its time is the first."""

    peer: str


class PeerRow(Struct, kw_only=True, omit_defaults=True, tag_field="kind", tag="peer"):
    """A library's time at one ``shape``: its memory ``layout``, version, and the kernels that it launched; in a
    record its ``run``."""

    shape: dict[str, Count]
    timing: Timing
    layout: str = ""
    library: str = ""
    kernels: list[str] = field(default_factory=list)
    run: str = ""


class Result(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a task; the results of most tasks have more. What a field's default stands for is not said."""

    status: Status
    message: str | UnsetType | None = UNSET  # why it is not right, or None: the findings say it
    faults: Sequence[Fault] = ()  # what explains it
    seconds: float | None = None  # that it took
    fatal: bool = False  # its process is lost
    late: bool = False  # it was not judged for want of time

    def told(self) -> dict[str, Any]:
        """The fields that say something, as they stand in JSON; of an :class:`Outcome` the result's alone."""
        fields = structs.fields(StepResult if isinstance(self, StepResult) else self)
        told = [(field, getattr(self, field.name)) for field in fields]
        return {field.name: value for field, value in told if value != field.default}


class StepResult(Result, frozen=True, kw_only=True):
    """What came of a task on a step or a problem: from the child process to the terminal, and to JSON."""

    # of all that check
    shape: Shape | None = None  # the extents that ran
    right: bool | None = None
    findings: Sequence[Finding] = ()
    elements_compared: int | None = None
    requires: str | None = None  # what compute capability, where this machine's GPU lacks it
    # of a check
    engine: Engine | None = None
    engines: Sequence[Engine] = ()  # of all cases of a shape
    seed: int | None = None
    only_compiled: bool = False  # and not run
    needed_bytes: int | None = None  # of the GPU's memory, where it was left out for want of that
    free_bytes: int | None = None
    depth: Depth | None = None  # how thoroughly a shape was traced that was asked for
    unsought: str | None = None  # why races and the like were not looked for beside a GPU's verdict
    printed: Sequence[str] = ()  # the first lines that the file prints
    prints: int = 0  # how many there are
    # of what is timed
    timing: Timing | None = None
    prepare_ms: float | UnsetType | None = UNSET  # seen cold; None: there is no ``prepare``
    first_launch_ms: float | None = None  # seen cold
    workspace_bytes: int | None = None
    beside: Beside | None = None  # its time in turn with the library
    lacking: str | None = None  # why there is none
    pairs: dict[str, Paired] | None = None  # with others, by their names: their times are the first
    gpu: str | None = None  # its name
    rows: dict[str, PeerRow] | None = None  # of libraries in a step's place, by name and precision
    launched: Sequence[str] = ()  # names of the kernels, in order
    source: str | None = None  # the digest of the code that ran (common.catalog.cache.code)
    # of what is compiled
    kernels: Sequence[Kernel] = ()  # for each architecture
    other_presets: dict[str, list[Kernel]] | None = None  # those that compile to something else
    digest: str | None = None  # of the machine code of all launches, with grids and blocks, for each preset
    cards: Sequence[Kernel] = ()  # summaries of the kernels

    @property
    def time(self) -> Timing:
        assert self.timing is not None
        return self.timing


class Outcome(StepResult, frozen=True, kw_only=True):
    """What came of a task on a step at a problem, which is a ``preset`` or none."""

    step: Step
    problem: Problem
    preset: str | None = None

    @classmethod
    def of(cls, step: Step, problem: Problem, preset: str | None, result: StepResult) -> "Outcome":
        return cls(step=step, problem=problem, preset=preset, **result.told())

    @property
    def fine(self) -> bool:
        return self.status in ("right", "refused", "unjudged")  # the last is left for a GPU

    @property
    def left_out(self) -> bool:
        return self.needed_bytes is not None  # the GPU has no room for it, which holds nothing back

    @property
    def elsewhere(self) -> bool:
        return self.requires is not None  # another GPU than this machine's

    @property
    def reasons(self) -> list[str]:
        """One line per finding, or what stopped the task; what is left out is said once for all."""
        if self.left_out:
            return []
        findings = [f"{item.kind}: {item.message}" for item in self.findings]
        return findings + ([f"{self.status}: {self.message}"] if self.message else [])


# --- tasks ---

Found = TypeVar("Found", bound=Result, covariant=True)


class Task(Struct, Generic[Found], frozen=True, kw_only=True, tag_field="task"):
    """What a child process does, and answers with a result of type ``Found``; most tasks are on one step's file."""

    alone: bool = False  # what becomes of it is no sign for the other tasks of its file
    seconds: float | None = None  # its own limit for a stage (common.run.child.stage); None: that of whoever runs it
    within: float | None = None  # and for all together
    path: str = ""  # of the file
    ladder: str = ""  # the step's
    step: str = ""  # its name, if whoever asks wants it told
    home: str | None = None  # the path that a copy takes for its own
    helpers: dict[str, str] = field(default_factory=dict)  # files that stand in for the lessons' helpers, by name
    compiler: str = ""  # whose kernels a GPU runs, one of device.COMPILERS; empty: as the environment says
    shape: Shape = field(default_factory=dict)  # the one that it is on, if on one

    @property
    def on_gpu(self) -> bool:
        return self.kind.startswith("timing.")  # done by the process that owns the GPU

    @property
    def kind(self) -> str:
        return str(self.__struct_config__.tag)

    @property
    def problem(self) -> Problem:
        return problems.from_shape(self.ladder, self.shape)


def at(step: Step, problem: Problem | None, file: "Path | Rival | None" = None) -> dict[str, Any]:
    """The fields of a :class:`Task` on a step at one shape, if at one; or on ``file`` in its place, which has helpers
    of its own if a :class:`Rival`, and takes the step's path for its own."""
    own = {"path": file.path, "home": str(step.path), "helpers": file.helpers} if isinstance(file, Rival) else {}
    shape = problem.shape() if problem else {}
    return {"path": str(file or step.path), "ladder": step.ladder, "step": step.name, "shape": shape, **own}


def typed(task: Task[Found], result: Result | bytes) -> Found:
    """What came of the task, of the type that stands in ``class Check(Task[StepResult])``: from JSON, a crash if
    it is of another type; or from a :class:`Result`."""
    named = [part for base in getattr(type(task), "__orig_bases__", ()) for part in get_args(base)]
    kind: type[Found] = next((part for part in named if isinstance(part, type)), Result)
    if isinstance(result, Result):
        return kind(**structs.asdict(result))
    try:
        return json.decode(result, type=kind)
    except (ValueError, RecursionError) as error:
        return kind(status="crashed", message=f"{task.kind} gave no result: {error}")


class Check(Task[StepResult], frozen=True, kw_only=True, tag="check.check"):
    """Is a file right at one shape, by one engine?"""

    engine: Engine = "traced"
    depth: Depth = "usual"
    seed: int = 0
    special: str = ""  # operands of that kind of common.catalog.inputs.SPECIAL besides integers, or normals alone
    wide: bool = False  # the tracer takes a narrower shape if no grid is as wide
    small: bool = False  # the step is told that the card has common.check.plan.FEW multiprocessors
    follows: bool = False  # the same process does the check before it first
    precision: str = "fp32"  # one of common.catalog.catalog.PRECISIONS
    algorithm: str | None = None  # one of common.catalog.reference.ALGORITHMS; None: the definition
    repeats: int = REPEATS  # launches on equal inputs that must agree; 0: that of what is wrong is not asked

    @property
    def on_gpu(self) -> bool:
        return self.engine == "gpu"


class Time(Task[StepResult], frozen=True, kw_only=True, tag="timing.time"):
    """Is a file right at full size, by samples, and how fast is it?"""

    preset: str = ""  # the shape's name, for whoever asks
    beside: str = ""  # the precision in which it is timed in turn with the library, too; empty: it is not
    seed: int = 0  # of the operands
    most_seconds: float = MAX_SECONDS  # that launches are repeated for


class Prepare(Task[Result], frozen=True, kw_only=True, tag="check.prepare"):
    """Compile a file's kernels ahead, for the ``shapes`` that will be asked for, and this GPU."""

    shapes: list[dict[str, int]]
    device: Gpu


class Rival(Struct, frozen=True, kw_only=True):
    """A file that another one is timed against; one by a ``compiler`` of its own is checked first, too."""

    path: str
    helpers: dict[str, str] = field(default_factory=dict)
    compiler: str = ""


class Pair(Task[StepResult], frozen=True, kw_only=True, tag="timing.pair"):
    """Is a file right, with this ``tile``, and how fast beside others, by name? With none it is timed alone."""

    against: dict[str, Rival] = field(default_factory=dict)
    tile: Tile = field(default_factory=dict)
    most_seconds: float = MAX_SECONDS


class Peer(Task[StepResult], frozen=True, kw_only=True, tag="timing.peer"):
    """How fast are NVIDIA's libraries at one shape? There is no file."""


class Size(Task[StepResult], frozen=True, kw_only=True, tag="timing.size"):
    """At which size may a file's kernels be launched on this card?"""


class Launch(Task[StepResult], frozen=True, kw_only=True, tag="timing.launch"):
    """Launch a file's kernels once, for tools that watch."""


class Compile(Task[StepResult], frozen=True, kw_only=True, tag="check.compile"):
    """What does a file compile to?"""

    architectures: list[str]  # compute capabilities, ``9.0``
    machine_code: bool = False  # assemble it, and count its instructions
    lenient: bool = False  # without NVIDIA's tools, leave the count out
    others: dict[str, Shape] = field(default_factory=dict)  # more shapes, by name
    shipped: list[str] = field(default_factory=list)  # modules of steps: what these launch compiles, and is left out


class Summarise(Task[StepResult], frozen=True, kw_only=True, tag="check.summarise"):
    """What is said of every kernel of a file?"""

    architecture: str  # the compute capability, ``9.0``
    show: Show | None = None  # the text to show besides


class Answer(Result, frozen=True, kw_only=True):
    """``found``: what the function of an :class:`Ask` returned."""

    found: object = None


class Ask(Task[Answer], frozen=True, kw_only=True, tag="check.ask"):
    """What does a function return in a child process? It travels by its name."""

    function: Callable[..., object]
    given: tuple[object, ...] = ()
    on_gpu: bool = True
