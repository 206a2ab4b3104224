"""The edit loop: what became of an edited step, stage by stage, the soonest told first; each run enters the history.

In child processes the file is compiled and checked at one small shape, then checked as ``check`` does it, then timed
in turn with the shipped one. Below: what is said of that at the terminal, and of any outcome that is not right.
"""

import textwrap
import threading
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.markup import escape

from common.catalog import catalog, problems, sources, store
from common.catalog.catalog import Step
from common.catalog.problems import Problem
from common.check import plan, run
from common.edit import history
from common.explain.faults import CAUSES, Fault, cut
from common.machine_code import summaries
from common.machine_code.summaries import Kernel
from common.records import records
from common.report import figures
from common.run import isolate
from common.run.messages import Check, Compile, Outcome, Pair, Paired, Rival, StepResult, Task, at

FIRST_SECONDS = 15.0  # for the first check: longer is taken for an endless loop
LOOK_SECONDS = 0.1  # files are looked at: this works on every file system, network's and Windows' included
# Stages: it compiles and is right at one shape; is right at every shape, and sound; what the compiler made of it; how
# fast it is beside the shipped file.
FIRST, CHECK, CODE, TIME = "first", "check", "code", "time"
_SHOWN = 2  # faults of one shape; what follows is mostly a consequence


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
                    if not failed and name in (CODE, TIME):
                        figure = (_machine_code if name == CODE else _time)(outcomes) or figure
                    if failed:
                        self.verdict, reason = _ended(ran)
                    yield stage
                    if failed:
                        return
            self.verdict, reason = _ended(ran)
        finally:
            history.add(history.Event(self.step.name, copy.parent.name, "run", self.verdict, reason, figure))

    def _outcomes(self) -> Generator[tuple[str, list[Outcome]], None, None]:
        """Each stage's name and outcomes, in order; none where it has nothing to tell."""
        if not self.without_gpu:
            run.inspect_device()  # before the GPU is busy: what begins below waits for it
        small, full = problems.FIRST[self.step.ladder], problems.preset(self.preset)
        # a convolution's filters are unrolled: the smaller one is compiled sooner
        soon = small if self.without_gpu and small.form != "gemm" else full
        first = run.placed(plan.case(small, "traced", seconds=FIRST_SECONDS), self.step, self.version)
        with isolate.Pool(stop=self.stop) as pool:
            code, begun = pool.submit(self._ran, self._compile(soon)), pool.submit(self._ran, first)
            seed = plan.new_seed()
            checking = run.Checking(
                [self.step], self.without_gpu, None, self.version, seed, compiled=False, enough=1, pool=pool
            )
            with checking:
                whole = pool.submit(self._ran, self._compile(full)) if soon != full else code
                # that it does not compile is told before what else is wrong; beside a GPU, its check says so
                yield FIRST, [*(code.result() if self.without_gpu else []), *begun.result()]
                yield CHECK, list(checking.of([self.step]))
                if self.without_gpu or all(one.fine for one in whole.result()):  # else it ran, whatever this one says
                    yield CODE, whole.result()
                if not self.without_gpu:
                    place = at(self.step, full, self.version)
                    yield TIME, self._ran(Pair(**place, against=self._rivals(), seconds=run.TIME_SECONDS))

    def _compile(self, problem: Problem) -> Compile:
        place = at(self.step, problem, self.version)
        targets = catalog.targets(self.step.requires, [run.CODE_ARCHITECTURE])
        return Compile(**place, architectures=targets, machine_code=True, lenient=True)

    def _ran(self, task: Task[StepResult]) -> list[Outcome]:
        """What came of a task; nothing if it was stopped."""
        results = isolate.run([task], isinstance(task, Check), run.CHECK_SECONDS, self.stop)
        return [run.outcome(self.step, task, result, self.preset) for _, result in results]

    def _rivals(self) -> dict[str, Rival]:
        """What is timed against: the shipped file with the shipped helpers, if it is known."""
        original = sources.shipped(self.step.path)
        if original is None:
            return {}
        path = history.keep(original, self.step.path.name)
        texts = {helper: sources.shipped(helper) for helper in sources.edited_helpers(path)}
        copies = [history.keep(text, helper.name) for helper, text in texts.items() if text is not None]
        return {"shipped": Rival(path=str(path), helpers={copy.stem: str(copy) for copy in copies})}


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


class Saves(threading.Event):
    """Which of some ``files`` were saved since the last look; set once one of them is not what it was at first."""

    def __init__(self, files: Iterable[Path]) -> None:
        super().__init__()
        self._first = self._told = self._before = {path: _stamp(path) for path in files}

    def look(self) -> list[Path]:
        """The files that were written before the last look, and not since: an editor may write several times."""
        now = {path: _stamp(path) for path in self._told}
        found = [path for path, stamp in now.items() if stamp and stamp == self._before[path] != self._told[path]]
        self._before, self._told = now, self._told | {path: now[path] for path in found}
        return found

    def is_set(self) -> bool:
        return super().is_set() or any(_stamp(path) != stamp for path, stamp in self._first.items())


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file is written or replaced; None while there is none, or an empty one."""
    with suppress(OSError):
        found = path.stat()
        return (found.st_mtime_ns, found.st_size, found.st_ino) if found.st_size else None
    return None


# --- in words, for the terminal ---


def told(outcomes: list[Outcome], width: int = 100) -> list[tuple[Outcome, str]]:
    """A complaint for each different thing that is wrong, with the outcome that it shows."""
    groups: dict[tuple[Any, ...], list[Outcome]] = {}
    for outcome in outcomes:
        if reasons := outcome.reasons:
            # one cause gives other values at each shape
            kind = tuple((fault.kind, fault.line) for fault in outcome.faults) or reasons[0].split(":")[0]
            groups.setdefault((outcome.step.name, outcome.status, kind), []).append(outcome)
    return [(group[0], complaint(group[0], len(group), width)) for group in groups.values()]


def complaint(outcome: Outcome, shapes: int = 1, width: int = 100) -> str:
    """What is wrong with a step at a shape (and ``shapes`` - 1 more), at which line, and what to look at."""
    if outcome.elsewhere:  # at any shape
        return escape(f"{outcome.step.name} {outcome.message}")
    more = f" and {shapes - 1} more shape{'s' if shapes > 2 else ''}" if shapes > 1 else ""
    doing = ", compiled for" if outcome.only_compiled else " at"
    where = "" if outcome.status == "unusable" else f"{doing} {outcome.problem}{more}"  # no shape matters to it
    lines = [f"{outcome.step.name}{where}"]
    causes = [fault for fault in outcome.faults if fault.kind in CAUSES]
    faults, said = (causes or outcome.faults)[:_SHOWN], outcome.reasons
    if outcome.status == "crashed" and faults:  # its message gives way to the translation
        said = [f"{outcome.status}: {faults[0].what}"]
    first = list[str]()  # a cause stands before what comes of it
    for fault in faults if outcome.status != "refused" else ():  # a refusal is no fault
        told = [f"  {line}" for line in said if fault.what in line]
        first += told or _wrapped(fault.what, "  ", width) * (outcome.status != "unusable")
        said = [line for line in said if fault.what not in line]
        first += _pointer(fault, width)
    rest = [f"  {line}" for line in said if not (causes and line.startswith("unstable: "))]
    named = any(line.startswith("modified_input") or "because the kernel" in line for line in said)
    return escape("\n".join(lines + (first + rest if causes and not named else rest + first)))


def _pointer(fault: Fault, width: int = 100) -> list[str]:
    """The fault's line, and what to look at."""
    lines = [f"    line {fault.line}: {fault.code}"] if fault.line else []
    return lines + _wrapped(f"look at: {fault.look_at}", "    ", width)


def _wrapped(text: str, indent: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False)


def printed(outcomes: list[Outcome]) -> list[str]:
    """What each step prints at the first shape at which it prints: the first lines, and how many more there are."""
    lines = []
    for outcome in {one.step.name: one for one in reversed(outcomes) if one.prints}.values():
        lines.append(f"{outcome.step.name} prints at {outcome.problem}:")
        lines += [f"  {cut(line, 200)}" for line in outcome.printed]
        if more := outcome.prints - len(outcome.printed):
            lines.append(f"  ... {more} more")
    return [escape(line) for line in lines]


def in_words(step: str, found: Stage) -> list[str]:
    """One stage of an edited step that did not fail, as lines to print."""
    outcomes = found.outcomes
    told_by = {FIRST: _first, CHECK: _checked, CODE: _machine_code, TIME: _time}
    line = told_by[found.name](outcomes)
    line = line if found.name in (FIRST, CHECK) else escape(line)
    lines = [f"{step}: {line}  [dim]{found.seconds:.1f} s[/]"] if line else []
    unseen = [one for one in outcomes if one.status == "unjudged" and not one.left_out and found.name == CHECK]
    for one in unseen[:1]:
        lines.append(f"  [yellow]whether it is sound was not judged whole[/]: {escape(one.message or '')}")
    return lines + (notes(outcomes) if found.name == CODE else [])  # which comes last of what compiles


def notes(outcomes: list[Outcome]) -> list[str]:
    """What is no mistake of a step that is right, and slow: one for each step, as lines to print."""
    found = {one.step.name: one.faults[0] for one in outcomes if one.status == "right" and one.faults}
    found = {name: one for name, one in found.items() if all(o.fine for o in outcomes if o.step.name == name)}
    told = [(f"[yellow]{name} is right, but {escape(one.what)}[/]", one) for name, one in found.items()]
    return [line for text, one in told for line in (text, *map(escape, _pointer(one)))]


def _first(outcomes: list[Outcome]) -> str:
    """Whether it compiles, with what it takes, and whether it is right at one shape."""
    compiled = [outcome for outcome in outcomes if outcome.kernels]
    declined = [outcome for outcome in outcomes if outcome.status == "refused"]
    if declined and not compiled:  # so nothing was built
        return f"[yellow]refused at {declined[-1].problem}[/]: {escape(declined[-1].message or '')}"
    what = ["compiles"] if compiled else []
    if kernel := _kernel(compiled[0]) if compiled else None:
        spilled = f", {kernel.stack_bytes} bytes of stack" if kernel.stack_bytes else ""
        shared = f", {kernel.shared_bytes} bytes shared" if kernel.shared_bytes else ""
        takes = f"({kernel.registers} registers{spilled}{shared})"
        what = [f"compiles for compute capability {kernel.architecture} {takes}"]
    what += [f"right at {one.problem}" for one in outcomes if one.right and one.status == "right"]
    return f"[green]{', '.join(what)}[/]" if what else ""


def _checked(outcomes: list[Outcome]) -> str:
    """At how many shapes it is right, and whether it is sound."""
    right, refused = (len({str(one.problem) for one in outcomes if one.status == s}) for s in ("right", "refused"))
    more = f", refused at {refused}" if refused else ""
    sound = "" if any(one.status == "unjudged" and not one.left_out for one in outcomes) else ", and sound"
    return f"[green]right at {right} shapes{sound}{more}[/]" if right else f"[yellow]not judged{more}[/]"


def _kernel(one: StepResult) -> Kernel | None:
    """The main one of a compiled result's assembled kernels, if any."""
    return summaries.main_compiled(kernel for kernel in one.kernels if kernel.hot)


def _machine_code(outcomes: list[Outcome]) -> str:
    """Instructions for a multiply-add and registers, and what the shipped version needs; nothing if unknown."""
    one = outcomes[0]
    if not (kernel := _kernel(one)):
        return ""
    shipped = records.main_kernel(records.load_code(), one.step.name)
    mine, other = (summaries.shown(each.hot.per_multiply_add() or 0.0) if each and each.hot else ""
                   for each in (kernel, shipped))  # fmt: skip
    beside = f"; the shipped version {other}" if other else ""
    return f"{mine} instructions per multiply-add, {kernel.registers} registers on {one.preset}{beside}"


def _time(outcomes: list[Outcome]) -> str:
    """How an edited step did in turn with the shipped one."""
    one = outcomes[0]
    where = f"on {one.preset}, {one.gpu}"
    if one.pairs:
        pair = one.pairs["shipped"]
        mine, other = (figures.milliseconds(timing.median_ms) for timing in (pair.second, pair.first))
        return f"{ratio(pair)}: {mine} ms against {other} ms {where}"
    if one.timing is None:
        return f"not timed: {one.message}"
    unknown = "the shipped version is not known: neither git nor .workbook has it"
    return f"{figures.milliseconds(one.time.median_ms)} ms {where}; {unknown}"


def ratio(pair: Paired) -> str:
    """``1.23x the shipped version (paired, p20-p80 1.21-1.25)``; says so where the two cannot be told apart."""
    same = abs(pair.ratio - 1) <= pair.ratio * pair.ratio_error
    note = ", no difference that can be told" if same else ""
    return f"{pair.ratio:.2f}x the shipped version (paired, p20–p80 {pair.ratio_p20:.2f}–{pair.ratio_p80:.2f}{note})"
