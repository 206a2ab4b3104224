"""What child processes are asked to draw."""

from __future__ import annotations

from typing import Literal

from common.workers.messages import Task


class Draw(Task, frozen=True, kw_only=True, tag="report.draw"):
    """Draw one unit.

    ``what``  a card's charts, a lesson's pictures or the machine code's charts
    ``name``  of the card's record, or of the lesson
    """

    what: Literal["card", "lesson", "code"]
    name: str
