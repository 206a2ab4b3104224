"""Where in a step's file something stands: questions to its syntax tree, answered with lines that count from 1."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from common.catalog import store

_Node = TypeVar("_Node", bound=ast.AST)


def text(path: Path) -> str:
    """The file's text; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def line_of(path: Path, line: int | None) -> str:
    """A line's text, as Python counts them: a form feed ends none."""
    lines = text(path).split("\n")
    return lines[line - 1].strip() if line and line <= len(lines) else ""


@store.kept_by_stamp
def _nodes(path: Path) -> list[ast.AST]:
    try:
        return list(ast.walk(ast.parse(text(path))))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def each(path: Path, *kinds: type[_Node]) -> Iterator[_Node]:
    """The nodes of these kinds; none of a file that is no Python."""
    return (node for node in _nodes(path) if isinstance(node, kinds))


def definitions(path: Path, name: str) -> Iterator[int]:
    """Lines that define a function of this name."""
    return (node.lineno for node in each(path, ast.FunctionDef) if node.name == name)


def assignments(path: Path, name: str) -> Iterator[int]:
    """Lines that set a variable."""
    return (node.lineno for node in each(path, ast.Name) if isinstance(node.ctx, ast.Store) and node.id == name)


def calls(path: Path, *names: str) -> Iterator[int]:
    """Lines that call a function or method of one of these names."""
    for node in each(path, ast.Call):
        if (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")) in names:
            yield node.lineno


def stores(path: Path, names: tuple[str, ...]) -> Iterator[int]:
    """Lines that store into elements of the arrays called ``names``."""
    for node in each(path, ast.Subscript):
        if isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id in names:
            yield node.lineno


def launches(path: Path) -> Iterator[int]:
    """Lines that start a kernel: ``kernel[grid, block](...)``."""
    return (node.lineno for node in each(path, ast.Call) if isinstance(node.func, ast.Subscript))


def started(path: Path, line: int) -> str | None:
    """The name that this line starts as a kernel: ``name[...](...)``."""
    for node in each(path, ast.Subscript):
        name = getattr(node.value, "id", "")
        if node.lineno <= line <= (node.end_lineno or 0) and any(definitions(path, name)):
            return str(name)
    return None


def function_around(path: Path, line: int | None) -> ast.FunctionDef | None:
    """The innermost function that holds this line."""
    functions = each(path, ast.FunctionDef)
    around = [one for one in functions if line and one.lineno <= line <= (one.end_lineno or 0)]
    return max(around, key=lambda one: one.lineno, default=None)


def loop_around(path: Path, line: int) -> int | None:
    """The first line of the innermost loop that holds ``line``: a ``while`` if there is one, as others end."""
    around = [loop for loop in each(path, ast.While, ast.For) if loop.lineno <= line <= (loop.end_lineno or 0)]
    whiles = [loop for loop in around if isinstance(loop, ast.While)]
    return max((loop.lineno for loop in whiles or around), default=None)


def loops_testing(path: Path, name: str) -> Iterator[int]:
    """Lines of ``while`` loops that test a variable."""
    for node in each(path, ast.While):
        if any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(node.test)):
            yield node.lineno


def returns_nothing(path: Path) -> str | None:
    """Which of ``prepare`` and ``workspace`` is there and has no ``return`` with a value."""
    for function in each(path, ast.FunctionDef):
        returned = (node for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None)
        if function.name in ("prepare", "workspace") and next(returned, None) is None:
            return function.name
    return None


def own_calls(path: Path) -> Iterator[int]:
    """Lines of functions that call themselves."""
    for node in each(path, ast.FunctionDef):
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call) and getattr(inner.func, "id", "") == node.name:
                yield inner.lineno


def arrays(function: ast.AST) -> Iterator[tuple[str, ast.Call, int]]:
    """The shared and local arrays that are given names in a function, each with its call and line."""
    for node in ast.walk(function):
        call = node.value if isinstance(node, ast.Assign) else None
        if (
            isinstance(call, ast.Call)
            and call.args
            and ast.unparse(call.func).endswith(("shared.array", "local.array"))
        ):
            yield ast.unparse(node.targets[0]), call, node.lineno  # type: ignore[attr-defined]


def of_float64(path: Path) -> int | None:
    """The first line that may make a kernel compute in float64: a literal, a whole number that is added to, an array
    of no dtype."""
    nodes = list(_nodes(path))
    arguments = (argument for node in nodes if isinstance(node, ast.Call) for argument in node.args)
    wrapped = {id(inner) for argument in arguments for inner in ast.walk(argument)}  # as in float32(0.0)
    constants = [node for node in nodes if isinstance(node, ast.Constant) and id(node) not in wrapped]
    literals = [node.lineno for node in constants if isinstance(node.value, float)]
    added = {node.target.id for node in each(path, ast.AugAssign) if isinstance(node.target, ast.Name)}
    whole = [node for node in each(path, ast.Assign) if type(getattr(node.value, "value", None)) is int]
    sums = [node.lineno for node in whole if added & {getattr(one, "id", "") for one in node.targets}]
    untyped = [line for line in calls(path, "device_array") if not re.search(r"dtype|np\.", line_of(path, line))]
    return next(iter([*literals, *sums, *untyped]), None)


def of_syntax_error(error: SyntaxError, path: Path) -> int | None:
    """The line of an error in the file at ``path``; Python does not say it of bytes that are no text."""
    try:
        data = path.read_bytes()
    except OSError:
        return error.lineno
    message = str(error.msg)
    undecodable = re.search(r"codec can't decode byte .* in position (\d+)", message)
    at = data.find(b"\0") if "null byte" in message else None
    if undecodable:
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as wrong:
            at = wrong.start
    if at is not None and at >= 0:
        return len(re.findall(rb"\r\n|\r|\n", data[:at])) + 1
    if "encoding" in message:
        return next((n for n, line in enumerate(data.split(b"\n")[:2], 1) if b"coding" in line), 1)
    return error.lineno
