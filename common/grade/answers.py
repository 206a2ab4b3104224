"""Grades a prediction: reads a student's numbers without running them, and compares each with the right one.

The right value of an answer stands in ``spoilers.toml`` as ``fixed ARITHMETIC`` (without spaces), or as a figure of
the reference GPU's record, such as ``ms PRESET STEP``: the kinds of :data:`common.report.figures.NAMED`. Either may
end in ``within P``, a tolerance in percent: else 1%, and 0 of a whole number that is worked out.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass

from common.catalog.exercises import Exercise, ExerciseError
from common.explain.faults import cut
from common.records import records
from common.report import figures
from common.run.messages import Finding

NEAR = 1.0  # percent, where a value is no whole number


class AnswerError(ExerciseError):
    """A file of answers, or an expected value, cannot be read."""


@dataclass(frozen=True)
class Expected:
    """A right value. What is near enough to it, or to what tables show of it, is right."""

    value: float
    within: float  # percent
    source: str = ""  # where it was measured; empty if it can be worked out
    shown: float | None = None  # with the digits of tables, if they show it

    @property
    def told(self) -> float:
        """The value as whoever reads the tables knows it."""
        return self.value if self.shown is None else self.shown

    def compare(self, answer: float) -> str:
        """Empty if the answer is right, else which way it is off."""
        if any(abs(answer - value) <= abs(value) * self.within / 100 for value in (self.value, self.told)):
            return ""
        return "too low" if answer < self.value else "too high"

    def slip(self, answer: float, slips: Mapping[str, str]) -> str:
        """What is said of the first of these mistakes, arithmetic and words, that comes to this answer, if any."""
        near = max(self.within / 100, 1e-9)
        return next((said for text, said in slips.items() if math.isclose(answer, evaluated(text), rel_tol=near)), "")


def expected(text: str) -> Expected:
    """The value that these words stand for; raises AnswerError if they make no sense or nothing was measured."""
    words, _, tolerance = text.partition(" within ")
    kind, *arguments = words.split()
    if kind == "fixed":
        value = evaluated(arguments[0])
        return Expected(value, float(tolerance or (0.0 if value == round(value) else NEAR)))
    if kind not in figures.NAMED:
        raise AnswerError(f"{text!r}: kind {kind!r} is unknown: kinds are fixed, {', '.join(figures.NAMED)}")
    record = records.other(records.REFERENCE_GPU)
    figure = figures.named(kind, record or records.nothing(), records.load_code(), arguments)
    if not isinstance(figure, figures.Figure) or record is None:
        raise AnswerError(f"{words}: nothing has been measured for it yet")
    return Expected(figure.value, float(tolerance or NEAR), f"{words}, measured on {record.gpu_name}", figure.shown)


def predicted(exercise: Exercise, text: str) -> tuple[list[Finding], list[str]]:
    """Reasons not to pass a prediction, and what each right answer was compared with; raises AnswerError."""
    try:
        given = read(exercise.path.name, text)
    except AnswerError as error:
        return [Finding("unusable", str(error))], []
    findings, notes, missing = list[Finding](), list[str](), list[str]()
    for name, words in exercise.answers.items():
        answer = given.get(name)
        if answer is None:
            missing.append(name)
            continue
        right = expected(words)
        if off := right.compare(answer):
            said = right.slip(answer, exercise.slips.get(name, {})) or right.source
            findings.append(Finding("wrong", f"{name} = {_shown(answer)} is {off}{said and ': '}{said}"))
        else:
            notes.append(f"{name} = {_shown(right.told)}: {right.source or 'worked out'}, yours {_shown(answer)}")
    if missing:
        findings.insert(0, Finding("unanswered", f"no value yet for {', '.join(missing)}"))
    return findings, notes


def _shown(value: float) -> str:
    """A whole number with all its digits."""
    return f"{value:.0f}" if value == round(value) and abs(value) < 1e12 else f"{value:.6g}"


_ARITHMETIC = ast.BinOp, ast.UnaryOp, ast.Constant, ast.Name, ast.Load, ast.operator, ast.USub, ast.UAdd
_LARGEST = 10.0**30
_MUST = f"must be NAME = number of at most {_LARGEST:g}, or arithmetic of numbers and of names that have one"


def evaluated(text: str) -> float:
    """What arithmetic of numbers comes to."""
    return _value(ast.parse(text, mode="eval").body, {})


def read(name: str, text: str) -> dict[str, float | None]:
    """The names that a file's text assigns and their values: numbers, or arithmetic of them and of names before; None
    if not answered yet. Raises AnswerError naming the file, by ``name``, and the line of anything else."""
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
        raise AnswerError(f"{name}:{line}: `{cut(said, 80)}`: {_MUST}") from None
    return found


def _value(expression: ast.expr, known: Mapping[str, float | None]) -> float:
    """Raises NameError for a name without a value, ArithmeticError or TypeError for what is no arithmetic."""
    for node in ast.walk(expression):
        if not isinstance(node, _ARITHMETIC):
            raise TypeError
        if isinstance(node, ast.Constant):
            if isinstance(node.value, bool) or not isinstance(node.value, int | float):
                raise TypeError
            node.value = float(node.value)  # a power of whole numbers may have any number of digits
    named = {name: value for name, value in known.items() if value is not None}
    value = eval(compile(ast.Expression(expression), "answers", "eval"), {"__builtins__": {}}, named)
    if isinstance(value, complex) or not abs(value) <= _LARGEST:
        raise ArithmeticError
    return float(value)
