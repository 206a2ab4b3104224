"""What a wrong result looks like: the usual mistakes, tried in turn, and where the wrong elements lie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common import reference
from common.problems import Conv2d, Conv3d, Gemm, Problem

Array = NDArray[Any]

AXES = {
    "gemm": ("m", "n"),
    "conv2d": ("n", "k", "p", "q"),
    "conv3d": ("n", "o", "p", "q", "k"),
}
_TILES = (32, 16, 8)


def explain(problem: Problem, x: Array, weight: Array, got: Array, expected: Array) -> str:
    """One sentence on what the wrong elements suggest; empty when nothing fits.

    ``got`` and ``expected`` have the output's shape; ``got`` may hold NaN where nothing was written.
    """
    for mistake, result in _mistakes(problem, x, weight, expected):
        if result.shape == got.shape and np.array_equal(result, got) and not np.array_equal(result, expected):
            return mistake
    wrong = got != expected
    return _shift(problem, got, expected) or _padding(problem, wrong) or where(problem, wrong)


def where(problem: Problem, wrong: NDArray[np.bool_]) -> str:
    """Describe the region of ``wrong`` (output's shape), axis by axis; empty when it has no shape."""
    box, slabs = [], []
    covered = np.zeros_like(wrong)
    for axis, name in enumerate(AXES[problem.ladder]):
        others = tuple(i for i in range(wrong.ndim) if i != axis)
        box.append(_range(name, np.asarray(wrong.any(axis=others))))
        whole = np.asarray(wrong.all(axis=others))
        slabs.append(_range(name, whole))
        if slabs[-1]:
            np.moveaxis(covered, axis, 0)[whole] = True
    if any(box):
        return "only " + " and ".join(filter(None, box))
    # the last tile of several axes is no box but slabs that cross
    if any(slabs) and np.array_equal(covered, wrong):
        return "only " + " or ".join(filter(None, slabs))
    return ""


def where_sampled(problem: Problem, positions: tuple[NDArray[Any], ...]) -> str:
    """The box around wrong samples, for the axes on which it is narrower than the output."""
    parts = []
    for name, extent, hit in zip(AXES[problem.ladder], problem.output_shape, positions, strict=True):
        inside = np.zeros(extent, np.bool_)
        inside[int(hit.min()) : int(hit.max()) + 1] = True
        parts.append(_range(name, inside))
    return "only " + " and ".join(filter(None, parts)) if any(parts) else ""


def _range(name: str, inside: NDArray[np.bool_]) -> str:
    """The indices of one axis that are ``inside``; empty when all or none are, or they follow no pattern."""
    extent = len(inside)
    hit = np.flatnonzero(inside)
    if len(hit) in (0, extent):
        return ""
    first, last = int(hit[0]), int(hit[-1])
    contiguous = len(hit) == last - first + 1
    tile = next((size for size in _TILES if first % size == 0 and extent - first <= size), None)
    if contiguous and last == extent - 1 and first > 0:
        if first == last:
            return f"{name} = {first}, the last"
        return f"{name} >= {first}" + (f", the last tile of {tile}" if tile else "")
    if first == last:
        return f"{name} = {first}"
    if np.array_equal(hit, [0, extent - 1]):
        return f"the two borders of {name}"
    return f"{first} <= {name} <= {last}" if contiguous else ""


def _mistakes(problem: Problem, x: Array, weight: Array, expected: Array) -> Iterator[tuple[str, Array]]:
    """Pairs of a mistake's description and the output it would give."""

    def result(x: Array, weight: Array) -> Array:
        return reference.full(problem, x, weight)

    if isinstance(problem, Gemm):
        yield "transposed: c is stored column by column, c[n, m] in place of c[m, n]", _restored(expected, 0, 1)
        yield "a is read transposed, a[k, m] in place of a[m, k]", result(_reread(x, 0, 1), weight)
        yield "b is read transposed, b[n, k] in place of b[k, n]", result(x, _reread(weight, 0, 1))
        yield "the last term, k = K - 1, is left out", result(x, _without(weight, 0, problem.K - 1))
        for size in (*_TILES, 4, 2):
            whole = problem.K // size * size
            if whole < problem.K:
                rest = weight.copy()
                rest[whole:] = 0
                yield (
                    f"the sum stops at k = {whole}: the last {problem.K - whole} terms are left out",
                    result(x, rest),
                )
        yield "the first term, k = 0, is left out", result(x, _without(weight, 0, 0))
        return

    assert isinstance(problem, Conv2d | Conv3d)
    if isinstance(problem, Conv2d):
        taps = {"r": 2, "s": 3}
        channel = 1
        yield "transposed: y[.., q, p] in place of y[.., p, q]", _restored(expected, 2, 3)
    else:
        taps = {"t": 1, "r": 2, "s": 3}
        channel = 4
        yield "transposed: y[.., q, p, ..] in place of y[.., p, q, ..]", _restored(expected, 2, 3)
        if problem.C > 1:
            moved = weight.reshape(problem.K, problem.C, problem.T, problem.R, problem.S)
            yield "filt is read in KCTRS order, and it is stored KTRSC", result(x, np.moveaxis(moved, 1, -1))
    axes = tuple(taps.values())
    yield (
        "the filter is flipped: this is convolution, and cross-correlation is asked for",
        result(x, np.flip(weight, axes)),
    )
    yield "r and s are swapped: h pairs with r and w with s", result(x, _reread(weight, 2, 3))
    for c in range(problem.C if problem.C > 1 else 0):
        yield f"channel c = {c} is left out", result(x, _without(weight, channel, c))
    for name, axis in taps.items():
        extent = weight.shape[axis]
        if extent > 1:
            yield (
                f"the last filter tap, {name} = {extent - 1}, is left out",
                result(x, _without(weight, axis, extent - 1)),
            )
            yield f"the first filter tap, {name} = 0, is left out", result(x, _without(weight, axis, 0))


def _restored(array: Array, first: int, second: int) -> Array:
    """What memory of the array's shape holds if its values are stored with two axes swapped."""
    return array.swapaxes(first, second).reshape(array.shape)


def _reread(array: Array, first: int, second: int) -> Array:
    """What is read from the array's memory, in the array's shape, if two axes are taken as swapped."""
    shape = list(array.shape)
    shape[first], shape[second] = shape[second], shape[first]
    return array.reshape(shape).swapaxes(first, second)


def _without(array: Array, axis: int, index: int) -> Array:
    """A copy with one slice set to zero."""
    copy = array.copy()
    np.moveaxis(copy, axis, 0)[index] = 0
    return copy


def _padding(problem: Problem, wrong: NDArray[np.bool_]) -> str:
    """Are the wrong elements those whose taps reach the padding, most of them at least?"""
    if not isinstance(problem, Conv3d):
        return ""
    ones = (np.ones(shape) for shape in (problem.input_shape, problem.weight_shape))
    padded = reference.full(problem, *ones) < problem.reduction
    if padded.all() or wrong[~padded].any() or 2 * wrong.sum() <= padded.sum():
        return ""
    return "only where the filter reaches over an edge of the input: a tap on the padding must add nothing"


def _shift(problem: Problem, got: Array, expected: Array) -> str:
    """Is the result the right one, moved by one along an axis?"""
    for axis, name in enumerate(AXES[problem.ladder]):
        extent = got.shape[axis]
        if extent < 3:
            continue
        for step, text in ((1, f"{name} + 1"), (-1, f"{name} - 1")):
            inner = np.arange(max(0, -step), extent - max(0, step))
            if np.array_equal(np.take(got, inner, axis), np.take(expected, inner + step, axis)):
                return (
                    f"shifted: at {name} stands the value of {text}, as from an offset wrong by one (halo, padding)"
                )
    return ""
