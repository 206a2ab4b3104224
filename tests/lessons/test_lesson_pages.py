"""What lessons' pages say holds: their Python runs, excerpts are lines of files, pictures those that are drawn."""

import doctest
import itertools
import re
from importlib import import_module

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from sampling import one_of_each, some_days

from common.catalog import catalog, inputs, problems, reference
from common.report import canvas, traces
from common.trace import trace
from common.trace.hopper import wgmma as layouts

IMPLICIT, TENSOR, HOPPER, TRAINING = "05_implicit_gemm", "06_tensor_cores", "07_hopper", "08_training"
DRAWN = sorted(path.parents[1].name for path in catalog.LESSONS.glob("*/figures/draw.py"))
DRAWN = one_of_each(DRAWN, lambda _: "a lesson")


def pages(lesson):
    """By name, the texts of a lesson's pages."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted((catalog.LESSONS / lesson).glob("*.md"))}


def flat(lesson, page="README"):
    return re.sub(r"\s+", " ", pages(lesson)[page])


def module(lesson, step):
    return import_module(f"lessons.{lesson}.{step}")


def run(lesson):
    """By page, what its Python has defined at its end; fails with the first line that gives something else."""
    found = {}
    for name, text in pages(lesson).items():  # each by itself, as a reader runs it
        test = doctest.DocTestParser().get_doctest(text, {}, name, name, 0)
        doctest.DebugRunner(verbose=False).run(test, clear_globs=False)
        found[name] = test.globs
    return found


@pytest.fixture(scope="module")
def implicit():
    return {name: value for defined in run(IMPLICIT).values() for name, value in defined.items()}


@pytest.fixture(scope="module")
def gradients():
    return run(TRAINING)["README"]


def differing(one, other):
    """Of two pictures of one size, how many pixels differ in what an eye sees."""
    both = (np.asarray(Image.open(path).convert("L"), dtype=np.int32) for path in (one, other))
    return np.count_nonzero(np.abs(np.subtract(*both)) > 64)


@pytest.mark.parametrize("lesson", DRAWN)
def test_the_pictures_are_those_that_the_code_draws(lesson, tmp_path):
    folder = catalog.LESSONS / lesson / "figures"
    pictures = catalog.load_file(folder / "draw.py").PICTURES
    drawn = [canvas.save(picture(), tmp_path / picture.__name__) for picture in pictures]
    shown = re.findall(r"\]\(figures/(\w+)\.png\)", "".join(pages(lesson).values()))
    assert sorted(path.stem for path in drawn) == sorted(shown) == sorted(path.stem for path in folder.glob("*.png"))
    for path in drawn:
        assert differing(path, folder / path.name) < 10, "python -m common charts"  # fewer than a letter has


# --- excerpts ---

_MODULE = re.compile(r"\bhopper\.")


def plain(line):
    """A line of code without the module of instructions, blanks and comment."""
    return re.sub(r"\s", "", _MODULE.sub("", line.split("#")[0]))


@pytest.mark.parametrize(
    ("lesson", "least"), [(IMPLICIT, 30), (TENSOR, 20), (HOPPER, 20), (TRAINING, 15), ("09_fewer_bits", 10)]
)
def test_excerpts_are_lines_of_the_lesson_s_files(lesson, least):
    files = [path for folder in (lesson, "toolkit") for path in sorted((catalog.LESSONS / folder).rglob("*.py"))]
    if lesson == IMPLICIT:  # its ladder begins in lesson 01
        files.append(catalog.find("conv3d_direct").path)
    source = "".join(plain(line) for path in files for line in path.read_text(encoding="utf-8").splitlines())
    seen = 0
    sections = [part for text in pages(lesson).values() for part in re.split(r"^## ", text, flags=re.MULTILINE)]
    if lesson == TENSOR:  # others show how a lane counts
        sections = [part for part in sections if re.match(r"\d+\. `", part)]
    for block in re.findall(r"^```python\n(.*?)^```$", "\n".join(sections), re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            if ">>>" in block or "finish=after" in line or plain(line).startswith("after="):
                continue
            seen += 1
            assert all(part.strip(",") in source for part in plain(line).split("...")), line
    assert seen >= least


# --- lesson 05: the convolution as a matrix product ---


@pytest.mark.parametrize("p", problems.RAGGED["conv3d"], ids=str)
def test_the_mapping_of_the_page_is_a_count_of_everything(implicit, p):
    outputs = itertools.product(range(p.N), range(p.O), range(p.P), range(p.Q))
    for gemm_m, output in enumerate(outputs):
        assert implicit["gemm_m_of"](*output, p.O, p.P, p.Q) == gemm_m
        assert implicit["output_of"](gemm_m, p.O, p.P, p.Q) == output
    taps = itertools.product(range(p.T), range(p.R), range(p.S), range(p.C))
    for gemm_k, tap in enumerate(taps):
        assert implicit["gemm_k_of"](*tap, p.R, p.S, p.C) == gemm_k
        assert implicit["tap_of"](gemm_k, p.R, p.S, p.C) == tap
    g = p.geometry
    x, filt = (array.astype(np.float64) for array in inputs.integers(p, 1))
    y = implicit["convolve"](x, filt, g[0:3], g[3:6], g[6:9])
    np.testing.assert_array_equal(y, reference.full(p, x, filt))


@given(number=st.integers(0, 2**32 - 1), divisor=st.integers(1, 2**32 - 1))
def test_the_division_of_the_page_is_a_division(implicit, number, divisor):
    assert implicit["divide"](number, *implicit["magic"](divisor)) == number // divisor
    assert implicit["magic"](divisor)[0] < 2**32


def test_the_candidate_that_is_worked_through_is_the_step_s_model():
    step, problem = module(IMPLICIT, "conv2d_layer_dispatch"), problems.preset("ece408-layer1")
    candidate = next(one for one in step.candidates(problem) if one.kernel == "one_channel_pairs")
    estimate = step.estimate(candidate, problem)
    text = pages(IMPLICIT)["layers"]
    assert f"\n{' '.join(f'{ms:.2f}' for ms in estimate.limits.values())} ms\n" in text
    assert f"\n{estimate.ms:.2f} ms\n" in text


# --- lesson 06: fragments and banks ---


def traced(name, shape, kept=0):
    (found,) = trace.results([trace.task(catalog.find(name), problems.parse_shape("hgemm", shape), kept=kept)])
    return found.main


@some_days(5)
def test_the_fragment_of_the_page_is_the_step_s():
    """Each lane's elements of A in their order, against what hgemm_mma reads."""
    names = {name: value for defined in run(TENSOR).values() for name, value in defined.items()}
    reads = {one.array: one for one in traced("hgemm_mma", "M=16 N=8 K=16", kept=8).select("global", "read")}
    seen = np.array([request.places for request in reads["a"].seen]).T // 2  # of float16
    np.testing.assert_array_equal(names["a_frag"], seen)


@pytest.mark.parametrize(("step", "each"), [("hgemm_shared", 32), ("hgemm_swizzled", 4)])
def test_an_ldmatrix_takes_as_many_wavefronts_as_the_page_says(step, each):
    accesses = [one for one in traced(step, "M=128 N=128 K=64").accesses if one.space == "shared"]
    assert {one.per_request for one in accesses if one.op == "read"} == {each}
    assert {one.per_request for one in accesses if one.op == "copy"} == {4}


def test_stages_and_bytes_of_the_pipelined_step_are_those_of_the_page():
    step, text = module(TENSOR, "hgemm_pipelined"), flat(TENSOR)
    pair, total = 2 * step.STAGE // 1024, step.SHARED_BYTES // 1024
    assert f"STAGES = {step.STAGES} pairs" in text
    assert f"A block has {step.BLOCK_M} × {step.BLOCK_N} outputs" in text
    said = f"({step.BLOCK_M} + {step.BLOCK_N}) × {step.BLOCK_K} × 2 bytes = {pair} KiB, three of them {total} KiB"
    assert said in text
    assert f"PENDING is STAGES - 2 = {step.PENDING}" in text


# --- lesson 07: descriptors, clocks, registers ---


def test_the_descriptor_and_swizzle_of_the_page_are_those_of_the_engines():
    names = {name: value for defined in run(HOPPER).values() for name, value in defined.items()}
    for fields in ((0, 0, 1024), (0x4000, 8192, 1024), (163840, 4096, 512)):
        assert names["descriptor"](*fields) == int(layouts.encoded(*fields)) & ~(3 << 62) | 1 << 62
    addresses = np.arange(0, 4096, 2)
    np.testing.assert_array_equal(names["swizzled"](addresses), layouts.swizzled(addresses))
    for taps, stride, pad, dilation in ((3, 2, 1, 1), (1, 1, 0, 1), (3, 1, 1, 2), (2, 3, 2, 1)):
        window = {"S": taps, "stride_w": stride, "pad_w": pad, "dilation_w": dilation}
        p = problems.Conv3d(N=1, C=8, D=1, H=1, W=28, K=1, T=1, R=1, **window)
        assert len(names["bases"](28, taps, stride, pad, dilation)) == p.Q


def test_bytes_clocks_and_registers_are_the_steps():
    step, text = module(HOPPER, "hgemm_specialised"), flat(HOPPER)
    stage, clocks = step.STAGE_BYTES, step.BLOCK_M * step.BLOCK_N * step.BLOCK_K // 2048
    assert f"({step.BLOCK_M} + {step.BLOCK_N}) × {step.BLOCK_K} × 2 = {stage:,}." in text
    assert f"{step.BLOCK_M} × {step.BLOCK_N} × {step.BLOCK_K} / 2,048 = {clocks:,}." in text
    assert f"{stage // 1024} KiB in {clocks:,} clocks: {stage // clocks} bytes." in text
    held = 128 * step.FEW + 128 * step.CONSUMERS * step.MANY
    assert f"128 × {step.FEW} + {128 * step.CONSUMERS} × {step.MANY} = {held:,} of 65,536." in text
    step = module(HOPPER, "hgemm_wgmma")
    assert f"16 values are 32 bytes, two pieces: add {step.A_STEP}." in text
    assert f"2,048 bytes, add {step.B_STEP}." in text
    assert f"lie in registers: {step.ACC} in each thread for N = {step.MMA_N}." in text


def test_the_pipeline_is_the_one_that_a_trace_shows():
    pattern = r'trace hgemm_specialised --shape "(.*)"\n\.\.\.\nStages of block.*?\n((?:filled.*\n)+)'
    shape, shown = re.search(pattern, pages(HOPPER)["README"]).groups()
    assert traces.pipeline(traced("hgemm_specialised", shape), 80)[1:] == shown.splitlines()


# --- lesson 08: gradients ---


@pytest.mark.usefixtures("traced")
def test_the_gradients_of_the_page_are_the_direct_steps(gradients):
    from numba import cuda

    page = gradients
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


def test_what_the_pages_count_of_a_layer_and_of_epilogues():
    layer, page = problems.preset("wgrad-resnet50-conv2"), flat(TRAINING, "wgrad")
    assert f"matrix of {layer.K} × {layer.R * layer.S * layer.C}, summed over {layer.reduction:,} outputs" in page
    layer, page = problems.preset("c3d-conv3a"), flat(TRAINING, "epilogues")
    size = int(np.prod(layer.output_shape)) / 1e6
    moved = f"{4 * size:.0f} MB. Written and read again: {8 * size:.0f} MB"
    assert f"y has {size:.1f} million elements, {moved}" in page
    layer = problems.preset("hresnet50-conv2-n256")
    between = int(np.prod(layer.output_shape)) * 2 / 1e6
    assert f"values are {between:.0f} MB, both ways {2 * between:.0f} MB" in page
    assert f"reads {between:.0f} MB and writes {4 * between:.0f} MB" in page
    assert f"Smaller: {between / 8:.0f} MB lie between" in page


def test_the_fused_network_has_as_many_kernels_as_the_page_lists():
    files = (catalog.LESSONS / TRAINING / "network" / f"{name}.py" for name in ("fused", "parameters"))
    source = "".join(path.read_text(encoding="utf-8") for path in files)  # the update is in what both kinds share
    text = pages(TRAINING)["network"]
    assert len(re.findall(r"\.launch\w*\(|momentum_sgd\[", source)) == 8
    assert "has eight kernels of its own" in text
    rows = re.findall(r"^\| (`\w+`, twice|`\w+`|one|two) ?(?:for .*?)?\|", text, re.MULTILINE)
    assert sum(2 if "tw" in row else 1 for row in rows) == 8
