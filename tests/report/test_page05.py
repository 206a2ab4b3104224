"""Lesson 05's pages: their Python runs, the mapping is that of the oracle, the mistakes give the numbers they say."""

import doctest
import itertools
import re
import xml.etree.ElementTree as ElementTree
from importlib import import_module

import numpy as np
import pytest
import shapes
from hypothesis import given, settings
from hypothesis import strategies as st

from common.catalog import catalog, problems, reference
from common.check import inputs

FOLDER = catalog.LESSONS / "05_implicit_gemm"
PAGES = sorted(FOLDER.glob("*.md"))
WORKED = problems.Conv3d(N=1, C=3, D=1, H=4, W=4, K=4, T=1, R=2, S=2)


@pytest.fixture(scope="module")
def names():
    """What the pages' Python has defined at their ends; fails with the first line that gives something else."""
    found, tries = {}, 0
    for page in PAGES:  # each by itself, as a reader runs it
        test = doctest.DocTestParser().get_doctest(page.read_text(encoding="utf-8"), {}, page.name, str(page), 0)
        runner = doctest.DebugRunner(verbose=False)
        runner.run(test, clear_globs=False)
        found, tries = found | test.globs, tries + runner.tries
    assert tries >= 30
    return found


@pytest.mark.parametrize("problem", [*problems.RAGGED["conv3d"], WORKED], ids=str)
def test_the_pages_mapping_against_a_count_of_everything(names, problem):
    p = problem
    outputs = itertools.product(range(p.N), range(p.O), range(p.P), range(p.Q))
    for gemm_m, output in enumerate(outputs):
        assert names["gemm_m_of"](*output, p.O, p.P, p.Q) == gemm_m
        assert names["output_of"](gemm_m, p.O, p.P, p.Q) == output
    taps = itertools.product(range(p.T), range(p.R), range(p.S), range(p.C))
    for gemm_k, tap in enumerate(taps):
        assert names["gemm_k_of"](*tap, p.R, p.S, p.C) == gemm_k
        assert names["tap_of"](gemm_k, p.R, p.S, p.C) == tap


def convolved(names, problem, seed):
    x, filt = (array.astype(np.float64) for array in inputs.integers(problem, seed))
    g = problem.geometry
    return x, filt, names["convolve"](x, filt, g[0:3], g[3:6], g[6:9])


@pytest.mark.parametrize("problem", problems.RAGGED["conv3d"], ids=str)
def test_the_pages_convolution_is_the_oracles_at_ragged_shapes(names, problem):
    x, filt, y = convolved(names, problem, 1)
    np.testing.assert_array_equal(y, reference.full(problem, x, filt))


@settings(max_examples=10)
@given(problem=shapes.BY_LADDER["conv3d"])
def test_the_pages_convolution_is_the_oracles_at_any_small_shape(names, problem):
    x, filt, y = convolved(names, problem, 2)
    np.testing.assert_array_equal(y, reference.full(problem, x, filt))


@pytest.mark.parametrize("problem", problems.RAGGED["conv3d"], ids=str)
def test_start_plus_offset_and_the_masks_find_the_pixel(names, problem):
    """The page's two formulas and its masks, against coordinates one by one."""
    p, g = problem, problem.geometry
    x = np.arange(np.prod(p.input_shape)).reshape(p.input_shape)
    extents, strides, pads, dilations = (p.D, p.H, p.W), g[0:3], g[3:6], g[6:9]
    for gemm_m in range(p.N * p.O * p.P * p.Q):
        n, *output = names["output_of"](gemm_m, p.O, p.P, p.Q)
        first = [i * s - m for i, s, m in zip(output, strides, pads, strict=True)]
        start = (((n * p.D + first[0]) * p.H + first[1]) * p.W + first[2]) * p.C
        masks = [names["mask_of"](*axis) for axis in zip(first, extents, (p.T, p.R, p.S), dilations, strict=True)]
        for gemm_k in range(p.reduction):
            t, r, s, c = names["tap_of"](gemm_k, p.R, p.S, p.C)
            offset = ((t * g.dilation_d * p.H + r * g.dilation_h) * p.W + s * g.dilation_w) * p.C + c
            place = [f + j * d for f, j, d in zip(first, (t, r, s), dilations, strict=True)]
            inside = all(0 <= i < e for i, e in zip(place, extents, strict=True))
            assert inside == (not any(mask >> j & 1 for mask, j in zip(masks, (t, r, s), strict=True)))
            if inside:
                assert start + offset == x[(n, *place, c)]


@given(number=st.integers(0, 2**32 - 1), divisor=st.integers(1, 2**32 - 1))
def test_the_pages_division_is_a_division(names, number, divisor):
    assert names["divide"](number, *names["magic"](divisor)) == number // divisor
    assert names["magic"](divisor)[0] < 2**32


def test_the_mistakes_give_the_numbers_of_the_page():
    """Each mistake computed from its formula, with loops of its own, at the output that the page follows."""
    x = np.arange(48).reshape(4, 4, 3)
    memory = np.arange(48) % 5  # KRSC
    p, q, k = 1, 2, 2

    def total(h, w, place):
        taps = itertools.product(range(2), range(2), range(3))
        return sum(x[h(r, s), w(r, s), c] * memory[k * 12 + place(r, s, c)] for r, s, c in taps)

    def krsc(r, s, c):
        return (r * 2 + s) * 3 + c

    right = total(lambda r, s: p + r, lambda r, s: q + s, krsc)
    mixed = total(lambda r, s: p + s, lambda r, s: q + r, krsc)
    crs = total(lambda r, s: p + r, lambda r, s: q + s, lambda r, s, c: (c * 2 + r) * 2 + s)
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    section = text.split("## 5. Three mistakes")[1].split("## 6.")[0]
    assert f"right: {right}." in section
    gives = [line.rstrip(" |").split("| ")[-1] for line in section.splitlines() if line.startswith("| ")][2:]
    assert gives == [str(mixed), str(crs), f"{9 * 3} rows instead of 9"]
    assert len({right, mixed, crs}) == 3


def test_the_candidate_that_is_worked_through_is_the_steps_model():
    step = import_module("lessons.05_implicit_gemm.conv2d_layer_dispatch")
    problem = problems.preset("ece408-layer1")
    candidate = next(one for one in step.candidates(problem) if one.kernel == "one_channel_pairs")
    estimate = step.estimate(candidate, problem)
    work = step.WORK[candidate.kernel](problem, **dict(candidate.tile))
    text = (FOLDER / "layers.md").read_text(encoding="utf-8")
    assert f"\n{' '.join(f'{ms:.2f}' for ms in estimate.limits.values())} ms\n" in text
    assert f"\n{estimate.ms:.2f} ms\n" in text
    counts = work.multiply_adds, work.shared_loads, work.global_loads, work.global_stores, work.other
    assert " + ".join(f"{count:g}" for count in counts) in text


def texts(svg):
    return ["".join(node.itertext()) for node in ElementTree.parse(svg).iter() if node.tag.endswith("}text")]


def test_the_pictures_are_those_that_the_code_draws(tmp_path, no_pixels):
    drawn = catalog.load_file(FOLDER / "figures" / "draw.py").draw(tmp_path)
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    shown = re.findall(r"\]\(figures/(\w+)\.png\)", text)
    assert sorted(path.stem for path in drawn) == sorted(shown)
    for path in drawn:
        shipped = FOLDER / "figures" / path.name
        assert shipped.read_bytes().startswith(b"\x89PNG")
        assert texts(path.with_suffix(".svg")) == texts(shipped.with_suffix(".svg")), "python -m common charts"
