"""What a child process is asked of a kernel file that is graded, and what it answers."""

from __future__ import annotations

from msgspec import field

from common.check.check import Finding
from common.run.messages import FileTask, Result


class Judged(Result, total=False):
    """``findings`` are reasons not to pass, the first kind that was met; ``notes`` are said and decide nothing."""

    findings: list[Finding]
    notes: list[str]
    figures: dict[str, float]


class Judge(FileTask[Judged], frozen=True, kw_only=True, tag="grade.judge"):
    """Is a kernel file right and sound, and within an exercise's limits?

    ``shapes``       at which it is checked, and then at some of ``fresh``: those at which ``solution`` is right
    ``solution``     the file of the exercise's solution, or the step as it lies in its lesson
    ``most_reads``   values that it may read for each that the solution does; 0: any number
    ``traced``       is something limited that a trace tells?
    ``counted``      what is limited of its compiled code, at ``counted_shape``; ``least`` of them from below
    ``architecture`` the compute capability that it is compiled for
    ``precision``, ``algorithm``, ``seed``  as those of :class:`common.jobs.messages.Check`
    ``memory_bytes`` that its process may take; 0: as many as any other
    """

    shapes: list[dict[str, int]]
    fresh: list[dict[str, int]]
    solution: str
    most_reads: float = 0.0
    traced: bool = False
    counted: list[str] = field(default_factory=list)
    counted_shape: dict[str, int] = field(default_factory=dict)
    least: list[str] = field(default_factory=list)
    architecture: str
    precision: str = "fp32"
    algorithm: str | None = None
    seed: int = 0
    memory_bytes: int = 0
