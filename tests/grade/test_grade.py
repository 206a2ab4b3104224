"""Files that nobody vouches for: cheats are found and called what they are, and nothing they do makes a verdict."""

import ast
import contextlib
import html
import json
import re
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import mutants
import numpy as np
import pytest
from msgspec import structs

from common import cli
from common.catalog import catalog, exercises, problems, store
from common.check import check
from common.edit import history
from common.grade import (
    audit,
    confine,
    folders,
    grade,
    language,
    limits,
    messages,
    ptx_plan,
    sandbox,
    source,
    traced_run,
)
from common.grade.checkout import Change, Checkout
from common.grade.folders import Submission
from common.grade.grade import Grade, Grader, Machine
from common.grade.sandbox import Limits, Sandbox, SandboxError
from common.jobs import run
from common.machine_code import codegen, sass

FOLDER = Path(__file__).parents[1] / "cheats"
TARGET = "gemm_one_dimension"  # the exercise that every cheat pretends to solve
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc, and needs all limits")
PATIENCE = 60.0

# By name, so that none goes missing unnoticed.
NAMES = [
    "another_stream", "answer_in_prepare", "checker_replaced", "endless", "exit_by_exception", "exit_code_zero",
    "files_deleted", "grader_killed", "kernel_made_anew", "memory_behind_the_array", "numpy_behind_a_kernel",
    "numpy_in_a_kernel", "numpy_in_launch", "outputs_remembered", "too_much_memory", "torch_in_launch",
    "verdict_on_every_channel", "verdict_printed",
]  # fmt: skip

# Wrong kernels that show at the target's small shapes, one for each kind of finding.
WRONG = (
    "gemm_accumulates", "gemm_last_k_dropped", "gemm_tf32_operands", "gemm_last_tile_unwritten",
    "gemm_modified_input",
)  # fmt: skip

DOCSTRING = re.compile(
    r"[A-Z\w].+\.\n\n(Refused: (?P<refused>.+)\n)?Expect: (?P<kind>\w+)\nSays: (?P<says>.+)\n(Also: (?P<also>.+)\n)?"
    r"(Expect on GPU: (?P<gpu_kind>\w+)\nSays on GPU: (?P<gpu_says>.+)\n)?"
)


@dataclass(frozen=True)
class Cheat:
    """A file of ``tests/cheats``: what is refused before it runs, if anything; what comes first of a file that is run
    all the same, and what else must be said."""

    path: Path
    refused: str
    kind: str
    says: str
    also: str

    def require(self, verdict):
        assert not verdict.passed
        first = verdict.findings[0]
        assert (first.kind, bool(re.search(self.says, first.message))) == (self.kind, True), verdict.reasons
        assert re.search(self.also, "\n".join((*verdict.reasons[1:], *verdict.notes))), verdict.reasons


def read(path, gpu=False):
    found = DOCSTRING.fullmatch(ast.get_docstring(ast.parse(path.read_text()), clean=False) or "")
    assert found, f"{path.name}: the docstring must be a sentence, then Expect: KIND and Says: PATTERN"
    kind, says = (
        (found["gpu_kind"], found["gpu_says"]) if gpu and found["gpu_kind"] else (found["kind"], found["says"])
    )
    return Cheat(path, found["refused"] or "", kind, says, found["also"] or "")


FILES = sorted(FOLDER.glob("*.py"))
EACH = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder with a record in it, in place of the checkout that a cheat would harm."""
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "record.json").write_text("made for a test")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def graded(path, checkout, machine=None, name=TARGET, seconds=PATIENCE):
    file = checkout / f"{name}.py"
    shutil.copyfile(path, file)
    limits = Limits(1.0 if path.stem == "endless" else seconds)
    return Grader(machine, limits, root=checkout).grade(Submission(file))


def test_the_collection_is_complete():
    assert [path.stem for path in FILES] == NAMES


@EACH
def test_what_a_kernel_file_has_no_use_for_is_refused_before_it_runs(path):
    said = language.refused(source.text_of(path.read_bytes()))
    assert bool(said) == bool(read(path).refused), said
    assert re.search(read(path).refused, "; ".join(said))


def test_a_refused_file_is_not_run(checkout, monkeypatch):
    monkeypatch.setattr(sandbox.Sandbox, "__enter__", lambda _: pytest.fail("it was run"))
    for path in FILES:
        if read(path).refused:
            (finding,) = (one for one in graded(path, checkout).findings if one.kind != "frame")
            assert finding.kind == "language"


@LINUX
@EACH
def test_the_cheat_is_found_and_named(path, checkout, monkeypatch):
    """Behind the first wall: as if every word had been let through."""
    monkeypatch.setattr(language, "refused", lambda *_: [])
    read(path).require(graded(path, checkout))


def test_an_honest_file_meets_no_expectation(checkout):
    verdict = graded(exercises.find(TARGET).solution, checkout)
    assert verdict.passed, verdict.reasons
    said = [
        "4.333 sectors for each request to global memory, of the line that touches most, at most 5 allowed",
        "21,420 values read from global memory at M=17 N=35 K=18, at most 32,130 allowed",
        "line by line as the solution has it",
    ]
    assert (verdict.notes, verdict.target, verdict.kind) == (said, "01.1", "write")
    for path in FILES:
        with pytest.raises(AssertionError):
            read(path).require(verdict)


# --- a traced run in this process ---


class TestRehearsal:
    # those that prepare, slice, reshape, or ask for an address
    @pytest.mark.parametrize(
        "name",
        ["gemm_naive", "gemm_rectangular_tiles", "gemm_tuned", "conv2d_constant_weights", "conv2d_shared_tile",
         "conv2d_unroll_gemm", "conv2d_coarsened", "conv2d_register_tiled", "conv3d_direct"],
    )  # fmt: skip
    def test_what_steps_do_is_not_noted(self, name):
        step = catalog.find(name)
        problem = min(problems.RAGGED[step.ladder], key=lambda one: one.flops)
        seen = audit.Audit(str(step.path))
        stage = traced_run.TracedRun(catalog.load(step.path, step.ladder), problem, seen, check.MARGIN)
        stage.prepare()
        launched = stage.launch()
        assert list(seen.notes) == []
        assert launched
        assert stage.launch() == launched

    def stage(self, write, text):
        path = write(
            "gemm_x.py", "from numba import cuda\nimport numpy as np\n@cuda.jit\ndef k(c):\n    c[0, 0] = 1\n" + text
        )
        seen = audit.Audit(str(path))
        made = traced_run.TracedRun(catalog.load(path, "gemm"), problems.Gemm(M=2, N=2, K=2), seen, check.MARGIN)
        made.prepare()
        made.launch()
        return [kind for kind, _ in seen.notes]

    @pytest.mark.parametrize(
        ("body", "kinds"),
        [
            ("k[1, 1](c)", []),
            ("k[1, 1](c[1:])", []),
            ("k[1, 1](c.reshape(4, 1))", []),
            ("k[1, 1](c); c[1, 1] = 5", ["host_access", "host_write"]),
            ("a[0, 0]; k[1, 1](c)", ["host_access"]),
            ("np.asarray(a); k[1, 1](c)", ["host_access"]),
            ("k[1, 1](np.zeros((2, 2), np.float32)); k[1, 1](c)", ["foreign_array"]),
            ("d = cuda.device_array((2, 2)); k[1, 1](c)", ["allocates"]),
            ("k[1, 1, cuda.stream()](c)", ["stream"]),
        ],
    )
    def test_what_is_noted(self, write, body, kinds):
        assert self.stage(write, f"def launch(a, b, c):\n    {body}\n") == kinds

    def test_prepare_and_workspace_may_make_arrays(self, write):
        text = (
            "def workspace(problem):\n    return cuda.device_array((2, 2), np.float32)\n"
            "def prepare(b, problem):\n    return cuda.to_device(b.copy_to_host())\n"
            "def launch(a, b, c, workspace):\n    k[1, 1](b)\n    k[1, 1](workspace)\n    k[1, 1](c)\n"
        )
        assert self.stage(write, text) == []


def test_replaced_tools_are_noted_once(write, monkeypatch):
    seen = audit.Audit(str(write("x.py", "")))
    seen._tools = dict(audit._tools())
    seen.look()
    assert list(seen.notes) == []
    monkeypatch.setattr(np, "allclose", lambda *_: True)
    monkeypatch.setattr(check, "check", lambda *_: None)
    for _ in range(2):
        seen.look()
    assert sorted(message.split(":")[0] for _, message in seen.notes) == [
        "replaces common.check.check.check", "replaces numpy.allclose",
    ]  # fmt: skip


# --- the other process, from outside ---


ANSWERS = "def launch(a, b, c):\n    pass\n"


@LINUX
def test_a_process_sees_little_of_this_one(write, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "x")
    text = "import os\nraise RuntimeError(' '.join(sorted(os.environ)) + ' at ' + os.getcwd())\n"
    with Sandbox(write("gemm_x.py", text), "gemm") as box:
        with pytest.raises(SandboxError) as failed:
            box.ask(messages.Start())
        folder = box.work
    names, _, place = str(failed.value).partition(" at ")[2].partition(": ")[2].partition(" at ")
    assert "SECRET_TOKEN" not in names
    assert "CUDA_VISIBLE_DEVICES" in names
    assert place == str(folder) != str(catalog.ROOT)
    assert not folder.exists()


@LINUX
def test_the_exchange_and_the_plan_are_not_taken_on_trust(write):
    text = (
        "import os\nos.truncate('exchange.bin', 0)\nos.mkdir('plans')\nos.symlink('/etc/passwd', 'plans/a.json')\n"
        + ANSWERS
    )
    with Sandbox(write("gemm_x.py", text), "gemm") as box:
        box.send(0, bytes(64))
        box.ask(messages.Start())
        with pytest.raises(SandboxError, match="cut short"):
            box.receive(64)
        for name in ("a.json", "b.json", "../../etc/passwd"):
            with pytest.raises(SandboxError, match="is missing"):
                box.plan_file(name)


def plan(**changes):
    array = ["array", 0, 0, [2, 2], [8, 4], 4]
    launch = {
        "kernel": "a" * 64,
        "name": "k",
        "grid": [1, 1, 1],
        "block": [1, 1, 1],
        "cluster": 1,
        "shared": 0,
        "arguments": [array],
    }
    buffer = {"role": "y", "bytes": 16, "data": None}
    return {"buffers": [{**buffer, **changes.pop("buffer", {})}], "prepare": [], "launch": [{**launch, **changes}]}


def test_a_proper_plan_is_taken():
    assert ptx_plan.checked(plan())["launch"]


def test_a_plan_launches_a_kernel_in_clusters_of_one_size():
    found = plan(cluster=2, grid=[6, 1, 1])
    assert ptx_plan.checked(found)["launch"][0]["cluster"] == 2
    found["prepare"] = [{**found["launch"][0], "cluster": 3}]
    with pytest.raises(ptx_plan.PlanError, match="in clusters of one size"):
        ptx_plan.checked(found)


@pytest.mark.parametrize(
    "spoilt",
    [
        [], {}, {"buffers": [], "prepare": []}, plan(kernel="../x"), plan(grid=[-1, 1, 1]), plan(shared="1"),
        plan(buffer={"role": "oracle"}), plan(buffer={"data": "/etc/passwd"}), plan(buffer={"bytes": -1}),
        plan(arguments=[["array", 1, 0, [2], [4], 4]]), plan(arguments=[["array", 0, -4, [2], [4], 4]]),
        plan(arguments=[["pickle", "x"]]), plan(arguments=[["int64", "x"]]), plan(grid=[]), plan(block=[1]),
        plan(cluster=0), plan(cluster=16), plan(cluster="2"), plan(cluster=2), plan(cluster=None),
    ],
)  # fmt: skip
def test_a_spoilt_plan_is_refused(spoilt):
    with pytest.raises(ptx_plan.PlanError):
        ptx_plan.checked(spoilt)


def test_ptx_of_a_plan_holds_one_kernel_and_its_limit():
    text = "// max_registers 64\n.visible .entry _ZN3k(\n)\n{}\n"
    assert ptx_plan.entry(text) == ("_ZN3k", 64)
    for spoilt in (text.replace(".entry", ".func"), text + text, text.partition("\n")[2]):
        with pytest.raises(ptx_plan.PlanError):
            ptx_plan.entry(spoilt)


def test_functions_that_numba_adds_later_are_no_part_of_a_plan():
    problem = problems.from_shape("gemm", {"M": 3, "N": 4, "K": 5})
    with Sandbox(mutants.path("gemm_float16_accumulator"), "gemm") as box:
        box.ask(messages.Start())
        box.send(0, bytes(4 * 5 * 4))
        with pytest.raises(SandboxError, match=r"cannot be judged here: product calls .* float16") as failed:
            box.ask(messages.Record(shape=problem.shape(), architecture="9.0", name="x"))
    assert failed.value.kind == "unjudged"


def test_an_error_of_the_driver_does_not_hide_what_led_to_it(checkout):
    """With a GPU nothing is rehearsed: prepare runs on stand-ins, and its search starts the driver."""
    problem = problems.from_shape("gemm", {"M": 3, "N": 4, "K": 5})
    with Sandbox(FOLDER / "answer_in_prepare.py", "gemm") as box:
        box.ask(messages.Start())
        box.send(0, bytes(4 * 5 * 4))
        with contextlib.suppress(SandboxError):
            box.ask(messages.Record(shape=problem.shape(), architecture="9.0", name="x"))
        assert ("reaches_out", "prepare calls gc.get_objects: a kernel file has no use for it") in box.notes


def test_changed_files_are_told_apart(tmp_path):
    for name in ("common/a.py", "common/b.py", "results/c.json", "other.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    (tmp_path / ".mypy_cache").mkdir()
    checkout = Checkout(tmp_path)
    early = checkout.mark()
    assert checkout.since(early) == []
    (tmp_path / "common/a.py").write_text("2")
    (tmp_path / "common/b.py").unlink()
    (tmp_path / "results/d.json").write_text("1")
    (tmp_path / ".git" / "hooks").mkdir(parents=True)
    (tmp_path / ".git" / "hooks" / "post-checkout").write_text("")
    (tmp_path / ".git" / "index").write_text("Git's own")
    (tmp_path / "secrets.py").symlink_to("other.txt")
    (tmp_path / "results/c.json").write_text("1")  # as it was
    found = [
        ".git/hooks/post-checkout (new)", "common/a.py (overwritten)", "common/b.py (deleted)",
        "results/d.json (new)", "secrets.py (new)",
    ]  # fmt: skip
    assert [str(one) for one in checkout.since(early)] == found
    late = checkout.mark()
    assert checkout.since(late) == []
    assert [str(one) for one in checkout.since(early)] == found  # for all that ran at the time
    assert [str(one) for one in checkout.harness_changed()] == [found[1], found[2], found[4]]
    assert [one.by_anyone for one in checkout.since(early)] == [False, False, False, True, False]


def test_modes_are_told_from_contents(tmp_path):
    """Landlock stops writing, and not this."""
    for name in ("results/a.json", "results/b.json", "lessons/c.py", "lessons/d.py", "results/e.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    with (tmp_path / "results/e.json").open("wb") as file:
        file.truncate(1 << 23)
    checkout = Checkout(tmp_path)
    mark = checkout.mark()
    for name in ("results/a.json", "lessons/c.py", "results/e.json", "lessons"):
        (tmp_path / name).chmod(0o711)
    (tmp_path / "lessons/d.py").write_text("2")
    (tmp_path / "results/new").mkdir()  # a folder is no file
    (tmp_path / "results/b.json").touch()
    found = checkout.since(mark)
    assert [str(one) for one in found] == [
        "lessons/ (mode changed)", "lessons/c.py (mode changed)", "lessons/d.py (overwritten)",
        "results/a.json (mode changed)", "results/e.json (mode changed)",
    ]  # fmt: skip
    assert [one.despite_walls for one in found] == [True, True, False, True, True]


@pytest.mark.parametrize(
    ("name", "others"), [
        ("results/a.json", True), ("results/traces/a.json", True), (".workbook/kept/x", True), (".git/HEAD", True),
        (".git/refs/heads/main", True), (".git/config", False), (".git/hooks/post-commit", False),
        (".git/info/exclude", False), ("lessons/a.py", False), ("tests/a.py", False), ("a.json", False),
    ],
)  # fmt: skip
def test_where_other_commands_write(name, others):
    assert Change(name, "new").by_anyone == others


@pytest.mark.parametrize(
    ("name", "harness"), [
        ("common/a.txt", True), ("lessons/wide.py", True), ("lessons/01_naive/solutions/x.py", True), ("a.py", True),
        ("numba/__init__.py", True), ("x/site-packages/y", True), ("out.json", False), ("lessons/README.md", False),
        ("lessons/01_naive/exercises/x.py", False), ("tests/conftest.py", False), ("results/x.py", False),
    ],
)  # fmt: skip
def test_what_later_grades_run_on(name, harness):
    assert Change(name, "new").of_harness == harness


SECOND_RECORD = "results/second.json"


def while_graded(monkeypatch, action):
    """Have something done in the midst of each grade, as by another command."""
    ask, times = Sandbox.ask, []

    def during(box, question):
        if isinstance(question, messages.Bind):
            times.append(question)
            action(len(times))
        return ask(box, question)

    monkeypatch.setattr(Sandbox, "ask", during)


def graded_beside(checkout):
    shutil.copyfile(exercises.find(TARGET).solution, checkout / f"{TARGET}.py")
    grader = Grader(None, Limits(PATIENCE), root=checkout)
    ((_, verdict),) = grader.all([Submission(checkout / f"{TARGET}.py")], 1)
    return verdict


@pytest.mark.skipif(not confine.keeps_files(confine.version()), reason="needs Landlock: Linux 6.2")
def test_a_record_written_beside_a_grade_is_not_its_doing(checkout, monkeypatch):
    for folder in (".workbook", ".git", "lessons"):
        (checkout / folder).mkdir(exist_ok=True)

    def write(count):
        for name in (SECOND_RECORD, ".workbook/kept", ".git/HEAD"):
            store.write(checkout / name, json.dumps(count))

    while_graded(monkeypatch, write)
    verdict = graded_beside(checkout)
    assert verdict.passed, verdict.reasons
    assert "changed" not in "".join(verdict.notes)
    monkeypatch.undo()
    while_graded(monkeypatch, lambda count: (checkout / "lessons" / "README.md").write_text(str(count)))
    verdict = graded_beside(checkout)
    assert verdict.passed, verdict.reasons
    assert "changed while it ran: lessons/README.md (new): that was not its doing" in verdict.notes[-1]
    monkeypatch.undo()
    while_graded(monkeypatch, lambda count: (checkout / "results/record.json").chmod(0o600 + count % 8))
    (reason,) = graded_beside(checkout).reasons
    assert reason == "changed_files: files of the checkout changed while it ran: results/record.json (mode changed)"
    monkeypatch.undo()
    while_graded(monkeypatch, lambda count: (checkout / "numba.py").write_text(str(count)))
    (reason,) = graded_beside(checkout).reasons
    assert reason.startswith("unjudged: what it is judged by changed while it ran: numba.py (new); see git status")


def test_what_python_keeps_of_a_module_is_only_as_suspect_as_what_ran(checkout, monkeypatch):
    """The first command in a checkout that imports a module leaves its bytecode there."""

    def imported(name):
        path = checkout / "common" / "__pycache__" / f"{name}.cpython-311.pyc"
        return lambda count: store.write(path, f"another command's {count}")

    if confine.keeps_files(confine.version()):
        while_graded(monkeypatch, imported("check"))
        verdict = graded_beside(checkout)
        assert verdict.passed, verdict.reasons
        assert "changed" not in "".join(verdict.notes)
        monkeypatch.undo()
        compiled = checkout / "common" / "__pycache__" / "check.cpython-311.pyc"
        while_graded(monkeypatch, lambda count: compiled.chmod(0o600 + count % 8))
        (reason,) = graded_beside(checkout).reasons
        assert reason.startswith("changed_files: files of the checkout changed while it ran: common/__pycache__/")
        monkeypatch.undo()
    monkeypatch.setattr(confine, "keeps_files", lambda version: False)
    while_graded(monkeypatch, imported("trace"))
    (reason,) = graded_beside(checkout).reasons
    assert reason.startswith("changed_files: files of the checkout changed while it ran: common/__pycache__/trace")


def test_without_walls_a_record_written_beside_is_told_from_one_that_is_forged(checkout, monkeypatch):
    monkeypatch.setattr(confine, "keeps_files", lambda version: False)
    while_graded(monkeypatch, lambda count: count == 1 and store.write(checkout / SECOND_RECORD, "1"))
    verdict = graded_beside(checkout)
    assert verdict.passed, verdict.reasons
    assert f"changed while it ran: {SECOND_RECORD} (new): it was graded again, alone" in verdict.notes[-1]
    monkeypatch.undo()
    monkeypatch.setattr(confine, "keeps_files", lambda version: False)
    while_graded(monkeypatch, lambda count: store.write(checkout / SECOND_RECORD, f"x{count}"))
    (reason,) = graded_beside(checkout).reasons
    assert reason.startswith("unjudged: cannot be judged here: files of the checkout changed while it ran: results/")
    monkeypatch.undo()
    monkeypatch.setattr(confine, "keeps_files", lambda version: False)
    while_graded(monkeypatch, lambda count: (checkout / "notes.txt").write_text(str(count)))
    (reason,) = graded_beside(checkout).reasons
    assert reason == "changed_files: files of the checkout changed while it ran: notes.txt (new)"


# --- folders, limits, reports ---


def test_limits_are_compared_and_said():
    one = exercises.find("gemm_vector_tile")
    figures = {
        "shared_per_fma": 0.15,
        "global_reads": 0.01,
        "stack_bytes": 0,
        "warps": 20,
        "shared_bytes": 32768,
        "threads": 64,
        "float64": 0,
    }
    assert grade.judged(grade.Evidence(figures=figures), one) == []
    assert limits.compared(figures, one)[1] == [
        "0.15 loads from shared memory for each multiply-add in the compiled loop, at most 0.15 allowed",
        "0.01 reads of global memory for each multiply-add, as the source is written, at most 0.01 allowed",
        "0 bytes of stack for each thread, at most 0 allowed",
        "20 warps fit a multiprocessor, at least 20 asked for",
        "64 threads in a block, at least 64 asked for",
        "32768 bytes of shared memory for each block, at least 2048 asked for",
    ]
    worse = grade.Evidence(
        figures={**figures, "shared_per_fma": 0.19, "warps": 8, "threads": 8, "shared_bytes": 1024}
    )
    assert [finding.message for finding in grade.judged(worse, one)] == [
        "0.19 loads from shared memory for each multiply-add in the compiled loop; at most 0.15 is asked for: "
        "each value that a thread reads serves its other rows or columns: how many has it?",
        "8 warps fit a multiprocessor; at least 20 is asked for: "
        "each output takes a register for its sum, and 65,536 registers are handed out to all warps",
        "8 threads in a block; at least 64 is asked for: "
        "a warp has 32 lanes, and with fewer threads some do nothing; two warps can wait for each other",
        "1024 bytes of shared memory for each block; at least 2048 is asked for",
    ]
    slow = grade.Evidence(figures={**figures, "percent_of_floor": 5.0, "ms": 3.0})
    assert [finding.kind for finding in grade.judged(slow, one)] == ["slow"]
    (missing,) = grade.judged(grade.Evidence(figures={**figures, "shared_per_fma": None}), one)
    assert (missing.kind, missing.message) == ("unjudged", "shared_per_fma was not counted")


def test_float64_is_asked_of_every_exercise_and_its_cause_is_named():
    one = exercises.find("gemm_early_leave")
    assert "float64" not in one.at_most
    assert limits.compared({"float64": 0}, one) == ([], [])
    literal, comparison = ({"float64": 3, limits.OF_INTEGERS: number} for number in (0, 2))
    said = [limits.compared(figures, one)[0][0].message for figures in (literal, comparison)]
    assert ["0.0 and 0 alike" in text for text in said] == [True, False]
    assert ["a signed one of 64 bits meets an unsigned one" in text for text in said] == [False, True]


def test_every_limit_can_be_counted_and_said_with_its_reason():
    """Shared memory that is asked for is the exercise itself."""
    for one in exercises.everything():
        assert limits.limited(one) <= set(limits.COUNTED)
        assert limits.limited(one) - {*one.because, *limits.MEANING, "shared_bytes"} == set(), one.name
        assert set(one.because) <= limits.limited(one), one.name


def test_a_folder_of_students(write, tmp_path):
    for name in ("anna/gemm_double.py", "bert/late/gemm_double.py", "predict_tiles.py", "anna/notes.txt",
                 "anna/.hidden.py", "bert/__pycache__/x.py"):  # fmt: skip
        write(name, "")
    found, left_out = folders.submissions(tmp_path)
    assert left_out == [
        "anna/.hidden.py: hidden, with 1 file named after no exercise",
        "anna/notes.txt: its name does not end in .py",
        "bert/__pycache__: hidden, with 1 file named after no exercise",
    ]
    assert [(file.student, file.path.name) for file in found] == [
        ("anna", "gemm_double.py"), ("bert", "gemm_double.py"), ("", "predict_tiles.py"),
    ]  # fmt: skip


def test_a_name_that_is_of_nothing_does_not_pass(write):
    verdict = Grader().grade(Submission(write("homework.py", "")))
    assert verdict.reasons == ["unknown: homework.py: no exercise and no step has this name"]
    for name in ("Gemm_Double.py", "gemm_double (1).py", "gemm_doubel.py"):
        (reason,) = Grader().grade(Submission(write(name, ""))).reasons
        assert reason.endswith("Did you mean gemm_double.py?")


def test_links_and_other_files_are_said_to_be_left_out(tmp_path, write):
    path = write("anna/gemm_double.py", "")
    (tmp_path / "link.py").symlink_to(path)
    (tmp_path / "linked").symlink_to(path.parent)
    write("gemm_two_tiles.PY", "")
    write("grades.md", "")  # of an earlier grading
    found, left_out = folders.submissions(tmp_path)
    assert [file.file for file in found] == ["anna/gemm_double.py"]
    assert left_out == [
        "gemm_two_tiles.PY: its name does not end in .py", "link.py: a link, or no plain file",
        "linked: a link, or no plain file",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("predict_first_kernels", "BLOCKS = 1" + 400 * "0", "unusable: .* cannot be worked out"),
        ("gemm_double", "x = " + 20_000 * "1+" + "1", "crashed|unusable"),
        ("gemm_double", "x = [" + 200_000 * "0, " + "]", "unusable: .* bytes; at most 262,144 are read"),
        ("gemm_double", "\0", "unusable"),
    ],
    ids=["huge", "deep", "large", "null"],
)
def test_no_file_costs_the_grader_more_than_itself(checkout, write, name, text, says):
    verdict = graded(write("submitted.py", text), checkout, name=name)
    assert re.match(says, verdict.reasons[0]), verdict.reasons


def test_an_error_of_the_grader_is_said_of_one_file(monkeypatch, write):
    monkeypatch.setattr(grade, "predicted", lambda *_: 1 / 0)
    verdict = Grader().grade(Submission(write("predict_tiles.py", "")))
    assert verdict.reasons == [
        "unjudged: cannot be judged: the grader failed with ZeroDivisionError: division by zero"
    ]


def test_what_is_saved_while_it_is_graded_has_no_verdict(tmp_path, monkeypatch, write):
    one = exercises.find("05.1")
    path = write("predict_worked_example.py", one.path.read_text() + "X = 1\n")
    mine = structs.replace(one, path=path)
    monkeypatch.setattr(exercises, "everything", lambda *_: [mine])
    monkeypatch.setattr(exercises.State.__init__, "__defaults__", (tmp_path / "state.json",))
    files, verdict = [Submission(path)], [Grade("05.1", one.name, "predict", findings=[check.Finding("wrong", "no")])]
    own = grade.own_sources(files)
    path.write_text("Y = 2\n")
    grade.remember(files, verdict, own)
    assert history.events(one.name) == []
    grade.remember(files, verdict, grade.own_sources(files))
    (event,) = history.events(one.name)
    assert (event.source, event.verdict) == (history.sha(b"Y = 2\n"), "not passed")


def test_grades_come_as_they_are_done(monkeypatch, write):
    gate = threading.Event()

    class Waits(Grader):
        def grade(self, file):
            assert file.student != "slow" or gate.wait(PATIENCE)
            return Grade("", file.path.stem, "unknown", file.student)

    path = write("gemm_x.py", "")
    coming = Waits().all([Submission(path, student) for student in ("slow", "quick")], workers=2)
    number, first = next(coming)
    assert (number, first.student) == (1, "quick")
    gate.set()
    coming.close()  # an interrupt: the other is not waited for


def test_names_that_are_not_unicode_can_be_written(tmp_path):
    name = b"M\xfcller".decode("utf-8", "surrogateescape")
    assert source.printable(name) == "M\\xfcller"
    assert source.printable("Müller") == "Müller"
    assert source.printable("\ud800 boo") == "\\ud800 boo"
    found = Grader().grade(Submission(tmp_path / f"{name}.py", name, f"{name}/{name}.py"))
    _, as_table = folders.report([found], tmp_path)
    assert "| M\\xfcller | M\\xfcller/M\\xfcller.py | no |" in html.unescape(as_table.read_text())


def test_a_file_with_a_byte_order_mark_is_read(checkout, write):
    one = exercises.find("05.1")
    verdict = graded(write("submitted.py", "\ufeff" + one.solution.read_text()), checkout, name=one.name)
    assert verdict.passed, verdict.reasons


@LINUX
def test_what_requires_9_0a_is_compiled_and_counted_for_it(checkout, monkeypatch):
    one = next(one for one in exercises.everything() if "per_fma" in limits.limited(one))
    assemble, counted = codegen.assemble, set()

    def noted(text, name, architecture, *rest):
        counted.add((re.search(r"^\.target (\w+)", text, re.MULTILINE)[1], architecture))
        return assemble(text, name, architecture, *rest)

    monkeypatch.setattr(codegen, "assemble", noted)
    monkeypatch.setattr(exercises.Exercise, "requires", "9.0a")
    verdict = graded(one.solution, checkout, name=one.name)
    assert counted == {("sm_90a", "9.0a")}, verdict.reasons


@LINUX
def test_a_block_whose_threads_cannot_have_the_registers_is_not_passed_and_told_so(checkout, write):
    """Three consumers of 256 columns: ptxas refuses. That is the submission's fault, and no failure of the grader."""
    one = exercises.find("hgemm_larger_pipeline")
    text = one.solution.read_text().replace("192, 192, 64", "192, 256, 64")
    verdict = graded(write("submitted.py", text), checkout, name=one.name)
    assert not verdict.passed
    assert [finding.kind for finding in verdict.findings] == ["uncompiled"]
    assert "needs at least 154 registers, and can have 128" in verdict.findings[0].message


def test_every_kernel_that_multiplies_is_counted(monkeypatch, tmp_path):
    """The limits hold for all of them: one that does nothing must not hide the one that works."""
    codes = {"tidy": (64, 64, 0, 2048), "naive": (360, 10, 0, 0), "copy": (9, 0, 16, 0)}

    def assembled(text, name, *_):
        total, fma, stack, shared = codes[name]
        names = ["FFMA"] * fma + ["IMAD"] * (total - fma)
        listing = sass.Listing(tuple(sass.Instruction(0, one, (), one) for one in names), ((0, total),))
        return codegen.MachineCode(name, "9.0", 40, stack, 0, shared, listing)

    monkeypatch.setattr(grade.codegen, "assemble", assembled)
    monkeypatch.setattr(ptx_plan, "entry", lambda text: ("x", None))
    for name, (_, fma, *_rest) in codes.items():
        (tmp_path / f"{name}.ptx").write_text("fma.rn.f32 x;\n" * fma)
    plan = {"launch": [{"kernel": name, "grid": [1, 1, 1], "block": [32, 1, 1], "shared": 0} for name in codes]}
    problem = problems.Gemm(M=4, N=8, K=2)
    assert limits.count(plan, tmp_path, problem, ["per_fma", "registers"]) == {"per_fma": 36.0, "registers": 40}
    assert limits.count(plan, tmp_path, problem, ["shared_bytes"], ["shared_bytes"]) == {"shared_bytes": 0}
    assert limits.count(plan, tmp_path, problem, ["stack_bytes"]) == {"stack_bytes": 16}  # of all, whatever they do
    assert limits.count(plan, tmp_path, problem, ["idle"]) == {"idle": 0}
    smaller = problems.Gemm(M=4, N=2, K=2)  # 8 outputs for 32 threads
    assert limits.count(plan, tmp_path, smaller, ["idle"]) == {"idle": 75}
    asking = {"launch": [{**plan["launch"][0], "shared": 98304}]}  # dynamic shared memory, on top of the kernel's own
    found = limits.count(asking, tmp_path, problem, ["shared_bytes", "warps", "shared_per_thread"])
    assert found == {"shared_bytes": 100352, "warps": 2, "shared_per_thread": 3136}
    only = {"launch": plan["launch"][2:]}
    assert limits.count(only, tmp_path, problem, ["per_fma"]) == {"per_fma": 0}
    assert limits.count({"launch": []}, tmp_path, problem, ["per_fma"]) == {}


@LINUX
def test_kernels_are_graded_on_the_shipped_helpers(write, monkeypatch):
    sandbox._shipped_helpers.cache_clear()
    monkeypatch.setattr(sandbox.shipped, "edited_helpers", lambda: [catalog.LESSONS / "wide.py"])
    monkeypatch.setattr(sandbox.shipped, "text", lambda path: b"raise RuntimeError('as shipped')\n")
    try:
        with (
            Sandbox(write("gemm_x.py", "from lessons import wide\n"), "gemm") as box,
            pytest.raises(SandboxError, match="as shipped"),
        ):
            box.ask(messages.Start())
    finally:
        sandbox._shipped_helpers.cache_clear()


@LINUX
def test_processes_end_when_the_grading_does(write):
    with Sandbox(write("gemm_x.py", "while True: pass\n"), "gemm") as box:
        threading.Timer(1.0, sandbox.end_all, [threading.Event()]).start()
        with pytest.raises(SandboxError, match="SIGKILL"):
            box.ask(messages.Start())


@LINUX
def test_two_threads_may_end_one_process(write):
    """As when a grading is interrupted while a worker ends its own."""
    for _ in range(8):
        with Sandbox(write("gemm_x.py", ANSWERS), "gemm") as box:
            ending = [threading.Thread(target=box.end, daemon=True) for _ in range(3)]
            for one in ending:
                one.start()
            for one in ending:
                one.join(PATIENCE)
            assert not any(one.is_alive() for one in ending)


@LINUX
def test_nothing_starts_after_the_end(write):
    closing = threading.Event()
    sandbox.end_all(closing)
    with (
        Sandbox(write("gemm_x.py", "while True: pass\n"), "gemm", closing=closing) as box,
        pytest.raises(SandboxError, match="SIGKILL"),
    ):
        box.ask(messages.Start())


@LINUX
def test_processes_and_their_folders_go_when_the_grader_is_killed(write, tmp_path):
    place = tmp_path / "place"
    submitted = write(
        "gemm_x.py", "import os\nopen('flag', 'w').write(f'{os.getpid()} {os.getcwd()}')\nwhile True: pass\n"
    )
    code = (
        "from pathlib import Path\nfrom common.grade import messages\nfrom common.grade.sandbox import Sandbox\n"
        f"with Sandbox(Path({str(submitted)!r}), 'gemm') as box:\n"
        f"    Path({str(place)!r}).symlink_to(box.work)\n    box.ask(messages.Start())\n"
    )
    grader = subprocess.Popen([sys.executable, "-c", code], cwd=catalog.ROOT)

    def wait_for(happened):
        deadline = time.monotonic() + PATIENCE
        while not happened():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    flag = place / "flag"
    wait_for(lambda: flag.exists() and " " in flag.read_text())
    pid, folder = flag.read_text().split()
    grader.kill()
    grader.wait()
    state = Path(f"/proc/{pid}/stat")
    wait_for(lambda: not state.exists() or " Z " in state.read_text())
    wait_for(lambda: not Path(folder).parent.exists())


def test_a_report_keeps_its_table_whatever_a_student_writes(tmp_path):
    found = [
        Grade("01.1", "a", "write", "anna"),
        Grade("01.1", "a", "write", "b|x", "", [check.Finding("wrong", "1 | yes |\n| eve | a | yes | <b>")]),
    ]
    as_json, as_table = folders.report(found, tmp_path)
    assert [entry["passed"] for entry in json.loads(as_json.read_text())] == [True, False]
    rows = as_table.read_text().splitlines()
    assert len(rows) == 4
    assert all(row.count("|") == 5 for row in rows)
    assert rows[3].startswith("| b&#124;x | a | no | wrong: 1 &#124; yes &#124; &#124; eve")
    assert "<b>" not in rows[3]


def test_a_report_keeps_indices(tmp_path):
    found = [
        Grade("01.1", "a", "write", "anna", "", [check.Finding("wrong", "c[0, 1] = 2, expected `b_tile[k, tx]`")])
    ]
    _, as_table = folders.report(found, tmp_path)
    assert html.unescape(as_table.read_text()).endswith("wrong: c[0, 1] = 2, expected `b_tile[k, tx]` |\n")


# --- the command line ---


@pytest.fixture
def call(capsys, monkeypatch, tmp_path):
    """Run a command in this process; returns exit code, standard output and standard error."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(exercises.State.__init__, "__defaults__", (tmp_path / "memory" / "state.json",))

    def call(*words):
        return (cli.main(words), *capsys.readouterr())

    return call


def test_grade_says_what_passes_and_remembers_it(call):
    code, out, _ = call("grade", "05.1", "--sim")
    assert code == 1
    assert "unanswered: no value yet for P, Q, GEMM_M" in out
    assert "a hint: python -m common hint 05.1" in out
    solved = exercises.find("05.1").solution
    code, out, err = call("grade", str(solved), "--sim", "--json")
    assert code == 0
    (verdict,) = json.loads(out)["grades"]
    assert (verdict["target"], verdict["passed"], verdict["student"]) == ("05.1", True, "")
    assert "passed" in err
    # a copy elsewhere is not the student's own
    assert "passed" not in call("progress")[1]


def test_a_pass_of_ones_own_shows_in_progress(call, monkeypatch):
    one = exercises.find("05.1")
    monkeypatch.setattr(exercises, "everything", lambda *_: [structs.replace(one, path=one.solution)])
    assert call("grade", "05.1", "--sim")[0] == 0
    said = f"05.1 another worked example, by hand: hint 1 of 3\n  {one.hints[0][:40]}"
    assert call("hint", "05.1")[1].startswith(said)
    out = call("progress")[1]
    assert "1 of 3" in out
    assert "passed" in out


def test_grade_a_folder_writes_its_report(call, tmp_path):
    for student, text in (("anna", exercises.find("05.1").solution.read_text()), ("bert", "")):
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
    assert "| anna | anna/predict_worked_example.py | yes |" in (out_folder / "grades.md").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["grade", "09"], "exercise '09' is unknown: there are 01.1"),
        (["grade", "nowhere/gemm_double.py"], "no such file"),
        (["grade", "01", "tests"], "tests: a folder of files to grade must be named alone"),
        (["grade", "01", "--seconds", "0"], "--seconds 0: must be more than 0, and less than a million"),
        (["grade", "01", "--seconds", "nan"], "--seconds nan: must be more than 0"),
        (["grade", "01", "--memory", "1e12"], "--memory 1e+12: must be more than 0, and less than a million"),
        (["grade", "01", "--memory", "-1"], "--memory -1: must be more than 0"),
        (["grade", "01", "--workers", "0"], "--workers 0: must be more than 0"),
        (["hint", "01.99"], "exercise '01.99' is unknown"),
    ],
)
def test_what_a_user_can_mend_is_one_line(call, words, says):
    code, out, err = call(*words, *(["--sim"] if words[0] == "grade" else []))
    assert (code, out) == (2, "")
    assert says in err


def test_a_verdict_is_told_though_it_cannot_be_kept(call, tmp_path):
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "predict_tiles.py").write_text("")
    (tmp_path / "out" / "grades.md").mkdir(parents=True)
    code, out, err = call("grade", str(tmp_path / "class"), "--sim", "--out", str(tmp_path / "out"))
    assert code == 1
    assert "not passed" in out
    assert "not kept: " in err
    (tmp_path / "file").write_text("")
    code, out, err = call("grade", str(tmp_path / "class"), "--sim", "--out", str(tmp_path / "file"))
    assert (code, out) == (2, "")
    assert "must be a folder to write to" in err


def test_an_empty_folder_is_said(call, tmp_path):
    (tmp_path / "empty").mkdir()
    code, _, err = call("grade", str(tmp_path / "empty"), "--sim")
    assert code == 2
    assert "no Python files in it" in err


# --- where processes come from ---


@LINUX
def test_a_process_answers_or_its_end_is_told(write):
    with Sandbox(write("gemm_x.py", ANSWERS), "gemm") as box:
        assert box.ask(messages.Start()) is None
    with (
        Sandbox(write("gemm_y.py", "import os\nos._exit(3)\n"), "gemm") as box,
        pytest.raises(SandboxError, match="exit code 3 and no result"),
    ):
        box.ask(messages.Start())


@LINUX
def test_a_signal_is_named(write):
    text = "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n"
    with (
        Sandbox(write("gemm_x.py", text), "gemm") as box,
        pytest.raises(SandboxError, match="died of SIGTERM"),
    ):
        box.ask(messages.Start())


@LINUX
def test_what_a_submission_starts_ends_with_it(write):
    text = "import subprocess\nopen('pid', 'w').write(str(subprocess.Popen(['sleep', '60']).pid))\n" + ANSWERS
    with Sandbox(write("gemm_x.py", text), "gemm") as box:
        box.ask(messages.Start())
        pid = (box.work / "pid").read_text()
        assert ("reaches_out", "import calls subprocess.Popen: a kernel file has no use for it") in box.notes
    state = Path(f"/proc/{pid}/stat")
    deadline = time.monotonic() + 5
    while state.exists() and " Z " not in state.read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not state.exists() or " Z " in state.read_text()


# --- on a GPU: recorded here, run where the file's Python is not ---


@pytest.fixture(scope="module")
def machine():
    return Machine(*run.measure_device())


@pytest.mark.gpu
@pytest.mark.xdist_group("gpu")
class TestOnGpu:
    @LINUX
    @EACH
    def test_the_cheat_is_found_and_named(self, path, checkout, machine, monkeypatch):
        monkeypatch.setattr(language, "refused", lambda *_: [])
        read(path, gpu=True).require(graded(path, checkout, machine))

    @pytest.mark.parametrize(
        "exercise", [one for one in exercises.everything() if one.kind != "predict"], ids=lambda one: one.number
    )
    def test_a_solution_passes(self, exercise, checkout, machine):
        verdict = graded(exercise.solution, checkout, machine, exercise.name)
        assert verdict.passed, verdict.reasons
        if exercise.floor:
            assert exercise.floor <= verdict.figures["percent_of_floor"] <= 100 * grade.BEYOND_FLOOR

    @pytest.mark.parametrize("name", ["gemm_tuned", "conv2d_unroll_gemm", "gemm_rectangular_tiles"])
    def test_a_step_takes_as_long_as_recorded(self, name, checkout, machine):
        from common.records import records

        step = catalog.find(name)
        verdict = graded(step.path, checkout, machine, name)
        assert verdict.passed, verdict.reasons
        path = records.RESULTS / f"{machine.gpu.slug}.json"
        row = records.Record.load(path).row("gemm-2048", name) if path.exists() else None
        if row:
            assert verdict.figures["ms"] == pytest.approx(row.timing.median_ms, rel=0.25)

    @pytest.mark.parametrize("name", WRONG)
    def test_a_wrong_kernel_is_called_what_it_is(self, name, checkout, machine):
        wrong = mutants.everything()[name]
        assert wrong.expect[0] in [finding.kind for finding in graded(wrong.path, checkout, machine).findings]
