"""The commands ``charts`` and ``photo``."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from rich.markup import escape

from common.catalog import cache, catalog, device, ledger, lessontext, store
from common.catalog.catalog import Step
from common.commands import arguments, choosing, console, flow
from common.commands.console import RIGHT, WRONG
from common.jobs import run
from common.records import records
from common.report import drawing, pages, traces
from common.report.messages import Draw, DrawResult

_PHOTO = [catalog.ROOT / "common" / name for name in ("report/photo.py", "jobs/tasks.py")]


def commands(known: arguments.Commands) -> None:
    sub = known.add(
        "charts",
        lambda options: redraw_shipped(options.fresh) if options.record else redraw(options.fresh),
        "draw charts and tables of your own records, where anything changed",
    )
    sub.add_argument("--fresh", action="store_true", help="draw all, changed or not")
    text = "draw the shipped charts, traces and page tables in their place (for maintainers)"
    sub.add_argument("--record", action="store_true", help=text)

    sub = known.add("photo", _photo, "convolve a photograph and draw the feature maps")
    sub.add_argument("step", nargs="?", metavar="STEP", help=f"conv2d step (default: {_default()})")
    sub.add_argument("--sim", action="store_true", help="as if there were no GPU: traced, on a reduced photograph")
    sub.add_argument("--record", action="store_true", help="draw the shipped picture (for maintainers)")


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
    simulator = choosing.simulator(options.sim, options)
    draw_photo(step, simulator, fresh=True, folder=choosing.folder(options.record))
    return RIGHT


def redraw(fresh: bool) -> int:
    """Draw what changed of the user's own records; the shipped charts must be there, and are left as they are."""
    code = _redraw(False, fresh)
    if lost := drawing.missing():
        said = "git checkout brings a file back, charts --record draws it anew"
        console.complain(f"[bold red]error:[/] {len(lost)} shipped pictures are gone, as {escape(lost[0])}: {said}")
        code = WRONG
    return code


def redraw_shipped(fresh: bool) -> int:
    """Draw what changed of what is shipped, trace what the book shows, and write the tables into the pages."""
    code = max(_redraw(True, fresh), _retrace(fresh))
    for path in pages.update(records.other(records.REFERENCE_GPU)):
        console.say().print(f"tables rewritten: {path.relative_to(catalog.ROOT)}")
    return code


def _redraw(shipped: bool, fresh: bool) -> int:
    """Draw what changed, and write a page of tables for each record."""
    say, folder = console.say(), choosing.folder(shipped)
    found = list(records.all_records(folder))
    everything, wanted = drawing.units(shipped), drawing.stale(shipped, fresh)
    console.say_kept(len(everything) - len(wanted), "set of charts", "sets of charts")
    drawn = list(console.progress("charts", drawing.draw(wanted), wanted, flow.drawn)) if wanted else []
    code = say_drawn(drawn)
    for record in found:
        summary = folder / f"{record.slug}.md"
        text = pages.summary(record)
        if not summary.exists() or summary.read_text(encoding="utf-8") != text:
            store.write(summary, text)
        day = max((run.date for run in record.data.runs.values()), default="an unknown day")
        where = f"charts in {store.shown(folder)}/charts/{record.slug}/, tables in {store.shown(summary)}"
        say.print(f"{record.title}, measured up to {day}: {where}", soft_wrap=True)
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


def draw_photo(
    step: Step,
    simulator: bool,
    gpu: device.Gpu | None = None,
    fresh: bool = False,
    folder: Path | None = None,
) -> None:
    """Draw the photograph's feature maps among ``folder``'s charts (default: the user's), unless those that are
    there hold, or with ``fresh``."""
    name, slug = "the tracer", "tracer"
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
            path = photo.draw(step, simulator, name, (folder or choosing.folder(False)) / "charts" / slug)
    except photo.PhotoError as error:
        raise ValueError(str(error)) from None
    cache.put("photo", key, str(path))
    console.say().print(f"feature maps drawn: {path.relative_to(catalog.ROOT)}")
