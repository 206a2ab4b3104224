"""How text in PTX becomes a function of a kernel: operands as LLVM has them, and inline assembly around them.

Nothing here is for kernels: the other modules of the toolkit make their functions of it. Arrays are addressed by one
flat offset in elements, so that an address costs one addition.
"""

from llvmlite import ir
from numba import types
from numba.cuda import cgutils

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


def assembly(builder, result, text, constraints, operands):
    """The value of type `result` that an instruction gives; it stays where it is in the order of the others."""
    kind = ir.FunctionType(result, [operand.type for operand in operands])
    return builder.call(ir.InlineAsm(kind, text, constraints, side_effect=True), operands)


def instruction(text, kinds=""):
    """Code that carries out `text` on operands, named by a letter each, in the order of the arguments:

    s: an array and an index, for an address in shared memory; g: an array and an index, for one in global memory;
    r: 32 bits; z: a condition, for 16 or for 0; ``-``: none.
    """
    of = {"s": "r", "g": "l", "z": "r"}
    constraints = ",".join([*(of.get(kind, kind) for kind in kinds if kind != "-"), "~{memory}"])

    def generate(context, builder, signature, args):
        given, operands = iter(zip(args, signature.args, strict=True)), []
        for kind in kinds:
            value, its_type = next(given)
            if kind == "s":
                operands.append(shared_address(context, builder, its_type, value, *next(given)))
            elif kind == "g":
                operands.append(pointer(context, builder, its_type, value, next(given)[0], WORD))
            elif kind == "z":
                operands.append(builder.select(value, WORD(16), WORD(0)))
            elif kind == "r":
                operands.append(context.cast(builder, value, its_type, types.uint32))
        assembly(builder, ir.VoidType(), text, constraints, operands)
        return context.get_dummy_value()

    return generate


def literal(value):
    """The value of an argument that must be a constant, or None where Numba has yet to ask with the constant."""
    return value.literal_value if isinstance(value, types.IntegerLiteral) else None
