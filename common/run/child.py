"""The process kernels run in: reads tasks, does them one by one, and answers each with its result, or that it took
too long; what it may take of memory and files.

What counts as time is what a task itself takes: its process's processor time, or the clock while a GPU's kernel runs;
of a process that sleeps a tenth of the clock. So a busy machine is not taken for a kernel that does not end.
"""

from __future__ import annotations

import gc
import importlib
import json as standard
import os
import pickle
import re
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection, parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from msgspec import json, to_builtins
from msgspec.structs import replace

from common.catalog import catalog, device
from common.explain import faults
from common.run.messages import Found, Result, Task, typed

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

WORK, LOG = "work", "log.txt"  # in a child's folder: where it works, and what it prints
TASKS, RESULTS = "tasks.pickle", "results.jsonl"  # and of a child that a tool watches
# names are put together, so that what reads imports does not count these modules as imported by this file
MOST_NEEDED = [f"common.{name}" for name in ("machine_code.codegen", "timing.tasks", "check.tasks")]
KERNEL, ORACLE, COMPILE, IMPORTS = "kernel", "oracle", "compiler", "import"
TICK_SECONDS, SIGN_SECONDS = 0.1, 1.0  # how often the time is counted, and how often a process says what it is at
ALL = 4  # times a stage's limit: that of a task with all its stages
_MOST_OF_A_TICK = 5  # times a tick: more of the clock is not counted, as the process was stopped
_ASLEEP = 0.1  # of the clock: what counts of a process that uses less
_WORDS = {"": "task", "compile": COMPILE, "prepare": COMPILE, "summarise": COMPILE}  # of stages named otherwise
Say = Callable[[str | Result], None]  # sends the stage, or what came of the task
_open: list[str] = []  # stages, one within the other
_sign = 0
_outside = 1, 2  # file descriptors: where the harness prints


def main(line: Connection, folder: str, environment: dict[str, str], limits: tuple[int, int]) -> None:
    """Do the tasks that come through ``line`` until it ends; ``limits``: bytes of memory, and of any file."""
    global _outside
    with suppress(OSError):  # one that is closed
        _outside = os.dup(1), os.dup(2)
    if os.name == "posix":
        os.setsid()  # whoever ends this process ends all of its group, and no Ctrl-C comes here
    log = os.open(Path(folder, LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sys.stdout, sys.stderr = _written_to(log, 1), _written_to(log, 2)
    threading.Thread(target=_end_with_parent, args=(Path(folder),), daemon=True).start()
    _ready(folder, environment, limits)
    say = _speaker(line.send_bytes)
    say("")
    while True:
        try:
            task = pickle.loads(line.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)
        answer(task, say)


def watched(folder: str, limits: tuple[int, int]) -> None:
    """Do the tasks of a folder's file in a process that a tool has started, and write their results beside it."""
    sys.stdout = sys.stderr
    _ready(folder, dict(os.environ), limits)
    with Path(folder, RESULTS).open("ab", buffering=0) as file:
        say = _speaker(lambda data: file.write(data + b"\n"))
        for task in pickle.loads(Path(folder, TASKS).read_bytes()):
            if answer(task, say).fatal:
                break


def _written_to(target: int, number: int) -> TextIO:
    """From now on what is written to this file descriptor goes to the ``target``; and a stream to it."""
    os.dup2(target, number)
    return open(number, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)


def print_outside(aside: bool) -> None:
    """From now on this process prints where the harness does; ``aside``: to standard error alone."""
    output, errors = _outside
    sys.stdout, sys.stderr = _written_to(errors if aside else output, 1), _written_to(errors, 2)


def _ready(folder: str, environment: dict[str, str], limits: tuple[int, int]) -> None:
    import lessons  # noqa: F401 - no longer found below

    os.environ.clear()
    os.environ.update(environment)
    os.chdir(Path(folder, WORK))
    # its folder is no place to import from, and neither is the checkout, but for its own packages
    sys.path[:] = [name for name in sys.path if name and Path(name).resolve() != catalog.ROOT]
    sys.argv = ["common"]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if os.name == "posix":
        import resource

        # not RLIMIT_AS: allocators and drivers reserve far more addresses than they use; and no crash leaves a core
        limited = {resource.RLIMIT_DATA: limits[0], resource.RLIMIT_FSIZE: limits[1], resource.RLIMIT_CORE: 0}
        for what, limit in limited.items():
            with suppress(ValueError, OSError):
                resource.setrlimit(what, (limit, limit))
    for name in MOST_NEEDED:
        importlib.import_module(name)
    gc.set_threshold(100_000, 50, 50)
    gc.freeze()  # what is loaded now stays: nothing need look through it again and again
    sys.modules[MOST_NEEDED[2]].ready()


def _end_with_parent(folder: Path) -> None:
    """When the harness has ended, remove the folder, and end with all that was started here."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    shutil.rmtree(folder, ignore_errors=True)
    end_group(os.getpid())
    os._exit(1)


def end_group(pid: int) -> None:
    """End a process with all of its group, whose first it is."""
    if os.name == "posix":
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


def _speaker(send: Callable[[bytes], object]) -> Say:
    """Sends messages as JSON, one at a time, from any thread."""

    def plain(number: Any) -> Any:  # of NumPy's
        return number.item()

    lock, encode = threading.Lock(), json.Encoder(enc_hook=plain).encode
    in_unicode = standard.JSONEncoder(ensure_ascii=False).encode  # a step file may change json

    def say(what: str | Result) -> None:
        with lock:
            try:
                said = encode(what)
            except UnicodeEncodeError:  # a string that is no text, such as the name of a file in another encoding
                said = in_unicode(to_builtins(what, enc_hook=plain)).encode(errors="replace")
            send(said)

    return say


def answer(task: Task[Result], say: Say) -> Result:
    """Do a task, and answer it: with what came of it, or, from another thread, that it took too long."""
    assert task.seconds is not None  # whoever sends it says for how long
    with Watch(Path(task.path), task.seconds, task.within).looking(say) as late:
        result = attempt(task)
    if not late:
        say(result)
    return result


def attempt(task: Task[Found]) -> Found:
    """What comes of a task in this process, whatever is raised."""
    try:
        began = time.monotonic()
        layer, _, name = task.kind.partition(".")
        with stage(name):
            tasks = importlib.import_module(f"common.{layer}.tasks")
            result: Found = getattr(tasks, f"{name}_task")(task)
        return replace(result, seconds=round(time.monotonic() - began, 3))
    except BaseException as error:  # a file may raise SystemExit, too
        return typed(task, failure(error, Path(task.path)))


def failure(error: BaseException, path: Path) -> Result:
    """What became of the step file at ``path``: unusable, refused or crashed, and why in one line."""
    fault = faults.of_error(error, path)
    text = " ".join(str(error).split())
    # what a reader of Numba's errors skips: the compiler's stage, and the functions that do not fit
    text = re.sub(r"Failed in \w+ mode pipeline \(step: [^)]*\) ", "", text)
    text = faults.cut(re.sub(r" (?:There are \d+ candidate implementations:|During: |File \").*", "", text), 600)
    explained = [fault] if fault else []
    if isinstance(error, SyntaxError | catalog.CatalogError):
        message = fault.what if fault and isinstance(error, SyntaxError) else text
        return Result(status="unusable", message=message, faults=explained)
    line, frames = faults.raised_at(error, path), traceback.extract_tb(error.__traceback__)
    own = [frame.line or "" for frame in frames[-1:] if Path(frame.filename).name == path.name]
    # a step refuses a shape by a ValueError that it raises itself, on the host, and says why
    if isinstance(error, ValueError) and "raise ValueError" in "".join(own) and text:
        look_at = "the constants at the file's top, against this condition" * (frames[-1].name == "<module>")
        return Result(status="refused", message=text, faults=[faults.fault("refused", text, path, line, look_at)])
    where = f" at {path.name}:{line}" if line else ""
    # a CUDA context does not recover from a fault
    fatal = "Cuda" in type(error).__name__ or "CUDA_ERROR" in str(error)
    message = f"{type(error).__name__}{where}: {text}"
    placed = [faults.fault("uncaught", f"{type(error).__name__}: {text}", path, line)] if line and not fatal else []
    return Result(status="crashed", message=message, faults=explained or placed, fatal=fatal)


# --- which stage of its work it is at, and how long it may be at it ---


@contextmanager
def stage(name: str) -> Iterator[None]:
    """What happens meanwhile in this process is of this stage, or of one within it."""
    _open.append(name)
    advance()
    try:
        yield
    finally:
        _open.pop()
        advance()


def advance() -> None:
    """Give a sign that work goes on: a stage began or ended, or a part of it is done."""
    global _sign
    _sign += 1


class Watch:
    """The time of a task on the file at ``path``, done by the thread that makes this: so many ``seconds`` for each
    part that gives a sign (:func:`advance`), and ``within`` for all together; None: a few times as much."""

    def __init__(self, path: Path, seconds: float, within: float | None = None) -> None:
        self._path, self._seconds = path, seconds
        self._within = ALL * seconds if within is None else within
        self._thread, self._traced = threading.get_ident(), device.gpu_count() == 0
        self._clock, self._spent = time.monotonic(), time.process_time()
        self._at = "", -1  # the stage, and the signs so far
        self._own = self._all = 0.0  # what was spent at it, and in all

    @contextmanager
    def looking(self, say: Say) -> Iterator[list[Result]]:
        """Meanwhile another thread says the stage, or what took too long, which then is in the list that it gives."""
        done = threading.Event()
        late: list[Result] = []

        def look() -> None:
            told = time.monotonic()
            while not late and not done.wait(TICK_SECONDS):
                found = self.tick()
                if found and not done.is_set():
                    late.append(found)
                    say(found)
                elif time.monotonic() - told > SIGN_SECONDS:
                    told = time.monotonic()
                    say(self._at[0])

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield late
        finally:
            done.set()
            thread.join()  # it says nothing any more

    def tick(self) -> Result | None:
        """Count what was spent since; the result if it is too much."""
        stage, line = self._stage()
        clock, spent = time.monotonic(), time.process_time()
        passed, used = min(clock - self._clock, _MOST_OF_A_TICK * TICK_SECONDS), spent - self._spent
        self._clock, self._spent = clock, spent
        if self._at != (stage, _sign):  # what was spent since may be of either
            self._at, self._own = (stage, _sign), 0.0
        taken = passed if stage == KERNEL and not self._traced else max(used, _ASLEEP * passed)
        self._own += taken
        self._all += taken
        late = self._own > self._seconds
        if not late and self._all <= self._within:
            return None
        if not late or (stage != KERNEL and line is None):
            return _unjudged(stage, f"was not done after {self._own if late else self._all:.0f} s", self._all)
        what = "the import" if stage == IMPORTS else "the kernel"
        or_else = "too much work" if self._traced else "a barrier that some threads skip"
        fault = faults.of_time_out(self._seconds, self._path, line, what)
        where = f"; it was in {self._path.name}:{fault.line}: {fault.code}" if line else ""
        message = f"{fault.what}: an endless loop{f', or {or_else}' * (stage != IMPORTS)}?{where}"
        return Result(status="timed_out", message=message, faults=[fault], fatal=True, seconds=round(self._all, 3))

    def _stage(self) -> tuple[str, int | None]:
        """The stage that the task is at, empty if there is none, and the line of its file that runs, if one."""
        stage = (_open or [""])[-1]
        innermost = sys._current_frames().get(self._thread)
        frames = traceback.walk_stack(innermost) if innermost else ()
        own = [frame for frame, _ in frames if Path(frame.f_code.co_filename).name == self._path.name]
        if not own or stage == COMPILE:
            return stage, None
        if stage != KERNEL and own[-1].f_code.co_name == "<module>":
            stage = IMPORTS
        return stage, own[0].f_lineno


def silent(stage: str) -> Result:
    """The result of a task whose process was ended while it gave no sign of life, last at ``stage``."""
    if stage in ("", IMPORTS, KERNEL):
        message = "no sign of life: one operation that does not end?"
        return Result(status="timed_out", message=message, fatal=True)
    return _unjudged(stage, "gave no sign of life")


def _unjudged(stage: str, why: str, seconds: float = 0.0) -> Result:
    message = f"the {_WORDS.get(stage, stage)} {why}; values were not compared"
    return Result(status="unjudged", message=message, fatal=True, late=True, seconds=round(seconds, 3) or None)
