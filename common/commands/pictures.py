"""The commands ``charts`` and ``book``; and the photograph that a lesson convolves."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from pathlib import Path

from rich.markup import escape

from common.catalog import cache, catalog, device, lessontext, store
from common.check import run
from common.commands import arguments, console
from common.commands.console import RIGHT, WRONG
from common.records import records
from common.report import pages, tasks
from common.report.tasks import Draw, DrawResult
from common.run import stages

BOOK = catalog.ROOT / ".workbook" / "book"
_WORK = cache.FOLDER / "book"  # what is unchanged
_WAIT_SECONDS = 600.0  # for another that is being built
_PHOTO = "figures/photo.py"  # of the lesson whose step convolves the photograph


def commands(known: arguments.Commands) -> None:
    sub = known.add("charts", _charts, "draw the charts and tables of your own records that have changed")
    sub.add_argument("--fresh", action="store_true", help="draw all, changed or not")
    text = "draw the shipped charts, traces and page tables in their place (for maintainers)"
    sub.add_argument("--record", action="store_true", help=text)

    known.add("book", _book, "build the book, a site that opens in a browser without a network")


def _charts(options: argparse.Namespace) -> int:
    if not options.record:
        return redraw(options.fresh)
    code = redraw(options.fresh, shipped=True)
    if device.gpu_count():
        draw_photo(run.inspect_device()[0], options.fresh, shipped=True)
    for path in pages.update(records.other(records.REFERENCE_GPU)):
        console.say().print(f"tables rewritten: {path.relative_to(catalog.ROOT)}")
    return code


def redraw(fresh: bool, shipped: bool = False) -> int:
    """Draw what changed of the user's own records or the shipped ones, and write a page of tables for each."""
    say, folder = console.say(), arguments.folder(shipped)
    found = list(records.all_records(folder))
    everything, wanted = tasks.units(shipped), tasks.stale(shipped, fresh)
    console.say_kept(len(everything) - len(wanted), "set of charts", "sets of charts")
    code = say_drawn(console.progress("charts", tasks.draw(wanted), wanted, _drawn_line)) if wanted else RIGHT
    for record in found:
        summary = folder / f"{record.slug}.md"
        text = pages.summary(record)
        if not summary.exists() or summary.read_text(encoding="utf-8") != text:
            store.write(summary, text)
        day = max((run.date for run in record.data.runs.values()), default="an unknown day")
        where = f"charts in {store.shown(folder)}/charts/{record.slug}/, tables in {store.shown(summary)}"
        say.print(f"{record.title}, measured up to {day}: {where}", soft_wrap=True)
    return code


def _drawn_line(entry: tuple[Draw, DrawResult]) -> str:
    """``nvidia-h200 gemm: 8 files drawn, 2.1 s``."""
    unit, result = entry
    count, name = len(result.files), f"{unit.name} {unit.ladder}".strip()
    return f"{name}: {count} file{'s' * (count != 1)} drawn, {result.seconds or 0.0:.1f} s"


def say_drawn(found: Iterable[tuple[Draw, DrawResult]]) -> int:
    """Say what could not be drawn; returns the exit code."""
    failed = [(unit.name, result.message) for unit, result in found if result.status != "right"]
    for name, why in failed:
        console.complain(f"[bold red]error:[/] {escape(name)}: not drawn: {escape(str(why))}")
    return WRONG if failed else RIGHT


def draw_photo(gpu: device.Gpu | None, fresh: bool, shipped: bool = False) -> None:
    """Draw the photograph's feature maps, on the GPU or as traced, among the user's charts or the ``shipped`` ones,
    unless those that are there hold, or with ``fresh``."""
    step = catalog.find(lessontext.read(catalog.LESSONS).photo)
    name, slug = (gpu.name, gpu.slug) if gpu else ("the tracer", "tracer")
    script = catalog.LESSONS / step.lesson / _PHOTO
    key = cache.key([script, step.path], name, gpu and gpu.driver, shipped)
    drawn = None if fresh else cache.get("photo", key, str)
    if drawn and Path(drawn).is_file():
        console.say().print("the feature maps are current and were kept")
        return
    with stages.stage("photo"):
        charts = arguments.folder(shipped) / "charts" / slug
        path = catalog.load_file(script).draw(step, gpu is None, name, charts)
    cache.put("photo", key, str(path))
    console.say().print(f"feature maps drawn: {path.relative_to(catalog.ROOT)}")


def _book(_: argparse.Namespace) -> int:
    try:
        from common.book import book  # brings Sphinx
    except ModuleNotFoundError as error:
        name = (error.name or "Sphinx").partition(".")[0]
        raise ValueError(f"the book needs {name}, which is not installed: make book brings it") from None
    began = time.monotonic()
    try:
        with store.locked(_WORK, _WAIT_SECONDS):
            built = book.build(BOOK, _WORK)
    except book.BookError as error:
        console.complain(f"[bold red]error:[/] {escape(str(error))}")
        return WRONG
    size = sum(path.stat().st_size for path in BOOK.rglob("*") if path.is_file()) / 2**20
    said = f"{built} pages, {size:.0f} MiB, {time.monotonic() - began:.0f} s: open {BOOK / 'index.html'}"
    console.say().print(escape(said), soft_wrap=True)
    return RIGHT
