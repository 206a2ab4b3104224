"""What a result depends on: the files that a Python file imports, and hashes of code that ignore comments."""

from __future__ import annotations

import ast
import atexit
import contextlib
import difflib
import hashlib
import importlib.metadata
import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from common.catalog import catalog, schema, store
from common.catalog.catalog import Step
from common.catalog.schema import Name

_DATA = re.compile(r"[\w./-]+\.(json|toml|txt|css|js|html|npz)")
_NAMED = re.compile(rf"(common|lessons)(\.\w+)+|{_DATA.pattern}")
INDEX, _MOST = catalog.ROOT / ".workbook" / "cache" / "sources.json", 4000  # files that are kept in it
NO_PYTHON = (OSError, SyntaxError, ValueError, RecursionError, MemoryError)


class Code(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The code that a recorded result came from: the hash of a step's file, and by name its helpers', if recorded."""

    source: Name
    helpers: dict[str, Name] | None = None

    def is_of(self, path: Path) -> bool:
        """Is this the file's code as it is now?"""
        now = provenance(path)
        return self.source == now.source and self.helpers in (None, now.helpers)


def source_hash(path: Path) -> str:
    """SHA-256 of a file's code without comments, docstrings and layout; raises one of NO_PYTHON."""
    return _learnt(path)[0]


def code_hash(source: str | bytes) -> str:
    """As :func:`source_hash`, of what a file holds."""
    return _parsed(source.encode() if isinstance(source, str) else source)[0]


@store.kept_by_stamp
def _learnt(path: Path) -> tuple[str, list[str]]:
    return _parsed(path.read_bytes())


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
        found = schema.read(store.read_json(INDEX), dict[str, tuple[str, list[str]]])
    found, known = (found, len(found)) if len(found) < _MOST else ({}, 0)

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
        names = _learnt(path)[1] if path.suffix == ".py" else []
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


def provenance(path: Path) -> Code:
    """The code of a step's file as it is now."""
    return Code(source=source_hash(path), helpers={h.stem: source_hash(h) for h in imported_helpers(path)})


def imported_steps(path: Path) -> dict[str, Code | str]:
    """By name, the :func:`provenance` of other steps that a step imports, and digests of data files beside it."""
    found: dict[str, Code | str] = {}
    for other in imports(path):
        if other.suffix == ".json":
            found[other.name] = hashlib.sha256(other.read_bytes()).hexdigest()
        elif _is_step(other):
            found[f"{other.parent.name}.{other.stem}"] = provenance(other)
    return found


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


def difference(old: Step, new: Step, context: int = 2) -> Iterator[str]:
    """What ``new`` changes against ``old``, as the lines of a unified diff; docstring, indentation and the step's own
    name do not count, nor does what ``new`` imports of ``old`` and does not replace."""
    texts = (store.read_text(step.path) for step in (old, new))
    before, after = (re.sub(r'\A\s*"""(.*?)"""\s*', "", text, flags=re.DOTALL).splitlines() for text in texts)
    if old.path in imports(new.path):
        replaced = [name for name, _ in _definitions(after, new.name)]
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


def _definitions(lines: list[str], step: str) -> Iterator[tuple[str, list[str]]]:
    """Name and lines of what stands at the top level of a step's file, with the comments above."""
    first = 0
    for node in ast.parse("\n".join(lines)).body:
        name = ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else getattr(node, "name", "")
        last = node.end_lineno or node.lineno
        yield (name or ast.unparse(node)).replace(step, "STEP"), lines[first:last]
        first = last
