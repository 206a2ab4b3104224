"""A right kernel of the gemm ladder as the text of a step's file, in which tests make mistakes."""

_GEMM = """
import time

from numba import cuda, float32

{before}
@cuda.jit
def product(a, b, c):
    n, m = cuda.grid(2)
    if m < c.shape[0] and n < c.shape[1]:
        acc = float32(0.0)
        for k in range(a.shape[1]):
            acc += a[m, k] * b[k, n]
        {store}


def launch(a, b, c):
    {first}
    M, N = c.shape
    product[(-(-N // 16), -(-M // 8)), (16, 8)](a, b, c)
"""


def gemm(store: str = "c[m, n] = acc", before: str = "", first: str = "pass") -> str:
    """One thread for each element: what it does with its sum, what stands before the kernel and first in launch."""
    return _GEMM.format(store=store, before=before, first=first)
