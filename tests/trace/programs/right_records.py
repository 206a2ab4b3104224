"""right: arrays of records, by attribute and by name"""

import numpy as np
from numba import cuda

body = np.dtype([("x", np.float32), ("v", np.float32), ("n", np.int32)], align=True)


@cuda.jit
def step(bodies, dt):
    i = cuda.grid(1)
    if i < bodies.size:
        bodies[i].x += bodies[i].v * dt
        bodies[i]["n"] = bodies[i]["n"] + 1


bodies = np.zeros(100, body)
bodies["v"] = np.arange(100)
step[4, 32](bodies, np.float32(0.5))
assert (bodies["x"] == np.arange(100) * 0.5).all() and (bodies["n"] == 1).all()
