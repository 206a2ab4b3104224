"""Is a right kernel ever called wrong? python tests/false_alarms.py [NAME ...] [--shapes N] [--seed N].

Draws N shapes for every step, experiment and solution, and checks each of them there on the tracer, with one kind of
special operands after the other. The seed is printed, and draws the same shapes again. Exit code 1 on any alarm.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.catalog import catalog, device, exercises, inputs
from common.catalog.problems import Problem
from common.check import plan, run
from common.run import isolate
from common.run.messages import Check, StepResult

SECONDS = 120.0  # for one file at one shape


@dataclass(frozen=True)
class Right:
    """A file that is right, and what it may compute with."""

    name: str
    ladder: str
    path: Path
    precision: str = catalog.PRECISIONS[0]
    algorithm: str | None = None


# Exercises that compute less than their ladder, as they say (conv3d_pointwise: filters of one tap); those
# of lesson 07 have no kernel to fall back to where the copy engine's rules do not hold.
LESS = {
    "conv3d_pointwise",
    "hgemm_wrong_box", "hgemm_released_too_early",
    "hgemm_producer", "hgemm_one_warpgroup", "hgemm_larger_pipeline", "hconv3d_corner_off_by_one",
    "dgrad_as_convolution", "dgrad_meeting_taps", "wgrad_weighted_columns", "wgrad_one_tap",
}  # fmt: skip


def everything() -> list[Right]:
    """Every step, experiment and solution of an exercise that is for all shapes of its ladder."""
    kernels = [
        Right(step.name, step.ladder, step.path, step.precision, step.algorithm) for step in catalog.everything()
    ]
    solved = [one for one in exercises.everything() if one.kind != "predict" and one.name not in LESS]
    return kernels + [
        Right(f"solutions/{one.name}", one.ladder, one.write_solution(), one.said["precision"], one.said["algorithm"])
        for one in solved
    ]


def drawn(kernel: Right, seed: int, count: int) -> list[tuple[Problem, dict]]:
    """Shapes for a kernel, none of those that another kernel of the seed gets, and what a check's task says."""
    kinds = list(inputs.SPECIAL)
    own = seed + sum(map(ord, kernel.name))
    return [
        (problem, {"engine": "traced", "depth": "once", "seed": own + number, "special": kinds[number % len(kinds)]})
        for number, problem in enumerate(plan.drawn(kernel.ladder, own, count))
    ]


def alarms(kernels: list[Right], seed: int, count: int, processes: int = 2) -> Iterator[tuple[Right, Problem, str]]:
    """Each kernel and shape, with what is said of it that should not be: an empty text if nothing."""
    cases = [(kernel, problem, fields) for kernel in kernels for problem, fields in drawn(kernel, seed, count)]
    shares = [cases[number::processes] for number in range(processes)]
    tasks = [
        [
            Check(
                path=str(kernel.path),
                ladder=kernel.ladder,
                shape=problem.shape(),
                precision=kernel.precision,
                algorithm=kernel.algorithm,
                **fields,
            )
            for kernel, problem, fields in share
        ]
        for share in shares
    ]
    results = isolate.run_groups(tasks, True, SECONDS, processes)
    for (kernel, problem, fields), (_, result) in zip(
        (case for share in shares for case in share), results, strict=True
    ):
        yield kernel, problem, _alarm(run.judged(problem, result), fields)


def _alarm(result: StepResult, fields: dict) -> str:
    if result.status == "right":
        return ""
    if result.status == "refused":
        return ""  # by judged(): a shape that a step may refuse
    said = [finding.message for finding in result.findings] or [result.message]
    return f"{result.status} with seed {fields['seed']} and {fields['special']}: {said[0]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="steps, experiments, solutions/NAME (default: all)")
    parser.add_argument("--shapes", type=int, default=100, help="for each")
    parser.add_argument("--seed", type=int, help="of the shapes and operands (default: a new one)")
    options = parser.parse_args()
    seed = plan.new_seed() if options.seed is None else options.seed
    kernels = [one for one in everything() if not options.names or one.name in options.names]
    print(f"{len(kernels)} kernels, {options.shapes} shapes each, seed {seed}", flush=True)
    found = 0
    for kernel, problem, text in alarms(kernels, seed, options.shapes, device.processors()):
        if text:
            found += 1
            print(f"{kernel.name}: {problem}: {text}", flush=True)
    print(f"{found} alarms")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
