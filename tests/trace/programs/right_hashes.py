"""right: hashes and random numbers of integers that wrap around"""

import numpy as np
from numba import cuda, uint32, uint64


@cuda.jit
def mixed(seeds, out):
    i = cuda.grid(1)
    if i < out.size:
        h = uint32(seeds[i])
        h ^= h >> uint32(16)
        h = uint32(h * uint32(0x85EBCA6B))
        h ^= h >> uint32(13)
        x = seeds[i]
        for _ in range(20):
            x = (x * 1664525 + 1013904223) & 0xFFFFFFFF
        s = uint64(88172645463325252) + uint64(i)
        s ^= s << uint64(13)
        s ^= s >> uint64(7)
        s ^= s << uint64(17)
        out[i] = (x + h) % 1000 + (s % uint64(7))


def wanted(i):
    most, h, x = 2**32 - 1, i, i
    h ^= h >> 16
    h = h * 0x85EBCA6B & most
    h ^= h >> 13
    for _ in range(20):
        x = (x * 1664525 + 1013904223) & most
    s = 88172645463325252 + i
    s ^= (s << 13) & (2**64 - 1)
    s ^= s >> 7
    s ^= (s << 17) & (2**64 - 1)
    return (x + h) % 1000 + s % 7


out = np.zeros(64, np.int64)
mixed[2, 32](np.arange(64, dtype=np.int64), out)
assert (out == [wanted(i) for i in range(64)]).all()
