"""The process kernels run in: reads tasks, does them one by one, and answers each with its result.

A task's name is a layer's and a function's: ``jobs.check`` is done by ``check_task`` of ``common/jobs/tasks.py``. A
layer's ``tasks`` may have ``warm`` and ``rehearse``, called ahead of the first task, and ``ready``, called before it.
Started by :mod:`common.run.isolate`, which outlives whatever a kernel does here.
"""

from __future__ import annotations

import builtins
import faulthandler
import functools
import importlib
import json
import os
import pickle
import re
import shutil
import signal
import stat
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection, parent_process
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from msgspec import to_builtins

import common
from common.catalog import catalog, ledger
from common.explain import faults
from common.run import limits, overdue
from common.run.messages import FileTask, Result, Task

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

WORK, LOG = "work", "log.txt"  # in a child's folder: where it works, and what it prints
TASKS, RESULTS = "tasks.pickle", "results.jsonl"  # and of a child that a tool watches
_DOES = "_task"


@dataclass(frozen=True)
class Options:
    """What a child is started with: its folder, its environment, and bytes of memory and of any file that it may
    take."""

    folder: str
    environment: dict[str, str]
    memory_bytes: int
    file_bytes: int


def _layers() -> Iterator[str]:
    """The packages of the workbook that have tasks."""
    yield from (path.parent.name for path in sorted(Path(common.__path__[0]).glob("*/tasks.py")))


def _tasks_of(layer: str) -> ModuleType:
    return importlib.import_module(f"common.{layer}.tasks")


def _of_every_layer(name: str) -> None:
    """Call the function of this name of those layers whose tasks have one."""
    for layer in _layers():
        getattr(_tasks_of(layer), name, lambda: None)()


@functools.cache
def warm() -> None:
    """Import what tasks need."""
    _of_every_layer("warm")


def rehearse() -> None:
    """Do what the first tasks of each process would: it pays where several processes come of this one."""
    _of_every_layer("rehearse")


def main(line: Connection, options: Options) -> None:
    """Do the tasks that come through ``line`` until it ends; does not return."""
    if os.name == "posix":
        os.setsid()  # whoever ends this process ends all of its group, and no Ctrl-C comes here
    _settle(options)
    threading.Thread(target=_end_with_parent, args=(Path(options.folder),), daemon=True).start()
    warm()
    _of_every_layer("ready")
    answers = _Answers(line.send_bytes)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=line.close)  # a file's own fork answers for nobody
    answers.say({"ready": True})
    while True:
        try:
            data = line.recv_bytes()
        except (EOFError, OSError):
            os._exit(0)
        number, task = pickle.loads(data)
        limits.end_in_time(task.within or overdue.ALL * task.seconds)
        answers.answer(number, task)


def watched(folder: str, memory_bytes: int, file_bytes: int) -> None:
    """Do the tasks of a folder's file in a process that a tool has started, and write their results beside it."""
    _settle(Options(folder, dict(os.environ), memory_bytes, file_bytes), log=False)
    warm()
    _of_every_layer("ready")
    with Path(folder, RESULTS).open("ab", buffering=0) as file:
        answers = _Answers(lambda data: file.write(data + b"\n"))
        for number, task in enumerate(pickle.loads(Path(folder, TASKS).read_bytes())):
            if answers.answer(number, task).get("fatal"):
                break


def _settle(options: Options, log: bool = True) -> None:
    """Become a process that works in a folder of its own, and prints into a log there."""
    import lessons  # noqa: F401 - no longer found below

    os.environ.clear()
    os.environ.update(options.environment)
    os.chdir(Path(options.folder, WORK))
    # its folder is no place to import from, and neither is the checkout, but for its own packages
    sys.path[:] = [name for name in sys.path if name and Path(name).resolve() != catalog.ROOT]
    sys.argv = ["common"]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if log:
        handle = os.open(Path(options.folder, LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for number in (1, 2):
            os.dup2(handle, number)
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    sys.stdout = sys.stderr  # a kernel file's prints are not results
    faulthandler.enable(all_threads=False)
    limits.confine(options.memory_bytes, options.file_bytes)


def _end_with_parent(folder: Path) -> None:
    """End with all that was started here, and remove the folder, when the harness has ended."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    remove(folder)
    end_group(os.getpid(), folder)
    os._exit(1)


class _Answers:
    """Gives one answer to each task, in order; that of a late task comes from another thread.

    Only this process answers: one that was forked from it ends when it would.
    """

    def __init__(self, send: Callable[[bytes], object]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._due = -1  # the number of the task that has no answer yet
        # a step file may change these
        self._encode, self._pid, self._getpid = json.JSONEncoder(default=to_builtins).encode, os.getpid(), os.getpid

    def say(self, words: dict[str, object]) -> None:
        if self._getpid() != self._pid:
            os._exit(1)
        self._send(self._encode(words).encode())

    def answer(self, number: int, task: Task[Result]) -> Result:
        """Do a task, and answer it."""
        path, seconds = _path(task), task.seconds
        assert seconds is not None  # whoever sends it says for how long
        self._due = number

        def give(result: Result) -> None:
            with self._lock:
                if self._due == number:
                    self._due = -1
                    self.say({"number": number, "result": result})

        def sign(stage: str) -> None:
            with self._lock:
                self.say({"at": stage})

        with limits.due(overdue.Watch(path, seconds, task.within), give, sign):
            result = _attempt(task)
        give(result)
        return result


_BUILTINS = dict(vars(builtins))
_ANYTHING = BaseException  # which a step file may have deleted


def _path(task: Task[Result]) -> Path:
    return Path(task.path if isinstance(task, FileTask) else "")


def _attempt(task: Task[Result]) -> Result:
    path = _path(task)
    try:
        began = time.monotonic()
        layer, _, name = task.kind.partition(".")
        with ledger.stage(name):
            result: Result = getattr(_tasks_of(layer), name + _DOES)(task)
        if said := _goes_on(path):
            return {"status": "unusable", "message": said, "fatal": True}
        return {**result, "seconds": round(time.monotonic() - began, 3)}
    except _ANYTHING as error:
        changed = _restore_builtins()
        if changed:
            fault = faults.of_changed_builtins(changed, path)
            return {"status": "crashed", "message": fault.what, "faults": [fault.as_dict()]}
        return failure(_speaking(error), path)
    finally:
        _restore_builtins()


def _goes_on(path: Path) -> str:
    """What is said of threads that the file has started and that still run its code; empty if there are none.

    They share Python with all that is done here: nothing would be done in time, and no time would be the kernel's.
    """
    at = []
    for ident, frame in sys._current_frames().items():
        lines = [
            one.f_lineno for one, _ in traceback.walk_stack(frame) if Path(one.f_code.co_filename).name == path.name
        ]
        if path.name and lines and ident != threading.get_ident():
            at.append(lines[0])
    what = "thread that it has started goes" if len(at) == 1 else "threads that it has started go"
    return f"{len(at)} {what} on after the launch, at {path.name}:{min(at)}" if at else ""


def _speaking(error: BaseException) -> BaseException:
    """The error, or one in its place if it has no words: a file's own may raise when it is asked for them."""
    try:
        str(error)
    except Exception:
        name = type(error).__name__
        return RuntimeError(f"a {name}, which raises when asked what it says").with_traceback(error.__traceback__)
    return error


def _restore_builtins() -> list[str]:
    """Give Python its names back; those that were gone or changed."""
    now = builtins.__dict__
    changed = [name for name in _BUILTINS if name != "_" and (name not in now or now[name] is not _BUILTINS[name])]
    now.update(_BUILTINS)
    return changed


def failure(error: BaseException, path: Path) -> Result:
    """What became of the step file at ``path``: unusable, refused or crashed, and why in one line."""
    fault = faults.of_error(error, path)
    explained: Result = {"status": "unusable", "faults": [fault.as_dict()]} if fault else {"status": "unusable"}
    if isinstance(error, catalog.CatalogError):
        return {**explained, "message": _one_line(error)}
    if isinstance(error, SyntaxError):
        return {**explained, "message": _syntax(error, path)}
    line, said = _blame(error, path)
    # a step refuses a shape by a ValueError that it raises itself, on the host, and says why
    own = isinstance(error, ValueError) and "raise ValueError" in said
    refused = own and bool(str(error).strip())
    if refused:  # which an ordinary shape's verdict then names
        at = int(line.rpartition(":")[2]) if line else None
        explained["faults"] = [faults.fault("refused", _one_line(error), path, at).as_dict()]
    return {
        **explained,
        "status": "refused" if refused else "crashed",
        "message": _one_line(error) if refused else f"{type(error).__name__}{line}: {_one_line(error)}",
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
        line = faults.kernel_line(frame, path)
        found = found if line is None else f" at {path.name}:{line}"
    return found


def _syntax(error: SyntaxError, path: Path) -> str:
    at = error.lineno
    if Path(error.filename or path.name).name == path.name:
        at = faults.syntax_line(error, path)
    named = error.filename or ""
    name = path.name if named.startswith("<") else Path(named or path).name  # perhaps a file that the step's imports
    text = faults.cut((error.text or "").strip())
    return f"{name}:{at}: syntax error, {faults.cut(str(error.msg))}" + (f": {text}" if text else "")


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    # what a reader of Numba's errors skips: the compiler's stage, and the functions that do not fit
    text = re.sub(r"Failed in \w+ mode pipeline \(step: [^)]*\) ", "", text)
    text = re.sub(r" (?:There are \d+ candidate implementations:|During: ).*", "", text)
    return faults.cut(text, 600)


def end_group(pid: int, folder: Path | None = None) -> None:
    """End the process of this number with all of its group, whose first it is; and what it, or another that works in
    its folder, has started in a group of its own."""
    if os.name != "posix":
        return
    others = _came_of(pid, folder)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    for other in others:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(other, signal.SIGKILL)


def _came_of(pid: int, folder: Path | None) -> set[int]:
    """The processes that one has started, and those that they have, as far as /proc tells; those that have lost their
    parent are known by the folder for their temporary files."""
    parents, found = {}, set()
    mark = f"TMPDIR={folder}/".encode()
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            number = int(place.name)
            parents[number] = int((place / "stat").read_bytes().rpartition(b")")[2].split()[1])
            if folder is not None and mark in (place / "environ").read_bytes():
                found.add(number)
    before = -1
    while before != len(found):
        before = len(found)
        found |= {number for number, parent in parents.items() if parent in found or parent == pid}
    return found - {pid, os.getpid()}


def remove(folder: Path) -> None:
    """Remove a folder and all below it, what nobody may read included."""

    def open_up(path: str) -> None:
        with suppress(OSError):
            if not os.path.islink(path):
                os.chmod(path, stat.S_IRWXU)

    open_up(str(folder))
    for path, names, _ in os.walk(folder):
        for name in names:
            open_up(os.path.join(path, name))
    shutil.rmtree(folder, ignore_errors=True)
