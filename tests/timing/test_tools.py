"""What is read from NVIDIA's tools, from texts such as they print."""

import pytest
import texts

from common.catalog.problems import PRESETS
from common.timing import tools
from common.timing.tools import METRICS, ToolError

GEMM, HALF = PRESETS["gemm-4096"], PRESETS["hgemm-4096"]


def csv(*rows):
    """ncu's raw page: a header of metric names, a row of units, one row per launch."""
    names = ["ID", "Kernel Name", *METRICS.values(), "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio"]
    lines = [names, ["", "", *["unit"] * (len(names) - 2)], *rows]
    table = "\n".join(",".join(f'"{cell}"' for cell in line) for line in lines)
    return f"==PROF== Connected to process 7\n==PROF== Profiling ...\n{table}\n"


def launch(number, stall="1.5", **values):
    return [str(number), "a kernel", *(str(values.get(key, "100")) for key in METRICS), stall]


def test_counters_are_read_per_launch_and_in_order():
    output = csv(launch(0, time_ns="1,234,567", instructions="2e3"), launch(1, time_ns="5"))
    first, second = tools.parse(output)
    assert (first["time_ns"], second["time_ns"]) == (1_234_567, 5)
    assert first["instructions"] == 2000
    assert tools.named("k", first, GEMM).stalls == {"wait": 1.5}


@pytest.mark.parametrize(("problem", "each"), [(HALF, 16 * 8 * 16), (GEMM, 16 * 8 * 8)])
def test_an_instruction_on_tensor_cores_is_many_multiply_adds(problem, each):
    (entry,) = tools.parse(
        csv(launch(0, hmma="10", ffma_threads="32", instructions="100", tensor_pipe_pct="80", fma_pipe_pct="1"))
    )
    found = tools.named("k", entry, problem)
    assert (found.counts["ffma_threads"], found.counts["hmma"]) == (32 + 10 * each, 10)


@pytest.mark.parametrize(("output", "says"), [
    ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "may not read the counters"),
    ("==ERROR== No kernels were profiled.", "No kernels were profiled"), ("", "no output"),
])  # fmt: skip
def test_output_without_counters_says_why(output, says):
    with pytest.raises(ToolError, match=says):
        tools.parse(output)


@pytest.mark.parametrize(("output", "count"), [
    (texts.of("timing")["memcheck"], 3), ("========= ERROR SUMMARY: 0 errors\n", 0),
    ("========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)\n", 2),
    ("========= ERROR SUMMARY: 0 errors\n========= ERROR SUMMARY: 4 errors\n", 4),
])  # fmt: skip
def test_the_summary_is_counted(output, count):
    assert tools.errors(output) == count


def test_no_summary_is_no_clean_bill():
    with pytest.raises(ToolError, match="no summary"):
        tools.errors("========= COMPUTE-SANITIZER\n")
