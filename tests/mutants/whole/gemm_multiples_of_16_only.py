"""Tiles of 16 cover whole tiles only: right where M, N and K are multiples of 16."""

from numba import cuda, float32

TILE = 16


@cuda.jit
def product(a, b, c):
    K = a.shape[1]
    n, m = cuda.grid(2)
    acc = float32(0.0)
    for k in range(K // TILE * TILE):
        acc += a[m, k] * b[k, n]
    c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    grid = (N // TILE, M // TILE)
    product[grid, (TILE, TILE)](a, b, c)
