"""What child processes do for this layer: see :mod:`common.jobs.tasks`."""

from __future__ import annotations

from common.grade.messages import PtxResult, PtxRun


def ptx_run_task(task: PtxRun) -> PtxResult:
    """Check and time plans that were recorded elsewhere."""
    from common.grade import ptx_run

    return ptx_run.run(task)
