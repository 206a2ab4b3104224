"""What child processes do to compile: for named GPUs, without one, and ahead of launches.

``compile_task`` does the task ``check.compile``, and so on. Numba is imported inside: it takes long.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from common.catalog import catalog, device, limits, problems, sources, stages
from common.check import loading
from common.explain import faults
from common.machine_code.capture import replaced
from common.machine_code.summaries import Summary
from common.run import messages
from common.run.results import Result, StepResult

ASKS = "card"  # the helper by which a step asks what the card has


def prepare_task(task: messages.Prepare) -> Result:
    """Compile a file's kernels for each of ``shapes``, and keep them; launches nothing.

    A shape that the step refuses has none. What a step asks of the ``device`` is answered without it.
    """
    loading.keep_kernels(task.kernels)
    from numba import cuda

    from common.machine_code import codegen, kernelcache

    gpu = task.device
    major, minor = map(int, gpu.compute_capability.split("."))
    capability = major, minor
    told = {"compute_capability": capability, "MULTIPROCESSOR_COUNT": gpu.multiprocessors, "name": gpu.name}
    limited = device.bounds(gpu.compute_capability)
    ask = device.as_card(limited if limited in limits.LIMITS else device.USUAL_CARD, **told)
    seen: set[tuple[int, str]] = set()
    with replaced(cuda, get_current_device=ask):
        module = loading.load(task)
    # what is surely started first
    for find, shape in itertools.product((codegen.launches, codegen.tried), task.shapes):
        with suppress(ValueError), replaced(cuda, get_current_device=ask):
            for launch in codegen.distinct(find(module, problems.from_shape(task.ladder, shape))):
                key = id(launch.kernel), str(launch.signature)
                if key not in seen:
                    seen.add(key)
                    with stages.stage(stages.COMPILE):
                        kernelcache.compile_for(launch.kernel, launch.signature.args, capability)
    return Result(status="right")


def compile_task(task: messages.Compile) -> StepResult:
    """Compile every kernel of a file for the named architectures; count machine instructions where asked.

    ``other_presets`` has the kernels of those of ``others`` that compile to something else. A launch beyond the
    limits of an architecture raises LaunchLimitError.
    """
    path = Path(task.path)
    launched: list[object] = []
    first: list[Summary] = []
    others: dict[str, list[Summary]] = {preset: [] for preset in task.others}
    for architectures in by_card(path, task.architectures):
        with on_card(architectures[0]):
            kernels = _compiler(task, loading.load(task), architectures, launched)
            first += kernels(task.shape)
            for preset, shape in task.others.items():
                others[preset] += kernels(shape)
    for entries in (first, *others.values()):
        entries.sort(key=lambda entry: task.architectures.index(entry["architecture"]))
    unlike = {preset: entries for preset, entries in others.items() if entries != first}
    source, helpers = loading.code_of(path)
    return StepResult(
        status="right",
        kernels=first,
        other_presets=unlike,
        source=source,
        helpers=helpers,
        digest=hashlib.sha256(json.dumps(launched).encode()).hexdigest() if task.machine_code else None,
        faults=[faults.of_float64(path)] if any(entry["float64"] for entry in first) else (),
    )


def by_card(path: Path, architectures: list[str]) -> list[list[str]]:
    """The architectures in groups for which a file starts the same kernels: of equal shared memory, if it asks."""
    if ASKS not in {helper.stem for helper in sources.imported_helpers(path)}:
        return [architectures]
    by_size = sorted(architectures, key=lambda name: limits.limits(name).shared_bytes)
    return [list(found) for _, found in itertools.groupby(by_size, lambda name: limits.limits(name).shared_bytes)]


@contextlib.contextmanager
def on_card(architecture: str) -> Iterator[None]:
    """While open, steps are imported anew, and find the limits of this compute capability."""
    from numba import cuda

    with catalog.anew(), replaced(cuda, get_current_device=device.as_card(architecture)):
        yield


def _compiler(
    task: messages.Compile, module: Any, architectures: list[str], told: list[object]
) -> Callable[[dict[str, int]], list[Summary]]:
    """A function: what the kernels that a module starts for a shape compile to; ``told`` gets each launch of them."""
    from common.machine_code import codegen, summaries

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

    def kernels(shape: dict[str, int]) -> list[Summary]:
        entries: list[Summary] = []
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
                entry: Summary = {"kernel": launch.name, "architecture": architecture, "float64": float64}
                if code is not None:
                    limits.require_registers(launch.block, code.registers)
                    entry |= summaries.recorded(launch, code)
                entries.append(entry)
        return entries

    return kernels


def summarise_task(task: messages.Summarise) -> StepResult:
    """A summary of every kernel of a file, and the ``text`` of its PTX or machine code where ``show`` asks for it."""
    from numba import cuda

    from common.machine_code import codegen, summaries

    with replaced(cuda, get_current_device=device.as_card(task.architecture)):
        module = loading.load(task)
        launches = codegen.distinct(codegen.launches(module, problems.from_shape(task.ladder, task.shape)))
    if not launches:
        raise catalog.CatalogError(f"{Path(task.path).name}: launch starts no kernel")
    architecture, show = task.architecture, task.show
    found: list[Summary] = []
    for launch in launches:
        text = codegen.ptx(launch, [architecture], lines=show != "ptx")[architecture]
        if show == "ptx":
            shown = codegen.readable(text, launch)
            found.append({"kernel": launch.name, "architecture": architecture, "text": shown})
            continue
        try:
            code = codegen.machine_code(launch, architecture, text)
        except codegen.ToolMissingError as error:
            return StepResult(status="unusable", missing_tool=True, message=str(error))
        found.append(summaries.summary(launch, code))
        if show == "sass":
            found[-1]["text"] = summaries.whole(code)
    return StepResult(status="right", cards=found)
