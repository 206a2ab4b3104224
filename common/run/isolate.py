"""Runs tasks in child processes with a time limit for each, so that no kernel takes the harness down.

Children come from the standard library's fork server, which has imported what tasks need, if there is one. Each has a
folder and a process group of its own, and is given tasks one at a time. Those that touch the GPU are done by one
process, its owner, which is replaced when it ends, when a task leaves it in doubt, and when the code has changed.
"""

import atexit
import contextlib
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import connection, forkserver, spawn
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from common.catalog import catalog, device
from common.explain import faults
from common.run import child
from common.run.messages import Found, Result, Task, typed

START_SECONDS = 120.0  # of the clock, that a child may be silent at least, such as when it starts
SILENT = 10  # times a task's limit, if that is more
FILE_BYTES = 2 << 30
# macOS's libraries take no fork; and the fork server's socket lies in TMPDIR, with a path of at most 107 bytes
_SHORT = len(os.fsencode(tempfile.gettempdir())) <= 75
METHOD = "forkserver" if sys.platform.startswith("linux") and _SHORT else "spawn"
POLL_SECONDS, END_SECONDS = 0.05, 5.0
_MOST_BYTES, _LAST_WORDS = 1 << 30, 1 << 14  # of a result, and bytes of a log
_STAGE = b'"'  # how the JSON of a stage begins; a result's is an object

_closed = threading.Event()  # when set nothing is started
_lock = threading.RLock()  # of the standard library's processes, which are for one thread


class Pool(ThreadPoolExecutor):
    """Threads that each wait for a child process. On leaving, ``stop`` is set, and what has not begun is given up."""

    def __init__(self, workers: int | None = None, stop: threading.Event | None = None) -> None:
        super().__init__(min(workers or device.workers(), device.workers()))
        self.stop = stop or threading.Event()

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.shutdown(wait=True, cancel_futures=True)


def run_groups(
    groups: Sequence[Sequence[Task[Found]]], without_gpu: bool, seconds: float, workers: int = 1
) -> Iterator[tuple[Task[Found], Found]]:
    """Run each group of tasks in a child process of its own, ``workers`` at a time. Results come group by group."""
    with Pool(workers) as pool:
        for found in pool.map(lambda tasks: list(run(tasks, without_gpu, seconds, pool.stop)), groups):
            yield from found


def run(
    tasks: Iterable[Task[Found]], without_gpu: bool, seconds: float, *stops: threading.Event
) -> Iterator[tuple[Task[Found], Found]]:
    """Run tasks in order, yielding each result before the next task is asked for, until one of ``stops`` is set: in
    one child process, or in the owner of the GPU if they touch it.

    A task that ends its process is crashed; one that takes longer than ``seconds`` (or its own) of its own time
    (:class:`common.run.child.Watch`) is timed_out if the file's kernel or other code ran so long, else unjudged. The
    rest go on in a fresh process, but those of a file that timed out are not tried. Other statuses: right, wrong,
    refused (the step does not take this shape), unjudged (this machine cannot tell), unusable (not a step file).
    """

    def stopped() -> bool:
        return _closed.is_set() or any(stop.is_set() for stop in stops)

    untried: dict[str, str] = {}  # by file that timed out: where
    own: Child | None = None
    try:
        for task in tasks:
            if stopped():
                return
            path, timed = task.path, replace(task, seconds=task.seconds or seconds)
            if path in untried and not task.alone:
                message = f"not tried: it gave no result in time{untried[path]}"
                yield task, typed(task, Result(status="timed_out", message=message))
                continue
            if task.on_gpu and not without_gpu:
                found = _on_gpu(timed, stopped)
            else:
                own = own if own and not own.over else _started(without_gpu, stopped)
                found = own.do(timed, stopped) if own else None
            if found is None:
                return
            if path and found.status == "timed_out" and not task.alone:
                untried[path] = f" at {task.problem}" if task.shape else ""
            yield task, replace(found, fatal=False)
    finally:
        if own:
            own.end()


def watched(tasks: Sequence[Task[Found]], command: list[str], seconds: float) -> tuple[list[Found], str]:
    """Run tasks in one child process under ``command`` (a profiler or sanitizer); returns results, fewer if it ended
    early, and all output. Raises TimeoutError after ``seconds``."""
    folder = _new_folder()
    try:
        (folder / child.TASKS).write_bytes(pickle.dumps([replace(task, seconds=seconds) for task in tasks]))
        (folder / child.RESULTS).touch()
        imports = f"import sys; sys.path.insert(0, {str(catalog.ROOT)!r}); from common.run import child"
        given = str(folder), (device.memory_for_a_child(device.gpu_count() > 0), FILE_BYTES)
        words = [*command, sys.executable, "-c", f"{imports}; child.watched{given}"]
        with _gpu_lock, (folder / child.LOG).open("wb") as output:
            cool()  # a card may take one process at a time
            tool = subprocess.Popen(
                words, cwd=folder / child.WORK, env=_environment_of(False, folder), stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, start_new_session=os.name == "posix",
            )  # fmt: skip
            try:
                tool.wait(seconds)
            except subprocess.TimeoutExpired:
                raise TimeoutError(f"{Path(command[0]).name} was not done within {seconds:.0f} s") from None
            finally:
                child.end_group(tool.pid)
                tool.kill()
                tool.wait()
        said = (folder / child.RESULTS).read_bytes().splitlines()
        results = (one for one in said if not one.startswith(_STAGE))
        found = [typed(task, result) for task, result in zip(tasks, results, strict=False)]
        return found, (folder / child.LOG).read_text(encoding="utf-8", errors="replace")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# --- one child ---


def _new_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="workbook-"))
    (folder / child.WORK).mkdir()
    return folder


def _environment_of(without_gpu: bool, folder: Path | None = None) -> dict[str, str]:
    with _lock:  # it is not this process's own while another child is started
        env = device.environment(without_gpu)
    if folder is not None:
        env["TMPDIR"] = str(folder / child.WORK)
    if "PYTHONPATH" in env:  # it works in another folder
        env["PYTHONPATH"] = os.pathsep.join(os.path.abspath(name) for name in env["PYTHONPATH"].split(os.pathsep))
    return env


@contextlib.contextmanager
def _surroundings(environment: dict[str, str]) -> Iterator[None]:
    """What is started meanwhile has this environment, and the checkout. Raises InterruptedError when closed."""
    paths = [str(catalog.ROOT), *filter(None, [environment.get("PYTHONPATH")])]
    with _lock:
        if _closed.is_set():
            raise InterruptedError
        forkserver.set_forkserver_preload(child.MOST_NEEDED)
        before = dict(os.environ)
        try:
            os.environ.clear()
            os.environ.update(environment, PYTHONPATH=os.pathsep.join(paths), PYTHONSAFEPATH="1")
            spawn.get_preparation_data = _preparation
            yield
        finally:
            spawn.get_preparation_data = _prepare
            os.environ.clear()
            os.environ.update(before)


def _preparation(name: str) -> dict[str, Any]:
    """What a child takes over: not this process's main module, which may be anybody's; the checkout comes first."""
    data = {key: value for key, value in _prepare(name).items() if not key.startswith("init_main")}
    return {**data, "sys_path": [str(catalog.ROOT), *data["sys_path"]]}


_prepare = spawn.get_preparation_data
_living: set["Child"] = set()


class Child:
    """A child process with its folder: started, given tasks one by one, ended."""

    def __init__(self, without_gpu: bool) -> None:
        self.folder = _new_folder()
        self.over = False  # it does no more tasks
        self.code: object = None  # what it may have loaded
        self.doubtful = ""  # the file that it failed with last
        self.stage = "start of the process"  # that it is at
        self._ending = threading.Lock()
        self.line, theirs = multiprocessing.Pipe()
        environment = _environment_of(without_gpu, self.folder)
        try:
            warm()  # the fork server has no child's folder in its environment
            with theirs, _surroundings(environment):
                context: Any = multiprocessing.get_context(METHOD)
                memory = device.memory_for_a_child(not without_gpu and device.gpu_count() > 0)
                given = theirs, str(self.folder), environment, (memory, FILE_BYTES)
                self.process = context.Process(target=child.main, args=given, daemon=False)
                self.process.start()
        except BaseException:
            self.line.close()
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        _living.add(self)

    @property
    def waits(self) -> bool:
        return not self.over and not connection.wait([self.process.sentinel], 0.0)

    def do(self, task: Task[Found], stopped: Callable[[], bool]) -> Found | None:
        """What comes of a task, whose ``seconds`` are its limit; None if ``stopped``. The child keeps limits itself,
        and gives signs that it does; or it is given up."""
        assert task.seconds is not None
        with contextlib.suppress(OSError):  # one that has ended is told by its end
            self.line.send_bytes(pickle.dumps(task))
        answer: Result | bytes | None = None
        sign, most = time.monotonic(), max(START_SECONDS, SILENT * task.seconds)
        while answer is None and not stopped():
            if connection.wait([self.line, self.process.sentinel], POLL_SECONDS):
                try:
                    said = self.line.recv_bytes(_MOST_BYTES) if self.line.poll() else b""
                except (EOFError, OSError):
                    said = b""
                if said.startswith(_STAGE):
                    self.stage, sign = said.decode(errors="replace").strip('"'), time.monotonic()
                else:
                    answer = said or self._dead()
            if answer is None and time.monotonic() - sign > most:
                answer = child.silent(self.stage)
        self.stage = ""
        result = None if answer is None else typed(task, answer)
        if result is None or result.fatal:
            self.end()
            return None if stopped() else result  # it may have been killed
        return result

    def _dead(self) -> Result:
        """What came of the task that a process ended with, or closed its line; with the last line of its log."""
        connection.wait([self.process.sentinel], 1.0)
        with _lock:
            code = self.process.exitcode
        if code is None:
            how = "the process closed its line to the harness"
        elif code < 0:
            how = f"the process died of {next((s.name for s in signal.Signals if s == -code), f'signal {-code}')}"
        else:
            how = f"the process ended with exit code {code} and no result"
        log = self.folder / child.LOG
        with contextlib.suppress(OSError), log.open("rb") as file:  # it may have ended before it wrote one
            file.seek(max(0, log.stat().st_size - _LAST_WORDS))
            if text := file.read().decode(errors="replace").strip().splitlines():
                how += f"; its last words: {faults.cut(text[-1], 300)}"
        return Result(status="crashed", message=how, fatal=True)

    def kill(self) -> None:
        """Kill it, with its group: whoever waits for it is told by its end."""
        with contextlib.suppress(OSError, ValueError):  # ValueError: it has been tidied up
            child.end_group(self.process.pid)
            self.process.kill()

    def end(self) -> None:
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


def _started(without_gpu: bool, stopped: Callable[[], bool]) -> Child | None:
    """A new child; None if ``stopped`` while it is started."""
    try:
        return Child(without_gpu)
    except (EOFError, OSError):
        if not stopped():
            raise
    return None


# --- all of them ---


def close() -> None:
    """Until :func:`reopen` nothing is started; whatever runs is killed. Safe in a signal's handler."""
    _closed.set()
    for one in list(_living):
        one.kill()
    with contextlib.suppress(AttributeError, OSError, TypeError):
        # a child that is being started would wait for all of its imports; the next call starts another
        os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)  # type: ignore[attr-defined]


def reopen() -> None:
    _closed.clear()


def warm() -> None:
    """Let the fork server, where there is one, import everything ahead of the next calls of :func:`run`."""
    if METHOD == "forkserver":
        with _surroundings(_environment_of(False)):
            forkserver.ensure_running()


@atexit.register
def _end_all() -> None:
    close()
    for one in list(_living):
        one.end()


# --- the process that owns the GPU ---

_gpu_lock = threading.RLock()  # whoever holds it has the GPU
_owner: Child | None = None


def _on_gpu(task: Task[Found], stopped: Callable[[], bool]) -> Found | None:
    global _owner
    with _gpu_lock:
        if stopped():
            return None
        path, owner, code = task.path, _owner, _code()
        if owner is None or not owner.waits or owner.doubtful not in ("", path) or owner.code != code:
            cool()
            _owner = owner = _started(False, stopped)
        if owner is None:
            return None
        owner.code = code
        result = owner.do(task, stopped)
        # what was wrong may have written anywhere
        if result is None or result.status not in ("right", "refused", "unjudged"):
            owner.doubtful = path or "a task"
        return result


def _code() -> object:
    """The environment, and when each file of the lessons' code was last written: what a process may have loaded."""
    written = {}
    for path in catalog.LESSONS.rglob("*.py"):
        with contextlib.suppress(OSError):  # an editor may just write it
            written[path] = path.stat().st_mtime_ns
    return _environment_of(False), written


def cool() -> None:
    """End the process that owns the GPU."""
    global _owner
    with _gpu_lock:
        if _owner is not None:
            _owner.end()
        _owner = None
