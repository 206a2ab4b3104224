"""A 128-bit load from an offset that is not a multiple of four.

Fault: misaligned
Shown by: simulator
Says: misaligned 128-bit access: offset 1 is not a multiple of 4
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
        acc = float32(0.0)
        for k in range(K - K % 4):
            load4(a_frag, 0, a, m * K + k)  # <- here
            acc += a_frag[0] * b[k, n]
        for k in range(K - K % 4, K):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b, c)
