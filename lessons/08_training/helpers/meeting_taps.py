"""Which taps meet a pixel of dx, and at which output: a mask for each pixel, a table for the tiles of GEMM_K.

And the tile for a layer: `planned` gives a step what the harness calls.
"""

import importlib
from functools import lru_cache, partial

import numpy as np
from numba import cuda, int32, int64, uint32

from lessons.toolkit.grid import partials_for
from lessons.toolkit.narrow import narrow
from lessons.toolkit.pasted import pasted
from lessons.toolkit.tiles import WORD, mask_words
from lessons.toolkit.unroll import inlined

long_sums = importlib.import_module("lessons.08_training.helpers.long_sums")
BLOCK_K, GROUP_M = 8, 8  # the latter: rows of blocks that run together and share filters in L2
TUNABLES = {
    "BLOCK_M": (32, 64, 128), "BLOCK_N": (32, 64, 128), "BLOCK_K": (8, 16), "THREAD_M": (8, 16), "THREAD_N": (4, 8),
    "BLOCKS_PER_SM": (2, 4, 6, 16), "GROUP_M": (1, 8), "SPLIT_K": long_sums.SPLITS,
}  # fmt: skip


def planned(tiles, met=lambda problem: 1):
    """`shipped` and `workspace` of a step that takes one of these tiles; a pixel meets one of `met(problem)` taps."""
    plan = lru_cache(partial(long_sums.choose, tiles))

    def shipped(problem):
        """The tile that the problem runs with unless another is asked for."""
        p = problem
        found = plan(p.N * p.D * p.H * p.W, p.C, max(1, p.reduction // met(p)))
        return {**found, "BLOCK_K": BLOCK_K, "GROUP_M": GROUP_M}

    return shipped, partials_for(shipped)


@inlined
def divided(number, by):
    """What number // by is, and the rest that it leaves; unsigned, as signed division takes longer."""
    return int32(uint32(number) // uint32(by)), int32(uint32(number) % uint32(by))


@inlined
def mark_missed(masks, first, bit, taps, a, b, stride, dilation, extent):
    """Set the bit of each tap along one axis whose output is not one of `extent`; `bit` is that of the first tap.

    The row's mask begins at masks[first]; a, b: see dgrad_implicit_gemm.
    """
    e, f = divided(dilation, stride)
    for tap in range(taps):
        if b != 0 or a < 0 or a >= extent:
            masks[first + (bit + tap) // WORD] |= uint32(1) << uint32((bit + tap) % WORD)
        a, b = int32(a - e), int32(b - f)  # one tap on is a dilation back
        if b < 0:
            a, b = int32(a - 1), int32(b + stride)


def meeting(WORDS):
    """Build the device function that says where a pixel meets dy, and which taps miss; masks have WORDS words."""

    @pasted
    @narrow
    def begin_row(starts, pixels, masks, row, pixel, inputs, dy, filt, geometry):
        """starts[row]: where in dy tap (0, 0, 0) meets the pixel, beyond dy if all miss. pixels[row]: its number."""
        N, O, P, Q, K = dy.shape
        _, T, R, S, _ = filt.shape
        (n, d, h, w), (D, H, W) = pixel, inputs
        a_d, b_d = divided(d + geometry.pad_d, geometry.stride_d)
        a_h, b_h = divided(h + geometry.pad_h, geometry.stride_h)
        a_w, b_w = divided(w + geometry.pad_w, geometry.stride_w)
        starts[row] = (((n * O + a_d) * P + a_h) * Q + a_w) * K
        pixels[row] = uint32(((n * D + d) * H + h) * W + w) if n < N else uint32(N * D * H * W)
        for word in range(WORDS):
            masks[row * WORDS + word] = 0 if n < N else 0xFFFFFFFF
        masks[row * WORDS + WORDS - 1] |= 1 << WORD - 1  # beyond the last filter
        mark_missed(masks, row * WORDS, 0, T, a_d, b_d, geometry.stride_d, geometry.dilation_d, O)
        mark_missed(masks, row * WORDS, T, R, a_h, b_h, geometry.stride_h, geometry.dilation_h, P)
        mark_missed(masks, row * WORDS, T + R, S, a_w, b_w, geometry.stride_w, geometry.dilation_w, Q)

    return begin_row


@inlined
def tiles_of(block_m, extra):
    """The part of dx that a block of rows is of, that part's first block, first tile of GEMM_K, and tiles."""
    return 0, 0, 0, extra


@inlined
@narrow
def pixel_of(number, inputs, part, extra):
    """n, d, h and w of the part's row of this number."""
    D, H, W = uint32(inputs[0]), uint32(inputs[1]), uint32(inputs[2])
    n, d = int64(number // (D * H * W)), int32(number // (H * W) % D)
    return n, d, int32(number // W % H), int32(number % W)


IN_ORDER = tiles_of, pixel_of  # all pixels, one after another, with all tiles


def tap_table(problem, taps, BLOCK_K):
    """A flat device array with an entry for each tile of GEMM_K, tap by tap of `taps` [n, 3], and two beyond all.

    An entry is how far from a pixel's start its tile of dy begins, where its tile of the filter begins, how many
    filters are left there, and the bits of its t, r and s.
    """
    p, k = problem, np.arange(0, problem.K, BLOCK_K)
    e = taps * p.geometry[6:] // p.geometry[:3]
    taps, tile = np.repeat(taps, k.size, axis=0), np.tile(k, len(taps))
    table = np.zeros((len(taps) + 2, 3 + mask_words(p.T, p.R, p.S)), np.int64)
    table[:-2, 0] = tile - np.repeat(e @ (p.P * p.Q, p.Q, 1), k.size) * p.K
    table[:-2, 1] = (tile * p.T * p.R * p.S + taps @ (p.R * p.S, p.S, 1)) * p.C
    table[:-2, 2] = p.K - tile
    for bit in np.add(taps, (0, p.T, p.T + p.R)).T:
        table[np.arange(len(taps)), 3 + bit // WORD] |= 1 << bit % WORD
    return cuda.to_device((table & 0xFFFFFFFF).astype(np.uint32).reshape(-1))


def all_taps(problem):
    """Every t, r and s, in the filter's order, as an array [T*R*S, 3]."""
    return np.indices((problem.T, problem.R, problem.S)).reshape(3, -1).T
