"""Which taps meet a pixel of dx, and at which output: a mask for each pixel, a table for the tiles of GEMM_K.

With d + pad_d = stride_d*a + b and t*dilation_d = stride_d*e + f, pixel d meets tap t at output a - e, if b == f.
"""

from typing import NamedTuple

import numpy as np
from numba import cuda, int32, int64, uint32

from lessons.toolkit.narrow import narrow
from lessons.toolkit.tiles import WORD, mask_words
from lessons.toolkit.unroll import inlined


@inlined
def divided(number, by):
    """What number // by is, and the rest that it leaves; unsigned, as signed division takes longer."""
    return int32(uint32(number) // uint32(by)), int32(uint32(number) % uint32(by))


@inlined
def mark_missed(masks, first, bit, taps, a, b, stride, dilation, extent):
    """Set the bit of each tap along one axis whose output is not one of `extent`; `bit` is that of the first tap.

    The row's mask begins at masks[first]; the pixel is stride * a + b from the edge of the padding.
    """
    e, f = divided(dilation, stride)
    for tap in range(taps):
        if b != 0 or a < 0 or a >= extent:
            masks[first + (bit + tap) // WORD] |= uint32(1) << uint32((bit + tap) % WORD)
        a, b = int32(a - e), int32(b - f)  # one tap on is a dilation back
        if b < 0:
            a, b = int32(a - 1), int32(b + stride)


class Pixels(NamedTuple):
    """Device functions: which pixels of dx, and which tiles of GEMM_K, belong to a block of rows."""

    # (block_m, extra): the part of dx that the block is of, that part's first block, tile, and tiles
    tiles_of: object
    pixel_of: object  # (number, inputs, part, extra): n, d, h and w of the part's row of this number


@inlined
def tiles_of(block_m, extra):
    return 0, 0, 0, extra


@inlined
@narrow
def pixel_of(number, inputs, part, extra):
    D, H, W = uint32(inputs[0]), uint32(inputs[1]), uint32(inputs[2])
    n, d = int64(number // (D * H * W)), int32(number // (H * W) % D)
    return n, d, int32(number // W % H), int32(number % W)


IN_ORDER = Pixels(tiles_of, pixel_of)  # all pixels, one after another, with all tiles


def tap_table(problem, taps, BLOCK_K):
    """A flat device array with an entry for each tile of GEMM_K, tap by tap, and two that lie beyond all filters.

    `taps` is an array [number, 3] of t, r and s. An entry is how far from a pixel's start its tile of dy begins,
    where its tile of the filter begins, how many filters are left there, and the bits of its t, r and s.
    """
    p, g = problem, problem.geometry
    t, r, s = (axis[:, None] for axis in taps.T)
    k = np.arange(0, p.K, BLOCK_K)[None]
    e_d, e_h, e_w = t * g.dilation_d // g.stride_d, r * g.dilation_h // g.stride_h, s * g.dilation_w // g.stride_w
    words = mask_words(p.T, p.R, p.S)
    table = np.zeros((len(taps) * k.size + 2, 3 + words), np.int64)
    table[:-2, 0] = (k - ((e_d * p.P + e_h) * p.Q + e_w) * p.K).ravel()
    table[:-2, 1] = (((k * p.T + t) * p.R + r) * p.S * p.C + s * p.C).ravel()
    table[:-2, 2] = np.broadcast_to(p.K - k, (len(taps), k.size)).ravel()
    entry = np.arange(len(taps) * k.size)
    for bit in (t, p.T + r, p.T + p.R + s):
        bit = np.broadcast_to(bit, (len(taps), k.size)).ravel()
        table[entry, 3 + bit // WORD] |= 1 << bit % WORD
    return cuda.to_device((table & 0xFFFFFFFF).astype(np.uint32).reshape(-1))


def all_taps(problem):
    """Every t, r and s, in the filter's order, as an array [T*R*S, 3]."""
    return np.indices((problem.T, problem.R, problem.S)).reshape(3, -1).T
