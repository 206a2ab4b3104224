"""What child processes do to check and to trace: ``check_task`` does the task ``check.check``, and so on.

Only child processes import this module: it brings Numba and the tracer, which take long.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import asdict, replace
from numba import cuda
from numba.cuda import dispatcher

from common.catalog import catalog, device, limits, problems
from common.check import check, fullsize, loading, plan
from common.check.compiling import compile_task, prepare_task, summarise_task
from common.explain import errors, faults
from common.explain.faults import Fault
from common.machine_code import capture, codegen, kernelcache
from common.run import messages, stages
from common.run.messages import Finding, StepResult
from common.trace import trace
from common.trace.cost import MOST_PRINTED
from common.trace.messages import Script, ScriptResult, Trace, TraceResult
from common.trace.state import MistakeError, TraceError
from common.trace.trace import Tracer

__all__ = [
    "ask_task", "check_task", "compile_task", "maps_task", "prepare_task", "script_task",
    "summarise_task", "trace_task",
]  # fmt: skip


_LONGEST = 200  # characters of a line that a file prints


def ready() -> None:
    """Make this process one in which kernels run as the workbook wants it: launches beyond a GPU's limits are refused
    before the driver sees them."""
    capture.opt_in()
    for name, stand_in in limits.STREAMS.items():
        setattr(cuda, name, stand_in)
    call = dispatcher._LaunchConfiguration.__call__
    has = device.bounds(device.compute_capability())

    def checked(self: Any, *args: Any) -> Any:
        cluster = limits.cluster_of(capture.bounds(self.dispatcher))
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
    kernelcache.install()
    device.play()


@dataclass
class _Loaded:
    """A file as one engine has it: ``tracer`` has its kernels as they were first launched, and is None on a GPU.
    ``before`` is the shape before, if the file was right there."""

    module: Any
    tracer: Any
    before: problems.Problem | None = None


# By file and engine, from case to case: engines have arrays of their own, and a step may keep them by their contents.
_kept: dict[str, _Loaded] = {}


class _Heard(io.StringIO):
    """What a file prints, which goes on to the log, too: the last words of a process that dies are in it."""

    log: Any = None

    def write(self, text: str) -> int:
        self.log.write(text)
        return super().write(text)


@loading.spared
def check_task(task: messages.Check) -> StepResult:
    """Check one file at one shape, as :class:`common.check.plan.Case` says; an engine's module is kept from case to
    case. The result has what the file prints: its Python first, then its kernels."""
    key = json.dumps([task.engine, task.path, task.home, task.helpers, task.ladder, task.small])
    heard = _Heard()
    heard.log = sys.stdout
    with contextlib.redirect_stdout(heard):
        file = _kept[key] = _kept.get(key) or _load(task)
        result = _checked(task, file)
    own = heard.getvalue().splitlines()
    kernel, count = file.tracer.printed() if file.tracer else ([], 0)
    shown = tuple(line[:_LONGEST] for line in (*own[:MOST_PRINTED], *kernel)[:MOST_PRINTED])
    return replace(result, printed=shown, prints=len(own) + count)


def _checked(task: messages.Check, file: _Loaded) -> StepResult:
    path, problem = Path(task.path), task.problem
    found: list[Fault] = []
    if file.tracer:
        file.tracer.forget()
        try:
            # a grid of more than 65,535 blocks along y or z is what such a shape is there for
            launched = codegen.launches(file.module, problem) if task.wide else ()
            if task.wide and max((n for one in launched for n in one.grid[1:]), default=0) < plan.MAX_GRID_YZ:
                problem = plan.narrow(problem)
            verdict = _verdict(task, file, problem)
        except TraceError as error:
            return _untraced(error, path)
        found = file.tracer.faults()
    else:
        verdict = _verdict(task, file, problem)
    again = file.before and not verdict.right and not found and task.depth != "large"
    if again and _verdict(task, _load(task), problem).right:  # in a module of its own
        said = f"right when it is the first shape; here {file.before} came before it, and something is kept"
        verdict.findings = [Finding("stale", f"{said} between launches: {verdict.findings[0].message}")]
    file.before = problem if verdict.right else None
    # of what is wrong, only why the elements of threads that raise are not written
    unsound = [Finding("unsound", one.placed) for one in found if verdict.right or one.kind == "raises"]
    card = f" (on a card of {plan.FEW} multiprocessors)" if file.tracer and task.small and file.tracer.asked else ""
    verdict.findings = [Finding(one.kind, one.message + card) for one in [*unsound, *verdict.findings]]
    result = verdict.result(task.engine, task.seed)
    if verdict.right:
        return result
    known = [faults.of_finding(one.kind, one.message, found, path, problem.names) for one in verdict.findings]
    in_text = faults.of_text(path, problem.input_dtype.kind == "f")
    return replace(result, faults=list(dict.fromkeys(filter(None, [*in_text, *known]))))


# Mistakes that Python names when a kernel is traced.
_OF_PYTHON = (
    "allocates", "argument-count", "array-for-number", "returns-nothing", "unknown-attribute", "unknown-name",
    "unset-variable",
)  # fmt: skip


def _untraced(error: Exception, path: Path) -> StepResult:
    """Of what the tracer does not know there is no verdict but a GPU's; a mistake is told."""
    mistake = isinstance(error, MistakeError)
    cause = error if mistake else error.__cause__
    told = errors.of_error(cause, path) if cause else None
    if told and (mistake or told.kind in _OF_PYTHON):
        return StepResult(status="crashed", engine="traced", message=told.what, faults=[told])
    return StepResult(status="unjudged", engine="traced", message=str(error))


def _load(task: messages.Check) -> _Loaded:
    """The task's file, imported anew, with a tracer of its own for an engine that is one."""
    few = plan.FEW if task.small else capture.MULTIPROCESSORS
    tracer = Tracer(multiprocessors=few) if task.engine == "traced" else None
    # of another card are other tiles, and what functions keep by shape: their modules are others, too
    anew = catalog.anew() if task.small else contextlib.nullcontext()
    with anew, tracer or contextlib.nullcontext():  # a file may make arrays when it is imported
        return _Loaded(loading.load(task), tracer)


def _verdict(task: messages.Check, file: _Loaded, problem: problems.Problem) -> check.Verdict:
    if task.depth == "large":
        loading.drop()
        loading.require_large(problem, loading.room())
        try:
            return fullsize.check_large(file.module, problem)
        finally:
            loading.let_go()
    rules = check.Rules(task.seed, task.repeats, task.precision, task.algorithm)
    make = partial(check.Bench, file.module, problem, tracer=file.tracer)
    if task.depth == "once":
        return check.check_once(make(), rules, task.special)
    return check.check_thoroughly(make, rules) if task.depth == "thorough" else check.check_bench(make(), rules)


# --- other tasks ---


def maps_task(task: messages.Maps) -> StepResult:
    """Run a conv2d step on given operands (.npy files) and save its output; without a GPU it is traced."""
    x, filt = np.load(task.x), np.load(task.filt)
    n, c, h, w = x.shape
    k, _, r, s = filt.shape
    problem = problems.Conv2d(N=n, C=c, H=h, W=w, K=k, R=r, S=s)
    bench = check.Bench(loading.load(task), problem, tracer=None if device.gpu_count() else Tracer())
    bench.load(x, filt)
    bench.blank()
    bench.run()
    np.save(task.y, bench.y.get())
    return StepResult(status="right", shape=problem.shape())


def ask_task(task: messages.Ask) -> messages.Answer:
    """Call the task's function."""
    return messages.Answer(status="right", found=task.function(*task.given))


def trace_task(task: Trace) -> TraceResult:
    """Trace a file's kernels at one shape."""
    try:
        module, tile = loading.load_tiled(task, task.options.tile or {})
        problem = task.problem
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
