"""What of a file is the exercise's, what a student may change, and what any file may import."""

import ast
import re
from functools import cache

import pytest

from common.catalog import catalog, exercises
from common.grade import frame

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
    left = frame.unfilled(given)
    assert (left[: len(line)], bool(left), frame.unfilled(exercise.solution)) == (line, bool(line), "")


@pytest.mark.parametrize("exercise", KERNELS, ids=lambda one: one.number)
def test_exercise_and_solution_have_one_frame(exercise):
    for text in (exercise.path.read_text(encoding="utf-8"), exercise.solution):
        said = text.replace('"""Ex', '"""Another ex').replace("    # store", "")
        assert frame.departure(exercise, text) is frame.departure(exercise, said) is None
        if "import_module" not in text:  # it takes over a step's parts: what it imports is free for it alone
            assert frame.foreign(text, "") == []
        assert frame.foreign(text, solved(exercise.name), False) == []


@pytest.mark.parametrize("exercise", [one for one in KERNELS if one.kind != "tune"], ids=lambda one: one.number)
def test_another_right_kernel_is_no_answer(exercise):
    first = next(step for step in catalog.steps() if step.ladder == exercise.ladder)
    departure = frame.departure(exercise, first.path.read_text(encoding="utf-8"))
    assert ("to write" if exercise.kind == "write" else "lines are other") in departure


@pytest.mark.parametrize("step", catalog.everything(), ids=lambda one: one.name)
def test_a_copy_of_a_step_may_say_what_the_step_says(step):
    text = step.path.read_text(encoding="utf-8")
    assert frame.foreign(text, text) == []


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
        (BUG, solved(BUG) + 9 * "\nif __name__:\n    pass\n", "lines are other"),
        (BUG, solved(BUG) + 50_000 * "pass\n", "50000 lines are other"),
    ],
)  # fmt: skip
def test_what_is_not_the_students_to_change(name, text, says):
    ast.parse(text)
    assert re.search(says, frame.departure(exercises.find(name), text) or "nothing")


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
    assert frame.foreign(text, solved(), False) == []
    assert frame.departure(exercises.find(ONE), text) is None


@pytest.mark.parametrize(("more", "free"), [(6, True), (7, False)])
def test_a_bug_may_be_mended_in_a_few_lines_more(more, free):
    one = exercises.find(BUG)
    said = frame.departure(one, solved(BUG) + (one.lines + more) * "\nX = 1")
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
    assert frame.foreign(text, "") == says
    assert frame.foreign(text, text) == []


def test_a_helper_that_an_exercise_does_not_use_is_not_part_of_its_answer():
    assert frame.foreign("from lessons.toolkit.grid import add_up\n", solved(), False) == [
        "line 1: import of lessons.toolkit.grid"
    ]
