"""The commands ``charts`` and ``photo``."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from rich.markup import escape

from common.book import cache, catalog, device, ledger, lessontext, store
from common.book.catalog import Step
from common.commands import arguments, choosing, console, flow
from common.commands.console import RIGHT, WRONG
from common.jobs import run
from common.report import drawing, pages, records, traces
from common.report.messages import Draw, DrawResult

_PHOTO = [catalog.ROOT / "common" / name for name in ("report/photo.py", "jobs/tasks.py")]


def commands(known: arguments.Commands) -> None:
    sub = known.add(
        "charts",
        lambda options: redraw(options.fresh),
        "draw charts and page tables from the records, where anything changed",
    )
    sub.add_argument("--fresh", action="store_true", help="draw all, changed or not")

    sub = known.add("photo", _photo, "convolve a photograph and draw the feature maps")
    sub.add_argument("step", nargs="?", metavar="STEP", help=f"conv2d step (default: {_default()})")
    sub.add_argument("--sim", action="store_true", help="in the CUDA simulator, on a reduced photograph")


def _default() -> str:
    """The step of the usage; a lesson's file that cannot be read is told of when it is needed."""
    try:
        return lessontext.photo(catalog.LESSONS)
    except (OSError, ValueError):
        return "none"


def _photo(options: argparse.Namespace) -> int:
    step = catalog.find(lessontext.photo(catalog.LESSONS) if options.step is None else options.step)
    if step.ladder != "conv2d":
        raise ValueError(f"step {step.name!r}: the photograph needs a conv2d step, and this is a {step.ladder} step")
    # there is one picture: what is kept of another step's holds no more
    draw_photo(step, choosing.simulator(options.sim, options), fresh=True)
    return RIGHT


def redraw(fresh: bool) -> int:
    """Draw what changed, and write the tables of all records into the pages."""
    say = console.say()
    found = list(records.all_records())
    reference = next((r for r in found if r.slug == records.REFERENCE_GPU), None)
    everything, wanted = drawing.units(), drawing.stale(fresh)
    console.say_kept(len(everything) - len(wanted), "set of charts", "sets of charts")
    drawn = list(console.progress("charts", drawing.draw(wanted), wanted, flow.drawn)) if wanted else []
    code = max(say_drawn(drawn), _retrace(fresh))
    for record in found:
        summary = records.RESULTS / f"{record.slug}.md"
        text = pages.summary(record)
        if not summary.exists() or summary.read_text(encoding="utf-8") != text:
            store.write(summary, text)
        day = max((run.date for run in record.data.runs.values()), default="an unknown day")
        where = f"charts in results/charts/{record.slug}/, tables in results/{summary.name}"
        say.print(f"{record.gpu_name}, measured up to {day}: {where}")
    if not found:
        say.print("no records in results/: a run with a GPU writes the first")
    for path in pages.update(reference):
        say.print(f"tables rewritten: {path.relative_to(catalog.ROOT)}")
    return code


def _retrace(fresh: bool) -> int:
    """Take the traces that the book shows anew, where anything changed."""
    total, wanted = len(catalog.steps()), traces.stale(fresh)
    console.say_kept(total - len(wanted), "trace", "traces")
    code = RIGHT
    for step, why in console.progress("traces", traces.renew(wanted), wanted) if wanted else ():
        if why:
            console.complain(f"[bold red]error:[/] {step.name}: not traced: {escape(why)}")
            code = WRONG
    return code


def say_drawn(found: Iterable[tuple[Draw, DrawResult]]) -> int:
    """Say what could not be drawn."""
    code = RIGHT
    for unit, result in found:
        if result["status"] != "right":
            console.complain(f"[bold red]error:[/] {escape(unit.name)}: not drawn: {escape(str(result['message']))}")
            code = WRONG
    return code


def draw_photo(step: Step, simulator: bool, gpu: device.Gpu | None = None, fresh: bool = False) -> None:
    """Draw the photograph's feature maps, unless those that are there hold, or with ``fresh``."""
    name, slug = "the CUDA simulator", "simulator"
    if not simulator:
        gpu = gpu or run.describe_device()
        name, slug = gpu.name, gpu.slug
    key = cache.key([*_PHOTO, step.path], name, gpu and gpu.driver)
    drawn = None if fresh else cache.get("photo", key, str)
    if drawn and Path(drawn).is_file():
        console.say().print("the feature maps are as new as their code and were kept")
        return
    from common.report import photo  # brings matplotlib

    try:
        with ledger.stage("photo"):
            path = photo.draw(step, simulator, name, slug)
    except photo.PhotoError as error:
        raise ValueError(str(error)) from None
    cache.put("photo", key, str(path))
    console.say().print(f"feature maps drawn: {path.relative_to(catalog.ROOT)}")
