"""Tensor maps: boxes of arrays, described once for the copy engine of compute capability 9.0.

A kernel gets a map as an argument: 128 bytes in device memory, which must live as long as a launch, or a graph of
launches, may use it: as long as the ``Maps`` that gives it.
"""

import numpy as np
from numba import cuda, types

from lessons.toolkit.card import asked
from lessons.toolkit.memory import address, dtype_of

TYPES = "float16", "float32", "int32"
SWIZZLES = 128, 64, 32  # bytes that a row of a tile may have
BOX_ROWS = 256  # that a box has at most
ROW_STEP = 16  # bytes: what addresses and rows are multiples of


class Maps:
    """Describes boxes of arrays, and keeps for each place, shape and device one map, 512 bytes, until `clear`."""

    def __init__(self):
        self._made = {}

    def tiled(self, array, box, tf32=False):
        """Boxes of `box` = (rows, columns) of a 2D row-major array, float16, float32 or int32; zeros lie around it.

        The address and the bytes of a row are multiples of 16; a row of the box has 128, 64 or 32 bytes, the box at
        most 256 rows. `tf32`: float32 values are rounded to TF32 on their way. Raises ValueError.
        """
        itemsize = _require_array(array, 2)
        rows, columns = box = tuple(map(int, box))
        _require("box rows", rows, 1 <= rows <= BOX_ROWS, f"1 to {BOX_ROWS}")
        _require("box columns", columns, columns * itemsize in SWIZZLES, _widths(itemsize))
        return self._of(array, tf32, "tiled", box)

    def im2col(self, x, lower, upper, channels, pixels, strides, tf32=False):
        """Boxes of `pixels` pixels of `channels` channels of an NDHWC array: rows of the matrix of windows.

        A window's base pixel walks along w, then h, then d, then n, by `strides` = (d, h, w), from the corner `lower`
        to `upper` from the array's last pixel, both (d, h, w): lower = -pad, upper = pad - (taps - 1) * dilation.
        What lies outside counts as zero. Limits are those of `tiled`, up to 1024 pixels, and corners of -16 to 15.
        Raises ValueError.
        """
        itemsize = _require_array(x, 5)
        lower, upper, strides = (tuple(map(int, part)) for part in (lower, upper, strides))
        for name, corner in (("lower", lower), ("upper", upper)):
            _require(name, corner, all(-16 <= one <= 15 for one in corner), "-16 to 15 each")
        _require("strides", strides, all(1 <= one <= 8 for one in strides), "1 to 8 each")
        _require("channels", channels, channels * itemsize in SWIZZLES, _widths(itemsize))
        _require("pixels", pixels, 1 <= pixels <= 1024, "1 to 1024")
        return self._of(x, tf32, "im2col", (pixels, channels), lower, upper, strides, int(channels), int(pixels))

    def clear(self):
        """Give all maps back; none may be in use."""
        self._made.clear()

    def _of(self, array, *fields):
        """The map of this array with these fields; made where there is none yet."""
        if not hasattr(array, "__cuda_array_interface__"):
            return TensorMap(array, *fields)
        key = asked("id", 0), address(array), tuple(array.shape), dtype_of(array), *fields
        if key not in self._made:
            self._made[key] = TensorMap(array, *fields)
        return self._made[key]


class TensorMap:
    """A box of an array, as the copy engine wants it described; encoded when a launch first asks for it.

    kind is "tiled" (box: rows and columns) or "im2col" (lower, upper, strides: of d, h, w; channels, pixels). tf32:
    values are rounded, ties to even. array is set where it lies in the host's memory, as without a GPU.
    """

    _numba_type_ = types.Array(types.uint8, 1, "C")

    def __init__(self, array, tf32, kind, box, lower=None, upper=None, strides=None, channels=None, pixels=None):
        self.kind, self.box, self.lower, self.upper = kind, box, lower, upper
        self.strides, self.channels, self.pixels = strides, channels, pixels
        self.shape, self.dtype, self.tf32 = tuple(array.shape), dtype_of(array), tf32
        self.swizzle = box[1] * self.dtype.itemsize  # bytes of a row of the box
        self.address = address(array)
        self.array = None if hasattr(array, "__cuda_array_interface__") else array

    def __getattr__(self, name):
        if name != "__cuda_array_interface__" or self.array is not None:
            raise AttributeError(name)
        self.words = cuda.to_device(_encoded(self, self.address))
        self.__cuda_array_interface__ = self.words.__cuda_array_interface__
        return self.__cuda_array_interface__


def _widths(itemsize):
    return ", ".join(str(swizzle // itemsize) for swizzle in SWIZZLES)


def _require(name, value, holds, allowed):
    if not holds:
        raise ValueError(f"{name} is {value}; allowed: {allowed}")


def _require_array(array, dimensions):
    dtype, shape = dtype_of(array), tuple(array.shape)
    _require("dtype", dtype, dtype.name in TYPES, ", ".join(TYPES))
    _require("shape", shape, len(shape) == dimensions and min(shape) > 0, f"{dimensions} positive extents")
    _require("address", address(array), address(array) % ROW_STEP == 0, f"a multiple of {ROW_STEP}")
    row = shape[-1] * dtype.itemsize
    _require("bytes of a row", row, row % ROW_STEP == 0, f"a multiple of {ROW_STEP}")
    return dtype.itemsize


def _encoded(one, address):
    """The map's 128 bytes, by the driver."""
    from cuda.bindings import driver

    kinds, swizzles = driver.CUtensorMapDataType, driver.CUtensorMapSwizzle
    name = "TFLOAT32" if one.tf32 and one.dtype == np.float32 else one.dtype.name.upper()
    kind = getattr(kinds, f"CU_TENSOR_MAP_DATA_TYPE_{name}")
    extents = one.shape[::-1]  # the driver names the innermost dimension first
    pitches = one.dtype.itemsize * np.cumprod(extents[:-1])
    array = kind, len(extents), address, [driver.cuuint64_t(n) for n in extents]
    array = *array, [driver.cuuint64_t(int(n)) for n in pitches]
    form = (
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(swizzles, f"CU_TENSOR_MAP_SWIZZLE_{one.swizzle}B"),
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if one.kind == "tiled":
        box = [driver.cuuint32_t(n) for n in one.box[::-1]]
        error, made = driver.cuTensorMapEncodeTiled(*array, box, [driver.cuuint32_t(1)] * len(box), *form)
    else:
        steps = [driver.cuuint32_t(n) for n in (1, *one.strides[::-1], 1)]
        corners = list(one.lower[::-1]), list(one.upper[::-1])
        error, made = driver.cuTensorMapEncodeIm2col(*array, *corners, one.channels, one.pixels, steps, *form)
    if error:
        raise ValueError(f"the driver refuses a map of {one.shape}, {vars(one)}: {error.name}")
    words = np.array([int(word) for word in made.opaque], np.uint64)
    if one.kind == "im2col" and np.prod(one.shape) * one.dtype.itemsize < 1 << 17:
        error, version = driver.cuDriverGetVersion()
        if version <= 13010:  # such drivers set a bit that makes these maps of small arrays read wrongly
            words[1] &= ~np.uint64(1 << 21)
    return words.view(np.uint8)
