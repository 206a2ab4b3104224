"""Cards of kernels for the terminal: one in full, several side by side, or a line each; the caller prints them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from common.machine_code import sass, summaries
from common.machine_code.messages import SourceLine, Summary
from common.report import figures
from common.report.table import Table

LISTED_ROWS = 150  # of a hot loop; --sass shows the rest
_LONG_GROUP, _SHOWN = 12, 4  # a longer group of one source line is cut in a loop of more than LISTED_ROWS
_BAR = 20  # characters
_INSTRUCTION = 46


def full(step: str, card: Summary, listing: bool = True) -> Iterator[RenderableType]:
    """A card: what the kernel takes, what its hot loop does, by source line, and with ``listing`` the loop itself."""
    yield Text(f"{title(step, card)}, compute capability {card['architecture']}", style="bold")
    figures = _grid(2)
    for name, value in resources(card):
        figures.add_row(name, value)
    yield figures
    hot = card["hot"]
    yield ""
    yield Text(f"{hot_name(card)}: {hot['total']} instructions, {hot['multiply_adds']} multiply-adds", style="bold")
    mix = _grid(5, right=(1, 2))
    for what, count in hot["mix"].items():
        share = count / hot["total"]
        style = "green" if what == "multiply-add" else ""
        bar = Text("█" * round(share * _BAR), style=style)
        mix.add_row(Text(what, style=style), str(count), f"{share:.1%}", bar, _widths(card, what, " x {} bit"))
    yield mix
    words = _grid(1)
    for sentence in sentences(card):
        words.add_row(sentence)
    yield words
    yield ""
    if any(line["line"] for line in hot["lines"]):
        yield by_line(hot["lines"])
        yield ""
    if listing:
        yield hot_listing(card)
        yield ""


def title(step: str, card: Summary) -> str:
    """The step, and the kernel if its name is another."""
    return step if card["kernel"] == step else f"{step}: {card['kernel']}"


def hot_name(card: Summary) -> str:
    """What the card's figures are of: a loop, or the whole kernel."""
    names = {"multiply loop": "Innermost multiply loop", "loop": "Innermost loop", "kernel": "Whole kernel"}
    return names[card["hot"]["what"]]


def resources(card: Summary) -> list[tuple[str, str]]:
    """Name and value of what a kernel takes and what fits."""
    fits = card["occupancy"]
    grid, block = (" x ".join(map(str, _trimmed(card[key]))) for key in ("grid", "block"))
    spilled = f"{card['spill_bytes']} bytes spilled" if card["spill_bytes"] else "nothing spilled"
    stack = f"a stack frame of {card['stack_bytes']} bytes" if card["stack_bytes"] else "no stack frame"
    dynamic = card["dynamic_shared_bytes"]
    shared = f"{card['shared_bytes']:,} bytes per block"
    shared += f" and {dynamic:,} asked for at launch" if dynamic else ""
    allowed = {**fits["block_limits"]}
    most = f"at most {allowed.pop('blocks')}"
    each = [f"{limit} by {name}" for name, limit in allowed.items() if limit is not None]
    return [
        ("block", (f"{block} = " if " x " in block else "") + f"{card['threads']} threads; grid {grid}"),
        ("registers", f"{card['registers']} per thread, {spilled}, {stack}"),
        ("shared memory", shared),
        ("occupancy", occupancy_text(card)),
        ("", f"limited by {' and '.join(fits['limited_by'])}"),
        ("", f"blocks that fit: {', '.join(each)}; {most}"),
    ]


def occupancy_text(card: Summary) -> str:
    """The share of a multiprocessor's warps, with the blocks and warps."""
    fits = card["occupancy"]
    if not fits["blocks"]:
        return "none: no block fits a multiprocessor"
    blocks = f"{fits['blocks']} block" + ("s" if fits["blocks"] > 1 else "")
    return f"{fits['fraction']:.1%}: {blocks}, {fits['warps']} of {fits['max_warps']} warps"


def sentences(card: Summary) -> list[str]:
    """What the mix says, in words."""
    hot = card["hot"]
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


def hot_listing(card: Summary) -> Group:
    """The hot loop's instructions, with the source line beside each group; long loops are cut."""
    groups, total = card["hot"]["groups"], card["hot"]["total"]
    home, rows, shown = _home(groups), 0, 0
    what = f"instructions of the {'kernel' if card['hot']['what'] == 'kernel' else 'loop'}"
    parts = [Text(f"  {what:{_INSTRUCTION}}  line  source", style="dim")]
    for group in groups:
        if rows >= LISTED_ROWS:
            break
        instructions = group["instructions"]
        cut = total > LISTED_ROWS and len(instructions) > _LONG_GROUP
        source = f"  {_place(group, home):>4}  {group['text']}"
        for _, text in instructions[: _SHOWN if cut else None]:
            parts.append(_cut(f"  {text:{_INSTRUCTION}}{source}"))
            source = ""
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


def side_by_side(found: list[tuple[str, Summary]]) -> Table:
    """Figures of several kernels, one column each."""
    cards = [card for _, card in found]
    rows: dict[str, Callable[[Summary], str]] = {
        "threads per block": lambda card: str(card["threads"]),
        "registers": lambda card: str(card["registers"]),
        "stack, spilled bytes": lambda card: f"{card['stack_bytes']}, {card['spill_bytes']}",
        "shared bytes per block": lambda card: f"{card['shared_bytes'] + card['dynamic_shared_bytes']:,}",
        "occupancy": lambda card: f"{card['occupancy']['fraction']:.0%}",
        "  limited by": lambda card: ", ".join(card["occupancy"]["limited_by"]),
        "hot loop": lambda card: card["hot"]["what"],
        "instructions": lambda card: str(card["hot"]["total"]),
    }
    present = {what for card in cards for what in card["hot"]["mix"]}
    rows |= {what: partial(_share, what=what) for what in sass.CLASSES if what in present}
    rows["useful"] = _useful
    rows["FMA per shared load"] = lambda card: _number(card["hot"]["fma_per_shared_load"])
    rows["shared floats per FMA"] = lambda card: _number(card["hot"]["floats_per_fma"])
    for what in ("shared load", "global load", "store"):
        rows[f"{what}s x bits"] = partial(_widths, what=what, form=" x {}")
    header = ["", *(title(step, card).replace(": ", "\n") for step, card in found)]
    body = [[name, *map(value, cards)] for name, value in rows.items()]
    return Table(header, body, title=f"compute capability {cards[0]['architecture']}")


def short(rows: list[tuple[str, Summary, float | None]]) -> Table:
    """A line per kernel: step, card and, where it was timed, its step's milliseconds.

    Cards with ``traffic`` (see :data:`summaries.TRAFFIC`) get a column for each of its figures.
    """
    columns: dict[str, Callable[[Summary], str]] = {
        "registers": _registers,
        "occupancy": lambda card: f"{card['occupancy']['fraction']:.0%}",
        "limited by": lambda card: ", ".join(card["occupancy"]["limited_by"]),
        "useful": _useful,
    }
    extra = [key for key in summaries.TRAFFIC if any(key in card.get("traffic", {}) for _, card, _ in rows)]
    columns |= {summaries.TRAFFIC[key]: partial(_traffic, key=key) for key in extra}
    body = []
    for step in dict.fromkeys(step for step, _, _ in rows):
        mine = [(card, ms) for name, card, ms in rows if name == step]
        time = "" if mine[0][1] is None else figures.milliseconds(mine[0][1])
        if len(mine) > 1:
            body.append([step, time, *[""] * len(columns)])
        for card, _ in mine:
            first = [f"  {card['kernel']}", ""] if len(mine) > 1 else [step, time]
            body.append([*first, *(cell(card) for cell in columns.values())])
    note = "useful: multiply-adds among the instructions of the hot loop"
    if extra:
        note += "; traced: sectors of a global load, wavefronts of a shared one, bytes per multiply-add"
    head = f"what each kernel takes, compute capability {rows[0][1]['architecture']}"
    table = Table(["step", "ms", *columns], body, note, head, ["limited by"], ["limited by", "ms"])
    return table if any(ms is not None for _, _, ms in rows) else table.only(["step", *columns])


def _traffic(card: Summary, key: str) -> str:
    return _number(card.get("traffic", {}).get(key))


def _registers(card: Summary) -> str:
    return f"{card['registers']}, spilled" if card["stack_bytes"] or card["spill_bytes"] else str(card["registers"])


def _useful(card: Summary) -> str:
    return f"{card['hot']['useful']:.0%}" if card["hot"]["multiply_adds"] else ""


def _share(card: Summary, what: str) -> str:
    count, total = card["hot"]["mix"].get(what, 0), card["hot"]["total"]
    return f"{count} ({count / total:.0%})" if count else "0"


def _widths(card: Summary, what: str, form: str) -> str:
    widths = card["hot"]["widths"].get(what, {})
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
    kept = list(extents)
    while len(kept) > 1 and kept[-1] == 1:
        kept.pop()
    return kept


def _cut(text: str) -> Text:
    return Text(text.rstrip(), no_wrap=True, overflow="ellipsis")


def _grid(columns: int, right: tuple[int, ...] = ()) -> Grid:
    """A table without lines, indented by two."""
    table = Grid(box=None, show_header=False, padding=(0, 0, 0, 2), pad_edge=True)
    for i in range(columns):
        table.add_column(justify="right" if i in right else "left")
    return table
