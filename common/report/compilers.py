"""Two compilers beside each other, numba-cuda and its successor, and Numba's simulator beside the tracer."""

from __future__ import annotations

import json
import statistics
from typing import Any

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


def simulator() -> Table:
    """What Numba's simulator shows of the programs of tests/trace/programs, and what the tracer does."""
    path = records.RESULTS / "programs" / "simulator.json"
    if not path.exists():
        raise kinds.UnmeasuredError(path.name)
    found = json.loads(path.read_text(encoding="utf-8")).values()
    right = [one for one in found if one["kind"] == "right"]
    wrong = [one for one in found if one["kind"] != "right"]
    silent = [one for one in wrong if one["simulator"]["ended"] == "silent"]

    def ended(these: list[dict[str, Any]], how: str) -> str:
        return str(sum(one["simulator"]["ended"] == how for one in these))

    def faulty(these: list[dict[str, Any]]) -> str:
        return str(sum(bool(one["tracer"]["faults"]) for one in these))

    def seconds(by: str) -> str:
        return f"{statistics.median(one[by]['seconds'] for one in found):.1f}"

    rows = [
        [f"right programs, {len(right)}: run to their end", ended(right, "silent"), str(len(right))],
        ["right programs: accused, or stopped by what is not known", ended(right, "error"), faulty(right)],
        [f"wrong programs, {len(wrong)}: stopped or named", ended(wrong, "error"), faulty(wrong)],
        [
            "wrong programs: run to their end without a word",
            ended(wrong, "silent"),
            str(len(wrong) - int(faulty(wrong))),
        ],
        ["seconds a program, the median", seconds("simulator"), seconds("tracer")],
    ]
    unseen = ", ".join(f"`{kind}`" for kind in sorted({one["kind"] for one in silent}))
    note = f"The simulator is silent about {unseen}."
    return Table(["", "Numba's simulator", "the tracer"], rows, note)
