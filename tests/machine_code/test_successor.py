"""The successor's compiler: its record covers the steps, its page shows them, and a missing package is said."""

import contextlib
import json
import sys
from types import SimpleNamespace

import pytest

from common import cli
from common.catalog import cache, catalog, device, problems
from common.check import loading
from common.commands import arguments, console
from common.machine_code import capture, successor
from common.records import records
from common.report import tables
from common.run import isolate, messages
from common.timing import measuring, tools
from common.timing import tasks as timetasks

INSTALLED = successor.find_spec("numba_cuda_mlir") is not None


@pytest.fixture(scope="module")
def record():
    return successor.load(records.RESULTS)


def test_the_record_has_every_step_that_more_than_one_card_runs(record):
    assert set(record.steps) == {step.name for step in successor.steps()}
    for name, one in record.steps.items():
        assert bool(one.kernels) != bool(one.reason), name
        assert len(one.seconds) == 2 * bool(one.kernels), name


def test_the_table_shows_what_compiles_and_names_the_rest(record):
    table = tables.compilers(records.nothing(), records.load_code())
    shown = {row[0].strip("`") for row in table.rows}
    assert shown == {name for name, one in record.steps.items() if one.kernels}
    assert all(f"`{name}`" in table.note for name in set(record.steps) - shown)


@pytest.mark.skipif(INSTALLED, reason="numba-cuda-mlir is installed")
def test_without_the_package_it_says_how_to_get_it():
    with pytest.raises(successor.CompilerError, match=r"pip install 'numba-cuda-mlir\[cu13\]'"):
        successor.compiled(catalog.find("gemm_naive"), "gemm-4096")


@pytest.mark.skipif(not INSTALLED, reason="needs numba-cuda-mlir: pip install 'numba-cuda-mlir[cu13]'")
@pytest.mark.parametrize(
    ("name", "multiply_adds", "widths"),
    [
        ("gemm_shared_tile", 32, {"32": 32, "128": 8}), ("gemm_wide_loads", 32, {"128": 6}),
        ("gemm_tuned", 1024, {"128": 48}),
    ],
)  # fmt: skip
def test_a_step_compiles(name, multiply_adds, widths):
    (kernel,) = successor.compiled(catalog.find(name), "gemm-4096")
    assert kernel.kernel == name
    assert (kernel.hot.multiply_adds, kernel.hot.widths["shared load"]) == (multiply_adds, widths)
    assert not kernel.spill_bytes


@pytest.mark.skipif(not INSTALLED, reason="needs numba-cuda-mlir: pip install 'numba-cuda-mlir[cu13]'")
@pytest.mark.parametrize(
    ("name", "preset", "instruction"),
    [
        ("hgemm_mma", "hgemm-4096", "HMMA.16816"),
        ("dgrad_implicit_gemm", "dgrad-c3d-conv3a", "LDGSTS"),  # integers of 32 bits
        ("conv3d_implicit_gemm", "c3d-conv3a", "LDGSTS"),  # a named tuple made in the kernel
    ],
)
def test_inline_ptx_compiles(name, preset, instruction):
    (kernel,) = successor.compiled(catalog.find(name), preset)
    assert kernel.instructions[instruction]


@pytest.mark.skipif(not INSTALLED, reason="needs numba-cuda-mlir: pip install 'numba-cuda-mlir[cu13]'")
def test_dynamic_shared_memory_begins_behind_the_static():
    """By itself the compiler makes of dynamic memory one static byte more, at the address of the other static."""
    (kernel,) = successor.compiled(catalog.find("hconv3d_mma"), "hc3d-conv3a")
    assert (kernel.shared_bytes, kernel.dynamic_shared_bytes) == (1024, 196608)


def test_a_record_that_is_none_is_refused(tmp_path):
    (tmp_path / successor.FILE).parent.mkdir()
    (tmp_path / successor.FILE).write_text(json.dumps({"compiler": "x", "steps": {"a": {}}}))
    with pytest.raises(ValueError, match="missing required field `preset`"):
        successor.load(tmp_path)


# --- on a GPU ---


def test_a_compiler_that_is_none_is_told_with_those_that_are(monkeypatch, capsys):
    monkeypatch.setenv("COMPILER", "gcc")
    assert cli.main(["hint"]) == console.UNUSABLE
    assert "COMPILER=gcc: must be one of numba-cuda, mlir, or not set" in capsys.readouterr().err


@pytest.mark.parametrize("wanted", ["mlir", "numba-cuda", ""])
def test_a_gpu_is_ready_if_the_compiler_asked_for_is_there(wanted, monkeypatch):
    monkeypatch.setenv("COMPILER", wanted)
    monkeypatch.setattr(device, "gpu_count", lambda: 1)
    for name, found in {"loaded": SimpleNamespace(cuDriverGetVersion=0), "_asked": 99000, "_attribute": 9}.items():
        monkeypatch.setattr(device, name, lambda *_, found=found: found)
    monkeypatch.setattr(device, "find_spec", lambda _: None)
    if wanted != "mlir":
        assert device.ready()
        return
    with pytest.raises(ValueError, match=r"COMPILER=mlir: numba-cuda-mlir is not installed: pip install '"):
        device.ready()


@pytest.mark.parametrize("asked", [True, False])
def test_the_tracer_says_that_it_leaves_the_compiler_out(asked, monkeypatch, capsys):
    monkeypatch.setattr(device, "ready", lambda: False)
    for wanted, says in (("mlir", True), ("", False)):
        monkeypatch.setenv("COMPILER", wanted)
        assert arguments.without_gpu(asked, None)
        assert ("COMPILER=mlir is left out" in capsys.readouterr().out) == says


@pytest.mark.parametrize(
    ("gpus", "kind", "own", "said", "by_successor"),
    [
        (1, messages.Time, "", "mlir", True), (1, messages.Time, "", "", False),
        (0, messages.Time, "", "mlir", False), (1, messages.Check, "", "mlir", False),  # a check that is traced
        (1, messages.Time, "mlir", "", True), (1, messages.Time, "numba-cuda", "mlir", False),
    ],
)  # fmt: skip
def test_the_successor_compiles_what_the_gpu_runs_if_asked_to(gpus, kind, own, said, by_successor, monkeypatch):
    used = []
    monkeypatch.setenv("COMPILER", said)
    monkeypatch.setattr(device, "gpu_count", lambda: gpus)
    monkeypatch.setattr(successor, "on_gpu", lambda: contextlib.nullcontext(used.append(True)))
    step = catalog.find("gemm_naive")
    loading.load(kind(**messages.at(step, problems.FIRST["gemm"]), compiler=own))
    assert bool(used) == by_successor


def test_what_the_successor_computes_has_a_record_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("COMPILER", "mlir")
    with capture.no_device() as card:
        card.get_memory_info = lambda: SimpleNamespace(free=1, total=1)
        monkeypatch.setattr(device, "loaded", lambda: SimpleNamespace(cuDriverGetVersion=lambda _: 0))
        slug = device.current_gpu().slug
    assert slug == "nvidia-h200-with-mlir"
    (tmp_path / f"{slug}.json").write_text("{}")
    assert records.files(tmp_path) == []  # no table of numba-cuda's times shows it


def test_both_compilers_are_timed_in_turn_and_what_is_wrong_by_either_is_said(monkeypatch):
    step, asked = catalog.find("gemm_naive"), []

    def run(tasks, *_):
        asked.extend(tasks)
        return [(task, messages.StepResult(status="crashed", message="no such kernel")) for task in tasks]

    monkeypatch.setattr(device, "require_gpu", lambda _: None)
    monkeypatch.setattr(isolate, "run", run)
    monkeypatch.setattr(successor, "version", lambda: "0.6")
    with pytest.raises(tools.ToolError, match="gemm_naive: crashed: no such kernel"):
        list(measuring.time_compilers([(step, "gemm-4096")]))
    ((task,), (rival,)) = asked, asked[0].against.values()
    assert (task.compiler, rival.compiler) == ("mlir", "numba-cuda")
    assert task.path == rival.path == str(step.path)


@pytest.mark.parametrize("wrong", [None, "mlir", "numba-cuda"])
def test_a_file_by_two_compilers_is_timed_if_it_is_right_by_both(wrong, monkeypatch):
    loaded = []

    def verified(task, module, tile=None):
        status = "wrong" if module == wrong else "right"
        return messages.StepResult(status=status, shape=task.shape), SimpleNamespace(**calls), None

    def load(task, rival=None):
        loaded.append((rival or task).compiler)
        return loaded[-1]

    one = messages.Timing(1.0, 1.0, 1.0, 0.0, 10)
    calls = {"prepare": lambda: None, "launch": lambda: None}
    paired = messages.Paired(one, one, 1.0, 1.0, 1.0, 0.0)
    monkeypatch.setattr(timetasks, "_verified", verified)
    monkeypatch.setattr(timetasks.loading, "load", load)
    monkeypatch.setattr(timetasks.loading, "load_tiled", lambda task, tile: (load(task), tile))
    monkeypatch.setattr(timetasks, "_stopwatch", lambda: SimpleNamespace(measure_pairs=lambda *_: paired))
    monkeypatch.setattr(device, "current_gpu", lambda: SimpleNamespace(name="a card"))
    step = catalog.find("gemm_naive")
    against = {"numba-cuda": messages.Rival(path=str(step.path), compiler="numba-cuda")}
    task = messages.Pair(**messages.at(step, problems.FIRST["gemm"]), compiler="mlir", against=against)
    found = timetasks.pair_task(task)
    assert (found.status, bool(found.pairs)) == (("wrong", False) if wrong else ("right", True))


def test_the_table_has_the_times_by_both():
    step = catalog.find("gemm_naive")
    gpu = device.Gpu("NVIDIA Test 9", "9.0", 100, 2**36, 2**25, "1", "13.0")
    card = records.Record(records.RESULTS / "none.json", records.Card(gpu=gpu, runs={}, rows={}))
    first, second = (messages.Timing(ms, ms, ms, 0.0, 10) for ms in (2.0, 3.0))
    both = records.Compilers(
        source=cache.code(step.path), shape={}, successor="numba-cuda-mlir 0.6.0", run="now",
        times=messages.Paired(first, second, 2 / 3, 2 / 3, 2 / 3, 0.0),
    )  # fmt: skip
    card.data.runs["now"] = records.Run(date="2026-01-02", driver="1", cuda="13.0", packages={"numba-cuda": "0.30"})
    card.data.compilers = {"gemm-4096": {step.name: both}}
    table = tables.compilers(card, records.load_code())
    cells = {row[0].strip("`"): row[-1] for row in table.rows}
    assert table.header[-1] == "ms on NVIDIA Test 9"
    assert (cells["gemm_naive"], cells["gemm_shared_tile"]) == ("2.00 → 3.00", "")
    assert "with numba-cuda 0.30 and numba-cuda-mlir 0.6.0: median on one NVIDIA Test 9" in table.note


@pytest.mark.skipif(not INSTALLED, reason="needs numba-cuda-mlir: pip install 'numba-cuda-mlir[cu13]'")
def test_a_step_is_imported_with_the_successor_s_kernels_and_numba_is_back_afterwards():
    ours = "numba.", "lessons.", "llvmlite"
    before = {name: module for name, module in sys.modules.items() if name.startswith(ours)}
    with successor.on_gpu():
        module, helped = (catalog.load(catalog.find(name).path, "gemm") for name in ("gemm_naive", "gemm_wide_loads"))
    assert type(module.gemm_naive).__module__ == "numba_cuda_mlir.descriptor"
    assert module.cuda.to_device is sys.modules["numba.cuda"].to_device
    assert type(helped.load4).__module__.startswith("numba_cuda_mlir.")
    assert {name: sys.modules.get(name) for name in before} == before
