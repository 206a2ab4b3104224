"""The toolkit's functions, as kernels call them: wide accesses, copies, matrix instructions of warps.

To add one: a function below with ``@intrinsic``, or a name in one of the families; those of Hopper are in
:mod:`common.trace.hopper`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.catalog import bfloat16
from common.trace import fragments, values, views
from common.trace.cost import LEFT_OVER, PAST_L1, WARP, Bools
from common.trace.intrinsics import Code, intrinsic, one_number
from common.trace.records import shared_memory
from common.trace.shared import Shared
from common.trace.state import State
from common.trace.values import FLOAT32, Cast, Value, choose, spread, truth, uniform
from common.trace.views import View

Array = NDArray[Any]


@dataclass
class Copy:
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


def read_or_zero(
    state: State, line: int, array: View, offset: Value, width: int, inside: Value, *action: str
) -> list[Value]:
    """``width`` elements from a flat offset on, as a load or a copy takes them; zeros where not ``inside``."""
    mask = state.mask
    state.mask = state.part(truth(inside)) if not uniform(inside) else mask if inside else state.none
    places: list[Value] = [array.dtype.type(0)] * width
    if state.mask is not state.none:
        source, bad = array.place_flat(state, offset, width, line, "read")
        places = array.storage.read(state, array, source, width, bad, line, *action)
        if state.mask is not mask:
            places = [choose(state.mask.bits, value, array.dtype.type(0)) for value in places]
    state.mask = mask
    return places


def start_copy(
    state: State, line: int, shared: View, i: Value, array: View, offset: Value, width: int, inside: Value, op: str
) -> None:
    """Begin a copy of ``width`` elements from global to shared memory; where not ``inside``, of zeros.

    ``op``: copy, or PAST_L1.
    """
    target, wrong = shared.place_flat(state, i, width, line, "written")
    if not isinstance(shared.storage, Shared):
        raise state.error(line, f"{shared.name} is not in shared memory: a copy goes from global to shared memory")
    places = read_or_zero(state, line, array, offset, width, inside, "copy", op)
    lanes, storage = state.among(wrong), shared.storage
    storage.record(state, shared, target, width, "copy", line, lanes)
    if storage.pending is None:
        storage.pending = np.zeros(len(storage.data), np.bool_)
    for v, value in enumerate(places):
        at = np.broadcast_to(np.asarray(storage.flat_offset(target + v)), lanes.shape)
        storage.pending[at[lanes]] = True
        storage.noted_write(state, shared, at, lanes, value, line)
        state.copies.append(Copy(shared, at, lanes, value, line, state.groups))


def await_copies(state: State, keep: int | None = None) -> None:
    """What the active lanes' copies bring is there now, but for the last ``keep`` groups and what is in none."""
    left: list[Copy] = []
    for copy in state.copies:
        lanes = copy.lanes & state.mask.bits
        if keep is not None:
            lanes = lanes & (copy.group < state.groups - keep)
        if not lanes.any():
            left.append(copy)
            continue
        storage = copy.storage
        assert storage.pending is not None
        assert storage.written is not None
        storage.pending[copy.place[lanes]] = False
        storage.data[copy.place[lanes]] = copy.value if np.ndim(copy.value) == 0 else copy.value[lanes]
        storage.written[copy.place[lanes]] = True
        storage.noted_write(state, copy.view, copy.place, lanes, copy.value, copy.line)
        if np.count_nonzero(lanes) < np.count_nonzero(copy.lanes):
            left.append(replace(copy, lanes=copy.lanes & ~lanes))
    state.copies = left
    if keep and left:  # the first is the oldest
        behind = np.broadcast_to(state.groups - left[0].group, left[0].lanes.shape)
        state.ledger.under_way = max(state.ledger.under_way, int(behind[left[0].lanes].max()))


def end_copies(state: State) -> None:
    """A fault for each copy that is under way when the threads end."""
    for copy in state.copies:
        text = f"a copy to {copy.view.name} is still under way when the thread ends: {LEFT_OVER}"
        state.fault("copy-not-awaited", copy.line, copy.view.name, text, copy.lanes)


intrinsic(lambda state, line, count: values.make_range(count), "unrolled")


def _shared_array(name: str, dtype: Any) -> None:
    intrinsic(lambda state, line, size: shared_memory(state, line, size, Cast(dtype), alignment=16), name)


_shared_array("shared_array", np.float32)
_shared_array("half_array", np.float16)
_shared_array("byte_array", np.int8)


def _family(make: Callable[[int], Code], **widths: int) -> None:
    """An intrinsic for each name, of so many elements; its third argument is an array that it only reads."""
    for name, width in widths.items():
        intrinsic(make(width), name)


def _loading(width: int) -> Code:
    def load(
        state: State, line: int, registers: View, i: Value, array: View, offset: Value, inside: Value = True
    ) -> None:
        found = read_or_zero(state, line, array, offset, width, inside)
        target, bad = registers.place_flat(state, i, width, line, "written", aligned=False)
        registers.storage.write(state, registers, target, found, bad, line)

    return load


def _storing(width: int, coded: bool = False) -> Code:
    """``coded``: the registers' numbers are rounded to codes of bfloat16."""

    def store(state: State, line: int, array: View, offset: Value, registers: View, i: Value) -> None:
        source, wrong = registers.place_flat(state, i, width, line, "read", aligned=False)
        found = registers.storage.read(state, registers, source, width, wrong, line)
        if coded:
            found = [bfloat16.encoded(np.asarray(value, FLOAT32)) for value in found]
            if array.dtype == FLOAT32:  # a word for both
                low, high = (one.astype(np.uint32) for one in found)
                found = [(low | high << np.uint32(16)).view(FLOAT32)]
            elif array.dtype != bfloat16.CODES:
                raise state.error(line, f"{array.name} holds {array.dtype}, and codes of bfloat16 are uint16")
            found = [one[()] for one in found]
        target, bad = array.place_flat(state, offset, len(found), line, "written")
        array.storage.write(state, array, target, found, bad, line)

    return store


def _copying(op: str) -> Callable[[int], Code]:
    def of(width: int) -> Code:
        def copy(
            state: State, line: int, shared: View, i: Value, array: View, offset: Value, inside: Value = True
        ) -> None:
            start_copy(state, line, shared, i, array, offset, width, inside, op)

        return copy

    return of


_family(_loading, load2=2, load4=4, load2_halves=2, load8=8, load1_or_zero=1, load4_or_zero=4)
_family(_storing, store2=2, store4=4, store8=8, store2_rounded=2)
_family(lambda width: _storing(width, coded=True), store2_bfloat=2)
_family(_copying("copy"), copy1_async=1, copy1_or_zero=1, copy4_or_zero=4, fetch1_or_zero=1, fetch4_or_zero=4)
_family(_copying(PAST_L1), copy4_async=4, copy8_async=8, copy8_or_zero=8, copy16_async=16, copy16_or_zero=16)


intrinsic(lambda state, line: await_copies(state), "wait_async")


@intrinsic
def commit_group(state: State, line: int) -> None:
    """The copies that the active lanes started since they did this last are a group from now on."""
    whole = state.mask is state.waiting and not state.has_engines
    state.groups = state.groups + 1 if whole else state.groups + state.mask.bits


@intrinsic
def wait_group(state: State, line: int, pending: Value) -> None:
    await_copies(state, one_number(state, line, "wait_group", pending))


# --- tensor cores ---


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


def _decoded(state: State, line: int, view: View, i: Value, count: int) -> list[Value]:
    """The numbers of ``count`` codes of bfloat16 from ``view[i]`` on; int8 hold half of one each."""
    if view.dtype != np.int8:
        found = _elements(state, line, view, i, count, bfloat16.CODES)
    else:
        halves = [np.asarray(one).view(np.uint8) for one in _elements(state, line, view, i, 2 * count, np.int8)]
        found = [
            low + high.astype(np.uint16) * np.uint16(256) for low, high in zip(halves[::2], halves[1::2], strict=True)
        ]
    return [bfloat16.values(one)[()] for one in found]


def _give(state: State, line: int, view: View, i: Value, elements: list[Value]) -> None:
    """``view[i:]`` becomes what the warp worked out together: what one lane did not set may reach all."""
    if elements[0].dtype != view.dtype:
        raise state.error(line, f"{view.name} holds {view.dtype}, and a fragment of {elements[0].dtype} is needed")
    views.spread_taint(state)
    place, wrong = view.place_flat(state, i, len(elements), line, "written", aligned=False)
    view.storage.write(state, view, place, elements, wrong, line)


def _multiplying(name: str, shape: fragments.Shape, kind: Any) -> None:
    """``mma`` of one shape; of float32, the operands' low bits are left out."""

    def multiply(
        state: State, line: int, acc: View, i: Value, a_frag: View, j: Value, b_frag: View, k: Value
    ) -> None:
        _require_warps(state, line, name)
        read = _decoded if kind == bfloat16.CODES else partial(_elements, dtype=kind)
        a, b = read(state, line, a_frag, j, shape.a[0].shape[1]), read(state, line, b_frag, k, shape.b[0].shape[1])
        if kind == np.float32:
            a, b = ([fragments.cut_to_tf32(value) for value in part] for part in (a, b))
        sums = _elements(state, line, acc, i, 4, shape.sums)
        found = fragments.multiplied(shape, sums, a, b, len(state.lane_numbers))
        if state.ledger.recording:
            state.ledger.fma[line] += state.mask.warps * shape.multiply_adds
        _give(state, line, acc, i, found)

    intrinsic(multiply, name)


_multiplying("mma_m16n8k16", fragments.K16, np.float16)
_multiplying("mma_m16n8k8", fragments.K8, np.float32)
_multiplying("mma_m16n8k32_s8", fragments.K32, np.int8)
_multiplying("mma_m16n8k16_bf16", fragments.K16, bfloat16.CODES)


@intrinsic
def mma_sp_m16n8k32(
    state: State, line: int, acc: View, i: Value, a_frag: View, j: Value, b_frag: View, k: Value, places: View,
    p: Value, half: Value,
) -> None:  # fmt: skip
    name, lanes = "mma_sp_m16n8k32", len(state.lane_numbers)
    _require_warps(state, line, name)
    which = one_number(state, line, name, half)
    if which not in (0, 1):
        raise state.error(line, f"{name}: half={which}: must be 0 or 1")
    a, b = _elements(state, line, a_frag, j, 8, np.float16), _elements(state, line, b_frag, k, 8, np.float16)
    (words,) = _elements(state, line, places, p, 1, np.uint32)
    sums = _elements(state, line, acc, i, 4, FLOAT32)
    left = fragments.unpacked(fragments.whole(a, fragments.SPARSE.a, (16, 16), lanes), spread(words, (lanes,)), which)
    found = fragments.added(fragments.SPARSE, sums, left, b, lanes)
    if state.ledger.recording:
        state.ledger.fma[line] += state.mask.warps * fragments.SPARSE.multiply_adds
    _give(state, line, acc, i, found)


def _loading_matrices(name: str, transposed: bool) -> None:
    """``ldmatrix``, of a tile from an offset on, or, as ``..._at``, from an address on."""

    def load(state: State, line: int, frag: View, i: Value, tile: View, offset: Value) -> None:
        _require_warps(state, line, name)
        if not isinstance(tile.storage, Shared):
            raise state.error(line, f"{tile.name} is not in shared memory: {name} reads shared memory")
        if tile.dtype != np.float16 and (transposed or tile.dtype not in (np.float32, np.int8)):
            raise state.error(line, f"{tile.name} holds {tile.dtype}, which {name} does not read")
        width = 16 // tile.dtype.itemsize
        place, wrong = tile.place_flat(state, offset, width, line, "read")
        rows = tile.storage.read(state, tile, place, width, wrong, line, cost_as="write")  # no lanes share a pass
        _give(state, line, frag, i, fragments.dealt(rows, len(state.lane_numbers), transposed))

    def load_at(state: State, line: int, frag: View, i: Value, tile: View, address: Value) -> None:
        found = np.asarray(address).astype(np.int64)
        if (found % 16).any():
            text = "ldmatrix reads rows of 16 bytes on 16-byte boundaries"
            state.fault("misaligned", line, tile.name, text, np.broadcast_to(found % 16 != 0, state.mask.bits.shape))
        load(state, line, frag, i, tile, found // tile.dtype.itemsize)

    for function, called in ((load, name), (load_at, f"{name}_at")):
        intrinsic(function, called)


_loading_matrices("ldmatrix4", transposed=False)
_loading_matrices("ldmatrix4_transposed", transposed=True)


def _storing_matrices(name: str, transposed: bool) -> None:
    def store(state: State, line: int, tile: View, offset: Value, frag: View, i: Value) -> None:
        _require_warps(state, line, name)
        if not isinstance(tile.storage, Shared) or tile.dtype != np.float16:
            raise state.error(line, f"{tile.name} is no float16 in shared memory, where {name} stores")
        rows = fragments.gathered(_elements(state, line, frag, i, 8, np.float16), len(state.lane_numbers), transposed)
        views.spread_taint(state)
        place, wrong = tile.place_flat(state, offset, 8, line, "written")
        tile.storage.write(state, tile, place, rows, wrong, line)

    intrinsic(store, name)


_storing_matrices("stmatrix4", transposed=False)
_storing_matrices("stmatrix4_transposed", transposed=True)


intrinsic(lambda state, line, value: fragments.nearest_tf32(value), "to_tf32")
intrinsic(lambda state, line, value: values.cast(value, np.dtype(np.float16)), "to_half")
intrinsic(lambda state, line, value: choose(value < 0, np.float32(0.0), value), "positive")  # NaN stays NaN


@intrinsic
def to_int8(state: State, line: int, value: Value) -> Value:
    whole = np.rint(np.nan_to_num(np.asarray(value, FLOAT32), nan=0.0))
    return np.clip(whole, -128, 127).astype(np.int8)[()]


@intrinsic
def shared_address(state: State, line: int, tile: View, offset: Value) -> Value:
    """Here bytes from the tile's beginning, which is no less a number that only the instructions know."""
    return values.cast(values.mul(offset, tile.dtype.itemsize), np.dtype(np.uint32))
