"""What child processes answer: one result from a check to the terminal and to JSON.

A child finds out the fields of a :class:`StepResult`; the parent adds the step and the problem, which makes it an
:class:`Outcome`; ``told()`` gives what JSON has of either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType, field, structs

from common.catalog import sources
from common.catalog.catalog import Step
from common.catalog.problems import Problem
from common.catalog.schema import Amount, Count, Name, Positive
from common.explain.faults import Fault
from common.machine_code.summaries import Summary

Status = Literal["right", "wrong", "refused", "unjudged", "unusable", "crashed", "timed_out"]
"""What can become of a task, as its result's ``status`` says."""

Engine = Literal["traced", "gpu"]
Depth = Literal["once", "usual", "thorough", "large", "measured"]
Tile = dict[str, int | bool]
"""Values by the names of a step's tile constants."""

Shape = dict[str, int]
"""Extents by name, as :meth:`common.catalog.problems.Problem.shape` gives them."""


@dataclass(frozen=True)
class Finding:
    """One thing that is not right. ``kind`` is one of :data:`common.check.findings.KINDS`."""

    kind: str
    message: str


class Timing(Struct, frozen=True, omit_defaults=True):
    """Milliseconds per launch. ``median_error`` is the median's 95% half-width over the median.

    ``sm_mhz`` is the multiprocessors' clock meanwhile, and ``held_by`` what kept it down; None where NVML is missing.
    """

    median_ms: Positive
    p20_ms: Positive
    p80_ms: Positive
    median_error: Amount
    repeats: Count
    sm_mhz: Count | None = None
    held_by: tuple[Name, ...] | None = None


class Paired(Struct, frozen=True):
    """Two launches timed in turn, pair by pair.

    ``ratio`` is the first's time over the second's, the median over pairs; ``ratio_error`` is the median's 95%
    half-width over the median.
    """

    first: Timing
    second: Timing
    ratio: float
    ratio_p20: float
    ratio_p80: float
    ratio_error: float


class Beside(Paired, frozen=True):
    """A step timed in turn with a library: ``peer``, its name and precision; its time is the first."""

    peer: str


class Result(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a task; the results of most tasks have more. What a field's default stands for is not said.

    ``message``  why it is not right, or None: the findings say it; and ``faults`` what explains it
    ``seconds``  that it took
    ``fatal``    its process is lost
    ``late``     it was not judged for want of time
    """

    status: Status
    message: str | UnsetType | None = UNSET
    faults: Sequence[Fault] = ()
    seconds: float | None = None
    fatal: bool = False
    late: bool = False

    def told(self) -> dict[str, Any]:
        """The fields that say something, as they stand in JSON."""
        fields = structs.fields(self)
        told = {field.name: getattr(self, field.name) for field in fields}
        return {field.name: told[field.name] for field in fields if told[field.name] != field.default}


class StepResult(Result, frozen=True, kw_only=True):
    """What came of a task on a step's file: from the child process to the terminal, and to JSON.

    Of all that check:

    ``shape``     the extents that ran
    ``right``, ``findings``, ``elements_compared``  as :class:`common.check.check.Verdict`
    ``requires``  what compute capability, where this machine's GPU lacks it

    Of a check:

    ``engine``, ``seed``  of the case; ``engines`` of all cases of a shape
    ``only_compiled``     it was compiled, and not run
    ``needed_bytes``, ``free_bytes``  of the GPU's memory, where it was left out for want of that
    ``depth``             how thoroughly, where the time that a launch takes decided
    ``printed``, ``prints``  the first lines that the file prints, and how many there are
    ``unsought``          why races and the like were not looked for beside a GPU's verdict

    Of what is timed:

    ``timing``           the file's own time
    ``prepare_ms``, ``first_launch_ms``  of ``prepare`` (None: there is none) and of the first launch, seen cold
    ``workspace_bytes``  of scratch memory
    ``beside``           its time in turn with the library
    ``lacking``          why it was not
    ``pairs``            by the names of others, what :class:`Paired` holds: theirs is the first
    ``gpu``              its name

    ``source``, ``helpers`` and ``imports`` are the code that ran: :func:`common.catalog.sources.provenance`.

    Of what is compiled:

    ``kernels``        for each architecture
    ``other_presets``  the kernels of those presets that compile to something else
    ``digest``         of the machine code of all launches, with their grids and blocks, for each preset
    ``cards``          summaries of the kernels
    ``missing_tool``   NVIDIA's assembler or disassembler is not installed
    """

    shape: Shape | None = None
    right: bool | None = None
    findings: Sequence[Finding] = ()
    elements_compared: int | None = None
    requires: str | None = None
    engine: Engine | None = None
    engines: Sequence[Engine] = ()
    seed: int | None = None
    only_compiled: bool = False
    needed_bytes: int | None = None
    free_bytes: int | None = None
    depth: Depth | None = None
    unsought: str | None = None
    printed: Sequence[str] = ()
    prints: int = 0
    timing: Timing | None = None
    prepare_ms: float | UnsetType | None = UNSET
    first_launch_ms: float | None = None
    workspace_bytes: int | None = None
    beside: Beside | None = None
    lacking: str | None = None
    pairs: dict[str, Paired] | None = None
    gpu: str | None = None
    source: str | None = None
    helpers: dict[str, str] | None = None
    imports: dict[str, sources.Code | str] | None = None
    kernels: Sequence[Summary] = ()
    other_presets: dict[str, list[Summary]] | None = None
    digest: str | None = None
    cards: Sequence[Summary] = ()
    missing_tool: bool = False

    @property
    def time(self) -> Timing:
        """The ``timing`` of a file that was timed."""
        assert self.timing is not None
        return self.timing


class Outcome(StepResult, frozen=True, kw_only=True):
    """What came of one task on one step at one problem, which is a ``preset`` or none."""

    step: Step
    problem: Problem
    preset: str | None = None

    @classmethod
    def of(cls, step: Step, problem: Problem, preset: str | None, result: StepResult) -> Outcome:
        return cls(step=step, problem=problem, preset=preset, **result.told())

    def told(self) -> dict[str, Any]:
        """The result's fields alone, as they stand in JSON."""
        told = StepResult.told(self)
        return {name: value for name, value in told.items() if name not in ("step", "problem", "preset")}

    @property
    def fine(self) -> bool:
        """Right, or a shape that the step may refuse, or one that only a GPU could judge."""
        return self.status in ("right", "refused", "unjudged")

    @property
    def left_out(self) -> bool:
        """Has the GPU no room for it? That holds nothing back."""
        return self.needed_bytes is not None

    @property
    def elsewhere(self) -> bool:
        """Does the step require another GPU than this machine's?"""
        return self.requires is not None

    @property
    def reasons(self) -> list[str]:
        """One line per finding, or what stopped the task; what is left out is said once for all."""
        if self.left_out:
            return []
        findings = [f"{item.kind}: {item.message}" for item in self.findings]
        return findings + ([f"{self.status}: {self.message}"] if self.message else [])


class SizeResult(Result, frozen=True, kw_only=True):
    shape: Shape = field(default_factory=dict)


class LaunchResult(Result, frozen=True, kw_only=True):
    """The kernels that were launched, in order, the extents, and the code that ran."""

    shape: Shape = field(default_factory=dict)
    source: str = ""
    helpers: dict[str, str] = field(default_factory=dict)
    kernels: Sequence[str] = ()


class ExplainResult(Result, frozen=True, kw_only=True):
    text: str = ""


class Answer(Result, frozen=True, kw_only=True):
    """``found``: what the function returned."""

    found: object = None
