"""Shapes that nobody knows beforehand: drawn for each run of the grader, from an exercise's own shapes.

An exercise's shapes stand in a file that all can read, and are few. A kernel that is wrong where a tile fits exactly,
or where there is a second one, may be right at all of them.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Sequence
from dataclasses import fields, replace

from common.catalog.problems import Problem
from common.check import shapes

CANDIDATES, DRAWS = 40, 400
MOST = 1 << 15  # multiply-adds, and elements of an array, unless the exercise's own shapes have more
_EXTENTS = (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 64, 65, 72, 96, 128, 130)


def candidates(own: Sequence[Problem], seed: int) -> list[Problem]:
    """Shapes beside an exercise's ``own``: other extents, and now and then another filter, stride, padding or
    dilation. Those come first that bring most conditions that trip kernels up (:mod:`common.check.shapes`).

    What all of ``own`` leave as it is, an exercise may say is always so: a stride of 1, no padding, one channel.
    """
    rng = random.Random(seed)
    plain = {name: 0 if name.startswith("pad") else 1 for name in _values(own[0])}
    free = {name for problem in own for name, value in _values(problem).items() if value != plain[name]}
    most = max(MOST, *map(shapes.multiply_adds, own)), max(MOST, *map(_elements, own))
    pool: list[Problem] = []
    for _ in range(DRAWS):
        with contextlib.suppress(ValueError):  # a filter larger than its image
            drawn = _varied(rng.choice(own), free, rng)
            small = shapes.multiply_adds(drawn) <= most[0] and _elements(drawn) <= most[1]
            if small and shapes.ordinary(drawn) and drawn not in (*own, *pool):
                pool.append(drawn)
        if len(pool) == CANDIDATES:
            break
    seen = {condition for problem in own for condition in shapes.conditions(problem)}
    found: list[Problem] = []
    while pool:
        best = max(pool, key=lambda problem: len(shapes.conditions(problem) - seen))
        seen |= shapes.conditions(best)
        found.append(best)
        pool.remove(best)
    return found


def _values(problem: Problem) -> dict[str, int]:
    return {field.name: int(getattr(problem, field.name)) for field in fields(problem)}


def _varied(problem: Problem, free: set[str], rng: random.Random) -> Problem:
    """The problem with other numbers for those that are ``free``; raises ValueError if they make none."""
    values = _values(problem)
    kept = {kind: rng.random() < 0.7 for kind in ("taps", "stride", "pad", "dilation")}
    for name, value in values.items():
        kind = name.partition("_")[0]
        if name not in free:
            continue
        if name in ("T", "R", "S"):
            values[name] = value if kept["taps"] else rng.randint(1, max(3, value + 1))
        elif kind in kept:
            values[name] = value if kept[kind] else rng.randint(kind != "pad", 3)
        elif rng.random() < 0.6:
            values[name] = rng.choice((*_EXTENTS, *(rng.randint(1, 2 * value + 4) for _ in _EXTENTS)))
    return replace(problem, **values)


def _elements(problem: Problem) -> int:
    """Of the largest array."""
    return max(math.prod(shape) for shape in problem.shapes)
