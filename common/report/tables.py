"""Tables that commands print: of checks, times, compiled kernels. A table is printed as it is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from msgspec.structs import asdict
from rich.text import Text

from common.catalog import catalog
from common.catalog.catalog import Step
from common.machine_code import summaries
from common.machine_code.summaries import SourceLine, Summary
from common.records import entries, records
from common.records.entries import Point, StepRow
from common.records.records import Record
from common.report import figures, kinds
from common.report.table import Cell, Table
from common.run.messages import Outcome, Tile
from common.timing.ceilings import Ceilings

_COLOURS = {"right": "green", "refused": "yellow", "unjudged": "yellow"}
_NARROW = (kinds.SPREAD, *kinds.OPTIONAL)  # columns left out where there is no room
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
        if right:
            rows.append([name, _where(right), _status(right[0])])
        rows += [[name, str(o.problem), _status(o)] for o in mine if o.status not in ("right", "unjudged")]
        for one in right:
            if one.depth == "once":  # as its first launch took so long
                why = "more launches would take too long"
                rows.append([name, str(one.problem), _warned("traced at one launch, on integers", why)])
            if one.unsought:
                why = f"races and the like were not looked for: {one.unsought}"
                rows.append([name, str(one.problem), _warned("only the GPU ran it", why)])
        if unjudged:
            rows.append([name, _where(unjudged), _warned("unjudged", str(unjudged[0].message))])
    header = ["step", "shape", "verdict"]
    return Table(header, rows, left=header[1:])


def _where(outcomes: list[Outcome]) -> str:
    return str(outcomes[0].problem) if len(outcomes) == 1 else f"{len(outcomes)} shapes"


def _status(outcome: Outcome) -> Text:
    return Text(outcome.status, style=_COLOURS.get(outcome.status, "bold red"))


def _warned(what: str, why: str) -> Text:
    return Text.assemble((what, "yellow"), f": {why}")


def times(outcomes: list[Outcome], ceilings: Ceilings, gpu: str, slow: Collection[str] = ()) -> Table:
    """Times and rates of one preset's right outcomes; those of the ``slow`` steps have their clock behind them."""
    preset, size = str(outcomes[0].preset), outcomes[0].problem
    record, right = records.nothing(), [one for one in outcomes if one.status == "right"]
    record.data.ceilings = entries.Ceilings(**asdict(ceilings))
    if right:
        record.data.rows[preset] = {one.step.name: _row(one) for one in right}
        size = record.usual(preset)
    steps = [step for step in catalog.everything() if step.ladder == outcomes[0].step.ladder]
    notes = {one.step.name: f"at {one.time.sm_mhz} MHz" for one in right if one.step.name in slow}
    found = kinds.rows_of(record, preset, steps, notes=notes)
    return replace(found, title=f"{preset}: {size} on {gpu}", optional=_NARROW)


def _row(one: Outcome) -> StepRow:
    precision = None if one.step.precision == catalog.PRECISIONS[0] else one.step.precision
    return StepRow(
        source="", shape=one.problem.shape(), timing=one.time, prepare_ms=one.prepare_ms or None, workspace_bytes=0,
        precision=precision, beside=one.beside,
    )  # fmt: skip


def recorded(record: Record, preset: str, steps: list[Step]) -> Table:
    """A preset's rows for the given steps, and the libraries', as another card's record has them."""
    found = kinds.rows_of(record, preset, steps)
    note = f"Median on one {kinds.machine(record, record.rows(preset).values())}."
    return replace(found, title=f"{preset}, recorded on {record.title}", note=note, optional=_NARROW)


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
        **{f"{what}s x bits": _widths(hot["widths"].get(what, {})) for what in _MOVES},
    }


def _widths(widths: dict[str, int]) -> str:
    return ", ".join(f"{count} x {bits}" for bits, count in widths.items())


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
    return Table(header, rows, title=title(name, kernel), left=header[1:], light=True)


def whole(groups: Iterable[SourceLine]) -> Iterator[str]:
    """All of a kernel's instructions as plain lines; ``|`` marks the hot loop."""
    for group in groups:
        if group["line"]:
            yield f"  // {group['file']}:{group['line']}  {group['text']}"
        mark = "|" if group["hot"] else " "
        yield from (f"{mark}   {address}  {text}" for address, text in group["instructions"])
