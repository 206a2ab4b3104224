"""Grades exercises and other people's kernels: passed or not, and why.

A kernel is traced in a child process at its exercise's shapes and at fresh ones, on operands of a secret seed; then
what its exercise limits is counted. With a GPU it is checked there, too, and timed if a share of the floor is asked.
"""

import contextlib
import itertools
import json
import random
import re
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from common.catalog import catalog, exercises, problems, sources, store
from common.catalog.device import Gpu
from common.catalog.exercises import Exercise, ExerciseError
from common.catalog.problems import Problem
from common.check import check, loading, plan
from common.explain.faults import CAUSES, cut
from common.grade import reading
from common.grade.tasks import READS, Count, Counted, known
from common.records import records
from common.report.table import Table, markdown
from common.run import isolate, messages
from common.run.messages import Finding, StepResult, Task
from common.timing.ceilings import Ceilings

SOURCE_BYTES = 1 << 18  # the largest file that is read
REPORTS = ("grades.json", "grades.md")
INSIDE = "WORKBOOK_IN_BUBBLEWRAP"  # in the environment of a grade command that runs in there
_TRY_SECONDS = 20.0
ISOLATED = "isolated: the files ran in bubblewrap, which has no network and writes nothing but the report"
_WHY = "as bwrap is not installed or may not be used here; see lessons/GRADING.md"
NOT_ISOLATED = f"not isolated: each file ran with the rights of whoever graded, {_WHY}"
TIMED_BYTES = 448 << 20  # of a problem and its workspace: reduced to it, so that a grade takes seconds
TIMED_SECONDS = 180.0
SAME_FILTER = 0.7  # of them have filter, strides, padding and dilation of one of the exercise's own
# what follows an endless wait
FOLLOWING = {"unwritten", "nan", "wrong", "imprecise", "stale", "unstable"}
_ARRAYS = {"M", "N", "K", "C", "D", "H", "W"}  # extents of arrays
BEYOND_FLOOR = 1.05  # ceilings are measured too, to a few percent
FRESH = 8  # shapes that a file must be right at beside its exercise's
TRIED, DRAWS = 16, 64  # fresh shapes that are tried with the solution, and drawn to find so many
SOLUTION_SECONDS = 60.0
MOST = 1 << 15  # multiply-adds of a fresh shape, unless the exercise's own have more


class Submission:
    """One file to grade, whose it is, and its path in the folder that is graded (``file``). ``text`` is what it holds
    now, with lines that end by ``\\n`` alone; ``refusal`` why it has none."""

    def __init__(self, path: Path, student: str = "", file: str = "") -> None:
        self.path, self.student, self.file = path, student, file
        self.text, self.refusal = "", ""
        try:
            if path.stat().st_size > SOURCE_BYTES:
                self.refusal = f"too long: at most {SOURCE_BYTES:,} bytes are read"
            else:
                self.text = path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            self.refusal = f"line {error.object.count(10, 0, error.start) + 1}: not UTF-8"
        except OSError as error:
            self.refusal = str(error.strerror)

    @property
    def target(self) -> Exercise | None:
        """The exercise or step that the file's name says it is; None if it says neither."""
        return known().get(self.path.stem)


@dataclass
class Grade:
    """The verdict on one file. ``findings`` are reasons not to pass; ``notes`` are said and decide nothing."""

    target: str  # the exercise's number, or the step's name
    name: str
    kind: str
    student: str = ""
    file: str = ""  # the path, in the folder that is graded
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)  # where figures were reached
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return not self.findings

    @property
    def reasons(self) -> list[str]:
        """One line per finding."""
        return [f"{finding.kind}: {finding.message}" for finding in self.findings]

    def add(self, kind: str, message: str) -> None:
        """Add a reason not to pass."""
        self.findings.append(Finding(kind, message))

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "passed": self.passed}


class Grader:
    """Grades files, several at a time, on a GPU with its ceilings or without. A file may take ``seconds`` for each
    check. Fresh shapes are drawn from one seed, so they are the same for all who hand in."""

    def __init__(self, gpu: Gpu | None = None, ceilings: Ceilings | None = None, seconds: float = 60.0) -> None:
        self.gpu, self.ceilings, self.seconds = gpu, ceilings, seconds
        self.seed, self.closing = secrets.randbits(48), threading.Event()
        self.drawn: dict[str, list[Problem]] = {}  # the fresh shapes, by exercise or step
        self.drawing: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def all(self, files: list[Submission], workers: int) -> Generator[Grade, None, None]:
        """Each file's grade; what is not done when the iterator is closed is left out."""
        with isolate.Pool(workers) as pool:
            self.closing = pool.stop
            yield from pool.map(self.grade, files)

    def grade(self, file: Submission) -> Grade:
        """The verdict on one file; one whose name is of no exercise and no step is not passed."""
        start, target = time.monotonic(), file.target
        what = (target.number, target.name, target.kind) if target else ("", cut(file.path.stem), "unknown")
        grade = Grade(*what, cut(file.student), cut(file.file or file.path.name))
        try:
            if target is None:
                grade.add("unknown", f"{grade.file}: no exercise and no step has this name")
            elif file.refusal:
                grade.add("unusable", f"{grade.file}: {file.refusal}")
            elif grade.kind == "predict":
                grade.findings, grade.notes = reading.predicted(target, file.text)
            else:
                self._judge(grade, file, target)
        except Exception as error:  # one file must not cost the verdicts on others
            failed = "" if isinstance(error, ExerciseError) else f"the grader failed with {type(error).__name__}: "
            grade.add("unjudged", f"cannot be judged: {failed}{error}")
        grade.findings = [Finding(one.kind, in_one_line(one.message)) for one in grade.findings]
        grade.notes = [in_one_line(note) for note in grade.notes]
        grade.seconds = time.monotonic() - start
        return grade

    def _judge(self, grade: Grade, file: Submission, target: Exercise) -> None:
        """Run a kernel's file, unless there is no use for what it has, and hold it against its exercise."""
        if strange := reading.foreign(file.text, target.solution, grade.kind not in READS):
            grade.add("language", f"{'; '.join(strange)}: there is no use for it here, so the file was not run")
        else:
            with tempfile.TemporaryDirectory(prefix="workbook-") as folder:
                self._run(grade, Path(folder), file, target)
        if grade.kind == "step":
            return
        if target.floor and self.gpu is None:
            asked = f"{target.floor:g} percent of the floor's rate on {target.preset}"
            grade.notes.append(f"not timed, as there is no GPU here: with one, {asked} is required, too")
        if grade.findings and (blank := reading.unfilled(file.text)):
            grade.findings.insert(0, Finding("unsolved", blank))
        if departure := reading.departure(target, file.text):
            grade.add("frame", departure)
        if not grade.findings and sources.code_hash(file.text) == sources.code_hash(target.solution):
            grade.notes.append("the same code as the solution, which is fine")

    def _run(self, grade: Grade, folder: Path, file: Submission, target: Exercise) -> None:
        """Fill in the grade of a kernel, up to the first reason not to pass, from what becomes of it in a folder."""
        copy = folder / file.path.name
        copy.write_text(file.text, encoding="utf-8", newline="\n")
        place: dict[str, Any] = {"path": str(copy), "ladder": target.ladder, "step": target.name, "helpers": {}}
        for helper in sources.edited_helpers(copy):  # as they were shipped
            original = folder / "helpers" / helper.name
            store.write(original, sources.shipped(helper) or b"")
            place["helpers"][helper.stem] = str(original)
        if grade.kind == "step":
            place["home"] = str(target.path)
        for without_gpu in (True, False)[: 2 if self.gpu else 1]:
            asked = self._tasks(place, target, without_gpu)
            for task, result in isolate.run(asked, without_gpu, self.seconds, self.closing):
                if result.status == "unjudged" and isinstance(task, messages.Check) and not task.on_gpu:
                    # of what the tracer does not know: if it does not compile, Numba says why
                    targets = catalog.targets(target.said["requires"], ["9.0"])
                    compiling = messages.Compile(**place, shape=task.shape, architectures=targets)
                    built = isolate.run([compiling], True, self.seconds, self.closing)
                    result = next((one for _, one in built if one.status == "crashed"), result)
                grade.findings += _findings(task, result)
                if isinstance(result, Counted):
                    grade.notes, grade.figures, grade.places = [*result.notes], dict(result.figures), result.places
                elif isinstance(task, messages.Time) and result.status == "right":
                    self._timed(grade, target, task.problem, result.time.median_ms)
                if grade.findings:
                    return
            if not grade.figures:
                grade.add("unjudged", "the grading was ended")

    def _tasks(self, place: dict[str, Any], target: Exercise, without_gpu: bool) -> Iterator[Task[Any]]:
        """What is asked, each once what was asked before is right."""
        how = {} if without_gpu else {"engine": "gpu", "repeats": check.REPEATS}
        for one in target.problems():
            yield checking(target, place, one, **how)
        if without_gpu:
            for one in self.fresh(target):
                yield checking(target, place, one, depth="once")
            yield Count(**place)
        elif target.floor or target.kind == "step":
            shape = loading.fitted(problems.preset(target.preset), TIMED_BYTES).shape()
            yield messages.Time(**place, shape=shape, seed=secrets.randbits(48), seconds=TIMED_SECONDS)

    def _timed(self, grade: Grade, target: Exercise, problem: Problem, milliseconds: float) -> None:
        """Compare its time with the floor."""
        derived = self.ceilings and records.derive(problem, milliseconds, self.ceilings, target.said["precision"])
        if not derived:
            return
        percent, took = derived.percent_of_floor, f"{milliseconds:.3g} ms"
        grade.figures |= {"ms": milliseconds, "percent_of_floor": percent}
        grade.notes.append(f"{took} on {problem}: {percent:.1f} percent of the floor's rate")
        if percent > 100 * BEYOND_FLOOR:
            text = f"{took} is less than the floor, {derived.floor_ms:.3g} ms, allows: look at this one by hand"
            grade.add("impossible", text)
        elif percent < target.floor:
            text = f"{percent:.1f} percent of the floor's rate on {target.preset} ({took})"
            grade.add("slow", f"{text}; {target.floor:g} percent is required")

    def fresh(self, target: Exercise) -> list[Problem]:
        """Shapes that no author of a file could know, at which the solution, or the shipped step, is right."""
        with self.drawing[target.name]:
            if target.name not in self.drawn:
                place = {"path": str(target.write_solution()), "ladder": target.ladder, "step": target.name}
                drawn = fresh_shapes(target.problems(), self.seed)
                checks = [checking(target, place, one, depth="once") for one in drawn]
                results = isolate.run(checks, True, SOLUTION_SECONDS, self.closing)
                right = (one for one, (_, result) in zip(drawn, results, strict=False) if result.status == "right")
                self.drawn[target.name] = list(itertools.islice(right, FRESH))
            return self.drawn[target.name]


def checking(target: Exercise, place: dict[str, Any], problem: Problem, **more: Any) -> messages.Check:
    """A check of a file in the place of an exercise, traced unless ``more`` names another engine."""
    asked = {"seed": secrets.randbits(48), "repeats": 1, "precision": target.said["precision"], **more}
    return messages.Check(**place, shape=problem.shape(), algorithm=target.said["algorithm"], **asked)


def _findings(task: Task[Any], result: Counted | StepResult) -> list[Finding]:
    """Reasons not to pass, with the shape: what is unsound first, as it may be the cause of the rest."""
    if result.status == "right":
        return []
    unsound = [fault for fault in result.faults if fault.kind in CAUSES]
    found = [Finding("unsound", f"{CAUSES[one.kind]}: {one.what}; look at: {one.look_at}") for one in unsound]
    told = {"unsound"} if unsound else set()
    told |= FOLLOWING if any(fault.kind == "deadlock" for fault in unsound) else set()
    found += [one for one in result.findings if one.kind not in told]
    if not found:
        text, looks = str(result.message), ""
        for one in result.faults[:1]:
            text = one.what if result.status == "crashed" else text
            looks = f"; line {one.line}: {one.code}" * (one.line is not None) + f"; look at: {one.look_at}"
        if re.match(r"(TypingError|LoweringError|UnsupportedError|NvvmError)\b", text):
            text = f"it does not compile for a GPU: {text}"
        elif result.status == "unjudged":
            text = f"cannot be judged here: {text.removeprefix('cannot be judged here: ')}"
        found = [Finding(result.status, text + looks)]
    if not isinstance(task, messages.Check | messages.Time) or result.status == "unusable":
        return found
    drawn = isinstance(task, messages.Check) and task.depth == "once"
    said = ": a shape that was drawn for this grade" if drawn else ""
    return [Finding(one.kind, f"at {task.problem}: {one.message}{said}") for one in found]


def fresh_shapes(own: Sequence[Problem], seed: int) -> list[Problem]:
    """Shapes beside an exercise's ``own``: drawn, and most of them with the filter, strides, padding and dilation of
    one of these. What all of ``own`` leave as it is, such as a stride of 1, an exercise may say is always so."""
    rng = random.Random(seed)
    plain = {name: 0 if name.startswith("pad") else 1 for name in asdict(own[0])}
    free = {name for problem in own for name, value in asdict(problem).items() if value != plain[name]}
    most = max(MOST, *(one.flops // 2 for one in own))
    found: list[Problem] = []
    for one in plan.drawn(own[0].ladder, seed, DRAWS, most):
        drawn = free & _ARRAYS if rng.random() < SAME_FILTER else free
        kept = {name: value for name, value in asdict(rng.choice(own)).items() if name not in drawn}
        with contextlib.suppress(ValueError):  # a filter larger than its image
            fresh = replace(one, **kept)
            if fresh.flops // 2 <= most and fresh not in (*own, *found):
                found.append(fresh)
    return found[:TRIED]


# --- folders of other people's files ---


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
        elif not within and len(path.parts) > 1:
            raise ValueError(f"{target}: no such file or folder")
        else:  # of this workbook: a lesson's folder, or the exercises below it
            paths += [one.path for one in exercises.chosen(within[0] if within else target)]
    return [Submission(path) for path in dict.fromkeys(paths)], None, []


def report(grades: Sequence[Grade], folder: Path, note: str = "") -> tuple[Path, Path]:
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
