"""Exercises: unsolved ones fail, solutions pass, and each has what a student needs."""

import difflib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import get_args

import made
import pytest
from msgspec import structs
from sampling import some

from common.catalog import catalog, device, exercises, problems, sources, store
from common.catalog.exercises import ExerciseError
from common.check import check
from common.grade import allowed_edits, answers, grade, limits
from common.grade.grade import Evidence
from common.records import records
from common.report import figures, tracewords
from common.trace import trace
from common.trace.bench import TracedBench
from common.trace.lanes import TraceError

pytestmark = [
    pytest.mark.usefixtures("traced"),
    pytest.mark.filterwarnings("ignore:invalid value encountered in scalar:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:overflow encountered in scalar:RuntimeWarning"),
]

ALL = exercises.everything()
KERNELS = [one for one in ALL if one.kind != "predict"]
TRIED = some(KERNELS, 10) + [one for one in ALL if one.kind == "predict"]  # what costs seconds each
EACH = pytest.mark.parametrize("exercise", ALL, ids=lambda one: one.number)
EACH_TRIED = pytest.mark.parametrize("exercise", TRIED, ids=lambda one: one.number)
LESSONS = sorted({one.lesson for one in ALL})
WRONG = store.read_toml(Path(__file__).parent / "wrong_answers.toml")["wrong"]
WRONG_TRIED = some(range(len(WRONG)), 14)

# Steps whose plans hold more than operands: a workspace, and a kernel of prepare.
STEPS = ("conv2d_unroll_gemm", "gemm_rectangular_tiles")
TINY = {"gemm": "M=33 N=35 K=17", "conv2d": "N=2 C=2 H=20 W=18 K=3 R=3 S=2"}


def wrong_file(folder, number):
    """A file with the wrong answer of this number: the solution, changed."""
    one = exercises.find(WRONG[number]["exercise"])
    text = one.solution.read_text()
    for old, new in WRONG[number]["change"]:
        assert old in text, f"{one.name}: {old}"
        text = text.replace(old, new)
    path = folder / str(number) / one.path.name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return one, path


def counted_limits(exercise):
    return sorted((limits.limited(exercise) | {*limits.EVERYWHERE}) - set(limits.TOUCHED))


@pytest.fixture(scope="module")
def wrong_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("wrong")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, wrong_folder):
    """What is counted in each file that must compile, by path: one process of real Numba CUDA for all."""
    folder = tmp_path_factory.mktemp("plans")
    files = []
    for one in (one for one in TRIED if one.ladder):
        names = counted_limits(one)
        problem = problems.preset(one.preset) if set(names) - {*limits.EVERYWHERE} else one.problems()[0]
        files.append([str(one.solution), one.ladder, problem.shape(), names])
        if one.kind != "write":  # unsolved, it may be right
            files.append([str(one.path), one.ladder, problem.shape(), names])
    for number in WRONG_TRIED:
        wrong = WRONG[number]
        one, path = wrong_file(wrong_folder, number)
        if one.ladder and "limit" in wrong["kind"]:
            names = counted_limits(one)
            problem = problems.preset(one.preset) if set(names) - {*limits.EVERYWHERE} else one.problems()[0]
            files.append([str(path), one.ladder, problem.shape(), names])
    for name in STEPS:
        step = catalog.find(name)
        files.append(
            [str(step.path), step.ladder, problems.parse_shape(step.ladder, TINY[step.ladder]).shape(), False]
        )
    task = folder / "task.json"
    task.write_text(json.dumps({"folder": str(folder), "files": files}))
    paths = os.pathsep.join([str(catalog.ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(catalog.ROOT / "tests" / "counting.py"), str(task)],
        cwd=catalog.ROOT, env={**device.environment(False), "PYTHONPATH": paths},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def facts():
    """Expected values, with what they need counted once."""
    found = answers.Facts()
    found.prepare([text for one in ALL for text in one.answers.values()])
    return found


def unsound(module, problem, seen=None):
    seen = seen or trace.run(module, problem, every=True)
    return [check.Finding("unsound", tracewords.fault_sentence(asdict(fault))) for fault in seen.faults]


def evidence(exercise, path, recorded):
    """What a check in this process finds, and what was counted; the same as a grade goes by."""
    found = Evidence()
    module = catalog.load(path, exercise.ladder)
    for problem in exercise.problems():
        tracer = trace.Tracer()
        try:
            bench = TracedBench(module, problem, tracer)
            verdict = check.check_bench(bench, 3, 1, exercise.precision)
        except TraceError as error:
            found.findings.append(check.Finding("crashed", str(error)))
            return found
        found.findings += [check.Finding("unsound", tracewords.fault_sentence(asdict(f))) for f in tracer.faults()]
        found.findings += verdict.findings
        if found.findings:
            return found
    seen = trace.run(module, exercise.problems()[0], every=True)
    found.findings += unsound(module, exercise.problems()[0], seen)
    found.figures |= limits.touched(seen)
    if str(path) in recorded:
        if recorded[str(path)]["figures"] is None and counted_limits(exercise):
            pytest.skip("ptxas or nvdisasm is not installed: no machine code to look at")
        found.figures |= recorded[str(path)]["figures"] or {}
        found.notes += [tuple(note) for note in recorded[str(path)]["notes"]]
    return found


def verdict(exercise, path, recorded, facts):
    if exercise.kind == "predict":
        return grade.predicted(exercise, path, facts)[0]
    return grade.judged(evidence(exercise, path, recorded), exercise)


@EACH_TRIED
def test_unsolved_fails(exercise, recorded, facts):
    findings = verdict(exercise, exercise.path, recorded, facts)
    assert findings
    assert not any(finding.kind in ("unusable", "unjudged") for finding in findings), findings


@EACH_TRIED
def test_the_solution_passes(exercise, recorded, facts):
    assert verdict(exercise, exercise.solution, recorded, facts) == []


@pytest.mark.parametrize("number", WRONG_TRIED, ids=lambda number: f"{WRONG[number]['exercise']}-{number}")
def test_a_plausible_wrong_answer_is_refused_with_its_reason(number, wrong_folder, recorded, facts):
    one, path = wrong_file(wrong_folder, number)
    assert allowed_edits.departure(one, path.read_text()) is None
    findings = verdict(one, path, recorded, facts)
    expected = WRONG[number]
    said = [f"{finding.kind}: {finding.message}" for finding in findings]
    assert any(
        finding.kind in expected["kind"].split("|") and re.search(expected["says"], finding.message)
        for finding in findings
    ), said


def test_every_newer_exercise_has_a_wrong_answer():
    """Those that were there before the collection are tried unsolved alone."""
    tried = {wrong["exercise"] for wrong in WRONG}
    assert {one.name for one in ALL if not one.was and one.name not in tried} == set()


@pytest.mark.parametrize("exercise", [one for one in TRIED if one.ladder], ids=lambda one: one.number)
def test_a_solution_is_sound(exercise):
    module = catalog.load(exercise.solution, exercise.ladder)
    for problem in exercise.problems():
        assert trace.run(module, problem, every=True).faults == []


# --- structure ---


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_has_exercises_of_every_kind(lesson):
    here = [one for one in ALL if one.lesson == lesson]
    assert len(here) >= 4
    assert {one.kind for one in here} == set(get_args(exercises.Kind))
    files = {
        path.name for part in ("exercises", "solutions") for path in (catalog.LESSONS / lesson / part).glob("*.py")
    }
    assert files == {one.path.name for one in here}


def test_there_are_forty_and_one_from_a_blank_file_in_each_lesson():
    assert len(ALL) >= 40
    blank = [one for one in KERNELS if any("def launch(" in line for line in exercises.blank(one.path))]
    assert [one.lesson for one in blank] == LESSONS


def test_every_lesson_has_exercises():
    assert catalog.lessons() == LESSONS


@EACH
def test_an_exercise_has_what_a_student_needs(exercise):
    assert len(exercise.hints) == 3
    assert len(set(exercise.hints)) == len(exercise.hints)
    for path in (exercise.path, exercise.solution):
        text = path.read_text()
        said = {"bug": "find the bug"}.get(exercise.kind, exercise.kind)
        assert text.startswith(f'"""Exercise {exercise.number}, {said}: ')
        assert f"\nGrade: python -m common grade {exercise.number}\n" in text
        asked = f"at least {exercise.floor:g} percent of the floor's rate on {exercise.preset}.\nGrade:"
        assert (asked in text) == bool(exercise.floor)
        assert len(text.splitlines()) <= 100
    step_names = {step.name for step in (*catalog.steps(), *catalog.experiments())}
    assert exercise.name not in step_names


@pytest.mark.parametrize("exercise", [one for one in ALL if one.kind == "write"], ids=lambda one: one.number)
def test_a_blank_is_marked_and_of_the_stated_size(exercise):
    marker = re.compile(rf" *{exercises.BLANK}.*?\n *{exercises.END}\n", re.DOTALL)
    unsolved, solved = exercise.path.read_text(), exercise.solution.read_text()
    assert marker.sub("", unsolved) == marker.sub("", solved)
    blank = rf" *{exercises.BLANK}: (\d+) (lines?)\n(.*?)\n *{exercises.END}$"
    stated = re.findall(blank, solved, re.DOTALL | re.MULTILINE)
    for count, word, filled in stated:
        code = [line for line in filled.splitlines() if line.strip() and not line.strip().startswith("#")]
        assert (len(code), word) == (int(count), "line" if count == "1" else "lines")
    assert len(stated) == solved.count(exercises.BLANK)
    assert len(exercises.blank(exercise.solution)) == sum(int(count) for count, _, _ in stated) == exercise.lines
    placeholders = [line.strip() for line in exercises.blank(exercise.path)]
    assert all(line == "pass" or line.endswith("= 0") or line.startswith("def launch(") for line in placeholders)


@pytest.mark.parametrize("exercise", [one for one in ALL if one.kind == "bug"], ids=lambda one: one.number)
def test_a_bug_is_as_small_as_stated(exercise):
    old, new = (path.read_text().splitlines() for path in (exercise.path, exercise.solution))
    changed = 0
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        changed += max(i2 - i1, j2 - j1) if tag != "equal" else 0
    assert changed == exercise.lines
    said = re.findall(r"(\w+) (?:at most )?(one|\d+) lines?\b", " ".join("\n".join(new).split('"""')[1].split()))
    for what, number in said:  # a line that is moved goes in one place and comes in another
        assert int(number.replace("one", "1")) * (2 if what == "Move" else 1) == changed


@pytest.mark.parametrize("exercise", KERNELS, ids=lambda one: one.number)
def test_exercise_and_solution_have_one_frame(exercise):
    for path in (exercise.path, exercise.solution):
        text = path.read_text()
        assert allowed_edits.departure(exercise, text) is None
        assert (
            allowed_edits.departure(exercise, text.replace('"""Ex', '"""Another ex').replace("    # store", ""))
            is None
        )


@pytest.mark.parametrize("exercise", [one for one in KERNELS if one.kind != "tune"], ids=lambda one: one.number)
def test_another_right_kernel_is_no_answer(exercise):
    first = next(step for step in catalog.steps() if step.ladder == exercise.ladder)
    departure = allowed_edits.departure(exercise, first.path.read_text())
    if exercise.name == "conv2d_sideways":  # the step is what the exercise was made from
        assert departure is None
    else:
        said = "to write" if exercise.kind == "write" else r"lines are other|imports [\w.]+, which"
        assert re.search(said, departure)


def test_a_frame_is_kept_by_what_is_only_said_another_way():
    one = exercises.find("gemm_two_tiles")
    text = one.solution.read_text()
    other = text.replace("from numba import cuda, float32", "import math\nfrom numba import cuda, float32, uint32")
    assert allowed_edits.departure(one, other.replace("(0, K, TILE):", "( 0 , K, TILE ):  # tiles")) is None
    assert "`for k0 in range(0, K, 2 * TILE):` is not as given" in allowed_edits.departure(
        one, text.replace("K, TILE):", "K, 2 * TILE):")
    )
    unguarded = text.replace("c[m, n] = acc", "").replace("    if m < M and n < N:\n", "")
    assert "`if m < M and n < N:` is missing" in allowed_edits.departure(one, unguarded)
    named = allowed_edits.departure(one, text.replace("\n@cuda.jit", "\nTILE_SHAPE = (16, 17)\n\n@cuda.jit", 1))
    assert "`TILE_SHAPE = (16, 17)` is not as given" in named
    assert "is yours to write, names for constants and shapes, too" in named
    assert "are not as given" in allowed_edits.departure(one, text.replace("# <<<", ""))
    assert allowed_edits.departure(one, text.replace("def launch(", "def launch(:")) is None


@EACH
def test_a_page_names_it_once(exercise):
    """At the end of its section, the harder ones in the table at the end."""
    pages = sorted((catalog.LESSONS / exercise.lesson).glob("*.md"))
    text = "".join(page.read_text() for page in pages)
    assert text.count(f"**{exercise.number}** [`{exercise.name}`](exercises/{exercise.name}.py)") == 1
    assert text.count(f"<!-- exercise: {exercise.name} -->\n") == (not exercise.hard)
    assert bool(exercise.section) == (not exercise.hard)


def test_a_section_is_told_apart_from_others_of_its_heading():
    assert exercises.find("02.7").section == "5. `conv2d_shared_tile`: the halo, Read why"
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
        TOLD + TOLD.replace("gemm_x", "predict_x") + 'answers = { A = "turns 1" }',
    )
    assert [(one.number, one.name, one.ladder) for one in exercises.everything(root)] == [
        ("07.1", "gemm_x", "gemm"), ("07.2", "predict_x", ""),
    ]  # fmt: skip
    assert exercises.find("07.2", root).name == exercises.find("predict_x", root).name
    assert len(exercises.chosen("07", root)) == len(exercises.chosen("07_new", root)) == 2
    with pytest.raises(ExerciseError, match=r"'07\.3' is unknown: there are 07\.1, 07\.2"):
        exercises.find("07.3", root)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('title = "a"', "", "title must be text that is not empty, is missing"),
        ('"bug"', '"fix"', "kind must be one of write, bug, predict, tune, is 'fix'"),
        ('title = "a"', 'title = "a"\nlimit = 1', "limit is unknown"),
        ('title = "a"', 'title = "a"\nhints = ["b"]', "hints is unknown"),  # not where everybody looks
        ("gemm_x", "gemm_y", r"gemm_y\.py is missing"),
        ("gemm_x", "predict_x", "must start with gemm, conv2d, conv3d"),
        ('"bug"', '"predict"', "answers is missing"),
        ('title = "a"', "title = ", "Invalid value"),
    ],
)
def test_a_wrong_entry_is_named_with_its_place(write, old, new, says):
    with pytest.raises(ExerciseError, match=rf"07_new/exercises/exercises\.toml.*{says}"):
        exercises.everything(lesson(write, GOOD.replace(old, new), TOLD.replace(old, new)))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (TOLD, "", "gemm_x: hints must be a list that is not empty, is missing"),
        ('hints = ["b"]', "hints = []", "gemm_x: hints must be a list that is not empty, is an empty list"),
        ('hints = ["b"]', 'hints = ["b"]\nkind = "bug"', "gemm_x: kind is unknown"),
        (TOLD, TOLD + '[gemm_y]\nhints = ["b"]', "no exercise is called gemm_y"),
        ('hints = ["b"]', 'hints = ["b"]\nslips = { A = { "1" = "" } }', "A.*1.* must be text that is not empty"),
        ("[gemm_x]", "gemm_x = 1", ": "),
        ("[gemm_x]", "[gemm_x", "Expected"),
    ],
)
def test_wrong_hints_are_named_with_their_place(write, old, new, says):
    with pytest.raises(ExerciseError, match=rf"07_new/solutions/spoilers\.toml.*{says}"):
        exercises.everything(lesson(write, GOOD, TOLD.replace(old, new)))


def test_a_slip_belongs_to_an_answer(write):
    told = TOLD.replace("gemm_x", "predict_x") + 'answers = { A = "turns 1" }\n[predict_x.slips.B]\n2 = "no"\n'
    text = GOOD.replace("gemm_x", "predict_x").replace("bug", "predict")
    with pytest.raises(ExerciseError, match=r"exercises\.toml, exercise 1: slips: B has no answer"):
        exercises.everything(lesson(write, text, told))


def test_hints_that_are_missing_are_missed(write):
    root = lesson(write, GOOD)
    (root / "07_new" / "solutions" / "spoilers.toml").unlink()
    with pytest.raises(ExerciseError, match=r"07_new/solutions/spoilers\.toml, gemm_x: hints must be"):
        exercises.everything(root)


@pytest.mark.parametrize("lesson", LESSONS)
def test_who_looks_around_among_the_exercises_reads_no_hint_and_no_answer(lesson):
    folder = catalog.LESSONS / lesson
    text = "".join(path.read_text(encoding="utf-8") for path in (folder / "exercises").iterdir() if path.is_file())
    for one in (one for one in ALL if one.lesson == lesson):
        told = [*one.hints, *(f'{name} = "{answer}"' for name, answer in one.answers.items())]
        assert [words for words in told if words in text] == [], one.name
    spoilers = (folder / "solutions" / "spoilers.toml").read_text(encoding="utf-8")
    assert spoilers.startswith("# Hints and answers. To see one hint at a time: python -m common hint NUMBER\n")


def test_shapes_and_presets_are_checked(write):
    for extra, says in (('shapes = ["M=0 N=1 K=1"]', "M=0: must be"), ('preset = "unet3d"', "is a conv3d problem")):
        with pytest.raises(ValueError, match=says):
            exercises.everything(lesson(write, GOOD + extra))


def test_hints_come_one_at_a_time_and_are_remembered(tmp_path):
    one = ALL[0]
    path = tmp_path / "deep" / "state.json"
    given = [exercises.State(path).hint(one) for _ in range(len(one.hints) + 1)]
    assert given == [*enumerate(one.hints, 1), (len(one.hints), one.hints[-1])]
    assert exercises.State(path).hints(one) == len(one.hints)
    assert exercises.State(path).hints(ALL[1]) == 0


def test_what_was_kept_by_number_still_counts(write):
    """Progress was kept by numbers once, and numbers change where an exercise is put between two others."""
    one = structs.replace(next(one for one in ALL if one.was), path=write("gemm_x.py", "x = 1\n"), number="99.9")
    state = exercises.State(write("state.json", json.dumps({
        "hints": {one.was: 2}, "passed": {one.was: sources.source_hash(one.path)},
    })))  # fmt: skip
    assert (state.hints(one), state.passed(one)) == (2, True)
    assert state.hint(one) == (3, one.hints[2])
    assert (state.hints(one), exercises.State(state.path).hints(structs.replace(one, was="", number="1.1"))) == (3, 3)
    state.remember(one, False)
    assert not exercises.State(state.path).passed(one)
    assert not exercises.State(state.path).hints(structs.replace(one, name="gemm_y", was=""))


def test_no_two_exercises_had_one_number():
    had = [one.was for one in ALL if one.was]
    assert len(set(had)) == len(had)


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


# --- plans, counted in the same process ---


def test_what_is_recorded_fits_the_compiled_kernels(recorded):
    for path, found in recorded.items():
        assert found["notes"] == [], path
        for parameters, arguments in found["parameters"]:
            assert parameters == arguments > 0, path


def test_plans_hold_workspaces_and_what_prepare_does(recorded):
    found = {name: recorded[str(catalog.find(name).path)] for name in STEPS}
    assert found["conv2d_unroll_gemm"]["roles"] == ["x", "weight", "y", "workspace"]
    assert found["conv2d_unroll_gemm"]["kernels"] == [[], ["unroll_windows", "multiply_columns"]]
    assert found["gemm_rectangular_tiles"]["roles"] == ["x", "weight", "y", "prepared"]
    assert found["gemm_rectangular_tiles"]["kernels"] == [["transpose"], ["gemm_rectangular_tiles"]]
    ((symbol, start),) = found["gemm_rectangular_tiles"]["linked"]
    assert "transpose" in symbol
    assert start == "\x7fELF"  # it links without a GPU


# --- what is counted ---


@pytest.mark.parametrize(("stride", "count"), [(0, 1), (1, 1), (2, 2), (16, 16), (32, 32), (33, 1), (36, 4)])
def test_turns_of_shared_memory(facts, stride, count):
    assert facts.expected(f"turns {stride}").value == count


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("lanes turns l%8*33+l//8", 4), ("lanes turns 4*l 4", 4), ("lanes turns 4*(l//2) 4", 2),
        ("lanes sectors l+1", 5), ("lanes sectors 8*l 4", 32), ("fits 128 145 0", 12), ("fixed 7//2+0.5", 3.5),
        ("magic multiplier 28 16", 2341), ("magic first_wrong 28 12", 223), ("magic least_shift 28 784", 15),
        ("magic bits 28 100352", 33), ("worked zeros 0", 6), ("worked offset 22 14", 152),
    ],
)  # fmt: skip
def test_what_is_worked_out(facts, text, value):
    assert facts.expected(text).value == value


@pytest.mark.parametrize("divisor", [1, 3, 7, 28])
def test_the_least_shift_divides_and_the_one_below_does_not(divisor):
    shift, limit = answers.magic(["least_shift", str(divisor), "500"]), 500
    for one, right in ((shift, True), (shift - 1, False)):
        if one >= 0:
            multiplier = answers.magic(["multiplier", str(divisor), str(one)])
            assert all(n * multiplier >> one == n // divisor for n in range(limit)) == right


def test_the_costliest_access_counts():
    found = {
        "kernels": [
            {"accesses": [{"space": "global", "per_request": 4.0}, {"space": "shared", "per_request": 2.0}]},
            {"accesses": [{"space": "global", "per_request": 17.5}, {"space": "local", "per_request": 32.0}]},
        ]
    }
    assert trace.worst(found) == {"sectors": 17.5, "turns": 2.0}
    assert trace.worst({"kernels": [{"accesses": []}]}) == {"sectors": 0.0, "turns": 0.0}


# --- answers ---


def test_answers_are_read_and_never_run(write):
    path = write("predict_x.py", '"""Text."""\nA = 2 * 3\nB = -A**2 + 7 // 2\nC = None\nD = A % 4 / 8\n')
    assert answers.read(path) == {"A": 6, "B": -33, "C": None, "D": 0.25}
    assert answers.read(write("predict_y.py", "A: int = 2\nB: float = A / 4\n")) == {"A": 2, "B": 0.5}


def test_a_name_that_nobody_asked_for_is_told_where_one_is_missing(facts):
    one = exercises.find("predict_requests")
    (finding,), _ = grade.predicted(one, one.path, facts, "Shifted = 5\nHELP = 2\n")
    assert finding.message.startswith("no value yet for SHIFTED, ")
    assert finding.message.endswith("; not asked for: Shifted, HELP")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "A = 1\nB = open('x')\n",
            ":2: `B = open('x')`: cannot be worked out: must be NAME = number of at most 1e+30",
        ),
        ("import os\n", ":1: `import os`: must be NAME = number"),
        ("A = B\n", ":1: `A = B`: B has no value yet"),
        ("A = None\nB = A + 1\n", ":2: `B = A + 1`: A has no value yet"),
        ("A = 1 / 0\n", ":1: `A = 1 / 0`: cannot be worked out"),
        ("A = 9**9**9\n", ":1: `A = 9**9**9`: cannot be worked out"),
        ("A = 1e400\n", ":1: `A = 1e400`: cannot be worked out: must be NAME = number of at most 1e+30"),
        ("A = float('nan')\n", ":1: `A = float('nan')`: cannot be worked out"),
        ("A = 'x' * 3\n", ":1: `A = 'x' * 3`: cannot be worked out"),
        ("A = True\n", ":1: `A = True`: cannot be worked out"),
        ("A, B = 1, 2\n", ":1: `A, B = 1, 2`: must be NAME = number"),
        ("A: int\n", ":1: `A: int`: must be NAME = number"),
        ("B = 1\nA = 8 sectors\n", ":2: `A = 8 sectors`: not readable as Python: must be NAME = number"),
        ("A = (\n", ":1: `A = (`: not readable as Python"),
        ("A = " + 200 * "9" + "x\n", f"`A = {73 * '9'}...`"),
        ("A = " + "-" * 4000 + "1\n", "predict_x"),
    ],
)
def test_other_answers_are_refused_with_their_line(write, text, says):
    with pytest.raises(answers.AnswerError, match=re.escape(says)):
        answers.read(write("predict_x.py", text))


def test_an_answer_is_exact_for_counts_and_near_for_the_rest(facts):
    blocks = facts.expected("blocks gemm_naive gemm-4096")
    assert blocks.compare(65536) == ""
    assert (blocks.compare(65535), blocks.compare(65537)) == ("too low", "too high")
    work = facts.expected("gflop gemm-4096")
    assert work.compare(137) == ""
    assert work.compare(130) == "too low"
    assert (work.reason, facts.expected("fixed 2*3").reason) == (work.source, "")  # "worked out" is no news
    ratio = facts.expected("ratio ece408-layer2 conv2d_naive conv2d_unrolled within 33")
    assert ratio.compare(0.7 * ratio.value) == ""
    assert ratio.compare(1.4 * ratio.value) == "too high"
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
    expected = answers.Facts().expected(text)
    assert (expected.value, expected.shown) == (sum(code.values()) / code["FFMA"], shown)
    assert [expected.compare(answer) for answer in right] == [""] * len(right)
    for answer in wrong:
        assert expected.compare(answer) == ("too low" if answer < expected.value else "too high")


def test_an_answer_copied_from_a_table_is_right(facts):
    found = next(one for one in records.all_records() if one.slug == records.REFERENCE_GPU)
    for preset in problems.PRESETS:
        for name, row in found.rows(preset).items():
            columns = figures.columns(row.timing, found.derive(preset, row))
            for kind, title in (("ms", "ms"), ("share", "% of floor")):
                expected = facts.expected(f"{kind} {preset} {name.replace(' ', '-')}")
                assert expected.compare(float(columns[title].text)) == ""
                assert expected.compare(columns[title].value) == ""


@pytest.mark.parametrize("text", ["nothing gemm_naive", "ratio gemm-4096 gemm_naive nobody", "per_fma nobody"])
def test_an_expected_value_that_makes_no_sense_says_so(facts, text):
    with pytest.raises(answers.AnswerError):
        facts.expected(text)


def test_a_wrong_prediction_says_which_way_and_does_not_tell(write, facts):
    one = next(one for one in ALL if one.name == "predict_worked_example")
    text = (
        one.solution.read_text()
        .replace("ZEROS_OF_0 = 2 * 3", "ZEROS_OF_0 = 7")
        .replace("GEMM_K = 3 * 2 * 3", "GEMM_K = None")
    )
    findings, notes = grade.predicted(one, write("predict_worked_example.py", text), facts)
    said = [f"{finding.kind}: {finding.message}" for finding in findings]
    assert said == [
        "unanswered: no value yet for GEMM_K",
        "wrong: ZEROS_OF_0 = 7 is too high",
    ]
    assert len(notes) == len(one.answers) - 2


def test_a_known_slip_is_one_is_met_and_does_not_tell(facts):
    """Each is a wrong answer, no other hides it, and its words do not hold the right one."""
    slips = [(one, name, text) for one in ALL for name, known in one.slips.items() for text in known]
    assert len(slips) > 100
    for one, name, text in slips:
        expected, wrong = facts.expected(one.answers[name]), answers.evaluated(text)
        said = one.slips[name][text]
        assert expected.compare(wrong), (one.name, name, text)
        assert expected.slip(wrong, one.slips[name]) == said, (one.name, name, text)
        for right in {f"{expected.told:g}", f"{expected.told:,g}"}:
            assert not re.search(rf"(?<![\d.])(?<!\d,){re.escape(right)}(?![\d.]|,\d)", said), (one.name, name, said)


def test_a_slip_is_met_as_nearly_as_the_answer():
    slips = {"2*50": "halves", "30": "no", "4/3": "thirds"}
    count, figure, measured = (answers.Expected(40, within, "") for within in (0, 1, 20))
    assert [count.slip(answer, slips) for answer in (100, 100.5, 101, 4 / 3)] == ["halves", "", "", "thirds"]
    assert [figure.slip(answer, slips) for answer in (100.5, 102)] == ["halves", ""]
    assert [measured.slip(answer, slips) for answer in (118, 122)] == ["halves", ""]


def test_exercises_are_read_anew_only_when_their_files_were_written(tmp_path, monkeypatch):
    lesson = exercises.everything()[0].lesson
    root = tmp_path / "lessons"
    for name in ("exercises", "solutions"):
        shutil.copytree(catalog.LESSONS / lesson / name, root / lesson / name)
    monkeypatch.setattr(store, "_CLOCK_NS", 0)  # as if the files were old
    read, reads = store.read_toml, []
    monkeypatch.setattr(store, "read_toml", lambda path: reads.append(path.name) or read(path))
    found = exercises.everything(root)
    assert found == exercises.everything(root) != []
    assert sorted(reads) == ["exercises.toml", "spoilers.toml"]
    source = root / lesson / "exercises" / "exercises.toml"
    source.write_text(source.read_text(encoding="utf-8").replace(found[0].title, "Another title"), encoding="utf-8")
    assert exercises.everything(root)[0].title == "Another title"
