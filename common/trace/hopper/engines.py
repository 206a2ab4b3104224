"""What blocks have where engines work beside their threads: teams, clocks, registers, what is under way.

A *team* is a warpgroup, the same one of all blocks that run at once and have one rank in their cluster. It runs the
kernel from its first line on, under a mask of its own lanes, in a thread, until it has to wait; then another team
goes on: never two at a time. Only if no team can go on do copies arrive: as late as they may. If even that helps
none, those whose warpgroup waits in parts are split into warps, each a team, and the launch begins anew; if that is
of no use, it is a deadlock.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from queue import SimpleQueue
from typing import Any
from weakref import WeakSet

import numpy as np

from common.catalog.limits import REGISTERS
from common.trace import races
from common.trace.cost import WARP
from common.trace.hopper import mbarriers, wgmma
from common.trace.hopper.tiles import STORE, WARPGROUP, WGMMA, Clocks, Groups, Tiles
from common.trace.intrinsics import on_engines, one_number
from common.trace.shared import Local, shared_memory
from common.trace.state import BARRIER, Mask, State
from common.trace.values import Cast, Value

# What of the state belongs to the team that runs.
_OWN = ("all", "mask", "waiting", "site", "depth", "call_path", "spot")


class StuckError(RuntimeError):
    """No team can go on. ``split``: warpgroups of a block that should run as single warps."""

    def __init__(self, split: frozenset[int]) -> None:
        super().__init__("all threads wait")
        self.split = split


class SplitError(RuntimeError):
    """Warps that run apart come to what a whole warpgroup does together, which is not traced."""


@dataclass(eq=False)
class Wait:
    """Why lanes of a team do not go on: they are ``at`` a barrier of the "block" or the "cluster", which all teams
    that it concerns come to; or wait for "phases" of barriers that count (mbarriers.Barrier), each of a parity."""

    line: int
    mask: Mask
    at: str
    phases: Sequence[tuple[Any, int]]

    def left(self) -> Sequence[tuple[Any, int]]:
        return [(barrier, parity) for barrier, parity in self.phases if not barrier.passed(parity)]

    def over(self) -> bool:
        return bool(self.phases) and not self.left()


class _LeftError(BaseException):
    """Ends a team's work where it waits."""


class Team:
    """Lanes that go on together: a ``warpgroup`` of the blocks of one ``rank`` in their cluster, or a warp of it."""

    def __init__(self, lanes: Mask, rank: int, warpgroup: int) -> None:
        self.rank, self.warpgroup = rank, warpgroup
        self.wait: Wait | None = None
        self.kept: dict[str, Any] = dict(zip(_OWN, (lanes, lanes, lanes, 0, 0, [], 0), strict=True))
        self.over = False
        self.turn: SimpleQueue[bool] = SimpleQueue()  # is it to go on, or to leave


class Teams:
    def __init__(self, state: State, split: frozenset[int]) -> None:
        """``split``: warpgroups of a block whose warps are teams."""
        self.state, self.split = state, split
        self.now: Team | None = None
        self._back: SimpleQueue[BaseException | None] = SimpleQueue()  # a team waits, or has ended, with its error
        thread = state.lane_numbers % state.lanes_per_block
        group = thread // WARPGROUP
        warp = np.where(np.isin(group, list(split)), thread // WARP % 4, 0)
        # blocks of one rank in their cluster have the same teams
        of = np.stack((state.ranks[state.block_number], group, warp))
        self.all = [
            Team(Mask(state.all.bits & (of == own[:, None]).all(axis=0)), *own[:2].tolist())
            for own in np.unique(of[:, state.all.bits], axis=1).T
        ]

    def run(self, work: Callable[[], None]) -> None:
        """Let every team do the work. Raises StuckError, and what a team raises."""
        own = vars(self.state)
        before = {name: own[name] for name in _OWN}

        def take_part(team: Team) -> None:
            found: BaseException | None = None
            try:
                if team.turn.get():
                    with np.errstate(all="ignore"):
                        work()
            except BaseException as error:
                found = error
            team.over = True
            self._back.put(found)

        for team in self.all:
            threading.Thread(target=take_part, args=(team,), daemon=True).start()
        try:
            self._take_turns()
        finally:
            self.now = None
            for team in self.all:
                if not team.over:
                    team.turn.put(False)
                    self._back.get()
            own.update(before)

    def _take_turns(self) -> None:
        turn, own = 0, vars(self.state)
        while live := [team for team in self.all if not team.over]:
            ready = [team for team in live if team.wait is None or team.wait.over()]
            if ready:
                team = next((one for one in ready if self.all.index(one) >= turn), ready[0])
                turn = self.all.index(team) + 1
                team.wait, self.now = None, team
                own.update(team.kept)
                team.turn.put(True)
                if error := self._back.get():
                    raise error
                team.kept = {name: own[name] for name in _OWN}
            elif not self._meet(live):
                waits = [team.wait for team in live if team.wait is not None]
                hurried = waits[::-1] if self.state.reversed else waits
                if not any(barrier.deliver() for wait in hurried for barrier, _ in wait.left()):
                    raise StuckError(self._parted(live))

    def wait(self, line: int, where: str = "block", phases: Sequence[tuple[Any, int]] = ()) -> None:
        """The active lanes of the team that runs come to a :class:`Wait`, and go on when it is over."""
        assert self.now is not None
        team, wait = self.now, Wait(line, self.state.mask, where, phases)
        if not wait.over():
            team.wait = wait
            self._back.put(None)
            if not team.turn.get():
                raise _LeftError

    def require_whole(self, line: int, name: str) -> None:
        if self.now is not None and self.now.warpgroup in self.split:
            raise SplitError(f"line {line}: {name} by warps that run apart is not traced")

    def _meet(self, live: list[Team]) -> bool:
        """Let those pass a barrier of the block, or of the cluster, that all have come to; False if there is none."""
        barriers = [(list(teams), "block") for _, teams in groupby(live, lambda team: team.rank)]
        met = False
        for teams, at in [*barriers, (live, "cluster")]:
            waits = [team.wait for team in teams if team.wait is not None and team.wait.at == at]
            if len(waits) < len(teams):
                continue
            met = True
            self.state.waiting = _of_all([team.kept["waiting"] for team in teams])
            for line in sorted({wait.line for wait in waits}):
                self.state.mask = _of_all([wait.mask for wait in waits if wait.line == line])
                self.state.engines.resume(line, at)
            for team in teams:
                team.wait = None
        return met

    def _parted(self, live: list[Team]) -> frozenset[int]:
        """Warpgroups of which some warps wait and others may have something else to do."""
        found = set()
        for team, wait in [(team, team.wait) for team in live if team.wait is not None]:
            here, alive = (mask.bits.reshape(-1, WARP).any(axis=1) for mask in (wait.mask, team.kept["waiting"]))
            if (here != alive).any():
                found.add(team.warpgroup)
        return frozenset(found - self.split)

    def tell(self) -> None:
        """Report the waits that never end: those of which a part has come, or else all; of copies first."""
        waits = [team.wait for team in self.all if team.wait is not None and not team.wait.over()]
        begun = [wait for wait in waits if any(one.missing < one.arrivals for one, _ in wait.left())]
        waits = sorted(begun or waits, key=lambda wait: wait.line)
        for wait in sorted(waits, key=lambda wait: all(one.arrived == one.expected for one, _ in wait.left())):
            what = "cluster_sync" if wait.at == "cluster" else "barrier of the block"
            array, lanes = "", wait.mask.bits
            text = f"{wait.mask.count} threads wait at this {what}, and others never come to it"
            for barrier, parity in wait.left()[:1]:
                array, lanes = barrier.name, lanes & (self.state.block_number == barrier.block)
                text = f"the phase of parity {parity} of {array} is never complete: {barrier.lacks()}"
            self.state.fault("deadlock", wait.line, array, text, lanes, lane=int(np.argmax(lanes)))


def _of_all(masks: list[Mask]) -> Mask:
    return Mask(np.logical_or.reduce([mask.bits for mask in masks]))


class Engines:
    """The state of the blocks that run at once."""

    def __init__(self, state: State, split: frozenset[int], recording: bool) -> None:
        self.state = state
        self.clocks = Clocks(len(state.lane_numbers) // WARP)
        self.teams = Teams(state, split)
        self.pipeline = mbarriers.Pipeline(recording)
        self.queues: dict[tuple[int, int], Groups] = {}  # of products and bulk stores, by kind and first lane
        self.barriers: dict[object, Any] = {}  # an mbarriers.Barriers, by place in the code
        self.by_column: dict[int, Any] = {}  # an mbarriers.Barrier
        self.locals: defaultdict[object, WeakSet[Local]] = defaultdict(WeakSet)  # arrays of a team's threads
        self.syncs = 0  # barriers of the cluster that have been passed
        # by line, lane and block of an arrival elsewhere: syncs by then, and the phase of a column that tells of it
        self.remote: dict[tuple[int, int, int], tuple[int, int, int]] = {}
        # registers that a launch of known bounds gives a thread; and by the warpgroup's first lane, and in which line
        threads, resident = (*state.launch.bounds, 0, 0)[:2]
        self.first = min(REGISTERS // max(resident, 1) // threads // 8 * 8, 256) if threads else 0
        self.registers: dict[int, tuple[int, int]] = {}

    def groups(self, kind: int, lead: int) -> Groups:
        """Of the warpgroup from this lane on, or bulk stores of the lane."""
        if (kind, lead) not in self.queues:
            lanes = slice(lead, lead + (WARPGROUP if kind == WGMMA else 1))
            self.queues[kind, lead] = Groups(kind, lanes, self.clocks)
        return self.queues[kind, lead]

    def resume(self, line: int, at: str) -> None:
        """The active lanes, which have waited for each other at a barrier of blocks or clusters, go on."""
        state = self.state
        if at == "block":
            races.pass_barrier(state, line)
        else:
            absent = state.waiting.bits & ~state.mask.bits
            if absent.any():
                races.skipped(state, line, absent, barrier="barrier of the cluster")
            state.stamps = ((state.stamps >> BARRIER) + 1) << BARRIER
            self.syncs += 1
        warps = np.flatnonzero(state.mask.bits.reshape(-1, WARP).any(axis=1))
        keys = warps * WARP // (state.lanes_per_block * (state.cluster if at == "cluster" else 1))
        for key in np.unique(keys).tolist():
            self.clocks.meet(warps[keys == key])

    def cluster_of(self, block: int, mask: int, line: int, lane: int) -> list[int]:
        cluster = self.state.cluster
        if mask <= 0 or mask >> cluster:
            text = f"the mask {mask:#x} names blocks of a cluster of {cluster}"
            self.state.fault("operand", line, "", text, lane=lane)
        return [block // cluster * cluster + rank for rank in range(cluster) if mask >> rank & 1]

    def end(self) -> None:
        """All threads have ended: what is under way, or cannot be as it was asked for, is at fault."""
        mbarriers.end(self.state)
        for groups in self.queues.values():
            groups.end(self.state)
        size = self.state.lanes_per_block
        for (line, lane, block), (syncs, column, phase) in self.remote.items():
            heard = self.clocks.known[block * size : (block + 1) * size, column] >= phase
            if syncs == self.syncs and not heard.any():
                text = "the block whose barrier this arrives at may have ended: no cluster_sync comes after it"
                self.state.fault("left-cluster", line, "", text, lane=lane)
        # what warpgroups take, others must have given: the rest of the file is nobody's
        held = [self.registers.get(lead, (self.first, 0))[0] for lead in range(0, size, WARPGROUP)]
        if self.registers and (taken := sum(held) * WARPGROUP) > self.first * size:
            text = f"warpgroups hold {', '.join(map(str, held))} registers a thread, {taken:,} together, and the "
            text += f"block has {self.first * size:,}: take_registers waits for ever"
            self.state.fault("deadlock", max(line for _, line in self.registers.values()), "", text, lane=0)


# --- the toolkit's functions for groups, shared memory, clusters and registers ---


def _close(state: State, line: int, pending: Value = None, *, name: str, kind: int) -> None:
    """A group of each warpgroup, or lane, that calls this ends here; or it waits for all but its last ``pending``."""
    whole = kind == WGMMA
    for lead in wgmma.warpgroups(state, line, name) if whole else np.flatnonzero(state.mask.bits).tolist():
        if pending is None:
            state.engines.groups(kind, lead).committed += 1
        else:
            state.engines.groups(kind, lead).finish(one_number(state, line, name, pending))


for _name in "wgmma_commit", "wgmma_wait", "tma_commit", "tma_wait", "tma_wait_read":
    on_engines(partial(_close, name=_name, kind=WGMMA if _name.startswith("wgmma") else STORE), _name)
for _name, _dtype in {"half_tiles": np.float16, "float_tiles": np.float32, "word_tiles": np.int32}.items():
    on_engines(partial(shared_memory, shape=0, dtype=Cast(_dtype), alignment=1024), _name)


@on_engines
def fence_async(state: State, line: int) -> None:
    for view in state.shared.values():
        assert isinstance(view.storage, Tiles)
        view.storage.fence(state, state.mask.bits)


@on_engines
def cluster_rank(state: State, line: int) -> Value:
    return np.uint32(0) if state.cluster == 1 else state.ranks[state.block_number].astype(np.uint32)


on_engines(lambda state, line: state.engines.teams.wait(line, "cluster"), "cluster_sync")


def _ask(state: State, line: int, count: Value, *, name: str, sign: int) -> None:
    """Each thread of the warpgroups that run holds so many registers from now on: more (1), or fewer (-1)."""
    number, engine = one_number(state, line, name, count), state.engines
    if number % 8 or not 24 <= number <= 256:
        raise state.error(line, f"{name} takes a multiple of 8 from 24 to 256, and this is {number}")
    for lead in wgmma.warpgroups(state, line, name):
        if not engine.first:
            text = f"{name} in a kernel whose launch bounds nobody knows: jit(threads) of the toolkit's grid tells"
            state.fault("operand", line, "", text, lane=lead)
            continue
        held, _ = engine.registers.get(lead, (engine.first, 0))
        if sign * (number - held) < 0:
            text = f"{name} asks for {number} registers a thread, and each has {held}"
            state.fault("operand", line, "", text, lane=lead)
        engine.registers[lead] = number, line


on_engines(partial(_ask, name="take_registers", sign=1), "take_registers")
on_engines(partial(_ask, name="give_registers", sign=-1), "give_registers")
