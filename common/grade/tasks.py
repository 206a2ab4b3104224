"""What a child process does of grading beside the checks: it counts what an exercise limits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from msgspec import field
from msgspec.structs import replace

from common.catalog import catalog, problems
from common.grade import limits
from common.run.messages import FileTask
from common.run.results import Finding, Result

TRACED = 2  # of an exercise's own shapes at which its reads are counted
NEEDED = (
    "read what the output takes, and no more often: a thread beyond an edge reads nothing (with an index that min or "
    "max keeps inside, it reads a value once more); if a tile is staged, it must be what is multiplied"
)


class Counted(Result, frozen=True, kw_only=True):
    """``findings`` are reasons not to pass; ``notes`` are said and decide nothing."""

    findings: Sequence[Finding] = ()
    notes: Sequence[str] = ()
    figures: dict[str, float] = field(default_factory=dict)


class Count(FileTask[Counted], frozen=True, kw_only=True, tag="grade.count"):
    """What of a kernel file is limited, in a trace of its source and in its compiled code?

    ``shapes``       those of its exercise
    ``solution``     the file of the exercise's solution
    ``most_reads``   values that it may read for each that the solution does; 0: any number
    ``limited``      the names of :data:`common.grade.limits.COUNTED` that are limited; ``least`` of them from below
    ``compiled_shape``  at which its compiled code is counted
    ``architecture`` the compute capability that it is compiled for
    """

    shapes: list[dict[str, int]]
    solution: str
    most_reads: float = 0.0
    limited: list[str] = field(default_factory=list)
    least: list[str] = field(default_factory=list)
    compiled_shape: dict[str, int] = field(default_factory=dict)
    architecture: str


def count_task(task: Count) -> Counted:
    """Count, unless it reads too much, what is limited. Compiling raises what Numba has against it."""
    from common.machine_code import codegen

    module = _loaded(task, task.path)
    found = Counted(status="right")
    if task.most_reads or {*task.limited} & {*limits.TOUCHED}:
        found = _counted_reads(task, module)
    if found.findings:
        return found
    names = {*task.limited} - {*limits.TOUCHED, *limits.EVERYWHERE}
    asked = [(task.shapes[0], {*limits.EVERYWHERE})]
    if names:
        asked.append((task.compiled_shape, names))
    figures = dict(found.figures)
    try:
        for shape, some in asked:
            problem = problems.from_shape(task.ladder, shape)
            figures |= limits.compiled(module, problem, some, task.least, task.architecture)
    except codegen.ToolMissingError as error:
        return replace(found, status="unjudged", message=f"cannot be judged here: {error}")
    except codegen.RegistersError as error:
        return replace(found, status="wrong", findings=[Finding("uncompiled", f"it cannot be compiled: {error}")])
    return replace(found, figures=figures)


def _loaded(task: Count, path: str) -> ModuleType:
    from common.trace.trace import Tracer

    with Tracer():  # a file may make arrays when it is imported
        return catalog.load(Path(path), task.ladder, task.home, task.helpers)


def _counted_reads(task: Count, module: ModuleType) -> Counted:
    """What a trace counts, and whether it reads more of global memory than the solution does."""
    from common.trace import trace

    solution = _loaded(task, task.solution) if task.most_reads else None
    found = Counted(status="right")
    for number, shape in enumerate(task.shapes[:TRACED]):
        problem = problems.from_shape(task.ladder, shape)
        traced = trace.run(module, problem, every=True)
        if number == 0:
            found = replace(found, figures=limits.touched(traced))
        if solution is None:
            break
        reads = _reads(traced)
        needed = _reads(trace.run(solution, problem, every=True))
        if number == 0:
            allowed = f"at most {task.most_reads * needed['all arrays']:,.0f} allowed"
            note = f"{reads['all arrays']:,.0f} values read from global memory at {problem}, {allowed}"
            found = replace(found, notes=[note])
        for name, count in needed.items():
            if reads.get(name, 0) > task.most_reads * count:
                said = f"{reads[name]:,.0f} values of {name} are read from global memory"
                needs = f"the exercise solved needs {count:,.0f}"
                finding = Finding("reads", f"at {problem}: {said}; {needs}: {NEEDED}")
                return replace(found, status="wrong", findings=[finding])
    return found


def _reads(found: Any) -> dict[str, int]:
    """Values that are read from global memory, by array and of all arrays together."""
    reads: dict[str, int] = {}
    for kernel in found.kernels:
        for access in kernel.select("global", "read", "copy"):
            reads[access.array] = reads.get(access.array, 0) + access.accesses
    return {**reads, "all arrays": sum(reads.values())}
