"""What a child process is asked to trace."""

from __future__ import annotations

from common.workers.messages import Message, ShapeTask


class TraceOptions(Message, frozen=True, kw_only=True):
    """Those of :func:`common.microscope.trace.run`, with its defaults."""

    block: tuple[int, int, int] | None = None
    every: bool = False
    tile: dict[str, int | bool] | None = None
    watched: tuple[str, ...] = ()
    merged: dict[str, int] | None = None


class Trace(ShapeTask, frozen=True, kw_only=True, tag="jobs.trace"):
    """What does a file access in memory at one shape? Only for a process whose Numba is the simulator."""

    options: TraceOptions = TraceOptions()
