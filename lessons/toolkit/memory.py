"""Wide loads and stores, guarded ones, and copies to shared memory that need no register.

An array of any shape is addressed by one flat row-major offset. Loads and stores are LLVM vector instructions, not
inline PTX: the compiler may still move them. Copies of float32 are `cp.async` from compute capability 8.0 on, and a
load and a store below; those of float16, and groups of copies, need 8.0.
"""

import numpy as np
from llvmlite import ir
from numba import cuda, float32, int8, types
from numba.core.targetconfig import ConfigStack
from numba.cuda.extending import intrinsic
from numba.types import float16

from lessons.toolkit import ptx
from lessons.toolkit.mma import to_half
from lessons.toolkit.pasted import pasted
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


def shared_arrays(name, kind, alignment):
    """Make the function by which a kernel gets an array of `kind` in shared memory, on a boundary of bytes."""

    def array(size=0):
        return cuda.shared.array(size, kind, alignment=alignment)

    array.__name__, array.__doc__ = name, f"`size` {kind} of shared memory from a {alignment}-byte boundary on."
    return pasted(array)


shared_array = shared_arrays("shared_array", float32, 16)
half_array = shared_arrays("half_array", float16, 16)
byte_array = shared_arrays("byte_array", int8, 16)


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


def _load(name, count, kind, to):
    """A load of `count` values, of float32 or float16, as one of LLVM type `to`."""
    size = 4 if kind == "float32" else 2

    def typed(typing_context, registers, i, array, offset):
        return types.void(registers, i, array, offset), _moved(to, source_align=count * size, target_align=size)

    says = f"registers[i:i+{count}] = array[offset:offset+{count}], {kind}, from a {count * size}-byte boundary on."
    return ptx.named(name, says, typed)


load2 = _load("load2", 2, "float32", FLOAT2)
load4 = _load("load4", 4, "float32", FLOAT4)
load2_halves = _load("load2_halves", 2, "float16", WORD)
load8 = _load("load8", 8, "float16", WORD4)


@intrinsic
def store2(typing_context, array, offset, registers, i):
    """array[offset:offset+2] = registers[i:i+2], float32 or int32, to an 8-byte boundary."""
    # sums that wgmma adds to stay what they are: if LLVM made floats of integers, ptxas would wait after each wgmma
    pair = WORD2 if isinstance(registers.dtype, types.Integer) else FLOAT2
    return types.void(array, offset, registers, i), _moved(pair, source_align=4, target_align=8)


@intrinsic
def store4(typing_context, array, offset, registers, i):
    """array[offset:offset+4] = registers[i:i+4], to a 16-byte boundary."""
    return types.void(array, offset, registers, i), _moved(FLOAT4, source_align=4, target_align=16)


@intrinsic
def store8(typing_context, array, offset, tile, i):
    """array[offset:offset+8] = tile[i:i+8], float16, both on 16-byte boundaries."""
    return types.void(array, offset, tile, i), _moved(WORD4, source_align=16, target_align=16)


def _rounded(text, below_8_0=None):
    """A store of two sums as one word; `below_8_0`: the instructions that make it there."""

    def typed(typing_context, array, offset, acc, i):
        def generate(context, builder, signature, args):
            operands = [builder.load(one) for one in ptx.held(context, builder, signature, args, 2, 2, FLOAT)]
            pair = ptx.assembly(builder, WORD, text if _from_8_0() else below_8_0, "=r,f,f", operands)
            builder.store(pair, ptx.pointer(context, builder, array, args[0], args[1], WORD), align=4)
            return context.get_dummy_value()

        return types.void(array, offset, acc, i), generate

    return ptx.function(typed)


@_rounded(
    "cvt.rn.f16x2.f32 $0, $2, $1;",
    "{ .reg .b16 low, high; cvt.rn.f16.f32 low, $1; cvt.rn.f16.f32 high, $2; mov.b32 $0, {low, high}; }",
)
def store2_rounded(array, offset, acc, i):
    """array[offset:offset+2] = acc[i:i+2], each rounded to the nearest float16, to a 4-byte boundary."""


@_rounded("cvt.rn.bf16x2.f32 $0, $2, $1;")
def store2_bfloat(array, offset, acc, i):
    """array[offset:offset+2] = the codes of acc[i:i+2], rounded to the nearest bfloat16, to a 4-byte boundary.

    Of an array of words, float32, array[offset] becomes both. Compute capability 8.0 or newer.
    """


@pasted
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


def _copy(name, count, conditional=False, narrow=False):
    """A cp.async of `count` float32, one or four.

    conditional: a fifth argument says whether to read the array, or to write zeros. narrow: the array's offset has 32
    bits, and is widened, scaled and added to the address by one instruction.
    """
    to, size = (FLOAT, 4) if count == 1 else (FLOAT4, 16)
    form = "ca.shared.global" if count == 1 or conditional else "cg.shared.global"  # by L1, or past it
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

    def copied(typing_context, shared, i, array, offset):
        return types.void(shared, i, array, offset), generate

    def copied_where(typing_context, shared, i, array, offset, inside):
        return types.void(shared, i, array, types.uint32 if narrow else offset, types.boolean), generate

    says = f"Start shared[i:i+{count}] = array[offset:offset+{count}], float32, from and to {size}-byte boundaries"
    if conditional:
        says += ", or zeros without reading the array where not `inside`"
    return ptx.named(name, f"{says}; below compute capability 8.0, do it.", copied_where if conditional else copied)


copy1_async = _copy("copy1_async", 1)
copy4_async = _copy("copy4_async", 4)
copy1_or_zero = _copy("copy1_or_zero", 1, conditional=True)
copy4_or_zero = _copy("copy4_or_zero", 4, conditional=True)
SIXTEEN_BYTES = "cp.async.cg.shared.global.L2::128B [$0], [$1], 16"  # past L1


@ptx.instruction(f"{SIXTEEN_BYTES};", "sg")
def copy8_async(shared, i, array, offset):
    """Start shared[i:i+8] = array[offset:offset+8], float16, both on 16-byte boundaries."""


@ptx.instruction(f"{SIXTEEN_BYTES};", "sg")
def copy16_async(shared, i, array, offset):
    """Start shared[i:i+16] = array[offset:offset+16], int8, both on 16-byte boundaries."""


@ptx.instruction(f"{SIXTEEN_BYTES}, $2;", "sgz")
def copy8_or_zero(shared, i, array, offset, inside):
    """copy8_async, or shared[i:i+8] = 0 without reading the array where not `inside`."""


@ptx.instruction(f"{SIXTEEN_BYTES}, $2;", "sgz")
def copy16_or_zero(shared, i, array, offset, inside):
    """copy16_async, or shared[i:i+16] = 0 without reading the array where not `inside`."""


@intrinsic
def wait_async(typing_context):
    """Wait until the copies that this thread started have arrived; other threads' copies need a barrier."""

    def generate(context, builder, signature, args):
        if _from_8_0():
            ptx.assembly(builder, ir.VoidType(), "cp.async.wait_all;", "~{memory}", [])
        return context.get_dummy_value()

    return types.void(), generate


@ptx.instruction("cp.async.commit_group;")
def commit_group():
    """The copies that this thread has started since its last commit_group become a group."""


@ptx.instruction("cp.async.wait_group {};", "-")
def wait_group(pending):
    """Wait until at most `pending` groups, the youngest, of this thread are on their way; a constant."""


# --- from a 32-bit offset, or zeros where nothing is to be read ---
#
# An offset that was added up in 32 bits and then widened costs six instructions, or one that widens, scales and adds.
# And a load in a branch the compiler moves to where its value is needed, behind the multiplications that were to hide
# it; one under a condition of its own stays where it was written.


def _load_or_zero(name, count, suffix):
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

    def typed(typing_context, registers, i, array, offset, inside):
        return types.void(registers, i, array, types.uint32, types.boolean), generate

    says = f"registers[i:i+{count}] = array[offset:offset+{count}], float32, zeros unread where not `inside`."
    return ptx.named(name, says, typed)


load1_or_zero = _load_or_zero("load1_or_zero", 1, "")
load4_or_zero = _load_or_zero("load4_or_zero", VECTOR, ".v4")  # from a 16-byte boundary on
fetch1_or_zero = _copy("fetch1_or_zero", 1, conditional=True, narrow=True)  # copy1_or_zero from a 32-bit offset
fetch4_or_zero = _copy("fetch4_or_zero", 4, conditional=True, narrow=True)


# --- of the elements of a matrix, nothing outside ---


@pasted
def load4_guarded(registers, i, array, row, column, wide):
    """registers[i:i+4] = array[row, column:column+4], zeros outside; one by one unless rows are aligned (`wide`)."""
    rows, columns = array.shape
    if wide and row < rows and column < columns:
        load4(registers, i, array, row * columns + column)
    else:
        for v in range(VECTOR):
            inside = row < rows and column + v < columns
            registers[i + v] = array[row, column + v] if inside else float32(0.0)


@pasted
def load1_guarded(tile, i, array, row, column):
    """tile[i] = array[row, column], or zero outside, at once."""
    rows, columns = array.shape
    tile[i] = array[row, column] if row < rows and column < columns else to_half(float32(0.0))


def _copy_guarded(copy_or_zero, count, become):
    """Make the function that copies `count` neighbours of a row by this one, or singly unless rows are aligned."""

    @pasted
    def copy_guarded(tile, i, array, row, column, wide):
        """Start tile[i:i+count] = array[row, column:column+count], zeros outside; at once unless rows are aligned."""
        rows, columns = array.shape
        if wide:
            inside = row < rows and column < columns
            copy_or_zero(tile, i, array, row * columns + column if inside else 0, inside)
        else:
            for v in range(count):
                inside = row < rows and column + v < columns
                tile[i + v] = array[row, column + v] if inside else become(float32(0.0))

    return copy_guarded


copy8_guarded = _copy_guarded(copy8_or_zero, HALVES, to_half)
copy16_guarded = _copy_guarded(copy16_or_zero, INT8S, int8)


@pasted
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


def _store_guarded(store, count):
    """Make the function that stores `count` neighbours of a row by this one, or singly unless rows are aligned."""

    @pasted
    def store_guarded(array, row, column, registers, i, wide):
        """array[row, column:column+count] = registers[i:i+count], nothing outside; `wide`: rows are aligned."""
        rows, columns = array.shape
        if wide and row < rows and column < columns:
            store(array, row * columns + column, registers, i)
        else:
            for v in range(count):
                if row < rows and column + v < columns:
                    array[row, column + v] = registers[i + v]

    return store_guarded


store4_guarded, store8_guarded = _store_guarded(store4, VECTOR), _store_guarded(store8, HALVES)
