"""What is told of a kernel's machine code: by compile tasks, and in the machine-code record."""

from __future__ import annotations

from typing import TypedDict

from msgspec import Struct, field

from common.catalog import limits
from common.catalog.schema import Amount, Count, Extent, Name


class Line(Struct, kw_only=True):
    """A source line of a hot loop, without its comment, and its instructions by class."""

    text: str
    mix: dict[str, Count]


class Hot(Struct, kw_only=True):
    """A kernel's hot loop: :class:`common.machine_code.loops.HotLoop`, and what its source lines became."""

    what: str = ""
    widths: dict[str, dict[str, Count]] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)


class Fits(Struct, kw_only=True):
    """How many of a kernel's blocks and warps fit a multiprocessor: :class:`common.catalog.limits.Occupancy`."""

    blocks: Count
    warps: Count
    max_warps: Extent
    fraction: Amount
    limited_by: list[str]


class Kernel(Struct, kw_only=True, omit_defaults=True):
    """A kernel for one architecture. ``instructions`` are all of it by name, ``loop`` those of its hot loop.

    A record of an older workbook has no ``block``, ``occupancy`` and ``hot``, which then says nothing.
    """

    kernel: Name
    architecture: Name
    registers: Count
    stack_bytes: Count
    shared_bytes: Count
    instructions: dict[str, Count]
    loop: dict[str, Count]
    spill_bytes: Count | None = None
    block: list[Extent] = field(default_factory=list)
    occupancy: Fits | None = None
    hot: Hot = field(default_factory=Hot)


class SourceLine(TypedDict):
    """A source line: ``file`` within the repository (else its name), ``line`` and its ``text``."""

    file: str
    line: int
    text: str


class LineMix(SourceLine):
    """Its instructions, in all and by class."""

    total: int
    mix: dict[str, int]


class Group(SourceLine):
    """Neighbouring instructions of one source line: address and text."""

    instructions: list[tuple[str, str]]


class WholeGroup(Group):
    """``hot``: are they of the hot loop?"""

    hot: bool


class HotFigures(TypedDict):
    """What :meth:`common.machine_code.loops.HotLoop.figures` says of a hot loop."""

    total: int
    multiply_adds: int
    mix: dict[str, int]
    useful: float
    fma_per_shared_load: float | None
    floats_per_fma: float | None
    as_single_loads: float | None
    widths: dict[str, dict[str, int]]


class TextMix(TypedDict):
    """A :class:`Line`."""

    text: str
    mix: dict[str, int]


class CompiledHot(HotFigures):
    """A hot loop as a compile task tells of it."""

    what: str
    lines: list[TextMix]


class CardHot(HotFigures):
    """A hot loop as a card shows it."""

    what: str
    lines: list[LineMix]
    groups: list[Group]


class Fitting(TypedDict):
    """:class:`Fits`."""

    blocks: int
    warps: int
    max_warps: int
    fraction: float
    limited_by: list[str]


class Compiled(TypedDict, total=False):
    """A kernel for one architecture: the lines of its PTX that compute in float64; and a :class:`Kernel`'s fields if
    it was assembled."""

    kernel: str
    architecture: str
    float64: list[str]
    registers: int
    stack_bytes: int
    spill_bytes: int
    shared_bytes: int
    instructions: dict[str, int]
    loop: dict[str, int]
    block: list[int]
    occupancy: Fitting
    hot: CompiledHot


class CodeCard(TypedDict, total=False):
    """A kernel's card, as :func:`common.machine_code.cards.card` makes it; ``traffic`` by the names of its TRAFFIC.

    ``text`` is its PTX, then there is nothing else, or its machine code.
    """

    kernel: str
    architecture: str
    grid: list[int]
    block: list[int]
    threads: int
    registers: int
    stack_bytes: int
    spill_bytes: int
    shared_bytes: int
    dynamic_shared_bytes: int
    occupancy: limits.Fitting
    instructions: dict[str, int]
    hot: CardHot
    traffic: dict[str, float]
    text: str | list[WholeGroup]
