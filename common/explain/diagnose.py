"""What wrong values say: where each belongs, which terms are missing or paired wrongly, where the wrong elements lie.

Each output element is a sum of products of integers, so what a mistake would give can be worked out and compared,
element by element (:mod:`common.explain.suspects`). The simplest mistake that explains most is told. With a bench at
hand the kernel is launched again: on integers so large that hardly two sums are equal, and, if nothing fits, on
operands that single out one term (:mod:`common.explain.probe`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.catalog import reference
from common.catalog.problems import FLOAT16, Convolution, Dgrad, Problem
from common.explain import probe, suspects, terms
from common.explain.suspects import Evidence, Launch, Suspect
from common.explain.terms import LAYOUTS, Positions

Array = NDArray[Any]

AXES = {form: layout.output for form, layout in LAYOUTS.items()}
_TILES = (32, 16, 8)
_RESIDUES = (2, 4, 8, 16, 32)
_FEW = 24  # wrong elements that every mistake is tried on
_PRODUCTS = 400_000  # terms worked out at most to confirm one mistake
_MOST = 0.95  # share of the wrong elements from which nothing better is looked for
_ENOUGH = 0.5  # and from which one is told without singling out a term, or though it is odd
_SOME = 0.2
_BEYOND = 0.2  # of what chance leaves, a mistake that explains a part must explain this share
_RARE = 1e-6  # and chance so much may do once in so many
_LARGE, _LITTLE = 4000, 0.02  # values that lose bits, and how much of them
_LOST = 0.01  # of a term at most, where it has lost its last bits
_SPILT = 2.5  # how much odder a mistake is that would spoil right elements, too


class Found(NamedTuple):
    """An explanation, the share of the wrong elements that it is true of, and the mistake if it is a usual one.

    ``spilt``: the share of right elements that the mistake would have made wrong, too.
    """

    text: str
    share: float
    suspect: Suspect | None = None
    spilt: float = 1.0


def explain(
    problem: Problem,
    x: Array,
    weight: Array,
    got: Array,
    expected: Array,
    bench: probe.Kernel | None = None,
    tolerance: Any = 0.0,
) -> str:
    """One sentence on what the wrong elements suggest; empty when nothing fits.

    ``got`` and ``expected`` have the output's shape; NaN and infinity in ``got`` are left out. ``tolerance``, one
    number or one per element, is how far a right value may be off. With ``bench`` the kernel is launched again, if
    the problem is small: at most ``probe.LAUNCHES`` times, for about ``probe.SECONDS``. Then it is given ``x`` and
    ``weight`` again.
    """
    slack = np.broadcast_to(np.asarray(tolerance, np.float64), got.shape)
    wrong = (np.abs(got - expected) > slack) & np.isfinite(got)
    if not wrong.any():
        return ""
    if problem.output_dtype == FLOAT16:
        slack, bench = slack + _last_place(got), None  # operands that single out a term are larger than it holds
    place = where(problem, wrong)
    shown = [(x, weight, got, expected, slack)]
    prober = probe.Prober(bench, x, weight) if bench else None
    try:
        found = _search(problem, shown, wrong, prober)
    finally:
        if prober:
            prober.restore()
    if not found.text:
        return _padding(problem, wrong) or _cancelled(got[wrong], expected[wrong]) or place
    if found.share < 1:
        if getattr(bench, "racy", False):
            return place  # what a race leaves pairs with something, now and then
        count = int(wrong.sum())
        return f"{found.text}; true of {max(1, int(found.share * count))} of {count} wrong elements"
    if not place or place in found.text or found.spilt < 0.25:
        return found.text
    return f"{found.text}, {place}"


def _cancelled(got: Array, expected: Array) -> str:
    """That large values are off by little: they are exact for a kernel that adds its products up."""
    near = np.abs(got - expected) <= _LITTLE * np.abs(expected)
    if np.abs(expected).max() < _LARGE or near.mean() < _ENOUGH:
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
    launch = Launch(x, weight, got.astype(np.float64), expected, slack)
    found = _likeliest(Evidence(problem, positions, (launch,)), None, ())
    if not found.text:
        return place
    if found.share < 1:
        return f"{found.text}; true of {int(found.share * len(got))} of {len(got)} wrong samples"
    return f"{found.text}, {place}" if place else found.text


def imprecise(problem: Problem, x: Array, weight: Array, got: Array, expected: Array, bound: Array) -> str:
    """How operands were rounded whose sums are right on integers, and here off by more than ``bound``; or nothing."""
    beyond = np.abs(got - expected) > bound
    positions = tuple(np.nonzero(beyond))
    launch = Launch(x, weight, *(part[positions].astype(np.float64) for part in (got, expected, bound)))
    evidence = Evidence(problem, positions, (launch,)).some(_FEW * 8)
    best = _best(evidence, evidence, None, suspects.conversions(problem))
    return best.suspect.text(evidence) if best.suspect and best.share > _MOST else ""


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
    layout = LAYOUTS[problem.form]
    everywhere = tuple(np.indices(got.shape).reshape(got.ndim, -1))
    evidence = Evidence(problem, everywhere, ()).some(_PRODUCTS // problem.reduction)
    held = got[evidence.positions]
    for name, letters, number in ((layout.names[1], layout.weight, 1), (layout.names[0], layout.x, 0)):
        for said, mixed in _mixtures(name, letters, old[number], new[number]):
            operands = (new[0], mixed) if number else (mixed, new[1])
            if np.array_equal(_sums(problem, evidence.env, *operands), held):
                return f"{said} is the first launch's"
    if isinstance(problem, Convolution) and isinstance(before, Convolution) and before.geometry != problem.geometry:
        env = evidence.env | before.geometry._asdict()
        if np.array_equal(_sums(problem, env, *new), held):
            return "stride, padding and dilation are those of the problem before"
    return ""


def _sums(problem: Problem, env: terms.Env, x: Array, weight: Array) -> Array:
    """What the elements of ``env`` hold if these are the operands."""
    return reference.stored(problem, terms.products(problem, env, x, weight).sum(axis=1))


def _mixtures(name: str, letters: tuple[str, ...], old: Array, new: Array) -> Iterator[tuple[str, Array]]:
    """An operand of which all, or one index of an axis, is as it was."""
    yield name, old
    for axis, u in enumerate(letters):
        for index in range(new.shape[axis] if 1 < new.shape[axis] <= 64 else 0):
            mixed = new.copy()
            np.moveaxis(mixed, axis, 0)[index] = np.moveaxis(old, axis, 0)[index]
            yield f"{name} at {u} = {index}", mixed


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


def _search(problem: Problem, shown: list[Any], wrong: NDArray[np.bool_], prober: probe.Prober | None) -> Found:
    """The best explanation of the ``wrong`` elements of the first launch ``shown``; a second may be added."""
    again = prober.wide() if prober else None
    if again is not None:
        x, weight, got, expected = again
        both = wrong & (got != expected) & np.isfinite(got)
        if 2 * both.sum() >= wrong.sum():  # else it depends on the values, and only the first launch shows it
            shown = [*shown, (x, weight, got, expected, np.zeros(got.shape))]
            wrong = both
    positions = tuple(np.nonzero(wrong))
    evidence = _evidence(problem, shown, positions)
    calm = _right(problem, shown)
    found = _likeliest(evidence, calm, tuple(launch[3] for launch in shown))
    if not found.text and len(shown) > 1:
        alone = Evidence(problem, positions, evidence.launches[:1])
        found = _likeliest(alone, _right(problem, shown[:1]), (shown[0][3],))
    if found.share < _MOST and len(shown) > 1 and (moved := _moved(evidence, shown[1][3])).share > found.share:
        found = moved
    if prober and found.share < (_MOST if found.text == "each is 0" else _ENOUGH):
        told = _one_term(evidence, prober)
        found = Found(told, 1.0) if told else found
    return found


def _right(problem: Problem, shown: list[Any]) -> Evidence | None:
    """Some elements that are right in all launches; None if there are none."""
    right = np.all([np.abs(got - expected) <= slack for _, _, got, expected, slack in shown], axis=0)
    positions = tuple(np.nonzero(right))
    if not len(positions[0]):
        return None
    return _evidence(problem, shown, positions).some(2 * _FEW)


def _evidence(problem: Problem, shown: list[Any], positions: Positions) -> Evidence:
    launches = (Launch(a, b, *(part[positions] for part in parts)) for a, b, *parts in shown)
    return Evidence(problem, positions, tuple(launches))


def _likeliest(evidence: Evidence, calm: Evidence | None, results: tuple[Array, ...]) -> Found:
    """The simplest mistake that explains most. ``calm``: elements that are right."""
    reduction = evidence.problem.reduction
    few = evidence.some(max(4, min(_FEW, _PRODUCTS // reduction)))
    many = evidence.some(max(_FEW, _PRODUCTS // reduction))
    best = _best(few, many, calm, suspects.usual(few, results, _SOME))
    if best.share < _MOST:
        partly = _best(few, many, calm, suspects.some_letters(few, _ENOUGH))  # what is so odd must explain more
        best = partly if partly.share > best.share + 0.1 else best
    if best.share < _MOST and (solved := _coefficients(many)):
        return Found(solved, 1.0)
    return best._replace(text=best.suspect.text(many)) if best.suspect else best


def _best(few: Evidence, many: Evidence, calm: Evidence | None, candidates: Iterator[Suspect]) -> Found:
    """The candidate that explains most of ``many`` elements, of those that explain some of a ``few``.

    Of two, the one is likelier that leaves the ``calm`` elements right.
    """
    ranked = []
    for suspect in candidates:
        share = float(suspects.holds(few, suspect).mean())
        if share >= _SOME:
            ranked.append((share * 100 - suspect.cost, suspect))
    ranked.sort(key=lambda pair: -pair[0])
    best, score = Found("", 0.0), 0.0
    for rank, suspect in ranked[:12]:
        if rank < score - 40:
            break
        share = float(suspects.holds(many, suspect).mean())
        spilt = 1 - float(suspects.holds(calm, suspect).mean()) if calm else 0.0
        worth = share * 100 - suspect.cost - _SPILT * spilt
        if share >= _SOME and worth > score and _convincing(many, share) and _more_than_chance(many, suspect, share):
            best, score = Found("", share, suspect, spilt), worth
    return best


def _moved(evidence: Evidence, right: Array) -> Found:
    """Which element's value each wrong element holds, read off the last launch, whose sums hardly ever are equal."""
    problem, got = evidence.problem, evidence.launches[-1].got
    letters = LAYOUTS[problem.form].output
    name = LAYOUTS[problem.form].names[2]
    flat = right.reshape(-1)
    order = np.argsort(flat, kind="stable")
    at = np.minimum(np.searchsorted(flat[order], got), flat.size - 1)
    values, counts = np.unique(flat, return_counts=True)
    found = np.isin(got, values[counts == 1]) & (got != 0)
    if not found.any() or flat.size < 8:
        return Found("", 0.0)
    here = tuple(axis[found] for axis in evidence.positions)
    there = np.unravel_index(order[at[found]], right.shape)
    share = float(found.mean())
    if share < _SOME or not _convincing(evidence, share):
        return Found("", 0.0)
    pairs = [([int(axis[i]) for axis in here], [int(axis[i]) for axis in there]) for i in range(min(2, len(here[0])))]
    text = f"{name}{pairs[0][0]} holds what {name}{pairs[0][1]} should"
    parts = [_bits(letters, here, index) or (u if (index == axis).all() else "")
             for u, axis, index in zip(letters, here, there, strict=True)]  # fmt: skip
    if all(parts) and parts != list(letters):
        return Found(f"{text}: {name}[{', '.join(parts)}] in place of {name}[{', '.join(letters)}]", share)
    more = f", {name}{pairs[1][0]} what {name}{pairs[1][1]} should" if len(pairs) > 1 else ""
    return Found(text + more, share)


def _bits(letters: tuple[str, ...], here: Positions, index: NDArray[np.intp]) -> str:
    """``index`` as a sum of bits of the letters, or nothing: tiles of 2, 4, 8 ... are found so."""
    fields: list[tuple[str, int, int, int]] = []  # letter, its lowest bit, width, lowest bit in the index
    for bit in range(int(index.max()).bit_length()):
        wanted = index >> bit & 1
        if not wanted.any():
            continue
        sources = [(u, b) for u, axis in zip(letters, here, strict=True) for b in range(int(axis.max()).bit_length())
                   if np.array_equal(axis >> b & 1, wanted)]  # fmt: skip
        if not sources:
            return ""
        last = fields[-1] if fields else None
        following = last and last[3] + last[2] == bit and (last[0], last[1] + last[2])
        if last and following in sources:
            fields[-1] = (last[0], last[1], last[2] + 1, last[3])
        else:
            u, b = sources[0]
            fields.append((u, b, 1, bit))
    tops = {u: int(axis.max()).bit_length() for u, axis in zip(letters, here, strict=True)}
    parts = []
    for u, low, width, to in reversed(fields):
        part = f"{u} // {1 << low}" if low else u
        part += f" % {1 << width}" if low + width < tops[u] else ""
        parts.append(part + (f" * {1 << to}" if to else ""))
    return " + ".join(parts) or "0"


def _convincing(evidence: Evidence, share: float) -> bool:
    """Thousands of mistakes are tried: enough values must agree that none does by chance."""
    chance = 1.0
    for launch in evidence.launches:
        chance /= (
            1 + 2 * float(np.std(launch.expected)) if len(evidence) > 1 else 1 + float(np.abs(launch.expected).max())
        )
    return bool(chance ** (share * len(evidence)) < 1e-5)


def _more_than_chance(evidence: Evidence, suspect: Suspect, share: float) -> bool:
    """Is a mistake that explains only a ``share`` of the elements more than one that has nothing to do with them?"""
    if share >= _MOST:
        return True
    count, chance = len(evidence), suspects.by_chance(evidence, suspect)
    if share - chance < _BEYOND * (1 - chance) or (suspect.chance is None and share < _ENOUGH):
        return False
    # Chernoff's bound: how likely so many of so many are, if each is explained by chance
    apart = share * math.log(share / chance) + (1 - share) * math.log((1 - share) / (1 - chance)) if chance else 1e9
    return count * apart > -math.log(_RARE)


def _coefficients(evidence: Evidence) -> str:
    """How often each term counts, if that is the same in all wrong elements: a sentence, or nothing."""
    problem = evidence.problem
    rows = np.concatenate([evidence.products(i) for i in range(len(evidence.launches))])
    if not problem.reduction + 4 <= len(rows) or problem.reduction > 600:
        return ""
    right = np.concatenate([launch.got for launch in evidence.launches])
    slack = np.concatenate([launch.slack for launch in evidence.launches])
    solved, _, rank, _ = np.linalg.lstsq(rows, right, rcond=None)
    counts = solved.round()
    if not counts.any() or rank < problem.reduction or (np.abs(rows @ counts - right) > slack).any():
        return ""
    return suspects.counted(problem, counts)


def _one_term(evidence: Evidence, prober: probe.Prober) -> str:
    """What one weight of the first wrong element is multiplied by; nothing if none stands out."""
    problem = evidence.problem
    at = tuple(int(axis[0]) for axis in evidence.positions)
    seen = prober.deviation(at)
    if seen is None:
        return ""
    a, b, c = LAYOUTS[problem.form].names

    def element(name: str, index: tuple[Any, ...]) -> str:
        return f"{name}[{', '.join(str(int(i)) for i in index)}]"

    where, weight = element(c, at), element(b, seen.weight)
    if seen.right is None:
        what = f"{element(a, seen.found)} * {weight}" if seen.found else f"products with {weight}"
        return f"{where} adds {what}, which is no term of it"
    right = f"{element(a, seen.right)} * {weight}"
    if seen.partner:
        return f"{where} adds {element(a, seen.right)} * {element(b, seen.partner)} where {right} belongs"
    if seen.times == 0:
        return f"{where} lacks its term {right}"
    if seen.times == round(seen.times):
        times = "twice" if seen.times == 2 else f"{seen.times:.0f} times"
        return f"{where} counts its term {right} {times}"
    if seen.found:
        return f"{where} adds {element(a, seen.found)} * {weight} where {right} belongs"
    if abs(seen.times - 1) < _LOST:
        return f"{where} counts its term {right} {seen.times:.6g} times: bits are lost, as where large terms cancel"
    if _cancelled(evidence.launches[-1].got, evidence.launches[-1].expected):
        return ""
    return f"{where} multiplies {weight} by something else than {element(a, seen.right)}"


# --- where ---


def where(problem: Problem, wrong: NDArray[np.bool_]) -> str:
    """Describe the region of ``wrong`` (output's shape), axis by axis; empty when it has no shape."""
    if not wrong.any() or wrong.all():
        return ""
    names = AXES[problem.form]
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
    for axis, name in enumerate(AXES[problem.form]):
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


def where_sampled(problem: Problem, positions: tuple[NDArray[Any], ...]) -> str:
    """The box around wrong samples, for the axes on which it is narrower than the output."""
    parts = []
    for name, extent, hit in zip(AXES[problem.form], problem.output_shape, positions, strict=True):
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


def _padding(problem: Problem, wrong: NDArray[np.bool_]) -> str:
    """Are the wrong elements those whose taps reach the padding, most of them at least?"""
    if not isinstance(problem, Convolution) or isinstance(problem, Dgrad):
        return ""
    ones = (np.ones(shape) for shape in (problem.input_shape, problem.weight_shape))
    padded = reference.full(problem, *ones) < problem.reduction
    if padded.all() or wrong[~padded].any() or 2 * wrong.sum() <= padded.sum():
        return ""
    return "only where the filter reaches over an edge of the input: a tap on the padding must add nothing"
