"""A kernel's card: what it takes, what fits a multiprocessor, and what its hot loop spends its instructions on.

Data only, ready for JSON; :mod:`common.report.kerneltables` makes them readable.
"""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import cast

from common.catalog import catalog, limits
from common.machine_code import codegen, sass
from common.machine_code.loops import HotLoop
from common.machine_code.messages import CardHot, CodeCard, Compiled, Group, LineMix, SourceLine, WholeGroup

# Figures of memory traffic, which machine code does not hold: whoever counts them puts ``card["traffic"]``, a
# dict with these keys, into a card; the tables then show a column for each.
TRAFFIC = {
    "sectors_per_request": "sectors per request",
    "conflicts": "shared wavefronts, × ideal",
    "bytes_per_fma": "bytes per FMA",
}


def card(launch: codegen.Launch, code: codegen.MachineCode) -> CodeCard:
    """Everything a card shows of one kernel as it was launched; ``hot`` describes its hot loop."""
    shared = code.shared_bytes + launch.dynamic_shared_bytes
    fits = limits.occupancy(code.architecture, launch.threads, code.registers, shared)
    what, span = sass.hot_span(code.listing)
    return {
        "kernel": code.kernel,
        "architecture": code.architecture,
        "grid": list(launch.grid),
        "block": list(launch.block),
        "threads": launch.threads,
        "registers": code.registers,
        "stack_bytes": code.stack_bytes,
        "spill_bytes": code.spill_bytes,
        "shared_bytes": code.shared_bytes,
        "dynamic_shared_bytes": launch.dynamic_shared_bytes,
        "occupancy": fits.as_dict(),
        "instructions": sass.names(code.listing.instructions),
        "hot": hot_figures(code.listing.instructions[slice(*span)], what),
    }


def hot_figures(instructions: tuple[sass.Instruction, ...], what: str = sass.MULTIPLY_LOOP) -> CardHot:
    """What a stretch of code does: the figures of :class:`HotLoop`, by source line, instruction by instruction."""
    return {
        **HotLoop.counted(instructions).figures(),
        "what": what,
        "lines": _by_line(instructions),
        "groups": _groups(instructions),
    }


def whole(code: codegen.MachineCode) -> list[WholeGroup]:
    """All of a kernel's instructions, in groups of one source line; ``hot`` marks those of the hot loop."""
    what, (start, stop) = sass.hot_span(code.listing)
    found = code.listing.instructions
    parts = (found[:start], found[start:stop], found[stop:])
    marks = (False, what != "kernel", False)
    return [{**group, "hot": hot} for part, hot in zip(parts, marks, strict=True) for group in _groups(part)]


def source_line(file: str, line: int) -> SourceLine:
    """Where an instruction comes from: ``file`` within the repository (else its name), ``line``, and its ``text``."""
    if not line:
        return {"file": "", "line": 0, "text": ""}
    path = Path(file)
    shown = path.relative_to(catalog.ROOT).as_posix() if path.is_relative_to(catalog.ROOT) else path.name
    return {"file": shown, "line": line, "text": linecache.getline(file, line).strip()}


def recorded(found: CodeCard) -> Compiled:
    """What a compile task tells of a card beside :meth:`codegen.MachineCode.as_dict`.

    Source lines are without their numbers and comments, which an edited word would make stale.
    """
    hot = {key: value for key, value in found["hot"].items() if key != "groups"}
    lines = [{"text": item["text"].split("  #")[0], "mix": item["mix"]} for item in found["hot"]["lines"]]
    fits = {key: value for key, value in found["occupancy"].items() if key != "block_limits"}
    return cast(Compiled, {"block": found["block"], "occupancy": fits, "hot": {**hot, "lines": lines}})


def _by_line(instructions: tuple[sass.Instruction, ...]) -> list[LineMix]:
    """For each source line, in the order of the source, how many instructions of which class it became."""
    lines: dict[tuple[str, int], list[sass.Instruction]] = {}
    for instruction in instructions:
        lines.setdefault((instruction.file, instruction.line), []).append(instruction)
    return [
        {**source_line(file, line), "total": len(mine), "mix": sass.mix(sass.names(mine))}
        for (file, line), mine in sorted(lines.items())
    ]


def _groups(instructions: tuple[sass.Instruction, ...]) -> list[Group]:
    """Neighbouring instructions of one source line, in program order."""
    groups: list[Group] = []
    place = None
    for instruction in instructions:
        if (instruction.file, instruction.line) != place:
            place = instruction.file, instruction.line
            groups.append({**source_line(*place), "instructions": []})
        groups[-1]["instructions"].append((f"{instruction.address:04x}", instruction.text))
    return groups
