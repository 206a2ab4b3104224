"""The machine-code microscope: occupancy, loops and classes, source lines, cards, and the inspect command."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from made import counters, kernel
from rich.console import Console
from sampling import some

from common import cli
from common.catalog import cache, catalog, device, limits, problems, schema
from common.catalog.limits import LIMITS
from common.commands import choosing, verdicts
from common.jobs import compiling
from common.jobs.messages import Card, Compile
from common.machine_code import cards, codegen, loops, sass
from common.machine_code.loops import HotLoop
from common.records import entries, records
from common.report import cardtables, pages
from common.run import isolate
from common.timing import profiler
from common.trace import trace

SECONDS = 180.0
SASS = Path(__file__).parents[1] / "sass"
ALL_CC = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0")
TRIED_CC = some(ALL_CC, 3, 1)
BOOK = "/book/gemm_coarsened.py"


def shown(part, width=100):
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(part)
    return capture.get()


# --- occupancy, worked out by hand ---


@pytest.mark.parametrize(
    ("cc", "threads", "registers", "shared", "blocks", "warps", "limited_by"),
    [
        # 2048 threads = 2 blocks of 1024; 65536 / (32 * 1024) = 2 by registers as well
        ("9.0", 1024, 32, 8192, 2, 64, ["threads", "registers"]),
        # 229 * 32 = 7328, in units of 256 7424; 16384 // 7424 = 2 warps of each scheduler, 8 in all: 2 blocks of 4
        ("9.0", 128, 229, 16640, 2, 8, ["registers"]),
        # 66 * 32 = 2112 -> 2304; 16384 // 2304 = 7, 28 warps: 7 blocks of 4
        ("9.0", 128, 66, 8192, 7, 28, ["registers"]),
        # 228 KiB / (40 + 1 KiB) = 5
        ("9.0", 64, 32, 40 * 1024, 5, 10, ["shared memory"]),
        # 32 blocks of 1 warp, although 64 warps would fit
        ("9.0", 32, 16, 0, 32, 32, ["blocks"]),
        # Turing: 16 blocks, 1024 threads, no shared memory taken by the driver
        ("7.5", 1024, 48, 8192, 1, 32, ["threads", "registers"]),
        ("7.5", 32, 16, 4096, 16, 16, ["shared memory", "blocks"]),
        # in units of 256 bytes: 4100 -> 4352; 65536 // 4352 = 15
        ("7.5", 32, 16, 4100, 15, 15, ["shared memory"]),
        # A100: 164 KiB / (48 + 1 KiB) = 3
        ("8.0", 256, 32, 48 * 1024, 3, 24, ["shared memory"]),
        # consumer Ampere: 1536 threads, 16 blocks; 38 * 32 = 1216 -> 1280; 16384 // 1280 = 12, 48 warps
        ("8.6", 1024, 38, 8192, 1, 32, ["threads", "registers"]),
        ("8.6", 64, 32, 0, 16, 32, ["blocks"]),
        # Ada: 24 blocks; 48 * 32 = 1536; 16384 // 1536 = 10, 40 warps: 20 blocks of 2
        ("8.9", 64, 48, 1792, 20, 40, ["registers"]),
        # 100 KiB / (7 + 1 KiB) = 12
        ("8.9", 128, 32, 7 * 1024, 12, 48, ["threads", "shared memory"]),
        ("10.0", 256, 119, 16640, 2, 16, ["registers"]),
        ("12.0", 128, 80, 8192, 6, 24, ["registers"]),
        ("12.0", 64, 16, 0, 24, 48, ["threads", "blocks"]),
        # 33 threads are two warps; 31 of the second are idle but take their place
        ("9.0", 33, 32, 0, 32, 64, ["threads", "registers", "blocks"]),
    ],
)  # fmt: skip
def test_occupancy(cc, threads, registers, shared, blocks, warps, limited_by):
    found = limits.occupancy(cc, threads, registers, shared)
    assert (found.blocks, found.warps, found.limited_by) == (blocks, warps, limited_by)
    assert found.fraction == warps / (LIMITS[cc].threads // 32)


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "why"),
    [
        (1056, 32, 0, "threads"),
        # 80 * 32 = 2560 for each of 32 warps: 81920 registers
        (1024, 80, 0, "registers"),
        (32, 256, 0, "registers"),
        # 228 KiB and 1 KiB for the driver
        (32, 32, 228 * 1024, "shared memory"),
    ],
)
def test_a_block_that_fits_nowhere(threads, registers, shared, why):
    found = limits.occupancy("9.0", threads, registers, shared)
    assert (found.blocks, found.warps, found.fraction, found.limited_by) == (0, 0, 0.0, [why])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("6.1", 32, 32, 0), r"'6.1' is unknown: known are 7.5, 8.0, .*12.1"),
        (("9.0", 0, 32, 0), "threads=0: a block has at least 1"),
        (("9.0", 32, -1, 0), "registers=-1: must not be negative"),
        (("9.0", 32, 32, -8), "shared_bytes=-8: must not be negative"),
    ],
)
def test_occupancy_of_nonsense(arguments, says):
    with pytest.raises(ValueError, match=says):
        limits.occupancy(*arguments)


# --- disassemblies, recorded from nvdisasm ---


def recorded(cc):
    return sass.parse((SASS / f"gemm_coarsened.sm_{cc.replace('.', '')}.txt").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("cc", "total", "fma", "shared", "integer"),
    [("7.5", 57, 16, 18, 22), ("9.0", 58, 16, 18, 23), ("12.0", 26, 8, 9, 8)],
)
def test_the_loop_of_a_recorded_kernel(cc, total, fma, shared, integer):
    listing = recorded(cc)
    what, (start, stop) = sass.hot_span(listing)
    loop = listing.instructions[start:stop]
    assert (what, len(loop)) == ("multiply loop", total)
    mix = {"multiply-add": fma, "shared load": shared, "integer and address": integer, "control": 1}
    assert sass.mix(sass.names(loop)) == mix
    assert loop[-1].name == "BRA"
    assert sass.widths(loop) == {"shared load": {"32": shared}}
    # each instruction knows its line; barrier and staging outside are not part of the loop
    assert {(i.file, i.line) for i in loop} == {(BOOK, 52), (BOOK, 53), (BOOK, 55)}
    assert Counter(i.line for i in loop if i.name == "FFMA") == {55: fma}
    assert {i.line for i in listing.instructions} > {i.line for i in loop}


@pytest.mark.parametrize(
    ("text", "kind", "width"),
    [
        ("FFMA R8, R6, R6, R8", "multiply-add", 32),
        ("FFMA.FTZ R9, R6, R6, R9", "multiply-add", 32),
        ("DADD R8, R8, R6", "multiply-add", 32),
        ("HMMA.16816.F32 R4, R8, R2, R4", "multiply-add", 32),
        ("HGMMA.64x256x16.F32 R24, gdesc[UR16].tnspB, R24, gsb0", "multiply-add", 32),
        ("HGMMA.64x128x8.F32.TF32 R24, R4, gdesc[UR16], R24", "multiply-add", 32),
        ("UTMALDG.2D.MULTICAST [UR8], [UR4], UR12, desc[UR14]", "global load", 32),
        ("UTMASTG.2D [UR8], [UR4]", "store", 32),
        ("SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR8], R13", "control", 32),
        ("WARPGROUP.ARRIVE", "control", 32),
        ("USETMAXREG.DEALLOC.CTAPOOL 0x28", "control", 32),
        ("LDSM.16.M88.4 R8, [R4]", "shared load", 128),
        ("LDSM.16.MT88.2 R8, [R4+0x80]", "shared load", 64),
        ("LDSM.16.M88 R8, [R4]", "shared load", 32),
        ("LDS R8, [R4]", "shared load", 32),
        ("LDS.U.64 R8, [R4+0x80]", "shared load", 64),
        ("LDS.128 R12, [R0]", "shared load", 128),
        ("@!P1 LDG.E R26, desc[UR14][R12.64]", "global load", 32),
        ("LDG.E.128.CONSTANT R4, desc[UR4][R2.64]", "global load", 128),
        ("LDG.E.U8 R4, [R2.64]", "global load", 8),
        ("LDGSTS.E.BYPASS.LTC128B.128 [R3], desc[UR4][R2.64]", "global load", 128),
        ("LDL.64 R2, [R1+0x10]", "local load", 64),
        ("ULDC.64 UR6, c[0x0][0x240]", "constant load", 64),
        ("LDCU.64 UR6, c[0x0][0x240]", "constant load", 64),
        ("STS [R3+UR13], R28", "store", 32),
        ("STG.E.128 desc[UR14][R4.64], R24", "store", 128),
        ("IMAD.MOV.U32 R26, RZ, RZ, RZ", "integer and address", 32),
        ("UIADD3.64 UR4, UPT, UPT, UR8, UR4, URZ", "integer and address", 64),
        ("UIMNMX UR4, UR4, UR5, UPT", "integer and address", 32),
        ("@P0 BRA `(.L_x_2)", "control", 32),
        ("BRA.U !UP0, `(.L_x_0)", "control", 32),
        ("BSSY.RECONVERGENT B0, `(.L_x_5)", "control", 32),
        ("BAR.SYNC.DEFER_BLOCKING 0x0", "control", 32),
        ("MUFU.RCP R5, R4", "other", 32),
        ("HFMA2 R5, -RZ, RZ, 0, 0", "other", 32),
        ("@!PT LDS RZ, [RZ]", "other", 32),
        ("@!UPT UIADD3 URZ, URZ, URZ, URZ", "other", 32),
    ],
)
def test_an_instruction_is_read(text, kind, width):
    (found,) = sass.parse(f"        /*0010*/                   {text} ;\n").instructions
    assert (found.text, found.kind, found.width) == (text, kind, width)
    assert found.address == 16
    assert found.line == 0


def test_every_class_has_members_and_no_name_has_two():
    names = [name for members in sass._MEMBERS.values() for name in members.split()]
    assert len(names) == len(set(names))
    assert {*sass._MEMBERS, "other"} == set(sass.CLASSES)
    assert sass.classify("UNKNOWN") == "other"
    assert sass.multiply_adds({"FFMA": 3, "FFMA2": 2, "IMAD": 9}) == 7
    # 16 x 8 x 16, 16 x 8 x 8, and 8 x 8 x 4 products of a warp
    assert sass.multiply_adds({"HMMA.16816": 2, "HMMA.1688": 1, "HMMA.884": 1, "LDSM": 9}) == 2 * 64 + 32 + 8
    # 64 x 256 x 16 and 64 x 128 x 8 products of four warps
    assert sass.multiply_adds({"HGMMA.64x256x16": 1, "HGMMA.64x128x8": 2, "WARPGROUP": 3}) == 2048 + 2 * 512


TENSOR = """
.L_x_1:
        /*0010*/                   LDGSTS.E.BYPASS.LTC128B.128 [R3], desc[UR4][R2.64] ;
        /*0020*/                   LDSM.16.M88.4 R8, [R4] ;
        /*0030*/                   LDSM.16.MT88.4 R12, [R4+0x80] ;
        /*0040*/                   HMMA.16816.F32 R16, R8, R12, R16 ;
        /*0050*/                   HMMA.16816.F32 R20, R8, R14, R20 ;
        /*0060*/                   LDGDEPBAR ;
        /*0070*/                   DEPBAR.LE SB0, 0x1 ;
        /*0080*/                   @P0 BRA `(.L_x_1) ;
        /*0090*/                   FFMA R1, R1, R1, R1 ;
        /*00a0*/                   EXIT ;
"""


def test_a_loop_on_tensor_cores_multiplies_and_its_shares_make_sense():
    listing = sass.parse(TENSOR)
    what, span = sass.hot_span(listing)
    hot = HotLoop.counted(listing.instructions[slice(*span)], what)
    assert (what, span) == (sass.MULTIPLY_LOOP, (0, 8))
    assert hot.instructions["HMMA.16816"] == 2
    assert (hot.multiply_adds, hot.multiplies, hot.loads) == (128, True, 2)
    assert hot.widths == {"shared load": {"128": 2}, "global load": {"128": 1}}
    assert hot.useful == 0.25
    assert hot.per_multiply_add() == 8 / 128
    assert hot.multiply_adds_per_shared_load == 64
    assert hot.floats_per_multiply_add == round(8 / 128, 3)
    assert loops.shown(8 / 128) == "0.062"
    assert (loops.shown(1.25), loops.shown(0), loops.shown(28.04)) == ("1.2", "0.0", "28.0")


def test_without_a_multiply_loop_the_longest_loop_or_the_whole_kernel_is_shown():
    def listing(body):
        return sass.parse("".join(f"{'' if t.startswith('.') else '        /*0010*/   '}{t}\n" for t in body))

    copies = listing([".L_x_1:", "LDG.E R1, [R2] ;", "@P0 BRA `(.L_x_1) ;", "EXIT ;"])
    assert sass.hot_span(copies) == ("loop", (0, 2))
    straight = listing(["FFMA R1, R1, R1, R1 ;", "EXIT ;"])
    assert sass.hot_span(straight) == ("kernel", (0, 2))
    # all is unrolled but the staging: the loop is not where the time goes
    staged = listing([".L_x_1:", "LDG.E R1, [R2] ;", "@P0 BRA `(.L_x_1) ;", "FFMA R1, R1, R1, R1 ;", "EXIT ;"])
    assert sass.hot_span(staged) == ("kernel", (0, 4))
    assert sass.hot_span(sass.parse("")) == ("kernel", (0, 0))


COPYING = """
.L_x_1:
        /*0010*/                   @!PT LDS RZ, [RZ] ;
        /*0020*/                   @!PT LDS RZ, [RZ] ;
        /*0030*/                   LDGSTS.E [R183], desc[UR10][R16.64] ;
        /*0040*/                   LDS.128 R4, [R0] ;
        /*0050*/                   FFMA R1, R4, R5, R1 ;
        /*0060*/                   FFMA R2, R4, R6, R2 ;
        /*0070*/                   @!PT FFMA R2, R4, R6, R2 ;
        /*0080*/              @!PT BRA `(.L_x_1) ;
        /*0090*/               @P0 BRA `(.L_x_1) ;
"""


def test_what_is_issued_and_never_done_is_no_load_and_no_multiply_add():
    listing = sass.parse(COPYING)
    assert listing.loops == ((0, 9),)
    hot = cards.hot_figures(listing.instructions)
    assert (hot["total"], hot["multiply_adds"], hot["fma_per_shared_load"]) == (9, 2, 2.0)
    assert hot["mix"] == {"multiply-add": 2, "shared load": 1, "global load": 1, "control": 1, "other": 4}
    assert hot["widths"] == {"shared load": {"128": 1}, "global load": {"32": 1}}
    assert hot["floats_per_fma"] == 2.0
    counts = sass.names(sass.parse(COPYING).instructions)
    assert (counts["LDS"], counts["@!PT LDS"]) == (1, 2)  # grading counts by name


# --- cards ---


def made_card(cc="9.0", **changes):
    """The card of a recorded loop, launched as gemm_coarsened is."""
    launch = codegen.Launch("gemm_coarsened", None, (128, 128, 1), (32, 4, 1), None)
    code = codegen.MachineCode("gemm_coarsened", cc, 66, 0, 0, 8192, recorded(cc))
    return {**cards.card(launch, code), **changes}


def test_a_card_holds_the_figures_of_its_loop():
    card = made_card()
    json.dumps(card)
    assert card["threads"] == 128
    assert card["occupancy"]["blocks"] == 7
    hot = card["hot"]
    assert (hot["total"], hot["multiply_adds"], hot["useful"]) == (58, 16, round(16 / 58, 4))
    assert hot["fma_per_shared_load"] == round(16 / 18, 3)
    assert hot["floats_per_fma"] == 18 / 16
    assert hot["as_single_loads"] == round(16 / 34, 4)
    assert sum(hot["mix"].values()) == 58
    assert [(line["file"], line["line"], line["total"]) for line in hot["lines"]] == [
        ("gemm_coarsened.py", 52, 16), ("gemm_coarsened.py", 53, 6), ("gemm_coarsened.py", 55, 36),
    ]  # fmt: skip
    listed = [text for group in hot["groups"] for _, text in group["instructions"]]
    assert len(listed) == 58
    assert all(a["line"] != b["line"] for a, b in zip(hot["groups"], hot["groups"][1:], strict=False))


def test_wide_loads_count_as_the_floats_they_bring():
    text = [
        ".L_x_1:",
        *["        /*0010*/   LDS.128 R4, [R0] ;"] * 2,
        *["        /*0020*/   FFMA R1, R4, R5, R1 ;"] * 4,
    ]
    found = sass.parse("\n".join([*text, "        /*0030*/   @P0 BRA `(.L_x_1) ;"])).instructions
    hot = cards.hot_figures(found)
    assert (hot["useful"], hot["fma_per_shared_load"]) == (round(4 / 7, 4), 2.0)
    assert (hot["floats_per_fma"], hot["as_single_loads"]) == (2.0, round(1 / 3, 4))


def test_a_card_in_full_and_side_by_side():
    card = made_card()
    text = "".join(shown(part, 160) for part in cardtables.full("gemm_coarsened", card))
    for words in (
        "32 x 4 = 128 threads; grid 128 x 128", "66 per thread, nothing spilled, no stack frame", "8,192 bytes",
        "43.8%: 7 blocks, 28 of 64 warps", "limited by registers", "58 instructions, 16 multiply-adds",
        "18 x 32 bit", "useful: 27.6%", "0.889 multiply-adds per shared load, 1.12 shared floats",
        "nothing else: 1 in 2.12 would be useful",
    ):  # fmt: skip
        assert words in text, words
    assert text.count("FFMA") == 16
    both = shown(cardtables.side_by_side([("a", card), ("b", made_card("12.0"))]))
    assert re.search(r"useful +│ +28% │ +31%", both)
    assert re.search(r"shared loads x bits +│ +18 x 32 │ +9 x 32", both)
    spilled = made_card(stack_bytes=64)
    assert "a stack frame of 64 bytes" in "".join(shown(part) for part in cardtables.full("k", spilled))
    assert "66, spilled" in shown(cardtables.short([("k", spilled, None)]))


def test_a_line_per_kernel_has_a_place_for_traffic():
    one, two = made_card(), {**made_card(), "kernel": "helper"}
    text = shown(cardtables.short([("gemm_coarsened", one, 12.4)]))
    assert "compute capability 9.0" in text
    assert re.search(r"gemm_coarsened +│ 12\.4 │ +66 │ +44% │ registers +│ +28% │", text)
    assert "sectors" not in text
    several = shown(cardtables.short([("step", one, 3.0), ("step", two, 3.0)]))
    assert re.search(r"step +│ 3\.00 │", several)
    assert several.count("3.00") == 1
    assert "  helper" in several
    one["traffic"] = {"sectors_per_request": 4.0, "bytes_per_fma": 0.25}
    wide = shown(cardtables.short([("gemm_coarsened", one, 12.4), ("other", two, None)]), 120)
    assert "sectors per request" in wide
    assert "shared wavefronts" not in wide
    assert re.search(r"28% │ +4 │ +0\.25 │", wide)
    narrow = shown(cardtables.short([("gemm_coarsened", one, 12.4)]), 80)
    assert "0.25" in narrow
    assert max(map(len, narrow.splitlines())) <= 80


# --- cards that are kept ---


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "FOLDER", tmp_path / "cache")
    return tmp_path / "cache" / "cards"


# --- real kernels, compiled in one child process ---

TWO_KERNELS = """
from functools import lru_cache
from numba import cuda, float32
from lessons.wide import copy4_async, load4, shared_array, wait_async

@cuda.jit(device=True)
def dot(a, b, m, n):
    acc = float32(0.0)
    for k in range(a.shape[1]):
        acc += a[m, k] * b[k, n]
    return acc

@lru_cache
def specialise(SQUARE):
    @cuda.jit
    def product(a, b, c):
        n, m = cuda.grid(2)
        if m < c.shape[0] and n < c.shape[1]:
            value = dot(a, b, m, n)
            c[m, n] = value * value if SQUARE else value
    return product

@cuda.jit(device=True)
def ask(tile, a):
    copy4_async(tile, 0, a, 0)

@cuda.jit
def fetch(a, c):
    tile = shared_array(128)
    ask(tile, a)
    wait_async()
    cuda.syncthreads()
    c[0, 0] = tile[cuda.threadIdx.x]

def launch(a, b, c):
    fetch[1, 32, 0, 512](a, c)
    specialise(a.shape[1] > 100)[(4, 4), (32, 8)](a, b, c)
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Results by name: one shipped kernel for every architecture, a file of two kernels, and files that are wrong."""
    folder = tmp_path_factory.mktemp("files")

    def file(name, text):
        path = folder / f"{name}.py"
        path.write_text(text, encoding="utf-8")
        return str(path)

    step = catalog.find("gemm_shared_tile")
    shape = problems.preset("gemm-4096").shape()
    problem = {"ladder": "gemm", "shape": shape}

    def card(path, show=None):
        return Card(**problem, path=path, architecture="9.0", show=show)

    def compile_(path, architectures, **others):
        return Compile(**problem, path=path, architectures=architectures, machine_code=True, **others)

    two = file("gemm_two", TWO_KERNELS)
    others = {"same": {"M": 7, "N": 7, "K": 4096}, "small": {"M": 7, "N": 7, "K": 50}}
    tasks = {
        "all": compile_(str(step.path), [cc for cc in ALL_CC if cc in TRIED_CC or cc == "9.0"]),
        "one": card(str(step.path)),
        "wide": card(str(catalog.find("gemm_wide_loads").path), "sass"),
        "two": card(two, "sass"),
        "record": compile_(two, ["9.0"], others=others),
        "type": card(file("gemm_type", WRONG_TYPE)),
        "shared": card(file("gemm_shared", TOO_MUCH_SHARED)),
        "nothing": card(file("gemm_nothing", "def launch(a, b, c):\n    pass\n")),
        "syntax": card(file("gemm_syntax", "def launch(a, b, c)\n")),
    }
    results = [result for _, result in isolate.run(list(tasks.values()), False, SECONDS)]
    if results[1].get("missing_tool"):
        pytest.skip(results[1]["message"])
    return dict(zip(tasks, results, strict=True))


WRONG_TYPE = """
from numba import cuda, float32

@cuda.jit
def k(a, b, c):
    n, m = cuda.grid(2)
    acc = float32(0.0)
    acc += a
    c[m, n] = acc

def launch(a, b, c):
    k[1, 32](a, b, c)
"""
TOO_MUCH_SHARED = """
from numba import cuda, float32

SHAPE = (128, 128)

@cuda.jit
def greedy(a, b, c):
    tile = cuda.shared.array(SHAPE, float32)
    n, m = cuda.grid(2)
    tile[m, n] = a[m, n]
    cuda.syncthreads()
    c[m, n] = tile[n, m]

def launch(a, b, c):
    greedy[1, 32](a, b, c)
"""


@pytest.mark.parametrize("cc", TRIED_CC)
def test_one_instruction_in_three_is_useful(compiled, cc):
    """The lecture's count, two loads for each multiply-add, is what the step's multiply line asks for."""
    (card,) = (kernel for kernel in compiled["all"]["kernels"] if kernel["architecture"] == cc)
    assert card["stack_bytes"] == card["spill_bytes"] == 0
    assert card["shared_bytes"] == 8192
    assert 0 < card["occupancy"]["fraction"] <= 1
    hot = card["hot"]
    assert hot["what"] == "multiply loop"
    assert hot["multiply_adds"] == 32
    assert (hot["floats_per_fma"], hot["as_single_loads"]) == (2.0, round(1 / 3, 4))
    assert hot["widths"]["shared load"] == {"32": 32, "128": 8}
    (line,) = (line for line in hot["lines"] if line["text"] == "acc += a_tile[ty, k] * b_tile[k, tx]")
    assert line["mix"]["multiply-add"] == 32
    assert line["mix"]["shared load"] == 40
    assert 0.2 < hot["useful"] < 1 / 3  # staging, guards and addresses are there too
    assert sum(hot["mix"].values()) == hot["total"] == sum(sum(line["mix"].values()) for line in hot["lines"])
    # nearly all of the loop has a class of its own
    assert hot["mix"].get("other", 0) <= 2


def test_a_card_names_the_line_of_the_source(compiled):
    (card,) = compiled["one"]["cards"]
    (recorded,) = (kernel for kernel in compiled["all"]["kernels"] if kernel["architecture"] == "9.0")
    assert card["instructions"] == recorded["instructions"]
    step = catalog.find("gemm_shared_tile")
    lines = step.path.read_text(encoding="utf-8").splitlines()
    for line in card["hot"]["lines"]:
        assert line["file"] == "lessons/02_shared_tiling/gemm_shared_tile.py"
        assert line["text"] == lines[line["line"] - 1].strip()
    number = 1 + next(i for i, line in enumerate(lines) if "acc += a_tile[ty, k]" in line)
    (line,) = (line for line in card["hot"]["lines"] if line["line"] == number)
    assert line["mix"] == {"multiply-add": 32, "shared load": 40}


def test_the_lines_of_inlined_helpers_are_those_of_their_own_file(compiled):
    (card,) = compiled["wide"]["cards"]
    assert card["hot"]["widths"]["shared load"] == {"128": 6}
    places = {(group["file"], group["line"]): group["text"] for group in card["text"]}
    assert {file for file, _ in places} == {"lessons/03_coarsening/gemm_wide_loads.py", "lessons/wide.py"}
    for (file, number), text in places.items():
        lines = (catalog.ROOT / file).read_text(encoding="utf-8").splitlines()
        assert text == lines[number - 1].strip()
    # an instruction of the helper stands at the line that asks for it
    (number,) = (number for (_, number), text in places.items() if text.startswith("inside = row < rows"))
    assert any("ISETP" in text for g in card["text"] if g["line"] == number for _, text in g["instructions"])


def test_a_file_of_two_kernels_and_a_device_function(compiled):
    fetch, product = compiled["two"]["cards"]
    assert (fetch["kernel"], product["kernel"]) == ("fetch", "product")
    assert fetch["shared_bytes"] == 512
    assert fetch["dynamic_shared_bytes"] == 512
    assert "512 bytes per block and 512 asked for at launch" in dict(cardtables.resources(fetch))["shared memory"]
    assert fetch["hot"]["what"] == "kernel"
    assert fetch["hot"]["widths"]["global load"] == {"128": 1}  # an asynchronous copy
    assert product["threads"] == 256
    # the loop is the device function's, and its lines are found there
    assert {line["text"] for line in product["hot"]["lines"]} == {
        "for k in range(a.shape[1]):", "acc += a[m, k] * b[k, n]",
    }  # fmt: skip
    # the source line stands beside the first instruction of its group
    assert re.search(
        r"IMAD.* {2,}\d+  acc \+= a\[m, k\] \* b\[k, n\]$", shown(cardtables.hot_listing(product)), re.MULTILINE
    )
    hot = [group for group in product["text"] if group["hot"]]
    assert sum(len(group["instructions"]) for group in hot) == product["hot"]["total"]
    assert len(product["text"]) > len(hot)


def test_the_record_has_the_kernels_of_other_presets_where_they_differ(compiled):
    result = compiled["record"]
    assert result["status"] == "right", result
    assert [kernel["kernel"] for kernel in result["kernels"]] == ["fetch", "product"]
    assert list(result["other_presets"]) == ["small"]
    product = result["other_presets"]["small"][-1]
    assert product["block"] == [32, 8, 1]
    assert product["hot"]["multiply_adds"] == HotLoop.compiled(product).multiply_adds
    assert all("#" not in line["text"] and "line" not in line for line in product["hot"]["lines"])


@pytest.mark.parametrize(
    ("name", "status", "says"),
    [
        ("type", "crashed", r"TypingError at gemm_type.py:8: No implementation of function .*iadd\(float32, array"),
        ("shared", "crashed", r"ptxas .*'greedy' uses too much shared data \(65,536 bytes, 49,152 max\)"),
        ("nothing", "unusable", "gemm_nothing.py: launch starts no kernel"),
        ("syntax", "unusable", "gemm_syntax.py:1: syntax error"),
    ],
)
def test_a_file_that_does_not_compile_says_why(compiled, name, status, says):
    assert compiled[name]["status"] == status
    assert re.search(says, compiled[name]["message"]), compiled[name]["message"]
    assert "candidate" not in compiled[name]["message"]


# The same kernels for several compute capabilities at once and one by one, in a process with real Numba CUDA.
LOWERING = """
import json, sys
from pathlib import Path
from common.catalog import catalog, problems
from common.machine_code import codegen
module = catalog.load(Path(sys.argv[1]), "gemm")
found = {}
for launch in codegen.launches(module, problems.preset("gemm-4096")):
    texts = codegen.ptx(launch, ["7.5", "9.0", "8.6"])
    alone = {cc: codegen.ptx(launch, [cc])[cc] for cc in texts}
    found[launch.name] = {cc: ["cp.async.cg" in text, f".target sm_{cc.replace('.', '')}" in text,
                               text.count(chr(10)) == alone[cc].count(chr(10))] for cc, text in texts.items()}
print(json.dumps(found))
"""


def test_a_kernel_for_several_architectures_is_that_for_each(write):
    """One of them has copies that are asynchronous from 8.0 on."""
    path = write("gemm_two.py", TWO_KERNELS)
    done = subprocess.run(
        [sys.executable, "-c", LOWERING, str(path)], cwd=catalog.ROOT, env=device.environment(False),
        capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout)
    asynchronous = {"7.5": False, "9.0": True, "8.6": True}
    assert seen["fetch"] == {cc: [found, True, True] for cc, found in asynchronous.items()}
    assert seen["product"] == {cc: [False, True, True] for cc in asynchronous}


# --- the command ---


@pytest.fixture
def call(capsys, monkeypatch, kept):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def call(*words):
        code = cli.main(["inspect", *words])
        return (code, *capsys.readouterr())

    return call


@pytest.fixture
def made(monkeypatch):
    """Children give recorded cards in no time; the tasks they got are listed."""
    tasks = []

    trace = isolate.run

    def answer(asked, *rest):
        if not isinstance(asked[0], Card):
            yield from trace(asked, *rest)
            return
        for task in asked:
            tasks.append(task)
            name = Path(task.path).stem
            yield task, {"status": "right", "cards": [made_card(kernel=name)]}

    monkeypatch.setattr(isolate, "run", answer)
    return tasks


KEYS = {
    "kernel", "architecture", "grid", "block", "threads", "registers", "stack_bytes", "spill_bytes", "shared_bytes",
    "dynamic_shared_bytes", "occupancy", "instructions", "hot",
}  # fmt: skip
HOT_KEYS = {
    "what", "total", "multiply_adds", "mix", "useful", "fma_per_shared_load", "floats_per_fma", "as_single_loads",
    "widths", "lines", "groups",
}  # fmt: skip


def test_json_is_alone_on_standard_output_and_cards_are_kept(call, made):
    code, out, err = call("gemm_coarsened", "--json", "--cc", "8.6")
    assert code == 0, err
    data = json.loads(out)
    assert data["architecture"] == "8.6"
    (result,) = data["results"]
    assert (result["step"], result["problem"], result["status"]) == ("gemm_coarsened", "gemm-4096", "right")
    (card,) = result["cards"]
    assert set(card) == {*KEYS, "traffic"}
    assert set(card["traffic"]) == set(cards.TRAFFIC)
    assert set(card["hot"]) == HOT_KEYS
    assert set(card["occupancy"]) == {"blocks", "warps", "max_warps", "fraction", "limited_by", "block_limits"}
    assert set(card["hot"]["lines"][0]) == {"file", "line", "text", "total", "mix"}
    assert set(card["hot"]["groups"][0]) == {"file", "line", "text", "instructions"}
    assert made[0].architecture == "8.6"
    again = call("gemm_coarsened", "--json", "--cc", "8.6")
    assert json.loads(again[1]) == data
    assert len(made) == 1, "the card was kept"
    call("gemm_coarsened", "--json", "--cc", "8.6", "--problem", "gemm-2048")
    call("gemm_coarsened", "--json", "--cc", "8.6", "--sass")
    assert len(made) == 3
    assert made[1].shape == problems.preset("gemm-2048").shape()


def test_one_card_or_two_side_by_side(call, made):
    code, out, _ = call("gemm_coarsened")
    assert code == 0
    assert "gemm_coarsened, compute capability 9.0" in out
    assert "FFMA R" in out
    code, out, _ = call("gemm_coarsened", "gemm_wide_loads")
    assert code == 0
    assert re.search(r"gemm_coarsened ┃ +gemm_wide_loads", out)
    assert "FFMA R" not in out
    assert len(made) == 2


def test_a_path_may_hold_what_ptx_cannot_write(call, tmp_path):
    """Its folder's name, and the file of a line as ptxas and nvdisasm have it."""
    folder = tmp_path / "a \"quoted\" 'one' \u8ab2"
    folder.mkdir()
    source = catalog.find("gemm_naive").path.read_text().replace("def launch(", "CHANGED = 1\n\n\ndef launch(")
    (folder / "gemm_naive.py").write_text(source)
    code, out, err = call("gemm_naive", "--file", str(folder / "gemm_naive.py"))
    assert code == 0, err
    assert "acc += a[m, k] * b[k, n]" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["gemm_nave"], "'gemm_nave' is unknown"),
        (["gemm_naive", "gemm_nave"], "'gemm_nave' is unknown"),
        (["gemm_naive", "--cc", "9.9"], "'9.9': must be a compute capability such as 9.0: known are 7.5, 8.0"),
        (["gemm_naive", "--problem", "photo"], "'photo' is a conv2d problem"),
        (["gemm_naive", "--file", "lost.py"], "lost.py: there is no such file"),
        (["gemm_naive", "gemm_coarsened", "--file", "lost.py"], "name the one STEP it stands in for; 2 are named"),
    ],
)
def test_a_mistake_is_one_line(call, words, says):
    code, out, err = call(*words)
    assert code == 2
    lines = [line for line in (out + err).splitlines() if line.strip()]
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert says in lines[0]


def test_a_kernel_that_does_not_compile_is_an_error(call, monkeypatch):
    failed = {"status": "crashed", "message": "TypingError at mine.py:3: no"}
    monkeypatch.setattr(isolate, "run", lambda tasks, *_: ((task, failed) for task in tasks))
    code, out, err = call("gemm_naive")
    assert code == 1
    assert "gemm_naive: crashed: TypingError at mine.py:3: no" in err
    code, out, err = call("gemm_naive", "--json")
    assert code == 1
    assert json.loads(out)["results"][0]["status"] == "crashed"


# A machine without NVIDIA's assembler: neither among the packages nor on the path.
NO_TOOLS = "import sysconfig\nknown = sysconfig.get_path\nsysconfig.get_path = lambda name, *a, **k: (\n" \
    "    '/nowhere' if name == 'purelib' else known(name, *a, **k))\n"  # fmt: skip


def test_without_the_assembler_one_line_says_how_to_get_it_and_ptx_still_works(write, monkeypatch):
    paths = [path for path in os.environ["PATH"].split(os.pathsep) if not Path(path, "ptxas").exists()]
    monkeypatch.setenv("PATH", os.pathsep.join(paths))
    monkeypatch.setenv("PYTHONPATH", str(write("sitecustomize.py", NO_TOOLS).parent))  # children see no packages

    def call(*words):
        # a program of its own, whose fork server starts now
        command = [sys.executable, "-m", "common", "inspect", *words]
        done = subprocess.run(command, cwd=catalog.ROOT, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout, done.stderr

    code, out, err = call("gemm_naive", "--cc", "12.0")
    assert code == 2
    lines = [line for line in (out + err).splitlines() if line.strip()]
    assert len(lines) == 1, lines
    assert "ptxas was not found: pip install nvidia-cuda-nvcc nvidia-cuda-nvdisasm" in lines[0]

    code, out, err = call("gemm_naive", "--cc", "12.0", "--ptx")
    assert code == 0, err
    assert out.startswith("// gemm_naive, compute capability 12.0\n")
    assert ".target sm_120" in out
    assert ".entry gemm_naive(" in out
    assert "fma.rn.f32" in out


def test_a_lesson_shows_a_line_per_kernel_with_its_time(made, capsys, kept, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    step = catalog.find("gemm_coarsened")
    last = choosing.with_predecessors([step], last=True)
    assert [s.name for s in last] == ["gemm_shared_tile", "gemm_coarsened"]
    outcomes = list(compiling.cards([(s, "gemm-4096") for s in last], "9.0"))
    verdicts.print_cards(outcomes, {("gemm_coarsened", "gemm-4096"): 12.4})
    said = capsys.readouterr().out
    assert re.search(r"gemm_shared_tile +│ +│ +66", said)
    assert re.search(r"gemm_coarsened +│ 12\.4 │ +66", said)


# --- records, charts and pages ---


@pytest.fixture
def code():
    """A machine-code record of two steps; the second compiles to something else on another preset."""
    launch = SimpleNamespace(threads=128, grid=(1,), block=(32, 4), dynamic_shared_bytes=0)

    def kernel(cc):
        made = codegen.MachineCode("k", cc, 66, 0, 0, 8192, recorded(cc))
        card = cards.card(launch, made)
        for line in card["hot"]["lines"]:  # of a file that is not there
            line["text"] = f"a = b | {line['line']}  # a comment"
        return {**made.as_dict(), **cards.recorded(card)}

    old = {key: value for key, value in kernel("9.0").items() if key not in ("hot", "block", "occupancy")}
    data = {
        "schema": entries.SCHEMA,
        "tools": {"nvcc": "1"},
        "steps": {
            "conv2d_naive": {
                "source": "s", "preset": "ece408-layer1", "kernels": [kernel("9.0")], "other_presets": {},
            },
            "conv2d_unrolled": {
                "source": "s",
                "preset": "ece408-layer1",
                "kernels": [kernel("9.0")],
                "other_presets": {"ece408-layer2": [kernel("12.0")]},
            },
            "gemm_naive": {"source": "s", "preset": "gemm-4096", "kernels": [old]},
        },
    }  # fmt: skip
    return schema.read(data, entries.MachineCode)


def test_a_record_gives_the_kernels_of_a_preset(code):
    assert HotLoop.recorded(records.main_kernel(code, "conv2d_unrolled")).total == 58
    assert HotLoop.recorded(records.main_kernel(code, "conv2d_unrolled", "ece408-layer2")).total == 26
    assert HotLoop.recorded(records.main_kernel(code, "conv2d_naive", "ece408-layer2")).total == 58
    assert records.main_kernel(code, "conv2d_nowhere") is None
    assert records.main_kernel(code, "gemm_naive") is None, "a record without its mix"


def test_the_main_kernel_is_the_one_that_multiplies(code):
    """Whatever counted the multiply-adds: the disassembler, the tracer or the hardware."""

    def compiled(name, what, **loop):
        return kernel(name, what, loop)

    found = [
        compiled("move", "loop", LDG=90),
        compiled("straight", "kernel", FFMA=500),
        compiled("product", "multiply loop", FFMA=16, LDS=2),
        compiled("other", "multiply loop", FFMA=16),
    ]
    assert loops.main_compiled(found).kernel == "product"
    assert loops.main_compiled(found[:2]).kernel == "straight"
    assert loops.main_compiled([]) is None
    code.steps["conv2d_naive"].kernels += found
    assert records.main_kernel(code, "conv2d_naive").kernel == "k"
    code.steps["conv2d_naive"].kernels = found
    assert pages.rendered("<!--= perfma conv2d_naive --><!--/-->", None, code).endswith("-->1<!--/-->")

    launches = [("move", 9.0, 0.0), ("product", 3.0, 64.0), ("product", 4.0, 64.0), ("unread", 8.0, None)]
    launches = [counters(name, time_ns=ns, ffma_threads=fma) for name, ns, fma in launches]
    assert profiler.main_kernel(launches) == launches[2]
    assert trace.main_kernel({"kernels": [{"fma": 0}, {"fma": 8, "name": "a"}, {"fma": 8}]})["name"] == "a"


def test_the_markers_of_machine_code(code):
    def inline(words):
        return re.search(r"-->(.*)<!--/-->", pages.rendered(f"<!--= {words} -->?<!--/-->", None, code))[1]

    assert inline("card conv2d_naive total") == "58"
    assert inline("card ece408-layer2 conv2d_unrolled total") == "26"
    assert inline("card conv2d_naive useful") == "28"
    assert inline("card conv2d_naive as_single_loads") == "47"
    assert inline("card conv2d_naive occupancy") == "43.8"
    assert inline("card conv2d_naive limits") == "registers"
    assert inline("card conv2d_naive shared_load") == "18"
    assert inline("card conv2d_naive shared_load.32") == "18"
    assert inline("card conv2d_naive shared_load.128") == "0"
    assert inline("card conv2d_naive line_total") == "36"
    assert inline("card conv2d_naive line_useful") == "44"
    assert inline("card gemm_naive total") == "?"
    # 121 GFLOP / 2 * 58 / 16 / 32
    wanted = problems.preset("ece408-layer2").flops / 2 * 58 / 16 / 32 / 1e9
    assert inline("warps ece408-layer2 conv2d_naive") == f"{wanted:#.3g}"
    with pytest.raises(ValueError, match=r"key 'weather' is unknown: keys are .*total"):
        inline("card conv2d_naive weather")

    def block(words):
        return pages.rendered(f"<!-- table: {words} -->\n<!-- end table -->", None, code)

    table = block("useful ece408-layer2 conv2d_naive conv2d_unrolled")
    assert "| `conv2d_unrolled` | 66 | 58.3 | registers | 8 of 26 | 31 | 0.889 | 1.12 |" in table
    assert "for `ece408-layer2`, compiled for compute capability 12.0 with nvcc 1." in table
    table = block("code ece408-layer2 conv2d_unrolled")
    assert "| `k` | 66 | 0 | 26 | 8 | 9 | 0 | 3.2 |" in table
    table = block("lines conv2d_naive")
    assert "| source line | multiply-add | shared load | integer and address | control |" in table
    assert "| `a = b \\| 55` | 16 | 16 | 4 |  |" in table
    assert "| *in all* | 16 | 18 | 23 | 1 |" in table


@pytest.mark.parametrize("step", [*catalog.steps(), *catalog.experiments()], ids=lambda step: step.name)
def test_the_shipped_record_has_every_kernels_mix(step):
    found = records.load_code()
    kernel = records.main_kernel(found, step.name)
    assert kernel is not None, "made by an older workbook: python -m common inspect --record"
    assert HotLoop.recorded(kernel).multiply_adds > 0
    for preset in problems.timed_presets(step.ladder):
        assert HotLoop.recorded(records.main_kernel(found, step.name, preset)).total > 0
