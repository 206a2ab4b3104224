"""Kernels are found by all that they are made of: in child processes, each with caches of its own."""

import json
import types

import pytest
import texts
from processes import python
from sampling import some_days

from common.catalog import catalog, device, problems
from common.machine_code import codegen

TEXTS = texts.of("machine_code")


def look(folder, paths):
    """By name, what a fresh process, with this folder of kept kernels, says of the kernels of files, two of each."""
    said = python("-c", TEXTS["look"], folder, *paths.values(), env=device.environment(False)).stdout
    lines = [json.loads(line) for line in said.splitlines()]
    return dict(zip(paths, zip(lines[::2], lines[1::2], strict=True), strict=True))


# How files differ from the first; the odd one has a global without a description.
ODD = "class Odd:\n    def __index__(self):\n        return 1\nODD = Odd()\n"
FILES = {
    "gemm_mine": {}, "copy/gemm_other": {}, "constant": {"tile": 4}, "helper": {"factor": "3"},
    "file": {"more": "# registers something\n"}, "gemm_odd": {"factor": "2 + (0 if ODD else 1)", "more": ODD},
}  # fmt: skip


# two processes, and a dozen kernels compiled
KEPT = some_days(5)


@pytest.fixture(scope="module")
def all_looked(tmp_path_factory):
    """By name, what one process says of all files."""
    base = tmp_path_factory.mktemp("kernels")
    paths = {name: base / f"{name}.py" for name in FILES}
    for name, change in FILES.items():
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
