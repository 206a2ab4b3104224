"""Tensor cores and what feeds them: instructions that a whole warp carries out, and copies that arrive in groups.

``mma_m16n8k16`` multiplies fragments: each of the 32 lanes holds a few elements of A, B and the sum. With
``g = lane // 4`` and ``t = lane % 4`` a lane holds, in this order,

- of A (16 x 16): (g, 2t) and its right neighbour, the same of row g + 8, then both again 8 columns on;
- of B (16 x 8): (2t, g) and the element below it, then the same 8 rows on;
- of the sum (16 x 8): (g, 2t) and its right neighbour, then the same of row g + 8.

``mma_m16n8k8`` takes float32 as TF32: of A (16 x 8) (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4); of B (8 x 8)
(t, g) and (t + 4, g). All 32 lanes of a warp must come to such an instruction, and to ``ldmatrix4``, together. Arrays
are addressed by one flat row-major offset, as in ``lessons/wide.py``. Compute capability 8.0 or newer.
"""

from llvmlite import ir
from numba import cuda, float32, types
from numba.cuda import cgutils
from numba.cuda.extending import intrinsic
from numba.types import float16

WARP = 32
HALVES = 8  # float16 values in 16 bytes


def aligned8(*arrays):
    """True if every row of every float16 array starts on a 16-byte boundary."""
    return all(array.shape[1] % HALVES == 0 and _address(array) % 16 == 0 for array in arrays)


def aligned2(*arrays):
    """True if every row of every float16 array starts on a 4-byte boundary."""
    return all(array.shape[1] % 2 == 0 and _address(array) % 4 == 0 for array in arrays)


def _address(array):
    on_gpu = getattr(array, "__cuda_array_interface__", None)
    return (on_gpu or array.__array_interface__)["data"][0]


BITS, WORD, FLOAT = ir.IntType(16), ir.IntType(32), ir.FloatType()
WORD4 = ir.VectorType(WORD, 4)
SHARED = 3  # LLVM's number of the shared address space


@cuda.jit(device=True, inline="always")
def half_array(size):
    """`size` float16 of shared memory from a 16-byte boundary on."""
    return cuda.shared.array(size, float16, alignment=16)


def _pointer(context, builder, array_type, array, offset, to):
    data = cgutils.create_struct_proxy(array_type)(context, builder, value=array).data
    return builder.bitcast(builder.gep(data, [offset]), to.as_pointer())


def _shared_address(context, builder, array_type, array, offset):
    """32 bits reach all of shared memory, so the offset is not widened to 64."""
    data = cgutils.create_struct_proxy(array_type)(context, builder, value=array).data
    start = builder.ptrtoint(builder.addrspacecast(data, WORD.as_pointer(SHARED)), WORD)
    offset = builder.trunc(offset, WORD) if offset.type.width > WORD.width else offset
    return builder.add(start, builder.mul(offset, WORD(array_type.dtype.bitwidth // 8)))


def _words(builder, first, count):
    """The addresses of the `count` 32-bit words from `first` on."""
    return [builder.gep(first, [WORD(i)]) for i in range(count)]


def _assembly(builder, result, text, constraints, operands):
    kind = ir.FunctionType(result, [operand.type for operand in operands])
    return builder.call(ir.InlineAsm(kind, text, constraints, side_effect=True), operands)


def _mma(text, a_words, b_words):
    def generate(context, builder, signature, args):
        fragments = [
            _pointer(context, builder, signature.args[n], args[n], args[n + 1], to)
            for n, to in ((0, FLOAT), (2, WORD), (4, WORD))
        ]
        sums = _words(builder, fragments[0], 4)
        left, right = _words(builder, fragments[1], a_words), _words(builder, fragments[2], b_words)
        operands = [builder.load(word) for word in (*left, *right, *sums)]
        constraints = ",".join(["=f"] * 4 + ["r"] * (a_words + b_words) + ["0", "1", "2", "3"])
        found = _assembly(builder, ir.LiteralStructType([FLOAT] * 4), text, constraints, operands)
        for n, one in enumerate(sums):
            builder.store(builder.extract_value(found, n), one)
        return context.get_dummy_value()

    return generate


@intrinsic
def mma_m16n8k16(typing_context, acc, i, a_frag, j, b_frag, k):
    """The warp's acc[i:i+4] += A (16 x 16, a_frag[j:j+8]) @ B (16 x 8, b_frag[k:k+4]); float16, sums float32.

    a_frag: A[group, 2 member], its right neighbour; the same 8 rows below; both again 8 columns to the right.
    b_frag: B[2 member, group], the element below it; both again 8 rows below. acc: C[group, 2 member], its right
    neighbour; the same 8 rows below.
    """
    text = (
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$0, $1, $2, $3};"
    )
    return types.void(acc, i, a_frag, j, b_frag, k), _mma(text, 4, 2)


@intrinsic
def mma_m16n8k8(typing_context, acc, i, a_frag, j, b_frag, k):
    """The warp's acc[i:i+4] += A (16 x 8, a_frag[j:j+4]) @ B (8 x 8, b_frag[k:k+2]); float32, read as TF32.

    a_frag: A[group, member], 8 rows below; both again 4 columns to the right. b_frag: B[member, group], and 4
    rows below. acc: as in mma_m16n8k16. The last 13 bits of a_frag and b_frag are cut off: see to_tf32.
    """
    text = (
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$0, $1, $2, $3};"
    )
    return types.void(acc, i, a_frag, j, b_frag, k), _mma(text, 4, 2)


@intrinsic
def to_tf32(typing_context, value):
    """The float32 nearest to `value` that has 10 bits of fraction, as TF32 has."""

    def generate(context, builder, signature, args):
        word = _assembly(builder, WORD, "cvt.rna.tf32.f32 $0, $1;", "=r,f", args)
        return builder.bitcast(word, FLOAT)

    return types.float32(types.float32), generate


@intrinsic
def to_half(typing_context, value):
    """The float16 nearest to a float32; Numba's own conversion goes by way of float64."""

    def generate(context, builder, signature, args):
        return _assembly(builder, BITS, "cvt.rn.f16.f32 $0, $1;", "=h,f", args)

    return float16(types.float32), generate


def _load_matrices(context, builder, signature, args, text, address):
    result = ir.LiteralStructType([WORD] * 4)
    found = _assembly(builder, result, text, "=r,=r,=r,=r,r,~{memory}", [address])
    first = _pointer(context, builder, signature.args[0], args[0], args[1], WORD)
    for n, word in enumerate(_words(builder, first, 4)):
        builder.store(builder.extract_value(found, n), word)
    return context.get_dummy_value()


def _ldmatrix(text):
    def generate(context, builder, signature, args):
        address = _shared_address(context, builder, signature.args[2], args[2], args[3])
        return _load_matrices(context, builder, signature, args, text, address)

    return generate


def _ldmatrix_at(text):
    def generate(context, builder, signature, args):
        return _load_matrices(context, builder, signature, args, text, args[3])

    return generate


LDMATRIX = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0, $1, $2, $3}, [$4];"
LDMATRIX_TRANSPOSED = "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {$0, $1, $2, $3}, [$4];"


@intrinsic
def ldmatrix4(typing_context, frag, i, tile, offset):
    """Four 8 x 8 matrices of shared memory: each lane says where a row begins, and gets two elements of each.

    Lanes 0-7 give the rows of the first matrix, 8-15 of the second, and so on; rows are 16 bytes, on a 16-byte
    boundary. frag[i:i+2] = the first matrix's [group, 2 member] and its right neighbour, frag[i+2:i+4] the
    second's, to frag[i+8]. Rows of 4 float32 go to frag[i:i+4]: [group, member] of each.
    """
    return types.void(frag, i, tile, offset), _ldmatrix(LDMATRIX)


@intrinsic
def ldmatrix4_transposed(typing_context, frag, i, tile, offset):
    """ldmatrix4 of float16 that gives [2 member, group] and the element below it."""
    return types.void(frag, i, tile, offset), _ldmatrix(LDMATRIX_TRANSPOSED)


@intrinsic
def shared_address(typing_context, tile, offset):
    """Where tile[offset] lies in shared memory, in bytes."""

    def generate(context, builder, signature, args):
        return _shared_address(context, builder, signature.args[0], *args)

    return types.uint32(tile, offset), generate


@intrinsic
def ldmatrix4_at(typing_context, frag, i, tile, address):
    """ldmatrix4 of rows of the tile that begin at a shared_address: nothing is left to work out for a load."""
    return types.void(frag, i, tile, types.uint32), _ldmatrix_at(LDMATRIX)


@intrinsic
def ldmatrix4_transposed_at(typing_context, frag, i, tile, address):
    """ldmatrix4_transposed of rows of the tile that begin at a shared_address."""
    return types.void(frag, i, tile, types.uint32), _ldmatrix_at(LDMATRIX_TRANSPOSED)


@intrinsic
def store8(typing_context, array, offset, tile, i):
    """array[offset:offset+8] = tile[i:i+8], float16, both on 16-byte boundaries."""

    def generate(context, builder, signature, args):
        source = _pointer(context, builder, signature.args[2], args[2], args[3], WORD4)
        target = _pointer(context, builder, signature.args[0], args[0], args[1], WORD4)
        builder.store(builder.load(source, align=16), target, align=16)
        return context.get_dummy_value()

    return types.void(array, offset, tile, i), generate


@intrinsic
def copy8_async(typing_context, tile, i, array, offset):
    """Start tile[i:i+8] = array[offset:offset+8], float16, both on 16-byte boundaries."""

    def generate(context, builder, signature, args):
        target = _shared_address(context, builder, signature.args[0], args[0], args[1])
        source = _pointer(context, builder, signature.args[2], args[2], args[3], WORD)
        text = "cp.async.cg.shared.global.L2::128B [$0], [$1], 16;"
        _assembly(builder, ir.VoidType(), text, "r,l,~{memory}", [target, source])
        return context.get_dummy_value()

    return types.void(tile, i, array, offset), generate


@intrinsic
def copy8_or_zero(typing_context, tile, i, array, offset, inside):
    """copy8_async, or tile[i:i+8] = 0 without reading the array where not `inside`."""

    def generate(context, builder, signature, args):
        target = _shared_address(context, builder, signature.args[0], args[0], args[1])
        source = _pointer(context, builder, signature.args[2], args[2], args[3], WORD)
        read = builder.select(args[4], WORD(16), WORD(0))  # what is not read is filled with zeros
        text = "cp.async.cg.shared.global.L2::128B [$0], [$1], 16, $2;"
        _assembly(builder, ir.VoidType(), text, "r,l,r,~{memory}", [target, source, read])
        return context.get_dummy_value()

    return types.void(tile, i, array, offset, types.boolean), generate


@intrinsic
def commit_group(typing_context):
    """The copies that this thread has started since its last commit_group become a group."""

    def generate(context, builder, signature, args):
        _assembly(builder, ir.VoidType(), "cp.async.commit_group;", "~{memory}", [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def wait_group(typing_context, pending):
    """Wait until at most `pending` groups, the youngest, of this thread are on their way; a constant."""
    if not isinstance(pending, types.IntegerLiteral):
        return None

    def generate(context, builder, signature, args):
        text = f"cp.async.wait_group {pending.literal_value};"
        _assembly(builder, ir.VoidType(), text, "~{memory}", [])
        return context.get_dummy_value()

    return types.void(pending), generate


@intrinsic
def store2_rounded(typing_context, array, offset, acc, i):
    """array[offset:offset+2] = acc[i:i+2], each rounded to the nearest float16, to a 4-byte boundary."""

    def generate(context, builder, signature, args):
        array_type, _, acc_type, _ = signature.args
        sums = _words(builder, _pointer(context, builder, acc_type, args[2], args[3], FLOAT), 2)
        low, high = (builder.load(one) for one in sums)
        pair = _assembly(builder, WORD, "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [low, high])
        builder.store(pair, _pointer(context, builder, array_type, args[0], args[1], WORD), align=4)
        return context.get_dummy_value()

    return types.void(array, offset, acc, i), generate


@cuda.jit(device=True, inline="always")
def copy1_guarded(tile, i, array, row, column):
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
            copy1_guarded(tile, i + v, array, row, column + v)


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
