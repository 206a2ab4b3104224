"""Output flows when it is piped: by the order of events, not by a clock."""

import sys

import pytest

from common.catalog import catalog, problems
from common.commands import console, flow, verdicts
from common.jobs.run import Outcome
from common.report.messages import Draw
from common.timing import timing

STEPS = catalog.steps()[:3]


def outcome(step, status="right", seconds=0.5, **result):
    return Outcome(step, problems.FIRST[step.ladder], "gemm-4096", {"status": status, "seconds": seconds, **result})


@pytest.fixture
def pipe(monkeypatch):
    """Makes pipes of both outputs; ``text`` is what has come through."""

    class Pipe:
        def __init__(self):
            self.text = self.unflushed = ""

        def write(self, text):
            self.unflushed += text

        def flush(self):
            self.text, self.unflushed = self.text + self.unflushed, ""

        def isatty(self):
            return False

    def both():  # in the test itself: pytest puts its own in place after fixtures
        out, err = Pipe(), Pipe()
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        return out, err

    return both


def test_the_first_line_comes_before_the_first_result_and_each_line_with_its_result(pipe):
    out, _ = pipe()
    seen = []

    def results():
        seen.append(out.text)
        for step in STEPS:
            yield outcome(step, timing=timing.summarise([2.0]))
            seen.append(out.text)

    assert len(list(console.progress("time", results(), STEPS, flow.timed))) == 3
    assert seen[0] == "time: 3 to do\n"
    assert [text.count("\n") for text in seen] == [1, 2, 3, 4]
    assert seen[1].endswith(f"gemm-4096: {STEPS[0].name} 2 ms, measured in 0.5 s\n")


def test_beside_json_lines_go_to_standard_error(pipe):
    out, err = pipe()
    list(console.progress("time", iter([1]), [1], str, aside=True))
    assert (out.text, err.text) == ("", "time: 1 to do\n1\n")


def test_a_step_is_told_when_all_its_shapes_are_in(pipe):
    out, _ = pipe()
    results = [outcome(step, status) for step in STEPS[:2] for status in ("right", "right", "refused")]
    assert list(verdicts.checked(STEPS[:2], iter(results))) == results
    first, second = (step.name for step in STEPS[:2])
    assert out.text.splitlines() == [
        "check: 2 to do",
        f"{first}: right at 2 shapes, refused at 1 shape, 1.5 s",
        f"{second}: right at 2 shapes, refused at 1 shape, 1.5 s",
    ]


def test_a_terminal_has_its_bar_and_no_lines(pipe, monkeypatch):
    out, err = pipe()
    for stream in (out, err):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    assert list(console.progress("time", iter([1, 2]), [1, 2], str)) == [1, 2]
    assert out.text == ""


def test_lines_say_what_became_of_it():
    step = STEPS[0]
    assert flow.timed(outcome(step, "timed_out")) == f"gemm-4096: {step.name} timed out, measured in 0.5 s"
    kernels = [{"kernel": "one", "architecture": "8.0"}, {"kernel": "one", "architecture": "9.0"}]
    assert flow.compiled(outcome(step, kernels=kernels)) == f"{step.name}: 1 kernel compiled, 0.5 s"
    assert flow.compiled(outcome(step, "crashed")) == f"{step.name}: crashed, 0.5 s"
    assert flow.swept(({"A": 1, "B": 2}, {"status": "refused"})) == "A=1 B=2: refused"
    assert flow.sanitized(("memcheck", step, 1, "")) == f"memcheck: {step.name}, 1 error"
    assert flow.measured(("library", ("photo", {"seconds": 1.0}))) == "photo: libraries, measured in 1.0 s"
    assert (
        flow.drawn((Draw(what="lesson", name="03"), {"files": ["a", "b"], "seconds": 2.0}))
        == "03: 2 files drawn, 2.0 s"
    )
