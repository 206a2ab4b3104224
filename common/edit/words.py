"""Sentences for the terminal: what is wrong with an edited step and what to look at, how fast it is, its history."""

from __future__ import annotations

import textwrap
from datetime import datetime
from typing import Any

from rich.markup import escape
from rich.table import Table

from common.edit import loop
from common.edit.history import Event
from common.edit.loop import Stage
from common.explain.faults import Fault, cut
from common.machine_code import summaries
from common.records import records
from common.report import figures
from common.run.messages import Outcome, Paired, StepResult

_HASH_DIGITS = 8
_SHOWN = 2  # faults of one shape; what follows is mostly a consequence
_REASON_WIDTH = 60


def complaint(outcome: Outcome, shapes: int = 1, width: int = 100, suspicion: tuple[str, str] | None = None) -> str:
    """What is wrong with a step at a shape (and ``shapes`` - 1 more), at which line, and what to look at.

    ``suspicion``, a trace's finding and the command that shows it, closes the complaint. One cause is told once: the
    finding only where no fault has a line.
    """
    if outcome.elsewhere:  # at any shape
        return escape(f"{outcome.step.name} {outcome.message}")
    more = f" and {shapes - 1} more shape{'s' if shapes > 2 else ''}" if shapes > 1 else ""
    doing = ", compiled for" if outcome.only_compiled else " at"
    lines = [f"{outcome.step.name}{doing} {outcome.problem}{more}"]
    said = outcome.reasons
    if outcome.status == "crashed" and outcome.faults:  # its message gives way to the translation
        said = [f"{outcome.status}: {outcome.faults[0].what}"]
    lines += [f"  {line}" for line in said]
    for fault in outcome.faults[:_SHOWN] if outcome.status != "refused" else ():  # a refusal is no fault
        if outcome.status != "unusable" and not any(fault.what in line for line in said):
            lines += _wrapped(fault.what, "  ", width)
        lines += _pointer(fault, width)
    if suspicion:
        finding, command = suspicion
        if not any(fault.line for fault in outcome.faults[:_SHOWN]):
            lines += _wrapped(f"a trace finds {finding}", "  ", width)
        lines += ["    see every access of that block:", f"      {command}"]
    return escape("\n".join(lines))


def _pointer(fault: Fault, width: int) -> list[str]:
    """The fault's line, and what to look at."""
    lines = [f"    line {fault.line}: {fault.code}"] if fault.line else []
    return lines + _wrapped(f"look at: {fault.look_at}", "    ", width)


def _wrapped(text: str, indent: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False)


def told(
    outcomes: list[Outcome], width: int = 100, suspicions: dict[str, tuple[str, str]] | None = None
) -> list[tuple[Outcome, str]]:
    """A complaint for each different thing that is wrong, with the outcome that it shows.

    ``suspicions`` holds, by step, what closes the first complaint about it (:func:`complaint`).
    """
    left = dict(suspicions or {})
    groups: dict[tuple[Any, ...], list[Outcome]] = {}
    for outcome in outcomes:
        faults = tuple((fault.kind, fault.line) for fault in outcome.faults)
        for reason in outcome.reasons[:1]:
            # one cause gives other values at each shape
            kind = reason.split(":")[0]
            groups.setdefault((outcome.step.name, outcome.status, faults or kind), []).append(outcome)
    complaints = []
    for first, *rest in groups.values():
        suspicion = left.pop(first.step.name, None) if first.status in ("wrong", "crashed") else None
        complaints.append((first, complaint(first, 1 + len(rest), width, suspicion)))
    return complaints


def printed(outcomes: list[Outcome]) -> list[str]:
    """What each step prints at the first shape at which it prints: the first lines, and how many more there are."""
    lines = []
    for outcome in {one.step.name: one for one in reversed(outcomes) if one.prints}.values():
        shown = outcome.printed
        lines.append(f"{outcome.step.name} prints at {outcome.problem}:")
        lines += [f"  {cut(line, 200)}" for line in shown]
        if more := outcome.prints - len(shown):
            lines.append(f"  ... {more} more")
    return [escape(line) for line in lines]


def stage(step: str, found: Stage, best: Event | None = None) -> list[str]:
    """One stage of an edited step that did not fail, as lines to print."""
    one = found.outcomes[0]
    more: list[str] = []
    if found.name == loop.FIRST:
        lines = [_first(found.outcomes)]
    elif found.name == loop.CHECK:
        lines, more = _checked(found.outcomes)
    elif found.name == loop.CODE:
        lines = [f" on {one.preset}: {line}" for line in _machine_code(step, one)]
    else:
        lines = [f": {line}" for line in _pairs(one, best)]
    warnings = [fault for outcome in found.outcomes if outcome.status == "right" for fault in outcome.faults]
    for fault in warnings[:1]:
        more += [f"  [yellow]{escape(fault.what)}[/]", *(escape(line) for line in _pointer(fault, 100))]
    return [*(f"{step}{line}  [dim]{found.seconds:.1f} s[/]" for line in lines), *more]


def _first(outcomes: list[Outcome]) -> str:
    """Whether it compiles, with what it takes, and whether it is right at one shape."""
    compiled = [outcome for outcome in outcomes if outcome.kernels]
    declined = [outcome for outcome in outcomes if outcome.status == "refused"]
    if declined and not compiled:  # so nothing was built
        reason = declined[-1].message or ""
        return f": [yellow]refused at {declined[-1].problem}[/]: {escape(reason)}"
    what = [f"compiles{_resources(compiled[0])}" if compiled else "compiles"]
    what += [f"right at {one.problem}" for one in outcomes if one.right and one.status == "right"]
    return f": [green]{', '.join(what)}[/]"


def _checked(outcomes: list[Outcome]) -> tuple[list[str], list[str]]:
    """At how many shapes it is right, and whether it is sound; and why that could not be told, if so."""
    right, refused = (len({str(one.problem) for one in outcomes if one.status == s}) for s in ("right", "refused"))
    more = f", refused at {refused}" if refused else ""
    unseen = [one for one in outcomes if one.status == "unjudged" and not one.left_out]
    sound = "" if unseen else ", and sound"
    said = f"[green]right at {right} shapes{sound}{more}[/]" if right else f"[yellow]not judged{more}[/]"
    why = "whether it is sound was not judged whole"
    return [f": {said}"], [f"  [yellow]{why}[/]: {escape(one.message or '')}" for one in unseen[:1]]


def _resources(result: StepResult) -> str:
    kernel = loop.heaviest(result)
    if not kernel:
        return ""
    spilled = f", {kernel.stack_bytes} bytes of stack" if kernel.stack_bytes else ""
    shared = f", {kernel.shared_bytes} bytes shared" if kernel.shared_bytes else ""
    return f" for compute capability {kernel.architecture} ({kernel.registers} registers{spilled}{shared})"


def _machine_code(step: str, result: StepResult) -> list[str]:
    """Instructions for a multiply-add and registers, and what the shipped version needs; nothing if unknown."""
    kernel, shipped = loop.heaviest(result), records.main_kernel(records.load_code(), step)
    if not kernel:
        return []
    each = summaries.shown(loop.per_multiply_add(kernel))
    text = f"{each} instructions per multiply-add, {kernel.registers} registers"
    return [f"{text}; the shipped version {summaries.shown(loop.per_multiply_add(shipped))}" if shipped else text]


def _pairs(outcome: Outcome, best: Event | None) -> list[str]:
    """How an edited step did in turn with the shipped one, and with the best so far."""
    if outcome.pairs is None:
        return [f"[yellow]not timed[/]: {escape(str(outcome.message))}"]
    lines = []
    if "shipped" not in outcome.pairs:
        lines.append("the shipped version is not known: neither git nor .workbook has it")
    if outcome.timing is not None:
        ms = figures.milliseconds(outcome.time.median_ms)
        lines.append(f"{ms} ms on {outcome.preset}, {outcome.gpu}")
    for name, pair in outcome.pairs.items():
        mine, other = (figures.milliseconds(timing.median_ms) for timing in (pair.second, pair.first))
        if name == "shipped":
            where = f"{outcome.preset}, {outcome.gpu}"
            lines.append(f"[bold]{ratio(pair)}[/]: {mine} ms against {other} ms on {where}")
        elif best is not None:
            lines.append(f"{ratio(pair, f'your best so far, run {best.number}')}")
    return lines


def ratio(pair: Paired, other: str = "the shipped version") -> str:
    """``1.23x the shipped version (paired, p20-p80 1.21-1.25)``; says so where the two cannot be told apart."""
    spread = f"paired, p20–p80 {pair.ratio_p20:.2f}–{pair.ratio_p80:.2f}"
    same = abs(pair.ratio - 1) <= pair.ratio * pair.ratio_error
    note = ", no difference that can be told" if same else ""
    return f"{pair.ratio:.2f}x {other} ({spread}{note})"


def events(found: list[Event], present: dict[str, str], originals: dict[str, str], named: bool) -> Table:
    """The history, a row for each event, with the step's name if several are ``named``.

    ``present`` and ``originals`` map steps to the hash of the file as it is, and as it was shipped.
    """
    table = Table(*(["step"] if named else []), "N", "when", "source", "", "result")
    for column in table.columns[named:-1]:
        column.no_wrap = True
    if named:
        table.columns[0].overflow = "fold"
    for event in found:
        marks = ["now"] if present.get(event.step) == event.source else []
        marks += ["shipped"] if originals.get(event.step) == event.source and not event.helpers else []
        colour = {"right": "green", "passed": "green", "": "dim"}.get(event.verdict, "red")
        reason = textwrap.shorten(event.reason, _REASON_WIDTH, placeholder=" ...")
        what = [f"[{colour}]{escape(event.verdict or event.what)}[/]", _figure(event), escape(reason)]
        what += [f"with {name}.py {digest[:_HASH_DIGITS]}" for name, digest in event.helpers.items()]
        cells = [str(event.number), when(event), event.source[:_HASH_DIGITS], " ".join(marks)]
        table.add_row(*([event.step] if named else []), *cells, ": ".join(filter(None, what)))
    return table


def _figure(event: Event) -> str:
    """What was measured, in a few words."""
    if event.figures.ratio is not None:
        where = filter(None, (event.figures.preset, event.figures.device))
        return ", ".join([f"{event.figures.ratio:.2f}x the shipped version", *where])
    if event.figures.median_ms is not None:
        return f"{figures.milliseconds(event.figures.median_ms)} ms, {event.figures.preset or ''}"
    if event.figures.loop_per_fma is not None:
        return f"{summaries.shown(event.figures.loop_per_fma)} instructions per multiply-add"
    return ""


def when(event: Event) -> str:
    """The event's time on this machine's clock."""
    return datetime.fromisoformat(event.time.replace("Z", "+00:00")).astimezone().strftime("%m-%d %H:%M")
