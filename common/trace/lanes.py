"""Runs a kernel for all threads of some blocks at once, in lockstep, and records what every warp does.

Blocks are padded to whole warps; the lanes of several blocks lie one after another. Barriers, shared memory and races
are a block's own. No GPU and no thread is involved: the order is fixed, so two runs give the same report.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import linecache
import math
import operator
import re
import traceback
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import CodeType, ModuleType
from typing import Any, TypeAlias

import numpy as np

from common.catalog import ledger, limits
from common.catalog.limits import LaunchLimitError
from common.explain.faults import ARRAY_MAKERS, Fault, array_made
from common.trace import hopper, lockstep, values
from common.trace.bulk import LEFT_OVER, Map
from common.trace.engines import Asynchronous
from common.trace.intrinsics import INTRINSICS, READS, Cuda, Intrinsic, Range, make_range, unknown
from common.trace.mbarriers import Barriers
from common.trace.memory import WARP, Bools, Ints, Ledger, Request
from common.trace.shadow import BARRIER, Log
from common.trace.spaces import Constant, Global, Local, Mask, Offsets, Shared, View, as_offset
from common.trace.teams import SplitError, StuckError
from common.trace.tiles import Tiles
from common.trace.values import Cast, Value, choose, dtype_of, truth, uniform

Point = tuple[int, int, int]
_GRID = (
    "cuda.cg is not known to the tracer; a barrier of the whole grid, grid.sync(), needs all blocks resident at "
    "once: kernel.overloads[...].max_cooperative_grid_blocks(block) tells how many that may be"
)
_UNSET = {
    Local: "whose array it is: a local array is each thread's own, and what other threads stored is in theirs",
    Global: "what this line reads: a launch finds in its output, and in what it allocates, nothing of use",
}
_REMEMBERED = 64  # indices that are known to be within an array
_PLANS = 1024  # of products, kept
_WARPS_KEPT = 4  # of one access, so that later rounds of a loop are kept, too
Code = Callable[..., Any]
Argument: TypeAlias = "View | Map | bool | int | float | np.generic | tuple[Argument, ...]"
"""What a launch gives a kernel."""

_HELPERS = (
    "lessons.hopper",
    "lessons.tensorcores",
    "lessons.wide",
)  # whose device functions the machine carries out itself

_RUNTIME = {
    "_" + name: getattr(values, name)
    for name in (
        "add", "sub", "mul", "truediv", "floordiv", "mod", "power", "shift_left", "shift_right", "bit_and", "bit_or",
        "bit_xor", "negative", "positive", "logical_not", "invert", "logical_and", "logical_or", "choose",
    )
}  # fmt: skip
_RUNTIME |= {"_" + name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")} | {"_slice": slice}
_PLACES = ("threadIdx", "blockIdx", "blockDim", "gridDim")
_BUILTINS = {
    "min": values.minimum, "max": values.maximum, "abs": values.absolute, "len": len, "int": values.python_int,
    "float": values.python_float, "bool": values.python_bool, "range": make_range, "enumerate": enumerate, "zip": zip,
    "pow": values.power, "round": values.rounded,
}  # fmt: skip


_ASTRAY = 2_000  # branches after the read of an integer that nothing has written


class TraceError(RuntimeError):
    """The kernel does what the tracer does not know, or cannot be run at all."""


class MistakeError(TraceError):
    """The kernel does what no GPU does as it is meant: ``line`` is the kernel's."""

    line: int | None = None


def block_order(total: int, order: str | int) -> Callable[[int, int], Ints]:
    """Which blocks run as number first to last: "forward", "backward", or drawn from a seed. Raises ValueError."""
    if order == "forward":
        return lambda first, last: np.arange(first, last)
    if order == "backward":
        return lambda first, last: np.arange(total - 1 - first, total - 1 - last, -1)
    if not isinstance(order, int):
        raise ValueError(f"order {order!r}: must be forward, backward or a seed")
    rng = np.random.default_rng(order)
    step, start = int(rng.integers(1, max(total, 2))), int(rng.integers(0, max(total, 1)))
    while math.gcd(step, total) != 1:
        step += 1
    return lambda first, last: (np.arange(first, last) * step + start) % total


def _goes_on(_: int, __: int) -> None:
    """A group of blocks is done, out of so many."""
    ledger.advance()


done_with: Callable[[int, int], None] = _goes_on
"""Called with the groups of blocks of a launch that are done, from 0 on, and their number; what it raises ends it."""


class Machine:
    """A kernel as first compiled, and the state of one launch: the active lanes, the blocks that run, the ledger.

    Globals and closures are read once, when the machine is made. ``configure`` begins another launch.
    """

    asynchronous: Asynchronous  # of the blocks that run, where the kernel has_engines

    def __init__(
        self, function: Code, grid: Point, block: Point, ledger: Ledger, shared_bytes: int = 0,
        bounds: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        self.function = function
        self.has_engines = False  # does it use what works beside its threads: wgmma, copies of boxes
        self.waits = False  # do its threads wait for each other by other means than a barrier of the block
        self.home = function.__code__.co_filename
        self.spot = 0  # of the call that is made
        self.site = 0  # the line of the step's file that a helper is called from
        self.depth = 0
        self.called: dict[Code, _Function] = {}
        self.constants: dict[int, Any] = {}  # host arrays that it names, by their id, which they keep
        self.cuda = Cuda(self)
        self.main = self.wrapped(function)
        self.main.freeze(self)
        self.shared_storage = Tiles if self.has_engines else Shared
        self.configure(grid, block, ledger, shared_bytes, bounds)

    def configure(
        self, grid: Point, block: Point, ledger: Ledger, shared_bytes: int = 0, bounds: tuple[int, ...] = ()
    ) -> None:
        """``bounds``: threads of a block, blocks that are resident together, and blocks of a cluster along x."""
        self.grid, self.block, self.ledger, self.shared_bytes = grid, block, ledger, shared_bytes
        self.bounds = (bounds[0], bounds[1]) if len(bounds) > 1 else None
        self.cluster = bounds[2] if len(bounds) > 2 else 1
        if grid[0] % self.cluster:
            raise LaunchLimitError(f"grid {grid}: x must be a multiple of the {self.cluster} blocks of a cluster")
        self.threads = block[0] * block[1] * block[2]
        self.lanes_per_block = -(-self.threads // WARP) * WARP
        self.log = Log(self.lanes_per_block)
        self.ran: list[Ints] = []  # numbers of blocks, in the order in which they ran
        self.next_ordinal = 0
        self.numbers = np.zeros(0, np.int64)

    # --- running ---

    def run(
        self, arguments: list[Argument], blocks: Ints | None = None, at_once: int = 1, order: str | int = "forward"
    ) -> None:
        """Execute blocks (their numbers, x fastest; None: all), ``at_once`` at a time; arrays among the arguments are
        Views. ``order``: of the blocks, see :func:`block_order`; unless forward, of threads that write one element,
        too. Of blocks in clusters, ``at_once`` and the order are those of clusters, and they run whole."""
        if not self.has_engines:
            self._run(arguments, blocks, at_once, order)
            return
        split: frozenset[int] = frozenset()
        told: _Before | None = None
        while True:
            before = _Before(self, arguments)
            try:
                self._run(arguments, blocks, at_once, order, split)
                return
            except StuckError as stuck:
                self.asynchronous.teams.tell()
                if stuck.split <= split and at_once == 1:
                    return  # it stays so: nothing that comes after it tells more
                told = _Before(self, arguments)
                split, at_once = split | stuck.split, 1
            except SplitError:
                assert told is not None  # nothing is split at first
                told.restore(self)
                return
            before.restore(self)

    def _run(
        self, arguments: list[Argument], blocks: Ints | None, at_once: int, order: str | int,
        split: frozenset[int] = frozenset(),
    ) -> None:  # fmt: skip
        self._watch(arguments)
        chosen = np.arange(math.prod(self.grid)) if blocks is None else blocks
        clusters = chosen if self.cluster == 1 else np.unique(chosen // self.cluster)
        numbered = block_order(len(clusters), order)
        self.reversed = order == "backward" or (isinstance(order, int) and order % 2 == 1)
        groups = -(-len(clusters) // at_once)
        done_with(0, groups)
        with np.errstate(all="ignore"):
            for first in range(0, len(clusters), at_once):
                numbers = numbered(first, min(first + at_once, len(clusters)))
                if self.reversed:  # so that the block that is to run last wins
                    numbers = numbers[::-1]
                own = clusters[numbers]
                if self.cluster > 1:
                    own = (own[:, None] * self.cluster + np.arange(self.cluster)).reshape(-1)
                self._begin(own)
                try:
                    if self.has_engines:
                        seed = order if isinstance(order, int) else ("forward", "backward").index(order)
                        self._take_turns(arguments, split, seed)
                    else:
                        self.main.invoke(self, 0, tuple(arguments), {})
                except (LaunchLimitError, StuckError, SplitError):
                    raise
                except TraceError as error:
                    placed = type(error)(self._placed(error))
                    vars(placed).update(vars(error))
                    raise placed from error
                except Exception as error:
                    raise TraceError(self._unknown(error)) from error
                self._end()
                done_with(first // at_once + 1, groups)

    def _take_turns(self, arguments: list[Argument], split: frozenset[int], seed: int) -> None:
        """Run the kernel where its warps wait for each other, and for copies and products."""
        recording = self.ledger.recording and not self.ledger.pipeline
        self.asynchronous = Asynchronous(self, split, not self.waits, seed, recording)
        self.asynchronous.teams.run(lambda: self.main.invoke(self, 0, tuple(arguments), {}))
        self.mask = self.waiting = self.all
        self.asynchronous.end()
        if recording:
            self.ledger.pipeline = self.asynchronous.pipeline.spans()

    def _unknown(self, error: Exception) -> str:
        """What Python said of the translated kernel, with the kernel's line."""
        return f"{self.function.__name__}:{self._where(error)} {type(error).__name__}: {error}"

    def _placed(self, error: TraceError) -> str:
        """What the tracer said, with the kernel's line if it named none."""
        where = "" if re.search(r"\bline \d", str(error)) else self._where(error)
        return f"{self.function.__name__}:{where} {error}" if where else str(error)

    def _where(self, error: Exception) -> str:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == self.home]
        return f" line {lines[-1]}:" if lines else ""

    def _watch(self, arguments: list[Argument]) -> None:
        """Of allocations that the kernel may write, reads are watched, too; those in a tuple may be written."""
        names = list(inspect.signature(self.function).parameters)
        for name, argument in zip(names, arguments, strict=False):
            for view in _views(argument):
                if isinstance(view.storage, Global):
                    view.storage.begin(self.log, isinstance(argument, tuple) or self.main.may_write(name, view.ndim))

    def _begin(self, numbers: Ints) -> None:
        if len(numbers) != len(self.numbers):
            size = len(numbers) * self.lanes_per_block
            self.lane_numbers = np.arange(size)
            self.block_number = self.lane_numbers // self.lanes_per_block
            thread = self.lane_numbers % self.lanes_per_block
            self.all = Mask(thread < self.threads)
            self.none = Mask(np.zeros(size, np.bool_), 0)
            self.thread_axes = self._axes(np.minimum(thread, self.threads - 1), self.block)
        self.numbers, self.blocks_at_once = numbers, len(numbers)
        self.ranks = numbers % self.cluster
        local = {number: i for i, number in enumerate(numbers.tolist())} if self.cluster > 1 else {}
        self.peers = [  # by block: all blocks of its cluster
            [local[number - number % self.cluster + rank] for rank in range(self.cluster)] if local else [i]
            for i, number in enumerate(numbers.tolist())
        ]
        self.first_ordinal = self.next_ordinal
        self.next_ordinal += len(self.lane_numbers)
        self.ran.append(numbers)
        self.cuda.place(self._axes(numbers, self.grid))
        self.mask = self.waiting = self.all
        self.stamps: Any = 0  # barriers that a thread has passed, above BARRIER bits of syncwarps
        self.shared: dict[Any, View] = {}
        self.copies: list[_Copy] = []
        self.groups: Any = 0  # of copies that a thread has committed
        self.tainted: Bools | None = None
        self.unset: tuple[int, str] | None = None  # the line and words of the first integer read that nobody wrote
        self.branches = 0  # since then
        self.sources: list[_Unwritten] = []
        self.call_path: list[Any] = []
        self.absent: dict[int, Bools] = {}  # by line of a barrier: threads that did not come while others waited
        self.inside: dict[tuple[int, int], Any] = {}  # indices that were within an extent, kept alive

    def _end(self) -> None:
        self._settle(None)
        for copy in self.copies:
            text = f"a copy to {copy.view.name} is still under way when the thread ends: {LEFT_OVER}"
            self.fault("copy-not-awaited", copy.line, copy.view.name, text, copy.lanes)
        for line, lanes in self.absent.items():
            if lanes.any():
                self._skip(line, lanes, "")
        for source in self.sources:
            if source.view is None:
                continue
            text = f"line {source.line} reads elements of {source.view.name} that nothing has written"
            self.ledger.notes[f"{text}; no such value is stored"] += 1

    def _axes(self, numbers: Any, extents: Point) -> list[Value]:
        x, y, _ = extents
        parts = [numbers % x, numbers // x % y, numbers // (x * y)]
        return [0 if extent == 1 else part for part, extent in zip(parts, extents, strict=True)]

    def thread_of(self, lane: int) -> Point:
        thread = lane % self.lanes_per_block
        x, y, _ = self.block
        return thread % x, thread // x % y, thread // (x * y)

    def block_of(self, ordinal: int) -> Point:
        """The block of a thread of this launch."""
        number, x, y = ordinal // self.lanes_per_block, *self.grid[:2]
        at = int(np.concatenate(self.ran)[number])
        return at % x, at // x % y, at // (x * y)

    def ordinals(self, lanes: Bools | Ints) -> Ints:
        return self.lane_numbers[lanes] + self.first_ordinal

    def stamps_of(self, ordinals: Ints) -> Any:
        """The stamps that threads of the running blocks have now; of others, anything."""
        if not isinstance(self.stamps, np.ndarray):
            return self.stamps
        return self.stamps.take(ordinals - self.first_ordinal, mode="clip")

    def offset_in(self, view: View, place: int, ordinal: int) -> int:
        """Where a thread finds an element of the storage in its view."""
        start = view.start
        return place - (start if type(start) is int else int(start[ordinal - self.first_ordinal]))

    # --- names ---

    def wrapped(self, value: Any) -> Any:
        """A global or closed-over value as translated code sees it."""
        if isinstance(value, np.ndarray):  # what it holds now stays
            self.constants[id(value)] = value
            return View.of(Constant(np.array(value).reshape(-1)), value.shape)
        if isinstance(value, tuple):
            parts = [self.wrapped(part) for part in value]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if value is None or isinstance(value, bool | int | str | np.generic):
            return value
        if isinstance(value, float):
            return np.float64(value)
        if isinstance(value, ModuleType) and value.__name__.startswith("numba"):
            return _Module(self, value)
        if isinstance(value, ModuleType):  # what of it is called is not known yet
            self.has_engines = self.has_engines or not hopper.NAMES.isdisjoint(vars(value))
            self.waits = self.waits or not hopper.WAITS.isdisjoint(vars(value))
            return _Module(self, value)
        number = _number_type(value)
        if number is not None:
            number.check = self.defined
            return number
        name = getattr(value, "__name__", "")
        if name in INTRINSICS and (not hasattr(value, "py_func") or getattr(value, "__module__", "") in _HELPERS):
            self.has_engines = self.has_engines or name in hopper.NAMES
            self.waits = self.waits or name in hopper.WAITS
            return INTRINSICS[name]
        function = getattr(value, "py_func", value)
        if str(getattr(value, "__module__", "")).startswith("numba.cuda") or hasattr(value, "_defn"):
            return self._of_numba(value)  # imported by itself, or an intrinsic that Numba compiles and nobody runs
        if isinstance(value, np.ufunc) or (inspect.isbuiltin(value) and value.__module__ == "math"):
            return values.function(value.__name__) or value
        if not inspect.isfunction(function):
            return value
        if function not in self.called:
            self.called[function] = _Function(function, home=function.__code__.co_filename == self.home)
            self.called[function].freeze(self)
        return self.called[function]

    def _of_numba(self, value: Any) -> Any:
        from numba import cuda  # not in a process that only asks for a trace

        name = next((name for name, one in vars(cuda).items() if one is value), "")
        if name in _PLACES:
            return _Place(self.cuda, name)
        if name and hasattr(self.cuda, name):
            return getattr(self.cuda, name)
        return unknown(getattr(value, "__name__", name or type(value).__name__))

    def require_constants(self) -> None:
        """Raise LaunchLimitError unless the host arrays that the kernel names fit constant memory together."""
        limits.require_constant(sum(array.nbytes for array in self.constants.values()))

    def error(self, line: int, text: str) -> MistakeError:
        found = MistakeError(f"line {line}: {text}")
        found.line = self.site or line
        return found

    def unknown(self, line: int, text: str) -> TraceError:
        return TraceError(f"line {line}: {text}")

    def call(self, function: Any, line: int, spot: int, *arguments: Any, **options: Any) -> Any:
        """``spot`` tells the calls of a function's text apart."""
        self.spot = spot
        if isinstance(function, _Function):
            return function.invoke(self, line, arguments, options)
        if isinstance(function, Intrinsic):
            return function.function(self, line, *arguments, **options)
        if getattr(function, "__name__", "") in ARRAY_MAKERS and "numpy" in str(getattr(function, "__module__", "")):
            raise self.error(line, array_made(function.__name__))
        return function(*arguments, **options)

    def here(self) -> tuple[Any, ...]:
        """The call that is being made, as Numba tells shared arrays apart: by function, or by the calls that lead to
        it where it writes the function out."""
        return (*self.call_path, self.spot)

    @staticmethod
    def named(value: Any, name: str) -> Any:
        if type(value) in (View, Barriers) and not value.name:
            value.name = name
        return value

    # --- masks ---

    def branch(self, condition: Value, line: int) -> Mask:
        """The active lanes for which the condition holds; ``mask`` itself if all, ``none`` itself if none."""
        if self.unset:
            self._require_end()
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

    def _require_end(self) -> None:
        """An integer that nothing has written was read: a loop that depends on it may never end."""
        self.branches += 1
        if self.branches > _ASTRAY:
            assert self.unset is not None
            line, text = self.unset
            raise self.error(line, f"{text}, and a loop goes on for more than {_ASTRAY:,} turns after that")

    def _part(self, condition: Value) -> Mask:
        bits = self.mask.bits & condition
        count = int(np.count_nonzero(bits))
        return self.none if not count else self.mask if count == self.mask.count else Mask(bits, count)

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
            self.waiting = self.without(self.all, returned)
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

    def raised(self, what: str, line: int) -> None:
        self.fault("raises", line, "", f"{what} is raised: a GPU ends the thread and says nothing")

    def printed(self, *items: Any) -> None:
        """``print`` of the active lanes, as Numba's: a line for each thread."""
        shape = self.mask.bits.shape

        def line(lane: int) -> str:
            one = (v if type(v) is str or uniform(v) else np.broadcast_to(v, shape)[lane] for v in items)
            return " ".join(f"{v:f}" if isinstance(v, float | np.floating) else str(v) for v in one)

        lanes = np.flatnonzero(self.mask.bits)
        self.ledger.print(map(line, lanes.tolist()), len(lanes))

    def strides(self, array: Any) -> Any:
        return tuple(stride * array.dtype.itemsize for stride in array.strides)

    def iterate(self, items: Any, line: int, leaves: bool) -> Any:
        if type(items) is View:
            items = map(partial(self.load, items, line=line), range(len(items)))
        if type(items) is Range:
            return self._turns(items, line)
        return self._again(items) if leaves else items

    def _again(self, items: Any) -> Iterator[Any]:
        mask = self.mask
        for item in items:
            self.mask = mask
            yield item

    def _turns(self, items: Range, line: int) -> Iterator[Value]:
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
        self.mask = self.without(mask, taken)
        second = otherwise()
        self.mask = mask
        return choose(taken.bits, first, second)

    def chosen(self, condition: Value, then: Code, otherwise: Code) -> Value:
        """``a if condition else b`` that reads no memory: worked out for all, unless a value may be undefined."""
        if self.tainted is None:
            return choose(condition, then(), otherwise())
        return self.select(condition, then, otherwise)

    def all_of(self, first: Value, second: Code) -> Value:
        return values.logical_and(first, second()) if self.tainted is None else self.both(first, second)

    def any_of(self, first: Value, second: Code) -> Value:
        return values.logical_or(first, second()) if self.tainted is None else self.either(first, second)

    def both(self, first: Value, second: Code) -> Value:
        return self.select(first, lambda: truth(second()), lambda: False)

    def either(self, first: Value, second: Code) -> Value:
        return self.select(first, lambda: True, lambda: truth(second()))

    # --- values and arrays ---

    def load(self, array: Any, index: Any, line: int) -> Any:
        if type(array) is View:
            storage = array.storage
            if type(storage) is Local and not self.ledger.recording and not storage.lacking:
                at = _register(array, index)
                if at is not None and (value := storage.values[at]) is not None:
                    return value
            return array.load(self, index, line)
        return array[index]

    def store(self, array: Any, index: Any, value: Value, line: int) -> None:
        if type(array) is not View:
            raise self.error(line, f"a {type(array).__name__} cannot be assigned to")
        storage = array.storage
        if type(storage) is Local and not self.ledger.recording and self.tainted is None:
            at = _register(array, index)
            if at is not None:
                storage.put(self, at, value, self.mask)
                return
        array.store(self, index, value, line)

    def compare(self, operation: Code, a: Value, b: Value, line: int) -> Value:
        if self.tainted is not None:
            self.defined(a, line)
            self.defined(b, line)
        return operation(a, b)

    def defined(self, value: Value, line: int = 0) -> None:
        """A fault if what is compared or made an integer comes from memory that nothing had written."""
        if self.tainted is None or uniform(value) or value.dtype.kind != "f":
            return
        self._reveal(np.isnan(value) & self.tainted & self.mask.bits, "decides something" + _in(line))

    def integer(self, value: Value = 0) -> Value:
        self.defined(value)
        return values.python_int(value)

    def divide(self, function: Code, a: Value, b: Value, line: int) -> Value:
        """``//`` and ``%``: of an integer by zero, Numba makes 0 on a GPU, and it is a fault."""
        if uniform(b):
            zero = b == 0
            if not zero:
                return function(a, b)
        elif b.all():
            return function(a, b)
        else:
            zero = b == 0
        if dtype_of(a).kind == "f" or dtype_of(b).kind == "f":
            return function(np.float64(a) if type(a) is int else a, b)
        lanes = self.mask.bits & zero
        if lanes.any():
            self.fault("zero-division", line, "", "an integer is divided by zero", lanes)
        return choose(zero, 0, function(a, choose(zero, 1, b)))

    def multiply_add(self, function: Code, a: Value, b: Value, line: int) -> Value:
        result = function(a, b)
        if not self.ledger.recording:
            return result
        if type(result) is not int and dtype_of(result).kind == "f":
            self.ledger.fma[line] += self.mask.count
            if dtype_of(result) == values.FLOAT64:
                self.ledger.notes[f"line {line} multiplies and adds in float64"] += 1
        return result

    def multiplied(
        self,
        text: str,
        arrays: tuple[Any, Any, Any],
        indexed: tuple[bool, bool],
        turns: tuple[Any, ...],
        given: tuple[Any, ...],
        indices: Code,
    ) -> bool:
        """``into[...] += first * second`` in loops, at once; False, and nothing done, where it is not that simple.

        Simple are registers that hold float32 numbers, all of them written, while nothing is recorded. ``text`` and
        ``given``, the values of its names, say what ``indices`` are at each turn.
        """
        if self.ledger.recording or self.tainted is not None:
            return False
        if not all(type(turn) is range for turn in turns) or not all(type(value) is int for value in given):
            return False
        into, *factors = arrays
        whole = _registers(into)
        if whole is None or self.mask.count != into.storage.whole.count:
            return False
        sources = []
        for factor, by_index in zip(factors, indexed, strict=True):
            held = _registers(factor) if by_index else [factor]
            if held is None or (not by_index and getattr(factor, "dtype", None) != values.FLOAT32):
                return False
            sources.append(held)
        key = text, turns, given
        plan = _plans.get(key)
        if plan is None:
            if len(_plans) >= _PLANS:
                _plans.clear()
            plan = _plans[key] = _plan(turns, indexed, indices)
        lengths = [len(whole), *map(len, sources)]
        first, second = sources
        if plan is None or any(not 0 <= low <= high < n for (low, high), n in zip(plan.ends, lengths, strict=True)):
            return False
        for held, places in zip((whole, first, second), plan.places, strict=True):
            if any(held[place] is None for place in places):
                return False
        for at, i, j in plan.steps:
            whole[at] = whole[at] + first[i] * second[j]
        return True

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
        key = id(at), extent
        if key in self.inside:
            return at, None
        wrong = (at < 0) | (at >= extent) if extent <= 0 else at.view(np.uint64) >= np.uint64(extent)
        if not np.count_nonzero(wrong):
            if len(self.inside) >= _REMEMBERED:
                self.inside.clear()
            self.inside[key] = at
            return at, None
        wrong &= self.mask.bits
        if not np.count_nonzero(wrong):
            return at, None
        if may_wrap:
            below = wrong & (at < 0) & (at >= -extent)
            if np.count_nonzero(below):
                self._outside(at, below, True, extent, line, view, axis, verb)
                at = np.where(below, at + extent, at)
                wrong &= ~below
                if not np.count_nonzero(wrong):
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
        self.fault("negative-index" if wraps else "outside", line, view.name, text, lanes)

    def beyond(
        self, view: View, place: Offsets, width: int, wrong: Bools | None, line: int, verb: str
    ) -> Bools | None:
        """Lanes whose access leaves the allocation, though not the array's stated shape, added to ``wrong``."""
        if view.bounded:
            return wrong
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
        self.fault("outside", line, view.name, f"the memory of {view.name} is {verb} {past}", lanes)
        return lanes if wrong is None else lanes | wrong

    def fault(
        self, kind: str, line: int, array: str, text: str, lanes: Any = None, lane: int | None = None, count: int = 0,
        cause: str = "", own: View | None = None,
    ) -> None:  # fmt: skip
        """``own``: what nothing has written, perhaps an array of the thread's own."""
        if lanes is None or uniform(lanes):
            lanes = self.mask.bits
        lanes = lanes & self.mask.bits if lane is None else lanes
        lane = int(np.argmax(lanes)) if lane is None else lane
        self.fault_by(
            kind,
            line,
            array,
            text,
            lane + self.first_ordinal,
            count or int(np.count_nonzero(lanes)),
            cause,
            "" if own is None else _UNSET.get(type(own.storage), ""),
        )

    def fault_by(
        self, kind: str, line: int, array: str, text: str, ordinal: int, count: int, cause: str = "",
        look_at: str = "",
    ) -> None:  # fmt: skip
        """A fault of a thread, named by its place in the launch."""
        place = self.thread_of(ordinal), self.block_of(ordinal)
        fault = Fault(kind, text, line, look_at=look_at, array=array, thread=place[0], block=place[1])
        self.ledger.fault(fault, count, cause)

    def first(self, value: Any, lanes: Any) -> int:
        """The value of the first of the active lanes that are named."""
        lane = int(np.argmax(np.broadcast_to(lanes, self.mask.bits.shape) & self.mask.bits))
        return int(np.broadcast_to(value, self.mask.bits.shape)[lane])

    def multiplied_into(self, storage: Local, view: View, place: Offsets, lanes: Bools, line: int) -> bool:
        """A fault if wgmma still adds to what these lanes read."""
        sums = next((one for one in storage.flight if one.covers(place) and (one.mask.bits & lanes).any()), None)
        if sums is None:
            return False
        text = f"{view.element(place - view.start)} is read while wgmma of line {sums.line} still adds to it"
        self.fault("wgmma-order", line, view.name, text, lanes & sums.mask.bits, cause="no wait for wgmma")
        return True

    def read_uninitialised(self, line: int, view: View, offset: Offsets, lanes: Bools, nan: bool) -> None:
        """What nothing has written was read, ``offset`` from the view's start."""
        if not nan:  # an integer cannot be told apart later
            text = f"{view.element(self.first(offset, lanes))}, which nothing has written, is read"
            self.fault("read-before-write", line, view.name, text, lanes)
            self.unset = self.unset or (line, text)
            return
        self._taint(_Unwritten(lanes.copy(), line, view, np.broadcast_to(offset, lanes.shape)))

    def taken_from_nobody(self, line: int, name: str, lanes: Bools) -> None:
        """A shuffle took what no thread gave: a fault if something comes of it."""
        said = f"{name} takes the value of a thread that does not come to it"
        self._taint(_Unwritten(lanes.copy(), line, None, np.zeros(lanes.shape, np.int64), said))

    def _taint(self, new: _Unwritten) -> None:
        self.tainted = new.lanes.copy() if self.tainted is None else self.tainted | new.lanes
        for source in self.sources:
            if (source.line, source.name) == (new.line, new.name):
                source.offsets = np.where(new.lanes, new.offsets, source.offsets)
                source.lanes |= new.lanes
                return
        self.sources.append(new)

    def reveal(self, value: Value, line: int, view: View) -> None:
        """A fault if a value that is stored comes from memory that nothing had written."""
        if self.tainted is None or dtype_of(value).kind != "f":
            return
        self._reveal(np.isnan(value) & self.tainted & self.mask.bits, f"is stored to {view.name}{_in(line)}")

    def _reveal(self, lanes: Bools, what: str) -> None:
        if not lanes.any():
            return
        lane = int(np.argmax(lanes))
        for i, source in enumerate(self.sources):
            if source.lanes[lane]:
                if source.view is None:
                    self.fault("warp-sync", source.line, "", f"{source.said}, and what becomes of it {what}", lanes)
                else:
                    element = source.view.element(int(source.offsets[lane]))
                    text = f"{element}, which nothing has written, is read, and what becomes of it {what}"
                    self.fault("read-before-write", source.line, source.view.name, text, lanes, own=source.view)
                del self.sources[i]
                return

    def spread_unwritten(self) -> None:
        """The lanes of a warp have worked something out together: what one read unwritten, each may hold now."""
        if self.tainted is None:
            return
        self.tainted = self.tainted | np.repeat(self.tainted.reshape(-1, WARP).any(axis=1), WARP)
        for source in self.sources:
            rows = source.lanes.reshape(-1, WARP)
            first = np.arange(len(rows)) * WARP + rows.argmax(axis=1)
            source.offsets = np.where(source.lanes, source.offsets, np.repeat(source.offsets[first], WARP))
            source.lanes = np.repeat(rows.any(axis=1), WARP)

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

    def keep(self, tally: Any, places: Ints, lanes: Bools) -> None:
        """Keep the requests of a few warps: where each lane asks, in bytes."""
        rows, bits = places.reshape(-1, WARP), lanes.reshape(-1, WARP)
        for warp in np.flatnonzero(bits.any(axis=1))[:_WARPS_KEPT]:
            if len(tally.seen) < self.ledger.kept:
                asked = [int(p) if on else None for p, on in zip(rows[warp], bits[warp], strict=True)]
                tally.seen.append(Request(int(warp), asked))

    # --- barriers and copies ---

    def barrier(self, line: int) -> None:
        if self.has_engines:
            self.asynchronous.barrier(line, False)
        else:
            self.pass_barrier(line)

    def pass_cluster_barrier(self, line: int) -> None:
        absent = self.waiting.bits & ~self.mask.bits
        if absent.any():
            count = int(np.count_nonzero(absent))
            text = f"{count} threads do not reach this barrier of the cluster, which others wait at"
            self.fault("divergent-barrier", line, "", text, lane=int(np.argmax(absent)), count=count)
        self.stamps = ((self.stamps >> BARRIER) + 1) << BARRIER
        self.asynchronous.met(True)

    def pass_barrier(self, line: int) -> None:
        present = None  # lanes of the blocks that come here, if not all do
        for other, lanes in self.absent.items():
            met = lanes & self.mask.bits
            if met.any():
                self._skip(other, met, f": they come to the one in line {line}" if line != other else "")
                self.absent[other] = lanes & ~met
        if self.mask is not self.waiting and self.mask.count != self.waiting.count:
            rows = self.mask.bits.reshape(self.blocks_at_once, -1)
            some: Bools = np.asarray(rows.any(axis=1))
            present = np.repeat(some, self.lanes_per_block)
            absent = self.waiting.bits & ~self.mask.bits & present
            if absent.any():
                self.absent[line] = self.absent.get(line, self.none.bits) | absent
        self._settle(present)
        passed = ((self.stamps >> BARRIER) + 1) << BARRIER
        self.stamps = passed if present is None else np.where(present, passed, self.stamps)
        for one in self.copies:  # it may arrive at any time until it is waited for
            one.storage.still_under_way(one.place, one.lanes, one.value, one.line, self.stamps)
        if self.has_engines:
            self.asynchronous.met(False)

    def _skip(self, line: int, lanes: Bools, where: str) -> None:
        count = int(np.count_nonzero(lanes))
        text = f"{count} threads do not reach this barrier, which others wait at{where}"
        self.fault("divergent-barrier", line, "", text, lane=int(np.argmax(lanes)), count=count)

    def _settle(self, present: Bools | None) -> None:
        for view in self.shared.values():
            view.storage.settle(self, view, present)

    def read_or_zero(
        self, line: int, array: View, offset: Value, width: int, inside: Value, action: str = "read"
    ) -> list[Value]:
        """``width`` elements from a flat offset on, as a load or a copy takes them; zeros where not ``inside``."""
        mask = self.mask
        self.mask = self._part(truth(inside)) if not uniform(inside) else mask if inside else self.none
        places: list[Value] = [array.dtype.type(0)] * width
        if self.mask is not self.none:
            source, bad = array.place_flat(self, offset, width, line, "read")
            places = array.storage.read(self, array, source, width, bad, line, action)
            if self.mask is not mask:
                places = [choose(self.mask.bits, value, array.dtype.type(0)) for value in places]
        self.mask = mask
        return places

    def start_copy(
        self, line: int, shared: View, i: Value, array: View, offset: Value, width: int, inside: Value, op: str
    ) -> None:
        """Begin a copy of ``width`` elements from global to shared memory; where not ``inside``, of zeros.

        ``op``: copy, or PAST_L1.
        """
        target, wrong = shared.place_flat(self, i, width, line, "written")
        if not isinstance(shared.storage, Shared):
            raise self.error(line, f"{shared.name} is not in shared memory: a copy goes from global to shared memory")
        places = self.read_or_zero(line, array, offset, width, inside, op)
        mask = self.mask
        shared.storage.record(self, shared, target, width, "copy", line)
        lanes = mask.bits if wrong is None else mask.bits & ~wrong
        storage = shared.storage
        if storage.pending is None:
            storage.pending = np.zeros(len(storage.data), np.bool_)
        for v, value in enumerate(places):
            at = storage.base + target + v if storage.base is not None else target + v
            at = np.broadcast_to(np.asarray(at), lanes.shape)
            storage.pending[at[lanes]] = True
            storage.noted_write(self, shared, at, lanes, value, line)
            self.copies.append(_Copy(shared, at, lanes, value, line, self.groups))

    def commit_copies(self) -> None:
        """The copies that the active lanes started since they did this last are a group from now on."""
        whole = self.mask is self.waiting and not self.has_engines
        self.groups = self.groups + 1 if whole else self.groups + self.mask.bits

    def finish_copies(self, keep: int | None = None) -> None:
        """What the active lanes' copies bring is there now, but for the last ``keep`` groups and what is in none."""
        left: list[_Copy] = []
        for copy in self.copies:
            lanes = copy.lanes & self.mask.bits
            if keep is not None:
                lanes = lanes & (copy.group < self.groups - keep)
            if not lanes.any():
                left.append(copy)
                continue
            storage = copy.storage
            assert storage.pending is not None
            assert storage.written is not None
            storage.pending[copy.place[lanes]] = False
            storage.data[copy.place[lanes]] = copy.value if np.ndim(copy.value) == 0 else copy.value[lanes]
            storage.written[copy.place[lanes]] = True
            storage.noted_write(self, copy.view, copy.place, lanes, copy.value, copy.line)
            if np.count_nonzero(lanes) < np.count_nonzero(copy.lanes):
                left.append(replace(copy, lanes=copy.lanes & ~lanes))
        self.copies = left
        if keep and left:  # the first is the oldest
            behind = np.broadcast_to(self.groups - left[0].group, left[0].lanes.shape)
            self.ledger.under_way = max(self.ledger.under_way, int(behind[left[0].lanes].max()))


class _Before:
    """What a launch changes, as it is now; so that the launch can begin anew."""

    def __init__(self, machine: Machine, arguments: list[Argument]) -> None:
        views = [a.view if type(a) is Map else a for a in arguments]
        self._arrays = [
            (view.storage, view.storage.data.copy(), deepcopy(view.storage.written))
            for view in views if type(view) is View and type(view.storage) is Global
        ]  # fmt: skip
        self._ledger = deepcopy({key: held for key, held in vars(machine.ledger).items() if key != "_costs"})

    def restore(self, machine: Machine) -> None:
        for storage, data, written in self._arrays:
            storage.data[:] = data
            storage.written = written
            storage.forget()
        vars(machine.ledger).update(self._ledger)
        bounds = machine.bounds and (*machine.bounds, machine.cluster)
        machine.configure(machine.grid, machine.block, machine.ledger, machine.shared_bytes, bounds or ())


@dataclass
class _Unwritten:
    """Lanes that read what nothing had written, in a line: at which offsets from the view's start; without a view,
    what they took from no thread."""

    lanes: Bools
    line: int
    view: View | None
    offsets: Ints
    said: str = ""

    @property
    def name(self) -> str:
        return self.view.name if self.view else self.said


@dataclass
class _Copy:
    """One element per lane on its way to shared memory, in the group with this number, by thread."""

    view: View
    place: Any
    lanes: Bools
    value: Value
    line: int
    group: Any

    @property
    def storage(self) -> Shared:
        storage: Shared = self.view.storage
        return storage


class _Function:
    """A kernel or device function, bound to a machine."""

    def __init__(self, function: Code, home: bool) -> None:
        self.function, self.home = function, home
        self.namespace: dict[str, Any] | None = None
        self.shares = True  # is its shared memory one for all calls? not if Numba writes it out at each
        self._writes: dict[tuple[str, int], bool] = {}

    def freeze(self, machine: Machine) -> None:
        """Read the globals and closed-over values, as Numba does when it compiles the kernel."""
        try:
            found = _translated(self.function, self.home)
        except TraceError:
            return  # told when it is called
        self.shares = found.shares
        scope = _scope(self.function)
        wrapped = {name: machine.wrapped(scope[name]) for name in found.free}
        builtins = {**_BUILTINS, "int": machine.integer}
        self.namespace = {**builtins, **wrapped, **_RUNTIME, **found.constants, "_t": machine}
        exec(found.code, self.namespace)

    def may_write(self, parameter: str, axes: int) -> bool:
        """May a call write to the array that is its parameter, with so many axes?"""
        key = parameter, axes
        if key not in self._writes:
            self._writes[key] = False  # of a function that calls itself
            self._writes[key] = self.namespace is None or any(
                self._may_write(use, axes) for use in _translated(self.function, self.home).uses[parameter]
            )
        return self._writes[key]

    def _may_write(self, use: lockstep.Use, axes: int) -> bool:
        if not use.called:
            return use.indices != axes
        assert self.namespace is not None
        called = self.namespace.get(use.called)
        if isinstance(called, Intrinsic):
            return READS.get(called.name) != use.position
        if not isinstance(called, _Function):
            return use.called != "len"
        parameters = called.function.__code__.co_varnames[: called.function.__code__.co_argcount]
        return use.position >= len(parameters) or called.may_write(parameters[use.position], axes)

    def invoke(self, machine: Machine, line: int, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if self.namespace is None:
            _translated(self.function, self.home)  # says why
            self.freeze(machine)
        assert self.namespace is not None
        site, mask, path = machine.site, machine.mask, machine.call_path
        machine.depth += 1
        machine.call_path = [self.function] if self.shares else [*path, self.function, machine.spot]
        if not self.home:
            machine.site = line
        try:
            return self.namespace[self.function.__code__.co_name](*arguments, **options)
        finally:
            machine.depth -= 1
            machine.call_path, machine.site, machine.mask = path, site, mask


def _translated(function: Code, home: bool) -> _Translation:
    """The function's translation. A factory's functions share one, as long as they are made of the same text."""
    code = function.__code__
    linecache.checkcache(code.co_filename)  # the file may have been edited
    text = "".join(linecache.getlines(code.co_filename))
    scope = _scope(function)
    casts = frozenset(
        name for name in code.co_names + code.co_freevars if isinstance(_number_type(scope.get(name)), Cast)
    )
    return _translation(code, text, home, frozenset(scope), casts)


@dataclass(frozen=True)
class _Translation:
    """``shares``: have all calls one shared memory? Not if Numba writes the function out at each."""

    code: CodeType
    constants: dict[str, Any]
    free: frozenset[str]
    uses: dict[str, frozenset[lockstep.Use]]
    shares: bool


@lru_cache(maxsize=256)
def _translation(code: CodeType, text: str, home: bool, scope: frozenset[str], casts: frozenset[str]) -> _Translation:
    definition = _definition(code, text)
    free = frozenset(node.id for node in ast.walk(definition) if isinstance(node, ast.Name) and node.id in scope)
    try:
        module, constants = lockstep.translate(
            definition, lambda name: name in casts if name in free else name in _BUILTINS, home
        )
    except lockstep.UntranslatableError as error:
        raise TraceError(f"{code.co_name}: {error}") from None
    shares = not any("always" in ast.unparse(decorator) for decorator in definition.decorator_list)
    floats = {name: np.float64(value) for name, value in constants.items()}
    return _Translation(compile(module, code.co_filename, "exec"), floats, free, lockstep.uses(definition), shares)


def _scope(function: Code) -> dict[str, Any]:
    """What a function's free names stand for now."""
    scope = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            scope[name] = cell.cell_contents
        except ValueError:
            raise TraceError(f"{function.__name__}: {name} has no value yet") from None
    return scope


@dataclass(frozen=True)
class _Plan:
    """Which elements a product takes, step by step: of the sum's registers and of both factors'."""

    steps: list[tuple[int, int, int]]
    places: tuple[frozenset[int], ...]
    ends: tuple[tuple[int, int], ...]


_plans: dict[Any, _Plan | None] = {}


def _plan(turns: tuple[range, ...], indexed: tuple[bool, bool], indices: Code) -> _Plan | None:
    """The plan, or None if there is nothing to do or an index is no whole number."""
    steps = []
    for variables in itertools.product(*turns):
        found = list(indices(*variables))
        at, first, second = (found.pop(0) if by_index else 0 for by_index in (True, *indexed))
        steps.append((at, first, second))
    if not steps or any(type(place) is not int for step in steps for place in step):
        return None
    places = tuple(map(frozenset, zip(*steps, strict=True)))
    return _Plan(steps, places, tuple((min(one), max(one)) for one in places))


def _registers(array: Any) -> list[Any] | None:
    """The values of a whole one-dimensional array of registers that hold float32 numbers."""
    if type(array) is not View or type(array.storage) is not Local or array.storage.lacking:
        return None
    held = array.storage.values
    simple = type(array.start) is int and array.start == 0 and array.shape == (len(held),) and array.strides == (1,)
    return held if simple and array.dtype == values.FLOAT32 else None


def _register(array: View, index: Any) -> int | None:
    """Where a constant index of a register tile leads, if it has led there before; most accesses are of that kind."""
    constant = type(index) is int or (type(index) is tuple and type(index[0]) is type(index[-1]) is int)
    return array.known.get(index) if constant and len(array.shape) < 3 else None


def _views(argument: Argument) -> Iterator[View]:
    """The arrays of an argument: itself, that of a tensor map, those in a tuple."""
    if isinstance(argument, tuple):
        for part in argument:
            yield from _views(part)
    elif isinstance(argument, Map):
        yield argument.view
    elif isinstance(argument, View):
        yield argument


def _in(line: int) -> str:
    return f" in line {line}" if line else ""


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


@lru_cache(maxsize=64)
def _tree(text: str) -> ast.Module:
    return ast.parse(text)


def _definition(code: CodeType, text: str) -> ast.FunctionDef:
    """The function's syntax tree, from the text of the file that it was written in."""
    if not text:
        raise TraceError(f"{code.co_name}: its source {code.co_filename} is not there")
    for node in ast.walk(_tree(text)):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first <= code.co_firstlineno <= node.lineno:
                return node
    raise TraceError(f"{code.co_name}: no such function in line {code.co_firstlineno} of {code.co_filename}")


class _Place:
    """``threadIdx`` and the like, where a kernel knows them by these names alone."""

    def __init__(self, cuda: Cuda, name: str) -> None:
        self._cuda, self._name = cuda, name

    def __getattr__(self, axis: str) -> Any:
        return getattr(getattr(self._cuda, self._name), axis)


class _Module:
    """A module as translated code sees it: each attribute wrapped when asked for."""

    def __init__(self, machine: Machine, module: ModuleType) -> None:
        self._machine, self._module = machine, module
        self._cuda = module.__name__.endswith("cuda")
        self._found: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if self._cuda and name == "cg":
            raise TraceError(_GRID)
        if self._cuda:
            if not hasattr(self._module, name) and name != "fp16":  # Numba imports it where it first compiles
                raise AttributeError(f"'_CudaModule' object has no attribute '{name}'")
            if not hasattr(self._machine.cuda, name):
                raise TraceError(f"cuda.{name} is not known to the tracer")
            return getattr(self._machine.cuda, name)
        if name not in self._found:
            self._found[name] = self._read(name)
        return self._found[name]

    def _read(self, name: str) -> Any:
        if self._module.__name__ == "math":
            return getattr(values.MathModule(), name)
        found = getattr(self._module, name)
        if isinstance(found, np.ufunc):
            return values.function(name) or found
        return self._machine.wrapped(found)
