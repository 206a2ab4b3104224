"""Parts of a sum are added up by a scan in place: a thread writes what its neighbour still has to read.

Class: sound
Refute: {"shape": "M=6 N=4 K=5", "unsound": "race", "ordinary": null}
"""

from numba import cuda, float32

THREADS = 128
MAX_GRID_Y = 65535


@cuda.jit
def product(a, b, c):
    part = cuda.shared.array(THREADS, float32)
    M, N = c.shape
    K = a.shape[1]
    t, n = cuda.threadIdx.x, cuda.blockIdx.x
    for m in range(cuda.blockIdx.y, M, cuda.gridDim.y):
        acc = float32(0.0)
        for k in range(t, K, THREADS):
            acc += a[m, k] * b[k, n]
        part[t] = acc
        cuda.syncthreads()
        step = 1
        while step < THREADS:
            if t >= step:
                part[t] += part[t - step]
            cuda.syncthreads()
            step *= 2
        if t == THREADS - 1:
            c[m, n] = part[t]
        cuda.syncthreads()


def launch(a, b, c):
    M, N = c.shape
    product[(N, min(M, MAX_GRID_Y)), THREADS](a, b, c)
