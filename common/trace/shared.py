"""Shared memory, one array per block, and local arrays, one per thread: each access is checked and recorded."""

import math
from collections import defaultdict
from functools import partial
from typing import Any

import numpy as np

from common.catalog import device, limits
from common.trace import views
from common.trace.cost import Bools, Cost, Key, count_nonzero
from common.trace.memory import Constant, Storage, of_threads, ordered, poison
from common.trace.races import Access, Shadow, picked
from common.trace.state import Log, Mask, State
from common.trace.values import Value, cast, spread
from common.trace.views import Offsets, View, Wrong

_LEAST, _MOST = np.minimum.reduce, np.maximum.reduce
_MANY = 1 << 22  # recorded shared reads, in lanes, that are summed up before the next barrier


class Names:
    """Dynamic shared memory that a kernel has given several names: each is to find what it wrote itself."""

    def __init__(self, nbytes: int) -> None:
        self._last = np.full(nbytes, "", object)  # the name by which a byte was written last
        self._wrote: defaultdict[str, Bools] = defaultdict(lambda: np.zeros(nbytes, np.bool_))

    def note_write(self, view: View, places: Any) -> None:
        self._last[places] = view.name
        self._wrote[view.name][places] = True

    def note_read(self, state: State, view: View, at: Any, lanes: Bools, line: int) -> None:
        places = np.broadcast_to(np.asarray(at), lanes.shape).clip(0, len(self._last) - 1)
        lost = lanes & self._wrote[view.name][places] & (self._last[places] != view.name)
        if count_nonzero(lost):
            other = self._last[places][int(np.argmax(lost))]
            place = state.first(places % (len(self._last) // state.blocks_at_once), lost) // view.dtype.itemsize
            text = f"{view.element(place)} is read, and {other} has overwritten it: each cuda.shared.array(0, ...)"
            state.fault("dynamic-overlap", line, view.name, f"{text} starts at byte 0", lost)


class Shared(Storage):
    """An array in shared memory, one per block, and who accessed what since the last barrier."""

    space = "shared"
    written: Bools

    def __init__(self, state: State, size: int, dtype: Any, alignment: int) -> None:
        blocks = state.blocks_at_once
        super().__init__(poison(np.empty(blocks * size, dtype)), np.zeros(blocks * size, np.bool_), alignment)
        self.size = size
        self.base = state.block_number * size if blocks > 1 else None
        self.names: Names | None = None
        self.accesses: list[Access] = []  # in the order in which they came
        self.pending: Bools | None = None  # elements that a copy is under way to
        self.loose: Any = None  # those of a block that in one of the blocks must be looked at when read
        self._read_lanes = 0

    def flat_offset(self, place: Offsets) -> Any:
        if self.base is None:
            return place
        return self.base if type(place) is int and place == 0 else self.base + place

    def read(
        self, state: State, view: View, place: Offsets, width: int, wrong: Wrong, line: int, op: str = "read"
    ) -> list[Value]:
        """As that of any memory; what is written, and no copy's, where the lanes look at all, is read at once."""
        if wrong is None and type(self) is Shared and self.names is None:
            low, high = (place, place) if type(place) is int else (_LEAST(place), _MOST(place))
            low, high = int(low), int(high) + width
            if self.loose is None:
                loose = ~self.written if self.pending is None else ~self.written | self.pending
                self.loose = loose.reshape(-1, self.size).any(axis=0)
            if low >= 0 and high <= self.size and not count_nonzero(self.loose[low:high]):
                lanes, at = state.mask.bits, self.flat_offset(place)
                self.record(state, view, place, width, op, line, lanes)
                self.keep(Access("read", state, view, at, lanes, line, state.stamps, None, width, low, high))
                return [(self.data[v:] if v else self.data).take(at, mode="clip") for v in range(width)]
        return super().read(state, view, place, width, wrong, line, op)

    def keep(self, access: Access) -> None:
        self.accesses.append(access)
        self._read_lanes += access.width * len(access.lanes) * (access.op == "read")
        if self._read_lanes > _MANY:  # as in loops without a barrier: one per element and lane pattern is kept
            kept: dict[Any, Access] = {}
            for number, one in enumerate(self.accesses):
                alike = np.asarray(one.at).tobytes(), one.lanes.tobytes(), np.asarray(one.stamps).tobytes(), one.width
                kept.setdefault(alike if one.op == "read" else number, one)
            self.accesses, self._read_lanes = list(kept.values()), 0

    def note(self, state: State, view: View, op: str, at: Any, lanes: Bools, line: int) -> None:
        if op == "read":
            if self.pending is not None and count_nonzero(early := lanes & self.pending.take(at, mode="clip")):
                text = f"{view.name} is read while a copy to the same element is under way: wait for it first"
                state.fault("copy-not-awaited", line, view.name, text, early)
            if self.names is not None:
                self.names.note_read(state, view, at * self.dtype.itemsize, lanes, line)
        self.keep(Access(op, state, view, at, lanes, line, state.stamps))

    def write(self, state: State, view: View, place: Offsets, values: list[Value], wrong: Wrong, line: int) -> None:
        lanes, self.loose = state.among(wrong), None
        self.record(state, view, place, len(values), "write", line, lanes)
        for v, value in enumerate(values):
            at, before = self.flat_offset(place + v if v else place), value
            value = cast(value, self.dtype)
            self.keep(Access("write", state, view, at, lanes, line, state.stamps, value))
            places, chosen = ordered(state, at, value, lanes, self.dtype)
            self.data[places] = chosen
            if self.names is not None:
                self.names.note_write(view, places * self.dtype.itemsize)
            if state.tainted is not None or state.copied is not None:
                have = np.ones(count_nonzero(lanes), np.bool_) if state.copied is None else ~state.copied[lanes]
                if state.tainted is not None:
                    unset = np.isnan(np.broadcast_to(np.asarray(before, np.float64), lanes.shape)[lanes])
                    have &= ~(state.tainted[lanes] & unset)
                self.written[places] = have[::-1] if state.reversed else have
                self.complete = self.complete and bool(self.written.all())
            elif not self.complete:
                self.written[places] = True

    def settle(self, state: State, view: View, present: Bools | None) -> None:
        """Find races since the last barrier, at one of the blocks with the lanes ``present`` (None: of all)."""
        accesses, later = self.accesses, []
        if present is not None:  # what other blocks did waits for their barrier
            later = [
                one._replace(lanes=one.lanes & ~present) for one in accesses if count_nonzero(one.lanes & ~present)
            ]
            accesses = [one._replace(lanes=one.lanes & present) for one in accesses]
        ops = {one.op for one in accesses}
        if "write" in ops or ops >= {"atomic", "read"}:
            self._find_races(state, view, accesses)
        self.accesses, self._read_lanes = later, 0
        self.complete = self.complete or (ops != {"read"} and bool(self.written.all()))

    def _find_races(self, state: State, view: View, accesses: list[Access]) -> None:
        changed = np.zeros(len(self.data), np.bool_)
        for one in accesses:
            if one.op != "read":
                changed[picked(one.at, one.lanes)] = True
        in_blocks: Any = changed.reshape(-1, max(self.size, 1)).any(axis=0)
        met: list[Access] = []
        for one in accesses:  # most read what was staged before
            if one.op != "read":
                met.append(one)
            elif count_nonzero(in_blocks[one.low : one.high]):
                apart = (one._replace(at=one.at + v, width=1) for v in range(one.width))
                met += [each for each in apart if count_nonzero(changed.take(each.at, mode="clip"))]
        if _each_by_one_thread(state, changed, met):
            return
        content = np.zeros(len(self.data), self.dtype)
        shadow = Shadow(len(self.data), Log(state.lanes_per_block), self.size)
        for one in met:
            places, who, value = picked(one.at, one.lanes), state.lane_numbers[one.lanes], None
            known = changed[places]
            if one.op == "write":
                value = spread(np.asarray(one.value, self.dtype), one.lanes.shape)[one.lanes]
            shadow.note(Access(one.op, state, view, places[known], who[known], one.line, one.stamps, value), content)
            if one.op == "write":
                content[places] = value


def _each_by_one_thread(state: State, changed: Bools, accesses: list[Access]) -> bool:
    """Is each of the elements that are changed accessed by one thread alone?"""
    owner = np.empty(len(changed), np.int64)
    places = np.concatenate([picked(one.at, one.lanes) for one in accesses])
    who = np.concatenate([picked(state.lane_numbers, one.lanes) for one in accesses])
    owner[places] = who
    apart = owner.take(places) != who
    return not (count_nonzero(apart) and count_nonzero(apart & changed[places]))


READ = object()


class Local(Storage):
    space = "local"
    unset_look_at = "set it first: a local array is each thread's own, and what other threads stored is in theirs"

    def __init__(self, state: State, size: int, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)
        self.values: list[Any] = [None] * size
        self.lacking: dict[int, Bools] = {}  # lanes that have not written an element that others have
        self.whole = state.mask  # lanes that the array exists for
        self.flight: list[Any] = []  # sums that wgmma adds to, and that the threads may not touch
        # what the registers held at the last wgmma_fence, READ where the threads have read them since
        self.fenced: list[Any] | None = None
        self.alignment = 16

    def require_aligned(self, state: State, view: View, place: Offsets, width: int, line: int) -> None:
        pass  # registers have no address

    def read(
        self, state: State, view: View, place: Offsets, width: int, wrong: Wrong, line: int, op: Any = ""
    ) -> Any:
        if state.ledger.recording:
            self._record(state, view, place, width, "read", line)
        if self.fenced is not None and type(place) is int:
            self.fenced[place : place + width] = [READ] * width
        if type(place) is int and not self.lacking:
            found = self.values[place : place + width]
            if type(None) not in map(type, found):
                return found
        return [self.value_at(state, view, place + v, line) for v in range(width)]

    def value_at(self, state: State, view: View, place: Offsets, line: int) -> Value:
        sums = None
        if type(place) is int:
            found, gap = self.values[place], self._gap(state, place)
            if gap is None:
                return found
            found, missing = self.blank if found is None else found, gap & state.mask.bits
            sums = next(
                (s for s in self.flight if place in s.registers and count_nonzero(s.mask.bits & missing)), None
            )
        else:
            held = [self.blank if value is None else value for value in self.values]
            at, lane = place.clip(0, len(held) - 1), np.arange(len(place))
            found = np.stack([spread(value, place.shape) for value in held])[at, lane]
            gaps = [self._gap(state, i) for i in range(len(held))]
            missing = np.stack([state.none.bits if gap is None else gap for gap in gaps])[at, lane] & state.mask.bits
        if sums is not None:
            text = f"{view.element(place - view.start)} is read while wgmma of line {sums.line} still adds to it"
            lanes = missing & sums.mask.bits
            state.fault("wgmma-order", line, view.name, text, lanes, cause="no wait for wgmma")
        elif count_nonzero(missing):
            views.read_unwritten(state, line, view, place - view.start, missing, self.dtype.kind == "f")
        return found

    def _gap(self, state: State, i: int) -> Bools | None:
        """The lanes that have not written an element; None if all have."""
        return state.mask.bits if self.values[i] is None else self.lacking.get(i)

    def write(self, state: State, view: View, place: Offsets, values: list[Value], wrong: Wrong, line: int) -> None:
        if state.ledger.recording:
            self._record(state, view, place, len(values), "write", line)
        for v, value in enumerate(values):
            if state.tainted is not None and self.dtype.kind in "iu":
                views.require_written(state, value, line)
            if type(place) is int:
                self.put(state, place + v, value, state.mask)
            else:
                for i in range(len(self.values)):
                    lanes = state.mask.bits & (place + v == i)
                    if count_nonzero(lanes):
                        self.put(state, i, value, Mask(lanes))

    def put(self, state: State, i: int, value: Value, mask: Mask) -> None:
        if type(value) is int or type(value) is bool or value.dtype is not self.dtype:
            value = cast(value, self.dtype)
        if state.copied is None and (mask is self.whole or mask.count == self.whole.count):
            self.values[i] = value
            if self.lacking:
                self.lacking.pop(i, None)
            return
        old = self.values[i]
        lacking = (self.whole.bits if old is None else self.lacking.pop(i, state.none.bits)) & ~mask.bits
        if state.copied is not None:
            lacking = lacking | (state.copied & mask.bits)
        if count_nonzero(lacking):
            self.lacking[i] = lacking
        self.values[i] = np.where(mask.bits, value, self.blank if old is None else old)

    def _record(self, state: State, view: View, place: Offsets, width: int, op: str, line: int) -> None:
        tally = state.ledger.tallies[Key(line, self.space, op, view.name, 8 * self.dtype.itemsize * width)]
        tally.add(state.mask.count, Cost(state.mask.warps, 0, 0, 0))
        if type(place) is not int:
            text = f"{view.name} is indexed by a value that differs between threads: it cannot stay in registers"
            state.ledger.notes[text] += 1


# --- arrays that kernels make ---

_UNIT = 16  # bytes that a block's dynamic shared memory is a multiple of, in the tracer


def _extents(shape: Any) -> tuple[int, ...]:
    return tuple(map(int, shape if type(shape) is tuple else (shape,)))


def shared_memory(state: State, line: int, shape: Any, dtype: Any, alignment: int = 0) -> View:
    """One array per place in the code, however often that is reached; the dynamic ones are all the same memory."""
    extents, kind = _extents(shape), np.dtype(dtype.dtype)
    dynamic, bytes_asked = extents == (0,), state.launch.shared_bytes
    key = ("dynamic", kind.str) if dynamic else state.here()
    if key not in state.shared:
        static = sum(view.size * view.dtype.itemsize for key, view in state.shared.items() if key[0] != "dynamic")
        limits.require_shared(static + math.prod(extents) * kind.itemsize, bytes_asked, device.played())
        others = [view.storage for key, view in state.shared.items() if dynamic and key[0] == "dynamic"]
        if others and (state.has_engines or kind.names):
            raise state.unknown(line, f"dynamic shared memory is used as {kind} and as {others[0].dtype}: not traced")
        size = math.prod(extents)
        if dynamic:
            extents = (bytes_asked // kind.itemsize,)
            size = max(1, -(-bytes_asked // _UNIT) * _UNIT // kind.itemsize)
        least = 0 if kind.names else alignment or (_UNIT if dynamic else 0)
        make = Shared if kind.names else state.shared_storage
        storage = of_threads(kind, size, lambda count, part: make(state, count, part, least or part.itemsize))
        if others:  # the same bytes: who has written them is known no more
            storage.data = others[0].data.view(np.uint8).view(kind)
            for one in (storage, *others):
                one.written[:] = one.complete = True
        state.shared[key] = View.of(storage, extents)
    view: View = state.shared[key]
    return _of_site(state, view) if dynamic else view


def _of_site(state: State, whole: View) -> View:
    """All of a block's dynamic shared memory by a name of its own."""
    if (here := state.here()) not in state.sites:
        state.sites[here] = View.of(whole.storage, whole.shape) if state.sites else whole
        if len(state.sites) > 1 and not (state.has_engines or whole.dtype.names):
            names = Names(whole.storage.data.nbytes)
            for one in state.sites.values():
                one.storage.names = names
    view: View = state.sites[here]
    return view


def local_memory(state: State, line: int, shape: Any, dtype: Any, alignment: int = 0) -> View:
    extents, kind = _extents(shape), dtype.dtype
    storage = of_threads(kind, math.prod(extents), partial(Local, state))
    if state.has_engines:
        state.engines.locals[state.engines.teams.now].add(storage)
    return View.of(storage, extents)


def constant_memory(state: State, line: int, array: Any) -> View:
    if type(array) is not View or not isinstance(array.storage, Constant):
        raise state.error(line, "const.array_like takes a NumPy array that stands outside the kernel")
    return array
