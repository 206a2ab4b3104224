"""Exercise 03.1, find the bug: right, with sums that are no registers.

A thread computes WPT elements of column n below each other, from row m0 on, straight from global memory. Every name
in capitals is a constant. The result is right, but the compiled kernel has a stack: acc went to local memory. What
does the compiler not know here? Change at most 3 lines.
Grade: python -m common grade 03.1
"""

from numba import cuda, float32

WPT = 12  # work per thread
THREADS_X, THREADS_Y = 32, 4


@cuda.jit
def gemm_lost_registers(a, b, c):
    acc = cuda.local.array(WPT, float32)
    M, N = c.shape
    K = a.shape[1]

    # locate
    n, m0 = cuda.grid(2)
    m0 *= WPT
    if n < N:
        # multiply
        for w in range(WPT):
            acc[w] = float32(0.0)
        for k in range(K):
            b_value = b[k, n]
            for m in range(m0, min(m0 + WPT, M)):
                acc[m - m0] += a[m, k] * b_value

        # store
        for w in range(WPT):
            if m0 + w < M:
                c[m0 + w, n] = acc[w]


def launch(a, b, c):
    M, N = c.shape
    gemm_lost_registers[(-(-N // THREADS_X), -(-M // (THREADS_Y * WPT))), (THREADS_X, THREADS_Y)](a, b, c)
