"""Channels are staged 8 at a time, and the sum starts anew with each 8.

Class: shapes
Refute: {"shape": "N=1 C=9 H=6 W=7 K=2 R=3 S=3"}
"""

from numba import cuda, float32

TILE = 8
CHANNELS = 8
LONGEST = 5  # taps
PATCH = TILE + LONGEST - 1
PATCH_SHAPE = (CHANNELS, PATCH, PATCH)


@cuda.jit
def correlate(x, filt, y):
    patch = cuda.shared.array(PATCH_SHAPE, float32)
    N, K, P, Q = y.shape
    _, C, R, S = filt.shape
    H, W = x.shape[2], x.shape[3]
    tiles_q = (Q + TILE - 1) // TILE
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    p0 = cuda.blockIdx.x // tiles_q * TILE
    q0 = cuda.blockIdx.x % tiles_q * TILE
    k = cuda.blockIdx.y
    n = cuda.blockIdx.z
    acc = float32(0.0)
    for c0 in range(0, C, CHANNELS):
        channels = min(CHANNELS, C - c0)
        for i in range(channels):
            for h in range(ty, TILE + R - 1, TILE):
                for w in range(tx, TILE + S - 1, TILE):
                    inside = p0 + h < H and q0 + w < W
                    patch[i, h, w] = x[n, c0 + i, p0 + h, q0 + w] if inside else float32(0.0)
        cuda.syncthreads()
        acc = float32(0.0)
        for i in range(channels):
            for r in range(R):
                for s in range(S):
                    acc += patch[i, ty + r, tx + s] * filt[k, c0 + i, r, s]
        cuda.syncthreads()
    if p0 + ty < P and q0 + tx < Q:
        y[n, k, p0 + ty, q0 + tx] = acc


def launch(x, filt, y):
    N, K, P, Q = y.shape
    _, _, R, S = filt.shape
    if max(R, S) > LONGEST:
        raise ValueError(f"{R=} {S=}: the patch holds filters of up to {LONGEST} taps a side")
    grid = (-(-P // TILE) * -(-Q // TILE), K, N)
    correlate[grid, (TILE, TILE)](x, filt, y)
