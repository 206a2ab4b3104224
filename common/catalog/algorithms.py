"""Algorithms that are not the definition: where they apply, where they are exact, and the magnitudes that they round.

F(2x2,3x3), minimal filtering along two axes, makes 2 x 2 outputs of 3 x 3 taps by 16 products in place of 36 (Lavin
and Gray, "Fast Algorithms for Convolutional Neural Networks", 2016):

    outputs = A^T ((G taps G^T) * (B^T window B)) A        dtaps = G^T ((A doutputs A^T) * (B^T window B)) G
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from common.catalog.problems import Convolution, Dgrad, Problem, Wgrad

Array = NDArray[Any]

NAMES = ("F(2x2,3x3)",)
"""What a step may name as its ``ALGORITHM``."""
LADDERS = ("conv3d", "dgrad", "wgrad")
"""The ladders that they are for."""

OF_INPUTS = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, -1, 0, 1]])  # B^T
OF_TAPS = np.array([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]]) / 2  # G
OF_PRODUCTS = np.array([[1, 1, 1, 0], [0, 1, -1, 1]])  # A^T
# Taps become quarters, and an element is a sum of nine of the products' sums, each as large as the element may be.
SMALLER = 4 * 9
# Roundings between an operand and the result, but for those of the sums of products: along both axes, of inputs one,
# of taps two, of products two; halving is exact.
_TRANSFORMS = 2 * (1 + 2 + 2)


def applies(problem: Problem, algorithm: str | None) -> bool:
    """May a step of this algorithm compute the problem by it? Others it must compute by the definition.

    F(2x2,3x3) is for flat filters of 3 x 3 at a stride and dilation of 1.
    """
    if algorithm is None or not isinstance(problem, Convolution):
        return False
    g = problem.geometry
    flat = (problem.D, problem.T, problem.R, problem.S, g.pad_d) == (1, 1, 3, 3, 0)
    return flat and (*g[:3], *g[6:]) == (1,) * 6


def exact_below(problem: Problem, algorithm: str | None) -> int:
    """What the definition's sums must stay below for float32 to hold all sums of integers exactly."""
    return 2**24 // SMALLER if applies(problem, algorithm) else 2**24


def terms(problem: Problem) -> int:
    """Products in a sum of F(2x2,3x3): one for each channel, filter or patch."""
    assert isinstance(problem, Convolution)
    if isinstance(problem, Wgrad):
        return problem.N * -(-problem.P // 2) * -(-problem.Q // 2)
    return problem.K if isinstance(problem, Dgrad) else problem.C


def roundings(problem: Problem) -> int:
    """How many roundings lie between an operand and a result of F(2x2,3x3), where its sums are made one by one."""
    return terms(problem) + 1 + _TRANSFORMS


def magnitude(problem: Problem, x: Array, weight: Array) -> NDArray[np.float64]:
    """What F(2x2,3x3) sums for each element, all taken positive: of the operands' magnitudes, by the matrices'.

    The definition multiplies a tap by one input; here all taps of a filter meet all inputs of a window.
    """
    matrices = tuple(np.abs(matrix) for matrix in (OF_INPUTS, OF_TAPS, OF_PRODUCTS))
    return minimal_filtering(problem, np.abs(x).astype(np.float64), np.abs(weight).astype(np.float64), matrices)


def minimal_filtering(
    problem: Problem, x: Array, weight: Array, matrices: tuple[Array, ...] = (OF_INPUTS, OF_TAPS, OF_PRODUCTS)
) -> Array:
    """The output by F(2x2,3x3), every operation rounded to the operands' dtype, products summed one by one.

    Patches begin at even rows and columns. ``matrices``: B^T, G and A^T.
    """
    assert isinstance(problem, Convolution)
    of_inputs, of_taps, of_products = matrices
    if isinstance(problem, Wgrad):  # the sum is over patches
        windows = _windows(x[:, 0], problem.pad_h, problem.pad_w, problem.P, problem.Q)
        doutputs = _blocks(_placed(weight[:, 0], 0, 0, _even(problem.P), _even(problem.Q)), 2)
        ours, theirs = (_both(part, matrix) for part, matrix in ((doutputs, of_products.T), (windows, of_inputs)))
        # (4, 4, patches, K) and (4, 4, patches, C)
        ours, theirs = (part.reshape(4, 4, -1, part.shape[-1]) for part in (ours, theirs))
        sums = _summed(ours.swapaxes(2, 3), theirs)
        return np.moveaxis(_both(sums, of_taps.T), 2, 0)[:, None]
    if isinstance(problem, Dgrad):
        _, _, rows, columns, _ = problem.x_shape
        windows = _windows(x[:, 0], 2 - problem.pad_h, 2 - problem.pad_w, rows, columns)
        filters = np.transpose(weight[:, 0, ::-1, ::-1], (1, 2, 0, 3))
    else:
        rows, columns = problem.P, problem.Q
        windows = _windows(x[:, 0], problem.pad_h, problem.pad_w, rows, columns)
        filters = np.transpose(weight[:, 0], (1, 2, 3, 0))
    inputs, taps = _both(windows, of_inputs), _both(filters, of_taps)
    _, _, images, down, across, channels = inputs.shape
    sums = _summed(inputs.reshape(4, 4, -1, channels), taps)
    outputs = _both(sums, of_products).reshape(2, 2, images, down, across, -1)
    y = np.transpose(outputs, (2, 3, 0, 4, 1, 5)).reshape(images, 2 * down, 2 * across, -1)
    return y[:, None, :rows, :columns]


def _even(extent: int) -> int:
    return extent + extent % 2


def _placed(x: Array, pad_h: int, pad_w: int, rows: int, columns: int) -> Array:
    """x, of (N, H, W, C), from -pad on, as many rows and columns; zeros where it has none."""
    found = np.zeros((len(x), rows, columns, x.shape[-1]), x.dtype)
    to, at = [], []
    for pad, extent, length in ((pad_h, x.shape[1], rows), (pad_w, x.shape[2], columns)):
        first, last = max(0, -pad), min(extent, length - pad)
        at.append(slice(first, max(first, last)))
        to.append(slice(first + pad, max(first, last) + pad))
    found[:, to[0], to[1]] = x[:, at[0], at[1]]
    return found


def _windows(x: Array, pad_h: int, pad_w: int, rows: int, columns: int) -> Array:
    """The 4 x 4 windows of the patches of so many outputs: (4, 4, N, patches down, patches across, C)."""
    return _blocks(_placed(x, pad_h, pad_w, _even(rows) + 2, _even(columns) + 2), 4)


def _blocks(x: Array, size: int) -> Array:
    """Blocks of ``size`` x ``size``, two apart: (size, size, N, down, across, C)."""
    return np.moveaxis(sliding_window_view(x, (size, size), axis=(1, 2))[:, ::2, ::2], (4, 5), (0, 1))


def _both(values: Array, matrix: Array) -> Array:
    """The matrix from the left along the first two axes, term by term, so that every sum is rounded."""
    for _ in range(2):
        rows = []
        for row in matrix:
            terms = [part * values.dtype.type(factor) for factor, part in zip(row, values, strict=True) if factor]
            rows.append(sum(terms[1:], start=terms[0]))
        values = np.stack(rows).swapaxes(0, 1)
    return values


def _summed(left: Array, right: Array) -> Array:
    """Matrix products along the last two axes, products summed one by one; float64 ones as NumPy does."""
    if left.dtype == np.float64:
        return np.asarray(left @ right)
    total = np.zeros((*left.shape[:-1], right.shape[-1]), left.dtype)
    for k in range(left.shape[-1]):
        total += left[..., k, None] * right[..., None, k, :]
    return total
