"""right: language"""

import numpy as np
from numba import cuda, njit


@cuda.jit(device=True)
def divide(a, b):
    q = a // b
    return q, a - q * b


@cuda.jit(device=True)
def clamp(x, lo=0, hi=10):
    return max(lo, min(x, hi))


@njit
def cpu_and_gpu(x):
    return x * 3 + 1


@cuda.jit
def k(a, b, m, flags):
    i = cuda.grid(1)
    rows, cols = m.shape
    if i >= len(a):
        return
    q, r = divide(a[i], 3)
    t = 0
    while True:
        t += 1
        if t > q:
            break
        if t % 2:
            continue
    for j in range(5, 0, -2):
        t += j
    x = clamp(t) if r == 0 else -clamp(t, hi=5)
    row = m[i % rows]
    s = 0.0
    for v in row:
        s += v
    for j, v in enumerate(row):
        s += j * v
    b[i] = x + s + cpu_and_gpu(r) + abs(-2) + round(2.6) + pow(2, 3)
    m[i % rows][i % cols]
    flags[i] = (0 <= i < 10 and i != 5) or i > 30


a = np.arange(40, dtype=np.int64)
b = np.zeros(40)
m = np.ones((4, 3))
flags = np.zeros(40, np.bool_)
k[2, 32](a, b, m[:, :].copy(), flags)


def ref(i):
    q, r = divmod(i, 3)
    t = q + 1 + 5 + 3 + 1
    x = max(0, min(t, 10)) if r == 0 else -max(0, min(t, 5))
    return x + 3 + 3 + (r * 3 + 1) + 2 + 3 + 8


want = [ref(i) for i in range(40)]
print(b, want)
assert (b == want).all()
assert flags[4] and not flags[5] and not flags[12] and flags[31]
