"""What a child process is asked to draw, what it answers, and how it does it: see :mod:`common.run.messages`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from common.catalog import stages
from common.run.messages import Result, Task


class DrawResult(Result, frozen=True, kw_only=True):
    """``files`` that were written, from the checkout's root."""

    files: Sequence[str] = ()


class Draw(Task[DrawResult], frozen=True, kw_only=True, tag="report.draw"):
    """Draw one unit.

    ``what``  charts of a GPU's shipped record or of the user's own, a lesson's pictures, the machine code's charts,
              or a step's trace
    ``name``  of the GPU's record, of the lesson, or of the step
    """

    what: Literal["own", "shipped", "lesson", "code", "trace"]
    name: str


def draw_task(task: Draw) -> DrawResult:
    """Do it in this process."""
    from common.report import drawing

    with stages.stage("charts"):
        return DrawResult(status="right", files=drawing.draw_here(task))
