"""Tables and figures inside Markdown pages, written between markers from records: none is typed by hand.

A block is ``<!-- table: KIND WORDS -->`` to ``<!-- end table -->``; KIND is one of :data:`kinds.TABLES`. An exercise
stands at the end of its section, ``<!-- exercise: NAME -->`` to ``<!-- end exercise -->``. A figure in a sentence is
``<!--= KIND WORDS -->`` to ``<!--/-->``; KIND is one of :data:`figures.NAMED`. A lesson's own kinds are those of its
``figures/kinds.py``, which registers them.
Pages show the reference GPU's record, and another where a marker names it; a figure's date stands in the table's
last line.
"""

from __future__ import annotations

import re
from pathlib import Path

from common.catalog import catalog, problems, store
from common.records import records
from common.records.entries import MachineCode
from common.records.records import Record
from common.report import figures, kinds, layers
from common.report.kinds import UnmeasuredError
from common.report.table import Table, markdown


def _marker(opening: str, end: str, newline: str) -> re.Pattern[str]:
    """From a marker to its end; between them stands no other opening: a forgotten end is said, not swallowed."""
    return re.compile(
        rf"(<!--{opening} (\w+)((?: [\w.-]+)*) -->{newline})((?:(?!<!--{opening}).)*?)(<!--{end}-->)", re.DOTALL
    )


_BLOCK = _marker(" table:", " end table ", "\n")
_EXERCISE = _marker(" exercise:", " end exercise ", "\n")
_INLINE = _marker("=", "/", "")


def pages() -> list[Path]:
    """Every page that may hold a table: the first one, those beside the lessons, and all in their folders."""
    beside, within = (sorted(catalog.LESSONS.glob(pattern)) for pattern in ("*.md", "*/*.md"))
    return [catalog.ROOT / "README.md", *beside, *within]


def rendered(text: str, record: Record | None, code: MachineCode) -> str:
    """The page with each table and figure written anew; raises ValueError at what a marker cannot be."""
    known = record or records.nothing()

    def block(kind: str, words: list[str]) -> str:
        return f"{_written(kind, words, known, code)}\n"

    def inline(kind: str, words: list[str]) -> str:
        found = figures.named(kind, known, code, words)
        return "?" if found is None else found if isinstance(found, str) else str(found.text)

    kinds_of = ((_BLOCK, block), (_EXERCISE, lambda name, _: f"{kinds.exercise(name)}\n"), (_INLINE, inline))
    for (pattern, write), opening in zip(kinds_of, ("<!-- table:", "<!-- exercise:", "<!--="), strict=True):
        if text.count(opening) != len(pattern.findall(text)):
            raise ValueError(f"a marker {opening} ... has no end, or is not written as it must be")

        def written(match: re.Match[str], write=write) -> str:  # type: ignore[no-untyped-def]
            try:
                return f"{match[1]}{write(match[2], match[3].split())}{match[5]}"
            except ValueError as error:
                raise ValueError(f"{match[1].strip()}: {error}") from None

        text = pattern.sub(written, text)
    return text


def _written(kind: str, words: list[str], record: Record, code: MachineCode) -> str:
    try:
        found = figures.named(kind, record, code, words, kinds.TABLES)
    except UnmeasuredError as error:
        return f"*Nothing has been measured for {error} yet.*"
    return markdown(found) if isinstance(found, Table) else str(found)


def table(kind: str, record: Record, *words: str) -> Table:
    """The table of a kind that a page names so; raises UnmeasuredError where there is nothing to show."""
    found = figures.named(kind, record, MachineCode(), words, kinds.TABLES)
    assert isinstance(found, Table)
    return found


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
    """A page of its own for one GPU: all steps at a glance, then every ladder table and chart."""
    root = "../../" if record.folder == records.OWN else "../"
    parts = [f"# {record.gpu_name}", _block("ceilings", record)]
    try:
        parts.append(markdown(*kinds.summary(record, root)))
    except UnmeasuredError as error:
        parts.append(f"*Nothing has been measured for {error} yet.*")
    for ladder in problems.LADDERS:
        presets = [preset for preset in problems.timed_presets(ladder) if record.rows(preset)]
        for preset in presets:
            parts += [f"## {preset}", f"![{preset}](charts/{record.slug}/{preset}.png)"]
            parts.append(_block("ladder", record, preset))
        if record.ceilings and presets:
            parts.append(f"![roofline, {ladder}](charts/{record.slug}/roofline-{ladder}.png)")
        if ladder in layers.CHARTED and presets:
            parts.append(f"![{ladder}, layer by layer](charts/{record.slug}/layers-{ladder}.png)")
    if record.data.sanitizer:
        parts += ["## compute-sanitizer", _block("sanitizer", record)]
    return "\n\n".join(parts) + "\n"


def _block(kind: str, record: Record, *words: str) -> str:
    return _written(kind, list(words), record, MachineCode())
