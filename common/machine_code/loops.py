"""What a kernel's hot loop does, counted once for all who ask; and which of a step's kernels is the main one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from common.machine_code import messages, sass

Kernel = TypeVar("Kernel")

_LOADS, _CONSTANT_LOADS = ("LDG", "LDS", "LDSM", "LDL"), ("LDC", "ULDC", "LDCU")


@dataclass(frozen=True)
class HotLoop:
    """Where a kernel's time goes: ``what`` it is (:func:`sass.hot_span`), and its instructions by name.

    ``widths`` has the accesses of each class of loads and stores by width in bits. All other figures follow from
    these. Those for each multiply-add are None where nothing multiplies.
    """

    what: str
    instructions: dict[str, int]
    widths: dict[str, dict[str, int]]

    @classmethod
    def counted(cls, instructions: tuple[sass.Instruction, ...], what: str = sass.MULTIPLY_LOOP) -> HotLoop:
        """Of a stretch of code."""
        return cls(what, sass.names(instructions), sass.widths(instructions))

    @classmethod
    def recorded(cls, kernel: messages.Kernel) -> HotLoop:
        """Of a kernel as the machine-code record has it."""
        return cls(kernel.hot.what, kernel.loop, kernel.hot.widths)

    @classmethod
    def compiled(cls, kernel: messages.Compiled) -> HotLoop:
        """Of a kernel that a compile task assembled."""
        return cls(kernel["hot"]["what"], kernel["loop"], kernel["hot"]["widths"])

    @property
    def total(self) -> int:
        return sum(self.instructions.values())

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds that the instructions do for a thread, as in :func:`sass.multiply_adds`."""
        return sass.multiply_adds(self.instructions)

    @property
    def multiplies(self) -> bool:
        """Is it a loop that multiplies?"""
        return self.what == sass.MULTIPLY_LOOP and self.multiply_adds > 0

    @property
    def mix(self) -> dict[str, int]:
        """Instructions of each of :data:`sass.CLASSES` that occurs."""
        return sass.mix(self.instructions)

    @property
    def loads(self) -> int:
        """Loads into registers from global, shared and local memory."""
        return self.count(*_LOADS)

    @property
    def constant_loads(self) -> int:
        return self.count(*_CONSTANT_LOADS)

    @property
    def useful(self) -> float:
        """The share of multiply-adds among all instructions, from 0 to 1."""
        return round(self.mix.get("multiply-add", 0) / self.total, 4) if self.total else 0.0

    @property
    def multiply_adds_per_shared_load(self) -> float | None:
        fma, shared = self.multiply_adds, self.mix.get("shared load", 0)
        return round(fma / shared, 3) if shared and fma else None

    @property
    def floats_per_multiply_add(self) -> float | None:
        """32-bit words read from shared memory for each multiply-add."""
        fma = self.multiply_adds
        return round(self._shared_floats / fma, 3) if fma else None

    @property
    def as_single_loads(self) -> float | None:
        """``useful`` if nothing but the multiply-adds and their operands' loads from shared memory counted.

        One 32-bit load for each float: what a count by hand of the source line gives.
        """
        fma, floats = self.multiply_adds, self._shared_floats
        return round(fma / (fma + floats), 4) if fma and floats else None

    @property
    def _shared_floats(self) -> float:
        return sum(int(bits) * count for bits, count in self.widths.get("shared load", {}).items()) / 32

    def count(self, *names: str) -> int:
        """Instructions of these names."""
        return sum(self.instructions.get(name, 0) for name in names)

    def per_multiply_add(self, count: int | None = None) -> float | None:
        """So many (default: all instructions) for each multiply-add of the multiply loop; None without one."""
        return (self.total if count is None else count) / self.multiply_adds if self.multiplies else None

    def figures(self) -> messages.HotFigures:
        """What a card shows, ready for JSON."""
        return {
            "total": self.total,
            "multiply_adds": self.multiply_adds,
            "mix": self.mix,
            "useful": self.useful,
            "fma_per_shared_load": self.multiply_adds_per_shared_load,
            "floats_per_fma": self.floats_per_multiply_add,
            "as_single_loads": self.as_single_loads,
            "widths": self.widths,
        }


def shown(each: float) -> str:
    """So many instructions for each multiply-add; tensor cores make it far less than one."""
    return f"{each:.1f}" if each >= 1 or not each else f"{each:.2g}"


def main_kernel(kernels: Iterable[Kernel], multiply_adds: Callable[[Kernel], Any]) -> Kernel:
    """Of a step's kernels the main one: the first that multiplies most, as ``multiply_adds`` counts it.

    Raises ValueError if there is none.
    """
    return max(kernels, key=multiply_adds)


def main_compiled(kernels: Iterable[messages.Kernel]) -> messages.Kernel | None:
    """The main kernel of those of a compile task or of the machine-code record; None if there is none.

    A loop that multiplies goes before a straight line, however long.
    """
    found = list(kernels)

    def multiply_adds(kernel: messages.Kernel) -> tuple[bool, int]:
        hot = HotLoop.recorded(kernel)
        return hot.multiplies, hot.multiply_adds

    return main_kernel(found, multiply_adds) if found else None
