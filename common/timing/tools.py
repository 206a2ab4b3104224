"""NVIDIA's tools beside a run: hardware counters by Nsight Compute (ncu); compute-sanitizer."""

import csv
import io
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, field

from common.catalog import store
from common.catalog.problems import FLOAT16, INT8, UINT8, UINT16, Problem
from common.catalog.store import Count, Name, Number, Positive, Tally
from common.timing.timing import OfStep

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")  # of compute-sanitizer


class ToolError(RuntimeError):
    """A tool is missing or did not run, or its counters could not be read."""


class UnavailableError(ToolError):
    """It will not run, as things are on this machine."""


class Counters(Struct, kw_only=True, omit_defaults=True):
    """Counters of a launch by the names in METRICS, None where one could not be read; its time among them, and its
    ``stalls``. ``ffma_threads``: all multiply-adds (:func:`multiply_adds`)."""

    kernel: Name
    time_ns: Positive
    stalls: dict[str, Number]
    counts: dict[str, Number | None] = field(default_factory=dict)


Counts = dict[str, Tally]
"""By the names in COUNTED, what :mod:`common.trace.trace` counts, too."""


class Profile(OfStep, kw_only=True):
    """Hardware counters of a step's launches at one shape."""

    kernels: list[Counters]
    shape: dict[str, Count]


class Counted(Struct, kw_only=True, omit_defaults=True):
    """What the hardware and the tracer count of a kernel; ``compiled`` with reads merged as the compiler does."""

    kernel: Name
    hardware: Counts
    trace: Counts
    compiled: Counts | None = None


class Agreement(OfStep, kw_only=True):
    """A step's kernels at one shape, counted by the hardware and by the tracer; the code is what the hardware ran."""

    shape: dict[str, Count]
    kernels: list[Counted]


class Sanitized(OfStep, kw_only=True):
    """How many errors a tool of compute-sanitizer found in a step."""

    errors: Count


_DATA = store.read_toml(Path(__file__).with_name("counters.toml"))
METRICS: dict[str, str] = _DATA["profiled"]
COUNTED: dict[str, str] = _DATA["counted"]
STALLS: list[str] = _DATA["stalls"]
PROFILED = METRICS | {name: f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio" for name in STALLS}
Launch = dict[str, float | None]  # what ncu read of one, by short names


def ncu(counters: dict[str, str] = PROFILED) -> list[str]:
    """The ncu call to put before the program. Clocks stay as a bench sees them."""
    options = "--target-processes all --clock-control none --csv --page raw --print-units base --metrics"
    return [_found("ncu"), *options.split(), ",".join(counters.values())]


def _found(tool: str) -> str:
    """Where one of NVIDIA's tools is; raises UnavailableError without it."""
    path = shutil.which(tool)
    if path is None:
        raise UnavailableError(f"{tool} was not found: it comes with the CUDA toolkit; put it on PATH")
    return path


def parse(output: str, counters: dict[str, str] = PROFILED) -> list[Launch]:
    """One entry per kernel launch in ncu's CSV. Raises ToolError without any, UnavailableError without permission."""
    if "ERR_NVGPUCTRPERM" in output:
        how = "ask the administrator (NVIDIA's ERR_NVGPUCTRPERM page says how), or run as root"
        raise UnavailableError(f"ncu may not read the counters: {how}")
    if (start := output.find('"ID"')) < 0:
        raise ToolError(f"ncu gave no counters: {' '.join(output.split())[-300:] or 'no output'}")
    rows = [row for row in csv.DictReader(io.StringIO(output[start:])) if (row["ID"] or "").isdigit()]
    return [{name: _number(row.get(metric)) for name, metric in counters.items()} for row in rows]


def _number(text: str | None) -> float | None:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None


def multiply_adds(counters: Mapping[str, float | None], problem: Problem, tensor: bool = True) -> float | None:
    """All multiply-adds of a launch, of its threads and on tensor cores; None if unread. Without ``tensor`` that
    counter has but ``HFMA2.MMA``, by which the compiler sets constants."""
    ffma, hmma = counters["ffma_threads"], counters["hmma"]
    if ffma is None:
        return None
    # an mma.sync multiplies 16 x depth by depth x 8 values
    depth = {FLOAT16: 16, UINT16: 16, INT8: 32, UINT8: 32}.get(problem.input_dtype, 8)
    return ffma + (hmma or 0) * 16 * 8 * depth * tensor


def named(name: str, launch: Launch, problem: Problem, tensor: bool = True) -> Counters:
    """The PROFILED counters of a launch of the kernel of this name; raises ToolError if its time is missing."""
    stalls = {stall: round(value, 3) for stall in STALLS if (value := launch.get(stall))}
    counts = {key: launch[key] for key in METRICS} | {"ffma_threads": multiply_adds(launch, problem, tensor)}
    time_ns = counts.pop("time_ns")
    try:
        return store.convert({"kernel": name, "time_ns": time_ns, "stalls": stalls, "counts": counts}, Counters, name)
    except store.SchemaError as error:
        raise ToolError(f"ncu's counters: {error}") from None


def main_kernel(launches: list[Counters]) -> Counters:
    """The main one of a profile's launches; of those that multiply as often the one that took longest."""
    return max(launches, key=lambda entry: (entry.counts.get("ffma_threads") or 0, entry.time_ns))


def per(above: float | None, below: float | None) -> float | None:
    """A quotient of two counters, if both were read."""
    return None if above is None or not below else above / below


# --- compute-sanitizer ---


def sanitizer(tool: str) -> list[str]:
    """The call to put before the checked program."""
    # numba-cuda asks the driver for functions that it may lack: no error of a kernel
    of_kernels = ["--report-api-errors", "no"] if tool == "memcheck" else []
    found = _found("compute-sanitizer")
    return [found, "--tool", tool, *of_kernels, "--target-processes", "all", "--print-limit", "3"]


def errors(output: str) -> int:
    """The number of errors the tool's summary counts. Raises ToolError when there is no summary."""
    counts = [int(n) for n in re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)", output)]
    if not counts:
        raise ToolError(f"no summary from compute-sanitizer: {' '.join(output.split())[-300:] or 'no output'}")
    return max(counts)


def first_report(output: str) -> str:
    """The first lines of the first error, joined."""
    lines = [line.lstrip("= ").strip() for line in output.splitlines() if line.startswith("=========")]
    told = [line for line in lines if line and not line.startswith(("COMPUTE-SANITIZER", "ERROR SUMMARY"))]
    return "; ".join(told[:4])
