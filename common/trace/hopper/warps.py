"""Warps of an asynchronous kernel take turns, and each knows only what it has waited for.

A *team* is a warpgroup, the same one of all blocks that run at once and have one rank in their cluster. It runs the
kernel from its first line on, under a mask of its own lanes, in a thread, until it has to wait; then another team
goes on: never two at a time. Only if no team can go on do copies arrive: as late as they may. If even that helps
none, those whose warpgroup waits in parts are split into warps, each a team, and the launch begins anew; if that is
of no use, it is a deadlock.

*Clocks* are a vector clock per warp. Columns hold, for each warp, the interval of its own accesses; then its
warpgroup's groups of wgmma; then its groups of bulk stores; then, for each barrier in shared memory, the phases it
has completed. What a warp did is known to another one only by way of a barrier that the first arrives at and the
other waits for. Lanes that wait without the rest of their warp know alone what they have waited for, until the
warp's next syncwarp.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from common.trace.cost import WARP, Ints
from common.trace.state import Mask, State

WARPGROUP = 4 * WARP
ACCESS, WGMMA, STORE = 0, 1, 2  # kinds of columns that a warp has, in this order
_KINDS = 3

Phases = Sequence[tuple[Any, int]]

# What of the state belongs to the team that runs.
_OWN = ("all", "mask", "waiting", "site", "depth", "call_path", "spot")


class StuckError(RuntimeError):
    """No team can go on. ``split``: warpgroups of a block that should run as single warps."""

    def __init__(self, split: frozenset[int]) -> None:
        super().__init__("all threads wait")
        self.split = split


class SplitError(RuntimeError):
    """Warps that run apart come to what a whole warpgroup does together, which is not traced."""


class Wait:
    """Why lanes of a team do not go on: for ``phases`` of barriers that count (mbarriers.Barrier), each of a parity;
    without any, at a barrier of the block, or ``of_cluster``, that all teams which it concerns come to."""

    def __init__(self, line: int, mask: Mask, of_cluster: bool = False, phases: Phases = ()) -> None:
        self.line, self.mask, self.of_cluster, self.phases = line, mask, of_cluster, phases
        self.passed = False

    def left(self) -> Phases:
        """The phases that are not complete."""
        return [(barrier, parity) for barrier, parity in self.phases if not barrier.passed(parity)]

    def over(self) -> bool:
        return not self.left() if self.phases else self.passed

    def hurry(self) -> bool:
        """Let copies arrive that are waited for; False if none does."""
        return any(barrier.deliver() for barrier, _ in self.left())

    def lacks(self) -> tuple[bool, bool]:
        """Has some of it come, so that all others wait for what is missing? Are copies missing, which others may wait
        for as well?"""
        left = [barrier for barrier, _ in self.left()]
        return any(one.missing < one.arrivals for one in left), any(one.arrived != one.expected for one in left)

    def tell(self, state: State) -> None:
        """Report that it never ends."""
        array, lanes = "", self.mask.bits
        if self.phases:
            barrier, parity = self.left()[0]
            array, lanes = barrier.name, lanes & (state.block_number == barrier.block)
            text = f"the phase of parity {parity} of {array} is never complete: {barrier.lacks()}"
        else:
            what = "cluster_sync" if self.of_cluster else "barrier of the block"
            text = f"{self.mask.count} threads wait at this {what}, and others never come to it"
        state.fault("deadlock", self.line, array, text, lanes, lane=int(np.argmax(lanes)))


class _LeftError(BaseException):
    """Ends a team's work where it waits."""


class Team:
    """Lanes that go on together: a ``warpgroup`` of the blocks of a ``station``, or a warp of it."""

    def __init__(self, lanes: Mask, station: int, warpgroup: int) -> None:
        self.station, self.warpgroup = station, warpgroup
        self.wait: Wait | None = None
        self.kept: dict[str, Any] = {  # what the state has while it runs
            "all": lanes, "mask": lanes, "waiting": lanes, "site": 0, "depth": 0, "call_path": [], "spot": 0,
        }  # fmt: skip
        self._mine, self._theirs = threading.Semaphore(0), threading.Semaphore(0)
        self._work: Future[None] | None = None
        self._leaving = False

    @property
    def dead(self) -> bool:
        return self._work is not None and self._work.done()

    def go_on(self, pool: ThreadPoolExecutor, work: Callable[[], None]) -> None:
        """Carry the work out up to the next :meth:`pause`, or to its end; raises what it raises."""
        if self._work is None:
            self._work = pool.submit(work)
            self._work.add_done_callback(lambda _: self._theirs.release())
        else:
            self._mine.release()
        self._theirs.acquire()
        if self._work.done():
            self._work.result()

    def pause(self) -> None:
        """In the work: let whoever called :meth:`go_on` go on."""
        self._theirs.release()
        self._mine.acquire()
        if self._leaving:
            raise _LeftError

    def leave(self) -> None:
        """End the work where it paused."""
        if self._work is not None:
            self._leaving = True
            self._mine.release()
            self._work.exception()  # waits


class Teams:
    """The teams of the blocks that run at once."""

    def __init__(
        self, state: State, split: frozenset[int], together: bool, resume: Callable[[int, bool], None]
    ) -> None:
        """``split``: warpgroups of a block whose warps are teams. ``together``: nobody waits, one team is enough.
        ``resume(line, of_cluster)`` is called before lanes go on that waited at a barrier: they are the mask."""
        self.state, self.split, self.resume = state, split, resume
        self.now: Team | None = None
        self.all: list[Team] = []
        thread, ranks = state.lane_numbers % state.lanes_per_block, state.ranks[state.block_number]
        group = np.zeros_like(thread) if together else thread // WARPGROUP
        warp = np.where(np.isin(group, list(split)), thread // WARP % 4, 0)
        for station in np.unique(ranks).tolist():  # blocks of one rank in their cluster have the same teams
            own = state.all.bits & (ranks == station)
            for warpgroup, part in sorted(set(zip(group[own].tolist(), warp[own].tolist(), strict=True))):
                lanes = own & (group == warpgroup) & (warp == part)
                self.all.append(Team(Mask(lanes), station, warpgroup))

    def run(self, work: Callable[[], None]) -> None:
        """Let every team do the work. Raises StuckError, and what a team raises."""

        def quietly() -> None:
            with np.errstate(all="ignore"):
                work()

        own = vars(self.state)
        before = {name: own[name] for name in _OWN}
        with ThreadPoolExecutor(len(self.all)) as pool:
            try:
                self._take_turns(pool, quietly)
            finally:
                self.now = None
                for team in self.all:
                    team.leave()
                own.update(before)

    def _take_turns(self, pool: ThreadPoolExecutor, work: Callable[[], None]) -> None:
        turn, own = 0, vars(self.state)
        while live := [team for team in self.all if not team.dead]:
            ready = [team for team in live if team.wait is None or team.wait.over()]
            if ready:
                team = next((one for one in ready if self.all.index(one) >= turn), ready[0])
                turn = self.all.index(team) + 1
                team.wait, self.now = None, team
                own.update(team.kept)
                team.go_on(pool, work)
                team.kept = {name: own[name] for name in _OWN}
                self.now = None
            elif not self._meet(live):
                waits = [team.wait for team in live if team.wait is not None]
                if not any(wait.hurry() for wait in (waits[::-1] if self.state.reversed else waits)):
                    raise StuckError(self._parted(live))

    def until(self, wait: Wait) -> None:
        """The team that runs goes on when the wait is over."""
        assert self.now is not None
        if not wait.over():
            self.now.wait = wait
            self.now.pause()

    def _meet(self, live: list[Team]) -> bool:
        """Let those pass a barrier of the block, or of the cluster, that all have come to; False if there is none."""
        stations = sorted({team.station for team in live})
        blocks = [[team for team in live if team.station == station] for station in stations]
        passed = [teams for teams in blocks if _all_at(teams, False)]
        for teams in passed:
            self._pass(teams, False)
        if not passed and _all_at(live, True):
            self._pass(live, True)
            return True
        return bool(passed)

    def _pass(self, teams: list[Team], of_cluster: bool) -> None:
        own = vars(self.state)
        kept = {name: own[name] for name in _OWN}
        own["waiting"] = Mask(np.logical_or.reduce([team.kept["waiting"].bits for team in teams]))
        waits = [team.wait for team in teams if team.wait is not None]
        for line in sorted({wait.line for wait in waits}):
            self.state.mask = Mask(np.logical_or.reduce([wait.mask.bits for wait in waits if wait.line == line]))
            self.resume(line, of_cluster)
        own.update(kept)
        for wait in waits:
            wait.passed = True

    def _parted(self, live: list[Team]) -> frozenset[int]:
        """Warpgroups of which some warps wait and others may have something else to do."""
        found = set()
        for team in live:
            if team.wait is not None:
                masks = team.wait.mask, team.kept["waiting"]
                here, alive = (mask.bits.reshape(-1, WARP).any(axis=1) for mask in masks)
                if (here != alive).any():
                    found.add(team.warpgroup)
        return frozenset(found - self.split)

    def tell(self) -> None:
        """Report the waits that never end: those that lack a part of what they wait for, or else all."""
        waits = [team.wait for team in self.all if team.wait is not None and not team.wait.over()]
        told = [wait for wait in waits if wait.lacks()[0]] or waits
        for wait in sorted(told, key=lambda wait: (not wait.lacks()[1], wait.line)):
            wait.tell(self.state)


def _all_at(teams: list[Team], of_cluster: bool) -> bool:
    """Do all teams wait at a barrier of this kind?"""
    waits = [team.wait for team in teams]
    return all(wait and not wait.phases and wait.of_cluster == of_cluster for wait in waits)


# --- clocks ---


class Clocks:
    """``known[warp, column]``: up to which number of the column all is done, as far as the warp knows."""

    def __init__(self, warps: int) -> None:
        self.warps = warps
        self.known: Ints = np.zeros((warps, _KINDS * warps), np.int64)
        self.alone: Ints = np.zeros(warps, np.int64)  # lanes with accesses since their warp's last syncwarp, as bits
        self.private: dict[tuple[int, int], Ints] = {}  # by warp and lanes, as bits: what they alone have waited for
        own = np.arange(warps)
        self.known[own, own] = 1  # the interval that a warp is in, which nobody else knows of

    def column(self) -> int:
        """A column for a new barrier."""
        number = int(self.known.shape[1])
        self.known = np.pad(self.known, ((0, 0), (0, 1)))
        return number

    def of(self, kind: int, warp: Any) -> Any:
        """The column of this kind that a warp has, or several have."""
        return kind * self.warps + warp

    def done(self, kind: int, warp: int, number: int) -> Ints:
        """What somebody knows who knows only that this column has come to this number."""
        found: Ints = np.zeros_like(self.known[warp])
        found[self.of(kind, warp)] = number
        return found

    def interval(self, warp: int) -> int:
        """Which of its intervals a warp is in: what it does now is done for others once they know so much."""
        return int(self.known[warp, warp])

    # --- what a lane knows ---

    def row(self, lane: int) -> Ints:
        """What a lane knows: its warp, and what it has waited for without the others."""
        return self._with_private(self.known[lane // WARP], lane // WARP, 1 << lane % WARP)

    def _with_private(self, found: Ints, warp: int, lanes: int) -> Ints:
        for (other, those), more in self.private.items():
            if other == warp and those & lanes:
                found = joined(found, more)
        return found

    def rows(self, lanes: Ints, columns: Ints) -> Ints:
        """Of each lane, what it knows of its column."""
        warps = lanes // WARP
        found: Ints = self.known[warps, columns]
        if not np.isin(list({warp for warp, _ in self.private}), warps).any():
            return found  # most often: a lane that waits alone seldom accesses anything itself
        for (warp, bits), more in self.private.items():
            own = (warps == warp) & (bits >> lanes % WARP & 1 != 0) & (columns < len(more))
            found[own] = np.maximum(found[own], more[columns[own]])
        return found

    def phases(self, lane: int) -> Ints:
        """The complete phases of barriers that a lane knows of: what it begins comes after them, wherever it ends."""
        found: Ints = self.row(lane).copy()
        found[: _KINDS * self.warps] = 0
        return found

    # --- handing over ---

    def pass_on(self, warps: Sequence[int]) -> None:
        """The lanes of each of these warps have met: what one knows all know, and a new interval begins."""
        chosen = list(warps)
        for warp, lanes in [key for key in self.private if key[0] in chosen]:
            self.acquire([warp], self.private.pop((warp, lanes)))
        self.known[chosen, chosen] += 1
        self.alone[chosen] = 0

    def release_of(self, warp: int, lanes: int) -> Ints:
        """What lanes of a warp, as bits, hand over: not what others of it did since the last syncwarp."""
        given = self._with_private(self.known[warp].copy(), warp, lanes)
        if self.alone[warp] & ~lanes:
            given[warp] -= 1
        else:
            self.known[warp, warp] += 1
            self.alone[warp] = 0
        return given

    def acquire(self, warps: Sequence[int], given: Ints) -> None:
        """These warps come to know what others handed over."""
        chosen, size = list(warps), len(given)
        self.known[chosen, :size] = np.maximum(self.known[chosen, :size], given)

    def acquire_by(self, warp: int, lanes: int, whole: int, given: Ints) -> None:
        """Lanes of a warp, as bits, come to know what others handed over; ``whole`` are all that it has."""
        if lanes == whole:
            self.acquire([warp], given)
        else:
            self.private[warp, lanes] = joined(given, self.private.get((warp, lanes), given))

    def meet(self, warps: Sequence[int]) -> None:
        """All lanes of these warps wait for each other."""
        chosen = list(warps)
        self.pass_on(chosen)
        given: Ints = self.known[chosen].max(axis=0)
        given[chosen] -= 1  # the intervals that have begun are their own
        self.acquire(chosen, given)


def joined(first: Ints, second: Ints) -> Ints:
    """What is known by either; a column that one of them does not have yet is the other's."""
    if len(first) < len(second):
        first, second = second, first
    found: Ints = first.copy()
    found[: len(second)] = np.maximum(found[: len(second)], second)
    return found
