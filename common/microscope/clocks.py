"""What each warp of an asynchronous kernel knows to be done: of other warps, of copies, of multiplications.

A vector clock per warp. Columns hold, for each warp, the interval of its own accesses; then its warpgroup's groups of
wgmma; then its groups of bulk stores; then, for each barrier in shared memory, the phases it has completed. What a
warp did is known to another one only by way of a barrier that the first arrives at and the other waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from common.microscope.memory import Ints

# Kinds of columns that a warp has, in this order.
ACCESS, WGMMA, STORE = 0, 1, 2
_KINDS = 3


class Clocks:
    """``known[warp, column]``: up to which number of the column all is done, as far as the warp knows."""

    def __init__(self, warps: int) -> None:
        self.warps = warps
        self.known: Ints = np.zeros((warps, _KINDS * warps), np.int64)
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

    def release(self, warps: Sequence[int]) -> Ints:
        """All that these warps know now, which they hand over; what they do from now on is not part of it."""
        chosen = list(warps)
        given: Ints = self.known[chosen].max(axis=0)
        self.known[chosen, chosen] += 1
        return given

    def phases(self, warp: int) -> Ints:
        """The complete phases of barriers that a warp knows of: what it begins comes after them, wherever it ends."""
        found: Ints = self.known[warp].copy()
        found[: _KINDS * self.warps] = 0
        return found

    def acquire(self, warps: Sequence[int], given: Ints) -> None:
        """These warps come to know what others handed over."""
        chosen, size = list(warps), len(given)
        self.known[chosen, :size] = np.maximum(self.known[chosen, :size], given)

    def learn(self, warps: Sequence[int], column: int, number: int) -> None:
        """These warps know that the column has come to this number."""
        chosen = list(warps)
        self.known[chosen, column] = np.maximum(self.known[chosen, column], number)

    def meet(self, warps: Sequence[int]) -> None:
        """These warps wait for each other."""
        self.acquire(warps, self.release(warps))


def joined(first: Ints, second: Ints) -> Ints:
    """What is known by either; a column that one of them does not have yet is the other's."""
    if len(first) < len(second):
        first, second = second, first
    found: Ints = first.copy()
    found[: len(second)] = np.maximum(found[: len(second)], second)
    return found
