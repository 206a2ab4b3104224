"""Exercise 08.4, find the bug: partial sums, added in pairs.

wgrad_implicit_gemm cuts the sum over images and pixels into parts of BLOCK_K products, the last one shorter. So a
longer sum has more parts. The kernel here adds them in pairs, in their own places: of eight, 0 + 4, 1 + 5, 2 + 6,
3 + 7, then 0 + 2 and 1 + 3, then 0 + 1. That order is fixed, too. Four parts come out right, and eight. Write down
what becomes of five, six and seven. Change 2 lines.
Grade: python -m common grade 08.4
"""

import importlib

from numba import cuda

implicit_gemm = importlib.import_module("lessons.08_training.wgrad_implicit_gemm")
THREADS = 128
TILE = implicit_gemm.TILE


@cuda.jit
def add_in_pairs(partials, dfilt, parts):
    i = cuda.grid(1)
    if i < dfilt.size:
        count = parts
        while count > 1:
            half = count // 2
            for part in range(half):
                partials[part * dfilt.size + i] += partials[(part + half) * dfilt.size + i]
            count = half
        dfilt[i] = partials[i]


def workspace(problem):
    parts = -(-problem.reduction // TILE["BLOCK_K"])
    return implicit_gemm.workspace(problem), cuda.device_array((parts, *problem.output_shape), "float32")


def launch(x, dy, dfilt, geometry, workspace):
    table, partials = workspace
    parts, flat = partials.shape[0], partials.reshape(partials.size)
    implicit_gemm.multiply(x, dy, table, flat, dfilt.shape, geometry, parts, **TILE)
    add_in_pairs[-(-dfilt.size // THREADS), THREADS](flat, dfilt.reshape(dfilt.size), parts)
