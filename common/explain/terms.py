"""The products that an output element sums, in index letters, so that a definition can be changed letter by letter.

An environment maps index letters (and a convolution's stride, padding and dilation) to arrays that broadcast to
(elements, terms): letters of the output to (elements, 1), letters summed over to (1, terms).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.catalog.problems import Convolution, Dgrad, Geometry, Problem

Array = NDArray[Any]
Env = dict[str, Any]
Positions = tuple[NDArray[np.intp], ...]

X, WEIGHT = "x", "weight"


class Layout(NamedTuple):
    """A form's letters: of the output, summed over, and of either operand's elements; and the arrays' names."""

    output: tuple[str, ...]
    summed: tuple[str, ...]
    x: tuple[str, ...]
    weight: tuple[str, ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, names: str, *letters: str) -> Layout:
        output, summed, x, weight = map(tuple, letters)
        return cls(output, summed, x, weight, tuple(names.split()))


LAYOUTS = {
    "gemm": Layout.of("a b c", "mn", "k", "mk", "kn"),
    "conv2d": Layout.of("x filt y", "nkpq", "crs", "nchw", "kcrs"),
    "conv3d": Layout.of("x filt y", "nopqk", "trsc", "ndhwc", "ktrsc"),
    "dgrad": Layout.of("dy filt dx", "ndhwc", "trsk", "nopqk", "ktrsc"),
    "wgrad": Layout.of("x dy dfilt", "ktrsc", "nopq", "ndhwc", "nopqk"),
}
# h = p * stride_h - pad_h + r * dilation_h
_FORWARD = {"d": ("o", "t"), "h": ("p", "r"), "w": ("q", "s")}
# p = (h + pad_h - r * dilation_h) / stride_h, if that leaves no rest
_BACK = {"o": ("d", "t"), "p": ("h", "r"), "q": ("w", "s")}
_NOWHERE = -(1 << 36)  # an index of dy where the division leaves a rest; its address is lower still
ROUNDS = "rounds"  # in an environment: such a rest is not looked at


@lru_cache(maxsize=64)
def extents(problem: Problem) -> dict[str, int]:
    """The extent of each index letter."""
    layout = LAYOUTS[problem.form]
    parts = zip((layout.x, layout.weight, layout.output), problem.shapes, strict=True)
    return {u: n for letters, shape in parts for u, n in zip(letters, shape, strict=True)}


def summed_shape(problem: Problem) -> tuple[int, ...]:
    """The extents of the letters summed over."""
    extent = extents(problem)
    return tuple(extent[u] for u in LAYOUTS[problem.form].summed)


def environment(problem: Problem, positions: Positions) -> Env:
    """The letters at output ``positions`` (one array per output axis)."""
    layout = LAYOUTS[problem.form]
    env: Env = {u: at[:, None] for u, at in zip(layout.output, positions, strict=True)}
    grid = np.indices(summed_shape(problem)).reshape(len(layout.summed), 1, -1)
    env |= dict(zip(layout.summed, grid, strict=True))
    geometry = problem.geometry if isinstance(problem, Convolution) else Geometry()
    return env | geometry._asdict()


def spatial(problem: Problem) -> dict[str, tuple[str, str]]:
    """The axes of the input whose index follows from a letter of pixels and one of taps: those two."""
    if problem.form == "gemm":
        return {}
    pairs = _BACK if isinstance(problem, Dgrad) else _FORWARD
    return {u: pairs[u] for u in LAYOUTS[problem.form].x if u in pairs}


def coordinates(problem: Problem, operand: str, env: Env) -> tuple[Any, ...]:
    """The element of ``x`` or ``weight`` that each term reads; coordinates of x may lie outside."""
    layout = LAYOUTS[problem.form]
    if operand == WEIGHT:
        return tuple(env[u] for u in layout.weight)
    pairs = spatial(problem)
    return tuple(_along(problem, u, *pairs[u], env) if u in pairs else env[u] for u in layout.x)


def _along(problem: Problem, u: str, out: str, tap: str, env: Env) -> Any:
    """The coordinate on the axis ``u`` of x."""
    if isinstance(problem, Dgrad):
        reached = env[out] + env[f"pad_{out}"] - env[tap] * env[f"dilation_{out}"]
        index, rest = np.divmod(reached, env[f"stride_{out}"])
        return index if ROUNDS in env else np.where(rest == 0, index, _NOWHERE)
    return env[out] * env[f"stride_{u}"] - env[f"pad_{u}"] + env[tap] * env[f"dilation_{u}"]


def _offsets(index: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[Any, Any]:
    """The row-major offset of each element, and whether each of its indices lies on its axis."""
    offset: Any = 0
    inside: Any = True
    for axis, (at, extent) in enumerate(zip(index, shape, strict=True)):
        offset = offset + at * math.prod(shape[axis + 1 :])
        inside = inside & (at >= 0) & (at < extent)
    return offset, inside


def addresses(problem: Problem, operand: str, env: Env) -> tuple[Any, Array | None]:
    """Row-major offsets of what each term reads of ``x`` or ``weight``, 0 outside; and what is inside (None: all)."""
    shape = problem.weight_shape if operand == WEIGHT else problem.input_shape
    offset, inside = _offsets(coordinates(problem, operand, env), shape)
    return (offset, None) if np.all(inside) else (np.where(inside, offset, 0), inside)


def read(array: Array, index: tuple[Any, ...], flat: bool = False) -> Array:
    """``array`` at ``index``. Outside it that is zero, or, with ``flat``, what memory holds there, NaN beyond it."""
    offset, inside = _offsets(index, array.shape)
    nothing: Any = 0.0
    if flat:
        inside = (offset >= 0) & (offset < array.size)
        nothing = np.where(offset > _NOWHERE // 2, np.nan, 0.0)
    values = array.reshape(-1).take(np.where(inside, offset, 0)).astype(np.float64)
    return np.where(inside, values, nothing)


def products(
    problem: Problem, env: Env, x: Array, weight: Array, weight_env: Env | None = None, flat: bool = False
) -> Array:
    """The terms of each output element of ``env``, shape (elements, terms).

    ``weight_env``: the letters by which ``weight`` is read, if they are others than those of ``x``. ``flat``: as for
    :func:`read`, of both operands.
    """
    factors = (
        read(array, coordinates(problem, operand, letters), flat)
        for operand, array, letters in ((X, x, env), (WEIGHT, weight, weight_env or env))
    )
    first, second = factors
    shape = len(env[LAYOUTS[problem.form].output[0]]), problem.reduction
    with np.errstate(invalid="ignore"):
        return np.broadcast_to(first * second, shape)
