"""How deep a check is follows what its first launch took, whatever the shape promises."""

import pytest

from common.catalog.problems import Gemm
from common.check import check

SMALL = Gemm(M=3, N=4, K=5)


class Seconds:
    """Processor time that only launches take."""

    def __init__(self):
        self.now = 0.0

    def process_time(self):
        return self.now


@pytest.fixture
def measured(monkeypatch):
    """The depth at which a right step is checked, and how often it was launched, a launch taking ``each`` seconds."""

    def measured(each, budget=20.0):
        clock = Seconds()
        monkeypatch.setattr(check, "time", clock)
        launches = []

        def first(bench, verdict, rules):
            launches.append(rules)
            clock.now += each

        monkeypatch.setattr(check, "_first", first)
        monkeypatch.setattr(check, "check_bench", lambda *_: check.Verdict(SMALL))
        monkeypatch.setattr(check, "check_thoroughly", lambda *_: check.Verdict(SMALL))
        verdict, depth = check.check_measured(lambda: SimpleBench, check.Budget(budget))
        assert verdict.right
        return depth

    return measured


class SimpleBench:
    problem = SMALL


def test_the_first_launch_says_how_many_more_there_are(measured):
    assert [measured(each) for each in (0.1, 0.6, 1.0, 4.9, 5.1, 19.0)] == [
        "thorough", "thorough", "usual", "usual", "once", "once",
    ]  # fmt: skip


def test_the_first_blocks_tell_a_launch_that_is_too_long(monkeypatch):
    clock = Seconds()
    monkeypatch.setattr(check, "time", clock)
    budget = check.Budget(20.0)
    budget.groups(0, 40)
    clock.now = 0.4
    budget.groups(1, 40)  # 16 s
    clock.now = 1.2
    with pytest.raises(check.TooLargeError, match="about 24 s"):
        budget.groups(2, 40)
