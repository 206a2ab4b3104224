"""What is looked at on the GPU is as strict as what the host looks at: traced, at small shapes."""

import kernels
import pytest

from common.catalog import catalog, problems
from common.check import check, fullsize

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
