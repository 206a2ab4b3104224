"""Processes for submissions, forked from one that has Numba imported and warm: that takes most of the time.

The nursery imports no part of the workbook, so what a submission sees of it comes from its own folder. On other
systems than Linux each process starts from nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

_MESSAGE = 1 << 16
_POLL_SECONDS = 0.01
_PATIENCE = 1.0
LOST = 255  # exit code of a process whose nursery died before it could say
MODULE = "common.grading.player"
FORKS = sys.platform == "linux"  # elsewhere libraries do not survive a fork, or there is none


class Started:
    """A process that was started: its standard input and output, and how to end it."""

    def __init__(self, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.stdin, self.stdout = stdin, stdout
        self.returncode: int | None = None

    def end(self, patience: float = 0.0) -> int:
        """Wait for at most ``patience`` seconds, then kill it and its group; returns the exit code."""
        raise NotImplementedError

    def close(self) -> None:
        self.end()
        for stream in (self.stdin, self.stdout):
            with contextlib.suppress(OSError):  # what was not sent is not wanted any more
                stream.close()


class _Direct(Started):
    """Started from nothing."""

    def __init__(self, argument: str, work: Path, environment: dict[str, str], log: IO[bytes]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", MODULE, argument],
            cwd=work,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=os.name == "posix",
        )
        assert self._process.stdin
        assert self._process.stdout
        super().__init__(self._process.stdin, self._process.stdout)

    def end(self, patience: float = 0.0) -> int:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        if self._process.poll() is None:
            if os.name == "posix":
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
        self.returncode = self._process.wait()
        return self.returncode


class _Forked(Started):
    """A fork of the nursery."""

    def __init__(self, nursery: _Nursery, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        super().__init__(stdin, stdout)
        self._nursery, self._pid = nursery, pid
        self._lock = threading.Lock()

    def end(self, patience: float = 0.0) -> int:
        deadline = time.monotonic() + patience
        while not self._ended(time.monotonic() >= deadline):
            time.sleep(_POLL_SECONDS)
        assert self.returncode is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGKILL)  # what it left behind
        return self.returncode

    def _ended(self, late: bool) -> bool:
        """Has it ended? If not, and it is late, kill it."""
        with self._lock:  # the nursery says a code once, to whichever thread asks
            if self.returncode is not None:
                return True
            with contextlib.suppress(ConnectionError):
                self.returncode = self._nursery.ask({"ended": self._pid})["code"]
            if self.returncode is None and not self._nursery.alive:
                self.returncode = LOST
            if self.returncode is None and late:
                # it stays a zombie until the nursery has its code, so the number is still its own
                for kill in (os.killpg, os.kill):
                    with contextlib.suppress(ProcessLookupError):
                        kill(self._pid, signal.SIGKILL)
            return self.returncode is not None


class _Nursery:
    """The parent of submissions' processes, with the simulator or without."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._link, theirs = socket.socketpair()
        self._lock = threading.Lock()
        # the text and not the file's place: a command line can be read by all
        text = Path(__file__).read_text(encoding="utf-8")
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", text, str(theirs.fileno())],
                cwd=os.sep, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def close(self) -> None:
        """It ends when its line does, with all that it has started."""
        self._link.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: dict[str, Any], handles: tuple[int, ...] = ()) -> dict[str, Any]:
        """One request and its answer; raises ConnectionError if the nursery has ended."""
        with self._lock:
            try:
                socket.send_fds(self._link, [json.dumps(request).encode()], handles)
                answer = self._link.recv(_MESSAGE)
            except OSError as error:
                raise ConnectionError(str(error)) from None
        if not answer:
            self._process.wait()  # its end is closed, so it ends
            raise ConnectionError("the nursery has ended")
        found: dict[str, Any] = json.loads(answer)
        return found

    def fork(self, argument: str, work: Path, environment: dict[str, str], log: IO[bytes]) -> Started:
        in_read, in_write = os.pipe()
        out_read, out_write = os.pipe()
        try:
            request = {"argument": argument, "work": str(work), "environment": environment}
            pid = self.ask(request, (in_read, out_write, log.fileno()))["pid"]
        except BaseException:
            os.close(in_write)
            os.close(out_read)
            raise
        finally:
            os.close(in_read)
            os.close(out_write)
        return _Forked(self, pid, os.fdopen(in_write, "wb"), os.fdopen(out_read, "rb"))


_nurseries: dict[str, _Nursery] = {}
_lock = threading.Lock()


@atexit.register
def close() -> None:
    """End all nurseries; the next process starts one anew."""
    with _lock:
        while _nurseries:
            _nurseries.popitem()[1].close()


def start(argument: str, work: Path, environment: dict[str, str], log: IO[bytes], kind: str) -> Started:
    """Start :mod:`common.grading.player` in ``work``, whose copy of the harness it imports.

    Processes of one ``kind`` come from one nursery, which has the environment of the first of them; each process
    then has its own.
    """
    if not FORKS:
        return _Direct(argument, work, environment, log)
    for _ in range(2):  # a submission may have killed the nursery
        with _lock:
            nursery = _nurseries.get(kind)
            if nursery is not None and not nursery.alive:
                nursery.close()
                nursery = None
            if nursery is None:
                nursery = _nurseries[kind] = _Nursery({**environment, "HOME": os.sep})
        with contextlib.suppress(ConnectionError):
            return nursery.fork(argument, work, environment, log)
    return _Direct(argument, work, environment, log)


# --- in the nursery ---

_SUBREAPER = 36  # prctl(2)
_END_SECONDS = 5.0


def _adopt() -> None:
    """What a submission's processes leave behind becomes this process's child, whatever session it made (Linux)."""
    import ctypes

    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def _end_strangers(own: set[int]) -> bool:
    """End the children that are not submissions' first processes; were there any?"""
    found = False
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in own:
            with contextlib.suppress(OSError, ValueError, IndexError):
                status = Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split()
                if int(status[1]) == os.getpid() and status[0] != b"Z":
                    os.kill(int(name), signal.SIGKILL)
                    found = True
    return found


def _end_all() -> None:
    """End all submissions, and what they left behind."""
    deadline = time.monotonic() + _END_SECONDS
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            _end_strangers(set())
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(_POLL_SECONDS)


def _serve(link: socket.socket) -> None:
    """Fork a process for each request, until the other end closes."""
    ended: dict[int, int] = {}
    works: dict[int, str] = {}
    while True:
        message, handles, _, _ = socket.recv_fds(link, _MESSAGE, 3)
        if not message:
            _end_all()
            _leave_nothing(works)
            return
        request = json.loads(message)
        if "ended" in request:
            with contextlib.suppress(ChildProcessError):
                while (found := os.waitpid(-1, os.WNOHANG))[0]:
                    if found[0] in works:
                        ended[found[0]] = os.waitstatus_to_exitcode(found[1])
                        works.pop(found[0])
            if request["ended"] in ended:
                # an orphan's own children are orphans when it has ended
                deadline = time.monotonic() + _END_SECONDS
                while _end_strangers(set(works)) and time.monotonic() < deadline:
                    time.sleep(_POLL_SECONDS)
            link.sendall(json.dumps({"code": ended.pop(request["ended"], None)}).encode())
            continue
        pid = os.fork()
        if pid == 0:
            link.close()
            _become(request, handles)
        works[pid] = request["work"]
        for handle in handles:
            os.close(handle)
        link.sendall(json.dumps({"pid": pid}).encode())


def _leave_nothing(works: dict[int, str]) -> None:
    """The grader has ended, and so have the processes: their folders go, which those may not remove."""
    for work in works.values():
        shutil.rmtree(Path(work).parent, ignore_errors=True)


def _become(request: dict[str, Any], handles: list[int]) -> None:
    """Turn this process into a submission's; does not return."""
    import runpy
    import traceback

    code = 1
    try:
        os.setsid()
        for number, handle in enumerate(handles):
            os.dup2(handle, number)
            os.close(handle)
        os.chdir(request["work"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv = [MODULE, request["argument"]]
        runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(bool(error.code))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _warm() -> None:
    """Import what every process needs, and have Numba build its tables, which takes it seconds."""
    from numba import cuda, float32, void

    if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1":
        return

    def kernel(array: Any) -> None:
        array[cuda.grid(1)] *= float32(2.0)

    with contextlib.suppress(Exception):  # then the first submission says what is wrong
        cuda.compile(kernel, void(float32[:]), cc=(9, 0), output="ptx", device=False, abi="numba")


if __name__ == "__main__":
    _adopt()
    _warm()
    _serve(socket.socket(fileno=int(sys.argv[-1])))
