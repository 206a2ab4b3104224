"""What a lesson says of its steps in its ``lesson.toml``, for the harness to repeat or to go by; it may have none."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct, field

from common.catalog import schema, store
from common.catalog.schema import Count

NAME = "lesson.toml"


class Usual(Struct, frozen=True):
    """A preset that a step is shown on, and a shape that it is traced at, in place of its ladder's."""

    preset: str
    shape: str


class Remark(Struct, frozen=True):
    """What the compiler does to a step's kernel that its source does not say.

    ``merged``: shared arrays whose 32-bit reads it makes so many words wide; the tracer can count them that way.
    """

    step: str
    kernel: str
    text: str
    merged: dict[str, Count] = field(default_factory=dict)


class Epilogues(Struct, frozen=True):
    """The module whose epilogues are timed, ``ways``, and by step the presets, which no other module has."""

    ways: str
    steps: dict[str, list[str]]


class Training(Struct, frozen=True):
    """A network that is trained: the folder of its code, and the steps that this runs."""

    code: str
    steps: list[str]


class Lesson(Struct, frozen=True):
    """A lesson's file."""

    timed_from: dict[str, list[str]] = field(default_factory=dict)  # by step, presets timed from that step on
    usual: dict[str, Usual] = field(default_factory=dict)  # by step
    remark: list[Remark] = field(default_factory=list)
    accuracy: list[str] = field(default_factory=list)  # steps on matrices whose errors are measured over K
    epilogues: list[Epilogues] = field(default_factory=list)
    measured_by: dict[str, str] = field(default_factory=dict)  # the module that measures accuracy, and epilogues
    training: Training | None = None
    photo: str = ""  # the conv2d step that convolves the photograph, unless another is asked for


def timed_from(lessons: Path) -> dict[str, str]:
    """By preset, the first step of its ladder that is timed on it, if that is not the ladder's first."""
    return {
        preset: step for lesson in _all(lessons) for step, presets in lesson.timed_from.items() for preset in presets
    }


def usual(lessons: Path, step: str) -> Usual | None:
    """What a step is shown on, if not on what its ladder is."""
    return next((lesson.usual[step] for lesson in _all(lessons) if step in lesson.usual), None)


def remarks(lessons: Path, step: str) -> dict[str, Remark]:
    """By kernel, what is said of those of a step."""
    return {one.kernel: one for lesson in _all(lessons) for one in lesson.remark if one.step == step}


def accuracy(lessons: Path) -> list[str]:
    """The steps whose errors are measured; none if no lesson names one."""
    return [step for lesson in _all(lessons) for step in lesson.accuracy]


def epilogues(lessons: Path) -> list[tuple[str, str, str]]:
    """Step, preset and the module of the epilogues for each step whose epilogues are timed."""
    found = (one for lesson in _all(lessons) for one in lesson.epilogues)
    return [(step, preset, one.ways) for one in found for step, presets in one.steps.items() for preset in presets]


def measured_by(lessons: Path, what: str) -> str:
    """The module whose ``measure`` measures the errors over K, ``accuracy``, or the ``epilogues``."""
    return next(lesson.measured_by[what] for lesson in _all(lessons) if what in lesson.measured_by)


def training(lessons: Path) -> tuple[Path, Training] | None:
    """The network that is trained, with the folder of its lesson; None if no lesson has one."""
    found = ((path.parent, _read(path).training) for path in sorted(lessons.glob(f"*/{NAME}")))
    return next(((folder, one) for folder, one in found if one), None)


def photo(lessons: Path) -> str:
    """The step that convolves the photograph; raises ValueError if no lesson names one."""
    found = next((lesson.photo for lesson in _all(lessons) if lesson.photo), "")
    if not found:
        raise ValueError(f"no {NAME} names a step for the photograph: photo = STEP")
    return found


def _all(lessons: Path) -> list[Lesson]:
    return [_read(path) for path in sorted(lessons.glob(f"*/{NAME}"))]


@store.kept_by_stamp
def _read(path: Path) -> Lesson:
    return schema.read(store.read_toml(path), Lesson, store.shown(path))
