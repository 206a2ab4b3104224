"""What lanes of a warp hold of the matrices that tensor cores multiply, and what the warp makes of it together.

Elements are arrays with one value per lane; a warp's lanes are neighbours. Places are those of the PTX ISA, "Matrix
Fragments for mma.m16n8k16" and "mma.m16n8k8", and "ldmatrix", with ``g = lane // 4`` and ``t = lane % 4``.
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
    """A multiplication of 16 x ``depth`` by ``depth`` x 8: which elements of A and B each lane holds."""

    depth: int
    a: Places
    b: Places

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


def multiplied(shape: Shape, sums: list[Value], a: list[Value], b: list[Value], lanes: int) -> list[Value]:
    """The sums plus A times B, as the lanes hold them.

    Products are exact in float64, and a sum is rounded once; the hardware rounds in an order of its own.
    """
    left, right, result = (
        _whole(elements, places, extents, lanes)
        for elements, places, extents in (
            (a, shape.a, (16, shape.depth)), (b, shape.b, (shape.depth, 8)), (sums, SUMS, (16, 8)),
        )
    )  # fmt: skip
    rows, columns = SUMS
    found = (result + left @ right).astype(FLOAT32)[:, rows, columns]
    return list(found.reshape(lanes, -1).T.copy())


def _whole(elements: list[Value], places: Places, extents: tuple[int, int], lanes: int) -> Array:
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


def to_tf32(value: Value) -> Value:
    """float32 rounded to TF32: to the nearest, ties away from zero."""
    bits = np.asarray(value, FLOAT32).view(np.uint32)
    finite = bits & np.uint32(0x7F800000) != 0x7F800000
    bits = np.where(finite, bits + np.uint32(0x1000), bits) & np.uint32(0xFFFFE000)
    return bits.astype(np.uint32).view(FLOAT32)[()]


def cut_to_tf32(value: Value) -> Value:
    """What a tensor core takes of float32: the low 13 bits are left out."""
    return (np.asarray(value, FLOAT32).view(np.uint32) & np.uint32(0xFFFFE000)).view(FLOAT32)[()]
