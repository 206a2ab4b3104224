"""Translates a kernel's Python into Python that runs all threads at once.

Names and lines stay. What differs between threads is an array with one element per lane; an ``if`` or a loop whose
condition differs runs under a mask of active lanes, that of ``_t``, the :class:`common.trace.executor.Executor`. A
variable assigned under a mask keeps its old value in the other lanes only if one of them may still read it.
"""

import ast
import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

from common.trace.expressions import COUNTS, Expressions, names, tuple_of

FUNCTION = "_function"  # the translated function's name


class Translator(Expressions):
    def __init__(self, definition: ast.FunctionDef, *known: Any) -> None:
        super().__init__(definition, *known)
        self.flow: Flow = {}
        live(definition.body, self.flow)
        # masks with which lanes that are not active now go on, and which variables may be read there
        self.scopes: list[tuple[str, frozenset[str]]] = []
        # by loop, variables with the masks of those who have left it, and its present turn
        self.loops: list[tuple[str, str]] = []
        self.merged: set[str] = set()
        *before, last = definition.body
        # a single return at the very end leaves nobody behind
        self.early = any(map(may_leave, before)) or (may_leave(last) and not isinstance(last, ast.Return))

    def module(self) -> ast.Module:
        while True:
            self.rows: list[tuple[int, str]] = []  # line in the kernel's file, and text
            self.depth, self.at = 1, self.definition.lineno
            self._block(self.definition.body)
            if not self.ints & self.merged:
                break
            self.ints -= self.merged  # these may come to differ between threads
        given = copy.deepcopy(self.definition.args)
        for argument in given.args:
            argument.annotation = None
        start = ["_m0 = _t.mask", *(f"{name} = None" for name in sorted(self.merged - self.parameters))]
        if self.early:
            start += ["_r, _rv = _t.none, None"]
            self._emit("_t.mask = _m0")
            self._emit("return _rv")
        head = [f"def {FUNCTION}({ast.unparse(given)}):", *(f" {text}" for text in start)]
        rows = [(self.definition.lineno, text) for text in head] + self.rows
        tree = ast.parse("\n".join(text for _, text in rows))
        for node in ast.walk(tree):
            if isinstance(node, ast.stmt | ast.expr | ast.arg | ast.keyword):
                node.lineno = node.end_lineno = rows[node.lineno - 1][0]
                node.col_offset = node.end_col_offset = 0
        return tree

    def _emit(self, text: str) -> None:
        self.rows.append((self.at, " " * self.depth + text))

    @contextmanager
    def _under(self, header: str) -> Iterator[None]:
        self._emit(f"{header}:")
        self.depth += 1
        yield
        self._emit("pass")
        self.depth -= 1

    def _without(self, mask: str, *gone: str) -> str:
        """The mask but for those lanes, and those that have returned."""
        return f"_t.without({', '.join([mask, *gone, *['_r'] * self.early])})"

    def _rejoin(self, node: ast.stmt, before: str) -> None:
        """Those go on who came, but for who has left an enclosing loop's turn, or the function."""
        around = self.loops[-1] if self.loops else ()
        self._emit(f"_t.mask = {self._without(before, *around) if may_leave(node) else before}")

    def _block(self, statements: list[ast.stmt]) -> None:
        for i, statement in enumerate(statements):
            method = getattr(self, "_do_" + type(statement).__name__, None)
            if method is None:
                raise self.untraced(statement, f"a {type(statement).__name__} statement")
            self.at = statement.lineno
            method(statement)
            if i + 1 < len(statements) and may_leave(statement):
                self.at = statements[i + 1].lineno
                with self._under("if _t.mask is not _t.none"):
                    self._block(statements[i + 1 :])
                return

    def _masked(self, before: str, mask: str, body: list[ast.stmt], live: frozenset[str]) -> None:
        self.scopes.append((before, live))
        with self._under(f"if {mask} is not _t.none"):
            self._emit(f"_t.mask = {mask}")
            self._block(body)
        self.scopes.pop()

    def _do_Pass(self, node: ast.Pass) -> None:  # noqa: N802
        pass

    def _do_Assert(self, node: ast.Assert) -> None:  # noqa: N802
        error = ast.Raise(ast.Name("AssertionError", ast.Load()))
        fails = ast.copy_location(ast.If(ast.UnaryOp(ast.Not(), node.test), [error], []), node)
        ast.fix_missing_locations(fails)
        self.flow[fails, "after"], self.flow[fails, "other"] = self.flow[node, "after"], frozenset()
        self._do_If(fails)

    def _do_Raise(self, node: ast.Raise) -> None:  # noqa: N802
        text = ast.unparse(node.exc) if node.exc else "an exception"
        self._emit(f"_t.raised({text!r}, {self.line(node)})")
        self._do_Return(ast.Return(None))

    def _do_Expr(self, node: ast.Expr) -> None:  # noqa: N802
        if isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "print":
            self._emit(f"_t.printed({', '.join(map(self.expression, node.value.args))})")
        elif not isinstance(node.value, ast.Constant):
            self._emit(self.expression(node.value))

    def _do_Assign(self, node: ast.Assign) -> None:  # noqa: N802
        match node.targets, node.value:
            case [ast.Subscript(ast.Name()) as to], ast.Subscript(ast.Name()) as source:
                self._emit(f"_t.copy({', '.join([*self.place(source), *self.place(to)])}, {self.line(source)})")
                return
        value = self._named(node.targets[0], node.value)
        if len(node.targets) > 1:
            kept = self.fresh("_v")
            self._emit(f"{kept} = {value}")
            value = kept
        for target in node.targets:
            self._assign(target, value)

    def _named(self, target: ast.expr, node: ast.expr) -> str:
        """The value; an array that a call makes is called as the variable that it is first assigned to."""
        if isinstance(node, ast.Call) and isinstance(target, ast.Name):
            return f"_t.named({self.expression(node)}, {target.id!r})"
        if isinstance(node, ast.Tuple) and isinstance(target, ast.Tuple) and len(node.elts) == len(target.elts):
            return tuple_of([self._named(*pair) for pair in zip(target.elts, node.elts, strict=True)])
        return self.kept(node) if names(target, ast.Store) else self.expression(node)

    def _do_AnnAssign(self, node: ast.AnnAssign) -> None:  # noqa: N802
        if node.value:
            self._assign(node.target, self.expression(node.value))

    def _assign(self, target: ast.expr, value: str) -> None:
        match target:
            case ast.Name(name):
                # where it starts: the outermost construct beyond which the variable's old value may be read
                base = next((mask for mask, live in self.scopes if name in live), None)
                if base is not None:
                    self.merged.add(name)
                    value = f"_t.merged({value}, {name}, {base})"
                self._emit(f"{name} = {value}")
            case ast.Tuple(elements) | ast.List(elements):
                parts = [self.fresh("_v") for _ in elements]
                self._emit(f"{tuple_of(parts)} = _t.unpacked({value}, {self.line(target)})")
                for element, part in zip(elements, parts, strict=True):
                    self._assign(element, part)
            case ast.Subscript() | ast.Attribute():
                self._emit(f"_t.store({', '.join(self.place(target))}, {value}, {self.line(target)})")
            case _:
                raise self.untraced(target, f"an assignment to {ast.unparse(target)}")

    def _do_AugAssign(self, node: ast.AugAssign) -> None:  # noqa: N802
        target, line = node.target, self.line(node)
        if isinstance(target, ast.Name):
            old = ast.copy_location(ast.Name(target.id, ast.Load()), node)
            self._assign(target, self.binary(node, old, node.op, node.value))
            return
        match target, node.op, node.value:  # what main loops do most
            case ast.Subscript(), ast.Add(), ast.BinOp(ast.Subscript() as left, ast.Mult(), ast.Subscript() as right):
                parts = [*self.place(target), *self.place(left), *self.place(right)]
                self._emit("_t.add_products({0}, {2}, {4}, [({1}, {3}, {5})], {6})".format(*parts, line))
                return
        array, place = self.fresh("_v"), self.fresh("_v")
        self._emit(f"{array}, {place} = {', '.join(self.place(target))}")
        value = self.binary(node, f"_t.load({array}, {place}, {line})", node.op, node.value)
        self._emit(f"_t.store({array}, {place}, {value}, {line})")

    def _do_If(self, node: ast.If) -> None:  # noqa: N802
        before, taken, after = self.fresh("_m"), self.fresh("_c"), self.flow[node, "after"]
        self._emit(f"{before} = _t.mask")
        self._emit(f"{taken} = _t.branch({self.expression(node.test)}, {self.line(node)})")
        self._masked(before, taken, node.body, after | self.flow[node, "other"])
        if node.orelse:
            left = self.fresh("_e")
            self._emit(f"{left} = _t.without({before}, {taken})")
            self._masked(before, left, node.orelse, after)
        self._rejoin(node, before)

    def _products(self, node: ast.stmt, turns: str, inside: frozenset[str]) -> str:
        """What carries out a loop that only adds products of registers to others; empty for another. ``turns`` are
        those of the loops around it, whose variables are ``inside``."""
        match node:
            case ast.For(ast.Name(name), iter, [*setting, body], []) if self.is_count(iter):
                turns, self.ints = f"{turns} for {name} in {self.expression(iter)}", self.ints | {name}
                inside |= {name}
                for one in setting:
                    match one:
                        case ast.Assign([ast.Name(other)], value) if self.is_int(value):
                            turns += f" for {other} in ({ast.unparse(value)},)"
                            inside, self.ints = inside | {other}, self.ints | {other}
                        case _:
                            return ""
                return "" if inside & self.flow[node, "after"] else self._products(body, turns, inside)
            case ast.AugAssign(
                ast.Subscript(ast.Name(total), at), ast.Add(),
                ast.BinOp(ast.Subscript(ast.Name(a), i), ast.Mult(), ast.Subscript(ast.Name(b), j)),
            ) if turns and all(map(self.is_place, (at, i, j))) and not inside & {total, a, b}:  # fmt: skip
                places = tuple_of([ast.unparse(one) for one in (at, i, j)])
                return f"_t.add_products({total}, {a}, {b}, [{places}{turns}], {self.line(node)})"
        return ""

    def _do_For(self, node: ast.For) -> None:  # noqa: N802
        ints = self.ints
        products, self.ints = self._products(node, "", frozenset()), ints
        if products:
            self._emit(products)
            return
        item = counter = self.fresh("_v")
        parts = node.iter, *getattr(node.iter, "args", ())
        counts, *first = (getattr(getattr(part, "func", None), "id", "") for part in parts[:2])
        narrow = self.narrow and counts in COUNTS and first != ["int64"]
        if narrow and not names(node.target, ast.Store) <= self.ints:
            counter = f"_narrow({item})"
        turns = f"_t.iterate({self.expression(node.iter)}, {self.line(node)}, {any(map(may_leave, node.body))})"
        self._loop(node, f"for {item} in {turns}", counter)

    def _do_While(self, node: ast.While) -> None:  # noqa: N802
        reads, unchanged = _reads(node.test), waits(node)
        if unchanged and not reads:  # what may leave it may end it
            unchanged, reads = waits(node, leaves=True), any(map(_reads, _leaving(node)))
        self._loop(node, f"for _ in _t.unchanged_turns({self.line(node)}, {reads})" if unchanged else "while True")

    def _loop(self, node: ast.For | ast.While, header: str, counter: str = "") -> None:
        before, loop, taken = self.fresh("_m"), None, self.fresh("_c")
        self._emit(f"{before} = _t.mask")
        if any(map(may_leave, node.body)):
            loop = self.fresh("_b"), self.fresh("_k")
            self._emit(f"{loop[0]} = _t.none")
        with self._under(header):
            if isinstance(node, ast.While):
                self._emit(f"{taken} = _t.branch({self.expression(node.test)}, {self.line(node)})")
                self._emit(f"if {taken} is _t.none: break")
                self._emit(f"_t.mask = {taken}")
            self.scopes.append((before, self.flow[node, "after"] | self.flow[node, "head"]))
            if loop:  # a turn is of those who have not left
                self.loops.append(loop)
                self._emit(f"{loop[1]} = _t.none")
                self._emit(f"_t.mask = {self._without('_t.mask', loop[0])}")
                self._emit("if _t.mask is _t.none: break")
            if isinstance(node, ast.For):
                self._assign(node.target, counter)
            self._block(node.body)
            if loop:
                self.loops.pop()
            self.scopes.pop()
            if isinstance(node, ast.While):
                self._emit(f"_t.mask = {self._without(taken, loop[0]) if loop else taken}")
        if node.orelse:  # of those who have not left by ``break``
            rest = self.fresh("_e")
            self._emit(f"{rest} = {self._without(before, *(loop or ())[:1])}")
            self._masked(before, rest, node.orelse, self.flow[node, "after"])
        self._rejoin(node, before)

    def _do_Break(self, node: ast.Break | ast.Continue) -> None:  # noqa: N802
        name = self.loops[-1][isinstance(node, ast.Continue)]
        self._emit(f"{name}, _t.mask = _t.union({name}, _t.mask), _t.none")

    _do_Continue = _do_Break  # noqa: N815

    def _do_Return(self, node: ast.Return) -> None:  # noqa: N802
        value = self.kept(node.value) if node.value else "None"
        if self.early:
            self._emit(f"_rv = _t.merged({value}, _rv, _m0)")
            self._emit("_r = _t.leave(_r)")
            self._emit("_t.mask = _t.none")
        else:
            self._emit(f"return {value}")


# --- which variables may be read later, and who leaves a loop or a function ---


def _reads(test: ast.expr) -> bool:
    found = (one for one in ast.walk(test) if isinstance(one, ast.Subscript | ast.Call))
    return any(getattr(getattr(one, "value", None), "attr", "") != "shape" for one in found)


def _leaving(node: ast.While) -> list[ast.expr]:
    """The conditions in a loop's body under which it may be left."""
    return [one.test for one in ast.walk(node) if isinstance(one, ast.If | ast.Assert) and may_leave(one)]


def waits(node: ast.While, leaves: bool = False) -> bool:
    """Does the loop change nothing of what its condition asks for? ``leaves``, and of ``while True``: nor of what the
    conditions ask for under which it may be left."""
    leaving = _leaving(node) if leaves or not names(node.test) else []
    test = ast.Tuple([node.test, *leaving], ast.Load())
    stored = [ast.unparse(one) for one in ast.walk(node) if isinstance(getattr(one, "ctx", None), ast.Store)]
    changed = {one.partition("[")[0].partition(".")[0] for one in stored}
    for one in ast.walk(test):  # an array's extent stays
        if isinstance(one, ast.Attribute) and one.attr in ("shape", "size") and "[" not in ast.unparse(one.value):
            element = f"{ast.unparse(one.value)}["
            changed -= set() if element in ast.unparse(test) else {ast.unparse(one.value)}
    return bool(names(test)) and not names(test) & changed


Names: TypeAlias = "frozenset[str]"
# of a statement: the variables that may be read after it; at a loop's head; in an if's other branch
Flow: TypeAlias = "dict[tuple[ast.stmt, Literal['after', 'head', 'other']], Names]"
_NONE: Names = frozenset()


def live(
    statements: list[ast.stmt], flow: Flow, out: Names = _NONE, leave: Names = _NONE, again: Names = _NONE
) -> Names:
    """What may be read before statements, by what may be read after them, after ``break`` and after ``continue``."""
    for node in reversed(statements):
        flow[node, "after"] = out
        match node:
            case ast.If():
                flow[node, "other"] = live(node.orelse, flow, out, leave, again)
                out = live(node.body, flow, out, leave, again) | flow[node, "other"] | names(node.test)
            case ast.For() | ast.While():
                test = names(node.iter if isinstance(node, ast.For) else node.test)
                bound = names(node.target, ast.Store) if isinstance(node, ast.For) else _NONE
                head = out | live(node.orelse, flow, out, leave, again)
                if isinstance(node, ast.While):
                    head |= test
                while (wider := head | (live(node.body, flow, head, out, head) - bound)) != head:
                    head = wider
                flow[node, "head"] = head
                out = head | test
            case ast.Break() | ast.Continue():
                out = leave if isinstance(node, ast.Break) else again
            case ast.Return():
                out = names(node)
            case ast.AugAssign():
                out |= names(node) | names(node.target, ast.Store)
            case ast.Assign():
                out = (out - names(node, ast.Store)) | names(node)
            case _:
                out |= names(node)
    return out


def may_leave(node: ast.AST, inside: bool = False) -> bool:
    """May a lane leave by break, continue or return what encloses this statement?"""
    match node:
        case ast.Return() | ast.Raise() | ast.Assert():
            return True
        case ast.Break() | ast.Continue():
            return not inside
    loop = node.body if isinstance(node, ast.For | ast.While) else []
    statements = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
    return any(may_leave(child, inside or child in loop) for child in statements)
