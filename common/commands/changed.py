"""The commands ``all``, ``charts`` and ``book``: what has changed is checked, timed, drawn and built anew."""

import argparse
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from rich.markup import escape

from common.catalog import cache, catalog, device, store
from common.catalog.catalog import Step
from common.check import plan, run
from common.commands import arguments, bench, console, edits
from common.commands.console import RIGHT, WRONG
from common.records import records
from common.report import pages
from common.run.messages import Answer, Outcome
from common.timing import measuring

BOOK = catalog.ROOT / ".workbook" / "book"
_PHOTO = "figures.photo"  # of the lesson whose step convolves the photograph


def do_all(options: argparse.Namespace) -> int:
    say, every = console.say(), catalog.everything()
    without_gpu = arguments.without_gpu(options.sim)
    recorded = {} if options.fresh else run.shipped(every)
    if without_gpu:  # that the compiler works here, one step shows; the others' compilations are of the record, too
        recorded.pop(every[0].name, None)
    say.rule("check every step on the CPU" if without_gpu else "check and time every step")
    outcomes, timed = check_changed(every, recorded, without_gpu, options.fresh)
    say.rule("charts and tables")
    if all(outcome.fine for outcome in outcomes if outcome.step.name == catalog.settings().photo):
        draw_photo(without_gpu, options.fresh)
    drawn = redraw(options.fresh)
    console.say_left_out(outcomes)
    return max(drawn, *(console.exit_code(found, asked=False) for found in (outcomes, timed)))


def check_changed(
    steps: list[Step], recorded: dict[str, run.Shipped], without_gpu: bool, fresh: bool
) -> tuple[list[Outcome], list[Outcome]]:
    """Check the steps without a known verdict, those ``recorded`` with one at a few shapes; the outcomes of all. With
    a GPU, time what it has no current row of, too; those outcomes."""
    card, room = (None, 0) if without_gpu else run.inspect_device()
    conditions = [[card.name, card.driver] if card else "tracer", recorded]
    found = {} if fresh else run.known(steps, conditions, room)
    console.say_kept(len(found), "verdicts")
    rest, seed = [step for step in steps if step.name not in found], plan.new_seed()
    edits.keep(rest)
    rows = bench.Rows(fresh, quick=True) if card else None
    lacking = rows.lacking(arguments.pairs(steps, None)) if rows else []
    ceilings = rows is not None and (fresh or not records.ceilings_hold(rows.record))

    def work(checking: run.Checking) -> Iterator[str]:
        """Each step is timed as soon as it is right, while others are compiled: with all processors busy FP32 steps
        took the time that they take alone, to 0.6%."""
        for step in steps:
            if step in rest:
                found[step.name] = list(checking.of([step]))
                yield console.checked_line(found[step.name])
            if all(outcome.fine for outcome in found[step.name]):
                if step in rest:
                    run.keep(found[step.name], conditions)
                if rows:
                    checking.wait(step)
                    yield from rows.take([pair for pair in lacking if pair[0] is step])
        if rows:
            yield from rows.take(measuring.at_a_low_clock(rows.outcomes), ceilings=ceilings)

    if expected := range(len(rest) + len(lacking) + ceilings):
        with run.Checking(rest, without_gpu, seed=seed, brief=recorded, timed=lacking) as checking:
            for _ in console.progress("check and time" if card else "check", work(checking), expected, str):
                pass
    outcomes = [outcome for step in steps for outcome in found[step.name]]
    if rows and rows.outcomes:
        rows.show()
    if rest:
        console.print_checks(outcomes, seed)
    if card and (wrong := {outcome.step.name for outcome in outcomes if not outcome.fine}):
        console.tell(f"[yellow]not timed, as not right: {', '.join(sorted(wrong))}[/]")
    console.say_shipped(recorded)
    return outcomes, measuring.latest(rows.outcomes) if rows else []


def charts(options: argparse.Namespace) -> int:
    code = redraw(options.fresh, options.record)
    if options.record:
        if device.gpu_count():
            draw_photo(False, options.fresh, shipped=True)
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
    for record in map(records.Record.load, records.files(folder)):
        summary = folder / f"{record.slug}.md"
        store.write(summary, pages.summary(record))
        charts = f"{store.shown(folder)}/charts/{record.slug}/"
        console.tell(f"{record.gpu_name}: charts in {charts}, tables in {store.shown(summary)}")
    return code


def _drawn_line(entry: tuple[pages.Draw, Answer]) -> str:
    """``results/nvidia-h200.json gemm: 2.1 s``."""
    unit, result = entry
    return f"{store.shown(Path(unit.name))} {unit.ladder}: {result.seconds or 0.0:.1f} s"


def draw_photo(without_gpu: bool, fresh: bool, shipped: bool = False) -> None:
    """Draw the photograph's feature maps, on the GPU or as traced, unless those that are there hold."""
    step = catalog.find(catalog.settings().photo)
    gpu = None if without_gpu else run.inspect_device()[0]
    name, slug = (gpu.name, gpu.slug) if gpu else ("the tracer", "tracer")
    photo = import_module(f"{catalog.LESSONS.name}.{step.lesson}.{_PHOTO}")
    key = cache.key([Path(str(photo.__file__)), step.path], name, gpu and gpu.driver, shipped)
    drawn = None if fresh else cache.get("photo", key, str)
    if drawn and Path(drawn).is_file():
        console.say_kept(1, "feature maps of the photograph")
        return
    given = step, without_gpu, name, arguments.folder(shipped) / "charts" / slug
    path = run.ask(f"{step.name} on the photograph", photo.draw, *given, on_gpu=not without_gpu)
    cache.put("photo", key, path)
    console.tell(f"feature maps of the photograph drawn: {store.shown(Path(path))}")


def build_book(_: argparse.Namespace) -> int:
    from common.report import book

    work = cache.FOLDER / "book"  # what is unchanged
    console.warn("building the book: up to a minute the first time")
    try:
        with store.locked(work):
            built = book.build(BOOK, work)
    except ModuleNotFoundError as error:
        name = (error.name or "Sphinx").partition(".")[0]
        raise ValueError(f"the book needs {name}, which is not installed: make book brings it") from None
    except book.BookError as error:
        console.blame(str(error))
        return WRONG
    console.tell(escape(f"{built} pages: open {BOOK / 'index.html'}"))
    return RIGHT
