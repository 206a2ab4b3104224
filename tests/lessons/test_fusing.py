"""Epilogues timed three ways: what runs, and what is compared."""

import importlib
import sys
from dataclasses import replace
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


def test_int8_products_of_pytorch_become_int8_again(monkeypatch):
    done = []

    class Sums:
        def __getattr__(self, name):
            def noted(*arguments):
                done.append((name, *arguments))
                return self

            return noted

        def __mul__(self, factor):
            return self

    factors = Sums()
    torch = SimpleNamespace(
        int8="int8",
        rand=lambda columns, device: done.append(columns) or factors,
        cuda=SimpleNamespace(synchronize=lambda: None),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(peers, "fastest", lambda problem, watch: ("B K-major", Sums))
    problem = problems.from_shape("igemm", {"M": 19, "N": 37, "K": 160})
    calls, layout = fusing._eager(problem, {}, Watch())
    assert (list(calls), layout) == (["quantised"], "B K-major")
    assert done == [37, ("mul", factors), ("round_",), ("clamp_", -128, 127), ("to", "int8")]


# --- two convolutions ---


class Tensor(SimpleNamespace):
    """As much of PyTorch's as is asked for: the shape, and what was done."""

    ndim, dtype = 4, "half"

    def to(self, dtype):
        return self


@some_days(4)
def test_a_pair_of_convolutions_is_timed_with_its_own_first_half_and_with_two_of_pytorch_s(monkeypatch):
    called, watch, problem = [], Watch(), problems.on_ladder("hconv3d", replace(SMALL, N=33))

    def fastest(problem, watch):
        return "NDHWC", lambda: called.append(f"of {problem.N}") or Tensor(shape=(problem.N, 5, 2, 3))

    def conv2d(x, weight):
        called.append(f"by {weight.shape}")

    torch = SimpleNamespace(
        randn=lambda shape, device: Tensor(shape=shape),
        relu_=lambda tensor: called.append("relu") or tensor,
        nn=SimpleNamespace(functional=SimpleNamespace(conv2d=conv2d)),
    )
    made = {}

    def eager(problem, ways, watch):
        made.update(ways)
        return {name: fusing._pair(way, problem, watch) for name, way in ways.items()}, "NDHWC"

    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(peers, "available", lambda: True)
    monkeypatch.setattr(peers, "fastest", fastest)
    monkeypatch.setattr(fusing, "_eager", eager)
    pairs = importlib.import_module("lessons.08_training.helpers.pair_ways")
    found = fusing.measure(load("hconv3d_mma"), pairs.ways, problem, watch)
    assert [one.epilogue for one in found] == ["conv1x1_n32", "relu_conv1x1_n32", "conv1x1_n33", "relu_conv1x1_n33"]
    assert [one.saved_bytes for one in found] == [2 * 2 * images * 2 * 3 * 5 for images in (32, 32, 33, 33)]
    for number, way in enumerate(made.values()):
        with_first, with_two, with_theirs = watch.pairs[3 * number : 3 * number + 3]
        assert with_first == (way.fused, way.alone)
        assert with_two == (way.separate, way.fused)
        called.clear()
        with_theirs[0]()
        assert called == [f"of {way.images}", *["relu"] * way.relu, "by (20, 5, 1, 1)"]
