"""What a trace found: of each kernel its accesses, multiply-adds, branches and faults, and figures made of them."""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

from numpy.typing import NDArray

from common.catalog.problems import Problem
from common.explain.faults import Fault, telling
from common.machine_code import summaries
from common.trace.cost import SECTOR_BYTES, Ledger, Request
from common.trace.messages import Traced, TracedAccess, TracedEvent, TracedKernel, TracedSpan
from common.trace.state import LEFT_OVER, Point

_READ = {
    "global": ("read", "copy", "tma"), "shared": ("read", "copy", "wgmma", "tma store"), "constant": ("read",),
    "local": ("read",),
}  # fmt: skip
_WRITTEN = {"global": ("write", "atomic", "tma store"), "shared": ("write", "atomic", "tma")} | dict.fromkeys(
    ("constant", "local"), ("write", "atomic")
)
_FOLLOWING = ("per_request", "ideal_per_request", "efficiency", "lanes_per_address", "bytes_moved")  # of an Access


@dataclass(frozen=True)
class Access:
    """One array, accessed in one line in one direction and width.

    ``moved``, ``ideal`` and ``distinct`` are as in :class:`common.trace.memory.Cost`; ``accesses`` counts
    threads.
    ``sample``: the first request's element offsets by lane. ``seen``: the first requests, where they are kept.
    """

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
    sample: list[int | None] | None = None
    seen: tuple[Request, ...] = ()

    @property
    def per_request(self) -> float:
        return self.moved / self.requests if self.requests else 0.0

    @property
    def ideal_per_request(self) -> float:
        return self.ideal / self.requests if self.requests else 0.0

    @property
    def lanes_per_address(self) -> float:
        """How many threads of a request share an address: above 1, the value is broadcast."""
        return self.accesses / self.distinct if self.distinct else 0.0

    @property
    def bytes_moved(self) -> int:
        """Whole sectors, from global memory or to it; 0 for other memories."""
        return self.moved * SECTOR_BYTES if self.space == "global" else 0

    @property
    def efficiency(self) -> float:
        """The share of what moved that had to."""
        return self.ideal / self.moved if self.moved else 1.0

    def as_dict(self) -> TracedAccess:
        told = {**vars(self), **{name: getattr(self, name) for name in _FOLLOWING}}
        seen = [request._asdict() for request in told.pop("seen")]
        return cast(TracedAccess, told | ({"seen": seen} if seen else {}))


@dataclass(frozen=True)
class KernelTrace:
    """What one kernel did in the traced blocks. ``file`` is the one whose lines are counted."""

    name: str
    file: str
    grid: Point
    block: Point
    launches: int
    blocks: int
    first_block: Point
    accesses: list[Access]
    fma: int
    fma_lines: dict[int, int]
    branches: dict[int, tuple[int, int]]  # line: branches of warps that split, all
    faults: list[Fault]
    notes: dict[str, int]
    events: list[TracedEvent] = field(default_factory=list)
    pipeline: list[TracedSpan] = field(default_factory=list)  # of the first block
    printed: list[str] = field(default_factory=list)  # the first lines
    prints: int = 0  # and how many there were
    under_way: int = 0  # the most groups of copies that a wait left on their way

    def select(self, space: str, *ops: str) -> list[Access]:
        return [a for a in self.accesses if a.space == space and (not ops or a.op in ops)]

    def totals(self) -> dict[str, int]:
        """Sums over all lines, named as in :data:`common.timing.tools.METRICS` where the hardware counts them."""
        # the hardware counts an asynchronous copy as a load
        read, write = self.select("global", "read", "copy"), self.select("global", "write")
        loads, stores = self.select("shared", "read"), self.select("shared", "write")
        return {
            "load_requests": sum(a.requests for a in read),
            "load_sectors": sum(a.moved for a in read),
            "store_requests": sum(a.requests for a in write),
            "store_sectors": sum(a.moved for a in write),
            "copy_requests": sum(a.requests for a in self.select("global", "copy")),
            "copy_sectors": sum(a.moved for a in self.select("global", "copy")),
            "shared_load_requests": sum(a.requests for a in loads),
            "shared_load_wavefronts": sum(a.moved for a in loads),
            "shared_store_requests": sum(a.requests for a in stores),
            "shared_store_wavefronts": sum(a.moved for a in stores),
            "shared_conflicts": sum(a.moved - a.ideal for a in loads + stores),
            "ffma_threads": self.fma,
        }

    def per_fma(self) -> dict[str, dict[str, float]]:
        """By memory: load and store instructions, and 32-bit values moved, for each multiply-add of a thread."""
        if not self.fma:
            return {}
        found = {}
        for space in ("global", "shared", "constant", "local"):
            reads, writes = self.select(space, *_READ[space]), self.select(space, *_WRITTEN[space])
            found[space] = {
                "loads": sum(a.accesses for a in reads) / self.fma,
                "loaded_values": sum(a.accesses * a.bits for a in reads) / 32 / self.fma,
                "stores": sum(a.accesses for a in writes) / self.fma,
                "stored_values": sum(a.accesses * a.bits for a in writes) / 32 / self.fma,
            }
        return found

    def as_dict(self) -> TracedKernel:
        told = {
            **vars(self),
            "branches": {str(line): counts for line, counts in self.branches.items()},
            "fma_lines": {str(line): count for line, count in self.fma_lines.items()},
            "accesses": [access.as_dict() for access in self.accesses],
            "totals": self.totals(),
            "per_fma": self.per_fma(),
        }
        return cast(TracedKernel, told)


@dataclass(frozen=True)
class Trace:
    """A step's kernels at one problem, in launch order, and the output as far as the traced blocks wrote it."""

    problem: Problem
    kernels: list[KernelTrace]
    output: NDArray[Any]

    @property
    def faults(self) -> list[Fault]:
        return [fault for kernel in self.kernels for fault in kernel.faults]

    def as_dict(self) -> Traced:
        kernels = [kernel.as_dict() for kernel in self.kernels]
        return {"ladder": self.problem.ladder, "shape": self.problem.shape(), "kernels": kernels}

    @property
    def main(self) -> KernelTrace:
        """The main kernel."""
        return summaries.main_kernel(self.kernels, lambda kernel: kernel.fma)


def _worst_first(fault: Fault) -> tuple[tuple[int, int], bool, int]:
    """A key that sorts faults as they are told."""
    return telling(fault), fault.what.endswith(LEFT_OVER), fault.line or 0


def report(function: Callable[..., Any], launches: list[tuple[Point, Point]], ledger: Ledger) -> KernelTrace:
    file = function.__code__.co_filename

    def text(line: int) -> str:
        return linecache.getline(file, line).strip()

    accesses = [
        Access(**key._asdict(), text=text(key.line), accesses=t.accesses, requests=t.requests, moved=t.moved,
               ideal=t.ideal, distinct=t.distinct, sample=t.sample, seen=tuple(t.seen))
        for key, t in sorted(ledger.tallies.items())
    ]  # fmt: skip
    faults = [
        replace(fault, code=text(fault.line or 0), count=ledger.counts[key], met=ledger.in_turn * ledger.met[key])
        for key, fault in ledger.faults.items()
    ]
    return KernelTrace(
        name=function.__name__,
        file=file,
        grid=launches[0][0],
        block=launches[0][1],
        launches=len(launches),
        blocks=sum(math.prod(grid) for grid, _ in launches),
        first_block=(0, 0, 0),
        accesses=accesses,
        fma=sum(ledger.fma.values()),
        fma_lines=dict(sorted(ledger.fma.items())),
        branches={line: (split, all_) for line, (split, all_) in sorted(ledger.diverged.items())},
        faults=sorted(faults, key=_worst_first),
        notes=ledger.notes,
        events=ledger.events,
        pipeline=ledger.pipeline,
        printed=ledger.printed,
        prints=ledger.prints,
        under_way=ledger.under_way,
    )
