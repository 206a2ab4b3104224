"""What is run: checks, timings, compilations and the whole bench, each as tasks for child processes."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, get_type_hints

from msgspec.structs import replace

from common.catalog import cache, device, problems, schema
from common.catalog.catalog import Step
from common.catalog.problems import Problem
from common.check import check, plan, shapes
from common.explain.faults import Fault
from common.jobs import messages, timetasks
from common.jobs.messages import StepResult
from common.machine_code import kernelcache
from common.run import isolate
from common.run.messages import Result, at

Answered = TypeVar("Answered")
CHECK_SECONDS = 30.0
TIME_SECONDS = 180.0
COMPILE_SECONDS = 180.0
EXPLAIN_SECONDS = 20.0
LARGE_SECONDS = 150.0
ENOUGH_WRONG = 3  # shapes at which a step fails before the others are left out
EXPLAIN_FLOPS = 1e6  # of a shape that is traced for a reason alone
CODE_ARCHITECTURE = "9.0"


@dataclass(frozen=True)
class Outcome:
    """The result of one task on one step: ``result["status"]`` is right, wrong, refused, unusable, crashed or
    timed_out; or unjudged: the tracer does not know what it does, or the GPU lacks the memory (``left_out``)."""

    step: Step
    problem: Problem
    preset: str | None
    result: StepResult

    @property
    def status(self) -> str:
        return str(self.result["status"])

    @property
    def fine(self) -> bool:
        """Right, or a shape that the step may refuse, or one that only a GPU could judge."""
        return self.status in ("right", "refused", "unjudged")

    @property
    def left_out(self) -> bool:
        """Has the GPU no room for it? That holds nothing back."""
        return "needed_bytes" in self.result

    @property
    def elsewhere(self) -> bool:
        """Does the step require another GPU than this machine's?"""
        return "requires" in self.result

    @property
    def faults(self) -> list[Fault]:
        """What explains it, perhaps nothing."""
        return self.result.get("faults", [])

    @property
    def reasons(self) -> list[str]:
        """One line per finding, or what stopped the task; what is left out is said once for all."""
        if self.left_out:
            return []
        findings = [f"{item.kind}: {item.message}" for item in self.result.get("findings", [])]
        message = self.result.get("message")
        return findings + ([f"{self.status}: {message}"] if message else [])


# Faults whose line is that of the launch, not of what went wrong.
_UNPLACED = {"illegal-address", "misaligned", "launch-failed", "watchdog", "constant-memory"}


class DeviceError(RuntimeError):
    """The GPU could not be measured."""


def check_steps(
    steps: list[Step],
    simulator: bool,
    shape: Problem | None = None,
    file: Path | None = None,
    seed: int = 0,
    compiled: bool = True,
    full: bool = False,
    brief: Collection[str] = (),
) -> Iterator[Outcome]:
    """Check each step as :mod:`common.check.plan` has it, or at ``shape``, in child processes; step by step.

    ``full``: at every shape of the pairwise plan; the steps whose names are in ``brief``, at a few. ``file`` is
    checked in the step's place. ``seed`` is that of the drawn shapes and operands. What a GPU has little room for
    comes last: the largest shapes, one at a time, and what others left no memory for. Without a GPU each step is also
    compiled, unless ``compiled`` is False. What fails is not tried at all shapes, and what does not compile at none
    that have not been tried by then. A step that requires another GPU than this one is checked as if there were none.
    """
    simulated = {step: simulator or bool(beyond(step)) for step in steps}
    groups = [
        group
        for step in steps
        for group in _check_groups(
            step, simulated[step], shape, file, seed, compiled and step.name not in brief, full, step.name in brief
        )
    ]
    pool, gpu = ThreadPoolExecutor(device.workers()), ThreadPoolExecutor(1)
    stop, hopeless = threading.Event(), {step: threading.Event() for step in steps}
    try:
        # compiled on all processors, soonest what is checked first: on the GPU one step follows the other
        ready = {group.step: pool.submit(_compiled_ahead, group, stop) for group in groups if group.on_gpu}

        def run_on_gpu(group: _CheckGroup) -> list[Outcome]:
            ready[group.step].result()
            return group.run(stop, hopeless[group.step])

        running = [
            (group, gpu.submit(run_on_gpu, group))
            if group.on_gpu
            else (group, pool.submit(group.run, stop, hopeless[group.step]))
            for group in groups
        ]
        alone = gpu.submit(_alone, [pair for pair in running if not pair[0].simulated], stop)
        for step in steps:
            if shape and simulated[step] and (why := plan.too_large(shape)):
                yield Outcome(step, shape, None, {"status": "unjudged", "message": why, "late": True})
            mine = [future.result() for group, future in running if group.step is step]
            yield from _agreed(step, [outcome for outcomes in mine for outcome in outcomes], simulated[step], file)
        for step, outcomes in itertools.groupby(alone.result(), lambda outcome: outcome.step):
            yield from _agreed(step, list(outcomes), False, file)
    finally:
        stop.set()
        gpu.shutdown(wait=True, cancel_futures=True)
        pool.shutdown(wait=True, cancel_futures=True)


def _compiled_ahead(group: _CheckGroup, stop: threading.Event) -> None:
    """Compile the kernels of a group's tasks, without touching the GPU; what cannot be is compiled where it runs."""
    ahead = _ahead(group.step, [one.shape for one in group.tasks], group.tasks[0].path)
    for _ in isolate.run([ahead], False, COMPILE_SECONDS, stop):
        pass


def _ahead(step: Step, shapes: list[dict[str, int]], path: str = "") -> messages.Prepare:
    """Compile a step's kernels, or those of the file at ``path`` in its place, for this GPU."""
    return messages.Prepare(
        path=path or str(step.path), ladder=step.ladder, step=step.name, device=inspect_device()[0], shapes=shapes,
        kernels=str(kernelcache.FOLDER),
    )  # fmt: skip


def compile_ahead(pairs: list[tuple[Step, str]]) -> None:
    """Compile the kernels of steps on presets for this GPU, on all processors, without touching it.

    They are kept; what cannot be compiled ahead is compiled where it runs.
    """
    cache.prune(kernelcache.FOLDER)
    wanted: dict[Step, list[dict[str, int]]] = {}
    for step, preset in pairs:
        if not beyond(step):
            wanted.setdefault(step, []).append(problems.preset(preset).shape())
    groups = [[_ahead(step, shapes)] for step, shapes in wanted.items()]
    for _ in isolate.run_groups(groups, False, COMPILE_SECONDS, device.workers()):
        pass


def _alone(groups: list[tuple[_CheckGroup, Future[list[Outcome]]]], stop: threading.Event) -> list[Outcome]:
    """When the groups are done: what they left to be done alone on the GPU, but for steps that are not right."""
    wrong = {group.step for group, future in groups if not all(outcome.fine for outcome in future.result())}
    waiting = [(group, task) for group, _ in groups if group.step not in wrong for task in group.alone]
    results = isolate.run([task for _, task in waiting], False, CHECK_SECONDS, stop)
    return [group.outcome(task, result) for (group, task), (_, result) in zip(waiting, results, strict=False)]


def beyond(step: Step) -> str:
    """Why this machine's GPU cannot run a step; empty if it can, or if there is none."""
    capability = device.compute_capability() if step.requires else None
    if capability is None or step.runs_on(capability):
        return ""
    return f"requires compute capability {step.requires}: this GPU has {capability}"


def allowed(step: Step, architectures: Iterable[str]) -> list[str]:
    """Those of the architectures that a step runs on, or that which it requires if it runs on none of them.

    One that requires ``9.0a`` is compiled for nothing else.
    """
    if step.requires and step.requires.endswith("a"):
        return [step.requires]
    return [name for name in architectures if step.runs_on(name)] or [str(step.requires)]


@dataclass(frozen=True)
class _CheckGroup:
    """Tasks of one step for one process, ended when enough is wrong; and those that must have the GPU ``alone``."""

    step: Step
    tasks: list[messages.Check | messages.Compile]
    simulated: bool
    gpu: bool  # is there one besides
    asked: bool = False  # was the very shape asked for
    alone: list[messages.Check] = field(default_factory=list)

    @property
    def on_gpu(self) -> bool:
        return any(task.on_gpu for task in self.tasks)

    def run(self, stop: threading.Event, hopeless: threading.Event) -> list[Outcome]:
        """What came of the tasks until ``stop``, or until the step is ``hopeless``: it does not compile."""
        enough, outcomes = _Any(stop, hopeless), []
        for task, (_, result) in zip(
            self.tasks, isolate.run(self.tasks, self.simulated, CHECK_SECONDS, enough), strict=False
        ):
            outcome = self.outcome(task, result)
            if outcome.left_out and isinstance(task, messages.Check):
                self.alone.append(task)  # other checks may have held the memory
                continue
            outcomes.append(outcome)
            if isinstance(task, messages.Compile) and not outcomes[-1].fine:
                hopeless.set()
            wrong = [one.status for one in outcomes if not one.fine]
            unknown = [one for one in outcomes if one.status == "unjudged" and not one.left_out]
            if len(unknown) == len(outcomes) >= ENOUGH_WRONG:  # the tracer knows it at no shape
                enough.set()
            if len(wrong) >= ENOUGH_WRONG or set(wrong) & {"timed_out", "unusable"}:
                enough.set()
        return outcomes

    def outcome(self, task: messages.Check | messages.Compile, result: StepResult) -> Outcome:
        problem = problems.from_shape(self.step.ladder, result.get("shape") or task.shape)
        if isinstance(task, messages.Compile):
            result["only_compiled"] = True
        else:
            result = judged(problem, result, self.asked, self.gpu)
        return Outcome(self.step, problem, None, result)


class _Any(threading.Event):
    """An event that is set when one of some others is, too."""

    def __init__(self, *others: threading.Event) -> None:
        super().__init__()
        self._others = others

    def is_set(self) -> bool:
        return super().is_set() or any(other.is_set() for other in self._others)


def _check_groups(
    step: Step,
    simulator: bool,
    shape: Problem | None,
    file: Path | None,
    seed: int,
    compiled: bool,
    full: bool,
    brief: bool,
) -> list[_CheckGroup]:
    if shape and simulator and plan.too_large(shape):
        return []
    gpu = not simulator
    if brief:
        wanted = plan.smoke(step.ladder, gpu, seed)
    else:
        wanted = plan.cases_at(shape, gpu, seed) if shape else plan.cases(step.ladder, gpu, seed, full)
    groups = []
    if simulator and compiled:  # first: what it says is told before all else
        # whole tiles may have a kernel of their own
        variants = [shape] if shape else [problems.FIRST[step.ladder], *shapes.tiled(step.ladder)[:1]]
        targets = allowed(step, [CODE_ARCHITECTURE])
        compiles = [messages.Compile(**at(step, one, file), architectures=targets) for one in variants]
        groups.append(_CheckGroup(step, [*compiles], False, False))
    for on_cpu in (True, False):
        # a trace has no races to catch by repeating
        repeats = 1 if on_cpu else check.REPEATS
        tasks: list[messages.Check | messages.Compile] = [
            messages.Check(
                **at(step, case.problem, file), **case.fields(), precision=step.precision,
                algorithm=step.algorithm, repeats=repeats, kernels=str(kernelcache.FOLDER),
            )
            for case in wanted
            if (case.engine != "gpu") == on_cpu
        ]  # fmt: skip
        large = [task for task in tasks if isinstance(task, messages.Check) and task.depth == "large"]
        if tasks:
            rest = [task for task in tasks if task not in large]
            group = _CheckGroup(step, rest, on_cpu, not simulator and on_cpu, shape is not None)
            group.alone.extend(replace(task, seconds=LARGE_SECONDS) for task in large)
            groups.append(group)
    return groups


def judged(problem: Problem, result: StepResult, asked: bool = False, gpu: bool = False) -> StepResult:
    """The result, where a step that refuses an ordinary shape is wrong. ``asked``: that very shape was asked for.

    With a ``gpu`` to run it, what the tracer does not know has a verdict but for races and the like.
    """
    if gpu and asked and result.get("late"):
        return {**result, "unsought": str(result["message"])}
    if gpu and result["status"] == "unjudged" and result.get("engine") == "traced" and not result.get("late"):
        said = f"only the GPU ran it, so races and the like were not looked for: {result['message']}"
        return {**result, "message": said}
    if result["status"] != "refused" or not shapes.ordinary(problem):
        return result
    said = f"this ordinary shape is refused: {result['message']}"
    return {**result, "status": "wrong", "message": None, "findings": [check.Finding("refused", said)]}


def _agreed(step: Step, outcomes: list[Outcome], simulator: bool, file: Path | None) -> list[Outcome]:
    """A step's outcomes, one for each shape: what is wrong for any engine, and does not compile before all else.

    What only a GPU shows is told by a trace as far as it can. Where the step was compiled and never ran, as the
    rest was not tried any more, nothing is known of its values.
    """
    wrong = [outcome for outcome in outcomes if not outcome.fine]
    if not simulator and wrong and all(outcome.result.get("engine") in (None, "gpu") for outcome in wrong):
        place = at(step, wrong[0].problem, file)
        again = messages.Check(
            **place, precision=step.precision, algorithm=step.algorithm, kernels=str(kernelcache.FOLDER)
        )
        retell(again, wrong[0].problem, wrong[0].result)
    unsought = [str(one.result["unsought"]) for one in outcomes if "unsought" in one.result]
    judged_on_gpu = any(one.result.get("engine") == "gpu" for one in outcomes)
    by_shape: dict[Problem, list[Outcome]] = {}
    for outcome in outcomes:
        if judged_on_gpu and "unsought" in outcome.result:
            continue  # it looked for races and the like beside the GPU
        by_shape.setdefault(outcome.problem, []).append(outcome)
    merged = []
    for problem, mine in by_shape.items():
        chosen = min(mine, key=_telling)
        engines = list(dict.fromkeys(one.result["engine"] for one in mine if "engine" in one.result))
        seconds = sum(one.result.get("seconds", 0.0) for one in mine)
        told: StepResult = {**chosen.result, "engines": engines, "seconds": seconds}
        if printing := [one.result for one in mine if one.result.get("prints")]:
            first = min(printing, key=lambda result: result.get("engine") != "traced")
            told["printed"], told["prints"] = first["printed"], first["prints"]
        if unsought and judged_on_gpu:
            told["unsought"] = unsought[0]
        if depths := [one.result["depth"] for one in mine if "depth" in one.result]:
            told["depth"] = depths[0]
        merged.append(Outcome(step, problem, None, told))
    ran = [outcome for outcome in merged if not (outcome.fine and outcome.result.get("only_compiled"))]
    return ran or merged


def _telling(outcome: Outcome) -> tuple[int, int]:
    """A key that sorts what must be told first: what is wrong, compiled before run, then what was not judged."""
    if not outcome.fine:
        engine = outcome.result.get("engine")
        return 0, 0 if engine is None else 1 if engine == "traced" else 2
    rank = {"unjudged": 1, "refused": 2}.get(outcome.status, 3)
    return rank, "engine" not in outcome.result


def retell(task: messages.Check, problem: Problem, result: StepResult) -> None:
    """Trace what failed on a GPU, for what only that tells (:func:`add_faults`)."""
    if wants_trace(result):
        small = problem if problem.flops <= EXPLAIN_FLOPS else problems.FIRST[problem.ladder]
        again = replace(task, shape=small.shape(), engine="traced", repeats=1)
        ((_, seen),) = isolate.run([again], True, EXPLAIN_SECONDS)
        add_faults(result, seen, small)


def wants_trace(result: Result) -> bool:
    """A typing error, or a launch beyond the limits, names its line already; other failures do not."""
    kinds = {fault.kind for fault in result.get("faults", [])}
    return result["status"] in ("wrong", "timed_out") or (
        result["status"] == "crashed" and bool(not kinds or kinds & _UNPLACED)
    )


def add_faults(result: Result, seen: Result, small: Problem) -> None:
    """Put the faults that ``seen``, a trace at ``small``, has a line for before the result's own."""
    found = [fault for fault in seen.get("faults", []) if fault.line]
    told = {(fault.kind, fault.line) for fault in found}
    rest = [fault for fault in result.get("faults", []) if (fault.kind, fault.line) not in told]
    found = [dataclasses.replace(fault, what=f"traced at {small}: {fault.what}") for fault in found]
    result["faults"] = found + [fault for fault in rest if fault.kind not in _UNPLACED or not found]


def describe_device() -> device.Gpu:
    """What this machine's GPU is; raises as :func:`measure_device` does."""
    return inspect_device()[0]


@functools.cache
def inspect_device() -> tuple[device.Gpu, int]:
    """What this machine's GPU is, and the bytes that a problem may take, worked out once in this program.

    Raises as :func:`measure_device` does.
    """
    device.require_gpu("describing the GPU")
    return ask("the GPU could not be used", timetasks.this_device)


def ask(failed: str, function: Callable[..., Answered], *given: object, on_gpu: bool = True) -> Answered:
    """What a function returns in a child process, or in the one that owns the GPU. Raises DeviceError that begins
    with ``failed``."""
    task = messages.Ask(function=function, given=given, touches_gpu=on_gpu)
    ((_, answer),) = isolate.run([task], False, TIME_SECONDS)
    if answer["status"] != "right":
        raise DeviceError(f"{failed}: {answer['message']}")
    kind: type[Answered] = get_type_hints(function)["return"]
    return schema.read(answer["found"], kind)
