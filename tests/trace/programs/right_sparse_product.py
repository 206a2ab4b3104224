"""right: csr spmv and warp per row, atomics float, 64-bit"""

import numpy as np
from numba import cuda


@cuda.jit
def spmv(ptr, idx, val, x, y):
    row = (cuda.grid(1)) // 32
    lane = cuda.threadIdx.x % 32
    if row < y.size:
        acc = 0.0
        for k in range(ptr[row] + lane, ptr[row + 1], 32):
            acc += val[k] * x[idx[k]]
        for o in (16, 8, 4, 2, 1):
            acc += cuda.shfl_down_sync(0xFFFFFFFF, acc, o)
        if lane == 0:
            y[row] = acc


rng = np.random.default_rng(0)
m = (rng.random((20, 70)) < 0.5) * rng.integers(1, 5, (20, 70))
ptr = np.concatenate([[0], np.cumsum((m != 0).sum(1))]).astype(np.int32)
idx = np.nonzero(m)[1].astype(np.int32)
val = m[m != 0].astype(np.float64)
x = rng.integers(0, 5, 70).astype(np.float64)
y = np.zeros(20)
spmv[5, 128](ptr, idx, val, x, y)
assert (y == m @ x).all()
