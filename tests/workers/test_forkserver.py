"""Processes that are forked from a warm one are as apart from it, and from each other, as those that are not."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from common.book import catalog
from common.jobs.messages import Check
from common.workers import forkserver, isolate

pytestmark = pytest.mark.skipif(not forkserver.FORKS, reason="processes are forked on Linux alone")
PATIENCE = 60.0
TELL = "import os, sys\nraise RuntimeError(f'{{os.getpid()}} {{os.getppid()}} ' + str({}))\n"


@pytest.fixture
def told(write):
    """What a process says of itself: its number, its keeper's, and the value of an expression."""

    def told(expression="0", simulator=True):
        path = write("tell.py", TELL.format(expression))
        task = Check(path=str(path), ladder="gemm", shape={"M": 1, "N": 1, "K": 1})
        ((_, result),) = isolate.run([task], simulator, PATIENCE)
        pid, keeper, value = result["message"].partition(": ")[2].split(" ", 2)
        return int(pid), int(keeper), value

    return told


def parent(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])


def server_pid(simulator=True):
    return isolate._server(simulator)._process.pid


def test_numba_is_there_before_the_task(told):
    for simulator in (True, False):
        assert told("'numba' in sys.modules", simulator)[2] == "True"


def test_a_server_rehearses_before_its_second_process(told, monkeypatch):
    compiled = "sys.modules['numba.cuda.cudadrv.nvvm'].NVVM._NVVM__INSTANCE is not None"
    monkeypatch.setenv("NUMBA_OF_THIS_TEST", "2")  # a server of its own
    assert [told(compiled, simulator=False)[2] for _ in range(3)] == ["False", "True", "True"]
    monkeypatch.setenv("NUMBA_OF_THIS_TEST", "3")
    isolate.warm(False)  # for whoever has time until the first
    assert told(compiled, simulator=False)[2] == "True"


def test_each_process_is_forked_anew(told):
    first, second = told(), told()
    assert first[0] != second[0]
    assert first[1] != second[1]
    assert server_pid() not in (*first, *second)


def test_its_environment_is_that_of_its_start(told, monkeypatch):
    told()
    before = server_pid()
    monkeypatch.setenv("WORKBOOK_TEST", "seen")
    assert told("os.environ.get('WORKBOOK_TEST')")[2] == "seen"
    monkeypatch.delenv("WORKBOOK_TEST")
    assert told("os.environ.get('WORKBOOK_TEST')")[2] == "None"
    assert server_pid() == before


def test_what_numba_reads_early_has_a_server_of_its_own(told, monkeypatch):
    told()
    before = server_pid()
    monkeypatch.setenv("NUMBA_LOOP_VECTORIZE", "0")
    assert server_pid() != before
    assert told("sys.modules['numba.core.config'].LOOP_VECTORIZE")[2] == "0"


def test_modules_of_a_file_do_not_reach_the_next(told):
    told("setattr(sys.modules['numpy'], 'left', 1)")
    assert told("hasattr(sys.modules['numpy'], 'left')")[2] == "False"


def test_a_killed_server_is_replaced(told):
    told()
    before = server_pid()
    os.kill(before, signal.SIGKILL)
    assert told("1")[2] == "1"
    assert server_pid() != before


def test_an_environment_may_be_large(told, monkeypatch):
    monkeypatch.setenv("WORKBOOK_TEST", "x" * 100_000)
    before = server_pid()
    assert told("len(os.environ['WORKBOOK_TEST'])")[2] == "100000"
    assert server_pid() == before


def test_a_stopped_server_is_replaced(told, monkeypatch):
    monkeypatch.setattr(forkserver, "_ANSWER_SECONDS", 1.0)
    told()
    before = server_pid()
    os.kill(before, signal.SIGSTOP)
    assert told("1")[2] == "1"
    assert server_pid() != before


def test_a_process_outlives_its_server(write, tmp_path):
    flag = tmp_path / "flag"
    path = write(
        "waits.py", f"import os, time\nwhile not os.path.exists({str(flag)!r}):\n    time.sleep(0.02)\nx = 1\n"
    )
    task = Check(path=str(path), ladder="gemm", shape={"M": 1, "N": 1, "K": 1})
    answers = []
    thread = threading.Thread(target=lambda: answers.extend(isolate.run([task], True, PATIENCE)))
    before = server_pid()
    thread.start()
    deadline = time.monotonic() + PATIENCE
    while not [name for name in filter(str.isdigit, os.listdir("/proc")) if alive_below(int(name), before)]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(before, signal.SIGKILL)
    time.sleep(0.3)
    flag.touch()
    thread.join(PATIENCE)
    ((_, result),) = answers
    assert result["status"] == "unusable"  # no step file: it was read, to its end


def test_few_files_may_be_open_at_once():
    """Many systems allow 256 and some less; what a process is given takes the lowest numbers there are."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40)); from common import cli\n"
        "raise SystemExit(cli.main(['trace', 'gemm_naive']))"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=catalog.ROOT, capture_output=True, text=True, timeout=2 * PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")


def alive_below(pid, parent_pid):
    try:
        return parent(pid) == parent_pid
    except OSError:
        return False


def test_a_server_that_cannot_start_is_not_needed(told, monkeypatch):
    real = forkserver.Server
    monkeypatch.setattr(
        forkserver, "Server", lambda *_, **options: real([sys.executable, "-c", "raise SystemExit(1)"], {}, **options)
    )
    monkeypatch.setenv("NUMBA_OF_THIS_TEST", "1")  # a server of its own
    assert told("1")[2] == "1"


def test_who_gives_up_waits_for_no_server():
    server = forkserver.Server([sys.executable, "-c", "import time; time.sleep(60)"], dict(os.environ))
    began, closing = time.monotonic(), threading.Event()
    threading.Timer(0.3, closing.set).start()
    try:
        with pytest.raises(forkserver.GivenUpError):
            server.ask({}, given_up=closing.is_set)
        assert time.monotonic() - began < PATIENCE / 2
    finally:
        server.close()
    assert not server.alive


def test_a_server_ends_with_its_processes(write, tmp_path):
    text = Path(forkserver.__file__).read_text(encoding="utf-8")
    server = forkserver.Server([sys.executable, "-c", text], dict(os.environ))
    write("below/own/stays.py", "import time\ndef main(path):\n    open(path, 'w').close()\n    time.sleep(600)\n")
    begun = tmp_path / "begun"
    with open(os.devnull, "wb") as log:
        process = server.fork(["stays", str(begun)], tmp_path / "below" / "own", dict(os.environ), log)
    while not begun.exists():
        assert process.poll() is None
        time.sleep(0.02)
    assert parent(process.pid) == server._process.pid
    server.close()
    assert process.wait() == forkserver.LOST
    assert forkserver._gone(process.pid)
    process.stdin.close()
    process.stdout.close()
    assert not (tmp_path / "below").exists()
