"""right: vectorize and guvectorize on the GPU, with broadcasting and scalars"""

import math

import numpy as np
from numba import cuda, float32
from numba.cuda import guvectorize, vectorize


@vectorize(["float32(float32, float32)", "float64(float64, float64)"], target="cuda")
def root(a, b):
    return math.sqrt(a * a + b * b)


@guvectorize(["void(float32[:], float32[:], float32[:])"], "(n),(n)->()", target="cuda")
def dot(a, b, out):
    acc = float32(0)
    for i in range(a.shape[0]):
        acc += a[i] * b[i]
    out[0] = acc


a = np.full((5, 3), 3, np.float32)
assert (root(a, np.float32(4)) == 5).all()
assert (root(a, np.full(3, 4, np.float32)) == 5).all()
assert (dot(a, a) == 27).all()
d = cuda.to_device(a)
assert (root(d, d).copy_to_host() == np.sqrt(np.float32(18))).all()
