"""What tasks need of a step's file: its module, operands, and its problem as this card holds it: smaller where the
arrays or a launch would be too large."""

import gc
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import cache, wraps
from pathlib import Path
from typing import Any

from common.catalog import catalog, device, inputs, limits, sources
from common.catalog.problems import Problem
from common.check import check
from common.machine_code import capture, successor
from common.run import child
from common.run.messages import Result, Rival, StepResult, Task, Tile

STEP = 1 << 29  # bytes: the budget is a multiple of this, so that other programs' windows do not change it
LIBRARIES = 400_000_000  # bytes beside all arrays: Numba's modules, and what cuBLAS and cuDNN load
FLUSHED = 1 << 26  # bytes that are overwritten at least before a launch: the host queues the launch meanwhile
WORKSPACE = 0.75  # of a problem's own bytes, as much again for a step's workspace or a library's operands
LARGE_WORKSPACE = 0.3  # the same of a shape of billions of elements, which no library computes
LAUNCH_SECONDS = 0.5  # a display's watchdog resets the card after two
QUICK_FLOPS = 2e9  # no launch of so few operations lasts that long
PROBED, _PROBES = 64, 3  # the launch that is timed first has so many times fewer operations; how often it is timed
_SPARE = 4  # times the limit: a file that has run so fast is not timed before it runs at another size


class NoRoomError(MemoryError):
    """The card has no room for a problem: ``needed`` and ``free`` are bytes."""

    def __init__(self, needed: int, free: int) -> None:
        super().__init__(f"{needed / 1e9:.1f} GB are needed, {free / 1e9:.1f} are free")
        self.needed, self.free = needed, free


def flush_bytes(l2_bytes: int) -> int:
    """What is overwritten so that the L2 cache holds nothing of a launch's operands."""
    return max(8 * l2_bytes, FLUSHED)


def room_bytes(free_bytes: int, l2_bytes: int) -> int:
    """The budget: bytes for operands, copies and workspaces on a card with so many free beside this context."""
    return max(0, free_bytes - LIBRARIES - flush_bytes(l2_bytes)) // STEP * STEP


def needed(problem: Problem, workspace: float = WORKSPACE) -> int:
    """Bytes that running the problem takes, a workspace included."""
    return int((1 + workspace) * problem.least_bytes)


def sizes(problem: Problem) -> Iterator[Problem]:
    """The problem and ever smaller ones: its batch halved, or all three extents of a matrix product."""
    while True:
        yield problem
        halves = {key: getattr(problem, key) // 2 for key in problem.batch_key or "MNK"}
        if not all(halves.values()):
            return
        problem = replace(problem, **halves)


def within_time(problem: Problem, launch_seconds: Callable[[Problem], float]) -> Problem:
    """The largest size whose launch is predicted to take at most LAUNCH_SECONDS. ``launch_seconds`` times one launch:
    at a PROBED-th of the operations first. That predicts too much of others if it leaves most of the GPU idle, so the
    size that it allows is timed, too, before a larger is ruled out."""
    found, first = list(sizes(problem)), probed(problem)
    at = found.index(first[0]) if first else 0
    while at:
        rate = launch_seconds(found[at]) / found[at].flops
        allowed = next((n for n, size in enumerate(found) if rate * size.flops <= LAUNCH_SECONDS), len(found) - 1)
        if allowed >= at:
            return found[allowed]
        at = allowed
    return problem


def probed(problem: Problem) -> list[Problem]:
    """The size that is timed first of all (:func:`within_time`), if any is."""
    return [size for size in sizes(problem) if size.flops * PROBED >= problem.flops > QUICK_FLOPS][-1:]


def fitted(problem: Problem, room: int) -> Problem:
    """The largest size of the problem that fits so many bytes; raises NoRoomError without any."""
    for size in sizes(problem):
        if (least := needed(size)) <= room:
            return size
    raise NoRoomError(least, room)


def require_large(problem: Problem, room: int) -> None:
    """Raise NoRoomError unless a shape with arrays of more than 2^31 elements fits."""
    if (least := needed(problem, LARGE_WORKSPACE)) > room:
        raise NoRoomError(least, room)


def runs_at(problem: Problem, ran: Problem, seconds: float, room: int) -> bool:
    """Is ``ran``, a launch of which took so many seconds, the size at which the problem would run with this room?"""
    found = [size for size in sizes(problem) if needed(size) <= room]
    at = found.index(ran) if ran in found else -1
    return at == 0 or (at > 0 and seconds * found[at - 1].flops / ran.flops > 0.8 * LAUNCH_SECONDS)


ASKS = "card"  # the helper by which a step asks what the card has


def spared(do: Callable[[Any], StepResult]) -> Callable[[Any], StepResult]:
    """A task that the GPU's memory does not suffice for is left out, and says how much it needs: others may hold it.
    A step that takes more than its share is not spared."""

    @wraps(do)
    def spared(task: Task[StepResult]) -> StepResult:
        try:
            return do(task)
        except NoRoomError as error:
            short = error
        except Exception as error:
            if not device.gpu_count() or not device.out_of_memory(error):
                raise
            traceback.clear_frames(error.__traceback__)  # which hold the arrays
            free = 0
            with suppress(Exception):  # there may not even be a context
                let_go()
                free = device.free_bytes()
            short = NoRoomError(needed(task.problem), free)
            if free >= short.needed + LIBRARIES:
                raise
        return StepResult(status="unjudged", message=str(short), needed_bytes=short.needed, free_bytes=short.free)

    return spared


def let_go() -> None:
    """Give back what nothing refers to any more; Numba itself waits until it is much."""
    if not device.gpu_count():
        gc.collect()
    else:
        from numba import cuda

        free, total = cuda.current_context().get_memory_info()
        if 2 * free < total:  # it takes a third of a second
            gc.collect()
        cuda.current_context().deallocations.clear()
        if "torch" in sys.modules:
            sys.modules["torch"].cuda.empty_cache()


def load(task: Task[Result], rival: Rival | None = None, tile: Tile | None = None) -> Any:
    """The module of the task's file, or of its rival, imported anew; ``tile``: other tile constants. Here alone it is
    decided who compiles its kernels."""
    file, on_gpu = rival or task, task.on_gpu and device.gpu_count() > 0
    by_successor = on_gpu and (file.compiler or device.compiler()) == device.MLIR
    with child.stage(child.IMPORTS), successor.on_gpu() if by_successor else nullcontext():
        return catalog.load(Path(file.path), task.ladder, task.home, file.helpers, tile)


def load_tiled(task: Task[Result], tile: Tile) -> tuple[Any, Tile]:
    """The module of the task's file with these tile constants, and what of them its ``launch`` takes by keyword."""
    module = load(task)
    return (module, tile) if capture.takes_tile(module, tile) else (load(task, tile=tile), {})


@cache
def room() -> int:
    """The bytes that a problem may take: worked out once, by the process that owns the GPU, before it holds any."""
    let_go()
    return room_bytes(device.free_bytes(), device.l2_bytes())


_slowest: dict[tuple[str, int, str], float] = {}  # seconds an operation, by a file's path and time, and the tile


def sized(task: Task[Any], module: Any, tile: Tile | None = None) -> Problem:
    """The task's problem, reduced to what this card holds, and so that no launch of the module lasts too long."""
    file = task.path, Path(task.path).stat().st_mtime_ns, str(tile)

    def launch_seconds(size: Problem) -> float:
        bench, times = check.Bench(module, size, tile), []
        bench.load(*inputs.integers(size, 0))
        for _ in range(1 + _PROBES):  # the first compiles, and a clock takes its time to rise
            start = time.perf_counter()
            bench.run()
            times.append(time.perf_counter() - start)
        _slowest[file] = max(_slowest.get(file, 0.0), min(times[1:]) / size.flops)
        return min(times[1:])

    whole = fitted(task.problem, room())
    if not device.gpu_count() or 0 < _SPARE * _slowest.get(file, 0.0) * whole.flops <= LAUNCH_SECONDS:
        return whole
    return within_time(whole, launch_seconds)


def by_card(path: Path, architectures: list[str]) -> list[list[str]]:
    """The architectures in groups for which a file starts the same kernels: of equal shared memory, if it, or a step
    that it imports, asks for that."""
    files = path, *sources.imports(path)
    asks = any(helper.stem == ASKS for one in files for helper in sources.imported_helpers(one))
    groups: dict[int, list[str]] = {}
    for name in architectures:
        groups.setdefault(limits.limits(name).shared_bytes if asks else 0, []).append(name)
    return [groups[size] for size in sorted(groups)]


_held: dict[object, Any] = {}  # operands of one problem at most
beside: dict[object, Any] = {}  # what else is held for that problem: a library's call with its operands


def operands(problem: Problem, seed: int, module: Any) -> Any:
    """The ``fullsize.Operands`` of a problem, as the module's algorithm has them; made anew if others are held."""
    from common.check import fullsize

    key = problem, seed, getattr(module, "ALGORITHM", None)
    if key not in _held:
        drop()
        with child.stage("drawing of operands"):
            _held[key] = fullsize.Operands(*key)
    return _held[key]


def drop() -> None:
    """After a step that may have written anywhere, nothing that was held can be trusted."""
    _held.clear()
    beside.clear()
    let_go()


def this_device() -> tuple[device.Gpu, int]:
    """What this GPU is, and how many bytes of its memory problems may take."""
    return device.current_gpu(), room()
