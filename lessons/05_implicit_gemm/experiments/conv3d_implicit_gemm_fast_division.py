"""conv3d_implicit_gemm_fast_division: conv3d_implicit_gemm whose divisions are a multiplication and two shifts.

Variant of: conv3d_implicit_gemm
New idea: the divisors are extents, the same for all threads and known before the launch. So the host works out, once
    for each, a multiplier and two shifts that divide any 32-bit number by it (Granlund and Montgomery, PLDI 1994;
    Hacker's Delight, chapter 10). CUTLASS does so in its FastDivmod. The loads still work out every coordinate: this
    stands between the step and conv3d_implicit_gemm_precomputed, which needs no coordinates.
Loads per FMA: as before; a division takes 5 instructions instead of about 20.
Run: python -m lessons.05_implicit_gemm conv3d_implicit_gemm_fast_division
"""

import importlib
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numba import int32, uint32, uint64

from lessons.toolkit.unroll import inlined

analytic = importlib.import_module("lessons.05_implicit_gemm.conv3d_implicit_gemm")
TILES, TUNABLES, shipped, workspace = analytic.TILES, analytic.TUNABLES, analytic.shipped, analytic.workspace


class Divisor(NamedTuple):
    """What divides a 32-bit number by `value`: see `divide`."""

    value: np.uint32
    multiplier: np.uint32
    first_shift: np.uint32
    second_shift: np.uint32


@lru_cache
def divisor(value):
    """The constants for a divisor of 32 bits. 2**32 + multiplier, over 2**bits, is just above 2**32 / value."""
    bits = (value - 1).bit_length()  # 2**bits is the first power of two from the divisor on
    multiplier = 2**32 * (2**bits - value) // value + 1
    return Divisor(*map(np.uint32, (value, multiplier, min(bits, 1), max(bits - 1, 0))))


@inlined
def divide(number, by):
    """number // by.value: (number * (2**32 + multiplier)) >> (32 + bits), which takes 33 bits, in 32."""
    high = uint32((uint64(number) * uint64(by.multiplier)) >> uint64(32))
    return uint32(uint32(high + (uint32(number - high) >> by.first_shift)) >> by.second_shift)


@inlined
def digits(number, by):
    """The number's digits in a mixed base of three divisors, lowest first."""
    high = divide(number, by[0])
    higher = divide(high, by[1])
    highest = divide(higher, by[2])
    low, middle = number - high * by[0].value, high - higher * by[1].value
    upper = higher - highest * by[2].value
    return int32(low), int32(middle), int32(upper), int32(highest)


@inlined
def begin_tile(here, gemm_k, layer):
    here[0], here[1], here[2], here[3] = digits(uint32(gemm_k), layer.extra[1])


@inlined
def of_x(rows, row, here, gemm_m, layer):
    x, filt, _, geometry, extra = layer
    N, D, H, W, C = x.shape
    c, s, r, t = int32(here[0]), int32(here[1]), int32(here[2]), int32(here[3])
    q, p, o, n = digits(gemm_m, extra[0])
    d = o * geometry.stride_d - geometry.pad_d + t * geometry.dilation_d
    h = p * geometry.stride_h - geometry.pad_h + r * geometry.dilation_h
    w = q * geometry.stride_w - geometry.pad_w + s * geometry.dilation_w
    inside = n < N and t < filt.shape[1] and 0 <= d < D and 0 <= h < H and 0 <= w < W
    return uint32((((n * D + d) * H + h) * W + w) * C + c), inside


ITERATOR = analytic.ANALYTIC._replace(begin_tile=begin_tile, of_x=of_x)


def launch(x, filt, y, geometry, partials=None, **tile):
    _, O, P, Q, K = y.shape
    _, T, R, S, C = filt.shape
    tile = {**analytic.plan(y.size // K, K, filt.size // K, C), **tile}
    divisors = tuple(tuple(map(divisor, extents)) for extents in ((Q, P, O), (C, S, R)))
    analytic.multiply(ITERATOR, x, filt, y, geometry, divisors, partials, **tile)
