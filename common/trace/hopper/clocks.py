"""What each warp of an asynchronous kernel knows to be done: of other warps, of copies, of multiplications.

A vector clock per warp. Columns hold, for each warp, the interval of its own accesses; then its warpgroup's groups of
wgmma; then its groups of bulk stores; then, for each barrier in shared memory, the phases it has completed. What a
warp did is known to another one only by way of a barrier that the first arrives at and the other waits for. Lanes
that wait without the rest of their warp know alone what they have waited for, until the warp's next syncwarp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from common.trace.cost import WARP, Ints

# Kinds of columns that a warp has, in this order.
ACCESS, WGMMA, STORE = 0, 1, 2
_KINDS = 3


class Clocks:
    """``known[warp, column]``: up to which number of the column all is done, as far as the warp knows."""

    def __init__(self, warps: int) -> None:
        self.warps = warps
        self.known: Ints = np.zeros((warps, _KINDS * warps), np.int64)
        self.alone: Ints = np.zeros(warps, np.int64)  # lanes with accesses since their warp's last syncwarp, as bits
        self.private: dict[tuple[int, int], Ints] = {}  # by warp and lanes, as bits: what they alone have waited for
        own = np.arange(warps)
        self.known[own, own] = 1  # the interval that a warp is in, which nobody else knows of

    def column(self) -> int:
        """A column for a new barrier."""
        number = int(self.known.shape[1])
        self.known = np.pad(self.known, ((0, 0), (0, 1)))
        return number

    def of(self, kind: int, warp: Any) -> Any:
        """The column of this kind that a warp has, or several have."""
        return kind * self.warps + warp

    def interval(self, warp: int) -> int:
        """Which of its intervals a warp is in: what it does now is done for others once they know so much."""
        return int(self.known[warp, warp])

    # --- what a lane knows ---

    def row(self, lane: int) -> Ints:
        """What a lane knows: its warp, and what it has waited for without the others."""
        warp, bit = lane // WARP, 1 << lane % WARP
        found: Ints = self.known[warp]
        for (other, lanes), more in self.private.items():
            if other == warp and lanes & bit:
                found = joined(found, more)
        return found

    def rows(self, lanes: Ints, columns: Ints) -> Ints:
        """Of each lane, what it knows of its column."""
        warps = lanes // WARP
        found: Ints = self.known[warps, columns]
        if not self.private:
            return found
        apart = np.zeros(self.warps, np.bool_)
        apart[[warp for warp, _ in self.private]] = True
        if not apart[warps].any():  # most often: a lane that waits alone seldom accesses anything itself
            return found
        for (warp, bits), more in self.private.items():
            own = (warps == warp) & (bits >> lanes % WARP & 1 != 0) & (columns < len(more))
            found[own] = np.maximum(found[own], more[columns[own]])
        return found

    def phases(self, lane: int) -> Ints:
        """The complete phases of barriers that a lane knows of: what it begins comes after them, wherever it ends."""
        found: Ints = self.row(lane).copy()
        found[: _KINDS * self.warps] = 0
        return found

    # --- handing over ---

    def pass_on(self, warps: Sequence[int]) -> None:
        """The lanes of each of these warps have met: what one knows all know, and a new interval begins."""
        chosen = list(warps)
        for warp, lanes in [key for key in self.private if key[0] in chosen]:
            self.acquire([warp], self.private.pop((warp, lanes)))
        self.known[chosen, chosen] += 1
        self.alone[chosen] = 0

    def release_of(self, warp: int, lanes: int) -> Ints:
        """What lanes of a warp, as bits, hand over: not what others of it did since the last syncwarp."""
        given: Ints = self.known[warp].copy()
        for (other, those), more in self.private.items():
            if other == warp and those & lanes:
                given = joined(given, more)
        if self.alone[warp] & ~lanes:
            given[warp] -= 1
        else:
            self.known[warp, warp] += 1
            self.alone[warp] = 0
        return given

    def acquire(self, warps: Sequence[int], given: Ints) -> None:
        """These warps come to know what others handed over."""
        chosen, size = list(warps), len(given)
        self.known[chosen, :size] = np.maximum(self.known[chosen, :size], given)

    def acquire_by(self, warp: int, lanes: int, whole: int, given: Ints) -> None:
        """Lanes of a warp, as bits, come to know what others handed over; ``whole`` are all that it has."""
        if lanes == whole:
            self.acquire([warp], given)
        else:
            old = self.private.get((warp, lanes))
            self.private[warp, lanes] = given if old is None else joined(old, given)

    def learn(self, warps: Sequence[int], column: int, number: int) -> None:
        """These warps know that the column has come to this number."""
        chosen = list(warps)
        self.known[chosen, column] = np.maximum(self.known[chosen, column], number)

    def meet(self, warps: Sequence[int]) -> None:
        """All lanes of these warps wait for each other."""
        chosen = list(warps)
        self.pass_on(chosen)
        given: Ints = self.known[chosen].max(axis=0)
        given[chosen] -= 1  # the intervals that have begun are their own
        self.acquire(chosen, given)


def joined(first: Ints, second: Ints) -> Ints:
    """What is known by either; a column that one of them does not have yet is the other's."""
    if len(first) < len(second):
        first, second = second, first
    found: Ints = first.copy()
    found[: len(second)] = np.maximum(found[: len(second)], second)
    return found
