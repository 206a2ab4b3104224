"""Disassemblies read; what kernels compile to, the inspect command, and what pages show of the record."""

import functools
import os
import re
from collections import Counter
from pathlib import Path

import msgspec
import pytest
import texts
from made import LAUNCH, assembled, counters, disassembly, kernel, kernel_card
from processes import python, shown
from sampling import one_of_each, some_days

from common.catalog import catalog, limits, problems, store
from common.catalog.limits import LIMITS
from common.machine_code import summaries
from common.machine_code.summaries import Hot
from common.records import records
from common.report import pages, traces
from common.run import isolate
from common.run.messages import Compile, Summarise
from common.timing import tools

TEXTS = texts.of("machine_code")

SECONDS = 180.0
ALL_CC = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0")
TRIED_CC = one_of_each(ALL_CC, lambda _: "an architecture")
BOOK = "/book/gemm_coarsened.py"


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


def test_a_sparse_product_counts_as_its_shape_has_it():
    (found,) = summaries.parse(
        "        /*0010*/                   HMMA.SP.16832.F32 R4, R8, R12, R4, R16, 0x0 ;\n"
    ).instructions
    assert summaries.multiply_adds({found.name: 1}) == 128


def test_every_class_has_members_and_no_name_has_two():
    names = [name for members in summaries._MEMBERS.values() for name in members]
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
    hot = Hot.of(listing)
    assert (what, span) == (summaries.MULTIPLY_LOOP, (0, 8))
    assert hot.instructions["HMMA.16816"] == 2
    assert (hot.multiply_adds, hot.multiplies, hot.count("LDSM")) == (128, True, 2)
    assert hot.widths == {"shared load": {"128": 2}, "global load": {"128": 1}}
    assert hot.useful == 0.25
    assert hot.per_multiply_add() == 8 / 128
    assert hot.fma_per_shared_load == 64
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
    hot = vars(Hot.of(listing))
    assert (hot["total"], hot["multiply_adds"], hot["fma_per_shared_load"]) == (9, 2, 2.0)
    assert hot["mix"] == {"multiply-add": 2, "shared load": 1, "global load": 1, "control": 1, "other": 4}
    assert Hot.of(listing).widths == {"shared load": {"128": 1}, "global load": {"32": 1}}
    assert hot["floats_per_fma"] == 2.0
    counts = summaries.names(summaries.parse(TEXTS["copying"]).instructions)
    assert (counts["LDS"], counts["@!PT LDS"]) == (1, 2)  # grading counts by name


# --- cards ---


def test_a_card_holds_the_figures_of_its_loop():
    card = kernel_card().told()
    msgspec.json.encode(card)
    assert card["threads"] == 128
    assert card["occupancy"].blocks == 7
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
    text = shown(traces.side_by_side([("gemm_coarsened", card)]), 160)
    for name, value in {
        "grid": "128 x 128 x 1", "block": "32 x 4 x 1", "registers": "66",
        "stack, spilled bytes": "0, 0", "shared bytes per block": "8,192", "blocks per multiprocessor": "7",
        "warps per multiprocessor": "28 of 64", "occupancy": "44%", "limited by": "registers", "instructions": "58",
        "multiply-add": r"16 \(28%\)", "shared loads x bits": "18 x 32", "useful": "28%",
        "shared floats per FMA": "1.12",
    }.items():  # fmt: skip
        assert re.search(rf"^ +{name} +{value} *$", text, re.MULTILINE), name
    assert "16 multiply-add" in shown(traces.by_line("gemm_coarsened", card), 160)
    both = shown(traces.side_by_side([("a", card), ("b", kernel_card("12.0"))]))
    assert re.search(r"useful +28% +31%", both)
    assert re.search(r"shared loads x bits +18 x 32 +9 x 32", both)
    spilled = kernel_card(stack_bytes=64)
    assert re.search(r"stack, spilled bytes +64, 0", shown(traces.side_by_side([("k", spilled)])))


# --- real kernels, compiled in one child process ---


COMPILED = some_days(2)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Results by name: one shipped kernel for some architecture, a file of two kernels, and files that are wrong."""
    folder = tmp_path_factory.mktemp("files")

    def file(name, text):
        path = folder / f"{name}.py"
        path.write_text(text, encoding="utf-8")
        return str(path)

    step = catalog.find("gemm_shared_tile")
    shape = problems.preset("gemm-4096").shape()
    problem = {"ladder": "gemm", "shape": shape}

    def card(path, show=None):
        return Summarise(**problem, path=path, architecture="9.0", show=show)

    def compile_(path, architectures, **others):
        return Compile(**problem, path=path, architectures=architectures, machine_code=True, **others)

    two = file("gemm_two", TEXTS["two_kernels"])
    others = {"same": {"M": 7, "N": 7, "K": 4096}, "small": {"M": 7, "N": 7, "K": 50}}
    tasks = {
        "all": compile_(str(step.path), TRIED_CC),
        "wide": card(str(catalog.find("gemm_wide_loads").path), "sass"), "two": card(two, "sass"),
        "record": compile_(two, ["9.0"], others=others), "type": card(file("gemm_type", TEXTS["wrong_type"])),
        "nothing": card(file("gemm_nothing", "def launch(a, b, c):\n    pass\n")),
        "syntax": card(file("gemm_syntax", "def launch(a, b, c)\n")),
    }  # fmt: skip
    results = [result for _, result in isolate.run(list(tasks.values()), False, SECONDS)]
    if results[1].status == "unusable":
        pytest.skip(results[1].message)
    return dict(zip(tasks, results, strict=True))


@COMPILED
@pytest.mark.parametrize("cc", TRIED_CC)
def test_one_instruction_in_three_is_useful(compiled, cc):
    """The lecture's count, two loads for each multiply-add, is what the step's multiply line asks for."""
    (card,) = (kernel for kernel in compiled["all"].kernels if kernel.architecture == cc)
    assert card.stack_bytes == card.spill_bytes == 0
    assert card.shared_bytes == 8192
    assert 0 < card.occupancy.fraction <= 1
    hot = card.hot
    assert hot.what == "multiply loop"
    assert hot.multiply_adds == 32
    assert (hot.floats_per_fma, hot.as_single_loads) == (2.0, round(1 / 3, 4))
    assert hot.widths["shared load"] == {"32": 32, "128": 8}
    assert (hot.mix["multiply-add"], hot.mix["shared load"]) == (32, 40)
    assert 0.2 < hot.useful < 1 / 3  # staging, guards and addresses are there too
    assert sum(hot.mix.values()) == hot.total
    # nearly all of the loop has a class of its own
    assert hot.mix.get("other", 0) <= 2


@COMPILED
def test_the_lines_of_inlined_helpers_are_those_of_their_own_file(compiled):
    (card,) = compiled["wide"].cards
    assert card.hot.widths["shared load"] == {"128": 6}
    places = {(group["file"], group["line"]): group["text"] for group in card.text}
    assert {file for file, _ in places} == {"lessons/03_coarsening/gemm_wide_loads.py", "lessons/toolkit/memory.py"}
    for (file, number), text in places.items():
        lines = (catalog.ROOT / file).read_text(encoding="utf-8").splitlines()
        assert text == lines[number - 1].strip()
    # an instruction of the helper stands at the line that asks for it
    (number,) = (number for (_, number), text in places.items() if text.startswith("inside = row < rows"))
    assert any("ISETP" in text for g in card.text if g["line"] == number for _, text in g["instructions"])


@COMPILED
def test_a_file_of_two_kernels_and_a_device_function(compiled):
    fetch, product = compiled["two"].cards
    assert (fetch.kernel, product.kernel) == ("fetch", "product")
    assert fetch.shared_bytes == 512
    assert fetch.dynamic_shared_bytes == 512
    assert fetch.hot.what == "kernel"
    assert fetch.hot.widths["global load"] == {"128": 1}  # an asynchronous copy
    assert product.told()["threads"] == 256
    # the loop is the device function's, and its lines are found there
    assert {line["text"] for line in product.hot.lines} == {
        "for k in range(a.shape[1]):", "acc += a[m, k] * b[k, n]",
    }  # fmt: skip
    hot = [group for group in product.text if group["hot"]]
    assert sum(len(group["instructions"]) for group in hot) == product.hot.total
    assert len(product.text) > len(hot)


@COMPILED
def test_the_record_has_the_kernels_of_other_presets_where_they_differ(compiled):
    result = compiled["record"]
    assert result.status == "right", result
    assert [kernel.kernel for kernel in result.kernels] == ["fetch", "product"]
    assert list(result.other_presets) == ["small"]
    product = result.other_presets["small"][-1]
    assert (product.block, product.hot.multiplies, product.hot.lines) == ([32, 8, 1], True, [])


@COMPILED
@pytest.mark.parametrize(("name", "status", "says"), [
    ("type", "crashed", r"TypingError at gemm_type.py:8: No implementation of function .*iadd\(float32, array"),
    ("nothing", "unusable", "gemm_nothing.py: launch starts no kernel"),
    ("syntax", "unusable", "gemm_syntax.py:1: syntax error"),
])  # fmt: skip
def test_a_file_that_does_not_compile_says_why(compiled, name, status, says):
    assert compiled[name].status == status
    assert re.search(says, compiled[name].message), compiled[name].message
    assert "candidate" not in compiled[name].message


# --- the command ---


@pytest.fixture
def call(call):
    return functools.partial(call, "inspect")


def test_a_path_may_hold_what_ptx_cannot_write(call, tmp_path):
    """Its folder's name, and the file of a line as ptxas and nvdisasm have it."""
    folder = tmp_path / "a \"quoted\" 'one' \u8ab2"
    folder.mkdir()
    source = catalog.find("gemm_naive").path.read_text().replace("def launch(", "CHANGED = 1\n\n\ndef launch(")
    (folder / "gemm_naive.py").write_text(source)
    code, out, err = call("gemm_naive", "--file", str(folder / "gemm_naive.py"))
    assert code == 0, err
    assert "acc += a[m, k] * b[k, n]" in out


# A machine without NVIDIA's assembler: neither among the packages nor on the path.
NO_TOOLS = "from cuda import pathfinder\npathfinder.find_nvidia_binary_utility = lambda name: None\n"


@some_days(5)
def test_without_the_assembler_one_line_says_how_to_get_it_and_ptx_still_works(write, monkeypatch):
    paths = [path for path in os.environ["PATH"].split(os.pathsep) if not Path(path, "ptxas").exists()]
    monkeypatch.setenv("PATH", os.pathsep.join(paths))
    monkeypatch.setenv("PYTHONPATH", str(write("sitecustomize.py", NO_TOOLS).parent))  # children see no packages

    # programs of their own, whose fork server starts now
    words = ("-m", "common", "inspect", "gemm_naive", "--cc", "12.0")
    done = python(*words, code=2)
    (line,) = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    assert "ptxas was not found: pip install nvidia-cuda-nvcc nvidia-cuda-nvdisasm" in line
    out = python(*words, "--ptx").stdout
    assert out.startswith("// gemm_naive, compute capability 12.0\n")
    assert ".target sm_120" in out
    assert ".entry gemm_naive(" in out
    assert "fma.rn.f32" in out


# --- records, charts and pages ---


@pytest.fixture
def code():
    """A machine-code record of two steps; the second compiles to something else on another preset."""

    def kernel(cc):
        return msgspec.to_builtins(assembled(cc)[0].launched(LAUNCH))

    old = {key: value for key, value in kernel("9.0").items() if key not in ("hot", "block", "occupancy")}
    data = {
        "schema": records.SCHEMA,
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
    return store.convert(data, records.MachineCode)


def test_the_main_kernel_is_the_one_that_multiplies(code):
    """Whatever counted the multiply-adds: the disassembler, the tracer or the hardware."""

    def compiled(name, what, **loop):
        return kernel(name, what, loop)

    found = [
        compiled("move", "loop", LDG=90), compiled("straight", "kernel", FFMA=500),
        compiled("product", "multiply loop", FFMA=16, LDS=2), compiled("other", "multiply loop", FFMA=16),
    ]  # fmt: skip
    assert summaries.main_compiled(found).kernel == "product"
    assert summaries.main_compiled(found[:2]).kernel == "straight"
    assert summaries.main_compiled([]) is None
    code.steps["conv2d_naive"].kernels += found
    assert records.main_kernel(code, "conv2d_naive").kernel == "gemm_coarsened"
    code.steps["conv2d_naive"].kernels = found
    assert pages.rendered("<!--= kernel conv2d_naive perfma --><!--/-->", None, code).endswith("-->1<!--/-->")

    launches = [("move", 9.0, 0.0), ("product", 3.0, 64.0), ("product", 4.0, 64.0), ("unread", 8.0, None)]
    launches = [counters(name, time_ns=ns, ffma_threads=fma) for name, ns, fma in launches]
    assert tools.main_kernel(launches) == launches[2]


def test_the_markers_of_machine_code(code):
    def inline(words):
        return re.search(r"-->(.*)<!--/-->", pages.rendered(f"<!--= {words} -->?<!--/-->", None, code))[1]

    assert inline("kernel conv2d_naive total") == "58"
    assert inline("kernel ece408-layer2 conv2d_unrolled total") == "26"
    assert inline("kernel conv2d_naive useful") == "28"
    assert inline("kernel conv2d_naive occupancy") == "43.8"
    assert inline("kernel gemm_naive total") == "?"
    with pytest.raises(ValueError, match=r"key 'weather' is unknown: keys are .*total"):
        inline("kernel conv2d_naive weather")


def test_the_shipped_record_has_every_kernels_mix():
    found = records.load_code()
    for step in catalog.everything():
        for preset in (None, *problems.timed_presets(step.ladder)):
            kernel = records.main_kernel(found, step.name, preset)
            assert kernel is not None, f"{step.name}: python -m common inspect --record"
            assert kernel.hot.multiply_adds > 0, (step.name, preset)
