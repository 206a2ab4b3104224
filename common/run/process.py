"""A child process with its folder: started, given tasks one by one, ended.

Children come from the standard library's fork server, which has imported what tasks need; where there is none they
are started from nothing. Each works in a folder of its own and is the first of a process group, with which it ends.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import connection, forkserver, spawn
from pathlib import Path
from typing import Any

from common.catalog import catalog, device
from common.explain import faults
from common.run import child, stages
from common.run.messages import Found, Result, Task, typed

START_SECONDS = 120.0  # for a child to be there; then its first task's time begins
SILENT = 10  # times a task's limit, of the clock, that a child may be silent
FILE_BYTES = 2 << 30
TOLD_SHARE = 1 / 3  # of a task's time, after which whoever waits is told
# macOS's libraries take no fork; and the fork server's socket lies in TMPDIR, with a path of at most 107 bytes
_SHORT = len(os.fsencode(tempfile.gettempdir())) <= 75
METHOD = "forkserver" if sys.platform.startswith("linux") and _SHORT else "spawn"
POLL_SECONDS = 0.05
END_SECONDS = 5.0
_MOST_BYTES = 1 << 30  # of a result
_LAST_WORDS = 1 << 14  # bytes of a log

Stopped = Callable[[], bool]

on_wait: Callable[[str, float], None] | None = None
"""Called, from any thread, with the subject of a task that lets wait and its limit in seconds."""

closed = threading.Event()
"""When set nothing is started (:func:`close`)."""

_lock = threading.RLock()  # of the standard library's processes, which are for one thread


def new_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="workbook-"))
    (folder / child.WORK).mkdir()
    return folder


def environment_of(without_gpu: bool, folder: Path | None = None) -> dict[str, str]:
    with _lock:  # it is not this process's own while another child is started
        env = device.environment(without_gpu)
    if folder is not None:
        env["TMPDIR"] = str(folder / child.WORK)
    if "PYTHONPATH" in env:  # it works in another folder
        env["PYTHONPATH"] = os.pathsep.join(os.path.abspath(name) for name in env["PYTHONPATH"].split(os.pathsep))
    return env


@contextlib.contextmanager
def _surroundings(environment: dict[str, str]) -> Iterator[None]:
    """What is started meanwhile, a fork server, too, imports in this environment; the workbook from the checkout.

    Raises InterruptedError when nothing is to be started any more.
    """
    paths = [str(catalog.ROOT), *filter(None, [environment.get("PYTHONPATH")])]
    wanted = {**environment, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
    with _lock:
        if closed.is_set():
            raise InterruptedError
        forkserver.set_forkserver_preload(child.MOST_NEEDED)
        before = dict(os.environ)
        try:
            os.environ.clear()
            os.environ.update(wanted)
            spawn.get_preparation_data = _preparation
            yield
        finally:
            spawn.get_preparation_data = _prepare
            os.environ.clear()
            os.environ.update(before)


def _preparation(name: str) -> dict[str, Any]:
    """What a child takes over from this process: not its main module, which may be anybody's script; and other
    packages by the workbook's names come after it."""
    data = {key: value for key, value in _prepare(name).items() if not key.startswith("init_main")}
    return {**data, "sys_path": [str(catalog.ROOT), *data["sys_path"]]}


_prepare = spawn.get_preparation_data
_living: set[Child] = set()


class Child:
    """A child process with its folder: started, given tasks one by one, ended."""

    def __init__(self, without_gpu: bool) -> None:
        self.folder = new_folder()
        self.environment = environment_of(without_gpu, self.folder)
        self.over = False  # it does no more tasks
        self.code: object = None  # the lessons' code that it may have loaded
        self.doubtful = ""  # the file that it failed with last
        self._ready = False
        self._number = 0
        self._ending = threading.Lock()
        self.line, theirs = multiprocessing.Pipe()
        memory = device.memory_for_a_child(not without_gpu and device.gpu_count() > 0)
        options = child.Options(str(self.folder), self.environment, memory, FILE_BYTES)
        try:
            warm()  # the fork server has no child's folder in its environment
            with theirs, _surroundings(self.environment):
                context: Any = multiprocessing.get_context(METHOD)
                self.process = context.Process(target=child.main, args=(theirs, options), daemon=False)
                self.process.start()
        except BaseException:
            self.line.close()
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        _living.add(self)

    @property
    def waits(self) -> bool:
        """Is it there, to be given a task?"""
        return not self.over and not connection.wait([self.process.sentinel], 0.0)

    def do(self, task: Task[Found], stopped: Stopped) -> Found | None:
        """What comes of a task, whose ``seconds`` are its limit; None if ``stopped``.

        With ``fatal`` in the result the process is lost.
        """
        answer = self._followed(task, stopped)
        result = None if answer is None else typed(task, answer)
        if result is None or result.fatal:
            self.end()
            return None if stopped() else result  # it may have been killed
        return result

    def _followed(self, task: Task[Result], stopped: Stopped) -> Result | dict[str, Any] | None:
        """What the child answers, or what is said of one that does not.

        The child keeps the limits itself and gives signs that it does; one that is silent for long is given up.
        """
        assert task.seconds is not None
        self._number += 1
        began = sign = time.monotonic()
        stage, told, given = "", False, False
        while not stopped():
            if self._ready and not given:
                given, began, sign = True, time.monotonic(), time.monotonic()
                with contextlib.suppress(OSError):  # one that has ended is told by its end
                    self.line.send_bytes(pickle.dumps((self._number, task)))
            if connection.wait([self.line, self.process.sentinel], POLL_SECONDS):
                try:
                    if not self.line.poll():
                        return self._dead(stage)
                    answer = parsed(self.line.recv_bytes(_MOST_BYTES))
                except (EOFError, OSError):
                    return self._dead(stage)
                self._ready = self._ready or "ready" in answer
                if "at" in answer:
                    stage, sign = str(answer["at"]), time.monotonic()
                result = answer.get("result")
                if answer.get("number") == self._number and isinstance(result, dict) and "status" in result:
                    return result
            waited = time.monotonic() - sign
            if not self._ready and waited > START_SECONDS:
                message = f"the process was not there within {START_SECONDS:.0f} s"
                return Result(status="unjudged", message=message, late=True, fatal=True)
            if given and waited > SILENT * task.seconds:
                return stages.silent(stage)
            if on_wait and not (told or task.ahead) and time.monotonic() - began > TOLD_SHARE * task.seconds:
                told = True
                on_wait(task.subject, task.seconds)
        return None

    def _dead(self, stage: str) -> Result:
        """What came of the task that a process ended with, or closed its line."""
        connection.wait([self.process.sentinel], 1.0)
        with _lock:
            code = self.process.exitcode
        if code is None:
            return Result(status="crashed", message="the process closed its line to the harness", fatal=True)
        if os.name == "posix" and code == -signal.SIGXCPU:
            return stages.silent(stage)
        return Result(status="crashed", message=obituary(code, self.folder / child.LOG), fatal=True)

    def kill(self) -> None:
        """Kill it, with its group: whoever waits for it is told by its end."""
        with contextlib.suppress(OSError, ValueError):  # ValueError: it has been tidied up
            child.end_group(self.process.pid)
            self.process.kill()

    def end(self) -> None:
        """End it, with its group, and remove its folder."""
        with self._ending:
            if self.over:
                return
            self.over = True
            self.kill()
            connection.wait([self.process.sentinel], END_SECONDS)
            with _lock, contextlib.suppress(ValueError):
                self.process.join(0)
                self.process.close()
            self.line.close()
            shutil.rmtree(self.folder, ignore_errors=True)
            _living.discard(self)


def close() -> None:
    """From now on nothing is started; whatever runs is killed, and whoever waits for it tidies up. Until
    :func:`reopen`.

    Safe in a signal's handler.
    """
    closed.set()
    for one in list(_living):
        one.kill()
    with contextlib.suppress(AttributeError, OSError, TypeError):
        # a child that is being started would wait for all of its imports; the next call starts another
        os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)  # type: ignore[attr-defined]


def reopen() -> None:
    """Take back :func:`close`."""
    closed.clear()


def started(without_gpu: bool, stopped: Stopped) -> Child | None:
    """A new child; None if ``stopped`` while it is started."""
    try:
        return Child(without_gpu)
    except (EOFError, OSError):
        if stopped():
            return None
        raise


def parsed(data: bytes) -> dict[str, Any]:
    """A message as a child writes it; an empty one if it is none."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def warm() -> None:
    """Let the fork server, where there is one, import everything ahead of the next calls of :func:`run`."""
    if METHOD == "forkserver":
        with _surroundings(environment_of(False)):
            forkserver.ensure_running()


@atexit.register
def _end_all() -> None:
    close()
    for one in list(_living):
        one.end()


def end(process: subprocess.Popen[bytes]) -> None:
    """End the process with its group, and wait for it."""
    child.end_group(process.pid)
    process.kill()
    process.wait()


def obituary(code: int, log: Path) -> str:
    """How a process ended, and the last line of its log."""
    text = []
    with contextlib.suppress(OSError), log.open("rb") as file:  # it may have ended before it wrote one
        file.seek(max(0, log.stat().st_size - _LAST_WORDS))
        text = file.read().decode(errors="replace").strip().splitlines()
    last = f"; its last words: {faults.last_words(text)}" if text else ""
    if code < 0:
        name = next((s.name for s in signal.Signals if s == -code), f"signal {-code}")
        return f"the process died of {name}{last}"
    return f"the process ended with exit code {code} and no result{last}"
