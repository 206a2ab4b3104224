"""Predictions: read and never run, and compared with what is right."""

import re

import made
import pytest

from common.catalog import exercises
from common.grade import answers
from common.records import records
from common.report import kinds

ALL = [one for one in exercises.everything() if one.kind == "predict"]


def read(text):
    return answers.read("predict_x.py", text)


def test_answers_are_read_and_never_run():
    assert read('"""Text."""\nA = 2 * 3\nB = -A**2 + 7 // 2\nC = None\nD = A % 4 / 8\n') == {
        "A": 6, "B": -33, "C": None, "D": 0.25,
    }  # fmt: skip
    assert read("A: int = 2\nB: float = A / 4\n") == {"A": 2, "B": 0.5}


@pytest.mark.parametrize("exercise", ALL, ids=lambda one: one.number)
def test_a_solution_passes_and_an_unsolved_file_does_not(exercise):
    findings, notes = answers.predicted(exercise, exercise.solution)
    assert (findings, len(notes)) == ([], len(exercise.answers))
    unsolved, _ = answers.predicted(exercise, exercise.path.read_text(encoding="utf-8"))
    assert [one.kind for one in unsolved] == ["unanswered"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("A = 1\nB = open('x')\n", ":2: `B = open('x')`: must be NAME = number of at most 1e+30"),
        ("import os\n", ":1: `import os`: must be NAME = number"),
        (
            "A = B\n",
            ":1: `A = B`: must be NAME = number of at most 1e+30, or arithmetic of numbers and of names that",
        ),
        ("A = None\nB = A + 1\n", ":2: `B = A + 1`: must be NAME = number"),
        ("A = 1 / 0\n", ":1: `A = 1 / 0`: must be NAME = number"),
        ("A = 9**9**9\n", ":1: `A = 9**9**9`: must be NAME = number"),
        ("A = float('nan')\n", ":1: `A = float('nan')`: must be NAME = number"),
        ("A = 'x' * 3\n", ":1: `A = 'x' * 3`: must be NAME = number"),
        ("A, B = 1, 2\n", ":1: `A, B = 1, 2`: must be NAME = number"),
        ("B = 1\nA = 8 sectors\n", ":2: `A = 8 sectors`: must be NAME = number"),
        ("A = " + 200 * "9" + "x\n", f"`A = {76 * '9'} ... (125 more characters)`"),
        ("A = " + "-" * 4000 + "1\n", "predict_x"),
    ],
)
def test_other_answers_are_refused_with_their_line(text, says):
    with pytest.raises(answers.AnswerError, match=re.escape(says)):
        read(text)


def test_an_answer_is_exact_for_counts_and_near_for_the_rest():
    count = answers.expected("fixed 256*256")
    assert (count.value, count.within, count.source) == (65536, 0, "")
    assert [count.compare(answer) for answer in (65536, 65535, 65537)] == ["", "too low", "too high"]
    work = answers.expected("fixed 2*4096**3/1e9")
    assert [work.compare(answer) for answer in (137, 130)] == ["", "too low"]
    ratio = answers.expected("ratio ece408-layer2 conv2d_naive conv2d_unrolled within 33")
    assert [ratio.compare(times * ratio.value) for times in (0.7, 1.4)] == ["", "too high"]
    assert "measured on NVIDIA H200" in ratio.source


@pytest.mark.parametrize(
    ("text", "code", "shown", "right", "wrong"),
    [
        ("perfma gemm_tuned", {"FFMA": 100, "LDS": 28}, 1.0, (1, 1.005, 1.28, 1.27), (1.02, 1.2, 1.3)),
        ("perfma gemm_tuned", {"FFMA": 100, "LDS": 11}, 1.0, (1, 1.11), (1.28, 1.08)),
        ("perfma gemm_tuned within 5", {"FFMA": 100, "LDS": 2465}, 26.0, (24.4, 25.65, 26, 27.2), (24.3, 27.4)),
    ],
)
def test_an_answer_is_held_to_the_value_and_to_what_tables_show_of_it(monkeypatch, text, code, shown, right, wrong):
    """1.11 and 1.28 are both shown as 1: one is no answer to the other, and 1 is an answer to both."""
    monkeypatch.setattr(records, "load_code", lambda: made.code(gemm_tuned=[made.kernel("k", loop=code)]))
    expected = answers.expected(text)
    assert (expected.value, expected.shown) == (sum(code.values()) / code["FFMA"], shown)
    assert [expected.compare(answer) for answer in right] == [""] * len(right)
    for answer in wrong:
        assert expected.compare(answer) == ("too low" if answer < expected.value else "too high")


def test_an_answer_copied_from_a_table_is_right():
    found = records.other(records.REFERENCE_GPU)
    steps = [(name, row) for name, row in found.rows("gemm-2048").items() if " " not in name]
    for name, row in steps[:4]:
        derived = found.derive("gemm-2048", row)
        cells = kinds.cells(found, "gemm-2048", name)
        for kind, title, exact in (
            ("ms", "ms", row.timing.median_ms),
            ("share", "% of floor", derived.percent_of_floor),
        ):
            expected = answers.expected(f"{kind} gemm-2048 {name.replace(' ', '-')}")
            assert expected.compare(float(cells[title])) == ""
            assert expected.compare(exact) == ""


@pytest.mark.parametrize("text", ["nothing gemm_naive", "ratio gemm-4096 gemm_naive nobody"])
def test_an_expected_value_that_makes_no_sense_says_so(text):
    with pytest.raises(answers.AnswerError):
        answers.expected(text)


@pytest.mark.parametrize("answer", ["4608", "2 / 24", "0.083", "2.2"])
def test_a_right_prediction_is_told_beside_the_right_value(answer):
    name = {"4608": "SHARED_BYTES", "2.2": "TILED_2048_MS"}.get(answer, "GLOBAL_LOADS")
    _, notes = answers.predicted(exercises.find("predict_tiles"), f"{name} = {answer}\n")
    assert [note.partition(" = ")[0] for note in notes] == [name]
    assert notes[0].endswith(f", yours {eval(answer):.6g}")


def test_a_wrong_prediction_says_which_way_and_does_not_tell():
    one = next(one for one in ALL if one.name == "predict_worked_example")
    text = one.solution.replace("ZEROS_OF_0 = 2 * 3", "ZEROS_OF_0 = 7").replace("GEMM_K = 3 * 2 * 3", "GEMM_K = None")
    findings, notes = answers.predicted(one, text)
    said = [f"{finding.kind}: {finding.message}" for finding in findings]
    assert said == [
        "unanswered: no value yet for GEMM_K",
        "wrong: ZEROS_OF_0 = 7 is too high",
    ]
    assert len(notes) == len(one.answers) - 2


def test_a_known_slip_is_one_is_met_and_does_not_tell():
    """Each is a wrong answer, no other hides it, and its words do not hold the right one."""
    slips = [(one, name, text) for one in ALL for name, known in one.slips.items() for text in known]
    assert len(slips) > 100
    for one, name, text in slips:
        expected, wrong = answers.expected(one.answers[name]), answers.evaluated(text)
        said = one.slips[name][text]
        assert expected.compare(wrong), (one.name, name, text)
        assert expected.slip(wrong, one.slips[name]) == said, (one.name, name, text)
        for right in {f"{expected.told:g}", f"{expected.told:,g}"}:
            assert not re.search(rf"(?<![\d.])(?<!\d,){re.escape(right)}(?![\d.]|,\d)", said), (one.name, name, said)
