"""What a student may change of an exercise: the blank or a few lines, and what any file may import.

A file is compared with the exercise's solution, which has the same frame. Comments, docstrings, type annotations,
layout, imports and a self-test under ``if __name__ == "__main__":`` do not count.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator

import numpy as np

from common.catalog import catalog
from common.catalog.exercises import BLANK, END, Exercise

SLACK = 6  # lines beside those of the bug: there is more than one way to mend it
FREE = {"__future__", "functools", "itertools", "math", "numba", "numpy", "typing"}  # what any kernel file may import
_TOOLKIT = f"{catalog.LESSONS.name}.{catalog.TOOLKIT}"
_HELPERS = {f"{_TOOLKIT}.{path.stem}" for path in (catalog.LESSONS / catalog.TOOLKIT).glob("[!_]*.py")}
REFUSED = {"__import__", "breakpoint", "compile", "eval", "exec", "globals", "input", "locals", "open"}
COPIES = {
    "copy_to_host", "copy_to_device", "to_device", "device_array", "device_array_like", "mapped_array",
    "managed_array",
}  # fmt: skip
KERNELS_ALONE = "where only kernels compute and arrays come from prepare or workspace"
_NOT_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)
_MODULE = re.compile(r"'(common|lessons)\.[\w.]+'")
_FILLED = re.compile(rf"^( *)({re.escape(BLANK)}[^\n]*)\n(.*?)^ *{re.escape(END)}[^\n]*$", re.DOTALL | re.MULTILINE)


def foreign(text: str, given: str, helpers: bool = True) -> list[str]:
    """What a kernel file has no use for, each with its line: modules beside numba, NumPy and a few of Python's,
    functions that open files or run texts, and in ``launch`` what computes on the host or makes arrays. The lessons'
    ``helpers`` it may have a use for.

    What ``given`` has, the exercise's solution or the step as shipped, is free. Empty if the text is not Python:
    importing it says so with its line.
    """
    try:
        old, new = _tree(given), _tree(text)
        known = {word for _, word in (*_foreign(old, helpers), *_on_the_host(old))}
        found = [(line, word) for line, word in (*_foreign(new, helpers), *_on_the_host(new)) if word not in known]
    except _NOT_PYTHON:
        return []
    return [f"line {line}: {word}" for line, word in sorted(dict.fromkeys(found))]


def _foreign(tree: ast.Module, helpers: bool) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module in (catalog.LESSONS.name, _TOOLKIT):
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = ["." * node.level + (node.module or "")]
        else:
            modules = []
        for module in modules:
            helper = helpers and module in _HELPERS
            if module.partition(".")[0] not in FREE and not helper:
                yield getattr(node, "lineno", 1), f"import of {module}"
        if isinstance(node, ast.Name) and node.id in REFUSED:
            yield node.lineno, f"`{node.id}`"
        elif isinstance(node, ast.Constant) and _MODULE.fullmatch(repr(node.value)):
            yield node.lineno, repr(node.value)


def _on_the_host(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """What ``launch`` does with elements itself: NumPy's functions, copies, new arrays, and what it stores."""
    for launch in (one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == "launch"):
        operands = {argument.arg for argument in launch.args.args}
        for node in ast.walk(launch):
            if isinstance(node, ast.Attribute):
                numpy = isinstance(node.value, ast.Name) and node.value.id in ("np", "numpy")
                number = numpy and isinstance(getattr(np, node.attr, None), type)  # such as np.float32
                does = (numpy and not number) or node.attr in COPIES
            elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                does = isinstance(node.value, ast.Name) and node.value.id in operands
            else:
                continue
            if does:
                yield node.lineno, f"`{ast.unparse(node)}` in launch, {KERNELS_ALONE}"


def departure(exercise: Exercise, text: str) -> str | None:
    """What a file changes of its exercise that is not its to change; None if nothing, or if it is not Python."""
    if exercise.kind not in ("write", "bug"):
        return None
    given = exercise.solution
    try:
        ast.parse(text)
        if exercise.kind == "write":
            return _around_the_blank(given, text)
        return _of_the_bug(exercise, _lines(given), _lines(text))
    except _NOT_PYTHON:
        return None  # importing it says so with its line


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
    for found in blanks:
        if any(line.strip() and not line.startswith(found[1]) for line in found[3].splitlines()):
            return leaves
    try:
        old, new = _lines(_emptied(given)), _lines(_emptied(text))
    except SyntaxError:  # a statement begins in the blank and ends behind it
        return leaves
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            line = f"`{new[j1].strip()}` is not as given" if j1 < j2 else f"`{old[i1:i2][0].strip()}` is missing"
            return f"outside the blank, {line}: {only}, names for constants and shapes, too"
    return None


def _emptied(text: str) -> str:
    """The text with a string in place of each blank and what fills it."""
    return _FILLED.sub(lambda found: f"{found[1]}{found[2]!r}", text)


def _of_the_bug(exercise: Exercise, old: list[str], new: list[str]) -> str | None:
    old, new = ([line.strip() for line in lines] for lines in (old, new))
    most = exercise.lines + SLACK
    count = len(new) - len(old)
    if count <= most:  # else comparing them line by line might take long
        found = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        count = sum(max(i2 - i1, j2 - j1) for tag, i1, i2, j1, j2 in found if tag != "equal")
    if count <= most:
        return None
    said = f"{count} lines are other than in the exercise with its bug mended, and {most} may be"
    return f"{said}: find what is wrong, and leave the rest, names too"


def _tree(text: str) -> ast.Module:
    """The code of a source without its self-test."""
    tree = ast.parse(text)
    tree.body = [node for node in tree.body if not _is_self_test(node)]
    return tree


def _is_self_test(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and not node.orelse and ast.unparse(node.test) == "__name__ == '__main__'"


def _lines(text: str) -> list[str]:
    """A source's code, line by line, in one layout, without what does not count."""
    return ast.unparse(ast.fix_missing_locations(_Plain().visit(_tree(text)))).splitlines()


class _Plain(ast.NodeTransformer):
    """Takes imports, docstrings and annotations out of a source."""

    def visit_Import(self, _: ast.Import) -> None:
        return None

    def visit_ImportFrom(self, _: ast.ImportFrom) -> None:
        return None

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        value = node.value.value if isinstance(node.value, ast.Constant) else None
        return None if isinstance(value, str) and not value.startswith(BLANK) else node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        return ast.copy_location(ast.Assign([node.target], node.value), node) if node.value else node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        node.returns = None
        node.body = node.body or [ast.Pass()]
        return node
