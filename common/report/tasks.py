"""Charts, pictures and traces, drawn by several processes at a time, and only where something changed.

The cache has the files that each unit gave, with digests. Shipped ones are drawn for ``charts --record`` alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, cast

from common.catalog import cache, catalog, device, problems
from common.records import records
from common.records.records import Record
from common.run import isolate
from common.run.messages import Answer, Ask

SECONDS = 300.0
_REPORT = Path(__file__).parent
_CHARTS = "*/figures/charts.py"  # what draws charts of a GPU's record that one lesson has
# What a picture may show of the lessons: any step, and what stands beside it.
_SHOWN = ("*/*.py", f"*/{catalog.HELPERS}/*.py", "*/*.json", "*/*.toml")


class Draw(NamedTuple):
    """One unit: charts of a GPU's record, shipped or the user's own (of a ``ladder``; empty: those of several), a
    lesson's pictures, the machine code's charts, or a step's trace. ``name``: of the record, lesson or step."""

    what: str  # own, shipped, lesson, code, or trace
    name: str
    ladder: str = ""


def units(shipped: bool) -> list[Draw]:
    """All that is drawn of what is ``shipped``, or of the user's own, what takes longest first."""
    what, folder = ("shipped", records.RESULTS) if shipped else ("own", records.OWN)
    found = [Draw(what, path.stem, one) for path in records.files(folder) for one in ("", *problems.LADDERS)]
    if shipped:
        found += [Draw("lesson", name) for name in catalog.lessons() if _script(name).exists()]
        found += [Draw("code", "machine code")]
        found += [Draw("trace", step.name) for step in catalog.steps()]
    return found


def stale(shipped: bool, fresh: bool = False) -> list[Draw]:
    """The units that are to be drawn: those that changed, whose files are other ones, or with ``fresh`` all."""
    found = units(shipped)
    known = [None if fresh else cache.get("drawn", _key(unit), dict[str, str]) for unit in found]
    return [unit for unit, files in zip(found, known, strict=True) if files is None or files != _digests(files)]


def draw(wanted: list[Draw]) -> Iterator[tuple[Draw, Answer]]:
    """Draw units in child processes; the files of each answer are noted."""
    keys = [_key(unit) for unit in wanted]  # of before: what changes meanwhile is drawn again
    tasks = [[Ask(function=written, given=tuple(unit), on_gpu=False)] for unit in wanted]
    answers = isolate.run_groups(tasks, True, SECONDS, device.workers())
    for unit, key, (_, answer) in zip(wanted, keys, answers, strict=True):
        if answer.status == "right":
            cache.put("drawn", key, _digests(cast("list[str]", answer.found)))
        yield unit, answer


def written(what: str, name: str, ladder: str) -> list[str]:
    """Draw one unit in this process; returns the files, with each PNG its SVG, if it has one."""
    from common.report import canvas, charts, traces

    if what in ("own", "shipped"):
        record = Record.load(_record(what, name))
        folder = record.folder / "charts" / record.slug
        if ladder:
            found = charts.draw_ladder(record, ladder, folder)
        else:
            found = charts.draw_worth(record, folder)
            for script in sorted(catalog.LESSONS.glob(_CHARTS)):
                found += catalog.load_file(script).draw_card(record, folder)
    elif what == "lesson":
        found = canvas.save_all(_script(name).parent, *catalog.load_file(_script(name)).PICTURES)
    elif what == "trace":
        found = [traces.write(catalog.find(name))]
    else:
        found = charts.draw_code(records.load_code())
    both = [path for one in found for path in dict.fromkeys((one, one.with_suffix(".svg"))) if path.exists()]
    return [path.relative_to(catalog.ROOT).as_posix() for path in both]


def _digests(names: Iterable[str]) -> dict[str, str]:
    return {name: cache.digest([catalog.ROOT / name], text=True) for name in names}


def _key(unit: Draw) -> str:
    """What a unit is drawn from: the code that draws it, and what that shows."""
    if unit.what == "trace":
        return cache.key([_REPORT / "traces.py", catalog.find(unit.name).path], unit.name, text=True)
    roots = [_script(unit.name)] if unit.what == "lesson" else [_REPORT / "charts.py", *catalog.LESSONS.glob(_CHARTS)]
    shown = [path for kind in _SHOWN for path in catalog.LESSONS.glob(kind)]
    shown += [records.RESULTS / records.CODE_FILE, *records.files(records.RESULTS)]
    if unit.what in ("own", "shipped"):
        record = _record(unit.what, unit.name)
        shown += [record, *record.parent.glob(f"*/{record.name}")]
    return cache.key(roots, *unit, data=shown, text=True)


def _record(what: str, name: str) -> Path:
    return (records.OWN if what == "own" else records.RESULTS) / f"{name}.json"


def _script(lesson: str) -> Path:
    return catalog.LESSONS / lesson / "figures" / "draw.py"
