"""Exercise 08.6, write: the sum of each column, weighted.

The gradient of a bias is the sum of each column of dy [M, K]. Here each row has a weight, x[m]: dfilt[k] is the sum
over m of x[m] * dy[m, k]. (With C = 1 and filters of one tap that is the gradient of the filter.) A block has HEIGHT
rows of WIDTH threads. Thread (tx, ty) sums rows ty, ty + HEIGHT and so on of its column, and leaves that in sums;
then the first row of threads adds up what lies in sums, in the same order every time, without atomics. Threads that
lie next to each other in a warp must read neighbours of dy. M and K are any numbers.
Grade: python -m common grade 08.6
"""

from numba import cuda, float32

WIDTH, HEIGHT = 32, 8
SHAPE = (HEIGHT, WIDTH)


@cuda.jit
def wgrad_weighted_columns(x, dy, dfilt):
    M, K = dy.shape
    sums = cuda.shared.array(SHAPE, float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    k = cuda.blockIdx.x * WIDTH + tx
    acc = float32(0.0)
    # >>> your code: 9 lines
    sums[ty, tx] = 0
    # <<<


def launch(x, dy, dfilt, geometry):
    K = dfilt.size
    rows = dy.reshape((dy.size // K, K))
    wgrad_weighted_columns[-(-K // WIDTH), (WIDTH, HEIGHT)](x.reshape(x.size), rows, dfilt.reshape(K))
