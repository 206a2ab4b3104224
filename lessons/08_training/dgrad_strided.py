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

import numpy as np
from numba import cuda, int32, int64, uint32

from lessons.toolkit.grid import partials_for
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


BY_RESTS = meeting_taps.Pixels(tiles_of, pixel_of)


def shipped(problem):
    """The tile that the problem runs with unless another is asked for: chosen for the taps that a pixel meets."""
    p, g = problem, problem.geometry
    met = max(1, p.reduction // (g.stride_d * g.stride_h * g.stride_w))
    return implicit_gemm.plan(p.N * p.D * p.H * p.W, p.C, met)


workspace = partials_for(shipped)


def rests(extent, pad, stride):
    """For each rest that (pixel + pad) / stride leaves: the first such pixel, and how many there are."""
    firsts = [(rest - pad) % stride for rest in range(stride)]
    return [(rest, first, len(range(first, extent, stride))) for rest, first in enumerate(firsts)]


def by_rests(problem, tile):
    """The taps [T*R*S, 3] in the order of the classes, the words of these, and their blocks of rows.

    A class has its first block, its pixels along d, h and w, the first of them along each, its first tile, and tiles.
    """
    p, g = problem, problem.geometry
    taps = meeting_taps.all_taps(p)
    left = taps * (g.dilation_d, g.dilation_h, g.dilation_w) % (g.stride_d, g.stride_h, g.stride_w)
    parts = []
    for rest_d, d, n_d in rests(p.D, g.pad_d, g.stride_d):
        for rest_h, h, n_h in rests(p.H, g.pad_h, g.stride_h):
            for rest_w, w, n_w in rests(p.W, g.pad_w, g.stride_w):
                met = taps[(left == (rest_d, rest_h, rest_w)).all(axis=1)]
                if n_d * n_h * n_w:
                    parts.append(((n_d, n_h, n_w), (d, h, w), met))
    parts.sort(key=lambda part: -len(part[2]))
    words, block, tiles = [], 0, 0
    for pixels, first, met in parts:
        number = len(met) * -(-p.K // tile["BLOCK_K"])
        words.append((block, *pixels, *first, tiles, number))
        block += -(-p.N * np.prod(pixels) // tile["BLOCK_M"])
        tiles += number
    return np.concatenate([met for _, _, met in parts]), np.array(words, np.int32), int(block)


def prepare(filt, problem, **tile):
    """As dgrad_implicit_gemm has it."""
    tile = {**shipped(problem), **tile}
    g = problem.geometry
    taps, parts, blocks_m = by_rests(problem, tile)
    table = meeting_taps.tap_table(problem, taps, tile["BLOCK_K"])
    step = g.stride_d, g.stride_h, g.stride_w
    return filt, table, (cuda.to_device(parts.reshape(-1)), step), blocks_m, tile


def launch(dy, prepared, dx, geometry, partials=None, **tile):
    implicit_gemm.launch(dy, prepared, dx, geometry, partials, BY_RESTS, **tile)
