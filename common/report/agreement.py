"""Does the tracer count what the hardware counts? Each step at the tracer's shapes, all blocks, counter by counter.

The hardware's part needs a GPU and ncu and is kept in the GPU's record; the tracer's part runs anywhere.
Beside it, what Numba's simulator shows of wrong programs.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

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
    """The hardware's counters of each pair's kernels, by name, launches of one kernel summed.

    All in one process under ncu. Raises NoGpuError without a GPU, ToolError when the counters cannot be read.
    """
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
    if not measured and not expected:
        return None
    return float(measured / expected) if expected else float("inf")


def table(recorded: dict[str, dict[str, Agreement]], steps: Iterable[Step] = (), ratios_alone: bool = False) -> Table:
    """A line for each kernel and shape: hardware counts with their ratio to the trace, or for a terminal, which is
    narrow, the ratio alone.

    ``steps``: those that were counted (default: all as they are).
    """
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
                cells = [_cell(kernel, key, ratios_alone) for key in COLUMNS]
                note = f"({notes.index(remark) + 1})" if remark else ""
                both = [f"`{kernel.kernel}`", _short(shape)]
                names = [f"{kernel.kernel}\n{both[1]}"] if ratios_alone else both
                body.append([*names, *cells, note])
    header = ["kernel", *([] if ratios_alone else ["shape"]), *COLUMNS.values(), "note"]
    title = "counted by the hardware, over the trace's count" if ratios_alone else ""
    if ratios_alone:
        short = {"requests": "req.", "wavefronts": "waves", "multiply-adds": "FMAs"}
        header = [" ".join(short.get(word, word) for word in name.split(" ")) for name in header]
    return Table(header, body, "\n\n".join(f"({i}) {note}" for i, note in enumerate(notes, 1)), title)


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


def _cell(kernel: Counted, key: str, ratio_alone: bool) -> str:
    value = ratio(kernel.hardware, key, kernel.trace)
    if value is None:
        return ""
    return f"{value:.2f}" if ratio_alone else f"{getattr(kernel.hardware, key):,.0f} ({value:.2f})"


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
    said = (
        "What the hardware counted, and in brackets its ratio to what the trace counted. Read with Nsight Compute on"
    )
    return replace(made, note="\n\n".join(filter(None, [made.note, f"{said} one {where}."])))


@figures.kind("simulator", kinds.TABLES)
def simulator() -> Table:
    """What Numba's simulator shows of the programs of tests/trace/programs, what the tracer does, and what
    compute-sanitizer does on the cards where it ran."""
    path = records.RESULTS / "programs" / "simulator.json"
    if not path.exists():
        raise kinds.UnmeasuredError(path.name)
    found = json.loads(path.read_text(encoding="utf-8")).values()
    right = [one for one in found if one["kind"] == "right"]
    wrong = [one for one in found if one["kind"] != "right"]
    silent = [one for one in wrong if one["simulator"]["ended"] == "silent"]

    def ended(these: list[dict[str, Any]], how: str) -> str:
        return str(sum(one["simulator"]["ended"] == how for one in these))

    def faulty(these: list[dict[str, Any]]) -> str:
        return str(sum(bool(one["tracer"]["faults"]) for one in these))

    def seconds(by: str) -> str:
        return f"{statistics.median(one[by]['seconds'] for one in found):.1f}"

    rows = [
        [f"right programs, {len(right)}: run to their end", ended(right, "silent"), str(len(right))],
        ["right programs: accused, or stopped by what is not known", ended(right, "error"), faulty(right)],
        [f"wrong programs, {len(wrong)}: stopped or named", ended(wrong, "error"), faulty(wrong)],
        [
            "wrong programs: run to their end without a word",
            ended(wrong, "silent"),
            str(len(wrong) - int(faulty(wrong))),
        ],
        ["seconds a program, the median", seconds("simulator"), seconds("tracer")],
    ]
    header, notes = ["", "Numba's simulator", "the tracer"], [f"The simulator is silent about {_kinds(silent)}."]
    for card in sorted(path.parent.glob("sanitizer-*.json")):
        record = json.loads(card.read_text(encoding="utf-8"))
        header.append(f"compute-sanitizer on {record['gpu']}")
        cells, note = _sanitized(record)
        rows = [[*row, cell] for row, cell in zip(rows, cells, strict=True)]
        notes.append(note)
    return Table(header, rows, "\n\n".join(notes))


def _kinds(programs: Iterable[dict[str, Any]]) -> str:
    return ", ".join(f"`{kind}`" for kind in sorted({one["kind"] for one in programs}))


def _sanitized(record: dict[str, Any]) -> tuple[list[str], str]:
    """A card's cells of the simulator's table, and what is said below it."""
    found = record["programs"]
    ends = {name: one["sanitizer"]["ended"] for name, one in found.items()}
    right = [name for name in found if found[name]["kind"] == "right"]
    wrong = [name for name in found if name not in right]
    accused = [name for name in right if ends[name] != "silent"]
    missed = [name for name in wrong if ends[name] in ("silent", "endless")]
    counts = [len(right) - len(accused), len(accused), len(wrong) - len(missed), len(missed)]
    seconds = statistics.median(one["sanitizer"]["seconds"] for one in found.values())
    named = sum(ends[name] == "named" for name in wrong)
    said = [
        f"compute-sanitizer runs a program under each of {', '.join(tools.TOOLS)}: the seconds are of all four.",
        f"They name {named} wrong programs; Numba, the driver or a check of its own stops the others that are found.",
        f"It is silent about {_kinds(found[name] for name in missed)}.",
    ]
    said += (
        [f"Of right programs it does not let pass: {', '.join(f'`{name}`' for name in accused)}."] if accused else []
    )
    said.append(f"On one {record['gpu']} (driver {record['driver']}, CUDA {record['cuda']}) on {record['date']}.")
    return [*map(str, counts), f"{seconds:.1f}"], " ".join(said)
