"""The tracer: right results, and the counts worked out by hand; agreement with the hardware; its command."""

import itertools
import re
import textwrap

import mutants
import numpy as np
import pytest
from msgspec.structs import replace
from numba import cuda
from sampling import one_of_each
from small_kernels import BODIES, HEAD, kinds, traced

from common.catalog import catalog, inputs, limits, reference
from common.catalog.problems import RAGGED, TRACED, Conv2d, Gemm
from common.records import records
from common.records.records import Record
from common.report import traces
from common.run import isolate
from common.run.messages import StepResult
from common.timing import tools
from common.trace import cost, trace

pytestmark = pytest.mark.usefixtures("traced")
FROZEN, SHARED_BY_FUNCTION, INTEGERS = (BODIES[name] for name in ("frozen", "shared_by_function", "integers"))

# --- right kernels ---


def test_asynchronous_copies_arrive_when_they_are_waited_for():
    problem = Conv2d(N=3, C=2, H=9, W=8, K=5, R=3, S=2)
    found = traced(catalog.find("conv2d_fused_unroll_gemm").path, problem)
    np.testing.assert_array_equal(found.output, reference.full(problem, *inputs.integers(problem, 0)))
    assert found.faults == []
    totals = found.main.totals
    assert 0 < totals["copy_requests"] <= totals["load_requests"]  # the hardware counts copies as loads
    assert 0 < totals["copy_sectors"] <= totals["load_sectors"]


def test_one_block_computes_its_part_of_the_output():
    problem = Gemm(M=128, N=96, K=40)
    found = traced(catalog.find("gemm_shared_tile").path, problem, every=False, block=(2, 1, 0))
    oracle = reference.full(problem, *inputs.integers(problem, 0))
    mine = np.zeros(found.output.shape, np.bool_)
    mine[32:64, 64:96] = True
    np.testing.assert_array_equal(found.output[mine], oracle[mine])
    assert np.isnan(found.output[~mine]).all()
    assert found.kernels[0].first_block == (2, 1, 0)


@pytest.mark.parametrize("name", ["gemm_rectangular_tiles", "conv2d_unroll_gemm"])
def test_a_kernel_whose_output_the_next_one_needs_runs_whole(name):
    step = catalog.find(name)
    problem = TRACED[step.ladder][0]
    found = traced(step.path, problem, every=False)
    assert [kernel.blocks for kernel in found.kernels] == [1, 1]
    assert found.faults == []
    written = ~np.isnan(found.output)
    assert 0 < written.sum() < written.size
    oracle = reference.full(problem, *inputs.integers(problem, 0))
    np.testing.assert_array_equal(found.output[written], oracle[written])


def test_blocks_run_together_count_as_blocks_run_alone(monkeypatch):
    step, problem = catalog.find("conv2d_coarsened"), Conv2d(N=3, C=2, H=20, W=18, K=3, R=3, S=2)
    together = traced(step.path, problem)
    monkeypatch.setattr(trace, "_LANES_AT_ONCE", 1)
    alone = traced(step.path, problem)
    assert together.kernels[0].totals == alone.kernels[0].totals
    np.testing.assert_array_equal(together.output, alone.output)


# --- counts ---


def test_the_counts_of_gemm_naive_are_those_of_lesson_01():
    found = traced(catalog.find("gemm_naive").path, Gemm(M=64, N=64, K=32), every=False)
    (kernel,) = found.kernels
    a, b = (next(x for x in kernel.select("global", "read") if x.array == name) for name in "ab")
    (c,) = kernel.select("global", "write")
    assert (a.requests, a.per_request, a.lanes_per_address) == (8 * 32, 1, 32)
    assert (b.requests, b.per_request, b.lanes_per_address) == (8 * 32, 4, 1)
    assert (c.requests, c.moved, c.bytes_moved) == (8, 32, 1024)
    assert kernel.fma == kernel.fma_lines[str(a.line)] == 256 * 32
    assert kernel.per_fma["global"]["loads"] == 2
    swapped = traced(catalog.find("gemm_naive_uncoalesced").path, Gemm(M=64, N=64, K=32), every=False).kernels[0]
    assert [x.per_request for x in swapped.select("global", "read")] == [32, 1]
    assert [x.efficiency for x in swapped.select("global")] == [4 / 32, 1, 4 / 32]


@pytest.mark.parametrize(
    ("name", "instructions", "values"),
    [
        ("gemm_shared_tile", 2, 2), ("gemm_coarsened", 9 / 8, 9 / 8), ("gemm_wide_loads", 6 / 32, 24 / 32),
        ("gemm_rectangular_tiles", 12 / 32, 36 / 32), ("gemm_register_blocked", 4 / 64, 16 / 64),
        ("gemm_warp_tiles", 4 / 64, 16 / 64), ("gemm_double_buffered", 4 / 64, 16 / 64),
        ("gemm_tuned", 6 / 128 * 33 / 32, 24 / 128 * 33 / 32),  # it reads one k ahead, beyond the 32 that there are
    ],
)  # fmt: skip
def test_the_promises_of_lesson_04_are_kept(name, instructions, values):
    kernel = traced(catalog.find(name).path, Gemm(M=128, N=128, K=32), every=False).main
    rates = kernel.per_fma["shared"]
    assert (rates["loads"], rates["loaded_values"]) == (instructions, values)


def test_a_padded_tile_has_fewer_conflicts():
    turns = []
    for pad in (0, 1, 2):
        path = catalog.find("gemm_rectangular_tiles").path
        kernel = traced(path, Gemm(M=64, N=64, K=32), constants={"PAD": pad}).main
        (access,) = (a for a in kernel.select("shared", "read") if a.array == "b_tile")
        turns.append(access.per_request)
    assert turns == [32, 1, 2]


# --- as a GPU would ---


def stood_in(write, text, names=("gemm_own.py",), **options):
    """A tracer, and the modules whose texts are given."""
    modules = [catalog.load(write(name, HEAD + textwrap.dedent(text)), "gemm") for name in names]
    return trace.Tracer(**options), modules[0]


ONE = Gemm(M=1, N=32, K=1)


def launched(tracer, module, value=0.0):
    """What a launch makes of an output that nothing has written."""
    with tracer:
        x = cuda.to_device(np.full((1, 1), value, np.float32))
        weight, y = cuda.to_device(np.ones((1, 32), np.float32)), cuda.device_array((1, 32), np.float32)
        module.launch(x, weight, y)
        return y.copy_to_host()[0]


def test_globals_are_those_of_the_first_launch_for_each_type_of_arguments(write):
    tracer, module = stood_in(write, FROZEN)
    assert [launched(tracer, module, value)[0] for value in (1, 2, 5, 6, 3)] == [11, 11, 55, 55, 11]
    assert [launched(trace.Tracer(), module, value)[0] for value in (1, 2)] == [11, 22]


@pytest.mark.parametrize("read", ["TABLE[i]", "cuda.const.array_like(TABLE)[i]"])
def test_host_arrays_beyond_constant_memory_are_refused_with_their_bytes_and_line(kernel, read):
    extra = "import numpy as np\n\nOTHER = np.ones(8192, np.float32)\nTABLE = np.ones({}, np.float32)"
    body = f"i = cuda.threadIdx.x\nc[0, i] = OTHER[i] + OTHER[i + 32]\nc[1, i] = {read}"
    assert not {"raises"} & kinds(kernel(body, extra=extra.format(8192)))  # 64 KiB together, however often it is read
    with pytest.raises(limits.LaunchLimitError, match="take 65540 bytes of constant memory") as raised:
        kernel(body, extra=extra.format(8193))
    path, line = [(entry.path, entry.lineno) for entry in raised.traceback if str(entry.path).endswith("_own.py")][-1]
    assert "OTHER[i]" in path.read_text().splitlines()[line]


@pytest.mark.parametrize(("option", "fault"), [("", set()), (", inline='always'", {"read-before-write"})])
def test_shared_memory_belongs_to_its_function_unless_that_is_written_out(write, option, fault):
    tracer, module = stood_in(write, SHARED_BY_FUNCTION.replace("{option}", option))
    launched(tracer, module)
    assert {fault.kind for fault in tracer.faults()} == fault


def test_dynamic_shared_memory_is_one_and_has_a_limit(kernel):
    body = "d = cuda.shared.array(0, float32)\ne = cuda.shared.array(0, float32)\ni = cuda.threadIdx.x\n"
    found = kernel(body + "d[i] = i\nc[0, i] = e[i]", block="32, 0, 128")
    assert found.output[0, 31] == 31
    with pytest.raises(limits.LaunchLimitError, match="232576 together: a block has at most 232448"):
        kernel(body + "s = cuda.shared.array(32, float32)\ns[i] = 0.0", block="32, 0, 232448")


def test_a_grid_is_a_multiple_of_the_cluster_that_its_kernel_declares(write):
    tracer, module = stood_in(write, BODIES["clustered"].replace("{blocks}", "2"))
    launched(tracer, module)
    assert not tracer.faults()
    tracer, module = stood_in(write, BODIES["clustered"].replace("{blocks}", "3"))
    with pytest.raises(limits.LaunchLimitError, match="in clusters of 2 blocks: x must be a multiple of 2"):
        launched(tracer, module)


def test_more_than_48_kib_of_shared_memory_is_dynamic(kernel):
    body = "d = cuda.shared.array(0, float32)\ni = cuda.threadIdx.x\nd[i + 50000] = i\nc[0, i] = d[i + 50000]"
    assert kernel(body, block="32, 0, 232448").output[0, 31] == 31
    with pytest.raises(limits.LaunchLimitError, match="shared arrays take 49280 bytes: a block has at most 49152"):
        kernel("s = cuda.shared.array(12320, float32)\ns[0] = 0.0\nc[0, 0] = s[0]", block="32")


@pytest.mark.parametrize("kind", ["int32", "uint8", "int64"])
def test_integers_in_a_workspace_are_not_zero(write, kind):
    tracer, module = stood_in(write, INTEGERS.replace("{kind}", kind).replace("{value}", "w[i]"))
    assert (launched(tracer, module) != 0).all()
    assert [fault.kind for fault in tracer.faults()] == ["read-before-write"]


def test_what_the_host_copies_or_stores_is_written(write):
    tracer, module = stood_in(write, INTEGERS.replace("{kind}", "int32").replace("{value}", "a[0, i] + w[i]"))
    with tracer:
        array = cuda.device_array((2, 8), np.int32)
        array[0].copy_to_device(np.arange(8, dtype=np.int32))
        array[1, ::2] = 5
        assert array.storage.written.reshape(2, 8).tolist() == [[True] * 8, [True, False] * 4]
        array[0].poison()
        assert not array.storage.written[:8].any()
        array.copy_to_device(np.zeros((2, 8), np.int32))
        assert array.storage.written.all()


def test_launches_run_at_once_and_host_arrays_come_back(write):
    tracer, module = stood_in(write, BODIES["host_array"])
    assert (launched(tracer, module) == 2).all()
    (report,) = tracer.reports()
    assert (report.launches, report.blocks, report.accesses) == (2, 2, [])
    tracer.forget()
    assert tracer.reports() == []


def test_without_recording_the_faults_are_the_same(kernel):
    body = "i = cuda.threadIdx.x\nc[i // 32, i % 32] = 1.0\nc[2, i % 32] = c[1 - i // 32, i % 32]"
    counted, quick = kernel(body, block=64), kernel(body, block=64, recording=False)
    assert counted.faults == quick.faults != []
    assert counted.main.accesses
    assert not quick.main.accesses


def test_divergence_is_counted_by_line(kernel):
    found = kernel("i = cuda.threadIdx.x\nif i < 40:\n    c[0, 0] = 1.0\nif i < 32:\n    c[0, 1] = 1.0", block=64)
    assert found.kernels[0].branches == {"13": (1, 2), "15": (0, 2)}


def test_register_arrays_that_cannot_stay_in_registers_are_named(kernel):
    found = kernel("r = cuda.local.array(2, float32)\nr[0] = 1.0\nr[1] = 2.0\nc[0, 0] = r[cuda.threadIdx.x % 2]")
    assert any(note.startswith("r is indexed by a value that differs") for note in found.kernels[0].notes)


def test_what_helpers_do_is_booked_on_the_line_that_calls_them():
    step = catalog.find("gemm_wide_loads")
    lines = step.path.read_text(encoding="utf-8").splitlines()
    for access in traced(step.path, Gemm(M=33, N=33, K=5)).main.accesses:
        assert access.array in lines[access.line - 1], access


def test_figures_of_memory_for_a_resource_card(here):
    problem = Gemm(M=384, N=384, K=384)
    (found,) = trace.results([trace.task(catalog.find("gemm_register_blocked"), problem)])
    kernel = found.main
    total = kernel.totals
    turns = total["shared_load_wavefronts"] + total["shared_store_wavefronts"]
    assert turns / (turns - total["shared_conflicts"]) == (16 * 12 + 16 + 8) / (16 * 12 + 8 + 8)
    assert cost.loads_per_fma(found) == {"global": 0.0039, "shared": 0.0625, "constant": 0.0}
    shared = kernel.per_fma["shared"]
    assert 4 * (shared["loaded_values"] + shared["stored_values"]) == pytest.approx(1.0625, abs=5e-5)
    outside = kernel.select("global")
    assert {access.op for access in outside} == {"read", "write"}
    assert all(access.per_request == access.ideal_per_request == 16.0 for access in outside)
    assert found.faults == []


# --- against the hardware ---


def shipped():
    return Record.load(records.RESULTS / f"{records.REFERENCE_GPU}.json")


# Where the compiler joins accesses or leaves some out, or the counter has instructions in place of products.
OFF = {
    "gemm_shared_tile", "gemm_tf32x3", "conv2d_shared_tile", "multiply_columns", "conv2d_one_channel",
    "conv2d_one_channel_pairs", "conv3d_direct_tiled", "conv3d_implicit_gemm", "hconv3d_im2col", "hgemm_wgmma",
    "hgemm_tma", "hgemm_specialised", "hgemm_register_operand", "igemm_wgmma", "hconv3d_mma", "dgrad_implicit_gemm",
    "wgrad_implicit_gemm", "wgrad_minimal_filtering", "wgrad_stream_k", "gemm_naive_float64",
}  # fmt: skip


def test_hardware_and_tracer_agree_but_for_known_kernels():
    """But for conflicts of shared writes, of which the hardware has a few more, and for HFMA2.MMA, 1,024 each."""
    found = shipped().data.agreement
    for step in catalog.everything():
        on_tensor_cores = catalog.on_tensor_cores(step, RAGGED[step.ladder][0])
        for kernel in (one for shape in found.get(step.name, {}).values() for one in shape.kernels):
            for key in traces.AGREED:
                ratio = traces.agreed_ratio(kernel, key)
                known = key == "shared_store_wavefronts" and 1 < (ratio or 0) < 1.1
                beyond = kernel.hardware["ffma_threads"] - kernel.trace["ffma_threads"]
                known |= key == "ffma_threads" and not on_tensor_cores and beyond > 0 and beyond % 1024 == 0
                if ratio is not None and not 0.99 <= ratio <= 1.01 and not known:
                    assert kernel.kernel in OFF, (step.name, kernel.kernel, key, ratio)


def test_a_profile_at_full_size_agrees():
    # counted before the tracer was there: 4096 is 32 blocks each way, and 128 times as long a sum as here
    profile = shipped().profile("gemm-4096", "gemm_register_blocked").kernels[0]
    totals = traced(catalog.find("gemm_register_blocked").path, Gemm(M=128, N=128, K=32)).main.totals
    for key in ("load_requests", "load_sectors", "ffma_threads"):
        assert profile.counts[key] == 32 * 32 * 128 * totals[key]


CASES = [("gemm_naive", "gemm_naive"), ("conv2d_unroll_gemm", "multiply_columns")]


@pytest.fixture
def counted_by_a_pretended_gpu(monkeypatch, tmp_path, here):
    """A record in which the hardware counted 1000 of everything, twice for a kernel launched twice."""
    names = {"gemm_naive": ["gemm_naive"], "conv2d_unroll_gemm": ["unroll_windows", "multiply_columns"] * 2}

    def watched(tasks, command, seconds):
        launched = [names[task.step] for task in tasks]
        rows = [[str(i), name, *["1,000"] * len(tools.COUNTED)] for i, name in enumerate(itertools.chain(*launched))]
        table = [["ID", "Kernel Name", *tools.COUNTED.values()], ["", "", *["u"] * len(tools.COUNTED)], *rows]
        output = "==PROF== ...\n" + "\n".join(",".join(f'"{cell}"' for cell in line) for line in table)
        return [StepResult(status="right", launched=kernels) for kernels in launched], output

    monkeypatch.setattr(isolate, "watched", watched)
    monkeypatch.setattr(traces.device, "require_gpu", lambda what: None)
    monkeypatch.setattr(tools.shutil, "which", lambda name: "/usr/bin/" + name)
    monkeypatch.setattr(trace, "TRACED", {ladder: RAGGED[ladder][:1] for ladder in RAGGED})
    record = Record(tmp_path / "nvidia-test.json", replace(shipped().data, agreement={}))
    pairs = [(catalog.find(step), at) for step, _ in CASES for at in trace.shapes(catalog.find(step))]
    record.start_run()
    for step, problem, entry in traces.count_both(pairs):
        record.keep("agreement", step.name, {str(problem): entry})
    assert [str(problem) for step, problem in pairs] == [next(iter(record.data.agreement[s.name])) for s, _ in pairs]
    return Record.load(record.path), pairs


def test_an_agreement_is_counted_summed_and_recorded(counted_by_a_pretended_gpu):
    record, pairs = counted_by_a_pretended_gpu
    for (step, kernel), (_, problem) in zip(CASES, pairs, strict=True):
        entry = record.data.agreement[step][str(problem)]
        found = next(k for k in entry.kernels if k.kernel == kernel)
        launches = 2 if step == "conv2d_unroll_gemm" else 1
        assert found.hardware["load_requests"] == 1000 * launches
        assert found.trace["load_requests"] > 0
        ratio = traces.agreed_ratio(found, "load_requests")
        assert ratio == 1000 * launches / found.trace["load_requests"]
    table = traces.agreement(record)
    assert [cells[0] for cells in table.rows] == ["`gemm_naive`", "`unroll_windows`", "`multiply_columns`"]


@pytest.mark.parametrize(
    "name", one_of_each(("gemm_tuned", "conv2d_unroll_gemm", "conv2d_register_tiled"), lambda _: "a step")
)
def test_the_recorded_trace_is_what_the_tracer_counts_now(here, name):
    recorded = shipped().data.agreement
    pairs = [(catalog.find(name), at) for at in trace.shapes(catalog.find(name))]
    for (step, problem), own in zip(pairs, traces.traced_counts(pairs), strict=True):
        for kernel in recorded[step.name][str(problem)].kernels:
            assert kernel.trace == own[kernel.kernel]


def test_an_edited_file_is_said_to_be_edited(counted_by_a_pretended_gpu):
    record, pairs = counted_by_a_pretended_gpu
    record.data.agreement["gemm_naive"][str(pairs[0][1])].source = "old"
    assert traces.agreement(record).rows[0][0] == "`gemm_naive` ¶"


# --- the command line ---


@pytest.fixture
def call(call, monkeypatch, here):
    monkeypatch.setenv("COLUMNS", "150")
    return call


def test_a_trace_as_tables(call):
    code, out, _ = call("trace", "gemm_wide_loads", "--shape", "M=40 N=36 K=8", "--block", "1")
    assert code == 0
    assert "block (1, 0, 0) of (2, 2, 1), (8, 16, 1) threads" in out
    assert re.search(r"48\s+read a\s+128\s", out)
    assert "load4_guarded(stage, 0, a" in out
    assert re.search(r"total\s+18\s+4\.00\s+2\.89\s+72%\s", out)
    assert "Must stay in registers: " in out
    assert "No fault" in out


def test_faults_are_told_and_set_the_exit_code(call):
    file = str(mutants.path("gemm_no_guard_m"))
    code, out, _ = call("trace", "gemm_naive", "--file", file, "--shape", "M=5 N=33 K=2")
    assert code == 1
    assert re.search(r"line \d+: out of bounds: axis 0 of a is read at 5, its extent is 5 \(", out)
    assert "No fault" not in out
