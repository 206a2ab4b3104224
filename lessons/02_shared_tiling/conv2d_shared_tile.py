"""conv2d_shared_tile: a block stages its patch of the image, halo included, in shared memory.

Previous step: conv2d_constant_weights
New idea: the windows of a block's outputs overlap, and all filters look at the same windows. The block copies the
    patch under its TILE_H x TILE_W outputs once; then every tap of every filter reads shared memory.
Loads per FMA: 1 from shared memory; from global memory 20 * 20 / (256 * 25 * K) = 0.005 for 12 filters of 5 x 5
    instead of 1; the tap comes from the constant cache as before.
Run: python -m lessons.02_shared_tiling conv2d_shared_tile
"""

from numba import cuda, float32, uint32

TILE_H, TILE_W = 16, 16  # a block computes TILE_H x TILE_W pixels of every map, one per thread
TUNABLES = {"TILE_H": (8, 11, 16, 22), "TILE_W": (16, 32, 33)}
MAX_GRID_Y = 65535
CONSTANT_BYTES = 64 * 1024
SHARED_BYTES = 48 * 1024


def channels_staged(C, R, S, TILE_H, TILE_W):
    """How many channels of the patch fit in shared memory at a time: a divisor of C, so that no round is short."""
    patch_bytes = 4 * (TILE_H + R - 1) * (TILE_W + S - 1)
    if patch_bytes > SHARED_BYTES:
        raise ValueError(f"{TILE_H=} {TILE_W=} {R=} {S=}: the patch takes {patch_bytes} bytes, {SHARED_BYTES=}")
    return max(channels for channels in range(1, SHARED_BYTES // patch_bytes + 1) if C % channels == 0)


def specialise(weights, H, W, TILE_H=TILE_H, TILE_W=TILE_W):
    """The kernel for these weights, a NumPy array of shape (K, C, R, S), and images of H x W."""
    if TILE_H * TILE_W > 1024:
        raise ValueError(f"{TILE_H=} times {TILE_W=} must be at most 1024 threads")
    K, C, R, S = weights.shape
    P, Q = H - R + 1, W - S + 1
    TILES_Q = -(-Q // TILE_W)
    THREADS = TILE_H * TILE_W
    PATCH_H, PATCH_W = TILE_H + R - 1, TILE_W + S - 1
    AREA = PATCH_H * PATCH_W
    CHANNELS = channels_staged(C, R, S, TILE_H, TILE_W)
    PATCH = CHANNELS * AREA

    @cuda.jit
    def conv2d_shared_tile(x, y, N):
        filt = cuda.const.array_like(weights)
        patch = cuda.shared.array(PATCH, float32)

        # locate: blockIdx.x counts the tiles of a map row by row, y the images; unsigned indices need no wrap-around
        tile, tx, ty = uint32(cuda.blockIdx.x), uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
        p0, q0 = tile // TILES_Q * TILE_H, tile % TILES_Q * TILE_W
        p, q = p0 + ty, q0 + tx
        for n in range(uint32(cuda.blockIdx.y), uint32(N), uint32(cuda.gridDim.y)):
            for k in range(uint32(0), uint32(K), uint32(1)):
                acc = float32(0.0)
                for c0 in range(0, C, CHANNELS):
                    # stage: once for all filters, if the patch of all channels fits
                    if k == 0 or CHANNELS < C:
                        cuda.syncthreads()
                        i = ty * TILE_W + tx
                        while i < PATCH:
                            line, w = uint32(i) // uint32(PATCH_W), uint32(i) % uint32(PATCH_W)
                            c, h = uint32(line) // uint32(PATCH_H), uint32(line) % uint32(PATCH_H)
                            if p0 + h < H and q0 + w < W:
                                patch[i] = x[((uint32(n) * C + c0 + c) * H + p0 + h) * W + q0 + w]
                            i += THREADS
                        cuda.syncthreads()

                    # multiply
                    corner = ty * PATCH_W + tx
                    for c in range(CHANNELS):
                        for r in range(R):
                            for s in range(S):
                                acc += patch[corner + r * PATCH_W + s] * filt[k, c0 + c, r, s]
                        corner += AREA

                # store
                if p < P and q < Q:
                    y[((uint32(n) * K + uint32(k)) * P + p) * Q + q] = acc

    return conv2d_shared_tile


def prepare(filt, problem, **tile):
    if filt.nbytes > CONSTANT_BYTES:
        raise ValueError(
            f"filter K={problem.K} C={problem.C} R={problem.R} S={problem.S} takes {filt.nbytes} bytes: "
            f"constant memory holds {CONSTANT_BYTES}"
        )
    return specialise(filt.copy_to_host(), problem.H, problem.W, **tile)


def launch(x, conv2d_shared_tile, y, TILE_H=TILE_H, TILE_W=TILE_W):
    N, K, P, Q = y.shape
    grid = (-(-P // TILE_H) * -(-Q // TILE_W), min(N, MAX_GRID_Y))
    conv2d_shared_tile[grid, (TILE_W, TILE_H)](x.reshape(x.size), y.reshape(y.size), N)
