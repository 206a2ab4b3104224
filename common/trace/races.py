"""Races: accesses to one element that no barrier, fence or atomic operation orders, of threads and of blocks.

Kept beside an array, with one entry per element. Of an element's readers, and of those who wrote the value it has,
three are known: enough to find, for any other thread, one that nothing orders before it.
"""

import ast
import linecache
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from common.trace.cost import LEFT_OVER, WARP, Bools, Ints, count_nonzero
from common.trace.state import BARRIER, Log, State
from common.trace.views import View

_NOBODY = -1
_MANY = 1 << 22  # lanes of reads that are kept before they are looked at
_AT_ONCE = "written at once"


class Access(NamedTuple):
    """What lanes do to an array: read, write or atomic (``op``). ``at`` and ``lanes``: as :func:`picked` takes them;
    in a shadow, an element and an ordinal each; in Hopper's tiles, where ``op`` is what a fault says, elements, and a
    lane for each or for all."""

    op: str
    state: State
    view: View
    at: Any
    lanes: Any
    line: int
    stamps: Any
    value: Any = None
    width: int = 1  # elements, from those on
    low: int = 0  # of a block's elements the first, and the one behind the last, that may be accessed
    high: int | None = None
    event: int = 0
    row: Any = None  # of an access for a whole warpgroup: what all its lanes know (hopper.tiles.Clocks)


Slot = tuple[Ints, Ints]  # for each element a thread, and the event in which it touched it


class Together:
    """Threads that read an element, changed it atomically, or wrote the value that it has: in ``slots`` the last; one
    more since the last barrier, of another warp if there is one; and one of another block."""

    def __init__(self, size: int, log: Log) -> None:
        self.size, self.log = size, log
        self.slots: list[Slot] = []

    def forget(self, places: Ints) -> None:
        for slot in self.slots:
            slot[0][places] = _NOBODY

    def _put(self, number: int, places: Ints, who: Ints, event: Any) -> None:
        while len(self.slots) <= number:
            # of an array of millions few elements are touched, and zeros take memory where they are written alone
            self.slots.append((np.full(self.size, _NOBODY), np.zeros(self.size, np.int64)))
        self.slots[number][0][places], self.slots[number][1][places] = who, event

    def note(self, now: Access) -> Ints:
        """Of each of the access's elements, who is the last now: of lanes that touch one at once, a later one."""
        places, who = now.at, now.lanes
        if self.slots:  # who was the last so far is kept beside
            before, events = self.slots[0][0][places], self.slots[0][1][places]
            moved = ((before >= 0) & (before != who)).nonzero()[0]
            self._beside(places[moved], who[moved], before[moved], events[moved])
        self._put(0, places, who, now.event)
        winner: Ints = self.slots[0][0][places]
        # the first of the others comes last, and so stays: it is the furthest from the winner
        chosen = (winner != who).nonzero()[0][::-1]
        self._beside(places[chosen], winner[chosen], who[chosen], np.full(len(chosen), now.event))
        return winner

    def _beside(self, places: Ints, last: Ints, other: Ints, events: Ints) -> None:
        """Keep ``other`` for elements whose last one is now ``last``, where it tells more than who is kept so far."""
        if not len(places):
            return
        lanes, log = self.log.lanes_per_block, self.log
        block = last // lanes
        here = block == other // lanes
        self._put(2, places[~here], other[~here], events[~here])
        kept, kept_events = self.slots[1][0][places], self.slots[1][1][places]
        elsewhere = kept // lanes != block  # or nobody
        more = here & ((other // WARP != last // WARP) | elsewhere | (kept // WARP == last // WARP))
        rest = (here & ~more & (kept_events != events)).nonzero()[0]
        if len(rest):  # of the same warp: more only if a barrier has passed since the one that is kept
            then, now = log.stamps(kept_events[rest], kept[rest]), log.stamps(events[rest], other[rest])
            more[rest] = then >> BARRIER != now >> BARRIER
        self._put(1, places[more], other[more], events[more])


class Shadow:
    """The accesses to one allocation in one launch, or to blocks' shared arrays of ``per_block`` elements between two
    barriers. An access is noted in the order in which its lanes make it."""

    def __init__(self, size: int, log: Log, per_block: int = 0) -> None:
        self.log, self.per_block = log, per_block
        self.writers, self.readers, self.atomics = (Together(size, log) for _ in range(3))
        self._reads: list[tuple[Access, int]] = []  # that nothing need be known of until something is written
        self._read_lanes = 0

    def note(self, access: Access, data: Any = None) -> Access:
        """As it is looked at. A write comes before ``data`` has its value."""
        first = 0 if self.per_block else access.state.first_ordinal
        event = self.log.add(access.line, access.stamps, first)
        if access.op == "read":
            self._reads.append((access, event))
            self._read_lanes += len(access.lanes)
            if self.writers.slots or self.atomics.slots or self._read_lanes > _MANY:
                self._catch_up()
            return access
        self._catch_up()
        now = self._each(access, event)
        if access.op == "write":
            self._write(now, data)
        else:
            self._met(now, self.writers.slots, "changed atomically", "written")
            self._met(now, self.readers.slots, "changed atomically", "read")
            self.atomics.note(now)
        return now

    def _each(self, access: Access, event: int) -> Access:
        op, state, view, at, lanes, line, stamps, value, *_ = access
        who = lanes.nonzero()[0] if lanes.dtype == np.bool_ else lanes
        at, stamps, first = picked(at, lanes), picked_stamps(stamps, who), self.log.events[event].base
        return Access(op, state, view, at, who + first, line, stamps, value, event=event)  # quicker than to replace

    def _catch_up(self) -> None:
        reads, self._reads, self._read_lanes = self._reads, [], 0
        for read in reads:
            now = self._each(*read)
            self._met(now, self.writers.slots[:1], "read", "written")
            self._met(now, self.atomics.slots, "read", "changed atomically")
            self.readers.note(now)

    def _write(self, now: Access, data: Any) -> None:
        places, who, values, lanes = now.at, now.lanes, now.value, self.log.lanes_per_block
        changed = ~same(data[places], values)
        self._met(now, self.writers.slots, "written", "written", changed)
        self._met(now, self.readers.slots, "written", "read")
        for i, slot in enumerate(self.atomics.slots):
            # as the last block puts a counter back: its own atomic operation came after all others'
            others, changing = slot[0][places] // lanes, self.atomics.slots[0][0][places] // lanes
            loose = (others == who // lanes) | (changing != who // lanes) if i else None
            self._met(now, [slot], "written", "changed atomically", loose)
        self.writers.forget(places[changed])
        winner = self.writers.note(now)
        beaten = winner != who
        if count_nonzero(beaten):
            final = data.copy()
            final[places] = values
            beaten &= ~same(final[places], values)
            self._report(now, beaten, winner, np.full(len(places), now.event), "written", _AT_ONCE)

    def _met(self, now: Access, slots: list[Slot], verb: str, theirs: str, among: Bools | None = None) -> None:
        """Faults for the accesses, or for those ``among`` them, that others met whom nothing orders before them."""
        for who, event in slots:
            other = who[now.at]
            met = (other >= 0) & (other != now.lanes)
            if among is not None:
                met &= among
            if count_nonzero(met):
                self._report(now, met, other, event[now.at], verb, theirs)

    def _report(self, now: Access, met: Bools, other: Ints, events: Ints, verb: str, theirs: str) -> None:
        """Faults for those of the accesses ``met`` that nothing orders; ``theirs`` is what the others did."""
        state, view, chosen = now.state, now.view, met.nonzero()[0]
        line, everyones, base = self.log.events[now.event]
        places, who, other, events = now.at[chosen], now.lanes[chosen], other[chosen], events[chosen]
        then, own = self.log.stamps(events, other), self.log.stamps(events, who)
        stamps = np.broadcast_to(np.asarray(picked_stamps(now.stamps, chosen)), who.shape)
        others = everyones.take(other - base, mode="clip") if isinstance(everyones, np.ndarray) else everyones
        # without a barrier between; the lanes of a warp need a syncwarp of both
        lanes, one_warp = self.log.lanes_per_block, who // WARP == other // WARP
        one_block, both_came = who // lanes == other // lanes, (then != others) & (own != stamps)
        apart = one_block & (who != other) & (then >> BARRIER == stamps >> BARRIER) & ~(one_warp & both_came)
        for kind, one in ("overlap", ~one_block), ("race", apart):
            if self.log.released:
                one[one] = ~self.log.handed_over(other[one], then[one], events[one], who[one], stamps[one])
            if not count_nonzero(one):
                continue
            plainer = one & ~one_warp
            first = int(np.argmax(plainer if count_nonzero(plainer) else one))
            pair, lines = (int(who[first]), int(other[first])), (line, self.log.events[int(events[first])].line)
            lane, place = pair[0] - base, int(places[first])
            start = view.start if type(view.start) is int else int(view.start[lane])
            element = view.element(place % self.per_block if self.per_block else place - start)
            of, what = (state.thread_of, "thread") if kind == "race" else (state.block_of, "block")
            accesses = zip((verb, theirs), pair, lines, strict=True)
            both = " and ".join(f"{did} by {what} {of(one)} in line {where}" for did, one, where in accesses)
            why, look_at = ": blocks do not wait for each other", ""
            if kind == "race" and theirs == _AT_ONCE:
                both = f"written by threads {of(pair[0])} and {of(pair[1])} at once in line {line}"
                why = ": their values differ"
                look_at = "the index of this store: threads that write at once need an element each"
            elif kind == "race":
                why = no_barrier(state.home, *lines)
            count = int(count_nonzero(one))
            state.fault(kind, line, view.name, f"{element} is {both}{why}", lane=lane, count=count, look_at=look_at)


def picked(at: Any, lanes: Any) -> Any:
    """Of a value, one for each of the lanes: those of a mask, or a number for each element of ``at``."""
    if lanes.dtype != np.bool_:
        return at
    if isinstance(at, np.ndarray) and at.shape == lanes.shape:
        return at if count_nonzero(lanes) == len(lanes) else at[lanes]
    return np.full(count_nonzero(lanes), at)


def picked_stamps(stamps: Any, lanes: Bools | Ints) -> Any:
    return stamps[lanes] if isinstance(stamps, np.ndarray) else stamps


def same(a: Any, b: Any) -> Bools:
    return np.asarray((a == b) | ((a != a) & (b != b)))


def no_barrier(file: str, line: int, other: int) -> str:
    """The end of a race's sentence. Where a barrier in a loop's body parts the two lines of the file, it is from the
    later line to the earlier one of the next round that there is none."""
    first, last = sorted((line, other))
    parted = _parted("".join(linecache.getlines(file)), first, last)
    between = f" line {last} and line {first} in the next round of the loop" if parted else ""
    return f", with no barrier between{between}"


@lru_cache(maxsize=64)
def _parted(text: str, first: int, last: int) -> bool:
    """Does a barrier stand between the lines, in the body of the innermost loop around both?"""
    try:
        tree = ast.parse(text)
    except SyntaxError:  # the file was edited meanwhile
        return False
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While)]
    around = [loop for loop in loops if loop.body[0].lineno <= first and last <= (loop.body[-1].end_lineno or 0)]
    loop = max(around, key=lambda node: node.lineno, default=None)
    if loop is None or any(isinstance(node, ast.Continue) for node in ast.walk(loop)):
        return False
    between = [ast.unparse(one) for one in loop.body if first < one.lineno and (one.end_lineno or 0) < last]
    return any(one.endswith(".syncthreads()") for one in between if "\n" not in one)


# --- barriers of the block ---


def pass_barrier(state: State, line: int) -> None:
    present = None  # lanes of the blocks that come here, if not all do
    for other, lanes in state.absent.items():
        met = lanes & state.mask.bits
        if count_nonzero(met):
            skipped(state, other, met, f": they come to the one in line {line}" if line != other else "")
            state.absent[other] = lanes & ~met
    if state.mask is not state.waiting and state.mask.count != state.waiting.count:
        present = _of_blocks(state)
        absent = state.waiting.bits & ~state.mask.bits & present
        if count_nonzero(absent):
            state.absent[line] = state.absent.get(line, state.none.bits) | absent
    _pass(state, present)


def pass_grid_barrier(state: State, line: int) -> None:
    """The active lanes come to a barrier of the whole grid, all of whose blocks run now."""
    if state.has_engines:
        raise state.unknown(line, "a barrier of the whole grid is not traced beside barriers that count bytes")
    absent = np.where(_of_blocks(state), state.waiting.bits, state.all.bits) & ~state.mask.bits
    if count_nonzero(absent):  # a block may lose threads
        skipped(state, line, absent, barrier="barrier of the whole grid")
    _pass(state, None)
    state.log = Log(state.lanes_per_block)  # it orders all that was done before


def _of_blocks(state: State) -> Bools:
    return np.repeat(state.mask.bits.reshape(state.blocks_at_once, -1).any(axis=1), state.lanes_per_block)


def _pass(state: State, present: Bools | None) -> None:
    """The blocks with the lanes ``present`` (None: all) have passed a barrier."""
    settle(state, present)
    passed, left = ((state.stamps >> BARRIER) + 1) << BARRIER, state.all.bits & ~state.waiting.bits
    state.stamps = passed if present is None else np.where(present, passed, state.stamps)
    state.left = left if present is None else np.where(present, left, state.left)
    for access, _ in () if state.has_engines else state.copies:  # may arrive at any time until it is waited for
        access.view.storage.keep(access._replace(stamps=state.stamps))


def settle(state: State, present: Bools | None) -> None:
    """Find the races of the blocks with the lanes ``present`` (None: of all) since their last barrier."""
    for view in state.shared.values():
        view.storage.settle(state, view, present)


def end(state: State) -> None:
    settle(state, None)
    for line, lanes in state.absent.items():
        if count_nonzero(lanes):
            skipped(state, line, lanes)
    for access, _ in state.copies:
        text = f"a copy to {access.view.name} is still under way when the thread ends: {LEFT_OVER}"
        state.fault("copy-not-awaited", access.line, access.view.name, text, access.lanes)


def skipped(state: State, line: int, lanes: Bools, where: str = "", barrier: str = "barrier") -> None:
    """A fault of the lanes that do not reach a barrier, told of the first of their blocks."""
    counts = np.count_nonzero(lanes.reshape(state.blocks_at_once, -1), axis=1)
    first, *others = counts[counts > 0].tolist()
    text = f"{first} of the block's {state.threads} threads"
    text += f", and some of {len(others)} other block{'s' * (len(others) > 1)}," if others else ""
    text += f" do not reach this {barrier}, which others wait at{where}"
    state.fault("divergent-barrier", line, "", text, lane=int(np.argmax(lanes)), count=int(counts.sum()))
