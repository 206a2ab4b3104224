"""Tables that commands print: of checks, times, compiled kernels; of the tracer's counts beside the hardware's."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any

from msgspec.structs import asdict
from rich.text import Text

from common.catalog import catalog, device, lessontext, problems, sources
from common.catalog.catalog import Step
from common.catalog.problems import Problem
from common.machine_code import summaries
from common.machine_code.summaries import SourceLine, Summary
from common.records import current, entries, records
from common.records.entries import Agreement, Counted, Point, Row, StepRow
from common.records.records import Record
from common.report import figures, kinds
from common.report.table import Cell, Table
from common.run import messages
from common.run.messages import Outcome, Tile
from common.timing import measuring, tools
from common.timing.ceilings import Ceilings
from common.timing.tools import Counts
from common.trace import trace

_COLOURS = {"right": "green", "refused": "yellow", "unjudged": "yellow"}
_MOVES = ("shared load", "global load", "store")


def steps(found: list[Step]) -> Table:
    """Steps in teaching order: name, what it does, and in which lesson."""
    header = ["step", "what it does", "lesson"]
    return Table(header, [[step.name, step.title, step.lesson[:2]] for step in found], left=header[1:2])


def checks(outcomes: list[Outcome]) -> Table:
    """What came of each step: at how many shapes it is right, and each shape at which it is not."""
    rows: list[list[Cell]] = []
    for name in dict.fromkeys(outcome.step.name for outcome in outcomes):
        mine = [one for one in outcomes if one.step.name == name]
        right = [one for one in mine if one.status == "right"]
        unjudged = [one for one in mine if one.status == "unjudged" and not one.left_out]
        said = [(right, _coloured("right"))]
        said += [([one], _coloured(one.status)) for one in mine if one.status not in ("right", "unjudged")]
        for one in right:
            if one.depth == "once":  # as its first launch took so long
                why = "more launches would take too long"
                said.append(([one], _coloured("unjudged", "traced at one launch, on integers", why)))
            if one.unsought:
                why = f"races and the like were not looked for: {one.unsought}"
                said.append(([one], _coloured("unjudged", "only the GPU ran it", why)))
        said.append((unjudged, _coloured("unjudged", "unjudged", *[str(one.message) for one in unjudged[:1]])))
        for shown, verdict in said:
            if shown:
                where = str(shown[0].problem) if len(shown) == 1 else f"{len(shown)} shapes"
                rows.append([name, where, verdict])
    header = ["step", "shape", "verdict"]
    return Table(header, rows, left=header[1:])


def _coloured(status: str, what: str = "", why: str = "") -> Text:
    """The status, or ``what`` in its colour; and why."""
    return Text.assemble((what or status, _COLOURS.get(status, "bold red")), f": {why}" if why else "")


def times(outcomes: list[Outcome], ceilings: Ceilings, gpu: str, slow: Collection[str] = ()) -> Table:
    """Times and rates of one preset's right outcomes; those of the ``slow`` steps have their clock behind them."""
    preset, size = str(outcomes[0].preset), outcomes[0].problem
    record, rows, clocks = records.nothing(), dict[str, Row](), dict[str, str]()
    record.data.ceilings = entries.Ceilings(**asdict(ceilings))
    for one in outcomes:
        if one.status == "right":
            precision = None if one.step.precision == catalog.PRECISIONS[0] else one.step.precision
            rows[one.step.name] = StepRow(
                source="", shape=one.problem.shape(), timing=one.time, prepare_ms=one.prepare_ms or None,
                workspace_bytes=0, precision=precision, beside=one.beside,
            )  # fmt: skip
            clocks[f"`{one.step.name}`"] = f" (at {one.time.sm_mhz} MHz)" if one.step.name in slow else ""
    if rows:
        record.data.rows[preset] = rows
        size = record.usual(preset)
    steps = [step for step in catalog.everything() if step.ladder == outcomes[0].step.ladder]
    found = kinds.rows_of(record, preset, steps)
    body = [[name, f"{ms}{clocks.get(str(name), '')}", *others] for name, ms, *others in found.rows]
    return replace(found, rows=body, title=f"{preset}: {size} on {gpu}")


def recorded(record: Record, preset: str, steps: list[Step]) -> Table:
    """A preset's rows for the given steps, and the libraries', as another card's record has them."""
    found = kinds.rows_of(record, preset, steps)
    note = f"Median on one {kinds.machine(record, record.rows(preset).values())}."
    return replace(found, title=f"{preset}, recorded on {record.gpu_name}", note=note)


def swept(title: str, points: list[Point], shipped: Tile) -> Table:
    """Tiles by time, the fastest first; then those that were not timed, with the reason."""
    rows = []
    for point in sorted(points, key=lambda point: point.median_ms or float("inf")):
        time = figures.milliseconds(point.median_ms) if point.median_ms else point.status
        note = "shipped" if point.tile == shipped else point.reason or ""
        rows.append([*(str(point.tile[name]) for name in shipped), time, note])
    return Table([*shipped, "ms", ""], rows, title=title, left=[""])


def title(step: str, kernel: Summary) -> str:
    """The step, and the kernel if its name is another."""
    return step if kernel["kernel"] == step else f"{step}: {kernel['kernel']}"


def _told(kernel: Summary) -> dict[str, str]:
    """What tables say of a kernel, by title."""
    hot, fits = kernel["hot"], kernel["occupancy"]
    shares = {what: hot["mix"].get(what, 0) for what in summaries.CLASSES}
    return {
        "grid": " x ".join(map(str, kernel["grid"])),
        "block": " x ".join(map(str, kernel["block"])),
        "registers": str(kernel["registers"]),
        "stack, spilled bytes": f"{kernel['stack_bytes']}, {kernel['spill_bytes']}",
        "shared bytes per block": f"{kernel['shared_bytes'] + kernel['dynamic_shared_bytes']:,}",
        "blocks per multiprocessor": str(fits["blocks"]),
        "warps per multiprocessor": f"{fits['warps']} of {fits['max_warps']}",
        "occupancy": f"{fits['fraction']:.0%}",
        "limited by": ", ".join(fits["limited_by"]),
        "hot loop": hot["what"],
        "instructions": str(hot["total"]),
        **{what: f"{count} ({count / hot['total']:.0%})" if count else "0" for what, count in shares.items()},
        "useful": f"{hot['useful']:.0%}" if hot["multiply_adds"] else "",
        "shared floats per FMA": "" if hot["floats_per_fma"] is None else f"{hot['floats_per_fma']:.3g}",
        **{
            f"{what}s x bits": ", ".join(f"{count} x {bits}" for bits, count in hot["widths"].get(what, {}).items())
            for what in _MOVES
        },
    }


def side_by_side(found: list[tuple[str, Summary]]) -> Table:
    """What kernels take, and what the instructions of their hot loops are for: one column each."""
    told = [_told(kernel) for _, kernel in found]
    present = {what for _, kernel in found for what in kernel["hot"]["mix"]}
    names = [name for name in told[0] if name not in summaries.CLASSES or name in present]
    header = ["", *(title(step, kernel).replace(": ", "\n") for step, kernel in found)]
    body = [["  " * (name == "limited by") + name, *(one[name] for one in told)] for name in names]
    return Table(header, body, title=f"compute capability {found[0][1]['architecture']}")


def by_line(name: str, kernel: Summary) -> Table:
    """Each source line of a kernel's hot loop, and the instructions that it became."""
    lines: list[SourceLine] = kernel["hot"]["lines"]
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


# --- what the tracer counts beside what the hardware does, by ncu; what other tools show of wrong programs ---

AGREED = {
    "load_requests": "global read requests",
    "load_sectors": "global read sectors",
    "store_requests": "global write requests",
    "store_sectors": "global write sectors",
    "shared_load_wavefronts": "shared read wavefronts",
    "shared_store_wavefronts": "shared write wavefronts",
    "ffma_threads": "FMAs",
}
_TOLERANCE = 0.01  # a ratio further from 1 has a remark
_OF_ALL = (
    "The hardware's count over the trace's. Shared writes have a few conflicts more on the hardware, other ones in "
    "each run. Its counter of products on tensor cores has `HFMA2.MMA`, too, by which the compiler sets constants: "
    "1,024 multiply-adds for each."
)
Pairs = list[tuple[Step, Problem]]


def traced_counts(pairs: Pairs) -> Iterator[dict[str, Counts]]:
    """The tracer's counters of each pair's kernels by name. Raises TraceError."""
    for result in trace.results([trace.task(step, problem, every=True) for step, problem in pairs]):
        yield {kernel.name: Counts(**{key: kernel.totals[key] for key in AGREED}) for kernel in result.kernels}


def count_both(pairs: Pairs) -> Iterator[tuple[Step, Problem, Agreement]]:
    """A new entry for each pair; launches of one kernel are summed. Raises NoGpuError without a GPU, ToolError when
    the counters cannot be read."""
    device.require_gpu("counting on the hardware")
    tasks = [messages.Launch(**messages.at(step, problem)) for step, problem in pairs]
    launched = measuring.profiled(tasks, tools.COUNTED)
    for (step, problem), (result, launches), traced in zip(pairs, launched, traced_counts(pairs), strict=True):
        kernels: dict[str, dict[str, float]] = {}
        for name, launch in zip(result.launched, launches, strict=True):
            products = tools.multiply_adds(launch.counters, problem, catalog.on_tensor_cores(step, problem))
            sums = kernels.setdefault(name, {})
            for key, value in {**launch.counters, "ffma_threads": products}.items():
                sums[key] = sums.get(key, 0) + (value or 0)
        found = [Counted(kernel=name, hardware=Counts(**sums), trace=traced[name]) for name, sums in kernels.items()]
        code = asdict(sources.provenance(step.path))
        yield step, problem, Agreement(**code, shape=problem.shape(), kernels=found)


def agreed_ratio(counts: Counts, key: str, traced: Counts) -> float | None:
    """The hardware's count over the tracer's; None where neither counts anything."""
    measured, expected = getattr(counts, key), getattr(traced, key)
    if not expected:
        return math.inf if measured else None
    return float(measured / expected)


def agreement(recorded: dict[str, dict[str, Agreement]], steps: Iterable[Step] = ()) -> Table:
    """The ratios of each kernel and shape of these steps, by default all, and what the lessons say of those off."""
    rows: list[list[str]] = []
    remarked: dict[str, dict[str, None]] = {}  # kernels by what is said of them
    for step in steps or catalog.everything():
        remarks = lessontext.remarks(catalog.LESSONS, step.name)
        for case in recorded.get(step.name, {}).values():
            older, shape = current.older(case, step.name), str(problems.from_shape(step.ladder, case.shape))
            for kernel in case.kernels:
                ratios = [agreed_ratio(kernel.hardware, key, kernel.trace) for key in AGREED]
                name, known = f"`{kernel.kernel}`", [one for one in ratios if one is not None]
                cells = ["" if value is None else f"{value:.2f}" for value in ratios]
                rows.append([kinds.aged(name, older), shape, *cells])
                if kernel.kernel in remarks and any(abs(one - 1) > _TOLERANCE for one in known):
                    remarked.setdefault(remarks[kernel.kernel].text, {})[name] = None
    said = [f"{', '.join(names)}: {text}" for text, names in remarked.items()]
    header = ["kernel", "shape", *AGREED.values()]
    return Table(header, rows, "\n\n".join([_OF_ALL, *said]), optional=["shape"])


def agreed(record: Record) -> Table:
    """What the hardware counts of each kernel, over what the tracer counts."""
    found = record.data.agreement
    if not found:
        raise kinds.UnmeasuredError("the tracer's agreement")
    made = agreement(found)
    where = kinds.machine(record, [entry for shapes in found.values() for entry in shapes.values()])
    return replace(made, note=f"{made.note}\n\nRead with Nsight Compute on one {where}.")


def simulator() -> Table:
    """What Numba's simulator, the tracer and compute-sanitizer show of the programs of tests/trace/programs."""
    path = records.RESULTS / "programs" / "simulator.json"
    if not path.exists():
        raise kinds.UnmeasuredError(path.name)
    found = json.loads(path.read_text(encoding="utf-8")).values()
    told = {"Numba's simulator": _seen(found, "simulator"), "the tracer": _seen(found, "tracer")}
    notes = []
    for file in sorted(path.parent.glob("sanitizer-*.json")):
        card = json.loads(file.read_text(encoding="utf-8"))
        told[f"compute-sanitizer on {card['gpu']}"] = _seen(card["programs"].values(), "sanitizer")
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


def _seen(programs: Iterable[dict[str, Any]], tool: str) -> list[tuple[str, bool, float]]:
    """Of each program its kind, whether the tool lets it pass, and the seconds."""
    found = []
    for one in programs:
        # a wrong program that a tool does not end, it has not named
        silent, ran = ("silent",) if one["kind"] == "right" else ("silent", "endless"), one[tool]
        passes = ran["ended"] in silent if "ended" in ran else not ran["faults"]
        found.append((one["kind"], passes, ran["seconds"]))
    return found


kinds.TABLES |= {"agreement": agreed, "simulator": simulator}
