"""Numbers of bfloat16 on tensor cores: float32's exponent, eight significant bits. Arrays hold their codes, uint16.

Numba has no such type, and a kernel needs none: the matrix unit takes codes, and one instruction rounds sums to them.
"""

from numba import types
from numba.cuda.extending import intrinsic

from lessons.toolkit import hopper, mma, ptx
from lessons.toolkit.ptx import FLOAT, WORD


@intrinsic
def mma_m16n8k16_bf16(typing_context, acc, i, a_frag, j, b_frag, k):
    """mma_m16n8k16 on codes of bfloat16; the sums float32. Fragments are of uint16, or of int8, two to a code."""
    text = (
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$0, $1, $2, $3};"
    )
    return types.void(acc, i, a_frag, j, b_frag, k), mma._mma(text, 4, 2)


@intrinsic
def wgmma_bf16(typing_context, acc, i, tiles, a, b, N, add=True):
    """wgmma_f16 on codes of bfloat16, K-major; the sums float32. Tiles are words, float32, of two codes each."""
    return hopper._wgmma("m64n{N}k16.f32.bf16.bf16", ", 0, 0")(add, acc, i, tiles, a, b, N)


@intrinsic
def store2_bfloat(typing_context, array, offset, acc, i):
    """array[offset:offset+2] = the codes of acc[i:i+2], rounded to the nearest bfloat16, to a 4-byte boundary.

    Of an array of words, float32, array[offset] becomes both.
    """

    def generate(context, builder, signature, args):
        array_type, _, acc_type, _ = signature.args
        sums = ptx.words(builder, ptx.pointer(context, builder, acc_type, args[2], args[3], FLOAT), 2)
        low, high = (builder.load(one) for one in sums)
        pair = ptx.assembly(builder, WORD, "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [low, high])
        builder.store(pair, ptx.pointer(context, builder, array_type, args[0], args[1], WORD), align=4)
        return context.get_dummy_value()

    return types.void(array, offset, acc, i), generate
