"""The shipped verdicts, ``results/verdicts.json``: of each step as it is now; a part is found out again in full."""

import random

import pytest
from sampling import one_of_each

from common.catalog import catalog
from common.check import run
from common.cli import main
from common.records import records

STEPS = catalog.everything()


@pytest.fixture
def without_verdict(monkeypatch):
    """The steps that have none."""
    monkeypatch.setattr(run, "VERDICTS", records.RESULTS / "verdicts.json")
    return lambda: {step.name for step in STEPS} - run.shipped(STEPS).keys()


def test_each_shipped_step_has_a_verdict_of_its_code_as_it_is(without_verdict):
    assert without_verdict() == set(), "`make verdicts` finds them out again and writes results/verdicts.json"


def test_on_a_card_of_less_shared_memory_steps_that_take_other_tiles_have_none(without_verdict, monkeypatch):
    monkeypatch.setenv("WORKBOOK_CARD", "8.6")
    found = without_verdict()
    assert {"hgemm_pipelined", "hconv3d_mma", "conv2d_tensor_core", "dgrad_minimal_filtering"} <= found
    runs_there = {step.name for step in STEPS if step.requires != "9.0a"}
    assert len(found & runs_there) < 10


@pytest.mark.parametrize("words", [(), ("gemm_naive",)])
def test_no_verdict_of_a_played_card_is_shipped(monkeypatch, capsys, words):
    monkeypatch.setenv("WORKBOOK_CARD", "8.6")
    assert main(["check", *words, "--record"]) == 2
    assert "this one has the limits of 8.6" in capsys.readouterr().err


@pytest.mark.parametrize("step", one_of_each(STEPS, lambda _: "a step"), ids=lambda step: step.name)
def test_a_shipped_verdict_is_found_again_at_the_whole_plan(step):
    outcomes = list(run.check_steps([step], True, seed=random.SystemRandom().randrange(1 << 20)))
    assert outcomes
    assert all(outcome.fine for outcome in outcomes), [outcome.reasons for outcome in outcomes if not outcome.fine]
