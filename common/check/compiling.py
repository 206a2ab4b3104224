"""What is compiled: every kernel of steps, and summaries of what became of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from common.catalog import cache, device, limits, problems
from common.catalog.catalog import Step
from common.catalog.problems import Problem
from common.check import run
from common.check.run import allowed
from common.machine_code.summaries import Summary
from common.run import isolate, messages
from common.run.messages import at
from common.run.results import Outcome, StepResult
from common.trace import result as traced
from common.trace import trace
from common.trace.messages import Trace

TRACE_SECONDS = 60.0
Show = Literal["ptx", "sass"]


class ToolError(RuntimeError):
    """NVIDIA's assembler or disassembler is not installed."""


def compile_steps(
    steps: list[Step],
    architectures: tuple[str, ...],
    machine_code: bool,
    preset: str | None = None,
    every_preset: bool = False,
) -> Iterator[Outcome]:
    """Compile every kernel of each step, without a GPU, for a preset or its ladder's; or for all that are timed."""
    presets = [preset or problems.DEFAULT_PRESET[step.ladder] for step in steps]
    tasks = []
    for step, name in zip(steps, presets, strict=True):
        others = [other for other in problems.timed_presets(step.ladder) if other != name]
        # a bench times an experiment on its ladder's default only
        others = others if every_preset and not step.experiment else []
        task = messages.Compile(
            **at(step, problems.preset(name)),
            architectures=allowed(step, architectures),
            machine_code=machine_code,
            others={other: problems.preset(other).shape() for other in others},
        )
        tasks.append(task)
    results = isolate.run_groups([[task] for task in tasks], False, run.COMPILE_SECONDS, device.workers())
    for step, name, (_, result) in zip(steps, presets, results, strict=False):
        yield Outcome.of(step, problems.preset(name), name, result)


def summary_architecture() -> str:
    """The compute capability that summaries are for unless another is named: this GPU's, if its limits are known.

    A step that does not run on it has one for what it requires.
    """
    found = device.compute_capability()
    return found if found in limits.LIMITS else run.CODE_ARCHITECTURE


def summaries(
    pairs: list[tuple[Step, str]],
    architecture: str,
    file: Path | None = None,
    show: Show | None = None,
) -> Iterator[Outcome]:
    """``cards``: a summary of every kernel of each (step, preset), without a GPU; kept ones are not remade.

    ``file`` stands in the step's place. With ``show`` ("ptx" or "sass") each has the ``text`` of that; PTX comes
    alone. Raises ToolError when machine code cannot be had.
    """
    with isolate.Pool() as pool:
        waiting = [
            pool.submit(_summaries, step, preset, architecture, file, show, pool.stop) for step, preset in pairs
        ]
        for (step, preset), future in zip(pairs, waiting, strict=True):
            result = future.result()
            if result.missing_tool:
                raise ToolError(result.message)
            yield Outcome.of(step, problems.preset(preset), preset, result)


def _summaries(
    step: Step, preset: str, architecture: str, file: Path | None, show: Show | None, stop: threading.Event
) -> StepResult:
    problem, target = problems.preset(preset), allowed(step, [architecture])[0]
    key = summary_key(file or step.path, problem, target)
    found = None if show else cache.get("cards", key, list[Summary])
    if found is not None:
        return StepResult(status="right", cards=found)
    task = messages.Summarise(**at(step, problem, file), architecture=target, show=show)
    result = next((result for _, result in isolate.run([task], False, run.COMPILE_SECONDS, stop)), None)
    if result is None:
        return StepResult(status="unjudged", message="stopped")
    if result.status == "right" and not show:
        _add_traffic(task, result.cards, stop)
        if not stop.is_set():  # else perhaps without a trace
            cache.put("cards", key, result.cards)
    return result


def summary_key(path: Path, problem: Problem, architecture: str) -> str:
    """What the summaries of a step's file are kept under; they show source lines, so a comment counts, too."""
    finders = [Path(__file__), Path(__file__).with_name("tasks.py")]
    return cache.key([*finders, path], str(path.resolve()), problem.shape(), architecture, text=True)


def _add_traffic(task: messages.Summarise, found: Sequence[Summary], stop: threading.Event) -> None:
    """Give each summary its kernel's ``traffic``, from a trace; what cannot be traced has none."""
    problem = trace.reduced(problems.from_shape(task.ladder, task.shape))
    tracing = Trace(path=task.path, ladder=task.ladder, step=task.step, shape=problem.shape())
    result = next((result for _, result in isolate.run([tracing], True, TRACE_SECONDS, stop)), None)
    figures = traced.traffic(result.trace) if result and result.trace is not None else {}
    for one in found:
        one["traffic"] = figures.get(one["kernel"], {})
