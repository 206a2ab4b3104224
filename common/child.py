"""The process kernels run in: reads tasks, does them one by one, appends one JSON line per task to a file.

Started by :mod:`common.run`, which outlives whatever a kernel does here.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from common import catalog, device, problems, simulator

Task = dict[str, Any]

# Device operands, a flush buffer and room for a workspace must fit.
MEMORY_SHARE = 0.8
SWEEP_SECONDS = 1.0


def check_task(task: Task) -> dict[str, Any]:
    """Check one file at one shape."""
    from common import check

    problem = problems.from_shape(task["ladder"], task["shape"])
    module = catalog.load(Path(task["path"]), task["ladder"])
    verdict = check.check(module, problem, task.get("seed", 0), task.get("repeats", check.REPEATS))
    return {"status": "right" if verdict.right else "wrong", **verdict.as_dict()}


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
    result["source"] = catalog.source_hash(Path(task["path"]))
    return result


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
        "source": catalog.source_hash(Path(task["path"])),
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
        "source": catalog.source_hash(Path(task["path"])),
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
    """
    from common import cards, codegen

    module = catalog.load(Path(task["path"]), task["ladder"])
    built: dict[tuple[int, str], list[tuple[str, list[str], Any]]] = {}

    def compiled(launch: Any) -> list[tuple[str, list[str], Any]]:
        """For each architecture its name, the lines in float64 and the machine code, if that was asked for."""
        key = id(launch.kernel), str(launch.signature)
        if key not in built:
            built[key] = []
            for name, text in codegen.ptx(launch, task["architectures"], bool(task.get("machine_code"))).items():
                code = codegen.machine_code(launch, name, text) if task.get("machine_code") else None
                built[key].append((name, codegen.float64_arithmetic(text), code))
        return built[key]

    def kernels(shape: dict[str, int]) -> list[dict[str, Any]]:
        entries = []
        for launch in codegen.distinct(codegen.launches(module, problems.from_shape(task["ladder"], shape))):
            for architecture, float64, code in compiled(launch):
                entry = {"kernel": launch.name, "architecture": architecture, "float64": float64}
                if code is not None:
                    entry.update(code.as_dict(), **cards.recorded(cards.card(launch, code)))
                entries.append(entry)
        return entries

    first = kernels(task["shape"])
    others = {preset: kernels(shape) for preset, shape in task.get("others", {}).items()}
    return {
        "status": "right",
        "kernels": first,
        "other_presets": {preset: entries for preset, entries in others.items() if entries != first},
        "source": catalog.source_hash(Path(task["path"])),
    }


def card_task(task: Task) -> dict[str, Any]:
    """A card for every kernel of a file, and the ``text`` of its PTX or machine code where ``show`` asks for it.

    ``files`` are the files that the kernels are made of: of the lessons, and those beside the step's.
    """
    from common import cards, codegen

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


TASKS: dict[str, Callable[[Task], dict[str, Any]]] = {
    "check": check_task,
    "time": time_task,
    "tunables": tunables_task,
    "sweep": sweep_task,
    "launch": launch_task,
    "peer": peer_task,
    "ceilings": ceilings_task,
    "device": device_task,
    "compile": compile_task,
    "card": card_task,
    "maps": maps_task,
}


def main(task_file: str, result_file: str) -> None:
    tasks: list[Task] = json.loads(Path(task_file).read_text(encoding="utf-8"))
    sys.stdout = sys.stderr  # a kernel file's prints are not results
    if os.environ.get(device.SIMULATOR_SWITCH) == "1":
        simulator.enforce_limits()
    for task in tasks:
        result = _attempt(task)
        with open(result_file, "a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
        if result.get("fatal"):
            break


def _attempt(task: Task) -> dict[str, Any]:
    try:
        return TASKS[task["task"]](task)
    except catalog.CatalogError as error:
        return {"status": "unusable", "message": str(error)}
    except (Exception, SystemExit) as error:
        path = Path(task.get("path", ""))
        if isinstance(error, SyntaxError):
            return {"status": "unusable", "message": _syntax(error, path)}
        line, said = _blame(error, path)
        # a step refuses a shape by a ValueError that it raises itself
        refused = isinstance(error, ValueError) and "raise ValueError" in said
        return {
            "status": "refused" if refused else "crashed",
            "message": str(error) if refused else f"{type(error).__name__}{line}: {_one_line(error)}",
            # a CUDA context does not recover from a fault
            "fatal": "Cuda" in type(error).__name__ or "CUDA_ERROR" in str(error),
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
        with contextlib.suppress(AttributeError):
            # not getattr: the simulator's arrays take any attribute for one of their elements
            place = object.__getattribute__(frame.f_locals.get("self"), "__dict__").get("loc")
            if type(place).__name__ == "Loc" and Path(place.filename).name == path.name:
                found = f" at {path.name}:{place.line}"
    return found


def _syntax(error: SyntaxError, path: Path) -> str:
    return f"{path.name}:{error.lineno}: syntax error, {error.msg}: {(error.text or '').strip()}"


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    # what a reader of Numba's errors skips: the compiler's stage, and the functions that do not fit
    text = re.sub(r"Failed in \w+ mode pipeline \(step: [^)]*\) ", "", text)
    text = re.sub(r" (?:There are \d+ candidate implementations:|During: ).*", "", text)
    # the simulator's words for a thread's place, in the lessons' words
    text = re.sub(r"tid=\[([^]]*)\] ctaid=\[([^]]*)\]", r"in thread (\1) of block (\2)", text)
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
