"""right: the channels of a pixel are unpacked from an array's last axis"""

import numpy as np
from numba import cuda, float32


@cuda.jit
def grey(picture, out):
    y, x = cuda.grid(2)
    if y < out.shape[0] and x < out.shape[1]:
        r, g, b = picture[y, x]
        out[y, x] = float32(0.25) * r + float32(0.5) * g + float32(0.25) * b


picture = np.random.default_rng(1).random((10, 12, 3)).astype(np.float32)
out = np.zeros((10, 12), np.float32)
grey[1, (16, 16)](picture, out)
assert np.allclose(out, picture @ np.float32([0.25, 0.5, 0.25]))
