"""Whose time it was: a machine that is slow, or busy, is never called a kernel without an end."""

from pathlib import Path

import pytest
from msgspec import json

from common.catalog import device
from common.run import child
from common.run.messages import Result

LIMIT = 6.0


class Clocks:
    """A machine on which a second of the clock gives a process ``share`` of a processor."""

    def __init__(self, share):
        self.share, self.now = share, 0.0

    def monotonic(self):
        return self.now

    def process_time(self):
        return self.now * self.share


@pytest.fixture
def after(monkeypatch):
    """What a watch says, and when by the clock, of a stage that goes on."""

    def after(stage, share=1.0, seconds=1000.0, gpu=False, signs=False, **more):
        clocks = Clocks(share)
        monkeypatch.setattr(child, "time", clocks)
        monkeypatch.setattr(device, "gpu_count", lambda: int(gpu))
        watch = child.Watch(Path("step.py"), LIMIT, **more)
        with child.stage(stage):
            while clocks.now < seconds:
                clocks.now += child.TICK_SECONDS
                if signs:
                    child.advance()
                if result := watch.tick():
                    return result, clocks.now
        return None, clocks.now

    return after


@pytest.mark.parametrize(("stage", "said"), [("compiler", "the compiler"), ("oracle", "the oracle")])
def test_what_the_harness_does_too_long_is_named_and_accuses_nobody(after, stage, said):
    result, at = after(stage)
    assert result.status == "unjudged"
    assert result.message == f"{said} was not done after 6 s; values were not compared"
    assert not result.faults
    assert at == pytest.approx(LIMIT, abs=1.0)


@pytest.mark.parametrize(("gpu", "why"), [(True, "a barrier that some threads skip"), (False, "too much work")])
def test_a_kernel_that_ran_too_long_is_suspected(after, gpu, why):
    result, at = after("kernel", gpu=gpu)
    assert result.status == "timed_out"
    assert result.message == f"the kernel was not done after 6 s: an endless loop, or {why}?"
    assert at == pytest.approx(LIMIT, abs=1.0)


def test_a_busy_machine_gives_more_time(after):
    assert after("kernel", share=0.1, seconds=58)[0] is None
    result, at = after("kernel", share=0.1)
    assert result.status == "timed_out"
    assert at == pytest.approx(10 * LIMIT, rel=0.05)


def test_a_kernel_on_a_gpu_has_the_clock(after):
    result, at = after("kernel", share=0.0, gpu=True)
    assert result.status == "timed_out"
    assert at == pytest.approx(LIMIT, abs=1.0)


def test_who_sleeps_or_waits_has_ten_times_as_long(after):
    result, at = after("check", share=0.0)
    assert result.status == "unjudged"
    assert at == pytest.approx(10 * LIMIT, abs=3.0)


def test_blocks_that_are_done_one_after_the_other_are_no_endless_loop(after):
    result, at = after("kernel", signs=True)
    assert result.status == "unjudged"
    assert at == pytest.approx(4 * LIMIT, rel=0.05)
    result, at = after("kernel", signs=True, within=10.0)
    assert (result.status, result.late) == ("unjudged", True)
    assert at == pytest.approx(10.0, abs=1.0)


def test_what_is_no_text_is_said_all_the_same():
    sent = []
    child._speaker(sent.append)(Result(status="crashed", message="caf\udce9"))  # as a file's name may hold
    assert json.decode(*sent, type=Result).message == "caf?"
