"""Charts and pictures, drawn by several processes at a time, and only where something changed.

``results/charts/drawn.json`` says for each unit (a card's charts, the machine code's, a lesson's pictures) what it
was drawn from and the files it gave. It belongs to the pictures: a checkout that has them knows that they are
current.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct, to_builtins

from common.book import cache, catalog, device, store
from common.report import current, records, training
from common.report.messages import Draw, DrawResult
from common.run import isolate

DRAWN = catalog.ROOT / "results" / "charts" / "drawn.json"
SECONDS = 300.0
_DRAWS = {"card": ("charts.py", "trainingcharts.py"), "code": ("charts.py",)}  # modules of common/report


class Drawn(Struct):
    """What a unit was drawn from, and the files it gave."""

    key: str
    files: list[str]


def units() -> list[Draw]:
    """Everything that is drawn, the largest first: the tasks."""
    cards = [Draw(what="card", name=path.stem) for path in _records()]
    lessons = [lesson for lesson in catalog.lessons() if _script(lesson).exists()]
    lessons.sort(key=lambda lesson: -_script(lesson).stat().st_size)
    pictures = [Draw(what="lesson", name=name) for name in lessons]
    return [*cards, *pictures, Draw(what="code", name="machine code")]


def stale(fresh: bool = False) -> list[Draw]:
    """The units that are to be drawn: those that changed, whose files are missing, or with ``fresh`` all."""
    known = {} if fresh else _known()
    return [unit for unit in units() if not _current(known.get(_label(unit)), unit)]


def draw(
    wanted: list[Draw], workers: int | None = None, stop: threading.Event | None = None
) -> Iterator[tuple[Draw, DrawResult]]:
    """Draw units in child processes; each result has ``files``, and what is drawn is noted."""
    workers = workers or device.processors()
    keys = {_label(unit): _key(unit) for unit in wanted}  # of before: what changes meanwhile is drawn again
    # those that are not drawn when it stops are left out
    for unit, result in isolate.run_groups([[unit] for unit in wanted], False, SECONDS, workers, stop):
        assert isinstance(unit, Draw)
        if result["status"] == "right":
            _note(_label(unit), Drawn(keys[_label(unit)], result["files"]))
        yield unit, result


def draw_here(unit: Draw) -> list[str]:
    """Draw one unit in this process; returns its files, from the checkout's root."""
    from common.report import charts, trainingcharts

    if unit.what == "card":
        written = charts.draw_all(records.Record.load(records.RESULTS / f"{unit.name}.json"))
        written += trainingcharts.load_and_draw(unit.name, charts.CHARTS / unit.name)
    elif unit.what == "lesson":
        script = _script(unit.name)
        written = catalog.load_file(script).draw(script.parent)
    else:
        written = charts.draw_code(records.load_code())
    both = [path for png in written for path in (png, png.with_suffix(".svg")) if path.exists()]
    return [path.relative_to(catalog.ROOT).as_posix() for path in both]


class Beside:
    """Draws, while a GPU is timed, what does not show its times; :meth:`wait` for it before the rest is drawn."""

    def __init__(self, fresh: bool = False) -> None:
        wanted = [unit for unit in stale(fresh) if not _shows_times(unit)]
        self._results: list[tuple[Draw, DrawResult]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._draw, args=(wanted,), daemon=True)
        self._thread.start()

    def _draw(self, wanted: list[Draw]) -> None:
        self._results += draw(wanted, 2, self._stop)  # the other processors are the timed kernels'

    def wait(self) -> list[tuple[Draw, DrawResult]]:
        self._thread.join()
        return self._results

    def cancel(self) -> None:
        self._stop.set()


def _shows_times(unit: Draw) -> bool:
    if unit.what == "lesson":
        return "records" in _script(unit.name).read_text(encoding="utf-8")
    return unit.what == "card"


def _label(unit: Draw) -> str:
    return f"{unit.what} {unit.name}"


def _current(known: Drawn | None, unit: Draw) -> bool:
    if known is None or known.key != _key(unit):
        return False
    return all((catalog.ROOT / name).is_file() for name in known.files)


def _key(unit: Draw) -> str:
    roots = [catalog.ROOT / "common" / "report" / name for name in _DRAWS.get(unit.what, ())]
    shown = [records.RESULTS / records.CODE_FILE]
    if unit.what == "card":
        shown.append(records.RESULTS / f"{unit.name}.json")
        shown += [path for path in [training.path_of(unit.name)] if path.is_file()]
    elif unit.what == "lesson":
        roots.append(_script(unit.name))
        # a picture may show any step
        kinds = ("*.py", "*/*.py", f"*/{catalog.HELPERS}/*.py", "*/*.json", "*/*.toml")
        shown += [path for kind in kinds for path in catalog.LESSONS.glob(kind)]
        shown += _records() if _shows_times(unit) else []
    names = [step.as_dict() for step in catalog.steps()]
    return cache.key(roots, names, _marked(unit), data=shown, text=True, versions=("matplotlib",))


def _marked(unit: Draw) -> list[str]:
    """What a card's charts mark as older than the code."""
    if unit.what != "card":
        return []
    record = records.Record.load(records.RESULTS / f"{unit.name}.json")
    data = record.data
    kinds: tuple[Mapping[str, Mapping[str, object]], ...] = (data.rows, data.sweeps, data.accuracy)
    entries = [(kind, name, entry) for each in kinds for kind, found in each.items() for name, entry in found.items()]
    return [f"{kind} {name}" for kind, name, entry in entries if current.older(getattr(entry, "code", entry), name)]


def _records() -> list[Path]:
    return [path for path in sorted(records.RESULTS.glob("*.json")) if path.name != records.CODE_FILE]


def _script(lesson: str) -> Path:
    return catalog.LESSONS / lesson / "figures" / "draw.py"


def _known() -> dict[str, Drawn]:
    return cache.read(DRAWN, dict[str, Drawn])


def _note(label: str, entry: Drawn) -> None:
    present = {_label(unit) for unit in units()}
    known = {name: value for name, value in _known().items() if name in present}
    store.write_json(DRAWN, to_builtins({**known, label: entry}))
