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


def stage(step: str, found: Stage) -> list[str]:
    """One stage of an edited step that did not fail, as lines to print."""
    outcomes = found.outcomes
    told_by = {loop.FIRST: _first, loop.CHECK: _checked, loop.CODE: _machine_code, loop.TIME: _time}
    line = told_by[found.name](outcomes)
    lines = [f"{step}{line}  [dim]{found.seconds:.1f} s[/]"] if line else []
    unseen = [one for one in outcomes if one.status == "unjudged" and not one.left_out and found.name == loop.CHECK]
    for one in unseen[:1]:
        lines.append(f"  [yellow]whether it is sound was not judged whole[/]: {escape(one.message or '')}")
    warnings = [fault for outcome in outcomes if outcome.status == "right" for fault in outcome.faults]
    for fault in warnings[:1]:
        lines += [f"  [yellow]{escape(fault.what)}[/]", *(escape(line) for line in _pointer(fault))]
    return lines


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


def _checked(outcomes: list[Outcome]) -> str:
    """At how many shapes it is right, and whether it is sound."""
    right, refused = (len({str(one.problem) for one in outcomes if one.status == s}) for s in ("right", "refused"))
    more = f", refused at {refused}" if refused else ""
    sound = "" if any(one.status == "unjudged" and not one.left_out for one in outcomes) else ", and sound"
    return f": [green]right at {right} shapes{sound}{more}[/]" if right else f": [yellow]not judged{more}[/]"


def _machine_code(outcomes: list[Outcome]) -> str:
    """Instructions for a multiply-add and registers, and what the shipped version needs; nothing if unknown."""
    one = outcomes[0]
    kernel, shipped = loop.heaviest(one), records.main_kernel(records.load_code(), one.step.name)
    if not kernel:
        return ""
    beside = f"; the shipped version {loop.per_multiply_add(shipped).split()[0]}" if shipped else ""
    return f" on {one.preset}: {loop.per_multiply_add(kernel)}, {kernel.registers} registers{beside}"


def _time(outcomes: list[Outcome]) -> str:
    """How an edited step did in turn with the shipped one."""
    one = outcomes[0]
    where = f"on {one.preset}, {one.gpu}"
    if one.pairs:
        pair = one.pairs["shipped"]
        mine, other = (figures.milliseconds(timing.median_ms) for timing in (pair.second, pair.first))
        return f": [bold]{ratio(pair)}[/]: {mine} ms against {other} ms {where}"
    if one.timing is None:
        return f": [yellow]not timed[/]: {escape(str(one.message))}"
    unknown = "the shipped version is not known: neither git nor .workbook has it"
    return f": {figures.milliseconds(one.time.median_ms)} ms {where}; {unknown}"


def ratio(pair: Paired) -> str:
    """``1.23x the shipped version (paired, p20-p80 1.21-1.25)``; says so where the two cannot be told apart."""
    same = abs(pair.ratio - 1) <= pair.ratio * pair.ratio_error
    note = ", no difference that can be told" if same else ""
    return f"{pair.ratio:.2f}x the shipped version (paired, p20–p80 {pair.ratio_p20:.2f}–{pair.ratio_p80:.2f}{note})"


def events(found: list[Event], marks: dict[tuple[str, str], str]) -> Table:
    """A row for each event; ``marks``: by step and hash what a version is, such as the one that the file has now."""
    named = len({event.step for event in found}) > 1
    table = Table(*["step"] * named, "N", "when", "source", "", "result")
    for column in table.columns[:-1]:
        column.no_wrap = True
    for event in found:
        colour = {"right": "green", "": "dim"}.get(event.verdict, "red")
        reason = textwrap.shorten(event.reason, _REASON_WIDTH, placeholder=" ...")
        what = [f"[{colour}]{escape(event.verdict or event.what)}[/]", escape(event.figure), escape(reason)]
        mark, result = marks.get((event.step, event.source), ""), ": ".join(filter(None, what))
        table.add_row(*[event.step] * named, str(event.number), when(event), event.source[:8], mark, result)
    return table


def when(event: Event) -> str:
    """The event's time on this machine's clock."""
    return datetime.fromisoformat(event.time.replace("Z", "+00:00")).astimezone().strftime("%m-%d %H:%M")
