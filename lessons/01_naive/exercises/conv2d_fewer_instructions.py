"""Exercise 01.7, tune: at most 30 instructions for each multiply-add, where conv2d_naive takes 38.

For every signed index Numba asks "is it negative?". Make the indices unsigned, as gemm_naive_unsigned does; mind
what Numba makes of a comparison of a signed with an unsigned integer. The result must stay right.
With a GPU: at least 1.7 percent of the floor's rate on photo.
Grade: python -m common grade 01.7
"""

from numba import cuda, float32

THREADS_X = 16
THREADS_Y = 16


@cuda.jit
def conv2d_fewer_instructions(x, filt, y):
    N, K, P, Q = y.shape
    _, C, R, S = filt.shape

    # locate
    tiles_q = (Q + THREADS_X - 1) // THREADS_X
    p = cuda.blockIdx.x // tiles_q * THREADS_Y + cuda.threadIdx.y
    q = cuda.blockIdx.x % tiles_q * THREADS_X + cuda.threadIdx.x
    k, n = cuda.blockIdx.y, cuda.blockIdx.z
    if p < P and q < Q:
        # multiply
        acc = float32(0.0)
        for c in range(C):
            for r in range(R):
                for s in range(S):
                    acc += x[n, c, p + r, q + s] * filt[k, c, r, s]

        # store
        y[n, k, p, q] = acc


def launch(x, filt, y):
    N, K, P, Q = y.shape
    tiles = -(-P // THREADS_Y) * -(-Q // THREADS_X)
    conv2d_fewer_instructions[(tiles, K, N), (THREADS_X, THREADS_Y)](x, filt, y)
