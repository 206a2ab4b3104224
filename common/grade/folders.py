"""Other people's files: what a folder of them holds, each file's text, how they are shut in, and the report."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.catalog import catalog, exercises, problems, store
from common.catalog.exercises import Exercise
from common.explain.faults import cut
from common.report.table import Table, markdown

SOURCE_BYTES = 1 << 18  # the largest file that is read
REPORTS = ("grades.json", "grades.md")
INSIDE = "WORKBOOK_IN_BUBBLEWRAP"  # in the environment of a grade command that runs in there
_TRY_SECONDS = 20.0
ISOLATED = "isolated: the files ran in bubblewrap, which has no network and writes nothing but the report"
_WHY = "as bwrap is not installed or may not be used here; see lessons/GRADING.md"
NOT_ISOLATED = f"not isolated: each file ran with the rights of whoever graded, {_WHY}"


class Submission:
    """One file to grade, whose it is, and its path in the folder that is graded (``file``). ``text`` is what it holds
    now, with lines that end by ``\\n`` alone; ``refusal`` why it has none."""

    def __init__(self, path: Path, student: str = "", file: str = "") -> None:
        self.path, self.student, self.file = path, student, file
        self.text, self.refusal = "", ""
        try:
            with path.open("rb") as opened:
                data = opened.read(SOURCE_BYTES + 1)
            if len(data) > SOURCE_BYTES:
                self.refusal = f"too long: at most {SOURCE_BYTES:,} are read"
            else:
                self.text = data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
        except UnicodeDecodeError as error:
            self.refusal = f"line {error.object.count(10, 0, error.start) + 1}: not UTF-8"
        except OSError as error:
            self.refusal = str(error.strerror)

    @property
    def target(self) -> Exercise | None:
        """The exercise or step that the file's name says it is; None if it says neither."""
        return known().get(self.path.stem)


def known() -> dict[str, Exercise]:
    """Exercises, and steps as such, checked at their ladder's ragged shapes; by name."""
    steps = [
        Exercise(
            name=step.name, number=step.name, title=step.title, kind="step", lesson=step.lesson, path=step.path,
            shapes=tuple(map(str, problems.RAGGED[step.ladder])), preset=exercises.PRESETS[step.ladder], hints=(),
        ) for step in catalog.everything()
    ]  # fmt: skip
    return {one.name: one for one in (*steps, *exercises.everything())}


def submissions(folder: Path) -> tuple[list[Submission], list[str]]:
    """Python files of a folder, and of its sub-folders, which are named after students; and what is left out. What is
    hidden is passed over."""
    found, left_out = list[Submission](), list[str]()
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        file = "/".join(parts)
        if any(part.startswith((".", "__")) for part in parts) or file in REPORTS:
            continue
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            left_out.append(f"{cut(file)}: a link, or no plain file")
        elif path.is_file() and path.suffix == ".py":
            found.append(Submission(path, parts[0] if len(parts) > 1 else "", file))
        elif path.is_file():
            left_out.append(f"{cut(file)}: its name does not end in .py")
    return found, left_out


def to_grade(targets: Sequence[str]) -> tuple[list[Submission], Path | None, list[str]]:
    """Files to grade, the folder of other people's files if that is what was named, and what is left out of it."""
    paths = [] if targets else [one.path for one in exercises.everything()]
    for target in targets:
        path = Path(target)
        places = path.resolve(), path.resolve().parent
        within = [name for name in catalog.lessons() if catalog.LESSONS / name in places]
        if path.suffix == ".py":
            if not path.is_file():
                raise ValueError(f"{target}: no such file")
            paths.append(path)
        elif path.is_dir() and not within:
            if len(targets) > 1:
                raise ValueError(f"{target}: a folder of files to grade must be named alone")
            found, left_out = submissions(path)
            return found, path, left_out
        else:  # of this workbook: a lesson's folder, or the exercises below it
            paths += [one.path for one in exercises.chosen(within[0] if within else target)]
    return [Submission(path) for path in dict.fromkeys(paths)], None, []


def report(grades: Sequence[Any], folder: Path, note: str = "") -> tuple[Path, Path]:
    """Write ``grades.json`` and a table, ``grades.md``, with a ``note`` below, to a folder; returns both paths. Links
    that lie there are not followed. Raises OSError."""
    as_json, as_table = (folder / name for name in REPORTS)
    store.write(as_json, json.dumps([grade.as_dict() for grade in grades], indent=1) + "\n")
    header, rows = ["student", "file", "passed", "why"], []
    for grade in grades:
        why = "<br>".join(map(cell, (*grade.reasons, *grade.notes)))
        rows.append([cell(grade.student), cell(grade.file or grade.name), "yes" if grade.passed else "no", why])
    store.write(as_table, f"{markdown(Table(header, rows, left=header))}\n\n{cell(note)}\n")
    return as_json, as_table


def cell(text: str) -> str:
    """A text in a cell of a Markdown table: a student's words must not make a row, a link or a mark of their own."""
    shown = re.sub(r"[|<>\[\]`&*~\\#!$@]|(?<=\w):(?=//)", lambda sign: f"&#{ord(sign[0])};", in_one_line(text))
    return re.sub(r"\bwww\.", "www&#46;", shown, flags=re.IGNORECASE)


def in_one_line(text: str) -> str:
    """With blanks and line ends made one blank each; what is longer than 1,000 is cut."""
    return cut(" ".join(text.split()), 1000)


def bubblewrap(folder: Path, out: Path) -> list[str]:
    """The words that run a command in bubblewrap: it writes to ``out`` and a /tmp of its own alone, has no network,
    sees no other process, and ends when this one does. Empty where bwrap is missing, or may not do that."""
    words = ["bwrap", "--ro-bind", "/", "/", "--dev-bind", "/dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]
    for path in (catalog.ROOT, Path(sys.base_prefix), Path(sys.prefix), folder.resolve()):
        words += ["--ro-bind", str(path), str(path)]  # again: what lies below /tmp is hidden
    words += ["--bind", str(out.resolve()), str(out.resolve()), "--setenv", "TMPDIR", "/tmp", "--setenv", INSIDE, "1"]
    words += ["--unshare-net", "--unshare-pid", "--unshare-ipc", "--die-with-parent"]
    try:
        tried = subprocess.run([*words, sys.executable, "-c", ""], capture_output=True, timeout=_TRY_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return words if tried.returncode == 0 else []
