"""What a child process is asked to trace."""

from __future__ import annotations

from typing import TypedDict

from common.explain.faults import Fault
from common.run.messages import Message, Result, ShapeTask


class TraceOptions(Message, frozen=True, kw_only=True):
    """Those of :func:`common.trace.trace.run`, with its defaults."""

    block: tuple[int, int, int] | None = None
    every: bool = False
    tile: dict[str, int | bool] | None = None
    watched: tuple[str, ...] = ()
    merged: dict[str, int] | None = None
    kept: int = 0


class TracedRequest(TypedDict):
    """A :class:`common.trace.cost.Request`."""

    warp: int
    places: list[int | None]


class _Seen(TypedDict, total=False):
    seen: list[TracedRequest]  # where requests are kept


class TracedAccess(_Seen):
    """A :class:`common.trace.result.Access` and the figures that follow from it."""

    line: int
    text: str
    space: str
    op: str
    array: str
    bits: int
    accesses: int
    requests: int
    moved: int
    ideal: int
    distinct: int
    sample: list[int | None] | None
    per_request: float
    ideal_per_request: float
    efficiency: float
    lanes_per_address: float
    bytes_moved: int


class TracedEvent(TypedDict):
    """An access of one warp to a watched array: places and threads, lane by lane."""

    line: int
    op: str
    array: str
    width: int
    places: list[int]
    threads: list[int]


class TracedSpan(TypedDict):
    """A stage of a pipeline is filling, full, multiplied or free, from a tick of a logical clock to another.

    ``line`` is that of the copy, or of the multiplication.
    """

    stage: str
    state: str
    start: int
    end: int
    line: int


class TracedKernel(TypedDict):
    """A :class:`common.trace.result.KernelTrace`, lines as text, with its sums."""

    name: str
    file: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    launches: int
    blocks: int
    first_block: tuple[int, int, int]
    accesses: list[TracedAccess]
    fma: int
    fma_lines: dict[str, int]
    branches: dict[str, tuple[int, int]]
    faults: list[Fault]
    notes: dict[str, int]
    events: list[TracedEvent]
    pipeline: list[TracedSpan]
    printed: list[str]
    prints: int
    under_way: int
    totals: dict[str, int]
    per_fma: dict[str, dict[str, float]]


class Traced(TypedDict):
    """A :class:`common.trace.result.Trace` without its output."""

    ladder: str
    shape: dict[str, int]
    kernels: list[TracedKernel]


class TraceResult(Result, frozen=True, kw_only=True):
    trace: Traced | None = None


class Trace(ShapeTask[TraceResult], frozen=True, kw_only=True, tag="jobs.trace"):
    """What does a file access in memory at one shape?"""

    options: TraceOptions = TraceOptions()
