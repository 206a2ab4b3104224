"""What Hopper's copy engine and wgmma find where: boxes of a tensor map, swizzled tiles, operands of a descriptor.

Bits and orders are those of the PTX ISA: "Tensors" (tiled and im2col mode, swizzles) and "Matrix Descriptor
Format" of wgmma. Addresses are bytes from the beginning of a block's tiles, which lie on a 1024-byte boundary.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Ints = NDArray[np.int64]

ROW = 128  # bytes of a row of a tile with the widest swizzle
ROWS = (128, 64, 32)  # bytes that a row of a tile may have: the swizzle's span
UNIT = 16  # bytes that stay together
ATOM = 8 * ROW  # after so many bytes the swizzle repeats
OFFSETS = 32  # that a tap may have in im2col, from 0 on
_FIELD = 0x3FFF  # an address or offset in a descriptor, in units
_SPANS = {1: 128, 2: 64, 3: 32}  # bytes, by code


def swizzled(address: Any, span: int = ROW) -> Any:
    """Where the swizzle of so many bytes puts the byte of this address."""
    return address ^ ((address >> 7) & (span // UNIT - 1)) << 4


@lru_cache(maxsize=256)
def _tile(start: int, rows: int, columns: int, itemsize: int) -> Ints:
    row, column = np.ogrid[:rows, :columns]
    span = columns * itemsize
    found: Ints = swizzled(start + span * row + itemsize * column, span) // itemsize
    return found


def tile(start: int, rows: int, columns: int, itemsize: int) -> Ints:
    """Elements, counted from address 0, of a swizzled tile at address ``start``: of shape (rows, columns).

    The swizzle spans a row, of one of ROWS bytes.
    """
    whole = start // ATOM * ATOM
    return _tile(start - whole, rows, columns, itemsize) + whole // itemsize


# --- boxes ---


def nearest_tf32(values: Array) -> Array:
    """Float32 numbers as the copy engine rounds them to TF32: to the nearest, ties to even (seen on an H200).

    What is beyond the largest becomes infinite; NaN stays NaN.
    """
    bits = values.view(np.uint32)
    rounded: Array = (bits + np.uint32(0x0FFF) + (bits >> np.uint32(13) & np.uint32(1))) & np.uint32(0xFFFFE000)
    return np.where(np.isnan(values), values, rounded.view(np.float32))


def tiled(array: Array, box: tuple[int, int], row: int, column: int) -> Array:
    """The box of a 2D array from (row, column) on, zeros outside."""
    values = np.zeros(box, array.dtype)
    inside, (rows, columns) = _inside(array, box, row, column)
    values[inside] = array[rows, columns]
    return values


def put(array: Array, values: Array, row: int, column: int) -> None:
    """Write a box of a 2D array from (row, column) on, nothing outside."""
    inside, (rows, columns) = _inside(array, values.shape, row, column)
    array[rows, columns] = values[inside]


def _inside(array: Array, box: Any, row: int, column: int) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """The part of the box that lies in the array, as the box counts and as the array does."""
    of_box, of_array = [], []
    for first, extent, most in zip((row, column), box, array.shape, strict=True):
        start, stop = max(first, 0), max(min(first + extent, most), max(first, 0))
        of_box.append(slice(start - first, stop - first))
        of_array.append(slice(start, stop))
    return (of_box[0], of_box[1]), (of_array[0], of_array[1])


def walked(shape: tuple[int, ...], one: Any, count: int, base: tuple[int, ...], taps: tuple[int, ...]) -> list[Ints]:
    """n, d, h and w of ``count`` pixels of an NDHWC array from the base pixel on, as the im2col map ``one`` walks.

    The base walks along w, then h, d and n, from the corner ``lower`` to the extent plus ``upper``, which it does not
    reach. To each ``taps`` is added. Raises ValueError for a base that the walk never comes to.
    """
    counts, place = [], base[0]
    for name, first, low, high, step, extent in zip(
        "dhw", base[1:], one.lower, one.upper, one.strides, shape[1:4], strict=True
    ):
        if not (low <= first < extent + high) or (first - low) % step:
            raise ValueError(f"{name}={first} of the base pixel is not among those from {low} to {extent + high - 1} "
                             f"in steps of {step}")  # fmt: skip
        counts.append(-(-(extent + high - low) // step))
        place = place * counts[-1] + (first - low) // step
    places = place + np.arange(count)
    pixel = []
    for low, step, steps, tap in zip(one.lower[::-1], one.strides[::-1], counts[::-1], taps[::-1], strict=True):
        pixel.append(places % steps * step + low + tap)
        places = places // steps
    return [places, *pixel[::-1]]


def im2col(array: Array, one: Any, base: tuple[int, ...], channel: int, taps: tuple[int, ...]) -> Array:
    """The pixels of :func:`walked`, rows of channels from ``channel`` on; what lies outside is zero."""
    pixel = walked(array.shape, one, one.pixels, base, taps)
    inside = np.ones(one.pixels, np.bool_)
    for at, extent in zip(pixel, array.shape, strict=False):
        inside &= (at >= 0) & (at < extent)
    values = np.zeros((one.pixels, one.channels), array.dtype)
    start, stop = max(channel, 0), min(channel + one.channels, array.shape[4])
    if start < stop and inside.any():
        n, d, h, w = (at[inside] for at in pixel)
        values[inside, start - channel : stop - channel] = array[n, d, h, w, start:stop]
    return values


# --- descriptors ---


class Descriptor(NamedTuple):
    """The fields of a descriptor, in bytes; ``base`` and ``swizzle`` are codes."""

    address: int
    leading: int
    stride: int
    base: int
    swizzle: int


def encoded(address: int, leading: int, stride: int) -> int:
    """A descriptor; a ``stride`` of 8 rows of 64 or 32 bytes tells that swizzle, another that of 128 bytes.

    Raises ValueError naming a field that does not fit.
    """
    for name, value in (("address", address), ("leading", leading), ("stride", stride)):
        if value % UNIT or not 0 <= value // UNIT <= _FIELD:
            raise ValueError(f"{name} is {value} bytes: must be a multiple of {UNIT} from 0 to {_FIELD * UNIT}")
    code = next((code for code, span in _SPANS.items() if stride == 8 * span), 1)
    return code << 62 | stride // UNIT << 32 | leading // UNIT << 16 | address // UNIT


def decoded(descriptor: int) -> Descriptor:
    """What the matrix unit reads in a descriptor."""
    address, leading, stride = (UNIT * (descriptor >> bits & _FIELD) for bits in (0, 16, 32))
    return Descriptor(address, leading, stride, descriptor >> 49 & 7, descriptor >> 62 & 3)


@lru_cache(maxsize=1024)
def operand(descriptor: int, rows: int, depth: int, itemsize: int, across: bool = False) -> Ints:
    """Elements, counted from address 0, of the ``rows`` x ``depth`` operand that a descriptor names.

    Along k (K-major) 8 rows as wide as the swizzle follow each other, the next 8 after ``stride``. ``across``
    (MN-major) each k is a row of 64 halves, 8 of them follow each other, the next 8 after ``stride``, the next 64
    columns after ``leading``. Raises ValueError for a swizzle that tiles do not have.
    """
    found = decoded(descriptor)
    span = _SPANS.get(found.swizzle, 0)
    if not span or (across and span != ROW) or found.base:
        raise ValueError(f"the descriptor {descriptor:#018x} says swizzle {found.swizzle} and base offset "
                         f"{found.base}: tiles have the 128-byte swizzle, 1, and base offset 0")  # fmt: skip
    r, k = np.ogrid[:rows, :depth]
    if across:
        wide = ROW // itemsize
        address = r // wide * found.leading + r % wide * itemsize + k // 8 * found.stride + k % 8 * ROW
    else:
        address = r // 8 * found.stride + r % 8 * span + k * itemsize
    places: Ints = swizzled(found.address + address, span) // itemsize
    return places
