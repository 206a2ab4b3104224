"""What child processes do, task by task: ``check_task`` does the task ``jobs.check``, and so on.

Numba is imported inside: it takes long.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import io
import itertools
import json
import math
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache, lru_cache, partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec.structs import asdict

from common.catalog import boundstep, catalog, device, ledger, limits, problems, sources
from common.catalog.patching import replaced
from common.check import budget, plan
from common.explain import errors, faults
from common.explain.faults import Fault
from common.jobs import messages
from common.jobs.messages import StepResult
from common.machine_code.messages import CodeCard, Compiled
from common.run.messages import FileTask, Result, ShapeTask, Task
from common.trace.cost import MOST_PRINTED
from common.trace.messages import Trace, TraceResult

if TYPE_CHECKING:
    from common.check import check, fullsize
    from common.machine_code import kernelcache
    from common.timing import timing

SWEEP_SECONDS = 1.0
_LONGEST = 200  # characters of a line that a file prints
ASKS = "card"  # the helper by which a step asks what the card has


def warm() -> None:
    """Import what tasks need."""
    from common.check import check, shapes  # noqa: F401
    from common.machine_code import cards, codegen  # noqa: F401
    from common.timing import timing  # noqa: F401
    from common.trace import bench  # noqa: F401

    gc.set_threshold(100_000, 50, 50)
    gc.collect()
    gc.freeze()  # what is loaded now stays: nothing need look through it again and again


def rehearse() -> None:
    """Let Numba load what its first compilations do."""
    from common.machine_code import codegen

    codegen.warm()
    gc.collect()
    gc.freeze()


def ready() -> None:
    """Make this process one in which kernels run as the workbook wants it."""
    _require_limits()
    device.play()


def _keep_kernels(folder: str) -> None:
    """Find kernels that were compiled before, and keep those that are compiled now, if the folder has a name."""
    if folder:
        from common.machine_code import kernelcache

        kernelcache.install(Path(folder))


# By file and engine: the module, and the tracer that has its kernels as they were first launched. Engines have
# arrays of their own, and a step may keep them by their contents.
_kept: dict[str, tuple[Any, Any]] = {}


Asked = TypeVar("Asked", bound=ShapeTask[StepResult])


def _spared(do: Callable[[Asked], StepResult]) -> Callable[[Asked], StepResult]:
    """A task that the GPU's memory does not suffice for is left out, and says how much it needs: another program, or
    another check, may hold it. A step that takes more than its share is not spared."""

    @wraps(do)
    def spared(task: Asked) -> StepResult:
        try:
            return do(task)
        except budget.NoRoomError as error:
            needed, free = error.needed, error.free
        except Exception as error:
            if not device.gpu_count() or not device.out_of_memory(error):
                raise
            traceback.clear_frames(error.__traceback__)  # which hold the arrays
            needed, free = budget.needed(problems.from_shape(task.ladder, task.shape)), 0
            with suppress(Exception):  # there may not even be a context
                _let_go()
                free = device.free_bytes()
            if free >= needed + budget.LIBRARIES:
                raise
        message = str(budget.NoRoomError(needed, free))
        return {"status": "unjudged", "message": message, "needed_bytes": needed, "free_bytes": free}

    return spared


def _let_go() -> None:
    """Give back what nothing refers to any more: Numba frees arrays when many are, or much."""
    gc.collect()
    if device.gpu_count():
        from numba import cuda

        cuda.current_context().deallocations.clear()


class _Heard(io.TextIOBase):
    """What a file prints: it goes on to the log, and the first lines are kept."""

    def __init__(self, log: Any) -> None:
        self._log, self._rest = log, ""
        self.lines: list[str] = []
        self.count = 0

    def write(self, text: str) -> int:
        *whole, self._rest = (self._rest + text).split("\n")
        self._rest = self._rest[:_LONGEST]
        self.lines += [line[:_LONGEST] for line in whole[: max(MOST_PRINTED - len(self.lines), 0)]]
        self.count += len(whole)
        return int(self._log.write(text))

    def flush(self) -> None:
        self._log.flush()

    def fileno(self) -> int:
        return int(self._log.fileno())


def _listened(do: Callable[[messages.Check], StepResult]) -> Callable[[messages.Check], StepResult]:
    """A task whose result has what the file prints while it is done: its Python first, then its kernels."""

    @wraps(do)
    def listened(task: messages.Check) -> StepResult:
        heard = _Heard(sys.stdout)
        with contextlib.redirect_stdout(cast(Any, heard)):
            result = do(task)
        kernel, count = _kept[_key(task)][1].printed() if task.engine == "traced" else ([], 0)
        if heard.count + count:
            result["printed"] = [*heard.lines, *(line[:_LONGEST] for line in kernel)][:MOST_PRINTED]
            result["prints"] = heard.count + count
        return result

    return listened


@_spared
@_listened
def check_task(task: messages.Check) -> StepResult:
    """Check one file at one shape, as :class:`common.check.plan.Case` says; an engine's module is kept from case to
    case."""
    _keep_kernels(task.kernels)
    from common.check import check

    problem = problems.from_shape(task.ladder, task.shape)
    path = Path(task.path)
    engine = task.engine
    module, tracer = _kept_module(task, engine)
    found: list[Fault] = []
    told, depth = "", task.depth
    if engine == "traced":
        from common.trace.state import TraceError

        tracer.forget()
        try:
            verdict, depth, told = _traced_verdict(task, module, tracer, problem)
            problem, found = verdict.problem, tracer.faults()
        except check.TooLargeError as error:
            assert task.budget is not None
            said = plan.beyond_budget(error.seconds, task.budget)
            return {"status": "unjudged", "engine": engine, "message": said, "late": True}
        except TraceError as error:
            return _untraced(error, path)
    elif task.depth == "large":
        _held.drop()
        _let_go()
        budget.require_large(problem, _room(task))
        from common.check import fullsize

        try:
            verdict = fullsize.check_large(module, problem)
        finally:
            _let_go()
    else:
        verdict = _verdict(task, lambda: check.Bench(module, problem))
    key, before = _key(task), _before.get(_key(task))
    if before and not verdict.right and not found and task.budget is None and task.depth != "large":
        verdict.findings = _after(task, problem, before, verdict).findings
    _before[key] = problem if verdict.right else None
    if verdict.right:
        verdict.findings += [check.Finding("unsound", one.placed) for one in found]
    else:  # why the elements of threads that raise are not written
        raised = [check.Finding("unsound", one.placed) for one in found if one.kind == "raises"]
        verdict.findings[:0] = raised
    verdict.findings = [replace(one, message=one.message + told) for one in verdict.findings]
    result = _found(verdict)
    result["engine"], result["seed"] = engine, task.seed
    if engine == "traced" and task.budget is not None:
        result["depth"] = depth
    if not verdict.right:
        names = catalog.LAUNCH_ARGUMENTS[problem.ladder]
        known = [faults.of_finding(finding, found, path, names) for finding in result["findings"]]
        known = [*faults.of_text(path), *known]
        result["faults"] = [fault.as_dict() for fault in dict.fromkeys(filter(None, known))]
    return result


_before: dict[str, problems.Problem | None] = {}  # by engine and file: the shape before, if that was right


def _after(
    task: messages.Check, problem: problems.Problem, before: problems.Problem, found: check.Verdict
) -> check.Verdict:
    """A verdict that is not right, told as what is kept from the shape before if a module of its own is right."""
    from common.check import check
    from common.trace.bench import TracedBench

    tracer = _tracer(task) if task.engine == "traced" else None
    with tracer or contextlib.nullcontext():
        module = _module(task)
    make = partial(TracedBench, module, problem, tracer) if tracer else partial(check.Bench, module, problem)
    if not _verdict(task, make).right:
        return found
    said = f"right when it is the first shape; here {before} came before it, and something is kept between launches"
    return replace(found, findings=[check.Finding("stale", f"{said}: {found.findings[0].message}")])


# Mistakes that Python names when a kernel is traced.
_OF_PYTHON = (
    "allocates", "argument-count", "array-for-number", "returns-nothing", "unknown-attribute", "unknown-name",
    "unset-variable",
)  # fmt: skip


def _traced_verdict(
    task: messages.Check, module: Any, tracer: Any, problem: problems.Problem
) -> tuple[check.Verdict, plan.Depth, str]:
    """A verdict of the tracer, how deep the check was, and what is said of the card. Raises TraceError for what it
    does not know, TooLargeError for what its budget has no room for."""
    from common.check import check, shapes
    from common.trace import executor
    from common.trace.bench import TracedBench, widest

    if task.wide and widest(module, problem) < shapes.MAX_GRID_YZ:
        problem = shapes.narrow(problem)

    def make() -> Any:
        return TracedBench(module, problem, tracer)

    if task.budget is not None:
        budget = check.Budget(task.budget)
        with replaced(executor, done_with=budget.groups):
            return *check.check_measured(make, budget, task.seed, task.precision, task.algorithm), ""
    verdict = _verdict(task, make)
    small = task.small and tracer.asked
    return verdict, task.depth, f" (on a card of {shapes.FEW} multiprocessors)" if small else ""


def _untraced(error: Exception, path: Path) -> StepResult:
    """Of what the tracer does not know there is no verdict but a GPU's; a mistake is told."""
    from common.trace.state import MistakeError

    told = None
    if isinstance(error, MistakeError):
        told = faults.of_mistake(str(error), path, error.line)
    elif error.__cause__ is not None:
        told = errors.of_error(error.__cause__, path)
    if told and (isinstance(error, MistakeError) or told.kind in _OF_PYTHON):
        return {"status": "crashed", "engine": "traced", "message": told.what, "faults": [told.as_dict()]}
    return {"status": "unjudged", "engine": "traced", "message": str(error)}


def _kept_module(task: messages.Check, engine: str) -> tuple[Any, Any]:
    """The task's module as this engine has it, and a tracer."""
    key = _key(task)
    if key not in _kept:
        tracer = _tracer(task) if engine == "traced" else None
        # of another card are other tiles, and what functions keep by shape: their modules are others, too
        anew = catalog.anew() if task.small else contextlib.nullcontext()
        with anew, tracer or contextlib.nullcontext():  # a file may make arrays when it is imported
            _kept[key] = _module(task), tracer
    return _kept[key]


def _key(task: messages.Check) -> str:
    return json.dumps([task.engine, task.path, task.home, task.helpers, task.ladder, task.small])


def _tracer(task: messages.Check | None = None) -> Any:
    from common.check import shapes
    from common.trace.trace import Tracer

    return Tracer(multiprocessors=shapes.FEW) if task and task.small else Tracer()


def _found(verdict: check.Verdict) -> StepResult:
    """A verdict as a result."""
    found = verdict.as_dict()
    return {
        "status": "right" if verdict.right else "wrong",
        "shape": found["shape"],
        "right": found["right"],
        "elements_compared": found["elements_compared"],
        "findings": found["findings"],
    }


def _verdict(task: messages.Check, make: Callable[[], Any]) -> Any:
    from common.check import check

    if task.depth == "once":
        return check.check_once(make(), task.seed, task.special, task.precision, task.algorithm)
    if task.depth == "thorough":
        return check.check_thoroughly(make, task.seed, task.repeats, task.precision, task.algorithm)
    return check.check_bench(make(), task.seed, task.repeats, task.precision, task.algorithm)


def _module(task: FileTask[Result], rival: messages.Rival | None = None, tile: messages.Tile | None = None) -> Any:
    """The module of the task's file, or of its rival, imported anew; ``tile``: other tile constants."""
    file = rival or task
    with ledger.stage(ledger.IMPORTS):
        return catalog.load(Path(file.path), task.ladder, task.home, file.helpers, tile)


def _tiled(task: FileTask[Result], tile: messages.Tile) -> tuple[Any, messages.Tile]:
    """The module of the task's file with these tile constants, and what of them its ``launch`` takes by keyword."""
    module = _module(task)
    return (module, tile) if boundstep.takes_tile(module, tile) else (_module(task, tile=tile), {})


class _Held:
    """What this process keeps from task to task: the operands of one problem, and a stopwatch."""

    def __init__(self) -> None:
        self._key: Any = None
        self._operands: fullsize.Operands | None = None
        self._stopwatch: timing.Stopwatch | None = None

    def operands(
        self, problem: problems.Problem, task: messages.Time | messages.Pair | messages.Sweep
    ) -> fullsize.Operands:
        """Those of the problem; made anew if others are held."""
        from common.check import fullsize

        seed = task.seed if isinstance(task, messages.Time) else 0
        key = problem, seed
        if self._operands is None or key != self._key:
            self.drop()
            with ledger.stage("inputs"):
                self._operands = fullsize.Operands(fullsize.draw(problem, seed), _room(task))
            self._key = key
        return self._operands

    def drop(self) -> None:
        """After a step that may have written anywhere, nothing that was held can be trusted."""
        self._operands = None
        _let_go()

    def stopwatch(self) -> timing.Stopwatch:
        from common.timing import timing

        if self._stopwatch is None:
            with ledger.stage("context"):
                self._stopwatch = timing.Stopwatch(device.l2_bytes())
        return self._stopwatch


_held = _Held()


@_spared
def time_task(task: messages.Time) -> StepResult:
    """Check one file at full size by samples, then time it; the operands wait for the next file on this problem."""
    _keep_kernels(task.kernels)
    from numba import cuda

    from common.check import check, fullsize
    from common.machine_code import kernelcache
    from common.timing import peers

    stopwatch = _held.stopwatch()
    with ledger.stage("full-size check"):
        module = _module(task)
        problem = _sized(task, module)
    operands: Any = _held.operands(problem, task)
    with ledger.stage("full-size check"):
        verdict = fullsize.verify(check.Bench(module, operands.problem, beside=operands), operands)
    result = _found(verdict)
    if not verdict.right:
        _held.drop()
        return result
    # imported anew, so that prepare and compilation are seen cold
    module = _module(task)
    with ledger.stage("timing"):
        bench = check.Bench(module, operands.problem, beside=operands)
        operands.put_normals()
        cuda.synchronize()
        prepare_ms = _cold(bench.prepare, kernelcache.SPENT)
        first_launch_ms = _cold(bench.launch, kernelcache.SPENT)
        result["timing"] = stopwatch.measure(bench.launch, max_seconds=task.most_seconds)
        if task.beside and peers.available():
            beside = peers.measure_beside(bench.launch, problem, task.beside, stopwatch)
            if beside:
                result["beside"] = beside
            else:
                result["lacking"] = "the library that it is timed in turn with ran out of GPU memory"
    result["prepare_ms"] = prepare_ms if hasattr(module, "prepare") else None
    result["first_launch_ms"] = first_launch_ms
    result["workspace_bytes"] = _nbytes(bench.step.workspace)
    path = Path(task.path)
    result["source"], result["helpers"] = _code(path)
    result["imports"] = sources.imported_steps(path)
    return result


def _cold(action: Callable[[], object], spent: kernelcache.Spent) -> float:
    """Milliseconds of the action, with what compiling its kernels took wherever that was done."""
    from numba import cuda

    spent.start()
    start = time.perf_counter()
    action()
    cuda.synchronize()
    return (time.perf_counter() - start) * 1e3 + spent.saved_ms


def prepare_task(task: messages.Prepare) -> messages.PrepareResult:
    """Compile a file's kernels for each of ``shapes``, and keep them; launches nothing.

    ``kept`` says how many are there now. A shape that the step refuses has none. What a step asks of the ``device``
    is answered without it.
    """
    _keep_kernels(task.kernels)
    from numba import cuda

    from common.machine_code import codegen, kernelcache

    gpu = task.device
    major, minor = map(int, gpu.compute_capability.split("."))
    capability = major, minor
    told = {"compute_capability": capability, "MULTIPROCESSOR_COUNT": gpu.multiprocessors, "name": gpu.name}
    limited = device.bounds(gpu.compute_capability)
    ask = device.as_card(limited if limited in limits.LIMITS else device.USUAL_CARD, **told)
    kept = 0
    seen: set[tuple[int, str]] = set()
    with replaced(cuda, get_current_device=ask):
        module = _module(task)
    # what is surely started first
    for find, shape in itertools.product((codegen.launches, codegen.tried), task.shapes):
        with suppress(ValueError), replaced(cuda, get_current_device=ask):
            for launch in codegen.distinct(find(module, problems.from_shape(task.ladder, shape))):
                key = id(launch.kernel), str(launch.signature)
                if key not in seen:
                    seen.add(key)
                    with ledger.stage("compile"):
                        kept += kernelcache.compile_for(launch.kernel, launch.signature.args, capability)
    return {"status": "right", "kept": kept}


def pair_task(task: messages.Pair) -> StepResult:
    """Check one file at full size by samples, then time it in turn with each other of ``against``.

    ``pairs`` has, by the same names, what :class:`common.timing.timing.Paired` holds: the other's time is the first.
    With no other, ``timing`` has the file's own.
    """
    from common.check import check, fullsize

    module = _module(task)
    operands: Any = _held.operands(_sized(task, module), task)
    bench = check.Bench(module, operands.problem, beside=operands)
    verdict = fullsize.verify(bench, operands)
    result = _found(verdict)
    if not verdict.right:
        _held.drop()
        return result
    operands.put_normals()
    bench.prepare()
    bench.launch()
    stopwatch = _held.stopwatch()
    pairs: dict[str, timing.Paired] = {}
    for name, rival in task.against.items():
        other = check.Bench(_module(task, rival), operands.problem, beside=operands)
        other.prepare()
        other.launch()
        pairs[name] = stopwatch.measure_pairs(other.launch, bench.launch)
    if not pairs:
        result["timing"] = stopwatch.measure(bench.launch)
    return {**result, "pairs": pairs, "gpu": device.current_gpu().name}


def tunables_task(task: messages.Tunables) -> messages.TunablesResult:
    """The tile constants a file lets a sweep vary, their values to try, and those it ships with."""
    module = _module(task)
    tunables = getattr(module, "TUNABLES", {})
    choose = getattr(module, "shipped", None)  # for steps whose tile depends on the problem
    shipped = choose(problems.from_shape(task.ladder, task.shape)) if choose else vars(module)
    return {
        "status": "right",
        "tunables": {name: list(values) for name, values in tunables.items()},
        "shipped": {name: shipped[name] for name in tunables},
    }


def sweep_task(task: messages.Sweep) -> StepResult:
    """Check one tile at full size by samples, then time it; ``refused`` if the step or the card does not take it."""
    _keep_kernels(task.kernels)
    from numba.cuda.cudadrv.driver import CudaAPIError

    from common.check import check, fullsize

    module, tile = _tiled(task, task.tile)
    try:
        operands: Any = _held.operands(_sized(task, module, tile), task)
        bench = check.Bench(module, operands.problem, tile, beside=operands)
        verdict = fullsize.verify(bench, operands)
    except CudaAPIError as error:
        if "OUT_OF_RESOURCES" in str(error):
            return {"status": "refused", "message": "the block needs more registers than a multiprocessor has"}
        raise
    result = _found(verdict)
    if not verdict.right:
        _held.drop()
    else:
        operands.put_normals()
        bench.prepare()
        bench.launch()
        result["timing"] = _held.stopwatch().measure(bench.launch, max_seconds=SWEEP_SECONDS)
    return result


def size_task(task: messages.Size) -> messages.SizeResult:
    """The ``shape`` at which a file's launch fits this card, and lasts no longer than it may."""
    return {"status": "right", "shape": _sized(task, _module(task)).shape()}


def launch_task(task: messages.Launch) -> messages.LaunchResult:
    """Launch a file's kernels once, for tools that watch from outside.

    No margins: an access beyond an array must leave its allocation to be seen.
    """
    from numba import cuda

    from common.check import check, inputs

    problem = _fit(task)
    bench = check.Bench(_module(task), problem, margin=0)
    with _counting_launches() as kernels:
        bench.load(*inputs.normals(problem, 0))
        bench.launch()
    cuda.synchronize()
    source, helpers = _code(Path(task.path))
    return {"status": "right", "shape": problem.shape(), "source": source, "helpers": helpers, "kernels": kernels}


def peer_task(task: messages.Peer) -> messages.PeerResult:
    """Time cuBLAS or cuDNN on a problem."""
    from numba import cuda

    from common.timing import peers, timing

    _held.drop()
    cuda.current_context()
    problem = _fit(task)
    lacking: list[str] = []
    rows = peers.measure(problem, timing.Stopwatch(device.l2_bytes()), lacking)
    return {"status": "right", "shape": problem.shape(), "rows": rows, "message": "; ".join(lacking) or None}


def epilogues_task(task: messages.Epilogues) -> messages.EpiloguesResult:
    """Time a step with each of a module's epilogues."""
    import importlib

    from numba import cuda

    from common.timing import fusing, peers, timing

    _held.drop()
    cuda.current_context()
    problem, ways = _fit(task), importlib.import_module(task.ways)
    stopwatch = timing.Stopwatch(device.l2_bytes())
    return {
        "status": "right",
        "shape": problem.shape(),
        "found": fusing.measure(_module(task), ways.ways, problem, lambda: stopwatch),
        "code": sources.provenance(Path(task.path)),
        "ways": sources.provenance(Path(str(ways.__file__))),
        "library": peers.version(problem) if peers.available() else "",
    }


def ceilings_task(task: messages.Ceilings) -> messages.CeilingsResult:
    """Measure this GPU's ceilings and say what it is."""
    from common.timing import ceilings, timing

    _held.drop()
    gpu = device.current_gpu()
    stopwatch = timing.Stopwatch(gpu.l2_bytes)
    measured = ceilings.measure(stopwatch, gpu.multiprocessors, _room(task), gpu.compute_capability)
    return {"status": "right", "gpu": gpu, "ceilings": measured}


def accuracy_task(task: messages.Accuracy) -> messages.AccuracyResult:
    """Measure the errors of steps on matrices, and of cuBLAS."""
    from common.timing import accuracy

    _held.drop()
    files = {name: (Path(path), name.split("_")[0]) for name, path in task.files.items()}
    steps = {name: (catalog.load(path, ladder), ladder) for name, (path, ladder) in files.items()}
    code = {name: sources.provenance(path) for name, (path, _) in files.items()}
    return {"status": "right", "products": accuracy.measure(steps), "code": code}


def device_task(_: messages.Device) -> messages.DeviceResult:
    """Say what this GPU is, and how much of its memory problems may take."""
    return {"status": "right", "gpu": device.current_gpu(), "room_bytes": _own_room()}


def compile_task(task: messages.Compile) -> StepResult:
    """Compile every kernel of a file for the named architectures; count machine instructions where asked.

    ``other_presets`` has the kernels of those of ``others`` that compile to something else. A launch beyond the
    limits of an architecture raises LaunchLimitError.
    """
    path = Path(task.path)
    launched: list[object] = []
    first: list[Compiled] = []
    others: dict[str, list[Compiled]] = {preset: [] for preset in task.others}
    for architectures in _by_card(path, task.architectures):
        with _on_card(architectures[0]):
            kernels = _compiler(task, _module(task), architectures, launched)
            first += kernels(task.shape)
            for preset, shape in task.others.items():
                others[preset] += kernels(shape)
    unlike = {preset: entries for preset, entries in others.items() if entries != first}
    result: StepResult = {"status": "right", "kernels": first, "other_presets": unlike}
    result["source"], result["helpers"] = _code(path)
    if task.machine_code:
        result["digest"] = hashlib.sha256(json.dumps(launched).encode()).hexdigest()
    if any(entry["float64"] for entry in first):
        result["faults"] = [faults.of_float64(path).as_dict()]
    return result


def _by_card(path: Path, architectures: list[str]) -> list[list[str]]:
    """The architectures in groups for which a file starts the same kernels: of equal shared memory, if it asks."""
    if ASKS not in {helper.stem for helper in sources.imported_helpers(path)}:
        return [architectures]
    by_size = sorted(architectures, key=lambda name: limits.limits(name).shared_bytes)
    return [list(found) for _, found in itertools.groupby(by_size, lambda name: limits.limits(name).shared_bytes)]


@contextlib.contextmanager
def _on_card(architecture: str) -> Iterator[None]:
    """While open, steps are imported anew, and find the limits of this compute capability."""
    from numba import cuda

    with catalog.anew(), replaced(cuda, get_current_device=device.as_card(architecture)):
        yield


def _compiler(
    task: messages.Compile, module: Any, architectures: list[str], told: list[object]
) -> Callable[[dict[str, int]], list[Compiled]]:
    """A function: what the kernels that a module starts for a shape compile to; ``told`` gets each launch of them."""
    from common.machine_code import cards, codegen

    built: dict[tuple[int, str], list[tuple[str, int, list[str], Any]]] = {}

    def compiled(launch: Any) -> list[tuple[str, int, list[str], Any]]:
        """For each architecture its name, the bytes of the kernel's own shared arrays, the lines in float64, and the
        machine code, if that was asked for."""
        key = id(launch.kernel), str(launch.signature)
        if key not in built:
            built[key] = []
            for name, text in codegen.ptx(launch, architectures, task.machine_code).items():
                code = None
                if task.machine_code:
                    try:
                        code = codegen.machine_code(launch, name, text)
                    except codegen.ToolMissingError:
                        if not task.lenient:
                            raise
                built[key].append((name, codegen.shared_arrays(text), codegen.float64_arithmetic(text), code))
        return built[key]

    def kernels(shape: dict[str, int]) -> list[Compiled]:
        entries: list[Compiled] = []
        launched = codegen.launches(module, problems.from_shape(task.ladder, shape))
        for launch, name in itertools.product(launched, architectures):
            has = name.removesuffix("a")
            limits.require_launch(launch.grid, launch.block, launch.dynamic_shared_bytes, has, launch.cluster)
        for launch in launched:
            for name, own, _, code in compiled(launch):
                limits.require_shared(own, launch.dynamic_shared_bytes, name.removesuffix("a"))
                asked = launch.grid, launch.block, launch.dynamic_shared_bytes, launch.cluster
                told.append([shape, name, code and code.digest, *asked])
        for launch in codegen.distinct(launched):
            for architecture, _, float64, code in compiled(launch):
                entry: Compiled = {"kernel": launch.name, "architecture": architecture, "float64": float64}
                if code is not None:
                    limits.require_registers(launch.block, code.registers)
                    entry = {**entry, **code.as_dict(), **cards.recorded(cards.card(launch, code))}
                entries.append(entry)
        return entries

    return kernels


def card_task(task: messages.Card) -> StepResult:
    """A card for every kernel of a file, and the ``text`` of its PTX or machine code where ``show`` asks for it."""
    from numba import cuda

    from common.machine_code import cards, codegen

    with replaced(cuda, get_current_device=device.as_card(task.architecture)):
        module = _module(task)
        launches = codegen.distinct(codegen.launches(module, problems.from_shape(task.ladder, task.shape)))
    if not launches:
        raise catalog.CatalogError(f"{Path(task.path).name}: launch starts no kernel")
    architecture, show = task.architecture, task.show
    found: list[CodeCard] = []
    for launch in launches:
        text = codegen.ptx(launch, [architecture], lines=show != "ptx")[architecture]
        if show == "ptx":
            shown = codegen.readable(text, launch)
            found.append({"kernel": launch.name, "architecture": architecture, "text": shown})
            continue
        try:
            code = codegen.machine_code(launch, architecture, text)
        except codegen.ToolMissingError as error:
            return {"status": "unusable", "missing_tool": True, "message": str(error)}
        found.append(cards.card(launch, code))
        if show == "sass":
            found[-1]["text"] = cards.whole(code)
    return {"status": "right", "cards": found}


def maps_task(task: messages.Maps) -> StepResult:
    """Run a conv2d step on given operands (.npy files) and save its output; without a GPU it is traced."""
    import numpy as np

    from common.check import check

    x, filt = np.load(task.x), np.load(task.filt)
    n, c, h, w = x.shape
    k, _, r, s = filt.shape
    problem = problems.Conv2d(N=n, C=c, H=h, W=w, K=k, R=r, S=s)
    bench: Any
    if device.gpu_count():
        bench = check.Bench(_module(task), problem)
    else:
        from common.trace.bench import TracedBench

        bench = TracedBench(_module(task), problem, _tracer())
    bench.load(x, filt)
    bench.y.blank()
    bench.run()
    np.save(task.y, bench.y.get())
    return {"status": "right", "shape": problem.shape()}


def trace_task(task: Trace) -> TraceResult:
    """Trace a file's kernels at one shape."""
    from common.trace import trace
    from common.trace.state import TraceError

    try:
        module, tile = _tiled(task, task.options.tile or {})
        problem = problems.from_shape(task.ladder, task.shape)
        found = trace.run(module, problem, **{**asdict(task.options), "tile": tile})
    except TraceError as error:
        return {"status": "unusable", "message": str(error)}
    return {"status": "wrong" if found.faults else "right", "trace": found.as_dict()}


def explain_task(task: messages.Explain) -> messages.ExplainResult:
    """Let a step say what it would do for a problem and why: its ``explain(problem, weights on the GPU or None)``."""
    import numpy as np
    from numba import cuda

    problem = problems.from_shape(task.ladder, task.shape)
    module = _module(task)
    if not hasattr(module, "explain"):
        raise catalog.CatalogError(f"{task.step}: has nothing to explain: it defines no explain(problem, weights)")
    if device.gpu_count() == 0:
        return {"status": "right", "text": module.explain(problem, None)}
    weights = cuda.to_device(np.ones(problem.weight_shape, problem.weight_dtype))
    return {"status": "right", "text": module.explain(_fit(task), weights)}


def _code(path: Path) -> tuple[str, dict[str, str]]:
    """``source`` and ``helpers`` of the code that runs."""
    now = sources.provenance(path)
    return now.source, now.helpers or {}


def _require_limits() -> None:
    """Launches beyond a GPU's limits are refused before the driver sees them."""
    from numba import cuda
    from numba.cuda import dispatcher

    from common.machine_code import capture, launching

    launching.opt_in()
    for name, stand_in in limits.STREAMS.items():
        setattr(cuda, name, stand_in)
    call = dispatcher._LaunchConfiguration.__call__
    has = device.bounds(device.compute_capability())

    def checked(self: Any, *args: Any) -> Any:
        cluster = capture.cluster(self.dispatcher)
        limits.require_launch(tuple(self.griddim), tuple(self.blockdim), self.sharedmem, has, cluster)
        try:
            return call(self, *args)
        except Exception as error:
            if "OUT_OF_RESOURCES" in str(error):
                for registers in self.dispatcher.get_regs_per_thread().values():
                    limits.require_registers(tuple(self.blockdim), registers)
            raise

    dispatcher._LaunchConfiguration.__call__ = checked
    configure = dispatcher.CUDADispatcher.__getitem__

    def configured(self: Any, given: Any) -> Any:
        limits.require_configuration(self.py_func.__name__, given)
        return configure(self, given)

    dispatcher.CUDADispatcher.__getitem__ = configured


@cache
def _own_room() -> int:
    """The budget, worked out where this process has the GPU for itself."""
    return budget.room_bytes(device.free_bytes(), device.l2_bytes())


def _room(task: Task[Any]) -> int:
    """The bytes that the task may use: those it was given, or the budget of this process."""
    return getattr(task, "room_bytes", 0) or _own_room()


def _fit(task: ShapeTask[Any] | messages.Peer) -> problems.Problem:
    """The task's problem, reduced to what this card holds."""
    return budget.fitted(problems.from_shape(task.ladder, task.shape), _room(task))


_PROBE_SECONDS, _PROBES = 0.1, 5  # for launches that are timed first


def _sized(task: ShapeTask[Any], module: Any, tile: messages.Tile | None = None) -> problems.Problem:
    """The task's problem, reduced to what this card holds, and so that no launch of the module lasts too long."""
    from common.check import check

    def launch_seconds(size: problems.Problem) -> float:
        bench = check.Bench(module, size, tile)
        bench.load(*_integers(size))
        bench.run()  # compiles
        began, least = time.perf_counter(), math.inf
        for _ in range(_PROBES):  # more than one if it may be too slow: a clock takes its time to rise
            start = time.perf_counter()
            bench.run()
            end = time.perf_counter()
            least = min(least, end - start)
            if least * whole.flops / size.flops <= budget.LAUNCH_SECONDS / 2 or end - began > _PROBE_SECONDS:
                break
        return least

    whole = _fit(task)
    return budget.within_time(whole, launch_seconds) if device.gpu_count() else whole


@lru_cache(maxsize=2)
def _integers(problem: problems.Problem) -> Any:
    """Operands for one step after the other that is timed first on this problem."""
    from common.check import inputs

    return inputs.integers(problem, 0)


@contextlib.contextmanager
def _counting_launches() -> Iterator[list[str]]:
    """The names of the kernels launched meanwhile, in order."""
    from common.machine_code import capture

    names: list[str] = []

    def counted(self: Any, *args: Any) -> Any:
        names.append(self.dispatcher.py_func.__name__)
        return call(self, *args)

    with capture.launches(counted) as call:
        yield names


def _nbytes(workspace: Any) -> int:
    if workspace is None:
        return 0
    if isinstance(workspace, list | tuple):
        return sum(_nbytes(item) for item in workspace)
    return int(workspace.nbytes)
