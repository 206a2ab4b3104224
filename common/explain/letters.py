"""Index letters: a problem's definition written in them, what a mistake in them gives, and where elements lie.

An environment maps letters (and a convolution's stride, padding and dilation) to arrays that broadcast to
(elements, terms): letters of the output to (elements, 1), letters summed over to (1, terms).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.catalog import codes, reference
from common.catalog.problems import SIXTEEN_BITS, Convolution, Dgrad, Geometry, Problem

Array = NDArray[Any]
Env = dict[str, Any]
Positions = tuple[NDArray[np.intp], ...]

X, WEIGHT = "x", "weight"
OUTPUT = "output"  # in place of an operand
ALL = "gemm_k"  # in place of a letter: the terms in their order
_TILES = (32, 16, 8)
_STEPS = (2, 4, 8, 16, 32)


# h = p * stride_h - pad_h + r * dilation_h
_FORWARD = {"d": ("o", "t"), "h": ("p", "r"), "w": ("q", "s")}
# p = (h + pad_h - r * dilation_h) / stride_h, if that leaves no rest
_BACK = {"o": ("d", "t"), "p": ("h", "r"), "q": ("w", "s")}
ROUNDS = "rounds"  # in an environment: such a rest is not looked at


def axes_of(problem: Problem) -> tuple[str, str, str]:
    """The letters of the axes of x, of the weight and of the output."""
    x, weight, output = problem.arrays
    return x.lower(), weight.lower(), output.lower()


def extents(problem: Problem) -> dict[str, int]:
    """The extent of each index letter, and how many terms an element has."""
    return {u.lower(): getattr(problem, u) for u in "".join(problem.arrays)} | {ALL: problem.reduction}


def environment(problem: Problem, positions: Positions) -> Env:
    """The letters at output ``positions`` (one array per output axis)."""
    summed = problem.summed.lower()
    env: Env = {u: at[:, None] for u, at in zip(axes_of(problem)[2], positions, strict=True)}
    grid = np.indices(problem.extents(problem.summed)).reshape(len(summed), 1, -1)
    env |= dict(zip(summed, grid, strict=True))
    geometry = problem.geometry if isinstance(problem, Convolution) else Geometry()
    return env | geometry._asdict()


def sides(problem: Problem) -> dict[str, tuple[str, str]]:
    """The axes of x whose index follows from a letter of pixels and one of taps: those two."""
    if problem.form == "gemm":
        return {}
    pairs = _BACK if isinstance(problem, Dgrad) else _FORWARD
    return {u: pairs[u] for u in axes_of(problem)[0] if u in pairs}


def coordinates(problem: Problem, operand: str, env: Env) -> tuple[Any, ...]:
    """The element of ``x`` or ``weight`` that each term reads. Coordinates of x may lie outside: -1 where a division
    of a gradient leaves a rest."""
    (x_axes, weight_axes, _), pairs = axes_of(problem), sides(problem)
    if operand == WEIGHT:
        return tuple(env[u] for u in weight_axes)
    found = []
    for u in x_axes:
        if u not in pairs:
            found.append(env[u])
            continue
        out, tap = pairs[u]
        if isinstance(problem, Dgrad):
            reached = env[out] + env[f"pad_{out}"] - env[tap] * env[f"dilation_{out}"]
            index, rest = np.divmod(reached, env[f"stride_{out}"])
            found.append(index if ROUNDS in env else np.where(rest == 0, index, -1))
        else:
            found.append(env[out] * env[f"stride_{u}"] - env[f"pad_{u}"] + env[tap] * env[f"dilation_{u}"])
    return tuple(found)


def products(problem: Problem, env: Env, x: Array, weight: Array, weight_env: Env | None = None) -> Array:
    """The terms of each output element of ``env``, shape (elements, terms): what lies outside of x adds 0.
    ``weight_env``: the letters by which ``weight`` is read, if others."""
    factors = []
    for operand, array, letters in ((X, x, env), (WEIGHT, weight, weight_env or env)):
        offset: Any = 0
        inside: Any = True
        for at, extent in zip(coordinates(problem, operand, letters), array.shape, strict=True):
            offset = offset * extent + at
            inside = inside & (at >= 0) & (at < extent)
        values = codes.values(array.reshape(-1).take(np.where(inside, offset, 0)))
        factors.append(np.where(inside, values, 0.0))
    shape = len(env[axes_of(problem)[2][0]]), problem.reduction
    with np.errstate(invalid="ignore"):
        return np.broadcast_to(factors[0] * factors[1], shape)


@dataclass
class Evidence:
    """What a kernel stored at ``positions`` of the output, and on which operands; ``whole`` is the right output."""

    problem: Problem
    x: Array
    weight: Array
    positions: Positions
    got: Array
    whole: Array

    def __len__(self) -> int:
        return len(self.positions[0])

    @property
    def expected(self) -> Array:
        return np.asarray(self.whole[self.positions])

    @cached_property
    def slack(self) -> Array:
        """How far right values may be off: those that are worked out here are not rounded to 16 bits."""
        if self.problem.output_dtype not in SIXTEEN_BITS:
            return np.zeros(self.got.shape)
        return reference.last_place(self.problem, np.abs(self.got))

    @cached_property
    def env(self) -> Env:
        return environment(self.problem, self.positions)

    @cached_property
    def table(self) -> Array:
        """The right terms, (positions, terms)."""
        return products(self.problem, self.env, self.x, self.weight)

    def some(self, count: int) -> Evidence:
        """At most ``count`` of the positions, spread evenly."""
        chosen = np.linspace(0, len(self) - 1, min(count, len(self))).astype(np.intp)
        return replace(self, positions=tuple(axis[chosen] for axis in self.positions), got=self.got[chosen])

    def sums(self, x: Array | None = None, weight: Array | None = None) -> Array:
        """The elements if other operands were read."""
        x, weight = self.x if x is None else x, self.weight if weight is None else weight
        return np.asarray(products(self.problem, self.env, x, weight).sum(axis=1))

    def changed(self, operand: str, **forms: str) -> Array:
        """The elements if expressions stood in the place of letters of an operand, or of the output's place."""
        problem, env = self.problem, self.env
        names = env | {u.upper(): n for u, n in extents(problem).items()}
        new = env | {u: eval(text, {}, names) + 0 * env.get(u, 0) for u, text in forms.items()}
        if operand == OUTPUT:
            at = [np.broadcast_to(new[u], (len(self), 1))[:, 0] for u in axes_of(problem)[2]]
            inside = np.logical_and.reduce([(i >= 0) & (i < n) for i, n in zip(at, self.whole.shape, strict=True)])
            return np.where(inside, self.whole[tuple(np.where(inside, i, 0) for i in at)], np.nan)
        x, weight = (new, env) if operand == X else (env, new)
        return np.asarray(products(problem, x, self.x, self.weight, weight).sum(axis=1))


def where(problem: Problem, wrong: NDArray[np.bool_]) -> str:
    """The region of ``wrong`` (output's shape): a box, or slabs that cross; empty when it is neither."""
    if not wrong.any() or wrong.all():
        return ""
    names, axes = axes_of(problem)[2], range(wrong.ndim)
    others = [tuple(i for i in axes if i != axis) for axis in axes]
    box = [_range(names[axis], np.asarray(wrong.any(axis=others[axis]))) for axis in axes]
    if any(box):
        return "only " + " and ".join(filter(None, box))
    # the last tile of several axes is no box but slabs that cross
    covered, slabs = np.zeros_like(wrong), []
    for axis in axes:
        whole = np.asarray(wrong.all(axis=others[axis]))
        slabs.append(_range(names[axis], whole))
        if slabs[-1]:
            np.moveaxis(covered, axis, 0)[whole] = True
    return "only " + " or ".join(filter(None, slabs)) if np.array_equal(covered, wrong) else ""


def _range(name: str, inside: NDArray[np.bool_]) -> str:
    """The indices of one axis that are ``inside``; empty when all or none are, or they follow no pattern."""
    extent = len(inside)
    hit = np.flatnonzero(inside)
    if len(hit) in (0, extent):
        return ""
    first, last = int(hit[0]), int(hit[-1])
    contiguous = len(hit) == last - first + 1
    if first == last:
        return f"{name} = {first}" + (", the last" if first == extent - 1 > 0 else "")
    if contiguous and last == extent - 1:
        tile = next((size for size in _TILES if first % size == 0 and extent - first <= size), None)
        return f"{name} >= {first}" + (f", the last tile of {tile}" if tile else "")
    if contiguous:
        return f"{first} <= {name} <= {last}"
    if np.array_equal(hit, [0, extent - 1]):
        return f"the two borders of {name}"
    for size in (step for step in _STEPS if step < extent):
        rests = np.unique(hit % size)
        low, high = int(rests[0]), int(rests[-1])
        whole = np.isin(np.arange(extent) % size, rests).sum() == len(hit)
        if whole and high - low + 1 == len(rests) < size:
            return f"{name} % {size} = {low}" if low == high else f"{low} <= {name} % {size} <= {high}"
    return ""


class Hypothesis(NamedTuple):
    """One mistake: ``cost``, the least for the simplest, its sentence, and the values that it would give."""

    cost: float
    text: str
    predict: Callable[[Evidence], Array]

    def holds(self, evidence: Evidence) -> float:
        """The share of the positions that hold what the mistake would give."""
        with np.errstate(all="ignore"):
            return float((np.abs(self.predict(evidence) - evidence.got) <= evidence.slack).mean())
