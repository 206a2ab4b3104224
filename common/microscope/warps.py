"""What the lanes of a warp do together: who waits for whom, and what each of them hears."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, NamedTuple

import numpy as np

from common.book.occupancy import WARP

FULL = 0xFFFFFFFF
Clock = tuple[int, ...]

# By lane: what a thread has heard of the lanes of its warp before any of them has waited for another.
FIRST_CLOCKS: tuple[Clock, ...] = tuple(tuple(int(i == lane) for i in range(WARP)) for lane in range(WARP))


class WarpSyncError(RuntimeError):
    """Lanes of a warp wait for lanes that do not come."""


class Place(NamedTuple):
    """Where lanes meet: only those of one warp, at one call, with one mask do."""

    warp: int
    call: str
    mask: int
    code: CodeType
    instruction: int
    line: int


@dataclass
class Meeting:
    """Lanes that wait at a place: their threads, and what each has brought, by lane."""

    place: Place
    threads: list[Any] = field(default_factory=list)
    brought: dict[int, Any] = field(default_factory=dict)

    def missing(self, ended: Iterable[int]) -> list[int]:
        """Lanes that the mask names and that have neither come nor ended."""
        gone = set(ended)
        return [i for i in range(WARP) if self.place.mask >> i & 1 and i not in self.brought and i not in gone]


def merged(clocks: list[Clock]) -> Clock:
    """What all have heard whose clocks these are, after they have waited for each other."""
    return tuple(map(max, zip(*clocks, strict=True)))


def later(clock: Clock, lane: int) -> Clock:
    """The clock as ``lane`` has it when it goes on."""
    return (*clock[:lane], clock[lane] + 1, *clock[lane + 1 :])


def require_named(call: str, mask: int, lane: int, line: int) -> None:
    """Raise WarpSyncError if a lane takes part in what its own mask leaves out."""
    if not mask >> lane & 1:
        raise WarpSyncError(f"cuda.{call} at line {line}: lane {lane} calls it with the mask {mask:#010x}, "
                            "which does not name it")  # fmt: skip


def told(lanes: Iterable[int]) -> str:
    """Lanes as a reader would say them: ``lane 3``, ``lanes 0 to 15 and 20``."""
    found = sorted(lanes)
    runs: list[list[int]] = []
    for lane in found:
        if runs and lane == runs[-1][-1] + 1:
            runs[-1].append(lane)
        else:
            runs.append([lane])
    parts = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    text = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    return f"{'lane' if len(found) == 1 else 'lanes'} {text}"


def signed(mask: int) -> int:
    """32 bits as Numba's int32."""
    return mask - 2**WARP if mask >> (WARP - 1) else mask


def same(first: Any, second: Any) -> bool:
    """Are two values the same bits?"""
    return np.asarray(first).tobytes() == np.asarray(second).tobytes()


def bits(value: Any) -> tuple[int, int]:
    """An integer as an unsigned one, and its width."""
    width = max(32, 8 * value.itemsize) if isinstance(value, np.generic) else 32 if -(2**31) <= value < 2**32 else 64
    return int(value) & (1 << width) - 1, width
