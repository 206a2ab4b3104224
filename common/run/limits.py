"""What a child process may take: memory, file sizes, processor time; and a time limit for each task."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from common.explain import faults
from common.run.messages import Result

SPARE_SECONDS = 60  # of processor time beyond what a task can take, after which nobody is there to end it


def confine(memory_bytes: int, file_bytes: int) -> None:
    """Limit this process and all it starts, where the system can; no crash leaves a core file."""
    if os.name != "posix":
        return
    import resource

    # not RLIMIT_AS: allocators and drivers reserve far more addresses than they use
    for what, limit in (("DATA", memory_bytes), ("FSIZE", file_bytes), ("CORE", 0)):
        with suppress(ValueError, OSError):
            resource.setrlimit(getattr(resource, f"RLIMIT_{what}"), (limit, limit))


def end_in_time(seconds: float) -> None:
    """Let the system end this process if a task of so many seconds outlives whoever waits for it."""
    if os.name != "posix":
        return
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    most = used.ru_utime + used.ru_stime + seconds * (os.cpu_count() or 1) + SPARE_SECONDS
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (int(most), resource.getrlimit(resource.RLIMIT_CPU)[1]))


@contextmanager
def due(seconds: float, path: Path, answer: Callable[[Result], None]) -> Iterator[None]:
    """What happens meanwhile has so many seconds; then ``answer`` is given, from another thread, a result that says
    at which line of the file ``path`` it was."""
    thread = threading.get_ident()
    # before the parent's own clock runs out
    alarm = threading.Timer(max(0.1, 0.9 * seconds - 0.5), lambda: answer(late(path, seconds, thread)))
    alarm.daemon = True
    alarm.start()
    try:
        yield
    finally:
        alarm.cancel()


def late(path: Path, seconds: float, thread: int) -> Result:
    """The result of a task that is not done in time: ``thread`` does it."""
    line = None
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if Path(frame.f_code.co_filename).name == path.name:
            line = line or frame.f_lineno
        frame = frame.f_back
    fault = faults.of_time_out(seconds, path, line)
    where = f"; it was in {path.name}:{fault.line}: {fault.code}" if line else ""
    return {
        "status": "timed_out",
        "message": f"no result within {seconds:.0f} s: an endless loop, or a barrier that some threads skip?{where}",
        "faults": [fault.as_dict()],
        "fatal": True,
        "seconds": seconds,
    }
