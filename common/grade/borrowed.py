"""The modules of lessons that a copy of a step may load: those that the step loads itself, and no others.

A lesson's folder begins with a digit, so its modules are loaded by ``importlib.import_module("lessons.LESSON...")``.
In a submission that is a way to anything; so it must name, letter by letter, what the shipped step names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from common.catalog import catalog
from common.catalog.catalog import Step
from common.catalog.exercises import Exercise
from common.edit import shipped

_FOLDERS = f"(?:{catalog.HELPERS}|{catalog.EXPERIMENTS})"
_NAMED = re.compile(rf"""["']({catalog.LESSONS.name}\.\d\w*(?:\.{_FOLDERS})?\.\w+)["']""")


@dataclass(frozen=True)
class Borrowed:
    """``modules`` that a file may load, by their full names; ``attributes`` that it may read: those that the step
    reads, if the modules, or fields of its own records, are named so.

    ``files`` are those of the modules, and of all that these load.
    """

    modules: frozenset[str] = frozenset()
    attributes: frozenset[str] = frozenset()
    files: tuple[Path, ...] = ()


NOTHING = Borrowed()


def by(target: Exercise | Step) -> Borrowed:
    """What a file may load that is named after an exercise, nothing, or after a step, what that loads as shipped."""
    return NOTHING if isinstance(target, Exercise) else _of(as_shipped(target.path))


@cache
def as_shipped(path: Path) -> bytes:
    """A lesson's file as it was shipped, if that is known, whatever was made of it since."""
    return (shipped.text(path) if shipped.edited(path) else None) or path.read_bytes()


def _of(source: bytes) -> Borrowed:
    text = source.decode("utf-8")
    modules = _modules(text)
    files: set[Path] = set()
    pending = modules
    while pending:
        found = {file_of(name) for name in pending} - files
        files |= found
        pending = {name for path in found for name in _modules(as_shipped(path).decode("utf-8"))}
    read = {node.attr for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)}
    made = {name for path in files for name in _names(as_shipped(path))} | set(_fields(text))
    made = {name for name in made if not name.startswith("_")}
    return Borrowed(frozenset(modules), frozenset(read & made - {"import_module"}), tuple(sorted(files)))


def _names(source: bytes) -> Iterator[str]:
    """What a file gives names to: functions, variables, fields."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.keyword):
            yield node.arg or ""


def _fields(text: str) -> Iterator[str]:
    """The fields of a file's records, which are its classes."""
    for node in ast.parse(text).body:
        for part in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                yield part.target.id


def _modules(text: str) -> set[str]:
    return {name for name in _NAMED.findall(text) if file_of(name).is_file()}


def file_of(module: str) -> Path:
    """The file of a lesson's module, by its full name."""
    return catalog.ROOT / f"{module.replace('.', '/')}.py"
