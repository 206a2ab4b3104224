"""The shipped verdicts, ``results/verdicts.json``: of each step as it is now; a part is found out again in full."""

import datetime
import random

import pytest

from common.catalog import catalog
from common.jobs import run, unchanged

STEPS, SHIPPED = catalog.everything(), unchanged.VERDICTS


def test_each_shipped_step_has_a_verdict_of_its_code_as_it_is(monkeypatch):
    monkeypatch.setattr(unchanged, "VERDICTS", SHIPPED)  # other tests have none
    missing = [step.name for step in STEPS if step.name not in unchanged.shipped(STEPS)]
    assert not missing, "`make verdicts` finds them out again and writes results/verdicts.json"


def _drawn_today():
    """Two steps, others each day; their names are in the tests' ids."""
    return random.Random(datetime.date.today().isoformat()).sample(STEPS, 2)


@pytest.mark.parametrize("step", _drawn_today(), ids=lambda step: step.name)
def test_a_shipped_verdict_is_found_again_at_the_whole_plan(step):
    outcomes = list(run.check_steps([step], True, seed=random.SystemRandom().randrange(1 << 20)))
    assert outcomes
    assert all(outcome.fine for outcome in outcomes), [outcome.reasons for outcome in outcomes if not outcome.fine]
