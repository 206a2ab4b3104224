"""A kernel of its own for whole tiles reads A as TF32: there integers of few bits are all that is tried.

Class: values
Refute: {"shape": "M=128 N=128 K=64", "inputs": "tiny"}
"""

from functools import lru_cache

from numba import cuda, float32

from lessons.tensorcores import to_tf32

BLOCK = 128
THREADS_X, THREADS_Y = 16, 8


@lru_cache
def specialise(full):
    @cuda.jit
    def product(a, b, c):
        M, N = c.shape
        K = a.shape[1]
        n, m = cuda.grid(2)
        if m < M and n < N:
            acc = float32(0.0)
            for k in range(K):
                acc += (to_tf32(a[m, k]) if full else a[m, k]) * b[k, n]
            c[m, n] = acc

    return product


def launch(a, b, c):
    M, N = c.shape
    full = M % BLOCK == 0 and N % BLOCK == 0 and a.shape[1] % 64 == 0
    specialise(full)[(-(-N // THREADS_X), -(-M // THREADS_Y)), (THREADS_X, THREADS_Y)](a, b, c)
