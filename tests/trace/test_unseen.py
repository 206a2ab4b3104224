"""What no engine judged whole is said, and never hidden behind one that is right."""

import io

from msgspec.structs import replace
from rich.console import Console

from common.catalog import catalog, problems
from common.check import run
from common.edit import loop, words
from common.report import tables
from common.run.messages import Outcome, StepResult

STEP, SHAPE = catalog.find("gemm_naive"), problems.FIRST["gemm"]
RIGHT = StepResult(status="right", engine="traced", right=True, findings=[])
UNJUDGED = StepResult(status="unjudged", message="only the GPU ran it: shfl")


def outcomes(*results):
    return [Outcome.of(STEP, SHAPE, None, result) for result in results]


def agreed(*results):
    (outcome,) = run._agreed(STEP, outcomes(*results), True, None)
    return outcome


def said(found):
    console = Console(file=io.StringIO(), width=200)
    console.print(tables.checks(found))
    return console.file.getvalue()


def test_of_one_shape_what_was_not_judged_is_told_before_what_is_right():
    gpu = replace(RIGHT, engine="gpu")
    assert agreed(gpu, UNJUDGED).status == agreed(UNJUDGED, gpu).status == "unjudged"
    assert agreed(RIGHT, StepResult(status="wrong", findings=[]), UNJUDGED).status == "wrong"
    assert agreed(StepResult(status="right", only_compiled=True), RIGHT).engine == "traced"


def test_a_shape_that_a_step_was_only_compiled_for_is_not_called_right():
    other = problems.RAGGED["gemm"][0]
    wrong = Outcome(step=STEP, problem=SHAPE, status="wrong", engine="traced", findings=[])
    compiled = Outcome(step=STEP, problem=other, status="right", only_compiled=True)
    assert [one.problem for one in run._agreed(STEP, [compiled, wrong], True, None)] == [SHAPE]
    assert [one.problem for one in run._agreed(STEP, [compiled], True, None)] == [other]


def test_the_table_names_why():
    assert "not traced" not in said(outcomes(RIGHT))
    assert "only the GPU ran it: shfl" in said(outcomes(UNJUDGED))


def test_the_edit_loop_does_not_call_it_sound():
    for result, sound in ((RIGHT, True), (UNJUDGED, False)):
        lines = " ".join(words.stage("gemm_naive", loop.Stage(loop.CHECK, outcomes(result), 1.0)))
        assert ("and sound" in lines) == sound
        assert ("was not judged whole" in lines) != sound
