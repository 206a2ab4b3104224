"""right: bfs frontier"""

import numpy as np
from numba import cuda


@cuda.jit
def bfs(rows, cols, level, depth, more):
    v = cuda.grid(1)
    if v < level.size and level[v] == depth:
        for e in range(rows[v], rows[v + 1]):
            w = cols[e]
            if cuda.atomic.cas(level, w, -1, depth + 1) == -1:
                more[0] = 1


rows = np.array([0, 2, 4, 5, 6, 6], np.int32)
cols = np.array([1, 2, 3, 4, 3, 4], np.int32)
level = np.array([0, -1, -1, -1, -1], np.int32)
depth = 0
while True:
    more = np.zeros(1, np.int32)
    bfs[1, 32](rows, cols, level, depth, more)
    if not more[0]:
        break
    depth += 1
assert (level == [0, 1, 1, 2, 2]).all(), level
