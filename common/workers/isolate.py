"""Runs tasks in child processes with a time limit, so that no kernel takes the harness down.

A child works in a folder of its own, below a keeper (:mod:`common.workers.keeper`) that ends all it started, and
answers through a pipe. An answer counts only from the process and for the task that it was asked of.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path
from typing import IO, cast

from msgspec.structs import replace

from common.book import catalog, device, ledger
from common.explain import faults
from common.workers import forkserver, keeper, messages, overdue
from common.workers.messages import FileTask, Found, Line, Result, ShapeTask, Task, TaskError

START_SECONDS = 120.0  # for a child to be there; then its first task's time begins
SILENT = 10  # times a task's limit, of the clock, that a child may be silent; of its processor time, once
FILE_BYTES = 2 << 30
TOLD_SHARE = 1 / 3  # of a task's time, after which whoever waits is told
_END_SECONDS = 1.0
_POLL_SECONDS = 0.05
_LAST_WORDS = 1 << 14  # bytes of a log
_DEATHS = 2  # of one file's processes in a row: no more are started for it
_TASKS, _RESULTS, _LOG = "tasks.json", "results.jsonl", "log.txt"

Stopped = Callable[[], bool]

on_wait: Callable[[Task[Result], float], None] | None = None
"""Called, from any thread, with a task that lets wait and its limit in seconds."""

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


def run_groups(
    groups: Sequence[Sequence[Task[Found]]],
    simulator: bool,
    seconds: float,
    workers: int = 1,
    stop: threading.Event | None = None,
) -> Iterator[tuple[Task[Found], Found]]:
    """Run each group of tasks in a child process of its own, ``workers`` at a time, until ``stop`` is set.

    Results come group by group.
    """
    if workers == 1:
        for group in groups:
            yield from run(group, simulator, seconds, stop)
        return
    left = threading.Event()  # nobody waits for the results any more
    stopped = _stopped(stop, left)
    with ThreadPoolExecutor(workers) as pool:
        try:
            for results in pool.map(lambda group: list(_run(group, simulator, seconds, stopped)), groups):
                yield from results
        finally:
            left.set()
            pool.shutdown(wait=False, cancel_futures=True)


def run(
    tasks: Sequence[Task[Found]], simulator: bool, seconds: float, stop: threading.Event | None = None
) -> Iterator[tuple[Task[Found], Found]]:
    """Run tasks in order in one child process, yielding each result as it comes, until ``stop`` is set.

    A task that crashes its process gets a result that says so (``status`` crashed), and so does one that takes longer
    than ``seconds`` (or its own ``seconds``) of its own time (:mod:`common.workers.overdue`): timed_out if the file's
    kernel or its own code ran so long, else unjudged. The rest go on in a fresh process; but those of a file that
    timed out once, or has cost its process twice in a row, get a result that says the same and that they were not
    tried (``untried``). Other statuses: right, wrong, refused (the step does not take this shape), unjudged (this
    machine cannot tell), unusable (not a step file).
    """
    return _run(tasks, simulator, seconds, _stopped(stop))


def _stopped(*events: threading.Event | None) -> Stopped:
    return lambda: _closed or any(event is not None and event.is_set() for event in events)


def _run(
    tasks: Sequence[Task[Found]], simulator: bool, seconds: float, stopped: Stopped
) -> Iterator[tuple[Task[Found], Found]]:
    pending = list(tasks)
    lost = _Lost()
    while pending and not stopped():
        untried = lost.why(pending[0])
        if untried:
            yield pending[0], _typed(pending.pop(0), untried)
            continue
        batch = list(takewhile(lambda task: not lost.why(task), pending))
        done = 0
        for answer in _child(batch, simulator, seconds, stopped):
            fatal = answer.pop("fatal", False)
            _explain(pending[done], answer)
            lost.note(pending[done], answer, fatal)
            yield pending[done], _typed(pending[done], answer)
            done += 1
        pending = pending[done:]


def _typed(task: Task[Found], answer: object) -> Found:
    """The answer as the task's result; a crash if it is none."""
    try:
        return messages.require(task, answer)
    except TaskError as error:
        return messages.require(task, {"status": "crashed", "message": f"TaskError: {error}"})


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
    child = _Child(False, command=command)
    try:
        child.give(tasks)
        deadline = time.monotonic() + seconds
        while not child.ended:
            if time.monotonic() > deadline or _closed:
                raise TimeoutError(f"{Path(command[0]).name} was not done within {seconds:.0f} s")
            child.lines(_POLL_SECONDS)
        output = child.log()
        lines = map(messages.parsed, child.path(_RESULTS).read_bytes().split(b"\n"))
        answers = [line.result for line in lines if line.result is not None]
        for answer in answers:
            answer.pop("fatal", None)
        return [_typed(task, answer) for task, answer in zip(tasks, answers, strict=False)], output
    finally:
        child.end()


def _environment(simulator: bool, folder: Path) -> dict[str, str]:
    env = device.environment(simulator)
    env[keeper.MARK] = folder.name
    env["TMPDIR"] = str(folder / keeper.WORK)
    if "PYTHONPATH" in env:  # it works in another folder
        env["PYTHONPATH"] = os.pathsep.join(os.path.abspath(name) for name in env["PYTHONPATH"].split(os.pathsep))
    return env


class _Child:
    """A child process with its folder: started, perhaps kept waiting, given tasks, read from, ended."""

    process: forkserver.Process

    def __init__(
        self,
        simulator: bool,
        warm: bool = False,
        command: list[str] | None = None,
        stopped: Stopped = lambda: False,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="workbook-"))
        self.ended: str = ""  # how, once it has
        self._partial = b""
        self._handle = -1
        self._file: IO[bytes] | None = None
        try:
            self._start(simulator, warm, command, stopped)
        except BaseException:
            keeper.remove(self.folder)
            raise

    def path(self, name: str) -> Path:
        return self.folder / name

    def _start(self, simulator: bool, warm: bool, command: list[str] | None, stopped: Stopped) -> None:
        self.path(keeper.WORK).mkdir()
        posix = os.name == "posix"
        options: keeper.Options = {
            "folder": str(self.folder), "tasks": str(self.path(_TASKS)), "warm": warm, "wait": not command,
            "memory": device.memory_for_a_child(not simulator and device.gpu_count() > 0), "files": FILE_BYTES,
        }  # fmt: skip
        theirs = -1
        if posix:
            self._handle, theirs = os.pipe()
            os.set_blocking(self._handle, False)
            options["channel"] = theirs
        if command or not posix:
            self.path(_RESULTS).touch()
            answering = json.dumps({**options, "channel": None, "results": str(self.path(_RESULTS))})
            options["command"] = [*(command or []), *keeper.boot("child", catalog.ROOT, answering)]
        if not posix:
            self._file = self.path(_RESULTS).open("rb")
        environment = _environment(simulator, self.folder)
        try:
            with self.path(_LOG).open("wb") as output:
                if not command and forkserver.FORKS:
                    with contextlib.suppress(ConnectionError):  # what ails the server, this process says, too
                        given = json.dumps({**options, "channel": forkserver.EXTRA, "warm": False})
                        words, work = ["common.workers.keeper", given], self.path(keeper.WORK)
                        self.process = _server(simulator).fork(words, work, environment, output, theirs, stopped)
                        return
                self.process = subprocess.Popen(
                    keeper.boot("keeper", catalog.ROOT, json.dumps(options)) if posix else options["command"],
                    cwd=self.path(keeper.WORK), env=environment, stdin=subprocess.PIPE, stdout=output, stderr=output,
                    start_new_session=posix, pass_fds=[theirs] if posix else [],
                )  # fmt: skip
        finally:
            if posix:
                os.close(theirs)

    @property
    def waits(self) -> bool:
        """Is it there, with nothing to say yet?"""
        return not self.ended and self.process.poll() is None and all(line.ended is None for line in self.lines(0.0))

    def give(self, tasks: Sequence[Task[Result]]) -> None:
        """Hand the tasks over: do them."""
        self.path(_TASKS).write_bytes(messages.encode(tasks))
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # one that has ended is told by its end
            self.process.stdin.write(b"go\n")
            self.process.stdin.flush()

    def lines(self, seconds: float) -> list[Line]:
        """What it said since, waiting for at most ``seconds``; sets ``ended`` when no more will come."""
        gone = self.process.poll()
        data = self._read(0.0 if gone is not None else seconds)
        *whole, self._partial = (self._partial + data).split(b"\n")
        found = list(map(messages.parsed, whole))
        for line in found:
            if line.ended is not None:
                self.ended = self._obituary(line.ended)
        if gone is not None and not data and not self.ended:
            self.ended = self._obituary(gone)
        return found

    def _read(self, seconds: float) -> bytes:
        if self._file is not None:
            data = self._file.read()
            if not data:
                time.sleep(seconds)
            return data
        ready = select.poll()
        ready.register(self._handle, select.POLLIN)
        ready.poll(1000 * seconds)
        data = b""
        with contextlib.suppress(BlockingIOError):
            while more := os.read(self._handle, 1 << 16):
                data += more
        return data

    def log(self) -> str:
        """All it wrote."""
        return self.path(_LOG).read_text(encoding="utf-8", errors="replace")

    def _obituary(self, code: int) -> str:
        return obituary(code, self.path(_LOG))

    def end(self) -> None:
        """End it, with all it started, and remove its folder."""
        if self._handle < 0 and self._file is None:
            return
        if self.process.stdin:
            with contextlib.suppress(OSError):
                self.process.stdin.close()  # the keeper's line
        try:
            if os.name == "posix":
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(_END_SECONDS)
            kept = self.process.poll() == 0
            forkserver.end(self.process)
            if not kept:
                keeper.end_marked(self.folder.name)
        finally:
            if self._file is not None:
                self._file.close()
            else:
                os.close(self._handle)
            self._handle, self._file = -1, None
            keeper.remove(self.folder)


# What Numba and its libraries read when they are imported.
_READ_EARLY = ("NUMBA", "CUDA", "PYTHON", "LD_", "OMP", "OPENBLAS", "MKL", "MPL")


def _server(simulator: bool, soon: bool = True) -> forkserver.Server:
    """``soon``: a process is asked of it at once, so it had better not rehearse what that does."""
    environment = device.environment(simulator)
    early = sorted((name, value) for name, value in environment.items() if name.startswith(_READ_EARLY))

    def start() -> forkserver.Server:
        *command, _ = keeper.boot("forkserver", catalog.ROOT, "")
        return forkserver.Server(command, environment, harness=True, early=not soon)

    return forkserver.server(json.dumps([str(catalog.ROOT), early]), start)


_spares: dict[bool, list[_Child]] = {True: [], False: []}


def warm(simulator: bool, count: int = 1) -> None:
    """See to it that the next calls of ``run`` find everything imported: by a server, or ``count`` processes that
    wait."""
    if forkserver.FORKS:
        _server(simulator, soon=False)
        return
    _spares[simulator] += [_Child(simulator, warm=True) for _ in range(count - len(_spares[simulator]))]


def cool() -> None:
    """End the processes that wait."""
    for spares in _spares.values():
        while spares:
            spares.pop().end()


atexit.register(cool)


def _spare(simulator: bool) -> _Child | None:
    while True:
        try:
            spare = _spares[simulator].pop()
        except IndexError:  # another thread may have taken the last
            return None
        if spare.waits:
            return spare
        spare.end()


def _child(tasks: Sequence[Task[Result]], simulator: bool, seconds: float, stopped: Stopped) -> Iterator[Result]:
    """Results of one child process: one per task until it ends; at least one unless stopped."""
    try:
        child = _spare(simulator) or _Child(simulator, stopped=stopped)
    except forkserver.GivenUpError:
        return
    try:
        limits = [seconds if task.seconds is None else task.seconds for task in tasks]
        child.give([replace(task, seconds=limit) for task, limit in zip(tasks, limits, strict=True)])
        yield from _follow(child, tasks, limits, stopped)
    finally:
        child.end()


def _follow(child: _Child, tasks: Sequence[Task[Result]], limits: list[float], stopped: Stopped) -> Iterator[Result]:
    """Read results as they come, and make up the one that a dead or silent process owes.

    ``limits``: seconds for each task. ``fatal`` in a result: its process is lost. The child keeps the limits itself
    and gives signs that it does; one that is silent does a single thing without an end, or was stopped.
    """
    delivered, pid, stage, told = 0, None, "", False
    began = sign = time.monotonic()
    used = 0.0
    while delivered < len(tasks) and not stopped():
        for line in child.lines(_POLL_SECONDS):
            if pid is None and line.hello is not None:
                pid, began, sign = line.hello, time.monotonic(), time.monotonic()
                used = _processor_seconds(pid) or 0.0
            if line.at is not None and pid is not None:
                stage, sign, used = line.at, time.monotonic(), _processor_seconds(pid) or 0.0
            if pid is None or (line.pid, line.number) != (pid, delivered):
                continue  # from another process, or a second time
            if line.result is None or line.result.get("status") not in messages.STATUSES:
                continue
            result = cast(Result, line.result)  # whoever takes it looks at its type
            delivered += 1
            last = result.get("fatal") or delivered == len(tasks)
            yield result
            if last:
                return
            began, sign, stage, used = time.monotonic(), time.monotonic(), "", _processor_seconds(pid) or 0.0
        if child.ended:
            yield {"status": "crashed", "message": child.ended, "fatal": True}
            return
        if late := _silent(pid, stage, time.monotonic() - sign, used, limits[delivered]):
            child.end()
            yield {**late, "fatal": True, "seconds": round(time.monotonic() - began, 3)}
            return
        if on_wait is not None and not told and time.monotonic() - began > TOLD_SHARE * limits[delivered]:
            told = True
            on_wait(tasks[delivered], limits[delivered])


def _silent(pid: int | None, stage: str, waited: float, used: float, limit: float) -> Result | None:
    """The result of a task whose process has given no sign for ``waited`` seconds, if that is too long.

    ``used``: the seconds of processor time that it had used before.
    """
    if pid is None:
        if waited <= START_SECONDS:
            return None
        message = f"the process was not there within {START_SECONDS:.0f} s"
        return {"status": "unjudged", "message": message, "late": True}
    now = _processor_seconds(pid)
    if waited <= limit or (waited <= SILENT * limit and (now is None or now - used <= limit)):
        return None
    busy = now is not None and now - used > limit
    what = f"no sign of life for {now - used if busy and now else waited:.0f} s"
    what += " of processor time" if busy else ""
    if busy and stage in ("", ledger.IMPORTS, ledger.KERNEL):
        return {"status": "timed_out", "message": f"{what}: one operation that does not end?"}
    message = f"{what}, last from {overdue.said(stage)}; values were not compared"
    return {"status": "unjudged", "message": message, "late": True}


def _processor_seconds(pid: int) -> float | None:
    """What a process has used of a processor; None where that is not known."""
    try:
        fields = Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return None


def _explain(task: Task[Result], result: Result) -> None:
    """Say at which line of its file a task ended its process, if it did."""
    if result["status"] == "crashed" and "faults" not in result and _path(task):
        fault = faults.of_end(str(result.get("message", "")), Path(_path(task)))
        if fault:
            result["faults"] = [fault.as_dict()]


def obituary(code: int, log: Path) -> str:
    """How a process ended, and the last line of its log."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LAST_WORDS))
        text = file.read().decode(errors="replace").strip().splitlines()
    last = f"; its last words: {faults.last_words(text)}" if text else ""
    if code < 0:
        name = next((s.name for s in signal.Signals if s == -code), f"signal {-code}")
        return f"the process died of {name}{last}"
    return f"the process ended with exit code {code} and no result{last}"
