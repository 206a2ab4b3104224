"""Lesson 06's pages: their Python runs, excerpts are the steps' own lines, counts are those of traces and files."""

import doctest
import os
import re
import subprocess
import sys
from importlib import import_module

import numpy as np
import pytest
from test_page05 import texts

from common.catalog import catalog, problems
from common.trace import trace

FOLDER = catalog.LESSONS / "06_tensor_cores"
PAGES = sorted(FOLDER.glob("*.md"))
FIRST = (FOLDER / "README.md").read_text(encoding="utf-8")


def traced(name, shape, watched=()):
    (found,) = trace.results([trace.task(catalog.find(name), problems.parse_shape("hgemm", shape), watched=watched)])
    return trace.main_kernel(found)


def module(step):
    return import_module(f"lessons.06_tensor_cores.{step}")


@pytest.fixture(scope="module")
def names():
    """What the pages' Python has defined at their ends; fails with the first line that gives something else."""
    found, tries = {}, 0
    for page in PAGES:  # each by itself, as a reader runs it
        test = doctest.DocTestParser().get_doctest(page.read_text(encoding="utf-8"), {}, page.name, str(page), 0)
        runner = doctest.DebugRunner(verbose=False)
        runner.run(test, clear_globs=False)
        found, tries = found | test.globs, tries + runner.tries
    assert tries >= 12
    return found


def test_the_pages_fragment_is_the_steps(names):
    """Each lane's elements of A in their order, against what hgemm_mma reads."""
    reads = [e for e in traced("hgemm_mma", "M=16 N=8 K=16", ["a"])["events"] if e["op"] == "read"]
    seen = np.array([[dict(zip(e["threads"], e["places"], strict=True))[lane] for e in reads] for lane in range(32)])
    np.testing.assert_array_equal(names["a_frag"], seen)


@pytest.mark.parametrize(("step", "each"), [("hgemm_shared", 32), ("hgemm_swizzled", 4)])
def test_an_ldmatrix_takes_as_many_wavefronts_as_the_page_says(step, each):
    accesses = [one for one in traced(step, "M=128 N=128 K=64")["accesses"] if one["space"] == "shared"]
    assert {one["per_request"] for one in accesses if one["op"] == "read"} == {each}
    assert {one["per_request"] for one in accesses if one["op"] == "copy"} == {4}


def clocks(step, wavefronts):
    """Wavefronts and instructions of one warp for sixteen k: of ldmatrix, of the copies, and mma."""
    warps = step.THREADS // 32
    copied = 2 * (step.BLOCK_M + step.BLOCK_N) * step.MMA_K // 128 // warps
    return (step.ROWS + step.COLUMNS // 2) * wavefronts, copied, step.ROWS * step.COLUMNS


def test_the_counts_of_wavefronts_are_the_steps():
    """And the times that the page says follow from them."""
    text = re.sub(r"\s+", " ", FIRST)
    for step, wavefronts, told in (("shared", 32, "1.7"), ("swizzled", 4, "0.27"), ("pipelined", 4, "0.19")):
        reads, copies, products = clocks(module(f"hgemm_{step}"), wavefronts)
        counts = f"{reads // wavefronts} × {wavefronts} + {copies} = {reads + copies} wavefronts for {products} `mma`"
        rate = 2048 * products / (reads + copies)
        assert f"{counts}: {rate:,.0f} multiply-adds per clock, {told} ms" in text
        assert told == f"{128 / rate * 2.16:.2g}"


def test_stages_and_bytes_are_the_steps():
    step = module("hgemm_pipelined")
    text = re.sub(r"\s+", " ", FIRST)
    assert f"STAGES = {step.STAGES} pairs" in text
    pair = 2 * step.STAGE // 1024
    total = step.SHARED_BYTES // 1024
    assert f"A block has {step.BLOCK_M} × {step.BLOCK_N} outputs" in text
    said = f"({step.BLOCK_M} + {step.BLOCK_N}) × {step.BLOCK_K} × 2 bytes = {pair} KiB, three of them {total} KiB"
    assert said in text
    assert step.STAGES * pair == total
    assert f"227 / {pair}: four." in text
    assert (227 // pair, step.BLOCKS_PER_SM) == (4, 1)
    assert f"PENDING is STAGES - 2 = {step.PENDING}" in text
    assert f"a warp tile of {step.WARP_M} × {step.WARP_N}" in text


LOOP = """
from common.catalog import catalog, problems
from common.machine_code import codegen, sass

module = catalog.load_file(catalog.find("hgemm_pipelined").path)
(launch,) = codegen.distinct(codegen.launches(module, problems.preset("hgemm-4096")))
try:
    code = codegen.machine_code(launch, "9.0", codegen.ptx(launch, ["9.0"])["9.0"])
except codegen.ToolMissingError:
    raise SystemExit(3)
begin, end = sass.multiply_loop(code.listing)
print(*(one.text for one in code.listing.instructions[begin:end]), sep="\\n")
"""


def test_the_pipelined_loop_s_copies_are_strewn_as_the_page_says():
    environment = {**os.environ}
    done = subprocess.run(
        [sys.executable, "-c", LOOP], cwd=catalog.ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    if done.returncode == 3:
        pytest.skip("no assembler here")
    assert done.returncode == 0, done.stderr
    loop = done.stdout.splitlines()
    step = module("hgemm_pipelined")
    copies = [i for i, one in enumerate(loop) if "LDGSTS" in one]
    assert len(copies) == step.STAGE // step.HALVES // step.THREADS
    assert all(re.match(r"@!?P\d LDGSTS", loop[i]) for i in copies)
    assert [one for one in loop if "BRA" in one] == loop[-1:]
    products = [i for i, one in enumerate(loop) if one.startswith("HMMA")]
    each = step.ROWS * step.COLUMNS
    assert sum(copies[0] < i < copies[-1] for i in products) > len(copies)
    loads = [i for i, one in enumerate(loop) if one.startswith("LDSM")]
    assert loads[step.ROWS + step.PAIRS - 1] < products[each // 2]  # the next k's fragments, well before they are due
    constants = {found[1] for i in copies if (found := re.search(r"LDGSTS\S* \[R\d+\+(0x[0-9a-f]+)\]", loop[i]))}
    assert set(re.search(r"room for one, `\+(\w+)` or `\+(\w+)`", FIRST).groups()) <= constants


@pytest.mark.parametrize(("layer", "number", "share"), [("ece408-layer1", 1, 39), ("ece408-layer2", 2, 77)])
def test_the_share_of_products_that_count_is_the_plans(layer, number, share):
    step, p = module("conv2d_tensor_core"), problems.preset(layer)
    shape = p.C, p.H, p.W, p.K, p.R, p.S
    tile, whole = step.plan(*shape), step.whole_rows.plan(*shape, step.PART_ROWS, step.TICKETS)
    assert (whole is not None) == (number == 1)
    taps, filters, columns = p.C * p.S, tile["TILES"] * step.MMA_N, tile["WARPS_Q"] * step.MMA_M
    rows = whole["ROWS"] if whole else tile["WARPS_P"] * tile["ROWS"]  # a part ends with the rows of y
    extents = [(taps, step.MMA_K), (p.K, filters), (p.Q, columns), (p.P, rows)]
    rounded = [(extent, -(-extent // piece) * piece) for extent, piece in extents]
    assert round(100 * np.prod([extent / up for extent, up in rounded])) == share
    text = re.sub(r"\s+", " ", (FOLDER / "convolution.md").read_text(encoding="utf-8"))
    said = re.search(rf"\. Layer {number}: ([^:]*): {share}%|Layer {number}: ([^:]*): {share}%", text)
    assert re.findall(r"(\d+)/(\d+)", said[0]) == [(str(extent), str(up)) for extent, up in rounded]
    if not whole:
        assert f"blocks have {columns} × {rows} outputs" in text
        return
    assert f"a block has {columns} × {rows} outputs at a time, of {p.Q} × {p.P}" in text
    lines, products = rows + p.R - 1, rows * p.R * tile["TILES"]
    assert f"{rows} + {p.R} - 1 = {lines} image rows, {4 * lines} values of x; " in text
    assert f"= {p.R * tile['TILES'] * 2} taps, {tile['QUADS']} loads; " in text
    assert f"= {products} `mma`" in text
    assert f"it would be {4 * rows * p.R} values of x" in text
    assert f"a *part* of the outputs, {rows} rows of all {p.K} maps" in text
    _, resident, *_ = step.whole_rows.specialise(p.H, p.W, p.K, p.R, p.S, **whole, multiplier=step.multiplier)
    blocks, parts = 132 * resident, p.N * whole["PARTS"]
    assert f"{p.N:,} images have {parts:,} parts, and {blocks} blocks fit" in text
    assert f"every {blocks}th part" in text
    assert f"{blocks} neighbouring parts are computed at a time, of {blocks // whole['PARTS']} images" in text
    assert f"every block has {parts // blocks} or {parts // blocks + 1} parts" in text
    map_bytes, vector = 4 * p.P * p.Q, 4 * step.VECTOR
    assert f"{map_bytes:,} bytes, {map_bytes / 32} sectors" in text
    assert f"{32 * vector} bytes, {vector} sectors" in text


# --- excerpts ---

_TYPES = re.compile(r"\b(u?int(?:32|64))\(")


def plain(line):
    """A line of code without types, brackets, blanks and comment."""
    return re.sub(r"[\s()]", "", _TYPES.sub("(", line.split("#")[0]))


def excerpts():
    for page in PAGES:
        for section in re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE):
            step = re.match(r"\d+\. `(\w+)`", section)
            blocks = re.findall(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE) if step else []
            yield from ((step[1], block) for block in blocks)


def test_excerpts_are_the_lines_of_their_steps():
    found = list(excerpts())
    assert {step for step, _ in found} >= {"hgemm_mma", "hgemm_shared", "hgemm_pipelined", "hconv3d_mma"}
    for step, block in found:
        path = catalog.find(step).path
        files = [path, *path.parent.glob("helpers/*.py")]
        source = "".join(plain(line) for file in files for line in file.read_text(encoding="utf-8").splitlines())
        for line in block.splitlines():
            parts = [part.strip(",") for part in plain(line).split("...")]
            assert all(part in source for part in parts), f"{step}: {line}"


def test_the_swizzle_is_the_only_line_that_changes():
    (shown,) = re.findall(r"^```diff\n(.*?)^```$", FIRST, re.DOTALL | re.MULTILINE)
    changed = re.findall(r"^[-+] (.*)$", shown, re.MULTILINE)
    sources = [catalog.find(step).path.read_text(encoding="utf-8") for step in ("hgemm_shared", "hgemm_swizzled")]
    assert [line.strip() in source for line in changed for source in sources] == [True, False, False, True]


def test_the_pictures_are_those_that_the_code_draws(tmp_path, no_pixels):
    drawn = catalog.load_file(FOLDER / "figures" / "draw.py").draw(tmp_path)
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert sorted(path.stem for path in drawn) == sorted(re.findall(r"\]\(figures/(\w+)\.png\)", text))
    for path in drawn:
        shipped = FOLDER / "figures" / path.name
        assert shipped.read_bytes().startswith(b"\x89PNG")
        assert texts(path.with_suffix(".svg")) == texts(shipped.with_suffix(".svg")), "python -m common charts"


def test_the_counts_of_shifted_filters_are_the_plans():
    step, p = module("experiments.conv2d_tensor_core_shifted"), problems.preset("ece408-layer1")
    plain, tile = module("conv2d_tensor_core"), step.plan(p.H, p.W, p.K, p.R, p.S)
    shift, tiles = tile["SHIFT"], tile["TILES"] * tile["GROUPS"]
    outputs = step.MMA_M * shift
    wide, deep = outputs // plain.MMA_M, -(-p.K // plain.MMA_N)
    strips, segments = -(-p.P // step.ROWS), -(-p.Q // shift)
    pieces = -(-strips * segments // step.MMA_M)
    products = step.ROWS * p.R * tile["TILES"]
    text = re.sub(r"\s+", " ", (FOLDER / "shifted_filters.md").read_text(encoding="utf-8"))
    for told in (
        f"for {outputs} outputs of {p.K} filters and one filter row",
        f"{wide} tiles of pixels × {deep} tiles of filters = {wide * deep}, and {4 * wide} values; now 1 × {tiles} =",
        f"A row has {p.Q} outputs, so {segments} segments",
        f"{strips} strips of three rows have {strips * segments} segments, which fill",
        f"{strips * segments / step.MMA_M:.1f} tiles",
        f"has {products} `mma`",
        f"An image has {pieces * tile['GROUPS']} such pieces",
    ):
        assert told in text
    assert step.ROWS == 3
