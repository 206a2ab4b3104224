"""Pages, charts and pictures, written anew where something changed.

Tables and figures of Markdown pages stand between markers, and are of the reference GPU's record.
A block is ``<!-- table: KIND WORDS -->`` to ``<!-- end table -->``; KIND is one of :data:`tables.TABLES`. An exercise
stands at the end of its section, ``<!-- exercise: NAME -->`` to ``<!-- end exercise -->``. A figure in a sentence is
``<!--= KIND WORDS -->`` to ``<!--/-->``; KIND is one of :data:`figures.NAMED`.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, cast

from common.catalog import cache, catalog, device, exercises, problems, store
from common.records import records
from common.records.records import MachineCode, Record
from common.report import figures, tables, traces
from common.report.figures import kind
from common.report.table import Table, markdown
from common.report.tables import UnmeasuredError
from common.run import isolate
from common.run.messages import Answer, Ask

_SECONDS = 300.0  # for what one process draws
_REPORT = Path(__file__).parent
_CHARTS = "*/figures/charts.py"  # what draws charts of a GPU's record that one lesson has
# What a picture may show of the lessons: any step, and what stands beside it.
_SHOWN = ("*/*.py", f"*/{catalog.HELPERS}/*.py", "*/*.json", "*/*.toml")


def pages() -> list[Path]:
    """Every page that may hold a table: the first one, those beside the lessons, and all in their folders."""
    below = (path for pattern in ("*.md", "*/*.md") for path in sorted(catalog.LESSONS.glob(pattern)))
    return [catalog.ROOT / "README.md", *below]


# Each kind of block: how its marker opens, how it ends, and what stands between marker and text.
_BLOCKS = ((" table:", " end table ", "\n"), (" exercise:", " end exercise ", "\n"), ("=", "/", ""))


def rendered(text: str, record: Record | None, code: MachineCode) -> str:
    """The page with each table and figure written anew; raises ValueError at what a marker cannot be."""
    known = record or records.nothing()

    def written(match: re.Match[str]) -> str:
        opening, word, words = match[2], match[3], match[4].split()
        try:
            if opening == "=":
                found = figures.named(word, known, code, words)
                said = "?" if found is None else str(found)
            elif opening == " table:":
                said = _written(word, words, known, code) + "\n"
            else:
                one = exercises.find(word)
                how = f"{', '.join(_told(one)[:2])}: {one.title}. `python -m common grade {one.number}`"
                said = f"> Exercise {how}\n"
        except ValueError as error:
            raise ValueError(f"{match[1].strip()}: {error}") from None
        return f"{match[1]}{said}{match[5]}"

    for opening, end, newline in _BLOCKS:
        # between them stands no other opening: a forgotten end is said, not swallowed
        between = rf"(?:(?!<!--{opening}).)*?"
        marker = rf"(<!--({opening}) (\w+)((?: [\w.-]+)*) -->{newline}){between}(<!--{end}-->)"
        text, count = re.subn(marker, written, text, flags=re.DOTALL)
        if text.count(f"<!--{opening}") != count:
            raise ValueError(f"a marker <!--{opening} ... has no end, or is not written as it must be")
    return text


def _written(word: str, words: Sequence[str], record: Record, code: MachineCode) -> str:
    try:
        return markdown(table(word, record, *words, code=code))
    except UnmeasuredError as error:
        return f"*Nothing has been measured for {error} yet.*"


def table(word: str, record: Record, *words: str, code: MachineCode | None = None) -> Table:
    """The table of a kind that a page names so; raises UnmeasuredError where there is nothing to show."""
    return cast("Table", figures.named(word, record, code or MachineCode(), words, tables.TABLES))


@kind("exercises", tables.TABLES)
def hard_exercises(lesson: str) -> Table:
    """The harder ones, which no section has, each with its number, file, kind and what is asked for."""
    found = [_told(one) for one in exercises.everything() if one.lesson == lesson and one.hard]
    return Table(["exercise", "kind", "what"], found, left=["exercise", "kind", "what"])


def _told(one: exercises.Exercise) -> list[str]:
    """An exercise's number and file, its kind, and what is asked for."""
    kind = "find the bug" if one.kind == "bug" else one.kind
    return [f"**{one.number}** [`{one.name}`](exercises/{one.name}.py)", kind, one.title]


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
    code, charts = MachineCode(), f"charts/{record.slug}"
    parts = [f"# {record.gpu_name}", _written("ceilings", (), record, code)]
    for ladder in problems.LADDERS:
        presets = [preset for preset in problems.timed_presets(ladder) if record.rows(preset)]
        for preset in presets:
            parts += [f"## {preset}", f"![{preset}]({charts}/{preset}.png)"]
            parts.append(_written("ladder", [preset], record, code))
        if record.ceilings and presets and ladder in figures.ROOFLINES:
            parts.append(f"![roofline, {ladder}]({charts}/roofline-{ladder}.png)")
    if len(parts) == 2:
        parts.append("*Nothing has been measured for any preset yet.*")
    return "\n\n".join(parts) + "\n"


# --- charts, pictures and traces: the cache has the files that each unit gave, with digests ---


class Draw(NamedTuple):
    """One unit: a GPU's record (a file; of a ``ladder``, or those of several), a lesson's pictures (its script), the
    machine code's charts, or a step's trace."""

    what: str  # card, lesson, code, or trace
    name: str
    ladder: str = ""


def units(shipped: bool) -> list[Draw]:
    """All that is drawn of what is ``shipped``, or of the user's own, what takes longest first."""
    cards = records.files(records.RESULTS if shipped else records.OWN)
    found = [Draw("card", str(path), one) for path in cards for one in ("", *problems.LADDERS)]
    if shipped:
        found += [Draw("lesson", str(path)) for path in sorted(catalog.LESSONS.glob("*/figures/draw.py"))]
        found += [Draw("code", records.CODE_FILE), *(Draw("trace", step.name) for step in catalog.steps())]
    return found


def stale(shipped: bool, fresh: bool = False) -> list[Draw]:
    """The units that are to be drawn: those that changed, whose files are other ones, or with ``fresh`` all."""
    known = {unit: None if fresh else cache.get("drawn", _key(unit), dict[str, str]) for unit in units(shipped)}
    return [unit for unit, files in known.items() if files is None or files != _digests(files)]


def draw(wanted: list[Draw]) -> Iterator[tuple[Draw, Answer]]:
    """Draw units in child processes; the files of each answer are noted."""
    keys = [_key(unit) for unit in wanted]  # of before: what changes meanwhile is drawn again
    tasks = [[Ask(function=written, given=tuple(unit), on_gpu=False)] for unit in wanted]
    answers = isolate.run_groups(tasks, True, _SECONDS, device.workers())
    for unit, key, (_, answer) in zip(wanted, keys, answers, strict=True):
        if answer.status == "right":
            cache.put("drawn", key, _digests(cast("list[str]", answer.found)))
        yield unit, answer


def written(what: str, name: str, ladder: str) -> list[str]:
    """Draw one unit in this process; returns the files."""
    from common.report import canvas, charts

    if what == "card":
        record = Record.load(Path(name))
        folder = record.folder / "charts" / record.slug
        found = [canvas.save(figure, folder / name) for name, figure in charts.drawn(record, ladder)]
        for script in () if ladder else sorted(catalog.LESSONS.glob(_CHARTS)):
            found += catalog.load_file(script).draw_card(record, folder)
    elif what == "lesson":
        pictures = catalog.load_file(Path(name)).PICTURES
        found = [canvas.save(picture(), Path(name).with_name(picture.__name__)) for picture in pictures]
    elif what == "trace":
        found = [traces.write(catalog.find(name))]
    else:
        code, folder = records.load_code(), charts.CHARTS / "machine-code"
        found = [canvas.save(charts.useful(code, one), folder / f"useful-{one}") for one in charts.USEFUL]
    return [path.relative_to(catalog.ROOT).as_posix() for path in found]


def _digests(names: Iterable[str]) -> dict[str, str]:
    return {name: cache.digest([catalog.ROOT / name], text=True) for name in names}


def _key(unit: Draw) -> str:
    """What a unit is drawn from: the code that draws it, and what that shows."""
    if unit.what == "trace":
        return cache.key([_REPORT / "traces.py", catalog.find(unit.name).path], unit.name, text=True)
    path = Path(unit.name)
    roots = [path] if unit.what == "lesson" else [_REPORT / "charts.py", *catalog.LESSONS.glob(_CHARTS)]
    shown = [one for kind in _SHOWN for one in catalog.LESSONS.glob(kind)]
    shown += [records.RESULTS / records.CODE_FILE, *records.files(records.RESULTS)]
    shown += [path, *path.parent.glob(f"*/{path.name}")] if unit.what == "card" else []
    return cache.key(roots, *unit, data=shown, text=True)
