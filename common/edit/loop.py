"""The edit loop: what became of an edited step, stage by stage, the soonest told first; each run enters the history.

Processes work side by side. One compiles for a named compute capability, at a small shape and at the shape that is
timed. One checks, first once at the small shape and then as :mod:`common.check.plan` has it; with a GPU it then
times the file in turn with the shipped one, while a third traces what a GPU lets
pass.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from common.catalog import problems, schema
from common.catalog.catalog import Step
from common.check import plan
from common.edit import history, shipped
from common.edit.history import Figures
from common.jobs import messages, run
from common.jobs.messages import StepResult
from common.jobs.run import Outcome
from common.machine_code import loops
from common.machine_code.loops import HotLoop
from common.machine_code.messages import Kernel
from common.run import isolate
from common.run.messages import Place, ShapeTask, at

FIRST_SECONDS = 15.0  # for the first check: longer is taken for an endless loop
ARCHITECTURE = run.CODE_ARCHITECTURE
_PATIENCE = 2.0

_CHECK, _COMPILE, _TRACE = _PROCESSES = "check", "compile", "trace"

# Stages in the order in which they are told.
FIRST, CHECK, CODE, TIME = "first", "check", "code", "time"


@dataclass(frozen=True)
class Stage:
    """What one stage found, ``seconds`` after the run began.

    ``first``: it compiles and is right at one shape, or not. ``check``: it is right at every shape, and sound.
    ``code``: what the compiler made of it. ``time``: how fast it is beside the shipped file.
    """

    name: str
    outcomes: list[Outcome]
    seconds: float

    @property
    def failed(self) -> list[Outcome]:
        """Outcomes that are not right; one that the step may refuse is none of them."""
        return [outcome for outcome in self.outcomes if not outcome.fine]


@dataclass
class Run:
    """One run of a step's file as it is now.

    ``verdict`` is "unfinished" until it has one, and ``warnings`` say what could not be kept. ``stop`` ends the run
    early, from another thread.
    """

    step: Step
    preset: str
    simulator: bool
    stop: threading.Event = field(default_factory=threading.Event)
    warnings: list[str] = field(default_factory=list)
    source: str = ""
    helpers: dict[str, str] = field(default_factory=dict)  # the edited ones, by name: hashes of their sources
    best: history.Event | None = None
    verdict: str = "unfinished"
    _kept: bool = True
    _path: Path = Path()
    _stand_ins: dict[str, str] = field(default_factory=dict)  # stored copies of those helpers
    _workers: list[threading.Thread] = field(default_factory=list)
    _answers: queue.Queue[tuple[str, tuple[ShapeTask[StepResult], StepResult] | None]] = field(
        default_factory=queue.Queue
    )
    _cases: int = 0  # of the process that checks, after the first
    _found: dict[str, list[Outcome]] = field(default_factory=lambda: {who: [] for who in _PROCESSES})
    _open: set[str] = field(default_factory=set)  # processes that may answer yet

    def stages(self) -> Generator[Stage, None, None]:
        """Run, telling each stage as soon as it is known; the last one, or the first that fails, ends it."""
        began = time.monotonic()
        self._path = self._snapshot()
        reason, figures = "", Figures(device="simulator" if self.simulator else "gpu")
        ran: list[Outcome] = []
        try:
            for name, outcomes in self._outcomes(self._path):
                ran += outcomes
                stage = Stage(name, outcomes, time.monotonic() - began)
                figures = _figured(figures, stage)
                if stage.failed:
                    self.verdict = stage.failed[0].status
                    reason = _reason(stage.failed[0])
                    yield stage
                    return
                yield stage
            if not self.stop.is_set():
                self.verdict, reason = _ended(ran)
        finally:
            self.stop.set()
            for worker in self._workers:
                worker.join(_PATIENCE)  # it ends its process
            self._note(reason, figures)

    def _snapshot(self) -> Path:
        """The stored copy of the file, so that a verdict is of one source whatever is saved meanwhile."""
        source = history.read(self.step.path)
        self.source = history.sha(source)
        name = self.step.name
        original = shipped.text(self.step.path)
        own = history.sha(original) if original is not None else ""
        self.best = history.leanest(name, own) if self.simulator else history.best(name, self.preset, own)
        try:
            copies = keep_helpers(self.step)
            self.helpers = {name: copy.parent.name for name, copy in copies.items()}
            self._stand_ins = {name: str(copy) for name, copy in copies.items()}
            return history.keep(source, self.step.path.name)
        except history.HistoryError as error:
            self._kept = False
            self.warnings.append(f"this run is not kept: {error}")
            return self.step.path

    def _note(self, reason: str, figures: Figures) -> None:
        if not self._kept:
            return
        event = history.Event(self.step.name, self.source, "run", "", self.verdict, reason, figures, self.helpers)
        try:
            history.add(event)
        except history.HistoryError as error:
            self.warnings.append(f"this run is not kept: {error}")

    def _outcomes(self, path: Path) -> Iterator[tuple[str, list[Outcome]]]:
        small, full = problems.FIRST[self.step.ladder], problems.preset(self.preset)
        precision, algorithm = self.step.precision, self.step.algorithm
        asked = [
            messages.Check(**self._at(path, case.problem), **case.fields(), precision=precision, algorithm=algorithm)
            for case in plan.cases(self.step.ladder, not self.simulator, plan.new_seed())
        ]
        gpu = [task for task in asked if task.engine == "gpu"]
        cpu = [replace(task, repeats=1) for task in asked if task.engine != "gpu"]
        self._cases = len(cpu if self.simulator else gpu)
        first = messages.Check(
            **self._at(path, small), depth="once", seconds=FIRST_SECONDS, precision=precision, algorithm=algorithm
        )
        compiled = [self._compile(path, full)]
        if self.simulator:
            # the quicker one first: filters are unrolled, and a GEMM without ragged edges has less code
            at = 1 if small.form == "gemm" else 0
            compiled.insert(at, self._compile(path, small))
            checks: list[ShapeTask[StepResult]] = [first, *cpu]
        else:
            pair = messages.Pair(**self._at(path, full), against=self._rivals(), seconds=run.TIME_SECONDS)
            checks = [replace(first, engine="gpu"), *gpu, pair]
            self._start(_TRACE, [first, *cpu], True)
        self._start(_COMPILE, compiled, False)
        self._start(_CHECK, checks, self.simulator)
        complete = {FIRST: self._first, CHECK: self._every, CODE: self._code, TIME: self._time}
        for name, stage in complete.items():
            while (outcomes := stage()) is None:
                if not self._wait():
                    return
            if self.stop.is_set():
                return
            if outcomes:
                yield name, outcomes

    def _wait(self) -> bool:
        """Take one answer; False when there are none to come."""
        if not self._open:
            return False
        try:
            who, answer = self._answers.get(timeout=_PATIENCE)  # so that an interrupt is seen everywhere
        except queue.Empty:
            return True
        if answer is None:
            self._open.discard(who)
        else:
            task, result = answer
            problem = problems.from_shape(self.step.ladder, result.get("shape") or task.shape)
            if who == _COMPILE:
                result["only_compiled"] = True
            else:
                result = run.judged(problem, result, gpu=who == _TRACE)
            self._found[who].append(Outcome(self.step, problem, self.preset, result))
        return True

    def _missing(self, who: str, count: int) -> bool:
        return who in self._open and len(self._found[who]) < count

    def _first(self) -> list[Outcome] | None:
        """The first check and, without a GPU, the first compilation; the latter alone if it failed.

        A check that ended without a result is not kept waiting for it.
        """
        checked, compiled = self._found[_CHECK][:1], self._found[_COMPILE][:1] if self.simulator else []
        broken = [outcome for outcome in (*compiled, *checked) if not outcome.fine]
        wrong = self.simulator and not compiled and any(o.status in ("wrong", "crashed") for o in broken)
        if wrong and self._missing(_COMPILE, 1):
            return None  # what does not compile may have been traced all the same: that is the cause then
        if broken and not self.simulator:
            if run.wants_trace(broken[0].result):
                if self._missing(_TRACE, 1):
                    return None
                for seen in self._found[_TRACE]:
                    run.add_faults(broken[0].result, seen.result, seen.problem)
        elif not broken and (self._missing(_CHECK, 1) or (self.simulator and self._missing(_COMPILE, 1))):
            return None
        return broken[:1] or [*compiled, *checked]

    def _every(self) -> list[Outcome] | None:
        """Every case of the check; with a GPU those that are traced, too. The first that fails ends it."""
        checked, seen = self._found[_CHECK][1 : 1 + self._cases], self._found[_TRACE][1:]
        failed = next((outcome for outcome in (*checked, *seen) if not outcome.fine), None)
        if failed is None:
            waiting = self._missing(_CHECK, 1 + self._cases) or _TRACE in self._open
            return None if waiting else [*checked, *seen]
        if failed in checked and not self.simulator:
            place = self._at(self._path, failed.problem)
            again = messages.Check(**place, precision=self.step.precision, algorithm=self.step.algorithm)
            run.retell(again, failed.problem, failed.result)
        return [failed]

    def _code(self) -> list[Outcome] | None:
        """What the compiler made of it at full size. With a GPU it is no verdict, so only a right one is told."""
        if self._missing(_COMPILE, 1 + self.simulator):
            return None
        found = self._found[_COMPILE]
        broken = [outcome for outcome in found if not outcome.fine]
        if broken:
            return broken if self.simulator else []
        return [outcome for outcome in found if outcome.problem == problems.preset(self.preset)]

    def _time(self) -> list[Outcome] | None:
        if not self.simulator and self._missing(_CHECK, 2 + self._cases):
            return None
        return self._found[_CHECK][1 + self._cases : 2 + self._cases]

    def _rivals(self) -> dict[str, messages.Rival]:
        """What is timed against: the shipped file and the best so far if it is another, each with its own helpers."""
        rivals = {}
        sources: dict[str, tuple[bytes | None, dict[str, bytes]]] = {"shipped": (shipped.text(self.step.path), {})}
        best = self.best
        if best is not None and (best.source, best.helpers) != (self.source, self.helpers):
            try:
                own = {name: history.stored(f"{name}.py", digest) for name, digest in best.helpers.items()}
                sources["best"] = history.stored(self.step.path.name, best.source), own
            except history.HistoryError as error:
                self.warnings.append(str(error))
        for rival, (source, own) in sources.items():
            if source is None:
                continue
            path = history.place(source, self.step.path.name)
            texts = {helper.stem: shipped.text(helper) for helper in shipped.edited_helpers(path)} | own
            copies = {
                name: str(history.place(text, f"{name}.py")) for name, text in texts.items() if text is not None
            }
            rivals[rival] = messages.Rival(path=str(path), helpers=copies)
        return rivals

    def _start(self, who: str, tasks: Sequence[ShapeTask[StepResult]], simulator: bool) -> None:
        def work() -> None:
            try:
                results = isolate.run(tasks, simulator, run.CHECK_SECONDS, self.stop)
                for task, (_, result) in zip(tasks, results, strict=False):
                    self._answers.put((who, (task, result)))
            finally:
                self._answers.put((who, None))

        self._open.add(who)
        self._workers.append(threading.Thread(target=work, daemon=True))
        self._workers[-1].start()

    def _compile(self, path: Path, problem: problems.Problem) -> messages.Compile:
        return messages.Compile(
            **self._at(path, problem), architectures=[ARCHITECTURE], machine_code=True, lenient=True
        )

    def _at(self, path: Path, problem: problems.Problem) -> Place:
        return {**at(self.step, problem, path), "home": str(self.step.path), "helpers": self._stand_ins}


def _ended(outcomes: Sequence[Outcome]) -> tuple[str, str]:
    """The verdict of a run, and the reason: that of the first outcome that is not fine; right only if one is."""
    ran = [outcome for outcome in outcomes if not outcome.result.get("only_compiled")]
    failed = next((outcome for outcome in outcomes if not outcome.fine), None)
    if failed is None and any(outcome.status == "right" for outcome in ran):
        return "right", ""
    told = failed or next(iter(ran or outcomes), None)
    return (told.status, _reason(told)) if told else ("unfinished", "")


def _reason(outcome: Outcome) -> str:
    """The fault, or the first finding, in one line."""
    told = [fault.what for fault in outcome.faults] + outcome.reasons
    return next(iter(told), "").removeprefix(f"{outcome.status}: ")


def keep_helpers(step: Step) -> dict[str, Path]:
    """Stored copies, by name, of the edited helpers that a step imports; each enters a history of its own.

    Raises HistoryError as :func:`history.keep` does.
    """
    return {path.stem: history.save(path) for path in shipped.edited_helpers(step.path)}


class Keeper:
    """For commands that run many steps: keeps the edited ones' sources before, and notes their verdicts after."""

    def __init__(self, steps: list[Step]) -> None:
        self.warnings: list[str] = []
        self._kept: dict[str, tuple[str, dict[str, str]]] = {}  # source and helpers, as an event has them
        if not steps:
            return
        try:
            shipped.keep_copies()
            for step in steps:
                if not shipped.as_shipped(step.path):
                    history.keep(history.read(step.path), step.path.name)
                    keep_helpers(step)
                    self._kept[step.name] = _present(step)
        except history.HistoryError as error:
            self.warnings.append(f"this run is not kept: {error}")

    def note(self, outcomes: list[Outcome]) -> None:
        """Enter each edited step's verdict: right, or that of its first outcome that is not."""
        for name in dict.fromkeys(outcome.step.name for outcome in outcomes):
            mine = [outcome for outcome in outcomes if outcome.step.name == name]
            # saved again while it ran: whose verdict it is cannot be told
            if self._kept.get(name) != _present(mine[0].step):
                continue
            source, helpers = self._kept[name]
            verdict, reason = _ended(mine)
            timed = next((o for o in mine if o.status == "right" and "timing" in o.result), None)
            ms = timed.result["timing"].median_ms if timed else None
            figures = Figures(preset=timed.preset if timed else None, median_ms=ms)
            try:
                history.add(history.Event(name, source, "run", "", verdict, reason, figures, helpers))
            except history.HistoryError as error:
                self.warnings.append(f"this run is not kept: {error}")


def _present(step: Step) -> tuple[str, dict[str, str]]:
    helpers = {path.stem: history.sha(history.read(path)) for path in shipped.edited_helpers(step.path)}
    return history.sha(history.read(step.path)), helpers


def heaviest(result: StepResult) -> Kernel | None:
    """The main one of a compiled result's assembled kernels; None if there is none."""
    return loops.main_compiled(schema.read(k, Kernel) for k in result.get("kernels", []) if "hot" in k)


def per_multiply_add(kernel: Kernel) -> float:
    """Instructions for each multiply-add of its multiply loop, rounded; 0 without one."""
    each = HotLoop.recorded(kernel).per_multiply_add() or 0.0
    return round(each, 2 if each >= 1 else 4)


def _figured(known: Figures, stage: Stage) -> Figures:
    """With what a stage measured, for the history."""
    if stage.name not in (CODE, TIME) or stage.outcomes[0].status != "right":
        return known
    result = stage.outcomes[0].result
    if stage.name == CODE:
        kernel = heaviest(result)
        if not kernel:
            return known
        figures = {"kernel": kernel.kernel, "registers": kernel.registers, "loop_per_fma": per_multiply_add(kernel)}
        return replace(known, **figures)
    known = replace(known, device=result["gpu"], preset=stage.outcomes[0].preset)
    pair = result["pairs"].get("shipped")
    if pair is None:
        alone = result.get("timing") or next(iter(result["pairs"].values())).second
        return replace(known, median_ms=alone.median_ms)
    return replace(
        known, median_ms=pair.second.median_ms, shipped_ms=pair.first.median_ms, ratio=pair.ratio,
        ratio_p20=pair.ratio_p20, ratio_p80=pair.ratio_p80,
    )  # fmt: skip
