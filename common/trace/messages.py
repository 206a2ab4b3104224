"""What a child process can be asked to trace, and what a trace is: in this process, in JSON, and on a page."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from common.catalog.problems import Problem, from_shape
from common.explain.faults import Fault
from common.run.messages import Result, Task

Point = tuple[int, int, int]


class TraceOptions(Struct, frozen=True, kw_only=True):
    block: Point | None = None  # of each kernel's first launch, with its cluster; default: in the middle of the grid
    every: bool = False  # all blocks of all launches
    tile: dict[str, int | bool] | None = None
    kept: int = 0  # requests of each access that are kept


class TracedRequest(Struct):
    """One warp's request: where each lane asks, in bytes from the array's first sector; None: it does not."""

    warp: int
    places: list[int | None]


class TracedAccess(Struct, omit_defaults=True):
    """One array, accessed in one line in one direction and width; ``moved`` to ``distinct``: as in ``cost.Cost``."""

    line: int
    text: str
    space: str
    op: str
    array: str
    bits: int
    accesses: int  # by threads
    requests: int
    moved: int
    ideal: int
    distinct: int
    sample: list[int | None] | None  # the element offsets of the first request's lanes
    per_request: float
    ideal_per_request: float
    efficiency: float  # the share of what moved that had to
    lanes_per_address: float  # threads of a request that share an address: above 1, the value is broadcast
    bytes_moved: int  # whole sectors, from global memory or to it; 0 for other memories
    seen: list[TracedRequest] = []  # the first requests, where they are kept

    def add(self, accesses: int, cost: Any) -> None:
        self.accesses += accesses
        self.requests += cost.requests
        self.moved += cost.moved
        self.ideal += cost.ideal
        self.distinct += cost.distinct


class TracedSpan(Struct):
    """A stage of a pipeline is filling, full, multiplied or free, from one tick of a logical clock to another."""

    stage: str
    state: str
    start: int
    end: int
    line: int


class TracedKernel(Struct):
    """What one kernel did in the traced blocks."""

    name: str
    file: str
    grid: Point
    block: Point
    launches: int
    blocks: int
    first_block: Point
    accesses: list[TracedAccess]
    fma: int
    fma_lines: dict[str, int]  # multiply-adds of threads, by line as text
    branches: dict[str, tuple[int, int]]  # by line as text: branches of warps that split, and all
    faults: list[Fault]
    notes: dict[str, int]
    pipeline: list[TracedSpan]  # of the first block
    printed: list[str]  # the first lines, of ``prints`` in all
    prints: int
    under_way: int  # the most groups of copies that a wait left on their way
    totals: dict[str, int]  # sums over all lines, named as timing.tools.METRICS where the hardware counts them
    per_fma: dict[str, dict[str, float]]  # by memory: instructions and 32-bit values for each multiply-add

    def select(self, space: str, *ops: str) -> list[TracedAccess]:
        return [a for a in self.accesses if a.space == space and (not ops or a.op in ops)]


class Traced(Struct, omit_defaults=True):
    """A step's kernels at one problem, in launch order; ``output``, as far as they wrote it, stays in the process."""

    ladder: str
    shape: dict[str, int]
    kernels: list[TracedKernel]
    output: Any = None

    @property
    def problem(self) -> Problem:
        return from_shape(self.ladder, self.shape)

    @property
    def faults(self) -> list[Fault]:
        return [fault for kernel in self.kernels for fault in kernel.faults]

    @property
    def main(self) -> TracedKernel:
        """The kernel that multiplies most, the first of several."""
        return max(self.kernels, key=lambda kernel: kernel.fma)


class TraceResult(Result, frozen=True, kw_only=True):
    trace: Traced | None = None


class ScriptResult(Result, frozen=True, kw_only=True):
    """What came of a program: its kernels, over all launches; ``others``: faults that no kernel made; ``unknown``:
    what the tracer does not know, with the line; ``notes``: what the user is to know."""

    kernels: Sequence[TracedKernel] = ()
    others: Sequence[Fault] = ()
    unknown: Sequence[str] = ()
    notes: Sequence[str] = ()


class Script(Task[ScriptResult], frozen=True, kw_only=True, tag="check.script"):
    """What does a program do that runs kernels? The file is run as the main program, from ``folder``, with these
    ``words``, and prints where the harness does (``aside``: to standard error alone). ``stop``: end it after the
    first launch with faults. ``kept``: as in :class:`TraceOptions`."""

    folder: str
    words: Sequence[str] = ()
    stop: bool = False
    kept: int = 0
    aside: bool = False


class Trace(Task[TraceResult], frozen=True, kw_only=True, tag="check.trace"):
    """What does a file access in memory at one shape?"""

    options: TraceOptions = TraceOptions()
