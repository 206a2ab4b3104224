"""Which stage of its work a process is at, and what a child process may take: memory, file sizes, time by stage.

Stages lie within stages: the inner one is told.

What counts is the time that a task itself takes: its process's processor time, or the clock while a GPU's kernel
runs; of a process that sleeps a tenth of the clock. So a machine that is busy is not taken for a kernel that does not
end. Only a kernel that ran, or the file's own Python code, is suspected of that.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from common.catalog import device
from common.explain import faults
from common.run.messages import SIGN_SECONDS, Result

KERNEL, ORACLE, COMPILE, IMPORTS = "kernel", "oracle", "compiler", "imports"
TICK_SECONDS = 0.1
ALL = 4  # times a stage's limit: that of a task with all its stages
SPARE_SECONDS = 2  # of processor time beyond a stage's limit; then the system ends the process
_MOST_OF_A_TICK = 5  # times a tick: more of the clock is not counted, as the process was stopped
_ASLEEP = 0.1  # of the clock: what counts of a process that uses less
_WORDS = {
    "": "the task", KERNEL: "the kernel", ORACLE: "the oracle", IMPORTS: "the import",
    "inputs": "the drawing of operands",
    **dict.fromkeys((COMPILE, "compile", "prepare", "summarise"), "the compiler"),
}  # fmt: skip
_open: list[str] = []
_signs = itertools.count(1)
_sign = 0


@contextmanager
def stage(name: str) -> Iterator[None]:
    """What happens meanwhile in this process is of this stage."""
    _open.append(name)
    advance()
    try:
        yield
    finally:
        _open.pop()
        advance()


def now() -> tuple[str, int]:
    """The innermost stage, empty if there is none, and a number that changes with each sign that work goes on."""
    return (_open or [""])[-1], _sign


def advance() -> None:
    """Give a sign that work goes on: a stage began or ended, or a part of it is done."""
    global _sign
    _sign = next(_signs)


# --- limits ---


def _limit(what: str, least: int, most: int | None = None) -> None:
    """Limit what this process, and all that it starts, takes of a resource, where the system can."""
    if os.name == "posix":
        import resource

        which = getattr(resource, f"RLIMIT_{what}")
        with suppress(ValueError, OSError):
            resource.setrlimit(which, (least, resource.getrlimit(which)[1] if most is None else most))


def confine(memory_bytes: int, file_bytes: int) -> None:
    """Limit memory and the size of any file; no crash leaves a core file."""
    # not RLIMIT_AS: allocators and drivers reserve far more addresses than they use
    for what, limit in (("DATA", memory_bytes), ("FSIZE", file_bytes), ("CORE", 0)):
        _limit(what, limit, limit)


def _end_after(seconds: float) -> None:
    """Let the system end this process after so many more seconds of processor time, by SIGXCPU: a loop in C code
    lets no other thread of Python's speak."""
    _limit("CPU", int(time.process_time() + seconds + SPARE_SECONDS) + 1)


@contextmanager
def due(watch: Watch, answer: Callable[[Result], None], sign: Callable[[str], None]) -> Iterator[None]:
    """Watch what happens meanwhile: ``answer`` is given, by another thread, what took too long, with its stage and
    line; until then ``sign`` is told the stage now and then."""
    done = threading.Event()

    def look() -> None:
        told = time.monotonic()
        while not done.wait(TICK_SECONDS):
            late = watch.tick()
            if late and not done.is_set():
                answer(late)
                return
            if time.monotonic() - told > SIGN_SECONDS:
                told = time.monotonic()
                _end_after(watch.seconds)
                sign(watch.stage)

    _end_after(watch.seconds)
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()  # it says nothing any more


class Watch:
    """The time of one task on the file at ``path``, done by the thread that makes this.

    ``seconds``  for each stage, and each part of it that gives a sign (:func:`advance`)
    ``within``   for all stages together; None: a few times as much
    """

    def __init__(self, path: Path, seconds: float, within: float | None = None) -> None:
        self.stage, self.seconds = "", seconds
        self._path = path
        self._within = ALL * seconds if within is None else within
        self._thread = threading.get_ident()
        self._traced = device.gpu_count() == 0
        self._clock, self._spent = time.monotonic(), time.process_time()
        self._sign = -1
        self._own = self._all = 0.0

    def tick(self) -> Result | None:
        """Count what was spent since; the result if it is too much."""
        stage, sign, line = self._stage()
        clock, spent = time.monotonic(), time.process_time()
        passed = min(clock - self._clock, _MOST_OF_A_TICK * TICK_SECONDS)
        used = spent - self._spent
        self._clock, self._spent = clock, spent
        if (stage, sign) != (self.stage, self._sign):  # what was spent since may be of either
            self.stage, self._sign, self._own = stage, sign, 0.0
        taken = passed if stage == KERNEL and not self._traced else max(used, _ASLEEP * passed)
        self._own += taken
        self._all += taken
        if self._own > self.seconds and (stage == KERNEL or line is not None):
            return self._endless(line)
        if self._own > self.seconds or self._all > self._within:
            spent = self._own if self._own > self.seconds else self._all
            return _unjudged(f"{_said(stage)} was not done after {spent:.0f} s", round(self._all, 3))
        return None

    def _stage(self) -> tuple[str, int, int | None]:
        """The stage that the task is at, the number of its last sign, and the line of its file that runs, if one."""
        stage, sign = now()
        innermost = sys._current_frames().get(self._thread)
        frames = traceback.walk_stack(innermost) if innermost else ()
        own = [frame for frame, _ in frames if Path(frame.f_code.co_filename).name == self._path.name]
        if not own or stage == COMPILE:
            return stage, sign, None
        if stage != KERNEL and own[-1].f_code.co_name == "<module>":
            stage = IMPORTS
        return stage, sign, own[0].f_lineno

    def _endless(self, line: int | None) -> Result:
        """A kernel, or the file's own code, that took its time without an end in sight."""
        what = "the import" if self.stage == IMPORTS else "the kernel"
        fault = faults.of_time_out(self.seconds, self._path, line, what)
        where = f"; it was in {self._path.name}:{fault.line}: {fault.code}" if line else ""
        skipped = ", or a barrier that some threads skip" if what == "the kernel" else ""
        message = f"{what} was not done after {self.seconds:.0f} s: an endless loop{skipped}?{where}"
        return Result(status="timed_out", message=message, faults=[fault], fatal=True, seconds=round(self._all, 3))


def silent(stage: str) -> Result:
    """The result of a task whose process was ended while it gave no sign of life, last at ``stage``."""
    if stage in ("", IMPORTS, KERNEL):
        message = "no sign of life: one operation that does not end?"
        return Result(status="timed_out", message=message, fatal=True)
    return _unjudged(f"no sign of life, last from {_said(stage)}")


def _unjudged(why: str, seconds: float | None = None) -> Result:
    message = f"{why}; values were not compared"
    return Result(status="unjudged", message=message, fatal=True, late=True, seconds=seconds)


def _said(stage: str) -> str:
    """A stage in words."""
    return _WORDS.get(stage, f"the stage {stage!r}")
