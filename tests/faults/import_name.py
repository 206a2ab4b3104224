r"""The helper is misspelt.

Fault: import
Shown by: both
Says: lessons\.wide has no load5\. Did you mean load4\?
"""

from numba import cuda, float32

from lessons.wide import load5  # <- here

TILE = 16


@cuda.jit
def product(a, b, c):
    stage = cuda.local.array(4, float32)
    n, m = cuda.grid(2)
    load5(stage, 0, a, m * a.shape[1])
    c[m, n] = stage[0]


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b, c)
