"""dgrad_strided: pixels that meet the same taps are computed together, so no multiply-add is with zeros.

Previous step: dgrad_implicit_gemm
New idea: dx falls into stride_d * stride_h * stride_w classes of pixels, by the rest b of d + pad_d = stride_d*a + b.
    Pixels of a class all meet the same taps, and neighbours meet neighbouring outputs: a dense convolution with some
    of the taps. The kernel is dgrad_implicit_gemm's. A block of rows goes through the tiles of one class; all classes
    go in one launch, those with most taps first, so that the short ones fill the gaps at the end.
Loads per FMA: as before; but for each multiply-add with a zero there is none now.
Run: python -m lessons.08_training dgrad_strided
"""

import importlib
from math import prod

import numpy as np
from numba import cuda, int32, int64, uint32

from lessons.toolkit.narrow import narrow
from lessons.toolkit.unroll import inlined

implicit_gemm = importlib.import_module("lessons.08_training.dgrad_implicit_gemm")
meeting_taps = importlib.import_module("lessons.08_training.helpers.meeting_taps")
TUNABLES = implicit_gemm.TUNABLES
PART = 9  # words that describe a class of pixels of dx: see `by_rests`


@inlined
def tiles_of(block_m, extra):
    """The class of a block is the last that begins there or before."""
    parts, _ = extra
    part = int64(0)
    while part + PART < parts.size and block_m >= parts[part + PART]:
        part += PART
    return part, parts[part], parts[part + 7], parts[part + 8]


@inlined
@narrow
def pixel_of(number, inputs, part, extra):
    """Within a class pixels lie a stride apart."""
    parts, step = extra
    n_d, n_h, n_w = uint32(parts[part + 1]), uint32(parts[part + 2]), uint32(parts[part + 3])
    n = int64(number // (n_d * n_h * n_w))
    d = int32(number // (n_h * n_w) % n_d) * step[0] + parts[part + 4]
    h = int32(number // n_w % n_h) * step[1] + parts[part + 5]
    w = int32(number % n_w) * step[2] + parts[part + 6]
    return n, d, h, w


BY_RESTS = tiles_of, pixel_of
shipped, workspace = meeting_taps.planned(implicit_gemm.TILES, lambda problem: prod(problem.geometry[:3]))


def by_rests(problem, tile):
    """The taps [T*R*S, 3] in the order of the classes, the words of these, and their blocks of rows.

    A class has its first block, its pixels along d, h and w, the first of them along each, its first tile, and tiles.
    """
    p, taps, parts = problem, meeting_taps.all_taps(problem), []
    strides, pads, dilations = p.geometry[:3], p.geometry[3:6], p.geometry[6:]
    for rests in np.ndindex(*strides):
        first = [(rest - pad) % stride for rest, pad, stride in zip(rests, pads, strides, strict=True)]
        pixels = [len(range(*axis)) for axis in zip(first, (p.D, p.H, p.W), strides, strict=True)]
        if prod(pixels):
            parts.append((pixels, first, taps[(taps * dilations % strides == rests).all(axis=1)]))
    parts.sort(key=lambda part: -len(part[2]))
    words, block, tiles = [], 0, 0
    for pixels, first, met in parts:
        number = len(met) * -(-p.K // tile["BLOCK_K"])
        words.append((block, *pixels, *first, tiles, number))
        block += -(-p.N * prod(pixels) // tile["BLOCK_M"])
        tiles += number
    return np.concatenate([met for _, _, met in parts]), np.array(words, np.int32), block


def prepare(filt, problem, **tile):
    """As dgrad_implicit_gemm has it."""
    tile = {**shipped(problem), **tile}
    taps, parts, blocks_m = by_rests(problem, tile)
    table = meeting_taps.tap_table(problem, taps, tile["BLOCK_K"])
    return filt, table, (cuda.to_device(parts.reshape(-1)), problem.geometry[:3]), blocks_m, tile


def launch(dy, prepared, dx, geometry, partials=None, **tile):
    implicit_gemm.launch(dy, prepared, dx, geometry, partials, BY_RESTS, **tile)
