"""What child processes are asked: what all tasks have, and the tasks on steps.

Each kind of task is a :class:`Task` with its own fields, tagged with its name, which is a layer's and a function's:
``check.check`` is done by ``check_task`` of ``common/check/tasks.py``. A task travels as a pickle, from the harness
to a process that it started itself. What comes back is JSON, read as the type of the task's results: a child runs a
file that may say anything, and reading JSON runs nothing.

Where a task has ``room_bytes``, they are the card's budget as the command worked it out
(:func:`common.check.budget.room_bytes`); 0: the child works it out. Paths are absolute.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import ClassVar, Generic, Literal, TypedDict, TypeVar, get_args

import msgspec

from common.catalog import schema
from common.catalog.catalog import Step
from common.catalog.device import Gpu
from common.catalog.problems import Problem
from common.run.results import (
    Answer,
    Depth,
    Engine,
    ExplainResult,
    LaunchResult,
    Result,
    SizeResult,
    StepResult,
    Tile,
)  # fmt: skip

SIGN_SECONDS = 1.0
"""A process that is at work says so this often."""

REPEATS = 3
"""Launches on equal inputs that must agree, to catch races."""

MAX_SECONDS = 4.0
"""That launches are repeated for, to time them."""


Found = TypeVar("Found", bound=Result, covariant=True)
"""What comes of a task."""


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task, or a part of one."""


class Task(Message, Generic[Found], frozen=True, kw_only=True, tag_field="task"):
    """What a child process does, and answers with one result: ``Task[Result]``, or another in that place.

    ``seconds``  its limit: of the time that it takes itself (:mod:`common.run.limits`), for each of its stages;
                 None: that of whoever runs it
    ``within``   so many for all stages together; None: a few times ``seconds``
    """

    alone: ClassVar[bool] = False
    """Is what becomes of one such task no sign for the others of its file?"""
    gpu: ClassVar[bool] = False
    """Does it touch the GPU? Then the process that owns it does the task."""

    ahead: ClassVar[bool] = False
    """Is it done before anybody needs it? Then nobody is told how long it takes."""

    seconds: float | None = None
    within: float | None = None

    @property
    def on_gpu(self) -> bool:
        """Does this very task touch the GPU?"""
        return self.gpu

    @property
    def kind(self) -> str:
        """Its name, ``check.check``."""
        return str(self.__struct_config__.tag)

    @property
    def subject(self) -> str:
        """What it is about, for whoever waits."""
        return self.kind.partition(".")[0]


class FileTask(Task[Found], Generic[Found], frozen=True, kw_only=True):
    """A task on one step's file.

    ``path``     the file that is run
    ``ladder``   the step's
    ``step``     its name, if whoever asks wants it told
    ``home``     the path that a copy takes for its own
    ``helpers``  files by the names of the lessons' helpers that they stand in for
    """

    path: str
    ladder: str
    step: str = ""
    home: str | None = None
    helpers: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def subject(self) -> str:
        return self.step or Path(self.home or self.path).stem


class ShapeTask(FileTask[Found], Generic[Found], frozen=True, kw_only=True):
    """A task on one step's file at one ``shape``: extents by name (:meth:`common.catalog.problems.Problem.shape`)."""

    shape: dict[str, int]


class Place(TypedDict):
    """The fields of a :class:`ShapeTask` but for the time it has."""

    path: str
    ladder: str
    step: str
    home: str | None
    helpers: dict[str, str]
    shape: dict[str, int]


def at(step: Step, problem: Problem, file: Path | None = None) -> Place:
    """A step, or ``file`` in its place, at one shape."""
    return {
        "path": str(file or step.path), "ladder": step.ladder, "step": step.name, "home": None, "helpers": {},
        "shape": problem.shape(),
    }  # fmt: skip


def typed(task: Task[Found], result: object) -> Found:
    """What came of the task, of the type that its struct names: read from JSON, which is a crash if it is none; or
    of a :class:`Result` that no child gave."""
    kind: type[Found] = _found(type(task))
    if isinstance(result, Result):
        return kind(**result.told())
    try:
        return schema.read(result, kind)
    except schema.SchemaError as error:
        return kind(status="crashed", message=f"{task.kind} gave no result: {error}")


@cache
def _found(struct: type[object]) -> type:
    """The type of a task's results: what stands in ``class Check(ShapeTask[StepResult])``."""
    named = [part for base in getattr(struct, "__orig_bases__", ()) for part in get_args(base)]
    return next((part for part in named if isinstance(part, type)), Result)


# --- tasks on steps ---


class Check(ShapeTask[StepResult], frozen=True, kw_only=True, tag="check.check"):
    """Is a file right at one shape? The fields of :class:`common.check.plan.Case`, and

    ``precision``  what the step may compute with, one of :data:`common.catalog.catalog.PRECISIONS`
    ``algorithm``  one of :data:`common.catalog.algorithms.NAMES`; None: the definition
    ``repeats``  launches on equal inputs that must agree
    ``kernels``  the folder of kernels that are kept; empty: none are
    """

    engine: Engine = "traced"
    depth: Depth = "usual"
    seed: int = 0
    special: str = ""
    wide: bool = False
    small: bool = False
    budget: float | None = None
    precision: str = "fp32"
    algorithm: str | None = None
    repeats: int = REPEATS
    kernels: str = ""

    @property
    def on_gpu(self) -> bool:
        return self.engine == "gpu"


class Time(ShapeTask[StepResult], frozen=True, kw_only=True, tag="timing.time"):
    """Is a file right at full size, by samples, and how fast is it?

    ``preset``   the shape's name, for whoever asks
    ``seed``     that of the operands
    ``kernels``  the folder of kernels that are kept; empty: none are
    ``beside``   the precision in which it is timed in turn with the library, too; empty: it is not
    ``most_seconds``  that launches are repeated for
    """

    gpu: ClassVar[bool] = True
    preset: str = ""
    beside: str = ""
    seed: int = 0
    kernels: str = ""
    room_bytes: int = 0
    most_seconds: float = MAX_SECONDS


class Prepare(FileTask[Result], frozen=True, kw_only=True, tag="check.prepare"):
    """Compile a file's kernels ahead.

    ``shapes``   those that will be asked for
    ``device``   the GPU they are for
    ``kernels``  the folder that keeps them
    """

    ahead: ClassVar[bool] = True
    shapes: list[dict[str, int]]
    device: Gpu
    kernels: str


class Rival(Message, frozen=True, kw_only=True):
    """A file that another one is timed against: ``path`` and ``helpers`` as in a :class:`FileTask`."""

    path: str
    helpers: dict[str, str] = msgspec.field(default_factory=dict)


class Pair(ShapeTask[StepResult], frozen=True, kw_only=True, tag="timing.pair"):
    """How fast is a file beside others? ``against``: those by name; with none it is timed alone."""

    gpu: ClassVar[bool] = True
    against: dict[str, Rival]
    room_bytes: int = 0


class Sweep(ShapeTask[StepResult], frozen=True, kw_only=True, tag="timing.sweep"):
    """Is a file right with one ``tile``, and how fast? ``kernels``: the folder of those that are kept, or empty."""

    gpu: ClassVar[bool] = True
    alone: ClassVar[bool] = True  # another tile is another kernel
    tile: Tile
    kernels: str = ""
    room_bytes: int = 0


class Size(ShapeTask[SizeResult], frozen=True, kw_only=True, tag="timing.size"):
    """At which size may a file's kernels be launched on this card?"""

    room_bytes: int = 0


class Launch(ShapeTask[LaunchResult], frozen=True, kw_only=True, tag="timing.launch"):
    """Launch a file's kernels once, for tools that watch."""

    gpu: ClassVar[bool] = True


class Explain(ShapeTask[ExplainResult], frozen=True, kw_only=True, tag="check.explain"):
    """What would a step do for this shape, and why?"""

    gpu: ClassVar[bool] = True


class Compile(ShapeTask[StepResult], frozen=True, kw_only=True, tag="check.compile"):
    """What does a file compile to?

    ``architectures``  compute capabilities, ``9.0``
    ``machine_code``   assemble it, and count its instructions
    ``lenient``        without NVIDIA's tools, leave the count out
    ``others``         more shapes, by name
    """

    architectures: list[str]
    machine_code: bool = False
    lenient: bool = False
    others: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)


class Summarise(ShapeTask[StepResult], frozen=True, kw_only=True, tag="check.summarise"):
    """What is said of every kernel of a file?

    ``architecture``  the compute capability, ``9.0``
    ``show``          the text to show besides
    ``preset``        the shape's name, for whoever asks
    """

    architecture: str
    show: Literal["ptx", "sass"] | None = None
    preset: str = ""


class Maps(FileTask[StepResult], frozen=True, kw_only=True, tag="check.maps"):
    """Run a conv2d step on ``x`` and ``filt`` and save ``y``: .npy files, NCHW, KCRS and NKPQ."""

    gpu: ClassVar[bool] = True
    x: str
    filt: str
    y: str


class Ask(Task[Answer], frozen=True, kw_only=True, tag="check.ask"):
    """What does a function return in a child process? It travels by its name, with its arguments.

    ``touches_gpu``  then the process that owns the GPU calls it
    """

    function: Callable[..., object]
    given: tuple[object, ...] = ()
    touches_gpu: bool = True

    @property
    def on_gpu(self) -> bool:
        return self.touches_gpu
