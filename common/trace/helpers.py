"""The toolkit's functions, as kernels call them: wide accesses, copies, matrix instructions of warps.

Of matrices that tensor cores multiply, each lane holds elements where the PTX ISA says ("Matrix Fragments for
mma.m16n8k16" and "mma.m16n8k8", "ldmatrix"), with ``g = lane // 4`` and ``t = lane % 4``.
"""

import re
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.catalog import codes
from common.trace import values, views
from common.trace.cost import PAST_L1, ROWS, WARP, Ints, count_nonzero
from common.trace.intrinsics import Code, intrinsic, one_number
from common.trace.races import Access
from common.trace.shared import shared_memory
from common.trace.state import State
from common.trace.values import FLOAT32, Cast, Value, choose, spread, truth, uniform
from common.trace.views import View

Array = NDArray[Any]
Places = tuple[Ints, Ints]  # rows and columns, of shape (lanes, elements)

# --- wide loads and stores ---


def read_or_zero(
    state: State, line: int, array: View, offset: Value, width: int, inside: Value, op: str = "read"
) -> list[Value]:
    """``width`` elements from a flat offset on, as a load or a copy takes them; zeros where not ``inside``."""
    mask, zero = state.mask, array.dtype.type(0)
    state.mask = state.part(truth(inside)) if not uniform(inside) else mask if inside else state.none
    found = [zero] * width if state.mask is state.none else array.read_flat(state, line, offset, width, op=op)
    if state.mask is not mask:
        found = [choose(state.mask.bits, value, zero) for value in found]
    state.mask = mask
    return found


def load(
    state: State, line: int, registers: View, i: Value, array: View, offset: Value, inside: Value = True, *,
    width: int,
) -> None:  # fmt: skip
    registers.write_flat(state, line, i, read_or_zero(state, line, array, offset, width, inside), aligned=False)


def store(
    state: State, line: int, array: View, offset: Value, registers: View, i: Value, *, width: int, coded: bool = False
) -> None:
    """``coded``: the registers' numbers are rounded to codes of bfloat16."""
    found = registers.read_flat(state, line, i, width, aligned=False)
    if coded:
        array.require(state, line, "a store of codes of bfloat16", "", FLOAT32, codes.BFLOAT16)
        found = [codes.held(np.asarray(value, FLOAT32), codes.BFLOAT16)[()] for value in found]
        if array.dtype == FLOAT32:  # a word for both
            low, high = (np.asarray(one, np.uint32) for one in found)
            found = [(low | high << np.uint32(16)).view(FLOAT32)[()]]
    array.write_flat(state, line, offset, found)


def _register(function: Code, *named: str, **options: Any) -> None:
    """Functions whose names say how many elements they take."""
    for name in named:
        intrinsic(partial(function, width=int(re.sub(r"\D", "", name)), **options), name)


_register(load, "load2", "load4", "load2_halves", "load8", "load1_or_zero", "load4_or_zero")
_register(store, "store2", "store4", "store8", "store2_rounded")
_register(store, "store2_bfloat", coded=True)
for _name, _dtype in {"shared_array": np.float32, "half_array": np.float16, "byte_array": np.int8}.items():
    intrinsic(partial(shared_memory, dtype=Cast(_dtype), alignment=16), _name)
intrinsic(lambda state, line, count: values.make_range(count), "unrolled")

# --- copies ---


def copy(
    state: State, line: int, shared: View, i: Value, array: View, offset: Value, inside: Value = True, *,
    width: int, op: str = "copy",
) -> None:  # fmt: skip
    """Begin a copy of ``width`` elements from global to shared memory; where not ``inside``, of zeros."""
    target, wrong = shared.place_flat(state, i, width, line, "written")
    shared.require(state, line, "a copy from global memory", "shared")
    found = read_or_zero(state, line, array, offset, width, inside, op)
    lanes, storage = state.among(wrong), shared.storage
    storage.record(state, shared, target, width, "copy", line, lanes)
    if storage.pending is None:
        storage.pending = np.zeros(len(storage.data), np.bool_)
    storage.loose = None
    for v, value in enumerate(found):
        at = spread(storage.flat_offset(target + v), lanes.shape)
        storage.pending[at[lanes]] = True
        access = Access("write", state, shared, at, lanes, line, state.stamps, value)
        storage.keep(access)
        state.copies.append((access, state.groups))


_register(copy, "copy1_async", "copy1_or_zero", "copy4_or_zero", "fetch1_or_zero", "fetch4_or_zero")
_register(copy, "copy4_async", "copy8_async", "copy8_or_zero", "copy16_async", "copy16_or_zero", op=PAST_L1)


@intrinsic
def wait_async(state: State, line: int, pending: Value | None = None) -> None:
    """What the active lanes' copies bring is there now, but for the last ``pending`` groups and what is in none."""
    keep = None if pending is None else one_number(state, line, "wait_group", pending)
    copies, state.copies = state.copies, []
    for access, group in copies:
        lanes, storage = access.lanes & state.mask.bits, access.view.storage
        lanes = lanes if keep is None else lanes & (group < state.groups - keep)
        if count_nonzero(lanes):
            places, storage.loose = access.at[lanes], None
            storage.pending[places] = False
            storage.data[places] = spread(access.value, lanes.shape)[lanes]
            storage.written[places] = True
            storage.keep(access._replace(lanes=lanes, stamps=state.stamps))
            access = access._replace(lanes=access.lanes & ~lanes)
        if count_nonzero(access.lanes):
            state.copies.append((access, group))
    for oldest, group in state.copies[:1] if keep else ():
        behind = np.broadcast_to(state.groups - group, oldest.lanes.shape)
        state.ledger.under_way = max(state.ledger.under_way, int(behind[oldest.lanes].max()))


@intrinsic
def commit_group(state: State, line: int) -> None:
    """The copies that the active lanes started since they did this last are a group from now on."""
    whole = state.mask is state.waiting and not state.has_engines
    state.groups = state.groups + 1 if whole else state.groups + state.mask.bits


intrinsic(wait_async, "wait_group")


# --- what the lanes of a warp hold of matrices ---

_G, _T = np.divmod(np.arange(WARP)[:, None], 4)
_OPERANDS = 32  # of matrix instructions that are kept
_MATRICES = 4  # of 8 x 8 halves or 8 x 4 float32, that one ldmatrix reads


class Shape(NamedTuple):
    """A multiplication of 16 x ``depth`` by ``depth`` x 8: which elements each lane holds, and the sums' type."""

    depth: int
    a: Places
    b: Places
    sums: Any = FLOAT32


def _held(depth: int, side: int, sums: Any = FLOAT32, sparse: bool = False) -> Shape:
    """``side``: elements side by side in one register. Of a ``sparse`` A, a lane holds the half that is kept."""
    e, f = np.arange(depth // 4 if sparse else depth // 2), np.arange(depth // 4)
    a_rows, a_columns = _G + 8 * (e // side % 2), side * _T + e % side + 4 * side * (e // (2 * side))
    b_rows = side * _T + f % side + 4 * side * (f // side)
    return Shape(depth, (a_rows, a_columns), (b_rows, _G + 0 * f), sums)


_E = np.arange(4)
SUMS = _G + 8 * (_E // 2), 2 * _T + _E % 2
K8, K16, K32 = _held(8, 1), _held(16, 2), _held(32, 4, np.dtype(np.int32))
SPARSE = _held(32, 2, sparse=True)


def by_lane(state: State, elements: list[Value]) -> Array:
    """What each lane holds: (lane, element)."""
    return np.array([spread(element, (len(state.lane_numbers),)) for element in elements]).T.copy()


def whole(held: Array, places: Places, extents: tuple[int, int]) -> Array:
    """The matrices, one per warp, of which each lane holds elements."""
    found, (rows, columns) = np.empty((len(held) // WARP, *extents)), places
    found[:, rows, columns] = held.reshape(-1, WARP, held.shape[1])
    return found


def unpacked(kept: Array, words: Array, half: int) -> Array:
    """A, 16 x 32 for each warp, of the 16 x 16 values ``kept`` of it, at the places that two lanes of each group have
    in their ``words``; NaN where these are not in order."""
    kept = kept.reshape(-1, 16, 8, 2).copy()
    words = words.astype(np.int64).reshape(-1, 8, 4)[:, :, 2 * half : 2 * half + 2]
    below, four, which = np.ogrid[:2, :4, :2]
    found = words[:, :, :, None, None, None] >> (16 * below + 4 * four + 2 * which) & 3  # warp, group, side, ...
    column = found.transpose(0, 3, 1, 2, 4, 5).reshape(-1, 16, 8, 2)
    kept[column[..., 0] >= column[..., 1]] = np.nan
    matrices = np.zeros((*column.shape[:3], 4))
    np.put_along_axis(matrices, column, kept, axis=3)
    return matrices.reshape(-1, 16, 32)


def summed(sums: Array, dtype: Any) -> Array:
    return sums.astype(dtype) if dtype == FLOAT32 else sums.astype(np.int64).astype(dtype)


def cut_to_tf32(value: Value) -> Value:
    """What a tensor core takes of float32: the low 13 bits are left out."""
    return (np.asarray(value, FLOAT32).view(np.uint32) & np.uint32(0xFFFFE000)).view(FLOAT32)[()]


# --- matrix instructions ---


def _require_warps(state: State, line: int, name: str) -> None:
    if state.mask.count == WARP * state.mask.warps:
        return
    rows = state.mask.bits.reshape(-1, WARP)
    apart = np.repeat(rows.any(axis=1) & ~rows.all(axis=1), WARP)
    text = f"{name} is for all {WARP} lanes of a warp together, and some do not come to it"
    state.fault("warp-sync", line, "", text, apart)


def _fragment(
    state: State, line: int, view: View, i: Value, count: int, kind: Any, places: Places | None = None,
    extents: tuple[int, int] = (0, 0),
) -> Array:  # fmt: skip
    """``view[i:i+count]`` by lane, as numbers; of codes of bfloat16, int8 hold half of one each. With ``places``, the
    matrices that they are: made once of registers that are multiplied several times."""
    coded = kind == codes.BFLOAT16
    if coded and view.dtype == np.int8:
        kind, count = np.int8, 2 * count
    view.require(state, line, "a matrix instruction", "", kind)
    elements = view.read_flat(state, line, i, count, aligned=False)
    key = id(places), *map(id, elements)
    kept: tuple[Any, Array] | None = state.operands.get(key)
    if kept is not None:
        return kept[1]
    held = by_lane(state, elements)
    found = codes.values(held.view(codes.BFLOAT16)) if coded else held
    if places is not None:
        found = whole(cut_to_tf32(found) if kind == np.float32 else found, places, extents)
        if len(state.operands) >= _OPERANDS:
            state.operands.clear()
        state.operands[key] = elements, found  # while these are kept, no others have their ids
    return found


def _give(state: State, line: int, view: View, i: Value, held: Array) -> None:
    """``view[i:]`` becomes what the warp worked out together: what one lane did not set may reach all."""
    view.require(state, line, "a matrix instruction", "", held.dtype)
    views.spread_taint(state)
    view.write_flat(state, line, i, list(held.T.copy()), aligned=False)


def mma(
    state: State, line: int, acc: View, i: Value, a_frag: View, j: Value, b_frag: View, k: Value,
    places: View | None = None, p: Value = 0, half: Value = 0, *, name: str, shape: Shape, kind: Any,
) -> None:  # fmt: skip
    """Add A times B to the sums from ``acc[i]`` on: products are exact in float64, and a sum is rounded once; the
    hardware rounds in an order of its own. ``places[p]`` says where the kept values of a sparse A belong."""
    _require_warps(state, line, name)
    kept = 16 if places is not None else shape.depth
    left = _fragment(state, line, a_frag, j, shape.a[0].shape[1], kind, shape.a, (16, kept))
    right = _fragment(state, line, b_frag, k, shape.b[0].shape[1], kind, shape.b, (shape.depth, 8))
    if places is not None:
        words = _fragment(state, line, places, p, 1, np.uint32)
        left = unpacked(left, words, one_number(state, line, name, half))
    sums, (rows, columns) = whole(_fragment(state, line, acc, i, 4, shape.sums), SUMS, (16, 8)), SUMS
    if state.ledger.recording:
        state.ledger.fma[line] += state.mask.warps * 16 * 8 * shape.depth
    found = summed(sums + left @ right, shape.sums)[:, rows, columns]
    _give(state, line, acc, i, found.reshape(len(state.lane_numbers), -1))


for _name, _shape, _kind in (
    ("mma_m16n8k16", K16, np.float16), ("mma_m16n8k8", K8, np.float32), ("mma_m16n8k32_s8", K32, np.int8),
    ("mma_m16n8k16_bf16", K16, codes.BFLOAT16), ("mma_sp_m16n8k32", SPARSE, np.float16),
):  # fmt: skip
    intrinsic(partial(mma, name=_name, shape=_shape, kind=_kind), _name)


def ldmatrix(
    state: State, line: int, frag: View, i: Value, tile: View, offset: Value, *, name: str, transposed: bool,
    at: bool = False,
) -> None:  # fmt: skip
    """Of a tile from an offset on, or, ``at``, from an address on."""
    if at:
        offset = np.asarray(offset).astype(np.int64)
        wrong = np.broadcast_to(offset % 16 != 0, state.mask.bits.shape)
        state.fault("misaligned", line, tile.name, "ldmatrix reads rows of 16 bytes on 16-byte boundaries", wrong)
        offset = offset // tile.dtype.itemsize
    _require_warps(state, line, name)
    others = () if transposed else (np.float32, np.int8, np.int32)
    tile.require(state, line, name, "shared", np.float16, *others)
    held = by_lane(state, tile.read_flat(state, line, offset, 16 // tile.dtype.itemsize, op=ROWS))
    # a lane holds 16 bytes, row lane % 8 of matrix lane // 8, and gets an element, or several, of each matrix
    matrices = held.reshape(-1, _MATRICES, 8, held.shape[1])
    matrices = matrices.swapaxes(2, 3) if transposed else matrices
    parts = matrices.reshape(-1, _MATRICES, 8, 4, held.shape[1] // 4)  # warp, matrix, g, t, of a pair
    _give(state, line, frag, i, parts.transpose(0, 2, 3, 1, 4).reshape(len(held), -1))


def stmatrix(
    state: State, line: int, tile: View, offset: Value, frag: View, i: Value, *, name: str, transposed: bool
) -> None:
    _require_warps(state, line, name)
    tile.require(state, line, name, "shared", np.float16)
    parts = _fragment(state, line, frag, i, 8, np.float16).reshape(-1, 8, 4, _MATRICES, 2)
    matrices = parts.transpose(0, 3, 1, 2, 4).reshape(-1, _MATRICES, 8, 8)
    matrices = matrices.swapaxes(2, 3) if transposed else matrices
    views.spread_taint(state)
    tile.write_flat(state, line, offset, list(matrices.reshape(-1, 8).T.copy()))


for _ending in "", "_transposed":
    _loads = partial(ldmatrix, name=f"ldmatrix4{_ending}", transposed=bool(_ending))
    intrinsic(_loads, f"ldmatrix4{_ending}")
    intrinsic(partial(_loads, at=True), f"ldmatrix4{_ending}_at")
    _stores = partial(stmatrix, name=f"stmatrix4{_ending}", transposed=bool(_ending))
    intrinsic(_stores, f"stmatrix4{_ending}")


@intrinsic
def to_tf32(state: State, line: int, value: Value) -> Value:
    """float32 rounded to TF32: to the nearest, ties away from zero."""
    bits = np.asarray(value, FLOAT32).view(np.uint32)
    return cut_to_tf32(np.where(np.isfinite(value), bits + np.uint32(0x1000), bits).view(FLOAT32))


@intrinsic
def to_int8(state: State, line: int, value: Value) -> Value:
    return np.clip(np.rint(np.nan_to_num(np.asarray(value, FLOAT32), nan=0.0)), -128, 127).astype(np.int8)[()]


@intrinsic
def shared_address(state: State, line: int, tile: View, offset: Value) -> Value:
    """Here bytes from the tile's beginning, which is no less a number that only the instructions know."""
    return values.cast(values.mul(offset, tile.dtype.itemsize), np.dtype(np.uint32))


intrinsic(lambda state, line, value: values.cast(value, np.dtype(np.float16)), "to_half")
intrinsic(lambda state, line, value: choose(value < 0, np.float32(0.0), value), "positive")  # NaN stays NaN
