"""NVIDIA's compute-sanitizer over the steps: memory errors, races, uninitialised reads, barrier misuse."""

from __future__ import annotations

import re
import shutil

TOOLS = {
    "memcheck": "accesses outside arrays, misaligned accesses",
    "racecheck": "shared-memory races",
    "initcheck": "reads of global memory that nothing wrote",
    "synccheck": "barriers that not all threads reach",
}


class SanitizerError(RuntimeError):
    """compute-sanitizer is missing or did not run."""


class UnavailableError(SanitizerError):
    """It will not run, as things are on this machine."""


def command(tool: str) -> list[str]:
    """The call to put before the checked program. Raises UnavailableError without compute-sanitizer."""
    path = shutil.which("compute-sanitizer")
    if path is None:
        raise UnavailableError("compute-sanitizer was not found: it comes with the CUDA toolkit; put it on PATH")
    return [path, "--tool", tool, "--target-processes", "all", "--print-limit", "3"]


def errors(output: str) -> int:
    """The number of errors the tool's summary counts. Raises SanitizerError when there is no summary."""
    counts = [int(n) for n in re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)", output)]
    if not counts:
        raise SanitizerError(f"no summary from compute-sanitizer: {' '.join(output.split())[-300:] or 'no output'}")
    return max(counts)


def first_report(output: str) -> str:
    """The first lines of the first error, joined."""
    lines = [line.lstrip("= ").strip() for line in output.splitlines() if line.startswith("=========")]
    told = [line for line in lines if line and not line.startswith(("COMPUTE-SANITIZER", "ERROR SUMMARY"))]
    return "; ".join(told[:4])
