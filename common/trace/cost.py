"""What a warp's memory request costs: sectors of global memory, wavefronts of shared memory.

- Global memory moves in sectors of 32 bytes; a request fetches each sector that an active lane touches once (CUDA
  C++ Best Practices Guide, "Coalesced Access to Global Memory"; Nsight Compute, ``l1tex__t_sectors``).
- An asynchronous copy past L1 (``cp.async.cg``, 16 bytes for each lane) is served for a quarter of a warp at a time:
  a sector that two quarters ask for is fetched twice. One through L1 (``cp.async.ca``) is counted like a load. Both
  were inferred from counters.
- Shared memory has 32 banks of 4 bytes. In one wavefront each bank delivers one word, to any number of lanes (CUDA
  C++ Programming Guide, "Shared Memory"; Nsight Compute, ``l1tex__data_pipe_lsu_wavefronts_mem_shared``).
- A request of 64 bits per lane is served for half a warp at a time, one of 128 bits for a quarter. For a read, twice
  as many lanes share a pass if every active lane i of the warp agrees with lane i ^ 1 on the address, or every one
  with lane i ^ 2. The pairing was inferred from counters (tests/trace/test_cost.py, ``trace --agree``).
- A copy by TMA is one request. It touches each sector of its box once, and takes a wavefront for every 128 bytes of
  it, as does wgmma of its operands: their swizzle keeps rows out of each other's banks. NVIDIA documents neither.
"""

import itertools
import linecache
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy._core import multiarray
from numpy.typing import NDArray

from common.explain.faults import Fault, telling
from common.trace.messages import Point, Traced, TracedAccess, TracedKernel, TracedSpan, TraceOptions

WARP = 32
SECTOR_BYTES = 32
BANKS = 32
WORD_BYTES = 4
MOST_PRINTED = 10  # lines of what a kernel prints that are kept
LEFT_OVER = "no wait comes after it"  # of a copy: said last, as a read before it arrived says more
# counted among the copies, and the reads, but for what they cost: of rows, no lanes share a pass
PAST_L1, ROWS = "copy past L1", "read of rows"
COUNTED_AS = {PAST_L1: "copy", ROWS: "read"}

# NumPy's own without what it wraps it in, which takes four times as long for a few warps; arrays' any() does so, too
count_nonzero: Callable[[Any], int] = getattr(multiarray, "count_nonzero", np.count_nonzero)

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_FAR = np.int64(2**62)


class Cost(NamedTuple):
    """Of one instruction over some warps: ``moved`` counts sectors or wavefronts, ``ideal`` the fewest that could do
    (the requested bytes side by side; passes without bank conflicts), ``distinct`` the addresses of each request."""

    requests: int
    moved: int
    ideal: int
    distinct: int


def sectors(addresses: Ints, active: Bools, width_bytes: int, past_l1: bool = False) -> Cost:
    """Cost of a global request; ``addresses`` in bytes and ``active`` have shape (warps, 32). Each lane's
    ``width_bytes`` must lie within one sector. ``past_l1``: a copy that leaves L1 out."""
    rows, _ = _active_rows(addresses, active)
    distinct = _different(rows)
    ideal = -(-distinct * width_bytes // SECTOR_BYTES)
    if past_l1:
        rows, _ = _active_rows(addresses.reshape(-1, WARP // 4), active.reshape(-1, WARP // 4))
    fetched = _different(rows // SECTOR_BYTES)
    return Cost(int(active.any(axis=1).sum()), int(fetched.sum()), int(ideal.sum()), int(distinct.sum()))


def wavefronts(words: Ints, active: Bools, width: int, write: bool = False) -> Cost:
    """Cost of a shared request of ``width`` (1, 2 or 4) words per lane; ``words`` are word addresses, (warps, 32)."""
    rows, used = _active_rows(words, active)
    turns, passes = _served(rows, used, width, WARP // width)
    if width > 1 and not write:
        fewer, together = _served(rows, used, width, 2 * WARP // width), _paired(rows, used)
        turns, passes = np.where(together, fewer[0], turns), np.where(together, fewer[1], passes)
    return Cost(len(rows), int(turns.sum()), int(passes.sum()), int(_different(rows).sum()))


def served_together(words: Ints, active: Bools, width: int, write: bool = False) -> int:
    """How many lanes of one request, of shape (1, 32), share a pass; arguments as in :func:`wavefronts`."""
    rows, used = _active_rows(words, active)
    paired = width > 1 and not write and len(rows) and _paired(rows, used).all()
    return WARP // width * (2 if paired else 1)


def _active_rows(values: Ints, active: Bools) -> tuple[Ints, Bools]:
    """The rows with an active lane; the others' lanes hold a copy of an active lane's value."""
    some = active.any(axis=1)
    values, active = values[some], active[some]
    if not active.all():
        stand_in = np.where(active, values, _FAR).min(axis=1, initial=_FAR)
        values = np.where(active, values, stand_in[:, None])
    return values, active


def _different(rows: Ints) -> Ints:
    return np.asarray(1 + np.count_nonzero(np.diff(np.sort(rows, axis=1), axis=1), axis=1))


def _paired(words: Ints, used: Bools) -> Bools:
    """Per row: do all used lanes i and i ^ 1 have the same address, or all used lanes i and i ^ 2?"""
    found = np.zeros(len(words), np.bool_)
    for distance in (1, 2):
        partner = np.arange(WARP) ^ distance
        found |= ((words == words[:, partner]) | ~used | ~used[:, partner]).all(axis=1)
    return found


def _served(rows: Ints, used: Bools, width: int, lanes: int) -> tuple[Ints, Ints]:
    """Per warp: wavefronts, and passes with an active lane, when ``lanes`` lanes share a pass: it takes as many
    wavefronts as the most distinct words that one bank must deliver."""
    some = used.reshape(-1, lanes).any(axis=1)
    words, _ = _active_rows(rows.reshape(-1, lanes), used.reshape(-1, lanes))
    every = np.sort((words[:, :, None] + np.arange(width)).reshape(len(words), lanes * width), axis=1)
    first = np.diff(every, axis=1, prepend=-_FAR) != 0
    slots = (np.arange(len(every)) * BANKS)[:, None] + every % BANKS
    turns = np.zeros(some.shape, np.int64)
    turns[some] = np.bincount(slots[first], minlength=len(every) * BANKS).reshape(-1, BANKS).max(axis=1)
    parts = len(rows), WARP // lanes
    return turns.reshape(parts).sum(axis=1), some.reshape(parts).sum(axis=1)


class Key(NamedTuple):
    """``space``: global, shared, constant or local; ``op``: read, write, copy, atomic, tma, tma store or wgmma."""

    line: int
    space: str
    op: str
    array: str
    bits: int


class _Tallies(dict[Key, TracedAccess]):
    def __missing__(self, key: Key) -> TracedAccess:
        line, space, op, array, bits = key
        self[key] = TracedAccess(line, "", space, op, array, bits, 0, 0, 0, 0, 0, None, 0.0, 0.0, 1.0, 0.0, 0)
        return self[key]


_Place = tuple[str, "int | None", str]  # of a fault: its kind, line and array


class Ledger:
    """What a traced kernel did: tallies by Key, multiply-adds and divergence by line, faults, and notes."""

    def __init__(self) -> None:
        self.recording = True
        self.tallies = _Tallies()
        self.fma: Counter[int] = Counter()
        self.diverged: dict[int, list[int]] = {}  # line: [branches of warps that split, all branches of warps]
        self.faults: dict[_Place, Fault] = {}  # the first of its kind at a line, of an array; how many lanes or words
        self.in_turn = False  # do threads wait for engines, so that faults may follow from those that were met before
        self._causes: dict[str, int] = {}  # as which of the faults each was met first
        self.notes: Counter[str] = Counter()
        self.printed: list[str] = []  # lines, the first MOST_PRINTED
        self.prints = 0  # how many there were
        self.options = TraceOptions()
        self.launches: list[tuple[Point, Point]] = []  # grids and blocks
        self.pipeline: list[TracedSpan] = []  # of the first block
        self.under_way = 0  # the most groups of copies that a wait for the others left on their way
        self._costs: dict[Any, Cost] = {}

    def cost(self, space: str, positions: Ints, active: Bools, width_bytes: int, op: str = "read") -> Cost:
        """Cost of a request, remembered by pattern: most accesses repeat with another start. ``positions``: in bytes,
        one per lane."""
        # sectors keep their number under a shift by whole sectors, wavefronts under one by whole words
        unit = SECTOR_BYTES if space == "global" else WORD_BYTES
        pattern = positions - positions[0] // unit * unit
        key = (space, width_bytes, op, pattern.tobytes(), active.tobytes())
        found = self._costs.get(key)
        if found is None:
            rows, lanes = pattern.reshape(-1, WARP), active.reshape(-1, WARP)
            if space == "global":
                found = sectors(rows, lanes, width_bytes, op == PAST_L1)
            elif space == "shared":
                words, alone = width_bytes // WORD_BYTES or 1, op in ("write", "copy", ROWS)
                found = wavefronts(rows // WORD_BYTES, lanes, words, alone)
            else:  # constant memory: different words are read one after the other
                rows, _ = _active_rows(rows, lanes)
                turns = int(_different(rows).sum())
                found = Cost(len(rows), turns, len(rows), turns)
            if len(self._costs) * len(key[3]) > 1 << 28:
                self._costs.clear()
            self._costs[key] = found
        return found

    def multiply_add(self, line: int, dtype: np.dtype[Any], count: int) -> None:
        if self.recording and dtype.kind == "f":
            self.fma[line] += count
            if dtype == np.float64:
                self.notes[f"line {line} multiplies and adds in float64"] += 1

    def print(self, lines: Iterable[str], count: int) -> None:
        self.printed += itertools.islice(lines, max(MOST_PRINTED - len(self.printed), 0))
        self.prints += count

    def fault(self, fault: Fault, count: int = 1, cause: str = "") -> None:
        """``cause``: of several faults, which teams that take turns meet in any order."""
        key = fault.kind, fault.line, fault.array
        if before := self.faults.get(key):
            self.faults[key] = replace(before, count=before.count + count)
        else:
            met = self._causes.setdefault(cause or str(key), len(self.faults) + 1) if self.in_turn else 0
            self.faults[key] = replace(fault, count=count, met=met)


# --- a trace of what a ledger counted, and figures of a trace ---


def report(function: Callable[..., Any], ledger: Ledger) -> TracedKernel:
    file = function.__code__.co_filename

    def text(line: int) -> str:
        return linecache.getline(file, line).strip()

    for key, one in ledger.tallies.items():
        one.text = text(key.line)
        if one.requests:
            one.per_request, one.ideal_per_request = one.moved / one.requests, one.ideal / one.requests
        if one.moved:
            one.efficiency = one.ideal / one.moved
            one.bytes_moved = one.moved * SECTOR_BYTES if key.space == "global" else 0
        if one.distinct:
            one.lanes_per_address = one.accesses / one.distinct
    accesses = [ledger.tallies[key] for key in sorted(ledger.tallies)]
    faults = [replace(fault, code=text(fault.line or 0)) for fault in ledger.faults.values()]
    fma = sum(ledger.fma.values())
    same = ("notes", "pipeline", "printed", "prints", "under_way")
    grid, block = ledger.launches[0]
    blocks = sum(math.prod(grid) for grid, _ in ledger.launches)
    return TracedKernel(
        function.__name__, file, grid, block, len(ledger.launches), blocks, (0, 0, 0), accesses, fma,
        fma_lines={str(line): count for line, count in sorted(ledger.fma.items())},
        branches={str(line): (split, all_) for line, (split, all_) in sorted(ledger.diverged.items())},
        faults=sorted(faults, key=lambda one: (telling(one), one.what.endswith(LEFT_OVER), one.line or 0)),
        totals=_totals(accesses, fma),
        per_fma=_per_fma(accesses, fma) if fma else {},
        **{name: getattr(ledger, name) for name in same},
    )  # fmt: skip


_COUNTED = {
    "load": ("global", "read", "copy"), "store": ("global", "write"), "copy": ("global", "copy"),
    "shared_load": ("shared", "read"), "shared_store": ("shared", "write"),
}  # fmt: skip


def _totals(accesses: list[TracedAccess], fma: int) -> dict[str, int]:
    """Named as in :class:`common.trace.messages.TracedKernel`; an asynchronous copy is a load, as hardware counts."""
    found, conflicts = {}, 0
    for name, (space, *ops) in _COUNTED.items():
        own = [a for a in accesses if a.space == space and a.op in ops]
        found[f"{name}_requests"] = sum(a.requests for a in own)
        found[f"{name}_{'sectors' if space == 'global' else 'wavefronts'}"] = sum(a.moved for a in own)
        conflicts += sum(a.moved - a.ideal for a in own if space == "shared")
    return {**found, "shared_conflicts": conflicts, "ffma_threads": fma}


def _per_fma(accesses: list[TracedAccess], fma: int) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for space in "global", "shared", "constant", "local":
        found[space] = {}
        # what the copy engine takes from one memory it brings to the other
        engine = ("tma", "tma store") if space == "global" else ("tma store", "tma")
        loads, stores = ("read", "copy", "wgmma", engine[0]), ("write", "atomic", engine[1])
        for ops, instructions, values in (loads, "loads", "loaded_values"), (stores, "stores", "stored_values"):
            own = [a for a in accesses if a.space == space and a.op in ops]
            found[space][instructions] = sum(a.accesses for a in own) / fma
            found[space][values] = sum(a.accesses * a.bits for a in own) / 32 / fma
    return found


def loads_per_fma(found: Traced) -> dict[str, float]:
    """By memory: loads for each multiply-add of the main kernel; empty without any."""
    by_space = found.main.per_fma
    return {space: round(by_space[space]["loads"], 4) for space in ("global", "shared", "constant") if by_space}


def worst(found: Traced) -> dict[str, float]:
    """``sectors`` and ``turns`` (wavefronts) for a request, of the access with most."""
    accesses = [access for kernel in found.kernels for access in kernel.accesses]
    names = {"sectors": "global", "turns": "shared"}
    return {name: max((a.per_request for a in accesses if a.space == s), default=0.0) for name, s in names.items()}
