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
from common.records import records
from common.report import figures
from common.run.messages import Outcome, Paired

_SHOWN = 2  # faults of one shape; what follows is mostly a consequence
_REASON_WIDTH = 60

# --- what is wrong ---


def told(outcomes: list[Outcome], width: int = 100) -> list[tuple[Outcome, str]]:
    """A complaint for each different thing that is wrong, with the outcome that it shows."""
    groups: dict[tuple[Any, ...], list[Outcome]] = {}
    for outcome in outcomes:
        if reasons := outcome.reasons:
            # one cause gives other values at each shape
            kind = tuple((fault.kind, fault.line) for fault in outcome.faults) or reasons[0].split(":")[0]
            groups.setdefault((outcome.step.name, outcome.status, kind), []).append(outcome)
    return [(group[0], complaint(group[0], len(group), width)) for group in groups.values()]


def complaint(outcome: Outcome, shapes: int = 1, width: int = 100) -> str:
    """What is wrong with a step at a shape (and ``shapes`` - 1 more), at which line, and what to look at."""
    if outcome.elsewhere:  # at any shape
        return escape(f"{outcome.step.name} {outcome.message}")
    more = f" and {shapes - 1} more shape{'s' if shapes > 2 else ''}" if shapes > 1 else ""
    doing = ", compiled for" if outcome.only_compiled else " at"
    lines = [f"{outcome.step.name}{doing} {outcome.problem}{more}"]
    faults, said = outcome.faults[:_SHOWN], outcome.reasons
    if outcome.status == "crashed" and faults:  # its message gives way to the translation
        said = [f"{outcome.status}: {faults[0].what}"]
    lines += [f"  {line}" for line in said]
    for fault in faults if outcome.status != "refused" else ():  # a refusal is no fault
        if outcome.status != "unusable" and not any(fault.what in line for line in said):
            lines += _wrapped(fault.what, "  ", width)
        lines += _pointer(fault, width)
    return escape("\n".join(lines))


def _pointer(fault: Fault, width: int = 100) -> list[str]:
    """The fault's line, and what to look at."""
    lines = [f"    line {fault.line}: {fault.code}"] if fault.line else []
    return lines + _wrapped(f"look at: {fault.look_at}", "    ", width)


def _wrapped(text: str, indent: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False)


def printed(outcomes: list[Outcome]) -> list[str]:
    """What each step prints at the first shape at which it prints: the first lines, and how many more there are."""
    lines = []
    for outcome in {one.step.name: one for one in reversed(outcomes) if one.prints}.values():
        lines.append(f"{outcome.step.name} prints at {outcome.problem}:")
        lines += [f"  {cut(line, 200)}" for line in outcome.printed]
        if more := outcome.prints - len(outcome.printed):
            lines.append(f"  ... {more} more")
    return [escape(line) for line in lines]


# --- a stage that did not fail ---


def stage(step: str, found: Stage) -> list[str]:
    """One stage of an edited step that did not fail, as lines to print."""
    one = found.outcomes[0]
    more: list[str] = []
    if found.name == loop.FIRST:
        line = _first(found.outcomes)
    elif found.name == loop.CHECK:
        line, more = _checked(found.outcomes)
    else:
        line = _machine_code(step, one) if found.name == loop.CODE else f": {_time(one)}"
    lines = [f"{step}{line}  [dim]{found.seconds:.1f} s[/]"] if line else []
    warnings = [fault for outcome in found.outcomes if outcome.status == "right" for fault in outcome.faults]
    for fault in warnings[:1]:
        more += [f"  [yellow]{escape(fault.what)}[/]", *(escape(line) for line in _pointer(fault))]
    return [*lines, *more]


def _first(outcomes: list[Outcome]) -> str:
    """Whether it compiles, with what it takes, and whether it is right at one shape."""
    compiled = [outcome for outcome in outcomes if outcome.kernels]
    declined = [outcome for outcome in outcomes if outcome.status == "refused"]
    if declined and not compiled:  # so nothing was built
        return f": [yellow]refused at {declined[-1].problem}[/]: {escape(declined[-1].message or '')}"
    what = ["compiles"]
    if kernel := loop.heaviest(compiled[0]) if compiled else None:
        spilled = f", {kernel.stack_bytes} bytes of stack" if kernel.stack_bytes else ""
        shared = f", {kernel.shared_bytes} bytes shared" if kernel.shared_bytes else ""
        takes = f"({kernel.registers} registers{spilled}{shared})"
        what = [f"compiles for compute capability {kernel.architecture} {takes}"]
    what += [f"right at {one.problem}" for one in outcomes if one.right and one.status == "right"]
    return f": [green]{', '.join(what)}[/]"


def _checked(outcomes: list[Outcome]) -> tuple[str, list[str]]:
    """At how many shapes it is right, and whether it is sound; and why that could not be told, if so."""
    right, refused = (len({str(one.problem) for one in outcomes if one.status == s}) for s in ("right", "refused"))
    more = f", refused at {refused}" if refused else ""
    unseen = [one for one in outcomes if one.status == "unjudged" and not one.left_out]
    sound = "" if unseen else ", and sound"
    said = f"[green]right at {right} shapes{sound}{more}[/]" if right else f"[yellow]not judged{more}[/]"
    why = "whether it is sound was not judged whole"
    return f": {said}", [f"  [yellow]{why}[/]: {escape(one.message or '')}" for one in unseen[:1]]


def _machine_code(step: str, outcome: Outcome) -> str:
    """Instructions for a multiply-add and registers, and what the shipped version needs; nothing if unknown."""
    kernel, shipped = loop.heaviest(outcome), records.main_kernel(records.load_code(), step)
    if not kernel:
        return ""
    beside = f"; the shipped version {loop.per_multiply_add(shipped).split()[0]}" if shipped else ""
    return f" on {outcome.preset}: {loop.per_multiply_add(kernel)}, {kernel.registers} registers{beside}"


def _time(outcome: Outcome) -> str:
    """How an edited step did in turn with the shipped one."""
    where = f"on {outcome.preset}, {outcome.gpu}"
    if outcome.pairs:
        pair = outcome.pairs["shipped"]
        mine, other = (figures.milliseconds(timing.median_ms) for timing in (pair.second, pair.first))
        return f"[bold]{ratio(pair)}[/]: {mine} ms against {other} ms {where}"
    if outcome.timing is None:
        return f"[yellow]not timed[/]: {escape(str(outcome.message))}"
    unknown = "the shipped version is not known: neither git nor .workbook has it"
    return f"{figures.milliseconds(outcome.time.median_ms)} ms {where}; {unknown}"


def ratio(pair: Paired) -> str:
    """``1.23x the shipped version (paired, p20-p80 1.21-1.25)``; says so where the two cannot be told apart."""
    same = abs(pair.ratio - 1) <= pair.ratio * pair.ratio_error
    note = ", no difference that can be told" if same else ""
    return f"{pair.ratio:.2f}x the shipped version (paired, p20–p80 {pair.ratio_p20:.2f}–{pair.ratio_p80:.2f}{note})"


# --- the history ---


def events(found: list[Event], present: dict[str, str], originals: dict[str, str], named: bool) -> Table:
    """The history, a row for each event, with the step's name if several are ``named``.

    ``present`` and ``originals`` map steps to the hash of the file as it is, and as it was shipped.
    """
    table = Table(*(["step"] if named else []))
    for header in ("N", "when", "source", ""):
        table.add_column(header, no_wrap=True)
    table.add_column("result")
    for event in found:
        marks = ["now"] if present.get(event.step) == event.source else []
        marks += ["shipped"] if originals.get(event.step) == event.source else []
        colour = {"right": "green", "": "dim"}.get(event.verdict, "red")
        reason = textwrap.shorten(event.reason, _REASON_WIDTH, placeholder=" ...")
        what = [f"[{colour}]{escape(event.verdict or event.what)}[/]", escape(event.figure), escape(reason)]
        cells = [str(event.number), when(event), event.source[:8], " ".join(marks), ": ".join(filter(None, what))]
        table.add_row(*([event.step] if named else []), *cells)
    return table


def when(event: Event) -> str:
    """The event's time on this machine's clock."""
    return datetime.fromisoformat(event.time.replace("Z", "+00:00")).astimezone().strftime("%m-%d %H:%M")
