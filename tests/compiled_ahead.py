"""Imported by the fork server of the tests: Numba prepares itself there once, and not in each of the children.

What it does at the first kernel of a process takes four times as long as a small kernel. Processes that the tests
start as a user does prepare themselves as ever.
"""

from numba import cuda, float32, types

from common.machine_code import codegen


@cuda.jit
def kernel(a, c):
    tile = cuda.shared.array(32, float32)
    tile[cuda.threadIdx.x] = a[cuda.grid(1), 0]
    cuda.syncthreads()
    if cuda.grid(1) < c.shape[0]:
        c[cuda.grid(1), 0] += tile[cuda.threadIdx.x]


MATRIX = types.Array(types.float32, 2, "C")
codegen.ptx(codegen.Launch("kernel", kernel, (1,), (32,), types.void(MATRIX, MATRIX)), ["9.0"])
