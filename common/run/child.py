"""The process kernels run in: reads tasks, does them one by one, and answers each with its result, or that it took
too long; what it may take of memory and files."""

from __future__ import annotations

import gc
import importlib
import json
import os
import pickle
import re
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection, parent_process
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from msgspec import to_builtins
from msgspec.structs import replace

from common.catalog import catalog
from common.explain import faults
from common.run import stages
from common.run.messages import Found, Result, Task, typed

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

WORK, LOG = "work", "log.txt"  # in a child's folder: where it works, and what it prints
TASKS, RESULTS = "tasks.pickle", "results.jsonl"  # and of a child that a tool watches
# names are put together, so that what reads imports does not count these modules as imported by this file
MOST_NEEDED = [f"common.{name}" for name in ("machine_code.codegen", "timing.tasks", "check.tasks")]
_outside = 1, 2  # file descriptors: where the harness prints


def main(line: Connection, folder: str, environment: dict[str, str], limits: tuple[int, int]) -> None:
    """Do the tasks that come through ``line`` until it ends; ``limits``: bytes of memory, and of any file."""
    global _outside
    with suppress(OSError):  # one that is closed
        _outside = os.dup(1), os.dup(2)
    if os.name == "posix":
        os.setsid()  # whoever ends this process ends all of its group, and no Ctrl-C comes here
    log = os.open(Path(folder, LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sys.stdout, sys.stderr = _written_to(log, 1), _written_to(log, 2)
    threading.Thread(target=_end_with_parent, args=(Path(folder),), daemon=True).start()
    _ready(folder, environment, limits)
    say = _speaker(line.send_bytes)
    say({"at": ""})
    while True:
        try:
            task = pickle.loads(line.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)
        answer(task, say)


def watched(folder: str, limits: tuple[int, int]) -> None:
    """Do the tasks of a folder's file in a process that a tool has started, and write their results beside it."""
    sys.stdout = sys.stderr
    _ready(folder, dict(os.environ), limits)
    with Path(folder, RESULTS).open("ab", buffering=0) as file:
        say = _speaker(lambda data: file.write(data + b"\n"))
        for task in pickle.loads(Path(folder, TASKS).read_bytes()):
            if answer(task, say).fatal:
                break


def _written_to(target: int, number: int) -> TextIO:
    """From now on what is written to this file descriptor goes to the ``target``; and a stream to it."""
    os.dup2(target, number)
    return open(number, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)


def print_outside(aside: bool) -> None:
    """From now on this process prints where the harness does; ``aside``: to standard error alone."""
    output, errors = _outside
    sys.stdout, sys.stderr = _written_to(errors if aside else output, 1), _written_to(errors, 2)


def _ready(folder: str, environment: dict[str, str], limits: tuple[int, int]) -> None:
    import lessons  # noqa: F401 - no longer found below

    os.environ.clear()
    os.environ.update(environment)
    os.chdir(Path(folder, WORK))
    # its folder is no place to import from, and neither is the checkout, but for its own packages
    sys.path[:] = [name for name in sys.path if name and Path(name).resolve() != catalog.ROOT]
    sys.argv = ["common"]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if os.name == "posix":
        import resource

        # not RLIMIT_AS: allocators and drivers reserve far more addresses than they use; and no crash leaves a core
        limited = {resource.RLIMIT_DATA: limits[0], resource.RLIMIT_FSIZE: limits[1], resource.RLIMIT_CORE: 0}
        for what, limit in limited.items():
            with suppress(ValueError, OSError):
                resource.setrlimit(what, (limit, limit))
    for name in MOST_NEEDED:
        importlib.import_module(name)
    gc.set_threshold(100_000, 50, 50)
    gc.freeze()  # what is loaded now stays: nothing need look through it again and again
    sys.modules[MOST_NEEDED[2]].ready()


def _end_with_parent(folder: Path) -> None:
    """When the harness has ended, remove the folder, and end with all that was started here."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    shutil.rmtree(folder, ignore_errors=True)
    end_group(os.getpid())
    os._exit(1)


def end_group(pid: int) -> None:
    """End a process with all of its group, whose first it is."""
    if os.name == "posix":
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


def _speaker(send: Callable[[bytes], object]) -> stages.Say:
    """Sends messages as JSON, one at a time, from any thread."""
    encode, lock = json.JSONEncoder(default=to_builtins).encode, threading.Lock()  # a step file may change json

    def say(words: dict[str, object]) -> None:
        with lock:
            send(encode(words).encode())

    return say


def answer(task: Task[Result], say: stages.Say) -> Result:
    """Do a task, and answer it: with what came of it, or, from another thread, that it took too long."""
    assert task.seconds is not None  # whoever sends it says for how long
    with stages.Watch(Path(task.path), task.seconds, task.within).looking(say) as late:
        result = attempt(task)
    if not late:
        say({"result": result.told()})
    return result


def attempt(task: Task[Found]) -> Found:
    """What comes of a task in this process, whatever is raised."""
    try:
        began = time.monotonic()
        layer, _, name = task.kind.partition(".")
        with stages.stage(name):
            tasks = importlib.import_module(f"common.{layer}.tasks")
            result: Found = getattr(tasks, f"{name}_task")(task)
        return replace(result, seconds=round(time.monotonic() - began, 3))
    except BaseException as error:  # a file may raise SystemExit, too
        return typed(task, failure(error, Path(task.path)))


def failure(error: BaseException, path: Path) -> Result:
    """What became of the step file at ``path``: unusable, refused or crashed, and why in one line."""
    fault = faults.of_error(error, path)
    text = " ".join(str(error).split())
    # what a reader of Numba's errors skips: the compiler's stage, and the functions that do not fit
    text = re.sub(r"Failed in \w+ mode pipeline \(step: [^)]*\) ", "", text)
    text = faults.cut(re.sub(r" (?:There are \d+ candidate implementations:|During: |File \").*", "", text), 600)
    explained = [fault] if fault else []
    if isinstance(error, SyntaxError | catalog.CatalogError):
        message = fault.what if fault and isinstance(error, SyntaxError) else text
        return Result(status="unusable", message=message, faults=explained)
    line, frames = faults.raised_at(error, path), traceback.extract_tb(error.__traceback__)
    own = [frame.line or "" for frame in frames[-1:] if Path(frame.filename).name == path.name]
    # a step refuses a shape by a ValueError that it raises itself, on the host, and says why
    if isinstance(error, ValueError) and "raise ValueError" in "".join(own) and text:
        look_at = "the constants at the file's top, against this condition" * (frames[-1].name == "<module>")
        return Result(status="refused", message=text, faults=[faults.fault("refused", text, path, line, look_at)])
    where = f" at {path.name}:{line}" if line else ""
    # a CUDA context does not recover from a fault
    fatal = "Cuda" in type(error).__name__ or "CUDA_ERROR" in str(error)
    message = f"{type(error).__name__}{where}: {text}"
    placed = [faults.fault("uncaught", f"{type(error).__name__}: {text}", path, line)] if line and not fatal else []
    return Result(status="crashed", message=message, faults=explained or placed, fatal=fatal)
