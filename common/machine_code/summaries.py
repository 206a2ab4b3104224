"""A kernel's summary, ready for JSON: resources, what fits a multiprocessor, what its hot loop consists of."""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field, to_builtins

from common.catalog import catalog, limits
from common.catalog.schema import Count, Extent, Name
from common.machine_code import sass

if TYPE_CHECKING:
    from common.machine_code import codegen


class Line(Struct, kw_only=True):
    """A source line, without its comment, and its instructions by class."""

    text: str
    mix: dict[str, Count]


class Hot(Struct, kw_only=True):
    """A kernel's hot loop: what it is (:func:`sass.hot_span`), its accesses by class and width, its source lines."""

    what: str = ""
    widths: dict[str, dict[str, Count]] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)


class Kernel(Struct, kw_only=True, omit_defaults=True):
    """A kernel for one architecture: by name all of its ``instructions``, and those of its hot ``loop``."""

    kernel: Name
    architecture: Name
    registers: Count
    stack_bytes: Count
    shared_bytes: Count
    instructions: dict[str, Count]
    loop: dict[str, Count]
    spill_bytes: Count | None = None
    block: list[Extent] = field(default_factory=list)
    occupancy: limits.Occupancy | None = None
    hot: Hot = field(default_factory=Hot)


# --- as commands show it ---

Summary = dict[str, Any]
"""A kernel for one architecture as it was launched, ready for JSON: the fields of a :class:`Kernel`, and

``float64``  lines of its PTX that compute in float64
``grid`` and ``block``, its ``threads``, and ``dynamic_shared_bytes``, as the launch asks for them
``hot``      :meth:`HotLoop.figures`, and what became of its source ``lines``, in ``groups`` in program order
``traffic``  figures of its memory traffic, if it was traced
``text``     its PTX, then there is little else, or its machine code
"""

SourceLine = dict[str, Any]
"""A source line: ``file`` within the repository (else its name), ``line`` and ``text``; with ``total`` and ``mix``,
its instructions in all and by class, or with neighbouring ``instructions``, each with its address and text."""


class HotLoop:
    """Where a kernel's time goes (:func:`sass.hot_span`): instructions by name, accesses by class and bits;
    ``useful``: the share of multiply-adds among all; ``shared_floats``: 32-bit words read from shared memory."""

    def __init__(self, what: str, instructions: dict[str, int], widths: dict[str, dict[str, int]]) -> None:
        self.what, self.instructions, self.widths = what, instructions, widths
        self.total, self.mix = sum(instructions.values()), sass.mix(instructions)
        self.multiply_adds = fma = sass.multiply_adds(instructions)
        self.multiplies = what == sass.MULTIPLY_LOOP and fma > 0
        self.useful = round(self.mix.get("multiply-add", 0) / self.total, 4) if self.total else 0.0
        self.shared_floats = sum(int(bits) * n for bits, n in widths.get("shared load", {}).items()) / 32
        self.floats_per_multiply_add = round(self.shared_floats / fma, 3) if fma else None

    @classmethod
    def of(cls, code: codegen.MachineCode) -> HotLoop:
        what, span = sass.hot_span(code.listing)
        loop = code.listing.instructions[slice(*span)]
        return cls(what, sass.names(loop), sass.widths(loop))

    @classmethod
    def recorded(cls, kernel: Kernel) -> HotLoop:
        return cls(kernel.hot.what, kernel.loop, kernel.hot.widths)

    def count(self, *names: str) -> int:
        return sum(self.instructions.get(name, 0) for name in names)

    def per_multiply_add(self, count: int | None = None) -> float | None:
        """So many (default: all instructions) for each multiply-add of the multiply loop; None without one."""
        return (self.total if count is None else count) / self.multiply_adds if self.multiplies else None

    def figures(self) -> dict[str, Any]:
        """What a summary says of it. ``as_single_loads``: ``useful`` if nothing but multiply-adds and one load for
        each float from shared memory counted, as in a count by hand of the source line."""
        fma, floats, shared = self.multiply_adds, self.shared_floats, self.mix.get("shared load", 0)
        return {
            "what": self.what,
            "total": self.total,
            "multiply_adds": fma,
            "mix": self.mix,
            "useful": self.useful,
            "fma_per_shared_load": round(fma / shared, 3) if shared and fma else None,
            "floats_per_fma": self.floats_per_multiply_add,
            "as_single_loads": round(fma / (fma + floats), 4) if fma and floats else None,
            "widths": self.widths,
        }


def summary(launch: codegen.Launch, code: codegen.MachineCode) -> Summary:
    shared = code.shared_bytes + launch.dynamic_shared_bytes
    _, span = sass.hot_span(code.listing)
    loop = code.listing.instructions[slice(*span)]
    lines = [
        {**line, "total": len(mine), "mix": sass.mix(sass.names(mine))}
        for line, mine in _by_line(sorted(loop, key=_PLACE))
    ]
    return {
        **{name: value for name, value in vars(code).items() if name != "listing"},
        "grid": list(launch.grid),
        "block": list(launch.block),
        "threads": launch.threads,
        "dynamic_shared_bytes": launch.dynamic_shared_bytes,
        "occupancy": to_builtins(limits.occupancy(code.architecture, launch.threads, code.registers, shared)),
        "instructions": sass.names(code.listing.instructions),
        "hot": {**HotLoop.of(code).figures(), "lines": lines, "groups": _groups(loop)},
    }


def recorded(launch: codegen.Launch, code: codegen.MachineCode) -> Summary:
    """The fields of a :class:`Kernel`; source lines without numbers and comments, which any edit would make stale."""
    found = summary(launch, code)
    hot = found["hot"]
    lines = [{"text": line["text"].split("  #")[0], "mix": line["mix"]} for line in hot.pop("lines")]
    del hot["groups"], found["grid"], found["threads"], found["dynamic_shared_bytes"]
    del found["occupancy"]["block_limits"]
    return {**found, "loop": HotLoop.of(code).instructions, "hot": {**hot, "lines": lines}}


def whole(code: codegen.MachineCode) -> list[SourceLine]:
    """All of a kernel's instructions, in groups of one source line; ``hot`` marks those of the hot loop."""
    what, (start, stop) = sass.hot_span(code.listing)
    found = code.listing.instructions
    parts = (found[:start], False), (found[start:stop], what != "kernel"), (found[stop:], False)
    return [{**group, "hot": hot} for part, hot in parts for group in _groups(part)]


_PLACE = attrgetter("file", "line")  # of an instruction


def _by_line(instructions: Iterable[sass.Instruction]) -> Iterator[tuple[SourceLine, list[sass.Instruction]]]:
    """Neighbouring instructions of one source line."""
    for (file, line), mine in groupby(instructions, _PLACE):
        path = Path(file)
        shown = path.relative_to(catalog.ROOT).as_posix() if path.is_relative_to(catalog.ROOT) else path.name
        yield {"file": shown, "line": line, "text": linecache.getline(file, line).strip()}, list(mine)


def _groups(instructions: Iterable[sass.Instruction]) -> list[SourceLine]:
    return [
        {**line, "instructions": [(f"{one.address:04x}", one.text) for one in mine]}
        for line, mine in _by_line(instructions)
    ]


def shown(each: float) -> str:
    """So many instructions for each multiply-add; tensor cores make it far less than one."""
    return f"{each:.1f}" if each >= 1 or not each else f"{each:.2g}"


def main_compiled(kernels: Iterable[Kernel]) -> Kernel | None:
    """The main one of these kernels: a loop that multiplies goes before a straight line, however long."""

    def multiply_adds(kernel: Kernel) -> tuple[bool, int]:
        hot = HotLoop.recorded(kernel)
        return hot.multiplies, hot.multiply_adds

    return max(kernels, key=multiply_adds, default=None)
