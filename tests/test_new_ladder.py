"""A step in a lesson of its own is two files, as CONTRIBUTING.md says; it may be the first of its ladder.

Nothing in ``common/`` has to know it: all that is done with a step is done with it.
"""

import json
import shutil
from pathlib import Path

import mutants
import pytest
from copies import copied, printed
from sampling import some, some_days

from common.catalog import catalog, problems

pytestmark = some_days(4)

LADDERS = ("hgemm", "hconv3d", "dgrad", "wgrad")
SPACE = "N=1 C=5 D=2 H=5 W=6 K=6 T=1 R=3 S=2 stride_h=2 pad_w=1"
ADDED = {
    "gemm_added": (32, "M=5 N=7 K=3"),
    "hgemm_added": (16, "M=18 N=20 K=19"), "hconv3d_added": (16, SPACE), "dgrad_added": (32, SPACE),
    "wgrad_added": (32, SPACE),
}  # fmt: skip
TRIED = some(list(ADDED), len(ADDED), 1)
HGEMM = Path(mutants.__file__).with_name("bases") / "hgemm_one_thread_each.py"


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the checkout, with a lesson more: steps on float16 arrays, and two gradients."""
    copy = copied(tmp_path_factory.mktemp("ladders"))
    for step in catalog.steps():
        if step.ladder in LADDERS:  # as if they had none
            (copy / step.path.relative_to(catalog.ROOT)).unlink()
    lesson = copy / "lessons/99_added"
    lesson.mkdir()
    shutil.copy(catalog.LESSONS / "01_naive/__main__.py", lesson)
    _, docstring, text = HGEMM.read_text(encoding="utf-8").split('"""', 2)
    text = f'"""hgemm_added: {docstring}\n\nPrevious step: none\n"""{text}'
    (lesson / "hgemm_added.py").write_text(text, encoding="utf-8")
    text = catalog.find("conv3d_direct").path.read_text(encoding="utf-8").replace("conv3d_direct", "hconv3d_added")
    line = next(line for line in text.splitlines() if line.startswith("Previous step: "))
    text = text.replace(line, "Previous step: none")
    product = "x[n, d, h, w, c] * filt[gemm_n, t, r, s, c]"
    assert product in text
    wide = "float32(x[n, d, h, w, c]) * float32(filt[gemm_n, t, r, s, c])"  # else products are float16
    text = text.replace(product, wide)
    (lesson / "hconv3d_added.py").write_text(text, encoding="utf-8")
    for name in ("dgrad", "wgrad"):
        text = catalog.find(f"{name}_direct").path.read_text(encoding="utf-8")
        (lesson / f"{name}_added.py").write_text(text.replace(f"{name}_direct", f"{name}_added"), encoding="utf-8")
    last = [step for step in catalog.steps() if step.ladder == "gemm"][-1]
    text = catalog.find("gemm_naive").path.read_text(encoding="utf-8").replace("gemm_naive", "gemm_added")
    text = text.replace("Previous step: none", f"Previous step: {last.name}")
    (lesson / "gemm_added.py").write_text(text, encoding="utf-8")
    return copy


@pytest.fixture(scope="module")
def said(copy):
    """What the copy's command line prints of each step that was added: its check, its trace, its machine code."""
    commands = []
    for name in TRIED:
        shape = ADDED[name][1]
        commands += [
            ["check", name, "--shape", shape, "--sim", "--json"], ["trace", name, "--shape", shape, "--json"],
            ["inspect", name],
        ]  # fmt: skip
    found = iter(printed(copy, *commands))
    return dict(zip(TRIED, zip(found, found, found, strict=True), strict=True))


@pytest.mark.parametrize("name", TRIED)
def test_it_is_checked_traced_and_compiled(said, name):
    checked, traced, inspected = said[name]
    (outcome,) = json.loads(checked)["results"]
    assert (outcome["step"], outcome["status"]) == (name, "right")
    loads = [access for access in json.loads(traced)["kernels"][0]["accesses"] if access["space"] == "global"]
    assert {access["bits"] for access in loads} == {ADDED[name][0]}
    assert "registers" in inspected


def test_they_stand_where_they_belong(copy):
    listed, difference = printed(copy, ["list", "--json"], ["diff", "gemm_tuned", "gemm_added"])
    found = json.loads(listed)
    ladders = list(dict.fromkeys(step["ladder"] for step in found if not step.get("varies")))
    assert ladders == list(problems.LADDERS)
    names = [step["step"] for step in found if step["ladder"] == "gemm" and not step.get("varies")]
    assert names[-1] == "gemm_added"
    assert "+ acc += a[m, k] * b[k, n]" in " ".join(difference.split())
