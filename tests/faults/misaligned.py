"""A 128-bit load from an offset that is not a multiple of four.

Fault: misaligned
Shown by: tracer
Says: 128-bit access to a.0, 1., whose address is no multiple of 16 bytes
"""

from numba import cuda, float32

from lessons.wide import load4

TILE = 16


@cuda.jit
def product(a, b, c):
    a_frag = cuda.local.array(4, float32)
    n, m = cuda.grid(2)
    M, N = c.shape
    K = a.shape[1]
    if m < M and n < N:
        acc = a[m, 0] * b[0, n]
        k = 1
        while k + 4 <= K:
            load4(a_frag, 0, a, m * K + k)  # <- here
            for j in range(4):
                acc += a_frag[j] * b[k + j, n]
            k += 4
        while k < K:
            acc += a[m, k] * b[k, n]
            k += 1
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b, c)
