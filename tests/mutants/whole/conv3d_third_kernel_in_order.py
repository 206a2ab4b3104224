"""In the third of four kernels the block of the first tap plane assigns, and those of the others add."""

import numpy as np
from numba import cuda, float32

THREADS = 64


@cuda.jit
def turn(filt, turned):
    K, T, R, S, C = filt.shape
    i = cuda.grid(1)
    if i < filt.size:
        c, s, r, t, k = i % C, i // C % S, i // (C * S) % R, i // (C * S * R) % T, i // (C * S * R * T)
        turned[t, r, s, c, k] = filt[k, t, r, s, c]


@cuda.jit
def clear(sums):
    i = cuda.grid(1)
    if i < sums.size:
        sums[i] = float32(0.0)


@cuda.jit
def correlate(x, turned, sums, y, geometry):
    N, D, H, W, C = x.shape
    T, R, S, _, K = turned.shape
    _, O, P, Q, _ = y.shape
    i = cuda.grid(1)
    t = cuda.blockIdx.y
    if i < y.size:
        k, q, p = i % K, i // K % Q, i // (K * Q) % P
        o, n = i // (K * Q * P) % O, i // (K * Q * P * O)
        d = o * geometry.stride_d - geometry.pad_d + t * geometry.dilation_d
        acc = float32(0.0)
        for r in range(R):
            h = p * geometry.stride_h - geometry.pad_h + r * geometry.dilation_h
            for s in range(S):
                w = q * geometry.stride_w - geometry.pad_w + s * geometry.dilation_w
                if 0 <= d < D and 0 <= h < H and 0 <= w < W:
                    for c in range(C):
                        acc += x[n, d, h, w, c] * turned[t, r, s, c, k]
        sums[i] = acc if t == 0 else sums[i] + acc


@cuda.jit
def store(sums, y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = sums[i]


def workspace(problem):
    p = problem
    turned = cuda.device_array((p.T, p.R, p.S, p.C, p.K), np.float32)
    return turned, cuda.device_array(p.N * p.O * p.P * p.Q * p.K, np.float32)


def launch(x, filt, y, geometry, scratch):
    turned, sums = scratch
    blocks = -(-y.size // THREADS)
    turn[-(-filt.size // THREADS), THREADS](filt, turned)
    clear[blocks, THREADS](sums)
    correlate[(blocks, filt.shape[1]), THREADS](x, turned, sums, y, geometry)
    store[blocks, THREADS](sums, y.reshape(y.size))
