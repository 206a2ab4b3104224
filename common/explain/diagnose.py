"""What wrong values say: whose value each element holds, which terms are missing, where the wrong elements lie. The
simplest mistake that explains nearly all of them is told.

Mistakes are made in a problem's definition in index letters. An environment maps these, and a convolution's geometry,
to arrays that broadcast to (elements, terms): letters of the output to (elements, 1), others to (1, terms).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from itertools import chain, combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.catalog import codes, reference
from common.catalog.problems import SIXTEEN_BITS, UINT16, Convolution, Dgrad, Geometry, Problem, Wgrad

Array = NDArray[Any]
Env = dict[str, Any]
# One mistake: its cost, the least for the simplest, its sentence, and the values that it would give.
Hypothesis = tuple[float, str, Callable[["Evidence"], Array]]

_FEW = 24  # wrong elements that every mistake is tried on
_PRODUCTS = 400_000  # terms worked out at most to confirm one mistake
_MOST = 0.9  # share of the wrong elements that a mistake must explain
_SPILT, _UNTRUE = 2.5, 5.0  # how much odder a mistake is that would spoil right elements, too, or leaves wrong ones
_CHANCE = 1e-5  # a few small integers often agree: how rarely they may by chance
_TILES = (2, 4, 8, 16, 32, 64, 128)
_LONGEST = 200  # the longest axis of terms of which every range is tried
_NAMES = {"c": "channel", "k": "filter", "n": "image"}
_SWAPPED = "r and s are swapped: h pairs with r and w with s"
_ALL = "gemm_k"  # in place of a letter: the terms in their order


def explain(problem: Problem, x: Array, weight: Array, got: Array, expected: Array) -> str:
    """One sentence on what the wrong elements of ``got``, of the output's shape, suggest; empty when nothing fits.
    NaN and infinity are left out."""
    wrong = (got != expected) & np.isfinite(got)
    if not wrong.any():
        return ""
    evidence, right = (
        Evidence(problem, x, weight, np.nonzero(mask), got[mask], expected) for mask in (wrong, got == expected)
    )
    if evidence.share(evidence.expected) > 0.5:
        name = "bfloat16" if problem.output_dtype == UINT16 else "float16"
        why = f"cut off, rounded twice or not to the even one, or kept in {name}"
        return f"most by a unit in {name}'s last place: the sums are {why}"
    with np.errstate(all="ignore"):
        text, spilt = _simplest(evidence, right.some(2 * _FEW))
    place = where(problem, wrong) if wrong.mean() < _MOST else ""
    if not text:
        return place
    return f"{text}, {place}" if place and place not in text and spilt > 0.25 else text


def _simplest(evidence: Evidence, right: Evidence) -> tuple[str, float]:
    """The simplest mistake that explains the wrong elements, and what share of the ``right`` ones it would spoil."""
    problem = evidence.problem
    few = evidence.some(max(4, min(_FEW, _PRODUCTS // problem.reduction)))
    spread = 2 * float(np.std(few.expected)) or float(np.abs(few.expected).max())
    if (1 + spread) ** -len(few.got) > _CHANCE:
        return "", 0.0
    ranked = []
    tried = _values(few), _stored(few), _operands(problem), _terms(few), _letters(problem), _geometry(problem)
    for cost, text, predict in chain(*tried):
        if (held := few.share(predict(few))) >= _MOST:
            spilt = 1 - right.share(predict(right)) if len(right.got) else 1.0
            ranked.append((cost + _SPILT * spilt + _UNTRUE * (1 - held), spilt, text, predict))
    many = evidence.some(max(_FEW, _PRODUCTS // problem.reduction))  # to confirm it
    for _, spilt, text, predict in sorted(ranked, key=lambda each: each[0]):
        if many.share(predict(many)) >= _MOST:
            return text, spilt
    return "", 0.0


def kept(
    problem: Problem, old: tuple[Array, Array], new: tuple[Array, Array], first: Array, got: Array, expected: Array
) -> str:
    """What an output still shows of an earlier launch, on ``old`` operands and with output ``first``; else empty."""
    wrong = got != expected
    if np.array_equal(got[wrong], first[wrong]):
        return "they still hold the first launch's output"
    if np.array_equal(got[wrong], (first + expected)[wrong]):
        sums = "they hold the first launch's sums, too: what is added to is to be set to zero by each launch"
        return f"{sums}, a workspace that is kept, too"
    for name, x, weight in zip(problem.names, (old[0], new[0]), (new[1], old[1]), strict=False):
        if np.array_equal(reference.expected(problem, x, weight), got):
            return f"{name} is the first launch's"
    return ""


# --- a problem in index letters ---


def axes_of(problem: Problem) -> list[str]:
    """The letters of the axes of x, of the weight and of the output."""
    return [letters.lower() for letters in problem.arrays]


def _extents(problem: Problem) -> dict[str, int]:
    """The extent of each index letter, and how many terms an element has."""
    return {u.lower(): getattr(problem, u) for u in "".join(problem.arrays)} | {_ALL: problem.reduction}


def _sides(problem: Problem) -> dict[str, tuple[str, str]]:
    """The axes of x whose index follows from a letter of pixels and one of taps: those two."""
    pairs = {"d": ("o", "t"), "h": ("p", "r"), "w": ("q", "s")}
    if isinstance(problem, Dgrad):
        pairs = {out: (axis, tap) for axis, (out, tap) in pairs.items()}
    return {u: pairs[u] for u in axes_of(problem)[0] if u in pairs}


def _index(problem: Problem, env: Env, u: str) -> Any:
    """The index of x along axis ``u`` that each term reads. It may lie outside: -1 between a gradient's strides."""
    if u not in _sides(problem):
        return env[u]
    pixel, tap = _sides(problem)[u]
    if isinstance(problem, Dgrad):
        reached = env[pixel] + env[f"pad_{pixel}"] - env[tap] * env[f"dilation_{pixel}"]
        index, rest = np.divmod(reached, env[f"stride_{pixel}"])
        return np.where(rest == 0, index, -1)
    return env[pixel] * env[f"stride_{u}"] - env[f"pad_{u}"] + env[tap] * env[f"dilation_{u}"]


@dataclass
class Evidence:
    """What a kernel stored at ``positions`` of the output, and on which operands; ``whole`` is the right output."""

    problem: Problem
    x: Array
    weight: Array
    positions: tuple[Array, ...]  # one for each axis
    got: Array
    whole: Array

    @property
    def expected(self) -> Array:
        return np.asarray(self.whole[self.positions])

    @cached_property
    def slack(self) -> Array:
        """How far right values may be off: those that are worked out here are not rounded to 16 bits."""
        if self.problem.output_dtype not in SIXTEEN_BITS:
            return np.zeros(self.got.shape)
        return codes.last_place(np.abs(self.got), self.problem.output_dtype)

    @cached_property
    def env(self) -> Env:
        """The letters at the positions."""
        problem = self.problem
        env: Env = {u: at[:, None] for u, at in zip(axes_of(problem)[2], self.positions, strict=True)}
        summed = np.indices(problem.extents(problem.summed)).reshape(len(problem.summed), 1, -1)
        env |= dict(zip(problem.summed.lower(), summed, strict=True))
        return env | (problem.geometry if isinstance(problem, Convolution) else Geometry())._asdict()

    @cached_property
    def table(self) -> Array:
        """The right terms, (positions, terms)."""
        return self.terms()

    def some(self, count: int) -> Evidence:
        """At most ``count`` of the positions, spread evenly."""
        chosen = np.linspace(0, len(self.got) - 1, min(count, len(self.got))).astype(np.intp)
        return replace(self, positions=tuple(axis[chosen] for axis in self.positions), got=self.got[chosen])

    def terms(self, x_env: Env | None = None, weight_env: Env | None = None, **operands: Array) -> Array:
        """The terms, (positions, terms), if other operands were read, or the same by other letters; what lies outside
        of x adds 0."""
        given = {"x": self.x, "weight": self.weight} | operands
        x_axes, weight_axes, _ = axes_of(self.problem)
        x_at = [_index(self.problem, x_env or self.env, u) for u in x_axes]
        weight_at = [(weight_env or self.env)[u] for u in weight_axes]
        factors = []
        for array, at in ((given["x"], x_at), (given["weight"], weight_at)):
            offset: Any = 0
            inside: Any = True
            for index, extent in zip(at, array.shape, strict=True):
                offset = offset * extent + index
                inside = inside & (index >= 0) & (index < extent)
            values = codes.values(array.reshape(-1).take(np.where(inside, offset, 0)))
            factors.append(np.where(inside, values, 0.0))
        with np.errstate(invalid="ignore"):
            return np.broadcast_to(factors[0] * factors[1], (len(self.got), self.problem.reduction))

    def changed(self, operand: str, **forms: str) -> Array:
        """The elements if expressions stood in the place of letters of an operand, or of the ``output``'s place."""
        names = self.env | {u.upper(): n for u, n in _extents(self.problem).items()}
        env = self.env | {u: eval(text, {}, names) for u, text in forms.items()}
        if operand != "output":
            terms = self.terms(env) if operand == "x" else self.terms(weight_env=env)
            return np.asarray(terms.sum(axis=1))
        at = [np.broadcast_to(env[u], (len(self.got), 1))[:, 0] for u in axes_of(self.problem)[2]]
        inside = np.logical_and.reduce([(i >= 0) & (i < n) for i, n in zip(at, self.whole.shape, strict=True)])
        return np.where(inside, self.whole[tuple(np.where(inside, i, 0) for i in at)], np.nan)

    def share(self, values: Array) -> Any:
        """Of the positions, what share holds these values; if they are (sets, positions), of each set."""
        return (np.abs(values - self.got) <= self.slack).mean(axis=-1)


def _read(operand: str, cost: float, text: str, **forms: str) -> Hypothesis:
    """The mistake that expressions stand in the place of letters of an operand, or of the ``output``'s place."""
    return cost, text, lambda e: e.changed(operand, **forms)


# --- mistakes ---

_VALUES: tuple[tuple[str, Callable[[Array], Array]], ...] = (
    ("each is 0", lambda y: y * 0),
    ("the sign is flipped", lambda y: -y),
    ("negative results are 0", lambda y: np.maximum(y, 0)),
    ("the result is kept in 8 bits", lambda y: (np.trunc(y) + 128) % 256 - 128),
    ("the result is clipped to -127 to 127", lambda y: np.clip(y, -127, 127)),
    ("each is half the right value", lambda y: y / 2),
    ("each is twice the right value", lambda y: y * 2),
)


def _values(evidence: Evidence) -> Iterator[Hypothesis]:
    for number, (text, change) in enumerate(_VALUES):
        yield number / 5 - 2, text, lambda e, change=change: change(e.expected)  # type: ignore[misc]
    offset = float(np.median(evidence.got - evidence.expected))
    if offset and offset == round(offset):
        more = f"{abs(offset):g} too {'large' if offset > 0 else 'small'}"
        yield 2, f"each is {more}", lambda e: e.expected + offset


def _stored(evidence: Evidence) -> Iterator[Hypothesis]:
    """Right results stored with two axes in the other order."""
    problem, whole = evidence.problem, evidence.whole
    for (i, u), (j, v) in combinations(enumerate(axes_of(problem)[2]), 2):
        text = f"transposed: {u} and {v} of {problem.names[2]} are stored in each other's place"
        if problem.form == "gemm":
            text = "transposed: c is stored column by column, c[n, m] in place of c[m, n]"
        moved = whole.swapaxes(i, j).reshape(whole.shape)
        yield 1.5, text, lambda e, moved=moved: moved[e.positions]  # type: ignore[misc]


def _operands(problem: Problem) -> Iterator[Hypothesis]:
    """Flipped filters, and layouts taken for others: two axes in each other's place, or the last in the second's."""
    x_axes, weight_axes, output = axes_of(problem)
    filt = output if isinstance(problem, Wgrad) else weight_axes
    flipped = {u: f"{u.upper()} - 1 - {u}" for u in "trs" if u in filt}
    if isinstance(problem, Wgrad):
        text = "the filter is flipped: dfilt[.., t, r, s, ..] holds what T - 1 - t, R - 1 - r, S - 1 - s should"
        yield _read("output", 0.5, text, **flipped)
    elif flipped:
        text = "the filter is flipped: this is convolution, and cross-correlation is asked for"
        if isinstance(problem, Dgrad):
            text = "the filter is flipped: a tap goes back to where it was read, so rows of dy fall as taps rise"
        yield _read("weight", 1, text, **flipped)
        order = tuple(map(weight_axes.index, weight_axes.translate(str.maketrans("rs", "sr"))))
        yield 1, _SWAPPED, partial(_taken_as, "weight", order)
    if problem.input_dtype == UINT16:
        text = "codes of bfloat16 are multiplied as if they were float16"
        yield 0.5, text, lambda e: e.terms(x=e.x.view("f2"), weight=e.weight.view("f2")).sum(axis=1)
    for operand, name, letters in (("x", problem.names[0], x_axes), ("weight", problem.names[1], weight_axes)):
        stored, places = letters.upper(), range(len(letters))
        orders = [tuple({i: j, j: i}.get(axis, axis) for axis in places) for i, j in combinations(places, 2)]
        for order in [*orders, (0, 4, 1, 2, 3)] if len(stored) == 5 else orders:
            read = "".join(stored[axis] for axis in order)
            text, cost = f"{name} is read in {read} order, and it is stored {stored}", 4 if order in orders else 1
            if problem.form == "gemm":
                taken, right = (", ".join(one.lower()) for one in (read, stored))
                text, cost = f"{name} is read transposed, {name}[{taken}] in place of {name}[{right}]", 2
            yield cost, text, partial(_taken_as, operand, order)


def _taken_as(operand: str, order: tuple[int, ...], evidence: Evidence) -> Array:
    """The elements if the axes of an operand were taken to lie in this order."""
    array = getattr(evidence, operand)
    read = array.reshape([array.shape[axis] for axis in order]).transpose(np.argsort(order))
    return np.asarray(evidence.terms(**{operand: read}).sum(axis=1))


def _terms(evidence: Evidence) -> Iterator[Hypothesis]:
    """Terms that a loop or a guard leaves out or repeats: ranges of a letter summed over, or of all terms."""
    problem, extents = evidence.problem, _extents(evidence.problem)
    axes = {u: 0.0 for u in problem.summed.lower() if extents[u] > 1} | dict.fromkeys(_sides(problem), 1.0)
    if problem.form != "gemm":
        axes[_ALL] = 0.4
    for u, cost in axes.items():
        first, last, odd = _ranges(extents[u])
        alone = np.where(last + 1 - first < 0.45 * extents[u], -0.7, 0.7)
        for what, extra in (("missing", 0 * odd), ("twice", 0 * odd + 1), ("alone", alone)):
            share = evidence.share(_with_terms(what, u, first, last, evidence))
            for i in np.argsort(-share, kind="stable")[:6]:  # those that fit best
                span = u, int(first[i]), int(last[i])
                yield cost + odd[i] + extra[i], _told_terms(problem, what, *span), partial(_with_terms, what, *span)


def _ranges(n: int) -> tuple[Array, Array, Array]:
    """First and last value of each range that is tried, and how odd it is: one value, an end, a beginning, others."""
    first, last = np.triu_indices(n) if n <= _LONGEST else (np.arange(n), np.arange(n))
    if n > _LONGEST:
        first, last = np.r_[first, 0 * first, first], np.r_[last, last, 0 * last + n - 1]
    proper = (first > 0) | (last < n - 1)
    first, last = first[proper], last[proper]
    odd = np.select([first == last, last == n - 1, first == 0], [0.0, 0.5, 0.6], 2.5)
    return first, last, odd


def _with_terms(what: str, u: str, first: Any, last: Any, evidence: Evidence) -> Array:
    """The elements, of (ranges, positions) if ``first`` and ``last`` are arrays, if the terms from ``first`` to
    ``last`` were missing, counted twice or alone: along a letter summed over, along an axis of x (where a term reads
    it), or of all terms in their order."""
    problem, table, extent = evidence.problem, evidence.table, _extents(evidence.problem)[u]
    index = np.broadcast_to(np.arange(extent) if u == _ALL else _index(problem, evidence.env, u), table.shape)
    inside = (index >= 0) & (index < extent)
    rows = np.arange(len(table))[:, None] * (extent + 1) + index + 1
    totals = np.bincount(rows[inside], table[inside], len(table) * (extent + 1))
    totals = totals.reshape(len(table), extent + 1).cumsum(axis=1).T
    sums: Array = totals[last + 1] - totals[first]
    expected = evidence.expected
    return {"missing": expected - sums, "twice": expected + sums, "alone": sums}[what]


def _told_terms(problem: Problem, what: str, u: str, first: int, last: int) -> str:
    """A sentence on terms that are missing, counted twice or alone; in a loop's words if usual."""
    end, one, gemm = _extents(problem)[u] - 1, first == last, problem.form == "gemm"
    text = f"{u} = {first}" if one else f"{u} < {last + 1}" if first == 0 else f"{first} <= {u} <= {last}"
    if last == end and not one:
        text = f"{u} >= {first}"
    if u in _sides(problem):
        place = f"{problem.names[0]} at {text}"
        return {"missing": f"{place} counts as 0", "twice": f"{place} counts twice"}.get(what, f"only {place} counts")
    if what == "missing" and one:
        if first in (0, end) and (gemm or u in "trs"):
            kind, at = ("term", "K - 1" if first else "0") if gemm else ("filter tap", first)
            return f"the {'last' if first else 'first'} {kind}, {u} = {at}, is left out"
        if not gemm and u in _NAMES:
            return f"{_NAMES[u]} {u} = {first} is left out"
    if what == "missing" and gemm and last == end:
        return f"the sum stops at k = {first}: the last {end + 1 - first} terms are left out"
    if u == _ALL and not one:
        text = f"{u} from {first} to {last} (a part of the sum)"
    subject, counts, are = ("the term", "counts", "is") if one else ("the terms", "count", "are")
    told = {"missing": f"{subject} {text} {are} missing", "twice": f"{subject} {text} {are} counted twice"}
    return told.get(what, f"only {subject} {text} {counts}")


def _letters(problem: Problem) -> Iterator[Hypothesis]:
    """A letter of the output or of an operand off by one, taken for another, or kept within or at a tile's start."""
    (x_axes, weight_axes, output), summed, extents = axes_of(problem), problem.summed.lower(), _extents(problem)
    a, b, name = problem.names[:3]
    for u in output:
        for form, cost in _expressions(u, output, extents):
            place = ", ".join(form if v == u else v for v in output)
            text = f"{name}[{', '.join(output)}] holds what {name}[{place}] should"
            if form in (f"{u} + 1", f"{u} - 1"):
                text = f"shifted: at {u} stands the value of {form}, as from an offset wrong by one (halo, padding)"
            yield _read("output", cost, text, **{u: form})
    # a letter of the output that an operand takes for another of the output is told as the output's mistake
    for operand, array, read in (("x", a, f"{x_axes}trs"), ("weight", b, weight_axes)):
        for u in (letter for letter in output + summed if letter in read):
            for form, cost in _expressions(u, output + summed if u in summed else summed, extents):
                if u in summed or form in summed:
                    text = f"{array} is read with {form} in place of {u}"
                    if problem.form == "gemm" and u == "k":
                        pair = (form, u) if operand == "x" else (u, form)
                        text = f"the terms pair a[m, {pair[0]}] with b[{pair[1]}, n]"
                    yield _read(operand, cost + 2, text, **{u: form})
    if "r" in summed:
        yield _read("x", 1, _SWAPPED, r="s", s="r")


def _expressions(u: str, others: str, extents: dict[str, int]) -> Iterator[tuple[str, float]]:
    """What may stand in the place of the letter ``u``, and how odd it is; ``others``: what it may be taken for."""
    yield from ((f"{u} + 1", 1), (f"{u} - 1", 1), ("0", 2))
    yield from ((v, 2) for v in others if v != u and extents[v] > 1)
    for size in (size for size in _TILES if size < extents[u]):
        yield from ((f"{u} % {size}", 3), (f"{u} // {size} * {size}", 3))


def _geometry(problem: Problem) -> Iterator[Hypothesis]:
    """Stride, padding and dilation ignored, of another axis, or off by one."""
    geometry = problem.geometry._asdict() if isinstance(problem, Convolution) else {}
    for kind, neutral in (("stride", 1), ("pad", 0), ("dilation", 1)):
        names = [name for name in geometry if name.startswith(kind)]
        given = [name for name in names if geometry[name] != neutral]
        for ignored in [[name] for name in given] + ([given] if len(given) > 1 else []):
            text = f"{' and '.join(ignored)} {'are' if len(ignored) > 1 else 'is'} taken as {neutral}"
            yield _read("x", 1 + len(ignored) / 10, text, **dict.fromkeys(ignored, str(neutral)))
        near = 1.4 if kind == "pad" else 2.5
        for name in names:
            options = [(f"{name} + 1", geometry[name] + 1, near), (f"{name} - 1", geometry[name] - 1, near)]
            for form, value, cost in options + [(other, geometry[other], 2.0) for other in names]:
                if value != geometry[name] and value >= neutral:
                    yield _read("x", cost, f"{form} stands in place of {name}", **{name: form})


# --- where ---


def where(problem: Problem, wrong: NDArray[np.bool_]) -> str:
    """The region of ``wrong`` (output's shape): a box, or slabs that cross; empty when it is neither."""
    if not wrong.any() or wrong.all():
        return ""
    names, axes = axes_of(problem)[2], range(wrong.ndim)
    others = [tuple(i for i in axes if i != axis) for axis in axes]
    box = [_range(u, wrong.any(axis=rest)) for u, rest in zip(names, others, strict=True)]
    if any(box):
        return "only " + " and ".join(filter(None, box))
    # the last tile of several axes is no box but slabs that cross
    whole = [wrong.all(axis=rest) for rest in others]
    slabs = [_range(u, inside) for u, inside in zip(names, whole, strict=True)]
    told = [inside & bool(text) for inside, text in zip(whole, slabs, strict=True)]
    covered = reduce(np.logical_or, np.meshgrid(*told, indexing="ij", sparse=True))
    return "only " + " or ".join(filter(None, slabs)) if np.array_equal(covered, wrong) else ""


def _range(name: str, inside: Any) -> str:
    """The indices of one axis that are ``inside``; empty when all or none are, or they follow no pattern."""
    extent, hit = len(inside), np.flatnonzero(inside)
    if len(hit) in (0, extent):
        return ""
    first, last = int(hit[0]), int(hit[-1])
    if first == last:
        return f"{name} = {first}" + (", the last" if first == extent - 1 else "")
    if len(hit) == last - first + 1:
        if last < extent - 1:
            return f"{first} <= {name} <= {last}"
        tile = next((size for size in (32, 16, 8) if first % size == 0 and extent - first <= size), None)
        return f"{name} >= {first}" + (f", the last tile of {tile}" if tile else "")
    for size in (2, 4, 8, 16, 32):
        rests = np.unique(hit % size)
        low, high = int(rests[0]), int(rests[-1])
        whole = np.isin(np.arange(extent) % size, rests).sum() == len(hit)
        if size < extent and whole and high - low + 1 == len(rests) < size:
            return f"{name} % {size} = {low}" if low == high else f"{low} <= {name} % {size} <= {high}"
    return ""
