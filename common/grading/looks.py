"""What a submission's process says of its kernels' doings: traces, blocks looked into, launches. Read with suspicion.

The process that answers has interpreted the kernels (:mod:`common.microscope`), and said nothing that its file put
into its mouth, as far as :mod:`common.grading.language` holds. What can be compared is compared here: values with the
oracle, launches with those that a plan holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from common.book import reference
from common.book.problems import Problem
from common.grading.limits import TOUCHED
from common.grading.ptx_plan import Plan
from common.grading.sandbox import Note, Sandbox, SandboxError
from common.measure import inputs


@dataclass(frozen=True)
class Traced:
    """What a trace found; ``message`` says why it could not be made."""

    figures: dict[str, float] = field(default_factory=dict)
    reads: dict[str, float] = field(default_factory=dict)  # of global memory, by array
    unsound: list[str] = field(default_factory=list)
    message: str = ""

    def beyond(self, other: Traced, ratio: float) -> str:
        """Of which array, or of all together, it reads more than ``ratio`` times what the other does, or nothing."""
        needed = {**other.reads, "all arrays": sum(other.reads.values())}
        made = {**self.reads, "all arrays": sum(self.reads.values())}
        for name, count in needed.items():
            if made.get(name, 0) > ratio * count:
                text = f"{made[name]:,.0f} values of {name} are read from global memory"
                return f"{text}; the exercise solved needs {count:,.0f}"
        return ""


def traced(box: Sandbox, problem: Problem) -> Traced:
    """Have a box trace its kernels at a shape. Raises SandboxError."""
    found = box.ask("trace", shape=problem.shape())
    if "figures" not in found:
        return Traced(message=str(found.get("message", "it is not said why")))
    try:
        figures = {name: float(found["figures"][name]) for name in TOUCHED}
        reads = {str(name): float(count) for name, count in found["reads"].items()}
        return Traced(figures, reads, [str(fault) for fault in found["unsound"]])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise SandboxError("broken", "its trace is none") from None


@dataclass(frozen=True)
class Sampled:
    """What one block of each kernel did; ``message`` says why it could not be looked at."""

    launched: list[list[Any]] = field(default_factory=list)
    fma: float = 0.0
    written: int = 0
    compared: int = 0
    wrong: int = 0
    message: str = ""


def sampled(box: Sandbox, problem: Problem, seed: int, block: list[int] | None = None) -> Sampled:
    """Have a box look into one block, and compare what it wrote with the oracle. Raises SandboxError."""
    found = box.ask("sample", shape=problem.shape(), seed=seed, block=block)
    if "places" not in found:
        return Sampled(message=str(found.get("message", "it is not said why")))
    try:
        places = np.array(found["places"], np.int64)
        values = np.array(found["values"], np.float64)
        positions = np.unravel_index(places, problem.output_shape)
        launched = [
            [str(name), *([int(n) for n in point] for point in points)] for name, *points in found["launched"]
        ]
        fma, written = float(found["fma"]), int(found["written"])
    except (KeyError, TypeError, ValueError, OverflowError):
        raise SandboxError("broken", "what it says of one block is nothing that can be read") from None
    x, weight = inputs.integers(problem, seed)
    right = reference.stored(problem, reference.at(problem, x, weight, positions))
    wrong = int(np.count_nonzero(values != right))
    return Sampled(launched, fma, written, len(places), wrong)


def differences(launched: list[list[Any]], plan: Plan) -> list[Note]:
    """A note if what starts in the simulator is not what starts when compiled: by name, place, grid, block or
    constants."""
    started = [[entry["name"], entry["grid"], entry["block"], *entry["identity"]] for entry in plan["launch"]]
    if started == [[name, _point(grid), _point(block), *rest] for name, grid, block, *rest in launched]:
        return []
    names = [", ".join(name for name, *_ in one) or "no kernel" for one in (launched, started)]
    if names[0] == names[1]:
        return [("differs", f"it starts {names[0]} in the simulator in another way than when compiled")]
    return [("differs", f"it starts {names[0]} in the simulator and {names[1]} when compiled")]


def _point(extents: list[int]) -> list[int]:
    return [*extents, 1, 1][:3]
