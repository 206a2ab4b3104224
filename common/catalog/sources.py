"""What a result depends on: the files that a Python file imports, and hashes of code that ignore comments.

And what was shipped: each file that a reader may edit as it came, whatever was done to it since.
``lessons/shipped.json``, which ``python -m common ship`` writes, has the hash of each one's code. Its text comes from
git: the newest version with that hash, so edits may be committed. Without git (a zip file), every file that still has
that hash is copied to ``.workbook/shipped`` when the history is first used.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import difflib
import hashlib
import importlib.metadata
import itertools
import json
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from common.catalog import catalog, store
from common.catalog.catalog import Step

_DATA = re.compile(r"[\w./-]+\.(json|toml|txt|css|js|html|npz|mplstyle)")
_NAMED = re.compile(rf"(common|lessons)(\.\w+)+|{_DATA.pattern}")
INDEX = catalog.ROOT / ".workbook" / "cache" / "sources.json"
COPIES = catalog.ROOT / ".workbook" / "shipped"
SHORT = 90  # lines of a difference that show an idea and little else
NO_PYTHON = (OSError, SyntaxError, ValueError, RecursionError, MemoryError)


@store.kept_by_stamp
def source_hash(path: Path) -> str:
    """SHA-256 of a file's code without comments, docstrings and layout; raises one of NO_PYTHON."""
    return code_hash(path.read_bytes())


def code_hash(source: str | bytes) -> str:
    """As :func:`source_hash`, of what a file holds."""
    return _parsed(source.encode() if isinstance(source, str) else source)[0]


def _parsed(source: bytes) -> tuple[str, list[str]]:
    """The hash of the code, and the names of modules and data files in it."""
    index, found = _index(), hashlib.sha256(source).hexdigest()
    if found not in index:
        tree = ast.parse(source)
        code = hashlib.sha256(repr(_canonical(tree)).encode()).hexdigest()
        index[found] = code, sorted(set(names_in(tree)))
    return index[found]


@cache
def _index() -> dict[str, tuple[str, list[str]]]:
    """What :func:`_parsed` found before, by the digest of a file's bytes: parsing ``common`` takes a second."""
    found: dict[str, tuple[str, list[str]]] = {}
    with contextlib.suppress(OSError, ValueError):
        found = store.convert(store.read_json(INDEX), dict[str, tuple[str, list[str]]])
    known = len(found)

    @atexit.register
    def save() -> None:
        with contextlib.suppress(OSError):
            if len(found) > known:
                store.write(INDEX, json.dumps(found))

    return found


def _canonical(node: object) -> Any:
    """The syntax tree as nested tuples, the same under every Python version, without strings that stand alone."""
    if isinstance(node, ast.AST):
        values = dict(ast.iter_fields(node))
        if isinstance(body := values.get("body"), list):
            values["body"] = [one for one in body if not _is_string(one)]
        kept = ((key, _canonical(value)) for key, value in values.items() if key not in ("ctx", "kind"))
        return type(node).__name__, tuple((key, value) for key, value in kept if value not in (None, ()))
    if isinstance(node, list):
        return tuple(_canonical(item) for item in node)
    return None if node is None else repr(node)


def _is_string(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@store.kept_by_stamp
def imports(path: Path) -> tuple[Path, ...]:
    """The files that a Python file imports, or names in a string; none if it is not Python."""
    found, names = [], list[str]()
    with contextlib.suppress(*NO_PYTHON):
        names = _parsed(path.read_bytes())[1] if path.suffix == ".py" else []
    for name in names:
        file = name if _DATA.fullmatch(name) else f"{name.replace('.', '/')}.py"
        places = (path.parent / file, catalog.ROOT / file)  # beside it, or from the top
        found += [place.resolve() for place in places if place.is_file()][:1]
    return tuple(found)


def names_in(tree: ast.AST) -> Iterator[str]:
    """The names of modules and data files in the code, but for imports under ``if TYPE_CHECKING``."""
    if isinstance(tree, ast.If) and isinstance(tree.test, ast.Name) and tree.test.id == "TYPE_CHECKING":
        return
    if isinstance(tree, ast.Import):
        yield from (alias.name for alias in tree.names)
    elif isinstance(tree, ast.ImportFrom) and tree.module:
        yield tree.module
        yield from (f"{tree.module}.{alias.name}" for alias in tree.names)
    elif isinstance(tree, ast.Constant) and isinstance(tree.value, str) and _NAMED.fullmatch(tree.value):
        yield tree.value
    for child in ast.iter_child_nodes(tree):
        yield from names_in(child)


def reached(files: Iterable[Path], wanted: Callable[[Path], bool] | None = None) -> set[Path]:
    """These files, and of all that they import, directly or through each other, those that are ``wanted``, or all."""
    found: set[Path] = set()
    pending = list(files)
    while pending:
        path = pending.pop()
        if path not in found:
            found.add(path)
            pending += filter(wanted, imports(path))
    return found


def imported_helpers(path: Path) -> list[Path]:
    """The helpers that a file imports, directly or through each other; none if it is no Python."""
    return sorted(reached([path], catalog.is_helper) - {path}, key=lambda helper: helper.stem)


def shipped_steps(path: Path, ladder: str) -> list[str]:
    """The modules of the ladder's steps that a file imports, and that are, with all that they import, as shipped."""
    steps = [one for one in imports(path) if _is_step(one) and one.stem.startswith(f"{ladder}_")]
    unchanged = (one for one in steps if not any(map(edited, reached([one]))))
    return [".".join(one.relative_to(catalog.ROOT).with_suffix("").parts) for one in unchanged]


def _is_step(path: Path) -> bool:
    folder = path.parent
    return folder.parent == catalog.LESSONS and folder.name[:1].isdigit() and path.suffix == ".py"


def hashes(files: Iterable[Path]) -> dict[str, str]:
    """By name, the hashes of files and of all steps and helpers that they import, directly or through each other."""
    found = reached(files, lambda one: catalog.is_helper(one) or _is_step(one))
    return {path.stem: source_hash(path) for path in sorted(found)}


def versions(names: tuple[str, ...]) -> dict[str, str]:
    """Versions of those of the packages that are installed."""
    return {name: version for name in names if (version := _version(name))}


@cache
def _version(package: str) -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return ""


# --- what was shipped ---

_EDITABLE = ("[0-9]*", "[0-9]*/experiments", "[0-9]*/exercises", "[0-9]*/helpers", catalog.TOOLKIT)  # below lessons/


def editable() -> list[Path]:
    """All that can be edited and brought back: steps, experiments, exercises and helpers, and those that are gone."""
    there = [path for folder in _EDITABLE for path in catalog.LESSONS.glob(f"{folder}/[!_]*.py")]
    return sorted({*there, *(catalog.LESSONS / name for name in _noted())})


def helpers() -> list[Path]:
    """The files that steps import."""
    return [path for path in editable() if catalog.is_helper(path)]


def find(name: str) -> Path:
    """A step's, experiment's, helper's or exercise's file, even a deleted or broken one; raises CatalogError."""
    known = {path.stem: path for path in reversed(editable())}
    if name not in known:
        raise catalog.unknown(name, known)
    return known[name]


def shipped(path: Path) -> bytes | None:
    """The file at ``path`` as shipped; None if neither git nor ``.workbook`` has it."""
    commits = _git("log", "-100", "--format=%H", "--", str(path)).decode().split()
    committed = (_git("show", f"{one}:./{path.relative_to(catalog.ROOT).as_posix()}") for one in commits)
    copies = (store.read_bytes(place) for place in (*COPIES.rglob(path.name), path) if place.is_file())
    return next((version for version in itertools.chain(committed, copies) if _is_shipped(path, version)), None)


def edited(path: Path) -> bool:
    """Does the code at ``path``, comments and layout aside, differ from what was shipped, or was nothing?"""
    return not _is_shipped(path, store.read_bytes(path))


def edited_helpers(path: Path | None = None) -> list[Path]:
    """The helpers that are edited, of those that a file imports, or of all."""
    found = helpers() if path is None else imported_helpers(path)
    return [one for one in found if (not one.is_file() or edited(one)) and shipped(one) is not None]


def as_shipped(path: Path) -> bool:
    """Is neither a file nor any helper that it imports edited?"""
    return not (edited(path) or edited_helpers(path))


def keep_copies() -> None:
    """Without git, copy each file that is still as shipped; raises StoreError if that fails."""
    if _git("ls-tree", "--name-only", "HEAD", "lessons"):
        return
    for name in _noted():
        path, copy = catalog.LESSONS / name, COPIES / name
        if path.is_file() and not copy.exists() and not edited(path):
            store.write(copy, store.read_bytes(path))


def ship() -> Path:
    """Take all files for shipped as they are now; returns the file that says so."""
    path, there = catalog.LESSONS / "shipped.json", [one for one in editable() if one.is_file()]
    store.write_json(path, {one.relative_to(catalog.LESSONS).as_posix(): source_hash(one) for one in there})
    return path


def _noted() -> dict[str, str]:
    """The code hash of each file as shipped, by its place below lessons/; raises StoreError or SchemaError."""
    return _hashes(catalog.LESSONS / "shipped.json")


@store.kept_by_stamp
def _hashes(path: Path) -> dict[str, str]:
    return store.convert(store.read_json(path), dict[str, str], store.shown(path)) if path.exists() else {}


def _is_shipped(path: Path, source: bytes) -> bool:
    """Is this the code that a file of that name had as shipped?"""
    noted = [code for name, code in _noted().items() if name.rpartition("/")[2] == path.name]
    with contextlib.suppress(*NO_PYTHON):
        return code_hash(source) in noted
    return False


def _git(*words: str) -> bytes:
    """What git says; nothing if there is no git, no repository, or no answer."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["git", *words]
        return subprocess.run(command, cwd=catalog.ROOT, capture_output=True, timeout=20, check=True).stdout
    return b""


# --- what a step changes ---


def difference(old: Step, new: Step, context: int = 2) -> Iterator[str]:
    """What ``new`` changes against ``old``, as the lines of a unified diff; docstring, indentation and the step's own
    name do not count, nor does what ``new`` imports of ``old``, itself or through others, and does not replace."""
    texts = (store.read_text(step.path) for step in (old, new))
    before, after = (re.sub(r'\A\s*"""(.*?)"""\s*', "", text, flags=re.DOTALL).splitlines() for text in texts)
    if old.path in reached([new.path]):
        own = list(_definitions(after, new.name))
        inner = re.findall(r"^ +def (\w+)", "\n".join(after), re.MULTILINE)  # such as a helper in a function now
        replaced = {*(name for name, _ in own), *inner}
        before = [line for name, lines in _definitions(before, old.name) if name in replaced for line in lines]
    plain_before = [line.strip().replace(old.name, "STEP") for line in before]
    plain_after = [line.strip().replace(new.name, "STEP") for line in after]
    matched = difflib.SequenceMatcher(None, plain_before, plain_after, autojunk=False)
    for group in matched.get_grouped_opcodes(context):
        first, last = group[0], group[-1]
        yield f"@@ {old.name}.py {first[1] + 1}-{last[2]}, {new.name}.py {first[3] + 1}-{last[4]} @@"
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                yield from (f"  {line}" for line in after[j1:j2])
            else:
                yield from (f"- {line}" for line in before[i1:i2])
                yield from (f"+ {line}" for line in after[j1:j2])


def mostly_new(lines: Iterable[str], new: Step) -> bool:
    """Are these lines of a :func:`difference` many, and most of ``new`` among them? Then it is better read whole."""
    signs = [line[0] for line in lines]
    added, removed = signs.count("+"), signs.count("-")
    return removed + added > SHORT and 2 * added > len(store.read_text(new.path).splitlines())


def _definitions(lines: list[str], step: str) -> Iterator[tuple[str, list[str]]]:
    """Name and lines of what stands at the top level of a step's file, with the comments above. The kernel, or the
    function that it stands in, is "def STEP"; what is taken from elsewhere as it is has its own text for a name."""
    first = 0
    for node in ast.parse("\n".join(lines)).body:
        kernel = any(isinstance(one, ast.FunctionDef) and one.name == step for one in ast.walk(node))
        name = getattr(node, "name", "")
        if isinstance(node, ast.Assign) and not _taken_over(node):
            name = ast.unparse(node.targets[0])
        last = node.end_lineno or node.lineno
        yield "def STEP" if kernel else (name or ast.unparse(node)).replace(step, "STEP"), lines[first:last]
        first = last


def _taken_over(node: ast.Assign) -> bool:
    """Does it only fetch what is called so elsewhere, as `x, y = module.x, module.y` does?"""
    sides = [one.elts if isinstance(one, ast.Tuple) else [one] for one in (node.targets[0], node.value)]
    return [getattr(one, "id", None) for one in sides[0]] == [getattr(one, "attr", "") for one in sides[1]]
