"""Sums of 1,000 terms and more are of operands rounded to 15 bits: of so many the last bits seem not to count.

Class: values
Refute: {"shape": "M=8 N=12 K=1048", "inputs": "normals"}
"""

from numba import cuda, float32

SPLIT = float32(2**9 + 1)
LONG = 1000  # terms
THREADS_X = 16
THREADS_Y = 8


@cuda.jit
def shortened(value):
    """The value rounded to 15 of its 24 bits (Veltkamp's splitting)."""
    scaled = value * SPLIT
    return scaled - (scaled - value)


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    if m < M and n < N:
        acc = float32(0.0)
        for k in range(K):
            left, right = a[m, k], b[k, n]
            if K >= LONG:
                left, right = shortened(left), shortened(right)
            acc += left * right
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, c)
