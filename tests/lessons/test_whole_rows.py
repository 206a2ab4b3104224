"""Whole rows of one channel: right in the simulator wherever the plan takes a shape; the rest is left to the step."""

import numpy as np
import pytest

from common.book import catalog, problems, reference
from common.book.problems import Conv2d
from common.measure import check, inputs
from common.microscope import simulator

simulator.install()


@pytest.fixture
def step(monkeypatch):
    """The step as shipped; ``within`` bytes, a part of an image is smaller."""
    module = catalog.load(catalog.find("conv2d_tensor_core").path, "conv2d")

    def within(part_bytes):
        monkeypatch.setattr(module, "PART_BYTES", part_bytes or module.PART_BYTES)
        return module

    return within


def planned(module, p):
    return module.whole_rows.plan(p.C, p.H, p.W, p.K, p.R, p.S, module.PASS_ROWS, module.PART_BYTES)


# what the shape is for; the bytes of a part, if they are fewer; passes of a part, parts of an image
TAKEN = [
    (Conv2d(N=2, C=1, H=10, W=12, K=3, R=5, S=5), None, 1, 1),  # pixels behind Q, filters behind K
    (Conv2d(N=1, C=1, H=12, W=8, K=9, R=5, S=5), None, 2, 1),  # the last pass is short; a second tile of filters
    (Conv2d(N=3, C=1, H=14, W=10, K=3, R=5, S=5), None, 2, 1),  # maps of 60 values: every other begins in a sector
    (Conv2d(N=1, C=1, H=6, W=18, K=2, R=1, S=3), None, 1, 1),  # two warps; one row of taps
    (Conv2d(N=1, C=1, H=12, W=12, K=24, R=7, S=7), None, 1, 1),  # the most filters, and the most rows of taps
    (Conv2d(N=2, C=1, H=34, W=34, K=3, R=5, S=5), 6800, 2, 3),  # parts; the last one has a short pass
    (Conv2d(N=1, C=1, H=22, W=18, K=5, R=5, S=5), 4300, 1, 3),  # parts that begin in a sector
]
LEFT = [
    Conv2d(N=1, C=2, H=10, W=12, K=3, R=5, S=5),
    Conv2d(N=1, C=1, H=10, W=12, K=25, R=5, S=5),
    Conv2d(N=1, C=1, H=14, W=12, K=2, R=8, S=5),
    Conv2d(N=1, C=1, H=10, W=12, K=2, R=5, S=9),
    Conv2d(N=1, C=1, H=9, W=13, K=3, R=5, S=5),  # rows of an odd number of values
    Conv2d(N=1, C=1, H=6, W=136, K=2, R=1, S=1),  # wider than eight warps
    Conv2d(N=1, C=1, H=1_460_000, W=128, K=24, R=1, S=1),  # places beyond 32 bits
    Conv2d(N=1, C=1, H=16, W=130, K=24, R=3, S=3),  # one pass exceeds the shared memory
]


def right(module, problem):
    bench = check.Bench(module, problem, {})
    x, weight = inputs.integers(problem, 0)
    bench.load(x, weight)
    bench.y.blank()
    bench.launch()
    return np.array_equal(bench.y.get(), reference.full(problem, x, weight)) and bench.y.trespasses() == []


@pytest.mark.parametrize(("problem", "part_bytes", "passes", "parts"), TAKEN, ids=lambda v: str(v) if v else "")
def test_right_in_parts_and_passes(step, problem, part_bytes, passes, parts):
    module = step(part_bytes)
    plan = planned(module, problem)
    assert (plan["PASSES"], -(-problem.P // (plan["ROWS"] * plan["PASSES"]))) == (passes, parts)
    assert right(module, problem)


@pytest.mark.parametrize("problem", LEFT, ids=str)
def test_what_does_not_fit_is_left_to_the_step(step, problem):
    assert planned(step(None), problem) is None


def test_groups_of_filters_are_left_to_the_step(step, monkeypatch):
    module = step(None)
    monkeypatch.setattr(module, "FILTERS", 8)
    monkeypatch.setattr(module.whole_rows, "launch", None)  # not called
    assert right(module, Conv2d(N=1, C=1, H=12, W=8, K=9, R=5, S=5))


def test_layer_1_is_computed_in_thirds(step):
    plan = planned(step(None), problems.preset("ece408-layer1"))
    assert (plan["PASSES"], plan["ROWS"]) == (4, 6)


def test_results_in_the_place_of_lines_are_wrong(step, monkeypatch):
    module, problem = step(None), TAKEN[1][0]
    plan = planned(module, problem)
    monkeypatch.setattr(module.whole_rows, "plan", lambda *_: {**plan, "STAGED": 64})
    assert not right(module, problem)
