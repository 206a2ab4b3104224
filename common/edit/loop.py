"""The edit loop: what became of an edited step, stage by stage, the soonest told first; each run enters the history.

Side by side, in child processes, the file is checked, first at one small shape, compiled, and with a GPU also traced,
for what a GPU lets pass; then it is timed in turn with the shipped one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.catalog import problems, schema, sources, store
from common.catalog.catalog import Step
from common.catalog.problems import Problem
from common.check import plan, run
from common.edit import history
from common.machine_code import summaries
from common.machine_code.summaries import HotLoop, Kernel
from common.report import figures
from common.run import isolate
from common.run.messages import Check, Compile, Outcome, Pair, Rival, ShapeTask, StepResult, at

FIRST_SECONDS = 15.0  # for the first check: longer is taken for an endless loop
PROCESSES = 2  # for the traces
LOOK_SECONDS = 0.1  # files are looked at: this works on every file system, network's and Windows' included
# Stages: it compiles and is right at one shape; is right at every shape, and sound; what the compiler made of it; how
# fast it is beside the shipped file.
FIRST, CHECK, CODE, TIME = "first", "check", "code", "time"


@dataclass(frozen=True)
class Stage:
    """What one stage found, ``seconds`` after the run began: alone the first outcome that is not fine, if any."""

    name: str
    outcomes: list[Outcome]
    seconds: float

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if not outcome.fine]


@dataclass
class Run:
    """One run of a step's file as it is now. ``stop`` ends it early, from another thread."""

    step: Step
    preset: str
    without_gpu: bool
    stop: threading.Event = field(default_factory=threading.Event)
    version: Rival | None = None  # what runs, whatever is saved meanwhile: copies of the file and its edited helpers
    verdict: str = "unfinished"

    def stages(self) -> Generator[Stage, None, None]:
        """Run, telling each stage as soon as it is known, up to the first that fails; raises StoreError."""
        began, path = time.monotonic(), self.step.path
        helpers = {helper.stem: str(history.save(helper)) for helper in sources.edited_helpers(path)}
        copy = history.keep(store.read_bytes(path), path.name)
        self.version = Rival(path=str(copy), helpers=helpers)
        reason = figure = ""
        ran: list[Outcome] = []
        try:
            with closing(self._outcomes()) as found:
                for name, outcomes in found:
                    if self.stop.is_set():
                        return
                    if not outcomes:
                        continue
                    ran += outcomes
                    failed = [outcome for outcome in outcomes if not outcome.fine][:1]
                    stage = Stage(name, failed or outcomes, time.monotonic() - began)
                    figure = _figure(stage) or figure
                    if stage.failed:
                        self.verdict, reason = _ended(ran)
                        yield stage
                        return
                    yield stage
            self.verdict, reason = _ended(ran)
        finally:
            history.add(history.Event(self.step.name, copy.parent.name, "run", self.verdict, reason, figure))

    def _outcomes(self) -> Generator[tuple[str, list[Outcome]], None, None]:
        """Each stage's name and outcomes, in order; none where it has nothing to tell."""
        small, full = problems.FIRST[self.step.ladder], problems.preset(self.preset)
        engine = "traced" if self.without_gpu else "gpu"
        first = self._check(small, depth="once", seconds=FIRST_SECONDS, engine=engine)
        cases = plan.cases(self.step.ladder, not self.without_gpu, plan.new_seed())
        gpu = [self._check(case.problem, **case.fields()) for case in cases if case.engine == "gpu"]
        traces = deque(
            [self._check(case.problem, **case.fields(), repeats=1) for case in group]
            for group in plan.groups([case for case in cases if case.engine != "gpu"])
        )
        failed = threading.Event()  # a trace has: the others need not go on
        # a convolution's filters are unrolled: the smaller one is compiled sooner
        shapes = [small, full] if self.without_gpu and small.form != "gemm" else [full]
        how: Any = {"architectures": [run.CODE_ARCHITECTURE], "machine_code": True, "lenient": True}
        with ThreadPoolExecutor(2 if self.without_gpu else 4) as pool:
            try:
                begun = pool.submit(self._ran, [first], self.without_gpu)
                compiled = [pool.submit(self._ran, [Compile(**self._at(shapes[0]), **how)], False)]
                traced = [pool.submit(self._ran, isolate.shared(traces), True, failed) for _ in range(PROCESSES)]
                rest = pool.submit(self._ran, gpu, False)
                compiled += [pool.submit(self._ran, [Compile(**self._at(one), **how)], False) for one in shapes[1:]]
                # it may have been traced, and found wrong: that it does not compile is told before that
                yield FIRST, _results([*(compiled[:1] if self.without_gpu else ()), begun])
                yield CHECK, _results([rest, *traced])
                code = _results(compiled)
                if self.without_gpu or all(outcome.fine for outcome in code):  # else it ran, whatever this one says
                    yield CODE, [outcome for outcome in code if outcome.problem == full or not outcome.fine]
                if not self.without_gpu:
                    pair = Pair(**self._at(full), against=self._rivals(), seconds=run.TIME_SECONDS)
                    yield TIME, self._ran([pair], False)
            finally:
                self.stop.set()  # ends their processes

    def _ran(
        self, tasks: Iterable[ShapeTask[StepResult]], without_gpu: bool, failed: threading.Event | None = None
    ) -> list[Outcome]:
        """What came of tasks, until one fails, here or elsewhere (``failed``), or ``stop``; on the GPU with what a
        trace says of that one."""
        found: list[Outcome] = []
        failed = failed or threading.Event()
        results = isolate.run(tasks, without_gpu, run.CHECK_SECONDS, self.stop, failed)
        for task, result in results:
            assert isinstance(task, ShapeTask)
            beside_gpu = without_gpu and not self.without_gpu
            found.append(run.outcome(self.step, task, result, self.preset, False, beside_gpu))
            if not found[-1].fine:
                failed.set()
                if isinstance(task, Check) and task.on_gpu:
                    found[-1] = run.retell(self._check(task.problem), task.problem, found[-1])
                break
        return found

    def _rivals(self) -> dict[str, Rival]:
        """What is timed against: the shipped file with the shipped helpers, if it is known."""
        original = sources.shipped(self.step.path)
        if original is None:
            return {}
        path = history.keep(original, self.step.path.name)
        texts = {helper: sources.shipped(helper) for helper in sources.edited_helpers(path)}
        copies = [history.keep(text, helper.name) for helper, text in texts.items() if text is not None]
        return {"shipped": Rival(path=str(path), helpers={copy.stem: str(copy) for copy in copies})}

    def _check(self, problem: Problem, **more: Any) -> Check:
        return Check(**self._at(problem), precision=self.step.precision, algorithm=self.step.algorithm, **more)

    def _at(self, problem: Problem) -> dict[str, Any]:
        assert self.version is not None
        place = at(self.step, problem, Path(self.version.path))
        return {**place, "home": str(self.step.path), "helpers": self.version.helpers}


def _results(lines: Iterable[Future[list[Outcome]]]) -> list[Outcome]:
    """What came of each in turn, up to the first of which something is not fine."""
    found: list[Outcome] = []
    for line in lines:
        found += line.result()
        if not all(outcome.fine for outcome in found):
            break
    return found


def _ended(outcomes: Sequence[Outcome]) -> tuple[str, str]:
    """The verdict of a run, and the reason in one line: those of the first outcome that is not fine, if any."""
    ran = [outcome for outcome in outcomes if not outcome.only_compiled]
    failed = [outcome for outcome in outcomes if not outcome.fine]
    if not failed and any(outcome.status == "right" for outcome in ran):
        return "right", ""
    for told in failed or ran or outcomes:
        reasons = [fault.what for fault in told.faults] + told.reasons
        return told.status, next(iter(reasons), "").removeprefix(f"{told.status}: ")
    return "unfinished", ""


def heaviest(result: StepResult) -> Kernel | None:
    """The main one of a compiled result's assembled kernels, if any."""
    return summaries.main_compiled(schema.read(k, Kernel) for k in result.kernels if "hot" in k)


def per_multiply_add(kernel: Kernel) -> str:
    """``36.0 instructions per multiply-add``, of its multiply loop."""
    each = HotLoop.recorded(kernel).per_multiply_add() or 0.0
    return f"{summaries.shown(each)} instructions per multiply-add"


def _figure(stage: Stage) -> str:
    """What a stage measured, for the history."""
    one = stage.outcomes[0]
    if stage.name == CODE and (kernel := heaviest(one)):
        return per_multiply_add(kernel)
    if stage.name != TIME or one.status != "right":
        return ""
    if one.pairs:
        return f"{one.pairs['shipped'].ratio:.2f}x the shipped version, {one.preset}, {one.gpu}"
    return f"{figures.milliseconds(one.time.median_ms)} ms, {one.preset}"


class Saves:
    """Which of some ``files`` were saved since the last look."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._told = self._before = {path: _stamp(path) for path in files}

    def look(self) -> list[Path]:
        """The files that were written before the last look, and not since: an editor may write several times."""
        now = {path: _stamp(path) for path in self._told}
        found = [path for path, stamp in now.items() if stamp and stamp == self._before[path] != self._told[path]]
        self._before, self._told = now, self._told | {path: now[path] for path in found}
        return found


class SavedAgain(threading.Event):
    """Is set once ``path`` is another file than it was."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path, self._stamp = path, _stamp(path)

    def is_set(self) -> bool:
        return super().is_set() or _stamp(self._path) != self._stamp


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file is written or replaced; None while there is none, or an empty one."""
    with suppress(OSError):
        found = path.stat()
        return (found.st_mtime_ns, found.st_size, found.st_ino) if found.st_size else None
    return None
