"""Blocks walk down groups of sixteen rows of 128, and the last group counts as many though it has fewer.

Class: shapes
Refute: {"shape": "M=2200 N=130 K=2"}
"""

from numba import cuda, float32

BLOCK = 128
GROUP_M = 16


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    blocks_m, blocks_n = (M + BLOCK - 1) // BLOCK, (N + BLOCK - 1) // BLOCK
    group, turn = cuda.blockIdx.x // (GROUP_M * blocks_n), cuda.blockIdx.x % (GROUP_M * blocks_n)
    rows = min(blocks_m, GROUP_M)
    m0, n = (group * GROUP_M + turn % rows) * BLOCK, turn // rows * BLOCK + cuda.threadIdx.x
    for m in range(m0, min(m0 + BLOCK, M)):
        if n < N:
            acc = float32(0.0)
            for k in range(a.shape[1]):
                acc += a[m, k] * b[k, n]
            c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[-(-M // BLOCK) * -(-N // BLOCK), BLOCK](a, b, c)
