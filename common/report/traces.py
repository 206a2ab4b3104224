"""A kernel as it was traced, as the hardware counted it and as it was compiled: in tables, in sentences, and as the
book shows every step's trace, ``results/traces/STEP.json``."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import astuple
from rich.text import Text

from common.catalog import cache, catalog, device, problems, store
from common.catalog.catalog import Step
from common.catalog.problems import Hgemm, Problem
from common.machine_code import summaries
from common.machine_code.summaries import Kernel, SourceLine
from common.records import records
from common.records.records import Record
from common.report import tables
from common.report.figures import kind
from common.report.table import Cell, Table
from common.run import messages
from common.timing import measuring, tools
from common.timing.tools import Agreement, Counted, Counts
from common.trace import cost, trace
from common.trace.cost import WORD_BYTES, served_together, wavefronts
from common.trace.hopper import mbarriers
from common.trace.messages import Traced, TracedAccess, TracedKernel, TracedRequest

FOLDER = catalog.ROOT / "results" / "traces"
KEPT = 12  # requests of each access
TICKS = 120  # of a pipeline
UNITS = {"global": "sectors of 32 bytes", "shared": "wavefronts", "constant": "reads"}  # of what a memory moves
NO_FAULT = "nothing out of bounds, no race, no uninitialised value stored"


Kept = dict[str, Any]
"""A step's trace, or one of its kernels, as ``results/traces/STEP.json`` and the page's script have it.

A trace: ``shape``; ``kernels``; ``main``, the main one's place among them; in a file ``source``, the code's digest.
A kernel, as :class:`common.trace.messages.TracedKernel`, but ``file`` from the checkout's root, or where it lies
outside, whole; ``loads``: instructions for each multiply-add, by memory; ``says``: its :func:`sentences`;
``accesses``: of these the first requests ``seen``, each: the warp; runs of neighbouring lanes (:func:`packed`); of
shared memory how many lanes are served together, and wavefronts; ``faults``: line and text; ``pipeline``: spans.
"""
_OF_KERNEL = ("grid", "block", "blocks", "fma", "fma_lines")
_OF_ACCESS = ("line", "space", "op", "array", "bits", "accesses", "requests", "moved", "ideal")


def problem(step: Step) -> Problem:
    """The shape of a step's kept trace. Of hgemm the sum is long enough to fill each stage of a pipeline again."""
    usual = problems.TRACED[step.ladder][0]
    return Hgemm(usual.M, usual.N, 2 * usual.K) if isinstance(usual, Hgemm) else usual


def of(found: Traced, at: Problem | str) -> Kept:
    """What is shown of a trace that was taken with ``kept=KEPT``."""
    kernels = []
    for kernel in found.kernels:
        loads = {space: round(each["loads"], 6) for space, each in kernel.per_fma.items() if space in UNITS}
        accesses = [one for one in kernel.accesses if one.space in UNITS]
        kernels.append({
            "name": kernel.name,
            "file": store.shown(Path(kernel.file)),
            **{key: getattr(kernel, key) for key in _OF_KERNEL},
            "loads": {space: each for space, each in loads.items() if each},
            "says": list(sentences(kernel)),
            "accesses": [
                {key: getattr(one, key) for key in _OF_ACCESS} | {"seen": [_request(one, each) for each in one.seen]}
                for one in accesses
            ],
            "faults": [{"line": fault.line, "text": fault.sentence} for fault in kernel.faults],
            "pipeline": [list(astuple(span)) for span in kernel.pipeline if span.start < TICKS],
        })  # fmt: skip
    return {"shape": str(at), "kernels": kernels, "main": found.kernels.index(found.main)}


def _request(access: TracedAccess, request: TracedRequest) -> list[Any]:
    runs = packed(request.places)
    if access.space != "shared":
        return [request.warp, runs, 0, 0]
    words = np.array([[0 if place is None else place // WORD_BYTES for place in request.places]])
    active = np.array([[place is not None for place in request.places]])
    how = max(1, access.bits // 8 // WORD_BYTES), access.op in ("write", "copy")
    return [request.warp, runs, served_together(words, active, *how), wavefronts(words, active, *how).moved]


def packed(places: Sequence[int | None]) -> list[tuple[int, int | None, int]]:
    """Places lane by lane, in bytes, as runs: how many lanes, the first one's place or None, the stride.

    >>> packed([0, 4, 8, None, None, 7])
    [(3, 0, 4), (2, None, 0), (1, 7, 0)]
    """
    runs: list[tuple[int, int | None, int]] = []
    for place in places:
        count, first, step = runs.pop() if runs else (0, place, 0)
        if count == 1 and place is not None and first is not None:
            step = place - first
        if place == (None if first is None else first + count * step):
            runs.append((count + 1, first, step))
        else:
            runs += [(count, first, step), (1, place, 0)]
    return runs


# --- the files ---


def load(step: Step, folder: Path = FOLDER) -> Kept:
    """A step's kept trace. Raises StoreError if there is none."""
    found: Kept = store.read_json(folder / f"{step.name}.json")
    return found


def fitting(folder: Path = FOLDER) -> dict[str, Kept]:
    """The kept traces whose lines are those of the files as they are, by step. Raises StoreError."""
    there = (step for step in catalog.steps() if (folder / f"{step.name}.json").is_file())
    return {step.name: kept for step in there if (kept := load(step, folder)).get("source") == _source(step)}


def write(step: Step, folder: Path = FOLDER) -> Path:
    """Trace a step in this process and write its file, one line for each access. Raises TraceError."""
    at = problem(step)
    found = trace.run(catalog.load(step.path, step.ladder), at, kept=KEPT)
    text = msgspec.json.encode({**of(found, at), "source": _source(step)}).decode()
    for mark in ('{"name":', '{"line":', '"pipeline":'):
        text = text.replace(mark, f"\n{mark}")
    path = folder / f"{step.name}.json"
    store.write(path, f"{text}\n")
    return path


def _source(step: Step) -> str:
    """A digest of the step's file, and of those that it takes kernels and helpers from."""
    return cache.digest(cache.files([step.path]), text=True)


# --- for the terminal: a trace ---

_VERBS = {"atomic": "update", "tma": "TMA load", "tma store": "TMA store"}  # the others are their own
_DEAR = 1.5  # times what it had to move: an access of a program is told from there on
_TOLD = 8  # accesses
_WASTED = {"global": "not coalesced", "shared": "bank conflicts"}


def block(text: str) -> tuple[int, int, int]:
    """A block from ``"X"``, ``"X,Y"`` or ``"X,Y,Z"``; raises ValueError."""
    if not re.fullmatch(r" *\d+ *(, *\d+ *){0,2}", text):
        raise ValueError(f"--block {text!r}: must be one to three integers, X,Y,Z")
    x, y, z = [*map(int, text.split(",")), 0, 0][:3]
    return x, y, z


def _point(point: Sequence[int]) -> str:
    return f"({', '.join(map(str, point))})"


def _by(extents: Iterable[int]) -> str:
    return " x ".join(map(str, extents))


def sentences(kernel: TracedKernel) -> Iterator[str]:
    """What a kernel's tables do not show: launches, registers, divergence, notes."""
    if kernel.launches > 1 and kernel.blocks == 1:
        yield f"{kernel.name} is launched {kernel.launches} times; the first launch is traced."
    registers: dict[str, dict[str, int]] = {}
    for access in kernel.select("local"):
        used = registers.setdefault(access.array, {"read": 0, "write": 0})
        used[access.op] += access.accesses * access.bits // 32
    if registers:
        said = (f"{name} ({used['read']:,} reads, {used['write']:,} writes)" for name, used in registers.items())
        yield f"Must stay in registers: {', '.join(said)}."
    for line, (split, branches) in kernel.branches.items():
        if split:
            yield f"line {line}: in {split:,} of {branches:,} branches of warps, the threads of a warp part ways."
    yield from (f"{note[0].upper()}{note[1:]}." for note in kernel.notes)


def pipeline(kernel: TracedKernel, width: int) -> list[str]:
    """The stages of a kernel's pipeline over time, as text of at most ``width`` columns; nothing without stages."""
    marks = ", ".join(f"{mark} {state}" for state, mark in mbarriers.MARKS.items())
    head = f"Stages of block {_point(kernel.first_block)}, one event after the other: {marks}."
    return [head, *mbarriers.drawn(kernel.pipeline, width)] if kernel.pipeline else []


def comparison(traces: dict[str, Traced]) -> str:
    """Loads for each multiply-add of the second step's main kernel beside the first one's, in one sentence."""
    (first, before), (second, after) = ((name, cost.loads_per_fma(found)) for name, found in traces.items())
    if not (before and after):
        return f"{second if before else first} has no float32 multiply-add: its loads cannot be compared."
    parts = []
    for memory in UNITS:
        was, now = before[memory], after[memory]
        if was:
            parts.append(f"{now / was:#.3g} of {first}'s {memory} loads")
        elif now:
            parts.append(f"{now:.2g} {memory} loads where {first} needs none")
    return f"For each multiply-add {second} needs {', '.join(parts)}."


def traced(kernel: TracedKernel) -> list[Table]:
    """A traced kernel: its accesses by memory and source line, then what they come to for each multiply-add."""
    where = f"block {_point(kernel.first_block)} of {_point(kernel.grid)}"
    if kernel.blocks >= math.prod(kernel.grid) > 1:
        where = f"all {kernel.blocks} blocks"
    elif kernel.blocks > 1:
        where = f"the cluster of {kernel.blocks} that begins with {where}"
    title = f"{kernel.name}, {where}, {_point(kernel.block)} threads\n"
    found = list[Table]()
    for space, unit in UNITS.items():
        header = ["line", "access", "bits", "requests", f"{unit.split()[0]} each", "ideal", "efficiency", "source"]
        accesses, rows = kernel.select(space), list[list[Cell]]()
        for one in accesses:
            access = f"{_VERBS.get(one.op, one.op)} {one.array}"
            rows.append([str(one.line), access, str(one.bits), *_sums([one]), Text(one.text)])
        if len(accesses) > 1:
            rows.append(["", "total", "", *_sums(accesses), ""])
        if accesses:
            said = f"{title}{space} memory, in {unit}"
            found.append(Table(header, rows, "", said, ["access", "source"], ["source"]))
            title = ""
    keys = ("loads", "loaded_values", "stores", "stored_values")
    each = [
        ["registers" if space == "local" else space, *(f"{cells[key]:.3g}" for key in keys)]
        for space, cells in kernel.per_fma.items()
        if any(cells.values())
    ]
    header = ["memory", "load instructions", "floats loaded", "store instructions", "floats stored"]
    return [*found, Table(header, each, title="for each multiply-add of a thread")] if each else found


def _sums(accesses: list[TracedAccess]) -> list[Cell]:
    """No request reaches memory if all are out of bounds."""
    requests, moved, ideal = (sum(getattr(a, key) for a in accesses) for key in ("requests", "moved", "ideal"))
    share = ideal / moved if moved else 1.0
    style = "default" if share > 0.99 else "yellow" if share > 0.5 else "red"
    each, least = (f"{value / max(requests, 1):.2f}" for value in (moved, ideal))
    return [f"{requests:,}", each, least, Text(f"{100 * share:.0f}%", style=style)]


def summary(kernel: TracedKernel) -> str:
    """How often a kernel of a program was launched, and with what grid and block."""
    times = f"{kernel.launches:,} times, first with " if kernel.launches > 1 else ""
    blocks = f"{_by(kernel.grid)} block{'s' * (kernel.grid != (1, 1, 1))}"
    return f"{kernel.name} was launched {times}{blocks} of {_by(kernel.block)} threads."


def dearest(kernels: Sequence[TracedKernel]) -> list[str]:
    """Accesses of a program that move much more than they have to, the dearest first."""
    found = [
        (Path(kernel.file).name, one)
        for kernel in kernels
        for one in kernel.accesses
        if one.space in _WASTED
        and one.op != "atomic"
        and one.moved > _DEAR * max(one.ideal, 1)
        and (one.space == "shared" or one.per_request > one.bits / 8)  # more than what a warp's neighbours take
    ]
    lines = []
    for file, one in sorted(found, key=lambda each: each[1].ideal - each[1].moved)[:_TOLD]:
        verb = "reads" if one.op in ("read", "copy") else "writes"
        each = f"{one.per_request:.1f} {UNITS[one.space]} a request where {one.ideal_per_request:.1f} would do"
        lines.append(f"{file}, line {one.line}: {verb} {one.array}, {_WASTED[one.space]}: {each}\n    {one.text}")
    more = len(found) - len(lines)
    return [*lines, f"... and {more} more such accesses"] if more else lines


# --- machine code ---


def title(step: str, kernel: Kernel) -> str:
    """The step, and the kernel if its name is another."""
    return step if kernel.kernel == step else f"{step}: {kernel.kernel}"


def _told(kernel: Kernel) -> dict[str, str]:
    """What tables say of an inspected kernel, by title."""
    hot, fits = kernel.hot, kernel.occupancy
    assert hot is not None
    assert fits is not None
    told = {
        "grid": _by(kernel.grid),
        "block": _by(kernel.block),
        "registers": str(kernel.registers),
        "stack, spilled bytes": f"{kernel.stack_bytes}, {kernel.spill_bytes}",
        "shared bytes per block": f"{kernel.shared_bytes + kernel.dynamic_shared_bytes:,}",
        "blocks per multiprocessor": str(fits.blocks),
        "warps per multiprocessor": f"{fits.warps} of {fits.max_warps}",
        "occupancy": f"{fits.fraction:.0%}",
        "  limited by": ", ".join(fits.limited_by),
        "hot loop": hot.what,
        "instructions": str(hot.total),
    }
    for what in summaries.CLASSES:
        count = hot.mix.get(what, 0)
        told[what] = f"{count} ({count / hot.total:.0%})" if count else "0"
    told["useful"] = f"{hot.useful:.0%}" if hot.multiply_adds else ""
    told["shared floats per FMA"] = "" if hot.floats_per_fma is None else f"{hot.floats_per_fma:.3g}"
    for what in ("shared load", "global load", "store"):
        widths = hot.widths.get(what, {})
        told[f"{what}s x bits"] = ", ".join(f"{count} x {bits}" for bits, count in widths.items())
    return told


def side_by_side(found: list[tuple[str, Kernel]]) -> Table:
    """What kernels take, and what the instructions of their hot loops are for: one column each."""
    told = [_told(kernel) for _, kernel in found]
    names = [name for name in told[0] if name not in summaries.CLASSES or any(one[name] != "0" for one in told)]
    header = ["", *(title(step, kernel).replace(": ", "\n") for step, kernel in found)]
    body = [[name, *(one[name] for one in told)] for name in names]
    return Table(header, body, title=f"compute capability {found[0][1].architecture}")


def by_line(name: str, kernel: Kernel) -> Table:
    """Each source line of a kernel's hot loop, and the instructions that it became."""
    lines = kernel.hot.lines if kernel.hot else []
    files = [line["file"] for line in lines if line["line"]]
    home = max(files, key=files.count, default="")  # whose name need not be repeated
    rows: list[list[Cell]] = []
    for line in lines:
        place = "" if line["file"] == home else f"{line['file'].rsplit('/', 1)[-1]}:"
        mix = ", ".join(f"{count} {what}" for what, count in line["mix"].items())
        rows.append([f"{place}{line['line']}" if line["line"] else "", Text(line["text"]), mix])
    header = ["line", "source", "instructions"]
    return Table(header, rows, title=title(name, kernel), left=header[1:])


def whole(groups: Iterable[SourceLine]) -> Iterator[str]:
    """All of a kernel's instructions as plain lines; ``|`` marks the hot loop."""
    for group in groups:
        if group["line"]:
            yield f"  // {group['file']}:{group['line']}  {group['text']}"
        mark = "|" if group["hot"] else " "
        yield from (f"{mark}   {address}  {text}" for address, text in group["instructions"])


# --- what the tracer counts beside what the hardware does, by ncu ---

AGREED = {
    "load_requests": "global read requests",
    "load_sectors": "global read sectors",
    "store_requests": "global write requests",
    "store_sectors": "global write sectors",
    "shared_load_wavefronts": "shared read wavefronts",
    "shared_store_wavefronts": "shared write wavefronts",
    "ffma_threads": "FMAs",
}
_OFF = (
    "The hardware's count over the trace's. Where they differ, the compiler joined reads or writes of neighbours, or "
    "left out what nobody uses. Shared writes have a few conflicts more on the hardware, other ones in each run. Its "
    "counter of products on tensor cores has instructions: one `wgmma` does what up to 32 `mma.sync` do, and "
    "`HFMA2.MMA`, by which the compiler sets constants, counts as 1,024 multiply-adds. Why shared memory beside "
    "`wgmma` takes more wavefronts than its addresses ask for is not known: copies use it at the same time."
)


def traced_counts(pairs: Sequence[tuple[Step, Problem]]) -> Iterator[dict[str, Counts]]:
    """The tracer's counters of each pair's kernels by name. Raises TraceError."""
    for result in trace.results([trace.task(step, problem, every=True) for step, problem in pairs]):
        yield {kernel.name: Counts(**{key: kernel.totals[key] for key in AGREED}) for kernel in result.kernels}


def count_both(pairs: Sequence[tuple[Step, Problem]]) -> Iterator[tuple[Step, Problem, Agreement]]:
    """A new entry for each pair; launches of one kernel are summed. Raises NoGpuError without a GPU, ToolError when
    the counters cannot be read."""
    device.require_gpu("counting on the hardware")
    tasks = [messages.Launch(**messages.at(step, problem)) for step, problem in pairs]
    launched = measuring.profiled(tasks, tools.COUNTED)
    for (step, problem), (result, launches), traced in zip(pairs, launched, traced_counts(pairs), strict=True):
        kernels: dict[str, Any] = {}
        for name, launch in zip(result.launched, launches, strict=True):
            products = tools.multiply_adds(launch, problem, catalog.on_tensor_cores(step, problem))
            counts = {**launch, "ffma_threads": products}
            kernels.setdefault(name, Counter()).update({key: value or 0 for key, value in counts.items()})
        found = [Counted(kernel=name, hardware=Counts(**sums), trace=traced[name]) for name, sums in kernels.items()]
        yield step, problem, Agreement(source=cache.code(step.path), shape=problem.shape(), kernels=found)


def agreed_ratio(kernel: Counted, key: str) -> float | None:
    """The hardware's count over the tracer's; None where neither counts anything."""
    measured, expected = kernel.hardware[key], kernel.trace[key]
    if not expected:
        return math.inf if measured else None
    return float(measured / expected)


@kind("agreement", tables.TABLES)
def agreement(record: Record, *names: str) -> Table:
    """``[STEP ...]``: what the hardware counts of each kernel and shape, over what the tracer counts."""
    rows, entries = list[list[str]](), list[Agreement]()
    for step in catalog.everything():
        for case in record.data.agreement.get(step.name, {}).values() if step.name in (names or [step.name]) else ():
            shape, older = str(problems.from_shape(step.ladder, case.shape)), records.older(case, step.name)
            entries.append(case)
            for kernel in case.kernels:
                ratios = (agreed_ratio(kernel, key) for key in AGREED)
                cells = ["" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
                rows.append([tables.aged(f"`{kernel.kernel}`", older), shape, *cells])
    if not (entries or names):
        raise tables.UnmeasuredError("the tracer's agreement")
    note = f"{_OFF}\n\nRead with Nsight Compute on one {tables.machine(record, entries)}." if entries else ""
    return Table(["kernel", "shape", *AGREED.values()], rows, note, optional=["shape"])
