"""A step in a lesson of its own is two files, as CONTRIBUTING.md says; nothing in ``common/`` has to know it."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from common.book import catalog

COPIED = ("common", "lessons", "results")
NAME = "gemm_added"


@pytest.fixture(scope="module")
def call(tmp_path_factory):
    """The command line of a copy of the checkout, with one lesson more."""
    copy = tmp_path_factory.mktemp("copy")
    for name in COPIED:
        ignored = shutil.ignore_patterns("*.pyc.*", "charts")  # another worker may be writing one
        shutil.copytree(catalog.ROOT / name, copy / name, ignore=ignored)
    last = [step for step in catalog.steps() if step.ladder == "gemm"][-1]
    lesson = copy / "lessons/99_added"
    lesson.mkdir()
    shutil.copy(catalog.LESSONS / "01_naive/__main__.py", lesson)
    text = catalog.find("gemm_naive").path.read_text(encoding="utf-8").replace("gemm_naive", NAME)
    text = text.replace("Previous step: none", f"Previous step: {last.name}")
    (lesson / f"{NAME}.py").write_text(text, encoding="utf-8")
    env = {**os.environ, "COLUMNS": "200", "PYTHONPATH": ""}

    def call(*words):
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=copy, env=env, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return call


def test_it_stands_at_the_end_of_its_ladder(call):
    found = json.loads(call("common", "list", "--json"))
    names = [step["step"] for step in found if step["ladder"] == "gemm" and not step.get("varies")]
    assert names.index(NAME) == len([step for step in catalog.steps() if step.ladder == "gemm"])
    assert found[names.index(NAME)]["lesson"] == "99_added"


def test_it_is_checked_traced_and_compared(call):
    shape = ("--shape", "M=5 N=7 K=3")
    (outcome,) = json.loads(call("common", "check", NAME, *shape, "--sim", "--json"))["results"]
    assert (outcome["step"], outcome["status"]) == (NAME, "right")
    assert "No fault in what was traced" in call("common", "trace", NAME, *shape)
    assert "+ acc += a[m, k] * b[k, n]" in " ".join(call("common", "diff", "gemm_tuned", NAME).split())
