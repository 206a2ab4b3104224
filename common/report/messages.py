"""What child processes are asked to draw, and what they answer."""

from __future__ import annotations

from typing import Literal

from common.run.messages import Result, Task


class DrawResult(Result, total=False):
    """``files`` that were written, from the checkout's root."""

    files: list[str]


class Draw(Task[DrawResult], frozen=True, kw_only=True, tag="report.draw"):
    """Draw one unit.

    ``what``  a card's charts, a lesson's pictures or the machine code's charts
    ``name``  of the card's record, or of the lesson
    """

    what: Literal["card", "lesson", "code"]
    name: str
