"""No right kernel is called wrong: every step, experiment and solution at shapes drawn anew."""

import os

import false_alarms
import mutants
import pytest
from sampling import one_of_each

from common.catalog import problems
from common.catalog.problems import Gemm
from common.check import plan

SHAPES = 2 if os.environ.get("WORKBOOK_ALL") else 1  # for each; tests/false_alarms.py draws more


@pytest.mark.parametrize("ladder", problems.LADDERS)
def test_what_is_right_is_called_right(ladder):
    kernels = [kernel for kernel in false_alarms.everything() if kernel.ladder == ladder]
    kernels = one_of_each(kernels, lambda _: "a kernel")
    seed = 0 if os.environ.get("CI") else plan.new_seed()
    said = [
        f"{kernel.name}: {problem}: {text}"
        for kernel, problem, text in false_alarms.alarms(kernels, seed, SHAPES, processes=1)
        if text
    ]
    assert said == [], f"seed {seed}"


def test_a_wrong_kernel_raises_an_alarm():
    wrong = false_alarms.Right("gemm_relu", "gemm", mutants.path("gemm_relu"))
    ((kernel, problem, text),) = false_alarms.alarms([wrong], 0, 1, processes=1)
    assert (kernel, type(problem)) == (wrong, Gemm)
    assert text.startswith("wrong with seed ")


def test_a_tf32_kernel_gets_operands_that_tf32_holds(monkeypatch):
    kernel = next(one for one in false_alarms.everything() if one.precision == "tf32" and one.ladder == "conv2d")
    fields = {"engine": "traced", "depth": "once", "seed": 1, "special": "large"}
    shape = problems.parse_shape("conv2d", "N=1 C=4 H=7 W=7 K=4 R=3 S=2")
    monkeypatch.setattr(false_alarms, "drawn", lambda *_: [(shape, fields)])
    ((_, _, text),) = false_alarms.alarms([kernel], 0, 1, processes=1)
    assert text == ""
