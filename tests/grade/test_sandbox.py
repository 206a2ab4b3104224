"""What the grader's side of a sandbox decides, without a process: answers, limits, notes, what is handed over."""

import ast
import contextlib
import io
import json
import os
import queue
import re
import signal
import subprocess
import sys
import time
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from numba import cuda

from common.catalog import boundstep, catalog, device, problems, schema
from common.check import check
from common.grade import audit, harness, messages, sandbox, sandbox_child, traced_run
from common.grade.sandbox import Limits, RemoteArray, Sandbox, SandboxError
from common.run import isolate

POSIX = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


@pytest.fixture
def box(tmp_path, monkeypatch):
    """A sandbox whose process says nothing."""
    made = Sandbox(tmp_path / "gemm_x.py", "gemm", Limits(seconds=0.02, start_seconds=0.03))
    made.folder, made.work, made._before = tmp_path, tmp_path / "work", {}
    made.work.mkdir()
    (tmp_path / "log.txt").write_text("")
    made._process, made._answers = SimpleNamespace(stdin=io.BytesIO()), queue.Queue()
    monkeypatch.setattr(isolate, "end", lambda *_: 0)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.5, 0, 0), raising=False)
    return made


def test_a_process_that_is_late_and_one_that_hangs_are_told_apart(box):
    with pytest.raises(SandboxError, match=r"no process was ready for it within 0\.03 s") as late:
        box.ask(messages.Start())
    with pytest.raises(SandboxError, match=r"no result within 0\.02 s: an endless loop") as hangs:
        box.ask(messages.Launch())
    assert (late.value.kind, hangs.value.kind) == ("unjudged", "timed_out")


@pytest.mark.parametrize(("load", "waits"), [(2, "0.02"), (8, "0.08"), (900, "0.16")])
def test_a_crowded_machine_gets_more_time(box, monkeypatch, load, waits):
    """An exercise's own solution must not be taken for an endless loop because others are at work."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0, 0), raising=False)
    with pytest.raises(SandboxError, match=rf"no result within {waits} s: "):
        box.ask(messages.Launch())


@POSIX
@pytest.mark.parametrize(
    ("name", "disturbed"),
    [
        *((name, True) for name in ("KILL", "TERM", "INT", "HUP", "STOP", "QUIT", "USR1")),
        *((name, False) for name in ("SEGV", "ABRT", "FPE", "BUS", "XCPU", "XFSZ")),
    ],
)
def test_only_signals_from_outside_are_somebody_elses(box, monkeypatch, name, disturbed):
    monkeypatch.setattr(isolate, "end", lambda *_: -getattr(signal, f"SIG{name}"))
    ended = box._ended()
    assert (ended.kind, ended.disturbed) == ("crashed", disturbed)
    assert f"SIG{name}" in str(ended)


def test_an_exit_code_of_zero_is_no_verdict(box):
    ended = box._ended()
    assert (ended.kind, ended.disturbed) == ("exited", False)


def test_plans_are_no_changes_and_errors_no_verdicts(box):
    (box.work / "plans").mkdir()
    (box.work / "plans" / "0-0.json").write_text("{}")
    (box.folder / "log.txt").write_text("TypeError: not right\n")
    box._look()
    assert box.notes == []
    (box.work / "more.py").write_text("")
    (box.folder / "log.txt").write_text("TypeError: not right\nverdict: right\npassed\n")
    box._look()
    assert box.notes == [
        ("changed_files", "changed its copy of more.py (new)"),
        ("printed", "printed 'verdict: right': nothing that it prints is read"),
    ]


def test_what_became_of_a_file_is_said():
    before, after = {"a": 1, "b": 1, "c": 1}, {"a": 2, "c": 1, "d": 1}
    assert sandbox.differences(before, after) == ["a (overwritten)", "b (deleted)", "d (new)"]


def test_little_of_this_environment_is_passed_on(box, monkeypatch, tmp_path):
    monkeypatch.setenv("SECRET_TOKEN", "x")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", str(catalog.ROOT), str(tmp_path)]))
    found = box._environment()
    assert "SECRET_TOKEN" not in found
    assert found["PYTHONPATH"] == str(tmp_path)  # not the checkout: its harness is the copy
    assert {found[name] for name in ("HOME", "TEMP", "TMP", "TMPDIR")} == {str(box.work)}
    assert found["CUDA_VISIBLE_DEVICES"] == "-1"


def test_only_helpers_that_lessons_share_are_handed_over(monkeypatch, tmp_path):
    sandbox._shipped_helpers.cache_clear()
    shared, own = catalog.LESSONS / "wide.py", catalog.LESSONS / "01_naive" / "helpers" / "x.py"
    monkeypatch.setattr(sandbox.shipped, "edited_helpers", lambda: [shared, own])
    monkeypatch.setattr(sandbox.shipped, "text", lambda path: path.name.encode())
    assert sandbox._shipped_helpers() == {"wide.py": b"wide.py"}
    sandbox._shipped_helpers.cache_clear()


# --- the harness in its folder ---


def imports(path):
    """The modules of the harness that a file imports anywhere, or names by a text, and what contains them."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, path
            names = [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = re.findall(r"\Acommon\.[\w.]+\Z", node.value)
        for parts in (name.split(".") for name in names if name.split(".")[0] == "common"):
            for count in range(1, len(parts) + 1):
                place = catalog.ROOT.joinpath(*parts[:count])
                yield from (file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file())


def test_a_process_gets_all_that_it_may_import_and_no_more():
    given = harness.files()
    child = catalog.ROOT / "common/grade/sandbox_child.py"
    wanted = {file for path in given for file in imports(path)}
    assert wanted | {child} == set(given)
    judging = ("grading/grade.py", "grading/sandbox.py", "grading/answers.py", "cli.py", "report/records.py")
    assert not set(given) & {catalog.ROOT / "common" / name for name in judging}


def test_imports_are_found_however_they_are_written(write):
    names = ("a", "b", "c", "d", "e", "f", "g", "h")
    for name in names:
        write(f"common/{name}.py", "")
    write("common/grade/__init__.py", "from common import a\n")
    child = """
import common.b  # common.x
if 1:
    from common import (c as q,
        d)
def late():
    from common.e import name, other as more
    __import__("common.f")
"""
    path = write("common/grade/sandbox_child.py", child)
    root = path.parents[2]
    write("common/e.py", "from common import g, h\n")
    assert sorted(file.stem for file in harness.files(root)) == ["__init__", *names, "sandbox_child"]


def test_a_module_is_taken_as_it_was_compiled_while_its_source_is_the_same(tmp_path, write):
    target = tmp_path / "copy" / "module.py"
    harness.put(b"import sys\ndef where():\n    return sys._getframe().f_code.co_filename\n", target)
    (compiled,) = (target.parent / "__pycache__").iterdir()
    ask = "import module\nprint(module.__cached__, module.where())"

    def imported():
        command = [sys.executable, "-B", "-v", "-c", ask]
        done = subprocess.run(command, cwd=target.parent, capture_output=True, text=True, check=True)
        return f"{compiled} matches {target}" in done.stderr, done.stdout

    taken, said = imported()
    assert taken
    assert f"{compiled} {target}" in said
    harness.put(b"no Python", tmp_path / "copy" / "other.py")
    assert list((target.parent / "__pycache__").iterdir()) == [compiled]
    target.write_text("def where():\n    return 'new'\n")
    taken, said = imported()
    assert (taken, said.endswith(" new\n")) == (False, True)


def test_a_compiled_copy_that_was_changed_is_noted(box):
    harness.put(b"x = 1\n", box.work / "common" / "module.py")
    box._before = sandbox.contents(box.work)
    (compiled,) = (box.work / "common" / "__pycache__").iterdir()
    compiled.write_bytes(b"")
    box._look()
    assert [kind for kind, _ in box.notes] == ["changed_files"]


def test_processor_time_is_enough_for_several_answers():
    assert [sandbox.cpu_seconds(seconds) for seconds in (1.0, 60.0, 61.0)] == [300, 300, 305]


def test_an_operand_lies_between_its_margins():
    array = RemoteArray((2, 3), np.dtype(np.float32))
    array.set(np.arange(6).reshape(2, 3))
    np.testing.assert_array_equal(array.get(), np.arange(6).reshape(2, 3))
    assert array.nbytes == 4 * (6 + 2 * check.MARGIN)
    array.blank()
    assert np.isnan(array.get()).all()
    assert array.trespasses() == []
    flat = np.frombuffer(array.tobytes(), np.float32).copy()
    flat[check.MARGIN + 6] = 1.0
    array.frombytes(flat.tobytes())
    assert array.trespasses() == [6]


@pytest.mark.parametrize(
    "found", [3, None, [3], [["k", [1]]], [["k", [1], [1], "x", ""]], [["k", [float("inf")], 1, ""]]]
)
def test_what_does_not_say_what_was_launched_is_broken(found):
    with pytest.raises(schema.SchemaError, match=r"^answer\.found.* must be "):
        messages.found(messages.Launch(), messages.Answer("done", [], found=found))


# --- what is noted in its own process ---


@pytest.mark.parametrize(
    ("event", "through", "noted"),
    [
        ("os.system", "", True),
        ("os.system", audit.STDLIB, True),
        ("os.system", f"{audit.STDLIB}/site-packages", False),
        ("sys._getframe", "", True),
        ("sys._getframe", audit.STDLIB, False),  # as namedtuple does
        ("os.listdir", "", False),
    ],
)
def test_what_a_file_does_itself_and_what_a_package_does_for_it(event, through, noted):
    seen = audit.Audit("student.py")
    names = {"heard": seen._heard}
    asks = f"{through}/asks.py" if through else "student.py"
    exec(compile("def ask(event):\n    heard(event, ())\n", asks, "exec"), names)
    exec(compile(f"ask({event!r})", "student.py", "exec"), names)
    wanted = ("reaches_out", f"import calls {event}: a kernel file has no use for it")
    assert list(seen.notes) == ([wanted] if noted else [])


def test_methods_of_the_harness_are_watched_too(monkeypatch):
    monkeypatch.setitem(sys.modules, "common.nothing", None)  # no module: passed over
    seen = audit.Audit("student.py")
    seen._tools = dict(audit._tools())
    seen.look()
    assert seen.notes == {}
    monkeypatch.setattr(boundstep.BoundStep, "launch", print)
    seen.look()
    assert [message.split(":")[0] for _, message in seen.notes] == ["replaces BoundStep.launch"]


@pytest.fixture
def staged():
    module = ModuleType("gemm_x")
    module.launch = lambda a, b, c: None
    return traced_run.TracedRun(module, problems.Gemm(M=3, N=4, K=5), audit.Audit("student.py"), 8)


def test_while_weights_are_prepared_there_is_no_input(staged):
    for buffer in staged.buffers:
        buffer[:] = 7
    staged.prepare()
    assert [set(buffer) for buffer in staged.buffers] == [{0}, {7}, {0}]


@pytest.mark.parametrize("name", ["__array__", "__array_struct__"])
def test_a_way_around_a_kernel_to_an_operand_is_noted_in_a_launch_alone(staged, name):
    getattr(staged.arrays[0], name)
    assert staged.audit.notes == {}
    staged.audit.phase = "launch"
    getattr(staged.arrays[0], name)
    assert [kind for kind, _ in staged.audit.notes] == ["host_access"]


def test_what_a_kernel_does_to_its_operands_is_no_reaching_in(staged):
    @cuda.jit
    def store(a, c):
        c[0, 0] = a[0, 0] + c.size

    staged.step.module.launch = lambda a, b, c: store[1, 1](a, c)
    staged.prepare()
    assert [name for name, *_ in staged.launch()] == ["store"]
    assert staged.audit.notes == {}
    staged.step.module.launch = lambda a, b, c: c.__setitem__((0, 0), 1)
    staged.launch()
    assert [kind for kind, _ in staged.audit.notes] == ["host_access", "host_write"]


def test_what_a_kernel_reaches_through_another_argument_is_no_reaching_in(staged):
    """As the array behind a tensor map."""

    @cuda.jit
    def store(held, c):
        c[0, 0] = held.array[0, 0]

    staged.step.module.launch = lambda a, b, c: store[1, 1](SimpleNamespace(array=a), c)
    staged.prepare()
    assert [name for name, *_ in staged.launch()] == ["store"]
    assert staged.audit.notes == {}
    staged.step.module.launch = lambda a, b, c: [store[1, 1](SimpleNamespace(array=a), c), a[0, 0]]
    staged.launch()
    assert [kind for kind, _ in staged.audit.notes] == ["host_access"]


@POSIX
@pytest.mark.parametrize("there", [True, False])
def test_a_process_ends_with_its_grader_and_takes_its_own_and_its_folder_along(tmp_path, there):
    folder = tmp_path / "own"
    code = f"""
import subprocess, sys, time
from pathlib import Path
from common.grade import sandbox_child
sandbox_child._end_with_the_grader(Path({str(folder)!r}))
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid, flush=True)
time.sleep(60)
"""
    if there:
        (folder / "deep").mkdir(parents=True)
        (folder / "deep" / "file").write_text("x")
    with watched(code) as process:
        assert int(process.stdout.readline()) > 0
        time.sleep(0.3)
        assert process.poll() is None  # while somebody can ask, it stays
        assert folder.exists() == there
        process.stdin.close()
        assert process.wait(20) == -signal.SIGKILL
        assert not folder.exists()
        assert process.stdout.read() == b""  # the one that it started has ended, too: nobody can write


@POSIX
def test_a_process_that_has_nothing_left_to_do_ends_by_itself(tmp_path):
    code = f"""
from pathlib import Path
from common.grade import sandbox_child
sandbox_child._end_with_the_grader(Path({str(tmp_path)!r}))
"""
    with watched(code) as process:
        assert process.wait(20) == 0
        assert tmp_path.exists()


@contextlib.contextmanager
def watched(code):
    """A process in a group of its own, which is ended whatever it does."""
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=catalog.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            pipe.close()


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (SystemExit(3), "exited", "exit code 3 in place of an output: an exit code is no verdict"),
        (SystemExit(), "exited", "exit code 0 in place of an output"),
        (MemoryError(), "crashed", "it takes more memory than it is given"),
        (ValueError("no"), "crashed", "ValueError: no"),
    ],
)
def test_an_answer_says_what_became_of_the_question(tmp_path, monkeypatch, error, status, says):
    def fail(self):
        raise error

    monkeypatch.setattr(sandbox_child.Child, "start", fail)
    child = sandbox_child.Child(tmp_path / "gemm_x.py", "gemm", tmp_path / "exchange.bin", 8, enclosed=7)
    assert sandbox_child.answer(child, b'{"ask": "ready"}') == messages.Answer("done", [], found=7)
    found = sandbox_child.answer(child, b'{"ask": "start"}')
    assert found.status == status
    assert says in found.message


@pytest.mark.parametrize(
    ("question", "says"),
    [
        (
            b'{"ask": "pass"}',
            "question.ask must be one of ready, start, bind, prepare, launch, trace, sample, record",
        ),
        (b'{"ask": "bind", "shape": {"M": "1"}}', "question.shape.M must be an integer, is '1'"),
        (b'{"ask": "start", "more": 1}', "question.more is unknown: allowed are none"),
        (b"{", "JSONDecodeError"),
    ],
)
def test_a_question_that_is_none_is_told(tmp_path, question, says):
    child = sandbox_child.Child(tmp_path / "gemm_x.py", "gemm", tmp_path / "exchange.bin", 8)
    found = sandbox_child.answer(child, question)
    assert (found.status, says in found.message) == ("crashed", True), found.message


def test_what_questions_need_is_there_before_the_file(monkeypatch):
    imported = []
    monkeypatch.setattr(sandbox_child.importlib, "import_module", imported.append)
    sandbox_child._import_all()
    own = ("explain.faults", "code.codegen", "grading.traced_run", "grading.ptx_plan", "report.tracewords")
    assert imported == [f"common.{name}" for name in own]


ASKS = """from numba import cuda
from lessons.card import shared_bytes


@cuda.jit
def k(a, b, c):
    pass


def launch(a, b, c):
    k[shared_bytes() // 1024, 1](a, b, c)
"""


@pytest.mark.parametrize(("played", "has"), [("", 227), ("7.5", 64), ("8.6", 99)])
def test_a_file_is_told_the_shared_memory_of_the_card_that_runs(tmp_path, monkeypatch, played, has):
    """Also without a look at the GPU; what is written down for it starts with the same."""
    monkeypatch.setenv(device.CARD_SWITCH, played)
    path = tmp_path / "gemm_x.py"
    path.write_text(ASKS)
    shape = {"M": 1, "N": 1, "K": 1}
    with Sandbox(path, "gemm") as box:
        box.send(0, bytes(1 << 18))  # operands
        box.ask(messages.Start())
        box.ask(messages.Record(shape=shape, architecture="9.0", name="plan"))
        (launch,) = json.loads(box.plan_file("plan.json"))["launch"]
        assert launch["grid"] == [has, 1, 1]
        box.ask(messages.Bind(shape=shape))
        box.ask(messages.Prepare())
        ((_, grid, *_),) = box.ask(messages.Launch())
        assert grid[0] == has
