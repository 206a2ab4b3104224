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
    shifted = _shift(problem, got, expected)
    return shifted or where(problem, got != expected)


def where(problem: Problem, wrong: NDArray[np.bool_]) -> str:
    """Describe the region of ``wrong`` (output's shape), axis by axis; empty when it has no shape."""
    parts = []
    for axis, name in enumerate(AXES[problem.ladder]):
        extent = wrong.shape[axis]
        others = tuple(i for i in range(wrong.ndim) if i != axis)
        hit = np.flatnonzero(wrong.any(axis=others))
        if len(hit) in (0, extent):
            continue
        first, last = int(hit[0]), int(hit[-1])
        contiguous = len(hit) == last - first + 1
        tile = next((size for size in _TILES if first % size == 0 and extent - first <= size), None)
        if contiguous and last == extent - 1 and first > 0:
            if first == last:
                parts.append(f"{name} = {first}, the last")
            elif tile:
                parts.append(f"{name} >= {first}, the last tile of {tile}")
            else:
                parts.append(f"{name} >= {first}")
        elif first == last:
            parts.append(f"{name} = {first}")
        elif np.array_equal(hit, [0, extent - 1]):
            parts.append(f"the two borders of {name}")
        elif contiguous:
            parts.append(f"{first} <= {name} <= {last}")
    return "only " + " and ".join(parts) if parts else ""


def _mistakes(problem: Problem, x: Array, weight: Array, expected: Array) -> Iterator[tuple[str, Array]]:
    """Pairs of a mistake's description and the output it would give."""

    def result(x: Array, weight: Array) -> Array:
        return reference.full(problem, x, weight)

    if isinstance(problem, Gemm):
        if problem.M == problem.N:
            yield "transposed: c[m, n] holds the value of c[n, m]", expected.T
        if problem.M == problem.K:
            yield "a is read transposed, a[k, m] in place of a[m, k]", result(x.T, weight)
        if problem.K == problem.N:
            yield "b is read transposed, b[n, k] in place of b[k, n]", result(x, weight.T)
        for size in (*_TILES, 4, 2):
            whole = problem.K // size * size
            if whole < problem.K:
                rest = weight.copy()
                rest[whole:] = 0
                yield (
                    f"the sum stops at k = {whole}: the last {problem.K - whole} terms are left out",
                    result(x, rest),
                )
        yield "the last term, k = K - 1, is left out", result(x, _without(weight, 0, problem.K - 1))
        yield "the first term, k = 0, is left out", result(x, _without(weight, 0, 0))
        return

    assert isinstance(problem, Conv2d | Conv3d)
    if isinstance(problem, Conv2d):
        taps = {"r": 2, "s": 3}
        channel = 1
        if problem.P == problem.Q:
            yield "transposed: y[.., p, q] holds the value of y[.., q, p]", expected.swapaxes(2, 3)
    else:
        taps = {"t": 1, "r": 2, "s": 3}
        channel = 4
        if problem.P == problem.Q:
            yield "transposed: y[.., p, q, ..] holds the value of y[.., q, p, ..]", expected.swapaxes(2, 3)
        if problem.C > 1:
            moved = weight.reshape(problem.K, problem.C, problem.T, problem.R, problem.S)
            yield "filt is read in KCTRS order, and it is stored KTRSC", result(x, np.moveaxis(moved, 1, -1))
    axes = tuple(taps.values())
    yield (
        "the filter is flipped: this is convolution, and cross-correlation is asked for",
        result(x, np.flip(weight, axes)),
    )
    if problem.R == problem.S:
        yield "r and s are swapped: h pairs with r and w with s", result(x, weight.swapaxes(2, 3))
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


def _without(array: Array, axis: int, index: int) -> Array:
    """A copy with one slice set to zero."""
    copy = array.copy()
    np.moveaxis(copy, axis, 0)[index] = 0
    return copy


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
