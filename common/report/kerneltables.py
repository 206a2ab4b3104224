"""What kernels became, for the terminal: one in full, several side by side, or a line each; the caller prints it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from common.machine_code import sass, summaries
from common.machine_code.summaries import SourceLine, Summary
from common.report.figures import milliseconds
from common.report.table import Table

LISTED_ROWS = 150  # of a hot loop; --sass shows the rest
_LONG_GROUP, _SHOWN = 12, 4  # a longer group of one source line is cut in a loop of more than LISTED_ROWS
_BAR = 20  # characters
_INSTRUCTION = 46
_MOVES = ("shared load", "global load", "store")
_HOT = {"multiply loop": "Innermost multiply loop", "loop": "Innermost loop", "kernel": "Whole kernel"}


# --- one kernel ---


def full(step: str, kernel: Summary, listing: bool = True) -> Iterator[RenderableType]:
    """What the kernel takes, what its hot loop does, by source line, and with ``listing`` the loop itself."""
    yield Text(f"{title(step, kernel)}, compute capability {kernel['architecture']}", style="bold")
    yield _grid(resources(kernel))
    hot = kernel["hot"]
    counted = f"{hot['total']} instructions, {hot['multiply_adds']} multiply-adds"
    yield from ("", Text(f"{_HOT[hot['what']]}: {counted}", style="bold"))
    rows = []
    for what, count in hot["mix"].items():
        share, style = count / hot["total"], "green" if what == "multiply-add" else ""
        bar = Text("█" * round(share * _BAR), style=style)
        rows.append((Text(what, style=style), str(count), f"{share:.1%}", bar, _widths(kernel, what, " x {} bit")))
    yield _grid(rows, right=(1, 2))
    yield from (_grid([(sentence,) for sentence in sentences(kernel)]), "")
    if any(line["line"] for line in hot["lines"]):
        yield from (by_line(hot["lines"]), "")
    if listing:
        yield from (hot_listing(kernel), "")


def title(step: str, kernel: Summary) -> str:
    """The step, and the kernel if its name is another."""
    return step if kernel["kernel"] == step else f"{step}: {kernel['kernel']}"


def resources(kernel: Summary) -> list[tuple[str, str]]:
    """Name and value of what a kernel takes and what fits."""
    fits = kernel["occupancy"]
    grid, block = (" x ".join(map(str, _trimmed(kernel[key]))) for key in ("grid", "block"))
    spilled = f"{kernel['spill_bytes']} bytes spilled" if kernel["spill_bytes"] else "nothing spilled"
    stack = f"a stack frame of {kernel['stack_bytes']} bytes" if kernel["stack_bytes"] else "no stack frame"
    dynamic = kernel["dynamic_shared_bytes"]
    asked = f" and {dynamic:,} asked for at launch" if dynamic else ""
    limits = {**fits["block_limits"]}
    most = f"at most {limits.pop('blocks')}"
    each = [f"{limit} by {name}" for name, limit in limits.items() if limit is not None]
    return [
        ("block", (f"{block} = " if " x " in block else "") + f"{kernel['threads']} threads; grid {grid}"),
        ("registers", f"{kernel['registers']} per thread, {spilled}, {stack}"),
        ("shared memory", f"{kernel['shared_bytes']:,} bytes per block{asked}"),
        ("occupancy", occupancy_text(kernel)),
        ("", f"limited by {' and '.join(fits['limited_by'])}"),
        ("", f"blocks that fit: {', '.join(each)}; {most}"),
    ]


def occupancy_text(kernel: Summary) -> str:
    """The share of a multiprocessor's warps, with the blocks and warps."""
    fits = kernel["occupancy"]
    if not fits["blocks"]:
        return "none: no block fits a multiprocessor"
    blocks = f"{fits['blocks']} block" + "s" * (fits["blocks"] > 1)
    return f"{fits['fraction']:.1%}: {blocks}, {fits['warps']} of {fits['max_warps']} warps"


def sentences(kernel: Summary) -> list[str]:
    """What the mix says, in words."""
    hot = kernel["hot"]
    if not hot["multiply_adds"]:
        return ["it multiplies nothing: it moves or reorders data"]
    found = [f"useful: {hot['useful']:.1%} of the instructions multiply and add"]
    if hot["fma_per_shared_load"] is not None:
        found.append(
            f"{hot['fma_per_shared_load']:.3g} multiply-adds per shared load, "
            f"{hot['floats_per_fma']:.3g} shared floats per multiply-add"
        )
    if hot["as_single_loads"] and (hot["floats_per_fma"] or 0) >= 1:
        one_in = 1 / hot["as_single_loads"]
        found.append(f"one load for each of these floats, and nothing else: 1 in {one_in:.3g} would be useful")
    return found


def by_line(lines: list[SourceLine]) -> Group:
    """Each source line of a hot loop, and below it the instructions that it became."""
    home = _home(lines)
    parts: list[RenderableType] = [Text("  line  source, and what it became", style="dim")]
    for line in lines:
        mix = ", ".join(f"{count} {what}" for what, count in line["mix"].items())
        parts += [_cut(f"{_place(line, home):>6}  {line['text']}"), Padding(Text(mix, style="dim"), (0, 0, 0, 8))]
    return Group(*parts)


def hot_listing(kernel: Summary) -> Group:
    """The hot loop's instructions, with the source line beside each group; long loops are cut."""
    groups, total = kernel["hot"]["groups"], kernel["hot"]["total"]
    home, rows, shown = _home(groups), 0, 0
    what = f"instructions of the {'kernel' if kernel['hot']['what'] == 'kernel' else 'loop'}"
    parts = [Text(f"  {what:{_INSTRUCTION}}  line  source", style="dim")]
    for group in groups:
        if rows >= LISTED_ROWS:
            break
        instructions = group["instructions"]
        cut = total > LISTED_ROWS and len(instructions) > _LONG_GROUP
        source = f"  {_place(group, home):>4}  {group['text']}"
        for i, (_, text) in enumerate(instructions[: _SHOWN if cut else None]):
            parts.append(_cut(f"  {text:{_INSTRUCTION}}{'' if i else source}"))
        if cut:
            parts.append(Text(f"  ... {len(instructions) - _SHOWN} more of this line", style="dim"))
        rows += (_SHOWN + 1) if cut else len(instructions)
        shown += len(instructions)
    if shown < total:
        parts.append(Text(f"  ... and {total - shown} more instructions: --sass shows all", style="dim"))
    return Group(*parts)


def whole(groups: Iterable[SourceLine]) -> Iterator[str]:
    """All of a kernel's instructions as plain lines; ``|`` marks the hot loop."""
    for group in groups:
        if group["line"]:
            yield f"  // {group['file']}:{group['line']}  {group['text']}"
        mark = "|" if group["hot"] else " "
        yield from (f"{mark}   {address}  {text}" for address, text in group["instructions"])


# --- several kernels ---

Columns = Mapping[str, Callable[[Summary], str]]
_USUAL: Columns = {
    "registers": lambda kernel: str(kernel["registers"]),
    "occupancy": lambda kernel: f"{kernel['occupancy']['fraction']:.0%}",
    "limited by": lambda kernel: ", ".join(kernel["occupancy"]["limited_by"]),
    "useful": lambda kernel: f"{kernel['hot']['useful']:.0%}" if kernel["hot"]["multiply_adds"] else "",
}


def side_by_side(found: list[tuple[str, Summary]]) -> Table:
    """Figures of several kernels, one column each."""
    kernels = [kernel for _, kernel in found]
    present = {what for kernel in kernels for what in kernel["hot"]["mix"]}
    rows: Columns = {
        "threads per block": lambda kernel: str(kernel["threads"]),
        "registers": _USUAL["registers"],
        "stack, spilled bytes": lambda kernel: f"{kernel['stack_bytes']}, {kernel['spill_bytes']}",
        "shared bytes per block": lambda kernel: f"{kernel['shared_bytes'] + kernel['dynamic_shared_bytes']:,}",
        "occupancy": _USUAL["occupancy"],
        "  limited by": _USUAL["limited by"],
        "hot loop": lambda kernel: kernel["hot"]["what"],
        "instructions": lambda kernel: str(kernel["hot"]["total"]),
        **{what: partial(_share, what=what) for what in sass.CLASSES if what in present},
        "useful": _USUAL["useful"],
        "FMA per shared load": lambda kernel: _number(kernel["hot"]["fma_per_shared_load"]),
        "shared floats per FMA": lambda kernel: _number(kernel["hot"]["floats_per_fma"]),
        **{f"{what}s x bits": partial(_widths, what=what, form=" x {}") for what in _MOVES},
    }
    header = ["", *(title(step, kernel).replace(": ", "\n") for step, kernel in found)]
    body = [[name, *map(value, kernels)] for name, value in rows.items()]
    return Table(header, body, title=f"compute capability {kernels[0]['architecture']}")


def short(rows: list[tuple[str, Summary, float | None]]) -> Table:
    """A line per kernel: step, kernel and, where it was timed, its step's milliseconds.

    Kernels with ``traffic`` (see :data:`summaries.TRAFFIC`) get a column for each of its figures.
    """
    extra = [key for key in summaries.TRAFFIC if any(key in kernel.get("traffic", {}) for _, kernel, _ in rows)]
    columns: Columns = {
        **_USUAL,
        "registers": _registers,
        **{summaries.TRAFFIC[key]: partial(_traffic, key=key) for key in extra},
    }
    body = []
    for step in dict.fromkeys(step for step, _, _ in rows):
        mine = [(kernel, ms) for name, kernel, ms in rows if name == step]
        time = "" if mine[0][1] is None else milliseconds(mine[0][1])
        if len(mine) > 1:
            body.append([step, time, *[""] * len(columns)])
        for kernel, _ in mine:
            first = [f"  {kernel['kernel']}", ""] if len(mine) > 1 else [step, time]
            body.append([*first, *(cell(kernel) for cell in columns.values())])
    note = "useful: multiply-adds among the instructions of the hot loop"
    if extra:
        note += "; traced: sectors of a global load, wavefronts of a shared one, bytes per multiply-add"
    head = f"what each kernel takes, compute capability {rows[0][1]['architecture']}"
    table = Table(["step", "ms", *columns], body, note, head, ["limited by"], ["limited by", "ms"])
    return table if any(ms is not None for _, _, ms in rows) else table.only(["step", *columns])


# --- cells and places ---


def _traffic(kernel: Summary, key: str) -> str:
    return _number(kernel.get("traffic", {}).get(key))


def _registers(kernel: Summary) -> str:
    spilled = kernel["stack_bytes"] or kernel["spill_bytes"]
    return f"{kernel['registers']}, spilled" if spilled else str(kernel["registers"])


def _share(kernel: Summary, what: str) -> str:
    count, total = kernel["hot"]["mix"].get(what, 0), kernel["hot"]["total"]
    return f"{count} ({count / total:.0%})" if count else "0"


def _widths(kernel: Summary, what: str, form: str) -> str:
    widths = kernel["hot"]["widths"].get(what, {})
    return ", ".join(f"{count}{form.format(bits)}" for bits, count in widths.items())


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _home(places: Sequence[SourceLine]) -> str:
    """The file most of the places are in: its name need not be repeated."""
    files = [place["file"] for place in places if place["line"]]
    return max(files, key=files.count, default="")


def _place(place: SourceLine, home: str) -> str:
    if not place["line"]:
        return ""
    return str(place["line"]) if place["file"] == home else f"{place['file'].rsplit('/', 1)[-1]}:{place['line']}"


def _trimmed(extents: list[int]) -> list[int]:
    """Extents without the ones at their end."""
    return _trimmed(extents[:-1]) if len(extents) > 1 and extents[-1] == 1 else extents


def _cut(text: str) -> Text:
    return Text(text.rstrip(), no_wrap=True, overflow="ellipsis")


def _grid(rows: Sequence[Sequence[str | Text]], right: tuple[int, ...] = ()) -> Grid:
    """Rows without lines, indented by two; columns ``right`` are aligned so."""
    table = Grid(box=None, show_header=False, padding=(0, 0, 0, 2), pad_edge=True)
    for i in range(len(rows[0]) if rows else 0):
        table.add_column(justify="right" if i in right else "left")
    for cells in rows:
        table.add_row(*cells)
    return table
