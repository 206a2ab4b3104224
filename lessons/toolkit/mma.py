"""Tensor cores of a warp: instructions that all its 32 lanes carry out together, and roundings to what these take.

``mma_m16n8k16`` multiplies fragments: each of the 32 lanes holds a few elements of A, B and the sum. With
``g = lane // 4``, the group, and ``t = lane % 4``, the member of it, a lane holds, in this order,

- of A (16 x 16): (g, 2t) and its right neighbour, the same of row g + 8, then both again 8 columns on;
- of B (16 x 8): (2t, g) and the element below it, then the same 8 rows on;
- of the sum (16 x 8): (g, 2t) and its right neighbour, then the same of row g + 8.

``mma_m16n8k32_s8`` takes int8, four values where ``mma_m16n8k16`` takes two: of A (16 x 32) (g, 4t) and the three to
its right, the same of row g + 8, then both again 16 columns on; of B (32 x 8) (4t, g) and the three below it, then
the same 16 rows on. ``mma_m16n8k8`` takes float32 as TF32: of A (16 x 8) (g, t), (g + 8, t), (g, t + 4), (g + 8, t +
4); of B (8 x 8) (t, g) and (t + 4, g). All 32 lanes of a warp must come to such an instruction, and to ``ldmatrix4``
and ``stmatrix4``, together. Arrays are addressed by one flat row-major offset. Compute capability 8.0 or newer;
``stmatrix4``, transposed or not: 9.0 or newer.
"""

from llvmlite import ir
from numba import types
from numba.core.targetconfig import ConfigStack
from numba.cuda.extending import intrinsic
from numba.types import float16

from lessons.toolkit import ptx
from lessons.toolkit.ptx import BITS, FLOAT, WORD

# --- products ---


def _mma(text, a_words, b_words, sums_of=FLOAT):
    def generate(context, builder, signature, args):
        fragments = [
            ptx.pointer(context, builder, signature.args[n], args[n], args[n + 1], to)
            for n, to in ((0, sums_of), (2, WORD), (4, WORD))
        ]
        sums = ptx.words(builder, fragments[0], 4)
        left, right = ptx.words(builder, fragments[1], a_words), ptx.words(builder, fragments[2], b_words)
        operands = [builder.load(word) for word in (*left, *right, *sums)]
        result = "=f" if sums_of is FLOAT else "=r"
        constraints = ",".join([result] * 4 + ["r"] * (a_words + b_words) + ["0", "1", "2", "3"])
        found = ptx.assembly(builder, ir.LiteralStructType([sums_of] * 4), text, constraints, operands)
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
def mma_m16n8k32_s8(typing_context, acc, i, a_frag, j, b_frag, k):
    """The warp's acc[i:i+4] += A (16 x 32, a_frag[j:j+16]) @ B (32 x 8, b_frag[k:k+8]); int8, sums int32, exact.

    a_frag: A[group, 4 member] and the three to its right; the same 8 rows below; both again 16 columns to the right.
    b_frag: B[4 member, group] and the three below it; both again 16 rows below. acc: as in mma_m16n8k16.
    """
    text = (
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
        "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$0, $1, $2, $3};"
    )
    return types.void(acc, i, a_frag, j, b_frag, k), _mma(text, 4, 2, WORD)


# --- roundings ---


@intrinsic
def to_tf32(typing_context, value):
    """The float32 nearest to `value` that has 10 bits of fraction, as TF32 has."""

    def generate(context, builder, signature, args):
        word = ptx.assembly(builder, WORD, "cvt.rna.tf32.f32 $0, $1;", "=r,f", args)
        return builder.bitcast(word, FLOAT)

    return types.float32(types.float32), generate


@intrinsic
def to_half(typing_context, value):
    """The float16 nearest to a float32; Numba's own conversion goes by way of float64."""

    def generate(context, builder, signature, args):
        return ptx.assembly(builder, BITS, "cvt.rn.f16.f32 $0, $1;", "=h,f", args)

    return float16(types.float32), generate


@intrinsic
def to_int8(typing_context, value):
    """The integer nearest to a float32, ties to even; beyond -128 and 127 these. Of NaN, 0."""

    def generate(context, builder, signature, args):
        word = ptx.assembly(builder, WORD, "cvt.rni.sat.s8.f32 $0, $1;", "=r,f", args)
        return builder.trunc(word, ir.IntType(8))

    return types.int8(types.float32), generate


@intrinsic
def positive(typing_context, value):
    """The value, or 0 if it is negative; NaN stays NaN, as in PyTorch, which max() would lose."""

    def generate(context, builder, signature, args):
        zero = ir.Constant(FLOAT, 0.0)
        if ConfigStack().top().compute_capability < (8, 0):
            return builder.select(builder.fcmp_ordered("<", args[0], zero), zero, args[0])
        kind = ir.FunctionType(FLOAT, [FLOAT])  # without side effects, it may be moved
        return builder.call(ir.InlineAsm(kind, "max.NaN.f32 $0, $1, 0f00000000;", "=f,f"), args)

    return types.float32(types.float32), generate


# --- matrices of 8 x 8 in shared memory ---


def _load_matrices(modifier, address_of):
    """Code for ldmatrix; `address_of(context, builder, signature, args)` gives where the lane's row begins."""
    text = f"ldmatrix.sync.aligned.m8n8.x4{modifier}.shared.b16 {{$0, $1, $2, $3}}, [$4];"

    def generate(context, builder, signature, args):
        address = address_of(context, builder, signature, args)
        result = ir.LiteralStructType([WORD] * 4)
        found = ptx.assembly(builder, result, text, "=r,=r,=r,=r,r,~{memory}", [address])
        first = ptx.pointer(context, builder, signature.args[0], args[0], args[1], WORD)
        for n, word in enumerate(ptx.words(builder, first, 4)):
            builder.store(builder.extract_value(found, n), word)
        return context.get_dummy_value()

    return generate


def _of_offset(context, builder, signature, args):
    return ptx.shared_address(context, builder, signature.args[2], args[2], args[3], signature.args[3])


def _given(context, builder, signature, args):
    return args[3]


@intrinsic
def ldmatrix4(typing_context, frag, i, tile, offset):
    """Four 8 x 8 matrices of shared memory: each lane says where a row begins, and gets two elements of each.

    Lanes 0-7 give the rows of the first matrix, 8-15 of the second, and so on; rows are 16 bytes, on a 16-byte
    boundary. frag[i:i+2] = the first matrix's [group, 2 member] and its right neighbour, frag[i+2:i+4] the
    second's, to frag[i+8]. Rows of 4 float32 go to frag[i:i+4]: [group, member] of each. Rows of 16 int8 go to
    frag[i:i+16]: of each [group, 4 member] and the three to its right.
    """
    return types.void(frag, i, tile, offset), _load_matrices("", _of_offset)


@intrinsic
def ldmatrix4_transposed(typing_context, frag, i, tile, offset):
    """ldmatrix4 of float16 that gives [2 member, group] and the element below it."""
    return types.void(frag, i, tile, offset), _load_matrices(".trans", _of_offset)


@intrinsic
def shared_address(typing_context, tile, offset):
    """Where tile[offset] lies in shared memory, in bytes."""

    def generate(context, builder, signature, args):
        return ptx.shared_address(context, builder, signature.args[0], *args, signature.args[1])

    return types.uint32(tile, offset), generate


@intrinsic
def ldmatrix4_at(typing_context, frag, i, tile, address):
    """ldmatrix4 of rows of the tile that begin at a shared_address: nothing is left to work out for a load."""
    return types.void(frag, i, tile, types.uint32), _load_matrices("", _given)


@intrinsic
def ldmatrix4_transposed_at(typing_context, frag, i, tile, address):
    """ldmatrix4_transposed of rows of the tile that begin at a shared_address."""
    return types.void(frag, i, tile, types.uint32), _load_matrices(".trans", _given)


def _store_matrices(modifier):
    def generate(context, builder, signature, args):
        address = ptx.shared_address(context, builder, signature.args[0], args[0], args[1], signature.args[1])
        first = ptx.pointer(context, builder, signature.args[2], args[2], args[3], WORD)
        held = [builder.load(word, align=2) for word in ptx.words(builder, first, 4)]
        text = f"stmatrix.sync.aligned.m8n8.x4{modifier}.shared.b16 [$0], {{$1, $2, $3, $4}};"
        ptx.assembly(builder, ir.VoidType(), text, "r,r,r,r,r,~{memory}", [address, *held])
        return context.get_dummy_value()

    return generate


@intrinsic
def stmatrix4(typing_context, tile, offset, frag, i):
    """ldmatrix4 the other way: four 8 x 8 matrices of float16 to shared memory, each lane saying where a row begins.

    What ldmatrix4 puts into frag[i:i+8], this takes from there. Compute capability 9.0 or newer.
    """
    return types.void(tile, offset, frag, i), _store_matrices("")


@intrinsic
def stmatrix4_transposed(typing_context, tile, offset, frag, i):
    """stmatrix4 of matrices that are transposed on their way: each lane says where a *column* of them goes, as a row.

    So sums whose fragments are of C transposed come to lie as rows of C.
    """
    return types.void(tile, offset, frag, i), _store_matrices(".trans")
