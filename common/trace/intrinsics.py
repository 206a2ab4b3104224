"""What kernels may call and the tracer carries out itself: their registry, atomics, ``cuda.*``."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from common.trace import races, values, views
from common.trace.cost import WARP, Bools, Ints
from common.trace.memory import Global
from common.trace.records import constant_memory, local_memory, shared_memory
from common.trace.shared import Shared
from common.trace.state import State
from common.trace.values import Value, dtype_of, truth, uniform
from common.trace.views import View

Code = Callable[..., Any]


class Intrinsic:
    """A function that the tracer carries out itself: called with the state, the line, and the arguments."""

    def __init__(self, function: Code, name: str = "") -> None:
        self.function, self.name = function, name


TOOLKIT = "lessons.toolkit."  # the modules whose functions have a model here, which is known by the function's name
INTRINSICS: dict[str, Intrinsic] = {}  # these models
ENGINES: set[str] = set()  # those of them that set to work what works beside the threads


def intrinsic(function: Code, name: str = "", engines: bool = False) -> Code:
    """Kernels know it by its own name, or by ``name``."""
    name = name or function.__name__
    INTRINSICS[name] = Intrinsic(function, name)
    if engines:
        ENGINES.add(name)
    return function


def model_of(function: Any) -> Intrinsic | None:
    """The tracer's model of a function of the toolkit; None of any other, and of one that is run as it stands."""
    ours = str(getattr(function, "__module__", "")).startswith(TOOLKIT)
    return INTRINSICS.get(getattr(function, "__name__", "")) if ours else None


def unknown(name: str) -> Intrinsic:
    """What kernels may call and the tracer does not know: a TraceError says so where it is called."""

    def call(state: State, line: int, *_: Any, **__: Any) -> None:
        raise state.unknown(line, f"{name} is not known to the tracer")

    return Intrinsic(call)


def one_number(state: State, line: int, name: str, value: Value) -> int:
    if not uniform(value):
        raise state.error(line, f"{name} takes one number for all threads, known when compiling")
    return int(value)


# --- atomic operations ---


_MOST_REFUSED = 2_000  # times in a row that nobody finds what compare-and-swap waits for


ATOMIC: dict[str, Code] = {
    "add": np.add, "sub": np.subtract, "max": lambda old, value: np.where(value > old, value, old),
    "min": lambda old, value: np.where(value < old, value, old), "nanmax": np.fmax, "nanmin": np.fmin,
    "and_": np.bitwise_and, "or_": np.bitwise_or, "xor": np.bitwise_xor, "exch": lambda old, value: value,
    "inc": lambda old, limit: np.where(old >= limit, 0, old + 1),
    "dec": lambda old, limit: np.where((old == 0) | (old > limit), limit, old - 1),
}  # fmt: skip


def atomic(combine: Code) -> Code:
    def apply(state: State, line: int, view: View, index: Any, value: Value) -> Value:
        operand = np.broadcast_to(np.asarray(values.cast(value, view.dtype)), state.mask.bits.shape)
        fresh = combine is ATOMIC["exch"]
        change = lambda old, lanes: combine(old, operand[lanes])  # noqa: E731
        running = (combine, operand) if isinstance(combine, np.ufunc) and combine.nin == 2 else None
        return _change(state, line, view, index, change, fresh, running)

    return apply


def cas(state: State, line: int, view: View, index: Any, old: Value, value: Value) -> Value:
    shape = state.mask.bits.shape
    wanted, put = (np.broadcast_to(np.asarray(values.cast(v, view.dtype)), shape) for v in (old, value))
    change = lambda held, lanes: np.where(held == wanted[lanes], put[lanes], held)  # noqa: E731
    found = _change(state, line, view, index, change)
    met = state.mask.bits & (found == wanted)
    state.refused = 0 if met.any() else state.refused + 1
    if state.refused > _MOST_REFUSED:
        raise state.unknown(line, "threads wait here for what others do who wait for them: that is not traced")
    return found


def _change(
    state: State, line: int, view: View, index: Any, change: Code, fresh: bool = False,
    running: tuple[Any, Any] | None = None,
) -> Value:  # fmt: skip
    """Threads that change one element do so one after the other. ``fresh``: what it held does not matter;
    ``running``: the operation and the threads' operands, where ``change`` is a running sum of these."""
    place, wrong = view.place(state, index, line, "written")
    storage = view.storage
    if not isinstance(storage, Global | Shared):
        raise state.error(
            line, f"{view.name} is neither in global nor in shared memory: no atomic operation takes it"
        )
    lanes = state.among(wrong)
    at = storage.begin_atomic(state, view, place, lanes, line, fresh)
    everyone = np.flatnonzero(lanes)
    if state.reversed:
        everyone = everyone[::-1]
    old = np.zeros(lanes.shape, view.dtype)
    order = np.argsort(at[everyone], kind="stable")
    everyone, places = everyone[order], at[everyone][order]
    starts = np.flatnonzero(np.diff(places, prepend=-1))
    counts = np.diff(np.append(starts, len(places)))
    if running and len(starts) < counts.max(initial=0):
        combine, operand = running
        for start, count in zip(starts, counts, strict=True):
            own = everyone[start : start + count]
            values_ = np.concatenate((storage.data[places[start], None], operand[own]))
            sums = combine.accumulate(values_, dtype=view.dtype)
            old[own], storage.data[places[start]] = sums[:-1], sums[-1]
    else:
        for turn in range(counts.max(initial=0)):
            chosen = starts[counts > turn] + turn
            now = everyone[chosen]
            old[now] = storage.data[places[chosen]]
            storage.data[places[chosen]] = change(old[now], now)
    if storage.written is not None:
        storage.written[at[lanes]] = True
    return old


# --- numba.cuda ---


class Cuda:
    """The names of ``numba.cuda`` that kernels use."""

    warpsize = WARP

    def __init__(self, state: State) -> None:
        self._state = state
        self.blockIdx, self.threadIdx = SimpleNamespace(), SimpleNamespace()
        self.blockDim, self.gridDim = SimpleNamespace(), SimpleNamespace()
        for name, function in _FUNCTIONS.items():
            setattr(self, name, Intrinsic(function))
        self.shared = SimpleNamespace(array=Intrinsic(shared_memory))
        self.local = SimpleNamespace(array=Intrinsic(local_memory))
        self.cg = SimpleNamespace(this_grid=Intrinsic(this_grid))
        self.const = SimpleNamespace(array_like=Intrinsic(constant_memory))
        self.atomic = SimpleNamespace(
            **{name: Intrinsic(atomic(combine)) for name, combine in ATOMIC.items()},
            cas=Intrinsic(cas),
            compare_and_swap=Intrinsic(lambda state, line, view, *values: cas(state, line, view, 0, *values)),
        )
        self.fp16 = SimpleNamespace(**{name: _half(function) for name, function in _HALF.items()})

    def place(self, blocks: list[Value]) -> None:
        """The blocks that run now, by axis."""
        state = self._state
        across = [b if type(b) is int else int(b[0]) if len(b) == 1 else b[state.block_number] for b in blocks]
        points = (self.blockIdx, across), (self.threadIdx, state.thread_axes), (self.blockDim, state.block)
        for point, parts in (*points, (self.gridDim, state.grid)):
            point.x, point.y, point.z = parts
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


def this_grid(state: State, line: int) -> SimpleNamespace:
    return SimpleNamespace(sync=Intrinsic(grid_barrier))


def grid_barrier(state: State, line: int) -> None:
    if state.has_engines:
        raise state.unknown(line, "a barrier of the whole grid is not traced beside barriers that count bytes")
    races.pass_grid_barrier(state, line)


def _count(state: State, line: int, predicate: Value) -> Ints:
    """For each lane, the threads of its block at the barrier for which it holds."""
    if state.has_engines:
        raise state.unknown(line, "barriers that count are not traced beside barriers that count bytes")
    holds = np.broadcast_to(truth(predicate), state.mask.bits.shape) & state.mask.bits
    barrier(state, line)
    counts = np.count_nonzero(holds.reshape(state.blocks_at_once, -1), axis=1)
    return np.repeat(counts.astype(np.int64), state.lanes_per_block)


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
    there = missing & ((_packed(state.waiting.bits) >> source) & 1 != 0)  # what one that has ended gives is unused
    if there.any() and not real:
        state.fault("warp-sync", line, "", f"{name} takes the value of a thread that does not come to it", there)
    taken = value if uniform(value) else value[state.lane_numbers - lane + source]
    if state.tainted is not None:
        giver = state.lane_numbers - lane + source
        state.tainted = state.tainted | state.tainted[giver]
        for one in state.sources:
            one.offsets = np.where(one.lanes, one.offsets, one.offsets[giver])
            one.lanes = one.lanes | one.lanes[giver]
    if missing.any() and real:
        views.taken_from_nobody(state, line, name, missing)
    # what comes from nobody may be thrown away, as the upper half of a sum is
    return np.where(missing, dtype_of(value).type(np.nan), taken) if real and missing.any() else taken


def _shuffle(name: str, source_of: Callable[[Ints, Any], Any]) -> Code:
    """``source_of(lane, other)``: the lane of its warp whose value a lane takes."""

    def shuffle(state: State, line: int, member: Value, value: Value, other: Value) -> Value:
        return _shuffled(state, line, member, value, source_of(state.lane_numbers % WARP, other), name)

    return shuffle


def _vote(name: str, made: Callable[[Ints, Ints], Any]) -> Code:
    """``made`` of the lanes that vote and, of these, those for which the predicate holds: bits, for each lane."""

    def vote(state: State, line: int, member: Value, predicate: Value) -> Value:
        present, _ = _votes(state, line, member, name)
        holds = np.broadcast_to(truth(predicate), state.mask.bits.shape) & state.mask.bits
        return made(present, _packed(holds) & present)

    return vote


def _alike(state: State, line: int, member: Value, value: Value, name: str) -> tuple[Ints, Ints]:
    """The lanes that vote and, of these, those with a lane's value."""
    present, _ = _votes(state, line, member, name)
    rows = np.broadcast_to(np.asarray(value), present.shape).reshape(-1, WARP)
    alike: Ints = ((rows[:, :, None] == rows[:, None, :]) @ _BIT).reshape(-1)
    return present, alike & present


def match_any_sync(state: State, line: int, member: Value, value: Value) -> Value:
    return _alike(state, line, member, value, "match_any_sync")[1]


def match_all_sync(state: State, line: int, member: Value, value: Value) -> Value:
    present, alike = _alike(state, line, member, value, "match_all_sync")
    return np.where(alike == present, present, 0), alike == present


def threadfence(state: State, line: int) -> None:
    lanes = state.mask.bits
    state.log.fence(state.ordinals(lanes), races.picked_stamps(state.stamps, lanes))


def _bits(value: Value) -> tuple[Any, int]:
    """An integer's bits, unsigned, and how many it has."""
    dtype = dtype_of(value)
    found = np.asarray(value).astype(dtype).view(f"u{dtype.itemsize}")
    return found, 8 * dtype.itemsize


def _of_bits(found: Callable[[Any, int], Any]) -> Code:
    """``found`` of an integer's bits and their number, as an int64."""

    def work(state: State, line: int, value: Value) -> Value:
        result = found(*_bits(value))
        return int(result) if uniform(value) else result.astype(np.int64)

    return work


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


def fma(state: State, line: int, a: Value, b: Value, c: Value) -> Value:
    a, b = values.unified(a, b)
    kind = dtype_of(values.unified(a, c)[0])
    state.ledger.multiply_add(line, kind, state.mask.count)
    # float32 products are exact in float64, and so, nearly always, is the one rounding at the end
    return (np.asarray(a, np.float64) * b + np.asarray(c, np.float64)).astype(kind)[()]


_FUNCTIONS: dict[str, Code] = {
    "syncthreads": barrier,
    "syncthreads_count": _count,
    "syncthreads_and": lambda state, line, p: (_count(state, line, values.logical_not(p)) == 0).astype(np.int64),
    "syncthreads_or": lambda state, line, p: (_count(state, line, p) != 0).astype(np.int64),
    "syncwarp": syncwarp,
    "threadfence": threadfence,
    "threadfence_system": threadfence,
    "threadfence_block": lambda state, line: None,
    "nanosleep": lambda state, line, nanoseconds: None,
    "shfl_sync": _shuffle("shfl_sync", lambda _, other: np.asarray(other) % WARP),
    "shfl_up_sync": _shuffle("shfl_up_sync", lambda lane, delta: lane - delta),
    "shfl_down_sync": _shuffle("shfl_down_sync", lambda lane, delta: lane + delta),
    "shfl_xor_sync": _shuffle("shfl_xor_sync", lambda lane, other: lane ^ np.asarray(other).astype(np.int64)),
    "ballot_sync": _vote("ballot_sync", lambda present, holds: holds),
    "all_sync": _vote("all_sync", lambda present, holds: holds == present),
    "any_sync": _vote("any_sync", lambda present, holds: holds != 0),
    "eq_sync": _vote("eq_sync", lambda present, holds: (holds == present) | (holds == 0)),
    "match_any_sync": match_any_sync,
    "match_all_sync": match_all_sync,
    "activemask": lambda state, line: _packed(state.mask.bits),
    "lanemask_lt": lambda state, line: (1 << state.lane_numbers % WARP) - 1,
    "popc": _of_bits(lambda bits, size: np.bitwise_count(bits)),
    "clz": _of_bits(lambda bits, size: size - 1 - _highest(bits, size)),
    "ffs": _of_bits(lambda bits, size: _highest(bits & (~bits + bits.dtype.type(1)), size) + 1),
    "brev": brev,
    "fma": fma,
    "cbrt": lambda state, line, value: np.cbrt(value),
    "rsqrt": lambda state, line, value: dtype_of(value).type(1) / np.sqrt(value),
    "selp": lambda state, line, condition, a, b: values.choose(condition, a, b),
}

_HALF: dict[str, Code] = {
    "hadd": np.add, "hsub": np.subtract, "hmul": np.multiply, "hdiv": np.divide, "hneg": np.negative,
    "habs": np.absolute, "hmax": np.maximum, "hmin": np.minimum, "heq": np.equal, "hne": np.not_equal,
    "hgt": np.greater, "hge": np.greater_equal, "hlt": np.less, "hle": np.less_equal, "hsqrt": np.sqrt,
    "hsin": np.sin, "hcos": np.cos, "hlog2": np.log2, "hlog10": np.log10, "hexp2": np.exp2,
    "hexp10": lambda a: np.power(np.float64(10), a).astype(np.float16), "hrcp": np.reciprocal,
    "hrsqrt": lambda a: (1 / np.sqrt(a)).astype(np.float16), "htanh": np.tanh,
    "hexp": np.exp, "hlog": np.log, "hfloor": np.floor, "hceil": np.ceil, "htrunc": np.trunc, "hrint": np.rint,
    "hfma": lambda a, b, c: (np.asarray(a, np.float64) * b + c).astype(np.float16)[()],
}  # fmt: skip


def _half(function: Code) -> Code:
    return lambda *numbers: function(*(values.cast(number, np.dtype(np.float16)) for number in numbers))
