"""Tasks for child processes: what all tasks and results have.

Each kind of task is a :class:`Task` with its own fields. It is defined in the ``messages`` of the layer that asks for
it, and tagged with its name, which is a layer's and a function's: ``jobs.check`` is done by ``check_task`` of
``common/jobs/tasks.py``. A task travels as a pickle, from the harness to a process that it started itself. What comes
back is JSON, read as the type of the task's results: a child runs a file that may say anything, and reading JSON runs
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypedDict, TypeVar, get_args

import msgspec

from common.catalog import schema
from common.catalog.catalog import Step
from common.catalog.problems import Problem
from common.explain.faults import Fault

Status = Literal["right", "wrong", "refused", "unjudged", "unusable", "crashed", "timed_out"]
"""What can become of a task, as its result's ``status`` says."""

SIGN_SECONDS = 1.0
"""A process that is at work says so this often."""


class Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a task; the results of most tasks have more. What a field's default stands for is not said.

    ``message``  why it is not right; and ``faults`` what explains it
    ``seconds``  that it took
    ``fatal``    its process is lost
    ``late``     it was not judged for want of time
    """

    status: Status
    message: str | None = None
    faults: Sequence[Fault] = ()
    seconds: float | None = None
    fatal: bool = False
    late: bool = False

    def told(self) -> dict[str, Any]:
        """The fields that say something, as they stand in JSON."""
        fields = msgspec.structs.fields(self)
        told = {field.name: getattr(self, field.name) for field in fields}
        return {field.name: told[field.name] for field in fields if told[field.name] != field.default}


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
