"""The command line: exit codes, one line for what a user can mend, and JSON alone on standard output."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress

import kernels
import mutants
import pytest
from processes import python
from sampling import one_of_each

from common.catalog import catalog, device
from common.check import plan
from common.timing import measuring

GPU = device.gpu_count() > 0
NO_GPU = pytest.mark.skipif(GPU, reason="says what happens without a GPU")
RIGHT, WRONG, UNUSABLE, INTERRUPTED = 0, 1, 2, 130

PRODUCT = kernels.gemm()


WITHOUT_GPU = {
    "time": ["timing needs an NVIDIA GPU", "check --sim"],
    "bench gemm_naive": ["the bench needs an NVIDIA GPU", "check --sim"],
    "sweep gemm_naive": ["a sweep needs an NVIDIA GPU"],
}


@NO_GPU
@pytest.mark.parametrize("words", WITHOUT_GPU)
def test_without_a_gpu_that_is_said(call, words):
    code, out, err = call(*words.split())
    (line,) = [line for line in (out + err).splitlines() if line.strip()]
    assert code == UNUSABLE
    assert line.startswith("error: ")
    assert [text for text in WITHOUT_GPU[words] if text not in line] == []


@pytest.mark.skipif(sys.platform == "win32", reason="pipes end otherwise there")
def test_a_reader_that_has_had_enough_is_no_error():
    words = [sys.executable, "-m", "common", "list", "--json"]
    pipe = {"pipesize": 4096} if sys.platform == "linux" else {}  # less than half of what is said
    program = subprocess.Popen(words, cwd=catalog.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **pipe)
    with program:
        if pipe:
            os.read(program.stdout.fileno(), 10)
        program.stdout.close()
        assert program.stderr.read().strip() == b""
    assert program.returncode == 141  # as a shell says of SIGPIPE: no verdict


def _heed_signals():
    """A shell lets what it starts in the background ignore interrupts, and the workbook leaves that so."""
    for name in ("SIGINT", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(
    ("words", "number", "code"),
    one_of_each(
        [
            (("check", "gemm_naive", "--sim"), "SIGINT", 130),
            (("trace", "gemm_naive"), "SIGTERM", 143),  # starts fewer processes
            (("trace", "gemm_naive"), "SIGHUP", 129),
        ],
        lambda _: "a signal",
    ),
    ids=str,
)
def test_a_signal_ends_a_hanging_command_at_once_and_leaves_nothing(write, tmp_path, words, number, code):
    began = tmp_path / "began"
    hangs = write(
        "hangs.py",
        "import signal, subprocess, time\n"
        "for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):\n    signal.signal(each, signal.SIG_IGN)\n"
        f"child = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(began)!r}, 'w').write(str(child.pid))\ntime.sleep(600)\n",
    )
    folder = tmp_path / "tmp"
    folder.mkdir()
    program = subprocess.Popen(
        [sys.executable, "-m", "common", *words, "--file", str(hangs)], cwd=catalog.ROOT,
        env={**os.environ, "TMPDIR": str(folder)}, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, preexec_fn=_heed_signals,
    )  # fmt: skip
    deadline = time.monotonic() + 300
    while not (began.exists() and began.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    program.send_signal(getattr(signal, number))
    program.communicate(timeout=300)
    assert program.returncode == code
    assert list(folder.iterdir()) == []
    deadline = time.monotonic() + 300
    with suppress(ProcessLookupError):
        while True:  # it has ended; that its new parent has seen it takes a moment
            os.kill(int(began.read_text()), 0)
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is always full")
def test_a_full_disk_behind_standard_output_is_one_line():
    words = [sys.executable, "-m", "common", "list"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(words, cwd=catalog.ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == UNUSABLE
    assert done.stderr.splitlines() == ["error: standard output: No space left on device"]


# --- diff and sweep ---


def test_diff_shows_the_lines_that_change(call):
    code, out, _ = call("diff", "gemm_naive", "gemm_naive_float64")
    assert code == RIGHT
    assert "-         acc = float32(0.0)" in out
    assert "+         acc = 0.0" in out
    assert "Variant of" not in out
    assert re.search(r"\d+ lines removed, \d+ added", out)


@pytest.mark.parametrize(("step", "origin"), [
    ("conv2d_fused_unroll_gemm", "conv2d_unroll_gemm"), ("gemm_naive_float64", "gemm_naive"),
])  # fmt: skip
def test_diff_of_one_step_is_against_what_it_grew_from(call, step, origin):
    assert catalog.find(step).builds_on == origin
    code, out, _ = call("diff", step)
    assert code == RIGHT
    assert out.startswith(f"@@ {origin}.py")


def test_a_sweep_can_be_narrowed():
    tunables, shipped = {"BLOCK": [8, 16], "PAD": [0, 1, 2]}, {"BLOCK": 16, "PAD": 1}
    assert len(measuring.tiles(tunables, shipped, None)) == 6
    assert measuring.tiles(tunables, shipped, "PAD=0,3") == [{"BLOCK": 16, "PAD": 0}, {"BLOCK": 16, "PAD": 3}]
    for text, says in (("PADS=1", "must name a tunable of this step: it has BLOCK, PAD"), ("PAD=x", "NAME=INTEGER")):
        with pytest.raises(ValueError, match=f"--values '{text}': .*{says}"):
            measuring.tiles(tunables, shipped, text)


# --- check ---

TINY = ("--shape", "M=3 N=5 K=2", "--sim")


def test_a_right_step_exits_0(call):
    code, out, _ = call("check", "gemm_naive", *TINY)
    assert code == RIGHT
    assert re.search(r"gemm_naive .* M=3 N=5 K=2 .* right", out)


def test_another_file_is_checked_in_the_steps_place(call, write):
    wrong = write("mine.py", PRODUCT.replace("range(a.shape[1])", "range(1)"))
    code, out, _ = call("check", "gemm_naive", "--file", str(wrong), *TINY)
    assert code == WRONG
    assert "15 of 15 elements are wrong: c[0, 0] = " in out


def test_json_stands_alone_on_standard_output(write):
    noisy = write("noisy.py", PRODUCT + "\nimport os\nprint('{')\nos.write(1, b'noise\\n')\n")
    answer = json.loads(python("-m", "common", "check", "gemm_naive", "--file", noisy, "--json", *TINY).stdout)
    assert (answer["device"], answer["right"]) == ("tracer", True)
    ((result),) = answer["results"]
    assert result["step"] == "gemm_naive"
    assert result["shape"] == {"M": 3, "N": 5, "K": 2}
    assert result["status"] == "right"
    assert result["findings"] == []


def test_an_error_as_json_stands_on_both(call):
    code, out, err = call("check", "gemm_nave", "--json")
    assert code == UNUSABLE
    assert "'gemm_nave' is unknown" in json.loads(out)["error"]
    assert err.startswith("error: ")


FULL_FILTER = ("conv2d_constant_weights", "--sim", "--shape", "N=1 C=8 H=5 W=5 K=100 R=5 S=5")


def test_a_filter_too_large_for_constant_memory_exits_2_when_asked_for(call):
    code, out, err = call("check", *FULL_FILTER)
    assert code == UNUSABLE
    assert "K=100 C=8 R=5 S=5 takes 80000 bytes: constant memory holds 65536" in " ".join((out + err).split())


def test_a_broken_file_is_named_with_its_line(call, write):
    broken = write("mine.py", "x = 1\ndef launch(a, b, c:\n    pass\n")
    code, out, err = call("check", "gemm_naive", "--file", str(broken), *TINY)
    assert code == UNUSABLE
    assert "mine.py:2: syntax error" in out + err
    assert "compiled for" not in out + err


def test_a_failed_check_tells_its_cause_once_and_how_to_trace_it(call):
    file = mutants.path("gemm_no_guard_m")
    shape = "M=5 N=33 K=2"
    code, out, _ = call("check", "gemm_naive", "--file", str(file), "--shape", shape, "--sim")
    assert code == WRONG
    said = " ".join(out.split())
    assert said.count("line 17: acc") == said.count("axis 0 of a is read at 5, its extent is 5") == 1
    command = f'python -m common trace gemm_naive --shape "{shape}" --block 0,0,0 --file {file}'
    assert out.splitlines()[-1].strip() == command  # in one line, to be copied
    small = plan.small_card("gemm")[0]  # which a trace would not show as the check has it
    code, out, _ = call("check", "gemm_naive", "--file", str(file), "--shape", str(small), "--sim")
    assert code == WRONG
    assert "common trace" not in out


def test_a_lesson_without_a_gpu_shows_the_recorded_figures(call):
    code, out, _ = call("gemm_naive", lesson="01_naive")
    assert code == RIGHT
    assert "no GPU was found" in out
    assert "gemm-4096, recorded on NVIDIA H200" in out
    assert re.search(r"gemm_naive .*\d", out)
