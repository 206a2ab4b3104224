"""What a child process does of grading: judges a kernel file without a GPU, up to the first reason not to pass."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from msgspec import field

from common.catalog import catalog, problems
from common.catalog.problems import Problem
from common.check import check
from common.grade import limits
from common.run import child, process
from common.run.limits import confine
from common.run.messages import FileTask
from common.run.results import Finding, Result

FRESH = 8  # fresh shapes at most that a file must be right at, of those at which the solution is
TOLD = 3  # of what is unsound
TRACED = 2  # of an exercise's own shapes at which its reads are counted
NEEDED = (
    "read what the output takes, and no more often: a thread beyond an edge reads nothing (with an index that min or "
    "max keeps inside, it reads a value once more); if a tile is staged, it must be what is multiplied"
)


class Judged(Result, frozen=True, kw_only=True):
    """``findings`` are reasons not to pass, the first kind that was met; ``notes`` are said and decide nothing."""

    findings: Sequence[Finding] = ()
    notes: Sequence[str] = ()
    figures: dict[str, float] = field(default_factory=dict)


class Judge(FileTask[Judged], frozen=True, kw_only=True, tag="grade.judge"):
    """Is a kernel file right and sound, and what of it is counted?

    ``shapes``       at which it is checked, and then at some of ``fresh``: those at which ``solution`` is right
    ``solution``     the file of the exercise's solution, or the step as it lies in its lesson
    ``most_reads``   values that it may read for each that the solution does; 0: any number
    ``limited``      the names of :data:`common.grade.limits.COUNTED` that are limited; ``least`` of them from below
    ``compiled_shape``  at which its compiled code is counted
    ``architecture`` the compute capability that it is compiled for
    ``precision``, ``algorithm``, ``seed``  as those of :class:`common.run.messages.Check`
    ``memory_bytes`` that its process may take; 0: as many as any other
    """

    shapes: list[dict[str, int]]
    fresh: list[dict[str, int]]
    solution: str
    most_reads: float = 0.0
    limited: list[str] = field(default_factory=list)
    least: list[str] = field(default_factory=list)
    compiled_shape: dict[str, int] = field(default_factory=dict)
    architecture: str
    precision: str = "fp32"
    algorithm: str | None = None
    seed: int = 0
    memory_bytes: int = 0


def judge_task(task: Judge) -> Judged:
    """Judge a file, question by question, until one has a reason not to pass it."""
    if task.memory_bytes:
        confine(task.memory_bytes, process.FILE_BYTES)
    judging = _Judging(task)
    questions = (
        judging.is_wrong_at_its_shapes, judging.reads_too_much, judging.is_wrong_at_fresh_shapes,
        judging.does_not_compile,
    )  # fmt: skip
    found = next(filter(None, (question() for question in questions)), [])
    return Judged(
        status="wrong" if found else "right",
        findings=list(found),
        notes=judging.notes,
        figures=judging.figures,
    )


class _Judging:
    """One file and what was found out about it. Each question's method gives reasons not to pass, or nothing."""

    def __init__(self, task: Judge) -> None:
        self.task, self.notes = task, list[str]()
        self.figures: dict[str, float] = {}
        self.problems = [problems.from_shape(task.ladder, shape) for shape in task.shapes]
        self._modules: dict[str, tuple[ModuleType, Any]] = {}
        self.module = self._loaded(task.path)[0]

    def _loaded(self, path: str) -> tuple[ModuleType, Any]:
        """A file's module and a tracer of its own, the same at each call: what is kept from shape to shape shows."""
        from common.trace.trace import Tracer

        if path not in self._modules:
            tracer = Tracer()
            with tracer:  # a file may make arrays when it is imported
                module = catalog.load(Path(path), self.task.ladder, self.task.home, self.task.helpers)
            self._modules[path] = module, tracer
        return self._modules[path]

    def is_wrong_at_its_shapes(self) -> list[Finding]:
        """Is it wrong or unsound at one of the shapes of its exercise, or its step's?"""
        return next(filter(None, (self._checked(self.task.path, one, False) for one in self.problems)), [])

    def is_wrong_at_fresh_shapes(self) -> list[Finding]:
        """Is it wrong at a shape that its author could not know, and the solution is right there?"""
        compared = 0
        for shape in self.task.fresh:
            problem = problems.from_shape(self.task.ladder, shape)
            found = self._tried(self.task.path, problem)
            if found and self._tried(self.task.solution, problem):
                continue  # the exercise asks for no such shape
            if found:
                return [Finding(one.kind, f"{one.message}: a shape that was drawn for this grade") for one in found]
            compared += 1
            if compared == FRESH:
                break
        return []

    def _tried(self, path: str, problem: Problem) -> list[Finding]:
        """As :meth:`_checked`, briefly; an error is a reason, too."""
        try:
            return self._checked(path, problem, brief=True)
        except Exception as error:
            failed = child.failure(error, Path(path))
            return [Finding(failed.status, f"at {problem}: {failed.message}")]

    def _checked(self, path: str, problem: Problem, brief: bool) -> list[Finding]:
        """What a check of a file at a shape finds on the tracer; what is unsound first, as it may be the cause."""
        from common.check.tracedbench import TracedBench
        from common.explain import faults
        from common.report import tracetables
        from common.trace.state import MistakeError, TraceError

        task = self.task
        module, tracer = self._loaded(path)
        tracer.forget()
        try:
            bench = TracedBench(module, problem, tracer)
            rules = check.Rules(task.seed, 1, task.precision, task.algorithm)
            verdict = check.check_once(bench, rules) if brief else check.check_bench(bench, rules)
        except MistakeError as error:
            told = faults.of_mistake(str(error), Path(path), error.line)
            return [Finding("crashed", f"at {problem}: {told.what}; look at: {told.look_at}")]
        except TraceError as error:
            self._compiles(module, problem)
            return [Finding("unjudged", f"cannot be judged here: {error}")]
        unsound = [tracetables.fault_sentence(fault) for fault in tracer.faults()[:TOLD]]
        found = [*(Finding("unsound", said) for said in unsound), *verdict.findings]
        return [Finding(one.kind, f"at {problem}: {one.message}") for one in found]

    def _compiles(self, module: ModuleType, problem: Problem) -> None:
        """What the tracer does not know may be what no GPU takes: raises what Numba has against it."""
        from common.machine_code import codegen

        for launch in codegen.distinct(codegen.launches(module, problem)):
            codegen.ptx(launch, [self.task.architecture])

    def reads_too_much(self) -> list[Finding]:
        """Does it read more of global memory than the solution? What a trace counts is noted in any case."""
        most_reads = self.task.most_reads
        if not (most_reads or {*self.task.limited} & {*limits.TOUCHED}):
            return []
        from common.trace import trace

        for number, problem in enumerate(self.problems[:TRACED]):
            found = trace.run(self.module, problem, every=True)
            if number == 0:
                self.figures |= limits.touched(found)
            if not most_reads:
                break
            reads = _reads(found)
            needed = _reads(trace.run(self._loaded(self.task.solution)[0], problem, every=True))
            if number == 0:
                allowed = f"at most {most_reads * needed['all arrays']:,.0f} allowed"
                read = f"{reads['all arrays']:,.0f} values read from global memory at {problem}"
                self.notes.append(f"{read}, {allowed}")
            for name, count in needed.items():
                if reads.get(name, 0) > most_reads * count:
                    said = f"{reads[name]:,.0f} values of {name} are read from global memory"
                    needs = f"the exercise solved needs {count:,.0f}"
                    return [Finding("reads", f"at {problem}: {said}; {needs}: {NEEDED}")]
        return []

    def does_not_compile(self) -> list[Finding]:
        """Count what is limited of its compiled code. Compiling raises what Numba has against it."""
        from common.machine_code import codegen

        names = {*self.task.limited} - {*limits.TOUCHED, *limits.EVERYWHERE}
        asked = [(self.problems[0], {*limits.EVERYWHERE})]
        if names:
            asked.append((problems.from_shape(self.task.ladder, self.task.compiled_shape), names))
        try:
            for problem, some in asked:
                found = limits.compiled(self.module, problem, some, self.task.least, self.task.architecture)
                self.figures |= found
        except codegen.ToolMissingError as error:
            return [Finding("unjudged", f"cannot be judged here: {error}")]
        except codegen.RegistersError as error:
            return [Finding("uncompiled", f"it cannot be compiled: {error}")]
        return []


def _reads(found: Any) -> dict[str, int]:
    """Values that are read from global memory, by array and of all arrays together."""
    reads: dict[str, int] = {}
    for kernel in found.kernels:
        for access in kernel.select("global", "read", "copy"):
            reads[access.array] = reads.get(access.array, 0) + access.accesses
    return {**reads, "all arrays": sum(reads.values())}
