"""What a kernel's statements do with its variables and arrays: which may be read later, which written to."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Flow:
    """Live variables of statements, as far as the translation needs them."""

    after: dict[ast.stmt, frozenset[str]] = field(default_factory=dict)
    head: dict[ast.stmt, frozenset[str]] = field(default_factory=dict)
    other: dict[ast.stmt, frozenset[str]] = field(default_factory=dict)


def names(node: ast.AST | None, context: type[ast.expr_context] = ast.Load) -> frozenset[str]:
    if node is None:
        return frozenset()
    return frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, context))


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
            end = block(node.orelse, out, leave, again)
            head = end | (nothing if isinstance(node, ast.For) else names(test))
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


def leaves(node: ast.AST, inside: bool = False) -> bool:
    """May a lane leave by break, continue or return what encloses this statement?"""
    if isinstance(node, ast.Return | ast.Raise):
        return True
    if isinstance(node, ast.Break | ast.Continue):
        return not inside
    if isinstance(node, ast.For | ast.While):
        return any(leaves(child, True) for child in node.body) or any(leaves(child, inside) for child in node.orelse)
    return any(leaves(child, inside) for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt))


def returns(node: ast.AST) -> bool:
    return any(isinstance(child, ast.Return | ast.Raise) for child in ast.walk(node))


@dataclass(frozen=True)
class Use:
    """What becomes of a parameter: ``called`` with it at ``position``, or indexed with ``indices``, or unknown."""

    indices: int = 0
    called: str = ""
    position: int = 0


_HARMLESS = ("shape", "size", "ndim", "dtype", "strides", "nbytes", "itemsize")


def uses(definition: ast.FunctionDef) -> dict[str, frozenset[Use]]:
    """Of each parameter, what may write to the array that it is; a ``Use()`` if nobody knows."""
    parents = {child: node for node in ast.walk(definition) for child in ast.iter_child_nodes(node)}
    found: dict[str, set[Use]] = {argument.arg: set() for argument in definition.args.args}
    for node in ast.walk(definition):
        if not isinstance(node, ast.Name) or node.id not in found:
            continue
        parent, use = parents[node], Use()
        if isinstance(parent, ast.Attribute) and parent.attr in _HARMLESS:
            continue
        if isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Load):
            indices = parent.slice.elts if isinstance(parent.slice, ast.Tuple) else [parent.slice]
            if parent.value is node and not any(isinstance(i, ast.Slice) for i in indices):
                use = Use(indices=len(indices))
        elif isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and node in parent.args:
            use = Use(called=parent.func.id, position=parent.args.index(node))
        elif isinstance(node.ctx, ast.Load) and isinstance(parent, ast.BinOp | ast.Compare | ast.BoolOp | ast.If):
            continue  # a number
        found[node.id].add(use)
    return {name: frozenset(all_) for name, all_ in found.items()}
