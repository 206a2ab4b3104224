"""Loads and copies from a 32-bit offset, or zeros where nothing is to be read, without a branch.

An offset that was added up in 32 bits and then widened costs six instructions: the compiler adds in 64 bits and cuts
off what does not belong. Widened, scaled and added to the address by one instruction, it costs one.

With a branch around a load, the compiler moves it to where its value is needed, behind the multiplications that were
to hide it. A load under a condition of its own stays where it was written.
"""

from llvmlite import ir
from numba import types
from numba.cuda import cgutils
from numba.cuda.extending import intrinsic

from lessons import wide
from lessons.wide import VECTOR

BITS32, BITS64 = ir.IntType(32), ir.IntType(64)
ADDRESS = ".reg .u64 address; mad.wide.u32 address, {offset}, 4, {first};"


def _first(context, builder, array_type, array):
    return cgutils.create_struct_proxy(array_type)(context, builder, value=array).data


def _load_or_zero(count, suffix):
    names = ", ".join(f"${v}" for v in range(count))
    value = f"{{{names}}}" if count > 1 else names
    clear = " ".join(f"mov.b32 ${v}, 0;" for v in range(count))
    address = ADDRESS.format(offset=f"${count}", first=f"${count + 1}")
    ask = f".reg .pred p; setp.ne.u32 p, ${count + 2}, 0;"
    text = f"{{ {address} {ask} {clear} @p ld.global{suffix}.f32 {value}, [address]; }}"

    def generate(context, builder, signature, args):
        registers_type, _, array_type, _, _ = signature.args
        registers, i, array, offset, inside = args
        operands = offset, _first(context, builder, array_type, array), builder.zext(inside, BITS32)
        outputs = [ir.FloatType()] * count
        result = outputs[0] if count == 1 else ir.LiteralStructType(outputs)
        function = ir.FunctionType(result, [operand.type for operand in operands])
        constraints = ",".join(["=&f"] * count + ["r", "l", "r", "~{memory}"])
        got = builder.call(ir.InlineAsm(function, text, constraints, side_effect=True), operands)
        to = _first(context, builder, registers_type, registers)
        for v in range(count):
            one = got if count == 1 else builder.extract_value(got, v)
            builder.store(one, builder.gep(to, [builder.add(i, ir.Constant(i.type, v))]))
        return context.get_dummy_value()

    return generate


def _fetch_or_zero(to, size):
    address = ADDRESS.format(offset="$1", first="$2")
    text = f"{{ {address} cp.async.ca.shared.global [$0], [address], {size}, $3; }}"
    without = wide._copy_or_zero("", to, size)

    def generate(context, builder, signature, args):
        shared_type, _, array_type, _, _ = signature.args
        shared, i, array, offset, inside = args
        if not wide._copies_async():
            args = shared, i, array, builder.zext(offset, BITS64), inside
            return without(context, builder, signature, args)
        target = wide._pointer(context, builder, shared_type, shared, i, to)
        target = builder.ptrtoint(builder.addrspacecast(target, to.as_pointer(wide.SHARED)), BITS32)
        read = builder.select(inside, BITS32(size), BITS32(0))  # what is not read is filled with zeros
        operands = target, offset, _first(context, builder, array_type, array), read
        return wide._assembly(context, builder, text, operands, "r,r,l,r,~{memory}")

    return generate


@intrinsic
def load1_or_zero(typing_context, registers, i, array, offset, inside):
    """registers[i] = array[offset], or 0 unread if not `inside`."""
    return types.void(registers, i, array, types.uint32, types.boolean), _load_or_zero(1, "")


@intrinsic
def load4_or_zero(typing_context, registers, i, array, offset, inside):
    """registers[i:i+4] = array[offset:offset+4], from a 16-byte boundary; if not `inside`, zeros unread."""
    return types.void(registers, i, array, types.uint32, types.boolean), _load_or_zero(VECTOR, ".v4")


@intrinsic
def fetch1_or_zero(typing_context, shared, i, array, offset, inside):
    """Start shared[i] = array[offset], or 0 unread if not `inside`; below compute capability 8.0, do it."""
    return types.void(shared, i, array, types.uint32, types.boolean), _fetch_or_zero(wide.FLOAT, 4)


@intrinsic
def fetch4_or_zero(typing_context, shared, i, array, offset, inside):
    """Start shared[i:i+4] = array[offset:offset+4], both on 16-byte boundaries; if not `inside`, zeros unread."""
    return types.void(shared, i, array, types.uint32, types.boolean), _fetch_or_zero(wide.FLOAT4, 16)
