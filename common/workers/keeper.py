"""The process between the harness and one that runs a kernel file: it sees to it that nothing is left of the latter.

It starts the worker in a folder of its own, adopts whatever the worker's processes leave behind (on Linux), and waits
for the worker or for the end of its line to the harness. Then it ends them all; when the line has ended, however
that came, it removes the folder, too. It imports nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

MARK = "WORKBOOK_CHILD"  # in the environment of all that a worker starts
WORK = "work"
_END_SECONDS = 5.0
_POLL_SECONDS = 0.01
_ROUNDS = 50
_SUBREAPER, _PARENT_DEATH = 36, 1  # prctl(2)

# What a process does before it imports the harness: its folder is no place to import from, and neither is the
# checkout, but for its own packages.
BOOT = """import sys
sys.path[:] = [sys.argv[1], *(name for name in sys.path if name)]
import common, lessons
sys.path[:] = [name for name in sys.path if name != sys.argv[1]]
from common.workers import {module}
{module}.main(sys.argv.pop())
"""


class _Needed(TypedDict):
    folder: str
    tasks: str
    warm: bool
    wait: bool
    memory: int
    files: int


class Options(_Needed, total=False):
    """What a worker is started with; it checks them itself (:func:`common.workers.child.main`).

    ``folder``  its own; ``tasks``, the file that has them
    ``warm``    get ready first; ``wait`` until a line comes on standard input, and only then read the tasks
    ``memory``, ``files``  bytes of memory, and of any file, that the process may take
    ``channel`` the pipe that takes the answers, or ``results``, a file
    ``command`` what the keeper is to run in place of :mod:`common.workers.child`
    """

    channel: int | None
    results: str
    command: list[str]


def boot(module: str, root: Path, options: str) -> list[str]:
    """The words that start ``common.<module>``'s main, with ``options``, in any folder."""
    return [sys.executable, "-c", BOOT.format(module=module), str(root), options]


def remove(folder: Path) -> None:
    """Remove a folder and all below it, what nobody may read included. What it lies in stays as it is."""
    _open_up(folder)
    for path, names, _ in os.walk(folder):
        for name in names:
            _open_up(Path(path, name))
    shutil.rmtree(folder, ignore_errors=True)


def _open_up(folder: Path) -> None:
    with contextlib.suppress(OSError):
        if not folder.is_symlink():
            folder.chmod(stat.S_IRWXU)


def main(text: str) -> None:
    """Keep one worker, started with these :class:`Options` as JSON."""
    options: Options = json.loads(text)
    folder, channel = Path(options["folder"]), options.get("channel")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    _control(_SUBREAPER)
    woken, wake = os.pipe()
    for handle in (woken, wake):
        os.set_blocking(handle, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    keeper = os.getpid()
    worker = os.fork()
    if worker == 0:
        signal.set_wakeup_fd(-1)
        for handle in (woken, wake):
            os.close(handle)
        _work(options, keeper)
    line = select.poll()
    line.register(0, 0)  # its end alone
    line.register(woken, select.POLLIN)
    code = None
    while code is None:
        ready = [handle for handle, _ in line.poll()]
        with contextlib.suppress(BlockingIOError):
            os.read(woken, 1 << 16)
        code = _reaped(worker)
        if 0 in ready:
            break
    _end_all(worker)
    if channel is not None and code is not None:
        with contextlib.suppress(OSError):  # nobody listens any more
            os.write(channel, b"\n" + json.dumps({"ended": code}).encode() + b"\n")
    line.unregister(woken)
    line.poll()
    remove(folder)
    os._exit(0)


def _work(options: Options, keeper: int) -> None:
    """Become the worker; does not return."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    _control(_PARENT_DEATH, signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(1)
    code = 1
    try:
        os.setsid()  # what is sent to its group does not reach the keeper
        os.chdir(Path(options["folder"], WORK))
        if options.get("command"):
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.execvp(options["command"][0], options["command"])
        sys.argv = ["common.workers.child"]
        from common.workers import child

        child.main(json.dumps(options))
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(bool(error.code))
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def _control(what: int, value: int = 1) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(what, value, 0, 0, 0)


def _reaped(worker: int) -> int | None:
    """Take note of those that ended; the worker's exit code if it is among them."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            if found[0] == worker:
                code = os.waitstatus_to_exitcode(found[1])
    return code


def _end_all(worker: int) -> None:
    """End every process below this one: those whose parents end become its own children."""
    deadline = time.monotonic() + _END_SECONDS
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(worker, signal.SIGKILL)
            for pid in _matching("stat", lambda text: int(text.rpartition(b")")[2].split()[1]) == os.getpid()):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(_POLL_SECONDS)


def end_marked(mark: str) -> None:
    """End the processes whose environment has this mark: what a keeper that was itself ended has left (Linux)."""
    word = f"{MARK}={mark}".encode()
    for _ in range(_ROUNDS):
        found = _matching("environ", lambda text: word in text.split(b"\0"))
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)


def _matching(name: str, test: Callable[[bytes], bool]) -> list[int]:
    """The processes whose file of this name below /proc passes the test; none where there is no /proc."""
    found = []
    for folder in os.listdir("/proc") if sys.platform == "linux" else []:
        if folder.isdigit() and int(folder) != os.getpid():
            with contextlib.suppress(OSError, IndexError, ValueError):
                if test(Path("/proc", folder, name).read_bytes()):
                    found.append(int(folder))
    return found
