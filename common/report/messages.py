"""What child processes are asked to draw, and what they answer."""

from __future__ import annotations

from typing import Literal

from common.run.messages import Result, Task


class DrawResult(Result, total=False):
    """``files`` that were written, from the checkout's root."""

    files: list[str]


class Draw(Task[DrawResult], frozen=True, kw_only=True, tag="report.draw"):
    """Draw one unit.

    ``what``  charts of a card's shipped record or the user's own, a lesson's pictures, or the machine code's charts
    ``name``  of the card's record, or of the lesson
    """

    what: Literal["own", "card", "lesson", "code"]
    name: str
