"""race: missing second barrier in tile loop"""

import numpy as np
from numba import cuda, float32

T = 16


@cuda.jit
def mm(A, B, C):
    sA = cuda.shared.array((T, T), float32)
    sB = cuda.shared.array((T, T), float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    acc = float32(0)
    for t in range(A.shape[1] // T):
        sA[ty, tx] = A[y, t * T + tx]  # fault
        sB[ty, tx] = B[t * T + ty, x]
        cuda.syncthreads()
        for k in range(T):
            acc += sA[ty, k] * sB[k, tx]
    C[y, x] = acc


A = np.ones((32, 32), np.float32)
mm[(2, 2), (T, T)](A, A, np.zeros_like(A))
