"""One warp reads or writes shared memory in a given pattern, once per launch: what do the hardware's counters say?

Not a product; `launch` ignores A and B. PATTERNS holds, per launch, the kernel, the width in words, and each lane's
word offset (-1: the lane is idle).
"""

import random

import numpy as np
from numba import cuda, float32

from lessons.toolkit.memory import load2, load4, shared_array, store2, store4

WARP = 32
SIZE = 36 * WARP  # words


def patterns(width):
    """Name and word offsets by lane, each a multiple of the width."""
    generator = random.Random(width)
    places = SIZE // width
    lanes = range(WARP)
    plain = {
        "neighbours": list(lanes),
        "reversed": [31 - lane for lane in lanes],
        "one": [7] * WARP,
        "every_second": [2 * lane for lane in lanes],
        "rows": [32 // width * lane for lane in lanes],
        "padded_rows": [(32 // width + 1) * lane for lane in lanes],
        "pairs": [lane // 2 for lane in lanes],
        "pairs_apart": [lane // 4 * 2 + lane % 2 for lane in lanes],
        "quads": [lane // 4 for lane in lanes],
        "halves": [lane % 16 for lane in lanes],
        "quarters": [lane % 8 for lane in lanes],
        "pairs_of_rows": [lane // 2 * 32 // width for lane in lanes],
        "pairs_apart_of_rows": [(lane // 4 * 2 + lane % 2) * 32 // width for lane in lanes],
        "half_pairs_half_apart": [lane // 2 if lane < 16 else lane // 4 * 2 + lane % 2 for lane in lanes],
        "one_pair_broken": [lane // 2 if lane != 5 else 20 for lane in lanes],
        "two_rows": [lane // 16 * (32 // width) + lane % 16 for lane in lanes],
        "random": [generator.randrange(places) for _ in lanes],
        "random_pairs": [place for _ in range(16) for place in [generator.randrange(places)] * 2],
        "odd_idle": [lane if lane % 2 == 0 else None for lane in lanes],
        "upper_half_idle": [lane if lane < 16 else None for lane in lanes],
        "upper_half_idle_rows": [lane * 32 // width if lane < 16 else None for lane in lanes],
        "three": [lane if lane in (3, 9, 30) else None for lane in lanes],
        "random_idle": [generator.randrange(places) if generator.random() < 0.6 else None for _ in lanes],
    }
    return {name: [-1 if p is None else p * width for p in chosen] for name, chosen in plain.items()}


PATTERNS = [
    (verb, width, name, offsets)
    for width in (1, 2, 4)
    for verb in ("read", "write")
    for name, offsets in patterns(width).items()
    # several threads write one element only in kernels that are wrong
    if verb == "read" or len(set(offsets) - {-1}) == WARP - offsets.count(-1)
]


def build(width):
    @cuda.jit
    def read(places, c):
        tile = shared_array(SIZE)
        values = cuda.local.array(4, float32)
        lane = cuda.threadIdx.x
        for i in range(lane, SIZE, WARP):
            tile[i] = float32(i)
        cuda.syncthreads()
        at = places[lane]
        if at >= 0:
            if width == 4:
                load4(values, 0, tile, at)
                c[lane] = values[0] + values[1] + values[2] + values[3]
            elif width == 2:
                load2(values, 0, tile, at)
                c[lane] = values[0] + values[1]
            else:
                c[lane] = tile[at]

    @cuda.jit
    def write(places, c):
        tile = shared_array(SIZE)
        values = cuda.local.array(4, float32)
        lane = cuda.threadIdx.x
        for i in range(lane, SIZE, WARP):
            tile[i] = float32(i)
        cuda.syncthreads()
        at = places[lane]
        for v in range(4):
            values[v] = float32(lane + v)
        if at >= 0:
            if width == 4:
                store4(tile, at, values, 0)
            elif width == 2:
                store2(tile, at, values, 0)
            else:
                tile[at] = values[0]
        cuda.syncthreads()
        total = float32(0.0)
        for i in range(lane, SIZE, WARP):
            total += tile[i]
        c[lane] = total

    return {"read": read, "write": write}


def launch(a, b, c):
    kernels = {width: build(width) for width in (1, 2, 4)}
    for verb, width, _, offsets in PATTERNS:
        kernels[width][verb][1, WARP](cuda.to_device(np.array(offsets)), c.reshape(c.size))
