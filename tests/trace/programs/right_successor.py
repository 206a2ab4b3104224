"""right: a program for numba-cuda-mlir, and a table of constants that each thread looks up"""

import numpy as np
from numba_cuda_mlir import cuda, float32
from numba_cuda_mlir.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32

WEIGHTS = (1, 2, 4)


@cuda.jit
def weigh(states, a):
    i = cuda.grid(1)
    if i < a.size:
        a[i] = WEIGHTS[i % 3] + xoroshiro128p_uniform_float32(states, i) * float32(0.5)


a = np.zeros(10, np.float32)
weigh[1, 32](create_xoroshiro128p_states(32, seed=1), a)
assert (a.astype(int) == [1, 2, 4, 1, 2, 4, 1, 2, 4, 1]).all()
