"""Loops written out before Numba sees them, functions that LLVM inlines, and 64-bit loads and stores.

Numba has no unroll pragma, and LLVM gives up beyond a few hundred instructions. One loop left over is enough to send
every register tile that it indexes to local memory. But Numba takes milliseconds for a statement: what is written out
dozens of times is better put into one `inlined` function, which only LLVM copies. 128-bit loads and stores are in
`lessons.wide`.
"""

import ast
import copy
import inspect
import textwrap

from llvmlite import ir
from numba import cuda, types
from numba.cuda import cgutils
from numba.cuda.extending import intrinsic


def aligned2(*arrays):
    """True if every array starts on an 8-byte boundary; a view of a larger one may start anywhere."""
    interfaces = [getattr(array, "__cuda_array_interface__", None) or array.__array_interface__ for array in arrays]
    return all(interface["data"][0] % 8 == 0 for interface in interfaces)


def inlined(function):
    """A device function that Numba compiles once for given argument types and LLVM copies into every caller.

    inline="always" compiles it anew for every call. So does a literal argument: int64(i) is of a type like any.
    """
    return cuda.jit(device=True, forceinline=True)(function)


def _copy2(source_align, target_align):
    def generate(context, builder, signature, args):
        target_type, _, source_type, _ = signature.args
        target, i, source, j = args

        def pair(array_type, array, offset):
            data = cgutils.create_struct_proxy(array_type)(context, builder, value=array).data
            return builder.bitcast(builder.gep(data, [offset]), ir.VectorType(ir.FloatType(), 2).as_pointer())

        value = builder.load(pair(source_type, source, j), align=source_align)
        builder.store(value, pair(target_type, target, i), align=target_align)
        return context.get_dummy_value()

    return generate


@intrinsic
def load2(typing_context, registers, i, array, offset):
    """registers[i:i+2] = array[offset:offset+2], which must start on an 8-byte boundary."""
    return types.void(registers, i, array, offset), _copy2(source_align=8, target_align=4)


@intrinsic
def store2(typing_context, array, offset, registers, i):
    """array[offset:offset+2] = registers[i:i+2], to an 8-byte boundary."""
    return types.void(array, offset, registers, i), _copy2(source_align=4, target_align=8)


def unrolled(count):
    """Marks a loop for `unroll`; without it, plain range."""
    return range(count)


def unroll(function):
    """Decorator that writes every `for i in unrolled(n)` out as n copies of its body, with i a literal.

    `n` is made of closed-over integers and of the variables of enclosing unrolled loops.
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    definition = tree.body[0]
    definition.decorator_list = []
    names = dict(function.__globals__)
    names.update(inspect.getclosurevars(function).nonlocals)
    local = function.__code__.co_varnames
    constants = {name: value for name, value in names.items() if type(value) is int and name not in local}
    _Unroller(constants).visit(definition)
    ast.increment_lineno(tree, function.__code__.co_firstlineno - 1)
    exec(compile(ast.fix_missing_locations(tree), function.__code__.co_filename, "exec"), names)
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
