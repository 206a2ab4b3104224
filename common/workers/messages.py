"""Tasks for child processes: what all have, and how they are written and read.

Each kind of task is a :class:`Task` with its own fields. It is defined in the ``messages`` of the layer that asks for
it, and tagged with its name, which is a layer's and a function's: ``jobs.check`` is done by ``check_task`` of
``common/jobs/tasks.py``, whose parameter says which struct it takes. Tasks travel as JSON and are checked at both
ends.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import ClassVar, Generic, Literal, TypedDict, TypeVar, get_args, get_type_hints

import msgspec

from common.book import schema
from common.book.catalog import Step
from common.book.problems import Problem
from common.explain.faults import FaultFields

Status = Literal["right", "wrong", "refused", "unjudged", "unusable", "crashed", "timed_out"]
STATUSES: tuple[str, ...] = get_args(Status)
"""What can become of a task, as its result's ``status`` says."""

SIGN_SECONDS = 1.0
"""A process that is at work says so this often."""

_SHOWN = 200  # characters of a value that an error shows


class TaskError(TypeError):
    """A task or a result that is not of its type: names the task, the field, what is allowed and what is there."""


class _Became(TypedDict):
    status: Status


class Result(_Became, total=False):
    """What became of a task, as it travels; the results of most tasks have more.

    ``message``  why it is not right; and ``faults``, each :class:`common.explain.faults.Fault`, what explains it
    ``seconds``  that it took
    ``untried``  others of its file took too long, or ended their processes
    ``fatal``    its process is lost
    ``late``     it was not judged for want of time
    """

    message: str | None
    faults: list[FaultFields]
    seconds: float
    untried: bool
    fatal: bool
    late: bool


Found = TypeVar("Found", bound=Result, covariant=True)
"""What comes of a task."""


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task, or a part of one. Raises TaskError for a value that its field does not take."""

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        _require(str(self.__struct_config__.tag or type(self).__name__), type(self), values)


class Task(Message, Generic[Found], frozen=True, kw_only=True, tag_field="task"):
    """What a child process does, and answers with one result: ``Task[Result]``, or another in that place.

    ``seconds``  its limit: of the time that it takes itself (:mod:`common.workers.overdue`), for each of its stages;
                 None: that of whoever runs it
    ``within``   so many for all stages together; None: a few times ``seconds``
    """

    alone: ClassVar[bool] = False
    """Is what becomes of one such task no sign for the others of its file?"""

    seconds: float | None = None
    within: float | None = None

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
    """A task on one step's file at one ``shape``: extents by name, as :meth:`common.book.problems.Problem.shape`."""

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


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """What is said through an answers' pipe, a line at a time.

    ``hello``   the worker's number, as its tasks are about to begin
    ``pid``, ``number``, ``result``  who answers which task, and what
    ``at``      the stage of a task that goes on
    ``ended``   the keeper's own: the worker's exit code, negative for a signal
    """

    hello: int | None = None
    pid: int | None = None
    number: int | None = None
    result: dict[str, object] | None = None
    at: str | None = None
    ended: int | None = None


def parsed(line: bytes) -> Line:
    """A line as the harness writes it; an empty one if it is none."""
    try:
        return schema.read(json.loads(line), Line)
    except (ValueError, RecursionError):
        return Line()


def encode(tasks: Iterable[Task[Result]]) -> bytes:
    """Tasks as one JSON list."""
    return msgspec.json.encode(list(tasks))


def decode(data: bytes, structs: Mapping[str, type[Task[Result]]]) -> list[Task[Result] | TaskError]:
    """The tasks of a JSON list, each as the struct that its name has in ``structs``; or why it is none."""
    return [_task(fields, structs) for fields in msgspec.json.decode(data, type=list[dict[str, object]])]


def require(task: Task[Found], result: object) -> Found:
    """What came of the task, of the type that its struct names; raises TaskError."""
    kind: type[Found] = _found(type(task))
    try:
        return schema.read(result, kind)
    except schema.SchemaError as error:
        raise TaskError(f"{task.kind}: {error}") from None


@cache
def _found(struct: type[object]) -> type:
    """The type of a task's results: what stands in ``class Check(ShapeTask[StepResult])``."""
    named = [part for base in getattr(struct, "__orig_bases__", ()) for part in get_args(base)]
    return next((part for part in named if isinstance(part, type)), Result)


def _task(fields: dict[str, object], structs: Mapping[str, type[Task[Result]]]) -> Task[Result] | TaskError:
    name = fields.get("task")
    struct = structs.get(str(name))
    if struct is None:
        return TaskError(f"task {_cut(name)} is unknown: tasks are {', '.join(sorted(structs))}")
    try:
        _require(str(name), struct, {key: value for key, value in fields.items() if key != "task"})
        return msgspec.convert(fields, struct)
    except TaskError as error:
        return error


def _require(name: str, struct: type[Message], values: Mapping[str, object]) -> None:
    """Raise TaskError for a field that the struct does not have, one that is missing, or a value of another type."""
    kinds = _kinds(struct)
    for key, value in values.items():
        if key not in kinds:
            raise TaskError(f"{name}: {key} = {_cut(value)} is unknown: fields are {', '.join(kinds)}")
    for field in msgspec.structs.fields(struct):
        if field.name not in values:
            if field.required:
                raise TaskError(f"{name}: {field.name} must be {schema.allowed(kinds[field.name])}, is missing")
            continue
        try:
            schema.read(values[field.name], kinds[field.name], field.name)
        except schema.SchemaError as error:
            raise TaskError(f"{name}: {error}") from None


@cache
def _kinds(struct: type[Message]) -> dict[str, type[object]]:
    """The types of its fields by name."""
    hints = get_type_hints(struct, include_extras=True)
    return {name: hints[name] for name in struct.__struct_fields__}


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
