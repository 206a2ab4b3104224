"""A trace in tables and sentences for the terminal; and whether a trace explains why a check fails."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from rich.text import Text

from common.catalog.catalog import Step
from common.catalog.problems import Problem
from common.explain.faults import UNSOUND, Fault, telling
from common.report.table import Cell, Table
from common.run import isolate
from common.trace import cost as figures
from common.trace import trace
from common.trace.hopper import engines as stages
from common.trace.messages import Traced, TracedAccess, TracedKernel

NO_FAULT = "nothing out of bounds, no race, no uninitialised value stored"
_QUICK_SECONDS = 20.0
_PIPELINE = ", ".join(f"{mark} {state}" for state, mark in stages.MARKS.items())


# --- sentences ---


def block(text: str) -> tuple[int, int, int]:
    """A block from ``"X"``, ``"X,Y"`` or ``"X,Y,Z"``; raises ValueError."""
    parts = text.split(",")
    if len(parts) > 3 or not all(part.strip().isdecimal() for part in parts):
        raise ValueError(f"--block {text!r}: must be one to three integers, X,Y,Z")
    x, y, z = [*map(int, parts), 0, 0][:3]
    return x, y, z


def sentences(kernel: TracedKernel) -> Iterator[str]:
    """What a kernel's tables do not show: launches, registers, divergence, notes."""
    if kernel.launches > 1 and kernel.blocks == 1:
        yield f"{kernel.name} is launched {kernel.launches} times; the first launch is traced."
    registers: dict[str, dict[str, int]] = {}
    for access in kernel.accesses:
        if access.space == "local":
            counts = registers.setdefault(access.array, {"read": 0, "write": 0})
            counts[access.op] += access.accesses * access.bits // 32
    if registers:
        used = ", ".join(f"{name} ({c['read']:,} reads, {c['write']:,} writes)" for name, c in registers.items())
        yield f"Must stay in registers: {used}."
    for line, (split, branches) in kernel.branches.items():
        if split:
            yield f"line {line}: in {split:,} of {branches:,} branches of warps, the threads of a warp part ways."
    yield from (f"{note[0].upper()}{note[1:]}." for note in kernel.notes)


def pipeline(kernel: TracedKernel, width: int) -> list[str]:
    """The stages of a kernel's pipeline over time, as text of at most ``width`` columns; nothing without stages."""
    spans = kernel.pipeline
    if not spans:
        return []
    block = ", ".join(map(str, kernel.first_block))
    return [f"Stages of block ({block}), one event after the other: {_PIPELINE}.", *stages.drawn(spans, width)]


def fault_sentence(fault: Fault) -> str:
    """A fault in one line, with the thread that met it first."""
    thread, where = (", ".join(map(str, place or ())) for place in (fault.thread, fault.block))
    times = f"{fault.count:,} times, first " if fault.count > 1 else ""
    said = f"line {fault.line}: {UNSOUND[fault.kind]}: {fault.what}"
    return f"{said} ({times}by thread ({thread}) of block ({where}))"


def suspicion(step: Step, problem: Problem, file: Path | None = None, told: str = "") -> tuple[str, str] | None:
    """A fault that a quick trace of all blocks finds, and the command that shows it; None if there is none.

    The command's block is the one that was ``told`` already, if that names one.
    """
    tasks = [trace.task(step, problem, file, every=True)]
    ((_, result),) = isolate.run(tasks, True, _QUICK_SECONDS)
    kernels = result.trace.kernels if result.trace is not None else []
    faults = [fault for kernel in kernels for fault in kernel.faults]
    if not faults:
        return None
    worst = min(faults, key=telling)
    named = re.search(r"of block \((\d+), (\d+), (\d+)\)", told)
    place = ",".join(named.groups() if named else map(str, worst.block or ()))
    command = f'python -m common trace {step.name} --shape "{problem}" --block {place}'
    return fault_sentence(worst), command + (f" --file {shlex.quote(str(file))}" if file else "")


def comparison(traces: dict[str, Traced]) -> str:
    """One sentence: loads for each multiply-add of the second step's main kernel beside the first one's.

    ``traces`` has two traces by the steps' names.
    """
    loads = {name: figures.loads_per_fma(found) for name, found in traces.items()}
    for name, by_memory in loads.items():
        if not by_memory:
            return f"{name} has no float32 multiply-add: its loads cannot be compared."
    (first, before), (second, after) = loads.items()
    parts: list[str] = []
    for memory in ("shared", "global", "constant"):
        of, each = ("its", "") if parts else (f"{first}'s", " per multiply-add")
        if before[memory]:
            parts.append(f"{_ratio(after[memory] / before[memory])} of {of} {memory} loads{each}")
        elif after[memory]:
            parts.append(f"{_ratio(after[memory])} {memory} loads{each} where {first} needs none")
    return f"{second} needs {', '.join(parts[:-1])}{', and ' if parts[1:] else ''}{parts[-1]}."


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 or not value else f"{value:.2g}"


# --- tables ---

_SPACES = {
    "global": ("global memory, in sectors of 32 bytes", "sectors"),
    "shared": ("shared memory, in wavefronts", "wavefronts"),
    "constant": ("constant memory, in reads", "reads"),
}
_VERBS = {
    "read": "read", "write": "write", "copy": "copy", "atomic": "update", "tma": "TMA load", "tma store": "TMA store",
    "wgmma": "wgmma",
}  # fmt: skip


def traced(kernel: TracedKernel) -> list[Table]:
    """A traced kernel: its accesses by memory and source line, then what they come to for each multiply-add."""
    where = f"block {_point(kernel.first_block)} of {_point(kernel.grid)}"
    if kernel.blocks >= math.prod(kernel.grid) > 1:
        where = f"all {kernel.blocks} blocks"
    elif kernel.blocks > 1:
        where = f"the cluster of {kernel.blocks} that begins with {where}"
    head = f"{kernel.name}, {where}, {_point(kernel.block)} threads\n"
    found: list[Table] = []
    for space, (title, unit) in _SPACES.items():
        accesses = [a for a in kernel.accesses if a.space == space]
        if accesses:
            found.append(_accesses(title if found else head + title, accesses, unit))
    rows = []
    for space, cells in kernel.per_fma.items():
        if any(cells.values()):
            keys = ("loads", "loaded_values", "stores", "stored_values")
            rows.append(["registers" if space == "local" else space, *(f"{cells[key]:.3g}" for key in keys)])
    header = ["memory", "load instructions", "floats loaded", "store instructions", "floats stored"]
    rates = Table(header, rows, title="for each multiply-add of a thread", light=True)
    return [*found, rates] if rows else found


def _accesses(title: str, accesses: list[TracedAccess], unit: str) -> Table:
    header = ["line", "access", "bits", "requests", f"{unit} each", "ideal", "efficiency", "lanes per address"]
    header += ["bytes", "source"]
    rows: list[list[Cell]] = [
        [
            str(a.line), f"{_VERBS[a.op]} {a.array}", str(a.bits), f"{a.requests:,}",
            f"{a.per_request:.2f}", f"{a.ideal_per_request:.2f}", _efficiency(a.efficiency),
            f"{a.lanes_per_address:.3g}", f"{a.bytes_moved:,}" if a.bytes_moved else "", Text(a.text),
        ]
        for a in accesses
    ]  # fmt: skip
    if len(accesses) > 1:
        # no request reaches memory if all are out of bounds
        requests, moved, ideal, each, distinct = (
            max(1, sum(getattr(a, key) for a in accesses))
            for key in ("requests", "moved", "ideal", "accesses", "distinct")
        )
        moved_bytes = sum(a.bytes_moved for a in accesses)
        rows.append([
            "", "total", "", f"{requests:,}", f"{moved / requests:.2f}", f"{ideal / requests:.2f}",
            _efficiency(ideal / moved), f"{each / distinct:.3g}", f"{moved_bytes:,}" if moved_bytes else "", "",
        ])  # fmt: skip
    table = Table(header, rows, "", title, ["access"], ["lanes per address", "source"], cut="source", light=True)
    return table if any(a.bytes_moved for a in accesses) else table.only([one for one in header if one != "bytes"])


def _efficiency(value: float) -> Text:
    return Text(f"{100 * value:.0f}%", style="default" if value > 0.99 else "yellow" if value > 0.5 else "red")


def _point(point: tuple[int, ...]) -> str:
    return "(" + ", ".join(map(str, point)) + ")"
