"""NumPy float64 oracles, independent of every kernel."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from common.book.problems import FLOAT16, Conv2d, Conv3d, Gemm, Problem

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


def expected(problem: Problem, x: NDArray[Any], weight: NDArray[Any]) -> Float64:
    """What a right kernel leaves where every sum is exact: :func:`full`, as :func:`stored`."""
    return stored(problem, full(problem, x, weight))


def stored(problem: Problem, sums: Float64) -> Float64:
    """Exact sums as the output holds them: rounded once to the nearest float16, ties to even, if that is its dtype.

    Those of float32 stay as they are: what is compared exactly is exact in it.
    """
    return sums.astype(FLOAT16).astype(np.float64) if problem.output_dtype == FLOAT16 else sums


def error_bound(
    problem: Problem, magnitude: Float64, sums: Float64 | None = None, precision: str = "fp32"
) -> Float64:
    """Largest |y - oracle| a kernel may show, given the oracle of the absolute values.

    ``min(n, 8 sqrt(n)) * u * magnitude`` for n roundings of unit roundoff u = 2**-24, in any summation order:
    the first term is the worst case (Higham 2002, section 4.2), the second the probabilistic bound with
    lambda = 8 (Higham and Mary 2019, doi:10.1137/18M1226312), exceeded with probability below 1e-13.

    Sums that tensor cores make, of float16 or, with ``precision`` tf32, of TF32 numbers, have u = 2**-23: they cut
    off where they add (Fasi, Higham, Mikaitis and Pranesh 2021, doi:10.7717/peerj-cs.330). What else is rounded comes
    on top: each TF32 input by 2**-11 of itself (11 significant bits, to the nearest: Higham 2002, section 2.1; Ootomo
    and Yokota 2022, doi:10.1177/10943420221090256); an output of float16 by half its last place, for which ``sums``
    are the oracle's.
    """
    tensor_cores = precision == "tf32" or problem.output_dtype == FLOAT16
    bound = _summation(problem, _CUT if tensor_cores else _ROUNDED) * magnitude
    if precision == "tf32":
        bound = bound * (1 + _TF32) ** 2 + ((1 + _TF32) ** 2 - 1) * magnitude
    if problem.output_dtype == FLOAT16:
        if sums is None:
            raise ValueError("the bound of a float16 output needs the sums")
        bound = bound + _half_of_the_last_place(np.abs(sums) + bound)
    return bound


_ROUNDED, _CUT, _TF32 = 2.0**-24, 2.0**-23, 2.0**-11  # unit roundoffs
_TYPICALLY = 1.25  # times the error of rounding to the nearest: cutting off both inputs gives 2, one 1.6


def _summation(problem: Problem, roundoff: float) -> float:
    roundings = problem.reduction + 1
    return min(float(roundings), 8 * math.sqrt(roundings)) * roundoff


def _half_of_the_last_place(values: Float64) -> Float64:
    """How far float16 numbers of these magnitudes may be from what was rounded to them; 2**-25 below 2**-14."""
    _, exponent = np.frexp(np.maximum(values, 2.0**-14))
    return np.asarray(np.ldexp(1.0, exponent - 12))


def nearest_tf32(values: NDArray[Any]) -> NDArray[np.float32]:
    """Float32 numbers rounded to the nearest TF32 ones, of 11 significant bits; ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x0FFF) + (bits >> np.uint32(13) & np.uint32(1))) & np.uint32(0xFFFFE000)
    return rounded.view(np.float32)


def tf32_error(problem: Problem, x: NDArray[Any], weight: NDArray[Any], magnitude: Float64, sums: Float64) -> float:
    """Largest root mean square, over all elements, of the error of a kernel that rounds inputs to the nearest TF32.

    No bound on one element tells rounding from cutting off, whose errors are twice as large at most. But so they are
    on average, too: 2**-10 / sqrt(3) of the last place that is kept, not 2**-10 / sqrt(12), and all of one sign. So
    the error is compared with that of these very operands, rounded to the nearest. Summation adds its own: four
    roundings that agree, or sqrt(n) / 4 of them; a thirtieth of the bound, and more than cuBLAS was seen to have.
    """
    rounded = full(problem, nearest_tf32(x), nearest_tf32(weight)) - sums
    roundings = problem.reduction + 1
    summed = min(float(roundings), max(4.0, math.sqrt(roundings) / 4)) * _CUT * magnitude
    return _TYPICALLY * root_mean_square(rounded) + root_mean_square(summed)


def root_mean_square(values: Float64) -> float:
    """Over all elements."""
    return float(np.sqrt(np.mean(np.square(values))))


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
