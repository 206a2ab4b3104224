"""Space to depth: a block of stride_h x stride_w pixels becomes one pixel, which has the channels of all of them.

A window then moves by one such pixel, and has fewer taps. Along h, with r' and i the tap and the row in a block:
stride * p - pad + r = stride * (p - pad' + r') + i, where pad' = ceil(pad / stride). Along an axis with dilation the
stride stays. Channels are filled up with zeros to 16 bytes, as rows must be for the copy engine.
"""

import importlib
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numba import cuda, float32, int32, int64, uint32
from numba.types import float16

from lessons.toolkit.memory import dtype_of, store4, store8_rounded
from lessons.toolkit.narrow import narrow
from lessons.toolkit.tiles import ceil_div, multiple
from lessons.toolkit.unroll import unroll, unrolled

planning = importlib.import_module("lessons.07_hopper.helpers.im2col_plan")

THREADS = 256
ROW_BYTES = 16  # that a pixel's channels are a multiple of
MOST_BYTES = 128  # of a pixel that a thread writes


class Folded(NamedTuple):
    """A layer after space to depth: of blocks of ROWS x COLUMNS pixels of C channels; new shapes and geometry.

    UP and LEFT: how many rows and columns of the first block's taps lie before the filter's first.
    """

    C: int
    ROWS: int
    COLUMNS: int
    UP: int
    LEFT: int
    x_shape: tuple
    filt_shape: tuple
    geometry: object


def fold(x_shape, filt_shape, geometry, dtype):
    """The layer after space to depth; x is NDHWC, filt KTRSC. None where its pixels take more than MOST_BYTES."""
    N, D, H, W, C = x_shape
    K, T, R, S, _ = filt_shape
    ROWS = geometry.stride_h if geometry.dilation_h == 1 else 1
    COLUMNS = geometry.stride_w if geometry.dilation_w == 1 else 1
    pad_h, pad_w = ceil_div(geometry.pad_h, ROWS), ceil_div(geometry.pad_w, COLUMNS)
    UP, LEFT = pad_h * ROWS - geometry.pad_h, pad_w * COLUMNS - geometry.pad_w
    itemsize = np.dtype(dtype).itemsize
    channels = multiple(ROWS * COLUMNS * C, ROW_BYTES // itemsize)
    if channels * itemsize > MOST_BYTES:
        return None
    return Folded(
        C, ROWS, COLUMNS, UP, LEFT,
        (N, D, ceil_div(H, ROWS), ceil_div(W, COLUMNS), channels),
        (K, T, ceil_div(R + UP, ROWS), ceil_div(S + LEFT, COLUMNS), channels),
        geometry._replace(
            stride_h=geometry.stride_h // ROWS, stride_w=geometry.stride_w // COLUMNS, pad_h=pad_h, pad_w=pad_w
        ),
    )  # fmt: skip


@lru_cache
def specialise(C, ROWS, COLUMNS, CHANNELS, value):
    """Build the kernel for blocks of ROWS x COLUMNS pixels of C channels, which become CHANNELS, of type `value`."""
    VALUES, store = (8, store8_rounded) if value is float16 else (4, store4)  # of 16 bytes

    @cuda.jit
    @narrow
    @unroll
    def fold_rows(source, target, shape, lines, columns, up, left):
        """A block of threads writes one of the `lines` of a plane of target, from `up` rows above source on."""
        H, W = int32(shape[0]), int32(shape[1])
        plane, line = cuda.blockIdx.x // uint32(lines), cuda.blockIdx.x % uint32(lines)
        h0 = int32(line * ROWS) - int32(up)
        first = (int64(plane) * H + h0) * W * C
        pixel = cuda.local.array(CHANNELS, float32)
        for column in range(cuda.threadIdx.x, uint32(columns), THREADS):
            w0 = int32(column * COLUMNS) - int32(left)
            for channel in unrolled(CHANNELS):
                i, j = channel // C // COLUMNS, channel // C % COLUMNS
                inside = i < ROWS and 0 <= h0 + int32(i) < H and 0 <= w0 + int32(j) < W
                at = first + (int32(i) * W + w0 + int32(j)) * C + channel % C
                pixel[channel] = float32(source[at]) if inside else float32(0.0)
            at = (int64(cuda.blockIdx.x) * columns + column) * CHANNELS
            for piece in unrolled(CHANNELS // VALUES):
                store(target, at + piece * VALUES, pixel, piece * VALUES)

    return fold_rows


def fold_array(source, target, folded, up=0, left=0):
    """target = source after space to depth: x, or a filter with its taps in place of pixels."""
    value = float16 if dtype_of(target) == np.float16 else float32
    kernel = specialise(folded.C, folded.ROWS, folded.COLUMNS, target.shape[4], value)
    planes, lines, columns = target.shape[0] * target.shape[1], *target.shape[2:4]
    flat = source.reshape(source.size), target.reshape(target.size)
    kernel[planes * lines, THREADS](*flat, source.shape[2:4], lines, columns, up, left)


def rewriting(im2col, dtype, fold_array=fold_array):
    """`prepare`, `workspace` and `launch` of a step that rewrites x, where it helps, for `im2col` to compute."""

    def layer_of(problem):
        """`fold` of a problem, or None."""
        if problem.C * np.dtype(dtype).itemsize % ROW_BYTES == 0:
            return None
        return fold(problem.input_shape, problem.weight_shape, problem.geometry, dtype)

    def prepare(filt, problem):
        """What `im2col` prepares; how the layer is rewritten, and its filter, where it is."""
        folded, target = layer_of(problem), None
        if folded is not None:
            target = cuda.device_array(folded.filt_shape, dtype)
            fold_array(filt, target, folded, folded.UP, folded.LEFT)
        return im2col.prepare(filt, problem), folded, target

    def workspace(problem):
        """Room for x, rewritten."""
        folded = layer_of(problem)
        return None if folded is None else cuda.device_array(folded.x_shape, dtype)

    def launch(x, prepared, y, geometry, workspace=None):
        whole, folded, filt = prepared
        if folded is None or not planning.describable(workspace, filt, y, folded.geometry):
            return im2col.launch(x, whole, y, geometry)
        fold_array(x, workspace, folded)
        im2col.launch(workspace, (filt, None), y, folded.geometry)

    return prepare, workspace, launch
