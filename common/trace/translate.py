"""Translates a kernel's Python into Python that runs all threads at once.

The translation keeps names and lines. What differs between threads is an array with one element per lane; an ``if``
or a loop whose condition differs runs under a mask of active lanes. A variable assigned under a mask keeps its old
value in the other lanes only if one of them may still read it: otherwise a loop counter would become an array.

In the translated code ``_t`` is the :class:`common.trace.executor.Executor`, whose ``mask`` holds the active lanes,
and the names of :mod:`common.trace.values` have an underscore in front.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from dataclasses import dataclass

from common.trace import liveness

_BINARY = {
    ast.Add: "_add", ast.Sub: "_sub", ast.Mult: "_mul", ast.Div: "_truediv", ast.FloorDiv: "_floordiv",
    ast.Mod: "_mod", ast.Pow: "_power", ast.LShift: "_shift_left", ast.RShift: "_shift_right",
    ast.BitAnd: "_bit_and", ast.BitOr: "_bit_or", ast.BitXor: "_bit_xor",
}  # fmt: skip
_UNARY = {ast.USub: "_negative", ast.UAdd: "_positive", ast.Not: "_logical_not", ast.Invert: "_invert"}
_COMPARISONS = {ast.Lt: "_lt", ast.LtE: "_le", ast.Gt: "_gt", ast.GtE: "_ge", ast.Eq: "_eq", ast.NotEq: "_ne"}
_SAME_OBJECT = ast.Is | ast.IsNot


class UntranslatableError(ValueError):
    """A statement or expression that the tracer does not know; says which, and in which line."""


def translate(
    definition: ast.FunctionDef, pure: Callable[[str], bool], home: bool
) -> tuple[ast.Module, dict[str, float]]:
    """A module with the translated function, and the float constants that it names.

    ``pure(name)`` says whether a call of a free name reads no memory and needs no line. ``home``: is the function in
    the step's own file? Otherwise what it does is booked on the line that called it.
    """
    translator = _Translator(definition, pure, home)
    return translator.module(), translator.constants


@dataclass
class _Loop:
    broken: str
    continued: str


@dataclass
class _Scope:
    """Where lanes that are not active now go on, and which variables may be read there."""

    mask: str
    live: frozenset[str]


class _Asserted(ast.NodeTransformer):
    """``assert`` as what it is: a thread raises, or goes on."""

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        fails = ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node)
        error = ast.copy_location(
            ast.Raise(ast.copy_location(ast.Name("AssertionError", ast.Load()), node), None), node
        )
        return ast.copy_location(ast.If(fails, [error], []), node)


class _Translator:
    def __init__(self, definition: ast.FunctionDef, pure: Callable[[str], bool], home: bool) -> None:
        if any(isinstance(node, ast.Assert) for node in ast.walk(definition)):
            definition = _Asserted().visit(copy.deepcopy(definition))
        self.definition, self.pure, self.home = definition, pure, home
        self.flow = liveness.analyse(definition.body)
        self.scopes: list[_Scope] = []
        self.loops: list[_Loop] = []
        self.merged: set[str] = set()
        self.constants: dict[str, float] = {}
        self.inner: set[ast.stmt] = set()  # loops that are part of a product
        self.count = 0
        body = definition.body
        self.local = {argument.arg for argument in definition.args.args} | {
            n.id for n in ast.walk(definition) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
        # a single return at the very end leaves nobody behind
        self.early = any(liveness.returns(statement) for statement in body[:-1]) or (
            bool(body) and liveness.returns(body[-1]) and not isinstance(body[-1], ast.Return)
        )

    def module(self) -> ast.Module:
        body = self.block(self.definition.body)
        start = [self.assign_plain("_m0", self.of_t("mask"))]
        end: list[ast.stmt] = []
        if self.early:
            start += [self.assign_plain("_r", self.of_t("none")), self.assign_plain("_rv", ast.Constant(None))]
            end = [self.set_mask(ast.Name("_m0", ast.Load())), ast.Return(ast.Name("_rv", ast.Load()))]
        start += [self.assign_plain(name, ast.Constant(None)) for name in sorted(self.merged - self.parameters())]
        function = copy.copy(self.definition)
        function.body, function.decorator_list, function.returns = [*start, *body, *end], [], None
        function.args = copy.copy(function.args)
        function.args.args = [ast.arg(argument.arg) for argument in function.args.args]
        return ast.fix_missing_locations(ast.Module([function], []))

    def parameters(self) -> set[str]:
        return {argument.arg for argument in self.definition.args.args}

    # --- pieces of translated code ---

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    @staticmethod
    def load(name: str) -> ast.Name:
        return ast.Name(name, ast.Load())

    def of_t(self, attribute: str) -> ast.Attribute:
        return ast.Attribute(self.load("_t"), attribute, ast.Load())

    def ask(self, method: str, *arguments: ast.expr) -> ast.Call:
        return ast.Call(self.of_t(method), list(arguments), [])

    def apply(self, function: str, *arguments: ast.expr) -> ast.Call:
        return ast.Call(self.load(function), list(arguments), [])

    def line(self, node: ast.stmt | ast.expr) -> ast.expr:
        return ast.Constant(node.lineno) if self.home else self.of_t("site")

    @staticmethod
    def assign_plain(name: str, value: ast.expr) -> ast.stmt:
        return ast.Assign([ast.Name(name, ast.Store())], value, None)

    @staticmethod
    def set_mask(value: ast.expr) -> ast.stmt:
        return ast.Assign([ast.Attribute(ast.Name("_t", ast.Load()), "mask", ast.Store())], value, None)

    def unless_none(self, value: ast.expr, body: list[ast.stmt]) -> ast.stmt:
        return ast.If(ast.Compare(value, [ast.IsNot()], [self.of_t("none")]), body, [])

    def gone(self, loop: _Loop | None) -> list[ast.expr]:
        """The masks of lanes that have left the innermost loop's turn, or the function."""
        names = [loop.broken, loop.continued] if loop else []
        return [self.load(name) for name in [*names, *(["_r"] if self.early else [])]]

    def rejoined(self, mask: str, loop: _Loop | None) -> ast.stmt:
        return self.set_mask(self.ask("without", self.load(mask), *self.gone(loop)))

    def base(self, name: str) -> str | None:
        """The mask at entry of the outermost construct beyond which the variable's old value may be read."""
        return next((scope.mask for scope in self.scopes if name in scope.live), None)

    # --- statements ---

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for i, statement in enumerate(statements):
            for written in self.statement(statement):
                out.append(ast.copy_location(written, statement))
            if i + 1 < len(statements) and liveness.leaves(statement):
                rest = self.unless_none(self.of_t("mask"), self.block(statements[i + 1 :]))
                out.append(ast.copy_location(rest, statements[i + 1]))
                break
        return out or [ast.Pass()]

    def statement(self, node: ast.stmt) -> list[ast.stmt]:
        method = getattr(self, "do_" + type(node).__name__, None)
        if method is None:
            raise UntranslatableError(f"line {node.lineno}: a {type(node).__name__} statement is not traced")
        written: list[ast.stmt] = method(node)
        return written

    def do_Pass(self, node: ast.Pass) -> list[ast.stmt]:  # noqa: N802
        return []

    def do_Raise(self, node: ast.Raise) -> list[ast.stmt]:  # noqa: N802
        text = ast.Constant(ast.unparse(node.exc) if node.exc else "an exception")
        return [ast.Expr(self.ask("raised", text, self.line(node))), *self.do_Return(ast.Return(None))]

    def do_Expr(self, node: ast.Expr) -> list[ast.stmt]:  # noqa: N802
        if isinstance(node.value, ast.Constant):
            return []
        if isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "print":
            return [ast.Expr(self.ask("printed", *map(self.expression, node.value.args)))]
        return [ast.Expr(self.expression(node.value))]

    def do_Assign(self, node: ast.Assign) -> list[ast.stmt]:  # noqa: N802
        value = self.named(node.targets[0], node.value)
        if len(node.targets) == 1:
            return self.assign(node.targets[0], value)
        kept = self.fresh("_v")
        out = [self.assign_plain(kept, value)]
        for target in node.targets:
            out += self.assign(target, self.load(kept))
        return out

    def named(self, target: ast.expr, node: ast.expr) -> ast.expr:
        """The value; an array that a call makes is called as the variable that it is first assigned to."""
        if isinstance(node, ast.Call) and isinstance(target, ast.Name):
            return self.ask("named", self.expression(node), ast.Constant(target.id))
        if isinstance(node, ast.Tuple) and isinstance(target, ast.Tuple) and len(node.elts) == len(target.elts):
            parts = [self.named(*pair) for pair in zip(target.elts, node.elts, strict=True)]
            return ast.copy_location(ast.Tuple(parts, ast.Load()), node)
        return self.expression(node)

    def do_AnnAssign(self, node: ast.AnnAssign) -> list[ast.stmt]:  # noqa: N802
        return self.assign(node.target, self.expression(node.value)) if node.value else []

    def assign(self, target: ast.expr, value: ast.expr) -> list[ast.stmt]:
        if isinstance(target, ast.Name):
            base = self.base(target.id)
            if base is not None:
                self.merged.add(target.id)
                value = self.ask("merged", value, self.load(target.id), self.load(base))
            return [self.assign_plain(target.id, value)]
        if isinstance(target, ast.Tuple | ast.List):
            parts = [self.fresh("_v") for _ in target.elts]
            unpacked = ast.Tuple([ast.Name(part, ast.Store()) for part in parts], ast.Store())
            out: list[ast.stmt] = [ast.Assign([unpacked], value, None)]
            for element, part in zip(target.elts, parts, strict=True):
                out += self.assign(element, self.load(part))
            return out
        if isinstance(target, ast.Subscript):
            place = self.expression(target.value), self.index(target.slice)
            return [ast.Expr(self.ask("store", *place, value, self.line(target)))]
        raise UntranslatableError(f"line {target.lineno}: an assignment to {ast.unparse(target)} is not traced")

    def do_AugAssign(self, node: ast.AugAssign) -> list[ast.stmt]:  # noqa: N802
        if isinstance(node.target, ast.Name):
            old = ast.copy_location(self.load(node.target.id), node)
            return self.assign(node.target, self.binary(node, old, node.op, node.value))
        if not isinstance(node.target, ast.Subscript):
            raise UntranslatableError(f"line {node.lineno}: {ast.unparse(node.target)} is not assigned to in a trace")
        array, place = self.fresh("_v"), self.fresh("_v")
        line = self.line(node)
        read = self.ask("load", self.load(array), self.load(place), line)
        value = self.binary(node, read, node.op, node.value, translated=True)
        return [
            self.assign_plain(array, self.expression(node.target.value)),
            self.assign_plain(place, self.index(node.target.slice)),
            ast.Expr(self.ask("store", self.load(array), self.load(place), value, line)),
        ]

    def do_If(self, node: ast.If) -> list[ast.stmt]:  # noqa: N802
        before, taken = self.fresh("_m"), self.fresh("_c")
        live = self.flow.after[node]
        out = [
            self.assign_plain(before, self.of_t("mask")),
            self.assign_plain(taken, self.ask("branch", self.expression(node.test), self.line(node))),
        ]
        self.scopes.append(_Scope(before, live | self.flow.other[node]))
        out.append(self.unless_none(self.load(taken), [self.set_mask(self.load(taken)), *self.block(node.body)]))
        self.scopes.pop()
        if node.orelse:
            left = self.fresh("_e")
            out.append(self.assign_plain(left, self.ask("without", self.load(before), self.load(taken))))
            self.scopes.append(_Scope(before, live))
            out.append(self.unless_none(self.load(left), [self.set_mask(self.load(left)), *self.block(node.orelse)]))
            self.scopes.pop()
        if liveness.leaves(node):
            out.append(self.rejoined(before, self.loops[-1] if self.loops else None))
        else:
            out.append(self.set_mask(self.load(before)))
        return out

    def do_For(self, node: ast.For) -> list[ast.stmt]:  # noqa: N802
        product = None if node in self.inner else liveness.Product.of(node)
        if product is None:
            return self.loop(node)
        self.inner.update(product.loops)
        turns = [self.fresh("_v") for _ in product.loops]
        variables = [loop.target.id for loop in product.loops if isinstance(loop.target, ast.Name)]
        factors = [factor.value if isinstance(factor, ast.Subscript) else factor for factor in product.factors]
        given = sorted(frozenset().union(*map(liveness.names, product.indices)) - set(variables))
        indices = ast.Lambda(
            ast.arguments(posonlyargs=[], args=list(map(ast.arg, variables)), kwonlyargs=[], kw_defaults=[],
                          defaults=[]),
            ast.Tuple(list(map(self.expression, product.indices)), ast.Load()),
        )  # fmt: skip
        done = self.ask(
            "multiplied",
            # what the offsets depend on, beside the ranges and the values that are given
            ast.Constant(" ".join([*variables, *given, ":", *map(ast.unparse, product.indices)])),
            ast.Tuple(list(map(self.expression, (product.into.value, *factors))), ast.Load()),
            ast.Tuple([ast.Constant(isinstance(factor, ast.Subscript)) for factor in product.factors], ast.Load()),
            ast.Tuple(list(map(self.load, turns)), ast.Load()),
            ast.Tuple(list(map(self.load, given)), ast.Load()),
            indices,
        )
        last = []
        for loop, name in zip(product.loops, turns, strict=True):
            end = ast.Subscript(self.load(name), ast.Constant(-1), ast.Load())
            last += self.assign(loop.target, end)
        return [
            *(self.assign_plain(name, self.expression(loop.iter)) for name, loop in zip(turns, product.loops,
                                                                                        strict=True)),
            ast.If(done, last, self.loop(node)),
        ]  # fmt: skip

    def loop(self, node: ast.For) -> list[ast.stmt]:
        before, item = self.fresh("_m"), self.fresh("_v")
        leaves = any(liveness.leaves(statement) for statement in node.body)
        turns = self.ask("iterate", self.expression(node.iter), self.line(node), ast.Constant(leaves))
        body, start, loop = self.loop_body(node, before, leaves, item)
        return [
            self.assign_plain(before, self.of_t("mask")),
            *start,
            ast.For(ast.Name(item, ast.Store()), turns, body, [], None),
            *self.after_loop(node, before, loop),
        ]

    def do_While(self, node: ast.While) -> list[ast.stmt]:  # noqa: N802
        before, taken = self.fresh("_m"), self.fresh("_c")
        leaves = any(liveness.leaves(statement) for statement in node.body)
        body, start, loop = self.loop_body(node, before, leaves)
        if loop:
            again = self.set_mask(self.ask("without", self.load(taken), *self.gone(loop)[:1], *self.gone(None)))
        else:
            again = self.set_mask(self.load(taken))
        stop = ast.If(ast.Compare(self.load(taken), [ast.Is()], [self.of_t("none")]), [ast.Break()], [])
        turn: list[ast.stmt] = [
            self.assign_plain(taken, self.ask("branch", self.expression(node.test), self.line(node))),
            stop,
            self.set_mask(self.load(taken)),
            *body,
            again,
        ]
        return [
            self.assign_plain(before, self.of_t("mask")),
            *start,
            ast.While(ast.Constant(True), turn, []),
            *self.after_loop(node, before, loop),
        ]

    def after_loop(self, node: ast.For | ast.While, before: str, loop: _Loop | None) -> list[ast.stmt]:
        """``else``, for those who did not leave by ``break``; then all go on."""
        if not node.orelse:
            return [self.rejoined(before, None) if liveness.returns(node) else self.set_mask(self.load(before))]
        broken = [self.load(loop.broken)] if loop else []
        self.scopes.append(_Scope(before, self.flow.after[node]))
        rest = self.unless_none(self.of_t("mask"), self.block(node.orelse))
        self.scopes.pop()
        stay = self.ask("without", self.load(before), *broken, *self.gone(None))
        return [self.set_mask(stay), rest, self.rejoined(before, self.loops[-1] if self.loops else None)]

    def loop_body(
        self, node: ast.For | ast.While, before: str, leaves: bool, item: str = ""
    ) -> tuple[list[ast.stmt], list[ast.stmt], _Loop | None]:
        """The body of a turn, what precedes the loop, and the masks of those who leave it."""
        loop = _Loop(self.fresh("_b"), self.fresh("_k")) if leaves else None
        self.scopes.append(_Scope(before, self.flow.after[node] | self.flow.head[node]))
        bind = self.assign(node.target, self.load(item)) if isinstance(node, ast.For) else []
        if loop is None:
            body = self.block(node.body)
            self.scopes.pop()
            return [*bind, *body], [], None
        self.loops.append(loop)
        none = self.of_t("none")
        body = [
            self.assign_plain(loop.continued, none),
            self.set_mask(self.ask("without", self.of_t("mask"), *self.gone(loop)[:1], *self.gone(None))),
            ast.If(ast.Compare(self.of_t("mask"), [ast.Is()], [none]), [ast.Break()], []),
            *bind,
            *self.block(node.body),
        ]
        self.loops.pop()
        self.scopes.pop()
        return body, [self.assign_plain(loop.broken, none)], loop

    def do_Break(self, node: ast.Break) -> list[ast.stmt]:  # noqa: N802
        return self.leave(self.loops[-1].broken)

    def do_Continue(self, node: ast.Continue) -> list[ast.stmt]:  # noqa: N802
        return self.leave(self.loops[-1].continued)

    def leave(self, name: str) -> list[ast.stmt]:
        both = self.ask("union", self.load(name), self.of_t("mask"))
        return [self.assign_plain(name, both), self.set_mask(self.of_t("none"))]

    def do_Return(self, node: ast.Return) -> list[ast.stmt]:  # noqa: N802
        value = self.expression(node.value) if node.value else ast.Constant(None)
        if not self.early:
            return [ast.Return(value)]
        kept = self.ask("merged", value, self.load("_rv"), self.load("_m0"))
        return [
            self.assign_plain("_rv", kept),
            self.assign_plain("_r", self.ask("leave", self.load("_r"))),
            self.set_mask(self.of_t("none")),
        ]

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
        return ast.Constant(node.value)

    def of_Name(self, node: ast.Name) -> ast.expr:  # noqa: N802
        return self.load(node.id)

    def of_Attribute(self, node: ast.Attribute) -> ast.expr:  # noqa: N802
        if node.attr == "strides":
            return self.ask("strides", self.expression(node.value))
        return ast.Attribute(self.expression(node.value), node.attr, ast.Load())

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
        operands = left if translated else self.expression(left), self.expression(right)
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
            elif liveness.compares(value):
                result = self.ask("all_of" if conjunction else "any_of", result, self.later(right))
            else:
                result = self.apply("_logical_and" if conjunction else "_logical_or", result, right)
        return result

    def of_IfExp(self, node: ast.IfExp) -> ast.expr:  # noqa: N802
        test, then, otherwise = (self.expression(part) for part in (node.test, node.body, node.orelse))
        if not (self.is_pure(node.body) and self.is_pure(node.orelse)):
            return self.ask("select", test, self.later(then), self.later(otherwise))
        if liveness.compares(node.body) or liveness.compares(node.orelse):
            return self.ask("chosen", test, self.later(then), self.later(otherwise))
        return self.apply("_choose", test, then, otherwise)

    @staticmethod
    def later(value: ast.expr) -> ast.Lambda:
        nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        return ast.Lambda(nothing, value)

    def of_Call(self, node: ast.Call) -> ast.expr:  # noqa: N802
        arguments = [self.expression(argument) for argument in node.args]
        keywords = [ast.keyword(keyword.arg, self.expression(keyword.value)) for keyword in node.keywords]
        function = self.expression(node.func)
        if self.calls_pure(node):
            return ast.Call(function, arguments, keywords)
        spot = ast.Constant(node.lineno * 4096 + node.col_offset)
        return ast.Call(self.of_t("call"), [function, self.line(node), spot, *arguments], keywords)

    def calls_pure(self, node: ast.Call) -> bool:
        return isinstance(node.func, ast.Name) and node.func.id not in self.local and self.pure(node.func.id)

    def is_pure(self, node: ast.expr) -> bool:
        """May it be worked out for lanes that do not need it?"""
        for part in ast.walk(node):
            if isinstance(part, ast.Subscript) and getattr(part.value, "attr", "") != "shape":
                return False
            if isinstance(part, ast.Call) and not self.calls_pure(part):
                return False
            # x // 0 of an idle lane is no fault
            if isinstance(part, ast.BinOp) and isinstance(part.op, ast.FloorDiv | ast.Mod | ast.Div):
                return False
        return True
