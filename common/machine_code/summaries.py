"""What a kernel became: its disassembly (SASS) read, and a summary, ready for JSON: resources, occupancy, hot loop.

Instruction names are those of NVIDIA's CUDA Binary Utilities, "Instruction Set Reference" (7.5 to 12.0).
"""

from __future__ import annotations

import hashlib
import linecache
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from msgspec import Struct
from msgspec.structs import asdict, replace

from common.catalog import catalog, limits, store
from common.catalog.store import Count, Extent, Name

if TYPE_CHECKING:
    from common.machine_code import codegen

MULTIPLY_LOOP = "multiply loop"
_MEMBERS: dict[str, list[str]] = store.read_toml(Path(__file__).with_name("instructions.toml"))
CLASSES = (*_MEMBERS, "other")
_CLASS = {name: what for what, names in _MEMBERS.items() for name in names}

_LABEL = re.compile(r"^(\.L_x_\d+):")
_TARGET = re.compile(r"\bBRA\b.*`\((\.L_x_\d+)\)")
_LINE = re.compile(r'^\s*//## File "(.+?)", line (\d+)')
_SECTION = re.compile(r"^\s*\.section\s")
_INSTRUCTION = re.compile(
    r"^\s+/\*(?P<address>[0-9a-f]{4,})\*/\s+"
    r"(?P<text>(?P<never>@!U?PT\s+)?(?:@!?U?P\w+\s+)?(?P<name>[A-Z][A-Z0-9_]*)(?P<suffix>[.\w]*)[^;]*?)\s*;"
)
_NAME = re.compile(r"\$?_Z\w+")  # a function's, in which Numba counts what it has compiled
# rows, columns and depth; by how many threads
_MATRIX = re.compile(r"[HI]MMA\.(16|8)(8)(32|16|8|4)|[HIQ]GMMA\.(64)x(\d+)x(\d+)")
_TOGETHER = {"HMMA": 32, "IMMA": 32, "HGMMA": 128, "IGMMA": 128, "QGMMA": 128}
_BOXES = ("UTMALDG", "UTMASTG")  # move as much as their tensor map says
# in bits; of LDSM by the number of matrices, a word of each
_WIDTHS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "2": 64, "64": 64, "4": 128, "128": 128, "256": 256}


class Instruction(NamedTuple):
    """A machine instruction: the bits that it moves for each thread, its text with predicate and operands, its line,
    0 where none is known. The ``name`` of one that multiplies matrices has their extents, ``"HMMA.16816"``, that of
    one which is never done its predicate, ``"@!PT LDS"`` (PT is always true): its class is other."""

    address: int
    name: str
    width: int
    text: str
    file: str = ""
    line: int = 0

    @property
    def kind(self) -> str:
        return classify(self.name)


class Listing(NamedTuple):
    """A kernel's instructions without padding, and its loops: index ranges from a label to the jump back to it.
    ``digest`` is of all instructions, whatever their lines and functions are called."""

    instructions: tuple[Instruction, ...]
    loops: tuple[tuple[int, int], ...]
    digest: str = ""


def parse(listing: str) -> Listing:
    """Read what ``nvdisasm -c`` (with ``-g`` for source lines) prints."""
    found: list[Instruction] = []
    texts: list[str] = []
    labels: dict[str, int] = {}
    loops: list[tuple[int, int]] = []
    file, number = "", 0
    for line in listing.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(found)
        elif source := _LINE.match(line):
            file, number = unquote(source[1]), int(source[2])
        elif _SECTION.match(line):
            file, number = "", 0
        elif match := _INSTRUCTION.match(line):
            texts.append(_NAME.sub("_", match["text"]))
            target = None if match["never"] else _TARGET.search(line)
            start = labels.get(target[1]) if target else None
            if match["name"] == "NOP" or start == len(found):  # the end is filled by a jump to itself
                continue
            if start is not None:
                loops.append((start, len(found) + 1))
            name, suffixes = match["name"], match["suffix"].strip(".").split(".")
            width = next((_WIDTHS[suffix] for suffix in suffixes if suffix in _WIDTHS), 32)
            if match["never"]:  # ptxas puts such loads before some copies
                name = f"@!PT {name}"
            elif name in _TOGETHER:
                name += "." + next(suffix for suffix in suffixes if suffix != "SP")  # its shape, sparse or not
            text = " ".join(match["text"].split())
            found.append(Instruction(int(match["address"], 16), name, width, text, file, number))
    return Listing(tuple(found), tuple(loops), hashlib.sha256("\n".join(texts).encode()).hexdigest())


def hot_span(listing: Listing) -> tuple[str, tuple[int, int]]:
    """Where the kernel's time goes: the innermost ``"multiply loop"`` with most multiply-adds; without one the
    longest innermost ``"loop"``; without any, or if something multiplies outside of them, the whole ``"kernel"``."""

    def work(span: tuple[int, int]) -> int:
        return multiply_adds(names(listing.instructions[slice(*span)]))

    def innermost(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        return [a for a in spans if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in spans)]

    whole = (0, len(listing.instructions))
    if multiplying := innermost([span for span in listing.loops if work(span)]):
        return MULTIPLY_LOOP, max(multiplying, key=work)
    if listing.loops and not work(whole):
        return "loop", max(innermost(listing.loops), key=lambda span: span[1] - span[0])
    return "kernel", whole


def classify(name: str) -> str:
    """The class of an instruction name such as ``"LDS"``; uniform instructions (U...) count as their plain form."""
    name = name.partition(".")[0]
    return _CLASS.get(name) or _CLASS.get(name.removeprefix("U"), "other")


def names(instructions: Iterable[Instruction]) -> dict[str, int]:
    """How often each name occurs, the most frequent first."""
    return dict(Counter(instruction.name for instruction in instructions).most_common())


def mix(counts: dict[str, int]) -> dict[str, int]:
    """Instructions of each of CLASSES that occurs, from counts by name."""
    total: Counter[str] = Counter()
    for name, count in counts.items():
        total[classify(name)] += count
    return {what: total[what] for what in CLASSES if total[what]}


def multiply_adds(counts: dict[str, int]) -> int:
    """Multiply-adds of a thread's instructions, counted by name: FFMA2 does two, IDP four, HMMA.16816 64."""

    def each(name: str) -> int:
        matrix = _MATRIX.fullmatch(name)
        if matrix is None:
            return {"FFMA2": 2, "IDP": 4}.get(name, 1)
        return math.prod(int(extent) for extent in matrix.groups() if extent) // _TOGETHER[name.partition(".")[0]]

    return sum(count * each(name) for name, count in counts.items() if classify(name) == "multiply-add")


def widths(instructions: Iterable[Instruction]) -> dict[str, dict[str, int]]:
    """Accesses of each class of loads and stores, by width in bits."""
    counts = Counter((one.kind, one.width) for one in instructions if one.name not in _BOXES)
    found: dict[str, dict[str, int]] = {}
    for what in ("shared load", "global load", "local load", "store"):
        if mine := {str(bits): counts[kind, bits] for kind, bits in sorted(counts) if kind == what}:
            found[what] = mine
    return found


# --- a kernel, as it is recorded and as it is inspected ---

SourceLine = dict[str, Any]
"""A source line: ``file`` within the repository (else its name), ``line`` and ``text``; with ``total`` and ``mix``,
its instructions in all and by class, or with neighbouring ``instructions``, each with its address and text."""


class Hot(Struct, kw_only=True, omit_defaults=True, dict=True):
    """Where a kernel's time goes (:func:`hot_span`): instructions by name, accesses by class and bits; of one that is
    inspected its source ``lines``, and ``groups`` of them in program order. From these follow, among others,
    ``useful``, the share of multiply-adds; and ``as_single_loads``, that share if nothing but multiply-adds and one
    load for each float from shared memory counted, as in a count by hand of the source line."""

    what: str = ""
    instructions: dict[str, Count] = {}
    widths: dict[str, dict[str, Count]] = {}
    lines: list[SourceLine] = []
    groups: list[SourceLine] = []

    def __post_init__(self) -> None:
        self.total, self.mix = sum(self.instructions.values()), mix(self.instructions)
        self.multiply_adds = fma = multiply_adds(self.instructions)
        shared = self.mix.get("shared load", 0)
        floats = sum(int(bits) * count for bits, count in self.widths.get("shared load", {}).items()) / 32
        self.useful = round(self.mix.get("multiply-add", 0) / self.total, 4) if self.total else 0.0
        self.fma_per_shared_load = round(fma / shared, 3) if shared and fma else None
        self.floats_per_fma = round(floats / fma, 3) if fma else None
        self.as_single_loads = round(fma / (fma + floats), 4) if fma and floats else None

    @classmethod
    def of(cls, listing: Listing) -> Hot:
        what, span = hot_span(listing)
        loop = listing.instructions[slice(*span)]
        return cls(what=what, instructions=names(loop), widths=widths(loop))

    @property
    def multiplies(self) -> bool:
        return self.what == MULTIPLY_LOOP and self.multiply_adds > 0

    def count(self, *names: str) -> int:
        return sum(self.instructions.get(name, 0) for name in names)

    def per_multiply_add(self, count: int | None = None) -> float | None:
        """So many (default: all instructions) for each multiply-add of the multiply loop; None without one."""
        return (self.total if count is None else count) / self.multiply_adds if self.multiplies else None


class Kernel(Struct, kw_only=True, omit_defaults=True):
    """A kernel for one architecture; not assembled, its name alone. Bytes of the stack and spilled ones are of each
    thread. ``instructions``: all, by name. ``text``: the PTX, then there is no more, or all of the machine code."""

    kernel: Name
    architecture: Name
    registers: Count = 0
    stack_bytes: Count = 0
    spill_bytes: Count = 0
    shared_bytes: Count = 0
    instructions: dict[str, Count] = {}
    hot: Hot | None = None
    # of a launch
    block: list[Extent] = []
    occupancy: limits.Occupancy | None = None
    # of one that is inspected
    grid: list[Extent] = []
    dynamic_shared_bytes: Count = 0  # that it asks for
    text: str | list[SourceLine] = ""

    def launched(self, launch: codegen.Launch) -> Kernel:
        """With the launch's block, and how many of it fit a multiprocessor."""
        shared = self.shared_bytes + launch.dynamic_shared_bytes
        fits = limits.occupancy(self.architecture, launch.threads, self.registers, shared)
        return replace(self, block=list(launch.block), occupancy=replace(fits, block_limits={}))

    def inspected(self, launch: codegen.Launch, listing: Listing, in_full: bool = False) -> Kernel:
        """As :attr:`launched`, with the source of the hot loop; ``in_full``: with its :func:`whole` text."""
        loop = listing.instructions[slice(*hot_span(listing)[1])]
        by_line = _by_line(sorted(loop, key=_PLACE))
        lines = [{**line, "total": len(mine), "mix": mix(names(mine))} for line, mine in by_line]
        hot, text = replace(Hot.of(listing), lines=lines, groups=_groups(loop)), whole(listing) if in_full else ""
        own = {"grid": list(launch.grid), "dynamic_shared_bytes": launch.dynamic_shared_bytes}
        return replace(self.launched(launch), hot=hot, text=text, **own)

    def told(self) -> dict[str, Any]:
        """An inspected kernel in JSON, with what follows from its fields."""
        if self.hot is None:
            return {"kernel": self.kernel, "architecture": self.architecture, "text": self.text}
        threads, shared = math.prod(self.block), self.shared_bytes + self.dynamic_shared_bytes
        fits = limits.occupancy(self.architecture, threads, self.registers, shared)
        found = {**asdict(self), "hot": asdict(self.hot) | vars(self.hot), "threads": threads, "occupancy": fits}
        return {name: value for name, value in found.items() if name != "text" or value}


def whole(listing: Listing) -> list[SourceLine]:
    """All of a kernel's instructions, in groups of one source line; ``hot`` marks those of the hot loop."""
    what, (start, stop) = hot_span(listing)
    found = listing.instructions
    parts = (found[:start], False), (found[start:stop], what != "kernel"), (found[stop:], False)
    return [{**group, "hot": hot} for part, hot in parts for group in _groups(part)]


_PLACE = attrgetter("file", "line")  # of an instruction


def _by_line(instructions: Iterable[Instruction]) -> Iterator[tuple[SourceLine, list[Instruction]]]:
    """Neighbouring instructions of one source line."""
    for (file, line), mine in groupby(instructions, _PLACE):
        path = Path(file)
        shown = path.relative_to(catalog.ROOT).as_posix() if path.is_relative_to(catalog.ROOT) else path.name
        yield {"file": shown, "line": line, "text": linecache.getline(file, line).strip()}, list(mine)


def _groups(instructions: Iterable[Instruction]) -> list[SourceLine]:
    found = _by_line(instructions)
    return [{**line, "instructions": [(f"{one.address:04x}", one.text) for one in mine]} for line, mine in found]


def shown(each: float) -> str:
    """So many instructions for each multiply-add; tensor cores make it far less than one."""
    return f"{each:.1f}" if each >= 1 or not each else f"{each:.2g}"


def main_compiled(kernels: Iterable[Kernel]) -> Kernel | None:
    """The main one of these kernels: a loop that multiplies goes before a straight line, however long."""

    def multiply_adds(kernel: Kernel) -> tuple[bool, int]:
        return (kernel.hot.multiplies, kernel.hot.multiply_adds) if kernel.hot else (False, 0)

    return max(kernels, key=multiply_adds, default=None)
