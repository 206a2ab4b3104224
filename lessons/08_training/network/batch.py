"""The next batch: digits from the training set, each one turned, stretched and moved a little, by a kernel.

A thread makes one pixel: it looks up where the pixel comes from, between four of the original, and takes their mean.
"""

from math import floor

import numpy as np
from numba import cuda, float32, int32

THREADS = 256
ROW = 6  # of a table of changes: a 2 x 2 matrix and a way to go


@cuda.jit
def next_batch(images, labels, order, changes, rates, counter, x, classes, rate):
    """x[n] and classes[n] = digit order[step * N + n], step = counter[0]; rate[0] = rates[step]."""
    _, H, W = images.shape
    step, N = counter[0], classes.size
    at = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if at == 0:
        rate[0] = rates[step]
    if at < N:
        classes[at] = labels[order[step * N + at]]
    if at < N * H * W:
        n = at // (H * W)
        middle_h, middle_w = float32(0.5) * float32(H - 1), float32(0.5) * float32(W - 1)
        h, w = float32(at // W % H) - middle_h, float32(at % W) - middle_w
        row = (step * N + n) * ROW
        from_h = changes[row] * h + changes[row + 1] * w + changes[row + 4] + middle_h
        from_w = changes[row + 2] * h + changes[row + 3] * w + changes[row + 5] + middle_w
        h0, w0 = int32(floor(from_h)), int32(floor(from_w))
        part_h, part_w = from_h - float32(h0), from_w - float32(w0)
        total = float32(0.0)
        for i in range(2):
            for j in range(2):
                inside = 0 <= h0 + i < H and 0 <= w0 + j < W
                pixel = float32(images[order[step * N + n], h0 + i, w0 + j]) if inside else float32(0.0)
                share_h = part_h if i == 1 else float32(1.0) - part_h
                share_w = part_w if j == 1 else float32(1.0) - part_w
                total += share_h * share_w * pixel
        x[at] = total * float32(1.0 / 255.0)


def launch(images, labels, order, changes, rates, counter, x, classes, rate):
    """images [M, H, W] (uint8), labels [M], order [steps * N], changes [steps * N, ROW] and x [N, H, W] flat."""
    next_batch[-(-x.size // THREADS), THREADS](images, labels, order, changes, rates, counter, x, classes, rate)


def drawn(random, count, turn=0, stretch=0, slant=0, way=0):
    """Changes [count, ROW], each drawn evenly up to these bounds; without any, the digits stay as they are.

    Turned by ``turn`` degrees, stretched by 1 + ``stretch`` along each axis, slanted by ``slant`` pixels for a pixel,
    moved by ``way`` pixels.
    """
    angle = np.deg2rad(random.uniform(-turn, turn, count))
    along_h, along_w = random.uniform(1 - stretch, 1 + stretch, (2, count))
    cos, sin = np.cos(angle), np.sin(angle)
    lean = random.uniform(-slant, slant, count)
    matrix = cos * along_h, -sin * along_w, sin * along_h + lean, cos * along_w
    return np.stack([*matrix, *random.uniform(-way, way, (2, count))], axis=1).astype(np.float32)
