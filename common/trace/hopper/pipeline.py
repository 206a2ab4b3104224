"""A pipeline over time: when each stage of shared memory is filled, full, multiplied and free again.

A *stage* is what arrives at one barrier that counts bytes. The clock counts what happens to any stage of the block
that is looked at: it orders, and measures nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from common.trace.messages import TracedSpan

State = Literal["filling", "full", "multiplied", "free"]
STATES: tuple[State, ...] = ("filling", "full", "multiplied", "free")
MARKS: dict[str, str] = {"filling": "~", "full": "=", "multiplied": "#", "free": "."}
_MOST = 512  # fillings that are kept


@dataclass
class Filling:
    """One filling of a stage, and when it came to each state; ``reads`` of it are under way."""

    stage: str
    line: int
    begun: dict[State, int]
    reads: int = 0
    read_in: int = 0


class Pipeline:
    """What happens to the stages of one block; nothing is kept unless ``recording``."""

    def __init__(self, recording: bool) -> None:
        self.recording = recording
        self.clock = 0
        self.fillings: list[Filling] = []
        self._now: dict[int, Filling] = {}  # by column of the barrier

    def _tick(self) -> int:
        self.clock += 1
        return self.clock

    def filling(self, block: int, column: int, name: str, line: int) -> None:
        """A copy begins to a stage: it counts at the barrier of this name, block, and column of the clocks."""
        if not self.recording or block or len(self.fillings) >= _MOST:
            return
        now = self._now.get(column)
        if now is None or "full" in now.begun:
            now = self._now[column] = Filling(name, line, {"filling": self._tick()})
            self.fillings.append(now)

    def full(self, column: int) -> None:
        """All bytes of the stage have arrived."""
        now = self._now.get(column)
        if now is not None:
            now.begun.setdefault("full", self._tick())

    def read(self, column: int, line: int) -> list[Filling]:
        """wgmma begins to read what was copied there; gives the stage."""
        now = self._now.get(column)
        if now is None:
            return []
        if "multiplied" not in now.begun:
            now.begun["multiplied"], now.read_in = self._tick(), line
        now.reads += 1
        return [now]

    def multiplied(self, stages: list[Filling]) -> None:
        """One product has read these stages."""
        for now in stages:
            now.reads -= 1
            if not now.reads:
                now.begun["free"] = self._tick()

    def spans(self) -> list[TracedSpan]:
        """From when to when each stage is in which state, stage by stage."""
        found: list[TracedSpan] = []
        end = self.clock + 1
        for stage in dict.fromkeys(one.stage for one in self.fillings):
            own = [one for one in self.fillings if one.stage == stage]
            for one, later in zip(own, [*own[1:], None], strict=True):
                last = later.begun["filling"] if later else end
                times = [(state, one.begun[state]) for state in STATES if state in one.begun]
                ends = [start for _, start in times[1:]] + [last]
                for (state, start), until in zip(times, ends, strict=True):
                    line = one.read_in if state == "multiplied" else one.line
                    if until > start:
                        found.append(TracedSpan(stage, state, start, until, line))
        return found


def drawn(spans: list[TracedSpan], width: int) -> list[str]:
    """The stages as text, one a line, a character for each tick; as much of the beginning as ``width`` holds."""
    stages = list(dict.fromkeys(span.stage for span in spans))
    label = max(map(len, stages), default=0) + 2
    ticks = min(max((span.end for span in spans), default=1), max(width - label, 8))
    rows = []
    for stage in stages:
        cells = [" "] * ticks
        for span in spans:
            if span.stage == stage:
                for tick in range(span.start, min(span.end, ticks)):
                    cells[tick] = MARKS[span.state]
        rows.append(stage.ljust(label) + "".join(cells[1:]).rstrip())
    return rows
