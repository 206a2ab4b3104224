"""Runs tasks in child processes with a time limit for each, so that no kernel takes the harness down.

Children come from the standard library's fork server, which has imported what tasks need
(:mod:`common.run.preload`); where there is none they are started from nothing. Each works in a folder of its own and
is the first of a process group, with which it ends. Tasks go to it one at a time.

Tasks that touch the GPU are done by one process, the owner, one after the other. It is replaced when it ends, when a
task leaves it in doubt, and when the code has changed.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import connection, forkserver, spawn
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

from common.catalog import catalog, device, ledger
from common.catalog.patching import replaced
from common.explain import faults
from common.run import child, messages, overdue
from common.run.messages import FileTask, Found, Result, ShapeTask, Task

START_SECONDS = 120.0  # for a child to be there; then its first task's time begins
SILENT = 10  # times a task's limit, of the clock, that a child may be silent; of its processor time, once
READY_SECONDS = 600.0  # for the next owner of the GPU to get ready for its tasks
FILE_BYTES = 2 << 30
TOLD_SHARE = 1 / 3  # of a task's time, after which whoever waits is told
_END_SECONDS = 5.0
_POLL_SECONDS = 0.05
_MESSAGE_SECONDS = 5.0  # for the rest of a message whose first byte is there
_MOST_BYTES = 1 << 30  # of a result
_LAST_WORDS = 1 << 14  # bytes of a log
_DEATHS = 2  # of one file's processes in a row: no more are started for it
_GROUPS = os.name == "posix"
_LOST = 255  # exit code of a process whose fork server has ended

Stopped = Callable[[], bool]

on_wait: Callable[[str, float], None] | None = None
"""Called, from any thread, with the subject of a task that lets wait and its limit in seconds."""

_closed = False


def close() -> None:
    """From now on nothing is started and whatever runs is ended, by whoever waits for it; until :func:`reopen`.

    Safe in a signal's handler.
    """
    global _closed
    _closed = True


def reopen() -> None:
    """Take back :func:`close`."""
    global _closed
    _closed = False


@functools.cache
def _slots() -> threading.BoundedSemaphore:
    return threading.BoundedSemaphore(device.workers())


class Pool:
    """Threads that each wait for a child process: what is asked of them first is done first.

    All pools together have no more children at work than :func:`common.catalog.device.workers`. :meth:`end` stops
    what is not done; so does leaving it as a context.
    """

    def __init__(self, workers: int | None = None) -> None:
        self.stop = threading.Event()
        self._threads = ThreadPoolExecutor(min(workers or device.workers(), device.workers()))

    def submit(self, work: Callable[..., Any], *given: Any) -> Future[Any]:
        """Do ``work``, which waits for one child at a time, in one of the threads."""

        def done() -> Any:
            with _slots():
                return work(*given)

        return self._threads.submit(done)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        self.stop.set()
        self._threads.shutdown(wait=True, cancel_futures=True)


def run_groups(
    groups: Sequence[Sequence[Task[Found]]],
    without_gpu: bool,
    seconds: float,
    workers: int = 1,
    stop: threading.Event | None = None,
) -> Iterator[tuple[Task[Found], Found]]:
    """Run each group of tasks in a child process of its own, ``workers`` at a time, until ``stop`` is set.

    Results come group by group.
    """
    if workers == 1:
        for group in groups:
            yield from run(group, without_gpu, seconds, stop)
        return
    with Pool(workers) as pool:
        stopped = _stopped(stop, pool.stop)
        waiting = [
            pool.submit(lambda tasks: list(_run(tasks, without_gpu, seconds, stopped)), group) for group in groups
        ]
        for future in waiting:
            yield from future.result()


def run(
    tasks: Sequence[Task[Found]], without_gpu: bool, seconds: float, stop: threading.Event | None = None
) -> Iterator[tuple[Task[Found], Found]]:
    """Run tasks in order, yielding each result as it comes, until ``stop`` is set: in one child process, or in the
    owner of the GPU if they touch it.

    A task that crashes its process gets a result that says so (``status`` crashed), and so does one that takes longer
    than ``seconds`` (or its own ``seconds``) of its own time (:mod:`common.run.overdue`): timed_out if the file's
    kernel or its own code ran so long, else unjudged. The rest go on in a fresh process; but those of a file that
    timed out once, or has cost its process twice in a row, get a result that says the same and that they were not
    tried (``untried``). Other statuses: right, wrong, refused (the step does not take this shape), unjudged (this
    machine cannot tell), unusable (not a step file).
    """
    return _run(tasks, without_gpu, seconds, _stopped(stop))


def run_in_turn(
    groups: Sequence[tuple[Task[Result], Sequence[Task[Result]]]], seconds: float
) -> Iterator[tuple[int, Task[Result], Result]]:
    """Do groups of tasks on the GPU in order, each in a fresh owner of it; yields a group's number, task and result.

    A group is the task of getting ready, which does not touch the GPU, and its tasks: while one group's are done, the
    next owner gets ready. If an owner dies, the rest of its tasks go on in a fresh one.
    """
    left = threading.Event()
    coming: Future[_Child | None] | None = None
    with ThreadPoolExecutor(1) as thread:
        try:
            for number, (_, tasks) in enumerate(groups):
                heir = (coming or thread.submit(_ready, groups[number][0], _stopped(left))).result()
                following = groups[number + 1 : number + 2]
                coming = thread.submit(_ready, following[0][0], _stopped(left)) if following else None
                with _gpu(_stopped(left)):
                    if heir is not None:
                        _own(heir)
                for task, result in run(tasks, False, seconds):
                    yield number, task, result
        finally:
            left.set()
            if coming is not None and (heir := coming.result()) is not None:
                heir.end()


def _ready(task: Task[Result], stopped: Stopped) -> _Child | None:
    """A child that has got ready; None if it failed, which its tasks meet again."""
    if stopped():
        return None
    heir = _Child(False)
    result = heir.do(replace(task, seconds=task.seconds or READY_SECONDS), stopped)
    if result is None or result.get("fatal"):
        heir.end()
        return None
    return heir


def _stopped(*events: threading.Event | None) -> Stopped:
    return lambda: _closed or any(event is not None and event.is_set() for event in events)


def _run(
    tasks: Sequence[Task[Found]], without_gpu: bool, seconds: float, stopped: Stopped
) -> Iterator[tuple[Task[Found], Found]]:
    lost = _Lost()
    with contextlib.ExitStack() as stack:
        own: _Child | None = None
        for task in tasks:
            if stopped():
                return
            untried = lost.why(task)
            if untried:
                yield task, messages.typed(task, untried)
                continue
            timed = replace(task, seconds=seconds if task.seconds is None else task.seconds)
            if task.on_gpu and not without_gpu:
                answer = _on_gpu(timed, stopped)
            else:
                if own is None or own.over:
                    own = _Child(without_gpu)
                    stack.callback(own.end)
                answer = own.do(timed, stopped)
            if answer is None:
                return
            fatal = answer.pop("fatal", False)
            _explain(task, answer)
            lost.note(task, answer, fatal)
            yield task, messages.typed(task, answer)


class _Lost:
    """Files that cost a process their time or its life, and what is said of their other tasks."""

    def __init__(self) -> None:
        self._deaths: dict[str, int] = {}
        self._why: dict[str, Result] = {}

    def note(self, task: Task[Result], result: Result, fatal: bool) -> None:
        path = _path(task)
        if not path or task.alone:
            return
        self._deaths[path] = self._deaths.get(path, 0) + 1 if fatal else 0
        shape = " ".join(f"{key}={value}" for key, value in _shape(task).items())
        where = f" at {shape}" if shape else ""
        if result["status"] == "timed_out":
            why = f"not tried: it gave no result in time{where}"
        elif self._deaths[path] >= _DEATHS and result["status"] == "unjudged":
            why = f"not tried: {_DEATHS} in a row were not done in time, last{where}: {result.get('message')}"
        elif self._deaths[path] >= _DEATHS:
            why = f"not tried: it ended its process {_DEATHS} times in a row, last{where}"
        else:
            return
        self._why[path] = {"status": result["status"], "message": why, "untried": True}

    def why(self, task: Task[Result]) -> Result | None:
        found = None if task.alone else self._why.get(_path(task))
        return found.copy() if found else None


def _path(task: Task[Result]) -> str:
    return task.path if isinstance(task, FileTask) else ""


def _shape(task: Task[Result]) -> dict[str, int]:
    return task.shape if isinstance(task, ShapeTask) else {}


def watched(tasks: Sequence[Task[Found]], command: list[str], seconds: float) -> tuple[list[Found], str]:
    """Run tasks in one child process under ``command`` (a profiler or sanitizer); returns results and all output.

    Results may be fewer than tasks if the child ended early. Raises TimeoutError after ``seconds``.
    """
    folder = _folder()
    try:
        timed = [replace(task, seconds=seconds if task.seconds is None else task.seconds) for task in tasks]
        Path(folder, child.TASKS).write_bytes(pickle.dumps(timed))
        Path(folder, child.RESULTS).touch()
        given = str(folder), device.memory_for_a_child(device.gpu_count() > 0), FILE_BYTES
        imports = f"import sys; sys.path.insert(0, {str(catalog.ROOT)!r}); from common.run import child"
        boot = f"{imports}; child.watched{given}"
        with _gpu(lambda: _closed), Path(folder, child.LOG).open("wb") as output:
            _own(None)  # a card may take one process at a time
            process = subprocess.Popen(
                [*command, sys.executable, "-c", boot], cwd=folder / child.WORK, env=_environment(False, folder),
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=_GROUPS,
            )  # fmt: skip
            try:
                deadline = time.monotonic() + seconds
                while process.poll() is None:
                    if time.monotonic() > deadline or _closed:
                        raise TimeoutError(f"{Path(command[0]).name} was not done within {seconds:.0f} s")
                    time.sleep(_POLL_SECONDS)
            finally:
                end(process)
        lines = Path(folder, child.RESULTS).read_bytes().splitlines()
        answers = [answer["result"] for answer in map(_parsed, lines) if "result" in answer]
        for answer in answers:
            answer.pop("fatal", None)
        found = [messages.typed(task, answer) for task, answer in zip(tasks, answers, strict=False)]
        return found, Path(folder, child.LOG).read_text(encoding="utf-8", errors="replace")
    finally:
        child.remove(folder)


def end(process: subprocess.Popen[bytes], patience: float = 0.0) -> int:
    """Wait for at most ``patience`` seconds, then end the process, in any case with its group; its exit code."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience)
    child.end_group(process.pid)
    process.kill()
    return process.wait()


def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="workbook-"))
    (folder / child.WORK).mkdir()
    return folder


def _environment(without_gpu: bool, folder: Path | None = None) -> dict[str, str]:
    with _lock:  # it is not this process's own while another child is started
        env = device.environment(without_gpu)
    if folder is not None:
        env["TMPDIR"] = str(folder / child.WORK)
    if "PYTHONPATH" in env:  # it works in another folder
        env["PYTHONPATH"] = os.pathsep.join(os.path.abspath(name) for name in env["PYTHONPATH"].split(os.pathsep))
    return env


# --- how a child is started ---

METHOD = "forkserver" if sys.platform.startswith("linux") else "spawn"  # macOS's libraries take no fork
_lock = threading.RLock()  # of the standard library's processes, which are for one thread


@contextlib.contextmanager
def _surroundings(environment: dict[str, str]) -> Iterator[None]:
    """What is started meanwhile, a fork server, too, imports in this environment; the workbook from the checkout."""
    paths = [str(catalog.ROOT), *filter(None, [environment.get("PYTHONPATH")])]
    with _lock, replaced(spawn, get_preparation_data=_preparation):
        forkserver.set_forkserver_preload(["common.run.preload"])
        wanted: dict[str, str | None] = dict.fromkeys(os.environ.keys() - environment.keys())
        wanted |= {**environment, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
        before = {name: os.environ.get(name) for name in wanted}
        try:
            _set(wanted)
            yield
        finally:
            _set(before)


def _set(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        elif os.environ.get(name) != value:
            os.environ[name] = value


def _preparation(name: str) -> dict[str, Any]:
    """What a child takes over from this process: not its main module, which may be anybody's script; and other
    packages by the workbook's names come after it."""
    data = {key: value for key, value in _prepare(name).items() if not key.startswith("init_main")}
    return {**data, "sys_path": [str(catalog.ROOT), *data["sys_path"]]}


_prepare = spawn.get_preparation_data
_living: set[_Child] = set()


class _Child:
    """A child process with its folder: started, given tasks one by one, ended."""

    def __init__(self, without_gpu: bool) -> None:
        self.folder = _folder()
        self.environment = _environment(without_gpu, self.folder)
        self.over = False  # it does no more tasks
        self.ran: dict[str, object] = {}  # the stamps of files that ran in it
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
            child.remove(self.folder)
            raise
        _living.add(self)

    @property
    def waits(self) -> bool:
        """Is it there, to be given a task?"""
        return not self.over and not connection.wait([self.process.sentinel], 0.0)

    def do(self, task: Task[Result], stopped: Stopped) -> Result | None:
        """What comes of a task, whose ``seconds`` are its limit; None if ``stopped``.

        With ``fatal`` in the result the process is lost.
        """
        assert task.seconds is not None
        result = self._followed(task, task.seconds, stopped)
        if result is None or result.get("fatal"):
            self.end()
        return result

    def _followed(self, task: Task[Result], limit: float, stopped: Stopped) -> Result | None:
        """The child keeps the limits itself and gives signs that it does; one that is silent does a single thing
        without an end, or was stopped."""
        self._number += 1
        began = sign = time.monotonic()
        stage, used, told, given, orphan = "", 0.0, False, False, False
        while not stopped():
            if self._ready and not given:
                given, began, sign, used = True, time.monotonic(), time.monotonic(), self._processor_seconds() or 0.0
                with contextlib.suppress(OSError):  # one that has ended is told by its end
                    self.line.send_bytes(pickle.dumps((self._number, task)))
            found = connection.wait([self.line, *([] if orphan else [self.process.sentinel])], _POLL_SECONDS)
            if self.line in found:
                try:
                    answer = self._said()
                except (EOFError, OSError):
                    return self._dead()
                self._ready = self._ready or "ready" in answer
                if "at" in answer:
                    stage, sign, used = str(answer["at"]), time.monotonic(), self._processor_seconds() or 0.0
                result = cast(Result, answer.get("result"))
                if answer.get("number") == self._number and isinstance(result, dict) and "status" in result:
                    return result
            elif found:
                orphan = self._outlives_its_server()
                if not orphan:
                    return self._dead()
            if late := self._silent(stage, time.monotonic() - sign, used, limit):
                return {**late, "fatal": True, "seconds": round(time.monotonic() - began, 3)}
            if on_wait is not None and not told and not task.ahead and time.monotonic() - began > TOLD_SHARE * limit:
                told = True
                on_wait(task.subject, limit)
        return None

    def _silent(self, stage: str, waited: float, used: float, limit: float) -> Result | None:
        """The result of a task whose process has given no sign for ``waited`` seconds, if that is too long.

        ``used``: the seconds of processor time that it had used before.
        """
        if not self._ready:
            if waited <= START_SECONDS:
                return None
            message = f"the process was not there within {START_SECONDS:.0f} s"
            return {"status": "unjudged", "message": message, "late": True}
        if waited <= limit:
            return None
        now = self._processor_seconds()
        busy = now is not None and now - used > limit
        if waited <= SILENT * limit and not busy and now is not None:
            return None
        what = f"no sign of life for {now - used if busy and now else waited:.0f} s"
        what += " of processor time" if busy else ""
        if busy and stage in ("", ledger.IMPORTS, ledger.KERNEL):
            return {"status": "timed_out", "message": f"{what}: one operation that does not end?"}
        message = f"{what}, last from {overdue.said(stage)}; values were not compared"
        return {"status": "unjudged", "message": message, "late": True}

    def _processor_seconds(self) -> float | None:
        """What the process has used of a processor; None where that is not known."""
        try:
            fields = Path("/proc", str(self.process.pid), "stat").read_bytes().rpartition(b")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, IndexError, ValueError):
            return None

    def _said(self) -> dict[str, Any]:
        """The next message. Raises EOFError or OSError when there is none, or not the whole of one in time."""
        alarm = threading.Timer(_MESSAGE_SECONDS, self._kill)
        alarm.daemon = True
        alarm.start()
        try:
            return _parsed(self.line.recv_bytes(_MOST_BYTES))
        finally:
            alarm.cancel()

    def _dead(self) -> Result:
        connection.wait([self.process.sentinel], 1.0)
        with _lock:
            code = self.process.exitcode
        if code is None:
            return {"status": "crashed", "message": "the process closed its line to the harness", "fatal": True}
        return {"status": "crashed", "message": obituary(code, self.folder / child.LOG), "fatal": True}

    def _outlives_its_server(self) -> bool:
        """Has another child ended the fork server, and with it only the news of this one's end?"""
        with _lock:
            code = self.process.exitcode
        if code != _LOST or self.process.pid is None or not _GROUPS:
            return False
        try:
            os.kill(self.process.pid, 0)
        except OSError:
            return False
        return True

    def _kill(self) -> None:
        assert self.process.pid is not None
        child.end_group(self.process.pid, self.folder)
        with contextlib.suppress(OSError):
            self.process.kill()

    def end(self) -> None:
        """End it, with its group, and remove its folder."""
        with self._ending:
            if self.over:
                return
            self.over = True
            self._kill()
            connection.wait([self.process.sentinel], _END_SECONDS)
            with _lock, contextlib.suppress(ValueError):
                self.process.join(0)
                self.process.close()
            self.line.close()
            child.remove(self.folder)
            _living.discard(self)


def _parsed(data: bytes) -> dict[str, Any]:
    """A message as a child writes it; an empty one if it is none."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


# --- the process that owns the GPU ---

_gpu_lock = threading.Lock()
_owner: _Child | None = None


@contextlib.contextmanager
def _gpu(stopped: Stopped) -> Iterator[bool]:
    """The GPU is this thread's meanwhile; False if ``stopped`` came first."""
    while not _gpu_lock.acquire(timeout=_POLL_SECONDS):
        if stopped():
            yield False
            return
    try:
        yield True
    finally:
        _gpu_lock.release()


def _own(heir: _Child | None) -> None:
    """Another process, or none, owns the GPU from now on; under :func:`_gpu`."""
    global _owner
    if _owner is not None:
        _owner.end()
    _owner = heir


def _on_gpu(task: Task[Result], stopped: Stopped) -> Result | None:
    """Do a task in the process that owns the GPU."""
    with _gpu(stopped) as mine:
        if not mine:
            return None
        path, code = _path(task), _stamps(task)
        owner = _owner
        if owner is None or not owner.waits or owner.doubtful not in ("", path) or not _same(owner, code):
            _own(None)
            owner = _Child(False)
            _own(owner)
        owner.ran |= code
        result = owner.do(task, stopped)
        # what was wrong may have written anywhere
        fine = result is not None and result["status"] in ("right", "refused", "unjudged")
        owner.doubtful = owner.doubtful if fine else path or "a task"
        return result


def _same(owner: _Child, code: dict[str, object]) -> bool:
    """Is the environment, and the code that it has loaded, what it was?"""
    now = _environment(False, owner.folder)
    return owner.environment == now and all(owner.ran.get(name, stamp) == stamp for name, stamp in code.items())


def _stamps(task: Task[Result]) -> dict[str, object]:
    """What changes when the lessons' code, or a task's own file, is written."""
    files = [*catalog.LESSONS.rglob("*.py"), *map(Path, filter(None, [_path(task)]))]
    found: dict[str, object] = {}
    for file in files:
        with contextlib.suppress(OSError):
            state = os.stat(file)
            found[str(file)] = state.st_mtime_ns, state.st_size
    return found


def warm() -> None:
    """Let the fork server, where there is one, import everything ahead of the next calls of :func:`run`."""
    if METHOD == "forkserver":
        with _surroundings(_environment(False)):
            forkserver.ensure_running()


def cool() -> None:
    """End the process that owns the GPU."""
    if _gpu_lock.acquire(timeout=_END_SECONDS):
        try:
            _own(None)
        finally:
            _gpu_lock.release()


@atexit.register
def _end_all() -> None:
    close()
    for one in list(_living):
        one.end()


def _explain(task: Task[Result], result: Result) -> None:
    """Say at which line of its file a task ended its process, if it did."""
    if result["status"] == "crashed" and "faults" not in result and _path(task):
        fault = faults.of_end(str(result.get("message", "")), Path(_path(task)))
        if fault:
            result["faults"] = [fault.as_dict()]


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
