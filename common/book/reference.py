"""NumPy float64 oracles, independent of every kernel."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.book.problems import FLOAT16, Conv2d, Convolution, Dgrad, Gemm, Problem, Wgrad

Float64 = NDArray[np.float64]
Indices = tuple[NDArray[np.intp], ...]

# Elements of an operand gathered at a time: bounds the oracle's memory, and keeps what is summed in a cache.
_CHUNK_ELEMENTS = 1 << 20
# A gathered product takes so many times as long as one of a matrix product.
_GATHERED = 16


def full(problem: Problem, x: NDArray[Any], weight: NDArray[Any]) -> Float64:
    """Every output element, in float64, shape ``problem.output_shape``: by matrix products, tap by tap."""
    x, weight = x.astype(np.float64), weight.astype(np.float64)
    if isinstance(problem, Gemm):
        return np.asarray(x @ weight)
    if isinstance(problem, Conv2d):
        return _plane(problem, x, weight)
    if isinstance(problem, Dgrad):
        return _input_gradient(problem, x, weight)
    if isinstance(problem, Wgrad):
        return _filter_gradient(problem, x, weight)
    assert isinstance(problem, Convolution)
    return _space(problem, x, weight)


def at(problem: Problem, x: NDArray[Any], weight: NDArray[Any], positions: Indices) -> Float64:
    """Output elements at ``positions`` (one index array per output axis), in float64, shape (count,)."""
    if math.prod(problem.output_shape) <= _GATHERED * len(positions[0]):
        return full(problem, x, weight)[positions]
    if isinstance(problem, Wgrad):
        return _filter_gradient_at(problem, x, weight, positions)
    if isinstance(problem, Gemm):
        m, n = positions
        return _dots(x, (m,), np.ascontiguousarray(weight.T), n)
    result = np.zeros(len(positions[0]))
    channels_last = np.moveaxis(x, 1, -1) if isinstance(problem, Conv2d) else x
    for filters, of_filter, elements, met in _terms(problem, weight, positions):
        result[met] += _dots(channels_last, elements, filters, of_filter)
    return result


def _dots(a: NDArray[Any], at: Indices, b: NDArray[Any], rows: NDArray[np.intp]) -> Float64:
    """The last axis of ``a`` at each of these places times the row of ``b`` that goes with it."""
    result = np.empty(len(rows))
    step = max(1, _CHUNK_ELEMENTS // a.shape[-1])
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        left = a[tuple(axis[part] for axis in at)].astype(np.float64)
        result[part] = np.einsum("ij,ij->i", left, b[rows[part]].astype(np.float64))
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


def _padded(problem: Convolution, x: Float64) -> Float64:
    """x with the padding of the forward convolution around it."""
    g = problem.geometry
    if not any(g[3:6]):
        return x
    return np.pad(x, ((0, 0), (g.pad_d, g.pad_d), (g.pad_h, g.pad_h), (g.pad_w, g.pad_w), (0, 0)))


def _plane(problem: Conv2d, x: Float64, filt: Float64) -> Float64:
    """y of a 2D convolution: each tap adds its filters times the pixels that it reads."""
    y = np.zeros(problem.output_shape)
    for r, s in np.ndindex(problem.R, problem.S):
        read = x[:, :, r : r + problem.P, s : s + problem.Q].reshape(problem.N, problem.C, -1)
        y += (filt[:, :, r, s] @ read).reshape(y.shape)
    return y


def _space(problem: Convolution, x: Float64, filt: Float64) -> Float64:
    """y of a 3D convolution, as :func:`_plane`."""
    padded, y = _padded(problem, x), np.zeros(problem.y_shape)
    for tap, met in _taps(problem):
        y += (padded[met].reshape(-1, problem.C) @ filt[(slice(None), *tap)].T).reshape(y.shape)
    return y


def _terms(
    problem: Problem, weight: NDArray[Any], positions: Indices
) -> Iterator[tuple[NDArray[Any], NDArray[np.intp], Indices, NDArray[np.bool_]]]:
    """For each tap, what the outputs at ``positions`` sum.

    A matrix of its filters, a row each; which row, and which element of the input with channels last, meet in each
    output that has a term of this tap; and which outputs these are.
    """
    if isinstance(problem, Conv2d):
        n, k, p, q = positions
        for r, s in np.ndindex(problem.R, problem.S):
            yield weight[:, :, r, s], k, (n, p + r, q + s), np.ones(len(n), np.bool_)
        return
    assert isinstance(problem, Convolution)
    g, (n, *place, output) = problem.geometry, positions
    back = isinstance(problem, Dgrad)
    for tap in np.ndindex(*problem.filt_shape[1:4]):
        met, found = np.ones(len(n), np.bool_), []
        for axis, index in enumerate(place):
            stride, pad, shift = g[axis], g[3 + axis], tap[axis] * g[6 + axis]
            if back:  # element p of dy was read at p * stride - pad + shift
                along, over = np.divmod(index + pad - shift, stride)
                met &= over == 0
            else:
                along = index * stride - pad + shift
            met &= (along >= 0) & (along < problem.input_shape[1 + axis])
            found.append(along)
        elements = n[met], *(along[met] for along in found)
        filters = weight[(slice(None), *tap)]
        yield filters.T if back else filters, output[met], elements, met


def _taps(problem: Convolution) -> Iterator[tuple[tuple[int, int, int], tuple[slice, ...]]]:
    """Each tap t, r, s, and the elements of the padded x that it meets: as many as there are of y."""
    g = problem.geometry
    for tap in np.ndindex(*problem.filt_shape[1:4]):
        starts = [index * dilation for index, dilation in zip(tap, g[6:], strict=True)]
        along = [
            slice(start, start + (count - 1) * stride + 1, stride)
            for start, count, stride in zip(starts, problem.y_shape[1:4], g[:3], strict=True)
        ]
        yield (tap[0], tap[1], tap[2]), (slice(None), *along)


def _input_gradient(problem: Dgrad, dy: Float64, filt: Float64) -> Float64:
    """dx: each tap gives back to the elements that it read its share of dy."""
    padded = _padded(problem, np.zeros(problem.x_shape))
    for tap, met in _taps(problem):
        padded[met] += dy @ filt[(slice(None), *tap)]
    g, (_, D, H, W, _) = problem.geometry, problem.x_shape
    return padded[:, g.pad_d : g.pad_d + D, g.pad_h : g.pad_h + H, g.pad_w : g.pad_w + W]


def _filter_gradient_at(problem: Wgrad, x: NDArray[Any], dy: NDArray[Any], positions: Indices) -> Float64:
    """Elements of dfilt, tap by tap: for the filters and channels that are asked for there."""
    padded, columns = _padded(problem, x.astype(np.float64)), dy.astype(np.float64).reshape(-1, problem.K).T
    result = np.empty(len(positions[0]))
    for tap, met in _taps(problem):
        here = np.flatnonzero(np.logical_and.reduce([at == i for at, i in zip(positions[1:4], tap, strict=True)]))
        if len(here):
            filters, k = _asked_for(positions[0][here], problem.K)
            channels, c = _asked_for(positions[4][here], problem.C)
            read = padded[met][..., channels]
            result[here] = (columns[filters] @ read.reshape(-1, read.shape[-1]))[k, c]
    return result


def _asked_for(indices: NDArray[np.intp], extent: int) -> tuple[Any, NDArray[np.intp]]:
    """Which rows to take, and where each index is among them: all of them if that leaves few out."""
    rows, at = np.unique(indices, return_inverse=True)
    return (slice(None), indices) if 2 * len(rows) > extent else (rows, at)


def _filter_gradient(problem: Wgrad, x: Float64, dy: Float64) -> Float64:
    """dfilt: each tap gets what it read times dy, summed over all images and pixels."""
    padded, columns = _padded(problem, x), dy.reshape(-1, problem.K).T
    result = np.empty(problem.filt_shape)
    for tap, met in _taps(problem):
        result[(slice(None), *tap)] = columns @ padded[met].reshape(-1, problem.C)
    return result
