"""What happened before what for a cluster's threads, where barriers that count order them: a vector clock for each.

Only :mod:`common.microscope.hazards` asks, which watches a kernel that the tracer cannot run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.int32]


class Clocks:
    """A row per thread: for each thread, how far the row's thread knows it to have come."""

    def __init__(self, threads: int) -> None:
        self.rows = np.eye(threads, dtype=np.int32)

    def hand_on(self, thread: int, to: Row | None = None) -> Row:
        """What the thread knows, added to what ``to`` holds; what it does from now on is not in it."""
        row = self.rows[thread]
        told: Row = row.copy() if to is None else np.maximum(to, row)
        row[thread] += 1
        return told

    def hear(self, thread: int, known: Row) -> None:
        """From now on the thread knows this, too."""
        row = self.rows[thread]
        np.maximum(row, known, out=row)

    def meet(self, threads: Any) -> None:
        """These threads have waited for each other."""
        self.rows[threads] = self.rows[threads].max(0)
        self.rows[threads, threads] += 1
