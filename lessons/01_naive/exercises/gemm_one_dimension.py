"""Exercise 01.1, write: a grid with one axis, and still one thread for each element of C.

gemm_naive asks cuda.grid(2) for its row and column. Here the grid has one axis: thread i owns element i of C,
counted row by row as C lies in memory. Write what is missing: the element's place, the guard, the sum, the store.
Grade: python -m common grade 01.1
"""

from numba import cuda, float32

THREADS = 128


@cuda.jit
def gemm_one_dimension(a, b, c):
    M, N = c.shape
    K = a.shape[1]

    # locate
    i = cuda.grid(1)

    # >>> your code: 6 lines
    # the place (m, n) of element i; nothing for a thread beyond the last element; multiply; store
    # <<<


def launch(a, b, c):
    gemm_one_dimension[-(-c.size // THREADS), THREADS](a, b, c)
