"""``train`` and ``compare``: the commands that this lesson has beside its steps."""

import base64
import datetime
import itertools
import json
import os
import platform
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields, replace
from importlib import import_module
from pathlib import Path

from msgspec import to_builtins
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from common.catalog import catalog, device, sources, store
from common.commands import arguments, console
from common.records.entries import Run as Provenance

from . import record

LESSON = Path(__file__).parents[1].name
OUT = catalog.ROOT / ".workbook" / "training"
CHECKPOINT = "checkpoint.npz"
SAVED_EVERY = 1.0  # seconds
TRACED = {"epochs": 5, "batch": 8, "rate": 0.2, "changes": False}  # what takes seconds there
TRACED_DIGITS = 16, 8  # to learn from, held out
_AGAIN_SECONDS = 0.5  # a second Ctrl-C after that ends the program at once
_PACKAGES = ("numba", "numba-cuda", "numpy", "torch", "mlxtend")


def train_parser():
    """The options of ``train``."""
    parser = arguments.Parser(
        prog=f"python -m lessons.{LESSON} train", description="Train the network on handwritten digits."
    )
    _options(parser, "seed", "epochs", "batch", "rate")
    parser.add_argument("--kernels", metavar="KIND", help="fused (default), or layered: the lessons' steps")
    parser.add_argument("--plain", action="store_true", help="launch each kernel by itself: no CUDA graph")
    parser.add_argument("--resume", type=Path, metavar="PATH", help="go on from this checkpoint")
    parser.add_argument("--out", type=Path, metavar="FOLDER", default=OUT, help="checkpoint and pictures go here")
    parser.add_argument("--sim", action="store_true", help="as if there were no GPU: a small network, a few digits")
    parser.add_argument("--json", action="store_true", help="results as JSON on standard output")
    parser.set_defaults(command=_train, parser=parser)
    return parser


def compare_parser():
    """The options of ``compare``."""
    about = "The network beside PyTorch's: gradients, losses, speed."
    parser = arguments.Parser(prog=f"python -m lessons.{LESSON} compare", description=about)
    _options(parser, "seed")
    parser.add_argument("--batch", type=int, metavar="N", help="time batches of this size alone, and record nothing")
    parser.add_argument("--json", action="store_true", help="results as JSON on standard output")
    parser.set_defaults(command=_compare, parser=parser)
    return parser


COMMANDS = {"train": train_parser, "compare": compare_parser}
_MOST, _MOST_RATE = 2**63 - 1, 1e6
_HELP = {
    "seed": (int, "first weights, batches and changes of the digits follow from it (0)"),
    "epochs": (int, "how often each digit is seen (100)"),
    "batch": (int, "digits of a step (32)"),
    "rate": (float, "of the first step; it falls to 0 (0.05)"),
}
_LEAST = {"seed": 0, "epochs": 1, "batch": 1}


def _options(parser, *names):
    for name in names:
        kind, text = _HELP[name]
        parser.add_argument(f"--{name}", type=kind, metavar="N" if kind is int else "RATE", help=text)


def _given(options, kinds):
    """The plan's options that were given; raises ValueError at a value that none may have."""
    given = {f: getattr(options, f, None) for f in ("seed", "epochs", "batch", "rate", "kernels")}
    given = {name: value for name, value in given.items() if value is not None}
    for name, least in _LEAST.items():
        if given.get(name, least) < least:
            raise ValueError(f"--{name} {given[name]}: must be at least {least}")
        if given.get(name, least) > _MOST:
            raise ValueError(f"--{name} {given[name]}: must be at most {_MOST}")
    if not 0 < given.get("rate", 1.0) < _MOST_RATE:
        raise ValueError(f"--rate {given['rate']}: must be above 0 and below {_MOST_RATE:g}")
    if given.get("kernels", kinds[0]) not in kinds:
        raise ValueError(f"--kernels {given['kernels']!r}: must be one of {', '.join(kinds)}")
    return given


def _module(name):
    return import_module(f".{name}", __package__)


def _train(options):
    say = console.say(options)
    traced = options.sim or device.gpu_count() == 0
    if traced and not options.sim:
        say.print("no GPU was found: a small network learns a few digits, traced on the CPU")
    _choose(traced)
    digits, shapes, plans, training = (_module(name) for name in ("digits", "shape", "plan", "training"))
    given = _given(options, plans.KINDS)
    shape = shapes.SMALL if traced else shapes.MNIST
    if options.resume:
        plan = training.planned(options.resume, shape, given)
    else:
        plan = plans.Plan(**{**(TRACED if traced else {}), **given})
    learned, held_out = digits.load(shape.SIZE)
    if traced:
        learned, held_out = (part.first(n) for part, n in zip((learned, held_out), TRACED_DIGITS, strict=True))
    run = training.Run(plan, shape, learned, held_out, captured=not (traced or options.plain))
    kept = options.out / CHECKPOINT
    if options.resume:
        run.resume(options.resume, given)
    if kept.exists() and not (options.resume and kept.samefile(options.resume)):
        say.print(f"the checkpoint that was there is kept: {_named(_set_aside(kept))}", soft_wrap=True, markup=False)
    run.save(kept)  # a folder that cannot be written to is told before an epoch is trained
    code = _learn(run, kept, say, training)
    if code == console.RIGHT:
        _finish(run, options, traced, say)
    return code


def _set_aside(kept):
    """Give a checkpoint the first name that is free: it may be of a run that is to be gone on with."""
    names = (f"before-{kept.stem}{f'-{number}' if number > 1 else ''}{kept.suffix}" for number in itertools.count(1))
    aside = next(path for path in map(kept.with_name, names) if not path.exists())
    return kept.rename(aside)


def _choose(traced):
    """The tracer or the GPU; before Numba is imported."""
    for name, value in device.PLAIN.items():
        os.environ.setdefault(name, value)
    if traced:
        import_module("common.trace.trace").Tracer().stay()


def _learn(run, kept, say, training):
    """Train what is left; the exit code. Whatever happens, the checkpoint says how far it came."""
    saved = time.monotonic()
    again = f"python -m lessons.{LESSON} train --resume {_named(kept)}"
    with _until_signal() as came, _shown(run, say) as (step, line):

        def ended(epoch):
            nonlocal saved
            line(epoch)
            if run.done or time.monotonic() - saved > SAVED_EVERY:
                run.save(kept)
                saved = time.monotonic()

        try:
            run.train(stop=lambda: bool(came), on_step=step, on_epoch=ended)
        except training.DivergedError as error:
            run.save(kept)
            raise ValueError(f"{error}: {again} --rate {run.plan.rate / 2:g}") from None
        run.save(kept)
    if run.done:
        return console.RIGHT
    where = f"after epoch {run.epoch}, step {run.step} of {run.steps}" if run.step else f"after epoch {run.epoch}"
    say.print(f"stopped {where}; this goes on to the same bits:\n  {again}", soft_wrap=True, markup=False)
    return 128 + came[0]


def _named(path):
    """The path as it is typed in this folder."""
    with suppress(ValueError):
        return path.resolve().relative_to(Path.cwd()).as_posix()
    return path


@contextmanager
def _until_signal():
    """While open, Ctrl-C or an end that is asked for is noted; a second one, a moment later, is not waited with."""
    came, moments = [], []

    def note(number, _):
        if came and time.monotonic() - moments[0] > _AGAIN_SECONDS:
            raise KeyboardInterrupt
        came.append(number)
        moments.append(time.monotonic())

    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _shown(run, say):
    """Two functions that show a step and an epoch: a bar on a terminal, else a line for each epoch."""

    def text(epoch):
        accuracy = 100 * epoch.held_out_accuracy
        return f"loss {epoch.loss:.4f}, held out {epoch.held_out_loss:.4f}, {accuracy:.1f}% right"

    def line(epoch):
        say.print(f"epoch {run.epoch} of {run.plan.epochs}: {text(epoch)}, {epoch.seconds:.2f} s")

    if not sys.stderr.isatty():
        yield (lambda: None), line
        return
    epoch, said = (
        TextColumn(f"{before}{{task.fields[{name}]}}") for before, name in (("epoch ", "epoch"), ("", "text"))
    )
    columns = epoch, BarColumn(), MofNCompleteColumn(), said, TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        done, total = run.epoch * run.steps + run.step, run.plan.epochs * run.steps
        last = text(run.history[-1]) if run.history else ""
        task = bar.add_task("", total=total, completed=done, epoch=run.epoch + 1, text=last)

        def ended(epoch):
            bar.update(task, epoch=min(run.epoch + 1, run.plan.epochs), text=text(epoch))

        yield (lambda: bar.advance(task)), ended


def _finish(run, options, traced, say):
    """Draw, record and say what came of it."""
    trainingcharts = import_module(f"lessons.{LESSON}.figures.charts")

    gpu = None if traced else device.current_gpu()
    found = _trained(run, gpu)
    where = gpu.name if gpu else "the CPU, traced"
    drawn = trainingcharts.draw_run(found, where, options.out)
    store.write_json(options.out / "run.json", to_builtins(found))
    last = found.history[-1]
    seconds = sum(one.seconds for one in found.history)
    said = (
        f"{100 * last.held_out_accuracy:.1f}% of {found.held_out:,} held-out digits are right ({len(found.mistakes)} "
        f"wrong), after {seconds:.1f} s of training on {where}"
    )
    say.print(escape(said), soft_wrap=True)
    say.print(f"drawn: {', '.join(str(_named(path)) for path in drawn)}", soft_wrap=True, markup=False)
    ordinary = all(getattr(run.plan, f.name) == f.default for f in fields(run.plan))
    if gpu and ordinary and not options.plain:
        path = record.change(gpu, found)
        say.print(f"recorded: {_named(path)}; `make charts` draws it", markup=False)
    if options.json:
        print(json.dumps(to_builtins(found)))


def _trained(run, gpu):
    """The run's record."""
    run.look()
    answers, held_out, plan = run.answers(), run.held_out, run.plan
    wrong = [i for i in range(len(held_out)) if answers[i] != held_out.labels[i]]
    mistakes = [
        record.Mistake(
            number=int(held_out.numbers[i]), label=int(held_out.labels[i]), said=int(answers[i]),
            pixels=base64.b64encode(held_out.images[i].tobytes()).decode(),
        )
        for i in wrong
    ]  # fmt: skip
    return record.Trained(
        data=_module("digits").SOURCE, learned=len(run.learned), held_out=len(held_out), seed=plan.seed,
        batch=plan.batch, rate=plan.rate, momentum=plan.momentum, decay=plan.decay, kernels=plan.kernels,
        launches=run.launches,
        history=[record.Epoch(**asdict(one)) for one in run.history], mistakes=mistakes,
        code=record.code(),
        run=_provenance(gpu),
    )  # fmt: skip


def _provenance(gpu):
    now = datetime.datetime.now(datetime.timezone.utc)
    return Provenance(
        date=now.date().isoformat(), driver=gpu.driver if gpu else "", cuda=gpu.cuda if gpu else "",
        packages=sources.versions(_PACKAGES), python=platform.python_version(),
    )  # fmt: skip


@contextmanager
def _fitting(batch):
    """Raise ValueError in the place of what NumPy, the driver or PyTorch say where memory is short."""
    try:
        yield
    except Exception as error:
        if isinstance(error, MemoryError) or "out of memory" in str(error).lower().replace("_", " "):
            raise ValueError(f"--batch {batch}: must be less: there is not memory enough for all networks") from None
        raise


def _compare(options):
    say = console.say(options)
    device.require_gpu("comparing with PyTorch")
    _choose(traced=False)
    torch_side = _module("torch_side")
    if not torch_side.available():
        raise ValueError("the comparison needs PyTorch: pip install torch")
    given = _given(options, ("fused",))
    compare, digits, shapes = _module("compare"), _module("digits"), _module("shape")
    plan = replace(compare.DEFAULT, seed=given.get("seed", compare.DEFAULT.seed))
    shape, (learned, _) = shapes.MNIST, digits.load()
    kept = not options.batch and "seed" not in given
    if options.batch:
        compare.require_room(shape, options.batch, min(device.free_bytes(), device.memory_for_a_child(gpu=True)))
    with torch_side.strict():
        losses, errors = compare.losses(plan, shape, learned)
        compared = record.Compared(
            batch=plan.batch, rate=plan.rate, library=compare.library(), losses=losses, gradients=errors, speeds=[],
            code=record.code(), run=_provenance(device.current_gpu()),
        )  # fmt: skip
        for name, mine in errors.items():
            said = f"gradients within {max(mine.values()):.1e} of PyTorch's, losses of {compare.STEPS} steps within"
            say.print(f"{name}: {said} {compared.apart(name):.1e}", soft_wrap=True)
        say.print(f"{record.DOUBLE}: losses within {compared.apart(record.DOUBLE):.1e}")
        for batch in [options.batch] if options.batch else compare.BATCHES:
            with _fitting(batch):
                new = compare.speeds(plan, shape, learned, batch)
            compared.speeds += new
            times = ", ".join(f"{one.name} {1e3 * one.timing.median_ms:.0f} µs" for one in new)
            say.print(f"batch {batch}: {times}", soft_wrap=True, markup=False)
            if kept:  # what is measured so far survives an interrupt
                path = record.change(device.current_gpu(), compared)
    if kept:
        say.print(f"recorded: {_named(path)}; `make charts` draws it", markup=False)
    if options.json:
        print(json.dumps(to_builtins(compared)))
    return console.RIGHT
