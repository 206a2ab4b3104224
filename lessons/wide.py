"""What plain Numba does not offer: 128-bit loads and stores, and copies to shared memory that need no register.

An array of any shape is addressed by one flat row-major offset, so that an address costs one addition. On the GPU,
loads and stores are LLVM vector instructions, not inline PTX: the compiler may still move them and fold their
addresses into them.
"""

from llvmlite import ir
from numba import cuda, float32, types
from numba.core.targetconfig import ConfigStack
from numba.cuda import cgutils
from numba.cuda.extending import intrinsic

VECTOR = 4  # float32 values in one 128-bit access


def aligned(*arrays):
    """True if every row of every 2D float32 array starts on a 16-byte boundary."""
    return all(array.shape[1] % VECTOR == 0 and _address(array) % 16 == 0 for array in arrays)


def _address(array):
    on_gpu = getattr(array, "__cuda_array_interface__", None)
    return (on_gpu or array.__array_interface__)["data"][0]


FLOAT, FLOAT4 = ir.FloatType(), ir.VectorType(ir.FloatType(), VECTOR)
SHARED = 3  # LLVM's number of the shared address space


def jit(threads, blocks):
    """cuda.jit that gives a thread as many registers as `blocks` resident blocks of `threads` leave it."""
    return cuda.jit(launch_bounds=(threads, blocks))


@cuda.jit(device=True, inline="always")
def shared_array(size):
    """`size` float32 of shared memory from a 16-byte boundary on."""
    return cuda.shared.array(size, float32, alignment=16)


def _pointer(context, builder, array_type, array, offset, to=FLOAT4):
    data = cgutils.create_struct_proxy(array_type)(context, builder, value=array).data
    return builder.bitcast(builder.gep(data, [offset]), to.as_pointer())


def _copy(context, builder, signature, args, source_align, target_align, to=FLOAT4):
    target_type, _, source_type, _ = signature.args
    target, i, source, j = args
    value = builder.load(_pointer(context, builder, source_type, source, j, to), align=source_align)
    builder.store(value, _pointer(context, builder, target_type, target, i, to), align=target_align)
    return context.get_dummy_value()


@intrinsic
def load4(typing_context, registers, i, array, offset):
    """registers[i:i+4] = array[offset:offset+4], which must start on a 16-byte boundary."""
    return types.void(registers, i, array, offset), lambda *args: _copy(*args, source_align=16, target_align=4)


@intrinsic
def store4(typing_context, array, offset, registers, i):
    """array[offset:offset+4] = registers[i:i+4], to a 16-byte boundary."""
    return types.void(array, offset, registers, i), lambda *args: _copy(*args, source_align=4, target_align=16)


def _copies_async():
    return ConfigStack().top().compute_capability >= (8, 0)


def _assembly(context, builder, instruction, operands=(), constraints="~{memory}"):
    function = ir.FunctionType(ir.VoidType(), [operand.type for operand in operands])
    builder.call(ir.InlineAsm(function, instruction, constraints, side_effect=True), operands)
    return context.get_dummy_value()


def _copy_async(instruction, to, size):
    def generate(context, builder, signature, args):
        if not _copies_async():
            return _copy(context, builder, signature, args, size, size, to)
        shared_type, _, array_type, _ = signature.args
        shared, i, array, offset = args
        source = _pointer(context, builder, array_type, array, offset)
        target = _pointer(context, builder, shared_type, shared, i)
        target = builder.addrspacecast(target, FLOAT4.as_pointer(SHARED))
        operands = builder.ptrtoint(target, ir.IntType(32)), source
        return _assembly(context, builder, instruction, operands, "r,l,~{memory}")

    return generate


@intrinsic
def copy1_async(typing_context, shared, i, array, offset):
    """Start shared[i] = array[offset]; below compute capability 8.0, do it."""
    code = _copy_async("cp.async.ca.shared.global [$0], [$1], 4;", FLOAT, 4)
    return types.void(shared, i, array, offset), code


@intrinsic
def copy4_async(typing_context, shared, i, array, offset):
    """Start shared[i:i+4] = array[offset:offset+4], both on 16-byte boundaries."""
    code = _copy_async("cp.async.cg.shared.global [$0], [$1], 16;", FLOAT4, 16)
    return types.void(shared, i, array, offset), code


def _copy_or_zero(instruction, to, size):
    bits = ir.IntType(32)

    def generate(context, builder, signature, args):
        shared_type, _, array_type, _, _ = signature.args
        shared, i, array, offset, inside = args
        source = _pointer(context, builder, array_type, array, offset, to)
        target = _pointer(context, builder, shared_type, shared, i, to)
        if not _copies_async():
            with builder.if_else(inside) as (then, otherwise):
                with then:
                    builder.store(builder.load(source, align=size), target, align=size)
                with otherwise:
                    builder.store(ir.Constant(to, None), target, align=size)
            return context.get_dummy_value()
        target = builder.addrspacecast(target, to.as_pointer(SHARED))
        read = builder.select(inside, bits(size), bits(0))  # what is not read is filled with zeros
        operands = builder.ptrtoint(target, bits), source, read
        return _assembly(context, builder, instruction, operands, "r,l,r,~{memory}")

    return generate


@intrinsic
def copy1_or_zero(typing_context, shared, i, array, offset, inside):
    """copy1_async, or shared[i] = 0 without reading the array where not `inside`."""
    code = _copy_or_zero("cp.async.ca.shared.global [$0], [$1], 4, $2;", FLOAT, 4)
    return types.void(shared, i, array, offset, types.boolean), code


@intrinsic
def copy4_or_zero(typing_context, shared, i, array, offset, inside):
    """copy4_async, or shared[i:i+4] = 0 without reading the array where not `inside`."""
    code = _copy_or_zero("cp.async.ca.shared.global [$0], [$1], 16, $2;", FLOAT4, 16)
    return types.void(shared, i, array, offset, types.boolean), code


@intrinsic
def wait_async(typing_context):
    """Wait until the copies that this thread started have arrived; other threads' copies need a barrier."""

    def generate(context, builder, signature, args):
        if not _copies_async():
            return context.get_dummy_value()
        return _assembly(context, builder, "cp.async.wait_all;")

    return types.void(), generate


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
