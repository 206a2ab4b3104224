"""The experiment that lets filters at several shifts share a tile: right on each of its ways, in the tracer."""

import functools

import pytest

from common.catalog import catalog
from common.catalog.problems import Conv2d
from tests.launched import is_right

pytestmark = pytest.mark.usefixtures("traced")

# what the shape is for, and what the plan says of it: shifts, eight k of a row, tiles of a warp, groups of warps
CASES = [
    (Conv2d(N=2, C=1, H=9, W=13, K=3, R=5, S=5), (4, 1, 2, 1)),  # odd rows of y, the last filter alone
    (Conv2d(N=1, C=1, H=7, W=16, K=9, R=3, S=5), (4, 1, 5, 1)),  # pairs
    (Conv2d(N=1, C=1, H=5, W=21, K=7, R=5, S=12), (4, 2, 1, 4)),  # two fragments of an image row
    (Conv2d(N=1, C=1, H=20, W=4, K=2, R=17, S=2), None),  # no lane holds so many taps
    (Conv2d(N=1, C=1, H=6, W=6, K=120, R=5, S=5), None),  # too many groups
]


@functools.cache
def experiment():
    return catalog.load(catalog.find("conv2d_tensor_core_shifted").path, "conv2d")


@pytest.mark.parametrize(("problem", "expected"), CASES, ids=lambda v: str(v) if isinstance(v, Conv2d) else "")
def test_right_on_each_way(problem, expected):
    p, module = problem, experiment()
    plan = module.plan(p.H, p.W, p.K, p.R, p.S) if p.C == 1 else None
    assert expected == (plan and tuple(plan[name] for name in ("SHIFT", "K_STEPS", "TILES", "GROUPS")))
    assert is_right(module, problem)


# --- the persistent variant: tiles of a warp, groups of warps, warps of a group ---

PERSISTENT = [
    (Conv2d(N=3, C=1, H=13, W=13, K=3, R=5, S=5), (2, 1, 2)),  # odd rows of y, the last filter alone
    (Conv2d(N=2, C=1, H=12, W=12, K=12, R=5, S=5), (2, 3, 1)),
    (Conv2d(N=300, C=1, H=1, W=2, K=2, R=1, S=1), (1, 1, 1)),  # more images than blocks: some have three, some two
    (Conv2d(N=1, C=1, H=6, W=7, K=3, R=5, S=6), None),  # no room for four shifts
    (Conv2d(N=1, C=1, H=14, W=4, K=2, R=11, S=2), None),  # no lane holds so many taps
]


@pytest.mark.parametrize(("problem", "expected"), PERSISTENT, ids=lambda v: str(v) if isinstance(v, Conv2d) else "")
def test_blocks_that_stay_are_right_on_each_way(problem, expected):
    p, module = problem, catalog.load(catalog.find("conv2d_tensor_core_persistent").path, "conv2d")
    plan = module.plan(p.H, p.W, p.K, p.R, p.S) if p.C == 1 else None
    assert expected == (plan and tuple(plan[name] for name in ("TILES", "GROUPS", "TURN")))
    assert is_right(module, problem)
