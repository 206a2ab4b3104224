"""Padded copies of A are kept by A's shape and address; the address may be another array's by now.

Class: state
Refute: {"shape": "M=4 N=5 K=6", "launches": 2}
"""

from numba import cuda, float32

THREADS_X = 16
THREADS_Y = 8

copies = {}


def address(array):
    on_gpu = getattr(array, "__cuda_array_interface__", None)
    return (on_gpu or array.__array_interface__)["data"][0]


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


def launch(a, b, c):
    key = a.shape, address(a)
    if key not in copies:
        copies[key] = cuda.to_device(a.copy_to_host())
    M, N = c.shape
    grid = (-(-N // THREADS_X), -(-M // THREADS_Y))
    product[grid, (THREADS_X, THREADS_Y)](copies[key], b, c)
