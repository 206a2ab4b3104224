"""What tasks need of a step's file: its module, its problem as this card holds it, memory that it lacks."""

from __future__ import annotations

import gc
import math
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import cache, lru_cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from common.catalog import catalog, device, problems, sources, stages
from common.check import budget
from common.machine_code import capture
from common.run import messages
from common.run.messages import FileTask, ShapeTask, Task
from common.run.results import Result, StepResult, Tile

if TYPE_CHECKING:
    from common.check import check, fullsize


def keep_kernels(folder: str) -> None:
    """Find kernels that were compiled before, and keep those that are compiled now, if the folder has a name."""
    if folder:
        from common.machine_code import kernelcache

        kernelcache.install(Path(folder))


Asked = TypeVar("Asked", bound=ShapeTask[StepResult])


def spared(do: Callable[[Asked], StepResult]) -> Callable[[Asked], StepResult]:
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
                let_go()
                free = device.free_bytes()
            if free >= needed + budget.LIBRARIES:
                raise
        message = str(budget.NoRoomError(needed, free))
        return StepResult(status="unjudged", message=message, needed_bytes=needed, free_bytes=free)

    return spared


def let_go() -> None:
    """Give back what nothing refers to any more: Numba frees arrays when many are, or much."""
    gc.collect()
    if device.gpu_count():
        from numba import cuda

        cuda.current_context().deallocations.clear()


def found(verdict: check.Verdict) -> StepResult:
    """A verdict as a result."""
    return StepResult(
        status="right" if verdict.right else "wrong",
        shape=verdict.problem.shape(),
        right=verdict.right,
        elements_compared=verdict.elements_compared,
        findings=verdict.findings,
    )


def load(task: FileTask[Result], rival: messages.Rival | None = None, tile: Tile | None = None) -> Any:
    """The module of the task's file, or of its rival, imported anew; ``tile``: other tile constants."""
    file = rival or task
    with stages.stage(stages.IMPORTS):
        return catalog.load(Path(file.path), task.ladder, task.home, file.helpers, tile)


def load_tiled(task: FileTask[Result], tile: Tile) -> tuple[Any, Tile]:
    """The module of the task's file with these tile constants, and what of them its ``launch`` takes by keyword."""
    module = load(task)
    return (module, tile) if capture.takes_tile(module, tile) else (load(task, tile=tile), {})


def code_of(path: Path) -> tuple[str, dict[str, str]]:
    """``source`` and ``helpers`` of the code that runs."""
    now = sources.provenance(path)
    return now.source, now.helpers or {}


@cache
def own_room() -> int:
    """The budget, worked out where this process has the GPU for itself."""
    return budget.room_bytes(device.free_bytes(), device.l2_bytes())


def room_of(task: Task[Any]) -> int:
    """The bytes that the task may use: those it was given, or the budget of this process."""
    return getattr(task, "room_bytes", 0) or own_room()


def fitted(task: ShapeTask[Any]) -> problems.Problem:
    """The task's problem, reduced to what this card holds."""
    return budget.fitted(problems.from_shape(task.ladder, task.shape), room_of(task))


_PROBE_SECONDS, _PROBES = 0.1, 5  # for launches that are timed first


def sized(task: ShapeTask[Any], module: Any, tile: Tile | None = None) -> problems.Problem:
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

    whole = fitted(task)
    return budget.within_time(whole, launch_seconds) if device.gpu_count() else whole


@lru_cache(maxsize=2)
def _integers(problem: problems.Problem) -> Any:
    """Operands for one step after the other that is timed first on this problem."""
    from common.catalog import inputs

    return inputs.integers(problem, 0)


# --- operands at full size ---

_held: dict[tuple[problems.Problem, int], fullsize.Operands] = {}  # those of one problem, for one step after another


def operands(problem: problems.Problem, seed: int, room_bytes: int) -> fullsize.Operands:
    """Those of the problem; made anew if others are held."""
    from common.check import fullsize

    if (problem, seed) not in _held:
        drop()
        with stages.stage("inputs"):
            _held[problem, seed] = fullsize.Operands(fullsize.draw(problem, seed), room_bytes)
    return _held[problem, seed]


def drop() -> None:
    """After a step that may have written anywhere, nothing that was held can be trusted."""
    _held.clear()
    let_go()


def this_device() -> tuple[device.Gpu, int]:
    """What this GPU is, and how many bytes of its memory problems may take."""
    return device.current_gpu(), own_room()
