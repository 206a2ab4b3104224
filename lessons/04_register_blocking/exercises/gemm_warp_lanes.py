"""Exercise 04.4, write: which lane owns which outputs?

A block is one warp. Its lanes stand in LANES_Y x LANES_X = 8 x 4, and each owns 4 x 4 elements of C: it reads four
floats of A by its row ly, four of B by its column lx, with 128-bit loads. Four wavefronts for such a load, or two: a
half of the warp is served at once if lanes l and l ^ 1 want the same floats, for all l, or lanes l and l ^ 2 do.
Write ly and lx, from the lane's number, so that the reads of A and those of B take two wavefronts each.
Grade: python -m common grade 04.4
"""

from numba import cuda, float32

from lessons.toolkit.memory import VECTOR, load4, shared_array

LANES_Y, LANES_X = 8, 4
BLOCK_M, BLOCK_N, BLOCK_K = LANES_Y * VECTOR, LANES_X * VECTOR, 8
WARP = LANES_Y * LANES_X
A_STRIDE = BLOCK_M + VECTOR
A_SIZE, B_SIZE, ACC = BLOCK_K * A_STRIDE, BLOCK_K * BLOCK_N, VECTOR * VECTOR


@cuda.jit
def gemm_warp_lanes(a, b, c):
    a_tile = shared_array(A_SIZE)  # transposed: k * A_STRIDE + m
    b_tile = shared_array(B_SIZE)
    a_frag = cuda.local.array(VECTOR, float32)
    b_frag = cuda.local.array(VECTOR, float32)
    acc = cuda.local.array(ACC, float32)
    M, N = c.shape
    K = a.shape[1]

    # locate
    lane = cuda.threadIdx.x
    m0, n0 = cuda.blockIdx.y * BLOCK_M, cuda.blockIdx.x * BLOCK_N
    # >>> your code: 2 lines
    # this lane's row of LANES_Y and column of LANES_X: each pair belongs to one lane
    ly = lx = 0
    # <<<

    for i in range(ACC):
        acc[i] = float32(0.0)
    for k0 in range(0, K, BLOCK_K):
        # stage
        for i in range(lane, BLOCK_M * BLOCK_K, WARP):
            m, k = m0 + i // BLOCK_K, k0 + i % BLOCK_K
            a_tile[i % BLOCK_K * A_STRIDE + i // BLOCK_K] = a[m, k] if m < M and k < K else float32(0.0)
        for i in range(lane, BLOCK_K * BLOCK_N, WARP):
            k, n = k0 + i // BLOCK_N, n0 + i % BLOCK_N
            b_tile[i] = b[k, n] if k < K and n < N else float32(0.0)
        cuda.syncthreads()

        # multiply
        for k in range(BLOCK_K):
            load4(a_frag, 0, a_tile, k * A_STRIDE + ly * VECTOR)
            load4(b_frag, 0, b_tile, k * BLOCK_N + lx * VECTOR)
            for i in range(VECTOR):
                for j in range(VECTOR):
                    acc[i * VECTOR + j] += a_frag[i] * b_frag[j]
        cuda.syncthreads()

    # store
    for i in range(VECTOR):
        for j in range(VECTOR):
            m, n = m0 + ly * VECTOR + i, n0 + lx * VECTOR + j
            if m < M and n < N:
                c[m, n] = acc[i * VECTOR + j]


def launch(a, b, c):
    M, N = c.shape
    gemm_warp_lanes[(-(-N // BLOCK_N), -(-M // BLOCK_M)), WARP](a, b, c)
