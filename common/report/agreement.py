"""Does the tracer count what the hardware counts? Each step at the tracer's shapes, all blocks, counter by counter.

The hardware's part needs a GPU and ncu and is kept in the GPU's record; the tracer's part runs anywhere.
Beside it, what other tools show of wrong programs.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import replace

from common.catalog import catalog, device, lessontext, problems, sources
from common.catalog.catalog import Step
from common.catalog.lessontext import Remark
from common.catalog.problems import Problem
from common.records import current, records
from common.records.entries import Agreement, Counted
from common.records.records import Record
from common.report import figures, kinds
from common.report.table import Table
from common.run import messages
from common.run.messages import at
from common.timing import measuring, tools
from common.timing.tools import Counts
from common.trace import trace
from common.trace.messages import TracedKernel

TOLERANCE = 0.01  # a ratio further from 1 has a remark

COLUMNS = {
    "load_requests": "global read requests",
    "load_sectors": "global read sectors",
    "store_requests": "global write requests",
    "store_sectors": "global write sectors",
    "shared_load_wavefronts": "shared read wavefronts",
    "shared_store_wavefronts": "shared write wavefronts",
    "ffma_threads": "multiply-adds",
}

_CONSTANTS = (
    "The hardware's counter of products on tensor cores has `HFMA2.MMA`, too, by which the compiler sets constants: "
    "1,024 were added for each."
)
_OF_ONE = 16 * 8 * 8  # products that were added for one
_COLLISIONS = (
    "The hardware counts conflicts of shared writes that their addresses do not have, a different number in each run."
)


def cases(steps: Iterable[Step]) -> list[tuple[Step, Problem]]:
    """Each step with each shape that it is traced at."""
    return [(step, problem) for step in steps for problem in trace.shapes(step)]


def measure(pairs: list[tuple[Step, Problem]]) -> list[dict[str, Counts]]:
    """The hardware's counters of each pair's kernels, by name, launches of one kernel summed. All in one process
    under ncu. Raises NoGpuError without a GPU, ToolError when the counters cannot be read."""
    device.require_gpu("counting on the hardware")
    tasks = [messages.Launch(**at(step, problem)) for step, problem in pairs]
    found = []
    for (step, problem), (result, launches) in zip(pairs, measuring.profiled(tasks, tools.COUNTED), strict=True):
        kernels: dict[str, dict[str, float]] = {}
        for name, launch in zip(result.kernels, launches, strict=True):
            products = tools.multiply_adds(launch.counters, problem, catalog.on_tensor_cores(step, problem))
            counters, before = {**launch.counters, "ffma_threads": products}, kernels.get(name, {})
            kernels[name] = {key: before.get(key, 0) + (counters[key] or 0) for key in tools.COUNTED}
        found.append({name: Counts(**sums) for name, sums in kernels.items()})
    return found


def count(pairs: list[tuple[Step, Problem]]) -> Iterator[tuple[dict[str, Counts], dict[str, Counts]]]:
    """The tracer's counters of each pair's kernels by name; and those of kernels whose reads the compiler merges,
    counted that way. Raises TraceError.
    """
    remarks = [_remarks(step) for step, _ in pairs]
    merged = [{k: v for remark in mine.values() for k, v in remark.merged.items()} for mine in remarks]
    tasks = []
    for (step, problem), arrays in zip(pairs, merged, strict=True):
        tasks.append(trace.task(step, problem, every=True))
        if arrays:
            tasks.append(trace.task(step, problem, every=True, merged=arrays))
    results = trace.results(tasks)
    for mine, arrays in zip(remarks, merged, strict=True):
        plain = {kernel.name: _counters(kernel) for kernel in next(results).kernels}
        again = next(results).kernels if arrays else []
        yield plain, {kernel.name: _counters(kernel) for kernel in again if kernel.name in mine}


def _remarks(step: Step) -> dict[str, Remark]:
    """By kernel; none on a file in the step's place."""
    shipped = step.path == catalog.find(step.name).path
    return lessontext.remarks(catalog.LESSONS, step.name) if shipped else {}


def _counters(kernel: TracedKernel) -> Counts:
    return Counts(**{key: kernel.totals[key] for key in COLUMNS})


def refresh(pairs: list[tuple[Step, Problem]]) -> Iterator[tuple[Step, Problem, Agreement]]:
    """A new entry for each pair, as soon as it is counted: by the hardware, and by the tracer."""
    for (step, problem), kernels, (traced, merged) in zip(pairs, measure(pairs), count(pairs), strict=True):
        code = sources.provenance(step.path)
        found = [
            Counted(kernel=name, hardware=counts, trace=traced[name], compiled=merged.get(name))
            for name, counts in kernels.items()
        ]
        entry = Agreement(source=code.source, helpers=code.helpers, shape=problem.shape(), kernels=found)
        yield step, problem, entry


def ratio(counts: Counts, key: str, counted: Counts) -> float | None:
    """The hardware's count over the tracer's; None where neither counts anything."""
    measured, expected = getattr(counts, key), getattr(counted, key)
    if not expected:
        return math.inf if measured else None
    return float(measured / expected)


def table(recorded: dict[str, dict[str, Agreement]], steps: Iterable[Step] = (), ratios_alone: bool = False) -> Table:
    """A line for each kernel and shape of these steps, by default all: hardware counts with their ratio to the trace,
    or for a terminal, which is narrow, the ratio alone."""
    body: list[list[str]] = []
    notes: list[str] = []
    for step in steps or catalog.everything():
        remarks = _remarks(step)
        for case in recorded.get(step.name, {}).values():
            shape = problems.from_shape(step.ladder, case.shape)
            edited = not current.is_current(case, step.path)
            for kernel in case.kernels:
                remark = _remark(kernel, remarks.get(kernel.kernel), edited, catalog.on_tensor_cores(step, shape))
                if remark and remark not in notes:
                    notes.append(remark)
                cells = []
                for key in COLUMNS:
                    value = ratio(kernel.hardware, key, kernel.trace)
                    text = "" if value is None else f"{value:.2f}"
                    if text and not ratios_alone:
                        text = f"{getattr(kernel.hardware, key):,.0f} ({text})"
                    cells.append(text)
                note = f"({notes.index(remark) + 1})" if remark else ""
                at = _short(shape)
                names = [f"{kernel.kernel}\n{at}"] if ratios_alone else [f"`{kernel.kernel}`", at]
                body.append([*names, *cells, note])
    note = "\n\n".join(f"({i}) {note}" for i, note in enumerate(notes, 1))
    if not ratios_alone:
        return Table(["kernel", "shape", *COLUMNS.values(), "note"], body, note)
    short = {"requests": "req.", "wavefronts": "waves", "multiply-adds": "FMAs"}
    header = [" ".join(short.get(word, word) for word in name.split(" ")) for name in COLUMNS.values()]
    return Table(["kernel", *header, "note"], body, note, "counted by the hardware, over the trace's count")


def _remark(kernel: Counted, remark: Remark | None, edited: bool, tensor: bool) -> str:
    if edited:
        return "The file has changed since the hardware counted."
    ratios = {key: ratio(kernel.hardware, key, kernel.trace) for key in COLUMNS}
    keys = [key for key, value in ratios.items() if value is not None and abs(value - 1) > TOLERANCE]
    stored = ratio(kernel.hardware, "shared_store_wavefronts", kernel.trace) or 0
    collided = "shared_store_wavefronts" in keys and 1 < stored < 1.1
    texts = []
    beyond = kernel.hardware.ffma_threads - kernel.trace.ffma_threads
    if "ffma_threads" in keys and not tensor and beyond > 0 and beyond % _OF_ONE == 0:
        keys.remove("ffma_threads")
        texts.append(_CONSTANTS)
    if [key for key in keys if key != "shared_store_wavefronts" or not collided]:
        texts.append(remark.text if remark else "Not explained.")
        if remark and kernel.compiled:
            merged = ratio(kernel.hardware, "shared_load_wavefronts", kernel.compiled)
            texts.append(f"Counted that way: {merged:.2f}.")
    if collided:
        texts.append(_COLLISIONS)
    return " ".join(texts)


def _short(problem: Problem) -> str:
    shape = problem.shape()
    if problem.form == "gemm":
        return " × ".join(str(shape[key]) for key in "MNK")
    return " ".join(f"{key}={value}" for key, value in shape.items() if key in ("N", "C", "H", "K"))


@figures.kind("agreement", kinds.TABLES)
def agreed(record: Record) -> Table:
    """What the hardware counted of each kernel, with the ratio to what the tracer counted."""
    found = record.data.agreement
    if not found:
        raise kinds.UnmeasuredError("the tracer's agreement")
    made = table(found)
    where = kinds.machine(record, [entry for shapes in found.values() for entry in shapes.values()])
    said = "What the hardware counted, and in brackets its ratio to what the trace counted. Read with Nsight Compute"
    return replace(made, note=f"{made.note}\n\n{said} on one {where}.".lstrip())


@figures.kind("simulator", kinds.TABLES)
def simulator() -> Table:
    """What Numba's simulator shows of the programs of tests/trace/programs, what the tracer does, and what
    compute-sanitizer does on the cards where it ran."""
    path = records.RESULTS / "programs" / "simulator.json"
    if not path.exists():
        raise kinds.UnmeasuredError(path.name)
    found = json.loads(path.read_text(encoding="utf-8"))
    kind = {name: one["kind"] for name, one in found.items()}
    # by tool, of each program: does it let it pass, and the seconds
    told = {
        "Numba's simulator": {
            n: (one["simulator"]["ended"] == "silent", one["simulator"]) for n, one in found.items()
        },
        "the tracer": {n: (not one["tracer"]["faults"], one["tracer"]) for n, one in found.items()},
    }
    notes = []
    for file in sorted(path.parent.glob("sanitizer-*.json")):
        card = json.loads(file.read_text(encoding="utf-8"))
        silent = {True: ("silent",), False: ("silent", "endless")}  # what it does not end, it has not named
        told[f"compute-sanitizer on {card['gpu']}"] = {
            n: (one["sanitizer"]["ended"] in silent[one["kind"] == "right"], one["sanitizer"])
            for n, one in card["programs"].items()
        }
        kind |= {name: one["kind"] for name, one in card["programs"].items()}
        where = f"one {card['gpu']} (driver {card['driver']}, CUDA {card['cuda']}) on {card['date']}"
        notes.append(f"compute-sanitizer's seconds are those of {', '.join(tools.TOOLS)} together, on {where}.")
    right = sum(kind[name] == "right" for name in found)
    counted = (
        (f"right programs, {right}: run to their end", True, True),
        ("right programs: accused, or stopped by what is not known", True, False),
        (f"wrong programs, {len(found) - right}: stopped or named", False, False),
        ("wrong programs: run to their end without a word", False, True),
    )
    rows = []
    for title, good, passed in counted:
        counts = []
        for one in told.values():
            counts.append(sum((kind[n] == "right", ok) == (good, passed) for n, (ok, _) in one.items()))
        rows.append([title, *map(str, counts)])
    medians = (statistics.median(end["seconds"] for _, end in one.values()) for one in told.values())
    rows.append(["seconds a program, the median", *(f"{median:.1f}" for median in medians)])
    for tool, mine in told.items():
        missed = sorted({kind[n] for n, (ok, _) in mine.items() if ok and kind[n] != "right"})
        if missed:
            notes.append(f"{tool} is silent about {', '.join(f'`{one}`' for one in missed)}.")
    return Table(["", *told], rows, "\n\n".join(notes))
