"""The tensor core's product by a matrix of which two of every four values are kept: the left operand, along k."""

from llvmlite import ir
from numba import types
from numba.cuda.extending import intrinsic

from lessons.toolkit import ptx
from lessons.toolkit.ptx import FLOAT, WORD


@intrinsic
def mma_sp_m16n8k32(typing_context, acc, i, a_frag, j, b_frag, k, places, p, half):
    """The warp's acc[i:i+4] += A (16 x 32, of which two of every four along k are kept) @ B (32 x 8, b_frag[k:k+8]);
    float16, sums float32. All 32 lanes come to it together; compute capability 8.0 or newer.

    With lane = 4 group + member: a_frag[j:j+8] are the values of A that are kept, 16 x 16, as mma_m16n8k16 takes
    them. b_frag: B[2 member, group] and the element below it; the same 8, 16 and 24 rows below. acc: as in
    mma_m16n8k16. places[p], uint32, says where kept values belong: of the lanes of a group two are asked, member
    2 `half`, a constant, for A's columns 0-15, and the next for 16-31. Bits 0-15 are of row `group`, the others of
    the row 8 below; four bits for each four columns, from the left: the column of the first value that is kept, then
    that of the second, which must be greater.
    """
    which = ptx.literal(half)
    if which is None:
        return None
    text = (
        "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 "
        f"{{$0, $1, $2, $3}}, {{$4, $5, $6, $7}}, {{$8, $9, $10, $11}}, {{$0, $1, $2, $3}}, $12, {which};"
    )
    constraints = ",".join(["=f"] * 4 + ["r"] * 9 + ["0", "1", "2", "3"])

    def generate(context, builder, signature, args):
        sums, left, right, word = (
            ptx.words(builder, ptx.pointer(context, builder, signature.args[n], args[n], args[n + 1], to), count)
            for n, to, count in ((0, FLOAT, 4), (2, WORD, 4), (4, WORD, 4), (6, WORD, 1))
        )
        operands = [builder.load(one) for one in (*left, *right, *word, *sums)]
        found = ptx.assembly(builder, ir.LiteralStructType([FLOAT] * 4), text, constraints, operands)
        for n, one in enumerate(sums):
            builder.store(builder.extract_value(found, n), one)
        return context.get_dummy_value()

    return types.void(acc, i, a_frag, j, b_frag, k, places, p, half), generate
