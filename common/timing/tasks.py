"""What child processes do to measure: ``time_task`` does ``timing.time``. Numba is imported inside: it takes long."""

import time
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from common.catalog import cache, catalog, device, inputs, limits, problems
from common.check import check, loading
from common.machine_code import capture, codegen
from common.run import child, messages
from common.run.messages import Shape, StepResult, Tile
from common.timing import peers, timing
from common.timing.ceilings import Ceilings, measure

Timed = messages.Time | messages.Pair


@lru_cache
def _stopwatch() -> timing.Stopwatch:
    with child.stage("context"):
        loading.room()  # worked out before the stopwatch holds memory
        return timing.Stopwatch(device.l2_bytes())


def _verified(task: Timed, module: Any, tile: Tile | None = None) -> tuple[StepResult, Any, Any]:
    """Check a module at full size by samples: the result, a bench, and the operands, normals if it is right."""
    from common.check import fullsize

    with child.stage("full-size check"):
        problem = loading.sized(task, module, tile)
    operands: Any = loading.operands(problem, task.seed if isinstance(task, messages.Time) else 0, module)
    with child.stage("full-size check"):
        bench = check.Bench(module, operands.problem, tile, beside=operands)
        verdict = fullsize.verify(bench, operands)
    if verdict.right:
        operands.put(operands.normals)
    else:
        loading.drop()
    return verdict.result(), bench, operands


@loading.spared
def time_task(task: messages.Time) -> StepResult:
    from numba import cuda

    stopwatch = _stopwatch()
    result, first, operands = _verified(task, loading.load(task))
    if result.status != "right":
        return result
    del first  # and with it its arrays
    module = loading.load(task)  # anew, so that prepare and compilation are seen cold
    with child.stage("timing"):
        bench = check.Bench(module, operands.problem, beside=operands)
        cuda.synchronize()
        prepare_ms = _cold(bench.prepare)
        first_launch_ms = _cold(bench.launch)
        measured = stopwatch.measure(bench.launch, max_seconds=task.most_seconds)
        beside, lacking = None, None
        if task.beside and peers.available():
            most = task.most_seconds / 2
            beside = peers.measure_beside(bench.launch, operands.problem, task.beside, stopwatch, most)
            lacking = None if beside else "the library that it is timed in turn with ran out of GPU memory"
    return replace(
        result, source=cache.code(Path(task.path)), timing=measured, beside=beside, lacking=lacking,
        first_launch_ms=first_launch_ms, prepare_ms=prepare_ms if hasattr(module, "prepare") else None,
        workspace_bytes=_nbytes(bench.step.workspace),
    )  # fmt: skip


def _cold(action: Callable[[], object]) -> float:
    """Milliseconds of the action, with what compiling its kernels took wherever that was done."""
    from numba import cuda

    saved, start = codegen.saved.ms, time.perf_counter()
    action()
    cuda.synchronize()
    return float((time.perf_counter() - start) * 1e3 + codegen.saved.ms - saved)


def _nbytes(workspace: Any) -> int:
    if isinstance(workspace, list | tuple):
        return sum(map(_nbytes, workspace))
    return 0 if workspace is None else int(workspace.nbytes)


def pair_task(task: messages.Pair) -> StepResult:
    """Check one file at full size by samples, then time it in turn with each other of ``against``: ``pairs`` has, by
    the same names, the other's time first; with no other, ``timing`` its own. ``refused``: a tile too large."""
    module, tile = loading.load_tiled(task, task.tile)
    try:
        result, bench, operands = _verified(task, module, tile)
    except limits.LaunchLimitError as error:
        if not task.tile:
            raise
        return StepResult(status="refused", message=str(error))
    if result.status != "right":
        return result
    bench.prepare()
    bench.launch()
    stopwatch, pairs = _stopwatch(), dict[str, timing.Paired]()
    for name, rival in task.against.items():
        module = loading.load(task, rival)
        if rival.compiler:
            found, other, operands = _verified(task, module)
            if found.status != "right" or found.shape != result.shape:
                return found
        else:
            other = check.Bench(module, operands.problem, beside=operands)
        other.prepare()
        other.launch()
        pairs[name] = stopwatch.measure_pairs(other.launch, bench.launch)
    alone = None if pairs else stopwatch.measure(bench.launch, max_seconds=task.most_seconds)
    return replace(result, timing=alone, pairs=pairs, gpu=device.current_gpu().name)


def tunables(path: str, ladder: str, shape: Shape) -> tuple[dict[str, list[int]], Tile]:
    """The values to try of each tile constant that a file lets a sweep vary, and those that it ships with."""
    module = catalog.load(Path(path), ladder)
    found = {name: list(values) for name, values in getattr(module, "TUNABLES", {}).items()}
    choose = getattr(module, "shipped", None)  # for steps whose tile depends on the problem
    shipped = choose(problems.from_shape(ladder, shape)) if choose else vars(module)
    return found, {name: shipped[name] for name in found}


def size_task(task: messages.Size) -> StepResult:
    """The ``shape`` at which a file's launch fits this card, and lasts no longer than it may."""
    return StepResult(status="right", shape=loading.sized(task, loading.load(task)).shape())


def launch_task(task: messages.Launch) -> StepResult:
    """Launch a file's kernels once, for tools that watch: without margins, as they see what leaves an allocation."""
    from numba import cuda

    launched: list[str] = []

    def counted(self: Any, *args: Any) -> Any:
        launched.append(self.dispatcher.py_func.__name__)
        return call(self, *args)

    problem = loading.fitted(task.problem, loading.room())
    bench = check.Bench(loading.load(task), problem, margin=0)
    with capture.launches(counted) as call:
        bench.load(*inputs.normals(problem, 0))
        bench.launch()
    cuda.synchronize()
    source = cache.code(Path(task.path))
    return StepResult(status="right", shape=problem.shape(), launched=launched, source=source)


def peer_task(task: messages.Peer) -> StepResult:
    problem = _fitted(task.problem)
    rows, lacking = peers.measure(problem, _stopwatch())
    return StepResult(status="right", shape=problem.shape(), rows=rows, message=lacking or None)


def _fitted(problem: problems.Problem) -> problems.Problem:
    """The problem at the size that this card has room for, once all that was held is let go."""
    loading.drop()
    return loading.fitted(problem, loading.room())


def epilogues(path: str, ladder: str, shape: Shape, ways: str) -> timing.Epilogues:
    """The times of a step with each of the epilogues of the module ``ways``."""
    problem, module = _fitted(problems.from_shape(ladder, shape)), import_module(ways)
    fusing = import_module(catalog.settings().measured_by["epilogues"])
    found = fusing.measure(catalog.load(Path(path), ladder), module.ways, problem, _stopwatch())
    source, ways_source = cache.code(Path(path)), cache.code(Path(str(module.__file__)))
    return timing.Epilogues(
        source=source, shape=problem.shape(), found=found, ways=ways, ways_source=ways_source,
        library=peers.version(problem) if peers.available() else "",
    )  # fmt: skip


def ceilings() -> tuple[device.Gpu, Ceilings]:
    loading.drop()
    gpu = device.current_gpu()
    return gpu, measure(_stopwatch(), gpu.multiprocessors, loading.room(), gpu.compute_capability)


def accuracy(files: dict[str, str]) -> dict[str, dict[str, peers.Accuracy]]:
    """By kind of operands and by product the errors of steps on matrices, by their names the files, and of cuBLAS."""
    loading.drop()
    accuracy = import_module(catalog.settings().measured_by["accuracy"])
    ladders = {name: name.split("_")[0] for name in files}
    steps = {name: (catalog.load(Path(path), ladders[name]), ladders[name]) for name, path in files.items()}
    found: dict[str, dict[str, peers.Accuracy]] = accuracy.measure(steps)
    for products in found.values():
        for name in files:
            products[name].source = cache.code(Path(files[name]))
    return found
