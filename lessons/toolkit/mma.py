"""Tensor cores of a warp: instructions that all its 32 lanes carry out together, and roundings to what these take.

Products are of fragments: a lane holds a few elements of A, B and the sum, which depend on its group, ``lane // 4``,
and on which member of it the lane is, ``lane % 4``. Arrays are addressed by one flat row-major offset. Compute
capability 8.0 or newer; ``stmatrix4``, transposed or not: 9.0 or newer.
"""

from llvmlite import ir
from numba import types
from numba.core.targetconfig import ConfigStack
from numba.cuda.extending import intrinsic
from numba.types import float16

from lessons.toolkit import ptx
from lessons.toolkit.ptx import BITS, FLOAT, WORD

# --- products ---


def _mma(form, b_words=2, sums_of=FLOAT):
    """The product `form`, of four words of A; sums of floats, or of integers, WORD."""
    b = ", ".join(f"${8 + n}" for n in range(b_words))
    text = f"mma.{form} {{$0, $1, $2, $3}}, {{$4, $5, $6, $7}}, {{{b}}}, {{$0, $1, $2, $3}}"
    result = "=f" if sums_of is FLOAT else "=r"

    def code(text, more=()):
        """`more`: an argument from which one more word comes."""
        constraints = [result] * 4 + ["r"] * (4 + b_words + len(more)) + ["0", "1", "2", "3"]

        def generate(context, builder, signature, args):
            parts = (0, 4, sums_of), (2, 4, WORD), (4, b_words, WORD), *((n, 1, WORD) for n in more)
            sums, *read = (ptx.held(context, builder, signature, args, *part) for part in parts)
            operands = [builder.load(word) for word in (*(word for words in read for word in words), *sums)]
            ptx.put(builder, sums, sums_of, text, constraints, operands)
            return context.get_dummy_value()

        return generate

    def dense(typing_context, acc, i, a_frag, j, b_frag, k):
        return types.void(acc, i, a_frag, j, b_frag, k), code(f"{text};")

    def sparse(typing_context, acc, i, a_frag, j, b_frag, k, places, p, half):
        which = ptx.literal(half)
        if which is None:
            return None
        return types.void(acc, i, a_frag, j, b_frag, k, places, p, half), code(f"{text}, $12, {which};", [6])

    return sparse if form.startswith("sp::") else dense


@ptx.function(_mma("sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"))
def mma_m16n8k16(acc, i, a_frag, j, b_frag, k):
    """The warp's acc[i:i+4] += A (16 x 16, a_frag[j:j+8]) @ B (16 x 8, b_frag[k:k+4]); float16, sums float32.

    a_frag: A[group, 2 member], its right neighbour; the same 8 rows below; both again 8 columns to the right.
    b_frag: B[2 member, group], the element below it; both again 8 rows below. acc: C[group, 2 member], its right
    neighbour; the same 8 rows below.
    """


@ptx.function(_mma("sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"))
def mma_m16n8k16_bf16(acc, i, a_frag, j, b_frag, k):
    """mma_m16n8k16 on codes of bfloat16; the sums float32. Fragments are of uint16, or of int8, two to a code."""


@ptx.function(_mma("sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"))
def mma_m16n8k8(acc, i, a_frag, j, b_frag, k):
    """The warp's acc[i:i+4] += A (16 x 8, a_frag[j:j+4]) @ B (8 x 8, b_frag[k:k+2]); float32, read as TF32.

    a_frag: A[group, member], 8 rows below; both again 4 columns to the right. b_frag: B[member, group], and 4
    rows below. acc: as in mma_m16n8k16. The last 13 bits of a_frag and b_frag are cut off: see to_tf32.
    """


@ptx.function(_mma("sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", sums_of=WORD))
def mma_m16n8k32_s8(acc, i, a_frag, j, b_frag, k):
    """The warp's acc[i:i+4] += A (16 x 32, a_frag[j:j+16]) @ B (32 x 8, b_frag[k:k+8]); int8, sums int32, exact.

    a_frag: A[group, 4 member] and the three to its right; the same 8 rows below; both again 16 columns to the right.
    b_frag: B[4 member, group] and the three below it; both again 16 rows below. acc: as in mma_m16n8k16.
    """


@ptx.function(_mma("sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32", b_words=4))
def mma_sp_m16n8k32(acc, i, a_frag, j, b_frag, k, places, p, half):
    """acc[i:i+4] += A (16 x 32, of which two of every four along k are kept) @ B (32 x 8); float16, sums float32.

    a_frag[j:j+8] are the values of A that are kept, 16 x 16, as mma_m16n8k16 takes them. b_frag: B[2 member, group]
    and the element below it; the same 8, 16 and 24 rows below. acc: as in mma_m16n8k16. places[p], uint32, says where
    kept values belong: of the lanes of a group two are asked, member 2 `half`, a constant, for A's columns 0-15, and
    the next for 16-31. Bits 0-15 are of row `group`, the others of the row 8 below; four bits for each four columns,
    from the left: the column of the first value that is kept, then that of the second, which must be greater.
    """


# --- roundings ---


def _converted(name, text, result, register, kind, become, says):
    """A float32 as `result`: the instruction leaves it in a register of LLVM type `kind`; `become` says how."""

    def typed(typing_context, value):
        def generate(context, builder, signature, args):
            return become(builder, ptx.assembly(builder, kind, f"{text} $0, $1;", f"={register},f", args))

        return result(types.float32), generate

    return ptx.named(name, says, typed)


to_tf32 = _converted(
    "to_tf32", "cvt.rna.tf32.f32", types.float32, "r", WORD, lambda builder, word: builder.bitcast(word, FLOAT),
    "The float32 nearest to `value` that has 10 bits of fraction, as TF32 has.",
)  # fmt: skip
to_half = _converted(
    "to_half", "cvt.rn.f16.f32", float16, "h", BITS, lambda builder, half: half,
    "The float16 nearest to a float32; Numba's own conversion goes by way of float64.",
)  # fmt: skip
to_int8 = _converted(
    "to_int8", "cvt.rni.sat.s8.f32", types.int8, "r", WORD, lambda builder, word: builder.trunc(word, ir.IntType(8)),
    "The integer nearest to a float32, ties to even; beyond -128 and 127 these. Of NaN, 0.",
)  # fmt: skip


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


@intrinsic
def shared_address(typing_context, tile, offset):
    """Where tile[offset] lies in shared memory, in bytes."""

    def generate(context, builder, signature, args):
        return ptx.shared_address(context, builder, signature.args[0], *args, signature.args[1])

    return types.uint32(tile, offset), generate


def _load_matrices(modifier, at=False):
    """ldmatrix of rows that begin at an offset in a tile or, `at`, at a shared_address."""
    text = f"ldmatrix.sync.aligned.m8n8.x4{modifier}.shared.b16 {{$0, $1, $2, $3}}, [$4];"

    def typed(typing_context, frag, i, tile, offset):
        def generate(context, builder, signature, args):
            start = args[3]
            if not at:
                start = ptx.shared_address(context, builder, tile, args[2], start, signature.args[3])
            to = ptx.held(context, builder, signature, args, 0, 4, WORD)
            ptx.put(builder, to, WORD, text, [*["=r"] * 4, "r", "~{memory}"], [start])
            return context.get_dummy_value()

        return types.void(frag, i, tile, types.uint32 if at else offset), generate

    return typed


@ptx.function(_load_matrices(""))
def ldmatrix4(frag, i, tile, offset):
    """Four 8 x 8 matrices of shared memory: each lane says where a row begins, and gets two elements of each.

    Lanes 0-7 give the rows of the first matrix, 8-15 of the second, and so on; rows are 16 bytes, on a 16-byte
    boundary. frag[i:i+2] = the first matrix's [group, 2 member] and its right neighbour, frag[i+2:i+4] the
    second's, to frag[i+8]. Rows of 4 float32 go to frag[i:i+4]: [group, member] of each. Rows of 16 int8 go to
    frag[i:i+16]: of each [group, 4 member] and the three to its right.
    """


@ptx.function(_load_matrices(".trans"))
def ldmatrix4_transposed(frag, i, tile, offset):
    """ldmatrix4 of float16 that gives [2 member, group] and the element below it."""


@ptx.function(_load_matrices("", at=True))
def ldmatrix4_at(frag, i, tile, address):
    """ldmatrix4 of rows of the tile that begin at a shared_address: nothing is left to work out for a load."""


@ptx.function(_load_matrices(".trans", at=True))
def ldmatrix4_transposed_at(frag, i, tile, address):
    """ldmatrix4_transposed of rows of the tile that begin at a shared_address."""


def _store_matrices(modifier):
    text = f"stmatrix.sync.aligned.m8n8.x4{modifier}.shared.b16 [$0], {{$1, $2, $3, $4}};"

    def typed(typing_context, tile, offset, frag, i):
        def generate(context, builder, signature, args):
            address = ptx.shared_address(context, builder, tile, args[0], args[1], signature.args[1])
            words = ptx.held(context, builder, signature, args, 2, 4, WORD)
            operands = [address, *(builder.load(word, align=2) for word in words)]
            ptx.assembly(builder, ir.VoidType(), text, "r,r,r,r,r,~{memory}", operands)
            return context.get_dummy_value()

        return types.void(tile, offset, frag, i), generate

    return typed


@ptx.function(_store_matrices(""))
def stmatrix4(tile, offset, frag, i):
    """ldmatrix4 the other way: four 8 x 8 matrices of float16, from frag[i:i+8] to shared memory."""


@ptx.function(_store_matrices(".trans"))
def stmatrix4_transposed(tile, offset, frag, i):
    """stmatrix4 of matrices that are transposed on their way: each lane says where a *column* goes, as a row."""
