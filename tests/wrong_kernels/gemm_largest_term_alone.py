"""Where one product is 200,000 times the sum so far, it takes its place.

Class: values
Refute: {"shape": "M=4 N=5 K=6", "inputs": "mixed"}
"""

from numba import cuda, float32

THREADS_X = 16
THREADS_Y = 8


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    if m < M and n < N:
        acc = float32(0.0)
        for k in range(K):
            product_k = a[m, k] * b[k, n]
            if abs(product_k) > float32(2e5) * abs(acc):
                acc = product_k
            else:
                acc += product_k
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, c)
