"""The commands ``charts`` and ``book``; and the photograph that a lesson convolves."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from rich.markup import escape

from common.catalog import cache, catalog, device, lessontext, store
from common.check import run
from common.commands import arguments, console
from common.commands.console import RIGHT, WRONG
from common.records import records
from common.report import pages
from common.report.pages import Draw
from common.run.messages import Answer

BOOK = catalog.ROOT / ".workbook" / "book"
_WORK = cache.FOLDER / "book"  # what is unchanged
_PHOTO = "figures/photo.py"  # of the lesson whose step convolves the photograph


def charts(options: argparse.Namespace) -> int:
    code = redraw(options.fresh, options.record)
    if options.record:
        if device.gpu_count():
            draw_photo(run.inspect_device()[0], options.fresh, shipped=True)
        for path in pages.update(records.other(records.REFERENCE_GPU)):
            console.tell(f"tables rewritten: {store.shown(path)}")
    return code


def redraw(fresh: bool, shipped: bool = False) -> int:
    """Draw what changed of the user's or the shipped records, and write a page of tables for each; the exit code."""
    folder, code = arguments.folder(shipped), RIGHT
    wanted = pages.stale(shipped, fresh)
    console.say_kept(len(pages.units(shipped)) - len(wanted), "sets of charts")
    for unit, result in console.progress("charts", pages.draw(wanted), wanted, _drawn_line) if wanted else ():
        if result.status != "right":
            console.blame(f"{unit.name}: not drawn: {result.message}")
            code = WRONG
    for record in records.all_records(folder):
        summary = folder / f"{record.slug}.md"
        store.write(summary, pages.summary(record))
        charts = f"{store.shown(folder)}/charts/{record.slug}/"
        console.tell(f"{record.gpu_name}: charts in {charts}, tables in {store.shown(summary)}")
    return code


def _drawn_line(entry: tuple[Draw, Answer]) -> str:
    """``results/nvidia-h200.json gemm: 2.1 s``."""
    unit, result = entry
    return f"{store.shown(Path(unit.name))} {unit.ladder}: {result.seconds or 0.0:.1f} s"


def draw_photo(gpu: device.Gpu | None, fresh: bool, shipped: bool = False) -> None:
    """Draw the photograph's feature maps, on the GPU or as traced, unless those that are there hold."""
    step = catalog.find(lessontext.read(catalog.LESSONS).photo)
    name, slug = (gpu.name, gpu.slug) if gpu else ("the tracer", "tracer")
    script = catalog.LESSONS / step.lesson / _PHOTO
    key = cache.key([script, step.path], name, gpu and gpu.driver, shipped)
    drawn = None if fresh else cache.get("photo", key, str)
    if drawn and Path(drawn).is_file():
        console.say_kept(1, "feature maps of the photograph")
        return
    path = catalog.load_file(script).draw(step, gpu is None, name, arguments.folder(shipped) / "charts" / slug)
    cache.put("photo", key, str(path))
    console.tell(f"feature maps of the photograph drawn: {store.shown(path)}")


def build_book(_: argparse.Namespace) -> int:
    try:
        from common.book import book  # brings Sphinx
    except ModuleNotFoundError as error:
        name = (error.name or "Sphinx").partition(".")[0]
        raise ValueError(f"the book needs {name}, which is not installed: make book brings it") from None
    began = time.monotonic()
    try:
        with store.locked(_WORK):
            built = book.build(BOOK, _WORK)
    except book.BookError as error:
        console.blame(str(error))
        return WRONG
    console.tell(escape(f"{built} pages, {time.monotonic() - began:.0f} s: open {BOOK / 'index.html'}"))
    return RIGHT
