"""Verdicts on kernels: solutions pass, mistakes and cheats do not; folders of files, their report, the command."""

import html
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import texts
from msgspec import structs
from sampling import one_of_each, some_days

from common.catalog import catalog, exercises, problems, store
from common.check import check
from common.commands import edits
from common.edit import history
from common.grade import grade, tasks
from common.grade.grade import Grade, Grader, Submission
from common.grade.tasks import Count, Counted
from common.machine_code import codegen, summaries
from common.records import records
from common.run.messages import StepResult
from common.trace import trace

ONE = "gemm_one_dimension"
LAUNCH = "def launch(a, b, c):\n"
KERNELS = [one for one in exercises.everything() if one.kind != "predict"]
LONG = ("07_hopper", "08_training")  # exercises of which one takes ten seconds
TRIED = [
    *one_of_each([one for one in KERNELS if one.lesson not in LONG], lambda _: "an exercise"),
    *(pytest.param(one, marks=some_days(4))
      for one in one_of_each([one for one in KERNELS if one.lesson in LONG], lambda _: "a long one")),
]  # fmt: skip
WRONG = store.read_toml(Path(__file__).parent / "wrong_answers.toml")["wrong"]
SHORT = {one.name for one in KERNELS if one.lesson not in LONG}
WRONG_TRIED = [
    number if WRONG[number]["exercise"] in SHORT else pytest.param(number, marks=some_days(5))
    for number in one_of_each(range(len(WRONG)), lambda number: WRONG[number]["exercise"] in SHORT)
]


def solved(name=ONE):
    return exercises.find(name).solution


def graded(write, name, text, machine=(None, None), seconds=60.0):
    return Grader(*machine, seconds).grade(Submission(write(f"in/{name}.py", text)))


def require(verdict, kind, says):
    """The first reason is of this kind, and says this."""
    first = verdict.findings[0] if verdict.findings else check.Finding("", "it passed")
    assert (first.kind, bool(re.search(says, first.message))) == (kind, True), verdict.reasons


# --- exercises ---


@pytest.mark.parametrize("exercise", TRIED, ids=lambda one: one.number)
def test_a_solution_passes_and_an_unsolved_file_does_not(write, exercise):
    verdict = graded(write, exercise.name, solved(exercise.name))
    assert verdict.passed, verdict.reasons
    assert verdict.notes[-1] == "the same code as the solution, which is fine"
    unsolved = graded(write, exercise.name, exercise.path.read_text(encoding="utf-8"))
    assert not unsolved.passed
    assert not {one.kind for one in unsolved.findings} & {"unusable", "unjudged", "frame", "language"}


@pytest.mark.parametrize("number", WRONG_TRIED, ids=lambda number: f"{WRONG[number]['exercise']}-{number}")
def test_a_plausible_wrong_answer_is_refused_with_its_reason(write, number):
    wrong, text = WRONG[number], solved(WRONG[number]["exercise"])
    for old, new in wrong["change"]:
        assert old in text
        text = text.replace(old, new)
    verdict = graded(write, wrong["exercise"], text)
    kinds = wrong["kind"].split("|")
    assert any(one.kind in kinds and re.search(wrong["says"], one.message) for one in verdict.findings), (
        verdict.reasons
    )
    assert not {one.kind for one in verdict.findings} & {"frame", "language"}


def test_exercises_have_a_wrong_answer():
    """Predictions have their slips."""
    assert {one.name for one in KERNELS} <= {wrong["exercise"] for wrong in WRONG}


def test_a_blank_that_is_left_is_told_first_with_its_line(write):
    text = exercises.find("conv2d_sliding_row").path.read_text(encoding="utf-8")
    for blank in (1, 2):
        line = [number for number, one in enumerate(text.split("\n"), 1) if exercises.BLANK in one][blank - 1]
        require(
            graded(write, "conv2d_sliding_row", text), "unsolved", f"^line {line}: between .* nothing is written yet"
        )
        text = text.replace("                    pass\n", "                    acc[0] += float32(1.0)\n")


@some_days(5)
def test_what_is_read_too_often_is_told_of_tiles_only_where_there_are_any(write):
    text = solved("conv2d_sliding_row").replace("* tap", "* filt[k, c, r, s]")
    verdict = graded(write, "conv2d_sliding_row", text)
    require(verdict, "reads", "values of filt")
    assert not re.search("tile|shared memory", verdict.reasons[0])


def test_a_verdict_tells_what_was_reached(write):
    verdict = graded(write, ONE, solved())
    assert verdict.notes == [
        "4.333 sectors for each request to global memory at line 33 (`c[m, n] = acc`), at most 5 allowed",
        "32768 blocks, at most 32768 allowed",
        "21,420 values read from global memory at M=17 N=35 K=18, at most 32,130 allowed",
        "the same code as the solution, which is fine",
    ]


def test_a_kernel_is_graded_on_the_shipped_helpers(write, monkeypatch):
    monkeypatch.setattr(grade.sources, "edited_helpers", lambda path: [catalog.LESSONS / "toolkit" / "memory.py"])
    monkeypatch.setattr(grade.sources, "shipped", lambda path: b"raise RuntimeError('as shipped')\n")
    verdict = graded(write, "gemm_vector_rows", solved("gemm_vector_rows"))
    assert "as shipped" in verdict.reasons[0]


@some_days(5)
def test_a_block_whose_threads_cannot_have_the_registers_is_told_so(write):
    text = solved("hgemm_larger_pipeline").replace("192, 192, 64", "192, 256, 64")
    verdict = graded(write, "hgemm_larger_pipeline", text)
    require(verdict, "uncompiled", "needs at least 154 registers, and can have 128")


@some_days(1)
def test_reads_guarded_one_by_one_are_as_right_as_a_thread_that_is_guarded(write):
    """Threads beyond one edge read along the other: at edges more is read, and no less right."""
    text = solved("gemm_two_by_two")
    for old, new in (
        ("    if m0 < M and n0 < N:\n        acc00", "    if True:\n        acc00"),
        ("a[m0, k], ", "a[m0, k] if m0 < M else float32(0.0), "),
        ("b[k, n0], ", "b[k, n0] if n0 < N else float32(0.0), "),
        ("        c[m0, n0] = acc00\n", "        if m0 < M and n0 < N:\n            c[m0, n0] = acc00\n"),
        ("if n1 < N:\n", "if m0 < M and n1 < N:\n"),
        ("if m1 < M:\n", "if m1 < M and n0 < N:\n"),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    verdict = graded(write, "gemm_two_by_two", text)
    assert verdict.passed, verdict.reasons


# --- cheats ---

TEXTS = texts.of("grade")
TOOLS = TEXTS["cheat"]
# The body of launch, and the first reason not to pass.
HOST = "in launch, where only kernels compute"
CHEATS = {
    "nothing": ("    pass", "unwritten", "does launch start the kernel"),
    "numpy": ("    c.copy_to_device(a.copy_to_host() @ b.copy_to_host())", "language", f"`a.copy_to_host` {HOST}"),
    "numpy_behind": ("    np.asarray(c)[:] = np.asarray(a) @ np.asarray(b)", "language", f"`np.asarray` {HOST}"),
    "host_array": ("    copy[grid(c)](cuda.to_device(a), c)", "language", f"`cuda.to_device` {HOST}"),
    "element": ("    product[grid(c)](a, b, c)\n    c[0, 0] = a[0, 0]", "language", rf"`c\[0, 0\]` {HOST}"),
    "another_stream": ("    product[(*grid(c), cuda.stream())](a, b, c)", "crashed", "work on another stream"),
    "numpy_in_a_kernel": ("    in_python[1, 1](a, b, c)", "crashed", "does not compile|np.array"),
    "memory": ("    bytearray(1 << 36)", "crashed", "more memory than there is"),
    "exit": ("    raise SystemExit(0)", "crashed", "SystemExit"),
    "torch": ("    import torch", "language", "import of torch"),
    "program": ("    exec('c[:] = 1')", "language", "`exec`"),
}  # fmt: skip


@pytest.fixture(scope="module")
def cheats(tmp_path_factory):
    """The verdicts on all of them, by name."""
    folder = tmp_path_factory.mktemp("cheats")
    files = []
    for name, (body, _, _) in CHEATS.items():
        path = folder / name / f"{ONE}.py"
        path.parent.mkdir()
        path.write_text(TOOLS + body + "\n", encoding="utf-8")
        files.append(Submission(path, name))
    found = Grader().all(files, 2)
    return {verdict.student: verdict for verdict in found}


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_is_called_what_it_is(cheats, name):
    require(cheats[name], *CHEATS[name][1:])
    assert cheats[name].findings[-1].kind == "frame"


def test_an_endless_launch_is_ended_and_its_line_told(write):
    verdict = graded(write, ONE, TOOLS + "    while True:\n        pass\n", seconds=1.0)
    require(verdict, "timed_out", rf"an endless loop.* in {ONE}\.py:\d+: while True:")


@pytest.mark.parametrize(
    ("name", "old", "new", "kind", "says"),
    one_of_each([
        ("gemm_grid_stride", "range(K)", "range(K if K == 18 or K == 35 else 0)", "wrong", "a shape that was drawn"),
        ("gemm_tree_sum", "        cuda.sync", "        if K > 35:\n            cuda.sync", "unsound",
         "race.*a shape that was drawn"),
        ("gemm_double", LAUNCH, f"{LAUNCH}    if a.shape[1] not in (18, 35):\n        raise ValueError('no')\n",
         "refused", "at M=.*no"),
    ], lambda _: "a mistake"),
)  # fmt: skip
def test_what_is_right_at_the_shapes_of_the_exercise_alone_does_not_pass(write, name, old, new, kind, says):
    one = exercises.find(name)
    text = one.solution
    assert text.count(old) == 1
    require(graded(write, name, text.replace(old, new)), kind, says)


@some_days(5)
def test_a_tile_that_is_staged_for_show_is_none(write):
    text = solved("gemm_two_tiles")
    staged = "acc += a[m, k0 + k] * b_t[n, k0 + k] if m < M and n < N and k0 + k < K else float32(0.0)"
    text, count = re.subn(r"acc \+= a_tile\[.*", staged, text)
    assert count == 1
    says = "values of a are read .* solved needs 2,550.* staged in shared memory must be what is multiplied"
    require(graded(write, "gemm_two_tiles", text), "reads", says)


def test_what_is_unsound_is_named_before_the_values_that_come_of_it(write):
    text, stored = solved("gemm_tree_sum"), "    part[ty, tx] = acc\n"
    verdict = graded(write, "gemm_tree_sum", text.replace(stored, f"    if tx:\n    {stored}"))
    require(verdict, "unsound", r"uninitialised read: part.*line \d+")
    assert {one.kind for one in verdict.findings[1:]} & {"wrong", "nan", "unstable"}


def test_of_a_wait_that_never_ends_is_not_told_what_follows(write):
    text = exercises.find("hgemm_wrong_box").path.read_text(encoding="utf-8")
    (reason,) = graded(write, "hgemm_wrong_box", text).reasons
    assert reason.startswith("unsound: at M=104 N=48 K=136: wait that never ends")


def test_fresh_shapes_leave_what_an_exercise_leaves():
    own = exercises.find("conv3d_pointwise").problems()
    found = grade.fresh_shapes(own, 1)
    assert len({*found} - {*own}) == grade.TRIED
    taps = {(one.T, one.R, one.S, one.pad_d, one.pad_h, one.pad_w, one.dilation_w) for one in found}
    assert taps == {(1, 1, 1, 0, 0, 0, 1)}
    assert len({one.stride_h for one in found}) > 1
    assert found == grade.fresh_shapes(own, 1) != grade.fresh_shapes(own, 2)


def test_a_fresh_shape_that_the_solution_does_not_take_is_passed_over(monkeypatch):
    one = exercises.find("conv3d_pointwise")  # its filters are of one tap
    own = one.problems()
    drawn = [replace(own[0], R=2), own[0], *own[1:] * 8]
    monkeypatch.setattr(grade, "fresh_shapes", lambda *_: drawn)
    assert Grader().fresh(one) == drawn[1 : 1 + grade.FRESH]


# --- what is counted ---


def test_limits_are_compared_and_said():
    one = exercises.find("gemm_vector_tile")
    figures = {
        "shared_per_fma": 0.15, "global_reads": 0.01, "stack_bytes": 0, "warps": 20, "shared_bytes": 32768,
        "threads": 64, "float64": 0,
    }  # fmt: skip
    findings, kept = tasks.compared(figures, one)
    assert (findings, kept[3]) == ([], "20 warps fit a multiprocessor, at least 20 required")
    worse, _ = tasks.compared({**figures, "warps": 8, "shared_bytes": 1024}, one)
    assert [finding.message for finding in worse] == [
        "8 warps fit a multiprocessor; at least 20 required: "
        "each output takes a register for its sum, and 65,536 registers are handed out to all warps",
        "1024 bytes of shared memory for each block; at least 2048 required",
    ]
    once = exercises.find("gemm_once_in_a_while")
    assert tasks.compared({"float64": 0, "barriers": 2}, once)[1] == [
        "2 barriers in the compiled kernel, exactly 2 required"
    ]
    for count in (1, 3):
        (other,) = tasks.compared({"float64": 0, "barriers": count}, once)[0]
        assert other.message.startswith(
            f"{count} barriers in the compiled kernel; exactly 2 required: two are enough"
        )


def test_float64_is_asked_of_every_exercise_and_its_causes_are_named():
    one = exercises.find("gemm_slices")
    assert tasks.compared({"float64": 0}, one) == ([], [])
    (finding,), _ = tasks.compared({"float64": 3}, one)
    said = "3 float64 instructions in the compiled kernels; at most 0 allowed: a Python number beside a float32"
    assert finding.message.startswith(said)
    for cause in ("0.0 and 0 alike", "float16(float32(0.0))", "64 bits that meets an unsigned one"):
        assert cause in finding.message


@pytest.mark.parametrize(
    ("name", "old", "new", "says"),
    one_of_each([
        ("gemm_double", "* float32(last - k)", "* (last - k)",
         r"^18 float64 instructions in the compiled kernels, 15 of them from line \d+ \(`odd \+= a\[m, last\].*`\);"),
        ("gemm_one_bank", "TILE + 2", "TILE + 1",
         r"^2 wavefronts for each request to shared memory at line \d+ \(`a_tile\[tx, ty\] = .*`\); at most 1"),
    ], lambda _: "a limit"),
)  # fmt: skip
def test_a_limit_names_the_line(write, name, old, new, says):
    text = solved(name)
    assert text.count(old) == 1
    require(graded(write, name, text.replace(old, new)), "limit", says)


def test_every_kernel_that_multiplies_is_counted(monkeypatch):
    """The limits hold for all of them: one that does nothing must not hide the one that works."""
    codes = {"tidy": (64, 64, 0, 2048), "naive": (360, 10, 0, 0), "copy": (9, 0, 16, 0)}

    def assembled(launch, *_):
        name, (total, fma, stack, shared) = launch.name, codes[launch.name]
        names = ["FFMA"] * fma + ["IMAD"] * (total - fma)
        listing = summaries.Listing(tuple(summaries.Instruction(0, one, 32, one) for one in names), ((0, total),))
        taken = {"registers": 40, "stack_bytes": stack, "shared_bytes": shared}
        return summaries.Kernel(kernel=name, architecture="9.0", hot=summaries.Hot.of(listing), **taken), listing

    kernels = {
        name: codegen.Launch(name, SimpleNamespace(targetoptions={}), (1, 1, 1), (32, 1, 1), name) for name in codes
    }
    launched = list(kernels.values())
    monkeypatch.setattr(codegen, "launches", lambda *_: launched)
    monkeypatch.setattr(codegen, "ptx", lambda launch, *_, **__: {"9.0": "fma.rn.f32 x;\n" * codes[launch.name][1]})
    monkeypatch.setattr(codegen, "machine_code", assembled)

    def count(*names, least=(), N=8):
        found, _ = tasks.compiled(tasks, problems.Gemm(M=4, N=N, K=2), names, least, "9.0")
        return {name: found[name] for name in names}

    assert count("per_fma", "registers") == {"per_fma": 36.0, "registers": 40}
    assert count("shared_bytes", least=("shared_bytes",)) == {"shared_bytes": 0}
    assert count("stack_bytes", "idle") == {"stack_bytes": 16, "idle": 0}  # the stack of all, whatever they do
    assert count("idle", N=2) == {"idle": 75}  # 8 outputs for 32 threads
    launched[:] = [replace(kernels["tidy"], dynamic_shared_bytes=98304)]
    assert count("shared_bytes", "warps", "shared_per_thread") == {
        "shared_bytes": 100352, "warps": 2, "shared_per_thread": 3136,
    }  # fmt: skip


def test_a_sum_of_several_products_is_as_many_multiply_adds(write):
    lines = "    left += a_frag[v] * b_frag[v]\n                right += a_frag[v] * b_frag[VECTOR + v]\n"
    text = solved("gemm_vector_rows")
    sums = [" + ".join(f"a_frag[{v}] * b_frag[{v + first}]" for v in range(4)) for first in (0, 4)]
    whole = f"            for v in range(VECTOR):\n            {lines}"
    assert text.count(whole) == 1
    text = text.replace(whole, f"            left += {sums[0]}\n            right += {sums[1]}\n")
    problem = exercises.find("gemm_vector_rows").problems()[0]
    found = trace.run(catalog.load(write("gemm_vector_rows.py", text), "gemm"), problem, every=True)
    assert tasks.touched(found)["global_reads"] == 0.375  # three reads of four floats serve eight


# --- folders and their report ---


def test_a_folder_of_students(write, tmp_path):
    for name in ("anna/gemm_double.py", "bert/late/gemm_double.py", ".carl/gemm_double.py", "predict_tiles.py",
                 "anna/notes.txt", "bert/__pycache__/x.py", ".git/config", "grades.md"):  # fmt: skip
        write(name, "")
    (tmp_path / "link.py").symlink_to(tmp_path / "anna" / "gemm_double.py")
    (tmp_path / "linked").symlink_to("anna")
    found, left_out = grade.submissions(tmp_path)
    assert left_out == [
        "anna/notes.txt: its name does not end in .py", "link.py: a link, or no plain file",
        "linked: a link, or no plain file",
    ]  # fmt: skip
    assert [(file.student, file.file) for file in found] == [
        ("anna", "anna/gemm_double.py"), ("bert", "bert/late/gemm_double.py"),
        ("", "predict_tiles.py"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"x = 1\ny = '\xff'\n", "line 2: not UTF-8"),
        (b"'\xff'\n", "line 1: not UTF-8"),
        (b"#" * (1 << 19), "at most 262,144 bytes are read"),
    ],
)
def test_a_file_that_is_none_is_told_and_costs_the_grader_nothing(tmp_path, data, says):
    path = tmp_path / f"{ONE}.py"
    path.write_bytes(data)
    (reason,) = Grader().grade(Submission(path)).reasons
    assert re.match(f"unusable: {ONE}.py: .*{says}", reason)


def test_a_name_that_is_of_nothing_does_not_pass(write):
    assert graded(write, "homework", "").reasons == ["unknown: homework.py: no exercise and no step has this name"]


def test_a_file_is_read_before_any_runs(write):
    path = write(f"a/{ONE}.py", "x = 1\n")
    file = Submission(path)
    path.unlink()
    assert file.text == "x = 1\n"


def test_an_error_of_the_grader_is_said_of_one_file(monkeypatch, write):
    monkeypatch.setattr(grade.reading, "predicted", lambda *_: 1 // 0)
    (reason,) = graded(write, "predict_tiles", "").reasons
    assert reason.startswith("unjudged: cannot be judged: the grader failed with ZeroDivisionError")


def test_nothing_of_a_student_acts_on_a_page_or_a_terminal(tmp_path):
    name = "\x1b]0;x\x07|<img src=x>\u202e[a](http://x)*b*"
    verdict = Grader().grade(Submission(tmp_path / f"{name}.py", name, name))
    said = "said\x1b[2J\r\npassed | yes | @all ![x](y) <script> www.x.org c[0, 1] = 2"
    verdict.findings.append(check.Finding("crashed", grade.in_one_line(said)))
    _, table = grade.report([verdict], tmp_path, "a note")
    text = table.read_text()
    first, _, row, _, note = text.splitlines()
    assert (first.count("|"), row.count("|"), note) == (5, 5, "a note")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e<>\[\]*@]|!\[|://|www\.", text.replace("<br>", ""))
    assert "c[0, 1] = 2" in html.unescape(text)


# --- the command line ---


@pytest.fixture
def call(call, monkeypatch, tmp_path):
    """Run a command in this process, with a progress of the test's own."""
    monkeypatch.setattr(exercises.State.__init__, "__defaults__", (tmp_path / "memory" / "state.json",))
    return call


def test_grade_says_what_passes_and_remembers_it(call):
    code, out, _ = call("grade", "05.1", "--sim")
    assert code == 1
    assert "unanswered: no value yet for P, Q, GEMM_M" in out
    assert "a hint: python -m common hint 05.1; its section: 3. The mapping, both ways\n" in out
    code, out, err = call("grade", str(exercises.find("05.1").write_solution()), "--sim", "--json")
    (verdict,) = json.loads(out)["grades"]
    assert (code, verdict["target"], verdict["passed"], verdict["student"]) == (0, "05.1", True, "")
    assert "passed" in err
    # a copy elsewhere is not the student's own
    assert "passed" not in call("hint")[1]


def test_a_pass_of_ones_own_shows_in_progress(call, monkeypatch):
    one = exercises.find("05.1")
    monkeypatch.setattr(exercises, "everything", lambda *_: [structs.replace(one, path=one.write_solution())])
    assert call("grade", "05.1", "--sim")[0] == 0
    said = f"05.1 another worked example, by hand: hint 1 of 3\n  {one.hints[0][:40]}"
    assert call("hint", "05.1")[1].startswith(said)
    out = call("hint")[1]
    assert "1 of 3" in out
    assert "passed" in out


def test_what_is_saved_while_it_is_graded_has_no_verdict(tmp_path, monkeypatch, write):
    path = write(f"{ONE}.py", "x = 1\n")
    one = structs.replace(exercises.find(ONE), path=path)
    monkeypatch.setattr(exercises, "everything", lambda *_: [one])
    monkeypatch.setattr(exercises.State.__init__, "__defaults__", (tmp_path / "state.json",))
    graded = [(Submission(path), Grade("01.1", ONE, "write"))]
    path.write_text("x = 2\n")
    edits._remember(graded)
    assert not exercises.State().passed(one)
    edits._remember([(Submission(path), Grade("01.1", ONE, "write"))])
    assert exercises.State().passed(one)
    assert [event.what for event in history.events(ONE)] == ["saved"]


def test_grade_a_folder_writes_its_report(call, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")  # no bwrap
    for student, text in (("anna", solved("predict_worked_example")), ("bert", "")):
        path = tmp_path / "class" / student / "predict_worked_example.py"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    out_folder = tmp_path / "new" / "out"
    code, out, _ = call("grade", str(tmp_path / "class"), "--sim", "--out", str(out_folder), "--workers", "2")
    assert code == 1
    assert re.search(r"anna .* passed", out)
    assert re.search(r"bert .* not passed", out)
    verdicts = json.loads((out_folder / "grades.json").read_text())
    assert [(one["student"], one["passed"]) for one in verdicts] == [("anna", True), ("bert", False)]
    table = (out_folder / "grades.md").read_text()
    assert "| anna | anna/predict_worked_example.py | yes |" in table
    assert all(grade.NOT_ISOLATED[:12] in text for text in (out, table))


@some_days(2)
def test_a_folder_is_graded_in_bubblewrap_where_there_is_one(call, tmp_path, monkeypatch):
    """In place of bwrap stands a program that does what it is given; what bwrap was told is looked at."""
    given, bwrap, out = tmp_path / "given", tmp_path / "bin" / "bwrap", tmp_path / "out"
    bwrap.parent.mkdir()
    bwrap.write_text(TEXTS["bwrap"].format(python=sys.executable, log=str(given)))
    bwrap.chmod(0o755)
    path = tmp_path / "class" / "anna" / "predict_worked_example.py"
    path.parent.mkdir(parents=True)
    path.write_text(solved("predict_worked_example"))
    command = [sys.executable, "-m", "common", "grade", str(tmp_path / "class"), "--out", str(out), "--sim", "--json"]
    env = {**os.environ, "PATH": f"{bwrap.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=catalog.ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["grades"][0]["passed"]
    assert grade.ISOLATED in (out / "grades.md").read_text()
    told = given.read_text()
    for words in (
        f"--ro-bind {catalog.ROOT} ",
        f"--bind {out} ",
        "--tmpfs /tmp",
        "--unshare-net",
        "--die-with-parent",
    ):
        assert words in told
    bwrap.write_text("#!/bin/sh\nexit 1\n")  # as where namespaces are forbidden
    monkeypatch.setenv("PATH", env["PATH"])
    assert call(*command[3:])[0] == 0
    assert grade.NOT_ISOLATED in (out / "grades.md").read_text()


def test_a_verdict_is_told_though_it_cannot_be_kept(call, tmp_path):
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "predict_tiles.py").write_text("")
    (tmp_path / "out" / "grades.md").mkdir(parents=True)
    code, out, err = call("grade", str(tmp_path / "class"), "--sim", "--out", str(tmp_path / "out"))
    assert code == 1
    assert "not passed" in out
    assert "not kept: " in err
    (tmp_path / "empty").mkdir()
    code, _, err = call("grade", str(tmp_path / "empty"), "--sim")
    assert code == 2
    assert "no Python files in it" in err


# --- on a GPU ---


@pytest.mark.parametrize(("times", "kinds"), [(1.2, []), (0.5, ["slow"]), (9.0, ["impossible"])])
def test_with_a_gpu_a_kernel_is_checked_there_and_a_share_of_the_floor_is_asked_for(write, monkeypatch, times, kinds):
    one, record = exercises.find("gemm_vector_tile"), records.other(records.REFERENCE_GPU)
    floor = records.derive(problems.preset(one.preset), 1.0, record.ceilings).floor_ms
    timing = SimpleNamespace(median_ms=floor / (one.floor / 100 * times))
    figures = {**one.at_most, **one.at_least, "float64": 0.0}
    asked = []

    def run(tasks, without_gpu, *_):
        for task in tasks:
            asked.append((type(task).__name__, without_gpu))
            counted = isinstance(task, Count)
            yield (
                task,
                Counted(status="right", figures=figures) if counted else StepResult(status="right", timing=timing),
            )

    monkeypatch.setattr(grade.isolate, "run", run)
    monkeypatch.setattr(Grader, "fresh", lambda *_: [])
    verdict = graded(write, one.name, solved(one.name), (object(), record.ceilings))
    assert [finding.kind for finding in verdict.findings] == kinds, verdict.reasons
    shapes = len(one.shapes)
    assert asked == [*[("Check", True)] * shapes, ("Count", True), *[("Check", False)] * shapes, ("Time", False)]


@pytest.mark.gpu
@pytest.mark.xdist_group("gpu")
class TestOnGpu:
    @pytest.mark.parametrize("exercise", TRIED, ids=lambda one: one.number)
    def test_a_solution_passes(self, exercise, write, rates):
        verdict = graded(write, exercise.name, solved(exercise.name), rates)
        assert verdict.passed, verdict.reasons
        if exercise.floor:
            assert exercise.floor <= verdict.figures["percent_of_floor"] <= 100 * grade.BEYOND_FLOOR

    def test_a_kernel_that_is_right_and_slow_does_not_pass(self, write, rates, monkeypatch):
        one = exercises.find("gemm_vector_tile")
        monkeypatch.setattr(exercises, "everything", lambda *_: [structs.replace(one, floor=99.0)])
        require(graded(write, one.name, solved(one.name), rates), "slow", "99 percent is required")
