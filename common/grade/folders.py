"""A folder of other people's files: what is in it, each file's bytes as they were at the start, and its report."""

from __future__ import annotations

import json
import re
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unicodedata import normalize

from common.catalog import catalog, exercises, store
from common.catalog.catalog import Step
from common.catalog.exercises import Exercise
from common.grade import source
from common.grade.source import in_one_line, printable
from common.report.table import Table, markdown

REPORTS = ("grades.json", "grades.md")
_HIDDEN = (".", "__")  # how names begin that a listing leaves out


@dataclass(frozen=True)
class Submission:
    """One file to grade, and whose it is. ``data`` are its bytes once it is taken, ``refusal`` why it has none."""

    path: Path
    student: str = ""
    file: str = ""
    data: bytes | None = None
    refusal: str = ""

    @property
    def target(self) -> Exercise | Step | None:
        """The exercise or step that the file's name says it is; None if it says neither."""
        return known().get(self.path.stem)

    def taken(self) -> Submission:
        """The same with its bytes: what is graded is the file as it is now, whatever becomes of it later."""
        if self.data is not None or self.refusal:
            return self
        try:
            # a link in a folder leads to somebody else's file; one that was named by hand is meant
            path = self.path if self.file else self.path.resolve()
            return Submission(self.path, self.student, self.file, source.take(path))
        except source.SourceError as error:
            return Submission(self.path, self.student, self.file, None, str(error))


def known() -> dict[str, Exercise | Step]:
    """Exercises and steps by name."""
    steps = {step.name: step for step in catalog.everything()}
    return {**steps, **{one.name: one for one in exercises.everything()}}


def submissions(folder: Path) -> tuple[list[Submission], list[str]]:
    """Python files of a folder, and of its sub-folders, which are named after students; and what is left out.

    In a hidden folder only files with an exercise's or a step's name are graded, and the others counted.
    """
    found: list[Submission] = []
    left_out: list[str] = []
    hidden: Counter[str] = Counter()
    names = {f"{name}.py" for name in known()}
    for path, problem in _files(folder):
        inside = path.relative_to(folder)
        shown = printable(inside.as_posix())
        if problem:
            left_out.append(f"{shown}: {problem}")
            continue
        secret = next((n for n, part in enumerate(inside.parts, 1) if part.startswith(_HIDDEN)), 0)
        if path.suffix == ".py" and (not secret or path.name in names):
            found.append(Submission(path, inside.parts[0] if len(inside.parts) > 1 else "", inside.as_posix()))
        elif secret:
            hidden[printable("/".join(inside.parts[:secret]))] += 1
        elif path.name not in REPORTS or len(inside.parts) > 1:
            left_out.append(f"{shown}: its name does not end in .py")
    for name, count in hidden.items():
        left_out.append(f"{name}: hidden, with {count} file{'s' * (count > 1)} named after no exercise")
    return found, sorted(left_out)


def _files(folder: Path) -> Iterator[tuple[Path, str]]:
    """Everything below a folder that is no folder, in order, each with why it is not read; links are not followed."""
    pending = [folder]
    while pending:
        path = pending.pop()
        try:
            mode = path.lstat().st_mode
            if path == folder or (stat.S_ISDIR(mode)):
                pending += sorted(path.iterdir(), reverse=True)
                continue
        except OSError as error:
            yield path, error.strerror or "cannot be read"
            continue
        yield path, "" if stat.S_ISREG(mode) else "a link, or no plain file"


def doubles(files: list[Submission]) -> dict[int, str]:
    """By a file's number, what a reader should know: another of its name, or a student of nearly the same name."""
    said: dict[int, str] = {}
    first: dict[tuple[str, str], int] = {}
    alike: dict[str, str] = {}
    for number, file in enumerate(files):
        other = first.setdefault((file.student, file.path.stem), number)
        if other != number:
            text = "there are several files of this name by this student: each has its own verdict"
            said[number] = said[other] = text
        name = alike.setdefault(normalize("NFKC", file.student).casefold(), file.student)
        if name != file.student:
            said[number] = f"the student's name is nearly that of another, {printable(name)}"
    return said


def report(grades: list[Any], folder: Path) -> tuple[Path, Path]:
    """Write ``grades.json`` and a table, ``grades.md``, to a folder; returns both paths. What lies there under these
    names is replaced and, if it is a link, not followed. Raises OSError."""
    as_json, as_table = (folder / name for name in REPORTS)
    store.write(as_json, json.dumps([grade.as_dict() for grade in grades], indent=1) + "\n")
    rows = []
    for grade in grades:
        why = "<br>".join(map(cell, (*grade.reasons, *grade.notes)))
        rows.append([cell(grade.student), cell(grade.file or grade.name), "yes" if grade.passed else "no", why])
    header = ["student", "file", "passed", "why"]
    store.write(as_table, markdown(Table(header, rows, left=header)) + "\n")
    return as_json, as_table


def cell(text: str) -> str:
    """A text in a cell of a Markdown table: a student's words must not make a row, a link or a mark of their own."""
    shown = re.sub(r"[|<>\[\]`&*~\\#!$@]|(?<=\w):(?=//)", lambda sign: f"&#{ord(sign[0])};", in_one_line(text))
    return re.sub(r"\bwww\.", "www&#46;", shown, flags=re.IGNORECASE)
