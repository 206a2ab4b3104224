"""Verdicts on exercises and on other people's kernels: passed or not, and why.

A kernel is checked at its shapes, and what its exercise limits is counted or timed. Files come from anybody, so they
run as :mod:`common.grade.sandbox` has it; a prediction is read and not run. Without a GPU a kernel is
traced, and must also compile to the same launches. With one, it is recorded, and its kernels run where its Python
does not.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import os
import re
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from common.catalog import catalog, exercises, problems, sources
from common.catalog.catalog import Step
from common.catalog.device import Gpu
from common.catalog.exercises import Exercise
from common.catalog.problems import Problem
from common.check import check, inputs, shapes
from common.check.check import Finding
from common.edit import history, shipped
from common.grade import (
    allowed_edits,
    answers,
    borrowed,
    checkout,
    confine,
    folders,
    fresh_shapes,
    language,
    limits,
    messages,
    ptx_plan,
    sandbox,
    source,
)  # fmt: skip
from common.grade.answers import Facts
from common.grade.borrowed import Borrowed
from common.grade.checkout import Change
from common.grade.folders import Submission
from common.grade.looks import beyond, differences, sampled, traced, wrong
from common.grade.messages import Launched, PtxRun, Started, Traced
from common.grade.ptx_plan import Plan, remembered
from common.grade.sandbox import NOTED, Limits, Note, Sandbox, SandboxError
from common.grade.source import in_one_line, printable
from common.machine_code import codegen
from common.records import records
from common.run import isolate
from common.timing import ceilings as measured
from common.timing.ceilings import Ceilings

DRAWN, DRAWN_MULTIPLY_ADDS = 3, 1 << 14  # shapes that are drawn for each grade of a step, and their size at most
TIMED_BYTES = 256 << 20  # of operands: a batch is reduced to it, so that a grade takes seconds
TIMED_SECONDS = 180.0
# Reads of global memory for each of the solution: there is more than one way to fill a blank, and a mended bug leaves
# the rest as it is.
READS = {"write": 1.5, "bug": 1.1}
AGAIN = 3  # times that a file is graded alone, where its grade was disturbed each time before
BEYOND_FLOOR = 1.05  # ceilings are measured too, to a few percent

# What a file says that it has no use for, and what its process noted, most telling first; a check's words come after.
CHEATS = ("language", "differs", *NOTED)

TRACED = 2  # of the shapes
UNSOUND, TOLD = "unsound", 3
FRESH, TRIED = 8, 32  # shapes that an exercise is traced at beside its own, and that its solution is, to find so many
NEEDED = (
    "read what the output takes, and no more often: a thread beyond an edge reads nothing (with an index that min or "
    "max keeps inside, it reads a value once more); if a tile is staged, it must be what is multiplied"
)
SAMPLED_BYTES, SAMPLED_K = 64 << 20, 256
SPARE = 1.25  # multiply-adds of a block for each that its results take


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
    disturbed: str = ""  # by what else went on at the time, as far as is known
    at_large: bool = False  # it ran where it could have changed files of the checkout

    @property
    def passed(self) -> bool:
        return not self.findings

    @property
    def reasons(self) -> list[str]:
        """One line per finding."""
        return [f"{finding.kind}: {finding.message}" for finding in self.findings]

    def as_dict(self) -> dict[str, object]:
        found = asdict(self)
        del found["disturbed"], found["at_large"]
        return {**found, "passed": self.passed}


@dataclass(frozen=True)
class Machine:
    """What grades run on: a GPU with its ceilings, or none."""

    gpu: Gpu | None = None
    ceilings: Ceilings | None = None

    @property
    def architecture(self) -> str:
        return self.gpu.compute_capability if self.gpu else limits.ARCHITECTURE


@dataclass
class Evidence:
    """What was found out about a kernel."""

    findings: list[Finding] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    sampled: list[Started] = field(default_factory=list)
    unseen: list[Finding] = field(default_factory=list)  # what no engine could look at: said if all else is right
    at_large: bool = False  # the file ran where it could have changed files of the checkout


@dataclass(frozen=True)
class Work:
    """A kernel file to judge: its text as it was taken, and what it is judged at."""

    path: Path
    text: str
    ladder: str
    shapes: list[Problem]
    exercise: Exercise | None
    precision: str = catalog.PRECISIONS[0]
    algorithm: str | None = None
    requires: str | None = None
    borrowed: Borrowed = borrowed.NOTHING

    def target(self, capability: str) -> str:
        """The compute capability that it is compiled for, where this one would do if it required none."""
        return catalog.target(self.requires, capability)

    @property
    def kind(self) -> str:
        return self.exercise.kind if self.exercise else ""

    @property
    def framed(self) -> bool:
        """Is it to do what the solution does, in the solution's way?"""
        return self.kind in READS

    @property
    def traced(self) -> bool:
        """Does the verdict rest on its accesses?"""
        return self.framed or bool(limits.limited(self.exercise) & set(limits.TOUCHED))

    @property
    def counted(self) -> set[str]:
        """What is limited of its compiled code."""
        return limits.limited(self.exercise) - {*limits.TOUCHED, *limits.EVERYWHERE}

    @property
    def counted_problem(self) -> Problem:
        """Its preset, small enough to look into blocks: a batch that fits, and not the longest sums."""
        assert self.exercise
        problem = problems.preset(self.exercise.preset)
        if isinstance(problem, problems.Gemm):
            return replace(problem, K=min(problem.K, SAMPLED_K))
        return problems.fit_batch(problem, SAMPLED_BYTES)


@dataclass(frozen=True)
class Solved:
    """What a trace of an exercise's solution finds at each shape that is traced, and fresh shapes it is right at."""

    traces: list[Traced]
    fresh: list[Problem]


class Grader:
    """Grades files, several at a time; work on a GPU goes one at a time."""

    def __init__(
        self, machine: Machine | None = None, limits: Limits | None = None, root: Path | None = None
    ) -> None:
        confine.keep_private()
        # what is imported or compiled from now on, in any process, leaves nothing in the checkout
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        self.machine, self.limits = machine or Machine(), limits or Limits()
        self.facts = Facts()
        self.checkout = checkout.Checkout(root or catalog.ROOT)
        self._walled = confine.keeps_files(confine.version())  # nothing that ran so far could write in the checkout
        self._gpu = threading.Lock()
        self._closing = threading.Event()
        self._at_work: set[object] = set()
        self._solved: dict[str, Solved] = {}
        self._solving = threading.Lock()

    def all(self, files: list[Submission], workers: int) -> Generator[tuple[int, Grade], None, None]:
        """Each file's number and grade, as they come; what is not done when the iterator is closed is left out.

        All files are taken before any of them runs. Those that another may have disturbed are graded again, alone.
        """
        self._closing.clear()
        files = [file.taken() for file in files]
        targets = [target for target in (file.target for file in files) if isinstance(target, Exercise)]
        with contextlib.suppress(answers.AnswerError):  # whoever needs it says so
            self.facts.prepare(text for target in targets for text in target.answers.values())
        notes = folders.doubles(files)
        again: dict[int, Grade] = {}
        pool = ThreadPoolExecutor(max(1, workers))
        try:
            numbers = {pool.submit(self.grade, file): number for number, file in enumerate(files)}
            for done in as_completed(numbers):
                number, grade = numbers[done], done.result()
                grade.notes += [notes[number]] if number in notes else []
                if grade.disturbed and not self._closing.is_set():
                    again[number] = grade
                else:
                    yield number, grade
            for number, first in sorted(again.items()):
                yield number, self._alone(files[number], first, notes.get(number, ""))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            sandbox.end_all(self._closing)

    def _alone(self, file: Submission, first: Grade, note: str) -> Grade:
        for _ in range(AGAIN):
            grade = self.grade(file)
            if not grade.disturbed or self._closing.is_set():
                break
        grade.notes += [note] if note else []
        grade.notes.append(f"{first.disturbed}: it was graded again, alone")
        grade.disturbed = ""
        return grade

    def grade(self, file: Submission) -> Grade:
        """The verdict on one file; one whose name is of no exercise and no step is not passed."""
        start, mark = time.monotonic(), self.checkout.mark()
        file, turn = file.taken(), object()
        self._at_work.add(turn)
        beside = set(self._at_work) - {turn}
        target = file.target
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
        self._walled &= not grade.at_large
        changed = self._meant(self.checkout.since(mark))
        self._at_work.discard(turn)
        if changed:
            _blame(grade, changed, bool(beside or self._at_work))
        grade.findings = [Finding(one.kind, in_one_line(one.message)) for one in grade.findings]
        grade.notes = [in_one_line(note) for note in grade.notes]
        grade.seconds = time.monotonic() - start
        return grade

    def _meant(self, changed: list[Change]) -> list[Change]:
        """Those changes that mean anything: what Python keeps of a module that another command was the first to
        import does not, as long as no submission can have put it there."""
        return [one for one in changed if not (self._walled and one.compiled) or one.despite_walls]

    def _judge(self, grade: Grade, file: Submission, target: Exercise | Step | None) -> None:
        if target is None:
            said = f"{grade.file}: no exercise and no step has this name{_near(file.path)}"
            grade.findings = [Finding("unknown", said)]
            return
        try:
            if file.data is None:
                raise source.SourceError(file.refusal)
            text = source.text_of(file.data)
        except source.SourceError as error:
            grade.findings = [Finding("unusable", f"{grade.file}: {error}")]
            return
        exercise = target if isinstance(target, Exercise) else None
        if exercise and exercise.kind == "predict":
            grade.findings, grade.notes = predicted(exercise, file.path, self.facts, text)
            return
        departure = allowed_edits.departure(exercise, text) if exercise else None
        lent = borrowed.by(target)
        work = Work(
            file.path, text, target.ladder, [], exercise, target.precision, target.algorithm, target.requires, lent
        )
        self._kernel(grade, work)
        if exercise and exercise.floor and self.machine.gpu is None:
            asked = f"{exercise.floor:g} percent of the floor's rate on {exercise.preset}"
            grade.notes.append(f"not timed, as there is no GPU here: with one, {asked} is asked for, too")
        if departure:
            grade.findings.append(Finding("frame", departure))
        if exercise and not grade.findings:
            grade.notes = [*limits.compared(grade.figures, exercise)[1], *grade.notes]
            if _code(text) == _code(exercise.solution.read_text(encoding="utf-8")):
                grade.notes.append("line by line as the solution has it")

    def _kernel(self, grade: Grade, work: Work) -> None:
        """Judge a kernel at the shapes of its exercise, or its step's."""
        evidence, exercise = Evidence(), work.exercise
        strange = language.refused(work.text, work.borrowed)
        changed = self._meant(self.checkout.harness_changed())
        if strange:
            said = f"{'; '.join(strange)}: a kernel file has no use for it, so the file was not run"
            evidence.notes.append(("language", said))
        elif changed:
            said = f"what it would be judged by has changed: {sandbox.some(changed)}; see git status, and grade again"
            evidence.findings.append(Finding("unjudged", said))
        else:
            wanted = exercise.problems() if exercise else _shapes_of(work.ladder)
            try:
                self._run(evidence, replace(work, shapes=wanted))
            except SandboxError as error:
                evidence.findings.append(Finding(error.kind, _said(error)))
                if error.disturbed:
                    grade.disturbed = "its process was ended from outside"
            except codegen.ToolMissingError as error:
                evidence.findings.append(Finding("unjudged", f"cannot be judged here: {error}"))
            except codegen.RegistersError as error:
                evidence.findings.append(Finding("uncompiled", f"it cannot be compiled: {error}"))
            except ptx_plan.PlanError as error:
                evidence.findings.append(Finding("broken", f"its launches cannot be written down: {error}"))
            finally:
                grade.at_large = evidence.at_large
        grade.findings = judged(evidence, exercise)
        grade.notes = [message for kind, message in evidence.notes if kind not in CHEATS]
        grade.figures = evidence.figures

    def _run(self, evidence: Evidence, work: Work) -> None:
        try:
            launched = self._check(evidence, work)
        except SandboxError as error:
            if error.kind == "unjudged":
                self._compile(work)
            raise
        if not evidence.findings and not any(kind in CHEATS for kind, _ in evidence.notes):
            self._record(evidence, work, launched)
            evidence.findings += evidence.unseen

    def _sandbox(self, work: Work) -> Sandbox:
        return Sandbox(
            work.path, work.ladder, self.limits, closing=self._closing, source=work.text,
            borrowed=work.borrowed.files,
        )  # fmt: skip

    def _check(self, evidence: Evidence, work: Work) -> list[Launched]:
        """Check, and trace access by access what is right; returns what the first shape starts."""
        seed = secrets.randbits(48)
        launched: list[Launched] | None = None
        with _Noted(evidence, self._sandbox(work)) as box:
            box.ask(messages.Start())
            for problem in work.shapes:
                bench = sandbox.RemoteBench(box, problem)
                verdict = check.check_bench(bench, seed, 1, work.precision, work.algorithm)
                if launched is None:
                    launched = bench.launched[0] if bench.launched else []
                    if verdict.right:
                        evidence.notes += self._again(bench, seed, work.algorithm)
                unsound = [said for kind, said in box.notes if kind == UNSOUND][:TOLD]
                evidence.findings += [Finding(UNSOUND, f"at {problem}: {said}") for said in unsound]
                evidence.findings += [Finding(f.kind, f"at {problem}: {f.message}") for f in verdict.findings]
                if evidence.findings:
                    return launched
            self._trace(evidence, work, box)
            if work.exercise and not evidence.findings:
                self._try_fresh(evidence, work, box)
            if work.counted and not evidence.findings:
                self._sample(evidence, work, box, seed)
        return launched or []

    def _trace(self, evidence: Evidence, work: Work, box: Sandbox) -> None:
        """Look at what the kernels do access by access: is it sound, and does it read what the solution reads?"""
        for number, problem in enumerate(work.shapes[:TRACED]):
            found = traced(box, problem)
            if found.message:
                evidence.notes.append(("untraced", f"its accesses could not be looked at: {found.message}"))
                if work.traced:
                    evidence.unseen.append(Finding("unjudged", f"cannot be judged here: {found.message}"))
                return
            evidence.findings += [Finding("unsound", f"at {problem}: {fault}") for fault in found.unsound]
            if number == 0 and work.traced:
                evidence.figures |= found.figures
            excess = beyond(found, self._solution(work).traces[number], READS[work.kind]) if work.framed else ""
            if number == 0 and work.framed:
                most = READS[work.kind] * sum(self._solution(work).traces[0].reads.values())
                read = f"{sum(found.reads.values()):,.0f} values read from global memory at {problem}"
                evidence.notes.append(("reads", f"{read}, at most {most:,.0f} allowed"))
            if excess:
                said = f"at {problem}: {excess}: {NEEDED}"
                evidence.findings.append(Finding("reads", said))
            if evidence.findings:
                return

    def _sample(self, evidence: Evidence, work: Work, box: Sandbox, seed: int) -> None:
        """At the size that is counted: what do the middle block and another one make, and with how many
        multiply-adds?"""
        problem = work.counted_problem
        middle = sampled(box, problem, seed)
        if middle.message:
            text = f"cannot be judged here: what it does on {problem} cannot be looked at: {middle.message}"
            evidence.unseen.append(Finding("unjudged", text))
            return
        evidence.sampled = middle.launched
        grid = middle.launched[-1][1] if middle.launched else (1, 1, 1)
        block = [secrets.randbelow(max(1, extent)) for extent in grid]
        for one in (middle, sampled(box, problem, seed, block)):
            if one.wrong:
                text = f"on {problem}, the size that is counted, {one.wrong} of {one.compared} sampled elements"
                evidence.findings.append(Finding("wrong", f"{text} are wrong"))
                return
        outputs, blocks = int(np.prod(problem.output_shape)), int(np.prod(grid))
        written = middle.written
        if 0 < written * blocks < outputs:  # perhaps a block at an edge: the first one has a whole tile
            first = sampled(box, problem, seed, [0] * len(grid))
            written = 0 if first.wrong or first.message else max(written, first.written)
        if written * blocks < outputs:
            text = f"on {problem}, {blocks:,} blocks write {written:,} elements each: there are {outputs:,}"
            evidence.findings.append(Finding("unwritten", text))
        elif middle.fma > SPARE * middle.written * problem.reduction:
            needed = middle.written * problem.reduction
            text = f"on {problem}, a block does {middle.fma:,} multiply-adds for results that take {needed:,}"
            evidence.findings.append(Finding("padded", f"{text}: those too many would be counted as work"))

    def _try_fresh(self, evidence: Evidence, work: Work, box: Sandbox) -> None:
        """Is it right and sound at shapes that its author could not know, where the solution is?"""
        for problem in self._solution(work).fresh:
            seed = secrets.randbits(48)
            try:
                found = traced(box, problem, seed)
            except SandboxError as error:
                raise SandboxError(error.kind, f"at {problem}: {error}", error.disturbed) from None
            if found.message:
                return  # what the tracer does not know was said before
            evidence.findings += [Finding("unsound", f"at {problem}: {fault}") for fault in found.unsound]
            if not evidence.findings and (count := wrong(found, problem, seed)):
                text = f"at {problem}, {count} of {len(found.places)} sampled elements are wrong"
                evidence.findings.append(Finding("wrong", f"{text}: a shape that was drawn for this grade"))
            if evidence.findings:
                return

    def _solution(self, work: Work) -> Solved:
        """What is known of the exercise's solution; its fresh shapes are drawn once, for all who hand it in."""
        exercise = work.exercise
        assert exercise
        with self._solving:
            if exercise.name not in self._solved:
                with Sandbox(exercise.solution, work.ladder, self.limits, closing=self._closing) as box:
                    box.ask(messages.Start())
                    traces = [traced(box, problem) for problem in work.shapes[:TRACED]]
                    self._solved[exercise.name] = Solved(traces, _fresh(box, work.shapes))
            return self._solved[exercise.name]

    def _again(self, bench: sandbox.RemoteBench, seed: int, algorithm: str | None) -> list[Note]:
        """Launch on the first operands once more: the same work must be done again."""
        bench.load(*inputs.integers(bench.problem, seed, algorithm))
        bench.y.blank()
        bench.run()
        first, last = bench.launched[0], bench.launched[-1]
        if first == last:
            return []
        return [("remembers", remembered([name for name, *_ in first], [name for name, *_ in last]))]

    def _compile(self, work: Work) -> None:
        """What the tracer does not know may be what no GPU takes: raises SandboxError if the compiler says so."""
        with tempfile.TemporaryDirectory(prefix="workbook-") as name, self._sandbox(work) as box:
            box.ask(messages.Start())
            weight = inputs.integers(work.shapes[0], 0)[1]
            _recorded(box, work.shapes[0], weight, "first", Path(name), work.target(limits.ARCHITECTURE))

    def _record(self, evidence: Evidence, work: Work, launched: list[Launched] | None) -> None:
        """Write down what would start on a GPU; compare it with the traced run, count in it, run it on a GPU."""
        seed = secrets.randbits(48)
        gpu, exercise, shapes = self.machine.gpu, work.exercise, work.shapes
        preset = exercise.preset if exercise else exercises.PRESETS[work.ladder]
        counted, target = work.counted, work.target(limits.ARCHITECTURE)
        with tempfile.TemporaryDirectory(prefix="workbook-") as name:
            folder = Path(name)
            timed = None
            with _Noted(evidence, self._sandbox(work)) as box:
                box.ask(messages.Start())
                if launched is not None:
                    plan = _recorded(box, shapes[0], inputs.integers(shapes[0], seed)[1], "first", folder, target)
                    evidence.notes += differences(launched, plan)
                    if exercise:
                        evidence.figures |= limits.count(plan, folder, shapes[0], limits.EVERYWHERE, (), target)
                if counted:
                    problem = work.counted_problem
                    weight = np.random.default_rng(seed).standard_normal(problem.weight_shape)
                    plan = _recorded(box, problem, weight, "counted", folder, target)
                    started = [(one["name"], tuple(one["grid"]), tuple(one["block"])) for one in plan["launch"]]
                    if evidence.sampled and any(entry not in evidence.sampled for entry in started):
                        text = f"on {problem} it starts other kernels when compiled than when it is looked at"
                        evidence.notes.append(("differs", text))
                    least = exercise.at_least if exercise else ()
                    evidence.figures |= limits.count(plan, folder, problem, counted, least, target)
                if gpu:
                    timed = self._record_for_gpu(box, work, preset, seed, folder)
            if gpu and not any(kind in CHEATS for kind, _ in evidence.notes):
                self._run_plans(evidence, work, timed, seed, folder)

    def _record_for_gpu(self, box: Sandbox, work: Work, preset: str, seed: int, folder: Path) -> Problem | None:
        """Plans for a check's three sets of weights at each shape, and one to time. Returns the problem to time."""
        assert self.machine.gpu is not None
        architecture = work.target(self.machine.architecture)
        for number, problem in enumerate(work.shapes):
            drawn = [inputs.integers(problem, seed + part, work.algorithm) for part in range(2)]
            for part, (_, weight) in enumerate([*drawn, inputs.normals(problem, seed + 2)]):
                _recorded(box, problem, weight, f"{number}-{part}", folder, architecture)
        if work.exercise is not None and not work.exercise.floor:
            return None
        timed = problems.fit_batch(problems.preset(preset), TIMED_BYTES)
        _recorded(box, timed, inputs.integers(timed, seed)[1], "timed", folder, architecture)
        return timed

    def _run_plans(self, evidence: Evidence, work: Work, timed: Problem | None, seed: int, folder: Path) -> None:
        task = PtxRun(
            ladder=work.ladder, precision=work.precision, algorithm=work.algorithm, folder=str(folder), seed=seed,
            shapes=[problem.shape() for problem in work.shapes], timed=timed.shape() if timed else None,
        )  # fmt: skip
        with self._gpu:
            ((_, result),) = isolate.run([task], False, TIMED_SECONDS)
        if "findings" not in result:
            evidence.findings.append(Finding(result["status"], result["message"] or ""))
            return
        for item in result["findings"]:
            shape = f"at {problems.from_shape(work.ladder, item['shape'])}: " if "shape" in item else ""
            evidence.findings.append(Finding(item["kind"], shape + item["message"]))
        if "timing" in result and timed and self.machine.ceilings:
            milliseconds = result["timing"].median_ms
            by = measured.instruction(work.requires)
            figures = records.derive(timed, milliseconds, self.machine.ceilings, work.precision, by)
            if figures is None:
                return
            evidence.figures |= {"ms": milliseconds, "percent_of_floor": figures.percent_of_floor}
            text = f"{milliseconds:.3g} ms on {timed}: {figures.percent_of_floor:.1f} percent of the floor's rate"
            evidence.notes.append(("timed", text))
            if figures.percent_of_floor > 100 * BEYOND_FLOOR:
                text = f"{milliseconds:.3g} ms is less than the floor, {figures.floor_ms:.3g} ms, allows"
                evidence.findings.append(Finding("impossible", f"{text}: look at this one by hand"))


def _blame(grade: Grade, changed: list[Change], together: bool) -> None:
    """Say which files of the checkout changed while a file was graded; with it only what it can have changed.

    What never ran changed nothing, nor did what ran behind walls, modes of files aside. Without walls nobody can tell
    a record that another command wrote from one that is forged: then the file is graded again, and not accused.
    """
    suspect = [one for one in changed if grade.at_large or one.despite_walls]
    said = f"files of the checkout changed while it ran: {sandbox.some(suspect or changed)}"
    if any(not one.by_anyone or one.despite_walls for one in suspect):
        grade.findings.insert(0, Finding("changed_files", said))
        grade.disturbed = said.replace("it ran", "it and others ran") if together else ""
    elif suspect:
        text = f"{said}, and no wall tells whose doing that is: let no other command run beside"
        grade.findings.append(Finding("unjudged", f"cannot be judged here: {text}"))
        grade.disturbed = said
    elif harness := [one for one in changed if one.of_harness]:
        text = f"what it is judged by changed while it ran: {sandbox.some(harness)}; see git status, and grade again"
        grade.findings.append(Finding("unjudged", text))
    elif not all(one.by_anyone for one in changed):
        grade.notes.append(f"{said}: that was not its doing")


def judged(evidence: Evidence, exercise: Exercise | None) -> list[Finding]:
    """Reasons not to pass: what was noted of a cheat, what a check found, and limits that are not kept."""
    noted = sorted((note for note in evidence.notes if note[0] in CHEATS), key=lambda note: CHEATS.index(note[0]))
    findings = [Finding(kind, message) for kind, message in dict.fromkeys(noted)] + evidence.findings
    if exercise is None or findings:
        return findings
    findings = limits.compared(evidence.figures, exercise)[0]
    percent = evidence.figures.get("percent_of_floor")
    if exercise.floor and percent is not None and percent < exercise.floor:
        text = f"{percent:.1f} percent of the floor's rate on {exercise.preset} ({evidence.figures['ms']:.3g} ms)"
        findings.append(Finding("slow", f"{text}; {exercise.floor:g} percent is asked for"))
    return findings


def predicted(
    exercise: Exercise, path: Path, facts: Facts, text: str | None = None
) -> tuple[list[Finding], list[str]]:
    """Reasons not to pass a prediction, and what each right answer was compared with."""
    try:
        given = answers.read(path, text)
    except answers.AnswerError as error:
        return [Finding("unusable", str(error))], []
    findings, notes = [], []
    wanted = {name: text for name, text in exercise.answers.items() if given.get(name) is not None}
    try:
        facts.prepare(wanted.values())
        compared = {name: facts.expected(text) for name, text in wanted.items()}
    except answers.AnswerError as error:
        return [Finding("unjudged", f"cannot be judged here: {error}")], []
    missing = [name for name in exercise.answers if name not in wanted]
    if missing:
        others = ", ".join(name for name in given if name not in exercise.answers)
        said = f"; not asked for: {others}" if others else ""
        findings.append(Finding("unanswered", f"no value yet for {', '.join(missing)}{said}"))
    for name, expected in compared.items():
        value = given[name]
        assert value is not None
        off = expected.compare(value)
        if off:
            slip = expected.slip(value, exercise.slips.get(name, {}))
            said = slip or expected.reason
            findings.append(Finding("wrong", f"{name} = {_shown(value)} is {off}{f': {said}' if said else ''}"))
        else:
            yours = "" if value in (expected.value, expected.told) else f", yours {_shown(value)} is near enough"
            notes.append(f"{name} = {_shown(expected.told)}: {expected.source}{yours}")
    return findings, notes


def _shown(value: float) -> str:
    """A whole number with all its digits."""
    return f"{value:.0f}" if value == round(value) and abs(value) < 1e12 else f"{value:.6g}"


def _near(path: Path) -> str:
    """The exercise that a file's name resembles."""
    known = [one.name for one in exercises.everything()] + [step.name for step in catalog.steps()]
    stem = re.sub(r"[ (]+\d*\)?$", "", path.stem.lower())
    near = difflib.get_close_matches(stem, known, 1)
    return f". Did you mean {near[0]}.py?" if near else ""


def _code(text: str) -> str:
    try:
        return sources.code_hash(text)
    except (SyntaxError, ValueError, RecursionError):
        return text


def own_sources(files: list[Submission]) -> dict[Path, tuple[Exercise, bytes]]:
    """Those files that are exercises of this workbook itself, with their sources now."""
    own = {one.path.resolve(): one for one in exercises.everything()}
    paths = {file.path.resolve() for file in files} & own.keys()
    return {path: (own[path], path.read_bytes()) for path in paths}


def remember(files: list[Submission], grades: list[Grade], own: dict[Path, tuple[Exercise, bytes]]) -> None:
    """Keep the verdicts on the workbook's ``own`` exercises, and in the history the edited ones' sources.

    A file that was saved meanwhile is passed over: whose verdict it is cannot be told. Raises HistoryError.
    """
    state = exercises.State() if own else None
    for file, grade in zip(files, grades, strict=True):
        path = file.path.resolve()
        if state is None or path not in own or not path.is_file():
            continue
        exercise, source = own[path]
        if path.read_bytes() != source:
            continue
        state.remember(exercise, grade.passed)
        if shipped.edited(path):
            history.keep(source, path.name)
            verdict, reason = ("passed", "") if grade.passed else ("not passed", grade.reasons[0])
            event = history.Event(path.stem, history.sha(source), "graded", "", verdict, reason)
            if [(last.source, last.verdict) for last in history.events(path.stem)[-1:]] != [(event.source, verdict)]:
                history.add(event)


def _fresh(box: Sandbox, own: list[Problem]) -> list[Problem]:
    """Shapes beside its ``own`` that a solution is right and sound at: what it is not made for, no answer need be."""
    found: list[Problem] = []
    for problem in fresh_shapes.candidates(own, secrets.randbits(48))[:TRIED]:
        seed = secrets.randbits(48)
        with contextlib.suppress(SandboxError):  # it refuses the shape, or fails there
            made = traced(box, problem, seed)
            if not (made.message or made.unsound or wrong(made, problem, seed)):
                found.append(problem)
        if len(found) == FRESH:
            break
    return found


def _shapes_of(ladder: str) -> list[Problem]:
    """What a step is graded at: the ladder's ragged shapes, and a few that nobody knows beforehand."""
    drawn = shapes.drawn(ladder, secrets.randbits(48), DRAWN, DRAWN_MULTIPLY_ADDS)
    return [*problems.RAGGED[ladder], *drawn]


def _said(error: SandboxError) -> str:
    """What stopped a submission; a kernel that Numba cannot compile is called that."""
    text = str(error)
    uncompiled = re.match(r"(TypingError|LoweringError|UnsupportedError|NvvmError)\b", text)
    return f"it does not compile for a GPU: {text}" if uncompiled else text


class _Noted:
    """A box whose notes go to the evidence when it ends, whatever ended it."""

    def __init__(self, evidence: Evidence, box: Sandbox) -> None:
        self.evidence, self.box = evidence, box

    def __enter__(self) -> Sandbox:
        return self.box.__enter__()

    def __exit__(self, *error: object) -> None:
        self.box.__exit__(*error)
        self.evidence.at_large |= self.box.at_large
        told = [note for note in self.box.notes if note[0] != UNSOUND]  # that is a finding
        self.evidence.notes += [note for note in told if note not in self.evidence.notes]


def _recorded(box: Sandbox, problem: Problem, weight: Any, name: str, folder: Path, architecture: str) -> Plan:
    """Have a plan written down, and copy it and its files to ``folder`` if it is a proper one."""
    box.send(0, np.ascontiguousarray(weight, problem.weight_dtype).tobytes())
    box.ask(messages.Record(shape=problem.shape(), architecture=architecture, name=name))
    try:
        plan = ptx_plan.checked(json.loads(box.plan_file(f"{name}.json")))
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise SandboxError("broken", f"its plan is none: {error}") from None
    for buffer in plan["buffers"]:
        if buffer["data"] is not None:
            data = box.plan_file(buffer["data"])
            if len(data) != buffer["bytes"]:
                raise SandboxError("broken", "a buffer of its plan has another size than it says")
            Path(folder, buffer["data"]).write_bytes(data)
    for digest in {entry["kernel"] for entry in (*plan["prepare"], *plan["launch"])}:
        text = box.plan_file(f"{digest}.ptx")
        if hashlib.sha256(text).hexdigest() != digest:
            raise SandboxError("broken", "a kernel of its plan is not the one it names")
        ptx_plan.entry(text.decode(errors="replace"))
        Path(folder, f"{digest}.ptx").write_bytes(text)
    Path(folder, f"{name}.json").write_text(json.dumps(plan), encoding="utf-8")
    return plan
