"""The lesson's kernel, given tensor maps of corners and strides that the engine knows."""

import importlib

from lessons.toolkit.maps import Maps
from lessons.toolkit.memory import aligned

step = importlib.import_module("lessons.07_hopper.hconv3d_im2col")

REQUIRES = "9.0a"
prepare = step.prepare
TILE = {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 64, "CONSUMERS": 2, "RESIDENT": 0}
MAPS = Maps()


def launch(x, prepared, y, geometry):
    filt, _ = prepared
    N, O, P, Q, K = y.shape
    T, R, S, C = filt.shape[1:]
    lower, upper, strides, reach = step.planning.corners(geometry, (T, R, S))
    if not (min(lower) >= -16 and max(reach) <= 16 and max(strides) <= 8 and aligned(x, filt, y)):
        return step.unaligned.launch(x, prepared, y, geometry)
    x_map = MAPS.im2col(x, lower, upper, TILE["BLOCK_K"], TILE["BLOCK_M"], strides)
    filt_map = MAPS.tiled(filt.reshape(K, T * R * S * C), (TILE["BLOCK_N"], TILE["BLOCK_K"]))
    y_map = MAPS.tiled(y.reshape(N * O * P * Q, K), (step.WARP_M, step.FP16.row))
    kernel, threads, shared_bytes = step.specialise(**TILE)
    blocks = -(-N * O * P * Q // TILE["BLOCK_M"]) * -(-K // TILE["BLOCK_N"])
    extents = (N * O * P * Q, K, C), (T, R, S), (O, P, Q)
    kernel[min(blocks, 132), threads, 0, shared_bytes](x_map, filt_map, y_map, *extents, geometry)
