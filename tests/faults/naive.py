"""A right kernel that the faults of faults.toml change: one thread for each element of c."""

from numba import cuda, float32

T = 16


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    n, m = cuda.grid(2)
    if m < M and n < N:
        acc = float32(0.0)
        for k in range(a.shape[1]):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // T), -(-M // T)), (T, T)](a, b, c)
