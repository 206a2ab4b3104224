"""How large a problem this card takes: the bytes that one command may use, and the seconds that one launch may last.

A preset whose arrays or whose launch would be too large runs smaller: the batch is halved, or all extents of a matrix
product, until it fits. Nothing else decides sizes by what a card has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from common.catalog.problems import Gemm, Problem

STEP = 1 << 29  # bytes: the budget is a multiple of this, so that other programs' windows do not change it
LIBRARIES = 400_000_000  # bytes beside all arrays: Numba's modules, and what cuBLAS and cuDNN load
FLUSHED = 1 << 26  # bytes that are overwritten at least before a launch: the host queues the launch meanwhile
WORKSPACE = 0.75  # of a problem's own bytes, as much again for a step's workspace or a library's operands
LARGE_WORKSPACE = 0.3  # the same of a shape of billions of elements, which no library computes
LAUNCH_SECONDS = 0.5  # a display's watchdog resets the card after two
QUICK_FLOPS = 2e9  # no launch of so few operations lasts that long
PROBED = 64  # times fewer operations has the launch that is timed first


class NoRoomError(MemoryError):
    """The card has no room for a problem: ``needed`` and ``free`` are bytes."""

    def __init__(self, needed: int, free: int) -> None:
        super().__init__(f"{needed / 1e9:.1f} GB are needed, {free / 1e9:.1f} are free")
        self.needed, self.free = needed, free


def flush_bytes(l2_bytes: int) -> int:
    """What is overwritten so that the L2 cache holds nothing of a launch's operands."""
    return max(8 * l2_bytes, FLUSHED)


def room_bytes(free_bytes: int, l2_bytes: int) -> int:
    """The budget: bytes for operands, copies and workspaces on a card with so many free beside this context."""
    return max(0, free_bytes - LIBRARIES - flush_bytes(l2_bytes)) // STEP * STEP


def needed(problem: Problem) -> int:
    """Bytes that timing the problem takes, a workspace included."""
    return int((1 + WORKSPACE) * problem.least_bytes)


def copies_fit(problem: Problem, copies_bytes: int, room: int) -> bool:
    """Is there room on the card for copies of operands besides?"""
    return needed(problem) + copies_bytes <= room


def require_large(problem: Problem, room: int) -> None:
    """Raise NoRoomError unless a shape with arrays of more than 2^31 elements fits."""
    least = int((1 + LARGE_WORKSPACE) * problem.least_bytes)
    if least > room:
        raise NoRoomError(least, room)


def sizes(problem: Problem) -> Iterator[Problem]:
    """The problem and ever smaller ones: its batch halved, or all three extents of a matrix product."""
    while True:
        yield problem
        keys = ("M", "N", "K") if isinstance(problem, Gemm) else (problem.batch_key or "",)
        extents = {key: getattr(problem, key, 1) for key in keys}
        if min(extents.values()) < 2:
            return
        problem = replace(problem, **{key: extent // 2 for key, extent in extents.items()})


def fitted(problem: Problem, room: int) -> Problem:
    """The largest size of the problem that there is room for; raises NoRoomError without any."""
    least = 0
    for size in sizes(problem):
        least = needed(size)
        if least <= room:
            return size
    raise NoRoomError(least, room)


def within_time(problem: Problem, launch_seconds: Callable[[Problem], float]) -> Problem:
    """The largest size whose launch is predicted to take at most LAUNCH_SECONDS.

    ``launch_seconds`` times one launch: at a PROBED-th of the operations first, at a larger size only if the time so
    far says that it is safe. A time at one size predicts another's in proportion to the operations; of a launch that
    leaves most of the GPU idle that is too much, so the size that it allows is timed, too, before a larger is ruled
    out.
    """
    if problem.flops <= QUICK_FLOPS:
        return problem
    found = list(sizes(problem))
    at = sum(size.flops * PROBED >= problem.flops for size in found) - 1
    while True:
        seconds = launch_seconds(found[at])
        lasting = [seconds * size.flops / found[at].flops for size in found]
        allowed = next((n for n, expected in enumerate(lasting) if expected <= LAUNCH_SECONDS), len(found) - 1)
        if allowed == 0 or allowed >= at:
            return found[allowed]
        at = allowed


def runs_at(problem: Problem, ran: Problem, seconds: float, room: int) -> bool:
    """Is ``ran``, a launch of which took so many seconds, the size at which the problem would run with this room?

    Where a launch that is twice as large would last nearly too long, either size may be chosen.
    """
    try:
        problem = fitted(problem, room)
    except NoRoomError:
        return False
    larger = problem
    for size in sizes(problem):
        if size == ran:
            return size == problem or seconds * larger.flops / size.flops > 0.8 * LAUNCH_SECONDS
        larger = size
    return False
