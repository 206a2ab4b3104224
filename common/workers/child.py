"""The process kernels run in: reads tasks, does them one by one, and answers each with one line of JSON.

A task's name is a layer's and a function's: ``jobs.check`` is done by ``check_task`` of ``common/jobs/tasks.py``, and
is the struct that this function's parameter is annotated with (:mod:`common.workers.messages`). A layer's ``tasks``
may have ``warm`` and ``rehearse``, called ahead of the first task, and ``ready``, called before it. Started by
:mod:`common.workers.isolate`, which outlives whatever a kernel does here.
"""

from __future__ import annotations

import builtins
import faulthandler
import functools
import importlib
import json
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import get_type_hints

from msgspec import to_builtins

import common
from common.book import catalog, ledger, schema
from common.explain import faults
from common.workers import keeper, messages, overdue
from common.workers.messages import FileTask, Result, Task, TaskError

_PARENT_SECONDS = 1.0


def _layers() -> Iterator[str]:
    """The packages of the workbook that have tasks."""
    yield from (path.parent.name for path in sorted(Path(common.__path__[0]).glob("*/tasks.py")))


def _tasks_of(layer: str) -> ModuleType:
    return importlib.import_module(f"common.{layer}.tasks")


_DOES = "_task"


def structs() -> dict[str, type[Task[Result]]]:
    """The struct of each task by its name: that of the function which does it."""
    found = {}
    for layer in _layers():
        for name, function in vars(_tasks_of(layer)).items():
            if name.endswith(_DOES) and not name.startswith("_"):
                found[f"{layer}.{name.removesuffix(_DOES)}"], *_ = get_type_hints(function).values()
    return found


def _of_every_layer(name: str) -> None:
    """Call the function of this name of those layers whose tasks have one."""
    for layer in _layers():
        getattr(_tasks_of(layer), name, lambda: None)()


def warm() -> None:
    """Import what tasks need."""
    _of_every_layer("warm")


def rehearse() -> None:
    """Do what the first tasks of each process would: it pays where several processes come of this one."""
    _of_every_layer("rehearse")


def main(text: str) -> None:
    """Do tasks and answer for each. ``text`` is JSON: :class:`common.workers.keeper.Options`; raises SchemaError."""
    options = schema.read(json.loads(text), keeper.Options, "options")
    answers = _Answers(options)
    faulthandler.enable(all_threads=False)
    if os.name != "posix":
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    confine(options["memory"], options["files"])
    sys.stdout = sys.stderr  # a kernel file's prints are not results
    if options["warm"]:
        warm()
        rehearse()
    if options["wait"] and not sys.stdin.readline():
        return  # the parent has ended
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    path = Path(options["tasks"])
    tasks = messages.decode(path.read_bytes(), structs())
    path.unlink()
    _of_every_layer("ready")
    answers.hello()
    for number, task in enumerate(tasks):
        with answers.due(number, task):
            result = _attempt(task)
        answers.give(number, result)
        if result.get("fatal"):
            break
    answers.done()


def confine(memory_bytes: int, file_bytes: int) -> None:
    """Limit this process and all it starts, where the system can; no crash leaves a core file."""
    if os.name != "posix":
        return
    import resource

    # not RLIMIT_AS: allocators and drivers reserve far more addresses than they use
    for what, limit in (("DATA", memory_bytes), ("FSIZE", file_bytes), ("CORE", 0)):
        with suppress(ValueError, OSError):
            resource.setrlimit(getattr(resource, f"RLIMIT_{what}"), (limit, limit))


def _end_with(parent: int) -> None:
    """End when the parent has, where no keeper does that."""
    while os.getppid() == parent:
        time.sleep(_PARENT_SECONDS)
    os._exit(1)


class _Answers:
    """Gives one answer to each task, in order; that of a late task comes from another thread.

    Only this process answers: one that was forked from it ends when it would.
    """

    def __init__(self, options: keeper.Options) -> None:
        channel = options.get("channel")
        if channel is None:
            channel = os.open(options["results"], os.O_WRONLY | os.O_APPEND)
        os.set_inheritable(channel, False)
        self._channel = channel
        self._pid = os.getpid()
        self._lock = threading.Lock()
        # a step file may change these
        self._write, self._encode, self._getpid = os.write, json.JSONEncoder(default=to_builtins).encode, os.getpid
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._disown)

    def _disown(self) -> None:
        channel, self._channel = self._channel, -1
        if channel >= 0:
            os.close(channel)

    def hello(self) -> None:
        """The tasks are about to begin."""
        self._say({"hello": self._pid})

    def done(self) -> None:
        """There is nothing more to answer."""
        self._disown()

    def give(self, number: int, result: Result) -> None:
        """Answer a task; of two answers to one, who reads takes the first."""
        with self._lock:
            self._say({"pid": self._pid, "number": number, "result": result})

    def _say(self, words: dict[str, object]) -> None:
        if self._getpid() != self._pid or self._channel < 0:
            os._exit(1)
        data = self._encode(words).encode() + b"\n"
        while data:
            data = data[self._write(self._channel, data) :]

    def at(self, stage: str) -> None:
        """The task goes on: what it is at."""
        with self._lock:
            self._say({"at": stage})

    @contextmanager
    def due(self, number: int, task: Task[Result] | TaskError) -> Iterator[None]:
        """The task's time begins; whatever takes too long is told by another thread, with its stage and line."""
        if isinstance(task, TaskError) or task.seconds is None:
            yield
            return
        watch = overdue.Watch(_path(task), task.seconds, task.within)
        done = threading.Event()

        def look() -> None:
            told = time.monotonic()
            while not done.wait(overdue.TICK_SECONDS):
                late = watch.tick()
                if late and not done.is_set():
                    self.give(number, late)
                    return
                if time.monotonic() - told > messages.SIGN_SECONDS:
                    told = time.monotonic()
                    self.at(watch.stage)

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()  # it says nothing any more


_BUILTINS = dict(vars(builtins))
_ANYTHING = BaseException  # which a step file may have deleted


@functools.cache
def _note_start() -> None:
    """Enter, once, what it took to get here: the interpreter's start and imports."""
    ledger.note("processes and imports", time.process_time(), time.process_time())


def _path(task: Task[Result] | TaskError) -> Path:
    return Path(task.path if isinstance(task, FileTask) else "")


def _attempt(task: Task[Result] | TaskError) -> Result:
    path = _path(task)
    try:
        if isinstance(task, TaskError):
            raise task
        _note_start()
        began = time.monotonic()
        layer, _, name = task.kind.partition(".")
        with ledger.stage(name):
            result: Result = getattr(_tasks_of(layer), name + _DOES)(task)
        if result["status"] not in messages.STATUSES:  # whoever asked would pass it over
            messages.require(task, result)
        return {**result, "seconds": round(time.monotonic() - began, 3)}
    except _ANYTHING as error:
        changed = _restore_builtins()
        if changed:
            fault = faults.of_changed_builtins(changed, path)
            return {"status": "crashed", "message": fault.what, "faults": [fault.as_dict()]}
        return failure(_speaking(error), path)
    finally:
        _restore_builtins()


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
    own = isinstance(error, ValueError) and "raise ValueError" in said and not faults.in_kernel(error)
    refused = own and bool(str(error).strip())
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
    name = Path(error.filename or path).name  # perhaps a file that the step's imports
    text = faults.cut((error.text or "").strip())
    return f"{name}:{at}: syntax error, {faults.cut(str(error.msg))}" + (f": {text}" if text else "")


def _one_line(error: BaseException) -> str:
    text = faults.placed(" ".join(str(error).split()))
    # what a reader of Numba's errors skips: the compiler's stage, and the functions that do not fit
    text = re.sub(r"Failed in \w+ mode pipeline \(step: [^)]*\) ", "", text)
    text = re.sub(r" (?:There are \d+ candidate implementations:|During: ).*", "", text)
    return faults.cut(text, 600)
