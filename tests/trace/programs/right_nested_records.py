"""right: records and arrays within records, in global and in shared memory"""

import numba
import numpy as np
from numba import cuda

inner = np.dtype([("x", np.float32), ("v", np.float32, (2,))])
body = np.dtype([("id", np.int32), ("p", inner), ("m", np.float32, (2, 2))])
BODY = numba.from_dtype(body)


@cuda.jit
def turn(a, out):
    tile = cuda.shared.array(8, BODY)
    t = cuda.threadIdx.x
    tile[t].id = a[t].id
    tile[t].p.x = a[t].p.x
    for j in range(2):
        tile[t].p.v[j] = a[t]["p"].v[j]
        for k in range(2):
            tile[t].m[j, k] = a[t]["m"][j, k]
    cuda.syncthreads()
    r = 7 - t
    out[t] = tile[r].id + tile[r].p.x + 10 * tile[r].p.v[1] + 100 * tile[r].m[0, 1] + 1000 * tile[r].m[1, 0]


a = np.zeros(8, body)
a["id"], a["p"]["x"], a["p"]["v"], a["m"] = np.arange(8), 0.5, [1, 2], [[0, 3], [4, 0]]
out = np.zeros(8, np.float32)
turn[1, 8](a, out)
assert (out == np.arange(8)[::-1] + 0.5 + 20 + 300 + 4000).all()
