"""Where Hopper's engines find elements: in swizzled tiles, in operands that a descriptor names, in boxes of im2col.

Bits and orders are those of the PTX ISA: "Tensors" (tiled and im2col mode, swizzles) and "Matrix Descriptor Format"
of wgmma. Addresses are bytes from the beginning of a block's tiles, which lie on a 1024-byte boundary.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.catalog import reference
from common.trace.cost import Ints

ROW = 128  # bytes of a row of a tile with the widest swizzle
UNIT = 16  # bytes that stay together
ATOM = 8 * ROW  # after so many bytes the swizzle repeats
KEPT = 14  # bits of the largest addend that a sum of e4m3 keeps
OFFSETS = 32  # that a tap may have in im2col, from 0 on
_SPANS = {1: 128, 2: 64, 3: 32}  # bytes of a row, by the field's value


def swizzled(address: Any, span: int = ROW) -> Any:
    """Where the swizzle of so many bytes puts the byte of this address."""
    return address ^ ((address >> 7) & (span // UNIT - 1)) << 4


def nearest_tf32(values: NDArray[Any]) -> NDArray[Any]:
    """Float32 as the copy engine rounds to TF32: to the nearest, ties to even (seen on an H200); NaN stays NaN."""
    return np.where(np.isnan(values), values, reference.nearest_tf32(values))


def cut_sums(sums: NDArray[Any], left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    """Sums, and products of e4m3 added to them, as one instruction adds: each brought to the exponent of the largest,
    and cut off where the largest has 14 bits."""
    finest = np.min(np.abs(left[left != 0]), initial=1.0) * np.min(np.abs(right[right != 0]), initial=1.0)
    bound = np.abs(sums).max() + left.shape[1] * np.abs(left).max() * np.abs(right).max()
    if bound < 2**13 * finest and all((part == np.rint(part)).all() for part in (sums, left, right)):
        return np.asarray(sums + left @ right)
    products = left[:, :, None] * right[None]
    largest = np.maximum(np.abs(sums), np.abs(products).max(axis=1))
    last = np.ldexp(1.0, np.frexp(largest)[1] - KEPT)
    return np.asarray((np.trunc(products / last[:, None]).sum(axis=1) + np.trunc(sums / last)) * last)


def walked(shape: tuple[int, ...], one: Any, count: int, base: tuple[int, ...], taps: tuple[int, ...]) -> list[Ints]:
    """n, d, h and w of ``count`` pixels of an NDHWC array from the base pixel on, as the im2col map ``one`` walks:
    along w, then h, d and n, from the corner ``lower`` to before the extent plus ``upper``; to each ``taps`` is
    added. Raises ValueError for a base that the walk never comes to."""
    counts, place = [], base[0]
    for first, low, high, step, extent in zip(base[1:], one.lower, one.upper, one.strides, shape[1:4], strict=True):
        if not (low <= first < extent + high) or (first - low) % step:
            raise ValueError(f"the copy begins at the pixel (n, d, h, w) = {base}, where no window begins")
        counts.append(-(-(extent + high - low) // step))
        place = place * counts[-1] + (first - low) // step
    places = place + np.arange(count)
    pixel = []
    for low, step, steps, tap in zip(one.lower[::-1], one.strides[::-1], counts[::-1], taps[::-1], strict=True):
        pixel.append(places % steps * step + low + tap)
        places = places // steps
    return [places, *pixel[::-1]]


class Descriptor(NamedTuple):
    """The fields: bytes from the beginning of shared memory, of the offsets, and of the swizzle's rows."""

    start: int
    leading: int
    stride: int
    swizzle: int  # 0: none

    @staticmethod
    def of(bits: int) -> Descriptor:
        start, leading, stride = ((bits >> low & 0x3FFF) << 4 for low in (0, 16, 32))
        return Descriptor(start, leading, stride, _SPANS.get(bits >> 62 & 3, 0))

    def wrong(self, groups: int, any_row: bool = False) -> str:
        """What no operand of so many groups of eight rows may have, in words; or nothing. ``any_row``: it may begin
        in the middle of a group, as B along k was seen to do on an H200 and an H100; of others this is not known."""
        if not self.swizzle:
            return "names no swizzle, and tiles have one"
        whole = 8 * self.swizzle
        if self.start % whole >= self.swizzle and not any_row:
            return f"begins at byte {self.start}, in row {self.start % whole // self.swizzle} of a group of eight"
        if groups > 1 and (self.stride < whole or self.stride % whole):
            return f"has a stride of {self.stride} bytes, and eight rows of {self.swizzle} bytes take {whole}"
        return ""


def encoded(start: Any, leading: Any, stride: Any) -> Any:
    """The bits of a descriptor whose offsets are given in bytes; the swizzle is that of rows of stride / 8 bytes."""
    rows = np.asarray(stride).astype(np.int64)
    found = np.where(rows == 512, 2, np.where(rows == 256, 3, 1)).astype(np.uint64) << np.uint64(62)
    for value, low in ((start, 0), (leading, 16), (stride, 32)):
        part = (np.asarray(value).astype(np.uint64) >> np.uint64(4)) & np.uint64(0x3FFF)
        found = found | part << np.uint64(low)
    return found[()]


@lru_cache(maxsize=512)
def operand(rows: int, columns: int, itemsize: int, at: Descriptor) -> Ints:
    """Elements (row, k) of a K-major operand, with k no wider than the swizzle; or (k, n) of one whose rows run along
    n, in panels as wide as the swizzle."""
    row, column = np.arange(rows)[:, None], np.arange(columns)[None]
    panel, byte = np.divmod(column * itemsize, at.swizzle)
    address = at.start + panel * at.leading + row // 8 * at.stride + row % 8 * at.swizzle + byte
    found: Ints = swizzled(address, at.swizzle) // itemsize
    return found
