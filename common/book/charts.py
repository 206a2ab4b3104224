"""What the book's charts are drawn from in the browser: every card's times, as a script that sets one variable.

A page that is opened from disk may load a script, but not read a file: so the data is a script.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from common.catalog import catalog, problems
from common.records import current
from common.records import records as reports
from common.records.entries import StepRow
from common.records.records import Record

FILE = "records.js"


def script(records: Iterable[Record]) -> str:
    """The script: ``window.WORKBOOK_RECORDS``, cards with presets with rows in the ladder's order, times in ms."""
    cards = [_card(record) for record in records]
    return f"window.WORKBOOK_RECORDS = {json.dumps(cards, separators=(',', ':'))};\n"


def _card(record: Record) -> dict[str, Any]:
    presets = {}
    for ladder in dict.fromkeys(step.ladder for step in catalog.steps()):
        for preset in problems.timed_presets(ladder):
            rows = _rows(record, preset, ladder)
            if rows:
                floors = [[name, round(one.floor_ms, 6)] for name, one in record.floors(preset)]
                presets[preset] = {"ladder": ladder, "rows": rows, "floors": floors}
    own = record.folder == reports.OWN
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
            if not reports.rounds_operands(name):
                one["share"] = round(derived.percent_of_floor, 1)
        if isinstance(row, StepRow) and row.beside:
            one["beside"] = [row.beside.peer, round(row.beside.ratio, 3)]
        if isinstance(row, StepRow) and current.older(row, name):
            one["older"] = True
        rows.append(one)
    return rows
