"""What wrong values say: where each belongs, which terms are missing, where the wrong elements lie.

Each output element is a sum of products of integers, so what a mistake would give can be worked out and compared,
element by element. The simplest mistake that explains most is told.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.catalog import reference
from common.catalog.problems import FLOAT16, Convolution, Dgrad, Problem
from common.explain import hypotheses, letters, omissions, terms
from common.explain.hypotheses import Evidence, Hypothesis
from common.explain.terms import LAYOUTS, Array, Positions

_TILES = (32, 16, 8)
_RESIDUES = (2, 4, 8, 16, 32)
_FEW = 24  # wrong elements that every mistake is tried on, and right ones
_PRODUCTS = 400_000  # terms worked out at most to confirm one mistake
_MOST = 0.95  # share of the wrong elements from which a mistake explains them all
_ENOUGH = 0.6  # and from which one is told at all
_BEYOND = 0.2  # of what chance leaves, a mistake that explains a part must explain this share
_RARE = 1e-6  # and chance so much may do once in so many
_LARGE, _LITTLE = 4000, 0.02  # values that lose bits, and how much of them
_SPILT = 2.5  # how much odder a mistake is that would spoil right elements, too


class Found(NamedTuple):
    """An explanation, and the share of the wrong elements that it is true of; of right ones that it would spoil."""

    text: str
    share: float
    spilt: float = 1.0


def explain(
    problem: Problem, x: Array, weight: Array, got: Array, expected: Array, racy: bool = False, tolerance: Any = 0.0
) -> str:
    """One sentence on what the wrong elements suggest; empty when nothing fits.

    ``got`` and ``expected`` have the output's shape; NaN and infinity in ``got`` are left out. ``racy``: a race was
    found, so what is true of a part of the elements says nothing. ``tolerance``, one number or one per element, is
    how far a right value may be off.
    """
    slack = np.broadcast_to(np.asarray(tolerance, np.float64), got.shape)
    wrong = (np.abs(got - expected) > slack) & np.isfinite(got)
    if not wrong.any():
        return ""
    if problem.output_dtype == FLOAT16:
        slack = slack + _last_place(got)
        if (np.abs(got - expected) <= slack)[wrong].mean() > 0.5:
            return "most by a unit in float16's last place: the sums are cut off, or kept in float16"
    place = where(problem, wrong)

    def evidence(mask: NDArray[np.bool_]) -> Evidence:
        return Evidence(problem, x, weight, np.nonzero(mask), got[mask], expected[mask], slack[mask], expected)

    right = ~wrong & np.isfinite(got)
    found = _likeliest(evidence(wrong), evidence(right).some(2 * _FEW) if right.any() else None)
    if not found.text:
        return _at_edges(problem, wrong) or _cancelled(got[wrong], expected[wrong]) or place
    if found.share < 1:
        return place if racy else _partly(found, int(wrong.sum()), "elements")
    if not place or place in found.text or found.spilt < 0.25:
        return found.text
    return f"{found.text}, {place}"


def _partly(found: Found, count: int, what: str) -> str:
    return f"{found.text}; true of {max(1, int(found.share * count))} of {count} wrong {what}"


def _cancelled(got: Array, expected: Array) -> str:
    """That large values are off by little: they are exact for a kernel that adds its products up."""
    near = np.abs(got - expected) <= _LITTLE * np.abs(expected)
    if np.abs(expected).max() < _LARGE or near.mean() < 0.5:
        return ""
    return "by little: the last bits are lost, as where large terms cancel"


def _last_place(got: Array) -> Array:
    """The last place of each float16: a sum that was worked out is off by half of it once it is stored."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.abs(np.spacing(got.astype(np.float16))), np.float64)


def explain_sampled(
    problem: Problem, x: Array, weight: Array, positions: Positions, got: Array, expected: Array
) -> str:
    """As :func:`explain`, for wrong elements at ``positions`` of a result too large to be compared whole."""
    place = where_sampled(problem, positions)
    if len(got) < 4:
        return place
    slack = _last_place(got) if problem.output_dtype == FLOAT16 else np.zeros(len(got))
    found = _likeliest(Evidence(problem, x, weight, positions, got.astype(np.float64), expected, slack), None)
    if not found.text:
        return place
    if found.share < 1:
        return _partly(found, len(got), "samples")
    return f"{found.text}, {place}" if place else found.text


def imprecise(problem: Problem, x: Array, weight: Array, got: Array, expected: Array, bound: Array) -> str:
    """How operands were rounded whose sums are right on integers, and here off by more than ``bound``; or nothing."""
    positions = np.nonzero(np.abs(got - expected) > bound)
    found, right, slack = (part[positions].astype(np.float64) for part in (got, expected, bound))
    evidence = Evidence(problem, x, weight, positions, found, right, slack).some(_FEW * 8)
    best = _best(evidence, evidence, None, hypotheses.roundings(problem))
    return best.text if best.share > _MOST else ""


def kept(
    problem: Problem,
    old: tuple[Array, Array],
    new: tuple[Array, Array],
    first: Array,
    got: Array,
    expected: Array,
    before: Problem | None = None,
) -> str:
    """What of an earlier launch an output still shows; empty when nothing of it fits.

    ``old`` and ``new`` are the operands of the first launch, whose right output was ``first``, and of the one that
    gave ``got``, all of one shape. ``before``: what was launched before, if its geometry was another.
    """
    wrong = got != expected
    if first.shape == got.shape and np.array_equal(got[wrong], first[wrong]):
        return "they still hold the first launch's output"
    if first.shape == got.shape and np.array_equal(got[wrong], (first + expected)[wrong]):
        return (
            "they hold the first launch's sums, too: what is added to is to be set to zero by each launch, a "
            "workspace that is kept, too"
        )
    a, b, _ = LAYOUTS[problem.form].names
    for name, x, weight in ((b, new[0], old[1]), (a, old[0], new[1])):
        if np.array_equal(reference.expected(problem, x, weight), got):
            return f"{name} is the first launch's"
    if isinstance(problem, Convolution) and isinstance(before, Convolution) and before.geometry != problem.geometry:
        everywhere = np.indices(got.shape).reshape(got.ndim, -1)[
            :, :: max(1, got.size * problem.reduction // _PRODUCTS)
        ]
        env = terms.environment(problem, tuple(everywhere)) | before.geometry._asdict()
        sums = reference.stored(problem, terms.products(problem, env, *new).sum(axis=1))
        if np.array_equal(sums, got[tuple(everywhere)]):
            return "stride, padding and dilation are those of the problem before"
    return ""


def differing(problem: Problem, first: Array, again: Array, expected: Array) -> str:
    """Why launches on equal inputs may differ: a guess from the values where they do.

    ``expected``: what is right. Values that belong to other elements come from stores to one place, not from reads;
    one that is right says nothing, and one that is NaN or infinite comes from memory that nobody wrote.
    """
    places = first != again
    distinct = np.unique(expected).size
    span = float(np.ptp(expected)) + 1
    found = np.concatenate([part[places & (part != expected)] for part in (first, again)])
    chance = min(1.0, distinct / span) ** found.size
    if np.isfinite(found).all() and np.isin(found, expected).all() and chance < 1e-4:
        other = f"each holds what another element of {LAYOUTS[problem.form].names[2]} should"
        return f"{other}, so threads store to one place: an index of the store"
    return "a race, such as a missing barrier, or a read of memory that nothing wrote"


# --- the search ---


def _usual(evidence: Evidence) -> Iterator[Hypothesis]:
    """Every mistake that is tried on wrong sums of integers."""
    yield from hypotheses.values(evidence)
    yield from hypotheses.stored(evidence)
    yield from hypotheses.operands(evidence.problem)
    yield from omissions.omissions(evidence)
    yield from letters.letters(evidence.problem)


def _likeliest(evidence: Evidence, calm: Evidence | None) -> Found:
    """The simplest mistake that explains most. ``calm``: elements that are right."""
    reduction = evidence.problem.reduction
    few = evidence.some(max(4, min(_FEW, _PRODUCTS // reduction)))
    return _best(few, evidence.some(max(_FEW, _PRODUCTS // reduction)), calm, _usual(few))


def _best(few: Evidence, many: Evidence, calm: Evidence | None, candidates: Iterable[Hypothesis]) -> Found:
    """The candidate that explains most of ``many`` elements, of those that explain some of a ``few``.

    Of two, the one is likelier that leaves the ``calm`` elements right.
    """
    ranked = []
    for one in candidates:
        share = float(one.holds(few).mean())
        if share >= _ENOUGH / 2:
            ranked.append((share * 100 - one.cost, one))
    ranked.sort(key=lambda pair: -pair[0])
    best, found, score = None, Found("", 0.0), 0.0
    for rank, one in ranked[:12]:
        if rank < score - 40:
            break
        share = float(one.holds(many).mean())
        spilt = 1 - float(one.holds(calm).mean()) if calm else 0.0
        worth = share * 100 - one.cost - _SPILT * spilt
        if share >= _ENOUGH and worth > score and _convincing(many, one, share):
            best, found, score = one, Found("", share, spilt), worth
    return found._replace(text=best.said(many)) if best else found


def _convincing(evidence: Evidence, one: Hypothesis, share: float) -> bool:
    """Do more values agree than would by chance? Hundreds of mistakes are tried; small integers are often equal."""
    right, count = evidence.expected, len(evidence)
    spread = 2 * float(np.std(right)) if count > 1 else float(np.abs(right).max())
    if share * count * math.log(1 + spread) < -math.log(1e-5):
        return False
    if share >= _MOST:
        return True
    chance = _by_chance(evidence, one)
    if share - chance < _BEYOND * (1 - chance):
        return False
    # Chernoff's bound: how likely so many of so many are, if each is explained by chance
    apart = share * math.log(share / chance) + (1 - share) * math.log((1 - share) / (1 - chance)) if chance else 1e9
    return count * apart > -math.log(_RARE)


def _by_chance(evidence: Evidence, one: Hypothesis) -> float:
    """The share of the positions that would hold what the mistake gives though it was not made.

    Values, and how far they are off, are compared with those of other positions.
    """
    with np.errstate(all="ignore"):
        off = one.predict(evidence) - evidence.expected
    off = off[np.isfinite(off)]
    values = _alike(evidence.expected, evidence.got, evidence.slack)
    if off.size < 2 or not np.ptp(off):  # what is off by as much everywhere is a pattern of its own
        return values
    return max(values, _alike(off, evidence.got - evidence.expected, evidence.slack))


def _alike(values: Array, wanted: Array, slack: Array) -> float:
    """How often one of the ``values``, taken at random, is what is ``wanted`` at a position."""
    ordered = np.sort(values)
    most = np.searchsorted(ordered, wanted + slack, "right")
    return float((most - np.searchsorted(ordered, wanted - slack, "left")).mean() / len(ordered))


# --- where ---


def where(problem: Problem, wrong: NDArray[np.bool_]) -> str:
    """Describe the region of ``wrong`` (output's shape), axis by axis; empty when it has no shape."""
    if not wrong.any() or wrong.all():
        return ""
    names = LAYOUTS[problem.form].output
    grid = np.ogrid[tuple(slice(n) for n in wrong.shape)]
    for i, u in enumerate(names):
        for j in range(i + 1, len(names)):
            same = np.broadcast_to(grid[i] == grid[j], wrong.shape)
            for test, sign in ((same, "="), (~same, "!=")):
                if min(wrong.shape[i], wrong.shape[j]) > 1 and np.array_equal(wrong, test):
                    return f"only {u} {sign} {names[j]}"
    if text := _region(problem, wrong):
        return f"only {text}"
    rest = _region(problem, ~wrong, crossing=False)
    return f"all but {rest}" if rest and (~wrong).sum() > 3 and _box(problem, ~wrong) else ""


def _box(problem: Problem, inside: NDArray[np.bool_]) -> bool:
    """Is the region a product of index sets, one for each axis?"""
    size = 1
    for axis in range(inside.ndim):
        size *= int(inside.any(axis=tuple(i for i in range(inside.ndim) if i != axis)).sum())
    return size == int(inside.sum())


def _region(problem: Problem, wrong: NDArray[np.bool_], crossing: bool = True) -> str:
    """The region as a box or, with ``crossing``, as slabs that cross; empty when it is neither."""
    box, slabs = [], []
    covered = np.zeros_like(wrong)
    for axis, name in enumerate(LAYOUTS[problem.form].output):
        others = tuple(i for i in range(wrong.ndim) if i != axis)
        box.append(_range(name, np.asarray(wrong.any(axis=others))))
        whole = np.asarray(wrong.all(axis=others))
        slabs.append(_range(name, whole))
        if slabs[-1]:
            np.moveaxis(covered, axis, 0)[whole] = True
    if any(box):
        return " and ".join(filter(None, box))
    # the last tile of several axes is no box but slabs that cross
    if crossing and any(slabs) and np.array_equal(covered, wrong):
        return " or ".join(filter(None, slabs))
    return ""


def where_sampled(problem: Problem, positions: Positions) -> str:
    """The box around wrong samples, for the axes on which it is narrower than the output."""
    parts = []
    for name, extent, hit in zip(LAYOUTS[problem.form].output, problem.output_shape, positions, strict=True):
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
    if contiguous:
        return f"{first} <= {name} <= {last}"
    for size in _RESIDUES:
        residues = np.unique(hit % size)
        if size < extent and len(residues) < size and np.isin(np.arange(extent) % size, residues).sum() == len(hit):
            return _residues(name, size, residues)
    return ""


def _residues(name: str, size: int, residues: Array) -> str:
    """Indices that leave one of some remainders when divided by ``size``; empty unless those are one range."""
    first, last = int(residues[0]), int(residues[-1])
    if len(residues) != last - first + 1:
        return ""
    if first == last:
        return f"{name} % {size} = {first}"
    if first == 0 or last == size - 1:
        return f"{name} % {size} {f'<= {last}' if first == 0 else f'>= {first}'}"
    return f"{first} <= {name} % {size} <= {last}"


def _at_edges(problem: Problem, wrong: NDArray[np.bool_]) -> str:
    """Are the wrong elements those whose taps reach the padding, most of them at least?"""
    if not isinstance(problem, Convolution) or isinstance(problem, Dgrad):
        return ""
    ones = (np.ones(shape) for shape in (problem.input_shape, problem.weight_shape))
    padded = reference.full(problem, *ones) < problem.reduction
    if padded.all() or wrong[~padded].any() or 2 * wrong.sum() <= padded.sum():
        return ""
    return "only where the filter reaches over an edge of the input: a tap on the padding must add nothing"
