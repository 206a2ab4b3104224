"""What a student may change of an exercise: the blank or a few lines, and what any file may import.

A file is compared with the exercise's solution, which has the same frame. Comments, docstrings, type annotations,
layout, imports and a self-test under ``if __name__ == "__main__":`` do not count.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from common.catalog import catalog, sources
from common.catalog.exercises import BLANK, END, Exercise

SLACK = 6  # lines beside those of the bug
FREE = {"__future__", "functools", "itertools", "math", "numba", "numpy", "typing"}  # what any kernel file may import
_TOOLKIT = f"{catalog.LESSONS.name}.{catalog.TOOLKIT}"
_HELPERS = {f"{_TOOLKIT}.{path.stem}" for path in (catalog.LESSONS / catalog.TOOLKIT).glob("[!_]*.py")}
REFUSED = {"__import__", "breakpoint", "compile", "eval", "exec", "globals", "input", "locals", "open"}
COPIES = {"copy_to_host", "copy_to_device", "to_device"}
COPIES |= {"device_array", "device_array_like", "mapped_array", "managed_array"}
_MODULE = re.compile(r"'(common|lessons)\.[\w.]+'")
_FILLED = re.compile(rf"^( *)({re.escape(BLANK)}[^\n]*)\n(.*?)^ *{re.escape(END)}[^\n]*$", re.DOTALL | re.MULTILINE)


def foreign(text: str, given: str, helpers: bool = True) -> list[str]:
    """What a kernel file has no use for, each with its line: modules beside :data:`FREE` and, unless ``helpers``, the
    lessons' helpers; functions that open files or run texts; and in ``launch`` what computes on the host. What
    ``given``, the solution, has is free. Empty if the text is not Python: importing it says so."""
    try:
        known = {word for _, word in _foreign(_tree(given), helpers)}
        found = {(line, word) for line, word in _foreign(_tree(text), helpers) if word not in known}
    except sources.NO_PYTHON:
        return []
    return [f"line {line}: {word}" for line, word in sorted(found)]


def _foreign(tree: ast.Module, helpers: bool) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                package = "." * node.level + (node.module or "")
                within = package in (catalog.LESSONS.name, _TOOLKIT)
                modules = [f"{package}.{name}" for name in modules] if within else [package]
            for module in modules:
                if module.partition(".")[0] not in FREE and not (helpers and module in _HELPERS):
                    yield node.lineno, f"import of {module}"
        elif isinstance(node, ast.Name) and node.id in REFUSED:
            yield node.lineno, f"`{node.id}`"
        elif isinstance(node, ast.Constant) and _MODULE.fullmatch(repr(node.value)):
            yield node.lineno, repr(node.value)
        elif isinstance(node, ast.FunctionDef) and node.name == "launch" and node in tree.body:
            yield from _on_the_host(node)


def _on_the_host(launch: ast.FunctionDef) -> Iterator[tuple[int, str]]:
    """What ``launch`` does with elements itself: NumPy's functions, copies, new arrays, and what it stores."""
    operands = {argument.arg for argument in launch.args.args}
    for node in ast.walk(launch):
        does = False
        if isinstance(node, ast.Subscript):
            does = isinstance(node.ctx, ast.Store) and ast.unparse(node.value) in operands
        elif isinstance(node, ast.Attribute):
            number = isinstance(getattr(np, node.attr, None), type)  # such as np.float32
            does = (ast.unparse(node.value) in ("np", "numpy") and not number) or node.attr in COPIES
        if does:
            alone = "where only kernels compute and arrays come from prepare or workspace"
            yield getattr(node, "lineno", 1), f"`{ast.unparse(node)}` in launch, {alone}"


def departure(exercise: Exercise, text: str) -> str | None:
    """What a file changes of its exercise that is not its to change; None if nothing, or if it is not Python."""
    try:
        ast.parse(text)
        if exercise.kind == "write":
            return _around_the_blank(exercise.solution, text)
        return _of_the_bug(exercise, text) if exercise.kind == "bug" else None
    except sources.NO_PYTHON:
        return None


def unfilled(text: str) -> str:
    """Which blank of a file holds no more than it was given with: the first, with its line; empty if none does."""
    for found in _FILLED.finditer(text):
        code = [line.strip() for line in found[3].splitlines() if not line.lstrip().startswith("#")]
        if all(re.fullmatch(r"(pass|.* = 0|def launch\(.*\):)?", line) for line in code):
            line = text.count("\n", 0, found.start()) + 1
            return f"line {line}: between {BLANK} and {END} nothing is written yet; what follows comes of that"
    return ""


def _around_the_blank(given: str, text: str) -> str | None:
    only = f"only what stands between {BLANK} and {END} is yours to write"
    blanks = list(_FILLED.finditer(text))
    if [found[2].strip() for found in blanks] != [found[2].strip() for found in _FILLED.finditer(given)]:
        return f"the lines {BLANK} and {END} are not as given: {only}"
    leaves = f"what stands between {BLANK} and {END} leaves the block of lines that it began in"
    if any(line.strip() and not line.startswith(found[1]) for found in blanks for line in found[3].splitlines()):
        return leaves
    try:  # with a string in place of each blank and what fills it
        old, new = (_lines(_FILLED.sub(lambda found: f"{found[1]}{found[2]!r}", one)) for one in (given, text))
    except SyntaxError:  # a statement begins in the blank and ends behind it
        return leaves
    for i1, i2, j1, j2 in _changes(old, new):
        line = f"`{new[j1].strip()}` is not as given" if j1 < j2 else f"`{old[i1:i2][0].strip()}` is missing"
        return f"outside the blank, {line}: {only}, names for constants and shapes, too"
    return None


def _of_the_bug(exercise: Exercise, text: str) -> str | None:
    old, new = ([line.strip() for line in _lines(one)] for one in (exercise.solution, text))
    most, count = exercise.lines + SLACK, len(new) - len(old)
    if count <= most:  # else comparing them line by line might take long
        count = sum(max(i2 - i1, j2 - j1) for i1, i2, j1, j2 in _changes(old, new))
    said = f"{count} lines are other than in the exercise with its bug mended, and {most} may be"
    return f"{said}: find what is wrong, and leave the rest, names too" if count > most else None


def _changes(old: list[str], new: list[str]) -> list[tuple[int, int, int, int]]:
    """Where two texts differ: the lines from which to which of the one, and of the other."""
    found = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [(i1, i2, j1, j2) for tag, i1, i2, j1, j2 in found if tag != "equal"]


def _tree(text: str) -> ast.Module:
    """The code of a source without its self-test."""
    tree = ast.parse(text)
    for node in list(tree.body):
        if isinstance(node, ast.If) and not node.orelse and ast.unparse(node.test) == "__name__ == '__main__'":
            tree.body.remove(node)
    return tree


class _Bare(ast.NodeTransformer):
    """Takes away what does not count: imports, docstrings and annotations."""

    def visit(self, node: ast.AST) -> Any:
        self.generic_visit(node)
        match node:
            case ast.Import() | ast.ImportFrom():
                return None
            case ast.Expr(ast.Constant(str(text))):
                return node if text.startswith(BLANK) else None
            case ast.AnnAssign(target, _, ast.expr() as value):
                return ast.Assign([target], value)
            case ast.arg():
                node.annotation = None
            case ast.FunctionDef():
                node.returns = None
        return node


def _lines(text: str) -> list[str]:
    """A source's code, line by line, in one layout, without what does not count."""
    return ast.unparse(ast.fix_missing_locations(_Bare().visit(_tree(text)))).splitlines()
