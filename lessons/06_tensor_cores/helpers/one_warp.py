"""One warp that multiplies straight from global memory, for exercises: a tile of ROWS x COLUMNS instructions."""

from numba import cuda

from lessons.toolkit.pasted import pasted
from lessons.toolkit.unroll import unroll, unrolled


def specialise(mma, value, total, stored, ROWS=1, COLUMNS=1, load=None):
    """`launch` of the kernel of an instruction that multiplies values of this type to 16 x 8 sums of type `total`.

    `load`: what fills a lane's fragments, from row m0 of A, column n0 of B and k0 on, in place of what is below.
    """
    EACH = 32 // value.bitwidth  # values in a register
    DEPTH, A_PART, B_PART = 8 * EACH, 4 * EACH, 2 * EACH  # k of an instruction, a lane's values of A and B for it
    A_FRAG, B_FRAG, ACC = ROWS * A_PART, COLUMNS * B_PART, ROWS * COLUMNS * 4

    @pasted
    @unroll
    def load_fragments(a_frag, b_frag, a, b, m0, n0, k0, group, member):
        M, K, N = a.shape[0], a.shape[1], b.shape[1]
        for i in unrolled(A_FRAG):
            m, k = m0 + group + i // A_PART * 16 + i // EACH % 2 * 8, k0 + EACH * member + i % EACH
            k += i // (2 * EACH) % 2 * (4 * EACH)
            a_frag[i] = a[m, k] if m < M and k < K else value(0)
        for i in unrolled(B_FRAG):
            k, n = k0 + EACH * member + i % EACH + i // EACH % 2 * (4 * EACH), n0 + group + i // B_PART * 8
            b_frag[i] = b[k, n] if k < K and n < N else value(0)

    stage = load or load_fragments

    @cuda.jit
    @unroll
    def one_warp(a, b, c):
        a_frag, b_frag = cuda.local.array(A_FRAG, value), cuda.local.array(B_FRAG, value)
        acc = cuda.local.array(ACC, total)
        M, N = c.shape
        K = a.shape[1]

        # locate
        group, member = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4
        m0, n0 = cuda.blockIdx.x * 16 * ROWS, cuda.blockIdx.y * 8 * COLUMNS
        for i in unrolled(ACC):
            acc[i] = total(0)
        for k0 in range(0, K, DEPTH):
            stage(a_frag, b_frag, a, b, m0, n0, k0, group, member)
            for i in unrolled(ROWS):
                for j in unrolled(COLUMNS):
                    mma(acc, (i * COLUMNS + j) * 4, a_frag, i * A_PART, b_frag, j * B_PART)

        # store
        for i in unrolled(ACC):
            m = m0 + group + i // (4 * COLUMNS) * 16 + i // 2 % 2 * 8
            n = n0 + 2 * member + i % 2 + i // 4 % COLUMNS * 8
            if m < M and n < N:
                c[m, n] = stored(acc[i])

    def launch(a, b, c):
        M, N = c.shape
        one_warp[(-(-M // (16 * ROWS)), -(-N // (8 * COLUMNS))), 32](a, b, c)

    return launch
