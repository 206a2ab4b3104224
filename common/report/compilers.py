"""What two compilers make of the steps: numba-cuda, and its successor."""

from __future__ import annotations

from common.machine_code import successor, summaries
from common.machine_code.summaries import HotLoop
from common.records import records
from common.records.entries import MachineCode
from common.report import figures, kinds
from common.report.table import Table


def table(code: MachineCode) -> Table:
    """Each step's multiply loop by numba-cuda and by its successor, from both compilers' records."""
    record = successor.load(records.RESULTS)
    if record is None or not code.steps:
        raise kinds.UnmeasuredError(str(successor.FILE))
    rows: list[list[str]] = []
    reasons: dict[str, list[str]] = {}
    for name, other in record.steps.items():
        pair = records.main_kernel(code, name, other.preset), summaries.main_compiled(other.kernels)
        both = [kernel for kernel in pair if kernel and kernel.occupancy]
        if len(both) < len(pair):
            reasons.setdefault(other.reason, []).append(f"`{name}`")
            continue
        loops = [HotLoop.recorded(kernel).per_multiply_add() for kernel in both]
        pairs = (
            [str(kernel.registers) for kernel in both],
            [f"{kernel.occupancy.fraction:.0%}" for kernel in both if kernel.occupancy],
            [summaries.shown(each) if each else "–" for each in loops],
            [f"{each:.2f}" for each in other.seconds],
        )
        rows.append([f"`{name}`", *map(" → ".join, pairs)])
    header = ["step", "registers", "occupancy", "instructions per multiply-add", "seconds to compile"]
    refused = " ".join(f"Not compiled: {', '.join(names)} ({reason})." for reason, names in reasons.items())
    tools = f"{record.compiler} and {figures.versions(code.tools)}"
    what = "numba-cuda → its successor: the innermost multiply loop"
    return Table(header, rows, f"{kinds.compiled(what, successor.ARCHITECTURE, tools, None)} {refused}")
