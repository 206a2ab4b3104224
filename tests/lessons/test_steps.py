"""Every step and experiment is right in the tracer: at ragged shapes, and at small ones drawn anew."""

import functools
from dataclasses import replace

import pytest
import shapes
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from sampling import covering, some

from common.catalog import catalog, problems
from common.catalog.problems import Conv2d, Gemm
from common.check import check
from common.machine_code import capture
from common.trace.trace import Tracer

FILES = catalog.everything()
# Threads beyond an edge may multiply what lies in shared memory uninitialised, and throw the product away.
pytestmark = [
    pytest.mark.usefixtures("traced"),
    pytest.mark.filterwarnings("ignore:invalid value encountered in scalar:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:overflow encountered in scalar:RuntimeWarning"),
]


@functools.cache
def module(step):
    return catalog.load(step.path, step.ladder)


@functools.cache
def traced(step):
    return catalog.load(step.path, step.ladder), Tracer()


def complaints(verdict):
    assert verdict.elements_compared  # right because compared, not because skipped
    return [f"{finding.kind}: {finding.message}" for finding in verdict.findings]


def rules(step, **more):
    return structs.replace(check.RULES, precision=step.precision, algorithm=step.algorithm, **more)


def sound(step, problem, seed=0):
    module, tracer = traced(step)
    tracer.forget()
    bench = check.Bench(module, problem, tracer=tracer)
    assert complaints(check.check_bench(bench, rules(step, seed=seed, repeats=1))) == []
    assert tracer.faults() == []


def falls_back(step, problem):
    """Has the shape rows that no tensor map describes? Then the step runs a kernel of an earlier lesson."""
    rows = (problem.N, problem.K) if problem.form == "gemm" else (problem.C, problem.K)
    mapped = all(extent * problem.input_dtype.itemsize % 16 == 0 for extent in rows)
    return step.requires == "9.0a" and not mapped and hasattr(module(step), "unaligned")  # few files are loaded


RAGGED = [(step, problem) for step in some(FILES, 21, 5) for problem in problems.RAGGED[step.ladder]]
# each shape, and each step in its own kernel and in that which it falls back to
CHOSEN = covering(RAGGED, lambda case: case[1], lambda case: (case[0], falls_back(*case)))


@pytest.mark.parametrize(
    ("step", "problem"),
    CHOSEN,
    ids=lambda value: value.name if isinstance(value, catalog.Step) else str(value).replace(" ", "-"),
)
def test_right_at_ragged_shapes(step, problem):
    sound(step, problem)


@pytest.mark.parametrize("step", some(FILES, 40, 2), ids=lambda step: step.name)
@settings(max_examples=3)
@given(data=st.data(), seed=st.integers(0, 2**31))
def test_right_at_any_small_shape(step, data, seed):
    problem = data.draw(shapes.BY_LADDER[step.ladder])
    sound(step, problem, seed)


# Small shapes that tensor maps describe: for others steps fall back to those of earlier lessons.
MAPPABLE = {
    "gemm": Gemm(M=5, N=36, K=100), "hgemm": problems.RAGGED["hgemm"][-1], "igemm": problems.RAGGED["igemm"][-1],
    "iconv3d": replace(problems.RAGGED["iconv3d"][3], K=16, C=32), "conv3d": problems.RAGGED["conv3d"][3],
    "hconv3d": replace(problems.RAGGED["hconv3d"][3], K=16),
}  # fmt: skip


def shipped_tile(step, problem):
    choose = getattr(module(step), "shipped", None)
    values = choose(problem) if choose else vars(module(step))
    return {name: values[name] for name in module(step).TUNABLES}


@pytest.mark.parametrize(
    "step",
    some([step for step in FILES if "\nTUNABLES = " in step.path.read_text()], 50, 1),
    ids=lambda step: step.name,
)
def test_right_with_other_tiles_than_the_shipped(step, monkeypatch):
    problem = Gemm(M=5, N=37, K=9) if step.ladder == "gemm" else problems.RAGGED[step.ladder][1]
    if step.requires == "9.0a":
        problem = MAPPABLE[step.ladder]
        if hasattr(module(step), "unaligned"):
            monkeypatch.setattr(module(step).unaligned, "launch", None)  # its own kernel has these tiles
    shipped = shipped_tile(step, problem)
    taken = 0
    for name, values in module(step).TUNABLES.items():
        other = next(value for value in values if value != shipped[name])
        tile = {**shipped, name: other}
        tracer = Tracer()
        try:
            if capture.takes_tile(module(step), tile):
                bench = check.Bench(module(step), problem, tile, tracer=tracer)
            else:
                loaded = catalog.load(step.path, step.ladder, constants=tile)
                assert vars(loaded).items() >= tile.items()
                bench = check.Bench(loaded, problem, tracer=tracer)
            verdict = check.check_once(bench, rules(step))
        except ValueError:  # the step says that the tile does not fit the others
            continue
        taken += 1
        assert complaints(verdict) == [], (name, other)
        assert tracer.faults() == [], (name, other)
    assert taken


@pytest.mark.parametrize("preset", [name for ladder in problems.LADDERS for name in problems.timed_presets(ladder)])
def test_a_sweep_holds_the_shipped_tile(preset):
    problem = problems.PRESETS[preset]
    for step in FILES:
        if step.ladder == problem.ladder and hasattr(module(step), "TUNABLES"):
            for name, value in shipped_tile(step, problem).items():
                assert value in module(step).TUNABLES[name], (step.name, name)


class TestConstantMemory:
    step = catalog.find("conv2d_constant_weights")

    def test_one_element_decides(self):
        # 16384 weights of 4 bytes fill constant memory
        sound(self.step, Conv2d(N=1, C=128, H=1, W=1, K=128, R=1, S=1))
        with pytest.raises(ValueError, match="takes 65540 bytes"):
            check.check_bench(check.Bench(module(self.step), Conv2d(N=1, C=16385, H=1, W=1, K=1, R=1, S=1)))
