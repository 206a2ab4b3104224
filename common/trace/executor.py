"""Runs a kernel for all threads of some blocks at once, in lockstep and in a fixed order, and records what every warp
does. Translated code (:mod:`common.trace.translate`) calls the :class:`Executor` ``_t``."""

import inspect
import itertools
import math
import operator
import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import partial, reduce
from typing import Any, Literal, TypeAlias

import numpy as np

from common.catalog.limits import LaunchLimitError
from common.explain.faults import ARRAYS
from common.run import child
from common.trace import races, values, views
from common.trace.cost import WARP, Bools, Ints, Ledger, count_nonzero
from common.trace.functions import Function, Names
from common.trace.hopper.engines import Engines, SplitError, StuckError
from common.trace.hopper.mbarriers import Barriers, Map
from common.trace.hopper.tiles import Tiles
from common.trace.intrinsics import WAITS, Code, Intrinsic
from common.trace.memory import Global, Record, Single
from common.trace.shared import Local, Shared
from common.trace.state import Launch, Mask, State, TraceError
from common.trace.values import FLOAT32, Range, Value, choose, dtype_of, truth, uniform
from common.trace.views import View

Argument: TypeAlias = "View | Map | bool | int | float | np.generic | tuple[Argument, ...]"
"""What a launch gives a kernel."""

Order: TypeAlias = Literal["forward", "backward"]
"""Of blocks, and of threads that write one element."""

_ARRAYS = View, Record
_UNCHANGED_TURNS = 20_000  # of a loop, after which nobody will end it
_ANYTHING = 0x5A5A5A5A, ~0x5A5A5A5A  # what integers that no thread gave may be: far above others, and far below
_ASTRAY = 2_000  # branches after the read of an integer that nothing has written


class Executor(State):
    def __init__(self, launch: Launch, ledger: Ledger) -> None:
        function: Code = launch.function
        super().__init__(getattr(function, "home", function.__code__.co_filename))
        self.names = Names(self)
        self.main = self.names.wrapped(function)
        self.shared_storage = Tiles if self.has_engines else Shared
        self.configure(launch, ledger)

    def run(
        self, arguments: list[Argument], blocks: Ints | None = None, at_once: int = 1, order: Order = "forward"
    ) -> None:
        """Execute blocks (their numbers, x fastest; None: all), in ``order``, ``at_once`` clusters of them at a time,
        each whole; arrays among the arguments are Views."""
        split: frozenset[int] = frozenset()
        told: Code | None = None
        while True:
            before = self._restorer(arguments, self.has_engines) if self.has_engines or self.shuffles else None
            try:
                self._run(arguments, blocks, at_once, order, split)
                if self.doubts:
                    assert before is not None  # they come of a shuffle
                    again = partial(self._run, arguments, blocks, at_once, order, split)
                    self._settle_doubts(arguments, before, again)
                return
            except StuckError as stuck:
                self.engines.teams.tell()
                if stuck.split <= split and at_once == 1:
                    return  # it stays so: nothing that comes after it tells more
                told = self._restorer(arguments)
                split, at_once = split | stuck.split, 1
            except SplitError:
                assert told is not None  # nothing is split at first
                told()
                return
            if before:
                before()

    def _settle_doubts(self, arguments: list[Argument], before: Code, run: Code) -> None:
        """Do the integers that nobody gave make a difference to what the launch writes, or to its faults?"""
        storages = [view.storage for view in _views(tuple(arguments))]
        after, held, faults = self._restorer(arguments), [one.data for one in storages], [*self.ledger.faults]
        written, differ = [data.copy() for data in held], True
        tries = _ANYTHING if not self.has_engines and all(type(one) is Global for one in storages) else ()
        for self.stand_in in tries:
            before()
            differ = True
            with suppress(TraceError):
                run()
                alike = all(races.same(*pair).all() for pair in zip(held, written, strict=True))
                differ = [*self.ledger.faults] != faults or not alike
            after()
            if differ:
                break
        self.stand_in = None
        for fault in self.doubts.values() if differ else ():
            self.ledger.fault(fault, 1, "")
        self.doubts = {}

    def _restorer(self, arguments: list[Argument], whole: bool = True) -> Code:
        """What puts back all that a launch changes, so that it can begin anew: ``whole``, with the ledger."""
        storages = [view.storage for view in _views(tuple(arguments)) if type(view.storage) is Global]
        arrays = [(storage, storage.data.copy(), deepcopy(storage.written)) for storage in storages]
        kept = {key: held for key, held in vars(self.ledger).items() if key != "_costs"} if whole else {}
        ledger = deepcopy(kept)

        def restore() -> None:
            for storage, data, written in arrays:
                storage.data[:], storage.written = data, deepcopy(written)
            vars(self.ledger).update(deepcopy(ledger))
            self.configure(self.launch, self.ledger)

        return restore

    def _run(
        self, arguments: list[Argument], blocks: Ints | None, at_once: int, order: Order, split: frozenset[int]
    ) -> None:
        parameters = list(inspect.signature(self.launch.function).parameters)
        for name, argument in zip(parameters, arguments, strict=False):
            for view in _views(argument):  # of allocations that the kernel may write reads are watched, too
                if isinstance(view.storage, Global):
                    only_read = not isinstance(argument, tuple) and self.main.only_read.get(name) == view.ndim
                    view.storage.begin(self.log, not (only_read or view.storage.read_only))
        clusters = np.unique((np.arange(math.prod(self.grid)) if blocks is None else blocks) // self.cluster)
        groups = [clusters[first : first + at_once] for first in range(0, len(clusters), at_once)]
        self.reversed = order == "backward"
        seen = (Record(self, one.view, 0, None, 0) if isinstance(one, Single) else one for one in arguments)
        work = partial(self.main.invoke, self, 0, tuple(seen), {})
        child.advance()
        with np.errstate(all="ignore"), self._placed():
            for own in reversed(groups) if self.reversed else groups:
                self.begin((own[:, None] * self.cluster + np.arange(self.cluster)).reshape(-1))
                self.names.cuda.place(self.axes(self.numbers, self.grid))
                if self.has_engines:  # warps wait for each other, and for copies and products
                    recording = self.ledger.recording and not self.ledger.pipeline
                    self.engines = Engines(self, split, recording)
                    self.engines.teams.run(work)
                    self.mask = self.waiting = self.all
                    self.engines.end()
                    if recording:
                        self.ledger.pipeline = self.engines.pipeline.spans()
                else:
                    work()
                races.end(self)
                views.note_unwritten(self)
                child.advance()

    @contextmanager
    def _placed(self) -> Iterator[None]:
        """What Python says of a kernel becomes a TraceError."""
        try:
            yield
        except (LaunchLimitError, StuckError, SplitError):
            raise
        except Exception as error:
            known = isinstance(error, TraceError)
            if known and re.search(r"\bline \d", str(error)):
                raise
            lines = [one.lineno for one in traceback.extract_tb(error.__traceback__) if one.filename == self.home]
            where = f"{self.launch.function.__name__}:{f' line {lines[-1]}:' if lines else ''}"
            placed = type(error) if known else TraceError
            raise placed(f"{where} {'' if known else f'{type(error).__name__}: '}{error}") from error

    def call(self, function: Any, line: int, spot: int, *arguments: Any, **options: Any) -> Any:
        """``spot`` tells the calls of a function's text apart."""
        self.spot = spot
        if isinstance(function, Function):
            return function.invoke(self, line, arguments, options)
        if isinstance(function, Intrinsic):
            return function.function(self, line, *arguments, **options)
        made = ARRAYS.get(getattr(function, "__name__", ""))
        if made and "numpy" in str(getattr(function, "__module__", "")):
            raise self.error(line, made)
        return function(*arguments, **options)

    @staticmethod
    def named(value: Any, name: str) -> Any:
        if type(value) in (View, Barriers):
            value.name = value.name or name
        return value

    def branch(self, condition: Value, line: int) -> Mask:
        """The active lanes for which the condition holds; ``mask`` itself if all, ``none`` itself if none."""
        if self.unset:  # a loop that depends on it may never end
            self.branches += 1
            if self.branches > _ASTRAY:
                line, text = self.unset
                raise self.error(line, f"{text}, and a loop goes on for more than {_ASTRAY:,} turns after that")
        condition = truth(condition)
        if uniform(condition):
            return self.mask if condition else self.none
        taken = self.part(condition)
        if self.ledger.recording:
            counts = self.ledger.diverged.setdefault(line, [0, 0])
            if taken is not self.none and taken is not self.mask:
                rows, yes = self.mask.bits.reshape(-1, WARP), taken.bits.reshape(-1, WARP)
                counts[0] += int(count_nonzero(yes.any(axis=1) & (rows & ~yes).any(axis=1)))
            counts[1] += self.mask.warps
        return taken

    def unchanged_turns(self, line: int, reads: bool) -> Iterator[None]:
        """The turns of a loop that changes nothing of what its condition asks for; does that read memory?"""
        yield from itertools.repeat(None, _UNCHANGED_TURNS)
        if reads:
            raise self.unknown(line, WAITS)
        self.fault("no-end", line, "", "nothing changes that its condition asks for")
        raise self.error(line, f"the loop goes on for more than {_UNCHANGED_TURNS:,} turns")

    def leave(self, returned: Mask) -> Mask:
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
        shape = self.mask.bits.shape

        def line(lane: int) -> str:
            one = (v if type(v) is str or uniform(v) else np.broadcast_to(v, shape)[lane] for v in items)
            return " ".join(f"{v:f}" if isinstance(v, float | np.floating) else str(v) for v in one)

        lanes = np.flatnonzero(self.mask.bits)
        self.ledger.print(map(line, lanes.tolist()), len(lanes))

    def strides(self, array: Any) -> Any:
        return tuple(stride * array.dtype.itemsize for stride in array.strides)

    def iterate(self, items: Any, line: int, leaves: bool) -> Any:
        self.turning = line
        if type(items) is View:
            items = map(partial(self.load, items, line=line), range(len(items)))
        return self._turns(items, line) if leaves or type(items) is Range else items

    def unpacked(self, value: Any, line: int) -> Any:
        return tuple(self.iterate(value, line, False)) if type(value) is View else value

    def _turns(self, items: Any, line: int) -> Iterator[Any]:
        """The turns of a loop that lanes leave, or of a range that differs: those before its end go on."""
        mask = self.mask
        if type(items) is not Range:
            for item in items:
                self.mask = mask
                yield item
            return
        value, (_, stop, step) = items.start, items
        while (more := self.branch(choose(step > 0, value < stop, value > stop), line)) is not self.none:
            self.mask = more
            yield value
            value, self.mask = values.add(value, step), mask

    def select(self, condition: Value, then: Code, otherwise: Code) -> Value:
        """``a if condition else b`` where only the lanes that need either read memory."""
        condition = truth(condition)
        if uniform(condition):
            return then() if condition else otherwise()
        mask, taken = self.mask, self.part(condition)
        if taken is mask or taken is self.none:
            return then() if taken is mask else otherwise()
        self.mask = taken
        first = then()
        self.mask = self.without(mask, taken)
        second = otherwise()
        self.mask = mask
        return choose(taken.bits, first, second)

    def both(self, first: Value, second: Code) -> Value:
        return self.select(first, second, lambda: first)

    def either(self, first: Value, second: Code) -> Value:
        return self.select(first, lambda: first, second)

    def load(self, array: Any, index: Any, line: int) -> Any:
        if type(array) in _ARRAYS:
            return array.load(self, index, line)
        if not isinstance(index, np.ndarray):
            return array[index]
        beyond = (index < -len(array)) | (index >= len(array))
        wrong = self.mask.bits & beyond
        if count_nonzero(wrong):
            self.fault("outside", line, "", f"a tuple of {len(array)} is read at {index[wrong][0]}", wrong)
        rows = np.stack([np.broadcast_to(value, index.shape) for value in array])
        return rows[np.where(beyond, 0, index), np.arange(len(index))]

    def store(self, array: Any, index: Any, value: Value, line: int) -> None:
        if type(array) not in _ARRAYS:
            raise self.error(line, f"a {type(array).__name__} cannot be assigned to")
        array.store(self, index, value, line)

    def copy(self, other: Any, source: Any, array: Any, to: Any, line: int) -> None:
        """``array[to] = other[source]``. A lane for which both are one element changes nothing. An integer that
        nothing has written may be copied within the block: what it is copied to is then not written, either."""
        self.copied = self.none.bits if type(array) is View and type(array.storage) in (Shared, Local) else None
        value, mask = self.load(other, source, line), self.mask
        if self.copied is not None and not count_nonzero(self.copied):
            self.copied = None
        sides = [one if type(one) is tuple else (one,) for one in (to, source)]
        alike = array is other and len(sides[0]) == len(sides[1])
        if alike and type(array) is View and type(value) is not View:
            self.mask = self.part(values.logical_not(reduce(values.logical_and, map(operator.eq, *sides), True)))
        if self.mask is not self.none:
            self.store(array, to, value, line)
        self.mask, self.copied = mask, None

    def compare(self, operation: Code, a: Value, b: Value, line: int) -> Value:
        if self.tainted is not None:
            views.require_written(self, a, line)
            views.require_written(self, b, line)
        return operation(a, b)

    def contains(self, items: Any, value: Value, line: int) -> Value:
        found: Value = False
        for item in items:
            found = found | self.compare(operator.eq, value, item, line)
        return found

    def divide(self, function: Code, a: Value, b: Value, line: int) -> Value:
        """``//`` and ``%``: of an integer by zero, Numba makes 0 on a GPU, and it is a fault."""
        zero = b == 0
        if not count_nonzero(zero):
            return function(a, b)
        if "f" in (dtype_of(a).kind, dtype_of(b).kind):
            return function(np.float64(a) if type(a) is int else a, b)
        self.fault("zero-division", line, "", "an integer is divided by zero", zero)
        return choose(zero, 0, function(a, choose(zero, 1, b)))

    def multiply_add(self, function: Code, a: Value, b: Value, line: int) -> Value:
        result = function(a, b)
        if type(result) is not int and self.ledger.recording:
            self.ledger.multiply_add(line, dtype_of(result), self.mask.count)
        return result

    def add_products(self, total: Any, a: Any, b: Any, places: list[tuple[Any, Any, Any]], line: int) -> None:
        """``total[at] += a[i] * b[j]`` for each of these places; of registers that all lanes have, at once."""
        quick = bool(places) and not self.ledger.recording and self.tainted is None
        if quick and type(total) is View is type(a) is type(b):
            bits, (to, left, right) = self.mask.bits, zip(*places, strict=True)
            held = _registers(total, to, self.all.bits), _registers(a, left, bits), _registers(b, right, bits)
            storage = total.storage
            if all(held) and storage not in (a.storage, b.storage):
                sums, a, b = held
                some = None if self.mask.count == storage.whole.count else bits
                for at, i, j in places:
                    value = sums[at] + a[i] * b[j]
                    sums[at] = value if some is None else np.where(some, value, sums[at])
                storage.values[total.start : total.start + len(sums)] = sums
                return
        for at, i, j in places:
            before, product = self.load(total, at, line), values.mul(self.load(a, i, line), self.load(b, j, line))
            self.store(total, at, self.multiply_add(values.add, before, product, line), line)


def _registers(array: View, places: Sequence[Any], lanes: Bools) -> list[Any]:
    """The registers of a local array with one axis; none unless these lanes have those that are named, of float32."""
    storage, start = array.storage, array.start
    if type(storage) is not Local or storage.dtype is not FLOAT32 or array.strides != (1,) or type(start) is not int:
        return []
    held: list[Any] = storage.values[start : start + array.shape[0]]
    if type(None) in map(type, held) or {*map(type, places)} != {int} or min(places) < 0 or max(places) >= len(held):
        return []
    if storage.lacking:
        gaps = [storage.lacking[start + at] for at in {*places} if start + at in storage.lacking]
        if any(count_nonzero(gap & lanes) for gap in gaps):
            return []
    return held


def _views(argument: Argument) -> list[View]:
    if isinstance(argument, tuple):
        return [view for part in argument for view in _views(part)]
    return [argument] if isinstance(argument, View) else [argument.view] if isinstance(argument, Map) else []
