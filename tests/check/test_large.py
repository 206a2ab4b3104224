"""Arrays of billions of elements: what stands in them and what a right kernel makes of it, tried on small ones."""

import numpy as np
import pytest

from common.catalog import catalog
from common.catalog.problems import RAGGED
from common.check import fullsize, plan

pytestmark = pytest.mark.usefixtures("traced")

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


@pytest.mark.filterwarnings("ignore:.*overflow encountered:RuntimeWarning")  # the hash wraps, as it does on a GPU
@pytest.mark.parametrize("ladder", FIRST)
def test_a_right_kernel_is_right_and_a_wrong_one_is_not(ladder):
    problem = min(RAGGED[ladder], key=lambda one: abs(one.flops - 5000))
    module = catalog.load(catalog.find(FIRST[ladder]).path, ladder)
    assert fullsize.check_large(module, problem, samples=20).findings == []
    module.launch = lambda x, weight, y, *rest: y.copy_to_device(np.ones(y.shape, np.float32))
    assert [finding.kind for finding in fullsize.check_large(module, problem, samples=20).findings] == ["wrong"]
    module.launch = lambda *_: None
    assert "unwritten" in [finding.kind for finding in fullsize.check_large(module, problem, samples=20).findings]
