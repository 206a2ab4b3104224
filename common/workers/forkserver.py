"""Processes forked from one that has Numba imported and warm: they are there in milliseconds, not in a second.

The process they come from, the server, is started for one ``kind`` of them and asked through a socket. It ends with
whoever started it, and ends all that it has forked and whatever those left behind. Submissions come from a server
that imports no part of the workbook, so that what they see of it is the copy in their own folder. On other systems
than Linux there is no server, and each process starts from nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Protocol

import msgspec

FORKS = sys.platform == "linux"  # elsewhere libraries do not survive a fork, or there is none
LOST = 255  # exit code of a process whose server died before it could say
EXTRA = 3  # the first file descriptor beyond standard input, output and error
_CHUNK = 1 << 16
_LENGTH = struct.Struct("!Q")  # of a message, before it
_ANSWER_SECONDS = 10.0  # for which a server that is alive may be silent
_POLL_SECONDS = 0.01
_PATIENCE = 1.0


class Fork(msgspec.Struct, tag="fork"):
    """Asked: a process that runs ``main`` of the module ``run[0]`` with the other words, in the folder ``work``."""

    run: list[str]
    work: str
    environment: dict[str, str]


class HasEnded(msgspec.Struct, tag="ended"):
    """Asked: the exit code of a process, once."""

    pid: int


class Reply(msgspec.Struct):
    """The forked process, or the code that was asked for; neither as its first word."""

    pid: int = 0
    code: int | None = None


class Options(msgspec.Struct):
    """What a server is started with: its end of the socket, whether it imports the workbook's own, and whether it
    rehearses tasks ``early``, before its first process and not before its second."""

    link: int
    harness: bool
    early: bool


class GivenUpError(Exception):
    """Whoever asked for a process does not want it any more."""


class Process(Protocol):
    """A process that was started, as :class:`subprocess.Popen` has it; the first of a group of its own."""

    pid: int
    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


def end(process: Process, patience: float = 0.0) -> int:
    """Wait for at most ``patience`` seconds, then kill it; in any case its group; returns the exit code."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience)
    if process.poll() is None:
        _kill_group(process.pid)
        process.kill()
    code = process.wait()
    if isinstance(process, Forked):
        _kill_group(process.pid)  # what it left behind
    return code


def _kill_group(pid: int) -> None:
    if os.name == "posix":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


class Forked:
    """A fork of a server."""

    def __init__(self, server: Server, pid: int, stdin: IO[bytes], stdout: IO[bytes] | None) -> None:
        self.pid = pid
        self.stdin: IO[bytes] | None = stdin
        self.stdout = stdout
        self._code: int | None = None
        self._server = server
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        with self._lock:  # the server says a code once, to whichever thread asks
            if self._code is None:
                # a closed server has ended it
                with contextlib.suppress(ConnectionError):
                    self._code = self._server.ask(HasEnded(self.pid)).code
                if self._code is None and not self._server.alive and _gone(self.pid):
                    self._code = LOST
            return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code; raises TimeoutExpired as :meth:`subprocess.Popen.wait` does."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() >= deadline:
                assert timeout is not None
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(_POLL_SECONDS)
        return code

    def kill(self) -> None:
        """End it, if it has not ended: until the server has told its code, the number is its own."""
        with self._lock:
            if self._code is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)


def _gone(pid: int) -> bool:
    """Is there no such process, or has it ended?"""
    try:
        return Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split()[0] in b"ZX"
    except (OSError, IndexError):
        return True


def _send(link: socket.socket, message: Fork | HasEnded | Reply, handles: tuple[int, ...] = ()) -> None:
    text = json.dumps(msgspec.to_builtins(message)).encode()  # which takes names that are not UTF-8
    data = _LENGTH.pack(len(text)) + text
    sent = socket.send_fds(link, [data], handles)
    link.sendall(data[sent:])


def _receive(link: socket.socket) -> tuple[object, list[int]]:
    """The next message, None if there will be no more, and the descriptors that came with it."""
    data, handles, _, _ = socket.recv_fds(link, _CHUNK, EXTRA + 1)
    more = data
    while more and (len(data) < _LENGTH.size or len(data) - _LENGTH.size < _LENGTH.unpack_from(data)[0]):
        more = link.recv(_CHUNK)
        data += more
    return (json.loads(data[_LENGTH.size :]) if more else None), handles


class Server:
    """The parent of one kind of processes. ``command`` starts its :func:`main`, its options aside."""

    def __init__(
        self, command: list[str], environment: dict[str, str], harness: bool = False, early: bool = False
    ) -> None:
        self._link, theirs = socket.socketpair()
        self._lock = threading.Lock()
        self._ready = False
        with theirs:
            self._process = subprocess.Popen(
                [*command, msgspec.json.encode(Options(theirs.fileno(), harness, early)).decode()],
                cwd=os.sep, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def close(self) -> None:
        """It ends when its line does, with all that it has started."""
        if not self._ready:  # it has started nothing, and does not listen yet
            self._process.kill()
        self._link.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(
        self, request: Fork | HasEnded, handles: tuple[int, ...] = (), given_up: Callable[[], bool] | None = None
    ) -> Reply:
        """One request and its answer. Raises ConnectionError if the server has ended, GivenUpError if it is not there
        when ``given_up`` becomes true."""
        with self._lock:
            if self._link.fileno() < 0:
                raise ConnectionError("the server was closed")
            try:
                self._wait(given_up)
                _send(self._link, request, handles)
                if not self._says_something(_ANSWER_SECONDS):  # stopped, say: it is of no use any more
                    self._process.kill()
                answer, _ = _receive(self._link)
            except OSError as error:
                raise ConnectionError(str(error)) from None
        if answer is None:
            self._process.wait()  # its end is closed, so it ends
            raise ConnectionError("the server has ended")
        return msgspec.convert(answer, Reply)

    def _says_something(self, seconds: float) -> bool:
        line = select.poll()
        line.register(self._link, select.POLLIN)
        return bool(line.poll(1000 * seconds))

    def _wait(self, given_up: Callable[[], bool] | None) -> None:
        """Wait for its first word, which it says when it is warm."""
        while not self._ready:
            if given_up is not None and given_up():
                raise GivenUpError
            if self._says_something(_POLL_SECONDS):
                if _receive(self._link)[0] is None:
                    raise ConnectionError("the server has ended")
                self._ready = True

    def fork(
        self,
        run: list[str],
        work: Path,
        environment: dict[str, str],
        log: IO[bytes],
        channel: int | None = None,
        given_up: Callable[[], bool] | None = None,
    ) -> Forked:
        """A process that runs ``main`` of the module ``run[0]`` with the other words, in the folder ``work``.

        Its errors go to ``log``, and so does its output if ``channel`` is given, a descriptor that it has as number
        ``EXTRA``; otherwise its output comes through a pipe. Raises as :meth:`ask` does.
        """
        in_read, in_write = os.pipe()
        out_read, out_write = os.pipe() if channel is None else (-1, -1)
        handles = (in_read, out_write, log.fileno()) if channel is None else (in_read, *[log.fileno()] * 2, channel)
        try:
            pid = self.ask(Fork(run, str(work), environment), handles, given_up).pid
        except BaseException:
            os.close(in_write)
            if channel is None:
                os.close(out_read)
            raise
        finally:
            os.close(in_read)
            if channel is None:
                os.close(out_write)
        stdout = os.fdopen(out_read, "rb") if channel is None else None
        return Forked(self, pid, os.fdopen(in_write, "wb"), stdout)


_servers: dict[str, Server] = {}
_lock = threading.Lock()


@atexit.register
def close() -> None:
    """End all servers; the next process starts one anew."""
    with _lock:
        while _servers:
            _servers.popitem()[1].close()


def server(kind: str, start: Callable[[], Server]) -> Server:
    """The server of this kind, made by ``start`` if there is none that is alive."""
    with _lock:
        found = _servers.get(kind)
        if found is not None and not found.alive:
            found.close()
            found = None
        if found is None:
            found = _servers[kind] = start()
        return found


# --- in the server ---

_SUBREAPER = 36  # prctl(2)
_END_SECONDS = 5.0


def _adopt() -> None:
    """What processes leave behind becomes this process's child, whatever session it made (Linux)."""
    import ctypes

    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def _end_strangers(own: set[int]) -> bool:
    """End the children that were not asked for; were there any?"""
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
    """End all that was asked for, and what they left behind."""
    deadline = time.monotonic() + _END_SECONDS
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            _end_strangers(set())
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(_POLL_SECONDS)


def _serve(link: socket.socket, rehearse: Callable[[], None] | None = None) -> None:
    """Fork a process for each request, until the other end closes; ``rehearse`` before the second."""
    ended: dict[int, int] = {}
    works: dict[int, str] = {}
    forked = 0
    _send(link, Reply())
    while True:
        asked, handles = _receive(link)
        if asked is None:
            _end_all()
            _leave_nothing(works)
            return
        request: Fork | HasEnded = msgspec.convert(asked, Fork | HasEnded)
        if isinstance(request, HasEnded):
            with contextlib.suppress(ChildProcessError):
                while (found := os.waitpid(-1, os.WNOHANG))[0]:
                    if found[0] in works:
                        ended[found[0]] = os.waitstatus_to_exitcode(found[1])
                        works.pop(found[0])
            if request.pid in ended:
                # an orphan's own children are orphans when it has ended
                deadline = time.monotonic() + _END_SECONDS
                while _end_strangers(set(works)) and time.monotonic() < deadline:
                    time.sleep(_POLL_SECONDS)
            _send(link, Reply(code=ended.pop(request.pid, None)))
            continue
        if rehearse and forked == 1:  # one process alone does itself what it needs
            with contextlib.suppress(Exception):  # then the process says what is wrong
                rehearse()
        forked += 1
        pid = os.fork()
        if pid == 0:
            link.close()
            _become(request, handles)
        works[pid] = request.work
        for handle in handles:
            os.close(handle)
        _send(link, Reply(pid))


def _leave_nothing(works: dict[int, str]) -> None:
    """Whoever asked has ended, and so have the processes: their folders go, which those may not remove."""
    for work in works.values():
        shutil.rmtree(Path(work).parent, ignore_errors=True)


def _become(request: Fork, handles: list[int]) -> None:
    """Turn this process into the one that was asked for; does not return."""
    import fcntl
    import importlib
    import traceback

    code = 1
    try:
        os.setsid()
        moved = [fcntl.fcntl(handle, fcntl.F_DUPFD, len(handles)) for handle in handles]
        for handle in handles:
            os.close(handle)
        for number, handle in enumerate(moved):
            os.dup2(handle, number)
            os.close(handle)
        os.chdir(request.work)
        os.environ.clear()
        os.environ.update(request.environment)
        module, *sys.argv[1:] = request.run
        sys.argv[0] = module
        importlib.import_module(module).main(*sys.argv[1:])
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(bool(error.code))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def warm() -> None:
    """Import what every process needs, and have Numba build its tables, which takes it seconds."""
    from numba import cuda, float32, void

    def kernel(array: list[float]) -> None:
        array[cuda.grid(1)] *= float32(2.0)

    with contextlib.suppress(Exception):  # then the first process says what is wrong
        cuda.compile(kernel, void(float32[:]), cc=(9, 0), output="ptx", device=False, abi="numba")


def main(text: str) -> None:
    """Serve. ``text`` is :class:`Options` as JSON."""
    options = msgspec.json.decode(text, type=Options)
    _adopt()
    rehearse = None
    if options.harness:
        from common.workers import child

        child.warm()
        rehearse = child.rehearse
        if options.early:
            rehearse()
            rehearse = None
    else:
        warm()
    _serve(socket.socket(fileno=options.link), rehearse)


if __name__ == "__main__":
    main(sys.argv[-1])
