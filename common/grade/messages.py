"""What grading's processes ask each other and answer, and what children are asked to run of what was recorded."""

from __future__ import annotations

from typing import Annotated, ClassVar, Generic, Literal, TypeVar, cast, get_args

import msgspec
from msgspec import Meta

from common.catalog import schema
from common.catalog.schema import Amount, Count, Number
from common.explain.faults import FaultFields, FindingFields
from common.run.messages import Message, Result, Task
from common.timing.timing import Timing

Became = Literal["done", "crashed", "exited", "refused", "unjudged", "unusable"]
Noted = Literal[
    "changed_files", "replaced", "remembers", "stream", "imports", "host_access", "host_write", "foreign_array",
    "allocates", "exited", "broken", "reaches_out", "unsound",
]  # fmt: skip
"""What a submission's process may note of it: each means not passed."""

Symbol = Annotated[str, Meta(max_length=600, description="a name")]
Started = tuple[Symbol, tuple[int, ...], tuple[int, ...]]
"""A kernel's name, grid and block."""
Launched = tuple[Symbol, tuple[int, ...], tuple[int, ...], int, str]
"""The same, and its :func:`common.grade.audit.identity`."""


class Options(Message, frozen=True, kw_only=True):
    """What a submission's process is started with.

    ``file``, ``ladder``  the submission
    ``exchange``  the file that arrays travel in, each with ``margin`` elements at either end
    ``hidden``    the folder that is out of its reach
    """

    file: str
    ladder: str
    exchange: str
    margin: int
    hidden: str
    memory_bytes: int
    cpu_seconds: int
    file_bytes: int


Found = TypeVar("Found", covariant=True)


class Question(Message, Generic[Found], frozen=True, kw_only=True, tag_field="ask", tag=str.lower):
    """What a submission's process is asked; it answers what stands in ``class Ready(Question[None])``.

    What it does then says the method of its name (:class:`common.grade.sandbox_child.Child`).
    """


class Ready(Question[Count], frozen=True):
    """Said before the submission is imported: the version of Landlock that encloses the process, 0 if none does."""


class Start(Question[None], frozen=True): ...


class Bind(Question[None], frozen=True, kw_only=True):
    shape: dict[str, int]


class Prepare(Question[None], frozen=True): ...


class Launch(Question[list[Launched]], frozen=True): ...


class Traced(msgspec.Struct, frozen=True):
    """What a trace found; ``message`` says why it could not be made. ``reads``: of global memory, by array.

    ``places`` and ``values``: some elements of the output, as a :class:`Block` has them
    """

    message: str = ""
    figures: dict[str, Number] = {}
    reads: dict[str, Amount] = {}
    unsound: list[str] = []
    places: list[Count] = []
    values: list[float] = []


class Trace(Question[Traced], frozen=True, kw_only=True):
    shape: dict[str, int]
    seed: int = 0


class Block(msgspec.Struct, frozen=True):
    """What one block of each kernel did; ``message`` says why it could not be looked at.

    ``written``  how many elements, and of some of them the ``places`` in the output, and the ``values``
    """

    message: str = ""
    launched: list[Started] = []
    fma: Amount = 0.0
    written: Count = 0
    places: list[Count] = []
    values: list[float] = []


class Sample(Question[Block], frozen=True, kw_only=True):
    shape: dict[str, int]
    seed: int
    block: list[int] | None = None


class Record(Question[None], frozen=True, kw_only=True):
    shape: dict[str, int]
    architecture: str
    name: str


QUESTIONS = cast(type[Question[object]], Ready | Start | Bind | Prepare | Launch | Trace | Sample | Record)


class Answer(msgspec.Struct, frozen=True):
    """What became of a question, all notes so far, and what was ``found`` if it is done."""

    status: Became
    notes: list[tuple[Noted, str]]
    message: str = ""
    faults: list[FaultFields] = []
    found: object = None


def found(question: Question[Found], answer: Answer) -> Found:
    """What was found, of the type that the question names. Raises SchemaError."""
    kind: type[Found] = get_args(type(question).__orig_bases__[0])[0]  # type: ignore[attr-defined]
    return schema.read(answer.found, kind, "answer.found")


class PtxFinding(FindingFields, total=False):
    """``shape``: at which one of those that were checked."""

    shape: dict[str, int]


class PtxResult(Result, total=False):
    """``timing`` of the plan that was timed."""

    findings: list[PtxFinding]
    elements_compared: int
    timing: Timing


class PtxRun(Task[PtxResult], frozen=True, kw_only=True, tag="grade.ptx_run"):
    """Check plans, then time one.

    ``folder``  that of the plans' files
    ``ladder``, ``seed``  the step's ladder, and the seed of the operands
    ``precision``, ``algorithm``  what it may compute with, and how
    ``shapes``  those to check at, each with three plans: NUMBER-0 to NUMBER-2
    ``timed``   the shape of the plan ``timed``; None: nothing is timed
    """

    gpu: ClassVar[bool] = True

    folder: str
    ladder: str
    precision: str
    seed: int
    shapes: list[dict[str, int]]
    timed: dict[str, int] | None
    algorithm: str | None = None
