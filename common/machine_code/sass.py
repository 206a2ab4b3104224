"""Reads a disassembly (SASS) as nvdisasm prints it: instructions with their source lines, loops, and what they do.

Instruction names are those of NVIDIA's CUDA Binary Utilities, "Instruction Set Reference" (7.5 to 12.0).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from urllib.parse import unquote

from common.catalog.limits import WARP

MULTIPLY_LOOP = "multiply loop"
LOADS_AND_STORES = ("shared load", "global load", "local load", "store")
# What an instruction is for. FFMA multiplies and adds; a float64 accumulator shows as DADD, as its product is still
# float32. HMMA and IMMA do so for a whole warp, on tensor cores, HGMMA, IGMMA and QGMMA for four.
_MEMBERS = {
    "multiply-add": "FFMA FFMA2 FFMA32I DFMA DADD HMMA HGMMA IMMA IGMMA QGMMA IDP",
    "shared load": "LDS LDSM",
    "global load": "LDG LD LDGSTS UTMALDG",  # the last two copy from global to shared memory without a register
    "local load": "LDL",
    "constant load": "LDC ULDC LDCU",
    "store": "STG STS STL ST RED REDG ATOM ATOMG ATOMS UTMASTG",
    # MOV too: the assembler writes a move as IMAD.MOV at will
    "integer and address": (
        "IADD IADD2 IADD3 IADD32I IMAD IMUL IMUL32I ISCADD LEA LOP LOP3 LOP32I SHF SHL SHR ISETP ICMP IMNMX IABS FLO "
        "BMSK BREV POPC SGXT PRMT VIADD VIADDMNMX VIMNMX VIMNMX3 MOV MOV32I SEL PLOP3 PSETP P2R R2P P2UR R2UR S2R "
        "S2UR CS2R CS2UR LEPC UR2UP"
    ),
    "float": "FADD FADD2 FADD32I FMUL FMUL2 FMUL32I FSETP FSEL FMNMX FCHK",  # but for multiply-adds
    "control": (
        "BRA BRX BRXU JMP JMX CALL RET EXIT KILL BREAK BSSY BSYNC BMOV BAR UBAR WARPSYNC YIELD NANOSLEEP DEPBAR "
        "LDGDEPBAR MEMBAR ERRBAR FENCE CCTL ACQBULK PREEXIT SYNCS WARPGROUP USETMAXREG UTMACMDFLUSH UCGABAR_ARV "
        "UCGABAR_WAIT CGAERRBAR ELECT"
    ),
}
CLASSES = (*_MEMBERS, "other")
_CLASS = {name: what for what, names in _MEMBERS.items() for name in names.split()}

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
_TOGETHER = {"HMMA": WARP, "IMMA": WARP, "HGMMA": 4 * WARP, "IGMMA": 4 * WARP, "QGMMA": 4 * WARP}
_BOXES = ("UTMALDG", "UTMASTG")  # move as much as their tensor map says
_LDSM_WIDTHS = {"2": 64, "4": 128}  # by the number of matrices, a word of each
_WIDTHS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}


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
            found.append(_instruction(match, file, number))
    return Listing(tuple(found), tuple(loops), hashlib.sha256("\n".join(texts).encode()).hexdigest())


def _instruction(match: re.Match[str], file: str, line: int) -> Instruction:
    name, suffixes = match["name"], match["suffix"].strip(".").split(".")
    known = _LDSM_WIDTHS if name == "LDSM" else _WIDTHS
    width = next((known[suffix] for suffix in suffixes if suffix in known), 32)
    if match["never"]:  # ptxas puts such loads before some copies
        name = f"@!PT {name}"
    elif name in _TOGETHER:
        name = f"{name}.{suffixes[0]}"
    return Instruction(int(match["address"], 16), name, width, " ".join(match["text"].split()), file, line)


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
    for what, bits in sorted(counts, key=lambda each: (CLASSES.index(each[0]), each[1])):
        if what in LOADS_AND_STORES:
            found.setdefault(what, {})[str(bits)] = counts[what, bits]
    return found
