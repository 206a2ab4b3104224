"""What is run: checks, timings, compilations and the whole bench, each as tasks for child processes."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from msgspec.structs import replace

from common.catalog import cache, catalog, device, limits, problems
from common.catalog.catalog import Step
from common.catalog.problems import Problem
from common.catalog.sources import Code
from common.check import check, plan, shapes
from common.explain.faults import Fault, FindingFields
from common.jobs import messages
from common.jobs.messages import StepResult
from common.machine_code import kernelcache
from common.machine_code.messages import CodeCard
from common.run import isolate
from common.run.messages import Result, at
from common.timing import clocks, profiler, sanitizer, timing
from common.timing.ceilings import Ceilings
from common.timing.timing import Timing
from common.trace import trace
from common.trace.messages import Trace

CHECK_SECONDS = 30.0
TIME_SECONDS = 180.0
QUICK_SECONDS = 1.0
TRACE_SECONDS = 60.0
COMPILE_SECONDS = 180.0
EXPLAIN_SECONDS = 20.0
LARGE_SECONDS = 150.0
ENOUGH_WRONG = 3  # shapes at which a step fails before the others are left out
EXPLAIN_FLOPS = 1e6  # of a shape that is traced for a reason alone
WATCHED_SECONDS = 550.0  # all steps under a profiler or sanitizer, if so many that it is not less:
WATCHED_START, WATCHED_EACH = 90.0, 45.0  # for the process, and for each step
CODE_ARCHITECTURE = "9.0"
FEW_PROCESSORS = 4  # with so many or fewer, nothing is compiled while kernels are timed


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
        return [Fault.of(fields) for fields in self.result.get("faults", [])]

    @property
    def reasons(self) -> list[str]:
        """One line per finding, or what stopped the task; what is left out is said once for all."""
        if self.left_out:
            return []
        findings = [f"{item['kind']}: {item['message']}" for item in self.result.get("findings", [])]
        message = self.result.get("message")
        return findings + ([f"{self.status}: {message}"] if message else [])


# Faults whose line is that of the launch, not of what went wrong.
_UNPLACED = {"illegal-address", "misaligned", "launch-failed", "watchdog", "constant-memory"}


class DeviceError(RuntimeError):
    """The GPU could not be measured."""


class ToolError(RuntimeError):
    """NVIDIA's assembler or disassembler is not installed."""


def check_steps(
    steps: list[Step],
    simulator: bool,
    shape: Problem | None = None,
    file: Path | None = None,
    seed: int = 0,
    compiled: bool = True,
    workers: isolate.Pool | None = None,
    begun: Callable[[], None] = lambda: None,
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
    pool, gpu = isolate.Pool(), ThreadPoolExecutor(1)
    on_cpu = workers or pool
    stop, hopeless = threading.Event(), {step: threading.Event() for step in steps}
    try:
        # compiled on all processors, soonest what is checked first: on the GPU one step follows the other
        ready = {group.step: on_cpu.submit(_compiled_ahead, group, stop) for group in groups if group.on_gpu}

        def run_on_gpu(group: _CheckGroup) -> list[Outcome]:
            ready[group.step].result()
            return group.run(stop, hopeless[group.step])

        running = [
            (group, gpu.submit(run_on_gpu, group))
            if group.on_gpu
            else (group, on_cpu.submit(group.run, stop, hopeless[group.step]))
            for group in groups
        ]
        alone = gpu.submit(_alone, [pair for pair in running if not pair[0].simulated], stop)
        begun()
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
        pool.end()


def _compiled_ahead(group: _CheckGroup, stop: threading.Event) -> None:
    """Compile the kernels of a group's tasks, without touching the GPU; what cannot be is compiled where it runs."""
    task = group.tasks[0]
    ahead = messages.Prepare(
        path=task.path, home=task.home, helpers=task.helpers, ladder=task.ladder, step=task.step,
        device=inspect_device()[0], shapes=[one.shape for one in group.tasks], kernels=str(kernelcache.FOLDER),
    )  # fmt: skip
    for _ in isolate.run([ahead], False, COMPILE_SECONDS, stop):
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


def _allowed(step: Step, architectures: Iterable[str]) -> list[str]:
    """Those of the architectures that a step runs on, or that which it requires if it runs on none of them.

    One that requires ``9.0a`` is compiled for nothing else.
    """
    if step.requires and step.requires.endswith("a"):
        return [step.requires]
    return [name for name in architectures if step.runs_on(name)] or [str(step.requires)]


def _beside(step: Step, problem: Problem) -> str:
    """In which precision a step is timed in turn with the library: that of a step for tensor cores; else empty.

    FP32 times agree from run to run. Those of tensor cores follow the card's heat: only a ratio holds.
    """
    return step.precision if catalog.on_tensor_cores(step, problem) else ""


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
        allowed = _allowed(step, [CODE_ARCHITECTURE])
        compiles = [messages.Compile(**at(step, one, file), architectures=allowed) for one in variants]
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
    finding: FindingFields = {"kind": "refused", "message": said}
    return {**result, "status": "wrong", "message": None, "findings": [finding]}


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
    kinds = {fault["kind"] for fault in result.get("faults", [])}
    return result["status"] in ("wrong", "timed_out") or (
        result["status"] == "crashed" and bool(not kinds or kinds & _UNPLACED)
    )


def add_faults(result: Result, seen: Result, small: Problem) -> None:
    """Put the faults that ``seen``, a trace at ``small``, has a line for before the result's own."""
    found = [fault for fault in seen.get("faults", []) if fault["line"]]
    told = {(fault["kind"], fault["line"]) for fault in found}
    rest = [fault for fault in result.get("faults", []) if (fault["kind"], fault["line"]) not in told]
    found = [{**fault, "what": f"traced at {small}: {fault['what']}"} for fault in found]
    result["faults"] = found + [fault for fault in rest if fault["kind"] not in _UNPLACED or not found]


def compile_steps(
    steps: list[Step],
    architectures: tuple[str, ...],
    machine_code: bool,
    file: Path | None = None,
    preset: str | None = None,
    every_preset: bool = False,
    workers: isolate.Pool | None = None,
) -> Iterator[Outcome]:
    """Compile every kernel of each step, without a GPU, for a preset or its ladder's; or for all that are timed.

    With ``workers`` these are asked at once, not when the first outcome is.
    """
    presets = [preset or problems.DEFAULT_PRESET[step.ladder] for step in steps]
    tasks = []
    for step, name in zip(steps, presets, strict=True):
        others = [other for other in problems.timed_presets(step.ladder) if other != name]
        # a bench times an experiment on its ladder's default only
        others = others if every_preset and not step.experiment else []
        task = messages.Compile(
            **at(step, problems.preset(name), file),
            architectures=_allowed(step, architectures),
            machine_code=machine_code,
            others={other: problems.preset(other).shape() for other in others},
        )
        tasks.append(task)
    mine = workers or isolate.Pool()

    def compiled(task: messages.Compile) -> StepResult | None:
        return next((result for _, result in isolate.run([task], False, COMPILE_SECONDS, mine.stop)), None)

    # the later lessons' kernels take longest: they come first
    waiting = [mine.submit(compiled, task) for task in reversed(tasks)][::-1]

    def outcomes() -> Iterator[Outcome]:
        with mine if workers is None else nullcontext():
            for step, name, future in zip(steps, presets, waiting, strict=True):
                if result := future.result():  # none if it was stopped
                    yield Outcome(step, problems.preset(name), name, result)

    return outcomes()


def card_architecture() -> str:
    """The compute capability that cards are for unless another is named: this GPU's, if its limits are known.

    A step that does not run on it has a card for what it requires.
    """
    found = device.compute_capability()
    return found if found in limits.LIMITS else CODE_ARCHITECTURE


def cards(
    pairs: list[tuple[Step, str]],
    architecture: str,
    file: Path | None = None,
    show: Literal["ptx", "sass"] | None = None,
    workers: int = 1,
    stop: threading.Event | None = None,
) -> Iterator[Outcome]:
    """``result["cards"]``: a card for every kernel of each (step, preset), without a GPU; kept cards are not remade.

    ``file`` stands in the step's place. With ``show`` ("ptx" or "sass") each card has the ``text`` of that; PTX comes
    alone. What is not made when ``stop`` is set is left out. Raises ToolError when machine code cannot be had.
    """
    kept: dict[tuple[str, str], StepResult] = {}  # by step and preset
    keys: dict[tuple[str, str], str] = {}
    groups: list[list[messages.Card]] = [[] for _ in range(workers)]
    for number, (step, preset) in enumerate(pairs):
        problem, target = problems.preset(preset), _allowed(step, [architecture])[0]
        key = keys[step.name, preset] = card_key(file or step.path, problem, target)
        found = None if show else cache.get("cards", key, list[CodeCard])
        if found is not None:
            kept[step.name, preset] = {"status": "right", "cards": found}
            continue
        task = messages.Card(**at(step, problem, file), architecture=target, show=show, preset=preset)
        groups[number % workers].append(task)
    waiting = [group for group in groups if group]
    traced: list[tuple[messages.Card, StepResult, Future[None]]] = []
    with ThreadPoolExecutor(workers) as pool:
        for asked, result in isolate.run_groups(waiting, False, COMPILE_SECONDS, workers, stop):
            assert isinstance(asked, messages.Card)
            if result.get("missing_tool"):
                raise ToolError(result["message"])
            kept[asked.step, asked.preset] = result
            if result["status"] == "right" and not show:
                tracing = pool.submit(_add_traffic, asked, result["cards"], stop)
                traced.append((asked, result, tracing))
    for task, result, tracing in traced:
        tracing.result()
        if stop and stop.is_set():
            kept.pop((task.step, task.preset))  # perhaps without a trace: not kept
        else:
            cache.put("cards", keys[task.step, task.preset], result["cards"])
    for step, preset in pairs:
        if (step.name, preset) in kept:
            yield Outcome(step, problems.preset(preset), preset, kept[step.name, preset])


def card_key(path: Path, problem: Problem, architecture: str) -> str:
    """What the cards of a step's file are kept under; they show source lines, so a comment counts, too."""
    finders = [Path(__file__), Path(__file__).with_name("tasks.py")]
    return cache.key([*finders, path], str(path.resolve()), problem.shape(), architecture, text=True)


def _add_traffic(task: messages.Card, found: list[CodeCard], stop: threading.Event | None) -> None:
    """Give each card its kernel's ``traffic``, from a trace; what cannot be traced has none."""
    problem = trace.reduced(problems.from_shape(task.ladder, task.shape))
    tracing = Trace(path=task.path, ladder=task.ladder, step=task.step, shape=problem.shape())
    result = next((result for _, result in isolate.run([tracing], True, TRACE_SECONDS, stop)), None)
    figures = trace.traffic(result["trace"]) if result and "trace" in result else {}
    for card in found:
        card["traffic"] = figures.get(card["kernel"], {})


class CardsBeside:
    """Makes cards for this GPU in the background; calling it waits for them.

    It gives a sentence in their place when machine code cannot be had.
    """

    def __init__(self, pairs: list[tuple[Step, str]]) -> None:
        self._stop = threading.Event()
        pool = ThreadPoolExecutor(1)
        # beside the checks, which take the other processors
        workers = max(1, device.workers() // 4)
        self._future = pool.submit(lambda: list(cards(pairs, card_architecture(), None, None, workers, self._stop)))
        pool.shutdown(wait=False)

    def __call__(self) -> list[Outcome] | str:
        try:
            return self._future.result()
        except ToolError as error:
            return str(error)

    def cancel(self) -> None:
        """They are not wanted any more: tracing a kernel that does not end would keep the program from ending."""
        self._stop.set()


def measure(
    pairs: list[tuple[Step, str]],
    file: Path | None = None,
    libraries: Iterable[str] = (),
    ceilings: bool = False,
    quick: bool = False,
) -> Generator[tuple[str, Any], None, None]:
    """Measure on the GPU.

    Yields in order: ``("ceilings", result)`` if asked for; ``("step", Outcome)`` of each (step, preset), preset by
    preset; ``("library", (preset, result))`` for cuBLAS or cuDNN on each of ``libraries``; once more a step that was
    timed while the clock was far below that of most; and a step that requires another GPU, as refused with the
    reason. ``quick``: at most QUICK_SECONDS of launches for a step, and none in turn with a library. Needs a GPU.
    """
    device.require_gpu("timing")
    left_out = [pair for pair in pairs if beyond(pair[0])]
    pairs = [pair for pair in pairs if pair not in left_out]
    room = inspect_device()[1]
    if ceilings:
        ((_, found),) = isolate.run([messages.Ceilings(room_bytes=room)], False, TIME_SECONDS)
        yield "ceilings", found
    timed: list[tuple[messages.Time, Timing]] = []  # of FP32 rows, whose clock does not follow their heat
    for preset in dict.fromkeys(preset for _, preset in pairs):
        steps = {step.name: step for step, name in pairs if name == preset}
        tasks = [
            messages.Time(
                **at(step, problems.preset(preset), file), preset=preset, kernels=str(kernelcache.FOLDER),
                beside="" if quick else _beside(step, problems.preset(preset)), room_bytes=room,
                most_seconds=QUICK_SECONDS if quick else timing.MAX_SECONDS,
            )
            for step in steps.values()
        ]  # fmt: skip
        for task, (_, result) in zip(tasks, isolate.run(tasks, False, TIME_SECONDS), strict=False):
            outcome = _timed(steps[task.step], task, result)
            if "timing" in result and not _beside(outcome.step, outcome.problem):
                timed.append((task, result["timing"]))
            yield "step", outcome
    for preset in libraries:
        problem = problems.preset(preset)
        peer = messages.Peer(ladder=problem.ladder, shape=problem.shape(), preset=preset, room_bytes=room)
        ((_, library),) = isolate.run([peer], False, TIME_SECONDS)
        yield "library", (preset, library)
    slow = clocks.slow([timing.sm_mhz for _, timing in timed])
    again = [task for (task, _), behind in zip(timed, slow, strict=True) if behind]
    for task, (_, result) in zip(again, isolate.run(again, False, TIME_SECONDS), strict=False):
        yield "step", _timed(catalog.find(task.step), task, result)
    for step, preset in left_out:
        refused: StepResult = {"status": "refused", "message": beyond(step), "requires": step.requires}
        yield "step", Outcome(step, problems.preset(preset), preset, refused)


def _timed(step: Step, task: messages.Time, result: StepResult) -> Outcome:
    """The outcome at the size that ran, which may be smaller than the preset's."""
    shape = result.get("shape") or problems.preset(task.preset).shape()
    return Outcome(step, problems.from_shape(step.ladder, shape), task.preset, result)


def latest(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Without those that were timed again (:func:`measure`), in their order."""
    return list({(outcome.step.name, outcome.preset): outcome for outcome in outcomes}.values())


def time_steps(pairs: list[tuple[Step, str]], file: Path | None = None) -> Iterator[Outcome]:
    """Check at full size and time each (step, preset), preset by preset; needs a GPU."""
    yield from (outcome for _, outcome in measure(pairs, file))


class Preparing:
    """Compiles the kernels of steps for this GPU in other processes and keeps them, without touching the GPU.

    Whoever needs a kernel that is being compiled waits for it; what cannot be prepared is compiled where it runs.
    """

    def __init__(self, wanted: dict[Step, list[Problem]], gpu: device.Gpu) -> None:
        processors = device.processors()
        self._stop = threading.Event()
        cache.prune(kernelcache.FOLDER)
        groups = [
            [
                messages.Prepare(
                    path=str(step.path), ladder=step.ladder, step=step.name, device=gpu,
                    shapes=[problem.shape() for problem in needed], kernels=str(kernelcache.FOLDER),
                )
            ]
            for step, needed in wanted.items()
            if not beyond(step)
        ]  # fmt: skip
        # while kernels are timed, a processor is left for them
        workers = max(1, device.workers() * 3 // 4)
        pool = ThreadPoolExecutor(1)
        self._future = pool.submit(self._run, groups, workers)
        pool.shutdown(wait=False)
        self._few = processors <= FEW_PROCESSORS

    def _run(self, groups: list[list[messages.Prepare]], workers: int) -> int:
        results = isolate.run_groups(groups, False, COMPILE_SECONDS, workers, self._stop)
        return sum(result.get("kept", 0) for _, result in results)

    def before_timing(self) -> None:
        """Where processors are few, compiling would disturb what is timed: wait for it."""
        if self._few:
            self._future.result()

    def cancel(self) -> None:
        self._stop.set()


def measure_device() -> tuple[device.Gpu, Ceilings]:
    """The GPU's description and its measured ceilings.

    Raises NoGpuError without a GPU, DeviceError if the measurement fails.
    """
    device.require_gpu("measuring the ceilings")
    (_, result), *_ = isolate.run([messages.Ceilings(room_bytes=inspect_device()[1])], False, TIME_SECONDS)
    if result["status"] != "right":
        raise DeviceError(f"the GPU could not be measured: {result['message']}")
    return result["gpu"], result["ceilings"]


def measure_accuracy(steps: list[Step]) -> messages.AccuracyResult:
    """The errors of steps on matrices, and of cuBLAS, on this machine's GPU; raises as :func:`measure_device` does.

    A step that requires another GPU is left out.
    """
    device.require_gpu("measuring errors")
    files = {step.name: str(step.path) for step in steps if not beyond(step)}
    ((_, result),) = isolate.run([messages.Accuracy(files=files)], False, TIME_SECONDS)
    if result["status"] != "right":
        raise DeviceError(f"the errors could not be measured: {result['message']}")
    return result


def measure_epilogues(
    convolutions: list[tuple[str, str, str]],
) -> Iterator[tuple[Step, str, messages.EpiloguesResult]]:
    """The times of a step, by name, on a preset with each epilogue of a module, as they come in.

    Raises as :func:`measure_device` does. A step that requires another GPU is left out.
    """
    device.require_gpu("timing epilogues")
    for name, preset, ways in convolutions:
        step = catalog.find(name)
        if beyond(step):
            continue
        shape = problems.preset(preset).shape()
        task = messages.Epilogues(
            path=str(step.path), ladder=step.ladder, shape=shape, ways=ways, preset=preset,
            room_bytes=inspect_device()[1],
        )  # fmt: skip
        ((_, result),) = isolate.run([task], False, TIME_SECONDS)
        if result["status"] != "right":
            raise DeviceError(f"{name} on {preset}: the epilogues could not be timed: {result['message']}")
        yield step, preset, result


def describe_device() -> device.Gpu:
    """What this machine's GPU is; raises as :func:`measure_device` does."""
    return inspect_device()[0]


@functools.cache
def inspect_device() -> tuple[device.Gpu, int]:
    """What this machine's GPU is, and the bytes that a problem may take, worked out once in this program.

    Raises as :func:`measure_device` does.
    """
    device.require_gpu("describing the GPU")
    ((_, result),) = isolate.run([messages.Device()], False, CHECK_SECONDS)
    if result["status"] != "right":
        raise DeviceError(f"the GPU could not be used: {result['message']}")
    return result["gpu"], result["room_bytes"]


def tunables(step: Step, preset: str) -> messages.TunablesResult:
    """``tunables``, ``shipped`` and ``source`` of a step on a preset. Raises ValueError if it has none."""
    task = messages.Tunables(**at(step, problems.preset(preset)))
    ((_, result),) = isolate.run([task], False, CHECK_SECONDS)
    if result["status"] != "right":
        raise ValueError(f"{step.name}: {result['message']}")
    if not result["tunables"]:
        raise ValueError(f"{step.name}: has no TUNABLES to sweep")
    return result


def combinations(tunables: dict[str, list[int]]) -> list[messages.Tile]:
    """Every combination of the tunables' values."""
    names = list(tunables)
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*tunables.values())]


def narrowed(tunables: dict[str, list[int]], shipped: messages.Tile, text: str | None) -> dict[str, list[int]]:
    """The values to sweep: all tunables, or those that ``text`` (``"NAME=1,2 ..."``) names, the rest as shipped.

    Raises ValueError naming a word that is not of that form or a constant the step does not have.
    """
    if text is None:
        return tunables
    values = {name: [value] for name, value in shipped.items()}
    named: set[str] = set()
    for word in text.split():
        name, _, numbers = word.partition("=")
        if name in named:
            raise ValueError(f"--values {word!r}: {name} is given twice")
        named.add(name)
        if name not in tunables:
            raise ValueError(f"--values {word!r}: {name} is no tunable of this step: it has {', '.join(tunables)}")
        try:
            values[name] = list(dict.fromkeys(int(number) for number in numbers.split(",")))
        except ValueError:
            raise ValueError(f"--values {word!r}: must be {name}=INTEGER,INTEGER,...") from None
    if not named:
        raise ValueError(f"--values {text!r}: must name a tunable of this step: it has {', '.join(tunables)}")
    return values


def sweep(step: Step, preset: str, tiles: list[messages.Tile]) -> Iterator[tuple[messages.Tile, StepResult]]:
    """Check and time a step with each tile; needs a GPU."""
    device.require_gpu("a sweep")
    place, room = at(step, problems.preset(preset)), inspect_device()[1]
    tasks = [messages.Sweep(**place, tile=tile, kernels=str(kernelcache.FOLDER), room_bytes=room) for tile in tiles]
    for tile, (_, result) in zip(tiles, isolate.run(tasks, False, TIME_SECONDS), strict=False):
        yield tile, result


@dataclass(frozen=True)
class Profiled:
    """Hardware counters of a step's kernels on a preset, and the shape and the code that were launched."""

    step: Step
    preset: str
    kernels: list[profiler.Counters]
    shape: dict[str, int]
    code: Code


def profile_steps(pairs: list[tuple[Step, str]]) -> list[Profiled]:
    """Each pair, launched once under ncu.

    Raises NoGpuError without a GPU, ProfileError when the counters cannot be read, TimeoutError.
    """
    device.require_gpu("profiling")
    room = inspect_device()[1]
    # without the tool, which would count these launches, too
    sizes = [messages.Size(**at(step, problems.preset(preset)), room_bytes=room) for step, preset in pairs]
    tasks = []
    for (step, _), (_, size) in zip(pairs, isolate.run(sizes, False, TIME_SECONDS), strict=False):
        if size["status"] != "right":
            raise profiler.ProfileError(f"{step.name}: {size['message']}")
        tasks.append(messages.Launch(**at(step, problems.from_shape(step.ladder, size["shape"]))))
    profiles = []
    for (step, preset), (result, read) in zip(pairs, profiled(tasks), strict=True):
        problem = problems.from_shape(step.ladder, result["shape"])
        tensor = catalog.on_tensor_cores(step, problem)
        launched = zip(result["kernels"], read, strict=True)
        kernels = [profiler.named(name, launch, problem, tensor) for name, launch in launched]
        code = Code(source=result["source"], helpers=result["helpers"])
        profiles.append(Profiled(step, preset, kernels, result["shape"], code))
    return profiles


def profiled(
    tasks: Sequence[messages.Launch], counters: dict[str, str] = profiler.METRICS
) -> list[tuple[messages.LaunchResult, list[profiler.Launch]]]:
    """Launch all in one process under ncu; each one's result, and what ncu read of its kernels.

    Raises ProfileError naming the first that failed, or of whose kernels ncu has not read each, and TimeoutError.
    """
    command = profiler.command(None if counters is profiler.METRICS else counters)
    results, output = isolate.watched(tasks, command, _watched_seconds(len(tasks)))
    profiler.require_permission(output)
    for task, result in zip(tasks, results, strict=False):
        if result["status"] != "right":
            raise profiler.ProfileError(f"{task.step}: {result['message']}")
    if len(results) < len(tasks):
        said = " ".join(output.split())[-300:] or "no output"
        raise profiler.ProfileError(f"{tasks[len(results)].step}: the profiled process ended early: {said}")
    found = iter(profiler.parse(output, counters))
    read = [list(itertools.islice(found, len(result["kernels"]))) for result in results]
    for task, result, mine in zip(tasks, results, read, strict=True):
        if not mine or len(mine) < len(result["kernels"]):
            raise profiler.ProfileError(f"{task.step}: ncu read {len(mine)} of {len(result['kernels'])} kernels")
    return list(zip(results, read, strict=True))


def _watched_seconds(steps: int) -> float:
    return min(WATCHED_SECONDS, WATCHED_START + WATCHED_EACH * steps)


def sanitize_steps(steps: list[Step]) -> Iterator[tuple[str, Step, int, str]]:
    """Tool, step, number of errors and the first report, for every tool of compute-sanitizer over ragged shapes.

    Raises NoGpuError without a GPU, SanitizerError when a tool does not run, TimeoutError.
    """
    device.require_gpu("the sanitizer run")
    with ThreadPoolExecutor(len(sanitizer.TOOLS)) as pool:
        # most of the time is compilation, so the tools run side by side
        totals = list(pool.map(lambda tool: _sanitize(tool, steps)[0], sanitizer.TOOLS))
    for tool, total in zip(sanitizer.TOOLS, totals, strict=True):
        for step in steps:
            # all at once is quick; only errors are traced to their step
            count, report = _sanitize(tool, [step]) if total else (0, "")
            yield tool, step, count, report


def _sanitize(tool: str, steps: list[Step]) -> tuple[int, str]:
    tasks = [messages.Launch(**at(step, shape)) for step in steps for shape in problems.RAGGED[step.ladder]]
    results, output = isolate.watched(tasks, sanitizer.command(tool), _watched_seconds(len(steps)))
    failed = [r for r in results if r["status"] not in ("right", "refused")]
    count = sanitizer.errors(output)  # a tool that did not start has no summary, and found nothing in the steps
    if failed or len(results) < len(tasks):
        message = failed[0]["message"] if failed else "the process ended early"
        if not count and len(steps) == 1:  # what the tool has nothing against, it has not seen
            raise sanitizer.SanitizerError(f"{steps[0].name}: {tool}: {message}")
        return max(1, count), f"{message}; {sanitizer.first_report(output)}"
    return count, sanitizer.first_report(output) if count else ""


def convolve(step: Step, x_file: Path, filt_file: Path, y_file: Path, simulator: bool) -> Outcome:
    """Run a conv2d step on operands saved as .npy files and save its output."""
    task = messages.Maps(
        path=str(step.path), ladder="conv2d", step=step.name, x=str(x_file), filt=str(filt_file), y=str(y_file)
    )
    ((_, result),) = isolate.run([task], simulator, TIME_SECONDS)
    return Outcome(step, problems.preset("photo"), "photo", result)


def explain(step: Step, problem: Problem, simulator: bool) -> str:
    """What a step says it would do for a problem, and why. Raises ValueError if it cannot."""
    ((_, result),) = isolate.run([messages.Explain(**at(step, problem))], simulator, TIME_SECONDS)
    if result["status"] != "right":
        raise ValueError(str(result["message"]))
    return str(result["text"])
