"""What kernels may call and the tracer carries out itself: their registry, atomics, ``cuda.*``."""

import operator
from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from common.trace import races, values, views
from common.trace.cost import WARP, Bools, Ints, count_nonzero
from common.trace.memory import Global
from common.trace.shared import Shared, constant_memory, local_memory, shared_memory
from common.trace.state import State
from common.trace.values import Value, dtype_of, truth, uniform
from common.trace.views import View

Code = Callable[..., Any]


class Intrinsic(NamedTuple):
    """A function that the tracer carries out itself: called with the state, the line, and the arguments."""

    function: Code
    engines: bool = False  # does it set to work what works beside the threads


TOOLKIT = "lessons.toolkit."  # the modules whose functions have a model here, which is known by the function's name
INTRINSICS: dict[str, Intrinsic] = {}  # these models
WAITS = "threads wait here until others change a value: waits of this kind are not traced"


def intrinsic(function: Code, name: str = "", engines: bool = False) -> Code:
    """Kernels know it by its own name, or by ``name``."""
    INTRINSICS[name or function.__name__] = Intrinsic(function, engines)
    return function


on_engines = partial(intrinsic, engines=True)


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


def _per_lane(state: State, value: Value, dtype: Any) -> Any:
    return np.broadcast_to(np.asarray(values.cast(value, dtype)), state.mask.bits.shape)


def atomic(state: State, line: int, view: View, index: Any, value: Value, *, name: str) -> Value:
    """Threads that change one element do so one after the other; what each found."""
    if state.tainted is not None:
        views.reveal(state, value, f"changes {view.name} in line {line}")
    return _change(state, line, view, index, ATOMIC[name], _per_lane(state, value, view.dtype), name == "exch")


def cas(state: State, line: int, view: View, index: Any, old: Value, value: Value) -> Value:
    wanted, put = (_per_lane(state, one, view.dtype) for one in (old, value))
    change = lambda held, lanes: np.where(held == wanted[lanes], put[lanes], held)  # noqa: E731
    found = _change(state, line, view, index, change, state.lane_numbers)
    met = state.mask.bits & (found == wanted)
    state.refused = 0 if count_nonzero(met) else state.refused + 1
    if state.refused > _MOST_REFUSED:
        raise state.unknown(line, WAITS)
    return found


def _change(
    state: State, line: int, view: View, index: Any, combine: Code, operand: Any, fresh: bool = False
) -> Value:
    """Each lane in turn combines what the element holds with its ``operand``; ``fresh``: that is not looked at."""
    place, wrong = view.place(state, index, line, "written")
    storage = view.storage
    if not isinstance(storage, Global | Shared):
        raise state.error(line, f"{view.name} is neither in global nor in shared memory, as an atomic operation asks")
    lanes = state.among(wrong)
    storage.record(state, view, place, 1, "atomic", line, lanes)
    at = np.broadcast_to(np.asarray(storage.flat_offset(place)), lanes.shape)
    if not fresh and not storage.complete:
        storage.missing(state, view, place, at, line, changes=True)
    storage.note(state, view, "atomic", at, lanes, line)
    everyone, old = np.flatnonzero(lanes)[:: -1 if state.reversed else 1], np.zeros(lanes.shape, view.dtype)
    everyone = everyone[np.argsort(at[everyone], kind="stable")]
    places = at[everyone]
    starts = np.flatnonzero(np.diff(places, prepend=-1))
    counts = np.diff(np.append(starts, len(places)))
    if isinstance(combine, np.ufunc) and len(starts) < counts.max(initial=0):
        for own in np.split(everyone, starts[1:]):
            held = np.concatenate((storage.data[at[own[:1]]], operand[own]))
            running = combine.accumulate(held, dtype=view.dtype)
            old[own], storage.data[at[own[0]]] = running[:-1], running[-1]
    else:
        for turn in range(counts.max(initial=0)):
            chosen = starts[counts > turn] + turn
            now = everyone[chosen]
            old[now] = storage.data[places[chosen]]
            storage.data[places[chosen]] = combine(old[now], operand[now])
    if storage.written is not None:
        storage.written[at[lanes]] = True
    return old


# --- numba.cuda ---


class Cuda:
    warpsize = WARP

    def __init__(self, state: State) -> None:
        self._state = state
        self.blockIdx, self.threadIdx, self.blockDim, self.gridDim = (SimpleNamespace() for _ in range(4))
        for name, function in _FUNCTIONS.items():
            setattr(self, name, Intrinsic(function))
        self.shared = SimpleNamespace(array=Intrinsic(shared_memory))
        self.local = SimpleNamespace(array=Intrinsic(local_memory))
        grid = SimpleNamespace(sync=Intrinsic(races.pass_grid_barrier))
        self.this_grid = Intrinsic(lambda state, line: grid)
        self.cg = SimpleNamespace(this_grid=self.this_grid)
        self.const = SimpleNamespace(array_like=Intrinsic(constant_memory))
        self.atomic = SimpleNamespace(**{name: Intrinsic(partial(atomic, name=name)) for name in ATOMIC})
        self.atomic.cas = Intrinsic(cas)
        self.atomic.compare_and_swap = Intrinsic(lambda state, line, view, *given: cas(state, line, view, 0, *given))
        self.fp16 = SimpleNamespace(**{name: _half(function) for name, function in _HALF.items()})

    def place(self, blocks: Iterable[Value]) -> None:
        """The blocks that run now, by axis."""
        state = self._state
        across = [b if type(b) is int else int(b[0]) if len(b) == 1 else b[state.block_number] for b in blocks]
        parts = across, state.thread_axes, state.block, state.grid
        for point, part in zip((self.blockIdx, self.threadIdx, self.blockDim, self.gridDim), parts, strict=True):
            point.x, point.y, point.z = part
        axes = zip(across, state.block, state.thread_axes, strict=True)
        self._at = tuple(values.add(values.mul(block, size), thread) for block, size, thread in axes)
        self.laneid = state.lane_numbers % WARP

    def grid(self, dimensions: int) -> Value:
        return self._at[0] if dimensions == 1 else self._at[:dimensions]

    def gridsize(self, dimensions: int) -> Any:
        parts = tuple(map(operator.mul, self._state.grid, self._state.block))
        return parts[0] if dimensions == 1 else parts[:dimensions]


# --- threads that wait for each other, and warps ---

_EVERYBODY = 0xFFFFFFFF
_BIT = 1 << np.arange(WARP)


def barrier(state: State, line: int) -> None:
    """A barrier of the block; beside engines, those who come first let the others go on."""
    if state.has_engines:
        state.engines.teams.wait(line)
    else:
        races.pass_barrier(state, line)


def _count(state: State, line: int, predicate: Value) -> Ints:
    """For each lane, the threads of its block at the barrier for which it holds."""
    if state.has_engines:
        raise state.unknown(line, "barriers that count are not traced beside barriers that count bytes")
    holds = np.broadcast_to(truth(predicate), state.mask.bits.shape) & state.mask.bits
    barrier(state, line)
    counts = np.count_nonzero(holds.reshape(state.blocks_at_once, -1), axis=1)
    return np.repeat(counts.astype(np.int64), state.lanes_per_block)


def _packed(bits: Bools) -> Ints:
    """For each lane, the bits of its warp."""
    words: Ints = bits.reshape(-1, WARP) @ _BIT
    return np.repeat(words, WARP)


def _votes(state: State, line: int, member: Value, name: str) -> Ints:
    """Per lane: the lanes that its mask names and that run here, as bits. A mask names its thread, and all come."""
    bits, lane = state.mask.bits, state.lane_numbers % WARP
    named = np.broadcast_to(np.asarray(member).astype(np.int64), bits.shape) & _EVERYBODY
    here, alive = _packed(bits), _packed(state.waiting.bits)
    outside, absent = bits & ((named >> lane) & 1 == 0), bits & (named & alive & ~here != 0)
    state.fault("warp-sync", line, "", f"{name} is called by a thread that its mask does not name", outside)
    text = f"{name} names threads in its mask that do not come to it: they have branched off"
    state.fault("warp-sync", line, "", text, absent)
    return named & here


def syncwarp(state: State, line: int, member: Value = _EVERYBODY) -> None:
    """From here on, what the named threads did before is there for each other."""
    _votes(state, line, member, "syncwarp")
    whole = not state.has_engines and state.mask.count == state.waiting.count
    all_named = uniform(member) and int(member) & _EVERYBODY == _EVERYBODY
    state.stamps = state.stamps + (1 if whole and all_named else state.mask.bits)
    if state.has_engines:
        here, gone = state.mask.bits.reshape(-1, WARP), ~state.waiting.bits.reshape(-1, WARP)
        state.engines.clocks.pass_on(np.flatnonzero((here | gone).all(axis=1) & here.any(axis=1)))


def shuffle(state: State, line: int, member: Value, value: Value, other: Value, *, name: str, of: Code) -> Value:
    """Each lane takes a value from the lane ``of(lane, other)`` of its warp; below 0 or above 31, its own."""
    if (kind := dtype_of(value)) not in _SHUFFLED:
        raise state.error(line, f"{name} takes int32, int64, float32 or float64, and this is {kind}")
    present, lane = _votes(state, line, member, name), state.lane_numbers % WARP
    source = np.broadcast_to(np.asarray(of(lane, np.asarray(other).astype(np.int64))), lane.shape)
    source = np.where((source < 0) | (source >= WARP), lane, source)
    giver, real = state.lane_numbers - lane + source, dtype_of(value).kind == "f"
    missing = unknown = state.mask.bits & ((present >> source) & 1 == 0)
    views.take_taint(state, giver)
    taken, what = value if uniform(value) else value[giver], f"{name} takes the value of a thread that does not come"
    # what comes from nobody may be thrown away, as the upper half of a sum is
    if state.has_engines:  # the launch is not run again, and a guard may throw away what returned threads gave
        unknown = missing & state.waiting.bits[giver]
    if not real and count_nonzero(unknown):
        text, lane_of = f"{what} to it, and something comes of it", int(np.argmax(unknown))
        state.doubts.setdefault(line, state.told("warp-sync", line, "", text, lane_of))
        return taken if state.stand_in is None else np.where(unknown, kind.type(state.stand_in), taken)
    if not (count_nonzero(missing) and real):
        return taken
    views.taint(state, line, missing, f"{what} to it")
    return np.where(missing, dtype_of(value).type(np.nan), taken)


def vote(state: State, line: int, member: Value, predicate: Value, *, name: str, of: Code) -> Value:
    """``of`` the lanes that vote and, of these, those for which the predicate holds: bits, for each lane."""
    present = _votes(state, line, member, name)
    return of(present, _packed(np.broadcast_to(truth(predicate), present.shape) & state.mask.bits) & present)


def match(state: State, line: int, member: Value, value: Value, *, name: str) -> Value:
    """The lanes that vote and have a lane's value; of ``match_all``, if all have one, and whether they do."""
    present = _votes(state, line, member, name)
    rows = np.broadcast_to(np.asarray(value), present.shape).reshape(-1, WARP)
    alike: Ints = ((rows[:, :, None] == rows[:, None, :]) @ _BIT).reshape(-1) & present
    return alike if name == "match_any_sync" else (np.where(alike == present, present, 0), alike == present)


def threadfence(state: State, line: int) -> None:
    lanes = state.mask.bits
    state.log.fence(state.lane_numbers[lanes] + state.first_ordinal, races.picked_stamps(state.stamps, lanes))


def bits_of(state: State, line: int, value: Value, *, work: Callable[[int, int], int], kind: Any = np.int64) -> Value:
    """``work`` of an integer's bits, unsigned, and how many it has; an integer of a ``kind``."""
    dtype = dtype_of(value)
    words = np.asarray(value).astype(dtype).view(f"u{dtype.itemsize}")
    result = np.frompyfunc(lambda word: work(int(word), 8 * dtype.itemsize), 1, 1)(words)
    return int(result) if uniform(value) else result.astype(kind or words.dtype)


def fma(state: State, line: int, a: Value, b: Value, c: Value) -> Value:
    a, b = values.unified(a, b)
    kind = dtype_of(values.unified(a, c)[0])
    state.ledger.multiply_add(line, kind, state.mask.count)
    # float32 products are exact in float64, and so, nearly always, is the one rounding at the end
    return (np.asarray(a, np.float64) * b + np.asarray(c, np.float64)).astype(kind)[()]


def element_by_element(state: State, line: int, *given: Any, function: Code, inputs: int) -> Any:
    """One of NumPy's functions: of numbers, or of arrays into another one, to whose shape they are broadcast."""
    if not any(type(one) is View for one in given):
        return function(*given)
    if len(given) != inputs + 1:
        raise state.unknown(line, "a function of arrays that makes an array is not traced")
    out: View = given[inputs]
    for at in np.ndindex(*out.shape):
        parts = []
        for one in given[:inputs]:
            own = zip(at[out.ndim - one.ndim :], one.shape, strict=True) if type(one) is View else ()
            parts.append(one.load(state, tuple(i * (n > 1) for i, n in own), line) if type(one) is View else one)
        out.store(state, at, function(*parts), line)
    return out


_SHUFFLED = tuple(map(np.dtype, (np.int32, np.int64, np.float32, np.float64)))  # others Numba does not compile
_SHUFFLES: dict[str, Code] = {
    "shfl_sync": lambda _, other: other % WARP,
    "shfl_up_sync": lambda lane, delta: lane - delta,
    "shfl_down_sync": lambda lane, delta: lane + delta,
    "shfl_xor_sync": lambda lane, other: lane ^ other,
}
_VOTES: dict[str, Code] = {
    "ballot_sync": lambda present, holds: holds,
    "all_sync": lambda present, holds: holds == present,
    "any_sync": lambda present, holds: holds != 0,
    "eq_sync": lambda present, holds: (holds == present) | (holds == 0),
}
_BITS: dict[str, Code] = {
    "popc": lambda bits, size: bits.bit_count(),
    "clz": lambda bits, size: size - bits.bit_length(),
    "ffs": lambda bits, size: (bits & -bits).bit_length(),
}
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
    **{name: partial(shuffle, name=name, of=of) for name, of in _SHUFFLES.items()},
    **{name: partial(vote, name=name, of=of) for name, of in _VOTES.items()},
    **{name: partial(match, name=name) for name in ("match_any_sync", "match_all_sync")},
    **{name: partial(bits_of, work=work) for name, work in _BITS.items()},
    "brev": partial(bits_of, work=lambda bits, size: int(f"{bits:0{size}b}"[::-1], 2), kind=None),
    "activemask": lambda state, line: _packed(state.mask.bits),
    "lanemask_lt": lambda state, line: (1 << state.lane_numbers % WARP) - 1,
    "fma": fma,
    "cbrt": lambda state, line, value: np.cbrt(value),
    "rsqrt": lambda state, line, value: dtype_of(value).type(1) / np.sqrt(value),
    "selp": lambda state, line, condition, a, b: values.choose(condition, a, b),
}

_HALF: dict[str, Code] = {
    "hadd": np.add, "hsub": np.subtract, "hmul": np.multiply, "hdiv": np.divide, "hneg": np.negative,
    "habs": np.absolute, "hmax": np.maximum, "hmin": np.minimum, "heq": np.equal, "hne": np.not_equal,
    "hgt": np.greater, "hge": np.greater_equal, "hlt": np.less, "hle": np.less_equal, "hrcp": np.reciprocal,
    "hexp10": lambda a: np.power(np.float16(10), a), "hrsqrt": lambda a: (1 / np.sqrt(a)).astype(np.float16),
    "hfma": lambda a, b, c: (np.asarray(a, np.float64) * b + c).astype(np.float16)[()],
}  # fmt: skip
_PLAIN = "sqrt", "sin", "cos", "log2", "log10", "exp2", "exp", "log", "floor", "ceil", "trunc", "rint", "tanh"
_HALF |= {f"h{name}": getattr(np, name) for name in _PLAIN}


def _half(function: Code) -> Code:
    return lambda *numbers: function(*(values.cast(number, np.dtype(np.float16)) for number in numbers))
