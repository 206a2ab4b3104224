"""The command ``inspect``: what the compiler made of kernels."""

from __future__ import annotations

import argparse
import json

from msgspec import to_builtins
from rich.markup import escape

from common.commands import arguments, choosing, console, verdicts
from common.commands.console import RIGHT
from common.jobs import compiling, run
from common.records import records
from common.report import kerneltables, tables


def commands(known: arguments.Commands) -> None:
    text = "show what a kernel became: its registers, occupancy and hot loop, without a GPU"
    sub = known.add("inspect", _inspect, text)
    arguments.takes_steps(sub, "one; or two, to compare; with --record any")
    arguments.takes_preset(sub, "each ladder's")
    sub.add_argument("--cc", metavar="X.Y", help="compute capability (default: this GPU's, else 9.0)")
    show = sub.add_mutually_exclusive_group()
    show.add_argument("--ptx", action="store_const", const="ptx", dest="show", help="print the PTX")
    show.add_argument("--sass", action="store_const", const="sass", dest="show", help="print all machine code")
    text = "compile all steps, or those named, and write results/machine-code.json (for maintainers)"
    sub.add_argument("--record", action="store_true", help=text)


def _inspect(options: argparse.Namespace) -> int:
    if options.record:
        return _record(options)
    if len(options.steps) not in (1, 2):
        raise ValueError(f"inspect takes one STEP or two, and {len(options.steps)} are named")
    steps = choosing.one_or_two(options)
    pairs = choosing.pairs(steps, choosing.preset_of(steps, options.problem), every_preset=False, named=True)
    architecture = compiling.summary_architecture() if options.cc is None else choosing.architecture(options.cc)
    making = compiling.summaries(pairs, architecture, options.file, options.show)
    outcomes = list(console.quietly("compile", making, pairs))
    found = [(o.step.name, card) for o in outcomes for card in o.result.get("cards", [])]
    say = console.say(options)
    if options.json:
        results = [{"step": o.step.name, "problem": o.preset, **o.result} for o in outcomes]
        print(json.dumps(to_builtins({"architecture": architecture, "results": results}), indent=1))
    elif options.show:
        for name, card in found:
            print(f"// {kerneltables.title(name, card)}, compute capability {architecture}")
            text = card["text"]
            print(text if isinstance(text, str) else "\n".join(kerneltables.whole(text)))
    else:
        if len(outcomes) > 1 and found:
            say.print(kerneltables.side_by_side(found))
        for name, card in found:
            for part in kerneltables.full(name, card, listing=len(outcomes) == 1):
                say.print(part)
    for outcome in outcomes:
        for reason in outcome.reasons:
            console.complain(f"[bold red]error:[/] {outcome.step.name}: {escape(reason)}")
    return verdicts.exit_code(outcomes, asked=True)


def _record(options: argparse.Namespace) -> int:
    """Compile steps for one architecture at every preset, and write their machine code's record if all compile."""
    if options.cc or options.file or options.problem or options.show or options.json:
        raise ValueError("--record: takes steps alone")
    steps = choosing.chosen(options)
    choosing.require_shipped(steps)
    compiled = compiling.compile_steps(steps, (run.CODE_ARCHITECTURE,), True, every_preset=True)
    outcomes = list(console.progress("compile", compiled, steps, verdicts.compiled_line))
    verdicts.print_outcomes(tables.compiled(outcomes, (run.CODE_ARCHITECTURE,)), outcomes)
    code = verdicts.exit_code(outcomes, asked=True)
    if code == RIGHT:
        records.record_code(outcomes)
    else:
        console.complain("[yellow]nothing is recorded: not everything compiles[/]")
    return code
