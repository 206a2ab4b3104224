"""Tables and figures inside Markdown pages, written between markers from the reference GPU's record.

A block is ``<!-- table: KIND WORDS -->`` to ``<!-- end table -->``; KIND is one of :data:`kinds.TABLES`. An exercise
stands at the end of its section, ``<!-- exercise: NAME -->`` to ``<!-- end exercise -->``. A figure in a sentence is
``<!--= KIND WORDS -->`` to ``<!--/-->``; KIND is one of :data:`figures.NAMED`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from common.catalog import catalog, exercises, problems, store
from common.records import records
from common.records.entries import MachineCode
from common.records.records import Record
from common.report import agreement as agreement  # its tables are kinds, too
from common.report import figures, kinds
from common.report.figures import kind
from common.report.kinds import UnmeasuredError
from common.report.table import Table, markdown


def pages() -> list[Path]:
    """Every page that may hold a table: the first one, those beside the lessons, and all in their folders."""
    beside, within = (sorted(catalog.LESSONS.glob(pattern)) for pattern in ("*.md", "*/*.md"))
    return [catalog.ROOT / "README.md", *beside, *within]


def rendered(text: str, record: Record | None, code: MachineCode) -> str:
    """The page with each table and figure written anew; raises ValueError at what a marker cannot be."""
    known = record or records.nothing()

    def inline(word: str, words: list[str]) -> str:
        found = figures.named(word, known, code, words)
        return "?" if found is None else found if isinstance(found, str) else str(found.text)

    def block(word: str, words: list[str]) -> str:
        return f"{_written(word, words, known, code)}\n"

    text = _replaced(text, " table:", " end table ", "\n", block)
    text = _replaced(text, " exercise:", " end exercise ", "\n", lambda name, _: f"{_exercise(name)}\n")
    return _replaced(text, "=", "/", "", inline)


def _replaced(text: str, opening: str, end: str, newline: str, write: Callable[[str, list[str]], str]) -> str:
    """The text with what ``write`` makes of each marker's words between the marker and its end."""
    # between them stands no other opening: a forgotten end is said, not swallowed
    between = rf"((?:(?!<!--{opening}).)*?)"
    pattern = re.compile(rf"(<!--{opening} (\w+)((?: [\w.-]+)*) -->{newline}){between}(<!--{end}-->)", re.DOTALL)
    if text.count(f"<!--{opening}") != len(pattern.findall(text)):
        raise ValueError(f"a marker <!--{opening} ... has no end, or is not written as it must be")

    def written(match: re.Match[str]) -> str:
        try:
            return f"{match[1]}{write(match[2], match[3].split())}{match[5]}"
        except ValueError as error:
            raise ValueError(f"{match[1].strip()}: {error}") from None

    return pattern.sub(written, text)


def _written(word: str, words: Sequence[str], record: Record, code: MachineCode) -> str:
    try:
        found = figures.named(word, record, code, words, kinds.TABLES)
    except UnmeasuredError as error:
        return f"*Nothing has been measured for {error} yet.*"
    return markdown(found) if isinstance(found, Table) else str(found)


def table(word: str, record: Record, *words: str) -> Table:
    """The table of a kind that a page names so; raises UnmeasuredError where there is nothing to show."""
    found = figures.named(word, record, MachineCode(), words, kinds.TABLES)
    assert isinstance(found, Table)
    return found


@kind("exercises", kinds.TABLES)
def hard_exercises(lesson: str) -> Table:
    """The harder ones, which no section has, each with its number, file, kind and what is asked for."""
    found = [one for one in exercises.everything() if one.lesson == lesson and one.hard]
    header = ["exercise", "kind", "what"]
    return Table(header, [[_linked(one), _KINDS.get(one.kind, one.kind), one.title] for one in found], left=header)


_KINDS = {"bug": "find the bug"}


def _exercise(name: str) -> str:
    """What stands at the end of a section; raises ValueError at an exercise that is unknown."""
    one = exercises.find(name)
    said = _KINDS.get(one.kind, one.kind)
    return f"> Exercise {_linked(one)}, {said}: {one.title}. `python -m common grade {one.number}`"


def _linked(one: exercises.Exercise) -> str:
    return f"**{one.number}** [`{one.name}`](exercises/{one.name}.py)"


def update(record: Record | None) -> list[Path]:
    """Rewrite the tables of every page; returns the pages that changed."""
    code = records.load_code()
    changed = []
    for path in pages():
        old = store.read_text(path)
        try:
            new = rendered(old, record, code)
        except ValueError as error:
            raise ValueError(f"{store.shown(path)}: {error}") from None
        if new != old:
            store.write(path, new)
            changed.append(path)
    return changed


def summary(record: Record) -> str:
    """A page of its own for one GPU: every ladder's tables and charts."""
    parts = [f"# {record.gpu_name}", _written("ceilings", (), record, MachineCode())]
    for ladder in problems.LADDERS:
        presets = [preset for preset in problems.timed_presets(ladder) if record.rows(preset)]
        for preset in presets:
            parts += [f"## {preset}", f"![{preset}](charts/{record.slug}/{preset}.png)"]
            parts.append(_written("ladder", [preset], record, MachineCode()))
        if record.ceilings and presets and ladder in figures.ROOFLINES:
            parts.append(f"![roofline, {ladder}](charts/{record.slug}/roofline-{ladder}.png)")
    if len(parts) == 2:
        parts.append("*Nothing has been measured for any preset yet.*")
    return "\n\n".join(parts) + "\n"
