"""Exercises: each has what a student needs; how they are found; hints and progress."""

import difflib
import re
from typing import get_args

import pytest
from msgspec import structs

from common.catalog import catalog, exercises, problems, store
from common.catalog.exercises import ExerciseError
from common.grade import tasks

ALL = exercises.everything()
KERNELS = [one for one in ALL if one.kind != "predict"]
EACH = pytest.mark.parametrize("exercise", ALL, ids=lambda one: one.number)
LESSONS = sorted({one.lesson for one in ALL})


# --- structure ---


def between_markers(text):
    """The code lines between the markers of a source, comments and empty lines left out."""
    blank = rf"^ *{re.escape(exercises.BLANK)}[^\n]*\n(.*?)^ *{re.escape(exercises.END)}$"
    parts = re.findall(blank, text, re.DOTALL | re.MULTILINE)
    return [line for part in parts for line in part.splitlines() if line.strip() and not line.strip().startswith("#")]


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_has_exercises_of_every_kind(lesson):
    here = [one for one in ALL if one.lesson == lesson]
    assert len(here) >= 4
    assert {one.kind for one in here} == set(get_args(exercises.Kind))
    for files in ("exercises/*.py", "solutions/*.diff"):
        assert {path.stem for path in (catalog.LESSONS / lesson).glob(files)} == {one.name for one in here}


def test_there_are_forty_and_one_from_a_blank_file_in_each_lesson():
    assert len(ALL) >= 40
    assert catalog.lessons() == LESSONS
    blank = [one for one in KERNELS if any("def launch(" in line for line in between_markers(one.path.read_text()))]
    assert [one.lesson for one in blank] == LESSONS


@EACH
def test_an_exercise_has_what_a_student_needs(exercise):
    assert len(exercise.hints) == 3
    assert len(set(exercise.hints)) == len(exercise.hints)
    for text in (exercise.path.read_text(), exercise.solution):
        said = {"bug": "find the bug"}.get(exercise.kind, exercise.kind)
        assert text.startswith(f'"""Exercise {exercise.number}, {said}: ')
        assert f"\nGrade: python -m common grade {exercise.number}\n" in text
        asked = f"at least {exercise.floor:g} percent of the floor's rate on {exercise.preset}.\nGrade:"
        assert (asked in text) == bool(exercise.floor)
        assert len(text.splitlines()) <= 100
        assert max(map(len, text.splitlines())) <= 118
    step_names = {step.name for step in catalog.everything()}
    assert exercise.name not in step_names


@pytest.mark.parametrize("exercise", [one for one in ALL if one.kind == "write"], ids=lambda one: one.number)
def test_a_blank_is_marked_and_of_the_stated_size(exercise):
    marker = re.compile(rf" *{exercises.BLANK}.*?\n *{exercises.END}\n", re.DOTALL)
    unsolved, solved = exercise.path.read_text(), exercise.solution
    assert marker.sub("", unsolved) == marker.sub("", solved)
    blank = rf" *{exercises.BLANK}: (\d+) (lines?)\n(.*?)\n *{exercises.END}$"
    stated = re.findall(blank, solved, re.DOTALL | re.MULTILINE)
    for count, word, filled in stated:
        code = [line for line in filled.splitlines() if line.strip() and not line.strip().startswith("#")]
        assert (len(code), word) == (int(count), "line" if count == "1" else "lines")
    assert len(stated) == solved.count(exercises.BLANK)
    assert len(between_markers(solved)) == sum(int(count) for count, _, _ in stated) == exercise.lines
    placeholders = [line.strip() for line in between_markers(unsolved)]
    assert all(line == "pass" or line.endswith("= 0") or line.startswith("def launch(") for line in placeholders)


@pytest.mark.parametrize("exercise", [one for one in ALL if one.kind == "bug"], ids=lambda one: one.number)
def test_a_bug_is_as_small_as_stated(exercise):
    old, new = exercise.path.read_text().splitlines(), exercise.solution.splitlines()
    changed = 0
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        changed += max(i2 - i1, j2 - j1) if tag != "equal" else 0
    assert changed == exercise.lines
    said = re.findall(r"(\w+) (?:at most )?(one|\d+) lines?\b", " ".join("\n".join(new).split('"""')[1].split()))
    for what, number in said:  # a line that is moved goes in one place and comes in another
        assert int(number.replace("one", "1")) * (2 if what == "Move" else 1) == changed


@EACH
def test_a_page_names_it_once(exercise):
    """At the end of its section, the harder ones in the table at the end."""
    pages = sorted((catalog.LESSONS / exercise.lesson).glob("*.md"))
    text = "".join(page.read_text() for page in pages)
    assert text.count(f"**{exercise.number}** [`{exercise.name}`](exercises/{exercise.name}.py)") == 1
    assert text.count(f"<!-- exercise: {exercise.name} -->\n") == (not exercise.hard)
    assert bool(exercise.section) == (not exercise.hard)


def test_a_section_is_told_apart_from_others_of_its_heading():
    assert exercises.find("02.5").section == "5. `conv2d_shared_tile`: the halo"
    sections = [one.section for one in ALL if one.section]
    assert not {section for section in sections if section.startswith(("Read why", "Predict", "Run"))}


@pytest.mark.parametrize("lesson", LESSONS)
def test_most_exercises_of_a_lesson_belong_to_a_section(lesson):
    here = [one.hard for one in ALL if one.lesson == lesson]
    assert 0 < sum(here) <= len(here) / 2


# --- finding them ---


TOLD = '[gemm_x]\nhints = ["b"]\n'


def lesson(write, text, told=TOLD, names=("gemm_x", "predict_x")):
    for name in names:
        write(f"07_new/exercises/{name}.py", "")
    write("07_new/solutions/spoilers.toml", told)
    return write("07_new/exercises/exercises.toml", text).parents[2]


GOOD = '[[exercise]]\nname = "gemm_x"\ntitle = "a"\nkind = "bug"\n'


def test_numbers_come_from_the_order(write):
    root = lesson(
        write,
        GOOD + GOOD.replace("gemm_x", "predict_x").replace("bug", "predict"),
        TOLD + TOLD.replace("gemm_x", "predict_x") + 'answers = { A = "fixed 1" }',
    )
    assert [(one.number, one.name, one.ladder) for one in exercises.everything(root)] == [
        ("07.1", "gemm_x", "gemm"), ("07.2", "predict_x", ""),
    ]  # fmt: skip
    assert {exercises.find(text, root).name for text in ("07.2", "7.2", "predict_x")} == {"predict_x"}
    assert len(exercises.chosen("07", root)) == len(exercises.chosen("07_new", root)) == 2
    with pytest.raises(ExerciseError, match=r"'07\.3' is unknown: there are 07\.1 to 07\.2"):
        exercises.find("07.3", root)


def test_what_the_files_say_fits_together():
    assert len({one.name for one in ALL}) == len(ALL)
    for number in LESSONS:
        told = store.read_toml(catalog.LESSONS / number / "solutions" / "spoilers.toml")
        assert set(told) == {one.name for one in ALL if one.lesson == number}
    for one in ALL:
        assert bool(one.answers) == (one.kind == "predict")
        assert set(one.slips) <= set(one.answers), one.name
    for one in KERNELS:
        assert one.problems()
        assert problems.preset(one.preset, one.ladder)


@pytest.mark.parametrize("lesson", LESSONS)
def test_who_looks_around_among_the_exercises_reads_no_hint_and_no_answer(lesson):
    folder = catalog.LESSONS / lesson
    text = "".join(path.read_text(encoding="utf-8") for path in (folder / "exercises").iterdir() if path.is_file())
    for one in (one for one in ALL if one.lesson == lesson):
        told = [*one.hints, *(f'{name} = "{answer}"' for name, answer in one.answers.items())]
        assert [words for words in told if words in text] == [], one.name
    spoilers = (folder / "solutions" / "spoilers.toml").read_text(encoding="utf-8")
    assert spoilers.startswith("# Hints and answers. To see one hint at a time: python -m common hint NUMBER\n")


def test_a_diff_of_another_text_is_refused():
    diff = "--- a\n+++ b\n@@ -2,3 +2,3 @@\n two\n-three\n+3\n\n@@ -7,2 +7 @@\n-seven\n eight\n"
    text = "one\ntwo\nthree\n\nfive\nsix\nseven\neight\n"
    assert exercises.patched(text, diff) == "one\ntwo\n3\n\nfive\nsix\neight\n"
    with pytest.raises(ValueError, match="line 7: "):
        exercises.patched(text.replace("seven", "7"), diff)


def test_hints_come_one_at_a_time_and_are_remembered(tmp_path):
    one = ALL[0]
    path = tmp_path / "deep" / "state.json"
    given = [exercises.State(path).hint(one) for _ in range(len(one.hints) + 1)]
    assert given == [*enumerate(one.hints, 1), (len(one.hints), one.hints[-1])]
    assert exercises.State(path).hints(one) == len(one.hints)
    assert exercises.State(path).hints(ALL[1]) == 0


def test_a_pass_holds_until_the_file_changes(tmp_path, write):
    state = exercises.State(tmp_path / "state.json")
    one = structs.replace(ALL[0], path=write("gemm_x.py", "x = 1\n"))
    assert not state.passed(one)
    state.remember(one, True)
    assert exercises.State(state.path).passed(one)
    one.path.write_text("x = 1  # the same code\n")
    assert state.passed(one)
    one.path.write_text("x = 2\n")
    assert not state.passed(one)
    state.remember(one, False)
    assert not exercises.State(state.path).passed(one)


def test_a_spoilt_memory_is_named(write):
    with pytest.raises(ExerciseError, match=r"state\.json: not readable .*; delete it"):
        exercises.State(write("state.json", "[1"))


def test_every_limit_can_be_counted_and_said_with_its_reason():
    """Shared memory that is asked for is the exercise itself."""
    for one in ALL:
        assert tasks.limited(one) <= set(tasks.COUNTED)
        assert tasks.limited(one) - {*one.because, *tasks.MEANING, "shared_bytes"} == set(), one.name
        assert set(one.because) <= tasks.limited(one), one.name
