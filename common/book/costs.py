"""What a step's trace costs, in sentences and bars: the traffic of a thousand multiply-adds, and what follows."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from common.catalog import catalog, lessontext
from common.catalog.catalog import Step
from common.report import traces
from common.report.traces import Kernel, StepTrace

# Of a multiprocessor of compute capability 8.6 to 9.0: FP32 multiply-adds in a clock (CUDA C++ Programming Guide,
# "Arithmetic Instructions"). Shared memory gives one wavefront in a clock.
FMA_PER_CLOCK = 128
_CLOCKS = 1000 / FMA_PER_CLOCK  # of arithmetic, for a thousand multiply-adds
UNITS = {
    "shared": "wavefronts of shared memory",
    "global": "sectors of global memory",
    "constant": "reads of constant memory",
}
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

    def traffic(self, kernels: Iterable[Kernel] | None = None) -> str:
        """What :meth:`moved` says of each memory, in words."""
        return _traffic({space: self.moved(space, kernels) for space in UNITS})


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


def sentences(steps: Sequence[Shown]) -> list[str]:
    """What a step costs for a thousand multiply-adds; of two, where they differ most."""
    if any(not one.chief.fma for one in steps):
        moved = [{space: one.chief.moved(space) for space in UNITS} for one in steps]
        return [f"One block of {one.name}: {_traffic(each)}." for one, each in zip(steps, moved, strict=True)]
    if len(steps) == 2:
        return [*_compared(*steps), *_clocks(steps)]
    (one,) = steps
    text = f"A thousand multiply-adds of {one.name} take {one.traffic()}."
    loads = [f"{number(each)} from {space} memory" for space, each in one.chief.loads.items() if each >= _FEW]
    if loads:
        of = f" of {one.chief.name}" if len(one.launched) > 1 else ""
        text += f" Load instructions for each multiply-add{of}: {', '.join(loads)}."
    return [text, *_clocks(steps)]


def notes(steps: Sequence[Shown]) -> list[str]:
    """What is to be known of the counts: of several kernels what each costs, and what the compiler merges."""
    if any(not one.chief.fma for one in steps):
        return [_OF_THE_TEXT]
    said, merged = [], [_OF_THE_TEXT]
    for one in steps:
        if len(one.launched) > 1:
            said.append(
                f"{one.name} starts {len(one.launched)} kernels, and what is said of it is their sum, each block "
                "taken as the traced one. For a thousand multiply-adds: "
                f"{'; '.join(f'{kernel.name} {one.traffic([kernel])}' for kernel in one.launched)}."
            )
        remarks = lessontext.remarks(catalog.LESSONS, one.step.name) if one.path == one.step.path else {}
        found = {kernel.name: remarks[kernel.name] for kernel in one.launched if kernel.name in remarks}
        merged += [f"{name}: {remark.text.replace('`', '')}" for name, remark in found.items() if remark.merged]
    return [*said, " ".join(merged)]


def number(value: float) -> str:
    """Three digits, as people read them.

    >>> [number(value) for value in (1234.5, 64.51, 0.0039, 2.0)]
    ['1,234', '64.5', '0.0039', '2']
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _traffic(moved: Mapping[str, float]) -> str:
    parts = [f"{number(count)} {UNITS[space]}" for space, count in moved.items() if count]
    return " and ".join(parts) or "nothing from memory"


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


def _clocks(steps: Sequence[Shown]) -> list[str]:
    """Is it shared memory that the multiplication waits for? Only of FP32 units, and of right kernels."""
    found = [(one.name, one.moved("shared")) for one in steps if not any(k.faults for k in one.trace.kernels)]
    if not all(one.fp32 for one in steps) or not any(waves for _, waves in found):
        return []
    said = [
        f"In one clock a multiprocessor does {FMA_PER_CLOCK} FP32 multiply-adds, but one wavefront: a thousand "
        f"multiply-adds are {number(_CLOCKS)} clocks of arithmetic."
    ]
    for name, waves in found:
        follows = "it waits for shared memory" if waves > 1.5 * _CLOCKS else "about as many"
        follows = "fewer than its arithmetic" if waves <= _CLOCKS else follows
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
            values.append(("clocks to multiply", _CLOCKS))
        found.append((f"{UNITS[space]} for 1,000 multiply-adds", values))
    for space in UNITS:
        loads = [(one.name, one.chief.loads.get(space, 0.0)) for one in steps]
        if max(value for _, value in loads) >= _FEW:
            found.append((f"loads from {space} memory for a multiply-add", loads))
    return [(title, values) for title, values in found if any(value for _, value in values[: len(steps)])]
