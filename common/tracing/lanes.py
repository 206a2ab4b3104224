"""Runs a kernel for all threads of some blocks at once, in lockstep, and records what every warp does.

Blocks are padded to whole warps; the lanes of several blocks lie one after another. Barriers, shared memory and races
are a block's own. No GPU and no thread is involved: the order is fixed, so two runs give the same report.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from common.tracing import lockstep, values
from common.tracing.memory import WARP, Bools, Fault, Ints, Ledger
from common.tracing.spaces import Constant, Global, Local, Mask, Offsets, Shared, View, as_offset
from common.tracing.values import Cast, Value, choose, dtype_of, signed, truth, uniform, widened

Point = tuple[int, int, int]
Code = Callable[..., Any]

_RUNTIME = {
    "_" + name: getattr(values, name)
    for name in (
        "add", "sub", "mul", "truediv", "floordiv", "mod", "power", "shift_left", "shift_right", "bit_and", "bit_or",
        "bit_xor", "negative", "positive", "logical_not", "invert", "logical_and", "logical_or", "choose",
    )
} | {"_slice": slice}  # fmt: skip
_BUILTINS = {
    "min": values.minimum, "max": values.maximum, "abs": values.absolute, "len": len, "int": values.python_int,
    "float": values.python_float, "bool": values.python_bool,
}  # fmt: skip


class TraceError(RuntimeError):
    """The kernel does what the tracer does not know, or cannot be run at all."""


class Intrinsic:
    """A function that the machine carries out itself: called with the machine, the line, and the arguments."""

    def __init__(self, function: Code) -> None:
        self.function = function


# Helpers of lessons/wide.py and lessons/unrolled.py by name. To add one: a function below with @intrinsic.
INTRINSICS: dict[str, Intrinsic] = {}


def intrinsic(function: Code) -> Code:
    INTRINSICS[function.__name__] = Intrinsic(function)
    return function


class Machine:
    """The state of one kernel launch: the active lanes, the blocks that run, and the ledger."""

    def __init__(self, function: Code, grid: Point, block: Point, ledger: Ledger, shared_bytes: int = 0) -> None:
        self.function, self.grid, self.block, self.ledger = function, grid, block, ledger
        self.shared_bytes = shared_bytes
        self.home = function.__code__.co_filename
        self.threads = block[0] * block[1] * block[2]
        self.lanes_per_block = -(-self.threads // WARP) * WARP
        self.site = 0  # the line of the step's file that a helper is called from
        self.depth = 0
        self.called: dict[Code, _Function] = {}
        self.cuda: SimpleNamespace = SimpleNamespace()
        self.blocks: list[Point] = []
        self.main = self.wrapped(function)

    # --- running ---

    def run(self, arguments: list[Any], blocks: list[Point], at_once: int = 1) -> None:
        """Execute ``blocks``, ``at_once`` at a time; arrays among the arguments are Views."""
        with np.errstate(all="ignore"):
            for first in range(0, len(blocks), at_once):
                self._begin(blocks[first : first + at_once])
                self.main.invoke(self, 0, tuple(arguments), {})
                self._end()

    def _begin(self, blocks: list[Point]) -> None:
        size = len(blocks) * self.lanes_per_block
        if len(blocks) != len(self.blocks):
            self.lane_numbers = np.arange(size)
            self.block_number = self.lane_numbers // self.lanes_per_block
            thread = self.lane_numbers % self.lanes_per_block
            self.all = Mask(thread < self.threads)
            self.none = Mask(np.zeros(size, np.bool_), 0)
            self.thread_axes = self._axes(np.minimum(thread, self.threads - 1), self.block)
        self.blocks, self.blocks_at_once = blocks, len(blocks)
        block_axes = [self._across([block[axis] for block in blocks]) for axis in range(3)]
        self.cuda = _cuda(self, block_axes)
        self.mask, self.exited = self.all, self.none
        self.warp_epoch = 0
        self.shared: dict[Any, View] = {}
        self.copies: list[_Copy] = []
        self.tainted: Bools | None = None
        self.sources: list[_Unwritten] = []
        self.call_path: list[int] = []

    def _end(self) -> None:
        self._settle()
        if self.copies:
            names = ", ".join(sorted({copy.view.name for copy in self.copies}))
            self.ledger.note(f"copies to {names} are still under way when the block ends: no wait comes after them")
        for source in self.sources:
            self.ledger.note(
                f"line {source.line} reads elements of {source.view.name} that nothing has written; no such value is "
                "stored"
            )

    def _axes(self, numbers: Any, extents: Point) -> list[Value]:
        x, y, _ = extents
        parts = [numbers % x, numbers // x % y, numbers // (x * y)]
        return [0 if extent == 1 else part for part, extent in zip(parts, extents, strict=True)]

    def _across(self, numbers: list[int]) -> Value:
        return numbers[0] if len(set(numbers)) == 1 else np.array(numbers)[self.block_number]

    def thread_of(self, lane: int) -> Point:
        thread = lane % self.lanes_per_block
        x, y, _ = self.block
        return thread % x, thread // x % y, thread // (x * y)

    def block_of(self, lane: int) -> Point:
        return self.blocks[lane // self.lanes_per_block]

    # --- names ---

    def wrapped(self, value: Any) -> Any:
        """A global or closed-over value as translated code sees it."""
        if value is None or isinstance(value, bool | int | str | tuple | np.generic | np.ndarray):
            return value
        if isinstance(value, float):
            return np.float64(value)
        if isinstance(value, ModuleType):
            return _Module(self, value)
        number = _number_type(value)
        if number is not None:
            return number
        name = getattr(value, "__name__", "")
        if name in INTRINSICS and not hasattr(value, "py_func"):
            return INTRINSICS[name]
        function = getattr(value, "py_func", value)
        if not inspect.isfunction(function):
            return value
        if function not in self.called:
            self.called[function] = _Function(function, home=function.__code__.co_filename == self.home)
        return self.called[function]

    def error(self, line: int, text: str) -> TraceError:
        return TraceError(f"line {line}: {text}")

    def call(self, function: Any, line: int, *arguments: Any, **options: Any) -> Any:
        if isinstance(function, _Function):
            return function.invoke(self, line, arguments, options)
        if isinstance(function, Intrinsic):
            return function.function(self, line, *arguments, **options)
        return function(*arguments, **options)

    @staticmethod
    def named(value: Any, name: str) -> Any:
        if type(value) is View and not value.name:
            value.name = name
        return value

    # --- masks ---

    def branch(self, condition: Value, line: int) -> Mask:
        """The active lanes for which the condition holds; ``mask`` itself if all, ``none`` itself if none."""
        condition = truth(condition)
        if uniform(condition):
            return self.mask if condition else self.none
        taken = self._part(condition)
        if taken is not self.none and taken is not self.mask and self.ledger.recording:
            rows = self.mask.bits.reshape(-1, WARP)
            yes = taken.bits.reshape(-1, WARP)
            split = int(np.count_nonzero(yes.any(axis=1) & (rows & ~yes).any(axis=1)))
        else:
            split = 0
        if self.ledger.recording:
            counts = self.ledger.diverged.setdefault(line, [0, 0])
            counts[0] += split
            counts[1] += self.mask.warps
        return taken

    def _part(self, condition: Value) -> Mask:
        bits = self.mask.bits & condition
        count = int(np.count_nonzero(bits))
        return self.none if not count else self.mask if count == self.mask.count else Mask(bits, count)

    def minus(self, mask: Mask, taken: Mask) -> Mask:
        if taken is mask:
            return self.none
        return mask if taken is self.none else Mask(mask.bits & ~taken.bits, mask.count - taken.count)

    def without(self, mask: Mask, *gone: Mask) -> Mask:
        left = mask
        for others in gone:
            if others is not self.none and left is not self.none:
                bits = left.bits & ~others.bits
                count = int(np.count_nonzero(bits))
                left = self.none if not count else left if count == left.count else Mask(bits, count)
        return left

    def union(self, a: Mask, b: Mask) -> Mask:
        return b if a is self.none else a if b is self.none else Mask(a.bits | b.bits)

    def leave(self, returned: Mask) -> Mask:
        """The lanes that have returned, with those that do so now."""
        returned = self.union(returned, self.mask)
        if self.depth == 1:
            self.exited = returned
        return returned

    def merged(self, value: Any, old: Any, base: Mask) -> Any:
        """A variable's new value in the active lanes, its old one in those of ``base`` that are not."""
        if self.mask is base or old is None or type(value) is View:
            return value
        if type(value) is tuple and type(old) is tuple and len(value) == len(old):
            return tuple(self.merged(new, before, base) for new, before in zip(value, old, strict=True))
        if type(value) is int and type(old) is int and value == old:
            return value
        return choose(self.mask.bits, value, old)

    def iterate(self, items: Any, line: int, leaves: bool) -> Any:
        if type(items) is _Range:
            return self._turns(items, line)
        return self._again(items) if leaves else items

    def _again(self, items: Any) -> Iterator[Any]:
        mask = self.mask
        for item in items:
            self.mask = mask
            yield item

    def _turns(self, items: _Range, line: int) -> Iterator[Value]:
        """A range that differs between lanes: those that have not reached its end go on."""
        mask, value = self.mask, items.start
        while True:
            self.mask = mask
            up = truth(items.step > 0)
            more = (
                choose(up, value < items.stop, value > items.stop) if not uniform(up)
                else value < items.stop if up else value > items.stop
            )  # fmt: skip
            taken = self.branch(more, line)
            if taken is self.none:
                return
            self.mask = taken
            yield value
            value = values.add(value, items.step)

    def select(self, condition: Value, then: Code, otherwise: Code) -> Value:
        """``a if condition else b`` where either reads memory: only the lanes that need it do."""
        condition = truth(condition)
        if uniform(condition):
            return then() if condition else otherwise()
        mask = self.mask
        taken = self._part(condition)
        if taken is mask:
            return then()
        if taken is self.none:
            return otherwise()
        self.mask = taken
        first = then()
        self.mask = self.minus(mask, taken)
        second = otherwise()
        self.mask = mask
        return choose(taken.bits, first, second)

    def both(self, first: Value, second: Code) -> Value:
        return self.select(first, lambda: truth(second()), lambda: False)

    def either(self, first: Value, second: Code) -> Value:
        return self.select(first, lambda: True, lambda: truth(second()))

    # --- values and arrays ---

    def load(self, array: Any, index: Any, line: int) -> Any:
        if type(array) is View:
            return array.load(self, index, line)
        return array[index]

    def store(self, array: Any, index: Any, value: Value, line: int) -> None:
        if type(array) is not View:
            raise self.error(line, f"a {type(array).__name__} cannot be assigned to")
        array.store(self, index, value, line)

    def multiply_add(self, function: Code, a: Value, b: Value, line: int) -> Value:
        result = function(a, b)
        if type(result) is not int and dtype_of(result).kind == "f" and self.ledger.recording:
            self.ledger.fma[line] = self.ledger.fma.get(line, 0) + self.mask.count
        return result

    def within(
        self, index: Value, extent: int, line: int, view: View, axis: int | None, verb: str
    ) -> tuple[Offsets, Bools | None]:
        """An index as an offset along an axis (None: a flat offset), and the lanes for which it is outside."""
        may_wrap = axis is not None and (type(index) is int or dtype_of(index).kind == "i")
        at = as_offset(index)
        if type(at) is int:
            if 0 <= at < extent:
                return at, None
            wraps = may_wrap and -extent <= at < 0
            self._outside(at, self.mask.bits, wraps, extent, line, view, axis, verb)
            return (at + extent, None) if wraps else (0, np.ones(len(self.lane_numbers), np.bool_))
        wrong = (at < 0) | (at >= extent) if extent <= 0 else at.view(np.uint64) >= np.uint64(extent)
        if not wrong.any():
            return at, None
        wrong &= self.mask.bits
        if not wrong.any():
            return at, None
        if may_wrap:
            below = wrong & (at < 0) & (at >= -extent)
            if below.any():
                self._outside(at, below, True, extent, line, view, axis, verb)
                at = np.where(below, at + extent, at)
                wrong &= ~below
                if not wrong.any():
                    return at, None
        self._outside(at, wrong, False, extent, line, view, axis, verb)
        return at, wrong

    def _outside(
        self, at: Offsets, lanes: Bools, wraps: bool, extent: int, line: int, view: View, axis: int | None, verb: str
    ) -> None:
        lane = int(np.argmax(lanes))
        number = at if type(at) is int else int(at[lane])
        where = f"axis {axis} of {view.name}" if view.ndim > 1 and axis is not None else view.name
        numbers = str(number)
        if axis is None and extent < view.size:  # several elements from this one on
            numbers, extent = f"{number} to {number + view.size - extent}", view.size
        text = f"{where} is {verb} at {numbers}, its extent is {extent}"
        if wraps:
            text += ": a negative index counts from the end"
        self.fault("negative_index" if wraps else "out_of_bounds", line, view.name, text, lanes)

    def beyond(
        self, view: View, place: Offsets, width: int, wrong: Bools | None, line: int, verb: str
    ) -> Bools | None:
        """Lanes whose access leaves the allocation, though not the array's stated shape, added to ``wrong``."""
        limit = len(view.storage.data) - width
        outside = (place < 0) | (place > limit)
        if not np.any(outside):
            return wrong
        lanes = np.broadcast_to(outside, self.mask.bits.shape) & self.mask.bits
        if wrong is not None:
            lanes = lanes & ~wrong
        if not lanes.any():
            return wrong
        lane = int(np.argmax(lanes))
        number = int(np.broadcast_to(place, lanes.shape)[lane])
        past = f"{number - limit} past its end" if number > limit else f"{-number} before its start"
        self.fault("out_of_bounds", line, view.name, f"the memory of {view.name} is {verb} {past}", lanes)
        return lanes if wrong is None else lanes | wrong

    def fault(
        self, kind: str, line: int, array: str, text: str, lanes: Any = None, lane: int | None = None, count: int = 0
    ) -> None:
        if lanes is None or uniform(lanes):
            lanes = self.mask.bits
        lanes = lanes & self.mask.bits if lane is None else lanes
        lane = int(np.argmax(lanes)) if lane is None else lane
        self.ledger.fault(
            Fault(kind, line, array, text, self.thread_of(lane), self.block_of(lane)),
            count or int(np.count_nonzero(lanes)),
        )

    def first(self, value: Any, lanes: Any) -> int:
        """The value of the first of the active lanes that are named."""
        lane = int(np.argmax(np.broadcast_to(lanes, self.mask.bits.shape) & self.mask.bits))
        return int(np.broadcast_to(value, self.mask.bits.shape)[lane])

    def read_uninitialised(self, line: int, view: View, offset: Offsets, lanes: Bools, nan: bool) -> None:
        """What nothing has written was read, ``offset`` from the view's start."""
        if not nan:  # an integer cannot be told apart later
            text = f"{view.element(self.first(offset, lanes))}, which nothing has written, is read"
            self.fault("uninitialised", line, view.name, text, lanes)
            return
        self.tainted = lanes.copy() if self.tainted is None else self.tainted | lanes
        for source in self.sources:
            if (source.line, source.view.name) == (line, view.name):
                source.offsets = np.where(lanes, offset, source.offsets)
                source.lanes |= lanes
                return
        offsets = np.broadcast_to(offset, lanes.shape)
        self.sources.append(_Unwritten(lanes.copy(), line, view, offsets))

    def reveal(self, value: Value, line: int, view: View) -> None:
        """A fault if a value that is stored comes from memory that nothing had written."""
        if self.tainted is None or dtype_of(value).kind != "f":
            return
        lanes = np.isnan(value) & self.tainted & self.mask.bits
        if not lanes.any():
            return
        lane = int(np.argmax(lanes))
        for i, source in enumerate(self.sources):
            if source.lanes[lane]:
                text = (
                    f"{source.view.element(int(source.offsets[lane]))}, which nothing has written, is read, and what "
                    f"becomes of it is stored to {view.name} in line {line}"
                )
                self.fault("uninitialised", source.line, source.view.name, text, lanes)
                del self.sources[i]
                return

    def observe(self, tally: Any, view: View, place: Offsets, width: int, op: str, line: int) -> None:
        """Keep the first request's offsets, and every access to a watched array by the first block."""
        if tally.sample is None:
            rows = self.mask.bits.reshape(-1, WARP)
            warp = int(np.argmax(rows.sum(axis=1)))
            places = np.broadcast_to(place, self.mask.bits.shape).reshape(-1, WARP)[warp]
            tally.sample = [int(p) if on else None for p, on in zip(places, rows[warp], strict=True)]
        if view.name in self.ledger.watched:
            lanes = self.mask.bits & (self.lane_numbers < self.lanes_per_block)
            places = np.broadcast_to(place, lanes.shape)[lanes]
            threads = self.lane_numbers[lanes].tolist()
            self.ledger.events.append(
                {"line": line, "op": op, "array": view.name, "width": width, "threads": threads,
                 "places": places.tolist()}
            )  # fmt: skip

    # --- barriers and copies ---

    def barrier(self, line: int) -> None:
        waiting = self.without(self.all, self.exited)
        if self.mask is not waiting and self.mask.count != waiting.count:
            rows = self.mask.bits.reshape(self.blocks_at_once, -1)
            some: Bools = np.asarray(rows.any(axis=1))
            absent = (waiting.bits.reshape(rows.shape) & ~rows) & some[:, None]
            if absent.any():
                lane = int(np.argmax(absent.reshape(-1)))
                text = f"{int(absent.sum())} threads do not reach this barrier, which others wait at"
                self.fault("barrier", line, "", text, lane=lane, count=int(absent.sum()))
        self._settle()
        self.warp_epoch = 0
        for copy in self.copies:  # it may arrive at any time until it is waited for
            copy.storage.writes.append((copy.place, copy.lanes, copy.value, copy.line, 0))

    def _settle(self) -> None:
        for view in self.shared.values():
            view.storage.settle(self, view)

    def start_copy(
        self, line: int, shared: View, i: Value, array: View, offset: Value, width: int, inside: Value = True
    ) -> None:
        """Begin a copy of ``width`` elements from global to shared memory; where not ``inside``, of zeros."""
        target, wrong = shared.place_flat(self, i, width, line, "written")
        if not isinstance(shared.storage, Shared):
            raise self.error(line, f"{shared.name} is not in shared memory: a copy goes from global to shared memory")
        mask = self.mask
        self.mask = self._part(truth(inside)) if not uniform(inside) else mask if inside else self.none
        places: list[Value] = [array.dtype.type(0)] * width
        if self.mask is not self.none:
            source, bad = array.place_flat(self, offset, width, line, "read")
            places = array.storage.read(self, array, source, width, bad, line, "copy")
            if self.mask is not mask:
                places = [choose(self.mask.bits, value, array.dtype.type(0)) for value in places]
        self.mask = mask
        shared.storage.record(self, shared, target, width, "copy", line)
        lanes = mask.bits if wrong is None else mask.bits & ~wrong
        storage = shared.storage
        if storage.pending is None:
            storage.pending = np.zeros(len(storage.data), np.bool_)
        for v, value in enumerate(places):
            at = storage.base + target + v if storage.base is not None else target + v
            at = np.broadcast_to(np.asarray(at), lanes.shape)
            storage.pending[at[lanes]] = True
            storage.writes.append((at, lanes, value, line, self.warp_epoch))
            self.copies.append(_Copy(shared, at, lanes, value, line))

    def finish_copies(self, keep: int = 0) -> None:
        """What the active lanes' copies bring is there now, but for the last ``keep``."""
        left: list[_Copy] = []
        for number, copy in enumerate(self.copies):
            lanes = copy.lanes & self.mask.bits
            if number >= len(self.copies) - keep or not lanes.any():
                left.append(copy)
                continue
            storage = copy.storage
            assert storage.pending is not None
            assert storage.written is not None
            storage.pending[copy.place[lanes]] = False
            storage.data[copy.place[lanes]] = copy.value if np.ndim(copy.value) == 0 else copy.value[lanes]
            storage.written[copy.place[lanes]] = True
            storage.writes.append((copy.place, lanes, copy.value, copy.line, self.warp_epoch))
            if np.count_nonzero(lanes) < np.count_nonzero(copy.lanes):
                left.append(_Copy(copy.view, copy.place, copy.lanes & ~lanes, copy.value, copy.line))
        self.copies = left


@dataclass
class _Unwritten:
    """Lanes that read what nothing had written, in a line: at which offsets from the view's start."""

    lanes: Bools
    line: int
    view: View
    offsets: Ints


class _Copy:
    """One element per lane on its way to shared memory."""

    def __init__(self, view: View, place: Any, lanes: Bools, value: Value, line: int) -> None:
        self.view, self.place, self.lanes, self.value, self.line = view, place, lanes, value, line

    @property
    def storage(self) -> Shared:
        storage: Shared = self.view.storage
        return storage


class _Range:
    """``range`` whose ends differ between lanes."""

    def __init__(self, start: Value, stop: Value, step: Value) -> None:
        self.start, self.stop, self.step = start, stop, step


def _range(*ends: Value) -> Any:
    start, stop, step = (0, ends[0], 1) if len(ends) == 1 else (*ends, 1)[:3]
    if not (uniform(start) and uniform(stop) and uniform(step)):
        start, stop = values.unified(start, stop)
        return _Range(start, stop, signed(widened(step)))
    turns = range(*(int(end) for end in (start, stop, step)))
    if any(type(end) is int or dtype_of(end).kind == "i" for end in (start, stop)):
        return turns
    return map(np.uint64, turns)


_BUILTINS["range"] = _range


class _Function:
    """A kernel or device function, bound to a machine."""

    def __init__(self, function: Code, home: bool) -> None:
        self.function, self.home = function, home
        self.namespace: dict[str, Any] | None = None

    def invoke(self, machine: Machine, line: int, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if self.namespace is None:
            code, constants, free = _translated(self.function, self.home)
            wrapped = {name: machine.wrapped(value) for name, value in free.items()}
            self.namespace = {**_BUILTINS, **wrapped, **_RUNTIME, **constants, "_t": machine}
            exec(code, self.namespace)
        site, mask = machine.site, machine.mask
        machine.depth += 1
        machine.call_path.append(line)
        if not self.home:
            machine.site = line
        try:
            return self.namespace[self.function.__code__.co_name](*arguments, **options)
        finally:
            machine.depth -= 1
            machine.call_path.pop()
            machine.site, machine.mask = site, mask


@lru_cache(maxsize=256)
def _translated(function: Code, home: bool) -> tuple[CodeType, dict[str, Any], dict[str, Any]]:
    """The function's translation, the constants it names, and what its free names stand for."""
    definition = _definition(function)
    scope = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            scope[name] = cell.cell_contents
        except ValueError:
            raise TraceError(f"{function.__name__}: {name} has no value yet") from None
    used = {node.id for node in ast.walk(definition) if isinstance(node, ast.Name)}
    free = {name: scope[name] for name in used if name in scope}

    def pure(name: str) -> bool:
        return name in _BUILTINS if name not in free else isinstance(_number_type(free[name]), Cast)

    try:
        module, constants = lockstep.translate(definition, pure, home)
    except lockstep.UntranslatableError as error:
        raise TraceError(f"{function.__name__}: {error}") from None
    code = compile(module, function.__code__.co_filename, "exec")
    return code, {name: np.float64(value) for name, value in constants.items()}, free


def _number_type(value: Any) -> Cast | None:
    """A NumPy or Numba number type, as a cast."""
    if isinstance(value, type):
        return Cast(value) if issubclass(value, np.generic) else None
    if inspect.isfunction(value) or isinstance(value, ModuleType) or hasattr(value, "py_func"):
        return None
    try:
        return Cast(str(value)) if callable(value) else None  # Numba's types have NumPy's names
    except TypeError:
        return None


def _definition(function: Code) -> ast.FunctionDef:
    """The function's syntax tree, from the file it was written in."""
    code = function.__code__
    linecache.checkcache(code.co_filename)  # the file may have been edited
    text = "".join(linecache.getlines(code.co_filename))
    if not text:
        raise TraceError(f"{function.__name__}: its source {code.co_filename} is not there")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first <= code.co_firstlineno <= node.lineno:
                return node
    raise TraceError(f"{function.__name__}: no such function in line {code.co_firstlineno} of {code.co_filename}")


class _Module:
    """A module as translated code sees it: each attribute wrapped when asked for."""

    def __init__(self, machine: Machine, module: ModuleType) -> None:
        self._machine, self._module = machine, module

    def __getattr__(self, name: str) -> Any:
        if self._module.__name__.endswith("cuda"):
            if not hasattr(self._machine.cuda, name):
                raise TraceError(f"cuda.{name} is not known to the tracer")
            return getattr(self._machine.cuda, name)
        if self._module.__name__ == "math":
            return getattr(values.MathModule(), name)
        found = getattr(self._module, name)
        return getattr(values.MathModule(), name) if isinstance(found, np.ufunc) else self._machine.wrapped(found)


# --- what `cuda` offers inside a kernel ---


def _cuda(machine: Machine, block_axes: list[Value]) -> SimpleNamespace:
    """The names of ``numba.cuda`` that kernels use; _Module says so if one is missing."""

    def point(parts: Any) -> SimpleNamespace:
        return SimpleNamespace(**dict(zip("xyz", parts, strict=True)))

    def grid(dimensions: int) -> Value:
        parts = [
            values.add(values.mul(block, extent), thread)
            for block, extent, thread in zip(block_axes, machine.block, machine.thread_axes, strict=True)
        ]
        return parts[0] if dimensions == 1 else tuple(parts[:dimensions])

    def gridsize(dimensions: int) -> Any:
        parts = [blocks * threads for blocks, threads in zip(machine.grid, machine.block, strict=True)]
        return parts[0] if dimensions == 1 else tuple(parts[:dimensions])

    return SimpleNamespace(
        threadIdx=point(machine.thread_axes),
        blockIdx=point(block_axes),
        blockDim=point(machine.block),
        gridDim=point(machine.grid),
        laneid=machine.lane_numbers % WARP,
        warpsize=WARP,
        grid=grid,
        gridsize=gridsize,
        syncthreads=Intrinsic(Machine.barrier),
        syncwarp=Intrinsic(_syncwarp),
        threadfence=Intrinsic(lambda machine, line: None),
        threadfence_block=Intrinsic(lambda machine, line: None),
        shared=SimpleNamespace(array=Intrinsic(_shared)),
        local=SimpleNamespace(array=Intrinsic(_local)),
        const=SimpleNamespace(array_like=Intrinsic(_constant)),
        atomic=SimpleNamespace(
            **{name: Intrinsic(_atomic(combine)) for name, combine in _ATOMIC.items()},
        ),
    )


def _syncwarp(machine: Machine, line: int, mask: Value = 0) -> None:
    machine.warp_epoch += 1


def _shape(shape: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in shape) if type(shape) is tuple else (int(shape),)


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(np.prod(shape[axis + 1 :], dtype=np.int64)) for axis in range(len(shape)))


def _shared(machine: Machine, line: int, shape: Any, dtype: Any, alignment: int = 0) -> View:
    """One array per place in the code, however often that is reached."""
    key = (*machine.call_path, line)
    extents, kind = _shape(shape), np.dtype(dtype.dtype)
    if extents == (0,):  # as large as the launch says
        extents = (machine.shared_bytes // kind.itemsize,)
    if key not in machine.shared:
        size = int(np.prod(extents))
        storage = Shared(machine, size, kind, alignment or kind.itemsize)
        machine.shared[key] = View(storage, 0, extents, _strides(extents))
    return machine.shared[key]


def _local(machine: Machine, line: int, shape: Any, dtype: Any, alignment: int = 0) -> View:
    extents = _shape(shape)
    return View(Local(machine, int(np.prod(extents)), dtype.dtype), 0, extents, _strides(extents))


def _constant(machine: Machine, line: int, array: Any) -> View:
    array = np.ascontiguousarray(array)
    return View(Constant(array.reshape(-1)), 0, array.shape, _strides(array.shape))


_ATOMIC: dict[str, Code] = {
    "add": lambda old, value: old + value,
    "sub": lambda old, value: old - value,
    "max": max,
    "min": min,
    "exch": lambda old, value: value,
}


def _atomic(combine: Code) -> Code:
    def apply(machine: Machine, line: int, view: View, index: Any, value: Value) -> Value:
        place, wrong = view.place(machine, index, line, "written")
        storage, mask = view.storage, machine.mask
        lanes = mask.bits if wrong is None else mask.bits & ~wrong
        at = storage._flat(place) if isinstance(storage, Shared) else place
        at = np.broadcast_to(np.asarray(at), lanes.shape)
        if isinstance(storage, Global):
            storage.record(machine, view, place, 1, "atomic", line, wrong)
        else:
            storage.record(machine, view, place, 1, "atomic", line)
        operand = np.broadcast_to(np.asarray(value, view.dtype), lanes.shape)
        old = np.zeros(lanes.shape, view.dtype)
        for lane in np.flatnonzero(lanes):  # one after the other, as the hardware does it
            old[lane] = storage.data[at[lane]]
            storage.data[at[lane]] = combine(old[lane], operand[lane])
        if storage.written is not None:
            storage.written[at[lanes]] = True
        return old

    return apply


# --- helpers of the lessons, at their real width ---


@intrinsic
def unrolled(machine: Machine, line: int, count: Value) -> Any:
    return _range(count)


@intrinsic
def shared_array(machine: Machine, line: int, size: int) -> View:
    return _shared(machine, line, size, Cast(np.float32), alignment=16)


def _read_wide(
    machine: Machine, line: int, registers: View, i: Value, array: View, offset: Value, width: int
) -> None:
    source, wrong = array.place_flat(machine, offset, width, line, "read")
    found = array.storage.read(machine, array, source, width, wrong, line)
    target, bad = registers.place_flat(machine, i, width, line, "written", aligned=False)
    registers.storage.write(machine, registers, target, found, bad, line)


def _write_wide(
    machine: Machine, line: int, array: View, offset: Value, registers: View, i: Value, width: int
) -> None:
    source, wrong = registers.place_flat(machine, i, width, line, "read", aligned=False)
    found = registers.storage.read(machine, registers, source, width, wrong, line)
    target, bad = array.place_flat(machine, offset, width, line, "written")
    array.storage.write(machine, array, target, found, bad, line)


@intrinsic
def load4(machine: Machine, line: int, registers: View, i: Value, array: View, offset: Value) -> None:
    _read_wide(machine, line, registers, i, array, offset, 4)


@intrinsic
def load2(machine: Machine, line: int, registers: View, i: Value, array: View, offset: Value) -> None:
    _read_wide(machine, line, registers, i, array, offset, 2)


@intrinsic
def store4(machine: Machine, line: int, array: View, offset: Value, registers: View, i: Value) -> None:
    _write_wide(machine, line, array, offset, registers, i, 4)


@intrinsic
def store2(machine: Machine, line: int, array: View, offset: Value, registers: View, i: Value) -> None:
    _write_wide(machine, line, array, offset, registers, i, 2)


@intrinsic
def copy1_async(machine: Machine, line: int, shared: View, i: Value, array: View, offset: Value) -> None:
    machine.start_copy(line, shared, i, array, offset, 1)


@intrinsic
def copy4_async(machine: Machine, line: int, shared: View, i: Value, array: View, offset: Value) -> None:
    machine.start_copy(line, shared, i, array, offset, 4)


@intrinsic
def copy1_or_zero(
    machine: Machine, line: int, shared: View, i: Value, array: View, offset: Value, inside: Value
) -> None:
    machine.start_copy(line, shared, i, array, offset, 1, inside)


@intrinsic
def copy4_or_zero(
    machine: Machine, line: int, shared: View, i: Value, array: View, offset: Value, inside: Value
) -> None:
    machine.start_copy(line, shared, i, array, offset, 4, inside)


@intrinsic
def wait_async(machine: Machine, line: int) -> None:
    machine.finish_copies()
