"""Finds the exercises of the lessons, their hints, and what of both a student has used.

An exercise is ``lessons/<lesson>/exercises/<name>.py``; its solution is ``solutions/<name>.diff``, a unified diff of
it. What is not code stands in ``exercises/exercises.toml``, ``[[exercise]]`` by ``[[exercise]]`` in order, and what
nobody should read by accident in ``solutions/spoilers.toml``, a table ``[NAME]`` for each.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, to_builtins

from common.catalog import catalog, problems, sources, store
from common.catalog.problems import Problem
from common.catalog.store import Amount, Count, Name

Kind = Literal["write", "bug", "predict", "tune"]
BLANK, END = "# >>> your code", "# <<<"
PRESETS = {**problems.DEFAULT_PRESET, "gemm": "gemm-2048"}
STATE = catalog.ROOT / ".workbook" / "exercises.json"
SOLUTIONS = catalog.ROOT / ".workbook" / "solutions"


class ExerciseError(ValueError):
    """There is no such exercise, nobody knows how it was shipped, or what is kept of a student's cannot be read."""


class Exercise(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One exercise. A ``hard`` one stands in the table at the end of the lesson's page, the others at the end of a
    section, between ``<!-- exercise: NAME -->`` and ``<!-- end exercise -->``."""

    name: Name  # the file's name without ``.py``; a kernel's starts with its ladder
    title: Name  # what is asked for, in one line
    kind: Kind | Literal["step"]  # a step that is graded: solved as it lies in its lesson
    hard: bool = False
    lines: Count = 0  # to write between the markers (write), or at most to change (bug)
    shapes: tuple[Name, ...] = ()  # that it is checked at; default: its ladder's
    preset: str = ""  # that it is compiled for and timed on; default: PRESETS of its ladder
    at_most: dict[str, Amount] = {}  # by the names of common/grade/counted.toml
    at_least: dict[str, Amount] = {}
    because: dict[str, Name] = {}  # why it is asked for: said where a limit is not kept
    floor: Amount = 0.0  # with a GPU: percent of the floor's rate to reach on the preset
    hints: Annotated[tuple[Name, ...], Meta(min_length=1)]  # three, from a question to nearly the answer
    answers: dict[str, Name] = {}  # of a prediction: common.grade.reading
    slips: dict[str, dict[str, Name]] = {}  # what a common mistake comes to, and what it is
    number: str  # its lesson's and its own, as in 02.3
    lesson: str
    path: Path

    @property
    def solution(self) -> str:
        """The exercise as shipped, changed as its diff says; raises ExerciseError if that is not known."""
        if self.kind == "step":
            return store.read_text(self.path)
        given = catalog.LESSONS / self.lesson / "exercises" / f"{self.name}.py"
        diff = store.read_text(given.parents[1] / "solutions" / f"{self.name}.diff")
        as_it_is = [store.read_bytes] if given.is_file() and not sources.edited(given) else []
        for read in (*as_it_is, sources.shipped):
            with contextlib.suppress(ValueError):  # a comment may be other than shipped
                return patched((read(given) or b"").decode(), diff)
        unknown = f"{store.shown(given)} is edited, and neither git nor .workbook has it as shipped"
        raise ExerciseError(f"{unknown}: move yours to another folder, unpack the original, and grade yours there")

    def write_solution(self) -> Path:
        """Its solution as a file, below ``.workbook``."""
        if self.kind == "step":
            return self.path
        path = SOLUTIONS / f"{self.name}.py"
        store.write(path, self.solution)
        return path

    @property
    def ladder(self) -> str:
        """The ladder whose interface the file has; empty for a prediction."""
        return "" if self.kind == "predict" else self.name.split("_")[0]

    @property
    def section(self) -> str:
        """The heading that it stands under on the lesson's pages; empty if it stands under none."""
        pages = "".join(map(store.read_text, sorted(self.path.parent.parent.glob("*.md"))))
        before, marker, _ = pages.partition(f"<!-- exercise: {self.name} -->")
        return str(re.findall(r"^## (.+)$", before, re.MULTILINE)[-1]) if marker else ""

    # what the solution's constants say: precision, requires and algorithm
    said = property(lambda self: catalog.said(self.path, self.solution))

    def problems(self) -> list[Problem]:
        """The problems it is checked at."""
        return [problems.parse_shape(self.ladder, text) for text in self.shapes]


def patched(text: str, diff: str) -> str:
    """A text, changed as a unified diff says; raises ValueError if the diff is of another text."""
    lines, changed, at = text.splitlines(), list[str](), 0
    for first, hunk in re.findall(r"^@@ -(\d+)[^\n]*\n((?:[ +-][^\n]*\n|\n)+)", diff, re.MULTILINE):
        start = int(first) - 1
        old = [line[1:] for line in hunk.splitlines() if not line.startswith("+")]
        if lines[start : start + len(old)] != old:
            raise ValueError(f"line {first}: not the lines that the diff is of")
        changed += lines[at:start] + [line[1:] for line in hunk.splitlines() if not line.startswith("-")]
        at = start + len(old)
    return "\n".join([*changed, *lines[at:], ""])


def everything(root: Path = catalog.LESSONS) -> list[Exercise]:
    """Every exercise in order of number; raises StoreError or SchemaError naming the file and field that is wrong."""
    return [one for lesson in catalog.lessons(root) for one in _read(root / lesson)]


def find(text: str, root: Path = catalog.LESSONS) -> Exercise:
    """The exercise with this number (1.7 is 01.7) or name; raises ExerciseError listing the numbers there are."""
    known = everything(root)
    for one in known:
        if text in (one.number, one.number.removeprefix("0"), one.name):
            return one
    lessons = [[one.number for one in known if one.lesson == lesson] for lesson in catalog.lessons(root)]
    numbers = ", ".join(f"{each[0]} to {each[-1]}" for each in lessons if each)
    raise ExerciseError(f"exercise {text!r} is unknown: there are {numbers}")


def chosen(text: str, root: Path = catalog.LESSONS) -> list[Exercise]:
    """The exercises that ``text`` names: a lesson (``02`` or its folder), or a number or name as for :func:`find`."""
    here = [one for one in everything(root) if text in (one.lesson, one.lesson[:2])]
    return here or [find(text, root)]


_fields = store.kept_by_stamp(store.read_toml)  # each exercise that is looked for asks for all


def _read(folder: Path) -> list[Exercise]:
    source, spoilers = folder / "exercises" / "exercises.toml", folder / "solutions" / "spoilers.toml"
    if not source.exists():
        return []
    found, place = [], f"{store.shown(source)} and {spoilers.name}"
    for number, entry in enumerate(_fields(source)["exercise"], 1):
        name, ladder = entry["name"], entry["name"].split("_")[0]
        usual = {"shapes": problems.EXERCISED[ladder], "preset": PRESETS[ladder]} if ladder in PRESETS else {}
        own = {"number": f"{folder.name[:2]}.{number}", "lesson": folder.name, "path": source.with_name(f"{name}.py")}
        found.append(store.convert({**own, **usual, **entry, **_fields(spoilers)[name]}, Exercise, place))
    return found


class Used(Struct):
    """Hints taken, and the hash of the code that passed, by exercise."""

    hints: dict[str, Count] = {}
    passed: dict[str, str] = {}


class State:
    """Hints taken and exercises passed, in a file that git ignores; raises ExerciseError or StoreError."""

    def __init__(self, path: Path = STATE) -> None:
        self.path = path
        try:
            self._used = store.convert(store.read_json(path), Used, store.shown(path)) if path.exists() else Used()
        except (store.StoreError, store.SchemaError) as error:
            raise ExerciseError(f"{error}; delete it to start anew") from None

    @contextlib.contextmanager
    def _changed(self) -> Iterator[Used]:
        """What others wrote meanwhile, too; written when it is changed."""
        with store.locked(self.path.parent):
            self._used = State(self.path)._used
            yield self._used
            store.write_json(self.path, to_builtins(self._used))

    def hint(self, exercise: Exercise) -> tuple[int, str]:
        """The next hint and its number from 1 on; the last one again when all are given."""
        with self._changed() as used:
            number = used.hints[exercise.name] = min(used.hints.get(exercise.name, 0) + 1, len(exercise.hints))
        return number, exercise.hints[number - 1]

    def hints(self, exercise: Exercise) -> int:
        """Hints given so far."""
        return min(self._used.hints.get(exercise.name, 0), len(exercise.hints))

    def passed(self, exercise: Exercise) -> bool:
        """Did the file, as it is now, pass?"""
        with contextlib.suppress(*sources.NO_PYTHON):
            return self._used.passed.get(exercise.name) == sources.source_hash(exercise.path)
        return False

    def remember(self, exercise: Exercise, passed: bool) -> None:
        """Keep a verdict on the exercise's own file."""
        with self._changed() as used:
            used.passed[exercise.name] = sources.source_hash(exercise.path) if passed else ""
