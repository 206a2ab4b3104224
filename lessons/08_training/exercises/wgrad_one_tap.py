"""Exercise 08.8, write: filters of one tap, from a blank file.

With T = R = S = 1 and no padding the gradient of the filter is a product of two matrices that lie in memory:
dfilt[k, 0, 0, 0, c] sums over n, o, p, q dy[n, o, p, q, k] * x[n, o * stride_d, p * stride_h, q * stride_w, c]. Write
kernel and launch, with tiles in shared memory: at most 0.2 reads of global memory for each multiply-add at N=2 C=32
D=1 H=4 W=8 K=32, and at most 8 sectors and 2 wavefronts for each request. Only such shapes are asked for, of any
extents and strides. geometry has stride_d, stride_h and stride_w.
Grade: python -m common grade 08.8
"""

from numba import cuda, float32

TILE = 16


# >>> your code: 26 lines
def launch(x, dy, dfilt, geometry):
    pass


# <<<
