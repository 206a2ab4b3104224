"""The commands ``compile`` and ``inspect``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from msgspec import to_builtins
from rich.markup import escape

from common.commands import arguments, choosing, console, flow, verdicts
from common.jobs import run
from common.records import recording
from common.report import cardtables, tables


def commands(known: arguments.Commands) -> None:
    sub = known.add("compile", _compile, "compile every kernel, without a GPU")
    arguments.takes_steps(sub)
    sub.add_argument("--problem", metavar="PRESET", help="preset (default: one per ladder)")
    sub.add_argument("--cc", metavar="X.Y", action="append", help="compute capability (default: several)")
    sub.add_argument(
        "--machine-code", action="store_true", help="assemble, and count instructions (default: for 9.0)"
    )
    sub.add_argument("--record", action="store_true", help="write results/machine-code.json (implies --machine-code)")

    sub = known.add(
        "inspect", _inspect, "show what a kernel became: its registers, occupancy and hot loop, without a GPU"
    )
    sub.add_argument("step", metavar="STEP", help="step, experiment or exercise")
    sub.add_argument("other", nargs="?", metavar="STEP2", help="a second one, to set beside it")
    sub.add_argument("--file", type=Path, metavar="PATH", help="use this file in the one STEP's place")
    sub.add_argument("--problem", metavar="PRESET", help="preset (default: each ladder's)")
    sub.add_argument("--cc", metavar="X.Y", help="compute capability (default: this GPU's, else 9.0)")
    show = sub.add_mutually_exclusive_group()
    show.add_argument("--ptx", action="store_const", const="ptx", dest="show", help="print the PTX")
    show.add_argument("--sass", action="store_const", const="sass", dest="show", help="print all machine code")
    sub.add_argument("--json", action="store_true", help="results as JSON on standard output")


def _compile(options: argparse.Namespace) -> int:
    from common.machine_code import codegen

    steps = choosing.chosen(options)
    assemble = options.machine_code or options.record
    default = (run.CODE_ARCHITECTURE,) if assemble else codegen.ARCHITECTURES
    architectures = tuple(dict.fromkeys(map(choosing.architecture, options.cc or default)))
    if options.record:
        if architectures != default or options.file or options.problem:
            raise ValueError(f"--record: takes one --cc, {run.CODE_ARCHITECTURE}, no --file and no --problem")
        choosing.require_shipped(steps)
    pairs = choosing.pairs(steps, options.problem, every_preset=False, named=bool(options.steps))
    steps = [step for step, _ in pairs]
    compiling = run.compile_steps(steps, architectures, assemble, options.file, options.problem, options.record)
    outcomes = list(console.progress("compile", compiling, steps, flow.compiled, options.json))
    if options.json:
        print(json.dumps(to_builtins([{"step": o.step.name, **o.result} for o in outcomes]), indent=1))
    else:
        verdicts.print_outcomes(tables.compiled(outcomes, architectures, assemble), outcomes)
    for outcome in outcomes if not options.json else []:
        for item in outcome.result.get("kernels", []):
            if item["float64"]:
                console.say().print(f"[yellow]{item['kernel']} computes in float64: {escape(item['float64'][0])}[/]")
                break
    if options.record and all(o.status == "right" for o in outcomes):
        recording.record_code(outcomes)
    elif options.record:
        console.complain("[yellow]nothing is recorded: not everything compiles[/]")
    return verdicts.exit_code(outcomes, asked=True)


def _inspect(options: argparse.Namespace) -> int:
    options.steps = [options.step, *([] if options.other is None else [options.other])]
    steps = choosing.one_or_two(options)
    pairs = choosing.pairs(steps, choosing.preset_of(steps, options.problem), every_preset=False, named=True)
    architecture = run.card_architecture() if options.cc is None else choosing.architecture(options.cc)
    making = run.cards(pairs, architecture, options.file, options.show)
    outcomes = list(console.quietly("compile", making, pairs))
    found = [(o.step.name, card) for o in outcomes for card in o.result.get("cards", [])]
    say = console.say(options)
    if options.json:
        results = [{"step": o.step.name, "problem": o.preset, **o.result} for o in outcomes]
        print(json.dumps(to_builtins({"architecture": architecture, "results": results}), indent=1))
    elif options.show:
        for name, card in found:
            print(f"// {cardtables.title(name, card)}, compute capability {architecture}")
            text = card["text"]
            print(text if isinstance(text, str) else "\n".join(cardtables.whole(text)))
    else:
        if len(outcomes) > 1 and found:
            say.print(cardtables.side_by_side(found))
        for name, card in found:
            for part in cardtables.full(name, card, listing=len(outcomes) == 1):
                say.print(part)
    for outcome in outcomes:
        for reason in outcome.reasons:
            console.complain(f"[bold red]error:[/] {outcome.step.name}: {escape(reason)}")
    return verdicts.exit_code(outcomes, asked=True)
