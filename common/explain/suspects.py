"""The mistakes that wrong values are compared with: each a sentence and the values that it would give.

Elements are compared at some positions of the output, in one or more launches on known operands. A mistake is in the
values, in an operand, in which terms are summed, or in an index letter (:mod:`common.explain.terms`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.catalog.problems import Conv2d, Convolution, Dgrad, Gemm, Problem, Wgrad
from common.explain import terms
from common.explain.terms import LAYOUTS, OUTPUT, ROUNDS, SPATIAL, WEIGHT, Change, Positions, X

Array = NDArray[Any]

_TILES = (2, 4, 8, 16, 32)
_LONG_TILES = (8, 16, 32, 64, 128, 256)  # of a sum that is split
_PAIRS = 200  # the longest axis of terms whose every range is tried
_DRAWS = 4  # of other indices, to see what chance explains


class Launch(NamedTuple):
    """Whole operands, and, one per position, what was got and expected and how far right values may be off."""

    x: Array
    weight: Array
    got: Array
    expected: Array
    slack: Array


class Evidence:
    """Output positions and the launches that show what they hold. The first launch is the one to explain."""

    def __init__(self, problem: Problem, positions: Positions, launches: tuple[Launch, ...]) -> None:
        self.problem, self.positions, self.launches = problem, positions, launches
        self.env = terms.environment(problem, positions)
        operands = (array for launch in launches for array in (launch.x, launch.weight))
        self.reads = terms.Reads(problem, self.env, operands)
        self._products: dict[int, Array] = {}

    def __len__(self) -> int:
        return len(self.positions[0])

    def some(self, count: int) -> Evidence:
        """At most ``count`` of the positions, spread evenly."""
        if len(self) <= count:
            return self
        chosen = np.linspace(0, len(self) - 1, count).astype(np.intp)
        launches = (Launch(a.x, a.weight, a.got[chosen], a.expected[chosen], a.slack[chosen]) for a in self.launches)
        return Evidence(self.problem, tuple(axis[chosen] for axis in self.positions), tuple(launches))

    def products(self, number: int) -> Array:
        """The right terms of launch ``number``, (positions, terms)."""
        if number not in self._products:
            launch = self.launches[number]
            self._products[number] = terms.products(self.problem, self.env, launch.x, launch.weight, reads=self.reads)
        return self._products[number]


def _plain(text: str) -> Callable[[Evidence], str]:
    """A sentence that depends on no element."""
    return lambda evidence: text


def _never(evidence: Evidence) -> float:
    """That of a mistake in a value alone: how often values are alike is counted for all mistakes."""
    return 0.0


class Suspect(NamedTuple):
    """A mistake: how odd it is, the values it would give in a launch of some evidence (by number), its sentence.

    ``chance``: the share of the positions that a mistake of this kind explains which has nothing to do with them;
    None if that is not known.
    """

    cost: float
    predict: Callable[[Evidence, int], Array]
    text: Callable[[Evidence], str]
    chance: Callable[[Evidence], float] | None = None


def holds(evidence: Evidence, suspect: Suspect) -> NDArray[np.bool_]:
    """Which positions hold, in every launch, what the mistake would give."""
    hit = np.ones(len(evidence), np.bool_)
    for number, launch in reversed(list(enumerate(evidence.launches))):  # the last one's sums are told apart best
        with np.errstate(all="ignore"):
            hit &= np.abs(suspect.predict(evidence, number) - launch.got) <= launch.slack
        if not hit.any():
            break
    return hit


def by_chance(evidence: Evidence, suspect: Suspect) -> float:
    """The share of the positions that would hold what the mistake gives though it was not made.

    Small integers are often equal: so values, and how far they are off, are compared with those of other positions.
    """
    values = changes = 1.0
    for number, launch in enumerate(evidence.launches):
        with np.errstate(all="ignore"):
            off = suspect.predict(evidence, number) - launch.expected
        off = off[np.isfinite(off)]
        values *= _alike(launch.expected, launch.got, launch.slack)
        varied = off.size > 1 and float(np.ptp(off)) > 0  # what is off by as much everywhere is a pattern of its own
        changes *= _alike(off, launch.got - launch.expected, launch.slack) if varied else 0.0
    return max(values, changes, suspect.chance(evidence) if suspect.chance else 0.0)


def _alike(values: Array, wanted: Array, slack: Array) -> float:
    """How often one of the ``values``, taken at random, is what is ``wanted`` at a position."""
    ordered = np.sort(values)
    most = np.searchsorted(ordered, wanted + slack, "right")
    return float((most - np.searchsorted(ordered, wanted - slack, "left")).mean() / len(ordered))


def values(evidence: Evidence) -> Iterator[Suspect]:
    """What may have become of a right sum on its way into the output."""

    def of(cost: float, text: str, change: Callable[[Array], Array]) -> Suspect:
        return Suspect(cost, lambda e, i: change(e.launches[i].expected), _plain(text), _never)

    yield of(-2, "each is 0", lambda y: y * 0)
    yield of(0, "the sign is flipped", lambda y: -y)
    yield of(0, "the absolute value is stored", np.abs)
    yield of(0, "negative results are 0", lambda y: np.maximum(y, 0))
    yield of(0, "positive results are 0", lambda y: np.minimum(y, 0))
    for bits in (8, 16):
        half = 2 ** (bits - 1)
        yield of(1, f"the result is kept in {bits} bits, unsigned", _wrapped(0, 2 * half))
        yield of(1, f"the result is kept in {bits} bits", _wrapped(-half, 2 * half))
        yield of(1, f"the result is clipped to {-half} to {half - 1}", _clipped(-half, half - 1))
        yield of(1, f"the result is clipped to 0 to {2 * half - 1}", _clipped(0, 2 * half - 1))
    for limit in (127, 65504, 32767):
        yield of(1, f"the result is clipped at {limit}", _clipped(-limit, limit))
        yield of(1, f"the result is clipped at {limit} above", _clipped(-np.inf, limit))
    yield of(2, "the result is rounded to float16", _half)
    yield of(2, "the result is rounded to a whole number", np.rint)
    yield of(2, "the result is rounded down to a whole number", np.floor)
    yield of(2, "the result is cut to a whole number", np.trunc)
    yield from _fitted(evidence)


def _clipped(low: float, high: float) -> Callable[[Array], Array]:
    return lambda v: np.clip(v, low, high)


def _wrapped(low: int, size: int) -> Callable[[Array], Array]:
    """Whole numbers kept in a type of ``size`` values, from ``low`` on."""
    return lambda v: (np.trunc(v) - low) % size + low


def _half(v: Array) -> Array:
    return np.asarray(v.astype(np.float16).astype(np.float64))


def _fitted(evidence: Evidence) -> Iterator[Suspect]:
    """A factor, an offset, one bound: read off the elements, so at least three must agree."""
    launch = evidence.launches[0]
    got, right = launch.got, launch.expected
    if len(got) < 3:
        return
    usable = right != 0
    ratio = got[usable] / right[usable]
    if ratio.size >= 3 and (factor := float(np.median(ratio))) not in (0.0, 1.0, -1.0) and _simple(factor):
        times = {2.0: "twice", 0.5: "half"}.get(factor, f"{factor:g} times")
        yield Suspect(
            1, lambda e, i: e.launches[i].expected * factor, _plain(f"each is {times} the right value"), _never
        )
    offset = float(np.median(got - right))
    if offset and offset == round(offset):
        more = f"{abs(offset):g} too {'large' if offset > 0 else 'small'}"
        yield Suspect(2, lambda e, i: e.launches[i].expected + offset, _plain(f"each is {more}"), _never)
    level = float(np.median(got))
    if level and (got == level).all():
        yield Suspect(3, lambda e, i: np.full(len(e), level), _plain(f"each holds {level:g}"), _never)


def _simple(factor: float) -> bool:
    return any(abs(factor * d - round(factor * d)) < 1e-9 for d in (1, 2, 3, 4, 8, 16))


# --- operands read otherwise ---


def _of_operands(
    cost: float, text: str, x: Callable[[Array], Array] | None = None, weight: Callable[[Array], Array] | None = None
) -> Suspect:
    """The mistake that one or both operands are taken as something else of the same shape."""
    known: dict[int, tuple[Array, Array]] = {}

    def predict(evidence: Evidence, number: int) -> Array:
        launch = evidence.launches[number]
        key = id(launch.x)
        if key not in known:
            known[key] = (x(launch.x) if x else launch.x, weight(launch.weight) if weight else launch.weight)
        with np.errstate(all="ignore"):
            table = terms.products(evidence.problem, evidence.env, *known[key], reads=evidence.reads)
            return np.asarray(table.sum(axis=1))

    return Suspect(cost, predict, _plain(text))


def restored(array: Array, first: int, second: int) -> Array:
    """What memory of the array's shape holds if its values are stored with two axes swapped."""
    return array.swapaxes(first, second).reshape(array.shape)


def reread(array: Array, first: int, second: int) -> Array:
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


def operands(problem: Problem) -> Iterator[Suspect]:
    """Layouts mistaken for others, filters flipped, values changed before they are multiplied."""
    layout = LAYOUTS[problem.form]
    a, b, _ = layout.names
    if isinstance(problem, Gemm):
        yield _of_operands(2, "a is read transposed, a[k, m] in place of a[m, k]", x=lambda v: reread(v, 0, 1))
        yield _of_operands(2, "b is read transposed, b[n, k] in place of b[k, n]", weight=lambda v: reread(v, 0, 1))
    elif not isinstance(problem, Wgrad):
        yield from _filters(problem)
    yield from _layouts(problem, X, a, layout.x)
    yield from _layouts(problem, WEIGHT, b, layout.weight)
    for name, which in ((a, "x"), (b, "weight")):
        for text, change in _CONVERSIONS:
            yield _of_operands(3, text.format(name), **{which: change})
    for text, change in _CONVERSIONS:
        yield _of_operands(3.5, _both(text, a, b), change, change)


def _filters(problem: Problem) -> Iterator[Suspect]:
    axes = (2, 3) if isinstance(problem, Conv2d) else (1, 2, 3)
    flipped = "the filter is flipped: this is convolution, and cross-correlation is asked for"
    if isinstance(problem, Dgrad):
        flipped = "the filter is flipped: a tap goes back to where it was read, so rows of dy fall as taps rise"
    yield _of_operands(1, flipped, weight=lambda v: np.flip(v, axes))
    yield _of_operands(1, _PAIRED, weight=lambda v: reread(v, 2, 3))
    if isinstance(problem, Convolution) and problem.C > 1:
        shape = (problem.K, problem.C, problem.T, problem.R, problem.S)
        text = "filt is read in KCTRS order, and it is stored KTRSC"
        yield _of_operands(1, text, weight=lambda v: np.moveaxis(v.reshape(shape), 1, -1))
        n, *pixel, last = problem.input_shape
        shape_x = (n, last, *pixel)
        text = "x is read in NCDHW order, and it is stored NDHWC"
        if isinstance(problem, Dgrad):
            text = "dy is read in NKOPQ order, and it is stored NOPQK"
        yield _of_operands(1, text, x=lambda v: np.moveaxis(v.reshape(shape_x), 1, -1))


_PAIRED = "r and s are swapped: h pairs with r and w with s"


def _layouts(problem: Problem, operand: str, name: str, letters: tuple[str, ...]) -> Iterator[Suspect]:
    """Two axes in the other order, or an axis taken to be as long as another letter's."""
    extent = terms.extents(problem)
    which = "x" if operand == X else "weight"
    shape = problem.input_shape if operand == X else problem.weight_shape
    for i, u in enumerate(letters):
        for j in range(i + 1, len(letters)):
            if problem.form != "gemm" and shape[i] > 1 and shape[j] > 1:
                order = list(letters)
                order[i], order[j] = order[j], order[i]
                text = (
                    f"{name} is read in {''.join(order).upper()} order, and it is stored {''.join(letters).upper()}"
                )
                yield _of_operands(4, text, **{which: partial(reread, first=i, second=j)})
        if not i or max(shape[:i]) == 1:
            continue
        others = {extent[v]: v.upper() for v in sorted(extent, reverse=True) if extent[v] != shape[i]}
        others |= {shape[i] + d: f"{u.upper()} {'+' if d > 0 else '-'} 1" for d in (1, -1) if shape[i] + d > 0}
        for length, said in others.items():
            text = f"{name} is read as if its axis {u} were {said} = {length} long; it is {u.upper()} = {shape[i]}"
            yield _of_operands(4, text, **{which: partial(_spaced, axis=i, extent=length)})


def _kept(mantissa: int) -> Callable[[Array], Array]:
    """Rounded to so many bits after the leading one."""

    def change(v: Array) -> Array:
        fraction, exponent = np.frexp(v.astype(np.float64))
        scale = 2.0 ** (mantissa + 1)
        return np.asarray(np.ldexp(np.rint(fraction * scale) / scale, exponent))

    return change


_CONVERSIONS: tuple[tuple[str, Callable[[Array], Array]], ...] = (
    ("{} counts with its absolute value", np.abs),
    ("{} counts as 0 where it is negative", lambda v: np.maximum(v, 0)),
    ("{} counts with its sign alone", np.sign),
    ("{} counts squared", lambda v: v.astype(np.float64) ** 2),
    ("{} is clipped to -127 to 127", _clipped(-127, 127)),
    ("{} is clipped to -128 to 127", _clipped(-128, 127)),
    ("{} is clipped to 0 to 255", _clipped(0, 255)),
    ("{} is cut to whole numbers", np.trunc),
    ("{} is rounded to whole numbers", np.rint),
    ("{} is kept in 8 bits", _wrapped(-128, 256)),
    ("{} is kept in 8 bits, unsigned", _wrapped(0, 256)),
    ("{} is kept in 16 bits", _wrapped(-(2**15), 2**16)),
    ("{} is rounded to float16 or TF32", _half),  # as many bits: only beyond its range is it the one or the other
    ("{} is rounded to TF32", _kept(10)),
    ("{} is rounded to bfloat16", _kept(7)),
    ("{} counts as 0 where it is below 1e-6", lambda v: np.where(np.abs(v) < 1e-6, 0, v)),
    ("{} counts as 0 where it is below 1e-3", lambda v: np.where(np.abs(v) < 1e-3, 0, v)),
)


def _both(text: str, a: str, b: str) -> str:
    plural = text.replace("{} is", "{} are").replace("{} counts", "{} count").replace("its", "their")
    return plural.replace("it is", "they are").format(f"{a} and {b}")


def conversions(problem: Problem) -> Iterator[Suspect]:
    """Operands changed before they are multiplied, alone."""
    a, b, _ = LAYOUTS[problem.form].names
    for text, change in _CONVERSIONS:
        yield _of_operands(0, _both(text, a, b), change, change)
        yield _of_operands(0.5, text.format(a), change)
        yield _of_operands(0.5, text.format(b), None, change)


# --- the padding ---


def padding(evidence: Evidence) -> Iterator[Suspect]:
    """A tap on the padding that adds something."""
    problem = evidence.problem
    if not isinstance(problem, Convolution) or isinstance(problem, Dgrad):
        return
    if not any((problem.pad_d, problem.pad_h, problem.pad_w)):
        return

    for what, index in _BEYOND:
        yield Suspect(1, partial(_read_inside, index=index), _plain(_ON_PADDING.format(what)))
    launch = evidence.launches[0]
    extra = _on_padding(evidence, 0)
    usable = extra != 0
    if usable.sum() >= 3:
        value = float(np.median((launch.got - launch.expected)[usable] / extra[usable]))
        text = _plain(_ON_PADDING.format(f"{value:g}"))
        yield Suspect(1, lambda e, i: e.launches[i].expected + value * _on_padding(e, i), text)


_BEYOND: tuple[tuple[str, Callable[[Any, int], Any]], ...] = (
    ("the nearest pixel", lambda at, extent: np.clip(at, 0, extent - 1)),
    ("the pixel at the opposite edge", lambda at, extent: at % extent),
    ("the pixel mirrored at the edge",
     lambda at, extent: np.clip(np.where(at < extent, abs(at), 2 * (extent - 1) - at), 0, extent - 1)),
)  # fmt: skip
_ON_PADDING = "only where the filter reaches over an edge of the input: a tap on the padding reads {}, not 0"


def _read_inside(evidence: Evidence, number: int, index: Callable[[Any, int], Any]) -> Array:
    problem, launch = evidence.problem, evidence.launches[number]
    at = terms.coordinates(problem, X, evidence.env)
    moved = tuple(index(i, extent) for i, extent in zip(at, problem.input_shape, strict=True))
    weight = evidence.reads.factor(WEIGHT, launch.weight)
    return np.asarray((terms.gather(launch.x, moved) * weight).sum(axis=1))


def _on_padding(evidence: Evidence, number: int) -> Array:
    """The sum of the weights that lie on the padding, for each position."""
    problem, weight = evidence.problem, evidence.launches[number].weight
    ones = np.ones(problem.input_shape)
    outside = 1 - evidence.reads.factor(X, ones)
    return np.asarray((outside * evidence.reads.factor(WEIGHT, weight)).sum(axis=1))


# --- the output stored elsewhere ---


def stored(problem: Problem, results: tuple[Array, ...]) -> Iterator[Suspect]:
    """Right results (one whole array per launch) stored with two axes in the other order."""
    if isinstance(problem, Gemm):
        pairs = {(0, 1): "transposed: c is stored column by column, c[n, m] in place of c[m, n]"}
    else:
        letters, name = LAYOUTS[problem.form].output, LAYOUTS[problem.form].names[2]
        tail = ", ..]" if isinstance(problem, Convolution) else "]"
        u, v = letters[2:4]
        pairs = {(2, 3): f"transposed: {name}[.., {v}, {u}{tail} in place of {name}[.., {u}, {v}{tail}"}
        for i, u in enumerate(letters):
            for j, v in enumerate(letters[i + 1 :], i + 1):
                pairs.setdefault((i, j), f"transposed: {u} and {v} of {name} are stored in each other's place")
    for (first, second), text in pairs.items():
        wholes = [restored(whole, first, second) for whole in results]
        yield Suspect(1 + (len(pairs) > 1), partial(_picked, wholes), _plain(text))
    if isinstance(problem, Wgrad):
        wholes = [np.flip(whole, (1, 2, 3)) for whole in results]
        text = "the filter is flipped: dfilt[.., t, r, s, ..] holds what T - 1 - t, R - 1 - r, S - 1 - s should"
        yield Suspect(0.5, partial(_picked, wholes), _plain(text))


def _picked(wholes: list[Array], evidence: Evidence, number: int) -> Array:
    return np.asarray(wholes[number][evidence.positions])


# --- terms ---


class Group(NamedTuple):
    """Sets of terms: what each is called, how odd it is, and how to sum a table (positions, terms) over each."""

    texts: list[str]
    costs: list[float]
    sums: Callable[[Evidence, Array], Array]


def groups(problem: Problem) -> Iterator[Group]:
    """Sets of terms that a loop or a guard may leave out or repeat: along a letter summed over, or a side of x."""
    layout = LAYOUTS[problem.form]
    shape = terms.summed_shape(problem)
    for axis, u in enumerate(layout.summed):
        if shape[axis] > 1:
            yield from _along(u, shape[axis], partial(_totals, shape=shape, axis=axis))
    if problem.form != "gemm":
        extent = terms.extents(problem)
        for side in terms.spatial(problem):
            if extent[side] > 1:
                yield from _along(side, extent[side], partial(_by_side, side=side), 1.0)
                if not isinstance(problem, Dgrad):
                    yield _halo(problem, side, extent)
        if isinstance(problem, Wgrad):
            yield _parts(problem.reduction)
        yield from _boxes(layout.summed, shape)
        if math.prod(shape) <= 512 and sum(n > 1 for n in shape) > 1:
            names = [
                ", ".join(f"{u} = {i}" for u, i, n in zip(layout.summed, index, shape, strict=True) if n > 1)
                for index in np.ndindex(*shape)
            ]
            yield Group([f"the term ({name})" for name in names], [2.0] * len(names), lambda e, table: table)

    yield from _related(problem)


def _boxes(letters: tuple[str, ...], shape: tuple[int, ...]) -> Iterator[Group]:
    """The beginnings of two letters summed over, together."""
    grid = np.indices(shape).reshape(len(shape), -1)
    for i in range(len(shape)):
        for j in range(i + 1, len(shape)):
            ends = [(a, b) for a in range(1, shape[i]) for b in range(1, shape[j])]
            if ends and len(ends) <= 64:
                inside = np.stack([(grid[i] < a) & (grid[j] < b) for a, b in ends], axis=1).astype(np.float64)
                texts = [f"{letters[i]} < {a} and {letters[j]} < {b}" for a, b in ends]
                yield Group(texts, [2.5] * len(ends), partial(_boxed, inside))


def _boxed(inside: Array, evidence: Evidence, table: Array) -> Array:
    return np.asarray(table @ inside)


def _related(problem: Problem) -> Iterator[Group]:
    """The terms whose letter equals one of the output's, or exceeds it."""
    layout, extent = LAYOUTS[problem.form], terms.extents(problem)
    pairs = [(u, v) for u in layout.summed for v in layout.output if extent[u] > 1 and extent[v] > 1]

    def sums(evidence: Evidence, table: Array) -> Array:
        env = evidence.env
        masks = [test for u, v in pairs for test in (env[u] == env[v], env[u] > env[v], env[u] >= env[v])]
        return np.stack([(table * mask).sum(axis=1) for mask in masks], axis=1)

    if pairs:
        texts = [f"{u} {sign} {v}" for u, v in pairs for sign in ("=", ">", ">=")]
        yield Group(texts, [2.5] * len(texts), sums)


def _totals(evidence: Evidence, table: Array, shape: tuple[int, ...], axis: int) -> Array:
    """(positions, extent of the axis): sums over the other letters."""
    others = tuple(i + 1 for i in range(len(shape)) if i != axis)
    return np.asarray(table.reshape(len(table), *shape).sum(axis=others))


def _side(evidence: Evidence, side: str) -> Array:
    """Where on a side of x each term reads, (positions, terms)."""
    index = LAYOUTS[evidence.problem.form].x.index(side)
    at = terms.coordinates(evidence.problem, X, evidence.env)[index]
    shape = (len(evidence), math.prod(terms.summed_shape(evidence.problem)))
    return np.broadcast_to(at, shape)


def _by_side(evidence: Evidence, table: Array, side: str) -> Array:
    extent = terms.extents(evidence.problem)[side]
    at = _side(evidence, side)
    totals = np.zeros((len(evidence), extent))
    inside = (at >= 0) & (at < extent)
    rows = np.broadcast_to(np.arange(len(evidence))[:, None], at.shape)
    np.add.at(totals, (rows[inside], at[inside]), table[inside])
    return totals


def _along(u: str, extent: int, totals: Callable[[Evidence, Array], Array], extra: float = 0.0) -> Iterator[Group]:
    """One index, a beginning, an end, every so many: sums over each from the totals of each index."""
    yield Group([f"{u} = {i}" for i in range(extent)], [extra] * extent, totals)
    if extent > 2:
        cuts = range(1, extent)
        texts = [f"{u} >= {i}" if i < extent - 1 else f"{u} = {i}" for i in cuts]
        yield Group(texts, [extra + 0.5] * len(cuts), lambda e, table: _ends(totals(e, table)))
        texts = [f"{u} < {i}" for i in cuts]
        yield Group(texts, [extra + 0.6] * len(cuts), lambda e, table: np.cumsum(totals(e, table), axis=1)[:, :-1])
    for size in _TILES:
        if size < extent and not extra:
            texts = [f"{u} % {size} = {i}" for i in range(size)]
            yield Group(texts, [2.0] * size, partial(_by_residue, totals, size))
    if 3 < extent <= _PAIRS:
        first, last = np.triu_indices(extent, 1)
        texts = [f"{i} <= {u} <= {j}" for i, j in zip(first.tolist(), last.tolist(), strict=True)]
        yield Group(texts, [extra + 2.5] * len(first), lambda e, table: _between(totals(e, table), first, last))


def _by_residue(totals: Callable[[Evidence, Array], Array], size: int, evidence: Evidence, table: Array) -> Array:
    each = totals(evidence, table)
    return np.stack([each[:, i::size].sum(axis=1) for i in range(size)], axis=1)


def _ends(totals: Array) -> Array:
    return np.cumsum(totals[:, ::-1], axis=1)[:, ::-1][:, 1:]


def _between(totals: Array, first: Array, last: Array) -> Array:
    sums = np.concatenate([np.zeros((len(totals), 1)), np.cumsum(totals, axis=1)], axis=1)
    return np.asarray(sums[:, last + 1] - sums[:, first])


def _parts(count: int) -> Group:
    """What a sum is split into: equal parts of so many terms, maybe of whole tiles."""
    sizes = {*_LONG_TILES, *(-(-count // (parts * tile)) * tile for parts in range(2, 17) for tile in (1, *_TILES))}
    parts = sorted({(a, min(a + size, count)) for size in sizes if size < count for a in range(0, count, size)})
    first, last = (np.array([ends[i] for ends in parts], np.intp) for i in (0, 1))
    texts = [f"gemm_k from {a} to {b - 1} (a part of the sum)" for a, b in parts]
    return Group(texts, [0.4] * len(parts), lambda e, table: _between(table, first, last - 1))


def _halo(problem: Problem, side: str, extent: dict[str, int]) -> Group:
    """The terms that read beyond a tile of outputs."""
    out, tap = terms.spatial(problem)[side]
    sizes = [size for size in (4, 8, 16, 32) if size < extent[out] + 1]

    def sums(evidence: Evidence, table: Array) -> Array:
        env = evidence.env
        columns = []
        for size in sizes:
            local = env[out] % size * env[f"stride_{side}"] + env[tap] * env[f"dilation_{side}"]
            columns.append((table * (local >= size * env[f"stride_{side}"])).sum(axis=1))
        return np.stack(columns, axis=1) if columns else np.zeros((len(evidence), 0))

    return Group([f"{side} beyond a tile of {size} (its halo)" for size in sizes], [3.0] * len(sizes), sums)


_WHAT = ((-1.0, "missing"), (1.0, "twice"), (-2.0, "negative"))


def omissions(evidence: Evidence, least: float) -> Iterator[Suspect]:
    """Groups of terms left out, counted twice, subtracted, or alone: those true of a share of at least ``least``."""
    problem = evidence.problem
    tables = [evidence.products(i) for i in range(len(evidence.launches))]
    deltas = [launch.got - launch.expected for launch in evidence.launches]
    got = [launch.got for launch in evidence.launches]
    for group in groups(problem):
        sums = [group.sums(evidence, table) for table in tables]
        for factor, what in _WHAT:
            for index in _hits(evidence, [factor * s for s in sums], deltas, least):
                yield _of_terms(problem, group, index, what, factor, extra=what != "missing")
        alone = _hits(evidence, sums, got, least)
        if alone:
            size = group.sums(evidence, np.ones_like(tables[0])).mean(axis=0)
            for index in alone:
                few = size[index] < 0.45 * problem.reduction and group.costs[index] < 1
                yield _of_terms(problem, group, index, "alone", 1.0, extra=-0.7 if few else 0.7)


def _hits(evidence: Evidence, sums: list[Array], wanted: list[Array], least: float) -> list[int]:
    """Columns whose sums are what is wanted, in every launch, for a share of at least ``least`` of the positions."""
    hit: Any = True
    for launch, table, values in zip(evidence.launches, sums, wanted, strict=True):
        with np.errstate(invalid="ignore"):
            hit = hit & (np.abs(table - values[:, None]) <= launch.slack[:, None])
    share = np.asarray(hit).mean(axis=0)
    found = np.flatnonzero(share >= least)
    return [int(i) for i in found[np.argsort(-share[found])][:6]]


def _of_terms(problem: Problem, group: Group, index: int, what: str, factor: float, extra: float) -> Suspect:
    """The mistake that one set of a group's terms counts ``factor`` times besides, or alone."""

    def predict(evidence: Evidence, number: int) -> Array:
        sums = factor * group.sums(evidence, evidence.products(number))[:, index]
        return np.asarray(sums if what == "alone" else evidence.launches[number].expected + sums)

    def chance(evidence: Evidence) -> float:
        """What any set of the group explains, on average."""
        hit: Any = True
        for number, launch in enumerate(evidence.launches):
            sums = factor * group.sums(evidence, evidence.products(number))
            wanted = launch.got if what == "alone" else launch.got - launch.expected
            hit = hit & (np.abs(sums - wanted[:, None]) <= launch.slack[:, None])
        return float(np.asarray(hit).mean())

    return Suspect(group.costs[index] + extra, predict, _plain(said(problem, group.texts[index], what)), chance)


def said(problem: Problem, which: str, what: str) -> str:
    """A sentence on a group of terms that is missing, counted twice, subtracted or alone."""
    if what == "missing" and (special := _left_out(problem, which)):
        return special
    u, _, rest = which.partition(" ")
    side = u in terms.spatial(problem)
    many = not rest.removeprefix("= ").isdigit() and not which.startswith("the term")
    if side:
        subject = f"{LAYOUTS[problem.form].names[0]} at {which}"
        verb = {"missing": "counts as 0", "negative": "counts with the wrong sign"}.get(what, f"counts {what}")
        return f"only {subject} counts" if what == "alone" else f"{subject} {verb}"
    subject = which if which.startswith("the term") else f"the term{'s' if many else ''} {which}"
    if what == "alone":
        return f"only {subject} count{'' if many else 's'}"
    be = "are" if many else "is"
    verb = {"missing": "missing", "negative": "subtracted, not added"}.get(what, f"counted {what}")
    return f"{subject} {be} {verb}"


def _left_out(problem: Problem, which: str) -> str:
    """The usual omissions, in the words of a loop."""
    parts = which.split(" ")
    if len(parts) != 3 or not parts[2].isdigit():
        return ""
    u, sign, index = parts[0], parts[1], int(parts[2])
    extent = terms.extents(problem)[u]
    if problem.form == "gemm":
        if sign == "=" and index in (0, extent - 1):
            first = index == 0
            return f"the {'first' if first else 'last'} term, k = {'0' if first else 'K - 1'}, is left out"
        if sign == ">=":
            return f"the sum stops at k = {index}: the last {extent - index} terms are left out"
        return ""
    named = {"c": "channel", "k": "filter", "n": "image"}.get(u)
    if named and sign == "=":
        return f"{named} {u} = {index} is left out"
    if u in "trs" and sign == "=" and index in (0, extent - 1):
        return f"the {'first' if index == 0 else 'last'} filter tap, {u} = {index}, is left out"
    return ""


# --- index letters ---


def letters(problem: Problem) -> Iterator[Suspect]:
    """Index letters replaced by others."""
    for change in terms.changes(problem):
        yield Suspect(change.cost, partial(_summed, change), partial(told, change=change), partial(_drawn, change))


def _drawn(change: Change, evidence: Evidence, group: Group | None = None, index: int = 0) -> float:
    """The share that is explained if each of the letters has any value of its axis: of two images every second."""
    extent = terms.extents(evidence.problem)
    drawn = {u: np.asarray(f(evidence.env)) for u, f in change.letters.items() if u in extent}
    if not drawn:
        return 0.0
    # an index beyond its axis is one of the next row's: the only other one where the axis has a single index
    beyond = {u: int(change.flat and extent[u] == 1) for u in drawn}
    shares = []
    for seed in range(_DRAWS):
        rng = np.random.default_rng(seed)
        fixed = {
            u: rng.integers(-beyond[u], extent[u] + beyond[u], at.shape if _varied(at) else (len(evidence), 1))
            for u, at in drawn.items()
        }
        other = change._replace(letters=change.letters | {u: partial(_of, at=at) for u, at in fixed.items()})
        predict = partial(_partly, other, group, index) if group else partial(_summed, other)
        shares.append(float(holds(evidence, Suspect(0, predict, _plain(""))).mean()))
    return max(float(np.mean(shares)), _dropped(change, evidence, group, index))


def _of(env: terms.Env, at: Array) -> Array:
    return at


def _varied(at: Array) -> bool:
    """Does an index differ from term to term of an element?"""
    return at.ndim != 2 or bool((at != at[:, :1]).any())


def _dropped(change: Change, evidence: Evidence, group: Group | None, index: int) -> float:
    """The share that is explained without as many other terms, if all that the change does is to leave terms out."""
    hits: Any = True
    for number, launch in enumerate(evidence.launches):
        right = evidence.products(number)
        off = _changed(evidence, number, change) - right
        if group:
            sums = group.sums(evidence, right)
            if not np.array_equal(group.sums(evidence, off)[:, index], -sums[:, index]):
                return 0.0
        else:
            gone = (off == -right).all(axis=0)
            if off[:, ~gone].any() or not gone.any():
                return 0.0
            rng = np.random.default_rng(0)
            sets = [rng.permutation(right.shape[1])[: int(gone.sum())] for _ in range(8 * _DRAWS)]
            sums = np.stack([right[:, chosen].sum(axis=1) for chosen in sets], axis=1)
        off_by = launch.expected - launch.got
        hits = hits & (np.abs(sums - off_by[:, None]) <= launch.slack[:, None])
    return float(np.asarray(hits).mean())


def some_letters(evidence: Evidence, least: float) -> Iterator[Suspect]:
    """Index letters of an operand replaced by others, in one group of terms only."""
    known = [group for group in groups(evidence.problem) if len(group.texts) <= 64]
    for change in terms.changes(evidence.problem):
        if change.operand != OUTPUT and change.cost <= 2.5:
            yield from _for_some_terms(evidence, change, known, least)


def _changed(evidence: Evidence, number: int, change: Change) -> Array:
    launch = evidence.launches[number]
    with np.errstate(all="ignore"):
        return terms.products(evidence.problem, evidence.env, launch.x, launch.weight, change, evidence.reads)


def _summed(change: Change, evidence: Evidence, number: int) -> Array:
    return np.asarray(_changed(evidence, number, change).sum(axis=1))


def _for_some_terms(evidence: Evidence, change: Change, known: list[Group], least: float) -> Iterator[Suspect]:
    """The change made in one group of terms."""
    tables = [_changed(evidence, i, change) - evidence.products(i) for i in range(len(evidence.launches))]
    if not any(table.any() for table in tables) or not all(np.isfinite(table).all() for table in tables):
        return
    deltas = [launch.got - launch.expected for launch in evidence.launches]
    for group in known:
        sums = [group.sums(evidence, table) for table in tables]
        for index in _hits(evidence, sums, deltas, least):
            yield Suspect(
                change.cost + 3 + group.costs[index],
                partial(_partly, change, group, index),
                partial(_told_partly, change, group.texts[index].removeprefix("the term ")),
                partial(_drawn, change, group=group, index=index),
            )


def _partly(change: Change, group: Group, index: int, evidence: Evidence, number: int) -> Array:
    table = _changed(evidence, number, change) - evidence.products(number)
    return np.asarray(evidence.launches[number].expected + group.sums(evidence, table)[:, index])


def _told_partly(change: Change, which: str, evidence: Evidence) -> str:
    return f"for {which}, {told(evidence, change)}"


def told(evidence: Evidence, change: Change) -> str:
    """What a change of letters does, in a sentence."""
    problem = evidence.problem
    layout = LAYOUTS[problem.form]
    if change.operand == OUTPUT:
        return _moved(evidence, change)
    name = layout.names[0 if change.operand == X else 1]
    beyond = " (and an index beyond its axis reads the next row)" if change.flat else ""
    if not change.text:
        return "a tap on the padding reads what lies next in memory: it must add nothing"
    (u, form), *more = change.text.items()
    whole = terms.COMPOSITES[problem.form]
    if u == ROUNDS:
        return "the rest of the division by the stride is not looked at: taps of other residues count, too"
    if "_" in u and u not in whole:
        if form in ("0", "1"):
            return f"{u} {'are' if ' and ' in u else 'is'} taken as {form}"
        return f"{form} stands in place of {u}"
    if problem.form != "gemm" and set(change.text) == {"r", "s"} and form == "s":
        return _PAIRED
    if any(v in whole for v in change.text):
        parts = [
            f"{v} in place of {w}{f' = {_flat(whole[w])}' if w in whole else ''}" for w, v in change.text.items()
        ]
        return f"{name} is read with {' and '.join(parts)}{beyond}"
    order = layout.x if change.operand == X else layout.weight
    # a row of one operand gives a row of the output: which of the two is mistaken, values cannot tell
    alike = all(np.shape(value(evidence.env))[-1] == 1 for value in change.letters.values())  # in all terms
    if alike and not change.flat and set(change.text) <= {*order} & {*layout.output}:
        output = layout.names[2]
        there = f"{output}[{', '.join(change.text.get(u, u) for u in layout.output)}]"
        return f"{output}[{', '.join(layout.output)}] holds what {there} should"
    if isinstance(problem, Convolution) and change.operand == X:
        parts = [f"{v} in place of {w}" for w, v in change.text.items()]
        return f"{name} is read with {' and '.join(parts)}{beyond}"
    if problem.form == "gemm" and set(change.text) == {"k"}:
        a, b = (change.text if change.operand == operand else {} for operand in (X, WEIGHT))
        return f"the terms pair a[{_index(layout.x, a)}] with b[{_index(layout.weight, b)}]{beyond}"
    return f"{name}[{_index(order, change.text)}] is read in place of {name}[{_index(order, {})}]{beyond}"


def _flat(parts: tuple[str, ...]) -> str:
    """A composite index in letters."""
    text = parts[0]
    for u in parts[1:]:
        text = f"{text if text == parts[0] else f'({text})'} * {u.upper()} + {u}"
    return text


def _index(order: tuple[str, ...], text: dict[str, str]) -> str:
    """Indices of an element, with some letters replaced."""
    parts = []
    for u in order:
        if u in ("h", "w"):
            parts.append(" + ".join(said for v in SPATIAL[u] if (said := text.get(v, v)) != "0") or "0")
        else:
            parts.append(text.get(u, u))
    return ", ".join(parts)


def _moved(evidence: Evidence, change: Change) -> str:
    """Where the values of an output belong that are found elsewhere."""
    layout = LAYOUTS[evidence.problem.form]
    name = layout.names[2]
    (u, form), *more = change.text.items()
    spread = len(np.unique(evidence.env[u])) if u in layout.output else 0
    if (
        not more
        and form in (f"{u} + 1", f"{u} - 1")
        and spread > max(1, 0.7 * (terms.extents(evidence.problem)[u] - 1))
    ):
        return f"shifted: at {u} stands the value of {form}, as from an offset wrong by one (halo, padding)"
    extent = terms.extents(evidence.problem)
    moved = {v: np.broadcast_to(f(evidence.env), (len(evidence), 1))[:, 0] for v, f in change.letters.items()}
    whole = terms.COMPOSITES[evidence.problem.form]
    for w, parts in whole.items():
        if w in moved:
            moved |= terms.digits(parts, extent, moved.pop(w))
    hit = np.flatnonzero(holds(evidence, Suspect(0, partial(_summed, change), _plain(""))))
    at = int(hit[0]) if len(hit) else 0
    here = [int(axis[at]) for axis in evidence.positions]
    there = [int(moved[v][at]) if v in moved else i for v, i in zip(layout.output, here, strict=True)]
    general = f"{name}[{', '.join(change.text.get(v, v) for v in layout.output)}]"
    general += f" in place of {name}[{', '.join(layout.output)}]"
    if set(change.text) - set(layout.output):
        general = " and ".join(
            f"{v} in place of {w} = {_flat(whole[w])}" for w, v in change.text.items() if w in whole
        )
    example = f"{name}{here} holds what {name}{there} should"
    return f"transposed: {general}" if _is_exchange(change) else f"{example}: {general}"


def _is_exchange(change: Change) -> bool:
    return len(change.text) == 2 and all(change.text.get(form) == u for u, form in change.text.items())


def usual(evidence: Evidence, results: tuple[Array, ...], least: float) -> Iterator[Suspect]:
    """Mistakes in all terms alike. ``results``: each launch's right result, whole; empty if they are not known."""
    yield from values(evidence)
    if results:
        yield from stored(evidence.problem, results)
    yield from operands(evidence.problem)
    yield from padding(evidence)
    yield from omissions(evidence, least)
    yield from letters(evidence.problem)


def counted(problem: Problem, counts: Array) -> str:
    """How often each term counts, in a sentence; empty when the counts follow no pattern."""
    shape = terms.summed_shape(problem)
    table = counts.reshape(shape)
    other = np.unique(counts[counts != 1])
    if len(other) != 1:
        return ""
    hit = table == other[0]
    names = LAYOUTS[problem.form].summed
    if 2 * hit.sum() > hit.size and other[0] == 0:
        hit, what = ~hit, "alone"
    else:
        what = {0.0: "missing", 2.0: "twice", -1.0: "negative"}.get(float(other[0]), f"{other[0]:.0f} times")
    parts = []
    for axis, u in enumerate(names):
        inside = hit.any(axis=tuple(i for i in range(hit.ndim) if i != axis))
        if not inside.all():
            parts.append(f"{u} = {', '.join(str(int(i)) for i in np.flatnonzero(inside))}")
    if not parts:
        return ""
    return said(problem, f"the term ({', '.join(parts)})" if len(parts) > 1 else parts[0], what)
