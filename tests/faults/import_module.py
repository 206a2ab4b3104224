r"""The helper's module is misspelt.

Fault: import
Shown by: both
Says: there is no module lessons\.wyde\. Did you mean lessons\.wide\?
"""

from lessons.wyde import load4  # <- here
from numba import cuda, float32

TILE = 16


@cuda.jit
def product(a, b, c):
    stage = cuda.local.array(4, float32)
    n, m = cuda.grid(2)
    load4(stage, 0, a, m * a.shape[1])
    c[m, n] = stage[0]


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b, c)
