"""Exercise 07.10, find the bug: a corner that is off by one.

The copy engine walks along the windows of x: a block has 64 output pixels and 8 filters, one tap of 64 channels at
a time. Without a dilation it is right. C must be a multiple of 8, so that rows are whole pieces. Change one line.
Grade: python -m common grade 07.10
"""

from numba import cuda, float32, uint32, uint64

from lessons.toolkit import hopper
from lessons.toolkit.grid import jit
from lessons.toolkit.maps import Maps
from lessons.toolkit.mma import to_half
from lessons.toolkit.unroll import unroll, unrolled

REQUIRES = "9.0a"
PIXELS, FILTERS, CHANNELS = 64, 8, 64  # of a block and of one round
A_SIZE, B_SIZE = PIXELS * CHANNELS, FILTERS * CHANNELS
STAGE_BYTES = 2 * (A_SIZE + B_SIZE)
ACC = FILTERS // 2
THREADS = 128
MAPS = Maps()


@jit(THREADS)
@unroll
def hconv3d_corner_off_by_one(x_map, filt_map, y, C, taps, outputs, geometry):
    tiles = hopper.half_tiles()
    arrived = hopper.barrier_array(1)
    acc = cuda.local.array(ACC, float32)
    (T, R, S), (O, P, Q) = taps, outputs
    thread = uint32(cuda.threadIdx.x)

    # locate: the base pixel of the block's first output
    m0, k0 = cuda.blockIdx.x * PIXELS, cuda.blockIdx.y * FILTERS
    n = m0 // (O * P * Q)
    d = m0 // (P * Q) % O * geometry.stride_d - geometry.pad_d
    h = m0 // Q % P * geometry.stride_h - geometry.pad_h
    w = m0 % Q * geometry.stride_w - geometry.pad_w
    if thread == 0:
        hopper.barrier_init(arrived, 0, 1)
        hopper.publish_barriers()
    for i in range(ACC):
        acc[i] = float32(0.0)
    a_at, b_at = hopper.descriptor(tiles, 0, 0, 1024), hopper.descriptor(tiles, A_SIZE, 0, 1024)
    parity = uint32(0)
    for tap in range(T * R * S):
        for c in range(0, C, CHANNELS):
            # stage
            cuda.syncthreads()
            if thread == 0:
                t, r, s = tap // (R * S) * geometry.dilation_d, tap // S % R, tap % S
                r, s = r * geometry.dilation_h, s * geometry.dilation_w
                hopper.barrier_expect(arrived, 0, STAGE_BYTES)
                hopper.tma_load_im2col(tiles, 0, x_map, arrived, 0, n, d, h, w, c, t, r, s)
                hopper.tma_load2(tiles, A_SIZE, filt_map, arrived, 0, k0, tap * C + c)
            hopper.barrier_wait(arrived, 0, parity)
            parity = parity ^ uint32(1)

            # multiply
            hopper.wgmma_fence()
            for k in unrolled(4):
                hopper.wgmma_f16(acc, 0, tiles, a_at + uint64(2 * k), b_at + uint64(2 * k), FILTERS)
            hopper.wgmma_commit()
            hopper.wgmma_wait(0)

    # store
    lane = thread % uint32(32)
    for i in range(ACC):
        m = m0 + thread // uint32(32) * uint32(16) + lane // uint32(4) + i // 2 * 8
        k = k0 + lane % uint32(4) * uint32(2) + i % 2
        if m < y.shape[0] and k < y.shape[1]:
            y[m, k] = to_half(acc[i])


def launch(x, filt, y, geometry):
    N, O, P, Q, K = y.shape
    T, R, S, C = filt.shape[1:]
    pads = geometry.pad_d, geometry.pad_h, geometry.pad_w
    strides = geometry.stride_d, geometry.stride_h, geometry.stride_w
    dilations = geometry.dilation_d, geometry.dilation_h, geometry.dilation_w
    lower = [-pad for pad in pads]
    upper = [pads[i] - (T, R, S)[i] * dilations[i] + 1 for i in range(3)]
    x_map = MAPS.im2col(x, lower, upper, CHANNELS, PIXELS, strides)
    filt_map = MAPS.tiled(filt.reshape(K, T * R * S * C), (FILTERS, CHANNELS))
    grid = -(-N * O * P * Q // PIXELS), -(-K // FILTERS)
    flat = y.reshape(N * O * P * Q, K)
    hconv3d_corner_off_by_one[grid, THREADS, 0, STAGE_BYTES](x_map, filt_map, flat, C, (T, R, S), (O, P, Q), geometry)
