"""Outcomes and traces on the terminal, and the exit codes that outcomes give."""

from __future__ import annotations

import argparse
import itertools
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.markup import escape

from common.catalog import problems
from common.catalog.catalog import Step
from common.check import loading, run
from common.commands import console
from common.commands.console import RIGHT, UNUSABLE, WRONG
from common.edit import words
from common.report import tables
from common.run.messages import Outcome
from common.timing import measuring
from common.timing.ceilings import Ceilings

_WIDE = 110


def say_seed(seed: int, drawn: bool = True) -> None:
    what = "random shapes" if drawn else "operands"
    console.tell(f"[dim]the {what} came from seed {seed}: --seed {seed} repeats them[/]")


def exit_code(outcomes: Iterable[Outcome], asked: bool) -> int:
    """What requires another GPU is no failure, nor what is left out; a refusal of a shape that was asked for is."""
    outcomes = [outcome for outcome in outcomes if not outcome.elsewhere]
    statuses = {outcome.status for outcome in outcomes if not outcome.left_out}
    if statuses & {"wrong", "crashed", "timed_out"}:
        return WRONG
    # a step that refuses every shape has shown nothing, nor has one that is left out at all
    shown = {o.step.name for o in outcomes if o.status != "refused" and not o.left_out}
    failed = statuses - {"right"} - (set() if asked else {"refused"})
    return UNUSABLE if failed or {o.step.name for o in outcomes} - shown else RIGHT


def say_left_out(outcomes: Iterable[Outcome], options: argparse.Namespace | None = None) -> None:
    """In one line what the card had no room for, if anything."""
    left = [outcome for outcome in outcomes if outcome.left_out]
    if left:
        needed, free = max((outcome.needed_bytes or 0, outcome.free_bytes or 0) for outcome in left)
        said = f"{len(left)}; {needed / 1e9:.1f} GB needed, {free / 1e9:.1f} free"
        console.tell(f"[yellow]left out for lack of memory: {said}[/]", options=options)


def say_shipped(shipped: dict[str, run.Shipped]) -> None:
    """How many verdicts are of the record, if any."""
    if shipped:
        newest = max(verdict.date for verdict in shipped.values())
        said = f"verdicts of the record (results/verdicts.json, {newest}): {len(shipped)}"
        whole = "right at the whole plan, and compiled for every architecture"
        here = "here the code ran at two shapes. `check STEP` runs the whole plan."
        console.tell(f"[dim]{said}, {whole}; {here}[/]")


def checked(steps: list[Step], outcomes: Iterator[Outcome], aside: bool = False) -> Iterator[Outcome]:
    """The outcomes of a check, step by step as they come; how far it is is said a step at a time."""
    grouped = (list(group) for _, group in itertools.groupby(outcomes, lambda outcome: outcome.step))
    for group in console.progress("check", grouped, steps, checked_line, aside):
        yield from group


def checked_line(outcomes: list[Outcome]) -> str:
    """``STEP: right at 5 shapes, 1.2 s``."""
    counts = Counter("left out" if outcome.left_out else outcome.status.replace("_", " ") for outcome in outcomes)
    said = ", ".join(f"{status} at {count} shape{'s' * (count > 1)}" for status, count in counts.items())
    return f"{outcomes[0].step.name}: {said}, {sum(one.seconds or 0.0 for one in outcomes):.1f} s"


def line(one: Outcome) -> str:
    """``STEP gemm-4096: right, 31.2 ms; 1.5 s``."""
    where, found = f" {one.preset}" if one.preset else "", one.status.replace("_", " ")
    median = f", {one.time.median_ms:.4g} ms" if one.timing is not None else ""
    return f"{one.step.name}{where}: {found}{median}; {one.seconds or 0.0:.1f} s"


def print_checks(outcomes: list[Outcome], file: Path | None = None) -> None:
    console.say().print(tables.checks(outcomes))
    console.tell(*words.printed(outcomes))
    print_complaints(outcomes)
    first = {o.step.name: o for o in reversed(outcomes) if o.status in ("wrong", "crashed")}
    for name, one in first.items():
        if block := re.search(r"of block \((\d+), (\d+), (\d+)\)", " ".join(fault.what for fault in one.faults)):
            command = f'python -m common trace {name} --shape "{one.problem}" --block {",".join(block.groups())}'
            command += f" --file {shlex.quote(str(file))}" if file else ""
            console.tell("    see every access of that block:", f"      {escape(command)}")


def print_times(outcomes: list[Outcome], ceilings: Ceilings, gpu: str) -> None:
    slow = [(step.name, preset) for step, preset in measuring.at_a_low_clock(outcomes)]
    for preset in dict.fromkeys(outcome.preset for outcome in outcomes):
        rows = [o for o in outcomes if o.preset == preset]
        console.say().print(tables.times(rows, ceilings, gpu, {name for name, where in slow if where == preset}))
        print_complaints(rows)
        for outcome in rows:
            said = [outcome.lacking] if outcome.lacking is not None else []
            if preset and outcome.status == "right" and outcome.problem != problems.preset(preset):
                why = f"too large for this card, or takes it more than {loading.LAUNCH_SECONDS:g} s"
                said.append(f"{outcome.problem} ran; all of {preset} is {why}")
            console.tell(*(f"[yellow]{outcome.step.name} on {preset}: {text}[/]" for text in said))
    say_left_out(outcomes)


def print_complaints(outcomes: list[Outcome]) -> None:
    """What is wrong and what to look at; what cannot be used goes to standard error."""
    for outcome, text in words.told(outcomes, min(console.say().width, _WIDE)):
        (console.complain if outcome.status in ("refused", "unusable") else console.tell)(text)
