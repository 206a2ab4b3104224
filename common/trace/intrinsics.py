"""What kernels may call and the tracer carries out itself: a registry, and arrays, ranges and atomic operations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from common.catalog import device, limits
from common.trace import values
from common.trace.memory import Constant, Global, require_constants
from common.trace.shared import Local, Shared
from common.trace.state import State
from common.trace.values import Value, dtype_of, signed, uniform, widened
from common.trace.views import View

Code = Callable[..., Any]


class Intrinsic:
    """A function that the tracer carries out itself: called with the state, the line, and the arguments."""

    def __init__(self, function: Code) -> None:
        self.function, self.name = function, function.__name__


INTRINSICS: dict[str, Intrinsic] = {}  # the lessons' helpers, by name
ENGINES: set[str] = set()  # those of them that set to work what works beside the threads
READS = {"shared_address": 0}  # which of their arguments is an array that they only read


def intrinsic(function: Code, name: str = "", engines: bool = False) -> Code:
    """Kernels know it by its own name, or by ``name``, which its errors then have."""
    if name:
        function.__name__ = function.__qualname__ = name
    INTRINSICS[function.__name__] = Intrinsic(function)
    if engines:
        ENGINES.add(function.__name__)
    return function


def unknown(name: str) -> Intrinsic:
    """What kernels may call and the tracer does not know: a TraceError says so where it is called."""

    def call(state: State, line: int, *_: Any, **__: Any) -> None:
        raise state.unknown(line, f"{name} is not known to the tracer")

    return Intrinsic(call)


def one_number(state: State, line: int, name: str, value: Value) -> int:
    if not uniform(value):
        raise state.error(line, f"{name} takes one number for all threads, known when compiling")
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


# --- arrays that kernels make ---


def _shape(shape: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in shape) if type(shape) is tuple else (int(shape),)


def shared_memory(state: State, line: int, shape: Any, dtype: Any, alignment: int = 0) -> View:
    """One array per place in the code, however often that is reached; the dynamic ones are all the same memory."""
    extents, kind = _shape(shape), np.dtype(dtype.dtype)
    dynamic = extents == (0,)
    key: Any = "dynamic" if dynamic else state.here()
    if key not in state.shared:
        if dynamic:
            extents = (state.shared_bytes // kind.itemsize,)
        taken = sum(view.size * view.dtype.itemsize for k, view in state.shared.items() if k != "dynamic")
        static = taken + (0 if dynamic else math.prod(extents) * kind.itemsize)
        limits.require_shared(static, state.shared_bytes, device.played())
        made = state.shared_storage
        storage = made(state, math.prod(extents), kind, alignment or (16 if dynamic else kind.itemsize))
        state.shared[key] = View.of(storage, extents)
    view: View = state.shared[key]
    if view.dtype != kind:
        raise state.unknown(line, f"dynamic shared memory is used as {view.dtype} and as {kind}: that is not traced")
    return view


def local_memory(state: State, line: int, shape: Any, dtype: Any, alignment: int = 0) -> View:
    extents = _shape(shape)
    storage = Local(state, math.prod(extents), dtype.dtype)
    if state.has_engines:
        state.engines.locals[state.engines.teams.now].add(storage)
    return View.of(storage, extents)


def constant_memory(state: State, line: int, array: Any) -> View:
    if type(array) is not View or not isinstance(array.storage, Constant):
        raise state.error(line, "const.array_like takes an array that stands outside the kernel")
    require_constants(state)
    return array


# --- atomic operations ---


def _up_to(old: Any, limit: Any) -> Any:
    return np.where(old >= limit, 0, old + 1)


def _down_from(old: Any, limit: Any) -> Any:
    return np.where((old == 0) | (old > limit), limit, old - 1)


ATOMIC: dict[str, Code] = {
    "add": np.add, "sub": np.subtract, "max": np.maximum, "min": np.minimum, "nanmax": np.fmax, "nanmin": np.fmin,
    "and_": np.bitwise_and, "or_": np.bitwise_or, "xor": np.bitwise_xor, "inc": _up_to, "dec": _down_from,
    "exch": lambda old, value: value,
}  # fmt: skip


def atomic(combine: Code) -> Code:
    def apply(state: State, line: int, view: View, index: Any, value: Value) -> Value:
        operand = np.broadcast_to(np.asarray(values.cast(value, view.dtype)), state.mask.bits.shape)
        fresh = combine is ATOMIC["exch"]
        return _change(state, line, view, index, lambda old, lanes: combine(old, operand[lanes]), fresh)

    return apply


def cas(state: State, line: int, view: View, index: Any, old: Value, value: Value) -> Value:
    shape = state.mask.bits.shape
    wanted, put = (np.broadcast_to(np.asarray(values.cast(v, view.dtype)), shape) for v in (old, value))
    change = lambda held, lanes: np.where(held == wanted[lanes], put[lanes], held)  # noqa: E731
    return _change(state, line, view, index, change)


def compare_and_swap(state: State, line: int, view: View, old: Value, value: Value) -> Value:
    return cas(state, line, view, 0, old, value)


def _change(state: State, line: int, view: View, index: Any, change: Code, fresh: bool = False) -> Value:
    """Threads that change one element do so one after the other. ``fresh``: what it held does not matter."""
    place, wrong = view.place(state, index, line, "written")
    storage = view.storage
    if not isinstance(storage, Global | Shared):
        raise state.error(
            line, f"{view.name} is neither in global nor in shared memory: no atomic operation takes it"
        )
    lanes = state.among(wrong)
    at = storage.begin_atomic(state, view, place, lanes, wrong, line, fresh)
    everyone = np.flatnonzero(lanes)
    if state.reversed:
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
