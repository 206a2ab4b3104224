"""What child processes do to check, to compile and to trace: ``check_task`` does the task ``check.check``, and so on.

Only child processes import this module: it brings Numba and the tracer, which take long.
"""

import contextlib
import hashlib
import importlib
import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import asdict, replace
from numba import cuda
from numba.cuda import dispatcher
from numba.cuda.typing import builtins  # noqa: F401 - operators' types, which all kinds of tasks ask for

from common.catalog import cache, catalog, device, limits, problems
from common.check import check, fullsize, loading, plan
from common.explain import faults
from common.explain.faults import Fault
from common.machine_code import capture, codegen
from common.machine_code.capture import replaced
from common.machine_code.summaries import Kernel
from common.run import child, messages
from common.run.messages import Finding, Result, StepResult
from common.trace import trace
from common.trace.cost import MOST_PRINTED
from common.trace.messages import Script, ScriptResult, Trace, TraceResult
from common.trace.state import MistakeError, TraceError
from common.trace.trace import Tracer

_LONGEST = 200  # characters of a line that a file prints


def ready() -> None:
    """From now on launches beyond a GPU's limits are refused in this process, before the driver sees them."""
    capture.opt_in()
    for name, stand_in in limits.STREAMS.items():
        setattr(cuda, name, stand_in)
    dispatcher.CUDADispatcher.__iter__ = None  # to unpack a kernel asks for no configuration
    codegen.keep_kernels()
    compile_ = dispatcher.CUDADispatcher.compile

    def compiled(self: Any, *args: Any) -> Any:
        with child.stage(child.COMPILE):
            return compile_(self, *args)

    dispatcher.CUDADispatcher.compile = compiled


@dataclass
class _Loaded:
    """A file as one engine has it: ``tracer`` has its kernels as they were first launched, and is None on a GPU."""

    module: Any
    tracer: Any
    before: problems.Problem | None = None  # the shape before, if the file was right there


# By file and engine, from case to case: engines have arrays of their own, and a step may keep them by their contents.
_kept: dict[str, _Loaded] = {}


@loading.spared
def check_task(task: messages.Check) -> StepResult:
    """Check one file at one shape; an engine's module is kept from case to case. The result has what the file prints:
    its Python first, then its kernels."""
    key = json.dumps([task.engine, task.path, task.home, task.helpers, task.ladder, task.small])
    with contextlib.redirect_stdout(io.StringIO()) as heard:
        file = _kept[key] = _kept.get(key) or _load(task)
        result = _checked(task, file)
    if task.depth == "large":
        loading.let_go()
    own = heard.getvalue().splitlines()
    kernel, count = file.tracer.printed() if file.tracer else ([], 0)
    shown = tuple(line[:_LONGEST] for line in (*own[:MOST_PRINTED], *kernel)[:MOST_PRINTED])
    return replace(result, printed=shown, prints=len(own) + count)


def _checked(task: messages.Check, file: _Loaded) -> StepResult:
    path, problem = Path(task.path), task.problem
    found: list[Fault] = []
    try:
        if file.tracer:
            file.tracer.forget()
            # a grid of more than 65,535 blocks along y or z is what such a shape is there for
            launched = codegen.launches(file.module, problem) if task.wide else ()
            if task.wide and max((n for one in launched for n in one.grid[1:]), default=0) < plan.MAX_GRID_YZ:
                problem = plan.narrow(problem)
        verdict = _verdict(task, file, problem)
        found = file.tracer.faults() if file.tracer else []
    except TraceError as error:
        # of what the tracer does not know there is no verdict but a GPU's, or the compiler's; a mistake is told
        if isinstance(error, MistakeError) and (fault := faults.of_error(error, path)):
            return StepResult(status="crashed", engine="traced", message=fault.what, faults=[fault])
        return StepResult(status="unjudged", engine="traced", message=str(error))
    again = file.before and not verdict.right and not found and task.depth != "large"
    if again and _verdict(replace(task, repeats=0), _load(task), problem).right:  # in a module of its own
        said = f"right when it is the first shape; here {file.before} came before it, and something is kept"
        verdict.findings = [Finding("stale", f"{said} between launches: {verdict.findings[0].message}")]
    file.before = problem if verdict.right else None
    # of what is wrong, only why the elements of threads that raise are not written
    unsound = [Finding("unsound", one.placed) for one in found if verdict.right or one.kind == "raises"]
    card = f" (on a card of {plan.FEW} multiprocessors)" if file.tracer and task.small and file.tracer.asked else ""
    verdict.findings = [Finding(one.kind, one.message + card) for one in [*unsound, *verdict.findings]]
    known = [faults.of_finding(one.kind, one.message, found, path, problem.names) for one in verdict.findings]
    in_text = [] if verdict.right else faults.of_text(path, problem.input_dtype.kind == "f")
    told = tuple(dict.fromkeys(filter(None, [*in_text, *known])))
    depth = task.depth if file.tracer else None
    return verdict.result(engine=task.engine, seed=task.seed, faults=told, depth=depth)


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
        return fullsize.check_large(file.module, problem)
    make = partial(check.Bench, file.module, problem, tracer=file.tracer)
    if task.depth == "once":
        return check.check_once(make(), task)
    return check.check_thoroughly(make, task) if task.depth == "thorough" else check.check_bench(make(), task)


# --- compiling ---


@contextlib.contextmanager
def on_card(architecture: str, multiprocessors: int = capture.MULTIPROCESSORS, **told: object) -> Iterator[None]:
    """While open, steps are imported anew, and find the limits of this compute capability: a :class:`capture.Device`
    with what is ``told``."""
    card = capture.Device(multiprocessors, architecture, **told)
    with catalog.anew(), replaced(cuda, get_current_device=lambda: card):
        yield


def prepare_task(task: messages.Prepare) -> Result:
    """Compile a file's kernels for each of ``shapes``, but those that it refuses, and keep them; launches nothing.
    What a step asks of the ``device`` is answered without it."""
    gpu, limited = task.device, str(device.bounds())
    major, minor = map(int, gpu.compute_capability.split("."))
    limited = limited if limited in limits.LIMITS else device.USUAL_CARD
    with on_card(limited, gpu.multiprocessors, compute_capability=(major, minor), name=gpu.name):
        module, found = loading.load(task), list[codegen.Launch]()
        for shape in task.shapes:
            with contextlib.suppress(ValueError):
                found += codegen.launches(module, problems.from_shape(task.ladder, shape), candidates=True)
        for launch in codegen.distinct(found):
            codegen.compile_for(launch.kernel, launch.signature.args, (major, minor))
    return Result(status="right")


def compile_task(task: messages.Compile) -> StepResult:
    """Compile every kernel of a file for the named architectures; count machine instructions where asked. A launch
    beyond the limits of an architecture raises LaunchLimitError."""
    path, shapes = Path(task.path), {"": task.shape, **task.others}
    found: dict[str, list[Kernel]] = {name: [] for name in shapes}
    told, wide = list[object](), False  # of each launch; does one compute in float64
    for architectures in loading.by_card(path, task.architectures):
        with on_card(architectures[0]):
            known = _shipped(task)  # before the file, which may change what it imports
            module, built = loading.load(task), dict[object, _Built]()
            for name, shape in shapes.items():
                found[name] += _kernels(task, module, shape, architectures, built, told, known)
            texts = (text for one in built.values() for text, *_ in one.values())
            wide = wide or any(map(codegen.float64_arithmetic, texts))
    for entries in found.values():
        entries.sort(key=lambda entry: task.architectures.index(entry.architecture))
    first = found.pop("")
    return StepResult(
        status="right", kernels=first, source=cache.code(path),
        other_presets={preset: entries for preset, entries in found.items() if entries != first},
        digest=hashlib.sha256(json.dumps(told).encode()).hexdigest() if task.machine_code else None,
        faults=[faults.of_float64(path)] if wide else (),
    )  # fmt: skip


_Built = dict[str, tuple[str, Kernel, str]]  # for each architecture: PTX, machine code and its digest


def _shipped(task: messages.Compile) -> list[codegen.Launch]:
    """What the steps that the task names launch at its shape."""
    found = list[codegen.Launch]()
    for name in task.shipped:
        with contextlib.suppress(ValueError):  # refused
            found += codegen.launches(importlib.import_module(name), task.problem)
    return found


def _kernels(
    task: messages.Compile, module: Any, shape: dict[str, int], architectures: list[str], built: dict[object, _Built],
    told: list[object], known: list[codegen.Launch],
) -> list[Kernel]:  # fmt: skip
    """What the kernels that a module starts for a shape compile to, but for launches that are ``known``; what
    ``built`` has, by kernel and argument types, is not compiled again."""
    entries: dict[object, Kernel] = {}
    for launch in codegen.launches(module, problems.from_shape(task.ladder, shape)):
        kernel, dynamic = (id(launch.kernel), str(launch.signature)), launch.dynamic_shared_bytes
        for name in architectures:
            limits.require_launch(launch.grid, launch.block, dynamic, name.removesuffix("a"), launch.cluster)
        if launch in known:
            continue
        if kernel not in built:
            texts = codegen.ptx(launch, architectures, task.machine_code)
            built[kernel] = {name: (text, *_assembled(task, launch, name, text)) for name, text in texts.items()}
        for name, (text, code, digest) in built[kernel].items():
            limits.require_shared(codegen.shared_arrays(text), dynamic, name.removesuffix("a"))
            told.append([shape, name, digest, launch.grid, launch.block, dynamic, launch.cluster])
            if (kernel, name) not in entries:
                limits.require_registers(launch.block, code.registers)
                entries[kernel, name] = code.launched(launch) if code.hot else code
    return list(entries.values())


def _assembled(task: messages.Compile, launch: codegen.Launch, name: str, text: str) -> tuple[Kernel, str]:
    """The machine code, if that was asked for, and its digest."""
    if task.machine_code:
        with contextlib.suppress(codegen.ToolMissingError) if task.lenient else contextlib.nullcontext():
            code, listing = codegen.machine_code(launch, name, text)
            return code, listing.digest
    return Kernel(kernel=launch.name, architecture=name), ""


def summarise_task(task: messages.Summarise) -> StepResult:
    """A summary of every kernel of a file, and the ``text`` of its PTX or machine code where ``show`` asks for it."""
    architecture, found = task.architecture, []
    with on_card(architecture):
        launches = codegen.distinct(codegen.launches(loading.load(task), task.problem))
    if not launches:
        raise catalog.CatalogError(f"{Path(task.path).name}: launch starts no kernel")
    for launch in launches:
        text = codegen.ptx(launch, [architecture], lines=task.show != "ptx")[architecture]
        if task.show == "ptx":
            text = codegen.readable(text, launch)
            found.append(Kernel(kernel=launch.name, architecture=architecture, text=text))
            continue
        try:
            code, listing = codegen.machine_code(launch, architecture, text)
        except codegen.ToolMissingError as error:
            return StepResult(status="unusable", message=str(error))
        found.append(code.inspected(launch, listing, task.show == "sass"))
    return StepResult(status="right", cards=found)


# --- other tasks ---


def ask_task(task: messages.Ask) -> messages.Answer:
    """Call the task's function."""
    return messages.Answer(status="right", found=task.function(*task.given))


def trace_task(task: Trace) -> TraceResult:
    """Trace a file's kernels at one shape."""
    try:
        module, tile = loading.load_tiled(task, task.options.tile or {})
        found = trace.run(module, task.problem, **{**asdict(task.options), "tile": tile})
    except TraceError as error:
        return TraceResult(status="unusable", message=str(error))
    return TraceResult(status="wrong" if found.faults else "right", trace=replace(found, output=None))


def script_task(task: Script) -> ScriptResult:
    """Run a program, its kernels in the tracer."""
    from common.trace import script

    child.print_outside(task.aside)
    os.chdir(task.folder)
    return script.run(Path(task.path), list(task.words), task.stop, task.kept)
