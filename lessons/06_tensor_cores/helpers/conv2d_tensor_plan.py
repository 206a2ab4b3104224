"""conv2d_tensor_core: the constants of the kernel for a shape, and the taps in the order in which lanes read them."""

from functools import lru_cache

import numpy as np
from numba import cuda

from lessons.toolkit import card
from lessons.toolkit.memory import VECTOR
from lessons.toolkit.tiles import ceil_div, even, multiple

MMA_M, MMA_N, MMA_K = 16, 8, 8  # pixels, filters and k that one instruction multiplies
ACROSS = 6  # warps of a block that is one warp high
MOST_R = 7  # rows of a filter whose taps are in registers together
SHARED_BYTES = 100 * 1024  # of a block, at most; less where two would not be resident


@lru_cache
def plan(C, H, W, K, R, S, FILTERS, WARPS, ROWS):
    """The constants of the kernel for a shape, for the largest block that the card has shared memory for."""
    choices = (FILTERS, WARPS, ACROSS), (8, WARPS, ACROSS), (8, 1, 1)  # smaller where a filter has many taps

    def takes(tile):
        return 4 * (tile["FLOATS"] + multiple(tile["CHANNELS"] * S, MMA_K))  # bytes, with its table of offsets

    tile = card.largest([constants_of(C, H, W, K, R, S, ROWS, *choice) for choice in choices], takes)
    if takes(tile) > card.shared_bytes():
        has = f"the card has {card.shared_bytes()}"
        raise ValueError(f"filter R={R} S={S}: its taps take a block {takes(tile)} bytes of shared memory, {has}")
    return tile


def constants_of(C, H, W, K, R, S, ROWS, FILTERS, WARPS, ACROSS):
    """The same for one choice: a block computes PIXELS columns of HEIGHT rows of all its filters."""
    P, Q = H - R + 1, W - S + 1
    groups = ceil_div(K, FILTERS)
    TILES = ceil_div(ceil_div(K, groups), MMA_N)  # of filters
    warps_q = even(ceil_div(Q, MMA_M), ACROSS)
    rows = even(P, ROWS)
    warps_p = min(max(1, WARPS // warps_q), ceil_div(P, rows))
    PARTS = ceil_div(R, MOST_R)
    PART_R = ceil_div(R, PARTS)
    QUADS = ceil_div(PART_R * TILES * 2, VECTOR)  # 128-bit pieces of taps that a lane reads for eight k
    PIXELS, HEIGHT = warps_q * MMA_M, warps_p * rows
    WIDTH = PIXELS + S - 1  # of the image, staged
    LINES = HEIGHT + PARTS * PART_R - 1
    CHANNEL = multiple(WIDTH * LINES, 32) + 16  # floats from one channel to the next: half of the banks apart

    def floats(channels):
        return CHANNEL * channels + PARTS * ceil_div(channels * S, MMA_K) * QUADS * 32 * VECTOR

    most = min(SHARED_BYTES, card.shared_bytes(2))
    CHANNELS = even(C, max([1, *(c for c in range(1, C + 1) if 4 * floats(c) <= most)]))
    return {
        "TILES": TILES, "WARPS_Q": warps_q, "WARPS_P": warps_p, "ROWS": rows, "PARTS": PARTS, "PART_R": PART_R,
        "QUADS": QUADS, "CHANNELS": CHANNELS, "WIDTH": WIDTH, "LINES": LINES, "CHANNEL": CHANNEL,
        "FLOATS": floats(CHANNELS),
    }  # fmt: skip


def rounded(taps):
    """Taps as TF32 has them. NaN stays NaN: one of all ones would wrap to -0."""
    bits = (taps.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return np.where(np.isnan(taps), taps, bits.view(np.float32))


def packed(filt, TILES, PARTS, PART_R, QUADS, CHANNELS, **_):
    """The taps, rounded, in the order in which lanes read them: by group of filters, chunk, part, eight k."""
    K, C, R, S = filt.shape
    groups, chunks, steps = ceil_div(K, TILES * MMA_N), ceil_div(C, CHANNELS), ceil_div(CHANNELS * S, MMA_K)
    taps = np.zeros((groups * TILES * MMA_N, chunks * CHANNELS, PARTS * PART_R, S), np.float32)
    taps[:K, :C, :R] = rounded(filt.copy_to_host())
    taps = taps.reshape(groups, TILES, MMA_N, chunks, CHANNELS, PARTS, PART_R, S)
    taps = taps.transpose(0, 3, 5, 6, 1, 2, 4, 7).reshape(groups, chunks, PARTS, PART_R, TILES, MMA_N, CHANNELS * S)
    whole = np.zeros((*taps.shape[:-1], steps * MMA_K), np.float32)
    whole[..., : CHANNELS * S] = taps
    # lane 4 * group + member holds k = member and member + 4 of filter `group`
    lanes = whole.reshape(groups, chunks, PARTS, PART_R, TILES, MMA_N, steps, 2, 4).transpose(
        0, 1, 2, 6, 5, 8, 3, 4, 7
    )
    lanes = lanes.reshape(groups, chunks, PARTS, steps, 32, PART_R * TILES * 2)
    pieces = np.zeros((*lanes.shape[:-1], QUADS * VECTOR), np.float32)
    pieces[..., : PART_R * TILES * 2] = lanes
    pieces = pieces.reshape(groups, chunks, PARTS, steps, 32, QUADS, VECTOR).swapaxes(4, 5)
    return cuda.to_device(np.ascontiguousarray(pieces).reshape(-1))
