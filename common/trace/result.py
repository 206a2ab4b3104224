"""Makes a trace of what a ledger counted, and figures of a trace."""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from common.explain.faults import Fault, telling
from common.trace.cost import SECTOR_BYTES, Key, Ledger, Tally
from common.trace.messages import Traced, TracedAccess, TracedKernel
from common.trace.state import LEFT_OVER, Point

_READ = {
    "global": ("read", "copy", "tma"), "shared": ("read", "copy", "wgmma", "tma store"), "constant": ("read",),
    "local": ("read",),
}  # fmt: skip
_WRITTEN = {"global": ("write", "atomic", "tma store"), "shared": ("write", "atomic", "tma")} | dict.fromkeys(
    ("constant", "local"), ("write", "atomic")
)
_MOVED = ("read", "copy", "write", "tma", "tma store", "wgmma")


def report(function: Callable[..., Any], launches: list[tuple[Point, Point]], ledger: Ledger) -> TracedKernel:
    """What a kernel did in launches of these grids and blocks."""
    file = function.__code__.co_filename

    def text(line: int) -> str:
        return linecache.getline(file, line).strip()

    accesses = [_access(key, tally, text(key.line)) for key, tally in sorted(ledger.tallies.items())]
    faults = [
        replace(fault, code=text(fault.line or 0), count=ledger.counts[key], met=ledger.in_turn * ledger.met[key])
        for key, fault in ledger.faults.items()
    ]
    fma = sum(ledger.fma.values())
    return TracedKernel(
        name=function.__name__,
        file=file,
        grid=launches[0][0],
        block=launches[0][1],
        launches=len(launches),
        blocks=sum(math.prod(grid) for grid, _ in launches),
        first_block=(0, 0, 0),
        accesses=accesses,
        fma=fma,
        fma_lines={str(line): count for line, count in sorted(ledger.fma.items())},
        branches={str(line): (split, all_) for line, (split, all_) in sorted(ledger.diverged.items())},
        faults=sorted(faults, key=_worst_first),
        notes=ledger.notes,
        events=ledger.events,
        pipeline=ledger.pipeline,
        printed=ledger.printed,
        prints=ledger.prints,
        under_way=ledger.under_way,
        totals=_totals(accesses, fma),
        per_fma=_per_fma(accesses, fma) if fma else {},
    )


def _access(key: Key, tally: Tally, text: str) -> TracedAccess:
    return TracedAccess(
        line=key.line,
        text=text,
        space=key.space,
        op=key.op,
        array=key.array,
        bits=key.bits,
        accesses=tally.accesses,
        requests=tally.requests,
        moved=tally.moved,
        ideal=tally.ideal,
        distinct=tally.distinct,
        sample=tally.sample,
        per_request=tally.moved / tally.requests if tally.requests else 0.0,
        ideal_per_request=tally.ideal / tally.requests if tally.requests else 0.0,
        efficiency=tally.ideal / tally.moved if tally.moved else 1.0,
        lanes_per_address=tally.accesses / tally.distinct if tally.distinct else 0.0,
        bytes_moved=tally.moved * SECTOR_BYTES if key.space == "global" else 0,
        seen=tally.seen,
    )


def _worst_first(fault: Fault) -> tuple[tuple[int, int], bool, int]:
    """A key that sorts faults as they are told."""
    return telling(fault), fault.what.endswith(LEFT_OVER), fault.line or 0


def _totals(accesses: list[TracedAccess], fma: int) -> dict[str, int]:
    """See :class:`common.trace.messages.TracedKernel`; an asynchronous copy is a load, as the hardware counts."""

    def total(key: str, space: str, *ops: str) -> int:
        return sum(getattr(a, key) for a in accesses if a.space == space and a.op in ops)

    return {
        "load_requests": total("requests", "global", "read", "copy"),
        "load_sectors": total("moved", "global", "read", "copy"),
        "store_requests": total("requests", "global", "write"),
        "store_sectors": total("moved", "global", "write"),
        "copy_requests": total("requests", "global", "copy"),
        "copy_sectors": total("moved", "global", "copy"),
        "shared_load_requests": total("requests", "shared", "read"),
        "shared_load_wavefronts": total("moved", "shared", "read"),
        "shared_store_requests": total("requests", "shared", "write"),
        "shared_store_wavefronts": total("moved", "shared", "write"),
        "shared_conflicts": total("moved", "shared", "read", "write") - total("ideal", "shared", "read", "write"),
        "ffma_threads": fma,
    }


def _per_fma(accesses: list[TracedAccess], fma: int) -> dict[str, dict[str, float]]:
    found = {}
    for space in ("global", "shared", "constant", "local"):
        reads = [a for a in accesses if a.space == space and a.op in _READ[space]]
        writes = [a for a in accesses if a.space == space and a.op in _WRITTEN[space]]
        found[space] = {
            "loads": sum(a.accesses for a in reads) / fma,
            "loaded_values": sum(a.accesses * a.bits for a in reads) / 32 / fma,
            "stores": sum(a.accesses for a in writes) / fma,
            "stored_values": sum(a.accesses * a.bits for a in writes) / 32 / fma,
        }
    return found


def loads_per_fma(found: Traced) -> dict[str, float]:
    """By memory: loads for each multiply-add of the main kernel; empty without any."""
    by_space = found.main.per_fma
    return {space: round(by_space[space]["loads"], 4) for space in ("global", "shared", "constant") if by_space}


def traffic(found: Traced) -> dict[str, dict[str, float]]:
    """By kernel, the memory figures of a resource card, those that there are; see cards.TRAFFIC."""
    return {kernel.name: _traffic(kernel) for kernel in found.kernels}


def _traffic(kernel: TracedKernel) -> dict[str, float]:
    def total(key: Literal["requests", "moved", "ideal"], space: str, *ops: str) -> int:
        return sum(getattr(access, key) for access in kernel.select(space, *ops))

    figures = {}
    if requests := total("requests", "global", "read", "copy"):
        figures["sectors_per_request"] = round(total("moved", "global", "read", "copy") / requests, 3)
    if ideal := total("ideal", "shared", "read", "write"):
        figures["conflicts"] = round(total("moved", "shared", "read", "write") / ideal, 3)
    if kernel.fma:
        moved = sum(a.accesses * a.bits // 8 for a in kernel.select("global", *_MOVED))
        figures["bytes_per_fma"] = round(moved / kernel.fma, 4)
    return figures


def worst(found: Traced) -> dict[str, float]:
    """``sectors`` and ``turns`` (wavefronts) for a request, of the access with most."""

    def most(space: str) -> float:
        return max((a.per_request for kernel in found.kernels for a in kernel.select(space)), default=0.0)

    return {"sectors": most("global"), "turns": most("shared")}
