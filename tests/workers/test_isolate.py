"""Whatever a step file does to its process, its task gets a result and the tasks after it run."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from common.book import catalog, device
from common.jobs import messages
from common.workers import isolate

GOOD = """
from numba import cuda, float32

@cuda.jit
def product(a, b, c):
    n, m = cuda.grid(2)
    if m < c.shape[0] and n < c.shape[1]:
        acc = float32(0.0)
        for k in range(a.shape[1]):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc

def launch(a, b, c):
    product[(1, 1), (4, 4)](a, b, c)
"""
ASK = "from common.jobs.messages import Check\nfrom common.workers import isolate\n"
LAUNCH = "def launch(a, b, c):\n    "
POSIX = pytest.mark.skipif(os.name != "posix", reason="signals")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="adopted processes, seen in /proc")
PATIENCE = 60.0  # idle, a child answers in two seconds


@pytest.fixture
def task(write):
    """A check task for a step file with this text."""

    def task(name, text):
        path = write(f"{name}.py", text)
        return messages.Check(path=str(path), ladder="gemm", shape={"M": 2, "N": 3, "K": 2}, repeats=1)

    return task


def run(tasks, seconds=PATIENCE):
    answered = list(isolate.run(tasks, True, seconds))
    assert [given for given, _ in answered] == tasks  # one answer each, in order
    return [result for _, result in answered]


# What Numba takes of it.
COLORAMA = """
__version__ = "0.4.6"
init = reinit = deinit = lambda: None
class Style:
    BRIGHT, RESET_ALL = "\\x1b[1m", "\\x1b[0m"
class Fore:
    RED = GREEN = YELLOW = BLUE = MAGENTA = CYAN = WHITE = BLACK = RESET = LIGHTWHITE_EX = "\\x1b[31m"
    LIGHTRED_EX = LIGHTGREEN_EX = LIGHTYELLOW_EX = LIGHTBLUE_EX = LIGHTMAGENTA_EX = LIGHTCYAN_EX = RED
"""


def test_what_the_compiler_says_has_no_colours(task, write, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(write("site/colorama.py", COLORAMA).parent))
    check = task("gemm_sum", GOOD.replace("float32(0.0)", "a"))
    sum_of_array = messages.Compile(path=check.path, ladder="gemm", shape=check.shape, architectures=["9.0"])
    ((_, result),) = isolate.run([sum_of_array], False, PATIENCE)
    assert result["status"] == "crashed"
    assert "TypingError" in result["message"]
    assert "x1b" not in result["message"]


def test_ways_to_end_a_process_and_the_tasks_after_them(task):
    tasks = [
        task("good", GOOD),
        task("quits", "import os\n" + LAUNCH + "os._exit(0)\n"),
        task("quits_early", "import os\nos._exit(3)\n"),
        task("leaves", "raise SystemExit(0)\n"),
        task("leaves_late", "import sys\n" + LAUNCH + "sys.exit(0)\n"),
        task("noisy", GOOD + "import os\nprint('{\"status\": \"right\"}')\nos.write(1, b'\\xff\\n{}\\n[')\n"),
        task("good_again", GOOD),
    ]
    results = run(tasks)
    assert [result["status"] for result in results] == [
        "right", "crashed", "crashed", "crashed", "crashed", "right", "right",
    ]  # fmt: skip
    assert "exit code 0 and no result" in results[1]["message"]
    assert "exit code 3 and no result" in results[2]["message"]
    assert "SystemExit at leaves.py:1" in results[3]["message"]
    assert "SystemExit at leaves_late.py:3" in results[4]["message"]
    for result in (results[0], results[5], results[6]):
        assert result["elements_compared"] == 18
        assert result["findings"] == []


@POSIX
def test_a_signal_is_named_and_its_last_words_are_kept(task):
    tasks = [
        task("killed", "import os, signal\n" + LAUNCH + "os.kill(os.getpid(), signal.SIGKILL)\n"),
        task("faults", "import sys\nprint('about to fault', file=sys.stderr, flush=True)\nimport ctypes\n"
                       + LAUNCH + "ctypes.string_at(0)\n"),
        task("no_launch", "x = 1\n"),
    ]  # fmt: skip
    killed, faulted, unusable = run(tasks)
    assert (killed["status"], faulted["status"], unusable["status"]) == ("crashed", "crashed", "unusable")
    assert killed["message"].startswith("the process died of SIGKILL")
    assert faulted["message"].startswith("the process died of SIGSEGV; its last words: about to fault")
    assert "no_launch.py: launch is missing" in unusable["message"]


@pytest.mark.skipif(sys.platform != "linux", reason="real-time signals")
def test_a_signal_without_a_name_is_told_by_its_number(task):
    dies = "import os\n" + LAUNCH + "os.kill(os.getpid(), 40)\n"
    (result,) = run([task("dies", dies)])
    assert result["status"] == "crashed"
    assert "40" in result["message"]


@POSIX
def test_an_endless_loop_is_stopped_with_all_its_children(task, tmp_path):
    pids = tmp_path / "pids"
    endless = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(pids)!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
while True:
    time.sleep(0.05)
"""
    stopped, unusable = run([task("endless", endless), task("no_launch", "x = 1\n")], seconds=6.0)
    assert stopped["status"] == "timed_out"
    assert stopped["seconds"] > 0
    assert stopped["message"].startswith(
        "the import was not done after 6 s: an endless loop?; it was in endless.py:5"
    )
    assert unusable["status"] == "unusable"
    for pid in map(int, pids.read_text().split()):
        wait_for(lambda pid=pid: ended(pid), 20)


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


def test_a_wrong_step_an_error_and_a_refusal_are_told_apart(task):
    zeros = LAUNCH + "c[0, 0] = 1.0\n"
    error = LAUNCH + "return undefined\n"
    syntax = "def launch(a, b, c:\n    pass\n"
    refusal = "def prepare(b, problem):\n    raise ValueError('K=2: too small')\n" + LAUNCH + "pass\n"
    results = run([task("wrong", zeros), task("error", error), task("syntax", syntax), task("refusal", refusal)])
    assert [result["status"] for result in results] == ["wrong", "crashed", "unusable", "refused"]
    assert results[0]["findings"][0]["kind"] == "unwritten"
    assert "NameError at error.py:2" in results[1]["message"]
    assert results[2]["message"].startswith("syntax.py:1: syntax error, ")
    assert results[3]["message"] == "K=2: too small"


def test_a_mistake_in_launch_is_no_refusal(task):
    unpack = LAUNCH + "M, N, K = c.shape\n"
    inside = "import numpy as np\n" + LAUNCH + "np.zeros(3).reshape(2, 2)\n"
    results = run([task("unpack", unpack), task("inside", inside)])
    assert [result["status"] for result in results] == ["crashed", "crashed"]


def test_after_a_device_error_the_rest_runs_in_a_fresh_process(task):
    tell = "import os\nraise RuntimeError(f'pid {os.getpid()}')\n"
    fault = "import os\nraise RuntimeError(f'CUDA_ERROR_ILLEGAL_ADDRESS pid {os.getpid()}')\n"
    results = run([task("first", tell), task("second", tell), task("fault", fault), task("after", tell)])
    assert all("fatal" not in result for result in results)  # a matter between parent and child
    first, second, third, fourth = (result["message"].rpartition("pid ")[2] for result in results)
    assert first == second == third != fourth


def test_what_no_gpu_would_launch_is_refused(task):
    launch = "from numba import cuda\n@cuda.jit\ndef k(c): pass\n" + LAUNCH + "k[{}](c)\n"
    results = run([task("block", launch.format("1, (64, 32)")), task("grid", launch.format("(1, 65536), 1"))])
    assert [result["status"] for result in results] == ["crashed", "crashed"]
    assert "2048 threads: a block holds at most 1024" in results[0]["message"]
    assert "y must be from 1 to 65535" in results[1]["message"]


def test_groups_keep_their_order_whoever_ends_first(task):
    slow = "import time\ntime.sleep(1.5)\n"
    groups = [
        [task("slow", slow), task("a", "x = 1\n")],
        [task("b", "x = 1\n")],
        [task("c", "import os\nos._exit(1)\n"), task("d", "x = 1\n")],
    ]
    answered = list(isolate.run_groups(groups, True, PATIENCE, workers=2))
    assert [given for given, _ in answered] == [one for group in groups for one in group]
    assert [result["status"] for _, result in answered] == [
        "unusable", "unusable", "unusable", "crashed", "unusable",
    ]  # fmt: skip


def test_results_come_one_by_one(task, tmp_path):
    flag = tmp_path / "flag"
    waits = f"import os, time\nwhile not os.path.exists({str(flag)!r}):\n    time.sleep(0.02)\n"
    results = isolate.run([task("first", "x = 1\n"), task("second", waits)], True, PATIENCE)
    assert next(results)[1]["status"] == "unusable"  # the second has not ended
    flag.touch()
    assert next(results)[1]["status"] == "unusable"
    assert next(results, None) is None


def test_nothing_to_do_starts_no_process(monkeypatch):
    monkeypatch.setattr(isolate.subprocess, "Popen", None)
    assert list(isolate.run([], True, PATIENCE)) == []
    assert list(isolate.run_groups([], True, PATIENCE, workers=2)) == []


@POSIX
def test_a_child_ends_with_its_parent(task, tmp_path):
    pid = tmp_path / "pid"
    endless = task("endless", f"import os\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\nwhile True: pass\n")
    code = f"{ASK}list(isolate.run([{endless!r}], True, 60.0))\n"
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=catalog.ROOT, start_new_session=True)
    wait_for(lambda: pid.exists() and pid.read_text())
    parent.kill()
    parent.wait()
    wait_for(lambda: ended(int(pid.read_text())))


def wait_for(happened, seconds=PATIENCE):
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_gpu_is_hidden_from_whoever_does_without(task, monkeypatch):
    monkeypatch.setattr(device, "gpu_count", lambda: 1)
    tell = "import os\nraise RuntimeError(os.environ.get('CUDA_VISIBLE_DEVICES', 'unset'))\n"
    for without, seen in ((True, "-1"), (False, os.environ.get("CUDA_VISIBLE_DEVICES", "unset"))):
        ((_, result),) = isolate.run([task(f"tell_{without}", tell)], without, PATIENCE)
        assert result["message"].endswith(f": {seen}")


def test_results_are_plain_json(task):
    (result,) = run([task("no_launch", "x = 1\n")])
    assert json.loads(json.dumps(result)) == result


def test_the_child_runs_this_interpreter(task):
    tell = "import sys\nraise RuntimeError(sys.executable)\n"
    (result,) = run([task("tell", tell)])
    assert sys.executable in result["message"]


@POSIX
def test_watched_runs_under_the_command_and_returns_its_output(task):
    tell = "import os\nprint('seen', os.environ.get('WATCHER'))\nx = 1\n"
    results, output = isolate.watched([task("tell", tell), task("quits", "import os\nos._exit(0)\n")],
                                      ["env", "WATCHER=here"], PATIENCE)  # fmt: skip
    assert [result["status"] for result in results] == ["unusable"]  # the second ended the process
    assert "seen here" in output


@POSIX
def test_watched_ends_what_the_tool_started(task, tmp_path):
    pid = tmp_path / "pid"
    # as ncu does it, in a process of its own; not Python, which takes its time to start on a busy machine
    tool = ["sh", "-c", f"sleep 60 > '{os.devnull}' 2>&1 & echo $! > '{pid}'; wait", "sh"]
    with pytest.raises(TimeoutError, match="sh was not done within 2 s"):
        isolate.watched([task("unused", "")], tool, 2.0)
    child = int(pid.read_text())
    try:
        wait_for(lambda: ended(child), 20)  # a signal takes a moment on a busy machine
    finally:
        if not ended(child):
            os.kill(child, signal.SIGKILL)


# --- nothing is left, nothing is forged ---


def alive(word):
    """Processes whose command line has this word."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", encoding="utf-8", errors="replace") as line:
                words = line.read().split("\0")
        except OSError:
            continue
        if word in words and not ended(int(name)):
            found.append(int(name))
    return found


@LINUX
@pytest.mark.parametrize(
    "leave",
    [
        "subprocess.Popen(['sleep', SECONDS])",
        "subprocess.Popen(['sleep', SECONDS], start_new_session=True, env={})",
        "os.fork() or (os.setsid(), os.fork(), os.execvpe('sleep', ['sleep', SECONDS], {}))",
    ],
    ids=["same session", "new session", "grandchild"],
)
def test_what_a_file_starts_ends_with_it(task, leave, tmp_path, monkeypatch):
    monkeypatch.setattr(isolate.tempfile, "tempdir", str(tmp_path))
    seconds = f"86400.{os.getpid()}"
    text = f"import os, subprocess\nSECONDS = {seconds!r}\n{leave}\nx = 1\n"
    (result,) = run([task("leaves", text)])
    assert result["status"] == "unusable"
    assert alive(seconds) == []
    assert not list(tmp_path.glob("workbook-*"))


@LINUX
def test_a_killed_harness_leaves_neither_process_nor_folder(task, tmp_path):
    pid = tmp_path / "pid"
    seconds = f"86401.{os.getpid()}"
    text = (
        "import os, subprocess, time\n"
        f"subprocess.Popen(['sleep', {seconds!r}], start_new_session=True, env={{}})\n"
        f"open({str(pid)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    )
    code = f"{ASK}list(isolate.run([{task('hangs', text)!r}], True, 60.0))\n"
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=catalog.ROOT, env=env)
    wait_for(lambda: pid.exists() and pid.read_text() and alive(seconds))
    parent.kill()
    parent.wait()
    wait_for(lambda: ended(int(pid.read_text())) and not alive(seconds) and not list(tmp_path.glob("workbook-*")))


@POSIX
@pytest.mark.parametrize("fork", ["os.fork()", "ctypes.CDLL(None).fork()"])
def test_a_fork_answers_for_nobody(task, fork):
    # right in the copy alone, which would answer first
    forked = (
        f"import ctypes, os, time\nwhole = os.getpid()\n{fork}\nif os.getpid() == whole:\n    time.sleep(1)\n"
        + GOOD.replace("    product[", "    if os.getpid() == whole:\n        return\n    product[")
    )
    first, second = run([task("forked", forked), task("good", GOOD)])
    assert (first["status"], second["status"]) == ("wrong", "right")


def test_a_card_without_room_for_the_largest_shapes_answers_at_once(task):
    text = "from common.book import device\ndevice.free_bytes = lambda: 0\ndevice.l2_bytes = lambda: 0\n"
    full = task("full", text + GOOD)
    large, after = run([messages.Check(path=full.path, ladder="gemm", shape=full.shape, depth="large"), full])
    assert (large["status"], after["status"]) == ("unjudged", "right")
    assert large["message"] == "0.0 GB are needed, 0.0 are free"
    assert large["needed_bytes"] > large["free_bytes"] == 0


def test_lines_that_are_no_answers_are_passed_over(task):
    # every encoder of this process says something more
    text = "import json\nold = json.dumps\njson.dumps = lambda *a, **k: old(*a, **k) + chr(10) + 'null'\n" + GOOD
    results = run([task("good", text), task("good", text)])
    assert [result["status"] for result in results] == ["right", "right"]


def test_a_child_works_in_a_folder_of_its_own(task, root):
    text = "import os, sys\nopen('left', 'w').write('x')\nraise RuntimeError(f'{os.getcwd()} {sys.path}')\n"
    (result,) = run([task("writes", text)])
    folder, _, path = result["message"].partition(": ")[2].partition(" ")
    assert not os.path.exists(folder)
    assert not (root / "left").exists()
    assert repr(str(root)) not in path
    assert "''" not in path


@LINUX
def test_memory_that_is_refused_is_a_fault_with_its_line(task):
    (result,) = run([task("greedy", GOOD.replace("    product[", "    bytearray(1 << 42)\n    product["))])
    assert result["status"] == "crashed"
    assert (result["faults"][0]["kind"], result["faults"][0]["code"]) == ("memory", "bytearray(1 << 42)")


def test_after_a_time_out_the_files_other_shapes_are_not_tried(task, monkeypatch):
    told = []
    monkeypatch.setattr(isolate, "on_wait", lambda task, seconds: told.append((task.path, seconds)))
    hangs, good = task("hangs", "import time\ntime.sleep(600)\n"), task("good", GOOD)
    began = time.monotonic()
    results = run([hangs, hangs, hangs, good, hangs], seconds=4.0)
    assert [result["status"] for result in results] == ["timed_out"] * 3 + ["right", "timed_out"]
    assert [result.get("untried", False) for result in results] == [False, True, True, False, True]
    assert results[1]["message"] == "not tried: it gave no result in time at M=2 N=3 K=2"
    assert told[0] == (hangs.path, 4.0)
    assert time.monotonic() - began < PATIENCE


def test_a_file_that_ends_its_process_twice_is_not_tried_again(task):
    quits, good = task("quits", "import os\nos._exit(3)\n"), task("good", GOOD)
    results = run([quits, quits, quits, quits, good])
    assert [result.get("untried", False) for result in results] == [False, False, True, True, False]
    assert "ended its process 2 times in a row" in results[2]["message"]
    assert results[4]["status"] == "right"


def test_when_closed_nothing_runs_on(task):
    hangs = task("hangs", "import time\ntime.sleep(600)\n")
    results = isolate.run_groups([[hangs], [hangs]], True, PATIENCE, workers=2)
    closing = threading.Timer(1.0, isolate.close)
    closing.start()
    try:
        assert list(results) == []
        assert list(isolate.run([hangs], True, PATIENCE)) == []
    finally:
        closing.join()
        isolate.reopen()


@LINUX
def test_one_operation_without_an_end_is_ended_from_outside(task):
    """It holds the interpreter, so that no thread of its process can tell."""
    (result,) = run([task("hangs", "digits = 7 ** (10 ** 9)\n" + GOOD)], seconds=3.0)
    assert result["status"] == "timed_out"
    assert "of processor time: one operation that does not end?" in result["message"]
