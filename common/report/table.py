"""A table as plain data, and the two ways to show it: as Markdown in a page, and on a terminal.

Cells are written as in Markdown; the terminal leaves its marks out, and shows a :class:`rich.text.Text` in colours.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.markup import escape
from rich.table import Table as Drawn
from rich.text import Text

from common.catalog import catalog, problems

SIGNS = {
    "†": "Rounds its inputs to TF32, for tensor cores.",
    "‡": "FP16 in and out, multiplied by tensor cores, summed in FP32.",
    "#": "8 bits in (int8, or e4m3), sums of 32 bits out.",
    "§": "FP32 in and out, three products of TF32 numbers for each, on tensor cores.",
    "◇": "BF16 in and out, multiplied by tensor cores, summed in FP32.",
}
_BY_PRECISION = {"tf32": "†", "tf32x3": "§"}
_BY_TYPE = {problems.FLOAT16: "‡", problems.UINT16: "◇"}  # those of one byte: "#"
OLDER = "¶"
MARKS = {**SIGNS, OLDER: "Measured on an older version of the file."}
SHORT = 24  # characters of a text that is not broken without need
_NAMED = re.compile(r"^\[?`(\w+)`(?:\]\([^)]*\))?")

Cell = str | Text


@dataclass(frozen=True)
class Table:
    """Rows of cells below a header; a ``title`` for the terminal, a ``note`` below. Columns named in ``left`` are
    aligned left, as the first one is, and their texts may be broken. ``optional`` columns are left out one by one
    where a terminal has no room."""

    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    title: str = ""
    left: Sequence[str] = ()
    optional: Sequence[str] = ()

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        yield terminal(self, options.max_width)


def signs() -> dict[str, str]:
    """The sign of each step or experiment that multiplies on tensor cores: one of SIGNS, by name."""
    found = {}
    for step in catalog.everything():
        first = problems.FIRST[step.ladder]
        if catalog.on_tensor_cores(step, first):
            found[step.name] = _BY_PRECISION.get(step.precision) or _BY_TYPE.get(first.input_dtype, "#")
    return found


def explained(used: set[str]) -> list[str]:
    """What the marks that are used mean, in sentences."""
    return [f"{mark} {said}" for mark, said in MARKS.items() if mark in used]


def titled(rows: Sequence[Mapping[str, Cell]], note: str = "", **options: Any) -> Table:
    """A table of rows, one at least, whose cells have the titles of their columns; what a row lacks is empty."""
    header = list(dict.fromkeys(name for row in rows for name in row))
    return Table(header, [[row.get(name, "") for name in header] for row in rows], note, **options)


def _signed(rows: Sequence[Sequence[Cell]]) -> tuple[list[list[Cell]], set[str]]:
    """The rows, steps on tensor cores with their sign behind the name, and the marks that occur."""
    known, used, found = signs(), set[str](), list[list[Cell]]()
    for first, *cells in rows:
        match = _NAMED.match(str(first))
        if match and match[1] in known:
            used.add(known[match[1]])
            first = f"{match[0]} {known[match[1]]}{str(first)[match.end() :]}"
        used |= {OLDER for cell in (first, *cells) if OLDER in str(cell)}
        found.append([first, *cells])
    return found, used


def markdown(table: Table) -> str:
    """A table as a page has it: the cells, the note, what the marks mean. Paragraphs."""
    rows, used = _signed(table.rows)
    rule = [":--", *(":--" if name in table.left else "--:" for name in table.header[1:])]
    lines = ["| " + " | ".join(map(str, cells)) + " |" for cells in (table.header, rule, *rows)]
    return "\n\n".join(filter(None, ["\n".join(lines), table.note, " ".join(explained(used))]))


def terminal(table: Table, width: int) -> Drawn:
    """The table for a terminal of ``width`` columns: too wide a one loses its optional columns."""
    rows, used = _signed(table.rows)
    columns, least = dict[str, list[Cell]](), dict[str, int]()  # and how many characters each needs
    for i, name in enumerate(table.header):
        cells = columns[name] = [_shown(row[i]) for row in rows]
        words = _plain(name).replace("× ", "×-").split()  # titles are broken between words; a ratio keeps its sign
        whole = max((len(line) for cell in cells for line in str(cell).split("\n")), default=0)
        if name in table.left:
            words += [word for cell in cells for word in str(cell).split()]
            whole = min(whole, SHORT)
        least[name] = max([whole, *map(len, words)])

    def too_wide() -> bool:  # with two blanks between columns, and one at each edge
        return sum(least.values()) + 2 * len(least) > width

    dropped = [name for name in table.optional if too_wide() and least.pop(name, 0)]
    tight = too_wide()
    drawn = Drawn(
        title=escape(table.title) or None, title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD,
        show_header=any(name.strip() for name in least), show_edge=not tight, pad_edge=False,
        padding=(0, 0 if tight else 1, 0, 0),
    )  # fmt: skip
    for name, room in least.items():
        left = name == table.header[0] or name in table.left
        numbers = all(str(cell).strip().isdigit() or not cell for cell in columns[name])
        justify: JustifyMethod = "left" if left and not numbers else "right"
        drawn.add_column(_plain(name), justify=justify, width=None if left else room, overflow="fold")
    for row in zip(*(columns[name] for name in least), strict=True):
        drawn.add_row(*(cell if isinstance(cell, Text) else escape(cell) for cell in row))
    lost = f"[dim]A wider terminal shows {' and '.join(dropped)} too.[/]" if dropped else ""
    meaning = " ".join(explained(used - {OLDER}))
    drawn.caption = "\n".join(filter(None, [lost, escape(_plain(table.note)), meaning])) or None
    return drawn


def _shown(cell: Cell) -> Cell:
    return cell if isinstance(cell, Text) else _plain(cell).replace(OLDER, "(older code)")


def _plain(text: str) -> str:
    return text.replace("`", "").replace("*", "")
