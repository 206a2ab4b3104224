"""What a step's trace costs, in sentences and bars: the traffic of a thousand multiply-adds, and what follows."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from common.catalog import catalog, lessontext, problems
from common.catalog.catalog import Step
from common.records import current, records
from common.records.entries import StepRow
from common.report import traces
from common.report.traces import Kernel, StepTrace
from common.timing import tools

# Of a multiprocessor of compute capability 8.6 to 9.0: FP32 multiply-adds in a clock (CUDA C++ Programming Guide,
# "Arithmetic Instructions"). Shared memory gives one wavefront in a clock.
FMA_PER_CLOCK = 128
UNITS = {
    "shared": "wavefronts of shared memory",
    "global": "sectors of global memory",
    "constant": "reads of constant memory",
}
_BUSY = {"fma_pipe_pct": "FP32 units", "issue_pct": "issue slots", "l1_pct": "L1 and shared memory",
         "l2_pct": "L2", "dram_pct": "the memory behind it"}  # fmt: skip
_FEW = 1e-4  # fewer loads for a multiply-add are an engine's, which moves whole tiles
_OF_THE_TEXT = (
    "The counts are those of the Python as it is written, before the compiler merges loads or keeps in registers "
    "what was read."
)


@dataclass(frozen=True)
class Shown:
    """A step's trace as it is shown: of the step's own file, or of another in its place at ``path``."""

    step: Step
    trace: StepTrace
    path: Path

    @property
    def name(self) -> str:
        return self.step.name if self.path == self.step.path else self.path.name

    @property
    def chief(self) -> Kernel:
        """The main kernel."""
        return self.trace.chief

    @property
    def launched(self) -> list[Kernel]:
        """The kernels of each launch: without those that only ``prepare`` starts, once."""
        once = _started(self.path, "prepare") - _started(self.path, "launch")
        return [kernel for kernel in self.trace.kernels if kernel.name not in once]

    @property
    def fp32(self) -> bool:
        """Does the main kernel multiply on the FP32 units?"""
        return not catalog.on_tensor_cores(self.step, traces.problem(self.step))

    def moved(self, space: str, kernels: Iterable[Kernel] | None = None) -> float:
        """Sectors or wavefronts that ``kernels``, by default those of a launch, move for a thousand multiply-adds.

        Each block is taken as the traced one; 0 for a step without multiply-adds.
        """
        fma = self.chief.fma * _blocks(self.chief)
        moved = sum(kernel.moved(space) * _blocks(kernel) for kernel in kernels or self.launched)
        return 1000 * moved / fma if fma else 0.0

    @property
    def recorded_ms(self) -> float | None:
        """The time on the reference card at the ladder's first preset; None without one of the code as it is."""
        row = _reference().row(problems.DEFAULT_PRESET[self.step.ladder], self.step.name)
        timed = self.path == self.step.path and isinstance(row, StepRow) and current.is_current(row, self.path)
        return row.timing.median_ms if timed and row else None


def _blocks(kernel: Kernel) -> float:
    """How many times the traced blocks the grid has."""
    return math.prod(kernel.grid) / kernel.blocks


@lru_cache(maxsize=256)
def _started(path: Path, function: str) -> frozenset[str]:
    """The names of the kernels that a function of a step's file starts: all that it subscripts."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    parts = [part for node in body if isinstance(node, ast.FunctionDef) and node.name == function
             for part in ast.walk(node) if isinstance(part, ast.Subscript)]  # fmt: skip
    return frozenset(part.value.id for part in parts if isinstance(part.value, ast.Name))


@lru_cache
def _reference() -> records.Record:
    return records.Record.load(records.RESULTS / f"{records.REFERENCE_GPU}.json")


def sentences(steps: Sequence[Shown]) -> list[str]:
    """What a step costs for a thousand multiply-adds; of two, where they differ most, and what follows."""
    if any(not one.chief.fma for one in steps):
        moved = [{space: one.chief.moved(space) for space in UNITS} for one in steps]
        return [f"One block of {one.name}: {_traffic(each)}." for one, each in zip(steps, moved, strict=True)]
    if len(steps) == 2:
        return [*_measured(*steps), *_compared(*steps), *_clocks(steps), *_now_limited(*steps)]
    return [_alone(steps[0]), *_clocks(steps)]


def notes(steps: Sequence[Shown]) -> list[str]:
    """What is to be known of the counts."""
    if any(not one.chief.fma for one in steps):
        return [_OF_THE_TEXT]
    merged = [
        f"{kernel.name}: {remark.text.replace('`', '')}"
        for one in steps
        if one.path == one.step.path
        for kernel in one.launched
        if (remark := lessontext.remarks(catalog.LESSONS, one.step.name).get(kernel.name)) and remark.merged
    ]
    return [*(text for one in steps for text in _of_kernels(one)), " ".join([_OF_THE_TEXT, *merged])]


def number(value: float) -> str:
    """Three digits, as people read them.

    >>> [number(value) for value in (1234.5, 64.51, 0.0039, 2.0)]
    ['1,234', '64.5', '0.0039', '2']
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _traffic(moved: Mapping[str, float]) -> str:
    parts = [f"{number(count)} {UNITS[space]}" for space, count in moved.items() if count]
    return " and ".join(parts) or "nothing from memory"


def _of_kernels(one: Shown) -> list[str]:
    """Of several kernels what each costs."""
    if len(one.launched) < 2:
        return []
    each = [
        f"{kernel.name} {_traffic({space: one.moved(space, [kernel]) for space in UNITS})}" for kernel in one.launched
    ]
    return [
        f"{one.name} starts {len(one.launched)} kernels, and what is said of it is their sum, each block taken "
        f"as the traced one. For a thousand multiply-adds: {'; '.join(each)}."
    ]


def _alone(one: Shown) -> str:
    """``A thousand multiply-adds of STEP take 157 sectors of global memory. Load instructions ...``"""
    loads = [f"{number(each)} from {space} memory" for space, each in one.chief.loads.items() if each >= _FEW]
    text = f"A thousand multiply-adds of {one.name} take {_traffic({space: one.moved(space) for space in UNITS})}"
    of = f" of {one.chief.name}" if len(one.launched) > 1 else ""
    return f"{text}. Load instructions for each multiply-add{of}: {', '.join(loads)}." if loads else f"{text}."


def _compared(before: Shown, after: Shown) -> list[str]:
    """The traffic of the memory that differs most, and the loads that make it; nothing if there is none."""
    said = []
    for space in UNITS:
        was, now = before.moved(space), after.moved(space)
        if not was and not now:
            continue
        times = max(was, now) / (min(was, now) or max(was, now))
        text = f"{UNITS[space].capitalize()} for a thousand multiply-adds: "
        text += f"{before.name} {number(was)}, {after.name} {number(now)}"
        if times >= 1.05:
            text += f", {number(times)} times {'fewer' if was > now else 'as many'}"
        loads = [one.chief.loads.get(space, 0.0) for one in (before, after)]
        if max(loads) >= _FEW and min(loads) < 0.95 * max(loads):
            text += f"; for one multiply-add, {number(loads[0])} and {number(loads[1])} load instructions"
        said.append((times, f"{text}."))
    return [max(said)[1]] if said else []


def _measured(before: Shown, after: Shown) -> list[str]:
    """The times of the reference card's record, where both steps have one."""
    was, now = before.recorded_ms, after.recorded_ms
    if was is None or now is None:
        return []
    preset = problems.DEFAULT_PRESET[before.step.ladder]
    faster, slower = (after, before) if was > now else (before, after)
    where = f"On an {_reference().gpu_name} at {preset} ({problems.PRESETS[preset]})"
    took = f"{before.name} takes {number(was)} ms and {after.name} {number(now)} ms"
    return [
        f"{where}, {took}: {faster.name} is {number(max(was, now) / min(was, now))} times as fast as {slower.name}."
    ]


def _now_limited(before: Shown, after: Shown) -> list[str]:
    """Where the time fell by less than the counts: what holds the later step up, if counters tell."""
    was, now = before.recorded_ms, after.recorded_ms
    if was is None or now is None or now >= was or not (before.fp32 and after.fp32):
        return []
    if max(before.moved(space) / (after.moved(space) or math.inf) for space in UNITS) < 1.25 * was / now:
        return []
    said = f"The time fell by less than that: this traffic no longer limits {after.name}."
    profile = _reference().profile(problems.DEFAULT_PRESET[after.step.ladder], after.step.name)
    if profile is None:
        return [said]
    main = tools.main_kernel(profile.kernels)
    (most, name), (next_most, other) = sorted(((getattr(main, k) or 0.0, what) for k, what in _BUSY.items()))[:-3:-1]
    when = "" if current.is_current(profile, after.path) else ", when they were read on an older version of the file"
    return [
        f"{said} By the hardware's counters, its {name} were busy for {most:.0f} % of the time, its {other} for "
        f"{next_most:.0f} %{when}."
    ]


def _clocks(steps: Sequence[Shown]) -> list[str]:
    """Is it shared memory that the multiplication waits for? Only of FP32 units, and of right kernels."""
    found = [(one.name, one.moved("shared")) for one in steps if not any(k.faults for k in one.trace.kernels)]
    if not all(one.fp32 for one in steps) or not any(waves for _, waves in found):
        return []
    need = 1000 / FMA_PER_CLOCK
    said = [
        f"In one clock a multiprocessor does {FMA_PER_CLOCK} FP32 multiply-adds, but one wavefront: a thousand "
        f"multiply-adds are {number(need)} clocks of arithmetic."
    ]
    for name, waves in found:
        follows = "it waits for shared memory" if waves > 1.5 * need else "about as many"
        follows = "fewer than its arithmetic" if waves <= need else follows
        if waves:
            said.append(f"{name} needs {number(waves)} clocks of shared memory for them: {follows}.")
    return [" ".join(said)]


def bars(steps: Sequence[Shown]) -> list[tuple[str, list[tuple[str, float]]]]:
    """What is drawn above two steps: a title, and by step a value, on a common scale within each title."""
    if any(not one.chief.fma for one in steps):
        return []
    found = []
    for space in UNITS:
        values = [(one.name, one.moved(space)) for one in steps]
        if space == "shared" and all(one.fp32 for one in steps) and any(value for _, value in values):
            values.append(("clocks to multiply", 1000 / FMA_PER_CLOCK))
        found.append((f"{UNITS[space]} for 1,000 multiply-adds", values))
    for space in UNITS:
        loads = [(one.name, one.chief.loads.get(space, 0.0)) for one in steps]
        if max(value for _, value in loads) >= _FEW:
            found.append((f"loads from {space} memory for a multiply-add", loads))
    return [(title, values) for title, values in found if any(value for _, value in values[: len(steps)])]
