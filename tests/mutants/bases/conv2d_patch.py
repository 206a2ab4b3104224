"""A block stages the patch of its tile, one channel at a time."""

from numba import cuda, float32

TILE = 8
LONGEST = 8
PATCH = TILE + LONGEST - 1
PATCH_SHAPE = (PATCH, PATCH)


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
    for c in range(C):
        for h in range(ty, TILE + R - 1, TILE):
            for w in range(tx, TILE + S - 1, TILE):
                inside = p0 + h < H and q0 + w < W
                patch[h, w] = x[n, c, p0 + h, q0 + w] if inside else float32(0.0)
        cuda.syncthreads()
        for r in range(R):
            for s in range(S):
                acc += patch[ty + r, tx + s] * filt[k, c, r, s]
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
