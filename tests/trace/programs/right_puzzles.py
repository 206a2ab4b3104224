"""right: fourteen small exercises that many begin with, each a kernel of a few lines"""

import numpy as np
from numba import cuda, float32

TPB = 8
TILE = (TPB, TPB)
CONV = 4
WIDE = TPB + CONV


@cuda.jit
def add_ten(out, a):
    i = cuda.threadIdx.x
    out[i] = a[i] + 10


@cuda.jit
def pairs(out, a, b):
    i = cuda.threadIdx.x
    out[i] = a[i] + b[i]


@cuda.jit
def guarded(out, a, size):
    i = cuda.threadIdx.x
    if i < size:
        out[i] = a[i] + 10


@cuda.jit
def square(out, a, size):
    i = cuda.threadIdx.x
    j = cuda.threadIdx.y
    if i < size and j < size:
        out[i, j] = a[i, j] + 10


@cuda.jit
def broadcast(out, a, b, size):
    i = cuda.threadIdx.x
    j = cuda.threadIdx.y
    if i < size and j < size:
        out[i, j] = a[i, 0] + b[0, j]


@cuda.jit
def blocks(out, a, size):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < size:
        out[i] = a[i] + 10


@cuda.jit
def blocks_2d(out, a, size):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    j = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
    if i < size and j < size:
        out[i, j] = a[i, j] + 10


@cuda.jit
def shared(out, a, size):
    tile = cuda.shared.array(TPB, float32)
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    local_i = cuda.threadIdx.x
    if i < size:
        tile[local_i] = a[i]
        cuda.syncthreads()
    if i < size:
        out[i] = tile[local_i] + 10


@cuda.jit
def pooling(out, a, size):
    tile = cuda.shared.array(TPB, float32)
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    local_i = cuda.threadIdx.x
    if i < size:
        tile[local_i] = a[i]
    cuda.syncthreads()
    if i < size:
        acc = float32(0)
        for k in range(max(0, local_i - 2), local_i + 1):
            acc += tile[k]
        out[i] = acc


@cuda.jit
def dot(out, a, b, size):
    tile = cuda.shared.array(TPB, float32)
    local_i = cuda.threadIdx.x
    if local_i < size:
        tile[local_i] = a[local_i] * b[local_i]
    cuda.syncthreads()
    if local_i == 0:
        acc = float32(0)
        for k in range(size):
            acc += tile[k]
        out[0] = acc


@cuda.jit
def convolution(out, a, b, a_size, b_size):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    local_i = cuda.threadIdx.x
    tile = cuda.shared.array(WIDE, float32)
    filt = cuda.shared.array(CONV, float32)
    if i < a_size:
        tile[local_i] = a[i]
    if local_i < b_size:
        filt[local_i] = b[local_i]
        if i + TPB < a_size:
            tile[local_i + TPB] = a[i + TPB]
    cuda.syncthreads()
    if i < a_size:
        acc = float32(0)
        for k in range(b_size):
            if i + k < a_size:
                acc += tile[local_i + k] * filt[k]
        out[i] = acc


@cuda.jit
def prefix_sum(out, a, size):
    tile = cuda.shared.array(TPB, float32)
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    local_i = cuda.threadIdx.x
    tile[local_i] = a[i] if i < size else float32(0)
    cuda.syncthreads()
    step = 1
    while step < TPB:
        if local_i % (2 * step) == 0:
            tile[local_i] += tile[local_i + step]
        cuda.syncthreads()
        step *= 2
    if local_i == 0:
        out[cuda.blockIdx.x] = tile[0]


@cuda.jit
def axis_sum(out, a, size):
    tile = cuda.shared.array(TPB, float32)
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    local_i = cuda.threadIdx.x
    batch = cuda.blockIdx.y
    tile[local_i] = 0
    if i < size:
        tile[local_i] = a[batch, i]
    cuda.syncthreads()
    for k in range(3):
        p = 2**k
        if local_i % (p * 2) == 0:
            tile[local_i] += tile[local_i + p]
        cuda.syncthreads()
    if local_i == 0:
        out[batch, 0] = tile[0]


@cuda.jit
def matmul(out, a, b, size):
    a_tile = cuda.shared.array(TILE, float32)
    b_tile = cuda.shared.array(TILE, float32)
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    j = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
    local_i = cuda.threadIdx.x
    local_j = cuda.threadIdx.y
    acc = float32(0)
    for k in range(0, size, TPB):
        if i < size and k + local_j < size:
            a_tile[local_i, local_j] = a[i, k + local_j]
        if j < size and k + local_i < size:
            b_tile[local_i, local_j] = b[k + local_i, j]
        cuda.syncthreads()
        for local_k in range(min(TPB, size - k)):
            acc += a_tile[local_i, local_k] * b_tile[local_k, local_j]
        cuda.syncthreads()
    if i < size and j < size:
        out[i, j] = acc


def zeros(*shape):
    return np.zeros(shape, np.float32)


def numbers(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def check(kernel, grid, block, out, *given, wanted):
    kernel[grid, block](out, *given)
    np.testing.assert_array_equal(out, wanted, kernel.py_func.__name__)


a, m = numbers(4), numbers(2, 2)
check(add_ten, 1, 4, zeros(4), a, wanted=a + 10)
check(pairs, 1, 4, zeros(4), a, a, wanted=a + a)
check(guarded, 1, 8, zeros(4), a, 4, wanted=a + 10)
check(square, 1, (3, 3), zeros(2, 2), m, 2, wanted=m + 10)
check(broadcast, 1, (3, 3), zeros(2, 2), numbers(2, 1), numbers(1, 2), 2, wanted=numbers(2, 1) + numbers(1, 2))
check(blocks, 3, 4, zeros(9), numbers(9), 9, wanted=numbers(9) + 10)
check(blocks_2d, (2, 2), (3, 3), zeros(5, 5), numbers(5, 5), 5, wanted=numbers(5, 5) + 10)
check(shared, 2, TPB, zeros(16), numbers(16), 16, wanted=numbers(16) + 10)
a = numbers(TPB)
check(pooling, 1, TPB, zeros(8), a, 8, wanted=[a[max(0, i - 2) : i + 1].sum() for i in range(8)])
check(dot, 1, TPB, zeros(1), a, a, 8, wanted=[a @ a])
a, b = numbers(15), numbers(4)
wanted = [sum(a[i + k] * b[k] for k in range(4) if i + k < 15) for i in range(15)]
check(convolution, 2, TPB, zeros(15), a, b, 15, 4, wanted=wanted)
check(prefix_sum, 2, TPB, zeros(2), numbers(14), 14, wanted=[numbers(8).sum(), numbers(14)[8:].sum()])
check(axis_sum, (1, 4), TPB, zeros(4, 1), numbers(4, 6), 6, wanted=numbers(4, 6).sum(1, keepdims=True))
a, b = numbers(11, 11) % 5, numbers(11, 11) % 7
check(matmul, (2, 2), TILE, zeros(11, 11), a, b, 11, wanted=a @ b)
