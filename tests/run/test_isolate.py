"""Whatever a step file does to its process, its task gets a result and the tasks after it run."""

import os
import subprocess
import sys
import threading
import time

import kernels
import pytest
from processes import python
from sampling import some_days

from common.catalog import catalog, problems
from common.check import loading
from common.run import isolate, messages
from common.run.messages import at

GOOD = kernels.gemm()
ASK = "from common.run.messages import Compile\nfrom common.run import isolate\n"
LAUNCH = "def launch(a, b, c):\n    "
POSIX = pytest.mark.skipif(os.name != "posix", reason="signals")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="processes, seen in /proc")
PATIENCE = 300.0  # idle, a child answers in a second


@pytest.fixture
def task(write):
    """A task that compiles, for a step file with this text: the file is imported, and its launch called."""

    def task(name, text):
        path = write(f"{name}.py", text)
        return messages.Compile(path=str(path), ladder="gemm", shape={"M": 2, "N": 3, "K": 2}, architectures=["9.0"])

    return task


@pytest.fixture
def on_gpu(write):
    """A task for the process that owns the GPU, which it does not use: what the file says as it is imported."""

    def task(name, says):
        text = f"import os, time\n{says}\n"
        return messages.Size(path=str(write(f"{name}.py", text)), ladder="gemm", shape={"M": 2, "N": 3, "K": 2})

    return task


def run(tasks, seconds=PATIENCE):
    answered = list(isolate.run(tasks, False, seconds))
    assert [given for given, _ in answered] == tasks  # one answer each, in order
    return [result for _, result in answered]


def wait_for(happened, seconds=PATIENCE):
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def ended(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    try:  # a zombie that nobody has reaped yet has ended, too
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def alive(word):
    """Processes whose command line has this word."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", encoding="utf-8", errors="replace") as line:
                words = line.read().split("\0")
        except OSError:
            continue
        if any(word in one for one in words) and not ended(int(name)):
            found.append(int(name))
    return found


# --- crashes ---


def test_ways_to_end_a_process_and_the_tasks_after_them(task):
    tasks = [
        task("good", GOOD), task("quits", "import os\n" + LAUNCH + "os._exit(0)\n"),
        task("quits_early", "import os\nos._exit(3)\n"), task("leaves", "raise SystemExit(0)\n"),
        task("leaves_late", "import sys\n" + LAUNCH + "sys.exit(0)\n"),
        task("noisy", GOOD + "import os\nprint('{\"status\": \"wrong\"}')\nos.write(1, b'\\xff\\n{}\\n[')\n"),
        task("closes", "import os\nos.closerange(3, 99)\nx = 1\n"), task("good_again", GOOD),
    ]  # fmt: skip
    results = run(tasks)
    assert [result.status for result in results] == [
        "right", "crashed", "crashed", "crashed", "crashed", "right", "crashed", "right",
    ]  # fmt: skip
    assert "exit code 0 and no result" in results[1].message
    assert "exit code 3 and no result" in results[2].message
    assert "SystemExit at leaves.py:1" in results[3].message
    assert "SystemExit at leaves_late.py:3" in results[4].message


@POSIX
def test_a_signal_is_named_and_its_last_words_are_kept(task):
    tasks = [
        task("killed", "import os, signal\n" + LAUNCH + "os.kill(os.getpid(), signal.SIGKILL)\n"),
        task("faults", "import sys\nprint('about to fault', file=sys.stderr, flush=True)\nimport ctypes\n"
                       + LAUNCH + "ctypes.string_at(0)\n"),
        task("no_launch", "x = 1\n"),
    ]  # fmt: skip
    killed, faulted, unusable = run(tasks)
    assert (killed.status, faulted.status, unusable.status) == ("crashed", "crashed", "unusable")
    assert killed.message.startswith("the process died of SIGKILL")
    assert faulted.message.startswith("the process died of SIGSEGV; its last words: about to fault")
    assert "no_launch.py: launch is missing" in unusable.message


def test_an_error_and_a_refusal_are_told_apart(task):
    error = LAUNCH + "return undefined\n"
    syntax = "def launch(a, b, c:\n    pass\n"
    refusal = "def prepare(b, problem):\n    raise ValueError('K=2: too small')\n" + LAUNCH + "pass\n"
    files = {"error": error, "syntax": syntax, "refusal": refusal, "good": GOOD}
    results = run([task(name, text) for name, text in files.items()])
    assert [result.status for result in results] == ["crashed", "unusable", "refused", "right"]
    assert "NameError at error.py:2" in results[0].message
    assert results[1].message.startswith("syntax.py:1: syntax error: ")
    assert results[2].message == "K=2: too small"


# --- hangs ---


@POSIX
def test_an_endless_loop_is_stopped_with_all_its_children(task, tmp_path):
    pids = tmp_path / "pids"
    endless = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(pids)!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
while True:
    pass
"""
    stopped, unusable = run([task("endless", endless), task("no_launch", "x = 1\n")], seconds=1.0)
    assert stopped.status == "timed_out"
    assert stopped.seconds > 0
    assert stopped.message.startswith("the import was not done after 1 s: an endless loop?; it was in endless.py:")
    assert unusable.status == "unusable"
    for pid in map(int, pids.read_text().split()):
        wait_for(lambda pid=pid: ended(pid))


def test_after_a_time_out_the_files_other_shapes_are_not_tried(task):
    hangs, good = task("hangs", "while True:\n    pass\n"), task("good", GOOD)
    results = run([hangs, hangs, hangs, good, hangs], seconds=1.0)
    assert [result.status for result in results] == ["timed_out"] * 3 + ["right", "timed_out"]
    assert results[1].message == "not tried: it gave no result in time at M=2 N=3 K=2"


# --- limits ---


@LINUX
def test_memory_that_is_refused_is_a_fault_with_its_line(task):
    (result,) = run([task("greedy", GOOD.replace("    product[", "    bytearray(1 << 42)\n    product["))])
    assert result.status == "crashed"
    assert (result.faults[0].kind, result.faults[0].code) == ("memory", "bytearray(1 << 42)")


@POSIX
def test_a_file_grows_to_its_limit_and_no_further(task, monkeypatch):
    monkeypatch.setattr(isolate, "FILE_BYTES", 1 << 20)
    writes = "import os\nwith open('big', 'wb') as file:\n    file.write(bytes(1 << 21))\n    file.flush()\n"
    big, good = run([task("big", writes), task("good", GOOD)])
    assert (big.status, good.status) == ("crashed", "right")
    assert "File too large" in big.message


# --- nothing is left, nothing is forged ---


@LINUX
def test_a_killed_harness_leaves_neither_process_nor_folder(task, tmp_path):
    pid = tmp_path / "pid"
    seconds = f"86401.{os.getpid()}"
    text = (
        "import os, subprocess, time\n"
        f"subprocess.Popen(['sleep', {seconds!r}], env={{}})\n"
        f"open({str(pid)!r}, 'w').write(str(os.getpid()))\nos.chdir('/')\ntime.sleep(600)\n"
    )
    code = f"{ASK}list(isolate.run([{task('hangs', text)!r}], False, 60.0))\n"
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=catalog.ROOT, env=env)
    wait_for(lambda: pid.exists() and pid.read_text() and alive(seconds))
    parent.kill()
    parent.wait()
    wait_for(lambda: ended(int(pid.read_text())) and not alive(seconds) and not list(tmp_path.glob("workbook-*")))


# --- what is asked, and when ---


def test_groups_keep_their_order_whoever_ends_first(task):
    slow = "import time\ntime.sleep(1.5)\n"
    groups = [
        [task("slow", slow), task("a", "x = 1\n")],
        [task("b", "x = 1\n")],
        [task("c", "import os\nos._exit(1)\n"), task("d", "x = 1\n")],
    ]
    answered = list(isolate.run_groups(groups, False, PATIENCE, workers=2))
    assert [given for given, _ in answered] == [one for group in groups for one in group]
    assert [result.status for _, result in answered] == [
        "unusable", "unusable", "unusable", "crashed", "unusable",
    ]  # fmt: skip


@LINUX
def test_when_closed_nothing_runs_on_and_nothing_is_left(task, tmp_path, monkeypatch):
    """As when Ctrl-C is pressed, whatever the files do."""
    monkeypatch.setattr(isolate.tempfile, "tempdir", str(tmp_path))
    begun = [tmp_path / "one", tmp_path / "two"]
    hangs = [task(one.name, f"open({str(one)!r}, 'w').close()\nsum(range(10**15))\n") for one in begun]

    def close():
        wait_for(lambda: all(one.exists() for one in begun))
        isolate.close()

    closing = threading.Thread(target=close)
    closing.start()
    try:
        assert list(isolate.run_groups([[one] for one in hangs], False, 600.0, workers=2)) == []
        assert list(isolate.run(hangs, False, PATIENCE)) == []
    finally:
        closing.join()
        isolate.reopen()
    wait_for(lambda: not alive(str(tmp_path)))
    assert not list(tmp_path.glob("workbook-*"))


@pytest.mark.parametrize("method", ["fork server", "spawn"])
def test_the_environment_is_this_processs_however_the_child_starts(method, task, monkeypatch):
    monkeypatch.setenv("WORD", "seen")
    if method == "spawn":  # as on Windows and macOS
        monkeypatch.setattr(isolate, "METHOD", "spawn")
    tell = "import os, sys\nraise RuntimeError(f\"{os.environ['WORD']} {os.environ.get('NUMBA_ENABLE_CUDASIM')}\")\n"
    tasks = [task("tell", tell), task("good", GOOD)]
    told, good = run(tasks)
    assert told.message.endswith("seen None")
    assert good.status == "right"


# --- under a tool ---


@POSIX
def test_watched_runs_under_the_command_and_returns_its_output(task):
    tell = "import os\nprint('seen', os.environ.get('WATCHER'))\nx = 1\n"
    results, output = isolate.watched([task("tell", tell), task("quits", "import os\nos._exit(0)\n")],
                                      ["env", "WATCHER=here"], PATIENCE)  # fmt: skip
    assert [result.status for result in results] == ["unusable"]  # the second ended the process
    assert "seen here" in output


# --- the process that owns the GPU; what these files do needs none ---

PID = "raise ValueError(f'pid {os.getpid()}')"


def pids(results):
    return [result.message.rpartition("pid ")[2] for result in results]


def test_one_process_owns_the_gpu_for_all_who_ask(on_gpu):
    first, second = pids(run([on_gpu("a", PID), on_gpu("b", PID)]))
    assert first == second
    assert pids(run([on_gpu("c", PID)])) == [first]
    isolate.cool()
    assert pids(run([on_gpu("c", PID)])) != [first]


def test_what_failed_shares_its_process_with_itself_alone(on_gpu):
    fails = on_gpu("fails", "raise RuntimeError(f'pid {os.getpid()}')")
    first, again, other = pids(run([fails, fails, on_gpu("other", PID)]))
    assert first == again != other


def test_the_owner_that_dies_is_replaced_and_the_rest_goes_on(on_gpu):
    results = run([on_gpu("a", PID), on_gpu("dies", "os._exit(1)"), on_gpu("c", PID)])
    assert [result.status for result in results] == ["refused", "crashed", "refused"]
    first, _, last = pids(results)
    assert first != last


def test_when_a_lessons_code_was_written_there_is_a_fresh_owner(on_gpu, write, monkeypatch, tmp_path):
    monkeypatch.setattr(catalog, "LESSONS", tmp_path / "lessons")
    task = on_gpu("a", PID)
    (first,) = pids(run([task]))
    assert pids(run([task])) == [first]
    write("lessons/helper.py", "SIZE = 4")
    assert pids(run([task])) != [first]


@POSIX
def test_watched_ends_what_the_tool_started(task, tmp_path):
    pid = tmp_path / "pid"
    # as ncu does it, in a process of its own
    tool = ["sh", "-c", f"sleep 600 > '{os.devnull}' 2>&1 & echo $! > '{pid}'; wait", "sh"]
    with pytest.raises(TimeoutError, match="sh was not done within 1 s"):
        isolate.watched([task("unused", "")], tool, 1.0)
    wait_for(lambda: ended(int(pid.read_text())))


@pytest.mark.gpu
def test_a_step_is_checked_and_timed_by_the_owner_of_the_gpu():
    step = catalog.find("gemm_naive")
    place = at(step, problems.FIRST["gemm"])
    found = list(
        isolate.run(
            [messages.Check(**place, engine="gpu"), messages.Ask(function=loading.this_device)], False, PATIENCE
        )
    )
    assert [result.status for _, result in found] == ["right", "right"]
    assert isolate._owner is not None
    assert isolate._owner.waits


@LINUX
@some_days(5)
def test_one_operation_without_an_end_is_ended_from_outside(task, monkeypatch):
    """It holds the interpreter, so that no thread of its process can tell."""
    monkeypatch.setattr(isolate, "SILENT", 3)
    monkeypatch.setattr(isolate, "START_SECONDS", 10.0)
    (result,) = run([task("hangs", "digits = 7 ** (10 ** 9)\n" + GOOD)], seconds=1.0)
    assert result.status == "timed_out"
    assert result.message == "no sign of life: one operation that does not end?"


def test_packages_of_the_same_names_are_not_taken_for_the_workbooks(tmp_path):
    for name in ("common", "lessons"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('somebody else's')")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    python("-m", "common", "check", "gemm_naive", "--sim", "--shape", "M=2 N=2 K=2", env=env)
