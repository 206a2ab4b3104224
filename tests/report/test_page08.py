"""Lesson 08's pages: their Python runs, excerpts are the files' own lines, what they count is what comes out."""

import doctest
import re
from importlib import import_module

import numpy as np
import pytest
from test_page05 import texts

from common.catalog import catalog, problems

FOLDER = catalog.LESSONS / "08_training"
PAGES = sorted(FOLDER.glob("*.md"))
TEXT = {page.stem: page.read_text(encoding="utf-8") for page in PAGES}


def test_a_class_of_pixels_is_called_one_in_the_files_as_on_the_page():
    files = [catalog.find(name).path for name in ("dgrad_implicit_gemm", "dgrad_strided")]
    for path in files:
        text = path.read_text(encoding="utf-8")
        prose = " ".join(re.findall(r'#.*|"""[^"]*"""', text))
        assert "class" in prose
        assert not re.search(r"\bpart'?s?\b(?! of the (sum|filter))", prose), path.name


@pytest.fixture(scope="module")
def names():
    """By page, what its Python has defined at its end; fails with the first line that gives something else."""
    found = {}
    for page in PAGES:  # each by itself, as a reader runs it
        test = doctest.DocTestParser().get_doctest(TEXT[page.stem], {}, page.name, str(page), 0)
        runner = doctest.DebugRunner(verbose=False)
        runner.run(test, clear_globs=False)
        assert runner.tries >= 2
        found[page.stem] = test.globs
    return found


@pytest.mark.usefixtures("traced")
def test_the_pages_gradients_are_the_direct_steps(names):
    from numba import cuda

    page = names["README"]
    geometry = problems.Geometry(
        stride_h=page["stride"], stride_w=page["stride"], pad_h=page["pad"], pad_w=page["pad"]
    )
    x, filt, dy = (page[name][:, None].astype(np.float32) for name in ("x", "filt", "dy"))  # D = T = O = 1
    dx, dfilt = np.zeros_like(x), np.zeros_like(filt)
    for step, operands, result in (("dgrad_direct", (dy, filt), dx), ("wgrad_direct", (x, dy), dfilt)):
        device = [cuda.to_device(one) for one in (*operands, result)]
        catalog.load(catalog.find(step).path, step.split("_")[0]).launch(*device, geometry)
        device[-1].copy_to_host(result)
    np.testing.assert_array_equal(dx[:, 0], page["dx"])
    np.testing.assert_array_equal(dfilt[:, 0], page["dfilt"])


def plain(line):
    """Without the comment, indentation and spaces."""
    return re.sub(r"\s|#.*", "", line)


def test_excerpts_are_lines_of_files():
    """Each block of Python stands, line by line, in a file of the lesson; a launch in words of its own does not."""
    sources = [path.read_text(encoding="utf-8") for path in sorted(FOLDER.rglob("*.py"))]
    lines = {plain(line) for source in sources for line in source.splitlines()}
    blocks = [block for text in TEXT.values() for block in re.findall(r"^```python\n(.*?)^```$", text, re.S | re.M)]
    shown = [plain(line) for block in blocks for line in block.splitlines() if "epilogue=after" not in line]
    assert len(shown) > 8
    assert [line for line in shown if line not in lines and not line.startswith("after=")] == []


def test_the_pictures_are_those_that_the_code_draws(tmp_path, no_pixels):
    drawn = catalog.load_file(FOLDER / "figures" / "draw.py").draw(tmp_path)
    text = "".join(TEXT.values())
    assert sorted(path.stem for path in drawn) == sorted(re.findall(r"\]\(figures/(\w+)\.png\)", text))
    for path in drawn:
        shipped = FOLDER / "figures" / path.name
        assert shipped.read_bytes().startswith(b"\x89PNG")
        assert texts(path.with_suffix(".svg")) == texts(shipped.with_suffix(".svg")), "python -m common charts"


@pytest.mark.parametrize("stride", [1, 2])
def test_the_picture_shows_the_taps_that_a_convolution_reads_a_pixel_by(stride):
    """Every (p, q, r, s) whose window puts the tap on the pixel, by the formula that goes forwards."""
    picture = import_module("lessons.08_training.figures.draw")
    for h in range(8):
        for w in range(8):
            read = {
                (p, q, r, s)
                for p in range(-2, 12) for q in range(-2, 12) for r in range(3) for s in range(3)
                if (p * stride - picture.PAD + r, q * stride - picture.PAD + s) == (h, w)
            }  # fmt: skip
            assert read == set(picture.taps_met(h, w, stride))


def test_what_the_page_counts_of_a_layer():
    layer = problems.preset("wgrad-resnet50-conv2")
    page = re.sub(r"\s+", " ", TEXT["README"])
    sizes = [f"{int(np.prod(shape)):,}" for shape in (layer.y_shape, layer.filt_shape)]
    assert layer.y_shape == layer.x_shape
    assert f"y and dx: 64 × 56 × 56 × 64 = {sizes[0]} elements of {layer.R * layer.S * layer.C} products" in page
    assert f"= {sizes[1]} elements of {layer.reduction:,} products" in page
    assert f"{layer.flops / 2e9:.1f} thousand million" in page
    page = re.sub(r"\s+", " ", TEXT["wgrad"])
    assert f"matrix of {layer.K} × {layer.R * layer.S * layer.C}, summed over {layer.reduction:,} outputs" in page
    blocks = layer.K // 64 * (layer.R * layer.S * layer.C // 64)
    assert f"1 × 9 = {blocks} blocks" in page
    parts = 264 // blocks
    assert f"264 places / {blocks} blocks: {parts} parts" in page
    assert f"{parts * int(np.prod(layer.filt_shape)) * 4 / 1e6:.1f} MB" in page


def test_the_page_says_how_many_parts_the_step_takes(monkeypatch):
    """On 132 multiprocessors; the partial sums as large as they are then."""
    step, layer = import_module("lessons.08_training.wgrad_split_k"), problems.preset("wgrad-resnet50-conv2")
    monkeypatch.setattr(step.long_sums, "multiprocessors", lambda: 132)
    step.plan.cache_clear()
    tile = step.shipped(layer)
    step.plan.cache_clear()
    per_sm, blocks = tile["BLOCKS_PER_SM"], layer.K // 64 * (layer.R * layer.S * layer.C // 64)
    assert tile["BLOCK_M"] * tile["BLOCK_N"] == 32 * tile["THREAD_M"] * tile["THREAD_N"] == 64 * 64
    size = tile["SPLIT_K"] * int(np.prod(layer.filt_shape)) * 4 / 1e6
    assert (
        f"one warp here, {per_sm} on a multiprocessor: {132 * per_sm:,} places / {blocks} blocks,"
        f" {tile['SPLIT_K']} parts, {size:.0f} MB." in re.sub(r"\s+", " ", TEXT["wgrad"])
    )


def test_what_the_page_counts_of_epilogues():
    layer, page = problems.preset("c3d-conv3a"), re.sub(r"\s+", " ", TEXT["epilogues"])
    size = int(np.prod(layer.output_shape)) / 1e6
    moved = f"{4 * size:.0f} MB. Written and read again: {8 * size:.0f} MB"
    assert f"y has {size:.1f} million elements, {moved}" in page
    other = problems.preset("resnet50-conv2").reduction
    assert f"GEMM_K is {layer.reduction:,}, for `resnet50-conv2` {other}" in page


def test_the_fused_network_has_as_many_kernels_as_the_page_lists():
    source = (FOLDER / "network" / "fused.py").read_text(encoding="utf-8")
    assert len(re.findall(r"\.launch\w*\(", source)) == 8
    assert "has eight kernels of its own" in TEXT["network"]
    rows = re.findall(r"^\| (`\w+`, twice|`\w+`|one|two) ?(?:for .*?)?\|", TEXT["network"], re.MULTILINE)
    assert sum(2 if "tw" in row else 1 for row in rows) == 8


def test_what_the_page_says_of_a_step_is_what_a_run_does():
    plan = import_module("lessons.08_training.network.plan").Plan()
    beside = import_module("lessons.08_training.network.compare").DEFAULT
    page = re.sub(r"\s+", " ", TEXT["network"])
    for said in (
        f"N = {plan.batch} here", f"velocity = {plan.momentum} * velocity", f"each counts {plan.momentum} times",
        f"a decay of {plan.decay:.4f} each", f"begins at {plan.rate} and", f"(The rate is {beside.rate} here.",
    ):  # fmt: skip
        assert said in page


def test_a_step_down_in_one_line_is_the_pages_numbers():
    """Section 2's example, by the definition: each number moved a little."""

    def loss(w, x, b):
        return (max(w * x + b, 0) - 4) ** 2 / 2

    start, move = {"w": 2, "x": 3, "b": -1}, 1e-6
    slopes = {
        name: (loss(**{**start, name: value + move}) - loss(**{**start, name: value - move})) / (2 * move)
        for name, value in start.items()
    }
    said = re.search(r"dw = (\d), db = (\d), dx = (\d)", TEXT["README"]).groups()
    assert [round(slopes[name]) for name in "wbx"] == list(map(int, said))
    assert f"2 - 0.1 * {said[0]} = {2 - 0.1 * int(said[0]):.1f}" in TEXT["README"]
