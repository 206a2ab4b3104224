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
    """A kernel's hot loop: :class:`common.machine_code.summaries.HotLoop`, and what its source lines became."""

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


class SourceLine(TypedDict, total=False):
    """What a source line became: ``file`` within the repository (else its name), ``line`` and its ``text``.

    ``total`` and ``mix`` are its instructions, in all and by class; or ``instructions`` are neighbouring ones,
    address and text, and ``hot`` says whether they are of the hot loop.
    """

    file: str
    line: int
    text: str
    total: int
    mix: dict[str, int]
    instructions: list[tuple[str, str]]
    hot: bool


class HotFigures(TypedDict, total=False):
    """What is said of a hot loop: :meth:`common.machine_code.summaries.HotLoop.figures`, ``what`` it is, and what
    became of its source lines: by line, and as ``groups`` in program order."""

    total: int
    multiply_adds: int
    mix: dict[str, int]
    useful: float
    fma_per_shared_load: float | None
    floats_per_fma: float | None
    as_single_loads: float | None
    widths: dict[str, dict[str, int]]
    what: str
    lines: list[SourceLine]
    groups: list[SourceLine]


class Summary(TypedDict, total=False):
    """What is said of a kernel for one architecture, as it was launched; a compile task says the fields of a
    :class:`Kernel` alone.

    ``float64``  lines of its PTX that compute in float64
    ``loop``     instructions of its hot loop, by name
    ``traffic``  figures of its memory traffic, by the names of :data:`common.machine_code.summaries.TRAFFIC`
    ``text``     its PTX, then there is nothing else, or its machine code
    """

    kernel: str
    architecture: str
    float64: list[str]
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
    loop: dict[str, int]
    hot: HotFigures
    traffic: dict[str, float]
    text: str | list[SourceLine]
