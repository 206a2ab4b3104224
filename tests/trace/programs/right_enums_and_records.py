"""right: constants of an IntEnum, shared and local records, cmath, NumPy's dtypes, the product of complex numbers"""

import cmath
from enum import IntEnum

import numba
import numpy as np
from numba import cuda

pair = np.dtype([("key", np.int32), ("value", np.float32)], align=True)
pair_type = numba.from_dtype(pair)


FLOAT = np.dtype("float32")


class Kind(IntEnum):
    SMALL = 1
    LARGE = 7


@cuda.jit
def work(pairs, out, z):
    tile = cuda.shared.array(32, pair_type)
    mine = cuda.local.array(2, dtype=FLOAT)
    i = cuda.threadIdx.x
    tile[i].key = pairs[i].key
    tile[i].value = pairs[i]["value"]
    cuda.syncthreads()
    mine[0] = tile[31 - i].value
    mine[1] = 7 if tile[i].key == Kind.LARGE else 1
    out[i] = mine[0] + mine[1]
    z[i] = cmath.exp(z[i] * 1j)
    if i == 0:
        pairs[1] = pairs[2]


pairs = np.zeros(32, pair)
pairs["key"], pairs["value"] = np.arange(32), np.arange(32) * 2
out, z = np.zeros(32, np.float32), np.full(32, np.pi, np.complex128)
work[1, 32](pairs, out, z)
assert (out == np.arange(31, -1, -1) * 2 + np.where(np.arange(32) == 7, 7, 1)).all()
assert np.allclose(z, -1)
assert pairs[1]["value"] == 4
