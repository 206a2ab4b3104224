"""Is a file still its exercise, with the blank filled in or the bug mended? Another right kernel is no answer to it.

It is compared with the solution, which has the same frame. Comments, docstrings, layout and indentation, imports and
what runs under ``if __name__ ...`` do not count.
"""

from __future__ import annotations

import ast
import difflib
import re

from common.grading.exercises import BLANK, END, Exercise

SLACK = 6  # lines beside those of the bug: there is more than one way to mend it

_BLANK = re.compile(rf"^([ \t]*){BLANK}.*?^[ \t]*{END}[^\n]*$", re.DOTALL | re.MULTILINE)


def departure(exercise: Exercise, text: str) -> str | None:
    """What a file changes of its exercise that is not its to change; None if nothing, or if it is not Python."""
    given = exercise.solution.read_text(encoding="utf-8")
    if exercise.kind == "write":
        (given, blanks), (text, found) = (_BLANK.subn(r"\1pass", one) for one in (given, text))
        if found != blanks:
            return f"the lines {BLANK} and {END} are not as given: only what stands between them is yours to write"
    elif exercise.kind != "bug":
        return None
    try:
        old, new = _lines(given), _lines(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # importing it says so with its line
    changes = [
        change
        for change in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        if change[0] != "equal"
    ]
    if exercise.kind == "write":
        if not changes:
            return None
        _, i1, _, j1, j2 = changes[0]
        line = f"`{new[j1].strip()}` is not as given" if j2 > j1 else f"`{old[i1].strip()}` is missing"
        return f"outside the blank, {line}: only what stands between {BLANK} and {END} is yours to write"
    count = sum(max(i2 - i1, j2 - j1) for _, i1, i2, j1, j2 in changes)
    if count <= exercise.lines + SLACK:
        return None
    most = exercise.lines + SLACK
    return (
        f"{count} lines are other than in the exercise with its bug mended, and {most} may be: find what is wrong, "
        "and leave the rest, names too"
    )


def _lines(text: str) -> list[str]:
    """A source's code, line by line, in one layout without indentation."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef):
            kept = [one for one in node.body if not _passed_over(one)]
            node.body = kept if kept or isinstance(node, ast.Module) else [ast.Pass()]
        if isinstance(node, ast.FunctionDef):
            node.returns = None
    lines = ast.unparse(ast.fix_missing_locations(tree)).splitlines()
    return [line.strip() for line in lines if line.strip()]


def _passed_over(node: ast.stmt) -> bool:
    docstring = (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    )
    of_a_program = isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
    return docstring or of_a_program or isinstance(node, ast.Import | ast.ImportFrom)
