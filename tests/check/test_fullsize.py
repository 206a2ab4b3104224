"""What is looked at on the GPU is as strict as what the host looks at: traced, at small shapes."""

import kernels
import numpy as np
import pytest
from sampling import one_of_each

from common.catalog import catalog, problems
from common.catalog.problems import RAGGED
from common.check import check, fullsize, plan

PROBLEM = problems.Gemm(M=18, N=37, K=36)  # c has the shape of no operand
SAMPLES = 40

WRONG = {
    "unwritten": "if m or n != 7: c[m, n] = acc",
    "nan": "c[m, n] = acc if m != 3 or n != 5 else float32(float('nan'))",
    "infinite": "c[m, n] = acc if m != 3 or n != 5 else float32(float('inf'))",
    "changed a": "c[m, n] = acc\n        if m == 2 and n == 2: a[17, 35] = 100",
    "changed b": "c[m, n] = acc\n        if m == 2 and n == 2: b[35, 35] = 100",
    "wrong corner": "c[m, n] = acc + (1 if m == c.shape[0] - 1 and n == c.shape[1] - 1 else 0)",
}


pytestmark = pytest.mark.usefixtures("traced")


def verdict(write, store):
    module = catalog.load(write("gemm_mine.py", kernels.gemm(store)), "gemm")
    operands = fullsize.Operands(PROBLEM, 0, samples=SAMPLES)
    return fullsize.verify(check.Bench(module, PROBLEM, beside=operands), operands)


@pytest.mark.parametrize("store", [None, *WRONG.values()], ids=["right", *WRONG])
def test_a_kernel_is_right_or_what_is_wrong_is_found(write, store):
    found = verdict(write, store or "c[m, n] = acc")
    assert found.right == (store is None), found.findings
    assert found.elements_compared == SAMPLES + 4


# --- arrays of billions of elements: tried on small ones ---


FIRST = {
    "gemm": "gemm_naive", "conv2d": "conv2d_naive", "conv3d": "conv3d_direct", "dgrad": "dgrad_direct",
    "wgrad": "wgrad_direct",
}  # fmt: skip


@pytest.mark.parametrize("ladder", ["hgemm", "hconv3d"])
def test_sums_that_float16_must_hold_cannot_overflow(ladder):
    for problem in plan.listed("large", ladder):
        largest = np.abs(fullsize.numbers(problem)).max()
        assert 0 < largest <= 4
        assert largest**2 * problem.reduction < float(np.finfo(np.float16).max)


@pytest.mark.parametrize("ladder", one_of_each(list(FIRST), lambda _: "a ladder"))
def test_a_right_kernel_is_right_and_a_wrong_one_is_not(ladder):
    problem = min(RAGGED[ladder], key=lambda one: abs(one.flops - 5000))
    module = catalog.load(catalog.find(FIRST[ladder]).path, ladder)
    assert fullsize.check_large(module, problem, samples=20).findings == []
    module.launch = lambda x, weight, y, *rest: y.copy_to_device(np.ones(y.shape, np.float32))
    assert [finding.kind for finding in fullsize.check_large(module, problem, samples=20).findings] == ["wrong"]
    module.launch = lambda *_: None
    assert "unwritten" in [finding.kind for finding in fullsize.check_large(module, problem, samples=20).findings]
