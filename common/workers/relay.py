"""One GPU, many groups of tasks: each has the GPU alone, and the next ones get ready meanwhile in their processes."""

from __future__ import annotations

import queue
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from common.workers import isolate
from common.workers.messages import Result, Task

AHEAD = 1  # groups that get ready while one has the GPU; each holds its operands in memory
READY_SECONDS = 3600.0  # to get ready, and to wait for the groups before

Go = Callable[[list[Task[Result]], threading.Event], Iterator[tuple[Task[Result], Result]]]
Ready = Callable[..., Task[Result]]


def run(
    groups: Sequence[tuple[Ready, Sequence[Task[Result]]]], go: Go, ahead: int = AHEAD
) -> Iterator[tuple[int, Task[Result], Result]]:
    """Do the groups in order, one at a time; yields the group's number, each task and its result as it comes.

    A group is the task of getting ready, and its tasks. The former is made by ``ready(seconds=, gate=)`` and waits,
    once it is ready, until the file ``gate`` is there. ``go(tasks, stop)`` does tasks in order in a process of its
    own, as :func:`common.workers.isolate.run` does. If a group's process dies, the rest of its tasks go on in a fresh
    one before the next group has its turn.
    """
    with tempfile.TemporaryDirectory(prefix="workbook-") as folder:
        runners = [_Runner(ready, tasks, Path(folder, str(n)), go) for n, (ready, tasks) in enumerate(groups)]
        started = 0
        try:
            for number, runner in enumerate(runners):
                while started < min(number + ahead + 1, len(runners)):
                    runners[started].start()
                    started += 1
                runner.gate.touch()
                for task, result in runner.results():
                    yield number, task, result
        finally:
            for runner in runners[:started]:
                runner.stop.set()
            for runner in runners[:started]:
                runner.thread.join()


class _Runner:
    """A thread that follows one group's process."""

    def __init__(self, ready: Ready, tasks: Sequence[Task[Result]], gate: Path, go: Go) -> None:
        self._turn = ready(seconds=READY_SECONDS, gate=str(gate))
        self.gate, self.stop = gate, threading.Event()
        self._go, self._tasks = go, [self._turn, *tasks]
        self._queue: queue.SimpleQueue[tuple[Task[Result], Result] | BaseException | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._follow, daemon=True)

    def start(self) -> None:
        self.thread.start()

    def _follow(self) -> None:
        try:
            with closing(self._go(self._tasks, self.stop)) as results:  # type: ignore[type-var]
                for pair in results:
                    self._queue.put(pair)
            self._queue.put(None)
        except BaseException as error:
            self._queue.put(error)

    def results(self) -> Iterator[tuple[Task[Result], Result]]:
        """Those of its tasks, without that of getting ready: what went wrong there is met again by the tasks."""
        while (found := self._queue.get()) is not None:
            if isinstance(found, BaseException):
                raise found
            if found[0] is not self._turn:
                yield found


def on_gpu(seconds: float) -> Go:
    """Tasks in a child process on the GPU, with so many seconds for each that has no limit of its own."""
    return lambda tasks, stop: isolate.run(tasks, False, seconds, stop)
