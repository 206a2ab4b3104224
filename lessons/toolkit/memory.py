"""Wide loads and stores, guarded ones, and copies to shared memory that need no register.

An array of any shape is addressed by one flat row-major offset, so that an address costs one addition. Loads and
stores are LLVM vector instructions, not inline PTX: the compiler may still move them and fold their addresses into
them. Copies of float32 are `cp.async` from compute capability 8.0 on, and a load and a store below; those of float16,
and groups of copies, need 8.0.
"""

import numpy as np
from llvmlite import ir
from numba import cuda, float32, int8, types
from numba.core.targetconfig import ConfigStack
from numba.cuda.extending import intrinsic
from numba.types import float16

from lessons.toolkit import ptx
from lessons.toolkit.mma import to_half
from lessons.toolkit.ptx import FLOAT, LONG, SHARED, WORD

VECTOR, HALVES, INT8S = 4, 8, 16  # float32, float16 and int8 values in one 128-bit access
FLOAT2, FLOAT4 = ir.VectorType(FLOAT, 2), ir.VectorType(FLOAT, VECTOR)
WORD2, WORD4 = ir.VectorType(WORD, 2), ir.VectorType(WORD, 4)


# --- arrays, as the host sees them ---


def _interface(array):
    return getattr(array, "__cuda_array_interface__", None) or array.__array_interface__


def address(array):
    """Where an array begins, in bytes, in the GPU's memory or the host's; a view of a larger one begins anywhere."""
    return _interface(array)["data"][0]


def dtype_of(array):
    """The NumPy dtype of an array of NumPy, Numba or PyTorch."""
    return np.dtype(_interface(array)["typestr"])


def aligned(*arrays, to=16):
    """True if every row, along the last axis, of every array starts on a boundary of `to` bytes."""
    return all(
        address(array) % to == 0 and tuple(array.shape)[-1] * dtype_of(array).itemsize % to == 0 for array in arrays
    )


# --- shared memory ---


@cuda.jit(device=True, inline="always")
def shared_array(size):
    """`size` float32 of shared memory from a 16-byte boundary on."""
    return cuda.shared.array(size, float32, alignment=16)


@cuda.jit(device=True, inline="always")
def half_array(size):
    """`size` float16 of shared memory from a 16-byte boundary on."""
    return cuda.shared.array(size, float16, alignment=16)


@cuda.jit(device=True, inline="always")
def byte_array(size):
    """`size` int8 of shared memory from a 16-byte boundary on."""
    return cuda.shared.array(size, int8, alignment=16)


# --- loads and stores of several values ---


def _moved(to, source_align, target_align):
    """Code that loads one value of type `to` and stores it; arguments: target, its offset, source, its offset."""

    def generate(context, builder, signature, args):
        target_type, _, source_type, _ = signature.args[:4]
        target, i, source, j = args[:4]
        value = builder.load(ptx.pointer(context, builder, source_type, source, j, to), align=source_align)
        builder.store(value, ptx.pointer(context, builder, target_type, target, i, to), align=target_align)
        return context.get_dummy_value()

    return generate


@intrinsic
def load2(typing_context, registers, i, array, offset):
    """registers[i:i+2] = array[offset:offset+2], which must start on an 8-byte boundary."""
    return types.void(registers, i, array, offset), _moved(FLOAT2, source_align=8, target_align=4)


@intrinsic
def store2(typing_context, array, offset, registers, i):
    """array[offset:offset+2] = registers[i:i+2], float32 or int32, to an 8-byte boundary."""
    # sums that wgmma adds to stay what they are: if LLVM made floats of integers, ptxas would wait after each wgmma
    pair = WORD2 if isinstance(registers.dtype, types.Integer) else FLOAT2
    return types.void(array, offset, registers, i), _moved(pair, source_align=4, target_align=8)


@intrinsic
def load4(typing_context, registers, i, array, offset):
    """registers[i:i+4] = array[offset:offset+4], which must start on a 16-byte boundary."""
    return types.void(registers, i, array, offset), _moved(FLOAT4, source_align=16, target_align=4)


@intrinsic
def store4(typing_context, array, offset, registers, i):
    """array[offset:offset+4] = registers[i:i+4], to a 16-byte boundary."""
    return types.void(array, offset, registers, i), _moved(FLOAT4, source_align=4, target_align=16)


@intrinsic
def load2_halves(typing_context, registers, i, array, offset):
    """registers[i:i+2] = array[offset:offset+2], float16, which must start on a 4-byte boundary."""
    return types.void(registers, i, array, offset), _moved(WORD, source_align=4, target_align=2)


@intrinsic
def load8(typing_context, registers, i, array, offset):
    """registers[i:i+8] = array[offset:offset+8], float16, which must start on a 16-byte boundary."""
    return types.void(registers, i, array, offset), _moved(WORD4, source_align=16, target_align=2)


@intrinsic
def store8(typing_context, array, offset, tile, i):
    """array[offset:offset+8] = tile[i:i+8], float16, both on 16-byte boundaries."""
    return types.void(array, offset, tile, i), _moved(WORD4, source_align=16, target_align=16)


_PAIRS = "cvt.rn.f16x2.f32 $0, $2, $1;"
_HALVES = "{ .reg .b16 low, high; cvt.rn.f16.f32 low, $1; cvt.rn.f16.f32 high, $2; mov.b32 $0, {low, high}; }"


@intrinsic
def store2_rounded(typing_context, array, offset, acc, i):
    """array[offset:offset+2] = acc[i:i+2], each rounded to the nearest float16, to a 4-byte boundary."""

    def generate(context, builder, signature, args):
        array_type, _, acc_type, _ = signature.args
        sums = ptx.words(builder, ptx.pointer(context, builder, acc_type, args[2], args[3], FLOAT), 2)
        low, high = (builder.load(one) for one in sums)
        pair = ptx.assembly(builder, WORD, _PAIRS if _from_8_0() else _HALVES, "=r,f,f", [low, high])
        builder.store(pair, ptx.pointer(context, builder, array_type, args[0], args[1], WORD), align=4)
        return context.get_dummy_value()

    return types.void(array, offset, acc, i), generate


@cuda.jit(device=True, inline="always")
def store8_rounded(array, offset, acc, i):
    """array[offset:offset+8] = acc[i:i+8], each rounded to the nearest float16, to a 16-byte boundary."""
    half = cuda.local.array(HALVES, float16)
    for v in range(0, HALVES, 2):
        store2_rounded(half, v, acc, i + v)
    store8(array, offset, half, 0)


# --- copies from global to shared memory ---


def _from_8_0():
    return ConfigStack().top().compute_capability >= (8, 0)


def _copied_now(context, builder, signature, args, to, size, conditional):
    """A load and a store in a copy's place."""
    shared_type, _, array_type, _ = signature.args[:4]
    shared, i, array, offset = args[:4]
    if not conditional:
        return _moved(to, size, size)(context, builder, signature, args)
    source = ptx.pointer(context, builder, array_type, array, offset, to)
    target = ptx.pointer(context, builder, shared_type, shared, i, to)
    with builder.if_else(args[4]) as (then, otherwise):
        with then:
            builder.store(builder.load(source, align=size), target, align=size)
        with otherwise:
            builder.store(ir.Constant(to, None), target, align=size)
    return context.get_dummy_value()


def _copied(form, to, size, conditional=False, narrow=False):
    """Code for cp.async of `size` bytes, a value of type `to`.

    conditional: a fifth argument says whether to read the array, or to write zeros. narrow: the array's offset has 32
    bits, and is widened, scaled and added to the address by one instruction.
    """
    last = f"${2 + narrow}"
    text = f"cp.async.{form} [$0], [{'address' if narrow else '$1'}], {size}{f', {last}' if conditional else ''};"
    if narrow:
        text = f"{{ .reg .u64 address; mad.wide.u32 address, $1, 4, $2; {text} }}"
    constraints = ",".join(["r", *(["r"] * narrow), "l", *(["r"] * conditional), "~{memory}"])

    def generate(context, builder, signature, args):
        shared_type, _, array_type, _ = signature.args[:4]
        shared, i, array, offset = args[:4]
        if not _from_8_0():
            wide = [*args[:3], builder.zext(offset, LONG) if narrow else offset, *args[4:]]
            return _copied_now(context, builder, signature, wide, to, size, conditional)
        if narrow:
            source = [offset, ptx.data(context, builder, array_type, array)]
        else:
            source = [ptx.pointer(context, builder, array_type, array, offset, to)]
        target = ptx.pointer(context, builder, shared_type, shared, i, to)
        operands = [builder.ptrtoint(builder.addrspacecast(target, to.as_pointer(SHARED)), WORD), *source]
        if conditional:  # what is not read is filled with zeros
            operands.append(builder.select(args[4], WORD(size), WORD(0)))
        ptx.assembly(builder, ir.VoidType(), text, constraints, operands)
        return context.get_dummy_value()

    return generate


BY_L1, PAST_L1 = "ca.shared.global", "cg.shared.global"
SIXTEEN_BYTES = "cp.async.cg.shared.global.L2::128B [$0], [$1], 16"  # past L1


@intrinsic
def copy1_async(typing_context, shared, i, array, offset):
    """Start shared[i] = array[offset]; below compute capability 8.0, do it."""
    return types.void(shared, i, array, offset), _copied(BY_L1, FLOAT, 4)


@intrinsic
def copy4_async(typing_context, shared, i, array, offset):
    """Start shared[i:i+4] = array[offset:offset+4], both on 16-byte boundaries."""
    return types.void(shared, i, array, offset), _copied(PAST_L1, FLOAT4, 16)


@intrinsic
def copy8_async(typing_context, shared, i, array, offset):
    """Start shared[i:i+8] = array[offset:offset+8], float16, both on 16-byte boundaries."""
    return types.void(shared, i, array, offset), ptx.instruction(f"{SIXTEEN_BYTES};", "sg")


@intrinsic
def copy16_async(typing_context, shared, i, array, offset):
    """Start shared[i:i+16] = array[offset:offset+16], int8, both on 16-byte boundaries."""
    return types.void(shared, i, array, offset), ptx.instruction(f"{SIXTEEN_BYTES};", "sg")


@intrinsic
def copy1_or_zero(typing_context, shared, i, array, offset, inside):
    """copy1_async, or shared[i] = 0 without reading the array where not `inside`."""
    return types.void(shared, i, array, offset, types.boolean), _copied(BY_L1, FLOAT, 4, conditional=True)


@intrinsic
def copy4_or_zero(typing_context, shared, i, array, offset, inside):
    """copy4_async, or shared[i:i+4] = 0 without reading the array where not `inside`."""
    return types.void(shared, i, array, offset, types.boolean), _copied(BY_L1, FLOAT4, 16, conditional=True)


@intrinsic
def copy8_or_zero(typing_context, shared, i, array, offset, inside):
    """copy8_async, or shared[i:i+8] = 0 without reading the array where not `inside`."""
    code = ptx.instruction(f"{SIXTEEN_BYTES}, $2;", "sgz")
    return types.void(shared, i, array, offset, types.boolean), code


@intrinsic
def copy16_or_zero(typing_context, shared, i, array, offset, inside):
    """copy16_async, or shared[i:i+16] = 0 without reading the array where not `inside`."""
    code = ptx.instruction(f"{SIXTEEN_BYTES}, $2;", "sgz")
    return types.void(shared, i, array, offset, types.boolean), code


@intrinsic
def wait_async(typing_context):
    """Wait until the copies that this thread started have arrived; other threads' copies need a barrier."""

    def generate(context, builder, signature, args):
        if not _from_8_0():
            return context.get_dummy_value()
        return ptx.instruction("cp.async.wait_all;")(context, builder, signature, args)

    return types.void(), generate


@intrinsic
def commit_group(typing_context):
    """The copies that this thread has started since its last commit_group become a group."""
    return types.void(), ptx.instruction("cp.async.commit_group;")


@intrinsic
def wait_group(typing_context, pending):
    """Wait until at most `pending` groups, the youngest, of this thread are on their way; a constant."""
    if ptx.literal(pending) is None:
        return None
    return types.void(pending), ptx.instruction(f"cp.async.wait_group {pending.literal_value};", "-")


# --- from a 32-bit offset, or zeros where nothing is to be read ---
#
# An offset that was added up in 32 bits and then widened costs six instructions: the compiler adds in 64 bits and
# cuts off what does not belong. Widened, scaled and added to the address by one instruction, it costs one. And with a
# branch around a load, the compiler moves the load to where its value is needed, behind the multiplications that
# were to hide it; one under a condition of its own stays where it was written.


def _loaded_or_zero(count, suffix):
    names = ", ".join(f"${v}" for v in range(count))
    value = f"{{{names}}}" if count > 1 else names
    clear = " ".join(f"mov.b32 ${v}, 0;" for v in range(count))
    where = f".reg .u64 address; mad.wide.u32 address, ${count}, 4, ${count + 1};"
    ask = f".reg .pred p; setp.ne.u32 p, ${count + 2}, 0;"
    text = f"{{ {where} {ask} {clear} @p ld.global{suffix}.f32 {value}, [address]; }}"

    def generate(context, builder, signature, args):
        registers_type, _, array_type, _, _ = signature.args
        registers, i, array, offset, inside = args
        operands = [offset, ptx.data(context, builder, array_type, array), builder.zext(inside, WORD)]
        result = FLOAT if count == 1 else ir.LiteralStructType([FLOAT] * count)
        constraints = ",".join(["=&f"] * count + ["r", "l", "r", "~{memory}"])
        got = ptx.assembly(builder, result, text, constraints, operands)
        to = ptx.data(context, builder, registers_type, registers)
        for v in range(count):
            one = got if count == 1 else builder.extract_value(got, v)
            builder.store(one, builder.gep(to, [builder.add(i, ir.Constant(i.type, v))]))
        return context.get_dummy_value()

    return generate


@intrinsic
def load1_or_zero(typing_context, registers, i, array, offset, inside):
    """registers[i] = array[offset], or 0 unread if not `inside`."""
    return types.void(registers, i, array, types.uint32, types.boolean), _loaded_or_zero(1, "")


@intrinsic
def load4_or_zero(typing_context, registers, i, array, offset, inside):
    """registers[i:i+4] = array[offset:offset+4], from a 16-byte boundary; if not `inside`, zeros unread."""
    return types.void(registers, i, array, types.uint32, types.boolean), _loaded_or_zero(VECTOR, ".v4")


@intrinsic
def fetch1_or_zero(typing_context, shared, i, array, offset, inside):
    """copy1_or_zero from a 32-bit offset."""
    code = _copied(BY_L1, FLOAT, 4, conditional=True, narrow=True)
    return types.void(shared, i, array, types.uint32, types.boolean), code


@intrinsic
def fetch4_or_zero(typing_context, shared, i, array, offset, inside):
    """copy4_or_zero from a 32-bit offset."""
    code = _copied(BY_L1, FLOAT4, 16, conditional=True, narrow=True)
    return types.void(shared, i, array, types.uint32, types.boolean), code


# --- of the elements of a matrix, nothing outside ---


@cuda.jit(device=True, inline="always")
def load4_guarded(registers, i, array, row, column, wide):
    """registers[i:i+4] = array[row, column:column+4], zeros outside; one by one unless rows are aligned (`wide`)."""
    rows, columns = array.shape
    if wide and row < rows and column < columns:
        load4(registers, i, array, row * columns + column)
    else:
        for v in range(VECTOR):
            inside = row < rows and column + v < columns
            registers[i + v] = array[row, column + v] if inside else float32(0.0)


@cuda.jit(device=True, inline="always")
def store4_guarded(array, row, column, registers, i, wide):
    """array[row, column:column+4] = registers[i:i+4], nothing outside; one by one unless rows are aligned."""
    rows, columns = array.shape
    if wide and row < rows and column < columns:
        store4(array, row * columns + column, registers, i)
    else:
        for v in range(VECTOR):
            if row < rows and column + v < columns:
                array[row, column + v] = registers[i + v]


@cuda.jit(device=True, inline="always")
def copy1_guarded(shared, i, array, row, column):
    """copy1_async of array[row, column], or zero outside."""
    rows, columns = array.shape
    if row < rows and column < columns:
        copy1_async(shared, i, array, row * columns + column)
    else:
        shared[i] = float32(0.0)


@cuda.jit(device=True, inline="always")
def copy4_guarded(shared, i, array, row, column, wide):
    """copy4_async of array[row, column:column+4], zeros outside; one by one unless rows are aligned."""
    rows, columns = array.shape
    if wide and row < rows and column < columns:
        copy4_async(shared, i, array, row * columns + column)
    else:
        for v in range(VECTOR):
            copy1_guarded(shared, i + v, array, row, column + v)


@cuda.jit(device=True, inline="always")
def load1_guarded(tile, i, array, row, column):
    """tile[i] = array[row, column], or zero outside, at once."""
    rows, columns = array.shape
    tile[i] = array[row, column] if row < rows and column < columns else to_half(float32(0.0))


@cuda.jit(device=True, inline="always")
def copy8_guarded(tile, i, array, row, column, wide):
    """copy8_async of array[row, column:column+8], zeros outside; one by one, and at once, unless rows are aligned."""
    rows, columns = array.shape
    if wide:
        inside = row < rows and column < columns
        copy8_or_zero(tile, i, array, row * columns + column if inside else 0, inside)
    else:
        for v in range(HALVES):
            load1_guarded(tile, i + v, array, row, column + v)


@cuda.jit(device=True, inline="always")
def copy16_guarded(tile, i, array, row, column, wide):
    """copy16_async of array[row, column:column+16], zeros outside; one by one, at once, unless rows are aligned."""
    rows, columns = array.shape
    if wide:
        inside = row < rows and column < columns
        copy16_or_zero(tile, i, array, row * columns + column if inside else 0, inside)
    else:
        for v in range(INT8S):
            inside = row < rows and column + v < columns
            tile[i + v] = array[row, column + v] if inside else int8(0)


@cuda.jit(device=True, inline="always")
def store2_guarded(array, row, column, acc, i, paired):
    """array[row, column:column+2] = acc[i:i+2], rounded, nothing outside; one by one unless rows are even."""
    rows, columns = array.shape
    if row < rows:
        if paired and column < columns:
            store2_rounded(array, row * columns + column, acc, i)
        else:
            for v in range(2):
                if column + v < columns:
                    array[row, column + v] = to_half(acc[i + v])


@cuda.jit(device=True, inline="always")
def store8_guarded(array, row, column, tile, i, wide):
    """array[row, column:column+8] = tile[i:i+8], nothing outside; one by one unless rows are aligned."""
    rows, columns = array.shape
    if wide and row < rows and column < columns:
        store8(array, row * columns + column, tile, i)
    else:
        for v in range(HALVES):
            if row < rows and column + v < columns:
                array[row, column + v] = tile[i + v]
