"""The linter, the formatter and the type checker have nothing to say; the maps of common/ are whole."""

import ast
import functools
import importlib.util
import re

import pytest
from processes import python
from sampling import some_days

# in a checkout without its cache mypy takes ten seconds: make quick runs it each time
TYPES = pytest.param(["mypy"], marks=some_days(1, 4))


@pytest.mark.parametrize("words", [["ruff", "check", "."], ["ruff", "format", "--check", "."], TYPES], ids=" ".join)
def test_nothing_to_say(words):
    if importlib.util.find_spec(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed: pip install {words[0]}")
    python("-m", *words)


@pytest.fixture(scope="module")
def nodes():
    """A function that gives those nodes of a file that the tests here look at; each file is parsed once."""
    kinds = ast.Import, ast.ImportFrom, ast.FunctionDef

    @functools.cache
    def nodes(path):
        return [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, kinds)]

    return nodes


def imported(nodes):
    """The modules of common that are imported."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "common":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("common."))


def test_imports_point_down_only(root, nodes):
    """The layers are those of the map in ``common/__init__.py``, from the top down."""
    text = (root / "common" / "__init__.py").read_text(encoding="utf-8")
    layers = re.findall(r"^    (\w+)/  ", text, re.MULTILINE)
    assert layers[0] == "commands"
    assert layers[-1] == "catalog"
    for path in sorted((root / "common").glob("*/*.py")):
        below = layers[layers.index(path.parent.name) :]
        wrong = [name for name in imported(nodes(path)) if name.split(".")[1] not in below]
        assert not wrong, path
    own = sorted(path.name for path in (root / "common").glob("*.py"))
    assert own == ["__init__.py", "__main__.py", "cli.py"]


def test_functions_are_no_longer_than_60_lines(root, nodes):
    for path in sorted((root / "common").rglob("*.py")):
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 60, f"{path}: {node.name}"


def test_modules_of_common_are_no_longer_than_450_lines_and_commands_than_200(root):
    for path in (root / "common").rglob("*.py"):
        most = 200 if path.parent.name == "commands" else 450
        assert len(path.read_text(encoding="utf-8").splitlines()) <= most, path


def test_the_maps_of_common_name_every_module_once(root):
    for init in sorted((root / "common").rglob("__init__.py")):
        folder = init.parent
        inside = [path.stem for path in folder.glob("*.py") if not path.stem.startswith("__")]
        inside += [f"{path.parent.name}/" for path in folder.glob("*/__init__.py")]
        assert sorted(re.findall(r"^    (\w+/?)  ", init.read_text(encoding="utf-8"), re.MULTILINE)) == sorted(inside)


# Of what no module does alone.
OF_SEVERAL = {"explorer", "notebook", "false_alarms", "wrong_kernels", "precision", "json", "places", "transcript"}
OF_SEVERAL |= {"current"}


def test_tests_lie_in_folders_and_files_named_as_what_they_test(root):
    """Beside the tests of a layer: those of the lessons, and at the top those of the whole."""
    modules = {path.parent.name: {one.stem for one in path.parent.glob("*.py")}
               for path in (root / "common").glob("*/__init__.py")}  # fmt: skip
    for path in (root / "tests").rglob("test_*.py"):
        folder = path.parent.relative_to(root / "tests").as_posix()
        assert folder in {".", "lessons", *modules}, path
        if folder in modules and folder != "trace":
            assert path.stem.removeprefix("test_") in modules[folder] | OF_SEVERAL, path


def test_no_two_files_of_tests_have_one_name(root):
    """pytest imports each by its name alone; of two with one name it refuses the second."""
    names = sorted(path.name for path in (root / "tests").rglob("test_*.py"))
    assert names == sorted(set(names))
