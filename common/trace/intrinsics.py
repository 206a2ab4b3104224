"""What kernels call that the machine carries out itself: the names of ``numba.cuda``, and the lessons' helpers."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from common.catalog import device, limits
from common.trace import fragments, values
from common.trace.memory import PAST_L1, WARP, Bools, Ints
from common.trace.spaces import Constant, Global, Local, Shared, View
from common.trace.values import Cast, Value, dtype_of, signed, truth, uniform, widened

if TYPE_CHECKING:
    from common.trace.lanes import Machine

Code = Callable[..., Any]


class Intrinsic:
    """A function that the machine carries out itself: called with the machine, the line, and the arguments."""

    def __init__(self, function: Code) -> None:
        self.function, self.name = function, function.__name__


# Helpers of lessons/wide.py, unrolled.py and tensorcores.py, and of lesson 08's offsets32.py, by name. To add one: a
# function below with @intrinsic, or a name in one of the families. Those of lessons/hopper.py stand in hopper.py.
INTRINSICS: dict[str, Intrinsic] = {}
# Which of their arguments is an array that they only read.
READS = {"shared_address": 0}


def intrinsic(function: Code, name: str = "") -> Code:
    """Kernels know it by its own name, or by ``name``, which its errors then have."""
    if name:
        function.__name__ = function.__qualname__ = name
    INTRINSICS[function.__name__] = Intrinsic(function)
    return function


def unknown(name: str) -> Intrinsic:
    """What kernels may call and the machine does not know: a TraceError says so where it is called."""

    def call(machine: Machine, line: int, *_: Any, **__: Any) -> None:
        raise machine.unknown(line, f"{name} is not known to the tracer")

    return Intrinsic(call)


def one_number(machine: Machine, line: int, name: str, value: Value) -> int:
    if not uniform(value):
        raise machine.error(line, f"{name} takes one number for all threads, known when compiling")
    return int(value)


class Range:
    """``range`` whose ends differ between lanes."""

    def __init__(self, start: Value, stop: Value, step: Value) -> None:
        self.start, self.stop, self.step = start, stop, step


def make_range(*ends: Value) -> Any:
    start, stop, step = (0, ends[0], 1) if len(ends) == 1 else (*ends, 1)[:3]
    if not (uniform(start) and uniform(stop) and uniform(step)):
        start, stop = values.unified(start, stop)
        return Range(start, stop, signed(widened(step)))
    turns = range(*(int(end) for end in (start, stop, step)))
    if any(type(end) is int or dtype_of(end).kind == "i" for end in (start, stop)):
        return turns
    return map(np.uint64, turns)


# --- what `cuda` offers inside a kernel ---


class Cuda:
    """The names of ``numba.cuda`` that kernels use."""

    warpsize = WARP

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.blockIdx = self.threadIdx = _point((0, 0, 0))
        for name, function in _FUNCTIONS.items():
            setattr(self, name, Intrinsic(function))
        self.shared = SimpleNamespace(array=Intrinsic(_shared))
        self.local = SimpleNamespace(array=Intrinsic(_local))
        self.const = SimpleNamespace(array_like=Intrinsic(_constant))
        self.atomic = SimpleNamespace(
            **{name: Intrinsic(_atomic(combine)) for name, combine in _ATOMIC.items()},
            cas=Intrinsic(_cas), compare_and_swap=Intrinsic(_compare_and_swap),
        )  # fmt: skip
        self.fp16 = SimpleNamespace(**{name: _half(function) for name, function in _HALF.items()})

    def place(self, blocks: list[Value]) -> None:
        """The blocks that run now, by axis."""
        machine = self._machine
        across = [b if type(b) is int else int(b[0]) if len(b) == 1 else b[machine.block_number] for b in blocks]
        self.blockIdx, self.threadIdx = _point(across), _point(machine.thread_axes)
        self.blockDim, self.gridDim = _point(machine.block), _point(machine.grid)
        self.laneid = machine.lane_numbers % WARP

    def grid(self, dimensions: int) -> Value:
        machine, block, thread = self._machine, self.blockIdx, self.threadIdx
        parts = [
            values.add(values.mul(getattr(block, axis), extent), getattr(thread, axis))
            for axis, extent in zip("xyz", machine.block, strict=True)
        ]
        return parts[0] if dimensions == 1 else tuple(parts[:dimensions])

    def gridsize(self, dimensions: int) -> Any:
        machine = self._machine
        parts = [blocks * threads for blocks, threads in zip(machine.grid, machine.block, strict=True)]
        return parts[0] if dimensions == 1 else tuple(parts[:dimensions])


def _point(parts: Any) -> SimpleNamespace:
    return SimpleNamespace(**dict(zip("xyz", parts, strict=True)))


_EVERYBODY = 0xFFFFFFFF
_BIT = 1 << np.arange(WARP)


def _votes(machine: Machine, line: int, member: Value, name: str) -> tuple[Ints, Ints]:
    """Per lane: the lanes that its mask names and that run here, as bits; and the lane's number.

    What Volta and later ask for, or it is a fault: a thread's mask names itself, and all that it names come.
    """
    bits, lane = machine.mask.bits, machine.lane_numbers % WARP
    named = np.broadcast_to(np.asarray(member).astype(np.int64), bits.shape) & _EVERYBODY
    here, alive = _packed(bits), _packed(machine.waiting.bits)
    outside = bits & ((named >> lane) & 1 == 0)
    if outside.any():
        machine.fault("warp-sync", line, "", f"{name} is called by a thread that its mask does not name", outside)
    absent = bits & (named & alive & ~here != 0)
    if absent.any():
        text = f"{name} names threads in its mask that do not come to it: they have branched off"
        machine.fault("warp-sync", line, "", text, absent)
    return named & here, lane


def _packed(bits: Bools) -> Ints:
    """For each lane, the bits of its warp."""
    words: Ints = bits.reshape(-1, WARP) @ _BIT
    return np.repeat(words, WARP)


def syncthreads(machine: Machine, line: int) -> None:
    machine.barrier(line)


def _count(machine: Machine, line: int, predicate: Value) -> Ints:
    """For each lane, the threads of its block at the barrier for which it holds."""
    if machine.has_engines:
        raise machine.unknown(line, "barriers that count are not traced beside barriers that count bytes")
    holds = np.broadcast_to(truth(predicate), machine.mask.bits.shape) & machine.mask.bits
    machine.barrier(line)
    counts = np.count_nonzero(holds.reshape(machine.blocks_at_once, -1), axis=1)
    return np.repeat(counts.astype(np.int64), machine.lanes_per_block)


def syncthreads_count(machine: Machine, line: int, predicate: Value) -> Value:
    return _count(machine, line, predicate)


def syncthreads_and(machine: Machine, line: int, predicate: Value) -> Value:
    return (_count(machine, line, values.logical_not(predicate)) == 0).astype(np.int64)


def syncthreads_or(machine: Machine, line: int, predicate: Value) -> Value:
    return (_count(machine, line, predicate) != 0).astype(np.int64)


def syncwarp(machine: Machine, line: int, member: Value = _EVERYBODY) -> None:
    """From here on, what the named threads did before is there for each other."""
    _votes(machine, line, member, "syncwarp")
    whole = not machine.has_engines and machine.mask.count == machine.waiting.count
    if whole and uniform(member) and int(member) & _EVERYBODY == _EVERYBODY:
        machine.stamps = machine.stamps + 1
    else:
        machine.stamps = machine.stamps + machine.mask.bits
    if machine.has_engines:
        rows = machine.mask.bits.reshape(-1, WARP) | ~machine.waiting.bits.reshape(-1, WARP)
        machine.asynchronous.clocks.pass_on(
            np.flatnonzero(rows.all(axis=1) & machine.mask.bits.reshape(-1, WARP).any(axis=1)).tolist()
        )


def _shuffled(machine: Machine, line: int, member: Value, value: Value, source: Value, name: str) -> Value:
    """Each lane's value becomes that of a lane of its warp; ``source`` below 0 or above 31: its own."""
    present, lane = _votes(machine, line, member, name)
    source = np.broadcast_to(np.asarray(source).astype(np.int64), lane.shape)
    source = np.where((source < 0) | (source >= WARP), lane, source)
    missing = machine.mask.bits & ((present >> source) & 1 == 0)
    real = dtype_of(value).kind == "f"
    if missing.any() and not real:
        machine.fault("warp-sync", line, "", f"{name} takes the value of a thread that does not come to it", missing)
    taken = value if uniform(value) else value[machine.lane_numbers - lane + source]
    if machine.tainted is not None:
        giver = machine.lane_numbers - lane + source
        machine.tainted = machine.tainted | machine.tainted[giver]
        for one in machine.sources:
            one.offsets = np.where(one.lanes, one.offsets, one.offsets[giver])
            one.lanes = one.lanes | one.lanes[giver]
    if missing.any() and real:
        machine.taken_from_nobody(line, name, missing)
    # what comes from nobody may be thrown away, as the upper half of a sum is
    return np.where(missing, dtype_of(value).type(np.nan), taken) if real and missing.any() else taken


def shfl_sync(machine: Machine, line: int, member: Value, value: Value, source: Value) -> Value:
    return _shuffled(machine, line, member, value, np.asarray(source) % WARP, "shfl_sync")


def shfl_up_sync(machine: Machine, line: int, member: Value, value: Value, delta: Value) -> Value:
    return _shuffled(machine, line, member, value, machine.lane_numbers % WARP - delta, "shfl_up_sync")


def shfl_down_sync(machine: Machine, line: int, member: Value, value: Value, delta: Value) -> Value:
    return _shuffled(machine, line, member, value, machine.lane_numbers % WARP + delta, "shfl_down_sync")


def shfl_xor_sync(machine: Machine, line: int, member: Value, value: Value, other: Value) -> Value:
    source = machine.lane_numbers % WARP ^ np.asarray(other).astype(np.int64)
    return _shuffled(machine, line, member, value, source, "shfl_xor_sync")


def ballot_sync(machine: Machine, line: int, member: Value, predicate: Value) -> Value:
    present, _ = _votes(machine, line, member, "ballot_sync")
    holds = np.broadcast_to(truth(predicate), machine.mask.bits.shape) & machine.mask.bits
    return _packed(holds) & present


def all_sync(machine: Machine, line: int, member: Value, predicate: Value) -> Value:
    present, _ = _votes(machine, line, member, "all_sync")
    return ballot_sync(machine, line, member, predicate) == present


def any_sync(machine: Machine, line: int, member: Value, predicate: Value) -> Value:
    return ballot_sync(machine, line, member, predicate) != 0


def eq_sync(machine: Machine, line: int, member: Value, predicate: Value) -> Value:
    present, _ = _votes(machine, line, member, "eq_sync")
    holds = ballot_sync(machine, line, member, predicate)
    return (holds == present) | (holds == 0)


def match_any_sync(machine: Machine, line: int, member: Value, value: Value) -> Value:
    present, _ = _votes(machine, line, member, "match_any_sync")
    rows = np.broadcast_to(np.asarray(value), present.shape).reshape(-1, WARP)
    alike: Ints = ((rows[:, :, None] == rows[:, None, :]) @ _BIT).reshape(-1)
    return alike & present


def match_all_sync(machine: Machine, line: int, member: Value, value: Value) -> Value:
    present, _ = _votes(machine, line, member, "match_all_sync")
    agree = match_any_sync(machine, line, member, value) == present
    return np.where(agree, present, 0), agree


def activemask(machine: Machine, line: int) -> Value:
    return _packed(machine.mask.bits)


def lanemask_lt(machine: Machine, line: int) -> Value:
    return (1 << machine.lane_numbers % WARP) - 1


def threadfence(machine: Machine, line: int) -> None:
    lanes, stamps = machine.mask.bits, machine.stamps
    machine.log.fence(machine.ordinals(lanes), stamps[lanes] if isinstance(stamps, np.ndarray) else stamps)


def threadfence_block(machine: Machine, line: int) -> None:
    pass


def nanosleep(machine: Machine, line: int, nanoseconds: Value) -> None:
    pass


def _bits(value: Value) -> tuple[Any, int]:
    """An integer's bits, unsigned, and how many it has."""
    dtype = dtype_of(value)
    found = np.asarray(value).astype(dtype).view(f"u{dtype.itemsize}")
    return found, 8 * dtype.itemsize


def _leave(result: Any, value: Value) -> Value:
    return int(result) if uniform(value) else result.astype(np.int64)


def popc(machine: Machine, line: int, value: Value) -> Value:
    return _leave(np.bitwise_count(_bits(value)[0]), value)


def brev(machine: Machine, line: int, value: Value) -> Value:
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


def clz(machine: Machine, line: int, value: Value) -> Value:
    bits, size = _bits(value)
    return _leave(size - 1 - _highest(bits, size), value)


def ffs(machine: Machine, line: int, value: Value) -> Value:
    bits, size = _bits(value)
    return _leave(_highest(bits & (~bits + bits.dtype.type(1)), size) + 1, value)


def fma(machine: Machine, line: int, a: Value, b: Value, c: Value) -> Value:
    a, b = values.unified(a, b)
    kind = dtype_of(values.unified(a, c)[0])
    machine.multiply_add(values.add, kind.type(0), kind.type(0), line)
    # float32 products are exact in float64, and so, nearly always, is the one rounding at the end
    return (np.asarray(a, np.float64) * b + np.asarray(c, np.float64)).astype(kind)[()]


def cbrt(machine: Machine, line: int, value: Value) -> Value:
    return np.cbrt(value)


def rsqrt(machine: Machine, line: int, value: Value) -> Value:
    return dtype_of(value).type(1) / np.sqrt(value)


def selp(machine: Machine, line: int, condition: Value, a: Value, b: Value) -> Value:
    return values.choose(condition, a, b)


_FUNCTIONS: dict[str, Code] = {
    function.__name__: function
    for function in (
        syncthreads, syncthreads_count, syncthreads_and, syncthreads_or, syncwarp, shfl_sync, shfl_up_sync,
        shfl_down_sync, shfl_xor_sync, ballot_sync, all_sync, any_sync, eq_sync, match_any_sync, match_all_sync,
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


# --- arrays that kernels make ---


def _shape(shape: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in shape) if type(shape) is tuple else (int(shape),)


def _shared(machine: Machine, line: int, shape: Any, dtype: Any, alignment: int = 0) -> View:
    """One array per place in the code, however often that is reached; the dynamic ones are all the same memory."""
    extents, kind = _shape(shape), np.dtype(dtype.dtype)
    dynamic = extents == (0,)
    key: Any = "dynamic" if dynamic else machine.here()
    if key not in machine.shared:
        if dynamic:
            extents = (machine.shared_bytes // kind.itemsize,)
        taken = sum(view.size * view.dtype.itemsize for k, view in machine.shared.items() if k != "dynamic")
        static = taken + (0 if dynamic else math.prod(extents) * kind.itemsize)
        limits.require_shared(static, machine.shared_bytes, device.played())
        made = machine.shared_storage
        storage = made(machine, math.prod(extents), kind, alignment or (16 if dynamic else kind.itemsize))
        machine.shared[key] = View.of(storage, extents)
    view = machine.shared[key]
    if view.dtype != kind:
        raise machine.unknown(
            line, f"dynamic shared memory is used as {view.dtype} and as {kind}: that is not traced"
        )
    return view


def dynamic_shared(machine: Machine, line: int, dtype: Any, alignment: int) -> View:
    """All of the dynamic shared memory."""
    return _shared(machine, line, 0, dtype, alignment)


def _local(machine: Machine, line: int, shape: Any, dtype: Any, alignment: int = 0) -> View:
    extents = _shape(shape)
    storage = Local(machine, math.prod(extents), dtype.dtype)
    if machine.has_engines:
        machine.asynchronous.locals[machine.asynchronous.teams.now].add(storage)
    return View.of(storage, extents)


def _constant(machine: Machine, line: int, array: Any) -> View:
    if type(array) is not View or not isinstance(array.storage, Constant):
        raise machine.error(line, "const.array_like takes an array that stands outside the kernel")
    machine.require_constants()
    return array


# --- atomic operations ---


def _up_to(old: Any, limit: Any) -> Any:
    return np.where(old >= limit, 0, old + 1)


def _down_from(old: Any, limit: Any) -> Any:
    return np.where((old == 0) | (old > limit), limit, old - 1)


_ATOMIC: dict[str, Code] = {
    "add": np.add, "sub": np.subtract, "max": np.maximum, "min": np.minimum, "nanmax": np.fmax, "nanmin": np.fmin,
    "and_": np.bitwise_and, "or_": np.bitwise_or, "xor": np.bitwise_xor, "inc": _up_to, "dec": _down_from,
    "exch": lambda old, value: value,
}  # fmt: skip


def _atomic(combine: Code) -> Code:
    def apply(machine: Machine, line: int, view: View, index: Any, value: Value) -> Value:
        operand = np.broadcast_to(np.asarray(values.cast(value, view.dtype)), machine.mask.bits.shape)
        fresh = combine is _ATOMIC["exch"]
        return _change(machine, line, view, index, lambda old, lanes: combine(old, operand[lanes]), fresh)

    return apply


def _cas(machine: Machine, line: int, view: View, index: Any, old: Value, value: Value) -> Value:
    shape = machine.mask.bits.shape
    wanted, put = (np.broadcast_to(np.asarray(values.cast(v, view.dtype)), shape) for v in (old, value))
    change = lambda held, lanes: np.where(held == wanted[lanes], put[lanes], held)  # noqa: E731
    return _change(machine, line, view, index, change)


def _compare_and_swap(machine: Machine, line: int, view: View, old: Value, value: Value) -> Value:
    return _cas(machine, line, view, 0, old, value)


def _change(machine: Machine, line: int, view: View, index: Any, change: Code, fresh: bool = False) -> Value:
    """Threads that change one element do so one after the other. ``fresh``: what it held does not matter."""
    place, wrong = view.place(machine, index, line, "written")
    storage, mask = view.storage, machine.mask
    if not isinstance(storage, Global | Shared):
        raise machine.error(
            line, f"{view.name} is neither in global nor in shared memory: no atomic operation takes it"
        )
    lanes = mask.bits if wrong is None else mask.bits & ~wrong
    at = storage.begin_atomic(machine, view, place, lanes, wrong, line, fresh)
    everyone = np.flatnonzero(lanes)
    if machine.reversed:
        everyone = everyone[::-1]
    old = np.zeros(lanes.shape, view.dtype)
    places = at[everyone]
    while len(everyone):
        _, turn = np.unique(places, return_index=True)
        now = everyone[turn]
        old[now] = storage.data[places[turn]]
        storage.data[places[turn]] = change(old[now], now)
        everyone, places = np.delete(everyone, turn), np.delete(places, turn)
    if storage.written is not None:
        storage.written[at[lanes]] = True
    return old


# --- helpers of the lessons, at their real width ---


@intrinsic
def unrolled(machine: Machine, line: int, count: Value) -> Any:
    return make_range(count)


@intrinsic
def shared_array(machine: Machine, line: int, size: int) -> View:
    return _shared(machine, line, size, Cast(np.float32), alignment=16)


def _family(make: Callable[[int], Code], **widths: int) -> None:
    """An intrinsic for each name, of so many elements; its third argument is an array that it only reads."""
    for name, width in widths.items():
        intrinsic(make(width), name)
        READS[name] = 2


def _loading(width: int) -> Code:
    def load(machine: Machine, line: int, registers: View, i: Value, array: View, offset: Value) -> None:
        source, wrong = array.place_flat(machine, offset, width, line, "read")
        found = array.storage.read(machine, array, source, width, wrong, line)
        target, bad = registers.place_flat(machine, i, width, line, "written", aligned=False)
        registers.storage.write(machine, registers, target, found, bad, line)

    return load


def _loading_inside(width: int) -> Code:
    def load(
        machine: Machine, line: int, registers: View, i: Value, array: View, offset: Value, inside: Value
    ) -> None:
        found = machine.read_or_zero(line, array, offset, width, inside)
        target, bad = registers.place_flat(machine, i, width, line, "written", aligned=False)
        registers.storage.write(machine, registers, target, found, bad, line)

    return load


def _storing(width: int) -> Code:
    def store(machine: Machine, line: int, array: View, offset: Value, registers: View, i: Value) -> None:
        source, wrong = registers.place_flat(machine, i, width, line, "read", aligned=False)
        found = registers.storage.read(machine, registers, source, width, wrong, line)
        target, bad = array.place_flat(machine, offset, width, line, "written")
        array.storage.write(machine, array, target, found, bad, line)

    return store


def _copying(op: str) -> Callable[[int], Code]:
    def of(width: int) -> Code:
        def copy(
            machine: Machine, line: int, shared: View, i: Value, array: View, offset: Value, inside: Value = True
        ) -> None:
            machine.start_copy(line, shared, i, array, offset, width, inside, op)

        return copy

    return of


_family(_loading, load2=2, load4=4, load_pair=2)
_family(_loading_inside, load1_or_zero=1, load4_or_zero=4)
_family(_storing, store2=2, store4=4, store8=8, store2_rounded=2)
_family(_copying("copy"), copy1_async=1, copy1_or_zero=1, copy4_or_zero=4, fetch1_or_zero=1, fetch4_or_zero=4)
_family(_copying(PAST_L1), copy4_async=4, copy8_async=8, copy8_or_zero=8)


@intrinsic
def wait_async(machine: Machine, line: int) -> None:
    machine.finish_copies()


@intrinsic
def commit_group(machine: Machine, line: int) -> None:
    machine.commit_copies()


@intrinsic
def wait_group(machine: Machine, line: int, pending: Value) -> None:
    machine.finish_copies(one_number(machine, line, "wait_group", pending))


# --- tensor cores ---


@intrinsic
def half_array(machine: Machine, line: int, size: int) -> View:
    return _shared(machine, line, size, Cast(np.float16), alignment=16)


@intrinsic
def to_tf32(machine: Machine, line: int, value: Value) -> Value:
    return fragments.to_tf32(value)


def _require_warps(machine: Machine, line: int, name: str) -> None:
    """A fault unless all lanes of each warp that comes here do."""
    rows = machine.mask.bits.reshape(-1, WARP)
    apart = rows.any(axis=1) & ~rows.all(axis=1)
    if apart.any():
        text = f"{name} is for all {WARP} lanes of a warp together, and some do not come to it"
        machine.fault("warp-sync", line, "", text, machine.mask.bits & np.repeat(apart, WARP))


def _elements(machine: Machine, line: int, view: View, i: Value, count: int, dtype: Any) -> list[Value]:
    """``view[i:i+count]``, a part of a fragment."""
    if view.dtype != dtype:
        raise machine.error(line, f"{view.name} holds {view.dtype}, and a fragment of {np.dtype(dtype)} is needed")
    place, wrong = view.place_flat(machine, i, count, line, "read", aligned=False)
    found: list[Value] = view.storage.read(machine, view, place, count, wrong, line)
    return found


def _give(machine: Machine, line: int, view: View, i: Value, elements: list[Value]) -> None:
    """``view[i:]`` becomes what the warp worked out together: what one lane did not set may reach all."""
    if elements[0].dtype != view.dtype:
        raise machine.error(line, f"{view.name} holds {view.dtype}, and a fragment of {elements[0].dtype} is needed")
    machine.spread_unwritten()
    place, wrong = view.place_flat(machine, i, len(elements), line, "written", aligned=False)
    view.storage.write(machine, view, place, elements, wrong, line)


def _mma(
    machine: Machine, line: int, shape: fragments.Shape, acc: View, i: Value, a: list[Value], b: list[Value]
) -> None:
    sums = _elements(machine, line, acc, i, 4, values.FLOAT32)
    found = fragments.multiplied(shape, sums, a, b, len(machine.lane_numbers))
    if machine.ledger.recording:
        machine.ledger.fma[line] += machine.mask.warps * shape.multiply_adds
    _give(machine, line, acc, i, found)


@intrinsic
def mma_m16n8k16(
    machine: Machine, line: int, acc: View, i: Value, a_frag: View, j: Value, b_frag: View, k: Value
) -> None:
    _require_warps(machine, line, "mma_m16n8k16")
    a = _elements(machine, line, a_frag, j, 8, np.float16)
    b = _elements(machine, line, b_frag, k, 4, np.float16)
    _mma(machine, line, fragments.K16, acc, i, a, b)


@intrinsic
def mma_m16n8k8(
    machine: Machine, line: int, acc: View, i: Value, a_frag: View, j: Value, b_frag: View, k: Value
) -> None:
    _require_warps(machine, line, "mma_m16n8k8")
    a = _elements(machine, line, a_frag, j, 4, values.FLOAT32)
    b = _elements(machine, line, b_frag, k, 2, values.FLOAT32)
    a, b = ([fragments.cut_to_tf32(value) for value in part] for part in (a, b))
    _mma(machine, line, fragments.K8, acc, i, a, b)


def _loading_matrices(name: str, transposed: bool) -> None:
    """``ldmatrix``, of a tile from an offset on, or, as ``..._at``, from an address on."""

    def load(machine: Machine, line: int, frag: View, i: Value, tile: View, offset: Value) -> None:
        _require_warps(machine, line, name)
        if not isinstance(tile.storage, Shared):
            raise machine.error(line, f"{tile.name} is not in shared memory: {name} reads shared memory")
        if tile.dtype != np.float16 and (transposed or tile.dtype != np.float32):
            raise machine.error(line, f"{tile.name} holds {tile.dtype}, which {name} does not read")
        width = 16 // tile.dtype.itemsize
        place, wrong = tile.place_flat(machine, offset, width, line, "read")
        rows = tile.storage.read(machine, tile, place, width, wrong, line, paired=False)
        _give(machine, line, frag, i, fragments.dealt(rows, len(machine.lane_numbers), transposed))

    def load_at(machine: Machine, line: int, frag: View, i: Value, tile: View, address: Value) -> None:
        load(machine, line, frag, i, tile, _offset(machine, line, tile, address))

    for function, called in ((load, name), (load_at, f"{name}_at")):
        intrinsic(function, called)
        READS[called] = 2


_loading_matrices("ldmatrix4", transposed=False)
_loading_matrices("ldmatrix4_transposed", transposed=True)


@intrinsic
def positive(machine: Machine, line: int, value: Value) -> Value:
    """Of lesson 08's epilogues: NaN stays NaN."""
    return values.choose(value < 0, np.float32(0.0), value)


@intrinsic
def to_half(machine: Machine, line: int, value: Value) -> Value:
    return values.cast(value, np.dtype(np.float16))


@intrinsic
def shared_address(machine: Machine, line: int, tile: View, offset: Value) -> Value:
    """Here bytes from the tile's beginning, which is no less a number that only the instructions know."""
    return values.cast(values.mul(offset, tile.dtype.itemsize), np.dtype(np.uint32))


def _offset(machine: Machine, line: int, tile: View, address: Value) -> Value:
    found = np.asarray(address).astype(np.int64)
    if (found % 16).any():
        text = "ldmatrix reads rows of 16 bytes on 16-byte boundaries"
        machine.fault("misaligned", line, tile.name, text, np.broadcast_to(found % 16 != 0, machine.mask.bits.shape))
    return found // tile.dtype.itemsize
