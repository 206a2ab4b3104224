"""Mistakes that wrong values are compared with: each is a changed definition, a sentence, and how odd it is.

Here are those of values and of how an operand is read. Those of index letters are in :mod:`common.explain.letters`,
those of terms that are missing in :mod:`common.explain.omissions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.catalog import reference
from common.catalog.problems import Conv2d, Convolution, Dgrad, Gemm, Problem, Wgrad
from common.explain import terms
from common.explain.terms import LAYOUTS, WEIGHT, Array, Positions, X

PAIRED = "r and s are swapped: h pairs with r and w with s"


@dataclass
class Evidence:
    """What a kernel stored at some positions of the output, and on which operands.

    ``got``, ``expected`` and ``slack``, how far a right value may be off, have one value a position. ``whole`` is
    the right output in its own shape, if that is known.
    """

    problem: Problem
    x: Array
    weight: Array
    positions: Positions
    got: Array
    expected: Array
    slack: Array
    whole: Array | None = None

    def __post_init__(self) -> None:
        self.env = terms.environment(self.problem, self.positions)
        self._table: Array | None = None

    def __len__(self) -> int:
        return len(self.positions[0])

    @property
    def table(self) -> Array:
        """The right terms, (positions, terms)."""
        if self._table is None:
            self._table = terms.products(self.problem, self.env, self.x, self.weight)
        return self._table

    def some(self, count: int) -> Evidence:
        """At most ``count`` of the positions, spread evenly."""
        if len(self) <= count:
            return self
        chosen = np.linspace(0, len(self) - 1, count).astype(np.intp)
        got, expected, slack = (part[chosen] for part in (self.got, self.expected, self.slack))
        at = tuple(axis[chosen] for axis in self.positions)
        return replace(self, positions=at, got=got, expected=expected, slack=slack)

    def right_at(self, positions: Positions) -> Array:
        """What other elements should hold; NaN where there is none."""
        shape = self.problem.output_shape
        inside = np.logical_and.reduce([(at >= 0) & (at < n) for at, n in zip(positions, shape, strict=True)])
        at = tuple(np.where(inside, axis, 0) for axis in positions)
        if self.whole is not None:
            values = self.whole[at]
        else:
            values = reference.stored(self.problem, reference.at(self.problem, self.x, self.weight, at))
        return np.where(inside, values, np.nan)

    def sums(self, x: Array | None = None, weight: Array | None = None) -> Array:
        """The elements if other operands were read."""
        x, weight = self.x if x is None else x, self.weight if weight is None else weight
        return np.asarray(terms.products(self.problem, self.env, x, weight).sum(axis=1))


class Hypothesis(NamedTuple):
    """One mistake: ``cost`` ranks those that explain as much, the least is the simplest; and what it would give."""

    cost: float
    text: str | Callable[[Evidence], str]
    predict: Callable[[Evidence], Array]

    def holds(self, evidence: Evidence) -> NDArray[np.bool_]:
        """Which positions hold what the mistake would give."""
        with np.errstate(all="ignore"):
            return np.asarray(np.abs(self.predict(evidence) - evidence.got) <= evidence.slack)

    def said(self, evidence: Evidence) -> str:
        return self.text if isinstance(self.text, str) else self.text(evidence)


# --- what became of a right sum ---


def _clipped(low: float, high: float) -> Callable[[Array], Array]:
    return lambda v: np.clip(v, low, high)


_VALUES: tuple[tuple[str, Callable[[Array], Array]], ...] = (
    ("each is 0", lambda y: y * 0),
    ("the sign is flipped", lambda y: -y),
    ("the absolute value is stored", np.abs),
    ("negative results are 0", lambda y: np.maximum(y, 0)),
    ("the result is kept in 8 bits", lambda y: (np.trunc(y) + 128) % 256 - 128),
    ("the result is kept in 8 bits, unsigned", lambda y: np.trunc(y) % 256),
    ("the result is clipped to 0 to 255", _clipped(0, 255)),
    *((f"the result is clipped at {limit} above", _clipped(-np.inf, limit)) for limit in (127, 32767, 65504)),
    *((f"the result is clipped at {limit}", _clipped(-limit, limit)) for limit in (127, 32767, 65504)),
    ("the result is rounded to float16", lambda y: y.astype(np.float16).astype(np.float64)),
    ("the result is cut to a whole number", np.trunc),
)


def values(evidence: Evidence) -> Iterator[Hypothesis]:
    """The right value, changed by a function, by a factor or by an offset that the elements share."""
    for number, (text, change) in enumerate(_VALUES):
        yield Hypothesis(number / 5 - 2, text, lambda e, change=change: change(e.expected))  # type: ignore[misc]
    got, right = evidence.got, evidence.expected
    if (right != 0).sum() < 3:
        return
    factor = float(np.median(got[right != 0] / right[right != 0]))
    if factor not in (0.0, 1.0, -1.0) and factor * 48 == round(factor * 48):
        times = {2.0: "twice", 0.5: "half"}.get(factor, f"{factor:g} times")
        yield Hypothesis(1, f"each is {times} the right value", lambda e: e.expected * factor)
    offset = float(np.median(got - right))
    if offset and offset == round(offset):
        more = f"{abs(offset):g} too {'large' if offset > 0 else 'small'}"
        yield Hypothesis(2, f"each is {more}", lambda e: e.expected + offset)


def stored(evidence: Evidence) -> Iterator[Hypothesis]:
    """Right results stored with two axes in the other order."""
    problem, whole = evidence.problem, evidence.whole
    if whole is None:
        return
    letters, name = LAYOUTS[problem.form].output, LAYOUTS[problem.form].names[2]
    for i, u in enumerate(letters):
        for j, v in enumerate(letters[i + 1 :], i + 1):
            text = f"transposed: {u} and {v} of {name} are stored in each other's place"
            if isinstance(problem, Gemm):
                text = "transposed: c is stored column by column, c[n, m] in place of c[m, n]"
            elif (i, j) == (2, 3):
                tail = ", ..]" if isinstance(problem, Convolution) else "]"
                text = f"transposed: {name}[.., {v}, {u}{tail} in place of {name}[.., {u}, {v}{tail}"
            moved = whole.swapaxes(i, j).reshape(whole.shape)
            yield Hypothesis(1.5, text, lambda e, moved=moved: moved[e.positions])  # type: ignore[misc]
    if isinstance(problem, Wgrad):
        text = "the filter is flipped: dfilt[.., t, r, s, ..] holds what T - 1 - t, R - 1 - r, S - 1 - s should"
        yield Hypothesis(0.5, text, lambda e: np.flip(whole, (1, 2, 3))[e.positions])


# --- operands read otherwise ---


def _reordered(array: Array, first: int, second: int) -> Array:
    """What is read from the array's memory, in the array's shape, if two axes are taken as swapped."""
    shape = list(array.shape)
    shape[first], shape[second] = shape[second], shape[first]
    return array.reshape(shape).swapaxes(first, second)


def _spaced(array: Array, axis: int, extent: int) -> Array:
    """What is read if the axis is taken to be ``extent`` long; NaN beyond the array."""
    address: Any = 0
    for i, at in enumerate(np.ogrid[tuple(slice(n) for n in array.shape)]):
        address = address * (extent if i == axis else array.shape[i]) + at
    found = array.reshape(-1)[np.minimum(address, array.size - 1)]
    return np.where(address < array.size, found, np.nan)


def _channels_last(array: Array) -> Array:
    """What is read if the last axis is taken to be the second."""
    n, *middle, last = array.shape
    return np.moveaxis(array.reshape(n, last, *middle), 1, -1)


def _of(operand: str, cost: float, text: str, change: Callable[[Array], Array]) -> Hypothesis:
    """The mistake that an operand is taken as something else of the same shape."""
    if operand == X:
        return Hypothesis(cost, text, lambda e: e.sums(x=change(e.x)))
    return Hypothesis(cost, text, lambda e: e.sums(weight=change(e.weight)))


def operands(problem: Problem) -> Iterator[Hypothesis]:
    """Layouts taken for others, filters flipped, values changed before they are multiplied."""
    layout = LAYOUTS[problem.form]
    a, b, _ = layout.names
    if isinstance(problem, Gemm):
        transposed = partial(_reordered, first=0, second=1)
        yield _of(X, 2, "a is read transposed, a[k, m] in place of a[m, k]", transposed)
        yield _of(WEIGHT, 2, "b is read transposed, b[n, k] in place of b[k, n]", transposed)
    elif not isinstance(problem, Wgrad):
        flipped = "the filter is flipped: this is convolution, and cross-correlation is asked for"
        if isinstance(problem, Dgrad):
            flipped = "the filter is flipped: a tap goes back to where it was read, so rows of dy fall as taps rise"
        axes = (2, 3) if isinstance(problem, Conv2d) else (1, 2, 3)
        yield _of(WEIGHT, 1, flipped, lambda v: np.flip(v, axes))
        yield _of(WEIGHT, 1, PAIRED, partial(_reordered, first=2, second=3))
        if isinstance(problem, Convolution) and problem.C > 1:
            yield _of(WEIGHT, 1, "filt is read in KCTRS order, and it is stored KTRSC", _channels_last)
            order = "NKOPQ order, and it is stored NOPQK" if a == "dy" else "NCDHW order, and it is stored NDHWC"
            yield _of(X, 1, f"{a} is read in {order}", _channels_last)
    yield from _layouts(problem, X, a, layout.x, problem.input_shape)
    yield from _layouts(problem, WEIGHT, b, layout.weight, problem.weight_shape)
    yield from roundings(problem)


def _layouts(
    problem: Problem, operand: str, name: str, letters: tuple[str, ...], shape: tuple[int, ...]
) -> Iterator[Hypothesis]:
    """Two axes in the other order, or an axis taken to be as long as another letter's."""
    extent = terms.extents(problem)
    for i, u in enumerate(letters):
        for j in range(i + 1, len(letters)):
            if problem.form != "gemm" and shape[i] > 1 and shape[j] > 1:
                stored = "".join(letters).upper()
                order = stored[:i] + stored[j] + stored[i + 1 : j] + stored[i] + stored[j + 1 :]
                text = f"{name} is read in {order} order, and it is stored {stored}"
                yield _of(operand, 4, text, partial(_reordered, first=i, second=j))
        if not i or max(shape[:i]) == 1:
            continue
        others = {shape[i] + d: f"{u.upper()} {'+' if d > 0 else '-'} 1" for d in (1, -1) if shape[i] + d > 0}
        others |= {extent[v]: v.upper() for v in sorted(extent, reverse=True) if extent[v] != shape[i]}
        for length, said in others.items():
            text = f"{name} is read as if its axis {u} were {said} = {length} long; it is {u.upper()} = {shape[i]}"
            yield _of(operand, 4, text, partial(_spaced, axis=i, extent=length))


def _bits(count: int) -> Callable[[Array], Array]:
    """Rounded to so many bits after the leading one."""

    def change(v: Array) -> Array:
        fraction, exponent = np.frexp(v.astype(np.float64))
        scale = 2.0 ** (count + 1)
        return np.asarray(np.ldexp(np.rint(fraction * scale) / scale, exponent))

    return change


# float16 has as many bits as TF32: only beyond its range is it the one or the other
_ROUNDINGS: tuple[tuple[str, Callable[[Array], Array]], ...] = (
    ("rounded to float16 or TF32", lambda v: v.astype(np.float16).astype(np.float64)),
    ("rounded to TF32", _bits(10)),
    ("rounded to bfloat16", _bits(7)),
    ("cut to whole numbers", np.trunc),
    ("clipped to -127 to 127", _clipped(-127, 127)),
)


def roundings(problem: Problem) -> Iterator[Hypothesis]:
    """Operands changed before they are multiplied: one or both."""
    a, b, _ = LAYOUTS[problem.form].names
    for text, change in _ROUNDINGS:
        yield _of(X, 3.5, f"{a} is {text}", change)
        yield _of(WEIGHT, 3.5, f"{b} is {text}", change)
        both = lambda e, change=change: e.sums(change(e.x), change(e.weight))  # noqa: E731
        yield Hypothesis(3, f"{a} and {b} are {text}", both)
