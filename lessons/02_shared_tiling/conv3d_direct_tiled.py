"""conv3d_direct_tiled: each block stages a tile of x and a tile of filt in shared memory.

Previous step: conv3d_direct
New idea: the four inner loops become one, over gemm_k = ((t*R + r)*S + s)*C + c, cut into pieces of BLOCK_K. A block
    of outputs (n, o*p*q) by k is then a block of a matrix product, A[gemm_m, gemm_k] @ B[gemm_k, gemm_n], whose A is
    never stored: each thread works out which pixel of x an element of A is, and whether it is padding.
Loads per FMA: 1 / BLOCK_M + 1 / BLOCK_N = 0.0625 from global memory, as an element fetched serves a row or a column
    of the block; 2 from shared memory.
Run: python -m lessons.02_shared_tiling conv3d_direct_tiled
"""

from numba import cuda, float32

BLOCK_M = BLOCK_N = BLOCK_K = 32  # a block computes BLOCK_M rows x BLOCK_N filters, one output per thread
A_SHAPE = (BLOCK_M, BLOCK_K)
B_SHAPE = (BLOCK_N, BLOCK_K + 1)  # a warp reads it down a column: the extra element keeps the rows in different banks


@cuda.jit(max_registers=64)  # 65,536 for a block of 1,024 threads: 64 for each
def conv3d_direct_tiled(x, filt, y, geometry):
    x_tile = cuda.shared.array(A_SHAPE, float32)
    filt_tile = cuda.shared.array(B_SHAPE, float32)
    N, D, H, W, C = x.shape
    K, T, R, S, _ = filt.shape
    _, O, P, Q, _ = y.shape

    # locate: rows ride on blockIdx.x, which may count 2**31 - 1 blocks; y only 65535
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    gemm_m = cuda.blockIdx.x * BLOCK_M + ty
    gemm_n = cuda.blockIdx.y * BLOCK_N + tx
    k_staged = cuda.blockIdx.y * BLOCK_N + ty  # the filter whose taps this thread stages
    n = gemm_m // (O * P * Q)
    d0 = gemm_m // (P * Q) % O * geometry.stride_d - geometry.pad_d
    h0 = gemm_m // Q % P * geometry.stride_h - geometry.pad_h
    w0 = gemm_m % Q * geometry.stride_w - geometry.pad_w

    acc = float32(0.0)
    for k0 in range(0, T * R * S * C, BLOCK_K):
        # stage: row ty of either tile, element gemm_k of it; the padding and what lies outside count as zero
        gemm_k = k0 + tx
        c = gemm_k % C
        s = gemm_k // C % S
        r = gemm_k // (C * S) % R
        t = gemm_k // (C * S * R)
        d = d0 + t * geometry.dilation_d
        h = h0 + r * geometry.dilation_h
        w = w0 + s * geometry.dilation_w
        inside = n < N and t < T and 0 <= d < D and 0 <= h < H and 0 <= w < W
        x_tile[ty, tx] = x[n, d, h, w, c] if inside else float32(0.0)
        filt_tile[ty, tx] = filt[k_staged, t, r, s, c] if k_staged < K and t < T else float32(0.0)
        cuda.syncthreads()

        # multiply
        for k in range(BLOCK_K):
            acc += x_tile[ty, k] * filt_tile[tx, k]
        cuda.syncthreads()

    # store
    if n < N and gemm_n < K:
        y[n, gemm_m // (P * Q) % O, gemm_m // Q % P, gemm_m % Q, gemm_n] = acc


def launch(x, filt, y, geometry):
    N, O, P, Q, K = y.shape
    grid = (-(-N * O * P * Q // BLOCK_M), -(-K // BLOCK_N))
    conv3d_direct_tiled[grid, (BLOCK_N, BLOCK_M)](x, filt, y, geometry)
