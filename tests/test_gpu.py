"""On a real GPU: every step is right, times are plausible, and no kernel takes the harness down."""

import dataclasses
import json

import kernels
import pytest
import texts
from processes import python
from sampling import one_of_each, some

from common.catalog import cache, catalog, device, limits, problems, sources
from common.check import plan, run
from common.edit import history, loop
from common.records import records
from common.records.records import Record
from common.run import isolate
from common.run.messages import Check
from common.timing import ceilings, measuring, peers, timing
from common.timing import tasks as timetasks

# one process, so that no test disturbs the times of another
pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("gpu")]

# make check checks all
FILES = some(catalog.everything(), len(catalog.everything()), 2)


def test_steps_are_right_at_every_shape_of_the_plan():
    outcomes = list(run.check_steps(FILES, without_gpu=False, seed=5))
    planned = {(step.name, case.problem) for step in FILES for case in plan.cases(step.ladder, True, 5)}
    assert planned <= {(o.step.name, o.problem) for o in outcomes}  # and some narrower ones that were traced
    wrong = [(o.step.name, str(o.problem), o.reasons) for o in outcomes if not o.fine]
    assert wrong == []
    refused = {o.step.name for o in outcomes if o.status == "refused"}
    assert refused <= {"conv2d_constant_weights", "conv2d_shared_tile"}  # filters beyond constant memory


def test_a_time_is_plausible_and_complete():
    step = catalog.find("gemm_naive")
    (result,) = measuring.measure([(step, "tiny-gemm")])
    assert result.status == "right", result.reasons
    assert result.problem == problems.PRESETS["tiny-gemm"]
    times = result.timing
    assert 0 < times.p20_ms <= times.median_ms <= times.p80_ms < 10
    assert times.repeats >= timing.MIN_REPEATS
    # compilation is kept out of the time, and said beside it
    assert result.first_launch_ms > 10 * times.median_ms
    assert result.prepare_ms is None
    assert result.workspace_bytes == 0
    assert result.source == cache.code(step.path)
    assert result.elements_compared >= 20_000


def test_a_copy_takes_as_long_as_recorded(rates):
    described = run.inspect_device()[0]
    path = records.RESULTS / f"{described.slug}.json"
    if not path.exists():
        pytest.skip(f"no record of this card: {path.name}")
    recorded = Record.load(path).ceilings
    # other tests may use the card meanwhile, so the best of three
    measured = [rates]
    while len(measured) < 3 and measured[-1][1].copy_gbs <= 0.9 * recorded.copy_gbs:
        measured.append(measuring.measure_device())
    assert {gpu for gpu, _ in measured} == {described}
    measured = [found for _, found in measured]
    best = max(measured, key=lambda ceilings: ceilings.copy_gbs)
    assert best.copy_gbs == pytest.approx(recorded.copy_gbs, rel=0.5)
    assert {"copy", "fma", *best.tensor_gflops} == best.timings.keys()
    assert max(m.fma_gflops for m in measured) == pytest.approx(recorded.fma_gflops, rel=0.5)


GOOD = "c[m, n] = acc"
FAULT = "c[m + (1 << 40), n] = float32(1.0)"
# the output starts as NaN, and NaN is never equal to anything
ENDLESS = """while cuda.atomic.add(c, (m, n), float32(0.0)) != float32(1.0):
            pass"""


def test_a_fault_and_an_endless_loop_leave_the_next_kernel_alone(write):
    tasks = []
    for name, body in (
        ("good", GOOD),
        ("fault", FAULT),
        ("after", GOOD),
        ("endless", ENDLESS),
        ("last", GOOD),
    ):
        path = write(f"{name}.py", kernels.gemm(body))
        shape = {"M": 5, "N": 7, "K": 3}
        tasks.append(Check(path=str(path), ladder="gemm", shape=shape, engine="gpu"))
    results = [result for _, result in isolate.run(tasks, False, seconds=15.0)]
    assert [result.status for result in results] == ["right", "crashed", "right", "timed_out", "right"]
    assert "illegal" in results[1].message.lower()
    assert "endless loop" in results[3].message


def test_errors_are_those_of_the_precision():
    steps = [catalog.find(name) for name in ("gemm_tuned", "hgemm_pipelined")]
    found = run.ask("", timetasks.accuracy, {step.name: str(step.path) for step in steps if not run.beyond(step)})
    rms = {name: [point.rms for point in one.points] for name, one in found["normals"].items()}
    assert max(rms["gemm_tuned"]) < 2e-5
    if peers.available():
        assert 1e-4 < max(rms["cuBLAS TF32"]) < 1e-3
        if "hgemm_pipelined" in rms:
            assert rms["hgemm_pipelined"] == pytest.approx(rms["cuBLAS FP16"], rel=0.05)


def test_tensor_cores_are_faster_than_the_fp32_units(rates):
    gpu, found_rates = rates
    found = {name.split("_")[0] for name in ceilings.products(gpu.compute_capability)}
    each = {name: found_rates.tensor_gflops[f"{name}_f16"] for name in found}
    for name in found:
        assert each[name] > 2 * found_rates.fma_gflops
        # half the depth for TF32, so half the rate; on some cards a quarter
        assert 0.2 < found_rates.tensor_gflops[f"{name}_tf32"] / each[name] < 0.7
    if "wgmma" in found:
        assert each["wgmma"] > each["mma"]


# Those whose tile is another on a card with 99 KiB of shared memory for a block.
WITH_LESS = ("hgemm_pipelined", "hconv3d_mma", "conv2d_tensor_core", "dgrad_minimal_filtering")


def test_with_the_limits_of_an_8_6_card_every_such_step_is_right_and_timed(monkeypatch):
    monkeypatch.setenv(device.CARD_SWITCH, "8.6")
    names = one_of_each(WITH_LESS, lambda _: "a step")
    steps = [catalog.find(name) for name in names]
    outcomes = list(run.check_steps(steps, without_gpu=False, seed=5))
    assert [(o.step.name, str(o.problem), o.reasons) for o in outcomes if not o.fine] == []
    assert {o.step.name for o in outcomes if "gpu" in o.engines} == set(names)
    timed = list(measuring.measure([(step, catalog.usual_preset(step)) for step in steps]))
    assert [o.step.name for o in timed if o.status == "right" and o.time.median_ms > 0] == names


DRIVER = texts.of("")["driver"]


def test_occupancy_is_what_the_driver_says():
    names = ("gemm_shared_tile", "gemm_coarsened", "gemm_tuned", "conv2d_coarsened", "conv2d_register_tiled")
    multiprocessors, found = json.loads(python("-c", DRIVER, *names, env=device.environment(False)).stdout)
    cc = device.compute_capability()
    if cc not in limits.LIMITS:
        pytest.skip(f"the limits of compute capability {cc} are not known here")
    for name, threads, registers, shared, blocks in found:
        fits = limits.occupancy(cc, threads, registers, shared)
        assert fits.blocks == blocks // multiprocessors, name


@pytest.fixture
def edited(tmp_path):
    """gemm_coarsened with this constant, beside the shipped file."""

    def edited(wpt):
        step = catalog.find("gemm_coarsened")
        path = tmp_path / step.path.name
        path.write_text(step.path.read_text().replace("WPT = 8 ", f"WPT = {wpt} "))
        return dataclasses.replace(step, path=path)

    return edited


@pytest.mark.parametrize(("wpt", "low", "high"), one_of_each([(8, 0.97, 1.03), (1, 0.1, 0.9)], lambda _: "an edit"))
def test_an_edit_is_timed_in_turn_with_the_shipped_file(edited, monkeypatch, wpt, low, high):
    monkeypatch.setattr(sources, "shipped", lambda path: catalog.find("gemm_coarsened").path.read_bytes())
    this = loop.Run(edited(wpt), "gemm-2048", without_gpu=False)
    stages = {stage.name: stage for stage in this.stages()}
    assert not any(stage.failed for stage in stages.values()), stages
    pair = stages[loop.TIME].outcomes[0].pairs["shipped"]
    assert low <= pair.ratio <= high
    assert pair.ratio_p20 <= pair.ratio <= pair.ratio_p80
    assert history.events("gemm_coarsened")[0].figure.startswith(f"{pair.ratio:.2f}x the shipped version")
    assert stages[loop.FIRST].seconds < 30


def test_a_fault_on_the_gpu_is_told_with_its_line(edited):
    step = edited(8)
    step.path.write_text(step.path.read_text().replace("a[m, k0 + tx] if m < M and", "a[m * 1000000000, k0 + tx] if"))
    (stage,) = loop.Run(step, "gemm-2048", without_gpu=False).stages()
    (fault, *_) = stage.failed[0].faults
    assert fault.kind == "outside"
    assert "a[m * 1000000000, k0 + tx]" in fault.code
