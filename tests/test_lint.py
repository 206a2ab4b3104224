"""The linter, the formatter and the type checker have nothing to say; the maps of common/ are whole."""

import importlib.util
import re
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


def test_the_maps_of_common_name_every_module_once(root):
    modules = []
    for init in sorted((root / "common").rglob("__init__.py")):
        folder = init.parent
        inside = [path.stem for path in folder.glob("*.py") if not path.stem.startswith("__")]
        inside += [f"{path.parent.name}/" for path in folder.glob("*/__init__.py")]
        assert sorted(re.findall(r"^    (\w+/?)  ", init.read_text(encoding="utf-8"), re.MULTILINE)) == sorted(inside)
        modules += [name for name in inside if not name.endswith("/")]
    section = (root / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Where things are in common/")[1]
    rows = re.findall(r"^\| .* \| (`.*`) \|$", section.split("\n## ")[0], re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(modules)
