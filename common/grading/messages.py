"""What child processes are asked to run of what was recorded elsewhere."""

from __future__ import annotations

from common.explain.faults import FindingFields
from common.measure.timing import Timing
from common.workers.messages import Result, Task


class PtxFinding(FindingFields, total=False):
    """``shape``: at which one of those that were checked."""

    shape: dict[str, int]


class PtxResult(Result, total=False):
    """``timing`` of the plan that was timed."""

    findings: list[PtxFinding]
    elements_compared: int
    timing: Timing


class PtxRun(Task[PtxResult], frozen=True, kw_only=True, tag="grading.ptx_run"):
    """Check plans, then time one.

    ``folder``  that of the plans' files
    ``ladder``, ``seed``  the step's ladder, and the seed of the operands
    ``precision``  what it may compute with
    ``shapes``  those to check at, each with three plans: NUMBER-0 to NUMBER-2
    ``timed``   the shape of the plan ``timed``; None: nothing is timed
    """

    folder: str
    ladder: str
    precision: str
    seed: int
    shapes: list[dict[str, int]]
    timed: dict[str, int] | None
