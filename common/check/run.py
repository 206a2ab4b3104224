"""Steps checked and compiled, in child processes: their tasks, and what comes of them, one outcome for each shape,
kept while a step's code does not change."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from common.catalog import cache, catalog, device, problems, store
from common.catalog.catalog import Step
from common.catalog.problems import Problem
from common.check import loading, plan
from common.run import isolate, messages
from common.run.messages import Check, Compile, Outcome, Result, Rival, Show, StepResult, at, place_of
from common.trace import cost, trace
from common.trace.messages import Trace

Answered = TypeVar("Answered")
Told = TypeVar("Told", bound=Result)
CHECK_SECONDS = 30.0
TIME_SECONDS = 180.0
COMPILE_SECONDS = 180.0
EXPLAIN_SECONDS = 20.0
TRACE_SECONDS = 60.0
ENOUGH_WRONG = 3  # shapes at which a step fails before the others are left out
MOST_PROCESSES = 4  # for a step's traces: each translates the kernels anew
EXPLAIN_FLOPS = 1e6  # of a shape that is traced for a reason alone
CODE_ARCHITECTURE = "9.0"

_UNPLACED = {"illegal-address", "misaligned", "constant-memory"}  # faults whose line is the launch's


class DeviceError(RuntimeError):
    """The GPU could not be measured."""


def check_steps(
    steps: list[Step], without_gpu: bool, shape: Problem | None = None, file: Path | None = None, seed: int = 0,
    **options: Any,
) -> Iterator[Outcome]:  # fmt: skip
    """What comes of each step, step by step: a :class:`Checking` of them all, with its ``options``."""
    with Checking(steps, without_gpu, shape, file, seed, **options) as checking:
        yield from checking.of(steps)


class Checking:
    """The check of steps as :mod:`common.check.plan` has it, or at ``shape``, in child processes.

    ``full``: at every shape of the pairwise plan; the steps whose names are in ``brief``, at a few. ``file`` is
    checked in the step's place. ``seed`` is that of the drawn shapes and operands. Without a GPU, or on another than
    the step requires, each is also compiled, unless ``compiled`` is False. What fails at ``enough`` shapes is not
    tried at the others. ``pool``: for what it starts, after what was submitted before.

    Traces and compilations begin at once, on all processors: with a GPU also what it will run, and the kernels of
    ``timed``, steps on presets. The GPU runs a step when asked for it (:meth:`of`). On leaving, what is not done is
    given up.
    """

    def __init__(
        self, steps: list[Step], without_gpu: bool, shape: Problem | None = None, file: Path | Rival | None = None,
        seed: int = 0, compiled: bool = True, full: bool = False, brief: Collection[str] = (),
        timed: Iterable[tuple[Step, str]] = (), enough: int = ENOUGH_WRONG, pool: isolate.Pool | None = None,
    ) -> None:  # fmt: skip
        self._checks: dict[Step, _StepCheck] = {}
        processes = min(MOST_PROCESSES, device.workers() // max(1, len(steps))) or 1
        for step in steps:
            one = self._checks[step] = _StepCheck(step, without_gpu or bool(beyond(step)), shape, file, enough)
            one.lay_out(seed, full, step.name in brief, compiled)
        self._pool, self._gpu = pool or isolate.Pool(), ThreadPoolExecutor(1)
        later = _shapes(timed)
        for step, one in self._checks.items():
            if on_gpu := [task for task in one.on_gpu if not _is_large(task)]:
                shapes = [task.shape for task in on_gpu] + later.pop(step, [])
                one.compiled = self._begin(step, shapes, file)
            one.start(self._pool, processes)
        self._later = {step: self._begin(step, shapes) for step, shapes in later.items()}

    def _begin(self, step: Step, shapes: list[dict[str, int]], file: Path | Rival | None = None) -> Future[Any]:
        """Compile a step's kernels, or those of ``file``, for this GPU."""
        task = messages.Prepare(**place_of(step, file), device=inspect_device()[0], shapes=shapes)
        return self._pool.submit(list, isolate.run([task], False, COMPILE_SECONDS, self._pool.stop))

    def of(self, steps: list[Step]) -> Iterator[Outcome]:
        """What comes of these steps, step by step, one outcome for each shape."""
        checks = [self._checks[step] for step in steps]
        for one in checks:
            one.launch(self._gpu, self._pool.stop)
        for one in checks:
            yield from one.outcomes()

    def wait(self, *steps: Step) -> None:
        """Wait for the kernels of steps that are not checked."""
        for step in steps:
            if step in self._later:
                self._later[step].result()

    def __enter__(self) -> Checking:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.stop.set()
        self._gpu.shutdown(wait=True, cancel_futures=True)
        self._pool.__exit__()


def _shapes(pairs: Iterable[tuple[Step, str]]) -> dict[Step, list[dict[str, int]]]:
    """The shapes of launches of steps on presets: of those that this GPU can run, also those that are timed first."""
    wanted: dict[Step, list[dict[str, int]]] = {}
    for step, preset in pairs:
        with contextlib.suppress(loading.NoRoomError):
            if not beyond(step):
                whole = loading.fitted(problems.preset(preset), inspect_device()[1])
                wanted.setdefault(step, []).extend(size.shape() for size in (whole, *loading.probed(whole)))
    return wanted


def beyond(step: Step) -> str:
    """Why this machine's GPU cannot run a step; empty if it can, or if there is none."""
    capability = device.compute_capability() if step.requires else None
    if capability is None or step.runs_on(capability):
        return ""
    return f"requires compute capability {step.requires}: this GPU has {capability}"


def check_at(step: Step, problem: Problem, file: Path | Rival | None, **more: Any) -> Check:
    """The check of a step, or of ``file`` in its place, at one shape."""
    return Check(**at(step, problem, file), precision=step.precision, algorithm=step.algorithm, **more)


def _is_large(task: Check | Compile) -> bool:
    return isinstance(task, Check) and task.depth == "large"


@dataclass
class _StepCheck:
    """The check of one step, or of ``file`` in its place: its tasks, and what comes of them. Several processes share
    the traces; at the end of the GPU's line are the largest shapes, for which it has little room."""

    step: Step
    without_gpu: bool
    shape: Problem | None  # the one that was asked for
    file: Path | Rival | None
    enough: int = ENOUGH_WRONG
    tasks: list[Check | Compile] = field(default_factory=list)  # all, in the order in which they are told
    compiling: list[Compile] = field(default_factory=list)
    traces: deque[list[Check]] = field(default_factory=deque)  # in groups
    on_gpu: list[Check] = field(default_factory=list)
    running: list[Future[None]] = field(default_factory=list)
    compiled: Future[Any] | None = None  # ahead, for the GPU
    given_up: threading.Event = field(default_factory=threading.Event)  # it does not compile, or enough is wrong
    found: dict[int, Outcome] = field(default_factory=dict)  # by the task's identity

    def lay_out(self, seed: int, full: bool, brief: bool, compiled: bool) -> None:
        """Lay out what is done, as :class:`Checking` says: compilations, traces, launches on the GPU."""
        step, gpu, shape = self.step, not self.without_gpu, self.shape
        if shape and not gpu and plan.too_large(shape):
            return
        if brief:
            cases = plan.smoke(step.ladder, gpu, seed)
        else:
            cases = plan.cases_at(shape, gpu, seed) if shape else plan.cases(step.ladder, gpu, seed, full)
        if compiled and not gpu and not brief:  # first: what it says is told before all else
            # whole tiles may have a kernel of their own
            variants = [shape] if shape else [problems.FIRST[step.ladder], *plan.tiled(step.ladder)[:1]]
            targets = catalog.targets(step.requires, [CODE_ARCHITECTURE])
            self.compiling = [Compile(**at(step, one, self.file), architectures=targets) for one in variants]
        self.tasks += self.compiling
        repeats = {"gpu": messages.REPEATS, "traced": 1}  # a trace has no races to catch by repeating
        for group in plan.groups(cases):
            tasks = [
                check_at(step, case.problem, self.file, **case.fields(), repeats=repeats[case.engine])
                for case in group
            ]
            self.tasks += tasks
            self.on_gpu += [task for task in tasks if task.on_gpu]
            if traced := [task for task in tasks if not task.on_gpu]:
                self.traces.append(traced)
        self.on_gpu.sort(key=_is_large)

    def start(self, pool: isolate.Pool, processes: int) -> None:
        """Start compilations, and traces in so many ``processes``."""
        self.running += [pool.submit(self._run, self.compiling, pool.stop)] if self.compiling else []
        for _ in range(min(processes, len(self.traces))):
            self.running.append(pool.submit(self._run, isolate.shared(self.traces), pool.stop))

    def launch(self, pool: ThreadPoolExecutor, stop: threading.Event) -> None:
        """Start the GPU's line."""
        self.running += [pool.submit(self._run, self.on_gpu, stop)] if self.on_gpu else []

    def _run(self, tasks: Iterable[Any], stop: threading.Event) -> None:
        """Find what comes of the tasks, until ``stop`` or until here or elsewhere enough is wrong."""
        ordinary = None
        if tasks is self.on_gpu:
            ordinary = sum(not _is_large(task) for task in self.on_gpu)
            if self.compiled:
                self.compiled.result()
        outcomes: list[Outcome] = []
        results: Iterator[Any] = isolate.run(tasks, self.without_gpu, CHECK_SECONDS, stop, self.given_up)
        for task, result in results:
            beside_gpu = not self.without_gpu and not task.on_gpu
            found = outcome(self.step, task, result, None, self.shape is not None, beside_gpu)
            if self.shape and isinstance(task, Check) and not task.on_gpu and found.right is not None:
                found = replace(found, depth=task.depth)
            outcomes.append(found)
            self.found[id(task)] = found
            wrong = [one.status for one in outcomes if not one.fine]
            late = len(outcomes) == ordinary or len(wrong) >= self.enough or isinstance(task, Compile)
            if (wrong and late) or set(wrong) & {"timed_out", "unusable"}:
                self.given_up.set()
            if len(outcomes) >= ENOUGH_WRONG and all(one.status == "unjudged" for one in outcomes):
                self.traces.clear()
                break

    def outcomes(self) -> list[Outcome]:
        """What came of all lines, one outcome for each shape, as soon as they are done."""
        if self.shape and not self.running:
            said = plan.too_large(self.shape)
            return [Outcome(step=self.step, problem=self.shape, status="unjudged", message=said, late=True)]
        for future in self.running:
            future.result()
        found = [self.found[id(task)] for task in self.tasks if id(task) in self.found]
        return _agreed(self.step, found, self.without_gpu, self.file)


def outcome(
    step: Step, task: messages.ShapeTask[StepResult], result: StepResult, preset: str | None, asked: bool, gpu: bool
) -> Outcome:
    """What came of a task of a check: of a compilation, or :func:`judged`."""
    problem = problems.from_shape(step.ladder, result.shape or task.shape)
    compiled = isinstance(task, Compile)
    result = replace(result, only_compiled=True) if compiled else judged(problem, result, asked, gpu)
    return Outcome.of(step, problem, preset, result)


def judged(problem: Problem, result: StepResult, asked: bool = False, gpu: bool = False) -> StepResult:
    """The result, where a step that refuses an ordinary shape is wrong. ``asked``: that very shape was asked for.
    With a ``gpu`` to run it, what the tracer does not know has a verdict but for races and the like."""
    if gpu and asked and result.late:
        return replace(result, unsought=result.message)
    if gpu and result.status == "unjudged" and result.engine == "traced" and not result.late:
        said = f"only the GPU ran it, so races and the like were not looked for: {result.message}"
        return replace(result, message=said)
    if result.status != "refused" or not plan.ordinary(problem):
        return result
    finding = messages.Finding("refused", f"this ordinary shape is refused: {result.message}")
    return replace(result, status="wrong", message=None, findings=[finding])


def _agreed(step: Step, outcomes: list[Outcome], without_gpu: bool, file: Path | Rival | None) -> list[Outcome]:
    """A step's outcomes, one for each shape: what is wrong for any engine, and does not compile before all else. What
    only a GPU shows is told by a trace as far as it can. Of a shape that was only compiled, nothing is known."""
    wrong = [outcome for outcome in outcomes if not outcome.fine]
    if not without_gpu and wrong and all(outcome.engine in (None, "gpu") for outcome in wrong):
        told = retell(check_at(step, wrong[0].problem, file), wrong[0].problem, wrong[0])
        outcomes = [told if outcome is wrong[0] else outcome for outcome in outcomes]
    unsought = None
    if any(one.engine == "gpu" for one in outcomes):  # races and the like were looked for beside it
        unsought = next((one.unsought for one in outcomes if one.unsought), None)
        outcomes = [one for one in outcomes if not one.unsought]
    merged = []
    for problem in dict.fromkeys(outcome.problem for outcome in outcomes):
        mine = [outcome for outcome in outcomes if outcome.problem == problem]
        ranks = {"unjudged": 1, "refused": 2, "right": 3}  # what is wrong first, of that what does not compile
        order: list[str | None] = [None, "traced", "gpu"]
        known = [one for one in mine if not (one.fine and one.only_compiled)] or mine
        chosen = min(known, key=lambda one: (ranks.get(one.status, 0), order.index(one.engine)))
        printing = max(mine, key=lambda one: (bool(one.prints), one.engine == "traced"))
        merged.append(replace(
            chosen, seconds=sum(one.seconds or 0.0 for one in mine),
            engines=list(dict.fromkeys(one.engine for one in mine if one.engine)),
            depth=next((one.depth for one in mine if one.depth), None), unsought=unsought or chosen.unsought,
            printed=printing.printed, prints=printing.prints,
        ))  # fmt: skip
    ran = [outcome for outcome in merged if not (outcome.fine and outcome.only_compiled)]
    return ran or merged


def retell(task: Check, problem: Problem, result: Told) -> Told:
    """What failed on a GPU, with the faults that a trace has a line for before its own. A typing error, or a launch
    beyond the limits, names its line already; other failures do not."""
    kinds = {fault.kind for fault in result.faults}
    placed = bool(kinds) and not kinds & _UNPLACED
    if result.status not in ("wrong", "timed_out", "crashed") or (result.status == "crashed" and placed):
        return result
    small = problem if problem.flops <= EXPLAIN_FLOPS else problems.FIRST[problem.ladder]
    again = replace(task, shape=small.shape(), engine="traced", repeats=1)
    ((_, seen),) = isolate.run([again], True, EXPLAIN_SECONDS)
    found = [one for one in seen.faults if one.line]
    told = {(one.kind, one.line) for one in found}
    rest = [one for one in result.faults if (one.kind, one.line) not in told]
    rest = [one for one in rest if not found or one.kind not in _UNPLACED]
    found = [dataclasses.replace(one, what=f"traced at {small}: {one.what}") for one in found]
    return replace(result, faults=found + rest)


@functools.cache
def inspect_device() -> tuple[device.Gpu, int]:
    """What this machine's GPU is, and the bytes that a problem may take, worked out once in this program. Raises
    NoGpuError without a GPU, DeviceError if it cannot be used."""
    device.require_gpu("describing the GPU")
    return ask("the GPU could not be used", loading.this_device)


def ask(failed: str, function: Callable[..., Answered], *given: object, on_gpu: bool = True) -> Answered:
    """What a function returns in a child process, or in the one that owns the GPU. Raises DeviceError that begins
    with ``failed``."""
    task = messages.Ask(function=function, given=given, on_gpu=on_gpu)
    ((_, answer),) = isolate.run([task], False, TIME_SECONDS)
    if answer.status != "right":
        raise DeviceError(f"{failed}: {answer.message}")
    kind: type[Answered] = get_type_hints(function)["return"]
    return store.convert(answer.found, kind)


# --- compiled, without a GPU ---


def compile_steps(
    steps: list[Step], architectures: tuple[str, ...], machine_code: bool, every_preset: bool = False
) -> Iterator[Outcome]:
    """Compile every kernel of each step, without a GPU, for its ladder's preset; or for all that are timed."""
    tasks, usual = [], [problems.DEFAULT_PRESET[step.ladder] for step in steps]
    for step, preset in zip(steps, usual, strict=True):
        # a bench times an experiment on its ladder's default only
        timed = problems.timed_presets(step.ladder) if every_preset and not step.experiment else []
        others = {name: problems.preset(name).shape() for name in timed if name != preset}
        place, targets = at(step, problems.preset(preset)), catalog.targets(step.requires, architectures)
        tasks.append([Compile(**place, architectures=targets, machine_code=machine_code, others=others)])
    results = isolate.run_groups(tasks, False, COMPILE_SECONDS, device.workers())
    for step, preset, (_, result) in zip(steps, usual, results, strict=False):
        yield Outcome.of(step, problems.preset(preset), preset, result)


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
    results = isolate.run_groups(tasks, True, COMPILE_SECONDS, device.workers())
    for step, preset in pairs:
        _, result = next(results)
        if result.missing_tool:
            raise FileNotFoundError(result.message)
        if not show:
            traced = next(results)[1].trace
            figures = cost.traffic(traced) if traced is not None else {}
            for one in result.cards:
                one["traffic"] = figures.get(one["kernel"], {})
        yield Outcome.of(step, problems.preset(preset), preset, result)


# --- what became of steps that have not changed since ---

FINDERS = [catalog.ROOT / "common" / "check" / name for name in ("tasks.py", "run.py")]  # what finds outcomes
# Verdicts of the shipped steps, each right at the whole plan and compiled for all architectures, under a key of its
# code, its helpers and what finds a verdict; ``check --record`` writes it.
VERDICTS = catalog.ROOT / "results" / "verdicts.json"


class Shipped(Struct):
    """A shipped step was right: at so many shapes, on that day, by code of this key."""

    key: str
    shapes: int
    date: str


def known(steps: list[Step], conditions: object, room_bytes: int = 0) -> dict[str, list[Outcome]]:
    """By step, in the steps' order, the outcomes that still hold; none if there is room now for what was left out.
    ``conditions``: what they depend on besides the step's code, the harness's and a small card's limits."""
    found: dict[str, list[Outcome]] = {}
    for step in steps:
        entries = cache.get("check", _key(step, conditions), list[tuple[messages.Shape, StepResult]])
        if entries and not any(0 < (result.needed_bytes or 0) <= room_bytes for _, result in entries):
            shaped = [(problems.from_shape(step.ladder, shape), result) for shape, result in entries]
            found[step.name] = [Outcome.of(step, problem, None, result) for problem, result in shaped]
    return found


def keep(outcomes: list[Outcome], conditions: object) -> None:
    """Keep one step's outcomes, which must be all that there are."""
    entries = [(one.problem.shape(), StepResult(**one.told())) for one in outcomes]
    cache.put("check", _key(outcomes[0].step, conditions), entries)


def _key(step: Step, conditions: object) -> str:
    return cache.key([*FINDERS, step.path], conditions, step.name, step.ladder, device.small_card())


def shipped(steps: list[Step]) -> dict[str, Shipped]:
    """By name, the shipped verdicts that hold for steps as they are, with the tiles that they take on this card."""
    found, small = cache.read(VERDICTS, dict[str, Shipped]), device.small_card()
    return {
        step.name: found[step.name]
        for step in steps
        if step.name in found
        and found[step.name].key == _of(step)
        and not (small and len(loading.by_card(step.path, [small, device.USUAL_CARD])) > 1)
    }


def ship(outcomes: dict[Step, list[Outcome]]) -> None:
    """Write the shipped verdicts of steps that are right, with all that they were checked at; of no other step."""
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    found = cache.read(VERDICTS, dict[str, Shipped])
    for step, mine in outcomes.items():
        found[step.name] = Shipped(_of(step), len({outcome.problem for outcome in mine}), today)
    known = [step.name for step in catalog.everything()]
    store.write_json(VERDICTS, to_builtins({name: found[name] for name in known if name in found}))


def _of(step: Step) -> str:
    told = step.name, step.ladder, step.precision, step.requires, step.algorithm
    return cache.key([*FINDERS, step.path], *told, versions=())
