"""What child processes are asked to run of what was recorded elsewhere."""

from __future__ import annotations

from common.workers.messages import Task


class PtxRun(Task, frozen=True, kw_only=True, tag="grading.ptx_run"):
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
