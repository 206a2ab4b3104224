"""``train`` and ``compare``: the commands that this lesson has beside its steps."""

import base64
import os
from importlib import import_module
from pathlib import Path

from msgspec import structs, to_builtins
from rich.markup import escape

from common.catalog import catalog, device, store
from common.commands import arguments, console

from . import digits, record, shape

LESSON = Path(__file__).parents[1].name
OUT = catalog.ROOT / ".workbook" / "training"
CHECKPOINT = "checkpoint.npz"
TRACED = {"epochs": 5, "batch": 8, "rate": 0.2, "changes": False}  # what takes seconds there
TRACED_DIGITS = 16, 8  # to learn from, held out
PLANNED = {
    "seed": (int, "first weights, batches and changes of the digits follow from it (0)"),
    "epochs": (int, "how often each digit is seen (100)"),
    "batch": (int, "digits of a step (32)"),
    "rate": (float, "of the first step; it falls to 0 (0.05)"),
    "kernels": (str, "fused (default), or layered: the lessons' steps"),
}


def _parser(name, about, command):
    parser = arguments.Parser(prog=f"python -m lessons.{LESSON} {name}", description=about)
    parser.add_argument("--json", action="store_true", help="results as JSON on standard output")
    parser.set_defaults(command=command)
    return parser


def train_parser():
    parser = _parser("train", "Train the network on handwritten digits.", _train)
    for name, (kind, text) in PLANNED.items():
        parser.add_argument(f"--{name}", type=kind, help=text)
    parser.add_argument("--plain", action="store_true", help="launch each kernel by itself: no CUDA graph")
    parser.add_argument("--resume", type=Path, metavar="PATH", help="go on from this checkpoint")
    parser.add_argument("--out", type=Path, metavar="FOLDER", default=OUT, help="checkpoint and pictures go here")
    parser.add_argument("--sim", action="store_true", help="as if there were no GPU: a small network, a few digits")
    return parser


def compare_parser():
    return _parser("compare", "The network beside PyTorch's: gradients, losses, speed.", _compare)


COMMANDS = {"train": train_parser, "compare": compare_parser}


def _choose(traced):
    """The tracer or the GPU; before Numba is imported."""
    for name, value in device.PLAIN.items():
        os.environ.setdefault(name, value)
    if traced:
        import_module("common.trace.trace").Tracer().stay()


def _train(options):
    say = console.say(options)
    traced = options.sim or device.gpu_count() == 0
    if traced and not options.sim:
        say.print("no GPU was found: a small network learns a few digits, traced on the CPU")
    _choose(traced)
    from . import training

    given = {name: value for name in PLANNED if (value := getattr(options, name)) is not None}
    extents = shape.SMALL if traced else shape.MNIST
    if options.resume:
        if given.keys() - {"rate"}:
            raise ValueError(f"--resume {options.resume}: the run's own plan holds; only --rate may be another")
        plan, *state = training.load(options.resume, extents)
        given = {**structs.asdict(plan), **given}
    plan = store.convert({**(TRACED if traced else {}), **given}, training.Plan, "train")
    learned, held_out = digits.load(extents.first.H)
    if traced:
        learned, held_out = (part.first(n) for part, n in zip((learned, held_out), TRACED_DIGITS, strict=True))
    run = training.Run(plan, extents, learned, held_out, captured=not (traced or options.plain))
    if options.resume:
        run.resume(*state)
    kept = options.out / CHECKPOINT
    run.save(kept)  # a folder that cannot be written to is told before an epoch is trained
    again = f"python -m lessons.{LESSON} train --resume {store.shown(kept)}"
    say.print(f"a checkpoint after each epoch; to go on from it: {again}", soft_wrap=True, markup=False)

    def line(epoch):
        right = f"{100 * epoch.held_out_accuracy:.1f}% right"
        return f"epoch {len(run.history)}: loss {epoch.loss:.4f}, held out {epoch.held_out_loss:.4f}, {right}"

    left = range(len(run.history), plan.epochs)
    for _ in console.progress("epochs", run.epochs(), left, line, aside=options.json):
        run.save(kept)
    _finish(run, options, None if traced else device.current_gpu(), say)
    return console.RIGHT


def _finish(run, options, gpu, say):
    """Draw, record and say what came of it."""
    charts = import_module(f"lessons.{LESSON}.figures.charts")
    found = _trained(run, gpu)
    where = gpu.name if gpu else "the CPU, traced"
    drawn = charts.draw_run(found, where, options.out)
    store.write_json(options.out / "run.json", to_builtins(found))
    accuracy, seconds = found.history[-1].held_out_accuracy, sum(one.seconds for one in found.history)
    right = f"{100 * accuracy:.1f}% of {found.held_out:,} held-out digits are right ({len(found.mistakes)} wrong)"
    say.print(escape(f"{right}, after {seconds:.1f} s of training on {where}"), soft_wrap=True)
    say.print(f"drawn: {', '.join(map(store.shown, drawn))}", soft_wrap=True, markup=False)
    if gpu and run.plan == type(run.plan)() and not options.plain:
        say.print(f"recorded: {store.shown(record.change(gpu, found))}; `make charts` draws it", markup=False)
    if options.json:
        console.print_json(found)


def _trained(run, gpu):
    """The run's record."""
    run.look()
    held_out, plan = run.held_out, run.plan
    shown = zip(held_out.numbers.tolist(), held_out.labels.tolist(), run.answers().tolist(), strict=True)
    mistakes = [
        record.Mistake(
            number=number, label=label, said=said, pixels=base64.b64encode(held_out.images[i].tobytes()).decode()
        )
        for i, (number, label, said) in enumerate(shown)
        if said != label
    ]
    return record.Trained(
        data=digits.SOURCE, learned=len(run.learned), held_out=len(held_out), seed=plan.seed, batch=plan.batch,
        rate=plan.rate, momentum=plan.momentum, decay=plan.decay, kernels=plan.kernels, launches=run.launches,
        history=run.history, mistakes=mistakes, code=record.code(), run=record.run_now(gpu),
    )  # fmt: skip


def _compare(options):
    say = console.say(options)
    device.require_gpu("comparing with PyTorch")
    _choose(traced=False)
    from common.timing import peers

    from . import compare, torch_side

    if not peers.available():
        raise ValueError("the comparison needs PyTorch: pip install torch")
    gpu = device.current_gpu()
    torch_side.strict()
    for compared, said in compare.measure(gpu):
        say.print(said, soft_wrap=True, markup=False)
        path = record.change(gpu, compared)  # what is measured so far survives an interrupt
    say.print(f"recorded: {store.shown(path)}; `make charts` draws it", markup=False)
    if options.json:
        console.print_json(compared)
    return console.RIGHT
