"""What a user measures and draws leaves the checkout as it was: only --record writes what is shipped."""

import json
import os
import shutil
import subprocess

import pytest
import texts
from copies import copied
from processes import python
from sampling import some_days

from common.catalog import catalog

SHIPPED = "NVIDIA H100 80GB HBM3"  # a card that a shipped record is of
SLUG = "nvidia-h100-80gb-hbm3"

FAKED = texts.of("commands")["faked"]


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
        said = python("-c", FAKED.replace("NAME", repr(name)), json.dumps(commands), cwd=checkout, env=env).stdout
        return git(checkout, "status", "--porcelain"), said

    yield play
    git(checkout, "checkout", "--quiet", ".")
    git(checkout, "clean", "--quiet", "--force", "-d", "-x", "results")
    shutil.rmtree(checkout / ".workbook", ignore_errors=True)


@some_days(2)
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
    assert (own / "charts" / SLUG / "gemm-2048.png").is_file()
    assert f"# {SHIPPED}" in (own / f"{SLUG}.md").read_text()
    assert f"charts in .workbook/results/charts/{SLUG}/" in said


@some_days(3)
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
