"""The workspace is made and not returned.

Fault: returns-nothing
Shown by: both
Says: workspace returns nothing, and what it returns takes the last place
"""

from numba import cuda, float32


@cuda.jit
def product(a, b, c):
    n, m = cuda.grid(2)
    if m < c.shape[0] and n < c.shape[1]:
        acc = float32(0.0)
        for k in range(a.shape[1]):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def workspace(problem):  # <- here
    cuda.device_array((problem.M, problem.N))


def launch(a, b, c, sums):
    M, N = c.shape
    product[(-(-N // 16), -(-M // 8)), (16, 8)](a, b, c)
