"""right: kmeans steps w/ float atomics and 2D local"""

import numpy as np
from numba import cuda, float32, int32

K = 3
LS = (K, 2)


@cuda.jit
def assign(p, c, label, sums, counts):
    s = cuda.shared.array(LS, float32)
    n = cuda.shared.array(K, int32)
    t = cuda.threadIdx.x
    if t < K:
        s[t, 0] = 0
        s[t, 1] = 0
        n[t] = 0
    cuda.syncthreads()
    i = cuda.grid(1)
    if i < p.shape[0]:
        best = -1
        bd = float32(np.inf)
        for k in range(K):
            d = (p[i, 0] - c[k, 0]) ** 2 + (p[i, 1] - c[k, 1]) ** 2
            if d < bd:
                bd = d
                best = k
        label[i] = best
        cuda.atomic.add(s, (best, 0), p[i, 0])
        cuda.atomic.add(s, (best, 1), p[i, 1])
        cuda.atomic.add(n, best, 1)
    cuda.syncthreads()
    if t < K:
        cuda.atomic.add(sums, (t, 0), s[t, 0])
        cuda.atomic.add(sums, (t, 1), s[t, 1])
        cuda.atomic.add(counts, t, n[t])


rng = np.random.default_rng(0)
p = np.concatenate([rng.normal(m, 0.1, (40, 2)) for m in (0, 5, 10)]).astype(np.float32)
c = np.array([[1, 1], [4, 4], [9, 9]], np.float32)
label = np.zeros(120, np.int32)
for _ in range(3):
    sums, counts = np.zeros((K, 2), np.float32), np.zeros(K, np.int32)
    assign[4, 32](p, c, label, sums, counts)
    c = sums / counts[:, None]
assert (label == np.repeat([0, 1, 2], 40)).all()
