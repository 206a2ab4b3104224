"""What child processes do for this layer: see :mod:`common.jobs.tasks`."""

from __future__ import annotations

from common.catalog import stages
from common.report.messages import Draw, DrawResult


def draw_task(task: Draw) -> DrawResult:
    """Draw a card's charts, the machine code's or a lesson's pictures (:mod:`common.report.drawing`)."""
    from common.report import drawing

    with stages.stage("charts"):
        return {"status": "right", "files": drawing.draw_here(task)}
