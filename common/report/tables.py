"""Tables for the terminal, from outcomes and records; the caller prints them."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from common.catalog.catalog import Step
from common.catalog.exercises import Exercise, State
from common.catalog.problems import Problem
from common.jobs.messages import Tile
from common.jobs.run import Outcome
from common.machine_code import loops
from common.machine_code.loops import HotLoop
from common.records import current, records
from common.records.entries import Point
from common.records.records import Record
from common.report import figures, pages
from common.report.figures import Figure, TimedRow
from common.timing import ceilings as measured
from common.timing import sanitizer
from common.timing.ceilings import Ceilings
from common.trace.messages import TracedAccess, TracedKernel

_COLOURS = {"right": "green", "refused": "yellow", "unjudged": "yellow"}
_SHIPPED = "shipped ms"
# Left out when the terminal is narrow.
_OPTIONAL = (figures.SPREAD, "workspace MB", _SHIPPED, "prepare ms", "GB/s")
_NARROW, _WIDE = 100, 130
# A check that is less than thorough, as its first launch took so long.
_DEPTHS = {
    "once": "traced at one launch, on integers", "usual": "traced at three launches, on integers and normals",
}  # fmt: skip


def steps(found: list[Step]) -> Table:
    """Steps in teaching order: name, what it does, and in which lesson."""
    table = Table("step", "what it does", "lesson", title_justify="left")
    table.columns[0].no_wrap = table.columns[2].no_wrap = True
    for step in found:
        table.add_row(step.name, step.title, step.lesson[:2])
    return table


def checks(outcomes: list[Outcome]) -> Table:
    """What came of each step: at how many shapes it is right, and each shape at which it is not."""
    table = Table("step", "shape", "verdict")
    table.columns[0].no_wrap = True
    for name in dict.fromkeys(outcome.step.name for outcome in outcomes):
        mine = [one for one in outcomes if one.step.name == name]
        right = [one for one in mine if one.status == "right"]
        if right:
            shape = str(right[0].problem) if len(right) == 1 else f"{len(right)} shapes"
            table.add_row(name, shape, "[green]right[/]")
        for one in mine:
            if one.status not in ("right", "unjudged"):
                table.add_row(name, str(one.problem), _status(one))
        for one in right:
            if (depth := one.result.get("depth")) in _DEPTHS:
                table.add_row(
                    name, str(one.problem), f"[yellow]{_DEPTHS[depth]}[/]: more launches would take too long"
                )
            if why := one.result.get("unsought"):
                said = "[yellow]only the GPU ran it[/]: races and the like were not looked for"
                table.add_row(name, str(one.problem), f"{said}: {escape(why)}")
        unjudged = [one for one in mine if one.status == "unjudged" and not one.left_out]
        if unjudged:
            shape = f"{len(unjudged)} shapes" if len(unjudged) > 1 else str(unjudged[0].problem)
            table.add_row(name, shape, f"{_status(unjudged[0])}: {escape(str(unjudged[0].result['message']))}")
    return table


def times(outcomes: list[Outcome], ceilings: Ceilings, gpu: str, width: int, slow: Collection[str] = ()) -> Table:
    """Times and rates of one preset's outcomes, in their order; those of the ``slow`` steps have a note."""
    usual = figures.usual([one.problem for one in outcomes if one.status == "right"] or [outcomes[0].problem])
    header = ["step", "ms", figures.SPREAD, "× first", "× previous", "GFLOP/s", "GB/s", "% of floor", "prepare ms"]
    found: list[dict[str, Figure]] = []
    notes: list[str] = []
    timed = {outcome.step.name: outcome for outcome in outcomes if outcome.status == "right"}

    def ms_of(name: str, problem: Problem) -> float | None:
        """A step's time in this run, if it ran at the same size."""
        one = timed.get(name)
        return one.result["timing"].median_ms if one and one.problem.flops == problem.flops else None

    apart = set()
    for outcome in outcomes:
        notes.append("")
        if outcome.status != "right":
            found.append({})
            continue
        timing, prepare = outcome.result["timing"], outcome.result["prepare_ms"]
        befores = figures.befores(outcome.step, outcome.preset) or [outcome.step.name]
        first, previous = (ms_of(name, outcome.problem) for name in (befores[0], befores[-1]))
        apart |= {name for name, ms in ((befores[0], first), (befores[-1], previous)) if ms is None}
        notes[-1] = figures.note(outcome.problem, usual, timing if outcome.step.name in slow else None)
        by = measured.instruction(outcome.step.requires)
        derived = records.derive(outcome.problem, timing.median_ms, ceilings, outcome.step.precision, by)
        columns = figures.columns(timing, derived, first, previous, prepare)
        found.append(columns | figures.in_turn(outcome.result.get("beside")))
    header[-1:-1] = figures.in_turn_titles(found)
    shipped = _shipped(gpu)
    if shipped:
        header.append(_SHIPPED)
    body = []
    for outcome, columns, note in zip(outcomes, found, notes, strict=True):
        there = shipped and shipped.row(str(outcome.preset), outcome.step.name)
        if (
            columns
            and there
            and there.shape == outcome.problem.shape()
            and not current.older(there, outcome.step.name)
        ):
            columns[_SHIPPED] = figures.median(there)
        row, none = TimedRow(outcome.step.name, columns, note=note), [_status(outcome)] + [""] * (len(header) - 2)
        body.append([row.name, *([row.cell(title) for title in header[1:]] if columns else none)])
    table = _fitted(f"{outcomes[0].preset}: {usual} on {escape(gpu)}", header, body, width)
    if apart:
        _note(table, f"No ratio to {', '.join(sorted(apart))}: not timed in this run at the same size.")
    if shipped:
        _note(table, f"Shipped: the record of {escape(shipped.gpu_name)}.")
    return table


def _shipped(gpu: str) -> Record | None:
    """The shipped record that stands beside one's own times: of the same card, or the reference."""
    same = (record for record in records.all_records(records.RESULTS) if record.gpu_name == gpu)
    return next(same, None) or records.other(records.REFERENCE_GPU)


def _note(table: Table, text: str) -> None:
    table.caption = " ".join(filter(None, (str(table.caption or ""), text)))


def recorded(record: Record, preset: str, steps: list[Step], width: int) -> Table:
    """A preset's rows for the given steps, and the peers', as another card's record has them."""
    header, body = pages.ladder_cells(record, preset, steps)
    said = [[cells[0].replace(figures.OLDER, "(older code)"), *cells[1:]] for cells in body]
    days = sorted({record.run_of(row).date for row in record.rows(preset).values()})
    table = plain(f"{preset}, recorded on {escape(record.title)}", header, said, width)
    if len(days) > 1:
        _note(table, f"Measured from {days[0]} to {days[-1]}: a ratio of two days' rows holds what else changed.")
    return table


def plain(title: str, header: list[str], body: list[list[str]], width: int) -> Table:
    """Cells of a page's table."""
    cells = [[escape(cell.replace("`", "").replace("*", "")) for cell in one] for one in body]
    return _fitted(title, header, cells, width)


def compiled(outcomes: list[Outcome], architectures: tuple[str, ...], assembled: bool) -> Table:
    """What was compiled for which architectures; with machine code, its resources and multiply loop."""
    if not assembled:
        table = Table("step", "kernels", "PTX for")
        for outcome in outcomes:
            kernels = {item["kernel"] for item in outcome.result.get("kernels", [])}
            built = dict.fromkeys(item["architecture"] for item in outcome.result.get("kernels", [])) or architectures
            targets = ", ".join(built) if outcome.status == "right" else _status(outcome)
            table.add_row(outcome.step.name, ", ".join(sorted(kernels)), targets)
        return table
    table = Table("kernel", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), show_edge=False)  # so 80 columns hold it
    table.columns[0].no_wrap = True
    several = len(architectures) > 1
    if several:
        table.add_column("cc", no_wrap=True)
    for title in ("regis-\nters", "stack\nbytes", "shared\nbytes", "loop", "FMA", "loads", "const", "per\nFMA"):
        table.add_column(title, justify="right", no_wrap=True)
    for outcome in outcomes:
        for item in outcome.result.get("kernels", []):
            loop = HotLoop.compiled(item)
            cells = [item[key] for key in ("registers", "stack_bytes", "shared_bytes")]
            counts = (loop.total, loop.multiply_adds, loop.loads, loop.constant_loads)
            cells += counts if loop.multiplies else (0,) * len(counts)
            names = (item["kernel"], item["architecture"]) if several else (item["kernel"],)
            table.add_row(*names, *map(str, cells), loops.shown(loop.per_multiply_add() or 0)[:4])
    table.caption = (
        "loop: instructions in the innermost multiply loop, and of these multiply-adds (FMA), loads, constant loads; "
        f"per FMA: instructions for each multiply-add; compute capability {', '.join(architectures)}"
    )
    return table


def counters(title: str, sentences: list[tuple[str, str, str]]) -> Table:
    """A profiled kernel's counters, each with what it says."""
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    for cells in sentences:
        table.add_row(*cells)
    return table


_SPACES = {
    "global": ("global memory, in sectors of 32 bytes", "sectors"),
    "shared": ("shared memory, in wavefronts", "wavefronts"),
    "constant": ("constant memory, in reads", "reads"),
}
_VERBS = {
    "read": "read", "write": "write", "copy": "copy", "atomic": "update", "tma": "TMA load", "tma store": "TMA store",
    "wgmma": "wgmma",
}  # fmt: skip
_LEAST_SOURCE = 12  # characters below which a source line is left out


def traced(kernel: TracedKernel, width: int) -> list[Table]:
    """A traced kernel: its accesses by memory and source line, then what they come to for each multiply-add."""
    where = f"block {_point(kernel['first_block'])} of {_point(kernel['grid'])}"
    if kernel["blocks"] >= math.prod(kernel["grid"]) > 1:
        where = f"all {kernel['blocks']} blocks"
    elif kernel["blocks"] > 1:
        where = f"the cluster of {kernel['blocks']} that begins with {where}"
    head = f"{kernel['name']}, {where}, {_point(kernel['block'])} threads"
    found: list[Table] = []
    missing: list[str] = []
    needed = 0
    for space, (title, unit) in _SPACES.items():
        accesses = [a for a in kernel["accesses"] if a["space"] == space]
        if accesses:
            name = f"{head}\n{title}" if not found else title
            table, left_out, enough = _accesses(name, accesses, unit, width)
            found.append(table)
            missing += [column for column in left_out if column not in missing]
            needed = max(needed, enough) if left_out else needed
    if missing:
        _wider(found[-1], needed, " and ".join(sorted(missing)))
    title = "for each multiply-add of a thread"
    rates = Table("memory", title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("load instructions", "floats loaded", "store instructions", "floats stored"):
        rates.add_column(name, justify="right")
    for space, cells in kernel["per_fma"].items():
        if any(cells.values()):
            name = "registers" if space == "local" else space
            keys = ("loads", "loaded_values", "stores", "stored_values")
            rates.add_row(name, *(f"{cells[key]:.3g}" for key in keys))
    return [*found, rates] if rates.row_count else found


def _accesses(title: str, accesses: list[TracedAccess], unit: str, width: int) -> tuple[Table, list[str], int]:
    """A table, the columns that this width has no room for, and the width that has."""
    header = ["line", "access", "bits", "requests", f"{unit} each", "ideal", "efficiency", "lanes per address"]
    header += ["bytes"]
    rows = [
        [
            str(a["line"]), f"{_VERBS[a['op']]} {a['array']}", str(a["bits"]), f"{a['requests']:,}",
            f"{a['per_request']:.2f}", f"{a['ideal_per_request']:.2f}", f"{100 * a['efficiency']:.0f}%",
            f"{a['lanes_per_address']:.3g}", f"{a['bytes_moved']:,}" if a["bytes_moved"] else "",
        ]
        for a in accesses
    ]  # fmt: skip
    sums = {key: sum(a[key] for a in accesses) for key in ("requests", "moved", "ideal", "accesses", "distinct")}
    sums = {key: max(value, 1) for key, value in sums.items()}  # no request reaches memory if all are out of bounds
    moved_bytes = sum(a["bytes_moved"] for a in accesses)
    if len(accesses) > 1:
        rows.append(
            [
                "", "total", "", f"{sums['requests']:,}", f"{sums['moved'] / sums['requests']:.2f}",
                f"{sums['ideal'] / sums['requests']:.2f}", f"{100 * sums['ideal'] / sums['moved']:.0f}%",
                f"{sums['accesses'] / sums['distinct']:.3g}", f"{moved_bytes:,}" if moved_bytes else "",
            ]
        )  # fmt: skip
    if not any(cells[-1] for cells in rows):
        header, rows = header[:-1], [cells[:-1] for cells in rows]

    def used() -> int:
        return 1 + sum(
            3 + max(len(text) for text in [*name.split(" "), *(cells[i] for cells in rows)])
            for i, name in enumerate(header)
        )

    left_out, enough = [], used() + 1 + _LEAST_SOURCE
    if used() > width:  # a narrow terminal
        left_out.append(header[7])
        header, rows = header[:7] + header[8:], [cells[:7] + cells[8:] for cells in rows]
    room = width - used() - 1
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(header):
        lines = "\n".join(name.split(" "))
        table.add_column(lines, justify="left" if i == 1 else "right", no_wrap=True, vertical="bottom")
    if room >= _LEAST_SOURCE:
        table.add_column("source", no_wrap=True)
    else:
        left_out.append("source")
    shown = [(a["efficiency"], a["text"]) for a in accesses]
    if len(accesses) > 1:
        shown.append((sums["ideal"] / sums["moved"], ""))
    for (efficiency, text), cells in zip(shown, rows, strict=True):
        colour = "default" if efficiency > 0.99 else "yellow" if efficiency > 0.5 else "red"
        cells = [escape(cell) for cell in cells]
        cells[6] = f"[{colour}]{cells[6]}[/]"
        source = text if len(text) <= room else text[: room - 1] + "…"
        table.add_row(*cells, *([escape(source)] if room >= _LEAST_SOURCE else []))
    return table, left_out, enough


def _wider(table: Table, width: int, what: str) -> None:
    """A footnote on what a wider terminal shows, above the table's own."""
    told = f"[dim]A terminal of {width} columns shows {what} too.[/]"
    table.caption = f"{told}\n{table.caption}" if table.caption else told
    table.caption_justify = "left"


def _point(point: tuple[int, ...]) -> str:
    return "(" + ", ".join(map(str, point)) + ")"


_SYLLABLES = {"requests": "re-\nquests", "wavefronts": "wave-\nfronts", "multiply-adds": "multiply-\nadds"}


def agreed(header: list[str], body: list[list[str]], notes: list[str], width: int) -> Table:
    """Hardware counters with their ratio to the trace; the ratios alone where the width does not hold both."""
    body = [[cell.replace("`", "") for cell in cells] for cells in body]
    columns = list(zip(header, *body, strict=True))
    whole = [[*name.split(" "), *cells] for name, *cells in columns]
    whole[1] = " ".join(columns[1]).split(" ")  # a shape goes on below, all else is whole
    enough = 1 + sum(3 + max(map(len, texts)) for texts in whole)
    narrow = enough > width
    title = "counted by the hardware" + (", over the trace's count" if narrow else " (ratio to the trace)")
    table = Table(title=title, title_justify="left")
    if narrow:
        table.box, table.show_edge, table.padding = box.SIMPLE_HEAD, False, 0
        body = [[f"{name}\n{shape}", *map(_ratio, cells), note] for name, shape, *cells, note in body]
        table.add_column("kernel", overflow="fold", vertical="bottom")
        for name in header[2:]:
            lines = "\n".join(_SYLLABLES.get(word, word) for word in name.split(" "))
            table.add_column(lines, justify="right", no_wrap=True)
    else:
        for name in header:
            justify: Any = "left" if name in ("kernel", "shape") else "right"
            table.add_column("\n".join(name.split(" ")), justify=justify, no_wrap=name != "shape", vertical="bottom")
    for cells in body:
        table.add_row(*map(escape, cells))
    table.caption, table.caption_justify = escape("\n".join(notes).replace("`", "")), "left"
    if narrow:
        _wider(table, enough, "the counts")
    return table


def _ratio(cell: str) -> str:
    """What stands in brackets: the ratio of ``"4,752 (1.00)"``."""
    return cell.partition("(")[2].rstrip(")")


def swept(title: str, points: list[Point], shipped: Tile) -> Table:
    """Tiles by time, the fastest first; then those that were not timed, with the reason."""
    table = Table(*shipped, title=escape(title), title_justify="left")
    table.add_column("ms", justify="right")
    table.add_column("")
    for point in sorted(points, key=lambda point: point.median_ms or float("inf")):
        time = figures.milliseconds(point.median_ms) if point.median_ms else point.status
        note = "shipped" if point.tile == shipped else escape(point.reason or "")
        table.add_row(*(str(point.tile[name]) for name in shipped), time, note)
    return table


def sanitized(found: list[tuple[str, Step, int, str]]) -> Table:
    """Errors by step and tool."""
    table = Table("step")
    for tool, text in sanitizer.TOOLS.items():
        table.add_column(f"{tool}\n[dim]{text}[/]", justify="right")
    counts = {(tool, step.name): count for tool, step, count, _ in found}
    for name in dict.fromkeys(step.name for _, step, _, _ in found):
        table.add_row(name, *(str(counts[tool, name]) for tool in sanitizer.TOOLS))
    return table


def failed(found: list[tuple[str, str, str]]) -> Table:
    """What could not be measured, and why: its part, its names, the reason."""
    table = Table("part", "failed", "why")
    for row in found:
        table.add_row(*map(escape, row))
    return table


def progress(found: list[Exercise], state: State) -> Table:
    """Exercises, hints used, and what has passed."""
    table = Table("", "exercise", "kind", "hints", "done")
    for one in found:
        done = "[green]passed[/]" if state.passed(one) else ""
        table.add_row(one.number, one.title, one.kind, f"{state.hints(one)} of {len(one.hints)}", done)
    return table


def _status(outcome: Outcome) -> str:
    return f"[{_COLOURS.get(outcome.status, 'bold red')}]{outcome.status}[/]"


def _fitted(title: str, header: list[str], body: list[list[str]], width: int) -> Table:
    """A table without the optional columns that this width has no room for."""
    dropped = _OPTIONAL if width < _NARROW else _OPTIONAL[:3] if width < _WIDE else ()
    kept = [i for i, name in enumerate(header) if name not in dropped]
    table = Table(title=title, title_justify="left")
    table.add_column(header[0], overflow="fold")  # a long name goes on below, figures stay whole
    for i in kept[1:]:
        table.add_column(
            header[i].replace("% of ", "% of\n").replace(_SHIPPED, "shipped\nms"), justify="right", no_wrap=True
        )
    signs = figures.signs()
    used = set()
    for name, *cells in body:
        sign = signs.get(name.partition(" ")[0], "")
        used.add(sign)
        table.add_row(f"{name} {sign}".rstrip(), *(cells[i - 1] for i in kept[1:]))
    table.caption = " ".join(f"{sign} {said}" for sign, said in figures.SIGNS.items() if sign in used) or None
    return table
