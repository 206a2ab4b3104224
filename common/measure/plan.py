"""What a check of a step consists of: its cases, engine by engine, in the order in which they run.

All cases of an engine run in one process on one imported module, as a program would use the step: what it keeps from
one shape, or one set of arrays, to the next shows. Three engines judge:

- ``traced``: the tracer runs every block in lockstep. Fast, so it has most shapes; it alone sees what is unsound.
- ``simulator``: Numba's simulator runs the kernel's Python thread by thread: a second opinion at a few shapes.
- ``gpu``: the kernel as compiled, where there is a GPU: more shapes, and larger ones.

Where there is no GPU, the kernels are also compiled for a real architecture.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal

from common.book import problems
from common.book.problems import FLOAT16, Problem
from common.measure import inputs, shapes

Engine = Literal["traced", "simulator", "gpu"]
Depth = Literal["once", "usual", "thorough", "large", "measured"]

# by form; a conv2d kernel is compiled for each shape
DRAWN_ON_GPU = {"gemm": 100, "conv2d": 2, "conv3d": 60, "dgrad": 60, "wgrad": 60}
COVERED_ON_GPU = {"conv2d": 5}  # all but for these
THOROUGH_SECONDS = 150.0
TRACED_SECONDS, TRACED_FROM = 90.0, 5_000_000  # of a case that is traced, and from how many multiply-adds on
SPECIAL_UP_TO = 1 << 15  # multiply-adds of a shape that special operands are tried at without a GPU
LARGEST_ON_GPU = 1 << 27  # multiply-adds of a drawn shape
SIMULATED_FLOPS = 2_000_000  # the most operations that the simulator is given: nine seconds of a core
# Of a shape that was asked for: seconds of a core that the tracer may take, without a GPU and beside one.
ASKED_SECONDS, BESIDE_SECONDS = 20.0, 4.0
TRACED_AT_BEST = 2e9  # operations a second, more than the tracer was seen to do of any step
# Seconds that a group of blocks may take before an endless loop is suspected: so many, or so many for each product of
# a sum, which is more than ten times what was seen.
_GROUP_SECONDS, _GROUP_SECONDS_EACH = 15.0, 0.02


@dataclass(frozen=True)
class Case:
    """One shape for one engine. ``special``: operands of that kind of :data:`common.measure.inputs.SPECIAL` besides
    integers, or normals in their place.

    ``small``: the step is told that the card has few multiprocessors, :data:`common.measure.shapes.FEW`.
    ``wide``: a shape of :func:`common.measure.shapes.wide`; the tracer takes a narrower one if no grid is as wide.
    ``sole``: of this shape there is no case that is traced, which tells what is unsound.
    ``budget``: of a depth that is "measured", the seconds of a core that it may take: as many launches as fit.
    """

    problem: Problem
    engine: Engine
    depth: Depth = "once"
    seed: int = 0
    special: str = ""
    wide: bool = False
    small: bool = False
    sole: bool = False
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


def cases(ladder: str, gpu: bool, seed: int) -> list[Case]:
    """The cases of a step of this ladder, the soonest done first; ``seed`` is that of the drawn shapes."""
    first, ragged = problems.FIRST[ladder], problems.RAGGED[ladder]
    found = [Case(first, "simulator", "usual"), Case(first, "traced", "thorough", seed)]
    found += [Case(problem, "traced", "usual") for problem in ragged]
    # of ragged rows few may reach the copy engine
    found += [Case(problem, "simulator", "once") for problem in (*ragged, *shapes.copied(ladder)[:1])]
    found += _once("traced", (*shapes.covering(ladder), *shapes.twins(ladder)), seed)
    found += _once("traced", shapes.drawn(ladder, seed, shapes.DRAWN), seed)
    found += _once("traced", shapes.tiled(ladder), seed, shapes.rounded(ladder))
    long = [Case(problem, "traced", "once", seed, inputs.NORMALS) for problem in shapes.long_sums(ladder)]
    found += [*long, *(Case(problem, "traced", seed=seed) for problem in shapes.layers(ladder))]
    known = (*shapes.familiar(ladder), *shapes.kin(ladder, seed))
    found += [Case(problem, "traced", "once", seed, _familiar_operands(problem)) for problem in known]
    found += [Case(problem, "traced", wide=True) for problem in shapes.wide(ladder)]
    found.append(Case(first, "traced"))
    found += [Case(problem, "traced", "usual", seed, small=True) for problem in shapes.on_small_card(ladder)]
    if gpu:
        found += [Case(first, "gpu"), Case(first, "gpu", "thorough")]
        found += [Case(problem, "gpu", "usual") for problem in ragged]
        form = problems.LADDERS[ladder].form
        found += _once("gpu", shapes.covering(ladder)[: COVERED_ON_GPU.get(form)], seed)
        found += _once("gpu", shapes.drawn(ladder, seed, DRAWN_ON_GPU[form], LARGEST_ON_GPU), seed)
        found += _once("gpu", shapes.tiled(ladder), seed)
        rounded = (*shapes.tiled(ladder), *shapes.long_sums(ladder))
        found += [Case(problem, "gpu", "once", seed, inputs.NORMALS) for problem in rounded]
        found += _once("gpu", (*shapes.layers(ladder), *shapes.familiar(ladder)[: COVERED_ON_GPU.get(form)]), seed)
        found += [Case(problem, "gpu", "large") for problem in shapes.large(ladder)]
        found += [Case(problem, "gpu") for problem in (*shapes.wide(ladder), first)]
    return found


def cases_at(problem: Problem, gpu: bool, seed: int) -> list[Case]:
    """The cases of a step at one shape that was asked for; none without a GPU if it is :func:`too_large`.

    How long the simulator takes is not known beforehand: a shape of few operations may be of many padded tiles.
    """
    budget = BESIDE_SECONDS if gpu else ASKED_SECONDS
    traced = problem.flops <= TRACED_AT_BEST * budget
    found = []
    if gpu:
        found.append(Case(problem, "gpu", "usual", seed, sole=not traced))
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

    Those that are ``rounded`` have normals in the place of all.
    """
    kinds, found = list(inputs.SPECIAL), []
    for number, problem in enumerate(wanted, seed):
        special = kinds[number % len(kinds)]
        if engine != "gpu" and shapes.multiply_adds(problem) > SPECIAL_UP_TO:
            special = inputs.NORMALS if problem in rounded else ""
        found.append(Case(problem, engine, "once", number, special))
    return found
