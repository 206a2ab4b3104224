r"""Two arrays of dynamic shared memory begin at the same byte.

Fault: dynamic-overlap
Shown by: tracer
Says: a_tile and b_tile are the same memory and overlap: each cuda\.shared\.array\(0, \.\.\.\) starts at byte 0
"""

from numba import cuda, float32

T = 16


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    a_tile = cuda.shared.array(0, float32)
    b_tile = cuda.shared.array(0, float32)  # <- here
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    acc = float32(0.0)
    for k0 in range(0, K, T):
        a_tile[ty * T + tx] = a[m, k0 + tx] if m < M and k0 + tx < K else float32(0.0)
        b_tile[ty * T + tx] = b[k0 + ty, n] if k0 + ty < K and n < N else float32(0.0)
        cuda.syncthreads()
        for k in range(T):
            acc += a_tile[ty * T + k] * b_tile[k * T + tx]
        cuda.syncthreads()
    if m < M and n < N:
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // T), -(-M // T)), (T, T), 0, 2 * T * T * 4](a, b, c)
