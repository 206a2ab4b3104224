"""Tasks for child processes: what all tasks and results have.

Each kind of task is a :class:`Task` with its own fields. It is defined in the ``messages`` of the layer that asks for
it, and tagged with its name, which is a layer's and a function's: ``jobs.check`` is done by ``check_task`` of
``common/jobs/tasks.py``. A task travels as a pickle, from the harness to a process that it started itself. What comes
back is JSON, read as the type of the task's results: a child runs a file that may say anything, and reading JSON runs
nothing.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import ClassVar, Generic, Literal, TypedDict, TypeVar, get_args

import msgspec

from common.catalog import schema
from common.catalog.catalog import Step
from common.catalog.problems import Problem
from common.explain.faults import Fault

Status = Literal["right", "wrong", "refused", "unjudged", "unusable", "crashed", "timed_out"]
"""What can become of a task, as its result's ``status`` says."""

SIGN_SECONDS = 1.0
"""A process that is at work says so this often."""


class _Became(TypedDict):
    status: Status


class Result(_Became, total=False):
    """What became of a task, as it travels; the results of most tasks have more.

    ``message``  why it is not right; and ``faults``, each :class:`common.explain.faults.Fault`, what explains it
    ``seconds``  that it took
    ``fatal``    its process is lost
    ``late``     it was not judged for want of time
    """

    message: str | None
    faults: list[Fault]
    seconds: float
    fatal: bool
    late: bool


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
        """Its name, ``jobs.check``."""
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
    """What came of the task, of the type that its struct names; a crash if it is none."""
    kind: type[Found] = _found(type(task))
    try:
        return schema.read(result, kind)
    except schema.SchemaError as error:
        return schema.read({"status": "crashed", "message": f"{task.kind} gave no result: {error}"}, kind)


@cache
def _found(struct: type[object]) -> type:
    """The type of a task's results: what stands in ``class Check(ShapeTask[StepResult])``."""
    named = [part for base in getattr(struct, "__orig_bases__", ()) for part in get_args(base)]
    return next((part for part in named if isinstance(part, type)), Result)
