"""The helpers of lessons/hopper.py: what each does on the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from common.trace import bulk, mbarriers, values, wgmma
from common.trace.intrinsics import INTRINSICS, READS, dynamic_shared, intrinsic, one_number
from common.trace.mbarriers import Barriers
from common.trace.memory import WARP
from common.trace.spaces import View
from common.trace.tiles import Tiles
from common.trace.values import Cast, Value

if TYPE_CHECKING:
    from common.trace.lanes import Machine

_BEFORE = frozenset(INTRINSICS)
_STARTS = 1024  # bytes, on which tiles begin


# --- shared memory ---


@intrinsic
def half_tiles(machine: Machine, line: int) -> View:
    return dynamic_shared(machine, line, Cast(np.float16), _STARTS)


@intrinsic
def float_tiles(machine: Machine, line: int) -> View:
    return dynamic_shared(machine, line, Cast(np.float32), _STARTS)


@intrinsic
def fence_async(machine: Machine, line: int) -> None:
    for view in machine.shared.values():
        assert isinstance(view.storage, Tiles)
        view.storage.fence(machine, machine.mask.bits)


# --- barriers that count bytes ---


@intrinsic
def barrier_array(machine: Machine, line: int, count: Value) -> Barriers:
    known = machine.asynchronous.barriers
    return known.setdefault(machine.here(), Barriers(machine, one_number(machine, line, "barrier_array", count)))


@intrinsic
def barrier_init(machine: Machine, line: int, bars: Barriers, i: Value, arrivals: Value) -> None:
    for lane, number in bars.named(line, i, "made"):
        barrier, count = bars.at(int(machine.block_number[lane]), number), bulk.at(arrivals, lane)
        mbarriers.make(machine, line, lane, barrier, count)


@intrinsic
def publish_barriers(machine: Machine, line: int) -> None:
    warps = set((np.flatnonzero(machine.mask.bits) // WARP).tolist())
    for bars in machine.asynchronous.barriers.values():
        for barrier in bars:
            if barrier.made and barrier.made[0] in warps:
                barrier.published = True


@intrinsic
def barrier_expect(machine: Machine, line: int, bars: Barriers, i: Value, count: Value) -> None:
    blocks = machine.block_number
    mbarriers.all_arrive(machine, line, bars, i, lambda lane: int(blocks[lane]), lambda lane: bulk.at(count, lane))


@intrinsic
def barrier_arrive(machine: Machine, line: int, bars: Barriers, i: Value) -> None:
    blocks = machine.block_number
    mbarriers.all_arrive(machine, line, bars, i, lambda lane: int(blocks[lane]))


@intrinsic
def barrier_arrive_at(machine: Machine, line: int, bars: Barriers, i: Value, rank: Value) -> None:
    engine = machine.asynchronous

    def block(lane: int) -> int | None:
        own, number = int(machine.block_number[lane]), bulk.at(rank, lane)
        there = engine.cluster_of(own, 1 << min(number, 16) if number >= 0 else 0, line, lane)
        return there[0] if there else None

    mbarriers.all_arrive(machine, line, bars, i, block)


# --- the matrix unit ---


@intrinsic
def descriptor(machine: Machine, line: int, tiles: View, offset: Value, leading: Value, stride: Value) -> Value:
    start = values.mul(offset, tiles.dtype.itemsize)
    wgmma.require_fields(machine, line, tiles, address=start, leading=leading, stride=stride)
    return wgmma.encoded(start, leading, stride)


def _wgmma(form: wgmma.Form) -> None:
    def start(
        machine: Machine, line: int, acc: View, i: Value, tiles: View, a: Value, b: Value, N: int
    ) -> None:  # fmt: skip
        wgmma.start(machine, line, form, acc, i, tiles, a, b, N)

    intrinsic(start, form.name)


for _form in (wgmma.F16, wgmma.F16_ROWS, wgmma.TF32):
    _wgmma(_form)


def _wgmma_registers(form: wgmma.Form) -> None:
    def start(
        machine: Machine, line: int, acc: View, i: Value, frag: View, j: Value, tiles: View, b: Value, N: int
    ) -> None:  # fmt: skip
        wgmma.start(machine, line, form, acc, i, tiles, frag, b, N, j)

    intrinsic(start, form.name)


for _form in (wgmma.F16_REGISTERS, wgmma.F16_ROWS_REGISTERS, wgmma.TF32_REGISTERS):
    _wgmma_registers(_form)


@intrinsic
def wgmma_wait(machine: Machine, line: int, pending: Value) -> None:
    wgmma.wait(machine, line, one_number(machine, line, "wgmma_wait", pending))


# --- the copy engine ---


@intrinsic
def tma_load2(
    machine: Machine, line: int, tiles: View, i: Value, map: bulk.Map, bars: Barriers, b: Value, row: Value,
    column: Value,
) -> None:  # fmt: skip
    bulk.load(machine, line, tiles, i, map, bars, b, (row, column))


@intrinsic
def tma_load2_multicast(
    machine: Machine, line: int, tiles: View, i: Value, map: bulk.Map, bars: Barriers, b: Value, row: Value,
    column: Value, mask: Value,
) -> None:  # fmt: skip
    bulk.load(machine, line, tiles, i, map, bars, b, (row, column), mask)


@intrinsic
def tma_load_im2col(
    machine: Machine, line: int, tiles: View, i: Value, map: bulk.Map, bars: Barriers, b: Value, *place: Value
) -> None:
    bulk.load(machine, line, tiles, i, map, bars, b, place)


@intrinsic
def tma_load_im2col_multicast(
    machine: Machine, line: int, tiles: View, i: Value, map: bulk.Map, bars: Barriers, b: Value, *place: Value
) -> None:
    bulk.load(machine, line, tiles, i, map, bars, b, place[:-1], place[-1])


@intrinsic
def tma_wait_read(machine: Machine, line: int, pending: Value) -> None:
    bulk.wait(machine, line, one_number(machine, line, "tma_wait_read", pending))


@intrinsic
def tma_wait(machine: Machine, line: int, pending: Value) -> None:
    bulk.wait(machine, line, one_number(machine, line, "tma_wait", pending))


# --- clusters, registers ---


@intrinsic
def cluster_rank(machine: Machine, line: int) -> Value:
    if len(machine.peers[0]) == 1:
        return np.uint32(0)
    return machine.ranks[machine.block_number].astype(np.uint32)


@intrinsic
def cluster_sync(machine: Machine, line: int) -> None:
    machine.asynchronous.barrier(line, True)


def _registers(machine: Machine, line: int, name: str, count: Value, sign: int) -> None:
    number = one_number(machine, line, name, count)
    if number % 8 or not 24 <= number <= 256:
        raise machine.error(line, f"{name} takes a multiple of 8 from 24 to 256, and this is {number}")
    wgmma.warpgroups(machine, line, name)
    machine.asynchronous.set_registers(line, name, number, sign)


@intrinsic
def take_registers(machine: Machine, line: int, count: Value) -> None:
    _registers(machine, line, "take_registers", count, 1)


@intrinsic
def give_registers(machine: Machine, line: int, count: Value) -> None:
    _registers(machine, line, "give_registers", count, -1)


intrinsic(mbarriers.wait, "barrier_wait")
intrinsic(wgmma.fence, "wgmma_fence")
intrinsic(wgmma.commit, "wgmma_commit")
intrinsic(bulk.store, "tma_store2")
intrinsic(bulk.commit, "tma_commit")

# Which make a kernel an asynchronous one; those that wait for other threads of the block or the cluster.
NAMES = frozenset(INTRINSICS) - _BEFORE
WAITS = frozenset({"barrier_wait"})
READS.update(dict.fromkeys((name for name in NAMES if name.startswith("tma_load")), 2))
