"""What a check of a step consists of: its cases, engine by engine, in the order in which they run.

Which shapes, is data: ``shapes.toml``, chosen so that every wrong kernel that is known fails at one, and that each
extent, stride, padding and dilation is far out at one. A few are drawn anew each time.

All cases of an engine run in one process on one imported module, as a program would use the step: what it keeps from
one shape, or one set of arrays, to the next shows. Two engines judge:

- ``traced``: the tracer runs every block in lockstep; it alone sees what is unsound.
- ``gpu``: the kernel as compiled, where there is a GPU: more shapes, and larger ones.

Where there is no GPU, the kernels are also compiled for a real architecture.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

from common.catalog import inputs, problems, store
from common.catalog.problems import FLOAT16, Problem
from common.check import shapes
from common.run.results import Depth, Engine

_DEPTHS: tuple[Depth, ...] = get_args(Depth)
SHAPES = Path(__file__).with_name("shapes.toml")
DRAWN, DRAWN_COMPILED = 4, 2  # shapes drawn anew; a conv2d kernel is compiled for each shape
MOST_ON_GPU, TERMS_ON_GPU = 1 << 24, 1 << 13  # multiply-adds of a drawn shape on a GPU, and terms of a sum

# of the pairwise plan, by form
DRAWN_ON_GPU = {"gemm": 100, "conv2d": 2, "conv3d": 60, "dgrad": 60, "wgrad": 60}
COVERED_ON_GPU = {"conv2d": 5}  # all but for these
THOROUGH_SECONDS = 150.0
TRACED_SECONDS, TRACED_FROM = 90.0, 5_000_000  # of a case that is traced, and from how many multiply-adds on
SPECIAL_UP_TO = 1 << 15  # multiply-adds of a shape that special operands are tried at without a GPU
SPECIAL_TERMS = 256  # of a sum of such a shape
LARGEST_ON_GPU = 1 << 27  # multiply-adds of a drawn shape of the pairwise plan
# Of a shape that was asked for: seconds of a core that the tracer may take, without a GPU and beside one.
ASKED_SECONDS, BESIDE_SECONDS = 20.0, 4.0
TRACED_AT_BEST = 2e9  # operations a second, more than the tracer was seen to do of any step
# Seconds that a group of blocks may take before an endless loop is suspected: so many, or so many for each product of
# a sum, which is more than ten times what was seen.
_GROUP_SECONDS, _GROUP_SECONDS_EACH = 15.0, 0.02


@dataclass(frozen=True)
class Case:
    """One shape for one engine. ``special``: operands of that kind of :data:`common.catalog.inputs.SPECIAL` besides
    integers, or normals in their place.

    ``small``: the step is told that the card has few multiprocessors, :data:`common.check.shapes.FEW`.
    ``wide``: a shape of :func:`common.check.shapes.wide`; the tracer takes a narrower one if no grid is as wide.
    ``budget``: of a depth that is "measured", the seconds of a core that it may take: as many launches as fit.
    """

    problem: Problem
    engine: Engine
    depth: Depth = "once"
    seed: int = 0
    special: str = ""
    wide: bool = False
    small: bool = False
    budget: float | None = None

    def _seconds(self) -> float | None:
        """Its limit; None: the usual one."""
        if (self.engine, self.depth) == ("gpu", "thorough"):
            return THOROUGH_SECONDS  # a step whose weights are compiled in compiles for each change of them
        if self.budget is not None:
            return max(_GROUP_SECONDS, _GROUP_SECONDS_EACH * self.problem.reduction)
        large = self.engine == "traced" and shapes.multiply_adds(self.problem) > TRACED_FROM
        return TRACED_SECONDS if large else None

    def fields(self) -> dict[str, Any]:
        """What a check's task says of it beside the file and the shape."""
        # what is measured ends by itself: the limit for all of it is for what does not
        within = None if self.budget is None else 1.5 * self.budget + 3.0
        told = {**vars(self), "seconds": self._seconds(), "within": within}
        del told["problem"]
        return told


def new_seed() -> int:
    """A seed for what is drawn anew."""
    return random.SystemRandom().randrange(1_000_000)


@lru_cache
def chosen(ladder: str) -> tuple[tuple[Case, bool], ...]:
    """The cases that ``shapes.toml`` has for a ladder, those that find most in the least time first; and which of
    them a GPU runs, too.

    A line of it is ``SHAPE`` or ``SHAPE then SHAPE``, perhaps followed by ``|`` and marks: a depth, a kind of
    operands, ``small``, ``wide``, ``gpu``. A ladder without an entry has that of its form. Raises ValueError naming a
    line that cannot be read.
    """
    data = store.read_toml(SHAPES)
    operands = (*inputs.SPECIAL, inputs.NORMALS)
    found: list[tuple[Case, bool]] = []
    for line in data.get(ladder) or data[problems.LADDERS[ladder].form]:
        texts, _, marked = line.partition("|")
        marks = marked.split()
        depth: Depth = next((one for one in _DEPTHS if one in marks), "once")
        special = next((mark for mark in marks if mark in operands), "")
        if set(marks) - {depth, special, "small", "wide", "gpu"}:
            allowed = "marks must be a depth, operands, small, wide or gpu"
            raise ValueError(f"{SHAPES.name}, {ladder}: {line!r}: {allowed}")
        first = problems.FIRST[ladder]
        made = Case(first, "traced", depth, 0, special, wide="wide" in marks, small="small" in marks)
        shaped = [problems.parse_shape(ladder, text) for text in texts.split(" then ")]
        found += [(replace(made, problem=problem), "gpu" in marks) for problem in shaped]
    return tuple(found)


def cases(ladder: str, gpu: bool, seed: int, full: bool = False) -> list[Case]:
    """The cases of a step of this ladder, those that find most in the least time first; ``seed`` is that of what is
    drawn. ``full``: the pairwise plan in their place.
    """
    if full:
        return _pairwise(ladder, gpu, seed)
    planned = [case for case, _ in chosen(ladder)]
    planned += [Case(problem, "traced") for problem in shapes.drawn(ladder, seed, DRAWN)]
    found = _operands(planned, seed)
    if gpu:
        # a conv2d kernel is compiled for each change of its weights, so the tracer alone tries many changes
        compiled = problems.LADDERS[ladder].form == "conv2d"
        on_gpu = [Case(problems.FIRST[ladder], "gpu", "usual" if compiled else "thorough")]
        on_gpu += [replace(case, engine="gpu") for case, too in chosen(ladder) if too]
        count = DRAWN_COMPILED if compiled else DRAWN
        on_gpu += [Case(problem, "gpu") for problem in shapes.drawn(ladder, seed, count, MOST_ON_GPU, TERMS_ON_GPU)]
        found += _operands(on_gpu, seed)
        found += [Case(problem, "gpu", "large") for problem in shapes.large(ladder)]
    return found


def smoke(ladder: str, gpu: bool, seed: int) -> list[Case]:
    """The cases of a shipped step whose whole verdict is of the record: does it compile and run here?"""
    first, ragged = Case(problems.FIRST[ladder], "traced", "usual", seed), Case(problems.RAGGED[ladder][0], "traced")
    found = [first, ragged]
    if gpu:
        compiled = problems.LADDERS[ladder].form == "conv2d"  # for each shape, a second of the compiler each
        far = [replace(case, engine="gpu") for case, too in chosen(ladder) if too and not case.wide]
        found += [replace(case, engine="gpu") for case in (first, ragged)]
        found += _operands(far[: 1 if compiled else 4], seed)
        found += [Case(one, "gpu") for one in shapes.drawn(ladder, seed, 1, MOST_ON_GPU, TERMS_ON_GPU)]
    return found


def _operands(planned: list[Case], seed: int, terms: float = SPECIAL_TERMS) -> list[Case]:
    """Each with a seed of its own, and where it has integers alone, special operands of one kind after the other, if
    its sums have no more than ``terms``."""
    kinds, found = list(inputs.SPECIAL), []
    for number, case in enumerate(planned, seed):
        special = case.special
        small = shapes.multiply_adds(case.problem) <= (LARGEST_ON_GPU if case.engine == "gpu" else SPECIAL_UP_TO)
        if case.depth == "once" and not special and small and case.problem.reduction <= terms:
            special = kinds[number % len(kinds)]
        found.append(replace(case, seed=number, special=special))
    return found


def _pairwise(ladder: str, gpu: bool, seed: int) -> list[Case]:
    """Shapes among which every pair of conditions occurs, and all others of :mod:`common.check.shapes`."""
    first, ragged = problems.FIRST[ladder], problems.RAGGED[ladder]
    found = [Case(first, "traced", "thorough", seed)]
    found += [Case(problem, "traced", "usual") for problem in ragged]
    found += _once("traced", (*shapes.covering(ladder), *shapes.twins(ladder)), seed)
    most = shapes.LARGEST_DRAWN
    found += _once("traced", shapes.drawn(ladder, seed, DRAWN, most, most >> 8), seed)
    found += _once("traced", shapes.tiled(ladder), seed, shapes.rounded(ladder))
    long = [Case(problem, "traced", "once", seed, inputs.NORMALS) for problem in shapes.long_sums(ladder)]
    found += [*long, *(Case(problem, "traced", seed=seed) for problem in shapes.layers(ladder))]
    known = shapes.familiar(ladder)
    found += [Case(problem, "traced", "once", seed, _familiar_operands(problem)) for problem in known]
    found += [Case(problem, "traced", wide=True) for problem in shapes.wide(ladder)]
    found.append(Case(first, "traced"))
    found += [Case(problem, "traced", "usual", seed, small=True) for problem in shapes.on_small_card(ladder)]
    if gpu:
        found += [Case(first, "gpu"), Case(first, "gpu", "thorough")]
        found += [Case(problem, "gpu", "usual") for problem in ragged]
        form = problems.LADDERS[ladder].form
        found += _once("gpu", shapes.covering(ladder)[: COVERED_ON_GPU.get(form)], seed)
        most = LARGEST_ON_GPU
        found += _once("gpu", shapes.drawn(ladder, seed, DRAWN_ON_GPU[form], most, most >> 8), seed)
        found += _once("gpu", shapes.tiled(ladder), seed)
        rounded = (*shapes.tiled(ladder), *shapes.long_sums(ladder))
        found += [Case(problem, "gpu", "once", seed, inputs.NORMALS) for problem in rounded]
        found += _once("gpu", (*shapes.layers(ladder), *shapes.familiar(ladder)[: COVERED_ON_GPU.get(form)]), seed)
        found += [Case(problem, "gpu", "large") for problem in shapes.large(ladder)]
        found += [Case(problem, "gpu") for problem in (*shapes.wide(ladder), first)]
    return found


def cases_at(problem: Problem, gpu: bool, seed: int) -> list[Case]:
    """The cases of a step at one shape that was asked for; none without a GPU if it is :func:`too_large`.

    How long the tracer takes is not known beforehand: a shape of few operations may be of many padded tiles.
    """
    budget = BESIDE_SECONDS if gpu else ASKED_SECONDS
    traced = problem.flops <= TRACED_AT_BEST * budget
    found = []
    if gpu:
        found.append(Case(problem, "gpu", "usual", seed))
    if traced:
        found.append(Case(problem, "traced", "measured", seed, budget=budget))
        if problem in shapes.on_small_card(problem.ladder):
            found.append(Case(problem, "traced", "usual", seed, small=True))
    return found


def too_large(problem: Problem) -> str:
    """Why nothing can judge a step at this shape without a GPU; empty if it must be tried.

    Only what is certain beforehand: the tracer's first blocks tell the rest.
    """
    if problem.flops > TRACED_AT_BEST * ASKED_SECONDS:
        return beyond_budget(problem.flops / TRACED_AT_BEST, ASKED_SECONDS, "at least")
    return ""


def beyond_budget(seconds: float, budget: float, how: str = "about") -> str:
    """What is said of a shape whose single launch takes the tracer so long."""
    took = f"{seconds:,.0f} s" if seconds < 600 else f"{seconds / 60:,.0f} min"
    return (
        f"too large for this machine without a GPU: one launch takes the tracer {how} {took}, more than {budget:g} s"
    )


def _familiar_operands(problem: Problem) -> str:
    """Normals, as a path of its own may round what no other does; where outputs are rounded, integers show that."""
    return "" if problem.output_dtype == FLOAT16 else inputs.NORMALS


def _once(engine: Engine, wanted: tuple[Problem, ...], seed: int, rounded: tuple[Problem, ...] = ()) -> list[Case]:
    """A launch or two at each shape, each kind of special operands in turn; without a GPU, at small shapes alone.

    Large ones that are ``rounded`` have normals in the place of all.
    """
    large = [problem for problem in rounded if shapes.multiply_adds(problem) > SPECIAL_UP_TO]
    planned = [Case(one, engine, special=inputs.NORMALS if one in large else "") for one in wanted]
    return _operands(planned, seed, math.inf)
