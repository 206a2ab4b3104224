"""What is measured on the GPU: steps, libraries, ceilings, errors, sweeps; under profilers and sanitizers."""

import itertools
import statistics
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from common.catalog import catalog, device, problems
from common.catalog.catalog import Step
from common.catalog.problems import Problem
from common.check import run
from common.check.run import TIME_SECONDS, beyond
from common.machine_code import successor
from common.run import isolate, messages
from common.run.messages import Outcome, StepResult, at
from common.timing import tasks as timetasks
from common.timing import tools
from common.timing.ceilings import Ceilings

Pairs = list[tuple[Step, str]]  # steps on presets

QUICK_SECONDS, SWEEP_SECONDS = 1.0, 1.0  # of launches, at most
SLOW = 0.9  # of the median clock of a run's rows: below it, a row's time is not to be compared
WATCHED_SECONDS = 550.0  # under a profiler or sanitizer, if there are so many launches that it is not less:
WATCHED_START, WATCHED_EACH = 90.0, 45.0  # for the process, and for each launch


def measure(
    pairs: Pairs, file: Path | None = None, quick: bool = False, ready: Callable[[Step], object] | None = None
) -> Generator[Outcome, None, None]:
    """Check at full size and time each (step, preset), preset by preset, on the GPU; once more a step that was timed
    while the clock was far below that of most; a step that requires another GPU comes last, refused with the reason.
    ``quick``: at most QUICK_SECONDS of launches for a step, and none in turn with a library. ``ready`` waits for a
    step's kernels."""
    outcomes: list[Outcome] = []
    for outcome in _timed([pair for pair in pairs if not beyond(pair[0])], file, quick, ready):
        outcomes.append(outcome)
        yield outcome
    yield from _timed(at_a_low_clock(outcomes), file, quick)
    for step, preset in pairs:
        if why := beyond(step):
            refused = StepResult(status="refused", message=why, requires=step.requires)
            yield Outcome.of(step, problems.preset(preset), preset, refused)


def library(preset: str) -> StepResult:
    """The rows of cuBLAS or cuDNN on a preset, and what they lack."""
    problem = problems.preset(preset)
    ((_, found),) = isolate.run([messages.Peer(ladder=problem.ladder, shape=problem.shape())], False, TIME_SECONDS)
    return found


def _timed(
    pairs: Pairs, file: Path | None, quick: bool, ready: Callable[[Step], object] | None = None
) -> Iterator[Outcome]:
    presets = list(dict.fromkeys(preset for _, preset in pairs))
    pairs = sorted(pairs, key=lambda pair: presets.index(pair[1]))

    def tasks() -> Iterator[messages.Time]:
        for step, preset in pairs:
            if ready:
                ready(step)
            problem = problems.preset(preset)
            how: dict[str, Any] = {"most_seconds": QUICK_SECONDS} if quick else {"beside": _beside(step, problem)}
            yield messages.Time(**at(step, problem, file), preset=preset, **how)

    return _outcomes(pairs, tasks())


def _outcomes(pairs: Pairs, tasks: Iterable[messages.Task[StepResult]]) -> Iterator[Outcome]:
    """What came of each pair's task, with the size that ran, which may be smaller than the preset's."""
    results = isolate.run(tasks, False, TIME_SECONDS)
    for (step, preset), (_, result) in zip(pairs, results, strict=False):
        shape = result.shape or problems.preset(preset).shape()
        yield Outcome.of(step, problems.from_shape(step.ladder, shape), preset, result)


def at_a_low_clock(outcomes: list[Outcome]) -> Pairs:
    """Which FP32 steps, whose clock does not follow their heat, were timed at a clock far below that of most."""
    fp32 = [one for one in outcomes if one.timing is not None and not _beside(one.step, one.problem)]
    clocks = [(one, one.time.sm_mhz) for one in fp32 if one.time.sm_mhz]
    median = statistics.median(mhz for _, mhz in clocks) if clocks else 0
    return [(one.step, one.preset or "") for one, mhz in clocks if mhz < SLOW * median]


def latest(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Without those that were timed again (:func:`measure`), in their order."""
    return list({(outcome.step.name, outcome.preset): outcome for outcome in outcomes}.values())


def _beside(step: Step, problem: Problem) -> str:
    """In which precision a step is timed in turn with the library; empty: it is not. FP32 times agree from run to
    run, those of tensor cores follow the card's heat: only a ratio holds."""
    return step.precision if catalog.on_tensor_cores(step, problem) else ""


def measure_device() -> tuple[device.Gpu, Ceilings]:
    """The GPU's description and its measured ceilings; raises NoGpuError, and DeviceError if it fails."""
    device.require_gpu("measuring the ceilings")
    return run.ask("the GPU could not be measured", timetasks.ceilings)


def time_compilers(pairs: Pairs) -> Iterator[Outcome]:
    """Each step on its preset by both compilers, each checked before: an outcome's ``pairs`` has numba-cuda's time
    first. Raises ToolError without the successor or for a step that is not right by both."""
    try:
        successor.version()
    except successor.CompilerError as error:
        raise tools.UnavailableError(str(error)) from None
    rivals = {step: messages.Rival(path=str(step.path), compiler=device.NUMBA_CUDA) for step, _ in pairs}
    tasks = [
        messages.Pair(
            **at(step, problems.preset(preset)), compiler=device.MLIR, against={device.NUMBA_CUDA: rivals[step]}
        )
        for step, preset in pairs
    ]
    for outcome in _outcomes(pairs, tasks):
        if outcome.pairs is None:
            why = "; ".join(outcome.reasons) or "of another size by one of them"
            raise tools.ToolError(f"{outcome.step.name}: {why}")
        yield outcome


def tiles(tunables: dict[str, list[int]], shipped: messages.Tile, text: str | None) -> list[messages.Tile]:
    """Every combination of the tunables' values; with ``text`` (``"NAME=1,2 ..."``) of those that it names, the rest
    as shipped. Raises ValueError if it is not of that form, or names what the step does not have."""
    values: dict[str, list[int]] = tunables
    if text is not None:
        try:
            words = dict(word.split("=") for word in text.split())
            named = {name: list(dict.fromkeys(map(int, numbers.split(",")))) for name, numbers in words.items()}
        except ValueError:
            raise ValueError(f"--values {text!r}: must be NAME=INTEGER,INTEGER,... for each") from None
        if not named or named.keys() - tunables.keys():
            raise ValueError(f"--values {text!r}: must name a tunable of this step: it has {', '.join(tunables)}")
        values = {name: [value] for name, value in shipped.items()} | named
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]


def sweep(step: Step, preset: str, tiles: list[messages.Tile]) -> Iterator[tuple[messages.Tile, StepResult]]:
    """Check and time a step with each tile."""
    place = at(step, problems.preset(preset))
    tasks = [messages.Pair(**place, tile=tile, alone=True, most_seconds=SWEEP_SECONDS) for tile in tiles]
    for tile, (_, result) in zip(tiles, isolate.run(tasks, False, TIME_SECONDS), strict=False):
        yield tile, result


def profile_steps(pairs: Pairs) -> list[tuple[Outcome, list[tools.Counters]]]:
    """Each pair, launched once under ncu, with its kernels' counters. Raises ToolError, TimeoutError."""
    # without the tool, which would count these launches, too
    sizes = [messages.Size(**at(step, problems.preset(preset))) for step, preset in pairs]
    tasks = []
    for size in _outcomes(pairs, sizes):
        if size.status != "right":
            raise tools.ToolError(f"{size.step.name}: {size.message}")
        tasks.append(messages.Launch(**at(size.step, size.problem)))
    profiles = []
    for (step, preset), task, (result, read) in zip(pairs, tasks, profiled(tasks), strict=True):
        tensor = catalog.on_tensor_cores(step, task.problem)
        kernels = [tools.named(*one, task.problem, tensor) for one in zip(result.launched, read, strict=True)]
        profiles.append((Outcome.of(step, task.problem, preset, result), kernels))
    return profiles


def profiled(
    tasks: Sequence[messages.Launch], counters: dict[str, str] = tools.PROFILED
) -> list[tuple[StepResult, list[tools.Launch]]]:
    """Launch all in one process under ncu; each one's result, and what ncu read of its kernels. Raises ToolError
    naming the first that failed, or of whose kernels ncu has not read each, and TimeoutError."""
    results, output = _watched(tasks, tools.ncu(counters))
    for task, result in itertools.zip_longest(tasks, results):
        if result is None or result.status != "right":
            early = " ".join(output.split())[-300:] or "no output"
            said = result.message if result else f"the profiled process ended early: {early}"
            raise tools.ToolError(f"{task.step}: {said}")
    launches, read = iter(tools.parse(output, counters)), []
    for task, result in zip(tasks, results, strict=True):
        read.append((result, list(itertools.islice(launches, len(result.launched)))))
        if not 0 < len(result.launched) == len(read[-1][1]):
            raise tools.ToolError(f"{task.step}: ncu read {len(read[-1][1])} of {len(result.launched)} kernels")
    return read


def _watched(tasks: Sequence[messages.Launch], command: list[str]) -> tuple[list[StepResult], str]:
    return isolate.watched(tasks, command, min(WATCHED_SECONDS, WATCHED_START + WATCHED_EACH * len(tasks)))


def sanitize_steps(steps: list[Step]) -> Iterator[tuple[str, Step, int, str]]:
    """Tool, step, number of errors and the first report, for every tool of compute-sanitizer over ragged shapes.
    Raises ToolError when a tool does not run, TimeoutError."""
    for tool in tools.TOOLS:
        total, _ = _sanitize(tool, steps)
        for step in steps:
            # all at once is quick; only errors are traced to their step
            count, report = _sanitize(tool, [step]) if total else (0, "")
            yield tool, step, count, report


def _sanitize(tool: str, steps: list[Step]) -> tuple[int, str]:
    tasks = [messages.Launch(**at(step, shape)) for step in steps for shape in problems.RAGGED[step.ladder]]
    results, output = _watched(tasks, tools.sanitizer(tool))
    failed = [result for result in results if result.status not in ("right", "refused")]
    count = tools.errors(output)  # a tool that did not start has no summary, and found nothing in the steps
    if failed or len(results) < len(tasks):
        message = str(failed[0].message) if failed else "the process ended early"
        if not count and len(steps) == 1:  # what the tool has nothing against, it has not seen
            raise tools.ToolError(f"{steps[0].name}: {tool}: {message}")
        return max(1, count), f"{message}; {tools.first_report(output)}"
    return count, tools.first_report(output) if count else ""
