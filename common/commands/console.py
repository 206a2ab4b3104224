"""What is said to whoever sits at the terminal: lines, complaints, progress, outcomes; and the exit codes."""

import argparse
import errno
import itertools
import json
import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from msgspec import to_builtins
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TimeElapsedColumn

from common.catalog import problems
from common.catalog.catalog import Step
from common.check import loading, plan, run
from common.edit import loop
from common.report import tables
from common.run.messages import Outcome
from common.timing import measuring
from common.timing.ceilings import Ceilings

RIGHT, WRONG, UNUSABLE, UNREAD = 0, 1, 2, 141
_WIDE = 110
Item = TypeVar("Item")


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError when nobody reads any more: rich would exit with the code of a wrong step."""
        raise BrokenPipeError(errno.EPIPE, "nobody reads this any more")


def discard(stream: Any) -> None:
    """Send what is still printed to ``stream`` nowhere: the interpreter flushes it as it ends."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say(options: argparse.Namespace | None = None) -> Console:
    """Where people read: standard output, or standard error beside JSON."""
    return _Console(stderr=bool(options and options.json), highlight=False)


def tell(*lines: str, options: argparse.Namespace | None = None) -> bool:
    """Print lines in rich's markup there, each unbroken; were there any?"""
    for line in lines:
        say(options).print(line, soft_wrap=True)
    return bool(lines)


def print_json(found: object) -> None:
    print(json.dumps(to_builtins(found), indent=1))


def complain(text: str) -> None:
    """Print a line in rich's markup on standard error, if anybody can be told."""
    with suppress(OSError):
        _Console(stderr=True, highlight=False).print(text, soft_wrap=True)


def warn(text: str) -> None:
    complain(f"[yellow]{escape(text)}[/]")


def blame(text: str) -> None:
    complain(f"[bold red]error:[/] {escape(text)}")


def say_kept(count: int, what: str) -> None:
    """Say how many results were reused because nothing they depend on has changed."""
    if count:
        tell(f"{what} that are as new as the code, and were kept: {count}")


def progress(
    what: str, items: Iterator[Item], expected: Sized, line: Callable[[Item], str] | None = None, aside: bool = False
) -> Iterator[Item]:
    """Yield ``items`` and say how far they are: on a terminal a bar with what came last, else a line for each, if
    there is a ``line``; on standard error where JSON has standard output (``aside``)."""
    bar = sys.stderr.isatty() and (aside or sys.stdout.isatty())
    out = _Console(stderr=aside, highlight=False)
    if line and not bar:
        out.print(f"{what}: {len(expected)} to do")
    columns = (*Progress.get_default_columns(), TimeElapsedColumn())  # it moves while a single item takes long
    with Progress(*columns, console=_Console(stderr=True), transient=True, disable=not bar) as shown:
        task = shown.add_task(what, total=len(expected))
        for item in items:
            said = escape(line(item)) if line else ""
            shown.update(task, advance=1, description=said or what)
            if said and not bar:
                out.print(said, soft_wrap=True)
            yield item


# --- outcomes ---


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
        tell(f"[yellow]left out for lack of memory: {said}[/]", options=options)


def say_shipped(shipped: dict[str, run.Shipped]) -> None:
    """How many verdicts are of the record, if any."""
    if shipped:
        newest = max(verdict.date for verdict in shipped.values())
        said = f"verdicts of the record (results/verdicts.json, {newest}): {len(shipped)}"
        whole = "right at the whole plan, and compiled for every architecture"
        here = "here the code ran at two shapes. `check STEP` runs the whole plan."
        tell(f"[dim]{said}, {whole}; {here}[/]")


def checked(steps: list[Step], outcomes: Iterator[Outcome], aside: bool = False) -> Iterator[Outcome]:
    """The outcomes of a check, step by step as they come; how far it is is said a step at a time."""
    grouped = (list(group) for _, group in itertools.groupby(outcomes, lambda outcome: outcome.step))
    for group in progress("check", grouped, steps, checked_line, aside):
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


def print_checks(outcomes: list[Outcome], seed: int | None = None, file: Path | None = None) -> None:
    """What came of a check, the ``seed`` of its random shapes and operands; of a ``file`` in a step's place."""
    if seed is not None:
        tell(f"[dim]random shapes and operands came from seed {seed}: --seed {seed} repeats them[/]")
    say().print(tables.checks(outcomes))
    tell(*loop.printed(outcomes), *loop.notes(outcomes))
    print_complaints(outcomes)
    first = {o.step.name: o for o in reversed(outcomes) if o.status in ("wrong", "crashed")}
    for name, one in first.items():
        if one.problem in plan.small_card(one.problem.ladder):
            continue  # `trace` has a large card, where its blocks do other work
        if block := re.search(r"of block \((\d+), (\d+), (\d+)\)", " ".join(fault.what for fault in one.faults)):
            command = f'python -m common trace {name} --shape "{one.problem}" --block {",".join(block.groups())}'
            command += f" --file {shlex.quote(str(file))}" if file else ""
            tell("    see every access of that block:", f"      {escape(command)}")


def print_times(outcomes: list[Outcome], ceilings: Ceilings, gpu: str) -> None:
    slow = [(step.name, preset) for step, preset in measuring.at_a_low_clock(outcomes)]
    for preset in dict.fromkeys(outcome.preset for outcome in outcomes):
        rows = [o for o in outcomes if o.preset == preset]
        say().print(tables.times(rows, ceilings, gpu, {name for name, where in slow if where == preset}))
        print_complaints(rows)
        for outcome in rows:
            said = [outcome.lacking] if outcome.lacking is not None else []
            if preset and outcome.status == "right" and outcome.problem != problems.preset(preset):
                why = f"too large for this card, or takes it more than {loading.LAUNCH_SECONDS:g} s"
                said.append(f"{outcome.problem} ran; all of {preset} is {why}")
            tell(*(f"[yellow]{outcome.step.name} on {preset}: {text}[/]" for text in said))
    say_left_out(outcomes)


def print_complaints(outcomes: list[Outcome]) -> None:
    """What is wrong and what to look at; what cannot be used goes to standard error."""
    for outcome, text in loop.told(outcomes, min(say().width, _WIDE)):
        (complain if outcome.status in ("refused", "unusable") else tell)(text)
