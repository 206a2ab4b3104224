"""Lesson 07's pages: their Python runs, excerpts are the steps' own lines, counts are those of files and models."""

import doctest
import re
from importlib import import_module

import numpy as np
import pytest
from test_page05 import texts
from test_page06 import plain

from common.catalog import catalog, problems, sources
from common.report import tracewords
from common.trace import boxes, trace

FOLDER = catalog.LESSONS / "07_hopper"
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.md"))}
FLAT = {name: re.sub(r"\s+", " ", text) for name, text in PAGES.items()}


def module(step):
    return import_module(f"lessons.07_hopper.{step}")


@pytest.fixture(scope="module")
def names():
    """What the pages' Python has defined at their ends; fails with the first line that gives something else."""
    found, tries = {}, 0
    for name, text in PAGES.items():  # each by itself, as a reader runs it
        test = doctest.DocTestParser().get_doctest(text, {}, name, name, 0)
        runner = doctest.DebugRunner(verbose=False)
        runner.run(test, clear_globs=False)
        found, tries = found | test.globs, tries + runner.tries
    assert tries >= 14
    return found


def test_the_pages_descriptor_and_swizzle_are_those_of_the_engines(names):
    for fields in ((0, 0, 1024), (0x4000, 8192, 1024), (163840, 4096, 512)):
        encoded = boxes.encoded(*fields) & ~(3 << 62) | 1 << 62
        assert names["descriptor"](*fields) == encoded
    addresses = np.arange(0, 4096, 2)
    np.testing.assert_array_equal(names["swizzled"](addresses), boxes.swizzled(addresses))


@pytest.mark.parametrize("extent", [5, 7, 28])
@pytest.mark.parametrize(
    ("taps", "stride", "pad", "dilation"), [(3, 2, 1, 1), (1, 1, 0, 1), (3, 1, 1, 2), (2, 3, 2, 1)]
)
def test_there_is_a_base_pixel_for_each_output(names, extent, taps, stride, pad, dilation):
    p = problems.Conv3d(
        N=1, C=8, D=1, H=1, W=extent, K=1, T=1, R=1, S=taps, stride_w=stride, pad_w=pad, dilation_w=dilation
    )
    assert len(names["bases"](extent, taps, stride, pad, dilation)) == p.Q


def test_bytes_and_clocks_are_the_steps():
    step, text = module("hgemm_specialised"), FLAT["README"]
    stage = step.STAGE_BYTES
    assert f"({step.BLOCK_M} + {step.BLOCK_N}) × {step.BLOCK_K} × 2 = {stage:,}." in text
    clocks = step.BLOCK_M * step.BLOCK_N * step.BLOCK_K // 2048
    assert f"{step.BLOCK_M} × {step.BLOCK_N} × {step.BLOCK_K} / 2,048 = {clocks:,}." in text
    assert f"{stage // 1024} KiB in {clocks:,} clocks: {stage // clocks} bytes." in text
    assert f"All together {132 * stage / clocks * 1.7e9 / 1e12:.1f} TB/s" in text
    shared = module("hgemm_clustered")
    asked = 2 * (shared.A_SIZE + shared.SHARE * shared.PANEL)
    assert f"in {clocks:,} clocks: {asked // clocks}. A third less." in text
    assert "Four: two consumers of each of two blocks." in text
    assert shared.CLUSTER * shared.CONSUMERS == 4


def test_registers_are_handed_over_as_the_page_adds_them_up():
    step, text = module("hgemm_specialised"), FLAT["README"]
    assert f"With FEW = {step.FEW} and MANY = {step.MANY}," in text
    held = 128 * step.FEW + 128 * step.CONSUMERS * step.MANY
    assert f"128 × {step.FEW} + {128 * step.CONSUMERS} × {step.MANY} = {held:,} of 65,536." in text
    assert held <= 65536
    assert f"1. {65536 // step.THREADS // 8 * 8}. Three warpgroups" in text
    split = module("gemm_tf32x3")
    assert (
        f"{split.ACC} sums twice, and {split.FRAG} values twice: {2 * split.ACC + 2 * split.FRAG}." in FLAT["tf32x3"]
    )


def test_descriptors_move_as_the_page_says():
    step, text = module("hgemm_wgmma"), FLAT["README"]
    assert f"16 values are 32 bytes, two units: add {step.A_STEP}." in text
    assert f"2,048 bytes, add {step.B_STEP}." in text
    assert f"A panel has 64 × 128 = {step.PANEL:,} bytes, the leading offset." in text
    assert f"lie in registers: {step.ACC} in each thread for N = {step.MMA_N}." in text


def test_a_tile_of_the_iterator_begins_in_one_image_and_ends_in_the_next():
    p, text = problems.preset("hresnet50-conv4"), FLAT["convolution"]
    pixels = p.O * p.P * p.Q
    assert pixels % 128
    assert f"4. {p.N * pixels:,} outputs of `hresnet50-conv4` make {-(-p.N * pixels // 128)} tiles of 128." in text
    assert f"An image has {p.P} × {p.Q} = {pixels} of them" in text


def test_what_an_excerpt_does_not_introduce_is_told_with_the_steps_numbers():
    step, text = module("hgemm_wgmma"), FLAT["README"]
    assert f"AHEAD = {step.AHEAD} k before their use" in text
    assert (step.PENDING, module("hgemm_clustered").SHARE) == (2, 2)
    assert f"(Clusters of CLUSTER = {module('gemm_tf32x3').CLUSTER} share B's tiles" in FLAT["tf32x3"]


def test_the_pipeline_is_the_one_that_a_trace_shows():
    shown = re.search(
        r'trace hgemm_specialised --shape "(.*)"\n\.\.\.\nStages of block.*?\n((?:filled.*\n)+)', PAGES["README"]
    )
    shape = problems.parse_shape("hgemm", shown[1])
    (found,) = trace.results([trace.task(catalog.find("hgemm_specialised"), shape)])
    assert tracewords.pipeline(trace.main_kernel(found), 80)[1:] == shown[2].splitlines()


def test_a_in_registers_costs_what_the_page_adds_up():
    step, text = module("hgemm_register_operand"), FLAT["register_operand"]
    values = step.MMA_M * step.MMA_K
    assert f"1. {values * step.BYTES:,} bytes, {values * step.BYTES // 128} clocks." in text
    ideal = step.K_STEPS * step.CONSUMERS * step.MMA_M * step.BLOCK_N * step.MMA_K // 2048
    assert f"should take 8 × 128 = {ideal:,} clocks" in text
    words = step.SETS * step.FRAG // 2
    assert f"a thread {step.FRAG} of them, two in a register: {step.FRAG // 2}." in text
    assert f"Two sets are {words}, and with {step.ACC} sums {step.ACC + words}." in text
    assert f"`take_registers` gives it {step.MANY}." in text
    assert f"four warps each: {step.CLUSTER * step.CONSUMERS * 4}." in text


@pytest.mark.parametrize("name", ["hgemm_specialised", "hgemm_clustered", "hgemm_register_operand", "gemm_tf32x3"])
def test_a_block_asks_for_no_more_shared_memory_than_there_is(name):
    assert module(name).SHARED_BYTES <= 232448


# --- excerpts ---


def excerpts():
    """Blocks of Python, each with the step that its page or section is about."""
    steps = {"tf32x3": "gemm_tf32x3"}
    for page, text in PAGES.items():
        for section in re.split(r"^## ", text, flags=re.MULTILINE):
            step = re.match(r"\d+\. `(\w+)`", section)
            for block in re.findall(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE):
                yield step[1] if step else steps[page], block


def test_excerpts_are_the_lines_of_their_steps():
    found = list(excerpts())
    assert {step for step, _ in found} >= {
        "hgemm_wgmma", "hgemm_tma", "hgemm_specialised", "hgemm_clustered", "hgemm_register_operand",
        "hconv3d_im2col", "gemm_tf32x3",
    }  # fmt: skip
    for step, block in found:
        path = catalog.find(step).path
        own = [helper for helper in sources.imported_helpers(path) if helper.parent.parent == FOLDER]
        texts = [one.read_text(encoding="utf-8") for one in (path, *own)]
        source = "".join(plain(line) for text in texts for line in text.splitlines())
        for line in block.splitlines():
            parts = [part.strip(",") for part in plain(line).split("...")]
            assert all(part in source for part in parts), f"{step}: {line}"


def test_clocks_of_few_filters_are_the_counts_of_their_tile(monkeypatch):
    few, p = module("helpers.few_filters"), problems.PRESETS["hunet3d"]
    monkeypatch.setattr(few, "multiprocessors", lambda: 132)
    tile = few.plan(p.output_shape, p.weight_shape, p.geometry)
    columns, k_steps = tile["LINES"] * few.line_of(p.Q, p.S, 1), tile["BLOCK_K"] // few.MMA_K
    x, filt = 256 * tile["BLOCK_K"] * 2 / 128, 64 * few.MMA_K * 2 / 128  # clocks of 128 bytes: pixels, filters once
    unit = 256 * p.K * tile["BLOCK_K"] / 2048
    page = PAGES["convolution"]
    rows = re.findall(r"^\| [^|]+ \| (\d+)(?: clocks)? \| (\d+)(?:, or (\d+))? \|$", page, re.MULTILINE)
    assert f"m64n{columns}k16" in page
    assert [tuple(int(part) for part in row if part) for row in rows[-4:]] == [
        (unit, unit),
        (x, x),
        (256 / 64 * k_steps * filt, round(256 / columns * k_steps * filt)),
        (x, x, round(x / p.S)),
    ]


def test_the_pictures_are_those_that_the_code_draws(tmp_path, no_pixels):
    drawn = catalog.load_file(FOLDER / "figures" / "draw.py").draw(tmp_path)
    text = "".join(PAGES.values())
    assert sorted(path.stem for path in drawn) == sorted(re.findall(r"\]\(figures/(\w+)\.png\)", text))
    for path in drawn:
        shipped = FOLDER / "figures" / path.name
        assert shipped.read_bytes().startswith(b"\x89PNG")
        assert texts(path.with_suffix(".svg")) == texts(shipped.with_suffix(".svg")), "python -m common charts"
