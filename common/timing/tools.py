"""NVIDIA's tools beside a run: hardware counters by Nsight Compute (ncu), with what they say; compute-sanitizer."""

import csv
import io
import re
import shutil
from collections.abc import Mapping
from typing import Annotated, get_type_hints

from msgspec import Struct

from common.catalog import store
from common.catalog.problems import FLOAT16, INT8, UINT8, UINT16, Problem
from common.catalog.store import Name, Number, Positive, Tally

STALLS = {
    "long_scoreboard": "waiting for global or local memory",
    "short_scoreboard": "waiting for shared memory",
    "mio_throttle": "the queue of shared-memory instructions is full",
    "lg_throttle": "the queue of global-memory instructions is full",
    "math_pipe_throttle": "the arithmetic unit is busy",
    "wait": "a fixed latency between dependent instructions",
    "barrier": "waiting at a barrier",
    "not_selected": "ready, but another warp was chosen",
    "dispatch_stall": "the dispatcher holds the warp back",
    "no_instruction": "waiting for instructions to be fetched",
    "imc_miss": "waiting for the constant cache",
    "drain": "waiting for stores at the end",
    "branch_resolving": "waiting for a branch",
}
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")  # of compute-sanitizer


class ToolError(RuntimeError):
    """A tool is missing or did not run, or its counters could not be read."""


class UnavailableError(ToolError):
    """It will not run, as things are on this machine."""


class Counters(Struct, kw_only=True, omit_defaults=True):
    """Counters of a launch, with their names of ncu, None where one could not be read; and its ``stalls``.
    ``ffma_threads``: all multiply-adds (:func:`multiply_adds`)."""

    kernel: Name
    stalls: dict[str, Number]
    time_ns: Annotated[Positive, "gpu__time_duration.sum"]
    registers: Annotated[Number | None, "launch__registers_per_thread"]
    occupancy_pct: Annotated[Number | None, "sm__warps_active.avg.pct_of_peak_sustained_active"]
    issue_pct: Annotated[Number | None, "smsp__issue_active.avg.pct_of_peak_sustained_active"]
    fma_pipe_pct: Annotated[Number | None, "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active"]
    dram_pct: Annotated[Number | None, "dram__throughput.avg.pct_of_peak_sustained_elapsed"]
    dram_bytes: Annotated[Number | None, "dram__bytes.sum"]
    l2_pct: Annotated[Number | None, "lts__throughput.avg.pct_of_peak_sustained_elapsed"]
    l1_pct: Annotated[Number | None, "l1tex__throughput.avg.pct_of_peak_sustained_active"]
    load_sectors: Annotated[Number | None, "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"]
    load_requests: Annotated[Number | None, "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"]
    store_sectors: Annotated[Number | None, "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"]
    store_requests: Annotated[Number | None, "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"]
    shared_wavefronts: Annotated[Number | None, "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"]
    shared_conflicts: Annotated[Number | None, "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"]
    instructions: Annotated[Number | None, "smsp__inst_executed.sum"]
    ffma_threads: Annotated[Number | None, "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"]
    hmma: Annotated[Number | None, "sm__inst_executed_pipe_tensor_op_hmma.sum"] = None
    tensor_pipe_pct: Annotated[
        Number | None, "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active"
    ] = None


class Counts(Struct, kw_only=True, omit_defaults=True):
    """What :mod:`common.trace.trace` counts, too. Shared reads have those of ``ldmatrix``; asynchronous copies to
    shared memory are global reads alone."""

    load_requests: Annotated[Tally, "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"]
    load_sectors: Annotated[Tally, "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"]
    store_requests: Annotated[Tally, "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"]
    store_sectors: Annotated[Tally, "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"]
    shared_load_wavefronts: Annotated[Tally, "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"]
    shared_store_wavefronts: Annotated[Tally, "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum"]
    ffma_threads: Annotated[Tally, "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"]
    shared_load_conflicts: Annotated[Tally | None, "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"] = None
    shared_store_conflicts: Annotated[Tally | None, "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum"] = None
    hmma: Annotated[Tally | None, "sm__inst_executed_pipe_tensor_op_hmma.sum"] = None


def _names(kind: type[Struct]) -> dict[str, str]:
    """ncu's name of each counter, from NVIDIA's metrics reference for compute capability 7.x to 10.x."""
    hints = get_type_hints(kind, include_extras=True).items()
    notes = {name: getattr(hint, "__metadata__", (None,))[-1] for name, hint in hints}
    return {name: note for name, note in notes.items() if isinstance(note, str)}


METRICS, COUNTED = _names(Counters), _names(Counts)
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
    read = {**launch, "ffma_threads": multiply_adds(launch, problem, tensor), "stalls": stalls, "kernel": name}
    try:
        return store.convert(read, Counters, name)
    except store.SchemaError as error:
        raise ToolError(f"ncu's counters: {error}") from None


def main_kernel(launches: list[Counters]) -> Counters:
    """The main one of a profile's launches; of those that multiply as often the one that took longest."""
    return max(launches, key=lambda entry: (entry.ffma_threads or 0, entry.time_ns))


_MULTIPLYING = "multiply-adds are the limit, as they should be"
# Name, counter, and what is said from 70% of the peak on, and below.
_SHARES = (
    ("achieved occupancy", "occupancy_pct", "enough warps to switch between", "few warps to hide a wait behind"),
    ("issue slots used", "issue_pct", "the instruction count is the limit",
     "the schedulers often have nothing ready"),
    ("FP32 pipe used", "fma_pipe_pct", _MULTIPLYING, "the FP32 units mostly wait"),
    ("tensor pipe used", "tensor_pipe_pct", _MULTIPLYING, "the tensor cores mostly wait"),
    ("DRAM throughput", "dram_pct", "memory bandwidth is the limit", "memory bandwidth is not the limit"),
    ("L2 throughput", "l2_pct", "the L2 cache is the limit", "the L2 cache is not the limit"),
    ("L1 and shared throughput", "l1_pct", "loads through L1 or shared memory are the limit",
     "L1 and shared memory keep up"),
)  # fmt: skip


def sentences(entry: Counters) -> list[tuple[str, str, str]]:
    """Name, value and one sentence for each figure of a profiled kernel."""
    lines = [("time", f"{entry.time_ns / 1e6:#.3g} ms", "under the profiler, one launch, cold caches")]
    for name, field, high, low in _SHARES:
        value: float | None = getattr(entry, field)
        if value is not None and field != ("fma_pipe_pct" if entry.hmma else "tensor_pipe_pct"):
            lines.append((name, f"{value:.1f}%", high if value >= 70 else low))
    if (sectors := per(entry.load_sectors, entry.load_requests)) is not None:
        text = "coalesced: at most 4 for 32-bit accesses" if sectors <= 4.1 else "more than 4: wide or scattered"
        lines.append(("sectors per global load", f"{sectors:.2f}", text))
    if entry.shared_wavefronts:
        share = 100 * (entry.shared_conflicts or 0) / entry.shared_wavefronts
        text = "bank conflicts cost turns" if share > 10 else "hardly any turn is lost to bank conflicts"
        lines.append(("shared bank conflicts", f"{share:.1f}% of wavefronts", text))
    if (useful := per(entry.ffma_threads, entry.instructions)) is not None:
        text = "the useful fraction of executed instructions"
        lines.append(("multiply-adds per instruction", f"{useful / 32:.2f}", text))
    stalls = sorted(entry.stalls.items(), key=lambda item: -item[1])[:3]
    return lines + [(f"stall: {name}", f"{value:.2f} warps", STALLS[name]) for name, value in stalls]


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
