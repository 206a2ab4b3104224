"""What wrong values say: where each belongs, which terms are missing, where the wrong elements lie.

Each output element is a sum of products of integers, so what a mistake would give can be worked out and compared,
element by element. The simplest mistake that explains nearly all wrong elements is told.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from common.catalog import reference
from common.catalog.problems import FLOAT16, Convolution, Dgrad, Problem
from common.explain import hypotheses, letters
from common.explain.hypotheses import Evidence, Hypothesis
from common.explain.letters import LAYOUTS, Array, Positions

_FEW = 24  # wrong elements that every mistake is tried on
_PRODUCTS = 400_000  # terms worked out at most to confirm one mistake
_MOST = 0.9  # share of the wrong elements that a mistake must explain
_SPILT = 2.5  # how much odder a mistake is that would spoil right elements, too
_CHANCE = 1e-5  # a few small integers often agree: how rarely they may by chance


def explain(problem: Problem, x: Array, weight: Array, got: Array, expected: Array) -> str:
    """One sentence on what the wrong elements suggest; empty when nothing fits.

    ``got`` and ``expected`` have the output's shape; NaN and infinity in ``got`` are left out.
    """
    slack = _last_place(problem, got)
    finite = np.isfinite(got)
    wrong = (got != expected) & finite
    if not wrong.any():
        return ""
    if (np.abs(got - expected) <= slack)[wrong].mean() > 0.5:
        return "most by a unit in float16's last place: the sums are cut off, or kept in float16"

    def evidence(mask: NDArray[np.bool_]) -> Evidence:
        return Evidence(problem, x, weight, np.nonzero(mask), got[mask], expected[mask], slack[mask], expected)

    place = letters.where(problem, wrong)
    right = (got == expected) & finite
    text, spilt = _simplest(evidence(wrong), evidence(right).some(2 * _FEW) if right.any() else None)
    if not text:
        return _at_edges(problem, wrong) or place
    return f"{text}, {place}" if place and place not in text and spilt > 0.25 else text


def explain_sampled(
    problem: Problem, x: Array, weight: Array, positions: Positions, got: Array, expected: Array
) -> str:
    """As :func:`explain`, for wrong elements at ``positions`` of a result too large to be compared whole."""
    slack = _last_place(problem, got)
    text, _ = _simplest(Evidence(problem, x, weight, positions, got.astype(np.float64), expected, slack))
    return ", ".join(filter(None, (text, letters.where_sampled(problem, positions))))


def imprecise(problem: Problem, x: Array, weight: Array, got: Array, expected: Array, bound: Array) -> str:
    """How operands were rounded whose sums are right on integers, and here off by more than ``bound``; or nothing."""
    positions = np.nonzero(np.abs(got - expected) > bound)
    found, right, slack = (part[positions].astype(np.float64) for part in (got, expected, bound))
    evidence = Evidence(problem, x, weight, positions, found, right, slack).some(_FEW * 8)
    return _best(evidence, None, hypotheses.roundings(problem))[0]


def _last_place(problem: Problem, got: Array) -> Array:
    """How far a right element may be off: the last place of a float16, as a sum that is worked out is not rounded."""
    if problem.output_dtype != FLOAT16:
        return np.zeros(got.shape)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.abs(np.spacing(got.astype(np.float16))), np.float64)


def _simplest(evidence: Evidence, right: Evidence | None = None) -> tuple[str, float]:
    """The simplest mistake that explains the wrong elements, and what share of the ``right`` ones it would spoil."""
    few = evidence.some(max(4, min(_FEW, _PRODUCTS // evidence.problem.reduction)))
    found = few.expected
    spread = 2 * float(np.std(found)) if len(few) > 1 else float(np.abs(found).max())
    if (1 + spread) ** -len(few) > _CHANCE:
        return "", 0.0
    return _best(few, right, hypotheses.usual(few), evidence.some(max(_FEW, _PRODUCTS // evidence.problem.reduction)))


def _best(
    few: Evidence, right: Evidence | None, candidates: Iterable[Hypothesis], many: Evidence | None = None
) -> tuple[str, float]:
    """As :func:`_simplest`, of these candidates: those that explain ``few`` are confirmed on ``many`` elements."""
    ranked = []
    for one in candidates:
        if one.holds(few) >= _MOST:
            spilt = 1 - one.holds(right) if right else 1.0
            ranked.append((one.cost + _SPILT * spilt, one.text, spilt, one))
    for _, text, spilt, one in sorted(ranked, key=lambda each: each[0]):
        if many is None or one.holds(many) >= _MOST:
            return text, spilt
    return "", 0.0


def kept(
    problem: Problem, old: tuple[Array, Array], new: tuple[Array, Array], first: Array, got: Array, expected: Array
) -> str:
    """What of an earlier launch an output still shows; empty when nothing of it fits.

    ``old`` and ``new`` are the operands of the first launch, whose right output was ``first``, and of the one that
    gave ``got``, all of one shape.
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
    return ""


def _at_edges(problem: Problem, wrong: NDArray[np.bool_]) -> str:
    """Are the wrong elements those whose taps reach the padding, most of them at least?"""
    if not isinstance(problem, Convolution) or isinstance(problem, Dgrad):
        return ""
    ones = (np.ones(shape) for shape in (problem.input_shape, problem.weight_shape))
    padded = reference.full(problem, *ones) < problem.reduction
    if padded.all() or wrong[~padded].any() or 2 * wrong.sum() <= padded.sum():
        return ""
    return "only where the filter reaches over an edge of the input: a tap on the padding must add nothing"
