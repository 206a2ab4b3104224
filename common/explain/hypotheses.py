"""Mistakes that wrong values are compared with: what each would give, and the sentence that tells it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from common.catalog import reference
from common.catalog.problems import Conv2d, Convolution, Dgrad, Gemm, Problem, Wgrad
from common.explain.letters import (
    LAYOUTS,
    ROUNDS,
    WEIGHT,
    Array,
    Env,
    Positions,
    X,
    coordinates,
    environment,
    extents,
    products,
    sides,
)

OUTPUT = "output"
_TILES = (2, 4, 8, 16, 32, 64, 128)
_LONGEST = 200  # the longest axis of terms of which every range is tried
_CANDIDATES = 6  # sets of terms that are told of one axis, at most
_SWAPPED = "r and s are swapped: h pairs with r and w with s"


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

    def __len__(self) -> int:
        return len(self.positions[0])

    @cached_property
    def env(self) -> Env:
        """The letters at these positions."""
        return environment(self.problem, self.positions)

    @cached_property
    def table(self) -> Array:
        """The right terms, (positions, terms)."""
        return products(self.problem, self.env, self.x, self.weight)

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
        return np.asarray(products(self.problem, self.env, x, weight).sum(axis=1))


class Hypothesis(NamedTuple):
    """One mistake: ``cost``, the least for the simplest, its sentence, and the values that it would give."""

    cost: float
    text: str
    predict: Callable[[Evidence], Array]

    def holds(self, evidence: Evidence) -> float:
        """The share of the positions that hold what the mistake would give."""
        with np.errstate(all="ignore"):
            return float((np.abs(self.predict(evidence) - evidence.got) <= evidence.slack).mean())


def usual(evidence: Evidence) -> Iterator[Hypothesis]:
    """Every mistake that is tried on wrong sums of integers."""
    problem = evidence.problem
    yield from _values(evidence)
    yield from _stored(evidence)
    yield from _operands(problem)
    yield from roundings(problem)
    yield from _terms(evidence)
    yield from _letters(problem)
    yield from _geometry(problem)


# --- what became of a right sum ---

_VALUES: tuple[tuple[str, Callable[[Array], Array]], ...] = (
    ("each is 0", lambda y: y * 0),
    ("the sign is flipped", lambda y: -y),
    ("the absolute value is stored", np.abs),
    ("negative results are 0", lambda y: np.maximum(y, 0)),
    ("the result is kept in 8 bits", lambda y: (np.trunc(y) + 128) % 256 - 128),
    ("the result is kept in 8 bits, unsigned", lambda y: np.trunc(y) % 256),
    ("the result is clipped to -127 to 127", lambda y: np.clip(y, -127, 127)),
    ("the result is rounded to float16", lambda y: y.astype(np.float16).astype(np.float64)),
    ("the result is cut to a whole number", np.trunc),
)


def _values(evidence: Evidence) -> Iterator[Hypothesis]:
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


def _stored(evidence: Evidence) -> Iterator[Hypothesis]:
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
            moved = whole.swapaxes(i, j).reshape(whole.shape)
            yield Hypothesis(1.5, text, lambda e, moved=moved: moved[e.positions])  # type: ignore[misc]
    if isinstance(problem, Wgrad):
        text = "the filter is flipped: dfilt[.., t, r, s, ..] holds what T - 1 - t, R - 1 - r, S - 1 - s should"
        yield Hypothesis(0.5, text, lambda e: np.flip(whole, (1, 2, 3))[e.positions])


# --- operands read otherwise ---


def _read_as(array: Array, order: tuple[int, ...]) -> Array:
    """What is read from the array's memory, in the array's shape, if its axes are taken to lie in this order."""
    return array.reshape([array.shape[axis] for axis in order]).transpose(np.argsort(order))


def _spaced(array: Array, axis: int, extent: int) -> Array:
    """What is read if the axis is taken to be ``extent`` long; NaN beyond the array."""
    address: Any = 0
    for i, at in enumerate(np.ogrid[tuple(slice(n) for n in array.shape)]):
        address = address * (extent if i == axis else array.shape[i]) + at
    found = array.reshape(-1)[np.minimum(address, array.size - 1)]
    return np.where(address < array.size, found, np.nan)


def _of(operand: str, cost: float, text: str, change: Callable[[Array], Array]) -> Hypothesis:
    """The mistake that an operand is taken as something else of the same shape."""
    if operand == X:
        return Hypothesis(cost, text, lambda e: e.sums(x=change(e.x)))
    return Hypothesis(cost, text, lambda e: e.sums(weight=change(e.weight)))


def _operands(problem: Problem) -> Iterator[Hypothesis]:
    """Flipped filters, and layouts taken for others."""
    layout = LAYOUTS[problem.form]
    if isinstance(problem, Dgrad):
        flipped = "the filter is flipped: a tap goes back to where it was read, so rows of dy fall as taps rise"
    else:
        flipped = "the filter is flipped: this is convolution, and cross-correlation is asked for"
    if not isinstance(problem, (Gemm, Wgrad)):
        axes = (2, 3) if isinstance(problem, Conv2d) else (1, 2, 3)
        yield _of(WEIGHT, 1, flipped, lambda v: np.flip(v, axes))
        order = tuple({2: 3, 3: 2}.get(axis, axis) for axis in range(len(problem.weight_shape)))
        yield _of(WEIGHT, 1, _SWAPPED, partial(_read_as, order=order))
    yield from _layouts(problem, X, layout.names[0], layout.x, problem.input_shape)
    yield from _layouts(problem, WEIGHT, layout.names[1], layout.weight, problem.weight_shape)


def _layouts(problem: Problem, operand: str, name: str, letters: str, shape: tuple[int, ...]) -> Iterator[Hypothesis]:
    """Two axes in each other's place, the last one in the second's, or one that is as long as another letter's."""
    extent, stored, axes = extents(problem), letters.upper(), tuple(range(len(letters)))
    orders = [tuple({i: j, j: i}.get(axis, axis) for axis in axes) for i, j in combinations(axes, 2)]
    if len(axes) == 5:
        yield _layout(operand, 1, name, stored, (0, 4, 1, 2, 3))
    yield from (_layout(operand, 2 if problem.form == "gemm" else 4, name, stored, order) for order in orders)
    for i, u in enumerate(stored):
        others = {shape[i] + 1: f"{u} + 1", shape[i] - 1: f"{u} - 1"}
        others |= {extent[v]: v.upper() for v in sorted(extent, reverse=True) if extent[v] != shape[i]}
        for length, said in others.items() if math.prod(shape[:i]) > 1 else ():
            text = f"{name} is read as if its axis {letters[i]} were {said} = {length} long; it is {u} = {shape[i]}"
            yield _of(operand, 4, text, partial(_spaced, axis=i, extent=length))


def _layout(operand: str, cost: float, name: str, stored: str, order: tuple[int, ...]) -> Hypothesis:
    """An operand's axes are taken to lie in another order."""
    read = "".join(stored[axis] for axis in order)
    text = f"{name} is read in {read} order, and it is stored {stored}"
    if len(order) == 2:
        taken, right = (", ".join(one.lower()) for one in (read, stored))
        text = f"{name} is read transposed, {name}[{taken}] in place of {name}[{right}]"
    return _of(operand, cost, text, partial(_read_as, order=order))


def _tf32(v: Array) -> Array:
    """Rounded to 10 bits after the leading one."""
    fraction, exponent = np.frexp(v.astype(np.float64))
    return np.asarray(np.ldexp(np.rint(fraction * 2.0**11) / 2.0**11, exponent))


# float16 has as many bits as TF32: only beyond its range is it the one or the other
_ROUNDINGS: tuple[tuple[str, Callable[[Array], Array]], ...] = (
    ("rounded to float16 or TF32", lambda v: v.astype(np.float16).astype(np.float64)),
    ("rounded to TF32", _tf32),
    ("cut to whole numbers", np.trunc),
    ("clipped to -127 to 127", lambda v: np.clip(v, -127, 127)),
)


def roundings(problem: Problem) -> Iterator[Hypothesis]:
    """Operands changed before they are multiplied: one or both."""
    a, b, _ = LAYOUTS[problem.form].names
    for text, change in _ROUNDINGS:
        yield _of(X, 3.5, f"{a} is {text}", change)
        yield _of(WEIGHT, 3.5, f"{b} is {text}", change)
        both = lambda e, change=change: e.sums(change(e.x), change(e.weight))  # noqa: E731
        yield Hypothesis(3, f"{a} and {b} are {text}", both)


# --- terms left out, counted twice, or alone ---


def _terms(evidence: Evidence) -> Iterator[Hypothesis]:
    """Terms that a loop or a guard leaves out or repeats: ranges of a letter summed over, or of all terms."""
    problem, off = evidence.problem, evidence.got - evidence.expected
    axes = [(u, 0.0) for u in LAYOUTS[problem.form].summed if extents(problem)[u] > 1]
    axes += [(u, 1.0) for u in sides(problem)]
    for u, cost in axes + ([("gemm_k", 0.4)] if problem.form != "gemm" else []):
        first, last, odd = _ranges(_extent(problem, u))
        sums = _between(evidence, u, first, last)
        few = last + 1 - first < 0.45 * _extent(problem, u)
        for what, extra, fitting, wanted in (
            ("missing", np.zeros_like(odd), -sums, off),
            ("twice", np.ones_like(odd), sums, off),
            ("alone", np.where(few, -0.7, 0.7), sums, evidence.got),
        ):
            share = (np.abs(fitting - wanted[:, None]) <= evidence.slack[:, None]).mean(axis=0)
            for i in np.argsort(-share, kind="stable")[:_CANDIDATES]:
                ends = int(first[i]), int(last[i])
                text = _told_terms(problem, u, *ends, what)
                yield Hypothesis(cost + odd[i] + extra[i], text, partial(_with_terms, u, *ends, what))


def _extent(problem: Problem, u: str) -> int:
    return problem.reduction if u == "gemm_k" else extents(problem)[u]


def _ranges(n: int) -> tuple[Array, Array, Array]:
    """First and last value of each range that is tried, and how odd it is: one value, an end, a beginning, others."""
    if n <= _LONGEST:
        first, last = np.triu_indices(n)
    else:
        each, start = np.arange(n), np.zeros(n, np.intp)
        first, last = np.concatenate([each, start, each]), np.concatenate([each, each, start + n - 1])
    proper = (first > 0) | (last < n - 1)
    first, last = first[proper], last[proper]
    odd = np.select([first == last, last == n - 1, first == 0], [0.0, 0.5, 0.6], 2.5)
    return first, last, odd


def _between(evidence: Evidence, u: str, first: Any, last: Any) -> Array:
    """The sums of the terms from ``first`` to ``last`` of a letter, (positions, ranges)."""
    table, extent = evidence.table, _extent(evidence.problem, u)
    label = np.broadcast_to(_label(evidence, u), table.shape)
    inside = (label >= 0) & (label < extent)
    rows = np.arange(len(table))[:, None] * (extent + 1) + label + 1
    totals = np.bincount(rows[inside], table[inside], len(table) * (extent + 1))
    totals = totals.reshape(len(table), extent + 1).cumsum(axis=1)
    return np.asarray(totals[:, last + 1] - totals[:, first])


def _label(evidence: Evidence, u: str) -> Any:
    """The index along ``u`` of each term: a letter summed over, the place among all terms, or where x is read."""
    problem = evidence.problem
    if u == "gemm_k":
        return np.arange(problem.reduction)
    if u in sides(problem):
        return coordinates(problem, X, evidence.env)[LAYOUTS[problem.form].x.index(u)]
    return evidence.env[u]


def _with_terms(u: str, first: int, last: int, what: str, evidence: Evidence) -> Array:
    """The elements if these terms are missing, counted twice or alone."""
    sums = _between(evidence, u, first, last)
    return sums if what == "alone" else evidence.expected + (sums if what == "twice" else -sums)


def _told_terms(problem: Problem, u: str, first: int, last: int, what: str) -> str:
    """A sentence on terms that are missing, counted twice or alone; in a loop's words if usual."""
    end, one = _extent(problem, u) - 1, first == last
    named = {"c": "channel", "k": "filter", "n": "image"}.get(u)
    which = "last" if first == end else "first"
    if what == "missing" and problem.form == "gemm":
        if one and first in (0, end):
            return f"the {which} term, k = {'K - 1' if first == end else 0}, is left out"
        if last == end:
            return f"the sum stops at k = {first}: the last {end + 1 - first} terms are left out"
    elif what == "missing" and one and named:
        return f"{named} {u} = {first} is left out"
    elif what == "missing" and one and u in "trs" and first in (0, end):
        return f"the {which} filter tap, {u} = {first}, is left out"
    text = f"{u} >= {first}" if last == end else f"{u} < {last + 1}" if first == 0 else f"{first} <= {u} <= {last}"
    if u == "gemm_k":
        text = f"gemm_k from {first} to {last} (a part of the sum)"
    if u in sides(problem):
        place = f"{LAYOUTS[problem.form].names[0]} at {f'{u} = {first}' if one else text}"
        counts = "counts as 0" if what == "missing" else "counts twice"
        return f"only {place} counts" if what == "alone" else f"{place} {counts}"
    subject = f"the term {u} = {first}" if one else f"the terms {text}"
    if what == "alone":
        return f"only {subject} count{'s' if one else ''}"
    return f"{subject} {'is' if one else 'are'} {'missing' if what == 'missing' else 'counted twice'}"


# --- an expression in the place of a letter ---


def _changed(operand: str, letters: dict[str, str], evidence: Evidence) -> Array:
    """The elements if expressions stand in the place of letters of an operand, or of the output's place."""
    problem, env = evidence.problem, evidence.env
    names = env | {u.upper(): n for u, n in extents(problem).items()}
    new = env | {u: eval(text, {}, names) + 0 * env.get(u, 0) for u, text in letters.items()}
    if operand == OUTPUT:
        at = (np.broadcast_to(new[u], (len(evidence), 1))[:, 0] for u in LAYOUTS[problem.form].output)
        return evidence.right_at(tuple(at))
    x, weight = (new, env) if operand == X else (env, new)
    return np.asarray(products(problem, x, evidence.x, evidence.weight, weight).sum(axis=1))


def _letters(problem: Problem) -> Iterator[Hypothesis]:
    """A letter of the output or of an operand off by one, taken for another, or kept within or at a tile's start."""
    layout, extent = LAYOUTS[problem.form], extents(problem)
    name = layout.names[2]
    for u in layout.output:
        for form, cost in _expressions(u, layout.output, extent):
            place = ", ".join(form if v == u else v for v in layout.output)
            text = f"{name}[{', '.join(layout.output)}] holds what {name}[{place}] should"
            if form in (f"{u} + 1", f"{u} - 1"):
                text = f"shifted: at {u} stands the value of {form}, as from an offset wrong by one (halo, padding)"
            yield Hypothesis(cost, text, partial(_changed, OUTPUT, {u: form}))
    # a letter of the output that an operand takes for another of the output is told as the output's mistake
    for operand, read in ((X, f"{layout.x}trs"), (WEIGHT, layout.weight)):
        for u in (*layout.output, *layout.summed):
            if u not in read:
                continue
            others = layout.output + layout.summed if u in layout.summed else layout.summed
            for form, cost in _expressions(u, others, extent):
                if u in layout.summed or form in layout.summed:
                    text = f"{layout.names[operand == WEIGHT]} is read with {form} in place of {u}"
                    if problem.form == "gemm" and u == "k":
                        a, b = (form, u) if operand == X else (u, form)
                        text = f"the terms pair a[m, {a}] with b[{b}, n]"
                    yield Hypothesis(cost + 2, text, partial(_changed, operand, {u: form}))
    if "r" in layout.summed:
        yield Hypothesis(1, _SWAPPED, partial(_changed, X, {"r": "s", "s": "r"}))


def _expressions(u: str, others: str, extent: dict[str, int]) -> Iterator[tuple[str, float]]:
    """What may stand in the place of the letter ``u``, and how odd it is; ``others``: what it may be taken for."""
    yield from ((f"{u} + 1", 1), (f"{u} - 1", 1))
    yield from ((v, 2) for v in others if v != u and extent[v] > 1)
    if extent[u] > 1:
        yield "0", 2
    for size in (size for size in _TILES if size < extent[u]):
        yield from ((f"{u} % {size}", 3), (f"{u} // {size} * {size}", 3))


def _geometry(problem: Problem) -> Iterator[Hypothesis]:
    """Stride, padding and dilation ignored, of another axis, or off by one."""
    if not isinstance(problem, Convolution):
        return
    if isinstance(problem, Dgrad) and max(problem.geometry[:3]) > 1:
        text = "the rest of the division by the stride is not looked at: taps of other residues count, too"
        yield Hypothesis(0.5, text, partial(_changed, X, {ROUNDS: "1"}))
    geometry = problem.geometry._asdict()
    for name, value in geometry.items():
        kind, axis = name.split("_")
        neutral = int(kind != "pad")
        if value != neutral:
            text = f"{name} is taken as {neutral}"
            yield Hypothesis(1, text, partial(_changed, X, {name: str(neutral)}))
        # an index of dy that is off by one is the padding's mistake, or a letter's: there the same
        near = 1.0 if isinstance(problem, Dgrad) and kind == "pad" else 2.5
        options = [(f"{name} + 1", value + 1, near), (f"{name} - 1", value - 1, near)]
        options += [(other, geometry[other], 2.0) for other in (f"{kind}_{v}" for v in "dhw" if v != axis)]
        for form, other_value, cost in options:
            if other_value != value and other_value >= neutral:
                yield Hypothesis(cost, f"{form} stands in place of {name}", partial(_changed, X, {name: form}))
    for kind, neutral in (("stride", 1), ("dilation", 1), ("pad", 0)):
        ignored = [name for name, value in geometry.items() if name.startswith(kind) and value != neutral]
        if len(ignored) > 1:
            text = f"{' and '.join(ignored)} are taken as {neutral}"
            yield Hypothesis(1.2, text, partial(_changed, X, dict.fromkeys(ignored, str(neutral))))
