"""What an exercise limits: how it is said, and how a child process counts it in a trace and in compiled code.

A figure of a trace needs no compiler, and cannot be had by what the compiler merges. Numba's float64 is counted in
every kernel: no exercise has a use for it.
"""

from __future__ import annotations

import linecache
import math
import re
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
from msgspec import field

from common.catalog import catalog, problems
from common.catalog.exercises import Exercise
from common.catalog.limits import occupancy
from common.catalog.problems import Problem
from common.check import loading
from common.explain.faults import cut
from common.grade.folders import Shipped, known
from common.machine_code import codegen
from common.machine_code.codegen import MachineCode
from common.machine_code.summaries import HotLoop
from common.run.messages import FileTask, Finding, Result, Status
from common.trace import cost as figures
from common.trace.messages import Traced

# Machine code is counted for it, whatever the GPU, so that limits mean the same everywhere; what requires another is
# counted for that.
ARCHITECTURE = "9.0"

# Names that at_most and at_least may limit: what is counted, and what to say of it.
COUNTED = {
    "float64": "{} float64 instructions in the compiled kernels",
    "stack_bytes": "{} bytes of stack for each thread",
    "registers": "{} registers for each thread",
    "shared_bytes": "{} bytes of shared memory for each block",
    "shared_per_thread": "{} bytes of shared memory for each thread",
    "per_fma": "{} instructions for each multiply-add in the compiled loop",
    "shared_per_fma": "{} loads from shared memory for each multiply-add in the compiled loop",
    "barriers": "{} barriers in the compiled kernel",
    "warps": "{} warps fit a multiprocessor",
    "idle": "{} percent of the threads have no output pixel",
    "blocks": "{} blocks",
    "threads": "{} threads in a block",
    "sectors": "{} sectors for each request to global memory",
    "turns": "{} wavefronts for each request to shared memory",
    "shared_requests": "{} requests of a warp to shared memory, as the source is written",
    "under_way": "{} groups of copies still on their way after a wait",
    "atomics": "{} atomic operations",
    "writes": "{} writes to global memory for each output",
    "shared_reads": "{} reads of shared memory for each multiply-add, as the source is written",
    "global_reads": "{} reads of global memory for each multiply-add, as the source is written",
}
# What is wrong with too much of it.
MEANING = {
    "float64": "a Python number beside a float32 makes Numba compute in float64, 0.0 and 0 alike, in "
    "float16(0.0), too: write float16(float32(0.0)). So does an integer, and a signed one of 64 bits that meets an "
    "unsigned one, in a comparison too",
    "stack_bytes": "an array that should be registers lies in local memory",
}
EVERYWHERE = {"float64": 0.0}  # the most, of every exercise
TRACED = 2  # of an exercise's own shapes at which its reads are counted
# Reads of global memory for each of the solution: there is more than one way to fill a blank, and a mended bug leaves
# the rest as it is.
READS = {"write": 1.5, "bug": 1.1}
COMPILED_BYTES = 112 << 20  # of a problem that is compiled for, and its workspace
NEEDED = (
    "read what the output takes, and no more often: a thread beyond an edge reads nothing (with an index that min or "
    "max keeps inside, it reads a value once more)"
)
STAGED = "; what is staged in shared memory must be what is multiplied"


def limited(exercise: Exercise) -> set[str]:
    """Names that an exercise limits of its own."""
    return {*exercise.at_most, *exercise.at_least}


# --- in a trace ---


def touched(found: Traced) -> dict[str, float]:
    """The figures that a trace tells."""
    main = found.main
    threads = int(np.prod(main.block))
    # acc += a * b + c * d adds two products, and one of them is no multiply-add to the compiler; what is left out
    # where there is padding is another matter
    pads = any(getattr(found.problem, f"pad_{axis}", 0) for axis in "dhw")
    needed = 0 if pads or len(found.kernels) > 1 else found.problem.flops // 2
    told = main.fma / max(main.fma, needed, 1)
    written = [one.accesses for kernel in found.kernels for one in kernel.select("global", "write", "tma store")]
    atomics = [one.accesses for kernel in found.kernels for one in kernel.accesses if one.op == "atomic"]
    requests = sum(access.requests for access in main.accesses if access.space == "shared")
    return {
        **figures.worst(found),
        "threads": float(threads),
        "shared_requests": requests / max(1, main.launches * main.blocks * -(-threads // 32)),
        "under_way": float(main.under_way),
        "atomics": float(sum(atomics)),
        "writes": sum(written) / found.output.size,
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


def _reads(found: Traced) -> Counter[str]:
    """Values that are read from global memory, by array and of all arrays together."""
    reads: Counter[str] = Counter()
    for kernel in found.kernels:
        for access in kernel.select("global", "read", "copy"):
            reads[access.array] += access.accesses
    return reads | Counter({"all arrays": reads.total()})


def _compared_reads(most: float, traced: Traced, solved: Traced) -> tuple[str, str]:
    """How much is read from global memory; and what is wrong with it, if it is more than ``most`` times what the
    solution reads."""
    reads, needed, problem = _reads(traced), _reads(solved), traced.problem
    allowed = f"at most {most * needed['all arrays']:,.0f} allowed"
    note = f"{reads['all arrays']:,.0f} values read from global memory at {problem}, {allowed}"
    for name, count in needed.items():
        if reads[name] > most * count:
            why = NEEDED + STAGED * (touched(solved)["shared_requests"] > 0)
            said = f"{reads[name]:,.0f} values of {name} are read from global memory"
            return note, f"at {problem}: {said}; the exercise solved needs {count:,.0f}: {why}"
    return note, ""


# --- in compiled code ---


def compiled(
    module: ModuleType, problem: Problem, names: Collection[str], least: Collection[str], architecture: str
) -> dict[str, float]:
    """Those figures of :data:`COUNTED` that are asked for and stand in compiled code.

    Each is the largest of the kernels that multiply and add floats, the smallest for those of ``least``: which does
    the work is not known (float64 and the stack: of all). Raises ToolMissingError without NVIDIA's assembler, and
    what Numba raises for a kernel that does not compile.
    """
    launches = codegen.launches(module, problem)
    texts = {_key(one): codegen.ptx(one, [architecture])[architecture] for one in codegen.distinct(launches)}
    found: dict[str, float] = {"float64": sum(len(codegen.float64_arithmetic(text)) for text in texts.values())}
    if set(names) <= set(found):
        return found
    loops = bool({"per_fma", "shared_per_fma"} & {*names})
    codes = {}
    for launch in codegen.distinct(launches):
        most = launch.kernel.targetoptions.get("max_registers")
        codes[_key(launch)] = codegen.assemble(texts[_key(launch)], launch.name, architecture, most, loops)
    working = [one for one in launches if "fma.rn.f32" in texts[_key(one)]] or launches
    each = [_of_launch(one, texts[_key(one)], codes[_key(one)], problem, architecture) for one in working]
    found["stack_bytes"] = max(code.stack_bytes for code in codes.values())
    found |= {name: (min if name in least else max)(one[name] for one in each) for name in each[0]}
    return {name: value for name, value in found.items() if name in names}


def _key(launch: codegen.Launch) -> tuple[int, str]:
    """What is compiled once."""
    return id(launch.kernel), str(launch.signature)


def _of_launch(
    launch: codegen.Launch, text: str, code: MachineCode, problem: Problem, architecture: str
) -> dict[str, float]:
    """The figures of one launch; those of a multiply loop are 0 without one."""
    loop = HotLoop.of(code)
    block, grid = launch.threads, int(np.prod(launch.grid))
    shared = code.shared_bytes + launch.dynamic_shared_bytes
    maps = problem.K if isinstance(problem, problems.Conv2d) else 1  # a thread may compute its pixel of every map
    return {
        "registers": code.registers,
        "shared_bytes": shared,
        "shared_per_thread": shared / block,
        "per_fma": loop.per_multiply_add() or 0.0,
        "shared_per_fma": loop.per_multiply_add(loop.count("LDS", "LDSM")) or 0.0,
        "barriers": len(re.findall(r"\bbar(?:rier)?\.(?:cta\.)?sync\b", text)),
        "warps": occupancy(architecture, block, code.registers, shared).warps,
        "idle": 100 * (1 - int(np.prod(problem.output_shape)) / maps / (block * grid)),
        "blocks": grid,
    }


def _of_float64(module: ModuleType, problem: Problem, architecture: str) -> str:
    """The line that most float64 instructions come from; empty if they are all a helper's."""
    counts: Counter[int] = Counter()
    for launch in codegen.distinct(codegen.launches(module, problem)):
        text = codegen.ptx(launch, [architecture], lines=True)[architecture]
        own = re.findall(rf'\.file\s+(\d+) ".*\b{Path(str(module.__file__)).stem}\.py"', text)
        wide, file, line = {*codegen.float64_arithmetic(text)}, "", ""
        for one in text.splitlines():
            if place := re.match(r"\s*\.loc\s+(\d+) (\d+)", one):
                file, line = place.groups()
            elif file in own and one.strip() in wide:
                counts[int(line)] += 1
    return "".join(f", {count} of them from {_line(module, line)}" for line, count in counts.most_common(1))


# --- what an exercise asks for ---


def compared(
    figures: dict[str, float], exercise: Exercise, places: dict[str, str] | None = None
) -> tuple[list[Finding], list[str]]:
    """Limits that are not kept, with the reason for them, and those that are, each with the figure reached and, where
    it is known, its place."""
    findings, kept = [], []
    most, least = EVERYWHERE | exercise.at_most, exercise.at_least
    for name in most | least:
        value, high, low = figures[name], most.get(name, math.inf), least.get(name, -math.inf)
        text = COUNTED[name].format(f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}")
        text += (places or {}).get(name, "")
        sides = [f"at most {high:g} allowed"] * (name in most) + [f"at least {low:g} required"] * (name in least)
        asked = f"exactly {low:g} required" if low == high else ", ".join(sides)
        if not low - 1e-9 <= value <= high + 1e-9:
            why = exercise.because.get(name) or MEANING.get(name, "")
            findings.append(Finding("limit", f"{text}; {asked}{why and ': '}{why}"))
        elif name in limited(exercise):
            kept.append(f"{text}, {asked}")
    return findings, kept


class Counted(Result, frozen=True, kw_only=True):
    """``findings`` are reasons not to pass; ``notes`` are said and decide nothing. ``places`` say where a figure was
    reached."""

    findings: Sequence[Finding] = ()
    notes: Sequence[str] = ()
    figures: dict[str, float] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)


class Count(FileTask[Counted], frozen=True, kw_only=True, tag="grade.count"):
    """Does a kernel file keep its exercise's limits, in a trace of its source and in its code, compiled for this
    ``architecture``? ``solution`` is the file that it is compared with. Of a step only whether it compiles."""

    solution: str
    architecture: str


def count_task(task: Count) -> Counted:
    """Count what is limited, unless it reads too much. Compiling raises what Numba has against it."""
    from common.trace import trace

    module, exercise = _loaded(task, task.path), known()[task.step]
    own, notes = exercise.problems(), list[str]()
    counts: dict[str, float] = {}
    places: dict[str, str] = {}
    most = READS.get(exercise.kind)
    solution = _loaded(task, task.solution) if most else None
    for problem in own[: TRACED if most else min(1, len(limited(exercise)))]:
        traced = trace.run(module, problem, every=True)
        if not counts:
            counts, places = touched(traced), costliest(traced, module)
        if most and solution:
            note, wrong = _compared_reads(most, traced, trace.run(solution, problem, every=True))
            notes = notes or [note]
            if wrong:
                return Counted(status="wrong", findings=[Finding("reads", wrong)], notes=notes, figures=counts)
    try:
        counts |= compiled(module, own[0], EVERYWHERE, (), task.architecture)
        if counts.get("float64"):
            places["float64"] = _of_float64(module, own[0], task.architecture)
        if names := limited(exercise) - {*counts}:
            whole = problems.preset(exercise.preset)
            whole = whole if isinstance(whole, problems.Gemm) else loading.fitted(whole, COMPILED_BYTES)
            counts |= compiled(module, whole, names, exercise.at_least, task.architecture)
    except codegen.ToolMissingError as error:
        return Counted(status="unjudged", message=f"cannot be judged here: {error}", notes=notes)
    except codegen.RegistersError as error:
        findings = [Finding("uncompiled", f"it cannot be compiled: {error}")]
        return Counted(status="wrong", findings=findings, notes=notes, figures=counts)
    findings, kept = ([], []) if isinstance(exercise, Shipped) else compared(counts, exercise, places)
    status: Status = "wrong" if findings else "right"
    return Counted(status=status, findings=findings, notes=[*kept, *notes], figures=counts, places=places)


def _loaded(task: Count, path: str) -> ModuleType:
    from common.trace.trace import Tracer

    with Tracer():  # a file may make arrays when it is imported
        return catalog.load(Path(path), task.ladder, task.home, task.helpers)
