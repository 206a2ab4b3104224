"""What is run: checks, timings, compilations and the whole bench, each as tasks for child processes."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import catalog, check, device, isolate, problems, profiler, records, sanitizer
from common.catalog import Step
from common.code import cardcache, occupancy
from common.isolate import Result, Task
from common.problems import Problem
from common.records import Record
from common.tracing import trace

CHECK_SECONDS = 120.0
TIME_SECONDS = 180.0
TRACE_SECONDS = 60.0
COMPILE_SECONDS = 180.0
EXPLAIN_SECONDS = 20.0
EXPLAIN_FLOPS = 1e6  # more is too slow in the simulator
WATCHED_SECONDS = 550.0  # all steps under a profiler or sanitizer
CODE_ARCHITECTURE = "9.0"

# The preset a step is timed on unless another is asked for.
DEFAULT_PRESET = {"gemm": "gemm-4096", "conv2d": "ece408-layer1", "conv3d": "c3d-conv3a"}


@dataclass(frozen=True)
class Outcome:
    """The result of one task on one step: ``result["status"]`` is right, wrong, refused, unusable, crashed or
    timed_out."""

    step: Step
    problem: Problem
    preset: str | None
    result: Result

    @property
    def status(self) -> str:
        return str(self.result["status"])

    @property
    def faults(self) -> list[dict[str, Any]]:
        """What explains it: dictionaries of :class:`common.faults.Fault`, perhaps none."""
        return list(self.result.get("faults", []))

    @property
    def reasons(self) -> list[str]:
        """One line per finding, or what stopped the task."""
        findings = [f"{item['kind']}: {item['message']}" for item in self.result.get("findings", [])]
        message = self.result.get("message")
        return findings + ([f"{self.status}: {message}"] if message else [])


# Faults whose line is that of the launch, not of what went wrong.
_UNPLACED = {"illegal-address", "misaligned", "launch-failed", "watchdog"}


class DeviceError(RuntimeError):
    """The GPU could not be measured."""


class ToolError(RuntimeError):
    """NVIDIA's assembler or disassembler is not installed."""


def check_steps(
    steps: list[Step], simulator: bool, shape: Problem | None = None, file: Path | None = None
) -> Iterator[Outcome]:
    """Check each step at its ladder's ragged shapes (or at ``shape``), in child processes.

    ``file`` is checked in the step's place.
    """
    groups = []
    shapes: list[Problem] = []
    owners: list[Step] = []
    for step in steps:
        wanted = (shape,) if shape else problems.RAGGED[step.ladder]
        groups.append(
            [
                # the simulator has no races to catch by repeating
                {**_task("check", step, file, problem), "repeats": 1 if simulator else check.REPEATS}
                for problem in wanted
            ]
        )
        shapes += wanted
        owners += [step] * len(wanted)
    # on a GPU compiling takes the time, and that is the host's work
    workers = (os.cpu_count() or 1) if simulator else max(1, min(6, (os.cpu_count() or 1) // 2))
    results = isolate.run_groups(groups, simulator, CHECK_SECONDS, workers)
    told: set[str] = set()
    for step, problem, (task, result) in zip(owners, shapes, results, strict=True):
        if not simulator and step.name not in told and result["status"] in ("wrong", "crashed", "timed_out"):
            told.add(step.name)
            retell(task, problem, result)
        yield Outcome(step, problem, None, result)


def retell(task: Task, problem: Problem, result: Result) -> None:
    """Run a task that failed on a GPU again in the simulator, for what only that tells (:func:`add_faults`)."""
    if wants_simulator(result):
        small = problem if problem.flops <= EXPLAIN_FLOPS else problems.FIRST[problem.ladder]
        again = {**task, "task": "check", "shape": small.shape(), "repeats": 1}
        ((_, seen),) = isolate.run([again], True, EXPLAIN_SECONDS)
        add_faults(result, seen, small)


def wants_simulator(result: Result) -> bool:
    """A typing error, or a launch beyond the limits, names its line already; other failures do not."""
    kinds = {fault["kind"] for fault in result.get("faults", [])}
    return result["status"] in ("wrong", "timed_out") or (
        result["status"] == "crashed" and bool(not kinds or kinds & _UNPLACED)
    )


def add_faults(result: Result, seen: Result, small: Problem) -> None:
    """Put the faults that ``seen``, a run in the simulator at ``small``, has a line for before the result's own."""
    found = [fault for fault in seen.get("faults", []) if fault["line"]]
    told = {(fault["kind"], fault["line"]) for fault in found}
    rest = [fault for fault in result.get("faults", []) if (fault["kind"], fault["line"]) not in told]
    found = [{**fault, "what": f"in the simulator, at {small}: {fault['what']}"} for fault in found]
    result["faults"] = found + [fault for fault in rest if fault["kind"] not in _UNPLACED or not found]


def compile_steps(
    steps: list[Step],
    architectures: tuple[str, ...],
    machine_code: bool,
    file: Path | None = None,
    preset: str | None = None,
    every_preset: bool = False,
) -> Iterator[Outcome]:
    """Compile every kernel of each step, without a GPU, for a preset or its ladder's; or for all that are timed."""
    presets = [preset or DEFAULT_PRESET[step.ladder] for step in steps]
    groups: list[list[dict[str, Any]]] = []
    for step, name in zip(steps, presets, strict=True):
        others = [other for other in problems.timed_presets(step.ladder) if other != name]
        extra = {
            "architectures": list(architectures),
            "machine_code": machine_code,
            # a bench times an experiment on its ladder's default only
            "others": {n: problems.preset(n).shape() for n in others} if every_preset and not step.experiment else {},
        }
        groups.append([{**_task("compile", step, file, problems.preset(name)), **extra}])
    results = isolate.run_groups(groups, False, COMPILE_SECONDS, os.cpu_count() or 1)
    for step, name, (_, result) in zip(steps, presets, results, strict=True):
        yield Outcome(step, problems.preset(name), name, result)


def card_architecture() -> str:
    """The compute capability that cards are for unless another is named: this GPU's, if its limits are known."""
    found = device.compute_capability()
    return found if found in occupancy.LIMITS else CODE_ARCHITECTURE


def cards(
    pairs: list[tuple[Step, str]],
    architecture: str,
    file: Path | None = None,
    show: str | None = None,
    workers: int = 1,
    stop: threading.Event | None = None,
) -> Iterator[Outcome]:
    """``result["cards"]``: a card for every kernel of each (step, preset), without a GPU; kept cards are not remade.

    ``file`` stands in the step's place. With ``show`` ("ptx" or "sass") each card has the ``text`` of that; PTX comes
    alone. What is not made when ``stop`` is set is left out. Raises ToolError when machine code cannot be had.
    """
    kept: dict[int, Result] = {}
    groups: list[list[Task]] = [[] for _ in range(workers)]
    for number, (step, preset) in enumerate(pairs):
        problem = problems.preset(preset)
        entry = cardcache.entry(file or step.path, problem, architecture)
        found = None if show else cardcache.load(entry)
        if found is not None:
            kept[number] = {"status": "right", "cards": found}
            continue
        extra = {"architecture": architecture, "show": show, "number": number, "entry": str(entry)}
        groups[number % workers].append({**_task("card", step, file, problem), **extra})
    waiting = [group for group in groups if group]
    for task, result in isolate.run_groups(waiting, False, COMPILE_SECONDS, workers, stop):
        if result.get("missing_tool"):
            raise ToolError(result["message"])
        files = result.pop("files", None)
        if result["status"] == "right" and not show:
            _add_traffic(task, result["cards"], stop)
            if stop and stop.is_set():
                break  # perhaps without a trace: not kept
            cardcache.store(Path(task["entry"]), result["cards"], files)
        kept[task["number"]] = result
    for number, (step, preset) in enumerate(pairs):
        if number in kept:
            yield Outcome(step, problems.preset(preset), preset, kept[number])


def _add_traffic(task: Task, found: list[dict[str, Any]], stop: threading.Event | None) -> None:
    """Give each card its kernel's ``traffic``, from a trace; what cannot be traced has none."""
    problem = trace.reduced(problems.from_shape(task["ladder"], task["shape"]))
    tracing = {**task, "task": "trace", "shape": problem.shape(), "options": {}}
    result = next((result for _, result in isolate.run([tracing], True, TRACE_SECONDS, stop)), {})
    figures = trace.traffic(result["trace"]) if "trace" in result else {}
    for card in found:
        card["traffic"] = figures.get(card["kernel"], {})


class CardsBeside:
    """Makes cards for this GPU in the background; calling it waits for them.

    It gives a sentence in their place when machine code cannot be had.
    """

    def __init__(self, pairs: list[tuple[Step, str]]) -> None:
        self._stop = threading.Event()
        pool = ThreadPoolExecutor(1)
        self._future = pool.submit(lambda: list(cards(pairs, card_architecture(), stop=self._stop)))
        pool.shutdown(wait=False)

    def __call__(self) -> list[Outcome] | str:
        try:
            return self._future.result()
        except ToolError as error:
            return str(error)

    def cancel(self) -> None:
        """They are not wanted any more: tracing a kernel that does not end would keep the program from ending."""
        self._stop.set()


def record_code(outcomes: list[Outcome]) -> None:
    """Write compiled outcomes (for one architecture, with machine code) as the machine-code record."""
    steps = records.load_code()["steps"]
    for outcome in outcomes:
        steps[outcome.step.name] = {
            "preset": outcome.preset,
            "source": outcome.result["source"],
            "helpers": outcome.result["helpers"],
            "kernels": _without_float64(outcome.result["kernels"]),
            "other_presets": {k: _without_float64(v) for k, v in outcome.result["other_presets"].items()},
        }
    known = {step.name for step in (*catalog.steps(), *catalog.experiments())}
    steps = {name: value for name, value in steps.items() if name in known}
    tools = ("numba-cuda", "nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12", "nvidia-cuda-nvdisasm")
    records.save_code(steps, records.package_versions(tools))


def _without_float64(kernels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in kernel.items() if key != "float64"} for kernel in kernels]


def time_steps(pairs: list[tuple[Step, str]], file: Path | None = None) -> Iterator[Outcome]:
    """Check at full size and time each (step, preset), one process per step; needs a GPU."""
    device.require_gpu("timing")
    groups: dict[str, list[tuple[Step, str]]] = {}
    for step, preset in pairs:
        groups.setdefault(step.name, []).append((step, preset))
    ordered = [pair for group in groups.values() for pair in group]
    tasks = [[_task("time", step, file, problems.preset(preset)) for step, preset in g] for g in groups.values()]
    results = isolate.run_groups(tasks, False, TIME_SECONDS)
    for (step, preset), (_, result) in zip(ordered, results, strict=True):
        problem = problems.from_shape(step.ladder, result.get("shape", problems.preset(preset).shape()))
        yield Outcome(step, problem, preset, result)


def measure_device() -> tuple[dict[str, Any], str, dict[str, Any]]:
    """The GPU's description, its slug and its measured ceilings.

    Raises NoGpuError without a GPU, DeviceError if the measurement fails.
    """
    device.require_gpu("measuring the ceilings")
    (_, result), *_ = isolate.run([{"task": "ceilings"}], False, TIME_SECONDS)
    if result["status"] != "right":
        raise DeviceError(f"the GPU could not be measured: {result['message']}")
    return result["gpu"], device.Gpu(**result["gpu"]).slug, result["ceilings"]


def describe_device() -> device.Gpu:
    """What this machine's GPU is; raises as :func:`measure_device` does."""
    device.require_gpu("describing the GPU")
    ((_, result),) = isolate.run([{"task": "device"}], False, CHECK_SECONDS)
    if result["status"] != "right":
        raise DeviceError(f"the GPU could not be used: {result['message']}")
    return device.Gpu(**result["gpu"])


def time_peers(presets: list[str]) -> Iterator[tuple[str, Result]]:
    """cuBLAS or cuDNN on each preset, a result with ``rows`` each; needs a GPU and PyTorch."""
    tasks = [{"task": "peer", "ladder": p.ladder, "shape": p.shape()} for p in map(problems.preset, presets)]
    for preset, (_, result) in zip(presets, isolate.run(tasks, False, TIME_SECONDS), strict=True):
        yield preset, result


def tunables(step: Step, preset: str) -> dict[str, Any]:
    """``tunables``, ``shipped`` and ``source`` of a step on a preset. Raises ValueError if it has none."""
    ((_, result),) = isolate.run([_task("tunables", step, None, problems.preset(preset))], False, CHECK_SECONDS)
    if result["status"] != "right":
        raise ValueError(f"{step.name}: {result['message']}")
    if not result["tunables"]:
        raise ValueError(f"{step.name}: has no TUNABLES to sweep")
    return result


def combinations(tunables: dict[str, list[int]]) -> list[dict[str, int]]:
    """Every combination of the tunables' values."""
    names = list(tunables)
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*tunables.values())]


def narrowed(tunables: dict[str, list[int]], shipped: dict[str, int], text: str) -> dict[str, list[int]]:
    """The values to sweep: all tunables, or those that ``text`` (``"NAME=1,2 ..."``) names, the rest as shipped.

    Raises ValueError naming a word that is not of that form or a constant the step does not have.
    """
    if not text:
        return tunables
    values = {name: [value] for name, value in shipped.items()}
    for word in text.split():
        name, _, numbers = word.partition("=")
        if name not in tunables:
            raise ValueError(f"--values {word!r}: {name} is no tunable of this step: it has {', '.join(tunables)}")
        try:
            values[name] = [int(number) for number in numbers.split(",")]
        except ValueError:
            raise ValueError(f"--values {word!r}: must be {name}=INTEGER,INTEGER,...") from None
    return values


def sweep(step: Step, preset: str, tiles: list[dict[str, int]]) -> Iterator[tuple[dict[str, int], Result]]:
    """Check and time a step with each tile; needs a GPU."""
    device.require_gpu("a sweep")
    tasks = [{**_task("sweep", step, None, problems.preset(preset)), "tile": tile} for tile in tiles]
    for task, result in isolate.run(tasks, False, TIME_SECONDS):
        yield task["tile"], result


def profile_steps(pairs: list[tuple[Step, str]]) -> list[tuple[Step, str, dict[str, Any]]]:
    """Step, preset and ``{"kernels": [counters, ...], "source": ..., ...}`` of each pair, launched once under ncu.

    Raises NoGpuError without a GPU, ProfileError when the counters cannot be read.
    """
    device.require_gpu("profiling")
    tasks = [_task("launch", step, None, problems.preset(preset)) for step, preset in pairs]
    results, output = isolate.watched(tasks, profiler.command(), WATCHED_SECONDS)
    counters = iter(profiler.parse(output))
    profiles = []
    for (step, preset), result in zip(pairs, results, strict=False):
        if result["status"] != "right":
            raise profiler.ProfileError(f"{step.name} on {preset}: {result['message']}")
        kernels = [{**entry, "kernel": name} for name, entry in zip(result["kernels"], counters, strict=False)]
        kept = {key: result[key] for key in ("source", "helpers", "shape")}
        profiles.append((step, preset, {"kernels": kernels, **kept}))
    if len(profiles) < len(pairs):
        raise profiler.ProfileError(f"{pairs[len(profiles)][0].name}: the profiled process ended early")
    return profiles


def sanitize_steps(steps: list[Step]) -> Iterator[tuple[str, Step, int, str]]:
    """Tool, step, number of errors and the first report, for every tool of compute-sanitizer over ragged shapes.

    Raises NoGpuError without a GPU, SanitizerError when a tool does not run.
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
    tasks = [_task("launch", step, None, shape) for step in steps for shape in problems.RAGGED[step.ladder]]
    results, output = isolate.watched(tasks, sanitizer.command(tool), WATCHED_SECONDS)
    failed = [r for r in results if r["status"] not in ("right", "refused")]
    if failed or len(results) < len(tasks):
        message = failed[0]["message"] if failed else "the process ended early"
        count = max(1, sanitizer.errors(output) if "SUMMARY" in output else 1)
        return count, f"{message}; {sanitizer.first_report(output)}"
    count = sanitizer.errors(output)
    return count, sanitizer.first_report(output) if count else ""


def record_step(record: Record, run: str, outcome: Outcome) -> None:
    """Store a timed outcome."""
    assert outcome.preset is not None
    kept = (
        "timing",
        "prepare_ms",
        "first_launch_ms",
        "workspace_bytes",
        "elements_compared",
        "source",
        "helpers",
        "shape",
    )
    row = {key: outcome.result[key] for key in kept}
    record.put(outcome.preset, outcome.step.name, {"kind": "step", **row}, run)


def record_peers(record: Record, run: str, preset: str, result: Result) -> None:
    """Store a peer result's rows."""
    for row in result["rows"]:
        name = row["peer"]
        kept = {key: row[key] for key in ("layout", "library", "kernels", "timing")}
        record.put(preset, name, {"kind": "peer", "shape": result["shape"], **kept}, run)


def convolve(step: Step, x_file: Path, filt_file: Path, y_file: Path, simulator: bool) -> Outcome:
    """Run a conv2d step on operands saved as .npy files and save its output."""
    task = {
        "task": "maps",
        "step": step.name,
        "path": str(step.path),
        "x": str(x_file),
        "filt": str(filt_file),
        "y": str(y_file),
    }
    ((_, result),) = isolate.run([task], simulator, CHECK_SECONDS)
    return Outcome(step, problems.preset("photo"), "photo", result)


def explain(step: Step, problem: Problem, simulator: bool) -> str:
    """What a step says it would do for a problem, and why. Raises ValueError if it cannot."""
    ((_, result),) = isolate.run([_task("explain", step, None, problem)], simulator, TIME_SECONDS)
    if result["status"] != "right":
        raise ValueError(str(result["message"]))
    return str(result["text"])


def _task(kind: str, step: Step, file: Path | None, problem: Problem) -> Task:
    return {
        "task": kind,
        "step": step.name,
        "ladder": step.ladder,
        "path": str(file or step.path),
        "shape": problem.shape(),
    }
