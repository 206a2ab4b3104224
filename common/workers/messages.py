"""Tasks for child processes: what all have, and how they are written and read.

Each kind of task is a :class:`Task` with its own fields. It is defined in the ``messages`` of the layer that asks for
it, and tagged with its name, which is a layer's and a function's: ``jobs.check`` is done by ``check_task`` of
``common/jobs/tasks.py``, whose parameter says which struct it takes. Tasks travel as JSON and are checked at both
ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypedDict, TypeVar, get_type_hints

import msgspec

from common.book.catalog import Step
from common.book.problems import Problem

STATUSES = ("right", "wrong", "refused", "unjudged", "unusable", "crashed", "timed_out")
"""What can become of a task, as its result's ``status`` says."""

_SHOWN = 200  # characters of a value that an error shows


class TaskError(TypeError):
    """A task that is not as its struct says, or a status that is none: names the task, the field, the value and what
    is allowed."""


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task, or a part of one. Raises TaskError for a value that its field does not take."""

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        _require(str(self.__struct_config__.tag or type(self).__name__), type(self), values)


class Task(Message, frozen=True, kw_only=True, tag_field="task"):
    """What a child process does, and answers with one result.

    ``seconds``  its limit; None: that of whoever runs it
    """

    alone: ClassVar[bool] = False
    """Is what becomes of one such task no sign for the others of its file?"""

    seconds: float | None = None

    @property
    def kind(self) -> str:
        """Its name, ``jobs.check``."""
        return str(self.__struct_config__.tag)

    @property
    def subject(self) -> str:
        """What it is about, for whoever waits."""
        return self.kind.partition(".")[0]


class FileTask(Task, frozen=True, kw_only=True):
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


class ShapeTask(FileTask, frozen=True, kw_only=True):
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


AnyTask = TypeVar("AnyTask", bound=Task)


def encode(tasks: Iterable[Task]) -> bytes:
    """Tasks as one JSON list."""
    return msgspec.json.encode(list(tasks))


def decode(data: bytes, structs: Mapping[str, type[Task]]) -> list[Task | TaskError]:
    """The tasks of a JSON list, each as the struct that its name has in ``structs``; or why it is none."""
    return [_task(fields, structs) for fields in msgspec.json.decode(data, type=list[dict[str, Any]])]


def require_status(task: Task, result: Mapping[str, Any]) -> None:
    """Raise TaskError for a result whose ``status`` nobody knows: whoever asked would pass it over."""
    status = result.get("status")
    if status not in STATUSES:
        raise TaskError(f"{task.kind}: status = {_cut(status)}: must be one of {', '.join(STATUSES)}")


def _task(fields: dict[str, Any], structs: Mapping[str, type[Task]]) -> Task | TaskError:
    name = fields.get("task")
    struct = structs.get(str(name))
    if struct is None:
        return TaskError(f"task {_cut(name)} is unknown: tasks are {', '.join(sorted(structs))}")
    try:
        _require(str(name), struct, {key: value for key, value in fields.items() if key != "task"})
        return msgspec.convert(fields, struct)
    except TaskError as error:
        return error


def _require(name: str, struct: type[Message], values: Mapping[str, Any]) -> None:
    """Raise TaskError for a field that the struct does not have, one that is missing, or a value of another type."""
    kinds = _kinds(struct)
    for key, value in values.items():
        if key not in kinds:
            raise TaskError(f"{name}: {key} = {_cut(value)} is unknown: fields are {', '.join(kinds)}")
    for field in msgspec.structs.fields(struct):
        if field.name not in values:
            if field.required:
                raise TaskError(f"{name}: {field.name} is missing: must be {_said(kinds[field.name])}")
            continue
        try:
            msgspec.convert(values[field.name], kinds[field.name])
        except msgspec.ValidationError as error:
            what = f"{field.name} = {_cut(values[field.name])}"
            raise TaskError(f"{name}: {what}: must be {_said(kinds[field.name])}: {error}") from None


@cache
def _kinds(struct: type[Message]) -> dict[str, Any]:
    """The types of its fields by name."""
    hints = get_type_hints(struct)
    return {name: hints[name] for name in struct.__struct_fields__}


def _said(kind: Any) -> str:
    return kind.__name__ if type(kind) is type else str(kind).replace("typing.", "")


def _cut(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
