"""Commands that work through steps: ``list``, ``check``, ``time``, ``diff``, ``ship``; ``charts`` and ``book``."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.markup import escape

from common.catalog import cache, catalog, device, lessontext, shipped, sources, store
from common.check import compiling, plan, run
from common.commands import arguments, console, edits
from common.commands.console import RIGHT, WRONG
from common.machine_code import codegen
from common.records import records
from common.report import pages, tables
from common.run.messages import Answer
from common.timing import measuring

BOOK = catalog.ROOT / ".workbook" / "book"
_PHOTO = "figures/photo.py"  # of the lesson whose step convolves the photograph


def show_list(options: argparse.Namespace) -> None:
    steps = catalog.steps()
    if options.json:
        console.print_json([step.as_dict() for step in steps])
    else:
        console.say().print(tables.steps(steps))


def check(options: argparse.Namespace) -> int:
    if options.seed is not None and not 0 <= options.seed < 2**31:
        raise ValueError(f"--seed {options.seed}: must be an integer from 0 to {2**31 - 1}")
    seed = plan.new_seed() if options.seed is None else options.seed
    if options.record:
        return _record_verdicts(options, seed)
    steps = arguments.chosen(options)
    if options.full and options.shape is not None:
        raise ValueError("--full has shapes of its own: it cannot be given with --shape")
    shape = None
    if options.shape is not None:
        shape = arguments.shape_of(steps, options.shape, options.sim or not device.gpu_count())
    without_gpu = arguments.without_gpu(options.sim, options)
    edits.keep([] if options.file else steps)
    checking = run.check_steps(steps, without_gpu, shape, options.file, seed, full=options.full)
    outcomes = list(console.checked(steps, checking, options.json))
    code = console.exit_code(outcomes, shape is not None)
    if options.json:
        results = [{"step": o.step.name, **o.told(), "shape": o.problem.shape()} for o in outcomes]
        engine = "tracer" if without_gpu else "gpu"
        console.print_json({"device": engine, "right": code == RIGHT, "seed": seed, "results": results})
    else:
        console.print_checks(outcomes, seed, options.file)
    console.say_left_out(outcomes, options)
    return code


def _record_verdicts(options: argparse.Namespace, seed: int) -> int:
    """Check steps at the whole plan and compile them for every architecture; ship the verdicts of those right."""
    arguments.refuse(options, "--record", "file", "shape", "full", "json")
    steps = [catalog.find(name) for name in options.steps] or catalog.everything()
    if small := device.small_card():
        raise ValueError(f"--record: verdicts are of {device.USUAL_CARD}, and this one has the limits of {small}")
    found = list(console.checked(steps, run.check_steps(steps, True, seed=seed, compiled=False)))
    coming = compiling.compile_steps(steps, codegen.ARCHITECTURES, False)
    outcomes = [*found, *console.progress("compile", coming, steps, console.line)]
    wrong = {outcome.step for outcome in outcomes if not outcome.fine}
    run.ship({step: [one for one in found if one.step == step] for step in steps if step not in wrong})
    console.print_checks(outcomes, seed)
    return console.exit_code(outcomes, asked=False)


def time(options: argparse.Namespace) -> int:
    device.require_gpu("timing")
    steps = arguments.chosen(options)
    pairs = arguments.pairs(steps, options.problem, named=bool(options.steps))
    gpu, ceilings = measuring.measure_device()
    edits.keep([] if options.file else steps)
    times = measuring.time_steps(pairs, options.file)
    outcomes = measuring.latest(console.progress("time", times, pairs, console.line, options.json))
    if options.json:
        results: list[dict[str, object]] = []
        for one in outcomes:
            results.append({"step": one.step.name, "problem": one.preset, **one.told()})
            if one.status != "right":
                continue
            if figures := records.derive(one.problem, one.time.median_ms, ceilings, one.step.precision):
                results[-1] |= {
                    key: getattr(figures, key) for key in ("gflops", "gbs", "floor_ms", "percent_of_floor")
                }
        console.print_json({"gpu": gpu, "slug": gpu.slug, "ceilings": ceilings, "results": results})
    else:
        console.print_times(outcomes, ceilings, gpu.name)
    return console.exit_code(outcomes, asked=True)


def diff(options: argparse.Namespace) -> None:
    first = catalog.find(options.old)
    if options.new is None and first.builds_on is None:
        raise ValueError(f"{first.name} starts its ladder: name a second step to compare it with")
    old, new = (first, catalog.find(options.new)) if options.new else (catalog.find(str(first.builds_on)), first)
    colours, lines = {"+": "green", "-": "red", "@": "cyan"}, list(sources.difference(old, new))
    for line in lines:
        console.say().print(escape(line), style=colours.get(line[0]), soft_wrap=True)
    removed, added = (sum(line[0] == sign for line in lines) for sign in "-+")
    console.tell(f"{removed} lines removed, {added} added; docstrings, indentation and imported code are left out")


def ship(_: argparse.Namespace) -> None:
    console.tell(f"written: {store.shown(shipped.note())}")


# --- charts, tables and the book ---


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
    for record in records.all_records(folder):
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
    step = catalog.find(lessontext.read(catalog.LESSONS).photo)
    gpu = None if without_gpu else run.inspect_device()[0]
    name, slug = (gpu.name, gpu.slug) if gpu else ("the tracer", "tracer")
    script = catalog.LESSONS / step.lesson / _PHOTO
    key = cache.key([script, step.path], name, gpu and gpu.driver, shipped)
    drawn = None if fresh else cache.get("photo", key, str)
    if drawn and Path(drawn).is_file():
        console.say_kept(1, "feature maps of the photograph")
        return
    path = catalog.load_file(script).draw(step, without_gpu, name, arguments.folder(shipped) / "charts" / slug)
    cache.put("photo", key, str(path))
    console.tell(f"feature maps of the photograph drawn: {store.shown(path)}")


def build_book(_: argparse.Namespace) -> int:
    try:
        from common.book import book  # brings Sphinx
    except ModuleNotFoundError as error:
        name = (error.name or "Sphinx").partition(".")[0]
        raise ValueError(f"the book needs {name}, which is not installed: make book brings it") from None
    work = cache.FOLDER / "book"  # what is unchanged
    try:
        with store.locked(work):
            built = book.build(BOOK, work)
    except book.BookError as error:
        console.blame(str(error))
        return WRONG
    console.tell(escape(f"{built} pages: open {BOOK / 'index.html'}"))
    return RIGHT
