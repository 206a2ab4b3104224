"""The linter, the formatter and the type checker have nothing to say."""

import importlib.util
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "words", [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"]], ids=" ".join
)
def test_nothing_to_say(words, root):
    if importlib.util.find_spec(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed: pip install {words[0]}")
    done = subprocess.run([sys.executable, "-m", *words], cwd=root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
