"""What an exercise limits: how it is said, and how a child process counts it in a trace and in compiled code.

A figure of a trace cannot be had by what the compiler merges. Float64 is counted always: no exercise needs it.
"""

import linecache
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
from msgspec import field

from common.catalog import catalog, exercises, problems, store
from common.catalog.exercises import Exercise
from common.catalog.limits import occupancy
from common.catalog.problems import Problem
from common.check import loading
from common.explain.faults import cut
from common.machine_code import codegen
from common.machine_code.summaries import Hot, Kernel
from common.run.messages import Finding, Result, Status, Task
from common.trace import cost as figures
from common.trace.messages import Traced

_WORDS = store.read_toml(Path(__file__).with_name("counted.toml"))
COUNTED: dict[str, str] = _WORDS["counted"]  # by the names that at_most and at_least may limit
MEANING: dict[str, str] = _WORDS["meaning"]  # what is wrong with too much of it
EVERYWHERE = {"float64": 0.0}  # the most, of every exercise
TRACED = 2  # of an exercise's own shapes at which its reads are counted
READS = {"write": 1.5, "bug": 1.1}  # of global memory for each of the solution: there is more than one way
COMPILED_BYTES = 112 << 20  # of a problem that is compiled for, and its workspace
_EDGES = (
    "a thread beyond an edge reads nothing (with an index that min or max keeps inside, it reads a value once more)"
)
NEEDED = f"read what the output takes, and no more often: {_EDGES}"
STAGED = "; what is staged in shared memory must be what is multiplied"


def known() -> dict[str, Exercise]:
    """Exercises, and steps as such, checked at their ladder's ragged shapes; by name."""
    steps = [
        Exercise(
            name=step.name, number=step.name, title=step.title, kind="step", lesson=step.lesson, path=step.path,
            shapes=tuple(map(str, problems.RAGGED[step.ladder])), preset=exercises.PRESETS[step.ladder], hints=(),
        ) for step in catalog.everything()
    ]  # fmt: skip
    return {one.name: one for one in (*steps, *exercises.everything())}


def limited(exercise: Exercise) -> set[str]:
    """Names that an exercise limits of its own."""
    return {*exercise.at_most, *exercise.at_least}


def touched(found: Traced) -> dict[str, float]:
    """The figures that a trace tells."""
    main, threads = found.main, int(np.prod(found.main.block))
    # acc += a * b + c * d adds two products, and one of them is no multiply-add to the compiler; what is left out
    # where there is padding is another matter
    pads = any(getattr(found.problem, f"pad_{axis}", 0) for axis in "dhw")
    needed = 0 if pads or len(found.kernels) > 1 else found.problem.flops // 2
    told = main.fma / max(main.fma, needed, 1)
    requests = sum(access.requests for access in main.select("shared"))
    return {
        **figures.worst(found),
        "threads": float(threads),
        "shared_requests": requests / max(1, main.launches * main.blocks * -(-threads // 32)),
        "under_way": float(main.under_way),
        "atomics": float(sum(one.accesses for each in found.kernels for one in each.accesses if one.op == "atomic")),
        "writes": _accesses(found, "write", "tma store").total() / found.output.size,
        "shared_reads": main.per_fma["shared"]["loads"] * told if main.per_fma else 0.0,
        "global_reads": main.per_fma["global"]["loads"] * told if main.per_fma else 0.0,
    }


def costliest(found: Traced, module: ModuleType) -> dict[str, str]:
    """Where the requests are that sectors and wavefronts are told of, if a kernel of the file itself makes them."""
    places = {}
    for name, space in (("sectors", "global"), ("turns", "shared")):
        every = [(one.per_request, one.line, kernel.file) for kernel in found.kernels for one in kernel.select(space)]
        _, line, file = max(every, key=lambda one: one[0], default=(0.0, 0, ""))
        if file == module.__file__:
            places[name] = f" at {_line(module, line)}"
    return places


def _line(module: ModuleType, number: int) -> str:
    """A line of a kernel's file, with its number and without its comment."""
    text = linecache.getline(str(module.__file__), number).split("  #")[0].strip()
    return f"line {number} (`{cut(text, 80)}`)"


def _accesses(found: Traced, *operations: str) -> Counter[str]:
    """Values that are read from, or written to, global memory, by array."""
    counts: Counter[str] = Counter()
    for kernel in found.kernels:
        for access in kernel.select("global", *operations):
            counts[access.array] += access.accesses
    return counts


def _compared_reads(most: float, traced: Traced, solved: Traced) -> tuple[str, str]:
    """How much is read from global memory, and what is wrong if that is ``most`` times what the solution reads."""
    reads, needed = (_accesses(found, "read", "copy") for found in (traced, solved))
    asked, allowed = reads.total(), most * needed.total()
    note = f"{asked:,.0f} values read from global memory at {traced.problem}, at most {allowed:,.0f} allowed"
    for name, enough in [*needed.items(), ("all arrays", needed.total())]:
        count = asked if name == "all arrays" else reads[name]
        if count > most * enough:
            why = NEEDED + STAGED * (touched(solved)["shared_requests"] > 0)
            said = f"{count:,.0f} values of {name} are read from global memory"
            return note, f"at {traced.problem}: {said}; the exercise solved needs {enough:,.0f}: {why}"
    return note, ""


def compiled(
    module: ModuleType, problem: Problem, names: Collection[str], least: Collection[str], architecture: str
) -> tuple[dict[str, float], dict[str, str]]:
    """``float64``, and the figures of :data:`COUNTED` that are asked for in compiled code: the largest of the kernels
    that multiply and add floats, for those of ``least`` the smallest (the stack: of all); and the line that most
    float64 instructions come from. Raises ToolMissingError without NVIDIA's assembler, and what Numba raises."""
    wide, stack = Counter[int](), [0.0]
    working, others = list[dict[str, float]](), list[dict[str, float]]()
    for launch in codegen.distinct(codegen.launches(module, problem)):
        text = codegen.ptx(launch, [architecture], lines=True)[architecture]
        wide += _float64(text, module)
        if names:
            loops = bool({"per_fma", "shared_per_fma"} & {*names})
            code, _ = codegen.machine_code(launch, architecture, text, loops)
            stack.append(code.stack_bytes)
            each = working if "fma.rn.f32" in text else others
            each.append(_of_launch(launch, text, code, problem))
    found = {"float64": float(wide.total()), "stack_bytes": max(stack)}
    for name in {*names} - {*found}:
        found[name] = (min if name in least else max)(one[name] for one in working or others)
    lines = [f", {count} of them from {_line(module, line)}" for line, count in wide.most_common() if line]
    return {name: found[name] for name in ("float64", *names)}, {"float64": lines[0]} if lines else {}


def _float64(text: str, module: ModuleType) -> Counter[int]:
    """How many float64 instructions of a kernel's PTX each line of its file makes; those of helpers: line 0."""
    own = re.findall(rf'\.file\s+(\d+) ".*\b{Path(str(module.__file__)).stem}\.py"', text)
    wide, line, counts = {*codegen.float64_arithmetic(text)}, 0, Counter[int]()
    for one in text.splitlines() if wide else ():
        if place := re.match(r"\s*\.loc\s+(\d+) (\d+)", one):
            line = int(place[2]) if place[1] in own else 0
        elif one.strip() in wide:
            counts[line] += 1
    return counts


def _of_launch(launch: codegen.Launch, text: str, code: Kernel, problem: Problem) -> dict[str, float]:
    """The figures of one launch; those of a multiply loop are 0 without one."""
    loop, block, grid = code.hot or Hot(), launch.threads, int(np.prod(launch.grid))
    shared = code.shared_bytes + launch.dynamic_shared_bytes
    maps = problem.K if isinstance(problem, problems.Conv2d) else 1  # a thread may compute its pixel of every map
    return {
        "registers": code.registers,
        "shared_bytes": shared,
        "shared_per_thread": shared / block,
        "per_fma": loop.per_multiply_add() or 0.0,
        "shared_per_fma": loop.per_multiply_add(loop.count("LDS", "LDSM")) or 0.0,
        "barriers": len(re.findall(r"\bbar(?:rier)?\.(?:cta\.)?sync\b", text)),
        "warps": occupancy(code.architecture, block, code.registers, shared).warps,
        "idle": 100 * (1 - int(np.prod(problem.output_shape)) / maps / (block * grid)),
        "blocks": grid,
    }


def compared(
    figures: dict[str, float], exercise: Exercise, places: Mapping[str, str] = {}
) -> tuple[list[Finding], list[str]]:
    """Limits that are not kept, with the reason for them, and those that are, with the figures and their places."""
    findings, kept = [], []
    most, least = EVERYWHERE | exercise.at_most, exercise.at_least
    for name in most | least:
        value, high, low = figures[name], most.get(name, math.inf), least.get(name, -math.inf)
        text = COUNTED[name].format(f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}") + places.get(name, "")
        sides = [f"at most {high:g} allowed"] * (name in most) + [f"at least {low:g} required"] * (name in least)
        asked = f"exactly {low:g} required" if low == high else ", ".join(sides)
        if not low - 1e-9 <= value <= high + 1e-9:
            why = exercise.because.get(name) or MEANING.get(name, "")
            findings.append(Finding("limit", f"{text}; {asked}{why and ': '}{why}"))
        elif name in limited(exercise):
            kept.append(f"{text}, {asked}")
    return findings, kept


class Counted(Result, frozen=True, kw_only=True):
    """Fields of the same names as a :class:`common.grade.grade.Grade`'s."""

    findings: Sequence[Finding] = ()
    notes: Sequence[str] = ()
    figures: dict[str, float] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)


class Count(Task[Counted], frozen=True, kw_only=True, tag="grade.count"):
    """Does a kernel file keep its exercise's limits, in a trace and compiled? Of a step only whether it compiles."""


def count_task(task: Count) -> Counted:
    """Count what is limited, unless it reads too much. Compiling raises what Numba has against it."""
    from common.trace import trace

    def loaded(path: str) -> ModuleType:
        with trace.Tracer():  # a file may make arrays when it is imported
            return catalog.load(Path(path), task.ladder, task.home, task.helpers)

    module, exercise = loaded(task.path), known()[task.step]
    own, most, names = exercise.problems(), READS.get(exercise.kind), limited(exercise)
    counts, places, notes = dict[str, float](), dict[str, str](), list[str]()
    solution = loaded(str(exercise.write_solution())) if most else module
    for problem in own[: TRACED if most else min(1, len(names))]:
        traced = trace.run(module, problem, every=True)
        if not counts:
            counts, places = touched(traced), costliest(traced, module)
        if most:
            note, wrong = _compared_reads(most, traced, trace.run(solution, problem, every=True))
            notes = notes or [note]
            if wrong:
                return Counted(status="wrong", findings=[Finding("reads", wrong)], notes=notes, figures=counts)
    # one for all, so that limits mean the same everywhere, or what the file requires
    (target, *_), problem = catalog.targets(exercise.said["requires"], ["9.0"]), own[0]
    if names := names - {*counts}:
        problem = problems.preset(exercise.preset)
        problem = problem if isinstance(problem, problems.Gemm) else loading.fitted(problem, COMPILED_BYTES)
    try:
        more, wide = compiled(module, problem, names, exercise.at_least, target)
    except codegen.ToolMissingError as error:
        return Counted(status="unjudged", message=f"cannot be judged here: {error}", notes=notes)
    except codegen.RegistersError as error:
        findings = [Finding("uncompiled", f"it cannot be compiled: {error}")]
        return Counted(status="wrong", findings=findings, notes=notes, figures=counts)
    counts, places = counts | more, places | wide
    findings, kept = ([], []) if exercise.kind == "step" else compared(counts, exercise, places)
    status: Status = "wrong" if findings else "right"
    return Counted(status=status, findings=findings, notes=[*kept, *notes], figures=counts, places=places)
