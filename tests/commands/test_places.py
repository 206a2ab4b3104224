"""What a user measures and draws leaves the checkout as it was: only --record writes what is shipped."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from copies import copied

from common.catalog import catalog
from common.records import records

SHIPPED = "NVIDIA H100 80GB HBM3"  # a card that a shipped record is of
SLUG = "nvidia-h100-80gb-hbm3"

# A card that measures at once, in a process of its own: the places of the copy are those of its modules.
FAKED = """
import json, sys
from msgspec import to_builtins
from common import cli
from common.catalog import catalog, device, problems, sources
from common.commands import steps
from common.check import compiling, run
from common.timing import measuring
from common.run.messages import StepResult
from common.timing.tasks import TunablesResult
from common.run.messages import Outcome
from common.timing import ceilings, peers, timing

gpu = device.Gpu(NAME, "9.0", 132, 80 << 30, 50 << 20, "580", "13.0")
took = timing.Timing(2.0, 1.9, 2.1, 0.0, 10)

def right(step, preset):
    problem = problems.preset(preset)
    result = {
        "status": "right", "timing": took, "prepare_ms": None, "first_launch_ms": 1.0, "workspace_bytes": 0,
        "elements_compared": 5, "shape": problem.shape(), **to_builtins(sources.provenance(step.path)),
        "imports": sources.imported_steps(step.path),
    }
    return Outcome(step=step, problem=problem, preset=preset, **result)

def measure(pairs, file=None, libraries=(), ceilings=False, quick=False):
    if ceilings:
        yield "ceilings", CEILINGS
    for step, preset in pairs:
        yield "step", right(step, preset)

CEILINGS = ceilings.Ceilings(copy_gbs=3000.0, fma_gflops=60000.0)
device.ready = lambda: True
peers.available = lambda: False
steps.isolate.warm = lambda: None
run.inspect_device = lambda: (gpu, 60 << 30)
measuring.measure = measure
run.compile_ahead = lambda pairs, others: None
compiling.summaries = lambda *_: iter([])
run.check_steps = lambda steps, *_, **__: (right(step, "gemm-2048") for step in steps)
measuring.tunables = lambda *_: TunablesResult(tunables={"PAD": [0, 1]}, shipped={"PAD": 1})
measuring.sweep = lambda step, preset, tiles: ((tile, StepResult(status="right", timing=took)) for tile in tiles)
for words in json.loads(sys.argv[1]):
    code = cli.lesson_main(words[0], words[1:]) if words[0][0] == "0" else cli.main(words)
    assert code == 0, (words, code)
"""


def git(copy, *words):
    known = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(known, cwd=copy, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the checkout that git knows, as a fresh clone is."""
    copy = copied(tmp_path_factory.mktemp("checkout"))
    shutil.copy(catalog.ROOT / ".gitignore", copy)
    shutil.copy(catalog.ROOT / "README.md", copy)
    git(copy, "init", "--quiet")
    git(copy, "add", "--all")
    git(copy, "commit", "--quiet", "--message", "a")
    return copy


@pytest.fixture
def play(checkout):
    """Run commands in the checkout with a card of this name; returns what git sees of it."""
    if shutil.which("git") is None:
        pytest.skip("no git on this machine")

    def play(name, *commands):
        env = {**os.environ, "COLUMNS": "200", "PYTHONPATH": ""}
        words = [sys.executable, "-c", FAKED.replace("NAME", repr(name)), json.dumps(commands)]
        done = subprocess.run(words, cwd=checkout, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return git(checkout, "status", "--porcelain"), done.stdout

    yield play
    git(checkout, "checkout", "--quiet", ".")
    git(checkout, "clean", "--quiet", "--force", "-d", "-x", "results")
    shutil.rmtree(checkout / ".workbook", ignore_errors=True)


def test_what_a_user_measures_and_draws_leaves_the_checkout_as_it_was(play, checkout):
    changed, said = play(
        SHIPPED, ["bench", "gemm_naive", "--problem", "gemm-2048"], ["sweep", "gemm_tuned", "--problem", "gemm-2048"],
        ["01_naive", "gemm_naive", "--problem", "gemm-2048"], ["charts"],
    )  # fmt: skip
    assert changed == ""
    own = checkout / ".workbook" / "results"
    record = json.loads((own / f"{SLUG}.json").read_text())
    assert record["rows"]["gemm-2048"].keys() == {"gemm_naive"}
    assert record["sweeps"]["gemm-2048"].keys() == {"gemm_tuned"}
    assert (own / "charts" / SLUG / "gemm-2048.svg").is_file()
    assert f"# {SHIPPED}" in (own / f"{SLUG}.md").read_text()
    assert f"charts in .workbook/results/charts/{SLUG}/" in said


def test_a_lesson_records_what_it_times(play, checkout):
    changed, _ = play("NVIDIA T4", ["01_naive", "gemm_naive", "--problem", "gemm-2048"])
    assert changed == ""
    record = json.loads((checkout / ".workbook/results/nvidia-t4.json").read_text())
    assert record["rows"]["gemm-2048"].keys() == {"gemm_naive"}
    assert record["ceilings"]["copy_gbs"] == 3000.0


def test_record_writes_what_is_shipped(play, checkout):
    changed, _ = play(SHIPPED, ["bench", "gemm_naive", "--problem", "gemm-2048", "--record"])
    assert changed.split() == ["M", f"results/{SLUG}.json"]
    assert not (checkout / ".workbook" / "results").exists()


def test_ones_own_record_comes_first_and_the_shipped_one_of_the_same_card_is_named_so(monkeypatch, tmp_path):
    own = records.Record(tmp_path / f"{SLUG}.json", records.Record.load(records.RESULTS / f"{SLUG}.json").data)
    own.start_run()
    own._change(lambda data: None)
    monkeypatch.setattr(records, "OWN", tmp_path)
    titles = [record.title for record in records.all_records()]
    assert titles == [SHIPPED, f"{SHIPPED}, shipped", "NVIDIA H200, shipped"]
