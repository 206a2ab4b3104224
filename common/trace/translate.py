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
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from common.trace.expressions import COUNTS, Expressions, UntranslatableError, names


def translate(
    definition: ast.FunctionDef,
    pure: Callable[[str], bool],
    home: bool,
    ints: frozenset[str],
    narrow: bool = False,
) -> tuple[ast.Module, dict[str, float]]:
    """A module with the translated function, and the float constants that it names.

    ``pure``, ``home``, ``ints`` and ``narrow``: as :class:`common.trace.expressions.Expressions` has them.
    """
    translator = _Translator(definition, pure, home, ints, narrow)
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


def _as_item(target: ast.Attribute) -> ast.Subscript:
    """A record's field, by name."""
    name = ast.copy_location(ast.Constant(target.attr), target)
    return ast.copy_location(ast.Subscript(target.value, name, ast.Store()), target)


class _Translator(Expressions):
    """Translates a function."""

    def __init__(self, definition: ast.FunctionDef, *known: Any) -> None:
        if any(isinstance(node, ast.Assert) for node in ast.walk(definition)):
            definition = _Asserted().visit(copy.deepcopy(definition))
        super().__init__(definition, *known)
        self.definition = definition
        self.flow = analyse(definition.body)
        self.scopes: list[_Scope] = []
        self.loops: list[_Loop] = []
        self.merged: set[str] = set()
        body = definition.body
        # a single return at the very end leaves nobody behind
        self.early = any(may_return(statement) for statement in body[:-1]) or (
            bool(body) and may_return(body[-1]) and not isinstance(body[-1], ast.Return)
        )

    def module(self) -> ast.Module:
        body = self.block(self.definition.body)
        while self.ints & self.merged:  # these may come to differ between threads
            self.drop_ints(self.merged)
            body = self.block(self.definition.body)
        start = [self.assign_plain("_m0", self.executor("mask"))]
        end: list[ast.stmt] = []
        if self.early:
            start += [self.assign_plain("_r", self.executor("none")), self.assign_plain("_rv", ast.Constant(None))]
            end = [self.set_mask(ast.Name("_m0", ast.Load())), ast.Return(ast.Name("_rv", ast.Load()))]
        start += [self.assign_plain(name, ast.Constant(None)) for name in sorted(self.merged - self.parameters())]
        function = copy.copy(self.definition)
        function.body, function.decorator_list, function.returns = [*start, *body, *end], [], None
        function.args = copy.copy(function.args)
        function.args.args = [ast.arg(argument.arg) for argument in function.args.args]
        return ast.fix_missing_locations(ast.Module([function], []))

    def parameters(self) -> set[str]:
        return {argument.arg for argument in self.definition.args.args}

    def unless_none(self, value: ast.expr, body: list[ast.stmt]) -> ast.stmt:
        return ast.If(ast.Compare(value, [ast.IsNot()], [self.executor("none")]), body, [])

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
            if i + 1 < len(statements) and may_leave(statement):
                rest = self.unless_none(self.executor("mask"), self.block(statements[i + 1 :]))
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
        return self.kept(node) if names(target, ast.Store) else self.expression(node)

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
            if not isinstance(value, ast.Tuple):
                value = self.ask("unpacked", value, self.line(target))
            out: list[ast.stmt] = [ast.Assign([unpacked], value, None)]
            for element, part in zip(target.elts, parts, strict=True):
                out += self.assign(element, self.load(part))
            return out
        if isinstance(target, ast.Attribute):
            target = _as_item(target)
        if isinstance(target, ast.Subscript):
            place = self.expression(target.value), self.index(target.slice)
            return [ast.Expr(self.ask("store", *place, value, self.line(target)))]
        raise UntranslatableError(f"line {target.lineno}: an assignment to {ast.unparse(target)} is not traced")

    def do_AugAssign(self, node: ast.AugAssign) -> list[ast.stmt]:  # noqa: N802
        if isinstance(node.target, ast.Name):
            old = ast.copy_location(self.load(node.target.id), node)
            return self.assign(node.target, self.binary(node, old, node.op, node.value))
        target = _as_item(node.target) if isinstance(node.target, ast.Attribute) else node.target
        array, place = self.fresh("_v"), self.fresh("_v")
        line = self.line(node)
        read = self.ask("load", self.load(array), self.load(place), line)
        value = self.binary(node, read, node.op, node.value, translated=True)
        return [
            self.assign_plain(array, self.expression(target.value)),
            self.assign_plain(place, self.index(target.slice)),
            ast.Expr(self.ask("store", self.load(array), self.load(place), value, line)),
        ]

    def do_If(self, node: ast.If) -> list[ast.stmt]:  # noqa: N802
        before, taken = self.fresh("_m"), self.fresh("_c")
        live = self.flow.after[node]
        out = [
            self.assign_plain(before, self.executor("mask")),
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
        if may_leave(node):
            out.append(self.rejoined(before, self.loops[-1] if self.loops else None))
        else:
            out.append(self.set_mask(self.load(before)))
        return out

    def do_For(self, node: ast.For) -> list[ast.stmt]:  # noqa: N802
        before, item = self.fresh("_m"), self.fresh("_v")
        leaves = any(may_leave(statement) for statement in node.body)
        turns = self.ask("iterate", self.expression(node.iter), self.line(node), ast.Constant(leaves))
        body, start, loop = self.loop_body(node, before, leaves, item)
        return [
            self.assign_plain(before, self.executor("mask")),
            *start,
            ast.For(ast.Name(item, ast.Store()), turns, body, [], None),
            *self.after_loop(node, before, loop),
        ]

    def do_While(self, node: ast.While) -> list[ast.stmt]:  # noqa: N802
        before, taken = self.fresh("_m"), self.fresh("_c")
        leaves = any(may_leave(statement) for statement in node.body)
        body, start, loop = self.loop_body(node, before, leaves)
        if loop:
            again = self.set_mask(self.ask("without", self.load(taken), *self.gone(loop)[:1], *self.gone(None)))
        else:
            again = self.set_mask(self.load(taken))
        stop = ast.If(ast.Compare(self.load(taken), [ast.Is()], [self.executor("none")]), [ast.Break()], [])
        turn: list[ast.stmt] = [
            self.assign_plain(taken, self.ask("branch", self.expression(node.test), self.line(node))),
            stop,
            self.set_mask(self.load(taken)),
            *body,
            again,
        ]
        return [
            self.assign_plain(before, self.executor("mask")),
            *start,
            ast.While(ast.Constant(True), turn, []),
            *self.after_loop(node, before, loop),
        ]

    def after_loop(self, node: ast.For | ast.While, before: str, loop: _Loop | None) -> list[ast.stmt]:
        """All go on but for those who have returned; before, those who have not left by ``break`` do the ``else``."""
        out: list[ast.stmt] = []
        if node.orelse:
            left = self.gone(loop)[:1] if loop else []
            rest = self.ask("without", self.load(before), *left, *self.gone(None))
            self.scopes.append(_Scope(before, self.flow.after[node]))
            out = [self.set_mask(rest), self.unless_none(self.executor("mask"), self.block(node.orelse))]
            self.scopes.pop()
        if may_return(node) or may_leave(node):
            return [*out, self.rejoined(before, self.loops[-1] if self.loops else None)]
        return [*out, self.set_mask(self.load(before))]

    def loop_body(
        self, node: ast.For | ast.While, before: str, leaves: bool, item: str = ""
    ) -> tuple[list[ast.stmt], list[ast.stmt], _Loop | None]:
        """The body of a turn, what precedes the loop, and the masks of those who leave it."""
        loop = _Loop(self.fresh("_b"), self.fresh("_k")) if leaves else None
        self.scopes.append(_Scope(before, self.flow.after[node] | self.flow.head[node]))
        bind = self.assign(node.target, self.counter(node, item)) if isinstance(node, ast.For) else []
        if loop is None:
            body = self.block(node.body)
            self.scopes.pop()
            return [*bind, *body], [], None
        self.loops.append(loop)
        none = self.executor("none")
        body = [
            self.assign_plain(loop.continued, none),
            self.set_mask(self.ask("without", self.executor("mask"), *self.gone(loop)[:1], *self.gone(None))),
            ast.If(ast.Compare(self.executor("mask"), [ast.Is()], [none]), [ast.Break()], []),
            *bind,
            *self.block(node.body),
        ]
        self.loops.pop()
        self.scopes.pop()
        return body, [self.assign_plain(loop.broken, none)], loop

    def counter(self, node: ast.For, item: str) -> ast.expr:
        """What a loop's variable is given in a turn."""
        function = getattr(node.iter.func, "id", "") if isinstance(node.iter, ast.Call) else ""
        if not self.narrow or function not in COUNTS or names(node.target, ast.Store) <= self.ints:
            return self.load(item)
        return self.apply("_narrow", self.load(item))

    def do_Break(self, node: ast.Break) -> list[ast.stmt]:  # noqa: N802
        return self.leave(self.loops[-1].broken)

    def do_Continue(self, node: ast.Continue) -> list[ast.stmt]:  # noqa: N802
        return self.leave(self.loops[-1].continued)

    def leave(self, name: str) -> list[ast.stmt]:
        both = self.ask("union", self.load(name), self.executor("mask"))
        return [self.assign_plain(name, both), self.set_mask(self.executor("none"))]

    def do_Return(self, node: ast.Return) -> list[ast.stmt]:  # noqa: N802
        value = self.kept(node.value) if node.value else ast.Constant(None)
        if not self.early:
            return [ast.Return(value)]
        kept = self.ask("merged", value, self.load("_rv"), self.load("_m0"))
        return [
            self.assign_plain("_rv", kept),
            self.assign_plain("_r", self.ask("leave", self.load("_r"))),
            self.set_mask(self.executor("none")),
        ]


# --- which variables may be read later, and who leaves a loop or a function ---


@dataclass
class Flow:
    """Live variables of statements, as far as the translation needs them."""

    after: dict[ast.stmt, frozenset[str]] = field(default_factory=dict)
    head: dict[ast.stmt, frozenset[str]] = field(default_factory=dict)
    other: dict[ast.stmt, frozenset[str]] = field(default_factory=dict)


def analyse(body: list[ast.stmt]) -> Flow:
    """Backward liveness over structured code."""
    flow = Flow()
    nothing: frozenset[str] = frozenset()

    def block(
        statements: list[ast.stmt], out: frozenset[str], leave: frozenset[str], again: frozenset[str]
    ) -> frozenset[str]:
        for statement in reversed(statements):
            flow.after[statement] = out
            out = one(statement, out, leave, again)
        return out

    def one(node: ast.stmt, out: frozenset[str], leave: frozenset[str], again: frozenset[str]) -> frozenset[str]:
        if isinstance(node, ast.If):
            flow.other[node] = block(node.orelse, out, leave, again)
            return block(node.body, out, leave, again) | flow.other[node] | names(node.test)
        if isinstance(node, ast.For | ast.While):
            test = node.iter if isinstance(node, ast.For) else node.test
            bound = names(node.target, ast.Store) if isinstance(node, ast.For) else nothing
            head = (
                out | block(node.orelse, out, leave, again) | (nothing if isinstance(node, ast.For) else names(test))
            )
            while True:
                wider = head | (block(node.body, head, out, head) - bound)
                if wider == head:
                    break
                head = wider
            flow.head[node] = head
            return head | names(test)
        if isinstance(node, ast.Break):
            return leave
        if isinstance(node, ast.Continue):
            return again
        if isinstance(node, ast.Return):
            return names(node.value)
        if isinstance(node, ast.AugAssign):
            return out | names(node) | names(node.target, ast.Store)
        if isinstance(node, ast.Assign):
            stored = frozenset(t.id for target in node.targets for t in _targets(target) if isinstance(t, ast.Name))
            return (out - stored) | names(node)
        return out | names(node)

    block(body, nothing, nothing, nothing)
    return flow


def _targets(node: ast.expr) -> Iterable[ast.expr]:
    if isinstance(node, ast.Tuple | ast.List):
        for element in node.elts:
            yield from _targets(element)
    else:
        yield node


def may_leave(node: ast.AST, inside: bool = False) -> bool:
    """May a lane leave by break, continue or return what encloses this statement?"""
    if isinstance(node, ast.Return | ast.Raise):
        return True
    if isinstance(node, ast.Break | ast.Continue):
        return not inside
    if isinstance(node, ast.For | ast.While):
        return any(may_leave(child, True) for child in node.body) or any(
            may_leave(one, inside) for one in node.orelse
        )
    return any(may_leave(child, inside) for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt))


def may_return(node: ast.AST) -> bool:
    return any(isinstance(child, ast.Return | ast.Raise) for child in ast.walk(node))
