"""What wrong values say: whose value each element holds, which terms are missing, where the wrong elements lie. The
simplest mistake that explains nearly all of them is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, combinations
from typing import Any

import numpy as np

from common.catalog import reference
from common.catalog.problems import UINT16, Convolution, Dgrad, Problem, Wgrad
from common.explain import letters
from common.explain.letters import ALL, OUTPUT, ROUNDS, WEIGHT, Array, Evidence, Hypothesis, X, axes_of, extents

_FEW = 24  # wrong elements that every mistake is tried on
_PRODUCTS = 400_000  # terms worked out at most to confirm one mistake
_MOST = 0.9  # share of the wrong elements that a mistake must explain
_SPILT, _UNTRUE = 2.5, 5.0  # how much odder a mistake is that would spoil right elements, too, or leaves wrong ones
_CHANCE = 1e-5  # a few small integers often agree: how rarely they may by chance
_TILES = (2, 4, 8, 16, 32, 64, 128)
_LONGEST = 200  # the longest axis of terms of which every range is tried
_CANDIDATES = 6  # sets of terms that are told of one axis, at most
_FLIPPED = {u: f"{u.upper()} - 1 - {u}" for u in "trs"}
_SWAPPED = "r and s are swapped: h pairs with r and w with s"


def explain(problem: Problem, x: Array, weight: Array, got: Array, expected: Array) -> str:
    """One sentence on what the wrong elements suggest; empty when nothing fits.

    ``got`` and ``expected`` have the output's shape; NaN and infinity in ``got`` are left out.
    """
    wrong, right = ((got != expected) & np.isfinite(got), (got == expected) & np.isfinite(got))
    if not wrong.any():
        return ""
    evidence = Evidence(problem, x, weight, np.nonzero(wrong), got[wrong], expected)
    if (np.abs(evidence.got - evidence.expected) <= evidence.slack).mean() > 0.5:
        return _by_a_place(evidence.some(_FEW))
    spared = Evidence(problem, x, weight, np.nonzero(right), got[right], expected).some(2 * _FEW)
    text, spilt = _simplest(evidence, spared if right.any() else None)
    place = letters.where(problem, wrong)
    if not text:
        return place
    return f"{text}, {place}" if place and place not in text and spilt > 0.25 else text


def _by_a_place(few: Evidence) -> str:
    """What became of sums that are off by a unit in the last place of 16 bits."""
    problem, sums = few.problem, few.sums()
    name = "bfloat16" if problem.output_dtype == UINT16 else "float16"
    last = reference.last_place(problem, np.abs(sums))
    if np.array_equal(few.got, np.trunc(sums / last) * last):
        return f"by a unit in {name}'s last place: the sums are cut off, not rounded"
    if (np.abs(sums) % last == last / 2).all():
        return f"sums halfway between two numbers of {name} are not rounded to the even one"
    twice = reference.stored(problem, sums.astype(np.float16).astype(np.float64))
    if problem.output_dtype == UINT16 and np.array_equal(few.got, twice):
        return "the sums are rounded twice, to float16 first"
    return f"most by a unit in {name}'s last place: the sums are cut off, or kept in {name}"


def _simplest(evidence: Evidence, right: Evidence | None) -> tuple[str, float]:
    """The simplest mistake that explains the wrong elements, and what share of the ``right`` ones it would spoil."""
    problem = evidence.problem
    few = evidence.some(max(4, min(_FEW, _PRODUCTS // problem.reduction)))
    found = few.expected
    spread = 2 * float(np.std(found)) if len(few) > 1 else float(np.abs(found).max())
    if (1 + spread) ** -len(few) > _CHANCE:
        return "", 0.0
    ranked = []
    tried = _values(few), _stored(few), _operands(problem), _terms(few), _letters(problem), _geometry(problem)
    for one in chain(*tried):
        if (held := one.holds(few)) >= _MOST:
            spilt = 1 - one.holds(right) if right else 1.0
            ranked.append((one.cost + _SPILT * spilt + _UNTRUE * (1 - held), spilt, one))
    many = evidence.some(max(_FEW, _PRODUCTS // problem.reduction))  # to confirm it
    for _, spilt, one in sorted(ranked, key=lambda each: each[0]):
        if one.holds(many) >= _MOST:
            return one.text, spilt
    return "", 0.0


def kept(
    problem: Problem, old: tuple[Array, Array], new: tuple[Array, Array], first: Array, got: Array, expected: Array
) -> str:
    """What of an earlier launch, on the ``old`` operands, with the right output ``first``, an output still shows;
    empty when nothing of it fits."""
    wrong = got != expected
    if np.array_equal(got[wrong], first[wrong]):
        return "they still hold the first launch's output"
    if np.array_equal(got[wrong], (first + expected)[wrong]):
        sums = "they hold the first launch's sums, too: what is added to is to be set to zero by each launch"
        return f"{sums}, a workspace that is kept, too"
    a, b = problem.names[:2]
    for name, x, weight in ((b, new[0], old[1]), (a, old[0], new[1])):
        if np.array_equal(reference.expected(problem, x, weight), got):
            return f"{name} is the first launch's"
    return ""


# --- what became of a right sum ---

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
        yield Hypothesis(number / 5 - 2, text, lambda e, change=change: change(e.expected))  # type: ignore[misc]
    offset = float(np.median(evidence.got - evidence.expected))
    if offset and offset == round(offset):
        more = f"{abs(offset):g} too {'large' if offset > 0 else 'small'}"
        yield Hypothesis(2, f"each is {more}", lambda e: e.expected + offset)


def _stored(evidence: Evidence) -> Iterator[Hypothesis]:
    """Right results stored with two axes in the other order."""
    problem, whole = evidence.problem, evidence.whole
    axes, name = axes_of(problem)[2], problem.names[2]
    for (i, u), (j, v) in combinations(enumerate(axes), 2):
        text = f"transposed: {u} and {v} of {name} are stored in each other's place"
        if problem.form == "gemm":
            text = "transposed: c is stored column by column, c[n, m] in place of c[m, n]"
        moved = whole.swapaxes(i, j).reshape(whole.shape)
        yield Hypothesis(1.5, text, lambda e, moved=moved: moved[e.positions])  # type: ignore[misc]
    if isinstance(problem, Wgrad):
        text = "the filter is flipped: dfilt[.., t, r, s, ..] holds what T - 1 - t, R - 1 - r, S - 1 - s should"
        yield _read(OUTPUT, 0.5, text, **_FLIPPED)


# --- operands read otherwise ---


def _operands(problem: Problem) -> Iterator[Hypothesis]:
    """Flipped filters, and layouts taken for others: two axes in each other's place, or the last in the second's."""
    x_axes, weight_axes, _ = axes_of(problem)
    if "r" in weight_axes:
        text = "the filter is flipped: this is convolution, and cross-correlation is asked for"
        if isinstance(problem, Dgrad):
            text = "the filter is flipped: a tap goes back to where it was read, so rows of dy fall as taps rise"
        yield _read(WEIGHT, 1, text, **{u: form for u, form in _FLIPPED.items() if u in weight_axes})
        r, s = weight_axes.index("r"), weight_axes.index("s")
        order = tuple({r: s, s: r}.get(axis, axis) for axis in range(len(weight_axes)))
        yield _taken_as(WEIGHT, 1, _SWAPPED, order)
    if problem.input_dtype == UINT16:
        text = "codes of bfloat16 are multiplied as if they were float16"
        yield Hypothesis(0.5, text, lambda e: e.sums(e.x.view(np.float16), e.weight.view(np.float16)))
    for operand, name, letters_of in ((X, problem.names[0], x_axes), (WEIGHT, problem.names[1], weight_axes)):
        stored, places = letters_of.upper(), range(len(letters_of))
        orders = [tuple({i: j, j: i}.get(axis, axis) for axis in places) for i, j in combinations(places, 2)]
        for order in [*orders, (0, 4, 1, 2, 3)] if len(stored) == 5 else orders:
            read = "".join(stored[axis] for axis in order)
            text, cost = f"{name} is read in {read} order, and it is stored {stored}", 4 if order in orders else 1
            if problem.form == "gemm":
                taken, right = (", ".join(one.lower()) for one in (read, stored))
                text, cost = f"{name} is read transposed, {name}[{taken}] in place of {name}[{right}]", 2
            yield _taken_as(operand, cost, text, order)


def _taken_as(operand: str, cost: float, text: str, order: tuple[int, ...]) -> Hypothesis:
    """The mistake that the axes of an operand are taken to lie in this order."""

    def predict(evidence: Evidence) -> Array:
        array = getattr(evidence, operand)
        read = array.reshape([array.shape[axis] for axis in order]).transpose(np.argsort(order))
        return evidence.sums(**{operand: read})

    return Hypothesis(cost, text, predict)


# --- terms left out, counted twice, or alone ---


def _terms(evidence: Evidence) -> Iterator[Hypothesis]:
    """Terms that a loop or a guard leaves out or repeats: ranges of a letter summed over, or of all terms."""
    problem, off = evidence.problem, evidence.got - evidence.expected
    axes = [(u, 0.0) for u in problem.summed.lower() if extents(problem)[u] > 1]
    axes += [(u, 1.0) for u in letters.sides(problem)]
    for u, cost in axes + ([(ALL, 0.4)] if problem.form != "gemm" else []):
        first, last, odd = _ranges(extents(problem)[u])
        sums = _between(evidence, u, first, last)
        few = last + 1 - first < 0.45 * extents(problem)[u]
        for what, extra, fitting, wanted in (
            ("missing", np.zeros_like(odd), -sums, off),
            ("twice", np.ones_like(odd), sums, off),
            ("alone", np.where(few, -0.7, 0.7), sums, evidence.got),
        ):
            share = (np.abs(fitting - wanted[:, None]) <= evidence.slack[:, None]).mean(axis=0)
            for i in np.argsort(-share, kind="stable")[:_CANDIDATES]:
                which = u, int(first[i]), int(last[i]), what
                text, predict = _told_terms(problem, *which), partial(_with_terms, *which)
                yield Hypothesis(cost + odd[i] + extra[i], text, predict)


def _with_terms(u: str, first: int, last: int, what: str, evidence: Evidence) -> Array:
    """The elements if these terms were missing, counted twice or alone."""
    sums = _between(evidence, u, first, last)
    return {"alone": sums, "twice": evidence.expected + sums}.get(what, evidence.expected - sums)


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
    """The sums of the terms from ``first`` to ``last`` along ``u``, (positions, ranges): along a letter summed over,
    an axis of x (where a term reads it), or all terms in their order."""
    problem, table, extent = evidence.problem, evidence.table, extents(evidence.problem)[u]
    index: Any = np.arange(extent) if u == ALL else evidence.env.get(u)
    if u in letters.sides(problem):
        index = letters.coordinates(problem, X, evidence.env)[axes_of(problem)[0].index(u)]
    index = np.broadcast_to(index, table.shape)
    inside = (index >= 0) & (index < extent)
    rows = np.arange(len(table))[:, None] * (extent + 1) + index + 1
    totals = np.bincount(rows[inside], table[inside], len(table) * (extent + 1))
    totals = totals.reshape(len(table), extent + 1).cumsum(axis=1)
    return np.asarray(totals[:, last + 1] - totals[:, first])


def _told_terms(problem: Problem, u: str, first: int, last: int, what: str) -> str:
    """A sentence on terms that are missing, counted twice or alone; in a loop's words if usual."""
    end, one, alone = extents(problem)[u] - 1, first == last, what == "alone"
    named = {"c": "channel", "k": "filter", "n": "image"}
    text = f"{u} = {first}" if one else f"{u} < {last + 1}" if first == 0 else f"{first} <= {u} <= {last}"
    if last == end and not one:
        text = f"{u} >= {first}"
    if u in letters.sides(problem):
        place = f"{problem.names[0]} at {text}"
        return f"only {place} counts" if alone else f"{place} counts {'as 0' if what == 'missing' else 'twice'}"
    if what == "missing" and problem.form == "gemm":
        if one and first in (0, end):
            return "the last term, k = K - 1, is left out" if first else "the first term, k = 0, is left out"
        if last == end:
            return f"the sum stops at k = {first}: the last {end + 1 - first} terms are left out"
    elif what == "missing" and one and u in named:
        return f"{named[u]} {u} = {first} is left out"
    elif what == "missing" and one and u in "trs" and first in (0, end):
        return f"the {'last' if first else 'first'} filter tap, {u} = {first}, is left out"
    if u == ALL and not one:
        text = f"{u} from {first} to {last} (a part of the sum)"
    subject = f"the term {text}" if one else f"the terms {text}"
    if alone:
        return f"only {subject} count{'s' if one else ''}"
    return f"{subject} {'is' if one else 'are'} {'missing' if what == 'missing' else 'counted twice'}"


def _read(operand: str, cost: float, text: str, **forms: str) -> Hypothesis:
    """The mistake that expressions stand in the place of letters of an operand, or of the output's place."""
    return Hypothesis(cost, text, lambda e: e.changed(operand, **forms))


def _letters(problem: Problem) -> Iterator[Hypothesis]:
    """A letter of the output or of an operand off by one, taken for another, or kept within or at a tile's start."""
    (x_axes, weight_axes, output), summed, extent = axes_of(problem), problem.summed.lower(), extents(problem)
    name = problem.names[2]
    for u in output:
        for form, cost in _expressions(u, output, extent):
            place = ", ".join(form if v == u else v for v in output)
            text = f"{name}[{', '.join(output)}] holds what {name}[{place}] should"
            if form in (f"{u} + 1", f"{u} - 1"):
                text = f"shifted: at {u} stands the value of {form}, as from an offset wrong by one (halo, padding)"
            yield _read(OUTPUT, cost, text, **{u: form})
    # a letter of the output that an operand takes for another of the output is told as the output's mistake
    for operand, read in ((X, f"{x_axes}trs"), (WEIGHT, weight_axes)):
        for u in (*output, *summed):
            if u not in read:
                continue
            others = output + summed if u in summed else summed
            for form, cost in _expressions(u, others, extent):
                if u in summed or form in summed:
                    text = f"{problem.names[operand == WEIGHT]} is read with {form} in place of {u}"
                    if problem.form == "gemm" and u == "k":
                        a, b = (form, u) if operand == X else (u, form)
                        text = f"the terms pair a[m, {a}] with b[{b}, n]"
                    yield _read(operand, cost + 2, text, **{u: form})
    if "r" in summed:
        yield _read(X, 1, _SWAPPED, r="s", s="r")


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
        yield _read(X, 0.5, text, **{ROUNDS: "1"})
    geometry = problem.geometry._asdict()
    for kind, neutral in (("stride", 1), ("pad", 0), ("dilation", 1)):
        names = [name for name in geometry if name.startswith(kind)]
        given = [name for name in names if geometry[name] != neutral]
        for ignored in [[name] for name in given] + ([given] if len(given) > 1 else []):
            text = f"{' and '.join(ignored)} {'are' if len(ignored) > 1 else 'is'} taken as {neutral}"
            yield _read(X, 1 + len(ignored) / 10, text, **dict.fromkeys(ignored, str(neutral)))
        # an index of dy that is off by one is the padding's mistake, or a letter's: there the same
        near = 1.4 if isinstance(problem, Dgrad) and kind == "pad" else 2.5
        for name in names:
            dilated = kind == "pad" and geometry[f"dilation_{name[-1]}"] > 1
            options = [(f"{name} + 1", geometry[name] + 1, near), (f"{name} - 1", geometry[name] - 1, near)]
            options += [(other, geometry[other], 2.0) for other in names]
            for form, value, cost in options:
                if value != geometry[name] and value >= neutral:
                    perhaps = ", or the dilation is left out of an offset" if dilated and form.endswith(" 1") else ""
                    yield _read(X, cost, f"{form} stands in place of {name}{perhaps}", **{name: form})
