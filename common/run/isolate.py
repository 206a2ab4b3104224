"""Runs tasks in child processes with a time limit for each, so that no kernel takes the harness down.

Tasks go to a child (:mod:`common.run.process`) one at a time.
Tasks that touch the GPU are done by one process, the owner, one after the other. It is replaced when it ends, when a
task leaves it in doubt, and when the code has changed.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec.structs import replace

from common.catalog import catalog, device
from common.explain import faults
from common.run import child, messages, process
from common.run.messages import FileTask, Found, Result, ShapeTask, Task
from common.run.process import Stopped, close, end, obituary, reopen, warm

__all__ = ["Pool", "close", "cool", "obituary", "reopen", "run", "run_groups", "warm", "watched"]


class Pool(ThreadPoolExecutor):
    """Threads that each wait for one child process at a time, as many as :func:`common.catalog.device.workers`.

    Leaving it as a context sets ``stop``, and what is not done by then is not begun.
    """

    def __init__(self, workers: int | None = None) -> None:
        super().__init__(min(workers or device.workers(), device.workers()))
        self.stop = threading.Event()

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.shutdown(wait=True, cancel_futures=True)


def run_groups(
    groups: Sequence[Sequence[Task[Found]]], without_gpu: bool, seconds: float, workers: int = 1
) -> Iterator[tuple[Task[Found], Found]]:
    """Run each group of tasks in a child process of its own, ``workers`` at a time. Results come group by group."""
    with Pool(workers) as pool:
        waiting = [
            pool.submit(lambda tasks: list(run(tasks, without_gpu, seconds, pool.stop)), group) for group in groups
        ]
        for future in waiting:
            yield from future.result()


def run(
    tasks: Iterable[Task[Found]], without_gpu: bool, seconds: float, *stops: threading.Event
) -> Iterator[tuple[Task[Found], Found]]:
    """Run tasks in order, yielding each result before the next task is asked for, until one of ``stops`` is set: in
    one child process, or in the owner of the GPU if they touch it.

    A task that crashes its process gets a result that says so (``status`` crashed), and so does one that takes longer
    than ``seconds`` (or its own ``seconds``) of its own time (:mod:`common.run.stages`): timed_out if the file's
    kernel or its own code ran so long, else unjudged. The rest go on in a fresh process; but those of a file that
    timed out get a result that says the same and that they were not tried. Other statuses: right, wrong, refused (the
    step does not take this shape), unjudged (this machine cannot tell), unusable (not a step file).
    """

    def stopped() -> bool:
        return process.closed.is_set() or any(stop.is_set() for stop in stops)

    untried: dict[str, Result] = {}  # by file that timed out
    own: process.Child | None = None
    try:
        for task in tasks:
            if stopped():
                return
            path = "" if task.alone else _path(task)
            found = messages.typed(task, untried[path]) if path in untried else None
            if found is None:
                timed = replace(task, seconds=seconds if task.seconds is None else task.seconds)
                if task.on_gpu and not without_gpu:
                    found = _on_gpu(timed, stopped)
                else:
                    own = own if own and not own.over else process.started(without_gpu, stopped)
                    found = own.do(timed, stopped) if own else None
                if found is None:
                    return
                if path and found.status == "timed_out":
                    shape = task.shape if isinstance(task, ShapeTask) else {}
                    where = " at " + " ".join(f"{key}={value}" for key, value in shape.items()) if shape else ""
                    message = f"not tried: it gave no result in time{where}"
                    untried[path] = Result(status="timed_out", message=message)
            yield task, replace(found, fatal=False, faults=_end(task, found) or found.faults)
    finally:
        if own:
            own.end()


def _path(task: Task[Result]) -> str:
    return task.path if isinstance(task, FileTask) else ""


def watched(tasks: Sequence[Task[Found]], command: list[str], seconds: float) -> tuple[list[Found], str]:
    """Run tasks in one child process under ``command`` (a profiler or sanitizer); returns results and all output.

    Results may be fewer than tasks if the child ended early. Raises TimeoutError after ``seconds``.
    """
    folder = process.new_folder()
    try:
        timed = [replace(task, seconds=seconds if task.seconds is None else task.seconds) for task in tasks]
        Path(folder, child.TASKS).write_bytes(pickle.dumps(timed))
        Path(folder, child.RESULTS).touch()
        given = str(folder), device.memory_for_a_child(device.gpu_count() > 0), process.FILE_BYTES
        imports = f"import sys; sys.path.insert(0, {str(catalog.ROOT)!r}); from common.run import child"
        words = [*command, sys.executable, "-c", f"{imports}; child.watched{given}"]
        with _gpu(process.closed.is_set), Path(folder, child.LOG).open("wb") as output:
            _own(None)  # a card may take one process at a time
            tool = subprocess.Popen(
                words, cwd=folder / child.WORK, env=process.environment_of(False, folder), stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, start_new_session=os.name == "posix",
            )  # fmt: skip
            try:
                deadline = time.monotonic() + seconds
                while tool.poll() is None:
                    if time.monotonic() > deadline or process.closed.is_set():
                        raise TimeoutError(f"{Path(command[0]).name} was not done within {seconds:.0f} s")
                    time.sleep(process.POLL_SECONDS)
            finally:
                end(tool)
        lines = Path(folder, child.RESULTS).read_bytes().splitlines()
        answers = [answer["result"] for answer in map(process.parsed, lines) if "result" in answer]
        found = [messages.typed(task, answer) for task, answer in zip(tasks, answers, strict=False)]
        return found, Path(folder, child.LOG).read_text(encoding="utf-8", errors="replace")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# --- the process that owns the GPU ---

_gpu_lock = threading.Lock()
_owner: process.Child | None = None


@contextlib.contextmanager
def _gpu(stopped: Stopped) -> Iterator[bool]:
    """The GPU is this thread's meanwhile; False if ``stopped`` came first."""
    while not _gpu_lock.acquire(timeout=process.POLL_SECONDS):
        if stopped():
            yield False
            return
    try:
        yield True
    finally:
        _gpu_lock.release()


def _own(heir: process.Child | None) -> None:
    """Another process, or none, owns the GPU from now on; under :func:`_gpu`."""
    global _owner
    if _owner is not None:
        _owner.end()
    _owner = heir


def _on_gpu(task: Task[Found], stopped: Stopped) -> Found | None:
    """Do a task in the process that owns the GPU."""
    with _gpu(stopped) as mine:
        if not mine:
            return None
        path, owner, code = _path(task), _owner, _lessons_written()
        if owner is None or not owner.waits or owner.doubtful not in ("", path) or not _same(owner, code):
            _own(None)
            owner = process.started(False, stopped)
            _own(owner)
        if owner is None:
            return None
        owner.code = code
        result = owner.do(task, stopped)
        # what was wrong may have written anywhere
        fine = result is not None and result.status in ("right", "refused", "unjudged")
        owner.doubtful = owner.doubtful if fine else path or "a task"
        return result


def _same(owner: process.Child, code: object) -> bool:
    """Is the environment, and the lessons' code that it may have loaded, what it was?"""
    return owner.code == code and owner.environment == process.environment_of(False, owner.folder)


def _lessons_written() -> object:
    """When each file of the lessons' code was last written."""
    found = {}
    for path in catalog.LESSONS.rglob("*.py"):
        with contextlib.suppress(OSError):  # an editor may just write it
            found[path] = path.stat().st_mtime_ns
    return found


def cool() -> None:
    """End the process that owns the GPU."""
    if _gpu_lock.acquire(timeout=process.END_SECONDS):
        try:
            _own(None)
        finally:
            _gpu_lock.release()


def _end(task: Task[Result], result: Result) -> list[faults.Fault]:
    """At which line of its file a task ended its process, if it did."""
    fault = None
    if result.status == "crashed" and not result.faults and _path(task):
        fault = faults.of_end(str(result.message), Path(_path(task)))
    return [fault] if fault else []
