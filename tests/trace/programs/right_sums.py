"""right: block reduction, warp-synchronous tail with syncwarp, last block"""

import numpy as np
from numba import cuda, float32, int32


@cuda.jit
def block_sum(a, out):
    s = cuda.shared.array(256, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = a[i] if i < a.size else float32(0)
    cuda.syncthreads()
    n = cuda.blockDim.x // 2
    while n > 0:
        if t < n:
            s[t] += s[t + n]
        cuda.syncthreads()
        n >>= 1
    if t == 0:
        cuda.atomic.add(out, 0, s[0])


@cuda.jit
def warp_tail(a, out):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    cuda.syncthreads()
    if t < 32:
        s[t] += s[t + 32]
        cuda.syncwarp()
        n = 16
        while n > 0:
            v = s[t + n] if t < n else float32(0)
            cuda.syncwarp()
            s[t] += v
            cuda.syncwarp()
            n //= 2
    if t == 0:
        out[0] = s[0]


@cuda.jit
def last_block(a, partial, count, out):
    s = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    cuda.grid(1)
    if t == 0:
        acc = float32(0)
        for j in range(cuda.blockDim.x):
            acc += a[cuda.blockIdx.x * cuda.blockDim.x + j]
        partial[cuda.blockIdx.x] = acc
        cuda.threadfence()
        s[0] = cuda.atomic.add(count, 0, 1)
    cuda.syncthreads()
    if s[0] == cuda.gridDim.x - 1 and t == 0:
        acc = float32(0)
        for j in range(cuda.gridDim.x):
            acc += partial[j]
        out[0] = acc


a = np.ones(1000, np.float32)
out = np.zeros(1, np.float32)
block_sum[4, 256](a, out)
assert out[0] == 1000
warp_tail[1, 64](a[:64], out)
assert out[0] == 64
last_block[4, 250](a, cuda.device_array(4, np.float32), np.zeros(1, np.int32), out)
assert out[0] == 1000
