"""right: bitonic sort, odd-even"""

import numpy as np
from numba import cuda, int32


@cuda.jit
def bitonic(a, j, k):
    i = cuda.grid(1)
    ixj = i ^ j
    if ixj > i and ixj < a.size:
        if (i & k) == 0:
            if a[i] > a[ixj]:
                a[i], a[ixj] = a[ixj], a[i]
        else:
            if a[i] < a[ixj]:
                t = a[i]
                a[i] = a[ixj]
                a[ixj] = t


@cuda.jit
def odd_even(a):
    s = cuda.shared.array(64, int32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    cuda.syncthreads()
    for phase in range(64):
        j = 2 * t + (phase & 1)
        if t < 32 and j + 1 < 64 and s[j] > s[j + 1]:
            s[j], s[j + 1] = s[j + 1], s[j]
        cuda.syncthreads()
    a[t] = s[t]


rng = np.random.default_rng(0)
a = rng.integers(0, 1000, 256).astype(np.int32)
want = np.sort(a)
d = cuda.to_device(a)
k = 2
while k <= 256:
    j = k // 2
    while j > 0:
        bitonic[4, 64](d, j, k)
        j //= 2
    k *= 2
assert (d.copy_to_host() == want).all()
b = rng.integers(0, 1000, 64).astype(np.int32)
w = np.sort(b)
odd_even[1, 64](b)
assert (b == w).all(), b
