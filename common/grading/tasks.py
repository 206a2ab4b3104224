"""What child processes do for this layer: see :mod:`common.jobs.tasks`."""

from __future__ import annotations

from typing import Any

from common.grading.messages import PtxRun


def ptx_run_task(task: PtxRun) -> dict[str, Any]:
    """Check and time plans that were recorded elsewhere."""
    from common.grading import ptx_run

    return ptx_run.run(task)
