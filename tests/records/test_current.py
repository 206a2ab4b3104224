"""What is kept and what is done again: after an edit, on another card, with another driver."""

import contextlib
import dataclasses

import pytest

from common.catalog import cache, catalog, device, problems, sources
from common.check import run
from common.commands import bench as benches
from common.commands import changed, console, parts
from common.records import records
from common.records.records import Record
from common.report import pages
from common.report.pages import Draw
from common.run.messages import Answer, Outcome, Paired, PeerRow, StepResult
from common.timing import measuring, peers, timing, tools
from common.timing.ceilings import Ceilings

GPU = {
    "name": "NVIDIA TEST", "compute_capability": "9.0", "multiprocessors": 132, "memory_bytes": 1 << 36,
    "l2_bytes": 1 << 25, "driver": "580.1", "cuda": "13.0",
}  # fmt: skip
TENSOR_CORES = ("mma_f16", "mma_tf32", "mma_s8", "wgmma_f16", "wgmma_tf32", "wgmma_s8", "wgmma_e4m3")
CEILINGS = Ceilings(copy_gbs=1.0, fma_gflops=1.0, tensor_gflops=dict.fromkeys(TENSOR_CORES, 2.0))
ROOM = 1 << 35
TIMES = timing.Timing(2.0, 2.0, 2.0, 0.0, 10)
HELPER = "SIZE = 4\n"
PLAIN = '"""{name}: a step.\n\nPrevious step: none\n"""\n\ndef launch(a, b, c):\n    pass\n'
USES = PLAIN.replace("\ndef", "from lessons.toolkit.aid import SIZE\n\ndef")


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(cache, "FOLDER", tmp_path / "cache")
    monkeypatch.setattr(records, "RESULTS", tmp_path / "shipped")
    monkeypatch.setattr(records, "OWN", tmp_path / "results")


@pytest.fixture
def steps(monkeypatch, write, tmp_path):
    """Two steps; the second imports a helper."""
    monkeypatch.setattr(catalog, "ROOT", tmp_path)
    monkeypatch.setattr(catalog, "LESSONS", tmp_path / "lessons")
    write("lessons/toolkit/aid.py", HELPER)
    found = []
    for name, text in (("gemm_plain", PLAIN), ("gemm_aided", USES)):
        path = write(f"lessons/01_one/{name}.py", text.format(name=name))
        found.append(catalog.Step(name, "01_one", "gemm", None, path, "a step."))
    return found


def result(step, shape):
    return StepResult(
        status="right", timing=TIMES, prepare_ms=None, first_launch_ms=1.0, workspace_bytes=0, elements_compared=5,
        shape=shape, source=cache.code(step.path),
    )  # fmt: skip


@pytest.fixture
def record(steps, tmp_path):
    """A record with a row for both steps, taken now on this card."""
    record = Record.open(device.Gpu(**GPU), tmp_path / "results")
    record.start_run()
    for step in steps:
        problem = problems.preset("gemm-2048")
        records.record_step(record, Outcome.of(step, problem, "gemm-2048", result(step, problem.shape())))
    return record


def held(record, steps):
    pairs = [(step, "gemm-2048") for step in steps]
    return [step.name for step, preset in pairs if records.row_holds(record, step, preset, ROOM)]


def again(record, **gpu):
    """The record as a later run opens it."""
    return Record.open(device.Gpu(**{**GPU, **gpu}), record.path.parent)


def test_rows_hold_until_code_driver_packages_or_the_way_of_timing_change(record, steps, write, monkeypatch):
    both = ["gemm_plain", "gemm_aided"]
    assert held(again(record), steps) == both
    write("lessons/01_one/gemm_plain.py", PLAIN.format(name="gemm_plain") + "# a word\n")
    assert held(again(record), steps) == both
    write("lessons/01_one/gemm_plain.py", PLAIN.format(name="gemm_plain").replace("pass", "return"))
    assert held(again(record), steps) == ["gemm_aided"]
    write("lessons/01_one/gemm_plain.py", PLAIN.format(name="gemm_plain"))
    write("lessons/toolkit/aid.py", "SIZE = 8\n")
    assert held(again(record), steps) == ["gemm_plain"]
    write("lessons/toolkit/aid.py", HELPER)
    assert held(again(record, driver="590.2"), steps) == []
    assert held(again(record, name="NVIDIA OTHER"), steps) == []
    row = record.rows("gemm-2048")["gemm_plain"]
    row.shape = {**row.shape, "M": 1024}  # a card with less room
    assert held(record, steps) == ["gemm_aided"]
    versions = sources.versions
    with monkeypatch.context() as patch:
        patch.setattr(sources, "versions", lambda names: {**versions(names), "numba": "9.9"})
        assert held(again(record), steps) == []
    monkeypatch.setattr(timing, "MEASURE_VERSION", timing.MEASURE_VERSION + 1)
    assert held(again(record), steps) == []


BESIDE = peers.Beside(TIMES, TIMES, 0.8, 0.7, 0.9, 0.01, peer="cuBLAS TF32")


@pytest.mark.parametrize(
    ("beside", "version", "holds"), [(None, "2", False), (BESIDE, "2", True), (BESIDE, "3", False)]
)
def test_a_step_for_tensor_cores_is_timed_in_turn_with_the_library_of_now(
    record, steps, monkeypatch, beside, version, holds
):
    monkeypatch.setattr(peers, "available", lambda: True)
    record.rows("gemm-2048")["gemm_plain"].beside = beside
    for one in record.data.runs.values():
        one.packages["torch"] = "2"
    versions = sources.versions

    def now(names):
        return {**versions(names), **({"torch": version} if "torch" in names else {})}

    monkeypatch.setattr(sources, "versions", now)
    assert held(record, steps) == ["gemm_plain", "gemm_aided"]  # FP32 times hold alone
    rounded = [dataclasses.replace(steps[0], precision="tf32"), steps[1]]
    assert held(record, rounded) == (["gemm_plain"] if holds else []) + ["gemm_aided"]
    monkeypatch.setattr(peers, "available", lambda: False)
    assert held(record, rounded) == ["gemm_plain", "gemm_aided"]


def test_ceilings_hold_as_rows_do(record):
    record.start_run()
    assert not records.ceilings_hold(record)
    record.set_ceilings(CEILINGS)
    assert records.ceilings_hold(again(record))
    # a card of 9.0 has tensor cores, which an older record knows nothing of
    record.set_ceilings(Ceilings(copy_gbs=1.0, fma_gflops=1.0))
    assert not records.ceilings_hold(again(record))
    record.set_ceilings(CEILINGS)
    assert not records.ceilings_hold(again(record, driver="590.2"))


def test_libraries_hold_with_both_their_precisions(record, monkeypatch):
    record.start_run()
    shape = problems.preset("gemm-2048").shape()
    row = PeerRow(shape=shape, timing=TIMES, layout="row-major", library="L")
    record.keep("rows", "gemm-2048", {"cuBLAS FP32": row})
    assert records.libraries_hold(record, "gemm-2048", ROOM) is False
    record.keep("rows", "gemm-2048", {"cuBLAS TF32": row})
    assert records.libraries_hold(record, "gemm-2048", ROOM) is True
    row = record.rows("gemm-2048")["cuBLAS TF32"]
    row.shape = {**shape, "M": 1024}
    assert records.libraries_hold(record, "gemm-2048", ROOM) is False
    row.shape = shape
    assert records.libraries_hold(record, "gemm-2048", ROOM) is True
    versions = sources.versions
    monkeypatch.setattr(sources, "versions", lambda names: {**versions(names), "torch": "9.9"})
    assert records.libraries_hold(record, "gemm-2048", ROOM) is False


# --- what else a record holds of a step ---

PRESET = "gemm-2048"
SHAPE = problems.preset(PRESET)


@pytest.fixture
def measured(record, steps, monkeypatch, write, tmp_path):
    """The record with all that is measured of a step beside its time."""
    monkeypatch.setattr(catalog, "everything", lambda: steps)
    made = cache.code(write("lessons/01_one/ways.py", "WAYS = 1\n"))
    for step in steps:
        fields = {"source": cache.code(step.path)}
        record.keep("sweeps", PRESET, {step.name: records.Sweep(**fields, points=[])})
        record.keep("profile", PRESET, {step.name: records.Profile(**fields, kernels=[], shape=SHAPE.shape())})
        shape = SHAPE.shape()
        agreed = records.Agreement(**fields, shape=shape, kernels=[])
        record.keep("agreement", step.name, {str(SHAPE): agreed})
        seen = {tool: records.Sanitized(**fields, errors=0) for tool in tools.TOOLS}
        record.keep("sanitizer", step.name, seen)
        entry = records.Epilogues(**fields, shape=shape, found=[], ways="lessons.01_one.ways", ways_source=made)
        record.keep("epilogues", PRESET, {step.name: entry})
        times = Paired(TIMES, TIMES, 1.0, 1.0, 1.0, 0.0)
        both = records.Compilers(**fields, shape=shape, times=times, successor="0.6")
        record.keep("compilers", PRESET, {step.name: both})
    errors = {step.name: records.Accuracy(points=[], source=cache.code(step.path)) for step in steps}
    for kind in ("normal", "small"):
        record.keep("accuracy", kind, errors)
    return record


def as_new(record, steps):
    """Of which steps each kind of entry is as new as the code."""
    names = [step.name for step in steps]
    epilogues, seen = record.data.epilogues[PRESET], record.data.sanitizer
    found = {
        "sweep": [name for name in names if not records.older(record.sweep(PRESET, name), name)],
        "row": [name for name in names if not records.older(record.row(PRESET, name), name)],
        "epilogues": [name for name in names if not records.older(epilogues[name], name)],
        "timed": [step.name for step in steps if records.holds(record.row(PRESET, step.name), step)],
        "counters": [step.name for step in steps if records.holds(record.profile(PRESET, step.name), step)],
        "sanitized": [step.name for step in steps if records.holds(seen[step.name]["memcheck"], step)],
        "agreed": [step.name for step in steps if records.holds(record.data.agreement[step.name][str(SHAPE)], step)],
        "compilers": [step.name for step in steps if parts.PARTS["compilers"].holds(record, (step, PRESET))],
        "errors": [step.name for step in steps if records.errors_hold(record, [step])],
    }
    assert records.errors_hold(record, steps) == (found["errors"] == names)
    return found


PLAIN_ALONE, AIDED_ALONE, BOTH = ["gemm_plain"], ["gemm_aided"], ["gemm_plain", "gemm_aided"]


def test_what_is_measured_of_a_step_is_as_new_as_its_file_and_helpers(measured, steps, write):
    kinds = as_new(measured, steps)
    assert kinds == dict.fromkeys(kinds, BOTH)
    text = steps[0].path.read_text()
    write("lessons/01_one/gemm_plain.py", text.replace("pass", "return"))
    assert as_new(measured, steps) == dict.fromkeys(kinds, AIDED_ALONE)
    write("lessons/01_one/gemm_plain.py", text)
    write("lessons/toolkit/aid.py", "SIZE = 8\n")
    assert as_new(measured, steps) == dict.fromkeys(kinds, PLAIN_ALONE)


# --- verdicts ---


def outcomes(step, status="right"):
    return [Outcome(step=step, problem=problem, status=status) for problem in problems.RAGGED["gemm"][:2]]


def test_verdicts_are_known_until_the_code_changes(steps, write):
    for step in steps:
        run.keep(outcomes(step), "tracer")
    assert run.known(steps, "tracer") == {s.name: outcomes(s) for s in steps}
    write("lessons/toolkit/aid.py", "SIZE = 8\n")
    assert list(run.known(steps, "tracer")) == ["gemm_plain"]
    assert run.known(steps, "another engine") == {}


def test_only_steps_that_are_right_are_kept(steps, monkeypatch, capsys):
    checked = []

    class Checking(contextlib.nullcontext):
        def __init__(self, given, without_gpu, **options):
            super().__init__(self)
            checked.append([step.name for step in given])

        def of(self, given):
            for step in given:
                yield from outcomes(step, "wrong" if step.name == "gemm_aided" else "right")

    monkeypatch.setattr(run, "Checking", Checking)
    monkeypatch.setattr(console, "print_checks", lambda *_, **__: None)
    monkeypatch.setattr(changed.edits, "keep", lambda _: None)
    for _ in range(2):
        found, _ = changed.check_changed(steps, {}, True, fresh=False)
        assert [outcome.step.name for outcome in found] == ["gemm_plain"] * 2 + ["gemm_aided"] * 2
    assert checked == [["gemm_plain", "gemm_aided"], ["gemm_aided"]]
    assert "verdicts that are as new as the code, and were kept: 1" in capsys.readouterr().out


def test_a_step_is_timed_as_soon_as_it_is_right(tmp_path, monkeypatch):
    """And one that is wrong is not; the ceilings come last, with what ran at a low clock."""
    record = Record.open(device.Gpu(**GPU), tmp_path / "results")
    record.start_run()
    steps = [catalog.find(name) for name in ("gemm_naive", "gemm_coarsened", "conv2d_naive")]
    did = []

    class Checking(contextlib.nullcontext):
        def __init__(self, *_, timed, **options):
            super().__init__(self)
            did.append(["compile", *(step.name for step, _ in timed)])

        def of(self, given):
            for step in given:
                did.append(["check", step.name])
                yield from outcomes(step, "wrong" if step.name == "gemm_coarsened" else "right")

        def wait(self, step):
            did.append(["wait", step.name])

    def measure(pairs, file, quick, ready):
        assert quick
        did.append(["time", *(step.name for step, _ in pairs)])
        for step, preset in pairs:
            yield Outcome.of(step, problems.preset(preset), preset, result(step, problems.preset(preset).shape()))

    def device_rates():
        did.append(["ceilings"])
        return device.Gpu(**GPU), CEILINGS

    monkeypatch.setattr(run, "Checking", Checking)
    monkeypatch.setattr(Record, "open", lambda *_: record)
    monkeypatch.setattr(run, "inspect_device", lambda: (device.Gpu(**GPU), ROOM))
    monkeypatch.setattr(measuring, "measure", measure)
    monkeypatch.setattr(measuring, "measure_device", device_rates)
    monkeypatch.setattr(measuring, "at_a_low_clock", lambda found: [(found[0].step, found[0].preset)])
    for owner, name in ((console, "print_checks"), (benches.Rows, "show"), (changed.edits, "keep")):
        monkeypatch.setattr(owner, name, lambda *_, **__: None)
    found, timed = changed.check_changed(steps, {}, False, fresh=True)
    assert did == [
        ["compile", *(step.name for step in steps)],
        ["check", "gemm_naive"], ["wait", "gemm_naive"], ["time", "gemm_naive"], ["check", "gemm_coarsened"],
        ["check", "conv2d_naive"], ["wait", "conv2d_naive"], ["time", "conv2d_naive"],
        ["ceilings"], ["time", "gemm_naive"],
    ]  # fmt: skip
    assert [outcome.step.name for outcome in timed] == ["gemm_naive", "conv2d_naive"]
    assert {outcome.step.name for outcome in found} == {step.name for step in steps}


# --- the bench ---


@pytest.fixture
def bench(record, monkeypatch):
    """Runs a bench on that record; returns what was measured."""
    monkeypatch.setattr(peers, "available", lambda: False)
    monkeypatch.setattr(run, "_sizes", lambda *_: [])
    monkeypatch.setattr(console, "print_times", lambda *_: None)

    def bench(steps, fresh=False, **gpu):
        measured = []

        def device_rates():
            measured.append("ceilings")
            return device.Gpu(**GPU), CEILINGS

        def measure(pairs, file, quick=False, ready=None):
            for step, preset in pairs:
                measured.append(step.name)
                problem = problems.preset(preset)
                yield Outcome.of(step, problem, preset, result(step, problem.shape()))

        monkeypatch.setattr(measuring, "measure", measure)
        monkeypatch.setattr(measuring, "measure_device", device_rates)
        monkeypatch.setattr(run, "inspect_device", lambda: (device.Gpu(**{**GPU, **gpu}), ROOM))
        pairs = [(step, "gemm-2048") for step in steps]
        found = benches.measure_rows(pairs, fresh)
        assert {outcome.status for outcome in found} <= {"right"}
        return measured

    return bench


def test_a_second_bench_measures_nothing_and_writes_nothing(bench, steps, record, capsys):
    assert bench(steps) == ["ceilings"]
    before = record.path.read_bytes()
    assert bench(steps) == []
    assert record.path.read_bytes() == before
    assert "rows that are as new as the code, and were kept: 2" in capsys.readouterr().out


def test_an_edit_and_a_driver_and_fresh_are_measured(bench, steps, write):
    bench(steps)
    write("lessons/toolkit/aid.py", "SIZE = 8\n")
    assert bench(steps) == ["gemm_aided"]
    assert bench(steps) == []
    assert bench(steps, fresh=True) == ["ceilings", "gemm_plain", "gemm_aided"]
    assert bench(steps, driver="590.2") == ["ceilings", "gemm_plain", "gemm_aided"]


# --- charts ---


@pytest.mark.parametrize("shipped", [True, False])
def test_what_is_drawn_is_current_until_something_changes(monkeypatch, write, shipped):
    picture, keys = write("picture.png", "one"), ["one"]
    monkeypatch.setattr(pages, "units", lambda shipped: [Draw("code" if shipped else "card", "it")])
    monkeypatch.setattr(pages, "_key", lambda unit: keys[-1] + unit.what)
    drawn = Answer(status="right", found=[str(picture)])
    monkeypatch.setattr(pages.isolate, "run_groups", lambda groups, *_: [(group[0], drawn) for group in groups])
    assert len(pages.stale(shipped)) == 1
    list(pages.draw(pages.stale(shipped)))
    assert pages.stale(shipped) == []
    assert len(pages.stale(not shipped)) == 1
    assert len(pages.stale(shipped, fresh=True)) == 1
    keys.append("two")
    assert len(pages.stale(shipped)) == 1
    keys.pop()
    assert pages.stale(shipped) == []
    picture.write_text("another")
    assert len(pages.stale(shipped)) == 1
