"""What lessons say of their steps in ``lesson.toml``, for the harness to repeat or to go by."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from common.catalog import schema, store


class Usual(Struct, frozen=True):
    preset: str  # that a step is shown on
    shape: str  # that it is traced at, both in place of its ladder's


class Epilogues(Struct, frozen=True):
    step: str
    preset: str
    ways: str  # the module of the epilogues that are timed


class Training(Struct, frozen=True):
    code: str  # the folder of the code of a network that is trained
    steps: list[str]  # that it runs


class Lesson(Struct):
    """What one lesson says, or all."""

    timed_from: dict[str, str] = {}  # by preset, the first step of its ladder timed on it
    usual: dict[str, Usual] = {}  # by step
    accuracy: list[str] = []  # steps on matrices whose errors are measured over K
    epilogues: list[Epilogues] = []
    measured_by: dict[str, str] = {}  # the module that measures accuracy, and epilogues
    training: Training | None = None
    photo: str = ""  # the conv2d step that convolves the photograph


def read(lessons: Path) -> Lesson:
    """What all lessons say, together. Raises StoreError or SchemaError naming the file, and the field."""
    whole = Lesson()
    for one in map(_read, sorted(lessons.glob("*/lesson.toml"))):
        for name in ("timed_from", "usual", "measured_by"):
            getattr(whole, name).update(getattr(one, name))
        whole.accuracy.extend(one.accuracy)
        whole.epilogues.extend(one.epilogues)
        whole.photo = whole.photo or one.photo
    return whole


def training(lessons: Path) -> tuple[Path, Training] | None:
    """The network that is trained, with the folder of its lesson; None if no lesson has one."""
    found = ((path.parent, _read(path).training) for path in sorted(lessons.glob("*/lesson.toml")))
    return next(((folder, one) for folder, one in found if one), None)


@store.kept_by_stamp
def _read(path: Path) -> Lesson:
    return schema.read(store.read_toml(path), Lesson, store.shown(path))
