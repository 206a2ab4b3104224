"""What the lanes of a warp hold of matrices that tensor cores multiply, and the products; arrays alone, no kernel.

One value per lane lies where the PTX ISA says ("Matrix Fragments for mma.m16n8k16" and "mma.m16n8k8", "ldmatrix"),
with ``g = lane // 4`` and ``t = lane % 4``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.trace.cost import WARP, Ints
from common.trace.values import FLOAT32, Value, spread

Array = NDArray[Any]
Places = tuple[Ints, Ints]  # rows and columns, of shape (lanes, elements)

MATRICES = 4  # of 8 x 8 halves or 8 x 4 float32, that one ldmatrix reads

_LANES = np.arange(WARP)[:, None]
_G, _T = _LANES // 4, _LANES % 4


def _places(count: int, row: Any, column: Any) -> Places:
    """Of ``count`` elements per lane, from functions of an element's number."""
    elements = np.arange(count)[None]
    rows, columns = np.broadcast_arrays(row(elements), column(elements))
    return rows, columns


class Shape(NamedTuple):
    """A multiplication of 16 x ``depth`` by ``depth`` x 8: which elements of A and B each lane holds, and of which
    type the sums are."""

    depth: int
    a: Places
    b: Places
    sums: Any = FLOAT32

    @property
    def multiply_adds(self) -> int:
        """Of a whole warp."""
        return 16 * 8 * self.depth


SUMS = _places(4, lambda e: _G + 8 * (e // 2), lambda e: 2 * _T + e % 2)
K16 = Shape(
    16,
    _places(8, lambda e: _G + 8 * (e // 2 % 2), lambda e: 2 * _T + e % 2 + 8 * (e // 4)),
    _places(4, lambda e: 2 * _T + e % 2 + 8 * (e // 2), lambda e: _G + 0 * e),
)
K8 = Shape(
    8,
    _places(4, lambda e: _G + 8 * (e % 2), lambda e: _T + 4 * (e // 2)),
    _places(2, lambda e: _T + 4 * e, lambda e: _G + 0 * e),
)

K32 = Shape(
    32,
    _places(16, lambda e: _G + 8 * (e // 4 % 2), lambda e: 4 * _T + e % 4 + 16 * (e // 8)),
    _places(8, lambda e: 4 * _T + e % 4 + 16 * (e // 4), lambda e: _G + 0 * e),
    np.dtype(np.int32),
)
SPARSE = Shape(32, K16.a, _places(8, lambda e: 2 * _T + e % 2 + 8 * (e // 2), lambda e: _G + 0 * e))


def multiplied(shape: Shape, sums: list[Value], a: list[Value], b: list[Value], lanes: int) -> list[Value]:
    """The sums plus A times B, as the lanes hold them."""
    return added(shape, sums, whole(a, shape.a, (16, shape.depth), lanes), b, lanes)


def added(shape: Shape, sums: list[Value], left: Array, b: list[Value], lanes: int) -> list[Value]:
    """The sums plus ``left``, a matrix for each warp, times B.

    Products are exact in float64, and a sum is rounded once; the hardware rounds in an order of its own. Sums of
    integers wrap around.
    """
    right, result = whole(b, shape.b, (shape.depth, 8), lanes), whole(sums, SUMS, (16, 8), lanes)
    rows, columns = SUMS
    found = summed(result + left @ right, shape.sums)[:, rows, columns]
    return list(found.reshape(lanes, -1).T.copy())


def unpacked(kept: Array, words: Array, half: int) -> Array:
    """A, 16 x 32 for each warp, of the 16 x 16 values that are ``kept`` of it, and of the places that two members of
    each group of lanes say these have in their ``words``; NaN where they are not in order."""
    kept = kept.reshape(-1, 16, 8, 2).copy()
    words = words.astype(np.int64).reshape(-1, 8, 4)[:, :, 2 * half : 2 * half + 2]
    below, four, which = np.ogrid[:2, :4, :2]
    found = words[:, :, :, None, None, None] >> (16 * below + 4 * four + 2 * which) & 3  # warp, group, side, ...
    column = found.transpose(0, 3, 1, 2, 4, 5).reshape(-1, 16, 8, 2)
    kept[column[..., 0] >= column[..., 1]] = np.nan
    whole = np.zeros((*column.shape[:3], 4))
    np.put_along_axis(whole, column, kept, axis=3)
    return whole.reshape(-1, 16, 32)


def summed(sums: Array, dtype: Any) -> Array:
    """Exact sums as registers of this type hold them: rounded, or wrapped around."""
    return sums.astype(dtype) if dtype == FLOAT32 else sums.astype(np.int64).astype(dtype)


def whole(elements: list[Value], places: Places, extents: tuple[int, int], lanes: int) -> Array:
    """The matrices, one per warp, that lanes hold elements of."""
    found = np.empty((lanes // WARP, *extents))
    held = np.array([spread(element, (lanes,)) for element in elements]).T
    rows, columns = places
    found[:, rows, columns] = held.reshape(-1, WARP, len(elements))
    return found


def dealt(rows: list[Value], lanes: int, transposed: bool = False) -> list[Value]:
    """What each lane gets of four matrices whose rows of 16 bytes lanes hold: lane l row l % 8 of matrix l // 8."""
    held = np.array([spread(element, (lanes,)) for element in rows]).T
    matrices = held.reshape(-1, MATRICES, 8, len(rows))
    g, t = _G[:, 0], _T[:, 0]
    found = []
    for matrix in range(MATRICES):
        for pair in range(len(rows) // 4):
            row, column = g, len(rows) // 4 * t + pair
            if transposed:
                row, column = column, row
            found.append(matrices[:, matrix, row, column].reshape(lanes))
    return found


def gathered(elements: list[Value], lanes: int, transposed: bool = False) -> list[Value]:
    """The other way: each lane's row, or column, of four matrices that lanes hold as :func:`dealt` deals them."""
    held = np.array([spread(element, (lanes,)) for element in elements])
    pairs = held.reshape(MATRICES, len(elements) // MATRICES, -1, 8, 4)  # matrix, of a pair, warp, g, t
    matrices = pairs.transpose(2, 0, 3, 4, 1).reshape(-1, MATRICES, 8, 8)
    rows = matrices.swapaxes(2, 3) if transposed else matrices
    return list(rows.reshape(lanes, 8).T.copy())


def nearest_tf32(value: Value) -> Value:
    """float32 rounded to TF32: to the nearest, ties away from zero."""
    bits = np.asarray(value, FLOAT32).view(np.uint32)
    finite = bits & np.uint32(0x7F800000) != 0x7F800000
    bits = np.where(finite, bits + np.uint32(0x1000), bits) & np.uint32(0xFFFFE000)
    return bits.astype(np.uint32).view(FLOAT32)[()]


def cut_to_tf32(value: Value) -> Value:
    """What a tensor core takes of float32: the low 13 bits are left out."""
    return (np.asarray(value, FLOAT32).view(np.uint32) & np.uint32(0xFFFFE000)).view(FLOAT32)[()]
