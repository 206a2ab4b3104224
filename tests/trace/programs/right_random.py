"""right: random numbers of xoroshiro128p, as many as there are threads"""

import math

import numpy as np
from numba import cuda, float32
from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_normal_float32, xoroshiro128p_uniform_float32


@cuda.jit
def pi(states, rounds, out):
    i = cuda.grid(1)
    inside = 0
    for _ in range(rounds):
        x = xoroshiro128p_uniform_float32(states, i)
        y = xoroshiro128p_uniform_float32(states, i)
        if x * x + y * y <= float32(1):
            inside += 1
    out[i] = 4.0 * inside / rounds


@cuda.jit
def normal(states, out):
    i = cuda.grid(1)
    out[i] = xoroshiro128p_normal_float32(states, i)


states = create_xoroshiro128p_states(256, seed=1)
out = np.zeros(256, np.float32)
pi[2, 128](states, 50, out)
assert abs(out.mean() - math.pi) < 0.05, out.mean()
normal[2, 128](states, out)
assert abs(out.mean()) < 0.3
