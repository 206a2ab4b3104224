"""Warps of an asynchronous kernel take turns: one waits for what another has yet to do.

A *team* is a warpgroup, the same one of all blocks that run at once and have one rank in their cluster. It runs the
kernel from its first line on, under a mask of its own lanes, in a thread, until it has to wait; then another team
goes on: never two at a time. Only if no team can go on do copies arrive: as late as they may. If even that helps
none, those whose warpgroup waits in parts are split into warps, each a team, and the launch begins anew; if that is
of no use, it is a deadlock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from common.trace.cost import WARP, Bools
from common.trace.state import Mask, State

WARPGROUP = 4 * WARP

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
    """Why a team does not go on."""

    line: int
    mask: Mask

    def over(self) -> bool:
        """Has come what is waited for?"""
        return False

    def hurry(self) -> bool:
        """Let copies arrive that are waited for; False if none does."""
        return False

    def begun(self) -> bool:
        """Has some of what is waited for come? Then what is missing is what all others wait for, too."""
        return False

    def for_bytes(self) -> bool:
        """Is it copies that are missing? Others may wait for what comes after them."""
        return False

    def tell(self, state: State) -> None:
        """Report that the wait never ends."""


class AtBarrier(Wait):
    """At a barrier of the block, or ``of_cluster``: until all teams that it concerns have come."""

    def __init__(self, line: int, mask: Mask, of_cluster: bool) -> None:
        self.line, self.mask, self.of_cluster = line, mask, of_cluster
        self.passed = False

    def over(self) -> bool:
        return self.passed

    def tell(self, state: State) -> None:
        what = "cluster_sync" if self.of_cluster else "barrier of the block"
        text = f"{self.mask.count} threads wait at this {what}, and others never come to it"
        state.fault("deadlock", self.line, "", text, self.mask.bits, lane=int(np.argmax(self.mask.bits)))


class _LeftError(BaseException):
    """Ends a team's thread where it waits."""


class Team:
    """Lanes that go on together: a ``warpgroup`` of the blocks of a ``station``, or a warp of it."""

    def __init__(self, lanes: Mask, station: int, warpgroup: int) -> None:
        self.lanes, self.station, self.warpgroup = lanes, station, warpgroup
        self.wait: Wait | None = None
        self.kept: dict[str, Any] = {
            "all": lanes, "mask": lanes, "waiting": lanes, "site": 0, "depth": 0, "call_path": [], "spot": 0,
        }  # fmt: skip
        self.dead = False
        self._mine, self._theirs = threading.Semaphore(0), threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._raised: BaseException | None = None
        self._leaving = False

    def go_on(self, work: Callable[[], None]) -> None:
        """Carry the work out up to the next :meth:`pause`, or to its end; raises what it raises."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._carry_out, args=(work,), daemon=True)
            self._thread.start()
        else:
            self._mine.release()
        self._theirs.acquire()
        if self.dead:
            self._thread.join()
        if self._raised is not None:
            raise self._raised

    def pause(self) -> None:
        """In the work: let whoever called :meth:`go_on` go on."""
        self._theirs.release()
        self._mine.acquire()
        if self._leaving:
            raise _LeftError

    def leave(self) -> None:
        """End the work where it paused."""
        if self._thread is not None and not self.dead:
            self._leaving = True
            self._mine.release()
            self._thread.join()

    def _carry_out(self, work: Callable[[], None]) -> None:
        try:
            with np.errstate(all="ignore"):
                work()
        except _LeftError:
            pass
        except BaseException as error:
            self._raised = error
        finally:
            self.dead = True
            self._theirs.release()


class Teams:
    """The teams of the blocks that run at once."""

    def __init__(
        self, state: State, split: frozenset[int], together: bool, resume: Callable[[int, bool], None]
    ) -> None:
        """``split``: warpgroups of a block whose warps are teams. ``together``: nobody waits, one team is enough.

        ``resume(line, of_cluster)`` is called, with the lanes that waited at a barrier as the mask, before they go
        on.
        """
        self.state, self.split, self.resume = state, split, resume
        self.now: Team | None = None
        self.all: list[Team] = []
        for station, lanes in self._stations():
            for part, warpgroup in self._parts(together):
                bits = lanes & part
                if bits.any():
                    self.all.append(Team(Mask(bits), station, warpgroup))

    def _stations(self) -> Iterator[tuple[int, Bools]]:
        """Blocks whose teams are the same: those of one rank in their cluster."""
        state = self.state
        of_lane = state.ranks[state.block_number]
        for rank in np.unique(state.ranks).tolist():
            yield rank, state.all.bits & (of_lane == rank)

    def _parts(self, together: bool) -> Iterator[tuple[Bools, int]]:
        thread = self.state.lane_numbers % self.state.lanes_per_block
        if together:
            yield np.ones(len(thread), np.bool_), 0
            return
        for warpgroup in range(-(-self.state.lanes_per_block // WARPGROUP)):
            inside = thread // WARPGROUP == warpgroup
            if warpgroup not in self.split:
                yield inside, warpgroup
            else:
                for warp in range(WARPGROUP // WARP):
                    yield inside & (thread // WARP % 4 == warp), warpgroup

    def run(self, work: Callable[[], None]) -> None:
        """Let every team do the work. Raises StuckError, and what a team raises."""
        own = vars(self.state)
        before = {name: own[name] for name in _OWN}
        try:
            self._take_turns(work)
        finally:
            self.now = None
            for team in self.all:
                team.leave()
            own.update(before)

    def _take_turns(self, work: Callable[[], None]) -> None:
        turn = 0
        while live := [team for team in self.all if not team.dead]:
            ready = [team for team in live if team.wait is None or team.wait.over()]
            if ready:
                team = next((one for one in ready if self.all.index(one) >= turn), ready[0])
                turn = self.all.index(team) + 1
                self._resume(team, work)
            elif not self._meet(live) and not self._hurry(live):
                raise StuckError(self._parted(live))

    def _resume(self, team: Team, work: Callable[[], None]) -> None:
        own = vars(self.state)
        team.wait, self.now = None, team
        own.update(team.kept)
        team.go_on(work)
        team.kept = {name: own[name] for name in _OWN}
        self.now = None

    def until(self, wait: Wait) -> None:
        """The team that runs goes on when the wait is over."""
        assert self.now is not None
        if wait.over():
            return
        self.now.wait = wait
        self.now.pause()

    def _hurry(self, live: list[Team]) -> bool:
        waits = live[::-1] if self.state.reversed else live
        return any(team.wait is not None and team.wait.hurry() for team in waits)

    def _meet(self, live: list[Team]) -> bool:
        """Let those pass a barrier of the block, or of the cluster, that all have come to; False if there is none."""
        passed = False
        for station in sorted({team.station for team in live}):
            own = [team for team in live if team.station == station]
            if all(isinstance(team.wait, AtBarrier) and not team.wait.of_cluster for team in own):
                self._pass(own, False)
                passed = True
        if not passed and all(isinstance(team.wait, AtBarrier) and team.wait.of_cluster for team in live):
            self._pass(live, True)
            passed = True
        return passed

    def _pass(self, teams: list[Team], of_cluster: bool) -> None:
        waits = [team.wait for team in teams if isinstance(team.wait, AtBarrier)]
        with self.as_one(teams):
            for line in sorted({wait.line for wait in waits}):
                bits = [wait.mask.bits for wait in waits if wait.line == line]
                self.state.mask = self._whole(np.logical_or.reduce(bits))
                self.resume(line, of_cluster)
        for wait in waits:
            wait.passed = True

    def _whole(self, bits: Bools) -> Mask:
        waiting = self.state.waiting
        return waiting if (bits == waiting.bits).all() else Mask(bits)

    @contextmanager
    def as_one(self, teams: list[Team]) -> Iterator[None]:
        """Meanwhile the state is all these teams'."""
        own = vars(self.state)
        kept = {name: own[name] for name in _OWN}
        own["waiting"] = Mask(np.logical_or.reduce([team.kept["waiting"].bits for team in teams]))
        try:
            yield
        finally:
            own.update(kept)

    def _parted(self, live: list[Team]) -> frozenset[int]:
        """Warpgroups of which some warps wait and others may have something else to do."""
        found = set()
        for team in live:
            if team.wait is None or team.warpgroup in self.split:
                continue
            here, alive = (mask.bits.reshape(-1, WARP).any(axis=1) for mask in (team.wait.mask, team.kept["waiting"]))
            if (here != alive).any():
                found.add(team.warpgroup)
        return frozenset(found)

    def tell(self) -> None:
        """Report the waits that never end: those that lack a part of what they wait for, or else all."""
        waits = [team.wait for team in self.all if team.wait is not None and not team.wait.over()]
        told = [wait for wait in waits if wait.begun()] or waits
        for wait in sorted(told, key=lambda wait: (not wait.for_bytes(), wait.line)):
            wait.tell(self.state)
