"""The first step of a ladder that has none yet: all that is done with a step is done with it."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from common.book import catalog

LADDERS = ("hgemm", "hconv3d", "dgrad", "wgrad")
SPACE = "N=1 C=5 D=2 H=5 W=6 K=6 T=1 R=3 S=2 stride_h=2 pad_w=1"
COPIED = ("common", "lessons", "results")
BEGINNING = '''"""{name}: one thread for each element of C, on float16 arrays.

Previous step: none
"""

from numba import cuda, float32
from numba.types import float16
'''
GEMM = (
    BEGINNING
    + """

@cuda.jit
def product(a, b, c):
    M, N = c.shape
    n, m = cuda.grid(2)
    if m < M and n < N:
        acc = float32(0.0)
        for k in range(a.shape[1]):
            acc += float32(a[m, k]) * float32(b[k, n])
        c[m, n] = float16(acc)


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // 16), -(-M // 16)), (16, 16)](a, b, c)
"""
)


@pytest.fixture(scope="module")
def call(tmp_path_factory):
    """The command line of a copy of the checkout, with a lesson more: steps on float16 arrays, and two gradients."""
    copy = tmp_path_factory.mktemp("copy")
    for name in COPIED:
        ignored = shutil.ignore_patterns("*.pyc.*", "charts")  # another worker may be writing one
        shutil.copytree(catalog.ROOT / name, copy / name, ignore=ignored)
    for step in catalog.steps():
        if step.ladder in LADDERS:  # as if they had none
            (copy / step.path.relative_to(catalog.ROOT)).unlink()
    lesson = copy / "lessons/99_added"
    lesson.mkdir()
    shutil.copy(catalog.LESSONS / "01_naive/__main__.py", lesson)
    (lesson / "hgemm_added.py").write_text(GEMM.format(name="hgemm_added"), encoding="utf-8")
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
    env = {**os.environ, "COLUMNS": "200", "PYTHONPATH": ""}

    def call(*words):
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=copy, env=env, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return call


@pytest.mark.parametrize(
    ("name", "bits", "shape"),
    [
        ("hgemm_added", 16, "M=18 N=20 K=19"),
        ("hconv3d_added", 16, SPACE),
        ("dgrad_added", 32, SPACE),
        ("wgrad_added", 32, SPACE),
    ],
)
def test_it_is_checked_traced_and_compiled(call, name, bits, shape):
    (outcome,) = json.loads(call("common", "check", name, "--shape", shape, "--sim", "--json"))["results"]
    assert (outcome["step"], outcome["status"]) == (name, "right")
    trace = json.loads(call("common", "trace", name, "--shape", shape, "--json"))
    loads = [access for access in trace["kernels"][0]["accesses"] if access["space"] == "global"]
    assert {access["bits"] for access in loads} == {bits}
    assert "registers" in call("common", "inspect", name)


def test_the_new_ladders_stand_behind_the_others(call):
    found = json.loads(call("common", "list", "--json"))
    ladders = list(dict.fromkeys(step["ladder"] for step in found if not step.get("varies")))
    assert ladders == ["gemm", "conv2d", "conv3d", "hgemm", "hconv3d", "dgrad", "wgrad"]
