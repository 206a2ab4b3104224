"""Exercise 05.8, write: filters of one tap, from a blank file.

With T = R = S = 1 and no padding a convolution is a matrix product of pixels and filters: y[n, o, p, q, k] sums over
c x[n, o * stride_d, p * stride_h, q * stride_w, c] * filt[k, 0, 0, 0, c]. With strides, the rows of A are not the
pixels one after the other. Write kernel and launch, with tiles in shared memory: at most 0.2 reads of global memory
for each multiply-add at N=1 C=32 D=1 H=8 W=8 K=32, and at most 8 sectors and 2 wavefronts for each request. Only
such shapes are asked for, of any extents and strides. geometry has stride_d, stride_h and stride_w.
Grade: python -m common grade 05.8
"""

from numba import cuda, float32

TILE = 16


# >>> your code: 28 lines
def launch(x, filt, y, geometry):
    pass


# <<<
