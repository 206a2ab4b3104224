"""What is read of a student's file without running it: what it changes of its exercise, what it imports, and the
numbers of a prediction.

A kernel's file is compared with the exercise's solution, which has the same frame. Comments, docstrings, type
annotations, layout, imports and a self-test under ``if __name__ == "__main__":`` do not count.

The right value of an answer stands in ``spoilers.toml`` as ``fixed ARITHMETIC`` (without spaces), or as a figure of
the reference GPU's record, such as ``ms PRESET STEP``: the kinds of :data:`common.report.figures.NAMED`. Either may
end in ``within P``, a tolerance in percent: else 1%, and 0 of a whole number that is worked out.
"""

import ast
import difflib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from common.catalog import catalog, sources
from common.catalog.exercises import BLANK, END, Exercise, ExerciseError
from common.explain.faults import cut
from common.records import records
from common.report import figures
from common.run.messages import Finding

SLACK = 6  # lines beside those of the bug
FREE = {"__future__", "functools", "itertools", "math", "numba", "numpy", "typing"}  # what any kernel file may import
_TOOLKIT = f"{catalog.LESSONS.name}.{catalog.TOOLKIT}"
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
                if module.partition(".")[0] not in FREE and not (helpers and module.startswith(f"{_TOOLKIT}.")):
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
    except sources.NO_PYTHON:
        return None
    try:
        if exercise.kind == "write":
            return _around_the_blank(exercise.solution, text)
        return _of_the_bug(exercise, text) if exercise.kind == "bug" else None
    except RecursionError:  # Python reads what it cannot write down again, such as a sum of a thousand terms
        return "it cannot be compared with the exercise: an expression is nested too deeply"


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
    for i1, _, j1, j2 in _changes(old, new):
        line = f"`{new[j1].strip()}` is not as given" if j1 < j2 else f"`{old[i1].strip()}` is missing"
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


def unfilled(text: str) -> str:
    """Which blank of a file holds no more than it was given with: the first, with its line; empty if none does."""
    for found in _FILLED.finditer(text):
        code = [line.strip() for line in found[3].splitlines() if not line.lstrip().startswith("#")]
        if all(re.fullmatch(r"(pass|.* = 0|def launch\(.*\):)?", line) for line in code):
            line = text.count("\n", 0, found.start()) + 1
            return f"line {line}: between {BLANK} and {END} nothing is written yet; what follows comes of that"
    return ""


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


# --- predictions ---

NEAR = 1.0  # percent, where a value is no whole number


@dataclass(frozen=True)
class Expected:
    """A right value. What is near enough to it, or to what tables show of it, is right."""

    value: float
    within: float  # percent
    shown: float  # the value, with the digits of tables if they show it
    source: str = ""  # where it was measured; empty if it can be worked out

    def compare(self, answer: float) -> str:
        """Empty if the answer is right, else which way it is off."""
        if any(abs(answer - value) <= abs(value) * self.within / 100 for value in (self.value, self.shown)):
            return ""
        return "too low" if answer < self.value else "too high"

    def slip(self, answer: float, slips: Mapping[str, str]) -> str:
        """What is said of the first of these mistakes, arithmetic and words, that comes to this answer, if any."""
        near = max(self.within / 100, 1e-9)
        return next((said for text, said in slips.items() if math.isclose(answer, evaluated(text), rel_tol=near)), "")


def expected(text: str) -> Expected:
    """The value that these words stand for; raises ValueError if they make no sense, and
    ExerciseError if nothing was measured."""
    words, _, tolerance = text.partition(" within ")
    kind, *arguments = words.split()
    if kind == "fixed":
        value = evaluated(arguments[0])
        return Expected(value, float(tolerance or (0.0 if value == round(value) else NEAR)), value)
    record = records.other(records.REFERENCE_GPU)
    figure = figures.named(kind, record or records.nothing(), records.load_code(), arguments)
    if not isinstance(figure, figures.Figure) or record is None:
        raise ExerciseError(f"{words}: nothing has been measured for it yet")
    shown = figure.value if figure.shown is None else figure.shown
    return Expected(figure.value, float(tolerance or NEAR), shown, f"measured on {record.gpu_name}")


def predicted(exercise: Exercise, text: str) -> tuple[list[Finding], list[str]]:
    """Reasons not to pass a prediction, and what each right answer was compared with; raises ExerciseError."""
    try:
        given = read(exercise.path.name, text)
    except ExerciseError as error:
        return [Finding("unusable", str(error))], []
    findings, notes, missing = list[Finding](), list[str](), list[str]()
    for name, words in exercise.answers.items():
        answer = given.get(name)
        if answer is None:
            missing.append(name)
            continue
        right = expected(words)
        if off := right.compare(answer):
            said = right.slip(answer, exercise.slips.get(name, {})) or (right.source and f"it was {right.source}")
            findings.append(Finding("wrong", f"{name} = {_shown(answer)} is {off}{said and ': '}{said}"))
        else:
            notes.append(f"{name} = {_shown(right.shown)}: {right.source or 'worked out'}, yours {_shown(answer)}")
    if missing:
        findings.insert(0, Finding("unanswered", f"no value yet for {', '.join(missing)}"))
    return findings, notes


def _shown(value: float) -> str:
    """A whole number with all its digits."""
    return f"{value:.0f}" if value == round(value) and abs(value) < 1e12 else f"{value:.6g}"


_ARITHMETIC = ast.BinOp, ast.UnaryOp, ast.Name, ast.Load, ast.operator, ast.USub, ast.UAdd
_LARGEST = 10.0**30
_MUST = f"must be NAME = number of at most {_LARGEST:g}, or arithmetic of numbers and of names that have one"


def evaluated(text: str) -> float:
    """What arithmetic of numbers comes to."""
    return _value(ast.parse(text, mode="eval").body, {})


def read(name: str, text: str) -> dict[str, float | None]:
    """The names that a file's text assigns and their values: numbers, or arithmetic of them and of names before; None
    if not answered yet. Raises ExerciseError naming the file, by ``name``, and the line of anything else."""
    found: dict[str, float | None] = {}
    line = 1
    try:
        for statement in ast.parse(text).body:
            line = statement.lineno
            match statement:
                case ast.Expr(ast.Constant()):  # a docstring
                    continue
                case ast.Assign([ast.Name(target)], value) | ast.AnnAssign(ast.Name(target), _, ast.expr() as value):
                    found[target] = None if ast.unparse(value) == "None" else _value(value, found)
                case _:
                    raise TypeError
    except (SyntaxError, ValueError, ArithmeticError, NameError, TypeError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or line
        said = [*text.split("\n"), ""][line - 1].strip()
        raise ExerciseError(f"{name}:{line}: `{cut(said, 80)}`: {_MUST}") from None
    return found


def _value(expression: ast.expr, known: Mapping[str, float | None]) -> float:
    """Raises NameError for a name without a value, ArithmeticError or TypeError for what is no arithmetic."""
    for node in ast.walk(expression):
        value = getattr(node, "value", None)
        if isinstance(node, ast.Constant) and isinstance(value, int | float) and not isinstance(value, bool):
            node.value = float(value)  # a power of whole numbers may have any number of digits
        elif not isinstance(node, _ARITHMETIC):
            raise TypeError
    named = {name: value for name, value in known.items() if value is not None}
    value = eval(compile(ast.Expression(expression), "answers", "eval"), {"__builtins__": {}}, named)
    if isinstance(value, complex) or not abs(value) <= _LARGEST:
        raise ArithmeticError
    return float(value)
