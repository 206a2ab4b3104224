"""Tensor cores on layers of one channel: whole rows, wherever the plan takes a shape."""

import numpy as np
import pytest
from numba import cuda

from common.catalog import catalog, inputs, reference
from common.catalog.problems import Conv2d
from common.check import check

pytestmark = pytest.mark.usefixtures("traced")


def is_right(module, problem):
    """Launched once on integers: is every output right, and nothing written beside them?"""
    bench = check.Bench(module, problem, {})
    x, weight = inputs.integers(problem, 0)
    bench.load(x, weight)
    bench.y.blank()
    bench.launch()
    return np.array_equal(bench.y.get(), reference.full(problem, x, weight)) and bench.y.trespasses() == []


@pytest.fixture
def module(monkeypatch):
    """The step as shipped, for a GPU of one multiprocessor: a block computes several parts."""
    module = catalog.load(catalog.find("conv2d_tensor_core").path, "conv2d")
    monkeypatch.setattr(module.whole_rows, "multiprocessors", lambda: 1)
    return module


def planned(module, p):
    return module.whole_rows.plan(p.C, p.H, p.W, p.K, p.R, p.S, module.PART_ROWS, module.TICKETS)


MANY = Conv2d(N=8, C=1, H=34, W=34, K=3, R=5, S=5)  # more than two parts for each block

# what the shape is for; parts of an image
TAKEN = [
    (Conv2d(N=2, C=1, H=10, W=12, K=3, R=5, S=5), 1),  # pixels behind Q, filters behind K
    (Conv2d(N=1, C=1, H=12, W=8, K=9, R=5, S=5), 2),  # the last part is short; a second tile of filters
    (Conv2d(N=9, C=1, H=14, W=10, K=3, R=5, S=5), 2),  # maps of 60 values: every other begins in a sector
    (Conv2d(N=1, C=1, H=6, W=18, K=2, R=1, S=3), 1),  # two warps; one row of taps
    (Conv2d(N=1, C=1, H=12, W=12, K=24, R=7, S=7), 1),  # the most filters, and the most rows of taps
    (MANY, 5),
    (Conv2d(N=1, C=1, H=22, W=18, K=5, R=5, S=5), 3),  # parts that begin in a sector
]


@pytest.mark.parametrize(("problem", "parts"), TAKEN, ids=str)
def test_right_in_parts(module, problem, parts):
    assert planned(module, problem)["PARTS"] == parts
    assert is_right(module, problem)


@pytest.mark.parametrize("first", [0, 1])
def test_tickets_begin_at_zero(module, monkeypatch, first):
    made = []

    def workspace(problem):
        made.append(cuda.to_device(np.full(1, first, np.uint32)))
        return made[0]

    monkeypatch.setattr(module, "workspace", workspace)
    assert is_right(module, MANY) == (first == 0)  # else a part is left out
    if first == 0:
        assert made[0].copy_to_host().tolist() == [0]
