"""What child processes do to check and to trace: ``check_task`` does the task ``check.check``, and so on.

Only child processes import this module: it brings Numba and the tracer, which take long.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any, cast

import numpy as np
from msgspec.structs import asdict, replace
from numba import cuda
from numba.cuda import dispatcher

from common.catalog import catalog, device, limits, problems, stages
from common.check import budget, check, fullsize, loading, plan, shapes
from common.check.compiling import compile_task, prepare_task, summarise_task
from common.check.tracedbench import TracedBench, widest
from common.explain import errors, faults
from common.explain.faults import Fault
from common.machine_code import capture
from common.machine_code.capture import replaced
from common.run import messages, results
from common.run.results import Depth, Finding, StepResult
from common.trace import executor, trace
from common.trace.cost import MOST_PRINTED
from common.trace.messages import Script, ScriptResult, Trace, TraceResult
from common.trace.state import MistakeError, TraceError
from common.trace.trace import Tracer

__all__ = [
    "ask_task", "check_task", "compile_task", "explain_task", "maps_task", "prepare_task", "script_task",
    "summarise_task", "trace_task",
]  # fmt: skip


_LONGEST = 200  # characters of a line that a file prints


def ready() -> None:
    """Make this process one in which kernels run as the workbook wants it."""
    _require_limits()
    device.play()


@dataclass
class _Loaded:
    """A file as one engine has it: ``tracer`` has its kernels as they were first launched, and is None on a GPU.

    ``before``  the shape before, if the file was right there
    """

    module: Any
    tracer: Any
    before: problems.Problem | None = None


# By file and engine, from case to case: engines have arrays of their own, and a step may keep them by their contents.
_kept: dict[str, _Loaded] = {}


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
        kernel, count = _kept[_key(task)].tracer.printed() if task.engine == "traced" else ([], 0)
        if not heard.count + count:
            return result
        lines = [*heard.lines, *(line[:_LONGEST] for line in kernel)][:MOST_PRINTED]
        return replace(result, printed=lines, prints=heard.count + count)

    return listened


@loading.spared
@_listened
def check_task(task: messages.Check) -> StepResult:
    """Check one file at one shape, as :class:`common.check.plan.Case` says; an engine's module is kept from case to
    case."""
    loading.keep_kernels(task.kernels)

    problem = problems.from_shape(task.ladder, task.shape)
    path = Path(task.path)
    engine = task.engine
    file = _kept[_key(task)] = _kept.get(_key(task)) or _load(task)
    found: list[Fault] = []
    told, depth = "", task.depth
    if engine == "traced":
        file.tracer.forget()
        try:
            verdict, depth, told = _traced_verdict(task, file, problem)
            problem, found = verdict.problem, file.tracer.faults()
        except check.TooLargeError as error:
            assert task.budget is not None
            said = plan.beyond_budget(error.seconds, task.budget)
            return StepResult(status="unjudged", engine=engine, message=said, late=True)
        except TraceError as error:
            return _untraced(error, path)
    elif task.depth == "large":
        loading.drop()
        budget.require_large(problem, loading.room_of(task))

        try:
            verdict = fullsize.check_large(file.module, problem)
        finally:
            loading.let_go()
    else:
        verdict = _verdict(task, partial(_bench, file, problem))
    if file.before and not verdict.right and not found and task.budget is None and task.depth != "large":
        verdict.findings = _after(task, problem, file.before, verdict.findings)
    file.before = problem if verdict.right else None
    if verdict.right:
        verdict.findings += [Finding("unsound", one.placed) for one in found]
    else:  # why the elements of threads that raise are not written
        raised = [Finding("unsound", one.placed) for one in found if one.kind == "raises"]
        verdict.findings[:0] = raised
    verdict.findings = [Finding(one.kind, one.message + told) for one in verdict.findings]
    measured = engine == "traced" and task.budget is not None
    result = replace(loading.found(verdict), engine=engine, seed=task.seed, depth=depth if measured else None)
    if verdict.right:
        return result
    names = catalog.LAUNCH_ARGUMENTS[problem.ladder]
    known = [faults.of_finding(one.kind, one.message, found, path, names) for one in verdict.findings]
    return replace(result, faults=list(dict.fromkeys(filter(None, [*faults.of_text(path), *known]))))


def _after(
    task: messages.Check, problem: problems.Problem, before: problems.Problem, found: list[Finding]
) -> list[Finding]:
    """Findings, told as what is kept from the shape before if a module of its own is right."""
    if not _verdict(task, partial(_bench, _load(task), problem)).right:
        return found
    said = f"right when it is the first shape; here {before} came before it, and something is kept between launches"
    return [Finding("stale", f"{said}: {found[0].message}")]


# Mistakes that Python names when a kernel is traced.
_OF_PYTHON = (
    "allocates", "argument-count", "array-for-number", "returns-nothing", "unknown-attribute", "unknown-name",
    "unset-variable",
)  # fmt: skip


def _traced_verdict(
    task: messages.Check, file: _Loaded, problem: problems.Problem
) -> tuple[check.Verdict, Depth, str]:
    """A verdict of the tracer, how deep the check was, and what is said of the card. Raises TraceError for what it
    does not know, TooLargeError for what its budget has no room for."""
    if task.wide and widest(file.module, problem) < shapes.MAX_GRID_YZ:
        problem = shapes.narrow(problem)

    make = partial(_bench, file, problem)
    if task.budget is not None:
        seconds = check.Budget(task.budget)
        with replaced(executor, done_with=seconds.groups):
            return *check.check_measured(make, seconds, _rules(task)), ""
    verdict = _verdict(task, make)
    small = task.small and file.tracer.asked
    return verdict, task.depth, f" (on a card of {shapes.FEW} multiprocessors)" if small else ""


def _untraced(error: Exception, path: Path) -> StepResult:
    """Of what the tracer does not know there is no verdict but a GPU's; a mistake is told."""
    told = None
    if isinstance(error, MistakeError):
        told = faults.of_mistake(str(error), path, error.line)
    elif error.__cause__ is not None:
        told = errors.of_error(error.__cause__, path)
    if told and (isinstance(error, MistakeError) or told.kind in _OF_PYTHON):
        return StepResult(status="crashed", engine="traced", message=told.what, faults=[told])
    return StepResult(status="unjudged", engine="traced", message=str(error))


def _load(task: messages.Check) -> _Loaded:
    """The task's file, imported anew, with a tracer of its own for an engine that is one."""
    tracer = None
    if task.engine == "traced":
        tracer = Tracer(multiprocessors=shapes.FEW) if task.small else Tracer()
    # of another card are other tiles, and what functions keep by shape: their modules are others, too
    anew = catalog.anew() if task.small else contextlib.nullcontext()
    with anew, tracer or contextlib.nullcontext():  # a file may make arrays when it is imported
        return _Loaded(loading.load(task), tracer)


def _bench(file: _Loaded, problem: problems.Problem) -> check.Bench:

    return TracedBench(file.module, problem, file.tracer) if file.tracer else check.Bench(file.module, problem)


def _key(task: messages.Check) -> str:
    return json.dumps([task.engine, task.path, task.home, task.helpers, task.ladder, task.small])


def _rules(task: messages.Check) -> check.Rules:

    return check.Rules(task.seed, task.repeats, task.precision, task.algorithm)


def _verdict(task: messages.Check, make: Callable[[], Any]) -> Any:

    if task.depth == "once":
        return check.check_once(make(), _rules(task), task.special)
    if task.depth == "thorough":
        return check.check_thoroughly(make, _rules(task))
    return check.check_bench(make(), _rules(task))


def maps_task(task: messages.Maps) -> StepResult:
    """Run a conv2d step on given operands (.npy files) and save its output; without a GPU it is traced."""
    x, filt = np.load(task.x), np.load(task.filt)
    n, c, h, w = x.shape
    k, _, r, s = filt.shape
    problem = problems.Conv2d(N=n, C=c, H=h, W=w, K=k, R=r, S=s)
    tracer = None if device.gpu_count() else Tracer()
    bench = _bench(_Loaded(loading.load(task), tracer), problem)
    bench.load(x, filt)
    bench.y.blank()
    bench.run()
    np.save(task.y, bench.y.get())
    return StepResult(status="right", shape=problem.shape())


def ask_task(task: messages.Ask) -> results.Answer:
    """Call the task's function."""
    return results.Answer(status="right", found=task.function(*task.given))


def trace_task(task: Trace) -> TraceResult:
    """Trace a file's kernels at one shape."""
    try:
        module, tile = loading.load_tiled(task, task.options.tile or {})
        problem = problems.from_shape(task.ladder, task.shape)
        found = trace.run(module, problem, **{**asdict(task.options), "tile": tile})
    except TraceError as error:
        return TraceResult(status="unusable", message=str(error))
    return TraceResult(status="wrong" if found.faults else "right", trace=replace(found, output=None))


def script_task(task: Script) -> ScriptResult:
    """Run a program, its kernels in the tracer."""
    from common.trace import script

    for name, number, stream in ((task.output, 1, "stdout"), (task.errors, 2, "stderr")):
        if name:
            handle = os.open(name, os.O_WRONLY | os.O_APPEND)
            os.dup2(handle, number)
            file = open(number, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
            setattr(sys, stream, file)
    os.chdir(task.folder)
    return script.run(Path(task.path), list(task.words), task.stop, task.kept)


def explain_task(task: messages.Explain) -> results.ExplainResult:
    """Let a step say what it would do for a problem and why: its ``explain(problem, weights on the GPU or None)``."""
    problem = problems.from_shape(task.ladder, task.shape)
    module = loading.load(task)
    if not hasattr(module, "explain"):
        raise catalog.CatalogError(f"{task.step}: has nothing to explain: it defines no explain(problem, weights)")
    if device.gpu_count() == 0:
        return results.ExplainResult(status="right", text=module.explain(problem, None))
    weights = cuda.to_device(np.ones(problem.weight_shape, problem.weight_dtype))
    return results.ExplainResult(status="right", text=module.explain(loading.fitted(task), weights))


def _require_limits() -> None:
    """Launches beyond a GPU's limits are refused before the driver sees them."""
    capture.opt_in()
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
    compile_ = dispatcher.CUDADispatcher.compile

    def compiled(self: Any, *args: Any) -> Any:
        with stages.stage(stages.COMPILE):
            return compile_(self, *args)

    dispatcher.CUDADispatcher.compile = compiled
