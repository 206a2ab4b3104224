"""Every kernel compiles for every architecture with real Numba CUDA, and the machine code is what is meant."""

import os

import pytest
from msgspec.structs import replace
from sampling import one_of_each, some

from common.catalog import catalog, lessontext, problems, sources
from common.jobs import run
from common.jobs.messages import Compile
from common.machine_code import codegen, sass
from common.machine_code.loops import HotLoop
from common.run import isolate

SECONDS = 180.0
FILES = [*catalog.steps(), *catalog.experiments()]
ON_PURPOSE = "gemm_naive_float64"  # a kind of its own: it shows that the search finds something
EACH = one_of_each([step for step in FILES if step.name != ON_PURPOSE], lambda step: step.ladder)
TRIED = [*some(EACH, len(EACH), 1), catalog.find(ON_PURPOSE)]
# NVVM makes the same PTX for 8.6 and 8.9 as for 8.0 but for its header, where a kernel is lowered alike for them: no
# helper asks for anything between 8.0 and 9.0. Of the others, one is drawn beside the oldest and the recorded one.
TOLD_APART = ("7.5", "9.0", *one_of_each(("8.0", "10.0", "12.0"), lambda _: "beside them"))


def architectures(step):
    """For which a step is compiled; for one step, as for all with WORKBOOK_ALL=1, they are all."""
    every = step.name == ON_PURPOSE or os.environ.get("WORKBOOK_ALL")
    return run.allowed(step, codegen.ARCHITECTURES if every else TOLD_APART)


def compiled(step):
    """PTX for the step's architectures, and machine code for one, in one child process."""
    problem = problems.preset(catalog.usual_preset(step))
    # the preset's kernels take long to compile for every architecture; small shapes take every path of a step too
    small = [problem.shape() for problem in problems.RAGGED[step.ladder][:2]]
    if step.ladder != "conv2d":
        del small[1:]
    if step.name == "conv2d_layer_dispatch":
        small.append(problem.shape())  # for which it takes yet another kernel
    if usual := lessontext.usual(catalog.LESSONS, step.name):
        small.append(problems.parse_shape(step.ladder, usual.shape).shape())
    file = {"path": str(step.path), "ladder": step.ladder}
    tasks = [Compile(**file, shape=shape, architectures=architectures(step)) for shape in small]
    card = run.allowed(step, [run.CODE_ARCHITECTURE])
    last = Compile(**file, shape=problem.shape(), architectures=card, machine_code=True)
    *ptx, code = (result for _, result in isolate.run([*tasks, last], False, SECONDS))
    if "ToolMissingError" in code.get("message", ""):
        ((_, code),) = isolate.run([replace(last, machine_code=False)], False, SECONDS)
    return ptx, code


def test_the_architectures_are_those_promised():
    assert codegen.ARCHITECTURES == ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0")
    assert run.CODE_ARCHITECTURE == "9.0"


@pytest.mark.parametrize("step", TRIED, ids=lambda step: step.name)
def test_compiles_without_float64_stack_or_spills(step):
    ptx, code = compiled(step)

    built = {}
    for result in (*ptx, code):
        assert result["status"] == "right", result.get("message")
        assert result["source"] == sources.source_hash(step.path)
        for kernel in result["kernels"]:
            built.setdefault(kernel["kernel"], []).append(kernel["architecture"])
            if step.name == ON_PURPOSE:
                assert any("add" in line or "fma" in line for line in kernel["float64"]), "the search finds nothing"
            else:
                assert kernel["float64"] == [], kernel["kernel"]
    assert built
    for name, found in built.items():
        assert set(found) == set(architectures(step)), name

    if "registers" not in code["kernels"][0]:
        pytest.skip("ptxas or nvdisasm is not installed: no machine code to look at")
    for kernel in code["kernels"]:
        assert kernel["stack_bytes"] == 0, kernel["kernel"]
        assert kernel["spill_bytes"] == 0, kernel["kernel"]
        assert 8 <= kernel["registers"] <= 255
        assert sum(kernel["instructions"].values()) > 20
    if catalog.on_tensor_cores(step, problems.FIRST[step.ladder]):
        assert any(
            name.startswith(("HMMA", "HGMMA")) for kernel in code["kernels"] for name in kernel["instructions"]
        )
        return
    # one kernel of the step multiplies and adds in a loop
    assert any((HotLoop.compiled(kernel).per_multiply_add() or 0) >= 1 for kernel in code["kernels"])


def test_every_step_on_tensor_cores_says_what_it_requires():
    for step in FILES:
        on_them = catalog.on_tensor_cores(step, problems.FIRST[step.ladder])
        assert (step.requires is not None) == on_them, step.name


def test_machine_code_shows_a_stack_frame_where_there_is_one(write):
    # a local array indexed at run time cannot live in registers
    path = write(
        "gemm_framed.py",
        "from numba import cuda, float32\n"
        "LENGTH = 256\n"
        "@cuda.jit\n"
        "def framed(a, b, c):\n"
        "    frame = cuda.local.array(LENGTH, float32)\n"
        "    for i in range(LENGTH):\n"
        "        frame[i] = float32(0.0)\n"
        "    for i in range(a.shape[0]):\n"
        "        frame[int(b[i, 0]) % LENGTH] += a[i, 0]\n"
        "    for i in range(LENGTH):\n"
        "        c[i, 0] = frame[i]\n"
        "def launch(a, b, c):\n"
        "    framed[1, 1](a, b, c)\n",
    )
    shape = {"M": 256, "N": 1, "K": 1}
    task = Compile(path=str(path), ladder="gemm", shape=shape, architectures=["9.0"], machine_code=True)
    ((_, result),) = isolate.run([task], False, SECONDS)
    if "ToolMissingError" in result.get("message", ""):
        pytest.skip(result["message"])
    (kernel,) = result["kernels"]
    assert kernel["stack_bytes"] >= 256 * 4
    assert kernel["shared_bytes"] == 0


# --- reading PTX and disassemblies ---


@pytest.mark.parametrize(
    "line",
    [
        "add.f64 %fd3, %fd1, %fd2;",
        "add.rn.f64 %fd3, %fd1, %fd2;",
        "fma.rn.f64 %fd3, %fd1, %fd2, %fd0;",
        "mul.f64 %fd3, %fd1, 0d3FF0000000000000;",
        "cvt.f64.f32 %fd1, %f1;",
        "cvt.rn.f32.f64 %f1, %fd1;",
        "setp.lt.f64 %p1, %fd1, %fd2;",
        "@%p3 add.f64 %fd3, %fd1, %fd2;",
    ],
)
def test_float64_arithmetic_is_found(line):
    assert codegen.float64_arithmetic(f"\tmov.u32 %r1, %tid.x;\n\t{line}\n\tret;\n") == [line]


@pytest.mark.parametrize(
    "line",
    ["fma.rn.f32 %f3, %f1, %f2, %f0;", "ld.param.f64 %fd1, [p];", "mov.f64 %fd1, %fd2;", "add.s64 %rd1, %rd2, %rd3;",
     "// add.f64 in a comment", "cvt.rn.f32.s64 %f1, %rd1;"],
)  # fmt: skip
def test_other_lines_are_no_float64_arithmetic(line):
    assert codegen.float64_arithmetic(f"\t{line}\n") == []


# An outer loop of 9 (L_x_1) around a multiply loop of 5 (L_x_2), then a remainder loop (L_x_3) with fewer FFMA,
# a copy loop without any (L_x_4), the exit, and the assembler's padding.
LISTING = """
\t.text.kernel:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   S2R R0, SR_TID.X ;
        /*0020*/              @P0  EXIT ;
        /*0030*/                   BRA `(.L_x_9) ;
.L_x_9:
.L_x_1:
        /*0040*/                   IMAD.MOV.U32 R4, RZ, RZ, R0 ;
.L_x_2:
        /*0050*/                   LDG.E R6, desc[UR4][R2.64] ;
        /*0060*/                   FFMA R8, R6, R6, R8 ;
        /*0070*/                   FFMA.FTZ R9, R6, R6, R9 ;
        /*0080*/                   UIADD3 UR5, UR5, 0x1, URZ ;
        /*0090*/              @!P1 BRA `(.L_x_2) ;
        /*00a0*/                   ISETP.GE.AND P2, PT, R0, R4, PT ;
        /*00b0*/                   NOP ;
        /*00c0*/                   FADD R8, R8, R9 ;
        /*00d0*/             @!UP2 BRA `(.L_x_1) ;
.L_x_3:
        /*00e0*/                   FFMA R8, R6, R6, R8 ;
        /*00f0*/               @P3 BRA `(.L_x_3) ;
.L_x_4:
        /*0100*/                   STG.E desc[UR4][R2.64], R8 ;
        /*0110*/                   IADD3 R2, R2, 0x4, RZ ;
        /*0120*/                   MOV R3, R2 ;
        /*0130*/               @P4 BRA `(.L_x_4) ;
        /*0140*/                   EXIT ;
"""
PADDING = """.L_x_5:
        /*0150*/                   BRA `(.L_x_5);
        /*0160*/                   NOP;
        /*0170*/                   NOP;
"""


def counted(listing):
    """Instructions by name: in the whole kernel, and in its multiply loop."""
    parsed = sass.parse(listing)
    return sass.names(parsed.instructions), sass.names(parsed.instructions[slice(*sass.multiply_loop(parsed))])


def test_count_instructions_takes_the_inner_multiply_loop():
    body, loop = counted(LISTING + PADDING)
    assert loop == {"FFMA": 2, "LDG": 1, "UIADD3": 1, "BRA": 1}
    assert body == {
        "BRA": 5, "FFMA": 3, "EXIT": 2, "LDC": 1, "S2R": 1, "IMAD": 1, "LDG": 1, "UIADD3": 1, "ISETP": 1,
        "FADD": 1, "STG": 1, "IADD3": 1, "MOV": 1,
    }  # fmt: skip


def test_a_float64_accumulator_counts_as_a_multiply_loop():
    listing = (
        ".L_x_0:\n"
        "        /*0010*/                   FMUL R2, R3, R4 ;\n"
        "        /*0020*/                   F2F.F64.F32 R6, R2 ;\n"
        "        /*0030*/                   DADD R8, R8, R6 ;\n"
        "        /*0040*/               @P0 BRA `(.L_x_0) ;\n"
    )
    body, loop = counted(listing)
    assert loop == {"FMUL": 1, "F2F": 1, "DADD": 1, "BRA": 1}
    hot = read(listing).hot
    assert (hot.total, hot.multiply_adds, hot.per_multiply_add()) == (4, 1, 4.0)
    assert hot.instructions == read(listing).as_dict()["loop"] == loop
    assert read("").hot.per_multiply_add() is None


def read(listing):
    return codegen.MachineCode("k", "9.0", 32, 0, 0, 0, sass.parse(listing))
