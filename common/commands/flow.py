"""The lines that a command says as its work is done, where no one watches a progress bar."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from common.catalog.catalog import Step
from common.jobs.messages import StepResult, Tile
from common.jobs.run import Outcome
from common.report.messages import Draw, DrawResult

Line = Callable[[Any], str]


def checked(outcomes: list[Outcome]) -> str:
    """``STEP: right at 5 shapes, 1.2 s``."""
    counts = Counter("left out" if outcome.left_out else outcome.status for outcome in outcomes)
    seconds = sum(outcome.result.get("seconds", 0.0) for outcome in outcomes)
    parts = [f"{status.replace('_', ' ')} at {count} shape{'s' * (count > 1)}" for status, count in counts.items()]
    return f"{outcomes[0].step.name}: {', '.join(parts)}, {seconds:.1f} s"


def timed(outcome: Outcome) -> str:
    """``gemm-4096: STEP 31.2 ms, measured in 1.5 s``."""
    right = outcome.status == "right"
    found = f"{outcome.result['timing'].median_ms:.4g} ms" if right else outcome.status.replace("_", " ")
    return f"{outcome.preset}: {outcome.step.name} {found}, measured in {outcome.result.get('seconds', 0.0):.1f} s"


def compiled(outcome: Outcome) -> str:
    """``STEP: 1 kernel compiled, 0.9 s``."""
    entries = outcome.result.get("kernels") or outcome.result.get("cards") or []
    count = len({entry["kernel"] for entry in entries})
    what = f"{count} kernel{'s' * (count != 1)} compiled" if outcome.status == "right" else outcome.status
    return f"{outcome.step.name}: {what.replace('_', ' ')}, {outcome.result.get('seconds', 0.0):.1f} s"


def swept(point: tuple[Tile, StepResult]) -> str:
    """``BLOCK_M=64 BLOCK_N=64: 2.31 ms``."""
    tile, result = point
    found = f"{result['timing'].median_ms:.4g} ms" if "timing" in result else result["status"].replace("_", " ")
    return f"{' '.join(f'{name}={value}' for name, value in tile.items())}: {found}"


def sanitized(entry: tuple[str, Step, int, str]) -> str:
    """``memcheck: STEP, 0 errors``."""
    tool, step, count, _ = entry
    return f"{tool}: {step.name}, {count} error{'s' * (count != 1)}"


def graded(entry: tuple[int, Any]) -> str:
    """``ada 01.2: passed``."""
    _, grade = entry
    return f"{' '.join(filter(None, (grade.student, grade.target)))}: {'passed' if grade.passed else 'not passed'}"


def measured(entry: tuple[str, Any]) -> str:
    """A line for what :func:`common.jobs.run.measure` yields: :func:`timed`, or ``gemm-4096: libraries, ...``."""
    kind, found = entry
    if kind == "step":
        return timed(found)
    what, result = (f"{found[0]}: libraries", found[1]) if kind == "library" else ("the GPU's ceilings", found)
    return f"{what}, measured in {result.get('seconds', 0.0):.1f} s"


def drawn(entry: tuple[Draw, DrawResult]) -> str:
    """``nvidia-h200: 58 files drawn, 9.1 s``."""
    unit, result = entry
    return f"{unit.name}: {len(result.get('files', []))} files drawn, {result.get('seconds', 0.0):.1f} s"
