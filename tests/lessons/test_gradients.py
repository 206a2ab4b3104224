"""What the gradients' implicit GEMMs share: tables, parts of a strided dx, sums in a fixed order, loads or zeros."""

import importlib
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda

from common.catalog.problems import PRESETS, Dgrad

pytestmark = pytest.mark.usefixtures("traced")
dgrad = importlib.import_module("lessons.08_training.dgrad_implicit_gemm")
strided = importlib.import_module("lessons.08_training.dgrad_strided")
wgrad = importlib.import_module("lessons.08_training.wgrad_implicit_gemm")
split_k = importlib.import_module("lessons.08_training.wgrad_split_k")
wait_async = importlib.import_module("lessons.wide").wait_async
long_sums = importlib.import_module("lessons.08_training.helpers.long_sums")
offsets32 = importlib.import_module("lessons.08_training.helpers.offsets32")

STRIDED = Dgrad(
    N=2, C=3, D=3, H=7, W=5, K=11, T=2, R=3, S=2, stride_d=2, stride_h=3, stride_w=2, pad_h=1, pad_w=1, dilation_h=2,
    dilation_w=2,
)  # fmt: skip
WORD = 32


def meets(problem, pixel, tap):
    """The output whose window puts the tap on the pixel, or None: the definition of dgrad's sum."""
    p, g = problem, problem.geometry
    below = pixel + np.array((g.pad_d, g.pad_h, g.pad_w)) - tap * np.array((g.dilation_d, g.dilation_h, g.dilation_w))
    output, left = np.divmod(below, (g.stride_d, g.stride_h, g.stride_w))
    return None if left.any() or (output < 0).any() or (output >= (p.O, p.P, p.Q)).any() else output


@pytest.mark.parametrize("problem", [STRIDED, PRESETS["tiny-dgrad"], PRESETS["dgrad-resnet50-strided"]], ids=str)
def test_each_pixel_lies_in_one_part_and_meets_no_tap_of_another(problem):
    tile = strided.shipped(problem)
    taps, parts, blocks = strided.by_rests(problem, tile)
    g, tiles = problem.geometry, -(-problem.K // tile["BLOCK_K"])
    seen = np.zeros((problem.D, problem.H, problem.W), int)
    for first_block, n_d, n_h, n_w, d, h, w, first, number in parts.tolist():
        assert first % tiles == number % tiles == 0
        assert first_block < blocks
        seen[d :: g.stride_d, h :: g.stride_h, w :: g.stride_w][:n_d, :n_h, :n_w] += 1
        mine = taps[first // tiles : (first + number) // tiles]
        others = [tap for tap in dgrad.all_taps(problem) if not (tap == mine).all(axis=1).any()]
        corners = itertools.product((d, d + (n_d - 1) * g.stride_d), (h, h + (n_h - 1) * g.stride_h), (w,))
        assert all(meets(problem, np.array(pixel), tap) is None for pixel in corners for tap in others)
    assert (seen == 1).all()
    assert [len(set(map(tuple, taps.tolist())))] == [len(taps)]
    assert parts[:, 8].tolist() == sorted(parts[:, 8].tolist(), reverse=True)  # the longest first


@settings(max_examples=12, deadline=None)
@given(outputs=st.integers(1, 70), splits=st.integers(2, 23), seed=st.integers(0, 99))
def test_partial_sums_are_added_run_after_run(outputs, splits, seed):
    partials = np.random.default_rng(seed).standard_normal((splits, outputs)).astype(np.float32)
    y = cuda.to_device(np.full(outputs, np.nan, np.float32))
    long_sums.add_up(cuda.to_device(partials.reshape(-1)), y, splits)
    rows = 8 if splits > long_sums.FEW else 1
    each = -(-splits // rows)
    wanted = np.zeros(outputs, np.float32)
    for first in range(0, rows * each, each):
        run = np.zeros(outputs, np.float32)
        for partial in partials[first : first + each]:
            run += partial
        wanted += run
    assert y.copy_to_host().tobytes() == wanted.tobytes()


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("kind", ["load", "fetch"])
def test_what_is_not_inside_is_zero_and_not_read(wide, kind):
    count = 4 if wide else 1
    load = getattr(offsets32, f"{kind}{count}_or_zero")

    @cuda.jit
    def kernel(array, found):
        shared = cuda.shared.array(12, np.float32)
        registers = cuda.local.array(4, np.float32)
        i = cuda.threadIdx.x
        target, at = (registers, 0) if kind == "load" else (shared, i * 4)
        load(target, at, array, np.uint32(i * 4 if i < 2 else 10**6), i < 2)
        wait_async()
        for v in range(count):
            found[i, v] = target[at + v]

    array, found = np.arange(8, dtype=np.float32) + 1, cuda.to_device(np.full((3, count), np.nan, np.float32))
    kernel[1, 3](cuda.to_device(array), found)
    assert found.copy_to_host().tolist() == [[1, 2, 3, 4][:count], [5, 6, 7, 8][:count], [0] * count]
