"""Is a file still its exercise, with the blank filled in or the bug mended? Another right kernel is no answer to it.

It is compared with the solution, which has the same frame. Comments, docstrings, types and layout do not count, nor
more imports of what any kernel file may import, nor a self-test under ``if __name__ == "__main__":``. What fills a
blank stays in the block of statements that the blank stands in.
"""

from __future__ import annotations

import ast
import difflib
import io
import tokenize
from collections.abc import Iterator

from common.catalog.exercises import BLANK, END, Exercise
from common.grade import language

SLACK = 6  # lines beside those of the bug: there is more than one way to mend it
FREE_IMPORTS = tuple(language.MODULES)  # those of lessons are part of what is asked
_BODIES = ("body", "orelse", "finalbody")
_FILLED = "<the blank>"

Range = tuple[int, int]  # the lines of a blank's markers


def departure(exercise: Exercise, text: str) -> str | None:
    """What a file changes of its exercise that is not its to change; None if nothing, or if it is not Python."""
    if exercise.kind not in ("write", "bug"):
        return None
    given = exercise.solution.read_text(encoding="utf-8")
    try:
        old, new = ast.parse(given), ast.parse(text)
        if exercise.kind == "write":
            return _around_the_blank(given, old, text, new)
        return _imports(old, new) or _of_the_bug(exercise, _lines(old), _lines(new))
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError):
        return None  # importing it says so with its line


def _around_the_blank(given: str, old: ast.Module, text: str, new: ast.Module) -> str | None:
    old_ranges, new_ranges = _ranges(given), _ranges(text)
    if [text for text, _ in old_ranges] != [text for text, _ in new_ranges]:
        return f"the lines {BLANK} and {END} are not as given: only what stands between them is yours to write"
    changed = _imports(old, new)
    for number, ((_, before), (_, after)) in enumerate(zip(old_ranges, new_ranges, strict=True)):
        mark = f"{_FILLED} {number}"
        filled = _fill(new, after, mark)
        if filled > 1:
            return f"what stands between {BLANK} and {END} leaves the block of lines that it began in"
        _fill(old, before, mark if filled else "")
    if changed:
        return changed
    if _lines(old) == _lines(new) and _code(old) == _code(new):
        return None
    old_lines, new_lines = ([line for line in _lines(tree) if _FILLED not in line] for tree in (old, new))
    found = difflib.SequenceMatcher(None, old_lines, new_lines, autojunk=False).get_opcodes()
    for tag, i1, _, j1, j2 in found:
        if tag != "equal":
            line = f"`{new_lines[j1]}` is not as given" if j1 < j2 else f"`{old_lines[i1]}` is missing"
            yours = f"only what stands between {BLANK} and {END} is yours to write"
            return f"outside the blank, {line}: {yours}, names for constants and shapes, too"
    return f"outside the blank, a line stands in another block: only what stands between {BLANK} and {END} is yours"


def _of_the_bug(exercise: Exercise, old: list[str], new: list[str]) -> str | None:
    most = exercise.lines + SLACK
    count = len(new) - len(old)
    if count <= most:  # else comparing them line by line might take long
        found = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        count = sum(max(i2 - i1, j2 - j1) for tag, i1, i2, j1, j2 in found if tag != "equal")
    if count <= most:
        return None
    said = f"{count} lines are other than in the exercise with its bug mended, and {most} may be"
    return f"{said}: find what is wrong, and leave the rest, names too"


def _ranges(text: str) -> list[tuple[str, Range]]:
    """The blanks' first lines and the lines of their two markers; a marker is a comment, alone on its line."""
    found: list[tuple[str, Range]] = []
    start: tuple[str, int] | None = None
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT or token.line[: token.start[1]].strip():
            continue
        if token.string.startswith(BLANK):
            start = token.string.strip(), token.start[0]
        elif token.string.startswith(END) and start:
            found.append((start[0], (start[1], token.start[0])))
            start = None
    return found


def _fill(tree: ast.Module, lines: Range, mark: str) -> int:
    """Put ``mark`` in place of the statements between two lines; returns in how many blocks there were any."""
    filled = 0
    for block in _blocks(tree):  # the outer ones first: a statement takes those within it along
        inside = [node for node in block if _between(node, lines)]
        if inside:
            place = block.index(inside[0])
            block[place : place + len(inside)] = [_marked(mark)] if mark else []
            filled += 1
    return filled


def _marked(text: str) -> ast.stmt:
    return ast.fix_missing_locations(ast.Expr(ast.Constant(text), lineno=0, col_offset=0))


def _blocks(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    """The lists of statements in a source, those of a statement after its own."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        for name in _BODIES:
            block = getattr(node, name, None)
            if isinstance(block, list):
                yield block
        pending += ast.iter_child_nodes(node)


def _between(node: ast.stmt, lines: Range) -> bool:
    first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])
    return lines[0] < first and (node.end_lineno or node.lineno) < lines[1]


def _imports(old: ast.Module, new: ast.Module) -> str | None:
    """What the imports of ``new`` change: more may come from a few modules, and names mean what they meant."""
    meant, now = _imported(old), _imported(new)
    modules = {source.rpartition(".")[0] or source for source in meant.values()} | set(FREE_IMPORTS)
    taken = {name for node in ast.walk(old) for name in _made(node)} - meant.keys()
    for name, source in now.items():
        if meant.get(name, source) != source or name in taken:
            return f"`{name}` is imported as {source}: in the exercise it is {meant.get(name, 'its own')}"
        if name not in meant and source not in modules and source.rpartition(".")[0] not in modules:
            return f"it imports {source}, which the exercise has no use for"
    return None


def _imported(tree: ast.Module) -> dict[str, str]:
    """The names that a source imports, and what they stand for."""
    found: dict[str, str] = {}
    for node in ast.walk(language.without_self_test(tree)):
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name.split(".")[0]: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            source = "." * node.level + (node.module or "")
            found |= {alias.asname or alias.name: f"{source}.{alias.name}" for alias in node.names}
    return found


def _made(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef):
        yield node.name
    elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id


def _plain(tree: ast.Module) -> ast.Module:
    """The source without what does not count."""
    tree = language.without_self_test(tree)
    for block in _blocks(tree):
        block[:] = [_without_type(node) for node in block if not _passed_over(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            node.body = node.body or [ast.Pass()]
        elif isinstance(node, ast.arg):
            node.annotation = None
    return ast.fix_missing_locations(tree)


def _without_type(node: ast.stmt) -> ast.stmt:
    """``X: int = 1`` is ``X = 1``."""
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return ast.copy_location(ast.Assign([node.target], node.value), node)
    return node


def _code(tree: ast.Module) -> str:
    return ast.dump(_plain(tree))


def _lines(tree: ast.Module) -> list[str]:
    """A source's code, line by line, in one layout without indentation."""
    lines = ast.unparse(_plain(tree)).splitlines()
    return [line.strip() for line in lines if line.strip()]


def _passed_over(node: ast.stmt) -> bool:
    value = node.value if isinstance(node, ast.Expr) else None
    docstring = isinstance(value, ast.Constant) and isinstance(value.value, str) and _FILLED not in value.value
    return docstring or isinstance(node, ast.Import | ast.ImportFrom)
