"""Kernels whose integers have 32 bits, as in C, without a cast at each of them.

Numba computes integers in 64 bits, and a GPU needs two or more instructions for each 64-bit operation. `narrow`
rewrites a function before Numba sees it, as `unroll` does.
"""

import ast
import copy
import operator

import numpy as np
from numba import int32, uint32
from numba.cuda.extending import intrinsic

from lessons.toolkit.unroll import compiled, definition_of

INDICES = "threadIdx", "blockIdx", "blockDim", "gridDim"
BINARY = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.LShift: operator.lshift, ast.RShift: operator.rshift, ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_, ast.BitXor: operator.xor,
}  # fmt: skip
UNARY = {ast.USub: operator.neg, ast.Invert: operator.invert}
FOLDED = (ast.Constant, ast.Name, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.expr_context)


def narrow(function=None, *, signed=False):
    """Decorator under which integers are uint32, or int32 if `signed`, and wrap around as these do.

    Of 32 bits are int constants in arithmetic or given to a variable, indices of threads and blocks, counters of
    `range` unless it begins with int64(...), and sums, products and so on of two such values. Everything else is as
    Numba has it: an int64 that meets a 32-bit integer gives an int64. It stands below `inlined` or `jit`, and above
    `unroll`.
    """
    if function is None:
        return lambda function: narrow(function, signed=signed)
    definition, names = definition_of(function)
    local = function.__code__.co_varnames
    constants = {name: value for name, value in names.items() if type(value) is int and name not in local}
    kind = int32 if signed else uint32
    narrower = _Narrower(constants, local, kind)
    definition = narrower.visit(copy.deepcopy(definition))
    return compiled(definition, {**names, **narrower.names}, function)


def _operation(operation, kind):
    """`operation` as Numba has it, but that its result is a `kind` if all its operands are."""

    def given(typing_context, operands):
        inner = typing_context.resolve_function_type(operation, operands, {})
        if inner is None:
            return None
        result = kind if all(operand == kind for operand in operands) else inner.return_type

        def generate(context, builder, signature, args):
            wide = zip(args, signature.args, inner.args, strict=True)
            value = context.get_function(operation, inner)(builder, [context.cast(builder, *one) for one in wide])
            return context.cast(builder, value, inner.return_type, result)

        return result(*operands), generate

    def binary(typing_context, a, b):
        return given(typing_context, (a, b))

    def unary(typing_context, a):
        return given(typing_context, (a,))

    return intrinsic(unary if operation in UNARY.values() else binary)


OPERATIONS = {
    kind: {node: _operation(operation, kind) for node, operation in (BINARY | UNARY).items()}
    for kind in (uint32, int32)
}


class _Narrower(ast.NodeTransformer):
    """`names` are those that the rewritten function has besides its own."""

    def __init__(self, constants, local, kind):
        self.constants, self.local, self.kind = {"__builtins__": {}, **constants}, local, kind
        self.number = np.int32 if kind is int32 else np.uint32
        self.names = {"_narrow": kind}

    def _constant(self, node):
        """The value of an expression of int constants; None of any other."""
        for part in ast.walk(node):
            if not isinstance(part, FOLDED) or (isinstance(part, ast.Name) and part.id not in self.constants):
                return None
        code = compile(ast.fix_missing_locations(ast.Expression(copy.deepcopy(node))), "<narrow>", "eval")
        try:
            value = eval(code, self.constants)
        except ArithmeticError:
            return None
        return value if type(value) is int else None

    def _narrowed(self, node):
        """An operand, or what a variable is given: constants that fit have 32 bits."""
        if isinstance(node, ast.Tuple):
            return ast.copy_location(ast.Tuple([self._narrowed(element) for element in node.elts], node.ctx), node)
        value = self._constant(node)
        if value is None:
            return self.visit(node)
        limits = np.iinfo(self.number)
        if not limits.min <= value <= limits.max:
            return node
        name = f"_narrow_{value}".replace("-", "minus_")
        self.names[name] = self.number(value)
        return ast.copy_location(ast.Name(name, ast.Load()), node)

    def _applied(self, node, op, *operands):
        name = f"_narrow_{type(op).__name__}"
        self.names[name] = OPERATIONS[self.kind][type(op)]
        call = ast.Call(ast.Name(name, ast.Load()), [self._narrowed(operand) for operand in operands], [])
        return ast.copy_location(call, node)

    def _cast(self, node):
        return ast.copy_location(ast.Call(ast.Name("_narrow", ast.Load()), [node], []), node)

    def visit_BinOp(self, node):
        if self._constant(node) is not None:
            return node
        if type(node.op) not in BINARY:
            return self.generic_visit(node)
        return self._applied(node, node.op, node.left, node.right)

    def visit_UnaryOp(self, node):
        if self._constant(node) is not None or type(node.op) not in UNARY:
            return self.generic_visit(node)
        return self._applied(node, node.op, node.operand)

    def visit_Attribute(self, node):
        group = node.value
        index = (
            isinstance(group, ast.Attribute) and group.attr in INDICES and getattr(group.value, "id", "") == "cuda"
        )
        return self._cast(node) if index else self.generic_visit(node)

    def visit_Call(self, node):
        node = ast.copy_location(ast.Call(node.func, node.args, node.keywords), node)
        if isinstance(node.func, ast.Name) and node.func.id in ("min", "max") and node.func.id not in self.local:
            node.args = [self._narrowed(argument) for argument in node.args]
            return node
        return self.generic_visit(node)

    def visit_IfExp(self, node):
        branches = self._narrowed(node.body), self._narrowed(node.orelse)
        return ast.copy_location(ast.IfExp(self.visit(node.test), *branches), node)

    def visit_Assign(self, node):
        node.targets = [self.visit(target) for target in node.targets]
        node.value = self._given(node.targets[0], node.value)
        return node

    def _given(self, target, value):
        """What a variable is given is narrowed; an element of an array has a type of its own."""
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            parts = [self._given(*pair) for pair in zip(target.elts, value.elts, strict=True)]
            return ast.copy_location(ast.Tuple(parts, value.ctx), value)
        return self.visit(value) if isinstance(target, ast.Subscript) else self._narrowed(value)

    def visit_AugAssign(self, node):
        if not isinstance(node.target, ast.Name) or type(node.op) not in BINARY:
            return self.generic_visit(node)
        old = ast.copy_location(ast.Name(node.target.id, ast.Load()), node)
        return ast.copy_location(ast.Assign([node.target], self._applied(node, node.op, old, node.value)), node)

    def visit_Return(self, node):
        if node.value is not None:
            node.value = self._narrowed(node.value)
        return node

    def visit_For(self, node):
        node = self.generic_visit(node)
        parts = node.iter, *getattr(node.iter, "args", ())
        called = [getattr(getattr(part, "func", None), "id", "") for part in parts]
        if called[0] == "range" and called[1] != "int64" and isinstance(node.target, ast.Name):
            counter = node.target
            node.target = ast.copy_location(ast.Name(f"_wide_{counter.id}", ast.Store()), counter)
            wide = ast.copy_location(ast.Name(node.target.id, ast.Load()), counter)
            node.body.insert(0, ast.copy_location(ast.Assign([counter], self._cast(wide)), node))
        return node
