"""Translates a kernel's expressions into such that work on all threads at once; see :mod:`common.trace.translate`."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable

_BINARY = {
    ast.Add: "_add", ast.Sub: "_sub", ast.Mult: "_mul", ast.Div: "_truediv", ast.FloorDiv: "_floordiv",
    ast.Mod: "_mod", ast.Pow: "_power", ast.LShift: "_shift_left", ast.RShift: "_shift_right",
    ast.BitAnd: "_bit_and", ast.BitOr: "_bit_or", ast.BitXor: "_bit_xor",
}  # fmt: skip
_UNARY = {ast.USub: "_negative", ast.UAdd: "_positive", ast.Not: "_logical_not", ast.Invert: "_invert"}
_COMPARISONS = {ast.Lt: "_lt", ast.LtE: "_le", ast.Gt: "_gt", ast.GtE: "_ge", ast.Eq: "_eq", ast.NotEq: "_ne"}
_SAME_OBJECT = ast.Is | ast.IsNot
COUNTS = ("range", "unrolled")
_INDICES = ("cuda.threadIdx", "cuda.blockIdx", "cuda.blockDim", "cuda.gridDim")


class UntranslatableError(ValueError):
    """A statement or expression that the tracer does not know; says which, and in which line."""


class Expressions:
    """Translates expressions of a function.

    ``pure(name)``  does a call of a free name read no memory and need no line
    ``home``        is it in the step's own file? Otherwise what it does is booked on the line that called it
    ``local``       the function's own names
    ``constants``   the floats that it names
    ``ints``        names of Python ints that are one for all threads: their arithmetic, most of a kernel's, stays
                    Python's own. Free names (given as ``ints``), and counters of loops over ranges of such
    ``narrow``      is it one of `lessons.toolkit.narrow`? Then only constants are such ints, and counters of loops
                    that are written out. Where arithmetic or a variable takes one, it has 32 bits
    """

    def __init__(
        self,
        definition: ast.FunctionDef,
        pure: Callable[[str], bool],
        home: bool,
        ints: frozenset[str],
        narrow: bool = False,
    ) -> None:
        self.pure, self.home, self.narrow = pure, home, narrow
        self.constants: dict[str, float] = {}
        self.count = 0
        parameters = {argument.arg for argument in definition.args.args}
        self.local = parameters | names(definition, ast.Store)
        stores = Counter(
            n.id for n in ast.walk(definition) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        )
        self.loops_of: dict[str, list[ast.expr]] = {}
        for node in ast.walk(definition):
            if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
                self.loops_of.setdefault(node.target.id, []).append(node.iter)
        counters = {name for name, own in self.loops_of.items() if len(own) == stores[name]} - parameters
        self.ints = (ints - self.local) | counters
        self.drop_ints(set())

    # --- pieces of translated code ---

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    @staticmethod
    def load(name: str) -> ast.Name:
        return ast.Name(name, ast.Load())

    def executor(self, attribute: str) -> ast.Attribute:
        return ast.Attribute(self.load("_t"), attribute, ast.Load())

    def ask(self, method: str, *arguments: ast.expr) -> ast.Call:
        return ast.Call(self.executor(method), list(arguments), [])

    def apply(self, function: str, *arguments: ast.expr) -> ast.Call:
        return ast.Call(self.load(function), list(arguments), [])

    def line(self, node: ast.stmt | ast.expr) -> ast.expr:
        return ast.Constant(node.lineno) if self.home else self.executor("site")

    @staticmethod
    def assign_plain(name: str, value: ast.expr) -> ast.stmt:
        return ast.Assign([ast.Name(name, ast.Store())], value, None)

    @staticmethod
    def set_mask(value: ast.expr) -> ast.stmt:
        return ast.Assign([ast.Attribute(ast.Name("_t", ast.Load()), "mask", ast.Store())], value, None)

    # --- expressions ---

    def expression(self, node: ast.expr) -> ast.expr:
        method = getattr(self, "of_" + type(node).__name__, None)
        if method is None:
            raise UntranslatableError(
                f"line {node.lineno}: {ast.unparse(node)} is not traced ({type(node).__name__})"
            )
        written: ast.expr = method(node)
        return ast.copy_location(written, node)

    def of_Constant(self, node: ast.Constant) -> ast.expr:  # noqa: N802
        if isinstance(node.value, float):
            name = f"_f{len(self.constants)}"
            self.constants[name] = node.value
            return self.load(name)
        if isinstance(node.value, complex):
            return ast.Call(self.load("complex"), [ast.Constant(node.value.real), ast.Constant(node.value.imag)], [])
        return ast.Constant(node.value)

    def of_Name(self, node: ast.Name) -> ast.expr:  # noqa: N802
        return self.load(node.id)

    def of_Attribute(self, node: ast.Attribute) -> ast.expr:  # noqa: N802
        if node.attr == "strides":
            return self.ask("strides", self.expression(node.value))
        written = ast.Attribute(self.expression(node.value), node.attr, ast.Load())
        index = isinstance(node.value, ast.Attribute) and ast.unparse(node.value) in _INDICES
        return self.apply("_narrow", written) if self.narrow and index else written

    def kept(self, node: ast.expr) -> ast.expr:
        """An operand, or what a variable is given: in a narrow function constants have 32 bits."""
        if not self.narrow:
            return self.expression(node)
        if isinstance(node, ast.Tuple):
            return ast.copy_location(ast.Tuple([self.kept(element) for element in node.elts], ast.Load()), node)
        written = self.expression(node)
        return self.apply("_narrow_constant", written) if self.is_int(node) else written

    def of_Tuple(self, node: ast.Tuple) -> ast.expr:  # noqa: N802
        return ast.Tuple([self.expression(element) for element in node.elts], ast.Load())

    of_List = of_Tuple  # noqa: N815

    def index(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Slice):
            ends = [
                self.expression(end) if end else ast.Constant(None) for end in (node.lower, node.upper, node.step)
            ]
            return ast.copy_location(self.apply("_slice", *ends), node)
        if isinstance(node, ast.Tuple):
            return ast.copy_location(ast.Tuple([self.index(element) for element in node.elts], ast.Load()), node)
        return self.expression(node)

    def of_Subscript(self, node: ast.Subscript) -> ast.expr:  # noqa: N802
        return self.ask("load", self.expression(node.value), self.index(node.slice), self.line(node))

    def of_BinOp(self, node: ast.BinOp) -> ast.expr:  # noqa: N802
        return self.binary(node, node.left, node.op, node.right)

    def binary(
        self, node: ast.stmt | ast.expr, left: ast.expr, op: ast.operator, right: ast.expr, translated: bool = False
    ) -> ast.expr:
        function = _BINARY.get(type(op))
        if function is None:
            raise UntranslatableError(f"line {node.lineno}: {type(op).__name__} is not traced")
        if not translated and self.is_int(ast.BinOp(left, op, right)):
            return ast.BinOp(self.expression(left), op, self.expression(right))
        operand = self.expression if isinstance(op, ast.Div | ast.Pow) else self.kept
        operands = left if translated else operand(left), operand(right)
        fused = isinstance(op, ast.Add | ast.Sub) and any(
            isinstance(side, ast.BinOp) and isinstance(side.op, ast.Mult) for side in (left, right)
        )
        if isinstance(op, ast.FloorDiv | ast.Mod):
            return self.ask("divide", self.load(function), *operands, self.line(node))
        if fused:  # the compiler makes one instruction of it
            return self.ask("multiply_add", self.load(function), *operands, self.line(node))
        return self.apply(function, *operands)

    def of_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:  # noqa: N802
        return self.apply(_UNARY[type(node.op)], self.expression(node.operand))

    def of_Compare(self, node: ast.Compare) -> ast.expr:  # noqa: N802
        operands = [self.expression(operand) for operand in (node.left, *node.comparators)]
        # 0 <= d < D: what stands in the middle is worked out once
        parts: list[ast.expr] = []
        left: ast.expr = operands[0]
        for i, (op, right) in enumerate(zip(node.ops, operands[1:], strict=True)):
            if i + 1 < len(node.ops) and not isinstance(right, ast.Name):
                kept = self.fresh("_v")
                bound = ast.NamedExpr(ast.Name(kept, ast.Store()), right)
                parts.append(self.comparison(node, left, op, bound))
                left = self.load(kept)
            else:
                parts.append(self.comparison(node, left, op, right))
                left = right
        result = parts[0]
        for part in parts[1:]:
            result = self.apply("_logical_and", result, part)
        return result

    def comparison(self, node: ast.Compare, left: ast.expr, op: ast.cmpop, right: ast.expr) -> ast.expr:
        if isinstance(op, _SAME_OBJECT):
            return ast.Compare(left, [op], [right])
        function = _COMPARISONS.get(type(op))
        if function is None:
            raise UntranslatableError(f"line {node.lineno}: {ast.unparse(node)} is not traced")
        return self.ask("compare", self.load(function), left, right, self.line(node))

    def of_BoolOp(self, node: ast.BoolOp) -> ast.expr:  # noqa: N802
        conjunction = isinstance(node.op, ast.And)
        first, *rest = node.values
        result = self.expression(first)
        for value in rest:
            right = self.expression(value)
            if not self.is_pure(value):
                result = self.ask("both" if conjunction else "either", result, self.later(right))
            else:
                result = self.apply("_logical_and" if conjunction else "_logical_or", result, right)
        return result

    def of_IfExp(self, node: ast.IfExp) -> ast.expr:  # noqa: N802
        test, then, otherwise = self.expression(node.test), self.kept(node.body), self.kept(node.orelse)
        if not (self.is_pure(node.body) and self.is_pure(node.orelse)):
            return self.ask("select", test, self.later(then), self.later(otherwise))
        return self.apply("_choose", test, then, otherwise)

    @staticmethod
    def later(value: ast.expr) -> ast.Lambda:
        nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        return ast.Lambda(nothing, value)

    def of_Call(self, node: ast.Call) -> ast.expr:  # noqa: N802
        extreme = (
            isinstance(node.func, ast.Name) and node.func.id in ("min", "max") and node.func.id not in self.local
        )
        arguments = [self.kept(argument) if extreme else self.expression(argument) for argument in node.args]
        keywords = [ast.keyword(keyword.arg, self.expression(keyword.value)) for keyword in node.keywords]
        function = self.expression(node.func)
        if self.calls_pure(node):
            return ast.Call(function, arguments, keywords)
        spot = ast.Constant(node.lineno * 4096 + node.col_offset)
        return ast.Call(self.executor("call"), [function, self.line(node), spot, *arguments], keywords)

    def calls_pure(self, node: ast.Call) -> bool:
        return isinstance(node.func, ast.Name) and node.func.id not in self.local and self.pure(node.func.id)

    def drop_ints(self, wrong: set[str]) -> None:
        """These are no ints that all threads share, nor are counters of loops over ranges of them."""
        self.ints -= wrong
        more = {name for name in self.ints & self.loops_of.keys() if not all(map(self.is_count, self.loops_of[name]))}
        if more:
            self.drop_ints(more)

    def is_int(self, node: ast.expr) -> bool:
        """Is it a Python int, one for all threads?"""
        match node:
            case ast.Constant():
                return type(node.value) is int
            case ast.Name():
                return node.id in self.ints
            case ast.UnaryOp(ast.USub(), operand) if self.narrow:
                return self.is_int(operand)
            case ast.BinOp(left, op, right) if self.narrow and not isinstance(op, ast.Div | ast.MatMult):
                return self.is_int(left) and self.is_int(right)
            case ast.BinOp(left, ast.Add() | ast.Sub() | ast.Mult(), right):
                return self.is_int(left) and self.is_int(right)
            case ast.BinOp(left, ast.FloorDiv() | ast.Mod(), ast.Constant(value)):
                return type(value) is int and value > 0 and self.is_int(left)
        return False

    def is_count(self, node: ast.expr) -> bool:
        """Is it a ``range`` of such ints?"""
        function = node.func if isinstance(node, ast.Call) else None
        names = COUNTS[1:] if self.narrow else COUNTS
        known = isinstance(function, ast.Name) and function.id in names and function.id not in self.local
        return known and isinstance(node, ast.Call) and not node.keywords and all(map(self.is_int, node.args))

    def is_pure(self, node: ast.expr) -> bool:
        """May it be worked out for lanes that do not need it? Not if it reads memory, divides by what may be zero,
        or asks what a value is, which nothing may have written."""
        for part in ast.walk(node):
            if isinstance(part, ast.Compare):
                return False
            if isinstance(part, ast.Subscript) and getattr(part.value, "attr", "") != "shape":
                return False
            if isinstance(part, ast.Call) and not self.calls_pure(part):
                return False
            # x // 0 of an idle lane is no fault
            if isinstance(part, ast.BinOp) and isinstance(part.op, ast.FloorDiv | ast.Mod | ast.Div):
                return False
        return True


def names(node: ast.AST | None, context: type[ast.expr_context] = ast.Load) -> frozenset[str]:
    if node is None:
        return frozenset()
    return frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, context))
