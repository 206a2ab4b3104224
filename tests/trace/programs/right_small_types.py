"""right: small types"""

import numpy as np
from numba import cuda, uint8


@cuda.jit
def gray(img, out):
    x, y = cuda.grid(2)
    if x < img.shape[1] and y < img.shape[0]:
        r, g, b = img[y, x, 0], img[y, x, 1], img[y, x, 2]
        out[y, x] = uint8(0.299 * r + 0.587 * g + 0.114 * b)


@cuda.jit
def inv(img):
    i = cuda.grid(1)
    if i < img.size:
        img[i] = 255 - img[i]


img = np.random.default_rng(0).integers(0, 256, (20, 30, 3)).astype(np.uint8)
out = np.zeros((20, 30), np.uint8)
gray[(2, 2), (16, 16)](img, out)
ref = (0.299 * img[..., 0] + 0.587 * img[..., 1] + 0.114 * img[..., 2]).astype(np.uint8)
assert (out == ref).all()
flat = img.ravel().copy()
inv[(flat.size + 127) // 128, 128](flat)
assert (flat == 255 - img.ravel()).all()
