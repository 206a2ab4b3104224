"""The process kernels run in: reads tasks, does them one by one, appends one JSON line per task to a file.

Started by :mod:`common.run`, which outlives whatever a kernel does here.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

from common import catalog, device, faults, limits, problems

Task = dict[str, Any]

# Device operands, a flush buffer and room for a workspace must fit.
MEMORY_SHARE = 0.8
SWEEP_SECONDS = 1.0
_PARENT_SECONDS = 1.0
WATCH_SECONDS = 3.0  # of a wrong kernel in the simulator: what it does in this time tells enough


def check_task(task: Task) -> dict[str, Any]:
    """Check one file at one shape."""
    from common import check

    problem = problems.from_shape(task["ladder"], task["shape"])
    path = Path(task["path"])
    module = _module(task)
    if task.get("once"):
        verdict = check.check_once(module, problem, task.get("seed", 0))
    else:
        verdict = check.check(module, problem, task.get("seed", 0), task.get("repeats", check.REPEATS))
    result: dict[str, Any] = {"status": "right" if verdict.right else "wrong", **verdict.as_dict()}
    if not verdict.right:
        hazards = _hazards(module, problem, path) if _simulated() else []
        names = catalog.LAUNCH_ARGUMENTS[problem.ladder]
        found = [faults.of_finding(finding, hazards, path, names) for finding in result["findings"]]
        result["faults"] = [fault.as_dict() for fault in dict.fromkeys(filter(None, found))]
    return result


def _module(task: Task) -> Any:
    return catalog.load(Path(task["path"]), task["ladder"], task.get("home"), task.get("helpers"))


def _hazards(module: Any, problem: problems.Problem, path: Path) -> list[dict[str, Any]]:
    """In the simulator: what a launch of a kernel known to be wrong does that it must not."""
    from common import check, hazards, inputs

    bench = check.Bench(module, problem)
    bench.load(*inputs.integers(problem, 0))
    with suppress(Exception), hazards.watching(str(path.resolve()), WATCH_SECONDS) as watch:
        bench.launch()
    return [note._asdict() for note in watch.notes]


def _simulated() -> bool:
    return os.environ.get(device.SIMULATOR_SWITCH) == "1"


def time_task(task: Task) -> dict[str, Any]:
    """Check one file at full size by samples, then time it."""
    from numba import cuda

    from common import check, inputs, timing

    gpu = device.current_gpu()
    problem = _fit(task)
    module = catalog.load(Path(task["path"]), task["ladder"])
    verdict = check.check_sampled(module, problem, task.get("seed", 0))
    result: dict[str, Any] = {"status": "right" if verdict.right else "wrong", **verdict.as_dict()}
    if not verdict.right:
        return result
    # imported anew, so that prepare and compilation are seen cold
    module = catalog.load(Path(task["path"]), task["ladder"])
    bench = check.Bench(module, problem)
    x, weight = inputs.normals(problem, task.get("seed", 0) + 2)
    bench.x.set(x)
    bench.weight.set(weight)
    cuda.synchronize()
    start = time.perf_counter()
    bench.prepare()
    cuda.synchronize()
    prepared = time.perf_counter()
    bench.launch()
    cuda.synchronize()
    compiled = time.perf_counter()
    stopwatch = timing.Stopwatch(gpu.l2_bytes)
    result["timing"] = stopwatch.measure(bench.launch).as_dict()
    result["prepare_ms"] = (prepared - start) * 1e3 if hasattr(module, "prepare") else None
    result["first_launch_ms"] = (compiled - prepared) * 1e3
    result["workspace_bytes"] = _nbytes(bench.workspace)
    return {**result, **catalog.provenance(Path(task["path"]))}


def pair_task(task: Task) -> dict[str, Any]:
    """Check one file at full size by samples, then time it in turn with each other of ``task["against"]``.

    Each of those has a ``path`` and ``helpers`` as a task has. ``pairs`` has, by the same names, what
    :class:`common.timing.Paired` holds: the other's time is the first. With no other, ``timing`` has the file's own.
    """
    from common import check, inputs, timing

    problem = _fit(task)
    bench = check.Bench(_module(task), problem)
    verdict = check.sample_bench(bench)
    result: dict[str, Any] = {"status": "right" if verdict.right else "wrong", **verdict.as_dict()}
    if not verdict.right:
        return result
    bench.load(*inputs.normals(problem, 2))
    bench.launch()
    stopwatch = timing.Stopwatch(device.current_gpu().l2_bytes)
    pairs = {}
    for name, rival in task["against"].items():
        other = check.Bench(_module({**task, **rival}), problem, beside=bench)
        other.prepare()
        other.launch()
        pairs[name] = stopwatch.measure_pairs(other.launch, bench.launch).as_dict()
    alone = {} if pairs else {"timing": stopwatch.measure(bench.launch).as_dict()}
    return {**result, **alone, "pairs": pairs, "gpu": device.current_gpu().name}


def tunables_task(task: Task) -> dict[str, Any]:
    """The tile constants a file lets a sweep vary, their values to try, and those it ships with."""
    module = catalog.load(Path(task["path"]), task["ladder"])
    tunables = getattr(module, "TUNABLES", {})
    choose = getattr(module, "shipped", None)  # for steps whose tile depends on the problem
    shipped = choose(problems.from_shape(task["ladder"], task["shape"])) if choose else vars(module)
    return {
        "status": "right",
        "tunables": {name: list(values) for name, values in tunables.items()},
        "shipped": {name: shipped[name] for name in tunables},
    }


def sweep_task(task: Task) -> dict[str, Any]:
    """Check one tile at full size by samples, then time it; ``refused`` if the step or the card does not take it."""
    from numba.cuda.cudadrv.driver import CudaAPIError

    from common import check, inputs, timing

    problem, tile = _fit(task), task["tile"]
    module = catalog.load(Path(task["path"]), task["ladder"])
    try:
        verdict = check.check_sampled(module, problem, tile=tile)
    except CudaAPIError as error:
        if "OUT_OF_RESOURCES" in str(error):
            return {"status": "refused", "message": "the block needs more registers than a multiprocessor has"}
        raise
    result: dict[str, Any] = {"status": "right" if verdict.right else "wrong", **verdict.as_dict()}
    if verdict.right:
        bench = check.Bench(module, problem, tile)
        bench.load(*inputs.normals(problem, 2))
        bench.launch()
        stopwatch = timing.Stopwatch(device.current_gpu().l2_bytes)
        result["timing"] = stopwatch.measure(bench.launch, max_seconds=SWEEP_SECONDS).as_dict()
    return result


def launch_task(task: Task) -> dict[str, Any]:
    """Launch a file's kernels once, for tools that watch from outside.

    No margins: an access beyond an array must leave its allocation to be seen.
    """
    from numba import cuda

    from common import check, inputs

    problem = _fit(task)
    bench = check.Bench(catalog.load(Path(task["path"]), task["ladder"]), problem, margin=0)
    with _counting_launches() as kernels:
        bench.load(*inputs.normals(problem, 0))
        bench.launch()
    cuda.synchronize()
    return {
        "status": "right",
        "shape": problem.shape(),
        **catalog.provenance(Path(task["path"])),
        "kernels": kernels,
    }


def peer_task(task: Task) -> dict[str, Any]:
    """Time cuBLAS or cuDNN on a problem."""
    from numba import cuda

    from common import peers, timing

    cuda.current_context()
    problem = _fit(task)
    stopwatch = timing.Stopwatch(device.current_gpu().l2_bytes)
    return {"status": "right", "shape": problem.shape(), "rows": peers.measure(problem, stopwatch)}


def ceilings_task(_: Task) -> dict[str, Any]:
    """Measure this GPU's ceilings and say what it is."""
    from common import ceilings, timing

    gpu = device.current_gpu()
    stopwatch = timing.Stopwatch(gpu.l2_bytes)
    measured = ceilings.measure(stopwatch, gpu.multiprocessors, device.free_bytes())
    return {"status": "right", "gpu": gpu.as_dict(), "ceilings": measured}


def device_task(_: Task) -> dict[str, Any]:
    """Say what this GPU is."""
    return {"status": "right", "gpu": device.current_gpu().as_dict()}


def compile_task(task: Task) -> dict[str, Any]:
    """Compile every kernel of a file for the named architectures; count machine instructions where asked.

    ``others`` maps more presets to shapes; ``other_presets`` has the kernels of those that compile to something else.
    ``lenient``: without NVIDIA's tools, leave the count out. A launch beyond a GPU's limits raises LaunchLimitError.
    """
    from common.code import cards, codegen

    path = Path(task["path"])
    module = _module(task)
    built: dict[tuple[int, str], list[tuple[str, list[str], Any]]] = {}

    def compiled(launch: Any) -> list[tuple[str, list[str], Any]]:
        """For each architecture its name, the lines in float64 and the machine code, if that was asked for."""
        key = id(launch.kernel), str(launch.signature)
        if key not in built:
            built[key] = []
            for name, text in codegen.ptx(launch, task["architectures"], bool(task.get("machine_code"))).items():
                code = None
                if task.get("machine_code"):
                    try:
                        code = codegen.machine_code(launch, name, text)
                    except codegen.ToolMissingError:
                        if not task.get("lenient"):
                            raise
                built[key].append((name, codegen.float64_arithmetic(text), code))
        return built[key]

    def kernels(shape: dict[str, int]) -> list[dict[str, Any]]:
        entries = []
        launched = codegen.launches(module, problems.from_shape(task["ladder"], shape))
        for launch in launched:
            limits.require_launch(launch.grid, launch.block)
        for launch in codegen.distinct(launched):
            for architecture, float64, code in compiled(launch):
                entry = {"kernel": launch.name, "architecture": architecture, "float64": float64}
                if code is not None:
                    limits.require_registers(launch.block, code.registers)
                    entry.update(code.as_dict(), **cards.recorded(cards.card(launch, code)))
                entries.append(entry)
        return entries

    first = kernels(task["shape"])
    others = {preset: kernels(shape) for preset, shape in task.get("others", {}).items()}
    result = {
        "status": "right",
        "kernels": first,
        "other_presets": {preset: entries for preset, entries in others.items() if entries != first},
        **catalog.provenance(path),
    }
    if any(entry["float64"] for entry in first):
        result["faults"] = [faults.of_float64(path).as_dict()]
    return result


def card_task(task: Task) -> dict[str, Any]:
    """A card for every kernel of a file, and the ``text`` of its PTX or machine code where ``show`` asks for it.

    ``files`` are the files that the kernels are made of: of the lessons, and those beside the step's.
    """
    from common.code import cards, codegen

    module = catalog.load(Path(task["path"]), task["ladder"])
    launches = codegen.distinct(codegen.launches(module, problems.from_shape(task["ladder"], task["shape"])))
    if not launches:
        raise catalog.CatalogError(f"{Path(task['path']).name}: launch starts no kernel")
    architecture, show = task["architecture"], task.get("show")
    found = []
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
    path, lessons = Path(task["path"]).resolve(), catalog.LESSONS.resolve()
    sources = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    loaded = {Path(source).resolve() for source in sources if source}
    files = sorted(str(file) for file in loaded if file.parent == path.parent or file.is_relative_to(lessons))
    return {"status": "right", "cards": found, "files": files}


def maps_task(task: Task) -> dict[str, Any]:
    """Run a conv2d step on given operands (.npy files) and save its output."""
    import numpy as np
    from numba import cuda

    from common import check

    x, filt = np.load(task["x"]), np.load(task["filt"])
    n, c, h, w = x.shape
    k, _, r, s = filt.shape
    problem = problems.Conv2d(N=n, C=c, H=h, W=w, K=k, R=r, S=s)
    bench = check.Bench(catalog.load(Path(task["path"]), "conv2d"), problem)
    bench.load(x, filt)
    bench.y.blank()
    bench.launch()
    cuda.synchronize()
    np.save(task["y"], bench.y.get())
    return {"status": "right", "shape": problem.shape()}


def launches_task(task: Task) -> dict[str, Any]:
    """The kernels a file would start, with grid and block; needs no GPU."""
    from common.code import codegen

    problem = problems.from_shape(task["ladder"], task["shape"])
    module = catalog.load(Path(task["path"]), task["ladder"])
    found = codegen.launches(module, problem)
    return {"status": "right", "launches": [{"name": o.name, "grid": o.grid, "block": o.block} for o in found]}


def replay_task(task: Task) -> dict[str, Any]:
    """Check and time plans that were recorded elsewhere."""
    from common.grading import replay

    return replay.replay(task)


def trace_task(task: Task) -> dict[str, Any]:
    """Trace a file's kernels at one shape; only in a process whose Numba is the simulator."""
    from common.tracing import lanes, trace

    problem = problems.from_shape(task["ladder"], task["shape"])
    options = dict(task["options"])
    if options.get("block"):
        options["block"] = tuple(options["block"])
    try:
        found = trace.run(catalog.load(Path(task["path"]), task["ladder"]), problem, **options)
    except lanes.TraceError as error:
        return {"status": "unusable", "message": str(error)}
    return {"status": "wrong" if found.faults else "right", "trace": found.as_dict()}


def explain_task(task: Task) -> dict[str, Any]:
    """Let a step say what it would do for a problem and why: its ``explain(problem, weights on the GPU or None)``."""
    import numpy as np
    from numba import cuda

    problem = problems.from_shape(task["ladder"], task["shape"])
    module = catalog.load(Path(task["path"]), task["ladder"])
    if not hasattr(module, "explain"):
        raise catalog.CatalogError(f"{task['step']}: has nothing to explain: it defines no explain(problem, weights)")
    if os.environ.get(device.SIMULATOR_SWITCH) == "1":
        return {"status": "right", "text": module.explain(problem, None)}
    weights = cuda.to_device(np.ones(problem.weight_shape, np.float32))
    return {"status": "right", "text": module.explain(_fit(task), weights)}


TASKS: dict[str, Callable[[Task], dict[str, Any]]] = {
    "check": check_task,
    "time": time_task,
    "pair": pair_task,
    "tunables": tunables_task,
    "sweep": sweep_task,
    "launch": launch_task,
    "peer": peer_task,
    "ceilings": ceilings_task,
    "device": device_task,
    "compile": compile_task,
    "card": card_task,
    "maps": maps_task,
    "launches": launches_task,
    "replay": replay_task,
    "trace": trace_task,
    "explain": explain_task,
}


def main(task_file: str, result_file: str, *options: str) -> None:
    """Do the tasks in ``task_file``. ``warm``: get ready first. ``wait``: until a line comes on standard input."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    sys.stdout = sys.stderr  # a kernel file's prints are not results
    if "warm" in options:
        _warm()
    if "wait" in options and not sys.stdin.readline():
        return  # the parent has ended
    began = time.monotonic()
    tasks: list[Task] = json.loads(Path(task_file).read_text(encoding="utf-8"))
    answers = _Answers(result_file)
    if _simulated():
        from common import simulator

        simulator.install()
    else:
        _require_limits()
    for task in tasks:
        with answers.due(task, began):
            result = _attempt(task)
        answers.give(result)
        if result.get("fatal"):
            break
        began = time.monotonic()


def _end_with(parent: int) -> None:
    """End when the parent has: whoever kills it would leave an endless kernel running."""
    while os.getppid() == parent:
        time.sleep(_PARENT_SECONDS)
    os._exit(1)


def _warm() -> None:
    """Import what tasks need, and let Numba load what its first compilations do."""
    from common import check  # noqa: F401

    if _simulated():
        from common import hazards, simulator  # noqa: F401
    else:
        from common import timing  # noqa: F401
        from common.code import codegen

        codegen.warm()
        gc.collect()
        gc.freeze()  # what is loaded now stays: a compilation need not look through it again and again
        gc.set_threshold(100_000, 50, 50)


class _Answers:
    """Appends results to a file, one line each; that of a late task comes from another thread."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()

    def give(self, result: dict[str, Any]) -> None:
        with self._lock, open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")

    @contextmanager
    def due(self, task: Task, began: float) -> Iterator[None]:
        """The task has ``task["seconds"]`` from ``began`` on; a kernel that does not end is told with its line."""
        seconds = task.get("seconds")
        if seconds is None:
            yield
            return
        main_thread = threading.get_ident()

        def late() -> None:
            self.give(_late(Path(task.get("path", "")), seconds, main_thread))

        # before the parent's own clock runs out
        alarm = threading.Timer(max(0.1, began + 0.9 * seconds - 0.5 - time.monotonic()), late)
        alarm.daemon = True
        alarm.start()
        try:
            yield
        finally:
            alarm.cancel()


def _late(path: Path, seconds: float, thread: int) -> dict[str, Any]:
    line = None
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if Path(frame.f_code.co_filename).name == path.name:
            line = line or frame.f_lineno
        frame = frame.f_back
    fault = faults.of_time_out(seconds, path, line)
    where = f"; it was in {path.name}:{fault.line}: {fault.code}" if line else ""
    return {
        "status": "timed_out",
        "message": f"no result within {seconds:.0f} s: an endless loop, or a barrier that some threads skip?{where}",
        "faults": [fault.as_dict()],
        "fatal": True,
    }


def _require_limits() -> None:
    """Launches beyond a GPU's limits are refused before the driver sees them."""
    from numba.cuda import dispatcher

    call = dispatcher._LaunchConfiguration.__call__

    def checked(self: Any, *args: Any) -> Any:
        limits.require_launch(tuple(self.griddim), tuple(self.blockdim))
        try:
            return call(self, *args)
        except Exception as error:
            if "OUT_OF_RESOURCES" in str(error):
                for registers in self.dispatcher.get_regs_per_thread().values():
                    limits.require_registers(tuple(self.blockdim), registers)
            raise

    dispatcher._LaunchConfiguration.__call__ = checked


def _attempt(task: Task) -> dict[str, Any]:
    try:
        return TASKS[task["task"]](task)
    except (Exception, SystemExit) as error:
        return failure(error, Path(task.get("path", "")))


def failure(error: BaseException, path: Path) -> dict[str, Any]:
    """What became of the step file at ``path``: unusable, refused or crashed, and why in one line."""
    fault = faults.of_error(error, path)
    explained = {"faults": [fault.as_dict()]} if fault else {}
    if isinstance(error, catalog.CatalogError):
        return {"status": "unusable", "message": str(error), **explained}
    if isinstance(error, SyntaxError):
        return {"status": "unusable", "message": _syntax(error, path.name), **explained}
    line, said = _blame(error, path)
    # a step refuses a shape by a ValueError that it raises itself
    refused = isinstance(error, ValueError) and "raise ValueError" in said
    return {
        "status": "refused" if refused else "crashed",
        "message": str(error) if refused else f"{type(error).__name__}{line}: {_one_line(error)}",
        # a CUDA context does not recover from a fault
        "fatal": "Cuda" in type(error).__name__ or "CUDA_ERROR" in str(error),
        **explained,
    }


def _blame(error: BaseException, path: Path) -> tuple[str, str]:
    """' at file:line' of the step file's innermost frame, and that line's text if the error arose right there."""
    line, said = "", ""
    frames = traceback.extract_tb(error.__traceback__)
    for frame in frames:
        if path.name and Path(frame.filename).name == path.name:
            line = f" at {path.name}:{frame.lineno}"
            said = (frame.line or "").strip() if frame is frames[-1] else ""
    return _compiled_line(error, path) or line, said


def _compiled_line(error: BaseException, path: Path) -> str:
    """' at file:line' of the kernel's line that Numba was working on when it gave up."""
    found = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        line = faults.kernel_line(frame, path)
        found = found if line is None else f" at {path.name}:{line}"
    return found


def _syntax(error: SyntaxError, name: str) -> str:
    name = Path(error.filename or name).name  # perhaps a file that the step's imports
    return f"{name}:{error.lineno}: syntax error, {error.msg}: {(error.text or '').strip()}"


def _one_line(error: BaseException) -> str:
    text = faults.placed(" ".join(str(error).split()))
    # what a reader of Numba's errors skips: the compiler's stage, and the functions that do not fit
    text = re.sub(r"Failed in \w+ mode pipeline \(step: [^)]*\) ", "", text)
    text = re.sub(r" (?:There are \d+ candidate implementations:|During: ).*", "", text)
    return text if len(text) <= 600 else text[:600] + " ..."


def _fit(task: Task) -> problems.Problem:
    """The task's problem, its batch reduced to what this card's free memory holds."""
    return problems.fit_batch(
        problems.from_shape(task["ladder"], task["shape"]), int(device.free_bytes() * MEMORY_SHARE)
    )


@contextlib.contextmanager
def _counting_launches() -> Iterator[list[str]]:
    """The names of the kernels launched meanwhile, in order."""
    from numba.cuda import dispatcher

    names: list[str] = []
    call = dispatcher._LaunchConfiguration.__call__

    def counted(self: Any, *args: Any) -> Any:
        names.append(self.dispatcher.py_func.__name__)
        return call(self, *args)

    with mock.patch.object(dispatcher._LaunchConfiguration, "__call__", counted):
        yield names


def _nbytes(workspace: Any) -> int:
    if workspace is None:
        return 0
    if isinstance(workspace, list | tuple):
        return sum(_nbytes(item) for item in workspace)
    return int(workspace.nbytes)


if __name__ == "__main__":
    main(*sys.argv[1:])
