"""Steps checked and compiled, in child processes: their tasks, and what comes of them, one outcome for each shape,
kept while a step's code does not change."""

import contextlib
import datetime
import functools
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from common.catalog import cache, catalog, device, problems, sources, store
from common.catalog.catalog import Step
from common.catalog.problems import Problem
from common.check import loading, plan
from common.run import isolate, messages
from common.run.messages import Check, Compile, Outcome, Rival, Show, StepResult, at

Answered = TypeVar("Answered")
CHECK_SECONDS = 30.0
TIME_SECONDS = 180.0
COMPILE_SECONDS = 180.0
EXPLAIN_SECONDS = 20.0  # for a trace that may name the line of what is wrong on a GPU
ENOUGH_WRONG = 3  # shapes at which a step fails before the others are left out
MOST_PROCESSES = 4  # for a step's traces: each translates the kernels anew
EXPLAIN_FLOPS = 1e6  # of the largest shape that is traced for that
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
        self._pool = pool or isolate.Pool()
        self._checks: dict[Step, _StepCheck] = {}
        launched: dict[Step, list[messages.Shape]] = {}
        for step in steps:
            one = self._checks[step] = _StepCheck(step, without_gpu or bool(beyond(step)), shape, file, enough)
            one.lay_out(seed, full, step.name in brief, compiled)
            launched[step] = [task.shape for task in one.on_gpu(large=False)]
        for step, preset in timed:
            launched.setdefault(step, []).extend(_sizes(step, preset))
        self._ahead: dict[Step, Future[Any]] = {}  # kernels compiled for this GPU
        processes = min(MOST_PROCESSES, device.workers() // max(1, len(steps))) or 1
        for step, shapes in launched.items():
            if shapes:
                prepare = messages.Prepare(**at(step, None, file), device=inspect_device()[0], shapes=shapes)
                run = isolate.run([prepare], False, COMPILE_SECONDS, self._pool.stop)
                self._ahead[step] = self._pool.submit(list, run)
            if step in self._checks:
                self._checks[step].start(self._pool, processes)

    def of(self, steps: list[Step]) -> Iterator[Outcome]:
        """What comes of these steps, step by step, one outcome for each shape."""
        for step in steps:
            self.wait(step)
            yield from self._checks[step].outcomes(self._pool.stop)

    def wait(self, step: Step) -> None:
        """Wait until a step's kernels are compiled for the GPU."""
        if step in self._ahead:
            self._ahead[step].result()

    def __enter__(self) -> "Checking":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.__exit__()


def _sizes(step: Step, preset: str) -> list[messages.Shape]:
    """At which shapes a step is launched to time it on a preset: those that are timed first, too; none if this GPU
    cannot run it."""
    with contextlib.suppress(loading.NoRoomError):
        if not beyond(step):
            whole = loading.fitted(problems.preset(preset), inspect_device()[1])
            return [size.shape() for size in (whole, *loading.probed(whole))]
    return []


def beyond(step: Step) -> str:
    """Why this machine's GPU cannot run a step; empty if it can, or if there is none."""
    capability = device.compute_capability() if step.requires else None
    if capability is None or step.runs_on(capability):
        return ""
    return f"requires compute capability {step.requires}: this GPU has {capability}"


def placed(case: Check, step: Step, file: Path | Rival | None) -> Check:
    """A case of the plan for a step, or for ``file`` in its place."""
    repeats = messages.REPEATS if case.on_gpu else 1  # a trace has no races to catch by repeating
    said = {"precision": step.precision, "algorithm": step.algorithm, "repeats": repeats}
    return replace(case, **at(step, case.problem, file), **said, seconds=case.seconds or plan.seconds(case))


@dataclass
class _StepCheck:
    """The check of one step, or of ``file`` in its place: its tasks, and what comes of them."""

    step: Step
    without_gpu: bool
    shape: Problem | None  # the one that was asked for
    file: Path | Rival | None
    enough: int = ENOUGH_WRONG
    tasks: list[Check | Compile] = field(default_factory=list)  # all, in the order in which they are told
    groups: deque[list[Any]] = field(default_factory=deque)  # what any process may take: compilations, traces
    running: list[Future[bool]] = field(default_factory=list)
    failed: bool = False  # it does not compile, or enough is wrong
    given_up: threading.Event = field(default_factory=threading.Event)  # and what else is done is of no use
    found: dict[int, Outcome] = field(default_factory=dict)  # by the task's identity

    def lay_out(self, seed: int, full: bool, brief: bool, compiled: bool) -> None:
        """Lay out what is done, as :class:`Checking` says: compilations, traces, launches on the GPU."""
        step, gpu, shape = self.step, not self.without_gpu, self.shape
        if shape and not gpu and plan.too_large(shape):
            return
        if compiled and not gpu and not brief:  # first: what it says is told before all else
            # whole tiles may have a kernel of their own
            variants = [shape] if shape else [problems.FIRST[step.ladder], *plan.tiled(step.ladder)[:1]]
            targets = catalog.targets(step.requires, [CODE_ARCHITECTURE])
            path = Path(at(step, None, self.file)["path"])
            shipped = sources.shipped_steps(path, step.ladder)  # whose kernels it may fall back to
            self.tasks += [
                Compile(**at(step, one, self.file), architectures=targets, shipped=shipped) for one in variants
            ]
            self.groups.append([*self.tasks])
        if brief:
            cases = plan.smoke(step.ladder, gpu, seed)
        else:
            cases = plan.cases_at(shape, gpu, seed) if shape else plan.cases(step.ladder, gpu, seed, full)
        for case in cases:
            task = placed(case, step, self.file)
            self.tasks.append(task)
            if task.follows and not task.on_gpu:
                self.groups[-1].append(task)
            elif not task.on_gpu:
                self.groups.append([task])

    def on_gpu(self, large: bool) -> list[Check]:
        checks = [task for task in self.tasks if isinstance(task, Check) and task.on_gpu]
        return [task for task in checks if large == (task.depth == "large")]

    def start(self, pool: isolate.Pool, processes: int) -> None:
        """Start compilations and traces in so many ``processes``."""
        for _ in range(min(processes, len(self.groups))):
            self.running.append(pool.submit(self._run, self.shared(), pool.stop))

    def shared(self) -> Iterator[Check | Compile]:
        """Group by group, what no other process has taken."""
        with contextlib.suppress(IndexError):
            while not self.failed:
                yield from self.groups.popleft()

    def _run(self, tasks: Iterable[Any], stop: threading.Event) -> bool:
        """Find what comes of the tasks, until ``stop`` or until here or elsewhere enough is wrong; is nothing?"""
        wrong, unjudged = 0, list[bool]()
        results: Iterator[Any] = isolate.run(tasks, self.without_gpu, CHECK_SECONDS, stop, self.given_up)
        for task, result in results:
            beside_gpu = not self.without_gpu and not task.on_gpu
            found = self.found[id(task)] = outcome(self.step, task, result, None, beside_gpu)
            wrong += not found.fine
            ends = isinstance(task, Compile) or found.status in ("timed_out", "unusable") or wrong >= self.enough
            self.failed |= ends and not found.fine
            built = [self.found.get(id(one)) for one in self.tasks if isinstance(one, Compile)]
            if self.failed and (all(built) or any(one and not one.fine for one in built)):
                self.given_up.set()  # whether it compiles is told, whatever a trace finds meanwhile
            unjudged += [] if found.only_compiled else [found.status == "unjudged"]
            if len(unjudged) >= ENOUGH_WRONG and all(unjudged):
                self.groups.clear()
                break
        return not wrong

    def outcomes(self, stop: threading.Event) -> list[Outcome]:
        """What comes of all, one outcome for each shape; what the GPU does, it does now."""
        if self.shape and not self.tasks:
            said = plan.too_large(self.shape)
            return [Outcome(step=self.step, problem=self.shape, status="unjudged", message=said, late=True)]
        if not self._run(self.on_gpu(large=False), stop):
            self.given_up.set()
        for future in self.running:
            future.result()
        if all(one.fine for one in self.found.values()):
            self._run(self.on_gpu(large=True), stop)  # the GPU has little room for them
        self._explain(stop)
        found = [self.found[id(task)] for task in self.tasks if id(task) in self.found]
        return agreed(found, self.shape is not None)

    def _explain(self, stop: threading.Event) -> None:
        """If the GPU alone found something wrong, as it ended the traces, trace that shape, or a small one in its
        place: a trace names the line. A crash whose fault has a line of its own needs none."""
        wrong = [task for task in self.tasks if id(task) in self.found and not self.found[id(task)].fine]
        checks = [task for task in wrong if isinstance(task, Check) and task.on_gpu]
        if not checks or len(checks) < len(wrong):
            return
        first = min(checks, key=lambda task: task.problem.flops)
        seen, problem = self.found[id(first)], first.problem
        placed = seen.faults and not {fault.kind for fault in seen.faults} & _UNPLACED
        if seen.status == "unusable" or (seen.status == "crashed" and placed):
            return
        small = problem if problem.flops <= EXPLAIN_FLOPS else problems.FIRST[problem.ladder]
        again = replace(
            first, shape=small.shape(), engine="traced", depth="usual", repeats=1, seconds=EXPLAIN_SECONDS
        )
        for _, result in isolate.run([again], True, CHECK_SECONDS, stop):
            told = outcome(self.step, again, result, None, True)
            if not told.fine:
                self.tasks.append(again)
                self.found[id(again)] = told


def outcome(
    step: Step, task: messages.Task[StepResult], result: StepResult, preset: str | None, gpu: bool = False
) -> Outcome:
    """What came of a task of a check: of a compilation, or :func:`judged`."""
    problem = problems.from_shape(step.ladder, result.shape or task.shape)
    compiled = isinstance(task, Compile)
    result = replace(result, only_compiled=True) if compiled else judged(problem, result, gpu)
    return Outcome.of(step, problem, preset, result)


def judged(problem: Problem, result: StepResult, gpu: bool = False) -> StepResult:
    """The result, where a step that refuses an ordinary shape is wrong. With a ``gpu`` to run it, what the tracer
    does not know has a verdict but for races and the like."""
    if gpu and result.status == "unjudged" and result.engine == "traced" and not result.late:
        said = f"only the GPU ran it, so races and the like were not looked for: {result.message}"
        return replace(result, message=said)
    if result.status != "refused" or not plan.ordinary(problem):
        return result
    finding = messages.Finding("refused", f"this ordinary shape is refused: {result.message}")
    return replace(result, status="wrong", message=None, findings=[finding])


def agreed(outcomes: list[Outcome], asked: bool = False) -> list[Outcome]:
    """A step's outcomes, one for each shape: what is wrong for any engine, and if it does not compile, that alone. Of
    a shape that was only compiled, nothing is known. A trace at a shape that was ``asked`` for takes nothing from a
    GPU's verdict where it is late."""
    ranks = {"unjudged": 1, "refused": 2, "right": 3}  # what is wrong first, of that what does not compile
    late = [one for one in outcomes if asked and one.late and any(other.engine == "gpu" for other in outcomes)]
    by_problem: dict[Problem, list[Outcome]] = {}
    for one in outcomes:
        if one not in late:
            by_problem.setdefault(one.problem, []).append(one)
    merged = []
    for mine in by_problem.values():
        mine.sort(key=lambda one: (one.fine and one.only_compiled, ranks.get(one.status, 0), not one.only_compiled,
                                   one.engine != "traced"))  # fmt: skip
        printing = max(mine, key=lambda one: (bool(one.prints), one.engine == "traced"))
        merged.append(replace(
            mine[0], seconds=sum(one.seconds or 0.0 for one in mine),
            faults=mine[0].faults or (mine[-1].faults if mine[0].fine else ()),
            engines=list(dict.fromkeys(one.engine for one in mine if one.engine)),
            depth=next((one.depth for one in mine if asked and one.depth), None),
            unsought=next((str(one.message) for one in late), None), printed=printing.printed, prints=printing.prints,
        ))  # fmt: skip
    ran = [outcome for outcome in merged if not (outcome.fine and outcome.only_compiled)]
    return [one for one in ran if one.only_compiled and one.status == "crashed"] or ran or merged


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
    ``show`` each has the ``text`` of that; PTX comes alone."""
    tasks = []
    for step, preset in pairs:
        place, target = at(step, problems.preset(preset), file), catalog.targets(step.requires, [architecture])[0]
        tasks.append([messages.Summarise(**place, architecture=target, show=show)])
    results = isolate.run_groups(tasks, True, COMPILE_SECONDS, device.workers())
    for (step, preset), (_, result) in zip(pairs, results, strict=False):
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
        entries = cache.get(
            "check", _key(step, conditions, device.small_card()), list[tuple[messages.Shape, StepResult]]
        )
        if entries and not any(0 < (result.needed_bytes or 0) <= room_bytes for _, result in entries):
            shaped = [(problems.from_shape(step.ladder, shape), result) for shape, result in entries]
            found[step.name] = [Outcome.of(step, problem, None, result) for problem, result in shaped]
    return found


def keep(outcomes: list[Outcome], conditions: object) -> None:
    """Keep one step's outcomes, which must be all that there are."""
    entries = [(one.problem.shape(), StepResult(**one.told())) for one in outcomes]
    cache.put("check", _key(outcomes[0].step, conditions, device.small_card()), entries)


def _key(step: Step, *conditions: object, versions: tuple[str, ...] | None = None) -> str:
    told = step.name, step.ladder, step.precision, step.requires, step.algorithm
    return cache.key([*FINDERS, step.path], *told, *conditions, versions=versions)


def shipped(steps: list[Step]) -> dict[str, Shipped]:
    """By name, the shipped verdicts that hold for steps as they are, with the tiles that they take on this card."""
    found, small = cache.read(VERDICTS, dict[str, Shipped]), device.small_card()
    return {
        step.name: found[step.name]
        for step in steps
        if step.name in found
        and found[step.name].key == _key(step, versions=())
        and not (small and len(loading.by_card(step.path, [small, device.USUAL_CARD])) > 1)
    }


def ship(outcomes: dict[Step, list[Outcome]]) -> None:
    """Write the shipped verdicts of steps that are right, with all that they were checked at; of no other step."""
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    found = cache.read(VERDICTS, dict[str, Shipped])
    for step, mine in outcomes.items():
        found[step.name] = Shipped(_key(step, versions=()), len({outcome.problem for outcome in mine}), today)
    known = [step.name for step in catalog.everything()]
    store.write_json(VERDICTS, to_builtins({name: found[name] for name in known if name in found}))
