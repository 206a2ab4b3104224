"""Disassemblies read: instructions, classes, loops, cards; and occupancy, worked out by hand."""

import json
import re
from collections import Counter

import pytest
import texts
from made import disassembly, kernel_card
from processes import shown
from sampling import some

from common.catalog import limits
from common.catalog.limits import LIMITS
from common.machine_code import codegen, summaries
from common.machine_code.summaries import HotLoop
from common.report import tables

TEXTS = texts.of("machine_code")

SECONDS = 180.0
ALL_CC = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0")
TRIED_CC = some(ALL_CC, 3, 1)
BOOK = "/book/gemm_coarsened.py"


def code_of(listing):
    return codegen.MachineCode("k", "9.0", 66, 0, 0, 0, listing)


# --- occupancy, worked out by hand ---


@pytest.mark.parametrize(
    ("cc", "threads", "registers", "shared", "blocks", "warps", "limited_by"),
    [
        # 2048 threads = 2 blocks of 1024; 65536 / (32 * 1024) = 2 by registers as well
        ("9.0", 1024, 32, 8192, 2, 64, ["threads", "registers"]),
        # 229 * 32 = 7328, in units of 256 7424; 16384 // 7424 = 2 warps of each scheduler, 8 in all: 2 blocks of 4
        ("9.0", 128, 229, 16640, 2, 8, ["registers"]),
        # Turing: 16 blocks, 1024 threads, no shared memory taken by the driver
        ("7.5", 1024, 48, 8192, 1, 32, ["threads", "registers"]),
        # Ada: 24 blocks; 48 * 32 = 1536; 16384 // 1536 = 10, 40 warps: 20 blocks of 2
        ("8.9", 64, 48, 1792, 20, 40, ["registers"]),
        # 100 KiB / (7 + 1 KiB) = 12
        ("8.9", 128, 32, 7 * 1024, 12, 48, ["threads", "shared memory"]),
        # 33 threads are two warps; 31 of the second are idle but take their place
        ("9.0", 33, 32, 0, 32, 64, ["threads", "registers", "blocks"]),
    ],
)  # fmt: skip
def test_occupancy(cc, threads, registers, shared, blocks, warps, limited_by):
    found = limits.occupancy(cc, threads, registers, shared)
    assert (found.blocks, found.warps, found.limited_by) == (blocks, warps, limited_by)
    assert found.fraction == round(warps / (LIMITS[cc].threads // 32), 4)


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


# --- disassemblies, recorded from nvdisasm ---


@pytest.mark.parametrize(("cc", "total", "fma", "shared", "integer"), [
    ("7.5", 57, 16, 18, 22), ("9.0", 58, 16, 18, 23), ("12.0", 26, 8, 9, 8),
])  # fmt: skip
def test_the_loop_of_a_recorded_kernel(cc, total, fma, shared, integer):
    listing = disassembly(cc)
    what, (start, stop) = summaries.hot_span(listing)
    loop = listing.instructions[start:stop]
    assert (what, len(loop)) == ("multiply loop", total)
    mix = {"multiply-add": fma, "shared load": shared, "integer and address": integer, "control": 1}
    assert summaries.mix(summaries.names(loop)) == mix
    assert loop[-1].name == "BRA"
    assert summaries.widths(loop) == {"shared load": {"32": shared}}
    # each instruction knows its line; barrier and staging outside are not part of the loop
    assert {(i.file, i.line) for i in loop} == {(BOOK, 52), (BOOK, 53), (BOOK, 55)}
    assert Counter(i.line for i in loop if i.name == "FFMA") == {55: fma}
    assert {i.line for i in listing.instructions} > {i.line for i in loop}


@pytest.mark.parametrize(("text", "kind", "width"), [
    ("FFMA R8, R6, R6, R8", "multiply-add", 32),
    ("HGMMA.64x256x16.F32 R24, gdesc[UR16].tnspB, R24, gsb0", "multiply-add", 32),
    ("UTMALDG.2D.MULTICAST [UR8], [UR4], UR12, desc[UR14]", "global load", 32),
    ("SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR8], R13", "control", 32), ("LDS.U.64 R8, [R4+0x80]", "shared load", 64),
    ("@!P1 LDG.E R26, desc[UR14][R12.64]", "global load", 32), ("LDG.E.U8 R4, [R2.64]", "global load", 8),
    ("LDGSTS.E.BYPASS.LTC128B.128 [R3], desc[UR4][R2.64]", "global load", 128),
    ("LDL.64 R2, [R1+0x10]", "local load", 64), ("STG.E.128 desc[UR14][R4.64], R24", "store", 128),
    ("IMAD.MOV.U32 R26, RZ, RZ, RZ", "integer and address", 32), ("MUFU.RCP R5, R4", "other", 32),
    ("@!PT LDS RZ, [RZ]", "other", 32),
])  # fmt: skip
def test_an_instruction_is_read(text, kind, width):
    (found,) = summaries.parse(f"        /*0010*/                   {text} ;\n").instructions
    assert (found.text, found.kind, found.width) == (text, kind, width)
    assert found.address == 16
    assert found.line == 0


def test_every_class_has_members_and_no_name_has_two():
    names = [name for members in summaries._MEMBERS.values() for name in members.split()]
    assert len(names) == len(set(names))
    assert {*summaries._MEMBERS, "other"} == set(summaries.CLASSES)
    assert summaries.classify("UNKNOWN") == "other"
    assert summaries.multiply_adds({"FFMA": 3, "FFMA2": 2, "IMAD": 9}) == 7
    # 16 x 8 x 16, 16 x 8 x 8, and 8 x 8 x 4 products of a warp
    assert summaries.multiply_adds({"HMMA.16816": 2, "HMMA.1688": 1, "HMMA.884": 1, "LDSM": 9}) == 2 * 64 + 32 + 8
    # 64 x 256 x 16 and 64 x 128 x 8 products of four warps
    assert summaries.multiply_adds({"HGMMA.64x256x16": 1, "HGMMA.64x128x8": 2, "WARPGROUP": 3}) == 2048 + 2 * 512


def test_a_loop_on_tensor_cores_multiplies_and_its_shares_make_sense():
    listing = summaries.parse(TEXTS["tensor"])
    what, span = summaries.hot_span(listing)
    hot = HotLoop.of(code_of(listing))
    assert (what, span) == (summaries.MULTIPLY_LOOP, (0, 8))
    assert hot.instructions["HMMA.16816"] == 2
    assert (hot.multiply_adds, hot.multiplies, hot.count("LDSM")) == (128, True, 2)
    assert hot.widths == {"shared load": {"128": 2}, "global load": {"128": 1}}
    assert hot.useful == 0.25
    assert hot.per_multiply_add() == 8 / 128
    assert hot.figures["fma_per_shared_load"] == 64
    assert hot.floats_per_fma == round(8 / 128, 3)
    assert summaries.shown(8 / 128) == "0.062"
    assert (summaries.shown(1.25), summaries.shown(0), summaries.shown(28.04)) == ("1.2", "0.0", "28.0")


def test_without_a_multiply_loop_the_longest_loop_or_the_whole_kernel_is_shown():
    def listing(body):
        return summaries.parse("".join(f"{'' if t.startswith('.') else '        /*0010*/   '}{t}\n" for t in body))

    copies = listing([".L_x_1:", "LDG.E R1, [R2] ;", "@P0 BRA `(.L_x_1) ;", "EXIT ;"])
    assert summaries.hot_span(copies) == ("loop", (0, 2))
    straight = listing(["FFMA R1, R1, R1, R1 ;", "EXIT ;"])
    assert summaries.hot_span(straight) == ("kernel", (0, 2))
    # all is unrolled but the staging: the loop is not where the time goes
    staged = listing([".L_x_1:", "LDG.E R1, [R2] ;", "@P0 BRA `(.L_x_1) ;", "FFMA R1, R1, R1, R1 ;", "EXIT ;"])
    assert summaries.hot_span(staged) == ("kernel", (0, 4))
    assert summaries.hot_span(summaries.parse("")) == ("kernel", (0, 0))


def test_what_is_issued_and_never_done_is_no_load_and_no_multiply_add():
    listing = summaries.parse(TEXTS["copying"])
    assert listing.loops == ((0, 9),)
    hot = HotLoop.of(code_of(listing)).figures
    assert (hot["total"], hot["multiply_adds"], hot["fma_per_shared_load"]) == (9, 2, 2.0)
    assert hot["mix"] == {"multiply-add": 2, "shared load": 1, "global load": 1, "control": 1, "other": 4}
    assert hot["widths"] == {"shared load": {"128": 1}, "global load": {"32": 1}}
    assert hot["floats_per_fma"] == 2.0
    counts = summaries.names(summaries.parse(TEXTS["copying"]).instructions)
    assert (counts["LDS"], counts["@!PT LDS"]) == (1, 2)  # grading counts by name


# --- cards ---


def test_a_card_holds_the_figures_of_its_loop():
    card = kernel_card()
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


def test_a_card_in_full_and_side_by_side():
    card = kernel_card()
    text = shown(tables.side_by_side([("gemm_coarsened", card)]), 160)
    for name, value in {
        "grid": "128 x 128 x 1", "block": "32 x 4 x 1", "registers": "66",
        "stack, spilled bytes": "0, 0", "shared bytes per block": "8,192", "blocks per multiprocessor": "7",
        "warps per multiprocessor": "28 of 64", "occupancy": "44%", "limited by": "registers", "instructions": "58",
        "multiply-add": r"16 \(28%\)", "shared loads x bits": "18 x 32", "useful": "28%",
        "shared floats per FMA": "1.12",
    }.items():  # fmt: skip
        assert re.search(rf"│ +{name} +│ +{value} │", text), name
    assert "16 multiply-add" in shown(tables.by_line("gemm_coarsened", card), 160)
    both = shown(tables.side_by_side([("a", card), ("b", kernel_card("12.0"))]))
    assert re.search(r"useful +│ +28% │ +31%", both)
    assert re.search(r"shared loads x bits +│ +18 x 32 │ +9 x 32", both)
    spilled = kernel_card(stack_bytes=64)
    assert re.search(r"stack, spilled bytes +│ +64, 0", shown(tables.side_by_side([("k", spilled)])))
