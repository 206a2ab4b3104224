"""Record files: written whole or not at all, read with suspicion; the shipped one is of the shipped kernels."""

import json
from dataclasses import replace

import pytest
from made import GPU
from msgspec import to_builtins
from msgspec.structs import replace as replaced

from common.catalog import cache, catalog, problems
from common.catalog.device import Gpu
from common.catalog.problems import Conv2d, Gemm
from common.check import run
from common.machine_code import summaries
from common.records import records
from common.records.records import (
    MachineCode,
    PeerRow,
    Record,
    RecordError,
    Run,
    StepCode,
    StepRow,
)
from common.run.messages import StepResult
from common.timing import peers, timing
from common.timing.ceilings import Ceilings

CARD = Gpu(**GPU)
CEILINGS = {"copy_gbs": 1000.0, "fma_gflops": 10_000.0}
MEASURED = Ceilings(**CEILINGS)


def row(ms, shape=None):
    return StepRow(
        shape=shape or {"M": 2048, "N": 2048, "K": 2048},
        timing=timing.summarise([ms] * 10),
        prepare_ms=None,
        workspace_bytes=0,
        source="0" * 64,
    )


def peer_row(ms):
    return PeerRow(shape={"M": 2048, "N": 2048, "K": 2048}, timing=timing.summarise([ms] * 10))


@pytest.fixture
def record(tmp_path):
    return Record.open(CARD, tmp_path)


def files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


# --- writing ---


def test_a_timed_outcome_is_stored_with_the_code_that_ran(record):
    step, key = catalog.find("gemm_wide_loads"), record.start_run()
    code = cache.code(step.path)
    ran = {"shape": row(1.0).shape, "timing": row(1.0).timing, "source": code, "workspace_bytes": 0}
    result = StepResult(
        status="right", **ran, prepare_ms=None, first_launch_ms=9.0, elements_compared=5, free_bytes=1
    )
    records.record_step(record, run.Outcome.of(step, problems.preset("gemm-2048"), "gemm-2048", result))
    found = Record.load(record.path).row("gemm-2048", step.name)
    assert (found.source, records.holds(found, step)) == (code, True)
    assert (found.first_launch_ms, found.run) == (9.0, key)
    assert "free_bytes" not in to_builtins(found)


def test_what_was_measured_holds_while_the_machine_code_is_the_same(tmp_path, monkeypatch):
    """A step whose file changed and became the same machine code; then one that became another."""
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    for function in (records.load_code, records.save_code):
        monkeypatch.setattr(function, "__defaults__", (tmp_path,))
    step = catalog.find("gemm_naive")
    now, old, other = cache.code(step.path), row(1.0), StepCode(source="s", kernels=[])
    before = StepCode(source=old.source, kernels=[], digest="a" * 64)
    for digest, holds in (("a" * 64, True), ("b" * 64, False)):
        records.save_code(MachineCode(steps={step.name: before, "gemm_tuned": other, "gemm_lost": other}))
        result = StepResult(status="right", source=now, kernels=[], digest=digest)
        records.record_code([run.Outcome.of(step, problems.preset("gemm-2048"), "gemm-2048", result)])
        found = records.load_code().steps
        assert found.keys() == {step.name, "gemm_tuned"}  # a step that is gone goes
        assert found[step.name].earlier == ([old.source] if holds else [])
        assert records.holds(old, step) == holds
        assert not records.holds(replaced(old, source="2" * 64), step)
        assert records.holds(replaced(old, source=now), step)
        (tmp_path / records.CODE_FILE).unlink()


def test_a_step_has_its_own_kernels_on_some_presets_and_its_usual_ones_on_the_others():
    kernel = summaries.Kernel(kernel="k", architecture="9.0", registers=1)
    own = replaced(kernel, registers=2)
    code = MachineCode(steps={"gemm_naive": StepCode(source="s", kernels=[kernel], other_presets={"photo": [own]})})
    found = [records.code_kernels(code, "gemm_naive", preset) for preset in ("photo", "gemm-2048", None)]
    assert found == [[own], [kernel], [kernel]]
    assert records.code_kernels(code, "gemm_lost") == []


def test_what_another_program_writes_meanwhile_is_kept(record, tmp_path):
    theirs = "2026-01-01T00:00:00Z"
    other = Record.open(replace(CARD, driver="9.9"), tmp_path)
    record.start_run()
    other.run, other.data.runs[theirs] = theirs, Run(date=theirs[:10], driver="9.9", cuda="13.0", packages={})
    other.keep("rows", "gemm-2048", {"gemm_tuned": row(1.0)})
    record.keep("rows", "gemm-2048", {"gemm_naive": row(2.0)})
    assert Record.load(record.path).data.gpu.driver == "1.2"
    other.keep("rows", "gemm-2048", {"gemm_wide_loads": row(3.0)})
    again = Record.load(record.path)
    assert {name: again.run_of(found).driver for name, found in again.rows("gemm-2048").items()} == {
        "gemm_naive": "1.2", "gemm_tuned": "9.9", "gemm_wide_loads": "9.9",
    }  # fmt: skip
    assert again.data.gpu.driver == "9.9"


def test_round_trip(record, tmp_path):
    key = record.start_run()
    record.set_ceilings(MEASURED)
    record.keep("rows", "gemm-2048", {"gemm_naive": row(2.0)})
    record.keep("rows", "gemm-2048", {"cuBLAS FP32": peer_row(1.0)})
    again = Record.load(tmp_path / "nvidia-test-9.json")
    assert again.data == record.data
    assert (again.slug, again.gpu_name) == ("nvidia-test-9", "NVIDIA Test 9")
    assert set(again.rows("gemm-2048")) == {"gemm_naive", "cuBLAS FP32"}
    assert (again.row("gemm-2048", "gemm_lost"), again.rows("unet3d")) == (None, {})
    assert again.ceilings.copy_gbs == 1000.0
    assert again.run_of(again.row("gemm-2048", "gemm_naive")).date == key[:10]
    assert files(tmp_path) == ["nvidia-test-9.json"]


# --- reading ---

GOOD = {"schema": records.SCHEMA, "gpu": GPU, "ceilings": None, "runs": {}, "rows": {}}


@pytest.mark.parametrize(("content", "says"), [
    ("{", "not a readable record"), ("", "not a readable record"), ("\xff\xfe", "not a readable record"),
    ("[]", "Expected `object`, got `array`"), ("{}", "missing required field `gpu`"),
    (json.dumps({**GOOD, "schema": "somebody-else/7"}), "Invalid value 'somebody-else/7' - at `$.schema`"),
    (json.dumps({k: v for k, v in GOOD.items() if k != "gpu"}), "missing required field `gpu`"),
    (json.dumps({**GOOD, "runs": []}), "Expected `object`, got `array` - at `$.runs`"),
    (json.dumps({**GOOD, "rows": None}), "Expected `object`, got `null` - at `$.rows`"),
])  # fmt: skip
def test_a_file_that_is_no_record_is_named_and_left_alone(tmp_path, content, says):
    path = tmp_path / "nvidia-test-9.json"
    path.write_bytes(content.encode("latin-1"))
    for read in (Record.load, lambda p: Record.open(CARD, p.parent)):
        with pytest.raises(RecordError) as caught:
            read(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert says in str(caught.value)
        assert "move" in str(caught.value)  # what to do
    with pytest.raises(RecordError, match=r"nvidia-test-9\.json"):
        [Record.load(one) for one in records.files(tmp_path)]
    assert path.read_bytes() == content.encode("latin-1")
    assert files(tmp_path) == ["nvidia-test-9.json"]


def test_the_files_of_records_are_every_gpus_and_nothing_beside_them(tmp_path):
    for slug in ("nvidia-b", "nvidia-a"):
        made = Record.open(replace(CARD, name=slug), tmp_path)
        made.start_run()
        made.set_ceilings(MEASURED)
    records.save_code(MachineCode(), tmp_path)
    (tmp_path / "verdicts.json").write_text("{}")
    assert [made.slug for made in map(Record.load, records.files(tmp_path))] == ["nvidia-a", "nvidia-b"]
    assert records.files(tmp_path / "nowhere") == []


def test_the_machine_code_record_round_trips_and_is_read_with_suspicion(tmp_path):
    assert records.load_code(tmp_path).steps == {}
    code = MachineCode(tools={"tool": "1"}, steps={"gemm_naive": StepCode(source="s", kernels=[])})
    records.save_code(code, tmp_path)
    assert records.load_code(tmp_path) == code
    path = tmp_path / records.CODE_FILE
    for content in ("{", "[]", '{"schema": "x", "steps": {}}', json.dumps({"schema": records.SCHEMA, "steps": []})):
        path.write_text(content)
        with pytest.raises(RecordError, match=r"machine-code\.json"):
            records.load_code(tmp_path)
        assert path.read_text() == content


# --- derive ---


@pytest.mark.parametrize(
    ("problem", "ms", "gflops", "gbs", "floor_ms", "kind"),
    [
        # 2 * 1000**3 = 2e9 FLOP at 10 TFLOP/s take 0.2 ms; 12e6 bytes at 1 TB/s take 0.012 ms
        (Gemm(M=1000, N=1000, K=1000), 0.5, 4000, 24, 0.2, "multiply-adds"),
        # x 10 * 100 * 100, y the same, one weight: 200 001 floats, 800 004 bytes; 200 000 FLOP
        (Conv2d(N=10, C=1, H=100, W=100, K=1, R=1, S=1), 0.01, 20, 80.0004, 800_004e-9, "memory"),
    ],
)
def test_derived_figures(problem, ms, gflops, gbs, floor_ms, kind):
    found = records.derive(problem, ms, MEASURED)
    assert (found.gflops, found.gbs) == (pytest.approx(gflops), pytest.approx(gbs))
    assert (found.floor_ms, found.floor_kind) == (pytest.approx(floor_ms), kind)
    assert found.percent_of_floor == pytest.approx(100 * floor_ms / ms)


# --- the shipped record ---

FILES = catalog.everything()
PAIRS = [(step, preset) for step in catalog.steps() for preset in catalog.presets(step)]
PAIRS += [(step, problems.DEFAULT_PRESET[step.ladder]) for step in FILES if step.experiment]
LADDERS = dict.fromkeys(step.ladder for step in catalog.steps())
TIMED = [preset for ladder in LADDERS for preset in problems.timed_presets(ladder)]


@pytest.fixture(scope="session")
def other():
    """The record of the other card, where a new step may have been measured first."""
    return Record.load(records.RESULTS / "nvidia-h100-80gb-hbm3.json")


@pytest.mark.parametrize(("step", "preset"), PAIRS, ids=lambda v: v if isinstance(v, str) else v.name)
def test_every_step_was_measured_as_it_is_shipped(shipped, other, step, preset):
    found = shipped.row(preset, step.name) or other.row(preset, step.name)
    assert found is not None, f"no row: python -m common bench {step.name}"
    assert isinstance(found, StepRow)
    assert records.holds(found, step), f"older than the kernel: bench {step.name} again"
    assert found.elements_compared >= 20_000


@pytest.mark.parametrize("preset", TIMED)
def test_every_preset_has_the_library_beside_it(shipped, other, preset):
    problem = problems.preset(preset)
    library = peers._library(problem)
    peer = f"{library} {peers.precisions(problem)[0]}"
    shipped = shipped if shipped.row(preset, peer) else other
    found = shipped.row(preset, peer)
    assert found is not None, f"no row: python -m common bench --problem {preset}"
    assert isinstance(found, PeerRow)
    assert library in found.library or "CUDA" in found.library
    steps = [one for one in shipped.rows(preset).values() if isinstance(one, StepRow)]
    assert all(one.shape == found.shape for one in steps)  # they ran the same problem


@pytest.mark.parametrize("name", sorted(path.name for path in records.RESULTS.glob("nvidia-*.json")))
def test_a_shipped_record_is_as_the_harness_writes_it(name, tmp_path):
    # or the first run of anybody would change a file that git tracks
    path = records.RESULTS / name
    again = Record(tmp_path / name, Record.load(path).data)
    preset, rows = next(iter(again.data.rows.items()))
    name, found = next(iter(rows.items()))
    del rows[name]
    again.run = found.run
    again.keep("rows", preset, {name: found})
    assert again.path.read_bytes() == path.read_bytes()


def test_the_shipped_machine_code_is_as_the_harness_writes_it(tmp_path):
    records.save_code(records.load_code(), tmp_path)
    written, shipped = ((folder / records.CODE_FILE).read_bytes() for folder in (tmp_path, records.RESULTS))
    assert written == shipped


MINIMAL = "dgrad_minimal_filtering", "wgrad_minimal_filtering", "wgrad_stream_k"
SPARSE = "hgemm_sparse", "hgemm_sparse_wgmma"
FEWER = dict.fromkeys(MINIMAL, 36 / 16) | dict.fromkeys(SPARSE, 2)  # times as few products


def test_no_fp32_time_is_below_the_floor_but_an_algorithm_with_less_work(shipped):
    for preset, rows in shipped.data.rows.items():
        for name, found in rows.items():
            if isinstance(found, StepRow):
                assert shipped.derive(preset, found).percent_of_floor < 100 * FEWER.get(name, 1), (preset, name)


@pytest.mark.parametrize("step", FILES, ids=lambda step: step.name)
def test_the_machine_code_record_is_of_the_shipped_kernels(step, shipped_code):
    entry = shipped_code.steps.get(step.name)
    assert entry is not None, "not compiled: python -m common inspect --record"
    assert entry.source == cache.code(step.path), "older than its code: python -m common inspect --record"
    assert entry.kernels
    assert shipped_code.tools


# --- floors of other precisions ---

TENSOR_CORES = Ceilings(
    copy_gbs=4000.0, fma_gflops=60e3, tensor_gflops={"mma_f16": 600e3, "wgmma_f16": 800e3, "mma_tf32": 300e3}
)


def test_one_floor_holds_for_all_rows_of_a_card_and_three_products_take_three_times_as_long(record):
    record.start_run()
    rates = {**TENSOR_CORES.tensor_gflops, "wgmma_tf32": 390e3}
    record.set_ceilings(replaced(TENSOR_CORES, tensor_gflops=rates))
    shape = {"M": 4096, "N": 4096, "K": 4096}
    half, single = (problems.preset(name).flops / 1e6 for name in ("hgemm-4096", "gemm-4096"))
    for name, requires in (("hgemm_mma", "8.0"), ("hgemm_wgmma", "9.0a")):
        record.keep("rows", "hgemm-4096", {name: replaced(row(1.0, shape), requires=requires)})
        found = Record.load(record.path)
        assert half / found.derive("hgemm-4096", found.row("hgemm-4096", name)).floor_ms == pytest.approx(800e3)
    split = replaced(row(1.0, shape), requires="9.0a", precision="tf32x3")
    record.keep("rows", "gemm-4096", {"gemm_tf32x3": split})
    assert single / record.derive("gemm-4096", split).floor_ms == pytest.approx(130e3)
    found = {name: single / one.floor_ms for name, one in record.floors("gemm-4096")}
    assert found == {"floor": pytest.approx(60e3), "3×TF32 floor": pytest.approx(130e3)}
