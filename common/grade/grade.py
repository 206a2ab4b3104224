"""Grades exercises and other people's kernels: passed or not, and why.

A kernel is judged in a child process (:mod:`common.grade.tasks`): checked as ``check --file`` does, at its exercise's
shapes and at fresh ones, on operands of a secret seed; then what its exercise limits is counted. With a GPU it is
checked there, too, and timed where the exercise asks for a share of the floor.
"""

from __future__ import annotations

import contextlib
import difflib
import random
import re
import secrets
import tempfile
import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from common.catalog import catalog, exercises, problems, sources
from common.catalog.catalog import Step
from common.catalog.device import Gpu
from common.catalog.exercises import Exercise
from common.catalog.problems import Problem
from common.check import budget, check, shapes
from common.edit import shipped
from common.grade import answers, frame, limits
from common.grade.folders import Submission, in_one_line, printable
from common.grade.tasks import Judge, Judged
from common.records import records
from common.run import isolate, messages
from common.run.messages import Task
from common.run.results import Finding, StepResult
from common.timing import ceilings as measured
from common.timing.ceilings import Ceilings

TIMED_BYTES = 448 << 20  # of a problem and its workspace: reduced to it, so that a grade takes seconds
TIMED_SECONDS = 180.0
COMPILED_BYTES = 112 << 20  # of a problem that is compiled for, and its workspace
BEYOND_FLOOR = 1.05  # ceilings are measured too, to a few percent
# Reads of global memory for each of the solution: there is more than one way to fill a blank, and a mended bug leaves
# the rest as it is.
READS = {"write": 1.5, "bug": 1.1}
WITHIN = 5  # times a question's seconds: that a file may take for all of them
TRIED, DRAWS = 16, 64  # fresh shapes that are tried with a file, and drawn to find so many
MOST = 1 << 15  # multiply-adds of a fresh shape, unless the exercise's own have more
SAME_FILTER = 0.7  # of them have filter, strides, padding and dilation of one of the exercise's own
_ARRAY_EXTENTS = {"M", "N", "K", "C", "D", "H", "W"}


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
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return not self.findings

    @property
    def reasons(self) -> list[str]:
        """One line per finding."""
        return [f"{finding.kind}: {finding.message}" for finding in self.findings]

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "passed": self.passed}


@dataclass
class Grader:
    """Grades files, several at a time, on a GPU with its ceilings or without; work on a GPU goes one at a time.

    A file may take ``seconds`` for each question, and ``memory_bytes``. Fresh shapes are drawn from ``seed``, so they
    are the same for all who hand in.
    """

    gpu: Gpu | None = None
    ceilings: Ceilings | None = None
    seconds: float = 60.0
    memory_bytes: int = 8 << 30
    seed: int = field(default_factory=lambda: secrets.randbits(48))
    closing: threading.Event = field(default_factory=threading.Event)
    on_gpu: threading.Lock = field(default_factory=threading.Lock)

    def all(self, files: list[Submission], workers: int) -> Generator[tuple[int, Grade], None, None]:
        """Each file's number and grade, as they come; what is not done when the iterator is closed is left out.

        All files are read before any of them runs.
        """
        self.closing.clear()
        files = [file.taken() for file in files]
        pool = ThreadPoolExecutor(max(1, workers))
        try:
            numbers = {pool.submit(self.grade, file): number for number, file in enumerate(files)}
            for done in as_completed(numbers):
                yield numbers[done], done.result()
        finally:
            self.closing.set()
            pool.shutdown(wait=True, cancel_futures=True)

    def grade(self, file: Submission) -> Grade:
        """The verdict on one file; one whose name is of no exercise and no step is not passed."""
        start, file, target = time.monotonic(), file.taken(), file.target
        place = printable(file.student), printable(file.file or file.path.name)
        if isinstance(target, Exercise):
            grade = Grade(target.number, target.name, target.kind, *place)
        elif target:
            grade = Grade(target.name, target.name, "step", *place)
        else:
            grade = Grade("", printable(file.path.stem), "unknown", *place)
        try:
            self._judge(grade, file, target)
        except Exception as error:  # one file must not cost the verdicts on others
            text = f"cannot be judged: the grader failed with {type(error).__name__}: {error}"
            grade.findings.append(Finding("unjudged", text))
        grade.findings = [Finding(one.kind, in_one_line(one.message)) for one in grade.findings]
        grade.notes = [in_one_line(note) for note in grade.notes]
        grade.seconds = time.monotonic() - start
        return grade

    def _judge(self, grade: Grade, file: Submission, target: Exercise | Step | None) -> None:
        if target is None:
            said = f"{grade.file}: no exercise and no step has this name{_near(file.path)}"
            grade.findings = [Finding("unknown", said)]
            return
        if file.text is None:
            grade.findings = [Finding("unusable", f"{grade.file}: {file.refusal}")]
            return
        exercise = target if isinstance(target, Exercise) else None
        if exercise and exercise.kind == "predict":
            grade.findings, grade.notes = answers.predicted(exercise, file.text)
            return
        given = exercise.solution if exercise else target.path
        strange = frame.foreign(file.text, given.read_text(encoding="utf-8"), grade.kind not in READS)
        if strange:
            said = "; ".join([*strange[:3], *([f"and {len(strange) - 3} more"] if len(strange) > 3 else [])])
            said += ": there is no use for it here, so the file was not run"
            grade.findings = [Finding("language", said)]
        else:
            with tempfile.TemporaryDirectory(prefix="workbook-") as folder:
                _Kernel(self, grade, Path(folder), file, target).judge()
        if exercise:
            self._compare(grade, exercise, file.text)

    def _compare(self, grade: Grade, exercise: Exercise, text: str) -> None:
        """Hold a kernel against its exercise: limits, frame, and the solution."""
        if exercise.floor and self.gpu is None:
            asked = f"{exercise.floor:g} percent of the floor's rate on {exercise.preset}"
            grade.notes.append(f"not timed, as there is no GPU here: with one, {asked} is asked for, too")
        if not grade.findings:
            grade.findings, kept = limits.compared(grade.figures, exercise)
            grade.notes = [*kept, *grade.notes]
        departure = frame.departure(exercise, text)
        if departure:
            grade.findings.append(Finding("frame", departure))
        if not grade.findings and sources.code_hash(text) == sources.source_hash(exercise.solution):
            grade.notes.append("line by line as the solution has it")


@dataclass(frozen=True)
class _Kernel:
    """One kernel file that is judged, in a folder of its own."""

    grader: Grader
    grade: Grade
    folder: Path
    file: Submission
    target: Exercise | Step

    @property
    def exercise(self) -> Exercise | None:
        return self.target if isinstance(self.target, Exercise) else None

    @property
    def shapes(self) -> list[Problem]:
        """What it is checked at: a step at its ladder's ragged shapes."""
        return self.exercise.problems() if self.exercise else list(problems.RAGGED[self.target.ladder])

    @property
    def preset(self) -> str:
        return self.exercise.preset if self.exercise else exercises.PRESETS[self.target.ladder]

    def judge(self) -> None:
        """Fill in the grade."""
        copy, target = self.folder / self.file.path.name, self.target
        copy.write_text(self.file.text or "", encoding="utf-8", newline="\n")
        helpers = self._helpers(copy)
        place = {"path": str(copy), "ladder": target.ladder, "step": target.name, "helpers": helpers}
        if not self.exercise:
            place["home"] = str(target.path)
        found = self._done([self._task(place)], True)
        result = found[0] if found else Judged(status="unjudged", message="the grading was ended")
        self.grade.findings += _findings(result)
        self.grade.notes += result.notes
        self.grade.figures |= result.figures
        if self.grader.gpu and not self.grade.findings:
            self._on_gpu(place)

    def _done(self, tasks: list[Task[Any]], without_gpu: bool) -> list[Any]:
        """The tasks' results, fewer if the grading ends meanwhile."""
        grader = self.grader
        with contextlib.nullcontext() if without_gpu else grader.on_gpu:
            return [result for _, result in isolate.run(tasks, without_gpu, grader.seconds, grader.closing)]

    def _helpers(self, copy: Path) -> dict[str, str]:
        """Copies of the edited helpers that it imports, as they were shipped."""
        found = {}
        for helper in shipped.edited_helpers(copy):
            text = shipped.text(helper)
            if text is not None:
                path = self.folder / "helpers" / helper.name
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(text)
                found[helper.stem] = str(path)
        return found

    def _task(self, place: dict[str, Any]) -> Judge:
        target, exercise = self.target, self.exercise
        limited: dict[str, Any] = {}
        if exercise:
            limited = {
                "most_reads": READS.get(exercise.kind, 0.0), "limited": sorted(limits.limited(exercise)),
                "least": sorted(exercise.at_least), "compiled_shape": _compiled_problem(exercise.preset).shape(),
            }  # fmt: skip
        return Judge(
            **place, **limited, solution=str(exercise.solution if exercise else target.path),
            shapes=[one.shape() for one in self.shapes],
            fresh=[one.shape() for one in fresh_shapes(self.shapes, self.grader.seed)],
            seed=secrets.randbits(48),
            architecture=catalog.target(target.requires, limits.ARCHITECTURE), precision=target.precision,
            algorithm=target.algorithm, within=WITHIN * self.grader.seconds, memory_bytes=self.grader.memory_bytes,
        )  # fmt: skip

    def _on_gpu(self, place: dict[str, Any]) -> None:
        """Check it on the GPU; time it if a share of the floor is asked for, or if it is a step."""
        grade, target, seed = self.grade, self.target, secrets.randbits(48)
        tasks: list[Task[Any]] = [
            messages.Check(
                **place, shape=one.shape(), engine="gpu", depth="usual", seed=seed, precision=target.precision,
                algorithm=target.algorithm, repeats=check.REPEATS,
            )
            for one in self.shapes
        ]  # fmt: skip
        timed = budget.fitted(problems.preset(self.preset), TIMED_BYTES)
        if not self.exercise or self.exercise.floor:
            tasks.append(messages.Time(**place, shape=timed.shape(), seed=seed, seconds=TIMED_SECONDS))
        for task, result in zip(tasks, self._done(tasks, False), strict=False):
            problem = problems.from_shape(target.ladder, getattr(task, "shape", {}))
            grade.findings += [Finding(one.kind, f"at {problem}: {one.message}") for one in _findings(result)]
            if not grade.findings and result.timing is not None:
                self._timed(timed, result.time.median_ms)
            if grade.findings:
                return

    def _timed(self, problem: Problem, milliseconds: float) -> None:
        """Compare its time with the floor."""
        grade, ceilings = self.grade, self.grader.ceilings
        by = measured.instruction(self.target.requires)
        derived = records.derive(problem, milliseconds, ceilings, self.target.precision, by) if ceilings else None
        if derived is None:
            return
        percent, asked = derived.percent_of_floor, self.exercise.floor if self.exercise else 0.0
        grade.figures |= {"ms": milliseconds, "percent_of_floor": percent}
        grade.notes.append(f"{milliseconds:.3g} ms on {problem}: {percent:.1f} percent of the floor's rate")
        if percent > 100 * BEYOND_FLOOR:
            text = f"{milliseconds:.3g} ms is less than the floor, {derived.floor_ms:.3g} ms, allows"
            grade.findings.append(Finding("impossible", f"{text}: look at this one by hand"))
        elif percent < asked:
            text = f"{percent:.1f} percent of the floor's rate on {self.preset} ({milliseconds:.3g} ms)"
            grade.findings.append(Finding("slow", f"{text}; {asked:g} percent is asked for"))


def _findings(result: Judged | StepResult) -> list[Finding]:
    """Reasons not to pass in a task's result; a kernel that Numba cannot compile is called that."""
    if result.status == "right":
        return []
    if result.findings:
        return list(result.findings)
    text, faults = str(result.message), result.faults
    if re.match(r"(TypingError|LoweringError|UnsupportedError|NvvmError)\b", text):
        text = f"it does not compile for a GPU: {text}"
    looks = "".join(f"; look at: {fault.look_at}" for fault in faults[:1] if fault.look_at)
    return [Finding(result.status, text + looks)]


def _compiled_problem(preset: str) -> Problem:
    """A preset, with a batch that fits."""
    problem = problems.preset(preset)
    return problem if isinstance(problem, problems.Gemm) else budget.fitted(problem, COMPILED_BYTES)


def fresh_shapes(own: Sequence[Problem], seed: int) -> list[Problem]:
    """Shapes beside an exercise's ``own``: drawn, and most of them with the filter, strides, padding and dilation of
    one of these. A kernel that is right at few shapes alone, which all can read, may be wrong at these.

    What all of ``own`` leave as it is, an exercise may say is always so: a stride of 1, no padding, one channel.
    """
    rng = random.Random(seed)
    plain = {name: 0 if name.startswith("pad") else 1 for name in asdict(own[0])}
    free = {name for problem in own for name, value in asdict(problem).items() if value != plain[name]}
    most = max(MOST, *(one.flops // 2 for one in own))
    found: list[Problem] = []
    for one in shapes.drawn(own[0].ladder, seed, DRAWS, most):
        like, filters = rng.choice(own), rng.random() < SAME_FILTER
        kept = {
            name: value
            for name, value in asdict(like).items()
            if name not in free or (filters and name not in _ARRAY_EXTENTS)
        }
        with contextlib.suppress(ValueError):  # a filter larger than its image
            fresh = replace(one, **kept)
            if fresh.flops // 2 <= most and fresh not in (*own, *found):
                found.append(fresh)
    return found[:TRIED]


def _near(path: Path) -> str:
    """The exercise that a file's name resembles."""
    known = [one.name for one in exercises.everything()] + [step.name for step in catalog.steps()]
    stem = re.sub(r"[ (]+\d*\)?$", "", path.stem.lower())
    near = difflib.get_close_matches(stem, known, 1)
    return f". Did you mean {near[0]}.py?" if near else ""
