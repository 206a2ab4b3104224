"""Runs tasks in child processes with a time limit, so that no kernel takes the harness down."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import catalog, device

_POLL_SECONDS = 0.02
_TASKS, _RESULTS, _LOG = "tasks.json", "results.jsonl", "log.txt"

Task = dict[str, Any]
Result = dict[str, Any]


def run_groups(
    groups: list[list[Task]],
    simulator: bool,
    seconds: float,
    workers: int = 1,
    stop: threading.Event | None = None,
) -> Iterator[tuple[Task, Result]]:
    """Run each group of tasks in a child process of its own, ``workers`` at a time, until ``stop`` is set.

    Results come group by group.
    """
    if workers == 1:
        for group in groups:
            yield from run(group, simulator, seconds, stop)
        return
    with ThreadPoolExecutor(workers) as pool:
        for results in pool.map(lambda group: list(run(group, simulator, seconds, stop)), groups):
            yield from results


def run(
    tasks: list[Task], simulator: bool, seconds: float, stop: threading.Event | None = None
) -> Iterator[tuple[Task, Result]]:
    """Run tasks in order in one child process, yielding each result as it comes, until ``stop`` is set.

    A task that crashes its process or takes longer than ``seconds`` (or its own ``"seconds"``) gets a result that
    says so (``status`` crashed or timed_out), and the rest go on in a fresh process. Other statuses: right, wrong,
    refused (the step does not take this shape), unusable (not a step file).
    """
    pending = list(tasks)
    while pending and not (stop and stop.is_set()):
        done = 0
        for result in _child(pending, simulator, seconds, stop):
            yield pending[done], result
            done += 1
        pending = pending[done:]


def watched(tasks: list[Task], command: list[str], seconds: float) -> tuple[list[Result], str]:
    """Run tasks in one child process under ``command`` (a profiler or sanitizer); returns results and all output.

    Results may be fewer than tasks if the child ended early. Raises TimeoutError after ``seconds``.
    """
    with tempfile.TemporaryDirectory(prefix="workbook-") as folder:
        task_file, result_file = Path(folder, "tasks.json"), Path(folder, "results.jsonl")
        task_file.write_text(json.dumps(tasks), encoding="utf-8")
        result_file.touch()
        process = subprocess.Popen(
            [*command, sys.executable, "-m", "common.child", str(task_file), str(result_file)],
            cwd=catalog.ROOT, env=_environment(False), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=os.name == "posix",
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{Path(command[0]).name} was not done within {seconds:.0f} s") from None
        finally:
            kill(process)
            if process.stdout and not process.stdout.closed:
                process.communicate()  # to its end: then all that wrote to it have ended
        lines = result_file.read_text(encoding="utf-8").splitlines(keepends=True)
        results = [json.loads(line) for line in lines if line.endswith("\n")]
        for result in results:
            result.pop("fatal", None)
    return results, output


def _environment(simulator: bool) -> dict[str, str]:
    env = device.environment(simulator)
    env["NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS"] = "0"  # tiny grids are meant
    return env


@dataclass
class _Process:
    """A child and its folder."""

    process: subprocess.Popen[bytes]
    folder: tempfile.TemporaryDirectory[str]

    def path(self, name: str) -> Path:
        return Path(self.folder.name, name)

    def go(self) -> None:
        """The tasks are written: do them."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # one that has ended is told by its exit code
            self.process.stdin.write(b"go\n")
            self.process.stdin.close()

    def end(self) -> None:
        kill(self.process)
        if self.process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        self.folder.cleanup()


_spares: dict[bool, list[_Process]] = {True: [], False: []}


def warm(simulator: bool, count: int = 1) -> None:
    """See to it that ``count`` processes wait with everything imported, for the next calls of ``run`` to use."""
    _spares[simulator] += [_started(simulator, "warm") for _ in range(count - len(_spares[simulator]))]


def cool() -> None:
    """End the processes that wait."""
    for spares in _spares.values():
        while spares:
            spares.pop().end()


atexit.register(cool)


def _started(simulator: bool, *options: str) -> _Process:
    folder = tempfile.TemporaryDirectory(prefix="workbook-", ignore_cleanup_errors=True)
    files = [str(Path(folder.name, name)) for name in (_TASKS, _RESULTS)]
    Path(files[1]).touch()
    with Path(folder.name, _LOG).open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "common.child", *files, "wait", *options],
            cwd=catalog.ROOT,
            env=_environment(simulator),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=os.name == "posix",
        )
    return _Process(process, folder)


def _child(tasks: list[Task], simulator: bool, seconds: float, stop: threading.Event | None) -> Iterator[Result]:
    """Results of one child process: one per task until it ends; at least one unless stopped."""
    child = _spare(simulator) or _started(simulator)
    try:
        child.path(_TASKS).write_text(json.dumps([{"seconds": seconds, **t} for t in tasks]), encoding="utf-8")
        child.go()
        with child.path(_RESULTS).open(encoding="utf-8") as lines:
            patience = [float(task.get("seconds", seconds)) for task in tasks]
            yield from _follow(child.process, lines, child.path(_LOG), patience, stop)
    finally:
        child.end()


def _spare(simulator: bool) -> _Process | None:
    while True:
        try:
            spare = _spares[simulator].pop()
        except IndexError:  # another thread may have taken the last
            return None
        if spare.process.poll() is None:
            return spare
        spare.end()


def _follow(
    process: subprocess.Popen[bytes],
    lines: Any,
    log: Path,
    patience: list[float],
    stop: threading.Event | None,
) -> Iterator[Result]:
    """Read result lines as they appear; make up the one that a dead or late process owes."""
    delivered, partial = 0, ""
    deadline = time.monotonic() + patience[0]
    while delivered < len(patience) and not (stop and stop.is_set()):
        exited = process.poll() is not None
        partial += lines.readline()
        if partial.endswith("\n"):
            result: Result = json.loads(partial)
            partial = ""
            delivered += 1
            deadline = time.monotonic() + patience[min(delivered, len(patience) - 1)]
            fatal = result.pop("fatal", False)
            yield result
            if fatal:
                return
        elif exited:
            yield {"status": "crashed", "message": obituary(process.returncode, log)}
            return
        elif time.monotonic() > deadline:
            kill(process)
            waited = f"no result within {patience[delivered]:.0f} s"
            yield {
                "status": "timed_out",
                "message": f"{waited}: an endless loop, or a barrier that some threads skip?",
            }
            return
        else:
            time.sleep(_POLL_SECONDS)


def obituary(code: int, log: Path) -> str:
    """How a process ended, and the last line of its log."""
    text = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    last = f"; its last words: {text[-1][:300]}" if text else ""
    if code < 0:
        name = next((s.name for s in signal.Signals if s == -code), f"signal {-code}")
        return f"the process died of {name}{last}"
    return f"the process ended with exit code {code} and no result{last}"


def kill(process: subprocess.Popen[Any]) -> None:
    """End a process and all of its group."""
    if process.poll() is None:
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()
