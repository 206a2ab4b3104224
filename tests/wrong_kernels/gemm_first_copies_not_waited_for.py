"""The next pair of tiles is copied ahead; the first pair, before the loop, is not waited for.

Class: sound
Refute: {"shape": "M=4 N=5 K=20", "unsound": "async"}
"""

from numba import cuda, float32

from lessons.wide import copy1_async, shared_array, wait_async

TILE = 16
SIZE = TILE * TILE
BOTH = 2 * SIZE


@cuda.jit(device=True)
def stage(tile, place, array, row, column):
    rows, columns = array.shape
    if row < rows and column < columns:
        copy1_async(tile, place, array, row * columns + column)
    else:
        tile[place] = float32(0.0)


@cuda.jit
def product(a, b, c):
    a_tile = shared_array(BOTH)
    b_tile = shared_array(BOTH)
    M, N = c.shape
    K = a.shape[1]
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    n, m = cuda.grid(2)
    place = ty * TILE + tx
    acc = float32(0.0)
    now = 0
    stage(a_tile, place, a, m, tx)
    stage(b_tile, place, b, ty, n)
    cuda.syncthreads()
    for k0 in range(0, K, TILE):
        stage(a_tile, SIZE - now + place, a, m, k0 + TILE + tx)
        stage(b_tile, SIZE - now + place, b, k0 + TILE + ty, n)
        for k in range(TILE):
            acc += a_tile[now + ty * TILE + k] * b_tile[now + k * TILE + tx]
        wait_async()
        cuda.syncthreads()
        now = SIZE - now
    if m < M and n < N:
        c[m, n] = acc


def launch(a, b, c):
    M, N = c.shape
    product[(-(-N // TILE), -(-M // TILE)), (TILE, TILE)](a, b, c)
