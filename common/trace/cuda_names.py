"""The names of ``numba.cuda`` that kernels use: places, barriers, votes, shuffles, bits, half precision."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from common.trace import intrinsics, races, unwritten, values
from common.trace.cost import WARP, Bools, Ints
from common.trace.intrinsics import Code, Intrinsic
from common.trace.state import State
from common.trace.values import Value, dtype_of, truth, uniform


class Cuda:
    """The names of ``numba.cuda`` that kernels use."""

    warpsize = WARP

    def __init__(self, state: State) -> None:
        self._state = state
        self.blockIdx = self.threadIdx = _point((0, 0, 0))
        for name, function in _FUNCTIONS.items():
            setattr(self, name, Intrinsic(function))
        self.shared = SimpleNamespace(array=Intrinsic(intrinsics.shared_memory))
        self.local = SimpleNamespace(array=Intrinsic(intrinsics.local_memory))
        self.const = SimpleNamespace(array_like=Intrinsic(intrinsics.constant_memory))
        self.atomic = SimpleNamespace(
            **{name: Intrinsic(intrinsics.atomic(combine)) for name, combine in intrinsics.ATOMIC.items()},
            cas=Intrinsic(intrinsics.cas), compare_and_swap=Intrinsic(intrinsics.compare_and_swap),
        )  # fmt: skip
        self.fp16 = SimpleNamespace(**{name: _half(function) for name, function in _HALF.items()})

    def place(self, blocks: list[Value]) -> None:
        """The blocks that run now, by axis."""
        state = self._state
        across = [b if type(b) is int else int(b[0]) if len(b) == 1 else b[state.block_number] for b in blocks]
        self.blockIdx, self.threadIdx = _point(across), _point(state.thread_axes)
        self.blockDim, self.gridDim = _point(state.block), _point(state.grid)
        self.laneid = state.lane_numbers % WARP

    def grid(self, dimensions: int) -> Value:
        state, block, thread = self._state, self.blockIdx, self.threadIdx
        parts = [
            values.add(values.mul(getattr(block, axis), extent), getattr(thread, axis))
            for axis, extent in zip("xyz", state.block, strict=True)
        ]
        return parts[0] if dimensions == 1 else tuple(parts[:dimensions])

    def gridsize(self, dimensions: int) -> Any:
        state = self._state
        parts = [blocks * threads for blocks, threads in zip(state.grid, state.block, strict=True)]
        return parts[0] if dimensions == 1 else tuple(parts[:dimensions])


def _point(parts: Any) -> SimpleNamespace:
    return SimpleNamespace(**dict(zip("xyz", parts, strict=True)))


_EVERYBODY = 0xFFFFFFFF
_BIT = 1 << np.arange(WARP)


def _votes(state: State, line: int, member: Value, name: str) -> tuple[Ints, Ints]:
    """Per lane: the lanes that its mask names and that run here, as bits; and the lane's number.

    What Volta and later ask for, or it is a fault: a thread's mask names itself, and all that it names come.
    """
    bits, lane = state.mask.bits, state.lane_numbers % WARP
    named = np.broadcast_to(np.asarray(member).astype(np.int64), bits.shape) & _EVERYBODY
    here, alive = _packed(bits), _packed(state.waiting.bits)
    outside = bits & ((named >> lane) & 1 == 0)
    if outside.any():
        state.fault("warp-sync", line, "", f"{name} is called by a thread that its mask does not name", outside)
    absent = bits & (named & alive & ~here != 0)
    if absent.any():
        text = f"{name} names threads in its mask that do not come to it: they have branched off"
        state.fault("warp-sync", line, "", text, absent)
    return named & here, lane


def _packed(bits: Bools) -> Ints:
    """For each lane, the bits of its warp."""
    words: Ints = bits.reshape(-1, WARP) @ _BIT
    return np.repeat(words, WARP)


def barrier(state: State, line: int) -> None:
    """A barrier of the block; beside engines, those who come first let the others go on."""
    if state.has_engines:
        state.engines.barrier(line, False)
    else:
        races.pass_barrier(state, line)


def syncthreads(state: State, line: int) -> None:
    barrier(state, line)


def _count(state: State, line: int, predicate: Value) -> Ints:
    """For each lane, the threads of its block at the barrier for which it holds."""
    if state.has_engines:
        raise state.unknown(line, "barriers that count are not traced beside barriers that count bytes")
    holds = np.broadcast_to(truth(predicate), state.mask.bits.shape) & state.mask.bits
    barrier(state, line)
    counts = np.count_nonzero(holds.reshape(state.blocks_at_once, -1), axis=1)
    return np.repeat(counts.astype(np.int64), state.lanes_per_block)


def syncthreads_count(state: State, line: int, predicate: Value) -> Value:
    return _count(state, line, predicate)


def syncthreads_and(state: State, line: int, predicate: Value) -> Value:
    return (_count(state, line, values.logical_not(predicate)) == 0).astype(np.int64)


def syncthreads_or(state: State, line: int, predicate: Value) -> Value:
    return (_count(state, line, predicate) != 0).astype(np.int64)


def syncwarp(state: State, line: int, member: Value = _EVERYBODY) -> None:
    """From here on, what the named threads did before is there for each other."""
    _votes(state, line, member, "syncwarp")
    whole = not state.has_engines and state.mask.count == state.waiting.count
    if whole and uniform(member) and int(member) & _EVERYBODY == _EVERYBODY:
        state.stamps = state.stamps + 1
    else:
        state.stamps = state.stamps + state.mask.bits
    if state.has_engines:
        rows = state.mask.bits.reshape(-1, WARP) | ~state.waiting.bits.reshape(-1, WARP)
        state.engines.clocks.pass_on(
            np.flatnonzero(rows.all(axis=1) & state.mask.bits.reshape(-1, WARP).any(axis=1)).tolist()
        )


def _shuffled(state: State, line: int, member: Value, value: Value, source: Value, name: str) -> Value:
    """Each lane's value becomes that of a lane of its warp; ``source`` below 0 or above 31: its own."""
    present, lane = _votes(state, line, member, name)
    source = np.broadcast_to(np.asarray(source).astype(np.int64), lane.shape)
    source = np.where((source < 0) | (source >= WARP), lane, source)
    missing = state.mask.bits & ((present >> source) & 1 == 0)
    real = dtype_of(value).kind == "f"
    if missing.any() and not real:
        state.fault("warp-sync", line, "", f"{name} takes the value of a thread that does not come to it", missing)
    taken = value if uniform(value) else value[state.lane_numbers - lane + source]
    if state.tainted is not None:
        giver = state.lane_numbers - lane + source
        state.tainted = state.tainted | state.tainted[giver]
        for one in state.sources:
            one.offsets = np.where(one.lanes, one.offsets, one.offsets[giver])
            one.lanes = one.lanes | one.lanes[giver]
    if missing.any() and real:
        unwritten.taken_from_nobody(state, line, name, missing)
    # what comes from nobody may be thrown away, as the upper half of a sum is
    return np.where(missing, dtype_of(value).type(np.nan), taken) if real and missing.any() else taken


def _shuffle(name: str, source_of: Callable[[Ints, Any], Any]) -> Code:
    """``source_of(lane, other)``: the lane of its warp whose value a lane takes."""

    def shuffle(state: State, line: int, member: Value, value: Value, other: Value) -> Value:
        return _shuffled(state, line, member, value, source_of(state.lane_numbers % WARP, other), name)

    shuffle.__name__ = name
    return shuffle


_SHUFFLES = (
    _shuffle("shfl_sync", lambda _, other: np.asarray(other) % WARP),
    _shuffle("shfl_up_sync", lambda lane, delta: lane - delta),
    _shuffle("shfl_down_sync", lambda lane, delta: lane + delta),
    _shuffle("shfl_xor_sync", lambda lane, other: lane ^ np.asarray(other).astype(np.int64)),
)


def ballot_sync(state: State, line: int, member: Value, predicate: Value) -> Value:
    present, _ = _votes(state, line, member, "ballot_sync")
    holds = np.broadcast_to(truth(predicate), state.mask.bits.shape) & state.mask.bits
    return _packed(holds) & present


def all_sync(state: State, line: int, member: Value, predicate: Value) -> Value:
    present, _ = _votes(state, line, member, "all_sync")
    return ballot_sync(state, line, member, predicate) == present


def any_sync(state: State, line: int, member: Value, predicate: Value) -> Value:
    return ballot_sync(state, line, member, predicate) != 0


def eq_sync(state: State, line: int, member: Value, predicate: Value) -> Value:
    present, _ = _votes(state, line, member, "eq_sync")
    holds = ballot_sync(state, line, member, predicate)
    return (holds == present) | (holds == 0)


def match_any_sync(state: State, line: int, member: Value, value: Value) -> Value:
    present, _ = _votes(state, line, member, "match_any_sync")
    rows = np.broadcast_to(np.asarray(value), present.shape).reshape(-1, WARP)
    alike: Ints = ((rows[:, :, None] == rows[:, None, :]) @ _BIT).reshape(-1)
    return alike & present


def match_all_sync(state: State, line: int, member: Value, value: Value) -> Value:
    present, _ = _votes(state, line, member, "match_all_sync")
    agree = match_any_sync(state, line, member, value) == present
    return np.where(agree, present, 0), agree


def activemask(state: State, line: int) -> Value:
    return _packed(state.mask.bits)


def lanemask_lt(state: State, line: int) -> Value:
    return (1 << state.lane_numbers % WARP) - 1


def threadfence(state: State, line: int) -> None:
    lanes, stamps = state.mask.bits, state.stamps
    state.log.fence(state.ordinals(lanes), stamps[lanes] if isinstance(stamps, np.ndarray) else stamps)


def threadfence_block(state: State, line: int) -> None:
    pass


def nanosleep(state: State, line: int, nanoseconds: Value) -> None:
    pass


def _bits(value: Value) -> tuple[Any, int]:
    """An integer's bits, unsigned, and how many it has."""
    dtype = dtype_of(value)
    found = np.asarray(value).astype(dtype).view(f"u{dtype.itemsize}")
    return found, 8 * dtype.itemsize


def _leave(result: Any, value: Value) -> Value:
    return int(result) if uniform(value) else result.astype(np.int64)


def popc(state: State, line: int, value: Value) -> Value:
    return _leave(np.bitwise_count(_bits(value)[0]), value)


def brev(state: State, line: int, value: Value) -> Value:
    bits, size = _bits(value)
    result = np.zeros_like(bits)
    for i in range(size):
        result |= ((bits >> bits.dtype.type(i)) & bits.dtype.type(1)) << bits.dtype.type(size - 1 - i)
    return int(result) if uniform(value) else result


def _highest(bits: Any, size: int) -> Any:
    """The number of the highest bit that is set, -1 without one."""
    found = np.full(np.shape(bits), -1)
    for i in range(size):
        found = np.where((bits >> bits.dtype.type(i)) & bits.dtype.type(1) != 0, i, found)
    return found


def clz(state: State, line: int, value: Value) -> Value:
    bits, size = _bits(value)
    return _leave(size - 1 - _highest(bits, size), value)


def ffs(state: State, line: int, value: Value) -> Value:
    bits, size = _bits(value)
    return _leave(_highest(bits & (~bits + bits.dtype.type(1)), size) + 1, value)


def fma(state: State, line: int, a: Value, b: Value, c: Value) -> Value:
    a, b = values.unified(a, b)
    kind = dtype_of(values.unified(a, c)[0])
    state.ledger.multiply_add(line, kind, state.mask.count)
    # float32 products are exact in float64, and so, nearly always, is the one rounding at the end
    return (np.asarray(a, np.float64) * b + np.asarray(c, np.float64)).astype(kind)[()]


def cbrt(state: State, line: int, value: Value) -> Value:
    return np.cbrt(value)


def rsqrt(state: State, line: int, value: Value) -> Value:
    return dtype_of(value).type(1) / np.sqrt(value)


def selp(state: State, line: int, condition: Value, a: Value, b: Value) -> Value:
    return values.choose(condition, a, b)


_FUNCTIONS: dict[str, Code] = {
    function.__name__: function
    for function in (
        syncthreads, syncthreads_count, syncthreads_and, syncthreads_or, syncwarp, *_SHUFFLES, ballot_sync,
        all_sync, any_sync, eq_sync, match_any_sync, match_all_sync,
        activemask, lanemask_lt, threadfence, threadfence_block, nanosleep, popc, brev, clz, ffs, fma, cbrt, rsqrt,
        selp,
    )
} | {"threadfence_system": threadfence}  # fmt: skip

_HALF: dict[str, Code] = {
    "hadd": np.add, "hsub": np.subtract, "hmul": np.multiply, "hdiv": np.divide, "hneg": np.negative,
    "habs": np.absolute, "hmax": np.maximum, "hmin": np.minimum, "heq": np.equal, "hne": np.not_equal,
    "hgt": np.greater, "hge": np.greater_equal, "hlt": np.less, "hle": np.less_equal, "hsqrt": np.sqrt,
    "hexp": np.exp, "hlog": np.log, "hfloor": np.floor, "hceil": np.ceil, "htrunc": np.trunc, "hrint": np.rint,
    "hfma": lambda a, b, c: (np.asarray(a, np.float64) * b + c).astype(np.float16)[()],
}  # fmt: skip


def _half(function: Code) -> Code:
    return lambda *numbers: function(*(values.cast(number, np.dtype(np.float16)) for number in numbers))
