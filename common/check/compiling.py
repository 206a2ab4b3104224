"""Steps compiled without a GPU, and summaries of their kernels: what child processes are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from common.catalog import catalog, device, limits, problems
from common.catalog.catalog import Step
from common.check import run
from common.run import isolate, messages
from common.run.messages import Outcome, at
from common.trace import cost, trace
from common.trace.messages import Trace

TRACE_SECONDS = 60.0
Show = Literal["ptx", "sass"]


def compile_steps(
    steps: list[Step], architectures: tuple[str, ...], machine_code: bool, every_preset: bool = False
) -> Iterator[Outcome]:
    """Compile every kernel of each step, without a GPU, for its ladder's preset; or for all that are timed."""
    tasks = []
    for step in steps:
        usual = problems.DEFAULT_PRESET[step.ladder]
        # a bench times an experiment on its ladder's default only
        timed = problems.timed_presets(step.ladder) if every_preset and not step.experiment else []
        others = {name: problems.preset(name).shape() for name in timed if name != usual}
        place, targets = at(step, problems.preset(usual)), catalog.targets(step.requires, architectures)
        tasks.append([messages.Compile(**place, architectures=targets, machine_code=machine_code, others=others)])
    results = isolate.run_groups(tasks, False, run.COMPILE_SECONDS, device.workers())
    for step, (_, result) in zip(steps, results, strict=False):
        usual = problems.DEFAULT_PRESET[step.ladder]
        yield Outcome.of(step, problems.preset(usual), usual, result)


def summary_architecture() -> str:
    """The compute capability that summaries are for unless another is named: this GPU's, if its limits are known."""
    found = device.compute_capability()
    return found if found in limits.LIMITS else run.CODE_ARCHITECTURE


def summaries(
    pairs: list[tuple[Step, str]], architecture: str, file: Path | None = None, show: Show | None = None
) -> Iterator[Outcome]:
    """``cards``: a summary of every kernel of each (step, preset), or of ``file`` in its place, without a GPU. With
    ``show`` each has the ``text`` of that; PTX comes alone. Raises FileNotFoundError without NVIDIA's assembler."""
    tasks: list[list[Any]] = []
    for step, preset in pairs:
        problem, target = problems.preset(preset), catalog.targets(step.requires, [architecture])[0]
        tasks.append([messages.Summarise(**at(step, problem, file), architecture=target, show=show)])
        if not show:
            tasks.append([Trace(**at(step, trace.reduced(problem), file), seconds=TRACE_SECONDS)])
    results = isolate.run_groups(tasks, True, run.COMPILE_SECONDS, device.workers())
    for step, preset in pairs:
        _, result = next(results)
        traced = None if show else next(results)[1].trace
        if result.missing_tool:
            raise FileNotFoundError(result.message)
        figures = cost.traffic(traced) if traced is not None else {}
        for one in () if show else result.cards:
            one["traffic"] = figures.get(one["kernel"], {})
        yield Outcome.of(step, problems.preset(preset), preset, result)
