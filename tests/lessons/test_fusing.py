"""Epilogues timed three ways: what runs, and what is compared."""

import importlib
from types import SimpleNamespace

import numpy as np
import pytest
from sampling import one_of_each, some_days

from common.catalog import catalog, problems
from common.run.messages import Paired, Timing
from common.timing import peers

fusing = importlib.import_module("lessons.08_training.figures.fusing")

pytestmark = [
    pytest.mark.usefixtures("traced"),
    pytest.mark.filterwarnings("ignore:overflow encountered in scalar:RuntimeWarning"),
]

BESIDE = {"ColumnMoments": "column_moments"}
WAYS = "lessons.08_training.helpers.beside"
NAMES = ["add_bias", "bias_relu", "scale", "add_residual", "column_moments"]


def timed(milliseconds):
    return Timing(milliseconds, milliseconds, milliseconds, 0.001, 12)


def paired(first, second):
    return Paired(timed(first), timed(second), first / second, first / second, first / second, 0.001)


class Watch:
    """Notes what it is given to time; all of it has run once before, so as to be compiled."""

    def __init__(self):
        self.pairs = []

    def measure_pairs(self, first, second, **limits):
        self.pairs.append((first, second))
        return paired(1.02, 1.0)


def load(name):
    step = catalog.find(name)
    return catalog.load(step.path, step.ladder)


# a single tile, and one step along gemm_k
SMALL = problems.Conv3d(N=1, C=3, D=1, H=3, W=3, K=5, T=1, R=2, S=1)


@some_days(3)
@pytest.mark.parametrize("name", one_of_each(["conv3d_implicit_gemm_precomputed", "hconv3d_mma"], lambda _: "a step"))
def test_every_epilogue_finds_the_same_fused_and_in_a_kernel_of_its_own(name, monkeypatch):
    monkeypatch.setattr(peers, "available", lambda: False)
    problem, watch = problems.on_ladder(catalog.find(name).ladder, SMALL), Watch()
    made, launched = {}, []

    def ways(launch, y):
        def counted(to, epilogue):
            launched.append(epilogue)
            launch(to, epilogue)

        made.update(importlib.import_module(WAYS).ways(counted, y))
        return made

    found = fusing.measure(load(name), ways, problem, watch)
    names = [
        one and getattr(one, "made", SimpleNamespace(name=BESIDE.get(type(one).__name__))).name for one in launched
    ]
    assert names == [one for name in NAMES for one in (name, None)]  # each way was run once
    alone = watch.pairs[0][1]
    assert watch.pairs == [pair for way in made.values() for pair in ((way.fused, alone), (way.separate, way.fused))]
    assert [one.epilogue for one in found] == NAMES
    y = np.prod(problem.output_shape) * problem.operands[2][1].itemsize
    assert [one.saved_bytes for one in found] == [2 * y] * 4 + [y]
    assert [one.eager for one in found] == [None] * 5


@pytest.mark.parametrize("wrong", [np.inf, np.nan, 1.01])
def test_an_epilogue_that_finds_something_else_fused_is_refused(wrong):
    problem = problems.preset("tiny-conv3d")
    held = np.ones(8, np.float32)
    found = SimpleNamespace(dtype=held.dtype, copy_to_host=held.copy)

    def put(value):
        held[3] = value

    way = SimpleNamespace(fused=lambda: put(wrong), separate=lambda: put(1), found=found)
    with pytest.raises(RuntimeError, match="bias: fused it differs from a kernel of its own by up to"):
        fusing._require_same("bias", way, problem)
    fusing._require_same("bias", SimpleNamespace(fused=lambda: put(1), separate=lambda: put(1), found=found), problem)


# --- sums of int8 ---


@pytest.mark.parametrize(
    ("name", "N"), one_of_each([("igemm_mma", 44), ("igemm_mma", 40), ("igemm_wgmma", 40)], lambda _: "a step")
)
def test_a_product_becomes_int8_alike_in_its_kernel_and_in_one_of_its_own(name, N, monkeypatch):
    monkeypatch.setattr(peers, "available", lambda: False)
    problem, watch, made = problems.from_shape("igemm", {"M": 19, "N": N, "K": 160}), Watch(), {}
    quantised = importlib.import_module("lessons.09_fewer_bits.helpers.quantised")

    def ways(launch, y):
        made.update(quantised.ways(launch, y))
        return made

    (found,) = fusing.measure(load(name), ways, problem, watch)
    way = made["quantised"]
    assert watch.pairs[0][0] == way.fused
    assert watch.pairs[1] == (way.separate, way.fused)
    assert (found.epilogue, found.saved_bytes) == ("quantised", 2 * 4 * 19 * N)
    left = []
    for run in (way.fused, way.separate):
        way.found[:] = 0
        run()
        left.append(way.found.copy_to_host())
    np.testing.assert_array_equal(*left)
    assert left[0].min() == -128
    assert left[0].max() == 127
    assert np.abs(left[0]).mean(dtype=float) > 10
