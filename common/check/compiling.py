"""Steps compiled without a GPU, or ahead of launches, and summaries of their kernels: what is asked for, and what a
child process does (``compile_task`` does ``check.compile``). Numba is imported inside, as it takes long."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from common.catalog import catalog, device, limits, problems, sources
from common.catalog.catalog import Step
from common.check import loading, run
from common.explain import faults
from common.machine_code.capture import replaced
from common.machine_code.summaries import Summary
from common.run import isolate, messages, stages
from common.run.messages import Outcome, Result, StepResult, at
from common.trace import cost, trace
from common.trace.messages import Trace

TRACE_SECONDS = 60.0
Show = Literal["ptx", "sass"]


class ToolError(RuntimeError):
    """NVIDIA's assembler or disassembler is not installed."""


def compile_steps(
    steps: list[Step], architectures: tuple[str, ...], machine_code: bool, every_preset: bool = False
) -> Iterator[Outcome]:
    """Compile every kernel of each step, without a GPU, for its ladder's preset; or for all that are timed."""
    groups, usual = [], problems.DEFAULT_PRESET
    for step in steps:
        # a bench times an experiment on its ladder's default only
        others = problems.timed_presets(step.ladder) if every_preset and not step.experiment else []
        task = messages.Compile(
            **at(step, problems.preset(usual[step.ladder])),
            architectures=catalog.targets(step.requires, architectures),
            machine_code=machine_code,
            others={name: problems.preset(name).shape() for name in others if name != usual[step.ladder]},
        )
        groups.append([task])
    results = isolate.run_groups(groups, False, run.COMPILE_SECONDS, device.workers())
    for step, (_, result) in zip(steps, results, strict=False):
        yield Outcome.of(step, problems.preset(usual[step.ladder]), usual[step.ladder], result)


def summary_architecture() -> str:
    """The compute capability that summaries are for unless another is named: this GPU's, if its limits are known."""
    found = device.compute_capability()
    return found if found in limits.LIMITS else run.CODE_ARCHITECTURE


def summaries(
    pairs: list[tuple[Step, str]], architecture: str, file: Path | None = None, show: Show | None = None
) -> Iterator[Outcome]:
    """``cards``: a summary of every kernel of each (step, preset), or of ``file`` in its place, without a GPU. With
    ``show`` each has the ``text`` of that; PTX comes alone. Raises ToolError when machine code cannot be had."""
    with isolate.Pool() as pool:
        compiling, tracing = [], []
        for step, preset in pairs:
            problem, target = problems.preset(preset), catalog.targets(step.requires, [architecture])[0]
            task = messages.Summarise(**at(step, problem, file), architecture=target, show=show)
            compiling.append(pool.submit(list, isolate.run([task], False, run.COMPILE_SECONDS, pool.stop)))
            small = Trace(**at(step, trace.reduced(problem), file))
            tracing += [] if show else [pool.submit(list, isolate.run([small], True, TRACE_SECONDS, pool.stop))]
        for number, (step, preset) in enumerate(pairs):
            ((_, result),) = compiling[number].result()
            if result.missing_tool:
                raise ToolError(result.message)
            if result.status == "right" and not show:
                ((_, traced),) = tracing[number].result()
                figures = cost.traffic(traced.trace) if traced.trace is not None else {}
                for one in result.cards:
                    one["traffic"] = figures.get(one["kernel"], {})
            yield Outcome.of(step, problems.preset(preset), preset, result)


def prepare_task(task: messages.Prepare) -> Result:
    """Compile a file's kernels for each of ``shapes``, and keep them; launches nothing.

    A shape that the step refuses has none. What a step asks of the ``device`` is answered without it.
    """
    from numba import cuda

    from common.machine_code import codegen, kernelcache

    gpu, limited = task.device, device.bounds(task.device.compute_capability)
    major, minor = map(int, gpu.compute_capability.split("."))
    told = {"compute_capability": (major, minor), "MULTIPROCESSOR_COUNT": gpu.multiprocessors, "name": gpu.name}
    seen: set[tuple[int, str]] = set()
    as_card = device.as_card(limited if limited in limits.LIMITS else device.USUAL_CARD, **told)
    with replaced(cuda, get_current_device=as_card):
        module = loading.load(task)
        # what is surely started first
        for find, shape in itertools.product((codegen.launches, codegen.tried), task.shapes):
            with suppress(ValueError):
                for launch in codegen.distinct(find(module, problems.from_shape(task.ladder, shape))):
                    key = id(launch.kernel), str(launch.signature)
                    if key not in seen:
                        seen.add(key)
                        with stages.stage(stages.COMPILE):
                            kernelcache.compile_for(launch.kernel, launch.signature.args, (major, minor))
    return Result(status="right")


def compile_task(task: messages.Compile) -> StepResult:
    """Compile every kernel of a file for the named architectures; count machine instructions where asked. A launch
    beyond the limits of an architecture raises LaunchLimitError."""
    path, shapes = Path(task.path), {"": task.shape, **task.others}
    found: dict[str, list[Summary]] = {name: [] for name in shapes}
    told: list[object] = []  # of each launch
    for architectures in loading.by_card(path, task.architectures):
        with on_card(architectures[0]):
            module = loading.load(task)
            built: _Built = {}
            for name, shape in shapes.items():
                found[name] += _kernels(task, module, shape, architectures, built, told)
    for entries in found.values():
        entries.sort(key=lambda entry: task.architectures.index(entry["architecture"]))
    first, now = found.pop(""), sources.provenance(path)
    return StepResult(
        status="right",
        kernels=first,
        other_presets={preset: entries for preset, entries in found.items() if entries != first},
        source=now.source,
        helpers=now.helpers or {},
        digest=hashlib.sha256(json.dumps(told).encode()).hexdigest() if task.machine_code else None,
        faults=[faults.of_float64(path)] if any(entry["float64"] for entry in first) else (),
    )


@contextlib.contextmanager
def on_card(architecture: str) -> Iterator[None]:
    """While open, steps are imported anew, and find the limits of this compute capability."""
    from numba import cuda

    with catalog.anew(), replaced(cuda, get_current_device=device.as_card(architecture)):
        yield


# By kernel and signature, then by architecture: the bytes of the kernel's own shared arrays, the lines in float64,
# and the machine code, if that was asked for.
_Built = dict[tuple[int, str], dict[str, tuple[int, list[str], Any]]]


def _kernels(
    task: messages.Compile, module: Any, shape: dict[str, int], architectures: list[str], built: _Built,
    told: list[object],
) -> list[Summary]:  # fmt: skip
    """What the kernels that a module starts for a shape compile to; what ``built`` has is not compiled again."""
    from common.machine_code import codegen
    from common.machine_code import summaries as made

    launched = codegen.launches(module, problems.from_shape(task.ladder, shape))
    for launch, name in itertools.product(launched, architectures):
        asked = launch.grid, launch.block, launch.dynamic_shared_bytes
        limits.require_launch(*asked, name.removesuffix("a"), launch.cluster)
    for launch in launched:
        key = id(launch.kernel), str(launch.signature)
        if key not in built:
            built[key] = {}
            for name, text in codegen.ptx(launch, architectures, task.machine_code).items():
                code = None
                try:
                    code = codegen.machine_code(launch, name, text) if task.machine_code else None
                except codegen.ToolMissingError:
                    if not task.lenient:
                        raise
                built[key][name] = codegen.shared_arrays(text), codegen.float64_arithmetic(text), code
        for name, (own, _, code) in built[key].items():
            limits.require_shared(own, launch.dynamic_shared_bytes, name.removesuffix("a"))
            asked = launch.grid, launch.block, launch.dynamic_shared_bytes
            told.append([shape, name, code and code.listing.digest, *asked, launch.cluster])
    entries: list[Summary] = []
    for launch in codegen.distinct(launched):
        for name, (_, float64, code) in built[id(launch.kernel), str(launch.signature)].items():
            entry: Summary = {"kernel": launch.name, "architecture": name, "float64": float64}
            if code is not None:
                limits.require_registers(launch.block, code.registers)
                entry |= made.recorded(launch, code)
            entries.append(entry)
    return entries


def summarise_task(task: messages.Summarise) -> StepResult:
    """A summary of every kernel of a file, and the ``text`` of its PTX or machine code where ``show`` asks for it."""
    from common.machine_code import codegen
    from common.machine_code import summaries as made

    architecture, found = task.architecture, []
    with on_card(architecture):
        launches = codegen.distinct(codegen.launches(loading.load(task), task.problem))
    if not launches:
        raise catalog.CatalogError(f"{Path(task.path).name}: launch starts no kernel")
    for launch in launches:
        text = codegen.ptx(launch, [architecture], lines=task.show != "ptx")[architecture]
        if task.show == "ptx":
            shown = codegen.readable(text, launch)
            found.append({"kernel": launch.name, "architecture": architecture, "text": shown})
            continue
        try:
            code = codegen.machine_code(launch, architecture, text)
        except codegen.ToolMissingError as error:
            return StepResult(status="unusable", missing_tool=True, message=str(error))
        found.append(made.summary(launch, code) | ({"text": made.whole(code)} if task.show == "sass" else {}))
    return StepResult(status="right", cards=found)
