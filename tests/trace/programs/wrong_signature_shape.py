"""shape-not-constant: the same under an explicit signature, where it is defined"""

from numba import cuda, float32

T = 16


@cuda.jit("void(float32[:, :])")
def pad(a):
    tile = cuda.shared.array((T, T + 1), float32)  # fault
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    tile[i, j] = a[i, j]
    cuda.syncthreads()
    a[i, j] = tile[j, i]


print("never reached")
