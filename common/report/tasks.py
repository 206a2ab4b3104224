"""Charts, pictures and traces, drawn by several processes at a time, and only where something changed.

The cache has the files that each unit gave, with digests. Shipped ones are drawn for ``charts --record`` alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from common.catalog import cache, catalog, device, problems
from common.records import records
from common.records.records import Record
from common.run import isolate, stages
from common.run.messages import Result, Task

SECONDS = 300.0
_REPORT = Path(__file__).parent
_CHARTS = "*/figures/charts.py"  # what draws charts of a GPU's record that one lesson has
# What a picture may show of the lessons: any step, and what stands beside it.
_SHOWN = ("*/*.py", f"*/{catalog.HELPERS}/*.py", "*/*.json", "*/*.toml")


class DrawResult(Result, frozen=True, kw_only=True):
    """``files`` that were written, from the checkout's root."""

    files: Sequence[str] = ()


class Draw(Task[DrawResult], frozen=True, kw_only=True, tag="report.draw"):
    """Draw one unit: charts of a GPU's record, shipped or the user's own (of a ``ladder``; empty: those of several),
    a lesson's pictures, the machine code's charts, or a step's trace. ``name``: of the record, lesson or step."""

    what: Literal["own", "shipped", "lesson", "code", "trace"]
    name: str
    ladder: str = ""


def units(shipped: bool) -> list[Draw]:
    """All that is drawn of what is ``shipped``, or of the user's own, what takes longest first: the tasks."""
    cards = [path.stem for path in records.files(records.RESULTS if shipped else records.OWN)]
    what: Literal["own", "shipped"] = "shipped" if shipped else "own"
    found = [Draw(what=what, name=name, ladder=one) for name in cards for one in ("", *problems.LADDERS)]
    if shipped:
        found += [Draw(what="lesson", name=name) for name in catalog.lessons() if _script(name).exists()]
        found += [Draw(what="code", name="machine code")]
        found += [Draw(what="trace", name=step.name) for step in catalog.steps()]
    return found


def stale(shipped: bool, fresh: bool = False) -> list[Draw]:
    """The units that are to be drawn: those that changed, whose files are other ones, or with ``fresh`` all."""
    found = units(shipped)
    known = [None if fresh else cache.get("drawn", _key(unit), dict[str, str]) for unit in found]
    return [unit for unit, files in zip(found, known, strict=True) if files is None or files != _digests(files)]


def draw(wanted: list[Draw]) -> Iterator[tuple[Draw, DrawResult]]:
    """Draw units in child processes; each result has ``files``, and what is drawn is noted."""
    keys = [_key(unit) for unit in wanted]  # of before: what changes meanwhile is drawn again
    results = isolate.run_groups([[unit] for unit in wanted], True, SECONDS, device.workers())
    for unit, key, (_, result) in zip(wanted, keys, results, strict=True):
        if result.status == "right":
            cache.put("drawn", key, _digests(result.files))
        yield unit, result


def draw_task(unit: Draw) -> DrawResult:
    """Draw one unit in this process; of charts and pictures beside each PNG its SVG, if it has one."""
    from common.report import canvas, charts, traces

    with stages.stage("charts"):
        if unit.what in ("own", "shipped"):
            record = Record.load(_record(unit))
            folder = record.folder / "charts" / record.slug
            if unit.ladder:
                written = charts.draw_ladder(record, unit.ladder, folder)
            else:
                written = charts.draw_worth(record, folder)
                for script in sorted(catalog.LESSONS.glob(_CHARTS)):
                    written += catalog.load_file(script).draw_card(record, folder)
        elif unit.what == "lesson":
            script = _script(unit.name)
            written = canvas.save_all(script.parent, *catalog.load_file(script).PICTURES)
        elif unit.what == "trace":
            written = [traces.write(catalog.find(unit.name))]
        else:
            written = charts.draw_code(records.load_code())
        files = [path for one in written for path in dict.fromkeys((one, one.with_suffix(".svg"))) if path.exists()]
        return DrawResult(status="right", files=[path.relative_to(catalog.ROOT).as_posix() for path in files])


def _digests(files: Iterable[str]) -> dict[str, str]:
    return {name: cache.digest([catalog.ROOT / name], text=True) for name in files}


def _key(unit: Draw) -> str:
    """What a unit is drawn from: the code that draws it, and what that shows."""
    if unit.what == "trace":
        return cache.key([_REPORT / "traces.py", catalog.find(unit.name).path], unit.name, text=True)
    roots = [_script(unit.name)] if unit.what == "lesson" else [_REPORT / "charts.py", *catalog.LESSONS.glob(_CHARTS)]
    shown = [path for kind in _SHOWN for path in catalog.LESSONS.glob(kind)]
    shown += [records.RESULTS / records.CODE_FILE, *records.files(records.RESULTS)]
    if unit.what in ("own", "shipped"):
        record = _record(unit)
        shown += [record, *record.parent.glob(f"*/{record.name}")]
    return cache.key(roots, unit.what, unit.name, unit.ladder, data=shown, text=True)


def _record(unit: Draw) -> Path:
    return (records.OWN if unit.what == "own" else records.RESULTS) / f"{unit.name}.json"


def _script(lesson: str) -> Path:
    return catalog.LESSONS / lesson / "figures" / "draw.py"
