"""Which stage of its work a child process is at, and how long it may be at it.

What counts is the time that a task itself takes: its process's processor time, or the clock while a GPU's kernel
runs; of a process that sleeps a tenth of the clock. So a busy machine is not taken for a kernel that does not end.
"""

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from common.catalog import device
from common.explain import faults
from common.run.messages import Result

KERNEL, ORACLE, COMPILE, IMPORTS = "kernel", "oracle", "compiler", "import"
TICK_SECONDS, SIGN_SECONDS = 0.1, 1.0  # how often the time is counted, and how often a process says what it is at
ALL = 4  # times a stage's limit: that of a task with all its stages
_MOST_OF_A_TICK = 5  # times a tick: more of the clock is not counted, as the process was stopped
_ASLEEP = 0.1  # of the clock: what counts of a process that uses less
_WORDS = {"": "task", "compile": COMPILE, "prepare": COMPILE, "summarise": COMPILE}  # of stages named otherwise
Say = Callable[[str | Result], None]  # sends the stage, or what came of the task
_open: list[str] = []
_sign = 0


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
