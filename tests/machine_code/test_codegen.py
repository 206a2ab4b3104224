"""Every kernel compiles for every architecture with real Numba CUDA, and the machine code is what is meant; kernels
that are kept are found by all that they are made of: in child processes, each with caches of its own."""

import json
import os
import types

import pytest
import texts
from msgspec.structs import replace
from processes import python
from sampling import one_of_each, some_days

from common.catalog import cache, catalog, device, problems
from common.check import run
from common.machine_code import codegen
from common.run import isolate
from common.run.messages import Compile

TEXTS = texts.of("machine_code")

SECONDS = 180.0
FILES = catalog.everything()
ON_PURPOSE = "gemm_naive_float64"  # a kind of its own: it shows that the search finds something
# bytes of stack, and spilled: an experiment, whose kernel has some numbers too many for 255 registers
SPILLED = {"conv3d_implicit_gemm_fast_division": (64, 128)}
TENSOR_CORES = ("HMMA", "HGMMA", "IMMA", "IGMMA", "QGMMA")
OTHERS = [step for step in FILES if step.name != ON_PURPOSE]
# a step takes from 5 to 20 seconds
TRIED = [pytest.param(step, marks=some_days(3, 5)) for step in one_of_each(OTHERS, lambda _: "a step")]
TRIED.append(pytest.param(catalog.find(ON_PURPOSE)))
# NVVM makes the same PTX for 8.6 and 8.9 as for 8.0 but for its header, where a kernel is lowered alike for them: no
# helper asks for anything between 8.0 and 9.0. Of the others, one is drawn beside the recorded one.
TOLD_APART = ("9.0", *one_of_each(("7.5", "8.0", "10.0", "12.0"), lambda _: "beside it"))


def architectures(step):
    """For which a step is compiled; for one step, as for all with WORKBOOK_ALL=1, they are all."""
    every = step.name == ON_PURPOSE or os.environ.get("WORKBOOK_ALL")
    return catalog.targets(step.requires, codegen.ARCHITECTURES if every else TOLD_APART)


def compiled(step):
    """PTX for the step's architectures, and machine code for one, in one child process."""
    problem = problems.preset(catalog.usual_preset(step))
    # the preset's kernels take long to compile for every architecture; small shapes take every path of a step too
    small = [problem.shape() for problem in problems.RAGGED[step.ladder][:2]]
    if step.ladder != "conv2d":
        del small[1:]
    if step.name == "conv2d_layer_dispatch":
        small.append(problem.shape())  # for which it takes yet another kernel
    if usual := catalog.settings().usual.get(step.name):
        small.append(problems.parse_shape(step.ladder, usual.shape).shape())
    file = {"path": str(step.path), "ladder": step.ladder}
    tasks = [Compile(**file, shape=shape, architectures=architectures(step)) for shape in small]
    card = catalog.targets(step.requires, [run.CODE_ARCHITECTURE])
    last = Compile(**file, shape=problem.shape(), architectures=card, machine_code=True)
    *ptx, code = (result for _, result in isolate.run([*tasks, last], False, SECONDS))
    if "ToolMissingError" in (code.message or ""):
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
        assert result.status == "right", result.message
        assert result.source == cache.code(step.path)
        for kernel in result.kernels:
            built.setdefault(kernel.kernel, []).append(kernel.architecture)
        assert [fault.kind for fault in result.faults] == ["float64"] * (step.name == ON_PURPOSE)
    assert built
    for name, found in built.items():
        assert set(found) == set(architectures(step)), name

    if not code.kernels[0].hot:
        pytest.skip("ptxas or nvdisasm is not installed: no machine code to look at")
    for kernel in code.kernels:
        stack, spilled = SPILLED.get(step.name, (0, 0))
        assert kernel.stack_bytes <= stack, kernel.kernel
        assert kernel.spill_bytes <= spilled, kernel.kernel
        assert 8 <= kernel.registers <= 255
        assert sum(kernel.instructions.values()) > 20
    if catalog.on_tensor_cores(step, problems.FIRST[step.ladder]):
        assert any(name.startswith(TENSOR_CORES) for kernel in code.kernels for name in kernel.instructions)
        return
    # one kernel of the step multiplies and adds in a loop
    assert any((kernel.hot.per_multiply_add() or 0) >= 1 for kernel in code.kernels)


def test_every_step_on_tensor_cores_says_what_it_requires():
    for step in FILES:
        on_them = catalog.on_tensor_cores(step, problems.FIRST[step.ladder])
        assert (step.requires is not None) == on_them, step.name


# --- reading PTX and disassemblies ---


FLOAT64 = (
    "add.f64 %fd3, %fd1, %fd2;", "add.rn.f64 %fd3, %fd1, %fd2;", "fma.rn.f64 %fd3, %fd1, %fd2, %fd0;",
    "mul.f64 %fd3, %fd1, 0d3FF0000000000000;", "cvt.f64.f32 %fd1, %f1;", "cvt.rn.f32.f64 %f1, %fd1;",
    "setp.lt.f64 %p1, %fd1, %fd2;", "@%p3 add.f64 %fd3, %fd1, %fd2;",
)  # fmt: skip
NO_ARITHMETIC = (
    "fma.rn.f32 %f3, %f1, %f2, %f0;", "ld.param.f64 %fd1, [p];", "mov.f64 %fd1, %fd2;", "add.s64 %rd1, %rd2, %rd3;",
    "// add.f64 in a comment", "cvt.rn.f32.s64 %f1, %rd1;",
)  # fmt: skip


def test_kernels_that_are_launched_again_keep_their_first_place():
    one, other = (codegen.Launch(name, name, (1,), (32,), "void()") for name in ("one", "other"))
    assert codegen.distinct([one, other, one]) == [one, other]


def test_float64_arithmetic_is_found_and_nothing_else():
    text = "".join(f"\t{line}\n" for line in (*NO_ARITHMETIC, *FLOAT64))
    assert codegen.float64_arithmetic(text) == list(FLOAT64)


# --- code for one compute capability alone, and shared memory beyond 48 KiB: scratch kernels ---


@pytest.fixture
def scratch(write):
    """The scratch step's file."""
    return write("01_scratch/hgemm_scratch.py", TEXTS["scratch"])


@some_days(5)
def test_what_one_compute_capability_has_is_compiled_for_it_alone(scratch):
    (launch,) = codegen.launches(catalog.load(scratch, "hgemm"), problems.PRESETS["tiny-hgemm"])
    found = codegen.ptx(launch, ["9.0a", "9.0"])
    targets = {name: text.split(".target")[1].split()[0] for name, text in found.items()}
    assert targets == {"9.0a": "sm_90a", "9.0": "sm_90"}
    code, _ = codegen.machine_code(launch, "9.0a", found["9.0a"])
    assert code.architecture == "9.0a"
    assert any(name.startswith("USETMAXREG") for name in code.instructions)
    with pytest.raises(RuntimeError, match=r"(?s)ptxas failed.*sm_90"):
        codegen.machine_code(launch, "9.0", found["9.0"])
    # and what the launch asks for is captured with it
    assert launch.dynamic_shared_bytes == 100_000
    assert [*map(str, launch.signature.args)] == ["array(float16, 2d, C)"] * 3


@some_days(3)
def test_a_step_that_requires_it_is_compiled_for_nothing_else(scratch):
    step = catalog._header(scratch)
    assert step.requires == "9.0a"
    assert (
        catalog.targets(step.requires, codegen.ARCHITECTURES) == catalog.targets(step.requires, ["12.0"]) == ["9.0a"]
    )
    assert [name for name in ("8.0", "9.0", "9.0a", "10.0") if step.runs_on(name)] == ["9.0", "9.0a"]
    (outcome,) = run.compile_steps([step], codegen.ARCHITECTURES, True)
    assert outcome.status == "right", outcome.reasons
    (kernel,) = outcome.kernels
    assert (kernel.architecture, *outcome.faults) == ("9.0a",)
    assert kernel.occupancy.blocks == 2  # 228 KiB hold 100,000 bytes twice
    ((card,),) = (one.cards for one in run.summaries([(step, "tiny-hgemm")], "9.0"))
    assert (card.architecture, card.dynamic_shared_bytes) == ("9.0a", 100_000)


# --- kept kernels ---


def look(folder, paths):
    """By name, what a fresh process, with this folder of kept kernels, says of the kernels of files, two of each."""
    said = python("-c", TEXTS["look"], folder, *paths.values(), env=device.environment(False)).stdout
    lines = [json.loads(line) for line in said.splitlines()]
    return dict(zip(paths, zip(lines[::2], lines[1::2], strict=True), strict=True))


# How files differ from the first; the odd one has a global without a description.
ODD = "class Odd:\n    def __index__(self):\n        return 1\nODD = Odd()\n"
CHANGES = {
    "gemm_mine": {}, "copy/gemm_other": {}, "constant": {"tile": 4}, "helper": {"factor": "3"},
    "file": {"more": "# registers something\n"}, "gemm_odd": {"factor": "2 + (0 if ODD else 1)", "more": ODD},
}  # fmt: skip


# two processes, and a dozen kernels compiled
KEPT = some_days(5)


@pytest.fixture(scope="module")
def all_looked(tmp_path_factory):
    """By name, what one process says of all files."""
    base = tmp_path_factory.mktemp("kernels")
    paths = {name: base / f"{name}.py" for name in CHANGES}
    for name, change in CHANGES.items():
        paths[name].parent.mkdir(exist_ok=True)
        paths[name].write_text(TEXTS["step"].format(**{"tile": 3, "factor": "2", "more": "", **change}))
    return look(base / "kept", paths), base / "kept", paths


@pytest.fixture(scope="module")
def again(all_looked):
    """By name, what another process says of two files; of the second, what was kept is cut short."""
    found, folder, paths = all_looked
    for one in found["constant"]:
        kept = folder / "kernels" / f"{one['key']}.json"
        kept.write_bytes(kept.read_bytes()[:-1])
    return look(folder, {name: paths[name] for name in ("gemm_mine", "constant")})


@pytest.fixture
def looked(all_looked):
    return all_looked[0]


@KEPT
def test_another_process_finds_the_kernel_and_compiles_nothing(looked, again):
    first, again = looked["gemm_mine"], again["gemm_mine"]
    assert [one["known"] for one in first] == [False, False]
    assert [one["key"] for one in again] == [one["key"] for one in first]
    for one in again:
        assert (one["known"], one["kept"]) == (True, True)
        assert "product" in one["entry"]
        assert one["saved"] > 0


@KEPT
def test_kernels_that_differ_in_a_global_alone_are_told_apart(looked):
    # `unroll` makes globals of closed-over values: same bytecode, same line, same name, no closure
    full, guarded = looked["gemm_mine"]
    assert full["key"] != guarded["key"]


@KEPT
@pytest.mark.parametrize("change", ["constant", "helper", "file"])
def test_what_a_kernel_is_made_of_is_in_its_key(looked, change):
    before, after = ({one["key"] for one in looked[name]} for name in ("gemm_mine", change))
    assert before.isdisjoint(after)


@KEPT
def test_where_the_file_lies_does_not_matter(looked):
    here, there = (looked[name] for name in ("gemm_mine", "copy/gemm_other"))
    assert [one["key"] for one in here] == [one["key"] for one in there]
    assert [one["known"] for one in there] == [True, True]


def test_a_module_that_numba_has_put_its_own_in_place_of_does_not_matter():
    """It does so once it compiles: the kernels that are compiled ahead are then looked up by another process."""

    class Redirected(types.ModuleType):
        pass

    describe = codegen._Describer()
    assert describe(types.ModuleType("numba.core.types")) == describe(Redirected("numba.types"))


def test_whether_a_helper_is_there_once_or_in_two_copies_does_not_matter():
    """A module that is imported again makes one: what others have of it is the old one."""

    def made(twice):
        def once(value):
            return value + 1

        def copied():
            return types.FunctionType(once.__code__, once.__globals__, "once")

        first, second = copied(), copied() if twice else None
        second = second or first

        def kernel(value):
            return first(value) + second(value)

        return codegen._Describer()(kernel)

    assert made(twice=True) == made(twice=False)


def test_a_function_that_calls_itself_is_described():
    def factorial(n):
        return n * factorial(n - 1) if n else 1

    def other(n):
        return n + other(n - 1) if n else 1

    assert codegen._Describer()(factorial) != codegen._Describer()(other)


@KEPT
def test_what_has_no_description_is_compiled_as_ever(looked):
    assert [(one["key"], one["kept"]) for one in looked["gemm_odd"]] == [(None, False)] * 2


@KEPT
def test_a_file_that_is_no_kernel_is_none(again):
    for one in again["constant"]:
        assert (one["known"], one["kept"]) == (True, True)
        assert one["saved"] > 0  # made anew


def test_a_step_that_measures_finds_all_its_candidates_compiled():
    module = catalog.load(catalog.find("conv2d_layer_dispatch").path, "conv2d")
    gemm, layer = catalog.load(catalog.find("gemm_naive").path, "gemm"), problems.preset("ece408-layer2")
    picked, tried = ([one.name for one in codegen.launches(module, layer, every)] for every in (False, True))
    assert module.bind.__code__.co_varnames[:3] == ("candidate", "filt", "problem")
    assert len(tried) >= len(picked) + len(module.candidates(layer)) > 5
    assert tried[: len(picked)] == picked
    assert set(picked) < set(tried)
    assert len(codegen.launches(gemm, problems.preset("tiny-gemm"), True)) == 1
