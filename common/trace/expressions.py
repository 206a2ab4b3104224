"""Translates a kernel's expressions into such that work on all threads at once; see :mod:`common.trace.translate`."""

import ast
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from common.trace.state import TraceError

_BINARY = {
    ast.Add: "_add", ast.Sub: "_sub", ast.Mult: "_mul", ast.Div: "_truediv", ast.FloorDiv: "_floordiv",
    ast.Mod: "_mod", ast.Pow: "_power", ast.LShift: "_shift_left", ast.RShift: "_shift_right",
    ast.BitAnd: "_bit_and", ast.BitOr: "_bit_or", ast.BitXor: "_bit_xor",
}  # fmt: skip
_UNARY = {ast.USub: "_negative", ast.UAdd: "_positive", ast.Not: "_logical_not", ast.Invert: "_invert"}
_COMPARISONS = {ast.Lt: "_lt", ast.LtE: "_le", ast.Gt: "_gt", ast.GtE: "_ge", ast.Eq: "_eq", ast.NotEq: "_ne"}
COUNTS = ("range", "unrolled")
_ARITHMETIC = (ast.Name, ast.Constant, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.expr_context)
_INDICES = ("cuda.threadIdx", "cuda.blockIdx", "cuda.blockDim", "cuda.gridDim")


class Expressions:
    """``pure(name)``: is a free name called with no line? ``home``: is it in the step's file? If not, what it does is
    booked on the line that called it. ``ints``: names of Python ints, one for all threads, whose arithmetic stays
    Python's own: free names, and counters of loops over such (in a ``narrow`` function of `lessons.toolkit.narrow`,
    of those that are written out: where arithmetic or a variable takes one there, it has 32 bits)."""

    def __init__(
        self, definition: ast.FunctionDef, pure: Callable[[str], bool], home: bool, ints: frozenset[str], narrow: bool
    ) -> None:
        self.definition, self.pure, self.home, self.narrow = definition, pure, home, narrow
        self.constants: dict[str, np.generic] = {}
        self.count = 0
        self.parameters = {argument.arg for argument in definition.args.args}
        self.local = self.parameters | names(definition, ast.Store)
        self.ints = ints - self.local
        stores = Counter(
            n.id for n in ast.walk(definition) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        )
        loops = [node for node in ast.walk(definition) if isinstance(node, ast.For) and self.is_count(node.iter)]
        counters = Counter(node.target.id for node in loops if isinstance(node.target, ast.Name))
        self.ints |= {name for name, times in counters.items() if times == stores[name]} - self.parameters

    def untraced(self, node: ast.stmt | ast.expr, what: str) -> TraceError:
        return TraceError(f"{self.definition.name}: line {node.lineno}: {what} is not traced")

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def line(self, node: ast.stmt | ast.expr) -> str:
        return str(node.lineno) if self.home else "_t.site"

    def expression(self, node: ast.expr) -> str:
        method = getattr(self, "of_" + type(node).__name__, None)
        if method is None:
            raise self.untraced(node, ast.unparse(node))
        written: str = method(node)
        return written

    def of_Constant(self, node: ast.Constant) -> str:  # noqa: N802
        value = numba_constant(node.value)
        if not isinstance(value, np.generic):
            return f"complex(0.0, {value.imag})" if isinstance(value, complex) else repr(value)
        name = f"_f{len(self.constants)}"
        self.constants[name] = value
        return name

    def of_Name(self, node: ast.Name) -> str:  # noqa: N802
        return node.id

    def of_Attribute(self, node: ast.Attribute) -> str:  # noqa: N802
        value = self.expression(node.value)
        if node.attr == "strides":
            return f"_t.strides({value})"
        index = isinstance(node.value, ast.Attribute) and ast.unparse(node.value) in _INDICES
        return f"_narrow({value}.{node.attr})" if self.narrow and index else f"{value}.{node.attr}"

    def kept(self, node: ast.expr) -> str:
        """An operand, or what a variable is given: in a narrow function constants have 32 bits."""
        if self.narrow and isinstance(node, ast.Tuple):
            return tuple_of([self.kept(element) for element in node.elts])
        written = self.expression(node)
        return f"_narrow_constant({written})" if self.narrow and self.is_int(node) else written

    def of_Tuple(self, node: ast.Tuple | ast.List) -> str:  # noqa: N802
        return tuple_of([self.expression(element) for element in node.elts])

    of_List = of_Tuple  # noqa: N815

    def index(self, node: ast.expr) -> str:
        match node:
            case ast.Slice(lower, upper, step):
                ends = [self.expression(end) if end else "None" for end in (lower, upper, step)]
                return f"_slice({', '.join(ends)})"
            case ast.Tuple(elements):
                return tuple_of([self.index(element) for element in elements])
        return self.expression(node)

    def place(self, target: ast.Subscript | ast.Attribute) -> tuple[str, str]:
        """An array and an index; or a record and its field's name."""
        index = self.index(target.slice) if isinstance(target, ast.Subscript) else repr(target.attr)
        return self.expression(target.value), index

    def of_Subscript(self, node: ast.Subscript) -> str:  # noqa: N802
        return f"_t.load({', '.join(self.place(node))}, {self.line(node)})"

    def of_BinOp(self, node: ast.BinOp) -> str:  # noqa: N802
        return self.binary(node, node.left, node.op, node.right)

    def binary(self, node: ast.stmt | ast.expr, left: ast.expr | str, op: ast.operator, right: ast.expr) -> str:
        function = _BINARY.get(type(op))
        if function is None:
            raise self.untraced(node, type(op).__name__)
        if not isinstance(left, str) and self.is_int(whole := ast.BinOp(left, op, right)):
            return f"({ast.unparse(whole)})"
        operand = self.expression if isinstance(op, ast.Div | ast.Pow) else self.kept
        operands = f"{left if isinstance(left, str) else operand(left)}, {operand(right)}"
        if isinstance(op, ast.FloorDiv | ast.Mod):
            return f"_t.divide({function}, {operands}, {self.line(node)})"
        products = [isinstance(side, ast.BinOp) and isinstance(side.op, ast.Mult) for side in (left, right)]
        if isinstance(op, ast.Add | ast.Sub) and any(products):  # the compiler makes one instruction of it
            return f"_t.multiply_add({function}, {operands}, {self.line(node)})"
        return f"{function}({operands})"

    def of_UnaryOp(self, node: ast.UnaryOp) -> str:  # noqa: N802
        return f"{_UNARY[type(node.op)]}({self.expression(node.operand)})"

    def of_Compare(self, node: ast.Compare) -> str:  # noqa: N802
        left, result = self.expression(node.left), ""
        for i, (op, operand) in enumerate(zip(node.ops, node.comparators, strict=True)):
            right = after = self.expression(operand)
            if i + 1 < len(node.ops) and not isinstance(operand, ast.Name):
                after = self.fresh("_v")  # 0 <= d < D: what stands in the middle is worked out once
                right = f"({after} := {right})"
            if isinstance(op, ast.Is | ast.IsNot):
                part = f"({left} {'is' if isinstance(op, ast.Is) else 'is not'} {right})"
            elif isinstance(op, ast.In | ast.NotIn):
                part = f"_t.contains({right}, {left}, {self.line(node)})"
                part = part if isinstance(op, ast.In) else f"_logical_not({part})"
            elif type(op) in _COMPARISONS:
                part = f"_t.compare({_COMPARISONS[type(op)]}, {left}, {right}, {self.line(node)})"
            else:
                raise self.untraced(node, ast.unparse(node))
            result, left = f"_logical_and({result}, {part})" if result else part, after
        return result

    def of_BoolOp(self, node: ast.BoolOp) -> str:  # noqa: N802
        asked, result = "both" if isinstance(node.op, ast.And) else "either", self.expression(node.values[0])
        for value in node.values[1:]:
            result = f"_t.{asked}({result}, lambda: {self.expression(value)})"
        return result

    def of_IfExp(self, node: ast.IfExp) -> str:  # noqa: N802
        if self.is_int(node):
            return f"({ast.unparse(node)})"
        test, then, otherwise = self.expression(node.test), self.kept(node.body), self.kept(node.orelse)
        return f"_t.select({test}, lambda: {then}, lambda: {otherwise})"

    def of_Call(self, node: ast.Call) -> str:  # noqa: N802
        extreme = isinstance(node.func, ast.Name) and node.func.id in {"min", "max"} - self.local
        arguments = list(map(self.kept if extreme else self.expression, node.args))
        arguments += [
            f"{'**' if not one.arg else f'{one.arg}='}{self.expression(one.value)}" for one in node.keywords
        ]
        if isinstance(node.func, ast.Name) and node.func.id not in self.local and self.pure(node.func.id):
            return f"{self.expression(node.func)}({', '.join(arguments)})"
        spot = str(node.lineno * 4096 + node.col_offset)
        return f"_t.call({', '.join([self.expression(node.func), self.line(node), spot, *arguments])})"

    def is_int(self, node: ast.expr) -> bool:
        """Is it a Python int, one for all threads?"""
        match node:
            case ast.Constant():
                return type(numba_constant(node.value)) is int
            case ast.Name():
                return node.id in self.ints
            case ast.UnaryOp(ast.USub(), operand):
                return self.is_int(operand)
            case ast.BinOp(left, op, right) if isinstance(op, ast.Add | ast.Sub | ast.Mult) or self.narrow:
                return self.is_int(left) and self.is_int(right) and not isinstance(op, ast.Div | ast.MatMult)
            case ast.BinOp(left, ast.FloorDiv() | ast.Mod(), ast.Constant(value)):
                return type(value) is int and value > 0 and self.is_int(left)
            case ast.IfExp(ast.Compare(left, _, [right]), then, otherwise) if not self.narrow:
                return all(map(self.is_int, (left, right, then, otherwise)))
        return False

    def is_place(self, node: ast.expr) -> bool:
        """Is it such an int, or arithmetic of what may be one, that runs as it stands?"""
        return self.is_int(node) or all(isinstance(part, _ARITHMETIC) for part in ast.walk(node))

    def is_count(self, node: ast.expr) -> bool:
        match node:
            case ast.Call(ast.Name(name), arguments, []):
                known = name in (COUNTS[1:] if self.narrow else COUNTS) and name not in self.local
                return known and all(map(self.is_int, arguments))
        return False


def numba_constant(value: Any) -> Any:
    """A constant as Numba types it: a float is a float64, and an int that is too large for an int64 a uint64."""
    if isinstance(value, float):
        return np.float64(value)
    return np.uint64(value) if type(value) is int and 2**63 <= value < 2**64 else value


def tuple_of(parts: list[str]) -> str:
    return f"({', '.join(parts)}{',' * (len(parts) == 1)})"


def names(node: ast.AST | None, context: type[ast.expr_context] = ast.Load) -> frozenset[str]:
    inside = ast.walk(node) if node else ()
    return frozenset(n.id for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, context))
