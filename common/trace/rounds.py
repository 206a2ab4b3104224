"""A race around a loop's end: a barrier stands between its two lines, and yet none between the two accesses."""

from __future__ import annotations

import ast
import linecache
from functools import lru_cache


def across(file: str, line: int, other: int) -> str:
    """What follows ``no barrier between`` in the sentence of a race of these lines of a file: nothing, or in which
    round of a loop the later access comes.

    All threads of a block pass a barrier that stands in a loop's body itself. Where one does between the two lines,
    it is from the later line to the earlier one of the next round that there is none.
    """
    first, last = sorted((line, other))
    if _parted("".join(linecache.getlines(file)), first, last):
        return f" line {last} and line {first} in the next round of the loop"
    return ""


@lru_cache(maxsize=64)
def _parted(text: str, first: int, last: int) -> bool:
    """Does a barrier stand between the lines, in the body of the innermost loop around both?"""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.For | ast.While) and node.body[0].lineno <= first and last <= _end(node.body[-1])
    ]
    if not around:
        return False
    loop = max(around, key=lambda node: node.lineno)
    if any(isinstance(node, ast.Continue) for node in ast.walk(loop)):
        return False
    return any(first < one.lineno and _end(one) < last for one in loop.body if _is_barrier(one))


def _end(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def _is_barrier(node: ast.stmt) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "syncthreads"
