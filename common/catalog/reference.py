"""NumPy float64 oracles, independent of every kernel, and how far a kernel may be off; minimal filtering, too.

F(2x2,3x3), minimal filtering along two axes, makes 2 x 2 outputs of 3 x 3 taps by 16 products in place of 36 (Lavin
and Gray, "Fast Algorithms for Convolutional Neural Networks", 2016):

    outputs = A^T ((G taps G^T) * (B^T window B)) A        dtaps = G^T ((A doutputs A^T) * (B^T window B)) G
"""

import math
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from common.catalog import codes
from common.catalog.problems import INT32, SIXTEEN_BITS, UINT8, Conv2d, Convolution, Gemm, Problem

Array = NDArray[Any]
Float64 = NDArray[np.float64]
Indices = tuple[NDArray[np.intp], ...]

MINIMAL, PRUNED = "F(2x2,3x3)", "2:4"
ALGORITHMS = (MINIMAL, PRUNED)  # what a step may name as its ``ALGORITHM``

MATRICES = (
    np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, -1, 0, 1]]),  # B^T
    np.array([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]]) / 2,  # G
    np.array([[1, 1, 1, 0], [0, 1, -1, 1]]),  # A^T
)
# Taps become quarters, and an element is a sum of nine of the products' sums, each as large as the element may be.
SMALLER = 4 * 9
_TRANSFORMS = 2 * (1 + 2 + 2)  # roundings along both axes: of inputs one, of taps two, of products two

_ROUNDED, _CUT, _TF32 = 2.0**-24, 2.0**-23, 2.0**-11  # unit roundoffs
_FP8_CUT, _FP8_DEPTH = 2.0**-13, 32  # that of sums of e4m3 in the matrix unit, and products of an instruction
_TYPICALLY = 1.25  # times the error of rounding to the nearest: cutting off both inputs gives 2, one 1.6
_SEQUENTIAL = 0.47  # the error of sums of float32 normals, term by term, in units of 2**-24 * magnitude
_MARGIN, _FEW = 2, 8  # times that error for many elements; a single one may have nine times as much again


def full(problem: Problem, x: NDArray[Any], weight: NDArray[Any]) -> Float64:
    """Every output element, in float64, shape ``problem.output_shape``: by matrix products, tap by tap."""
    x, weight = codes.values(x), codes.values(weight)
    if isinstance(problem, Gemm):
        return np.asarray(x @ weight)
    y = np.zeros(problem.output_shape)
    if isinstance(problem, Conv2d):
        for r, s in np.ndindex(problem.R, problem.S):
            read = x[:, :, r : r + problem.P, s : s + problem.Q].reshape(problem.N, problem.C, -1)
            y += (weight[:, :, r, s] @ read).reshape(y.shape)
        return y
    assert isinstance(problem, Convolution)
    g, dgrad = problem.geometry, problem.form == "dgrad"
    # the input, or its gradient to be summed, with the padding of the forward convolution around it
    padded = np.pad(y if dgrad else x, [(0, 0), *((pad, pad) for pad in g[3:6]), (0, 0)])
    reach = [(count - 1) * dilation + 1 for count, dilation in zip(problem.extents("TRS"), g[6:], strict=True)]
    windows = sliding_window_view(padded, reach, axis=(1, 2, 3), writeable=True)
    windows = windows[:, :: g.stride_d, :: g.stride_h, :: g.stride_w, :, :: g[6], :: g[7], :: g[8]]
    for taps in np.ndindex(*problem.extents("TRS")):
        tap, met = (slice(None), *taps), windows[(..., *taps)]  # a tap of all filters, and the elements that it meets
        if dgrad:  # each tap gives back to the elements that it read its share of dy
            met += x @ weight[tap]
        elif problem.form == "wgrad":  # each tap gets what it read times dy, summed over all images and pixels
            y[tap] = weight.reshape(-1, problem.K).T @ met.reshape(-1, problem.C)
        else:
            y += (met.reshape(-1, problem.C) @ weight[tap].T).reshape(y.shape)
    inside = (slice(pad, pad + count) for pad, count in zip(g[3:6], problem.extents("DHW"), strict=True))
    return padded[(slice(None), *inside)] if dgrad else y


def expected(problem: Problem, x: NDArray[Any], weight: NDArray[Any]) -> Float64:
    """What a right kernel leaves where every sum is exact."""
    return stored(problem, full(problem, x, weight))


def stored(problem: Problem, sums: Float64) -> Float64:
    """Exact sums as the output holds them: rounded once, ties to even, to 16 bits; in float32 they are exact."""
    kind = problem.output_dtype
    return codes.values(codes.held(sums, kind)) if kind in SIXTEEN_BITS else sums


def error_bound(
    problem: Problem, magnitude: Float64, sums: Float64 | None = None, precision: str = "fp32",
    transformed: Float64 | None = None,
) -> Float64:  # fmt: skip
    """Largest |y - oracle| a kernel may show in any summation order, given the oracle of the absolute values:
    ``min(n, 8 sqrt(n)) * u * magnitude`` for n roundings of unit roundoff u = 2**-24, the worst case (Higham 2002,
    section 4.2) or the probabilistic bound with lambda = 8 (Higham and Mary 2019, doi:10.1137/18M1226312). Tensor
    cores cut off: u = 2**-23 (Fasi et al. 2021, doi:10.7717/peerj-cs.330), and of e4m3, 32 products at a time, what
    14 bits do not hold: u = 2**-13 (DeepSeek-AI 2024, arXiv 2412.19437, section 3.3.2). A TF32 input is rounded by
    2**-11 of itself (Ootomo and Yokota 2022, doi:10.1177/10943420221090256), an output of 16 bits by half the last
    place of ``sums``, the oracle's. ``transformed``, of minimal filtering, takes the magnitude's place (Barabasz et
    al. 2020, doi:10.1145/3412380)."""
    if problem.input_dtype == UINT8:
        return _summation(-(-problem.reduction // _FP8_DEPTH) + 1, _FP8_CUT) * magnitude
    if problem.output_dtype == INT32:
        return np.zeros_like(magnitude)
    if transformed is not None:
        return _summation(terms(problem) + 1 + _TRANSFORMS, _ROUNDED) * transformed
    cut_off = precision == "tf32" or problem.output_dtype in SIXTEEN_BITS
    bound = _summation(problem.reduction + 1, _CUT if cut_off else _ROUNDED) * magnitude
    if precision == "tf32":
        bound = bound * (1 + _TF32) ** 2 + ((1 + _TF32) ** 2 - 1) * magnitude
    if problem.output_dtype in SIXTEEN_BITS:
        assert sums is not None
        bound = bound + codes.last_place(np.abs(sums) + bound, problem.output_dtype) / 2
    return bound


def _summation(roundings: int, roundoff: float) -> float:
    return min(float(roundings), 8 * math.sqrt(roundings)) * roundoff


def nearest_tf32(values: NDArray[Any]) -> NDArray[np.float32]:
    """Float32 numbers rounded to the nearest TF32 ones, of 11 significant bits; ties to even, as the copy engine does
    (seen on an H200); NaN stays NaN."""
    numbers = np.ascontiguousarray(values, np.float32)
    bits = numbers.view(np.uint32)
    rounded = (bits + np.uint32(0x0FFF) + (bits >> np.uint32(13) & np.uint32(1))) & np.uint32(0xFFFFE000)
    return np.where(np.isnan(numbers), numbers, rounded.view(np.float32))


def typical_error(
    problem: Problem, x: NDArray[Any], weight: NDArray[Any], magnitude: Float64, sums: Float64,
    precision: str = "fp32", transformed: Float64 | None = None,
) -> float:  # fmt: skip
    """Largest root mean square of the error, over all elements, that a kernel may show on normals: it finds inputs
    that lost a few bits, where sums are long. TF32 inputs and an output of 16 bits are compared with the error of
    these very operands, rounded to the nearest. Sums of float32 normals, one after the other, err by 0.47 u of the
    magnitude for any n, as a partial sum of i terms has variance i s^2 and is rounded with u^2 i s^2 (1 - 2**-2) /
    (6 ln 2) (Hamming 1970): twice as much is allowed, more where elements are few, and u / 6 of each term's magnitude
    for transforms. Where tensor cores cut off, errors of one sum have one sign: four roundings that agree, or
    sqrt(n) / 4, more than cuBLAS was seen to have. Of e4m3 it has a third of a unit of 14 bits of the magnitude, on
    an H100 from K = 4,096 to 16,384; 2 are allowed."""
    if problem.input_dtype == UINT8:
        return 2 * _FP8_CUT * root_mean_square(magnitude)
    if problem.output_dtype == INT32:
        return 0.0
    roundings = problem.reduction + 1
    if precision != "fp32" or problem.output_dtype in SIXTEEN_BITS:
        allowed = min(float(roundings), max(4.0, math.sqrt(roundings) / 4)) * _CUT * root_mean_square(magnitude)
        if precision == "tf32":
            rounded = full(problem, nearest_tf32(x), nearest_tf32(weight)) - sums
            allowed += _TYPICALLY * root_mean_square(rounded)
        if problem.output_dtype in SIXTEEN_BITS:
            allowed += _TYPICALLY * root_mean_square(stored(problem, sums) - sums)
        return allowed
    allowed = _SEQUENTIAL * root_mean_square(magnitude)
    if transformed is not None:
        allowed += root_mean_square(transformed) / (6 * math.sqrt(terms(problem)))
    squares = np.square(magnitude)
    elements = max(1.0, float(squares.sum() ** 2 / max(np.square(squares).sum(), np.finfo(float).tiny)))
    return _MARGIN * (1 + _FEW / math.sqrt(elements)) * _ROUNDED * allowed


def root_mean_square(values: Float64) -> float:
    """Over all elements."""
    return float(np.sqrt(np.mean(np.square(values))))


def applies(problem: Problem, algorithm: str | None) -> bool:
    """May a step compute the problem by this algorithm? F(2x2,3x3): flat filters, at a stride and dilation of 1."""
    if algorithm != MINIMAL or not isinstance(problem, Convolution):
        return False
    g = problem.geometry
    flat = (problem.D, problem.T, problem.R, problem.S, g.pad_d) == (1, 1, 3, 3, 0)
    return flat and (*g[:3], *g[6:]) == (1,) * 6


def exact_below(problem: Problem, algorithm: str | None) -> int:
    """What the definition's sums of integers must stay below to be exact; of sums of e4m3 14 bits are kept."""
    if problem.output_dtype == INT32:
        return 2**31
    if problem.input_dtype == UINT8:
        return 2**13
    return 2**24 // SMALLER if applies(problem, algorithm) else 2**24


def terms(problem: Problem) -> int:
    """Products in a sum of F(2x2,3x3): one for each channel, filter or patch."""
    assert isinstance(problem, Convolution)
    patches = problem.N * -(-problem.P // 2) * -(-problem.Q // 2)
    return int({"wgrad": patches, "dgrad": problem.K}.get(problem.form, problem.C))


def transformed_magnitude(problem: Problem, x: Array, weight: Array) -> Float64:
    """What F(2x2,3x3) sums for each element, all taken positive: all taps of a filter meet all inputs of a window."""
    assert isinstance(problem, Convolution)
    of_inputs, of_taps, of_products = map(np.abs, MATRICES)
    met = np.einsum("ia,ar,au->iru", of_products, of_taps, of_inputs)  # along an axis: output, tap, input
    x, weight = (np.abs(one[:, 0]).astype(np.float64) for one in (x, weight))
    pads = problem.pad_h, problem.pad_w
    if problem.form == "wgrad":
        windows, doutputs = patches(x, 4, pads, (problem.P, problem.Q)), patches(weight, 2, (0, 0), weight.shape[1:3])
        products = np.tensordot(windows, doutputs, ((2, 3, 4), (2, 3, 4)))
        return np.asarray(np.einsum("uvcijk,iru,jsv->krsc", products, met, met, optimize=True)[:, None])
    filters = weight.transpose(1, 2, 3, 0)
    if problem.form == "dgrad":
        pads, filters = (2 - problem.pad_h, 2 - problem.pad_w), weight[:, ::-1, ::-1].transpose(1, 2, 0, 3)
    rows, columns = problem.output_shape[2:4]
    windows = patches(x, 4, pads, (rows, columns))
    spread = np.einsum("rsck,iru,jsv->uvcijk", filters, met, met, optimize=True)
    sums = np.tensordot(windows, spread, ((0, 1, 5), (0, 1, 2))).swapaxes(2, 3)  # (N, down, 2, across, 2, K)
    images, down, _, across, _, _ = sums.shape
    return np.asarray(sums.reshape(images, 1, 2 * down, 2 * across, -1)[:, :, :rows, :columns])


def patches(x: Array, size: int, pads: tuple[int, int], outputs: tuple[int, int]) -> Array:
    """The windows of ``size`` x ``size``, two apart, from -pad on, of so many outputs; x is (N, H, W, C), and zero
    outside: (size, size, N, patches down, patches across, C)."""
    for axis, pad, extent in zip((1, 2), pads, outputs, strict=True):
        taken = np.arange(extent + extent % 2 + size - 2) - pad
        inside = (taken >= 0) & (taken < x.shape[axis])
        x = np.take(x, taken, axis, mode="clip") * np.expand_dims(inside, [one for one in range(4) if one != axis])
    return np.moveaxis(sliding_window_view(x, (size, size), axis=(1, 2))[:, ::2, ::2], (4, 5), (0, 1))
