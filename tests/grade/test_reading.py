"""What is read of a student's file and never run: its frame, what it imports, and predictions."""

import ast
import re
from functools import cache

import made
import pytest

from common.catalog import catalog, exercises
from common.catalog.exercises import ExerciseError
from common.grade import reading
from common.records import records
from common.report import tables

ONE, BUG = "gemm_one_dimension", "gemm_once_in_a_while"
START, LAUNCH = "from numba import cuda, float32\n", "def launch(a, b, c):\n"
LEAVES = "leaves the block of lines that it began in"
KERNELS = [one for one in exercises.everything() if one.kind != "predict"]


@cache
def solved(name=ONE):
    return exercises.find(name).solution


def filled(code):
    """The exercise with other lines in its first blank."""
    text = exercises.find(ONE).path.read_text(encoding="utf-8")
    lines = "".join(f"    {line}\n" if line else "\n" for line in code.splitlines())
    return re.sub(
        r"(# >>> your code[^\n]*\n).*?^ *# <<<", rf"\1{lines}    # <<<", text, count=1, flags=re.DOTALL | re.MULTILINE
    )


@pytest.mark.parametrize("exercise", KERNELS, ids=lambda one: one.number)
def test_a_blank_is_known_to_be_left(exercise):
    given, line = exercise.path.read_text(encoding="utf-8"), ""
    if exercise.kind == "write":
        line = f"line {given[: given.index(exercises.BLANK)].count(chr(10)) + 1}: "
    left = reading.unfilled(given)
    assert (left[: len(line)], bool(left), reading.unfilled(exercise.solution)) == (line, bool(line), "")


@pytest.mark.parametrize("exercise", KERNELS, ids=lambda one: one.number)
def test_exercise_and_solution_have_one_frame(exercise):
    for text in (exercise.path.read_text(encoding="utf-8"), exercise.solution):
        said = text.replace('"""Ex', '"""Another ex').replace("    # store", "")
        assert reading.departure(exercise, text) is reading.departure(exercise, said) is None
        if "import_module" not in text:  # it takes over a step's parts: what it imports is free for it alone
            assert reading.foreign(text, "") == []
        assert reading.foreign(text, solved(exercise.name), False) == []


@pytest.mark.parametrize("exercise", [one for one in KERNELS if one.kind != "tune"], ids=lambda one: one.number)
def test_another_right_kernel_is_no_answer(exercise):
    first = next(step for step in catalog.steps() if step.ladder == exercise.ladder)
    departure = reading.departure(exercise, first.path.read_text(encoding="utf-8"))
    assert ("to write" if exercise.kind == "write" else "lines are other") in departure


@pytest.mark.parametrize("step", catalog.everything(), ids=lambda one: one.name)
def test_a_copy_of_a_step_may_say_what_the_step_says(step):
    text = step.path.read_text(encoding="utf-8")
    assert reading.foreign(text, text) == []


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        (ONE, filled("pass\n\n\ndef other():\n    pass").replace("    def other", "def other"), LEAVES),
        (ONE, filled("pass\n").replace("    # <<<", "\nTHREADS = 1\n    # <<<", 1), LEAVES),
        (ONE, solved().replace("    # <<<", "    x = (1,\n    # <<<\n    2)", 1), LEAVES),
        (ONE, solved().replace("# <<<", "# <<<\n    # >>> your code: 6 lines\n    x = 1\n    # <<<"), "not as given"),
        (ONE, solved().replace("# <<<", ""), "are not as given"),
        (ONE, solved().replace("THREADS = TILE_M", "x = 1; THREADS = TILE_M"), "`x = 1` is not as given"),
        (ONE, solved().replace("@cuda.jit", "@cuda.jit(opt=False)"), "is not as given"),
        (ONE, solved().replace(LAUNCH, "def launch(a, b, c=1):\n"), "is not as given"),
        (ONE, solved() + "\nif __name__:\n    pass\n", "is not as given"),
        (ONE, solved().replace("THREADS = TILE_M * TILE_N", "THREADS: int = TILE_M"), "`THREADS = TILE_M` is not as"),
        ("gemm_two_tiles", solved("gemm_two_tiles").replace("K, BLOCK_K):", "K, TILE):"), "range.* is not as given"),
        ("gemm_two_tiles", solved("gemm_two_tiles").replace("    if m < M and n < N:\n        c[m, n] = acc\n", ""),
         "`if m < M and n < N:` is missing"),
        (ONE, solved() + "x = " + "1 + " * 600 + "1\n", "nested too deeply"),
        (BUG, solved(BUG) + "x = " + "1 + " * 600 + "1\n", "nested too deeply"),
        (BUG, solved(BUG) + 9 * "\nif __name__:\n    pass\n", "lines are other"),
        (BUG, solved(BUG) + 50_000 * "pass\n", "50000 lines are other"),
    ],
)  # fmt: skip
def test_what_is_not_the_students_to_change(name, text, says):
    ast.parse(text)
    assert re.search(says, reading.departure(exercises.find(name), text) or "nothing")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (LAUNCH, "def launch(a: object, b: object, c: object) -> None:\n    'Starts it.'\n"),
        ("THREADS = TILE_M", "THREADS: int = TILE_M"),
        (START, f"from typing import Final\n\nimport numpy as np\n{START}from numba.types import uint32\n"),
        ("\n\ndef launch", "\n\nif __name__ == '__main__':\n    import os\n    os.system('true')\n\n\ndef launch"),
        ("for k in range(K):", "for k in range( K ):  # each"),
        ("def launch(", "def launch(:"),  # importing it says so
    ],
)
def test_types_layout_imports_and_a_self_test_are_free(old, new):
    text = solved().replace(old, new)
    assert text != solved()
    assert reading.foreign(text, solved(), False) == []
    assert reading.departure(exercises.find(ONE), text) is None


@pytest.mark.parametrize(("more", "free"), [(6, True), (7, False)])
def test_a_bug_may_be_mended_in_a_few_lines_more(more, free):
    one = exercises.find(BUG)
    said = reading.departure(one, solved(BUG) + (one.lines + more) * "\nX = 1")
    assert (said is None) == free
    if not free:
        assert said.startswith(f"{one.lines + 7} lines are other than in the exercise with its bug mended, and ")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import os\n", ["line 1: import of os"]),
        ("x = 1\nfrom torch.nn import functional\n", ["line 2: import of torch.nn"]),
        ("import common.trace.trace as trace\n", ["line 1: import of common.trace.trace"]),
        ("from . import x\n", ["line 1: import of ."]),
        ("def launch(a, b, c):\n    exec('x = 1')\n", ["line 2: `exec`"]),
        (
            "import importlib\nx = importlib.import_module('lessons.01_naive.solutions.gemm_double')\n",
            ["line 1: import of importlib", "line 2: 'lessons.01_naive.solutions.gemm_double'"],
        ),
        (
            "from lessons.toolkit import memory\nfrom lessons.toolkit.unroll import unroll\nimport math\n",
            [],
        ),
    ],
)
def test_what_no_kernel_file_has_a_use_for_is_named_with_its_line(text, says):
    assert reading.foreign(text, "") == says
    assert reading.foreign(text, text) == []


def test_a_helper_that_an_exercise_does_not_use_is_not_part_of_its_answer():
    assert reading.foreign("from lessons.toolkit.grid import add_up\n", solved(), False) == [
        "line 1: import of lessons.toolkit.grid"
    ]


# --- predictions ---

ALL = [one for one in exercises.everything() if one.kind == "predict"]


def read(text):
    return reading.read("predict_x.py", text)


def test_answers_are_read_and_never_run():
    assert read('"""Text."""\nA = 2 * 3\nB = -A**2 + 7 // 2\nC = None\nD = A % 4 / 8\n') == {
        "A": 6, "B": -33, "C": None, "D": 0.25,
    }  # fmt: skip
    assert read("A: int = 2\nB: float = A / 4\n") == {"A": 2, "B": 0.5}


@pytest.mark.parametrize("exercise", ALL, ids=lambda one: one.number)
def test_a_solution_passes_and_an_unsolved_file_does_not(exercise):
    findings, notes = reading.predicted(exercise, exercise.solution)
    assert (findings, len(notes)) == ([], len(exercise.answers))
    unsolved, _ = reading.predicted(exercise, exercise.path.read_text(encoding="utf-8"))
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
        ("A = 1e400\n", ":1: `A = 1e400`: must be NAME = number of at most 1e+30"),
        ("A = float('nan')\n", ":1: `A = float('nan')`: must be NAME = number"),
        ("A = 'x' * 3\n", ":1: `A = 'x' * 3`: must be NAME = number"),
        ("A = True\n", ":1: `A = True`: must be NAME = number"),
        ("A, B = 1, 2\n", ":1: `A, B = 1, 2`: must be NAME = number"),
        ("A: int\n", ":1: `A: int`: must be NAME = number"),
        ("B = 1\nA = 8 sectors\n", ":2: `A = 8 sectors`: must be NAME = number"),
        ("A = (\n", ":1: `A = (`: must be NAME = number"),
        ("A = " + 200 * "9" + "x\n", f"`A = {76 * '9'} ... (125 more characters)`"),
        ("A = " + "-" * 4000 + "1\n", "predict_x"),
    ],
)
def test_other_answers_are_refused_with_their_line(text, says):
    with pytest.raises(ExerciseError, match=re.escape(says)):
        read(text)


def test_an_answer_is_exact_for_counts_and_near_for_the_rest():
    count = reading.expected("fixed 256*256")
    assert (count.value, count.within, count.source) == (65536, 0, "")
    assert [count.compare(answer) for answer in (65536, 65535, 65537)] == ["", "too low", "too high"]
    work = reading.expected("fixed 2*4096**3/1e9")
    assert [work.compare(answer) for answer in (137, 130)] == ["", "too low"]
    ratio = reading.expected("ratio ece408-layer2 conv2d_naive conv2d_unrolled within 33")
    assert [ratio.compare(times * ratio.value) for times in (0.7, 1.4)] == ["", "too high"]
    assert ratio.source == "measured on NVIDIA H200"


@pytest.mark.parametrize(
    ("text", "code", "shown", "right", "wrong"),
    [
        ("kernel gemm_tuned perfma", {"FFMA": 100, "LDS": 28}, 1.0, (1, 1.005, 1.28, 1.27), (1.02, 1.2, 1.3)),
        ("kernel gemm_tuned perfma", {"FFMA": 100, "LDS": 11}, 1.0, (1, 1.11), (1.28, 1.08)),
        (
            "kernel gemm_tuned perfma within 5",
            {"FFMA": 100, "LDS": 2465},
            26.0,
            (24.4, 25.65, 26, 27.2),
            (24.3, 27.4),
        ),
    ],
)
def test_an_answer_is_held_to_the_value_and_to_what_tables_show_of_it(monkeypatch, text, code, shown, right, wrong):
    """1.11 and 1.28 are both shown as 1: one is no answer to the other, and 1 is an answer to both."""
    monkeypatch.setattr(records, "load_code", lambda: made.code(gemm_tuned=[made.kernel("k", loop=code)]))
    expected = reading.expected(text)
    assert (expected.value, expected.shown) == (sum(code.values()) / code["FFMA"], shown)
    assert [expected.compare(answer) for answer in right] == [""] * len(right)
    for answer in wrong:
        assert expected.compare(answer) == ("too low" if answer < expected.value else "too high")


def test_an_answer_copied_from_a_table_is_right():
    found = records.other(records.REFERENCE_GPU)
    steps = [(name, row) for name, row in found.rows("gemm-2048").items() if " " not in name]
    for name, row in steps[:4]:
        derived = found.derive("gemm-2048", row)
        cells = tables.cells(found, "gemm-2048", name)
        for kind, title, exact in (
            ("ms", "ms", row.timing.median_ms),
            ("share", "% of floor", derived.percent_of_floor),
        ):
            expected = reading.expected(f"{kind} gemm-2048 {name.replace(' ', '-')}")
            assert expected.compare(float(cells[title])) == ""
            assert expected.compare(exact) == ""


@pytest.mark.parametrize("text", ["nothing gemm_naive", "ratio gemm-4096 gemm_naive nobody"])
def test_an_expected_value_that_makes_no_sense_says_so(text):
    with pytest.raises(ValueError):
        reading.expected(text)


@pytest.mark.parametrize("answer", ["4608", "2 / 24", "0.083", "2.2"])
def test_a_right_prediction_is_told_beside_the_right_value(answer):
    name = {"4608": "SHARED_BYTES", "2.2": "TILED_2048_MS"}.get(answer, "GLOBAL_LOADS")
    _, notes = reading.predicted(exercises.find("predict_tiles"), f"{name} = {answer}\n")
    assert [note.partition(" = ")[0] for note in notes] == [name]
    assert notes[0].endswith(f", yours {eval(answer):.6g}")


def test_a_wrong_prediction_says_which_way_and_does_not_tell():
    one = next(one for one in ALL if one.name == "predict_worked_example")
    text = one.solution.replace("ZEROS_OF_0 = 2 * 3", "ZEROS_OF_0 = 7").replace("GEMM_K = 3 * 2 * 3", "GEMM_K = None")
    findings, notes = reading.predicted(one, text)
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
        expected, wrong = reading.expected(one.answers[name]), reading.evaluated(text)
        said = one.slips[name][text]
        assert expected.compare(wrong), (one.name, name, text)
        assert expected.slip(wrong, one.slips[name]) == said, (one.name, name, text)
        for right in {f"{expected.shown:g}", f"{expected.shown:,g}"}:
            assert not re.search(rf"(?<![\d.])(?<!\d,){re.escape(right)}(?![\d.]|,\d)", said), (one.name, name, said)
