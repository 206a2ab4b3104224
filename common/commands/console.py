"""What is said to whoever sits at the terminal: lines, complaints, progress, outcomes and traces; and the exit codes
that outcomes give.
"""

from __future__ import annotations

import argparse
import errno
import itertools
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from msgspec import to_builtins
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from common.catalog import catalog, problems
from common.catalog.catalog import Step
from common.check import loading, run
from common.edit import words
from common.explain.faults import cut
from common.report import tables, traces
from common.report.table import Table
from common.run.messages import Outcome
from common.timing import peers, timing
from common.timing.ceilings import Ceilings
from common.trace.messages import Traced

RIGHT, WRONG, UNUSABLE, UNREAD = 0, 1, 2, 141
Item = TypeVar("Item")
Written = TypeVar("Written")


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


def print_json(found: object) -> None:
    """Print what was found on standard output, as JSON."""
    print(json.dumps(to_builtins(found), indent=1))


def complain(text: str) -> None:
    """Print a line on standard error, if anybody can be told."""
    try:
        _Console(stderr=True, highlight=False).print(text, soft_wrap=True)
    except OSError:
        discard(sys.stderr)


def tried(action: Callable[[], Written]) -> Written | None:
    """What ``action`` writes beside the verdicts; if that fails, it is said and None is returned."""
    try:
        return action()
    except (OSError, ValueError) as error:
        complain(f"[yellow]not kept: {escape(str(error))}[/]")
        return None


def say_kept(count: int, one: str, many: str) -> None:
    """Say how many results were reused because nothing they depend on has changed."""
    if count:
        is_are, what = ("is as new as its", one) if count == 1 else ("are as new as their", many)
        was = "was" if count == 1 else "were"
        say().print(f"{count} {what} {is_are} code and {was} kept")


def say_libraries() -> None:
    """Say how to get the vendor's libraries to compare with, where they are not installed."""
    if not peers.available():
        say().print(peers.HOW_TO_GET)


def progress(
    what: str,
    items: Iterator[Item],
    expected: Sequence[Any],
    line: Callable[[Item], str] | None = None,
    aside: bool = False,
) -> Iterator[Item]:
    """Yield ``items`` and say how far they are: on a terminal a bar, with what is next and the time left, else a line
    for each, if there is a ``line``.

    Lines go to standard output, or to standard error where JSON has that (``aside``).
    """
    stream = sys.stderr if aside else sys.stdout
    if sys.stderr.isatty() and (aside or stream.isatty()):
        yield from _with_bar(what, items, expected)
        return
    out = _Console(stderr=aside, highlight=False)
    out.print(f"{what}: {len(expected)} to do")
    for item in items:
        if line:
            out.print(escape(line(item)), soft_wrap=True)
        yield item


def _with_bar(what: str, items: Iterator[Item], expected: Sequence[Any]) -> Iterator[Item]:
    times = TimeElapsedColumn(), TimeRemainingColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *times)
    names = [_name(one) for one in expected]
    with Progress(*columns, console=_Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"{what} {names[0] if names else ''}", total=len(expected))
        for number, item in enumerate(items, 1):
            bar.update(task, advance=1, description=f"{what} {names[number] if number < len(names) else ''}")
            yield item


def _name(one: Any) -> str:
    """What is done, as the bar names it: a step, a step and its preset, or the name itself."""
    first = one[0] if isinstance(one, tuple) else one
    return escape(str(getattr(first, "name", first if isinstance(first, str) else "")))


def quietly(what: str, items: Iterator[Item], expected: Sequence[Any]) -> Iterator[Item]:
    """As :func:`progress`, for what takes seconds: without a terminal nothing is said."""
    return progress(what, items, expected) if sys.stderr.isatty() and sys.stdout.isatty() else items


# --- outcomes and traces ---

_SUSPECTS = 3  # failed steps that are traced for the reason
_WIDE = 110


def say_seed(seed: int, drawn: bool = True) -> None:
    what = "random shapes" if drawn else "operands"
    say().print(f"[dim]the {what} came from seed {seed}: --seed {seed} repeats them[/]")


def exit_code(outcomes: Iterable[Outcome], asked: bool) -> int:
    """What a program says of outcomes; what requires another GPU is no failure, nor what is left out.

    A refusal of a shape that was asked for is.
    """
    outcomes = [outcome for outcome in outcomes if not outcome.elsewhere]
    statuses = {outcome.status for outcome in outcomes if not outcome.left_out}
    if statuses & {"wrong", "crashed", "timed_out"}:
        return WRONG
    # a step that refuses every shape has shown nothing, nor has one that is left out at all
    shown = {o.step.name for o in outcomes if o.status != "refused" and not o.left_out}
    failed = statuses - {"right"} - (set() if asked else {"refused"})
    return UNUSABLE if failed or {o.step.name for o in outcomes} - shown else RIGHT


def say_left_out(outcomes: Iterable[Outcome], aside: bool = False) -> None:
    """In one line what the card had no room for, if anything."""
    left = [outcome for outcome in outcomes if outcome.left_out]
    if not left:
        return
    needed, free = max((outcome.needed_bytes or 0, outcome.free_bytes or 0) for outcome in left)
    large = all(max(map(math.prod, outcome.problem.shapes)) > 2**31 for outcome in left)
    what = "arrays beyond 2^31 elements were not looked for" if large else f"{len(left)} were left out"
    said = f"{needed / 1e9:.1f} GB are needed, {free / 1e9:.1f} are free"
    if aside:
        complain(f"[yellow]{what}: {said}[/]")
    else:
        say().print(f"[yellow]{what}: {said}[/]", soft_wrap=True)


def say_shipped(shipped: dict[str, run.Shipped]) -> None:
    """How many verdicts are of the record, if any."""
    if not shipped:
        return
    days = sorted({verdict.date for verdict in shipped.values()})
    dates = " to ".join(days[:: max(1, len(days) - 1)])
    verdicts = f"{len(shipped)} verdict{'s are' if len(shipped) > 1 else ' is'}"
    say().print(
        f"[dim]{verdicts} of the record (results/verdicts.json, {dates}: right at the whole plan, and compiled for "
        "every architecture); here the code ran at two shapes. `check STEP` runs the whole plan.[/]",
        soft_wrap=True,
    )


def checked(steps: list[Step], outcomes: Iterator[Outcome], aside: bool = False) -> Iterator[Outcome]:
    """The outcomes of a check, step by step as they come; how far it is is said a step at a time."""
    grouped = (list(group) for _, group in itertools.groupby(outcomes, lambda outcome: outcome.step))
    for group in progress("check", grouped, steps, _checked_line, aside):
        yield from group


def _checked_line(outcomes: list[Outcome]) -> str:
    """``STEP: right at 5 shapes, 1.2 s``."""
    counts = Counter("left out" if outcome.left_out else outcome.status for outcome in outcomes)
    seconds = sum(outcome.seconds or 0.0 for outcome in outcomes)
    parts = [f"{status.replace('_', ' ')} at {count} shape{'s' * (count > 1)}" for status, count in counts.items()]
    return f"{outcomes[0].step.name}: {', '.join(parts)}, {seconds:.1f} s"


def timed_line(outcome: Outcome) -> str:
    """``gemm-4096: STEP 31.2 ms, measured in 1.5 s``."""
    right = outcome.status == "right"
    found = f"{outcome.time.median_ms:.4g} ms" if right else outcome.status.replace("_", " ")
    return f"{outcome.preset}: {outcome.step.name} {found}, measured in {outcome.seconds or 0.0:.1f} s"


def measured_line(entry: tuple[str, Any]) -> str:
    """A line for what :func:`common.timing.measuring.measure` yields: of a step, a library or the ceilings."""
    kind, found = entry
    if kind == "step":
        return timed_line(found)
    if kind == "ceilings":
        return "the GPU's ceilings, measured"
    preset, result = found
    return f"{preset}: libraries, measured in {result.seconds or 0.0:.1f} s"


def compiled_line(outcome: Outcome) -> str:
    """``STEP: 1 kernel compiled, 0.9 s``."""
    count = len({entry["kernel"] for entry in outcome.kernels})
    what = f"{count} kernel{'s' * (count != 1)} compiled" if outcome.status == "right" else outcome.status
    return f"{outcome.step.name}: {what.replace('_', ' ')}, {outcome.seconds or 0.0:.1f} s"


def print_checks(outcomes: list[Outcome], file: Path | None = None) -> None:
    say().print(tables.checks(outcomes))
    for line in words.printed(outcomes):
        say().print(line, soft_wrap=True, highlight=False)
    first = {o.step.name: o for o in reversed(outcomes) if o.status in ("wrong", "crashed")}
    found = {}
    for name, one in list(first.items())[:_SUSPECTS]:
        told = " ".join(fault.what for fault in one.faults)
        if suspicion := traces.suspicion(one.step, one.problem, file, told):
            found[name] = suspicion
    print_complaints(outcomes, found)


def print_times(outcomes: list[Outcome], ceilings: Ceilings, gpu: str) -> None:
    out = say()
    fp32 = [o for o in outcomes if o.status == "right" and not catalog.on_tensor_cores(o.step, o.problem)]
    behind = timing.slow([o.time.sm_mhz for o in fp32])
    slow = [(o.step.name, o.preset) for o, is_slow in zip(fp32, behind, strict=True) if is_slow]
    for preset in dict.fromkeys(outcome.preset for outcome in outcomes):
        rows = [o for o in outcomes if o.preset == preset]
        slow_here = {name for name, where in slow if where == preset}
        print_outcomes(tables.times(rows, ceilings, gpu, slow_here), rows)
        for outcome in rows:
            if outcome.preset and outcome.status == "right" and outcome.problem != problems.preset(outcome.preset):
                why = f"too large for this card, or takes it more than {loading.LAUNCH_SECONDS:g} s"
                out.print(
                    f"[yellow]{outcome.step.name}: {outcome.problem} ran; all of {preset} is {why}[/]", soft_wrap=True
                )
            if outcome.lacking is not None:
                out.print(f"[yellow]{outcome.step.name} on {preset}: {outcome.lacking}[/]", soft_wrap=True)
    say_left_out(outcomes)


def print_outcomes(table: Table, outcomes: list[Outcome]) -> None:
    """A table, then what is wrong, each reason on lines of its own."""
    say().print(table)
    print_complaints(outcomes)


def print_complaints(outcomes: list[Outcome], suspicions: dict[str, tuple[str, str]] | None = None) -> None:
    """What is wrong and what to look at; what cannot be used goes to standard error.

    ``suspicions`` are what a trace found of each step's first failure (:func:`common.report.traces.suspicion`).
    """
    out = say()
    for outcome, text in words.told(outcomes, min(out.width, _WIDE), suspicions):
        if outcome.status in ("refused", "unusable"):
            complain(text)
        else:
            out.print(text, soft_wrap=True)


def print_trace(step: Step, problem: problems.Problem, found: Traced, usual: bool) -> None:
    out = say()
    out.print(f"{step.name} at {problem}")
    for kernel in found.kernels:
        for table in traces.traced(kernel):
            out.print(table)
        for row in traces.pipeline(kernel, out.width):
            out.print(escape(row), soft_wrap=True, highlight=False)
        for line in kernel.printed:
            out.print(f"  prints {escape(cut(line, 200))}", soft_wrap=True, highlight=False)
        if more := kernel.prints - len(kernel.printed):
            out.print(f"  ... {more} more")
        for sentence in traces.sentences(kernel):
            out.print(escape(sentence), soft_wrap=True)
    faults = [fault for kernel in found.kernels for fault in kernel.faults]
    for fault in faults:
        text = f"[bold red]{escape(traces.fault_sentence(fault))}[/]\n    {escape(fault.code)}"
        out.print(text, soft_wrap=True)
    if not faults:
        out.print(f"[green]No fault[/] in what was traced: {traces.NO_FAULT}.", soft_wrap=True)
        if usual:  # the shape is a multiple of the tiles
            ragged = problems.RAGGED[step.ladder][0]
            out.print(f'Guards are tested at a shape that tiles do not divide: --shape "{ragged}"', soft_wrap=True)
