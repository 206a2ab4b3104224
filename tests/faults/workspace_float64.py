"""A workspace without a dtype holds float64.

Fault: float64
Shown by: compiler
Says: computes in float64
"""

from numba import cuda, float32


@cuda.jit
def product(a, b, sums):
    n, m = cuda.grid(2)
    if m < sums.shape[0] and n < sums.shape[1]:
        acc = float32(0.0)
        for k in range(a.shape[1]):
            acc += a[m, k] * b[k, n]
        sums[m, n] = acc


@cuda.jit
def copy(sums, c):
    n, m = cuda.grid(2)
    if m < c.shape[0] and n < c.shape[1]:
        c[m, n] = sums[m, n]


def workspace(problem):
    return cuda.device_array((problem.M, problem.N))  # <- here


def launch(a, b, c, sums):
    M, N = c.shape
    product[(-(-N // 16), -(-M // 8)), (16, 8)](a, b, sums)
    copy[(-(-N // 16), -(-M // 8)), (16, 8)](sums, c)
