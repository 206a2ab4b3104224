"""A reader's own files: ``history``, ``restore`` and ``reset`` of edited ones; ``grade`` and ``hint``."""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from rich.markup import escape
from rich.text import Text

from common.catalog import catalog, device, exercises, sources, store
from common.catalog.catalog import Step
from common.commands import arguments, console
from common.commands.console import RIGHT, WRONG
from common.edit import history
from common.explain.faults import cut
from common.grade import grade
from common.report.table import Cell, Table
from common.timing import measuring


def show_history(options: argparse.Namespace) -> None:
    files = [_file_of(options.step)] if options.step else sources.editable()
    if not (found := history.events(files[0].stem if options.step else None)):
        console.tell("the history is empty: it will list each run of an edited step")
        return
    steps, marks = {event.step for event in found}, dict[tuple[str, str], str]()
    for path in [path for path in files if path.stem in steps]:
        marks[path.stem, history.sha(sources.shipped(path) or b"")] = "shipped"
        if path.exists():
            marks[path.stem, history.sha(store.read_bytes(path))] = "now"
    console.say().print(history.table(found, marks, named=options.step is None))


def _file_of(text: str) -> Path:
    """The file of a step, experiment, helper or exercise, by its name, its path or an exercise's number."""
    with suppress(ValueError):
        return exercises.find(text).path
    return sources.find(Path(text).stem if text.endswith(".py") else text)


def restore(options: argparse.Namespace) -> None:
    path = _file_of(options.step)
    event = history.choose(path, options.version)
    saved = history.put_back(path, history.stored(path.name, event.source), "restored")
    console.tell(f"{path.stem}: restored as of {history.when(event)} (N {event.number}, {event.source[:8]})")
    if saved and saved != event.source:
        console.tell(f"what stood there was saved: python -m common restore {path.stem} {saved[:8]}")


def reset(options: argparse.Namespace) -> None:
    lessons, wanted = catalog.lessons(), options.lesson or ""
    folders = [catalog.LESSONS / name / part for name in lessons for part in (".", catalog.EXPERIMENTS)
               if wanted in (name, name[:2])]  # fmt: skip
    try:
        files = [path for path in sources.editable() if path.parent in folders] or [_file_of(wanted)]
    except ValueError:
        numbers = ", ".join(name[:2] for name in lessons)
        given = f"LESSON={wanted}" if wanted else "no lesson is named"
        text = f"{given}: must be one of {numbers}, or the name of a step, a helper or an exercise"
        raise ValueError(text) from None
    for path in files:
        original = sources.shipped(path)
        if original is None:
            console.complain(f"{path.stem}: left as it is: neither git nor .workbook has the shipped version")
        elif path.exists() and store.read_bytes(path) == original:
            console.tell(f"{path.stem}: as shipped")
        else:
            saved = history.put_back(path, original, "reset")
            kept = f"; your version: python -m common restore {path.stem} {saved[:8]}" if saved else ""
            console.tell(f"{path.stem}: reset{kept}")
    name_edited_helpers()


def name_edited_helpers(meaning: str = "so is every step that imports it") -> None:
    """Say which of the lessons' helpers are edited, and what that means."""
    for path in sources.edited_helpers():
        back = f"python -m common reset {path.stem} brings the shipped one back, and keeps yours"
        console.warn(f"{store.shown(path)} is edited: {meaning}; {back}")


def keep(steps: Sequence[Step] = ()) -> None:
    """Where no git keeps them, copy the shipped files before they are edited; store those of ``steps`` and of their
    helpers that are. What cannot be kept is said and stops nothing."""
    try:
        sources.keep_copies()
        for path in dict.fromkeys(one for step in steps for one in (step.path, *sources.edited_helpers(step.path))):
            if sources.edited(path):
                history.save(path)
    except OSError as error:
        console.warn(f"this run is not kept: {error}")


# --- exercises ---


def grade_files(options: argparse.Namespace) -> int:
    for name, value in (("--seconds", options.seconds), ("--workers", options.workers)):
        if value is not None and not 0 < value < 1e6:
            raise ValueError(f"{name} {value:g}: must be more than 0, and less than a million")
    files, folder, left_out = grade.to_grade(options.targets)
    if not files:
        raise ValueError(f"{folder}: no Python files in it" if folder else "there are no exercises yet")
    if folder is None:
        if options.out is not None:
            raise ValueError(f"--out {options.out}: goes with a folder of files to grade, and none is named")
        return _graded(options, files)
    out = options.out or folder
    out.mkdir(parents=True, exist_ok=True)
    if not os.access(out, os.W_OK):
        raise ValueError(f"{out}: must be a folder to write to, or name one with --out")
    inside = grade.INSIDE in os.environ
    if not inside and (words := grade.bubblewrap(folder, out)):
        given = [str(folder.resolve()), "--out", str(out.resolve()), "--seconds", str(options.seconds)]
        given += ["--workers", str(options.workers)] if options.workers else []
        given += [f"--{name}" for name in ("json", "sim") if getattr(options, name)]
        command = [*words, sys.executable, "-m", "common", "grade", *given]
        return subprocess.run(command, cwd=catalog.ROOT).returncode
    notes = [f"not graded: {text}" for text in left_out]
    return _graded(options, files, out, [*notes, grade.ISOLATED if inside else grade.NOT_ISOLATED])


def _graded(
    options: argparse.Namespace, files: list[grade.Submission], out: Path | None = None, notes: Sequence[str] = ()
) -> int:
    """Grade files and print the verdicts; those of a folder's are reported to ``out``, above the last note."""
    without_gpu = arguments.without_gpu(options.sim, options)
    gpu, ceilings = (None, None) if without_gpu else measuring.measure_device()
    grader = grade.Grader(gpu, ceilings, options.seconds)
    if grade.INSIDE not in os.environ:
        keep()
    name_edited_helpers("kernels are graded on the shipped one")
    grades: list[grade.Grade] = []
    try:
        with closing(grader.all(files, options.workers or device.workers())) as coming:
            line = _head if len(files) > 1 else None  # of one, the verdict itself follows
            for verdict in console.progress("grade", coming, files, line, options.json):
                grades.append(verdict)
    finally:  # of those that are done, if it is interrupted; and whatever cannot be kept, verdicts are told
        try:
            written = grade.report(grades, out, notes[-1]) if out else ()
            _remember(list(zip(files, grades, strict=False)))
            notes = [*notes, *(f"written: {path}" for path in written)]
        except (OSError, ValueError) as error:
            console.warn(f"not kept: {error}")
    if options.json:
        console.print_json({"device": "tracer" if without_gpu else "gpu", "grades": [g.as_dict() for g in grades]})
    for one in grades:
        lines = [*one.reasons, *one.notes]
        if not out and not one.passed and one.target[:1].isdigit():
            section = exercises.find(one.target).section
            lines.append(f"a hint: python -m common hint {one.target}" + f"; its section: {section}" * bool(section))
        head = f"[{'green' if one.passed else 'bold red'}]{escape(_head(one))}[/]"
        console.tell(head, *(escape(f"  {text}") for text in lines), options=options)
    console.tell(*(f"[yellow]{escape(cut(text, 1000))}[/]" for text in notes), options=options)
    return RIGHT if all(one.passed for one in grades) else WRONG


def _head(one: grade.Grade) -> str:
    """``ada 01.2 NAME: passed, 3 s``."""
    names = dict.fromkeys(filter(None, (one.student, one.target, one.name)))
    return f"{' '.join(names)}: {'passed' if one.passed else 'not passed'}, {one.seconds:.0f} s"


def _remember(graded: list[tuple[grade.Submission, grade.Grade]]) -> None:
    """Keep the verdicts on the workbook's own exercises, and in the history the edited ones' sources; a file that was
    saved meanwhile is passed over. Raises StoreError."""
    own = {one.path.resolve(): one for one in exercises.everything()}
    for file, one in graded:
        path = file.path.resolve()
        if path in own and grade.Submission(path).text == file.text:
            exercises.State().remember(own[path], one.passed)
            if sources.edited(path):
                history.save(path)


def hint(options: argparse.Namespace) -> None:
    keep()  # exercises as shipped, while they are
    state = exercises.State()
    if options.exercise is None:
        rows: list[list[Cell]] = []
        for one in exercises.everything():
            done = Text("passed" if state.passed(one) else "", style="green")
            rows.append([one.number, one.title, one.kind, f"{state.hints(one)} of {len(one.hints)}", done])
        header = ["", "exercise", "kind", "hints", "done"]
        console.say().print(Table(header, rows, left=header[1:]))
        return
    one = exercises.find(options.exercise)
    all_given = state.hints(one) == len(one.hints)
    number, text = state.hint(one)
    console.tell(f"{one.number} {escape(one.title)}: hint {number} of {len(one.hints)}\n  {escape(text)}")
    if all_given:
        solution = one.path.parents[1] / "solutions" / f"{one.name}.diff"
        console.tell(f"that is the last hint; the solution: {escape(store.shown(solution))}")
