"""A step in a lesson of its own is two files, as CONTRIBUTING.md says; nothing in ``common/`` has to know it."""

import json
import shutil

import pytest
from copies import copied, printed

from common.catalog import catalog

NAME = "gemm_added"
SHAPE = ("--shape", "M=5 N=7 K=3")
COMMANDS = {
    "list": ["list", "--json"],
    "check": ["check", NAME, *SHAPE, "--sim", "--json"],
    "trace": ["trace", NAME, *SHAPE],
    "diff": ["diff", "gemm_tuned", NAME],
}


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What the command line prints, by command, in a copy of the checkout with one lesson more."""
    copy = copied(tmp_path_factory.mktemp("step"))
    last = [step for step in catalog.steps() if step.ladder == "gemm"][-1]
    lesson = copy / "lessons/99_added"
    lesson.mkdir()
    shutil.copy(catalog.LESSONS / "01_naive/__main__.py", lesson)
    text = catalog.find("gemm_naive").path.read_text(encoding="utf-8").replace("gemm_naive", NAME)
    text = text.replace("Previous step: none", f"Previous step: {last.name}")
    (lesson / f"{NAME}.py").write_text(text, encoding="utf-8")
    return dict(zip(COMMANDS, printed(copy, *COMMANDS.values()), strict=True))


def test_it_stands_at_the_end_of_its_ladder(said):
    found = json.loads(said["list"])
    names = [step["step"] for step in found if step["ladder"] == "gemm" and not step.get("varies")]
    assert names.index(NAME) == len([step for step in catalog.steps() if step.ladder == "gemm"])
    assert found[names.index(NAME)]["lesson"] == "99_added"


def test_it_is_checked_traced_and_compared(said):
    (outcome,) = json.loads(said["check"])["results"]
    assert (outcome["step"], outcome["status"]) == (NAME, "right")
    assert "No fault in what was traced" in said["trace"]
    assert "+ acc += a[m, k] * b[k, n]" in " ".join(said["diff"].split())
