"""Charts and pictures, drawn by several processes at a time, and only where something changed.

``charts/drawn.json`` says for each unit (a card's charts, the machine code's, a lesson's pictures) what it was drawn
from and the files it gave. It belongs to the pictures: a checkout that has them knows that they are current. The
shipped ones, in ``results/`` and the lessons, are drawn for ``charts --record`` alone; a user's lie beside the user's
records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct, to_builtins

from common.catalog import cache, catalog, device, store
from common.records import current, records
from common.report.messages import Draw, DrawResult
from common.run import isolate

DRAWN = "drawn.json"
SECONDS = 300.0
_CARDS = ("card", "own")


class Drawn(Struct):
    """What a unit was drawn from, and the files it gave."""

    key: str
    files: list[str]


def units(shipped: bool) -> list[Draw]:
    """All that is drawn of what is ``shipped``, or of the user's own, the largest first: the tasks."""
    if not shipped:
        return [Draw(what="own", name=path.stem) for path in records.files(records.OWN)]
    cards = [Draw(what="card", name=path.stem) for path in records.files(records.RESULTS)]
    lessons = [lesson for lesson in catalog.lessons() if _script(lesson).exists()]
    lessons.sort(key=lambda lesson: -_script(lesson).stat().st_size)
    pictures = [Draw(what="lesson", name=name) for name in lessons]
    return [*cards, *pictures, Draw(what="code", name="machine code")]


def stale(shipped: bool, fresh: bool = False) -> list[Draw]:
    """The units that are to be drawn: those that changed, whose files are missing, or with ``fresh`` all."""
    known = {} if fresh else _known(_folder(shipped))
    return [unit for unit in units(shipped) if not _current(known.get(_label(unit)), unit)]


def missing() -> list[str]:
    """The shipped pictures that are not there, from the checkout's root."""
    known = _known(_folder(True)).values()
    return [name for drawn in known for name in drawn.files if not (catalog.ROOT / name).is_file()]


def draw(wanted: list[Draw]) -> Iterator[tuple[Draw, DrawResult]]:
    """Draw units in child processes; each result has ``files``, and what is drawn is noted."""
    keys = {_label(unit): _key(unit) for unit in wanted}  # of before: what changes meanwhile is drawn again
    for unit, result in isolate.run_groups([[unit] for unit in wanted], False, SECONDS, device.workers()):
        assert isinstance(unit, Draw)
        if result["status"] == "right":
            _note(unit, Drawn(keys[_label(unit)], result["files"]))
        yield unit, result


def draw_here(unit: Draw) -> list[str]:
    """Draw one unit in this process; returns its files, from the checkout's root."""
    from common.report import charts

    if unit.what in _CARDS:
        record = _record(unit)
        written = charts.draw_all(record)
        for script in _lessons_charts():
            written += catalog.load_file(script).draw_card(record, record.folder / "charts" / record.slug)
    elif unit.what == "lesson":
        script = _script(unit.name)
        written = catalog.load_file(script).draw(script.parent)
    else:
        written = charts.draw_code(records.load_code())
    both = [path for png in written for path in (png, png.with_suffix(".svg")) if path.exists()]
    return [path.relative_to(catalog.ROOT).as_posix() for path in both]


def _label(unit: Draw) -> str:
    return f"{unit.what} {unit.name}"


def _current(known: Drawn | None, unit: Draw) -> bool:
    if known is None or known.key != _key(unit):
        return False
    return all((catalog.ROOT / name).is_file() for name in known.files)


def _key(unit: Draw) -> str:
    """What a unit is drawn from: the code that draws it, what that shows, and what it marks as older."""
    roots, shown = [catalog.ROOT / "common" / "report" / "charts.py"], [records.RESULTS / records.CODE_FILE]
    if unit.what in _CARDS:
        roots += _lessons_charts()
        record = _record(unit)
        shown += [record.path, *record.folder.glob(f"*/{record.path.name}")]
    elif unit.what == "lesson":
        roots = [_script(unit.name)]
        # a picture may show any step
        kinds = ("*.py", "*/*.py", f"*/{catalog.HELPERS}/*.py", "*/*.json", "*/*.toml")
        shown += [path for kind in kinds for path in catalog.LESSONS.glob(kind)]
        shown += records.files(records.RESULTS) if "records" in roots[0].read_text(encoding="utf-8") else []
    names = [step.as_dict() for step in catalog.steps()]
    return cache.key(roots, names, _marked(unit), data=shown, text=True, versions=("matplotlib",))


def _lessons_charts() -> list[Path]:
    """What draws charts of a card's record that one lesson has."""
    return sorted(catalog.LESSONS.glob("*/figures/charts.py"))


def _marked(unit: Draw) -> list[str]:
    """What a card's charts mark as older than the code."""
    if unit.what not in _CARDS:
        return []
    data = _record(unit).data
    kinds: tuple[Mapping[str, Mapping[str, object]], ...] = (data.rows, data.sweeps, data.accuracy)
    entries = [(kind, name, entry) for each in kinds for kind, found in each.items() for name, entry in found.items()]
    return [f"{kind} {name}" for kind, name, entry in entries if current.older(getattr(entry, "code", entry), name)]


def _record(unit: Draw) -> records.Record:
    return records.Record.load(_folder(unit.what != "own") / f"{unit.name}.json")


def _folder(shipped: bool) -> Path:
    return records.RESULTS if shipped else records.OWN


def _script(lesson: str) -> Path:
    return catalog.LESSONS / lesson / "figures" / "draw.py"


def _known(folder: Path) -> dict[str, Drawn]:
    return cache.read(folder / "charts" / DRAWN, dict[str, Drawn])


def _note(unit: Draw, entry: Drawn) -> None:
    shipped = unit.what != "own"
    folder, present = _folder(shipped), {_label(one) for one in units(shipped)}
    known = {name: value for name, value in _known(folder).items() if name in present}
    store.write_json(folder / "charts" / DRAWN, to_builtins({**known, _label(unit): entry}))
