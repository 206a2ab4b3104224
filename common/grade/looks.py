"""What a submission's process says of its kernels' doings: traces, blocks looked into, launches. Read with suspicion.

The process that answers has interpreted the kernels (:mod:`common.trace`), and said nothing that its file put
into its mouth, as far as :mod:`common.grade.language` holds. What can be compared is compared here: values with the
oracle, launches with those that a plan holds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import asdict

from common.catalog import reference
from common.catalog.problems import Problem
from common.check import inputs
from common.grade.limits import TOUCHED
from common.grade.messages import Block, Launched, Sample, Trace, Traced
from common.grade.ptx_plan import Plan
from common.grade.sandbox import Note, Sandbox, SandboxError


def traced(box: Sandbox, problem: Problem, seed: int = 0) -> Traced:
    """Have a box trace its kernels at a shape. Raises SandboxError."""
    found = box.ask(Trace(shape=problem.shape(), seed=seed))
    if not found.message and found.figures.keys() != set(TOUCHED):
        has = ", ".join(found.figures) or "none"
        raise SandboxError("broken", f"its trace must have {', '.join(TOUCHED)}, has {has}")
    return found


def beyond(made: Traced, needed: Traced, ratio: float) -> str:
    """Of which array, or of all together, more than ``ratio`` times of what is needed is read, or nothing."""
    reads = {**made.reads, "all arrays": sum(made.reads.values())}
    for name, count in {**needed.reads, "all arrays": sum(needed.reads.values())}.items():
        if reads.get(name, 0) > ratio * count:
            text = f"{reads[name]:,.0f} values of {name} are read from global memory"
            return f"{text}; the exercise solved needs {count:,.0f}"
    return ""


class Sampled(Block, frozen=True):
    """What one block of each kernel did; how many of its values were compared with the oracle, and are wrong."""

    compared: int = 0
    wrong: int = 0


def sampled(box: Sandbox, problem: Problem, seed: int, block: list[int] | None = None) -> Sampled:
    """Have a box look into one block, and compare what it wrote with the oracle. Raises SandboxError."""
    found = box.ask(Sample(shape=problem.shape(), seed=seed, block=block))
    if found.message:
        return Sampled(message=found.message)
    return Sampled(**asdict(found), compared=len(found.places), wrong=wrong(found, problem, seed))


def wrong(found: Block | Traced, problem: Problem, seed: int) -> int:
    """How many of the values that it says of an output are not the oracle's. Raises SandboxError."""
    try:
        positions = np.unravel_index(np.array(found.places, np.int64), problem.output_shape)
        values = np.array(found.values).reshape(len(found.places))
    except ValueError:
        raise SandboxError("broken", "what it says of its output is nothing that can be read") from None
    x, weight = inputs.integers(problem, seed)
    right = reference.stored(problem, reference.at(problem, x, weight, positions))
    return int(np.count_nonzero(values != right))


def differences(launched: list[Launched], plan: Plan) -> list[Note]:
    """A note if what starts when traced is not what starts when compiled: by name, place, grid, block or
    constants."""
    started = [[entry["name"], entry["grid"], entry["block"], *entry["identity"]] for entry in plan["launch"]]
    if started == [[name, _point(grid), _point(block), *rest] for name, grid, block, *rest in launched]:
        return []
    names = [", ".join(str(name) for name, *_ in one) or "no kernel" for one in (launched, started)]
    if names[0] == names[1]:
        return [("differs", f"it starts {names[0]} when traced in another way than when compiled")]
    return [("differs", f"it starts {names[0]} when traced and {names[1]} when compiled")]


def _point(extents: Sequence[int]) -> list[int]:
    return [*extents, 1, 1][:3]
