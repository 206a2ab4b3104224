"""Loops written out before Numba sees them, and functions that LLVM inlines.

LLVM gives up beyond a few hundred instructions, and one loop left over sends every register tile that it indexes to
local memory. But Numba takes milliseconds for a statement: what is written out dozens of times is better put into one
`inlined` function, which only LLVM copies.
"""

import ast
import copy
import inspect
import textwrap

from numba import cuda


def inlined(function):
    """A device function that Numba compiles once for given argument types and LLVM copies into every caller.

    inline="always" compiles it anew for every call. So does a literal argument: int64(i) is of a type like any.
    """
    return cuda.jit(device=True, forceinline=True)(function)


def unrolled(count):
    """Marks a loop for `unroll`; without it, plain range."""
    return range(count)


def unroll(function):
    """Decorator that writes every `for i in unrolled(n)` out as n copies of its body, with i a literal.

    `n` is made of closed-over integers and of the variables of enclosing unrolled loops.
    """
    definition, names = definition_of(function)
    local = function.__code__.co_varnames
    constants = {name: value for name, value in names.items() if type(value) is int and name not in local}
    return compiled(_Unroller(constants).visit(definition), names, function)


def definition_of(function):
    """The syntax tree of a function, which may have been rewritten before, and the values of its free names."""
    names = dict(function.__globals__)
    names.update(inspect.getclosurevars(function).nonlocals)
    definition = getattr(function, "definition", None)
    if definition is None:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        ast.increment_lineno(tree, function.__code__.co_firstlineno - 1)
        definition = tree.body[0]
        definition.decorator_list = []
    return definition, names


def compiled(definition, names, function):
    """The function of a rewritten tree, as if it stood where `function` does; it remembers its tree."""
    tree = ast.fix_missing_locations(ast.Module([definition], []))
    exec(compile(tree, function.__code__.co_filename, "exec"), names)
    names[function.__name__].definition = definition
    return names[function.__name__]


class _Unroller(ast.NodeTransformer):
    def __init__(self, constants):
        self.constants = {"__builtins__": {}, **constants}
        self.bound = {}  # the unrolled loops around the current statement: variable to value

    def _value(self, node):
        expression = ast.fix_missing_locations(ast.Expression(node))
        return eval(compile(expression, "<unrolled>", "eval"), self.constants)

    def visit_Name(self, node):
        if isinstance(node.ctx, ast.Load) and node.id in self.bound:
            return ast.copy_location(ast.Constant(self.bound[node.id]), node)
        return node

    def visit_BinOp(self, node):
        node = self.generic_visit(node)
        try:  # arithmetic of constants is done here, once
            return ast.copy_location(ast.Constant(int(self._value(node))), node)
        except NameError:
            return node

    def visit_For(self, node):
        call = node.iter
        if not (isinstance(call, ast.Call) and getattr(call.func, "id", "") == "unrolled"):
            return self.generic_visit(node)
        copies = []
        for value in range(self._value(self.visit(copy.deepcopy(call.args[0])))):
            self.bound[node.target.id] = value
            for statement in copy.deepcopy(node.body):
                written = self.visit(statement)
                copies += written if isinstance(written, list) else [written]
        self.bound.pop(node.target.id, None)  # none was bound if the loop has no turns
        return copies
