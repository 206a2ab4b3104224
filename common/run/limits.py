"""What a child process may take: memory, file sizes, processor time; and a time limit for each task."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from common.run import overdue
from common.run.messages import SIGN_SECONDS, Result

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
def due(watch: overdue.Watch, answer: Callable[[Result], None], sign: Callable[[str], None]) -> Iterator[None]:
    """Watch what happens meanwhile: ``answer`` is given, by another thread, what took too long, with its stage and
    line; until then ``sign`` is told the stage now and then."""
    done = threading.Event()

    def look() -> None:
        told = time.monotonic()
        while not done.wait(overdue.TICK_SECONDS):
            late = watch.tick()
            if late and not done.is_set():
                answer(late)
                return
            if time.monotonic() - told > SIGN_SECONDS:
                told = time.monotonic()
                sign(watch.stage)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()  # it says nothing any more
