"""Runs files that nobody vouches for, and keeps everything a verdict rests on out of their reach.

A submission runs in a process of its own (:mod:`common.grade.sandbox_child`), in a fresh folder that holds a copy
of the harness (:mod:`common.grade.harness`) and of the file, with limits on time and memory. This process

- draws the operands from a seed that the other does not know, after the file has been imported,
- keeps its own copy of them, compares the output that comes back with its own oracle, and holds the only clock,
- reads nothing that the submission prints, and no exit code,
- looks at the checkout before and after (:mod:`common.grade.checkout`), and says which of its files changed,
  and whether the submission can have done it.

The GPU is not given to it at all. Its process records what it would start (:mod:`common.grade.ptx_plan`), and a
third process, which runs none of its Python, starts those kernels on fresh operands and times them
(:mod:`common.grade.ptx_run`).

What this does not protect against stands in lessons/GRADING.md: a submission has the rights of the user who grades.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any, get_args

import numpy as np
from msgspec import to_builtins

from common.catalog import catalog, device, schema
from common.catalog.problems import Problem
from common.check import arrays
from common.edit import shipped
from common.grade import confine, harness, messages
from common.grade.borrowed import as_shipped
from common.grade.messages import Answer, Found, Launched, Question
from common.run import isolate

Note = tuple[str, str]  # kind and message, as in a check's findings

MAX_ANSWER = 1 << 20
ENDING_SECONDS = 2.0  # that a process which has closed its output may take to end
MAX_PLAN_FILE = 1 << 30
# What a process needs to start Python with its packages; nothing else is passed on.
_ENVIRONMENT = (
    "PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "CUDA_HOME",
    "CUDA_PATH", "LANG", "LC_ALL", "SYSTEMROOT", "NUMBA_CUDA_USE_NVIDIA_BINDING",
)  # fmt: skip
NOTED: tuple[str, ...] = get_args(messages.Noted)
# Signals that a process does not bring on itself.
_FROM_OUTSIDE = [getattr(signal, f"SIG{name}", 0) for name in ("KILL", "TERM", "INT", "HUP", "STOP", "QUIT", "USR1")]
_SAID = 600  # characters of what a submission's process says
_VERDICT = re.compile(r"\b(pass(ed)?|right|correct|verdict|status|grade|score|ok)\b", re.IGNORECASE)


def cpu_seconds(seconds: float) -> int:
    """Processor time of a submission whose answers may take ``seconds`` each: enough for several of them."""
    return max(300, int(5 * seconds))


@dataclass(frozen=True)
class Limits:
    """What one submission may take. ``seconds`` is the wall clock for each answer, ``start_seconds`` for its process
    to be there before the first, both longer by :func:`crowding`; the rest is for the process."""

    seconds: float = 60.0
    start_seconds: float = 60.0
    cpu_seconds: int = 300
    memory_bytes: int = 8 << 30
    file_bytes: int = 2 << 30


class SandboxError(RuntimeError):
    """The submission's process gave no proper answer. ``kind`` is one of isolate's statuses, or ``broken``;
    ``disturbed``: somebody else may have ended it."""

    def __init__(self, kind: str, message: str, disturbed: bool = False) -> None:
        super().__init__(message)
        self.kind, self.disturbed = kind, disturbed


_playing: set[Sandbox] = set()
_entrance = threading.Lock()


@dataclass(eq=False)
class Sandbox:
    """A submission's process. Use as a context; leaving it ends the process and removes its folder."""

    file: Path
    ladder: str
    limits: Limits = field(default_factory=Limits)
    notes: list[Note] = field(default_factory=list)
    closing: threading.Event | None = None  # set when no more is to be started
    source: str | None = None  # the file's text as it was taken; None: as it is now
    borrowed: tuple[Path, ...] = ()  # files of lessons that it may load
    at_large: bool = False  # the submission was started where no wall keeps it from files outside of its folder

    def __enter__(self) -> Sandbox:
        self.folder = Path(tempfile.mkdtemp(prefix="workbook-"))
        try:
            self._start()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        with _entrance:
            _playing.add(self)
            closed = self.closing is not None and self.closing.is_set()
        if closed:  # it came too late to be ended with the others
            self.end()
        return self

    def end(self) -> None:
        """End the process: whoever waits for its answer is told."""
        isolate.end(self._process)

    def __exit__(self, *_: object) -> None:
        _playing.discard(self)
        self.end()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):  # what was not sent is not wanted any more
                if stream:
                    stream.close()
        self._exchange.close()
        self._log.close()
        self._look()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> None:
        self.work = self.folder / "work"
        # what its process imports, and the helpers that lessons share; of lessons what the file may load, and no more
        given = {path: harness.read(path) for path in (*harness.files(), *catalog.LESSONS.glob("*.py"))}
        # not as whoever grades has edited them
        given |= {catalog.LESSONS / name: text for name, text in _shipped_helpers().items()}
        given |= {path: as_shipped(path) for path in self.borrowed}
        for source, text in given.items():
            harness.put(text, self.work / source.relative_to(catalog.ROOT))
        copy = self.work / "submission" / self.file.name
        copy.parent.mkdir()
        if self.source is None:
            shutil.copyfile(self.file, copy)
        else:
            copy.write_text(self.source, encoding="utf-8", newline="\n")
        self._before = contents(self.work)
        exchange = self.work / "exchange.bin"
        self._exchange = open(exchange, "w+b")  # noqa: SIM115 - open as long as the process
        self._log = open(self.folder / "log.txt", "w+b")  # noqa: SIM115
        options = messages.Options(
            file=str(copy), ladder=self.ladder, exchange=str(exchange), margin=arrays.MARGIN,
            hidden=str(catalog.ROOT),
            memory_bytes=self.limits.memory_bytes, cpu_seconds=self.limits.cpu_seconds,
            file_bytes=self.limits.file_bytes,
        )  # fmt: skip
        self._process = self._started(json.dumps(to_builtins(options)))
        self._answers: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True).start()

    def _started(self, argument: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", harness.CHILD, argument], cwd=self.work, env=self._environment(),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, start_new_session=os.name == "posix",
        )  # fmt: skip

    def _environment(self) -> dict[str, str]:
        given = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        places = filter(None, given.get("PYTHONPATH", "").split(os.pathsep))
        fixed = {
            **dict.fromkeys(("HOME", "TEMP", "TMP", "TMPDIR"), str(self.work)),
            "PYTHONPATH": os.pathsep.join(path for path in places if Path(path).resolve() != catalog.ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            device.VISIBLE: "-1",
            device.CARD_SWITCH: device.small_card(),  # the tiles are those of the GPU, which it does not see
            **device.PLAIN,
            # one thread each, so that several fit a machine and the memory limit
            **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
        }
        return {**given, **fixed}

    def ask(self, question: Question[Found]) -> Found:
        """Put a question and wait for its answer. Raises SandboxError if none comes, or if it says that it failed."""
        if isinstance(question, messages.Start):
            self.at_large = not confine.keeps_files(self.ask(messages.Ready()))
        ready = isinstance(question, messages.Ready)
        seconds = (self.limits.start_seconds if ready else self.limits.seconds) * crowding()
        line = json.dumps(to_builtins(question)).encode() + b"\n"
        assert self._process.stdin
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except OSError:
            raise self._ended() from None
        try:
            text = self._answers.get(timeout=seconds)
        except queue.Empty:
            self.end()
            if ready:
                raise SandboxError("unjudged", f"no process was ready for it within {seconds:g} s") from None
            said = f"no result within {seconds:g} s: an endless loop, or a barrier that threads skip?"
            raise SandboxError("timed_out", said) from None
        if not text:
            raise self._ended()
        try:
            answer = schema.read(json.loads(text), Answer, "answer")
            notes = [(kind, message[:_SAID]) for kind, message in answer.notes]
            self.notes = list(dict.fromkeys((*self.notes, *notes)))  # what was noted once stays
            if answer.status == "done":
                return messages.found(question, answer)
        except (ValueError, RecursionError) as error:
            said = f"{text[:80].decode(errors='replace')!r}: {error}"
            raise SandboxError("broken", f"something that is no answer came from its process: {said}") from None
        looks = [f"; look at: {fault['look_at'][:_SAID]}" for fault in answer.faults[:1]]
        raise SandboxError(answer.status, "".join((answer.message[:_SAID], *looks)))

    def send(self, offset: int, data: bytes) -> None:
        """Put bytes into the exchange."""
        self._exchange.seek(offset)
        self._exchange.write(data)
        self._exchange.flush()

    def receive(self, count: int) -> bytes:
        """The exchange's first bytes, as the submission's process left them."""
        self._exchange.seek(0)
        data = self._exchange.read(count)
        if len(data) != count:
            raise SandboxError("broken", "the file that its output travels in was cut short")
        return data

    def plan_file(self, name: str) -> bytes:
        """A file that the recording wrote. Raises SandboxError if it is no plain file of a sensible size."""
        path = self.work / "plans" / Path(name).name
        try:
            handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        except OSError:
            raise SandboxError("broken", f"{path.name} of its plan is missing") from None
        with os.fdopen(handle, "rb") as file:
            state = os.fstat(file.fileno())
            if not stat.S_ISREG(state.st_mode) or state.st_size > MAX_PLAN_FILE:
                raise SandboxError("broken", f"{path.name} of its plan is no plain file")
            return file.read()

    def _listen(self, stream: IO[bytes]) -> None:
        """Pass on lines as they come; an empty one when the process has ended."""
        with contextlib.suppress(ValueError, OSError):  # closed
            while True:
                line = stream.readline(MAX_ANSWER)
                self._answers.put(line)
                if not line:
                    return

    def _ended(self) -> SandboxError:
        code = isolate.end(self._process, ENDING_SECONDS)
        log = Path(self.folder, "log.txt")
        if code == 0:
            said = "it ended its process with exit code 0 in place of an output: an exit code is no verdict"
            return SandboxError("exited", said)
        disturbed = -code in _FROM_OUTSIDE
        return SandboxError("crashed", isolate.obituary(code, log), disturbed)

    def _look(self) -> None:
        """Note what the submission printed and changed."""
        changed = [name for name in differences(self._before, contents(self.work)) if not name.startswith("plans/")]
        if changed:
            self.notes.append(("changed_files", f"changed its copy of {some(changed)}"))
        with Path(self.folder, "log.txt").open("rb") as file:  # it may be as long as a file may be
            file.seek(max(0, os.fstat(file.fileno()).st_size - (1 << 16)))
            log = file.read().decode(errors="replace")
        for line in log.splitlines():
            if _VERDICT.search(line) and "Error" not in line:
                self.notes.append(("printed", f"printed {line.strip()[:80]!r}: nothing that it prints is read"))
                break


def crowding() -> float:
    """How many times as long work takes while more of it waits than there are processors: 1 to 8."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return min(max(load / (os.cpu_count() or 1), 1.0), 8.0)


@cache
def _shipped_helpers() -> dict[str, bytes]:
    """The text of those helpers that are edited, as shipped; a lesson's own are not in reach of an exercise."""
    edited = [path for path in shipped.edited_helpers() if path.parent == catalog.LESSONS]
    texts = {path.name: shipped.text(path) for path in edited}
    return {name: text for name, text in texts.items() if text is not None}


def end_all(closing: threading.Event) -> None:
    """End every submission's process, and those with this event that are about to start."""
    with _entrance:
        closing.set()
        playing = list(_playing)
    for box in playing:
        box.end()


class RemoteArray:
    """One operand of a remote bench: this process's copy, between its margins."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.shape, self.dtype = shape, dtype
        self.size = int(np.prod(shape))
        self._flat = arrays.filled(self.size + 2 * arrays.MARGIN, dtype)

    @property
    def nbytes(self) -> int:
        return int(self._flat.nbytes)

    def set(self, values: Any) -> None:
        self._flat[arrays.MARGIN : arrays.MARGIN + self.size] = np.asarray(values, self.dtype).reshape(-1)

    def blank(self) -> None:
        arrays.bits(self._flat)[arrays.MARGIN : arrays.MARGIN + self.size] = arrays.pattern(self.dtype)

    def get(self) -> Any:
        return self._flat[arrays.MARGIN : arrays.MARGIN + self.size].reshape(self.shape).copy()

    def trespasses(self) -> list[int]:
        return arrays.written_outside(self._flat[: arrays.MARGIN], self._flat[arrays.MARGIN + self.size :], self.size)

    def tobytes(self) -> bytes:
        return self._flat.tobytes()

    def frombytes(self, data: bytes) -> None:
        self._flat = np.frombuffer(data, self.dtype).copy()


class RemoteBench:
    """A submission's process as :func:`common.check.check.check_bench` wants a bench."""

    def __init__(self, box: Sandbox, problem: Problem) -> None:
        self.box, self.problem = box, problem
        self.x, self.weight, self.y = (RemoteArray(shape, dtype) for shape, dtype in problem.operands)
        self.launched: list[list[Launched]] = []
        box.ask(messages.Bind(shape=problem.shape()))

    def load(self, x: Any, weight: Any) -> None:
        """New operands; the submission sees the weights now, and the input only when it is launched."""
        self.x.set(x)
        self.weight.set(weight)
        self.box.send(self.x.nbytes, self.weight.tobytes())
        self.box.ask(messages.Prepare())

    def run(self) -> None:
        """Send all operands, launch, and take back what became of them."""
        operands = (self.x, self.weight, self.y)
        self.box.send(0, b"".join(operand.tobytes() for operand in operands))
        self.launched.append(self.box.ask(messages.Launch()))
        data = self.box.receive(sum(operand.nbytes for operand in operands))
        start = 0
        for operand in operands:
            operand.frombytes(data[start : start + operand.nbytes])
            start += operand.nbytes


def contents(root: Path) -> dict[str, str]:
    """What identifies the contents of each file under ``root``, by its path there."""
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and path.name != "exchange.bin"]
    return {path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def differences(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """Names whose contents differ, each with what became of it."""
    found = []
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            fate = "deleted" if name not in after else "new" if name not in before else "overwritten"
            found.append(f"{name} ({fate})")
    return found


def some(names: Sequence[object]) -> str:
    """The first few of many."""
    return ", ".join(map(str, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
