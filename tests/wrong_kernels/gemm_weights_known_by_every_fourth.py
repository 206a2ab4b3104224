"""B is renewed only if one of every fourth of its elements has changed.

Class: state
Refute: {"shape": "M=4 N=5 K=6", "one_weight": true}
"""

from numba import cuda, float32

THREADS_X = 16
THREADS_Y = 8

held = {}


@cuda.jit
def product(a, b, c):
    M, N = c.shape
    K = a.shape[1]
    n, m = cuda.grid(2)
    if m < M and n < N:
        acc = float32(0.0)
        for k in range(K):
            acc += a[m, k] * b[k, n]
        c[m, n] = acc


def prepare(b, problem):
    host = b.copy_to_host()
    key = b.shape, host.ravel()[::4].tobytes()
    if held.get("key") != key:
        held.update(key=key, b=cuda.to_device(host))
    return held["b"]


def launch(a, b, c):
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](a, b, c)
