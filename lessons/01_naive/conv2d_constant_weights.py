"""conv2d_constant_weights: the filter lives in constant memory.

Previous step: conv2d_unrolled
New idea: all threads of a block use the same tap at the same time, which is what constant memory is for: one
    read is broadcast to the whole warp. The weights are compiled in, so new weights mean a new kernel.
Loads per FMA: 1 from global memory (the pixel), 1 from the constant cache (the tap).
Run: python -m lessons.01_naive conv2d_constant_weights
"""

from numba import cuda, float32

THREADS_X = 16
THREADS_Y = 16
MAX_GRID_YZ = 65535  # blocks that a grid holds at most along y, and along z
CONSTANT_BYTES = 64 * 1024


def specialise(weights):
    """The kernel for these weights, a NumPy array of shape (K, C, R, S)."""
    _, C, R, S = weights.shape

    @cuda.jit
    def conv2d_constant_weights(x, y):
        filt = cuda.const.array_like(weights)
        N, K, P, Q = y.shape

        # locate: blockIdx.x counts the tiles of a map row by row, y the filters, z the images
        tiles_q = (Q + THREADS_X - 1) // THREADS_X
        p = cuda.blockIdx.x // tiles_q * THREADS_Y + cuda.threadIdx.y
        q = cuda.blockIdx.x % tiles_q * THREADS_X + cuda.threadIdx.x
        k = cuda.blockIdx.y
        # a grid holds at most 65535 blocks in z, so a block may serve several images
        for n in range(cuda.blockIdx.z, N, cuda.gridDim.z):
            if p < P and q < Q:
                # stage: nothing, every pixel comes straight from global memory

                # multiply
                acc = float32(0.0)
                for c in range(C):
                    for r in range(R):
                        for s in range(S):
                            acc += x[n, c, p + r, q + s] * filt[k, c, r, s]

                # store
                y[n, k, p, q] = acc

    return conv2d_constant_weights


def prepare(filt, problem):
    if filt.nbytes > CONSTANT_BYTES:
        raise ValueError(
            f"filter K={problem.K} C={problem.C} R={problem.R} S={problem.S} takes {filt.nbytes} bytes: "
            f"constant memory holds {CONSTANT_BYTES}"
        )
    return specialise(filt.copy_to_host())


def launch(x, conv2d_constant_weights, y):
    N, K, P, Q = y.shape
    tiles = -(-P // THREADS_Y) * -(-Q // THREADS_X)
    grid = (tiles, K, min(N, MAX_GRID_YZ))
    conv2d_constant_weights[grid, (THREADS_X, THREADS_Y)](x, y)
