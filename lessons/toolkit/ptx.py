"""How text in PTX becomes a function of a kernel: operands as LLVM has them, and inline assembly around them.

Nothing here is for kernels: the other modules of the toolkit make their functions of it. Arrays are addressed by one
flat offset in elements, so that an address costs one addition.
"""

import inspect

from llvmlite import ir
from numba import types
from numba.cuda import cgutils
from numba.cuda.extending import intrinsic

BITS, WORD, LONG, FLOAT = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
SHARED = 3  # LLVM's number of the shared address space


def data(context, builder, array_type, array):
    """A pointer to the first element of an array."""
    return cgutils.create_struct_proxy(array_type)(context, builder, value=array).data


def pointer(context, builder, array_type, array, offset, to):
    """A pointer to array[offset], as one to values of the LLVM type `to`."""
    return builder.bitcast(builder.gep(data(context, builder, array_type, array), [offset]), to.as_pointer())


def shared_address(context, builder, array_type, array, offset, offset_type):
    """Where array[offset] lies in shared memory, in bytes; 32 bits reach all of it."""
    first = data(context, builder, array_type, array)
    start = builder.ptrtoint(builder.addrspacecast(first, WORD.as_pointer(SHARED)), WORD)
    offset = context.cast(builder, offset, offset_type, types.uint32)
    return builder.add(start, builder.mul(offset, WORD(array_type.dtype.bitwidth // 8)))


def words(builder, first, count):
    """Pointers to `count` neighbouring values, the first given."""
    return [builder.gep(first, [WORD(n)]) for n in range(count)]


def held(context, builder, signature, args, n, count, to):
    """Pointers to `count` values of type `to` of an array from an index on: arguments n and n + 1."""
    index = context.cast(builder, args[n + 1], signature.args[n + 1], types.int64)
    return words(builder, pointer(context, builder, signature.args[n], args[n], index, to), count)


def assembly(builder, result, text, constraints, operands):
    """The value of type `result` that an instruction gives; it stays where it is in the order of the others."""
    kind = ir.FunctionType(result, [operand.type for operand in operands])
    return builder.call(ir.InlineAsm(kind, text, constraints, side_effect=True), operands)


def put(builder, targets, kind, text, constraints, operands):
    """Carry out an instruction that gives a value of type `kind` for each of the pointers `targets`; store them."""
    found = assembly(builder, ir.LiteralStructType([kind] * len(targets)), text, ",".join(constraints), operands)
    for n, target in enumerate(targets):
        builder.store(builder.extract_value(found, n), target)


def named(name, says, typed):
    """What kernels call by this name; `says` is its docstring, and `typed` makes signature and code of types."""
    typed.__name__, typed.__qualname__, typed.__doc__ = name, name, says
    return intrinsic(typed)


def function(typed):
    """Decorator that makes `typed`, as of `named`, a function of the name, arguments and docstring below it."""

    def decorate(shown):
        first = inspect.Parameter("typing_context", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        typed.__signature__ = inspect.Signature([first, *inspect.signature(shown).parameters.values()])
        return named(shown.__name__, shown.__doc__, typed)

    return decorate


def instruction(text, kinds=""):
    """Decorator that makes a function of its name, arguments and docstring, which carries out `text` on operands.

    These are named by a letter each, in the order of the arguments:
    s: an array and an index, for an address in shared memory; g: an array and an index, for one in global memory;
    r: 32 bits; z: a condition, for 16 or for 0; ``-``: a constant, which takes the place of {} in the text.
    """
    of = {"s": "r", "g": "l", "z": "r"}
    constraints = ",".join([*(of.get(kind, kind) for kind in kinds if kind != "-"), "~{memory}"])
    arguments = "".join({"s": "s ", "g": "g "}.get(kind, kind) for kind in kinds)  # blanks: indices

    def typed(typing_context, *given):
        constant = literal(given[0]) if kinds == "-" else ""
        if constant is None:
            return None

        def generate(context, builder, signature, args):
            operands = []
            for n, (kind, value, its_type) in enumerate(zip(arguments, args, signature.args, strict=True)):
                if kind == "s":
                    at = args[n + 1], signature.args[n + 1]
                    operands.append(shared_address(context, builder, its_type, value, *at))
                elif kind == "g":
                    operands.append(pointer(context, builder, its_type, value, args[n + 1], WORD))
                elif kind == "z":
                    operands.append(builder.select(value, WORD(16), WORD(0)))
                elif kind == "r":
                    operands.append(context.cast(builder, value, its_type, types.uint32))
            assembly(builder, ir.VoidType(), text.replace("{}", str(constant)), constraints, operands)
            return context.get_dummy_value()

        wanted = [types.boolean if kind == "z" else one for kind, one in zip(arguments, given, strict=True)]
        return types.void(*wanted), generate

    return function(typed)


def literal(value):
    """The value of an argument that must be a constant, or None where Numba has yet to ask with the constant."""
    return value.literal_value if isinstance(value, types.IntegerLiteral) else None
