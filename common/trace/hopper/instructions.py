"""The helpers of lessons/hopper.py for shared memory, clusters and registers, and the end of a block.

Imported, it brings in those for barriers, the copy engine and the matrix unit.
"""

from __future__ import annotations

import numpy as np

from common.trace.hopper import tma, wgmma
from common.trace.hopper.mbarriers import on_engines
from common.trace.hopper.tiles import Tiles
from common.trace.intrinsics import one_number, shared_memory
from common.trace.state import State
from common.trace.values import Cast, Value
from common.trace.views import View

WAITS = frozenset({"barrier_wait"})  # those that wait for other threads of the block or the cluster
_STARTS = 1024  # bytes, on which tiles begin


@on_engines
def half_tiles(state: State, line: int) -> View:
    return shared_memory(state, line, 0, Cast(np.float16), _STARTS)


@on_engines
def float_tiles(state: State, line: int) -> View:
    return shared_memory(state, line, 0, Cast(np.float32), _STARTS)


@on_engines
def fence_async(state: State, line: int) -> None:
    for view in state.shared.values():
        assert isinstance(view.storage, Tiles)
        view.storage.fence(state, state.mask.bits)


# --- clusters, registers ---


@on_engines
def cluster_rank(state: State, line: int) -> Value:
    if len(state.peers[0]) == 1:
        return np.uint32(0)
    return state.ranks[state.block_number].astype(np.uint32)


@on_engines
def cluster_sync(state: State, line: int) -> None:
    state.engines.barrier(line, True)


def _registers(state: State, line: int, name: str, count: Value, sign: int) -> None:
    number = one_number(state, line, name, count)
    if number % 8 or not 24 <= number <= 256:
        raise state.error(line, f"{name} takes a multiple of 8 from 24 to 256, and this is {number}")
    wgmma.warpgroups(state, line, name)
    state.engines.set_registers(line, name, number, sign)


@on_engines
def take_registers(state: State, line: int, count: Value) -> None:
    _registers(state, line, "take_registers", count, 1)


@on_engines
def give_registers(state: State, line: int, count: Value) -> None:
    _registers(state, line, "give_registers", count, -1)


def end(state: State) -> None:
    """All threads of the blocks that run have ended."""
    tma.end(state)
    wgmma.end(state)
    state.engines.end()
