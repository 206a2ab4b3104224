"""Does the tracer count what the hardware counts, by ncu? Beside it, what other tools show of wrong programs."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import replace

from common.catalog import catalog, device, lessontext, problems, sources
from common.catalog.catalog import Step
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

TOLERANCE = 0.01  # a ratio further from 1 has a remark

COLUMNS = {
    "load_requests": "global read requests",
    "load_sectors": "global read sectors",
    "store_requests": "global write requests",
    "store_sectors": "global write sectors",
    "shared_load_wavefronts": "shared read wavefronts",
    "shared_store_wavefronts": "shared write wavefronts",
    "ffma_threads": "FMAs",
}

_OF_ALL = (
    "The hardware's count over the trace's. Shared writes have a few conflicts more on the hardware, other ones in "
    "each run. Its counter of products on tensor cores has `HFMA2.MMA`, too, by which the compiler sets constants: "
    "1,024 multiply-adds for each."
)


def cases(steps: Iterable[Step]) -> list[tuple[Step, Problem]]:
    """Each step with each shape that it is traced at."""
    return [(step, problem) for step in steps for problem in trace.shapes(step)]


def count(pairs: list[tuple[Step, Problem]]) -> Iterator[dict[str, Counts]]:
    """The tracer's counters of each pair's kernels by name. Raises TraceError."""
    for result in trace.results([trace.task(step, problem, every=True) for step, problem in pairs]):
        yield {kernel.name: Counts(**{key: kernel.totals[key] for key in COLUMNS}) for kernel in result.kernels}


def refresh(pairs: list[tuple[Step, Problem]]) -> Iterator[tuple[Step, Problem, Agreement]]:
    """A new entry for each pair; launches of one kernel are summed. Raises NoGpuError without a GPU, ToolError when
    the counters cannot be read."""
    device.require_gpu("counting on the hardware")
    tasks = [messages.Launch(**at(step, problem)) for step, problem in pairs]
    launched = measuring.profiled(tasks, tools.COUNTED)
    for (step, problem), (result, launches), traced in zip(pairs, launched, count(pairs), strict=True):
        kernels: dict[str, dict[str, float]] = {}
        for name, launch in zip(result.launched, launches, strict=True):
            products = tools.multiply_adds(launch.counters, problem, catalog.on_tensor_cores(step, problem))
            counters, before = {**launch.counters, "ffma_threads": products}, kernels.get(name, {})
            kernels[name] = {key: before.get(key, 0) + (counters[key] or 0) for key in tools.COUNTED}
        code = sources.provenance(step.path)
        found = [Counted(kernel=name, hardware=Counts(**sums), trace=traced[name]) for name, sums in kernels.items()]
        entry = Agreement(source=code.source, helpers=code.helpers, shape=problem.shape(), kernels=found)
        yield step, problem, entry


def ratio(counts: Counts, key: str, counted: Counts) -> float | None:
    """The hardware's count over the tracer's; None where neither counts anything."""
    measured, expected = getattr(counts, key), getattr(counted, key)
    if not expected:
        return math.inf if measured else None
    return float(measured / expected)


def table(recorded: dict[str, dict[str, Agreement]], steps: Iterable[Step] = ()) -> Table:
    """The ratios of each kernel and shape of these steps, by default all, and what the lessons say of those off."""
    rows: list[list[str]] = []
    remarked: dict[str, dict[str, None]] = {}  # kernels by what is said of them
    for step in steps or catalog.everything():
        remarks = lessontext.remarks(catalog.LESSONS, step.name)
        for case in recorded.get(step.name, {}).values():
            older, shape = current.older(case, step.name), str(problems.from_shape(step.ladder, case.shape))
            for kernel in case.kernels:
                ratios = [ratio(kernel.hardware, key, kernel.trace) for key in COLUMNS]
                cells = ["" if value is None else f"{value:.2f}" for value in ratios]
                name = f"`{kernel.kernel}`"
                rows.append([kinds.aged(name, older), shape, *cells])
                if kernel.kernel in remarks and any(one is not None and abs(one - 1) > TOLERANCE for one in ratios):
                    remarked.setdefault(remarks[kernel.kernel].text, {})[name] = None
    said = [f"{', '.join(names)}: {text}" for text, names in remarked.items()]
    header = ["kernel", "shape", *COLUMNS.values()]
    return Table(header, rows, "\n\n".join([_OF_ALL, *said]), optional=["shape"])


@figures.kind("agreement", kinds.TABLES)
def agreed(record: Record) -> Table:
    """What the hardware counts of each kernel, over what the tracer counts."""
    found = record.data.agreement
    if not found:
        raise kinds.UnmeasuredError("the tracer's agreement")
    made = table(found)
    where = kinds.machine(record, [entry for shapes in found.values() for entry in shapes.values()])
    return replace(made, note=f"{made.note}\n\nRead with Nsight Compute on one {where}.")


@figures.kind("simulator", kinds.TABLES)
def simulator() -> Table:
    """What Numba's simulator, the tracer and compute-sanitizer show of the programs of tests/trace/programs."""
    path = records.RESULTS / "programs" / "simulator.json"
    if not path.exists():
        raise kinds.UnmeasuredError(path.name)
    found = json.loads(path.read_text(encoding="utf-8")).values()
    # by tool, of each program: its kind, does it let it pass, and the seconds
    told = {
        "Numba's simulator": [
            (one["kind"], one["simulator"]["ended"] == "silent", one["simulator"]["seconds"]) for one in found
        ],
        "the tracer": [(one["kind"], not one["tracer"]["faults"], one["tracer"]["seconds"]) for one in found],
    }
    notes = []
    for file in sorted(path.parent.glob("sanitizer-*.json")):
        card = json.loads(file.read_text(encoding="utf-8"))
        mine = told[f"compute-sanitizer on {card['gpu']}"] = []
        for one in card["programs"].values():
            # a wrong program that it does not end, it has not named
            silent = ("silent",) if one["kind"] == "right" else ("silent", "endless")
            mine.append((one["kind"], one["sanitizer"]["ended"] in silent, one["sanitizer"]["seconds"]))
        where = f"one {card['gpu']} (driver {card['driver']}, CUDA {card['cuda']}) on {card['date']}"
        notes.append(f"compute-sanitizer's seconds are those of {', '.join(tools.TOOLS)} together, on {where}.")
    right = sum(one["kind"] == "right" for one in found)
    counted = {
        f"right programs, {right}: run to their end": (True, True),
        "right programs: accused, or stopped by what is not known": (True, False),
        f"wrong programs, {len(found) - right}: stopped or named": (False, False),
        "wrong programs: run to their end without a word": (False, True),
    }
    rows = []
    for title, wanted in counted.items():
        counts = (sum((kind == "right", passes) == wanted for kind, passes, _ in one) for one in told.values())
        rows.append([title, *map(str, counts)])
    medians = (statistics.median(seconds for *_, seconds in one) for one in told.values())
    rows.append(["seconds a program, the median", *(f"{median:.1f}" for median in medians)])
    for tool, programs in told.items():
        missed = sorted({f"`{kind}`" for kind, passes, _ in programs if passes and kind != "right"})
        notes += [f"{tool} is silent about {', '.join(missed)}."] if missed else []
    return Table(["", *told], rows, "\n\n".join(notes))
