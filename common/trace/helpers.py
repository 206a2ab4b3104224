"""The lessons' own helpers, as kernels call them: wide loads and stores, copies, matrix instructions of warps.

To add one: a function below with ``@intrinsic``, or a name in one of the families. Those of lessons/hopper.py are in
:mod:`common.trace.hopper.instructions`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from common.trace import copies, fragments, unwritten, values
from common.trace.cost import PAST_L1, WARP
from common.trace.intrinsics import READS, Code, intrinsic, make_range, one_number, shared_memory
from common.trace.shared import Shared
from common.trace.state import State
from common.trace.values import Cast, Value
from common.trace.views import View


@intrinsic
def unrolled(state: State, line: int, count: Value) -> Any:
    return make_range(count)


@intrinsic
def shared_array(state: State, line: int, size: int) -> View:
    return shared_memory(state, line, size, Cast(np.float32), alignment=16)


def _family(make: Callable[[int], Code], **widths: int) -> None:
    """An intrinsic for each name, of so many elements; its third argument is an array that it only reads."""
    for name, width in widths.items():
        intrinsic(make(width), name)
        READS[name] = 2


def _loading(width: int) -> Code:
    def load(state: State, line: int, registers: View, i: Value, array: View, offset: Value) -> None:
        source, wrong = array.place_flat(state, offset, width, line, "read")
        found = array.storage.read(state, array, source, width, wrong, line)
        target, bad = registers.place_flat(state, i, width, line, "written", aligned=False)
        registers.storage.write(state, registers, target, found, bad, line)

    return load


def _loading_inside(width: int) -> Code:
    def load(state: State, line: int, registers: View, i: Value, array: View, offset: Value, inside: Value) -> None:
        found = copies.read_or_zero(state, line, array, offset, width, inside)
        target, bad = registers.place_flat(state, i, width, line, "written", aligned=False)
        registers.storage.write(state, registers, target, found, bad, line)

    return load


def _storing(width: int) -> Code:
    def store(state: State, line: int, array: View, offset: Value, registers: View, i: Value) -> None:
        source, wrong = registers.place_flat(state, i, width, line, "read", aligned=False)
        found = registers.storage.read(state, registers, source, width, wrong, line)
        target, bad = array.place_flat(state, offset, width, line, "written")
        array.storage.write(state, array, target, found, bad, line)

    return store


def _copying(op: str) -> Callable[[int], Code]:
    def of(width: int) -> Code:
        def copy(
            state: State, line: int, shared: View, i: Value, array: View, offset: Value, inside: Value = True
        ) -> None:
            copies.start(state, line, shared, i, array, offset, width, inside, op)

        return copy

    return of


_family(_loading, load2=2, load4=4, load_pair=2)
_family(_loading_inside, load1_or_zero=1, load4_or_zero=4)
_family(_storing, store2=2, store4=4, store8=8, store2_rounded=2)
_family(_copying("copy"), copy1_async=1, copy1_or_zero=1, copy4_or_zero=4, fetch1_or_zero=1, fetch4_or_zero=4)
_family(_copying(PAST_L1), copy4_async=4, copy8_async=8, copy8_or_zero=8)


@intrinsic
def wait_async(state: State, line: int) -> None:
    copies.wait(state)


@intrinsic
def commit_group(state: State, line: int) -> None:
    copies.commit(state)


@intrinsic
def wait_group(state: State, line: int, pending: Value) -> None:
    copies.wait(state, one_number(state, line, "wait_group", pending))


# --- tensor cores ---


@intrinsic
def half_array(state: State, line: int, size: int) -> View:
    return shared_memory(state, line, size, Cast(np.float16), alignment=16)


@intrinsic
def to_tf32(state: State, line: int, value: Value) -> Value:
    return fragments.to_tf32(value)


def _require_warps(state: State, line: int, name: str) -> None:
    """A fault unless all lanes of each warp that comes here do."""
    rows = state.mask.bits.reshape(-1, WARP)
    apart = rows.any(axis=1) & ~rows.all(axis=1)
    if apart.any():
        text = f"{name} is for all {WARP} lanes of a warp together, and some do not come to it"
        state.fault("warp-sync", line, "", text, state.mask.bits & np.repeat(apart, WARP))


def _elements(state: State, line: int, view: View, i: Value, count: int, dtype: Any) -> list[Value]:
    """``view[i:i+count]``, a part of a fragment."""
    if view.dtype != dtype:
        raise state.error(line, f"{view.name} holds {view.dtype}, and a fragment of {np.dtype(dtype)} is needed")
    place, wrong = view.place_flat(state, i, count, line, "read", aligned=False)
    found: list[Value] = view.storage.read(state, view, place, count, wrong, line)
    return found


def _give(state: State, line: int, view: View, i: Value, elements: list[Value]) -> None:
    """``view[i:]`` becomes what the warp worked out together: what one lane did not set may reach all."""
    if elements[0].dtype != view.dtype:
        raise state.error(line, f"{view.name} holds {view.dtype}, and a fragment of {elements[0].dtype} is needed")
    unwritten.spread(state)
    place, wrong = view.place_flat(state, i, len(elements), line, "written", aligned=False)
    view.storage.write(state, view, place, elements, wrong, line)


def _mma(
    state: State, line: int, shape: fragments.Shape, acc: View, i: Value, a: list[Value], b: list[Value]
) -> None:
    sums = _elements(state, line, acc, i, 4, values.FLOAT32)
    found = fragments.multiplied(shape, sums, a, b, len(state.lane_numbers))
    if state.ledger.recording:
        state.ledger.fma[line] += state.mask.warps * shape.multiply_adds
    _give(state, line, acc, i, found)


@intrinsic
def mma_m16n8k16(
    state: State, line: int, acc: View, i: Value, a_frag: View, j: Value, b_frag: View, k: Value
) -> None:
    _require_warps(state, line, "mma_m16n8k16")
    a = _elements(state, line, a_frag, j, 8, np.float16)
    b = _elements(state, line, b_frag, k, 4, np.float16)
    _mma(state, line, fragments.K16, acc, i, a, b)


@intrinsic
def mma_m16n8k8(state: State, line: int, acc: View, i: Value, a_frag: View, j: Value, b_frag: View, k: Value) -> None:
    _require_warps(state, line, "mma_m16n8k8")
    a = _elements(state, line, a_frag, j, 4, values.FLOAT32)
    b = _elements(state, line, b_frag, k, 2, values.FLOAT32)
    a, b = ([fragments.cut_to_tf32(value) for value in part] for part in (a, b))
    _mma(state, line, fragments.K8, acc, i, a, b)


def _loading_matrices(name: str, transposed: bool) -> None:
    """``ldmatrix``, of a tile from an offset on, or, as ``..._at``, from an address on."""

    def load(state: State, line: int, frag: View, i: Value, tile: View, offset: Value) -> None:
        _require_warps(state, line, name)
        if not isinstance(tile.storage, Shared):
            raise state.error(line, f"{tile.name} is not in shared memory: {name} reads shared memory")
        if tile.dtype != np.float16 and (transposed or tile.dtype != np.float32):
            raise state.error(line, f"{tile.name} holds {tile.dtype}, which {name} does not read")
        width = 16 // tile.dtype.itemsize
        place, wrong = tile.place_flat(state, offset, width, line, "read")
        rows = tile.storage.read(state, tile, place, width, wrong, line, paired=False)
        _give(state, line, frag, i, fragments.dealt(rows, len(state.lane_numbers), transposed))

    def load_at(state: State, line: int, frag: View, i: Value, tile: View, address: Value) -> None:
        load(state, line, frag, i, tile, _offset(state, line, tile, address))

    for function, called in ((load, name), (load_at, f"{name}_at")):
        intrinsic(function, called)
        READS[called] = 2


_loading_matrices("ldmatrix4", transposed=False)
_loading_matrices("ldmatrix4_transposed", transposed=True)


@intrinsic
def positive(state: State, line: int, value: Value) -> Value:
    """Of lesson 08's epilogues: NaN stays NaN."""
    return values.choose(value < 0, np.float32(0.0), value)


@intrinsic
def to_half(state: State, line: int, value: Value) -> Value:
    return values.cast(value, np.dtype(np.float16))


@intrinsic
def shared_address(state: State, line: int, tile: View, offset: Value) -> Value:
    """Here bytes from the tile's beginning, which is no less a number that only the instructions know."""
    return values.cast(values.mul(offset, tile.dtype.itemsize), np.dtype(np.uint32))


def _offset(state: State, line: int, tile: View, address: Value) -> Value:
    found = np.asarray(address).astype(np.int64)
    if (found % 16).any():
        text = "ldmatrix reads rows of 16 bytes on 16-byte boundaries"
        state.fault("misaligned", line, tile.name, text, np.broadcast_to(found % 16 != 0, state.mask.bits.shape))
    return found // tile.dtype.itemsize
