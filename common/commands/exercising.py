"""The commands ``grade`` and ``hint``."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from common.catalog import catalog, device, exercises, shipped
from common.commands import arguments, console, edits
from common.commands.console import RIGHT, WRONG
from common.edit import history
from common.grade import folders, grade
from common.report import tables
from common.timing import measuring


def grade_files(options: argparse.Namespace) -> int:
    for name, value in (("--seconds", options.seconds), ("--workers", options.workers)):
        if value is not None and not 0 < value < 1e6:
            raise ValueError(f"{name} {value:g}: must be more than 0, and less than a million")
    files, folder, left_out = folders.to_grade(options.targets)
    if folder is None and options.out is not None:
        raise ValueError(f"--out {options.out}: goes with a folder of files to grade, and none is named")
    if not files:
        raise ValueError(f"{folder}: no Python files in it" if folder else "there are no exercises yet")
    if folder is None:
        return _graded(options, files)
    out = options.out or folder
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{out}: must be a folder to write to: {error.strerror}") from None
    if not os.access(out, os.W_OK):
        raise ValueError(f"{out}: must be a folder to write to, or name one with --out")
    inside = folders.INSIDE in os.environ
    if not inside and (words := folders.bubblewrap(folder, out)):
        given = [str(folder.resolve()), "--out", str(out.resolve()), "--seconds", str(options.seconds)]
        given += ["--workers", str(options.workers)] if options.workers else []
        given += [f"--{name}" for name in ("json", "sim") if getattr(options, name)]
        command = [*words, sys.executable, "-m", "common", "grade", *given]
        return subprocess.run(command, cwd=catalog.ROOT).returncode
    notes = [f"not graded: {text}" for text in left_out]
    return _graded(options, files, out, [*notes, folders.ISOLATED if inside else folders.NOT_ISOLATED])


def _graded(
    options: argparse.Namespace, files: list[folders.Submission], out: Path | None = None, notes: Sequence[str] = ()
) -> int:
    """Grade files and print the verdicts; those of a folder's are reported to ``out``, above the last note."""
    without_gpu = arguments.without_gpu(options.sim, options)
    gpu, ceilings = (None, None) if without_gpu else measuring.measure_device()
    grader = grade.Grader(gpu, ceilings, options.seconds)
    own = _own_sources(files)
    if folders.INSIDE not in os.environ:
        edits.keep()
    edits.name_edited_helpers("kernels are graded on the shipped one")
    found: dict[int, grade.Grade] = {}
    try:
        with closing(grader.all(files, options.workers or device.workers())) as coming:
            for number, verdict in console.progress("grade", coming, files, _graded_line, options.json):
                found[number] = verdict
    finally:  # of those that are done, if it is interrupted; and whatever cannot be kept, verdicts are told
        files = [files[number] for number in sorted(found)]
        grades = [found[number] for number in sorted(found)]
        try:
            written = folders.report(grades, out, notes[-1]) if out else ()
            _remember(files, grades, own)
            notes = [*notes, *(f"written: {path}" for path in written)]
        except (OSError, ValueError) as error:
            console.complain(f"[yellow]not kept: {escape(str(error))}[/]")
    if options.json:
        console.print_json({"device": "tracer" if without_gpu else "gpu", "grades": [g.as_dict() for g in grades]})
    say = console.say(options)
    say.print(_table(grades))
    for one in grades:
        _print_reasons(one, out is None, options)
    for text in notes:
        say.print(f"[yellow]{escape(folders.printable(text))}[/]", soft_wrap=True)
    return RIGHT if all(one.passed for one in grades) else WRONG


def _print_reasons(one: grade.Grade, hints: bool, options: argparse.Namespace) -> None:
    """Print why a file did not pass, and what is noted; with ``hints`` where to get one."""
    lines = [*one.reasons, *one.notes]
    if hints and not one.passed and one.target[:1].isdigit():
        section = exercises.find(one.target).section
        lines.append(f"a hint: python -m common hint {one.target}{f'; its section: {section}' if section else ''}")
    if lines:
        exercise = "" if one.target == one.name else one.target
        head = " ".join(filter(None, (one.student, exercise, one.name)))
        console.say(options).print(escape("\n  ".join([head, *lines])), soft_wrap=True)


def _graded_line(entry: tuple[int, grade.Grade]) -> str:
    """``ada 01.2: passed``."""
    _, one = entry
    return f"{one.student} {one.target}: {'passed' if one.passed else 'not passed'}".lstrip()


def _own_sources(files: list[folders.Submission]) -> dict[Path, tuple[exercises.Exercise, bytes]]:
    """Those files that are exercises of this workbook itself, with their sources now."""
    own = {one.path.resolve(): one for one in exercises.everything()}
    paths = {file.path.resolve() for file in files} & own.keys()
    return {path: (own[path], path.read_bytes()) for path in paths}


def _remember(
    files: list[folders.Submission], grades: list[grade.Grade], own: dict[Path, tuple[exercises.Exercise, bytes]]
) -> None:
    """Keep the verdicts on the workbook's ``own`` exercises, and in the history the edited ones' sources.

    A file that was saved meanwhile is passed over: whose verdict it is cannot be told. Raises HistoryError.
    """
    for file, one in zip(files, grades, strict=True):
        path = file.path.resolve()
        exercise, source = own.get(path, (None, b""))
        if exercise is None or not path.is_file() or path.read_bytes() != source:
            continue
        exercises.State().remember(exercise, one.passed)
        if shipped.edited(path):
            history.keep(source, path.name)
            verdict, reason = ("passed", "") if one.passed else ("not passed", one.reasons[0])
            event = history.Event(path.stem, history.sha(source), "graded", "", verdict, reason)
            if [(last.source, last.verdict) for last in history.events(path.stem)[-1:]] != [(event.source, verdict)]:
                history.add(event)


def _table(found: list[grade.Grade]) -> Table:
    """One line for each verdict; students have a column if there are any."""
    students = any(one.student for one in found)
    table = Table(*(["student"] if students else []), "exercise", "file", "kind", "verdict")
    table.add_column("s", justify="right")
    for one in found:
        verdict = "[green]passed[/]" if one.passed else "[bold red]not passed[/]"
        number = "" if one.target == one.name else one.target
        cells = [number, escape(one.name), one.kind, verdict, f"{one.seconds:.0f}"]
        table.add_row(*([escape(one.student)] if students else []), *cells)
    return table


def hint(options: argparse.Namespace) -> int:
    edits.keep()  # exercises as shipped, while they are
    if options.exercise is None:
        console.say().print(tables.progress(exercises.everything(), exercises.State()))
        return RIGHT
    one = exercises.find(options.exercise)
    number, text = exercises.State().hint(one)
    head = f"{one.number} {escape(one.title)}: hint {number} of {len(one.hints)}"
    console.say().print(f"{head}\n  {escape(text)}", soft_wrap=True)
    return RIGHT
