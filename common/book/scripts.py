"""What the book's scripts read: every card's times, for the charts, and every page's text, for the search.

A page that is opened from disk may load a script, but not read a file: so the data are scripts that set a variable.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from common.catalog import catalog, problems, store
from common.records import current, records
from common.records.entries import StepRow
from common.records.records import Record

RECORDS, TEXTS = "records.js", "texts.js"
_ARTICLE = re.compile(r"<article\b.*?</article>", re.DOTALL)
_NO_TEXT = re.compile(
    r'<(script|style|svg|h1)\b.*?</\1>|<a class="headerlink".*?</a>|<sup><a class="microscope.*?</sup>', re.DOTALL
)
_SECTION = re.compile(r'<section\b[^>]*?\bid="([^"]*)"')
_BLOCK = re.compile(r"</?(?:p|h\d|li|td|th|tr|div|section|details|summary|pre|ul|ol|table|br|figcaption)\b[^>]*>")
_TAG = re.compile(r"<[^>]*>")
_ENTRY = re.compile(r'^- <a id="([\w-]+)"></a>(\*\*.*?\*\*)(?: \([^)]*\))?: (.*(?:\n  .*)*)', re.MULTILINE)


# --- records ---


def records_script(found: Iterable[Record]) -> str:
    """The script: ``window.WORKBOOK_RECORDS``, cards with presets with rows in the ladder's order, times in ms."""
    cards = [_card(record) for record in found]
    return f"window.WORKBOOK_RECORDS = {json.dumps(cards, separators=(',', ':'))};\n"


def _card(record: Record) -> dict[str, Any]:
    presets = {}
    for ladder in dict.fromkeys(step.ladder for step in catalog.steps()):
        for preset in problems.timed_presets(ladder):
            rows = _rows(record, preset, ladder)
            if rows:
                floors = [[name, round(one.floor_ms, 6)] for name, one in record.floors(preset)]
                presets[preset] = {"ladder": ladder, "rows": rows, "floors": floors}
    own = record.folder == records.OWN
    return {"slug": slug(record.slug, own), "name": record.title, "own": own, "presets": presets}


def slug(card: str, own: bool) -> str:
    """What the book calls the record of a card: a user's own may be of one that a shipped record is of, too."""
    return f"own-{card}" if own else card


def _rows(record: Record, preset: str, ladder: str) -> list[dict[str, Any]]:
    """Steps in the ladder's order, then the libraries."""
    found = record.rows(preset)
    names = [step.name for step in catalog.steps() if step.ladder == ladder and step.name in found]
    names += [name for name, row in found.items() if not isinstance(row, StepRow)]
    rows = []
    for name in names:
        row, derived = found[name], record.derive(preset, found[name])
        timing = row.timing
        one = {"name": name, "ms": timing.median_ms, "from": timing.p20_ms, "to": timing.p80_ms}
        one["step"] = isinstance(row, StepRow)
        one["date"] = record.run_of(row).date[:10]
        if derived:
            one["gflops"] = round(derived.gflops)
            if not records.rounds_operands(name):
                one["share"] = round(derived.percent_of_floor, 1)
        if isinstance(row, StepRow) and row.beside:
            one["beside"] = [row.beside.peer, round(row.beside.ratio, 3)]
        if isinstance(row, StepRow) and current.older(row, name):
            one["older"] = True
        rows.append(one)
    return rows


# --- texts ---


def glossary(text: str) -> dict[str, tuple[str, str]]:
    """By each term of the glossary's Markdown, in lower case, its place on that page and what it says there."""
    return {
        name.lower(): (anchor, " ".join(re.sub(r"[`*]", "", said).split()))
        for anchor, names, said in _ENTRY.findall(text)
        for name in re.findall(r"\*\*([^*]+)\*\*", names)
    }


def write_texts(book: Path) -> None:
    """Write the script into the built book: ``window.WORKBOOK_TEXTS``, by page its text and where sections begin.

    A script, since a page that is opened from disk may not read another.
    """
    texts = {}
    for path in sorted(book.rglob("*.html")):
        article = _ARTICLE.search(path.read_text(encoding="utf-8"))
        if article:
            texts[path.relative_to(book).as_posix()] = _text(article[0])
    script = json.dumps(texts, separators=(",", ":"), ensure_ascii=False).replace("</", "<\\/")
    store.write(book / "_static" / TEXTS, f"window.WORKBOOK_TEXTS = {script};\n")


def _text(article: str) -> tuple[str, dict[str, int]]:
    """The words in one line, and by a section's name the place in them where it begins."""
    text, places = "", {}
    for i, part in enumerate(_SECTION.split(_NO_TEXT.sub("", article))):
        if i % 2:
            places[part] = len(text)
        else:
            # what is left of the tag that the split cut
            words = part.partition(">")[2] if i else part
            said = " ".join(html.unescape(_TAG.sub("", _BLOCK.sub(" ", words))).split())
            text += f"{said} " if said else ""
    return text.rstrip(), places
