"""A barrier of the whole grid, whose blocks grow with the matrix: all must be resident at once, and are not.

Class: gpu
Refute: {"shape": "M=65 N=4 K=5", "compiles": true, "ordinary": null}
"""

from numba import cuda, float32

TILE = 16


@cuda.jit
def product(a, b, c, b_turned):
    grid = cuda.cg.this_grid()
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    for k in range(m, K, cuda.gridDim.y * TILE):
        if n < N:
            b_turned[n, k] = b[k, n]
    grid.sync()
    if m < M and n < N:
        acc = float32(0.0)
        for k in range(K):
            acc += a[m, k] * b_turned[n, k]
        c[m, n] = acc


def workspace(problem):
    return cuda.device_array((problem.N, problem.K), "float32")


def launch(a, b, c, b_turned):
    M, N = c.shape
    product[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b, c, b_turned)
