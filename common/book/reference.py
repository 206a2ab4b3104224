"""NumPy float64 oracles, independent of every kernel."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from common.book.problems import Conv2d, Conv3d, Gemm, Problem

Float64 = NDArray[np.float64]
Indices = tuple[NDArray[np.intp], ...]

# Positions gathered at a time, times the reduction: bounds the oracle's memory.
_CHUNK_ELEMENTS = 1 << 24


def full(problem: Problem, x: NDArray[Any], weight: NDArray[Any]) -> Float64:
    """Every output element, in float64, shape ``problem.output_shape``."""
    positions = np.indices(problem.output_shape).reshape(len(problem.output_shape), -1)
    return at(problem, x, weight, tuple(positions)).reshape(problem.output_shape)


def at(problem: Problem, x: NDArray[Any], weight: NDArray[Any], positions: Indices) -> Float64:
    """Output elements at ``positions`` (one index array per output axis), in float64, shape (count,)."""
    count = len(positions[0])
    result = np.empty(count)
    windows = _windows(problem, x)
    step = max(1, _CHUNK_ELEMENTS // problem.reduction)
    for start in range(0, count, step):
        part = tuple(axis[start : start + step] for axis in positions)
        patch, filt = _operands(problem, windows, weight, part)
        result[start : start + step] = np.einsum("ij,ij->i", patch, filt)
    return result


def error_bound(problem: Problem, magnitude: Float64) -> Float64:
    """Largest |y - oracle| a float32 kernel may show, given the oracle of the absolute values.

    ``min(n, 8 sqrt(n)) * u * magnitude`` for n roundings of unit roundoff u = 2**-24, in any summation order:
    the first term is the worst case (Higham 2002, section 4.2), the second the probabilistic bound with
    lambda = 8 (Higham and Mary 2019, doi:10.1137/18M1226312), exceeded with probability below 1e-13.
    """
    roundings = problem.reduction + 1
    return min(float(roundings), 8 * math.sqrt(roundings)) * 2.0**-24 * magnitude


def _windows(problem: Problem, x: NDArray[Any]) -> NDArray[Any]:
    """A view of the input with one axis per output position and filter tap (GEMM: the input itself)."""
    if isinstance(problem, Conv2d):
        return sliding_window_view(x, (problem.R, problem.S), axis=(2, 3))
    if isinstance(problem, Conv3d):
        g = problem.geometry
        pads = ((0, 0), (g.pad_d, g.pad_d), (g.pad_h, g.pad_h), (g.pad_w, g.pad_w), (0, 0))
        reach = (
            (problem.T - 1) * g.dilation_d + 1,
            (problem.R - 1) * g.dilation_h + 1,
            (problem.S - 1) * g.dilation_w + 1,
        )
        windows = sliding_window_view(np.pad(x, pads), reach, axis=(1, 2, 3))
        return windows[
            :, :: g.stride_d, :: g.stride_h, :: g.stride_w, :,
            :: g.dilation_d, :: g.dilation_h, :: g.dilation_w,
        ]  # fmt: skip
    return x


def _operands(
    problem: Problem, windows: NDArray[Any], weight: NDArray[Any], positions: Indices
) -> tuple[Float64, Float64]:
    """The two (count, reduction) matrices whose row-wise dot products are the outputs at ``positions``."""
    count = len(positions[0])
    if isinstance(problem, Gemm):
        m, n = positions
        patch, filt = windows[m], weight[:, n].T
    elif isinstance(problem, Conv2d):
        n, k, p, q = positions
        patch, filt = windows[n, :, p, q], weight[k]
    else:
        n, o, p, q, k = positions
        # (count, C, T, R, S) to the filter's T, R, S, C order
        patch, filt = np.moveaxis(windows[n, o, p, q], 1, -1), weight[k]
    return (
        patch.reshape(count, problem.reduction).astype(np.float64),
        filt.reshape(count, problem.reduction).astype(np.float64),
    )
