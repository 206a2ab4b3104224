"""Shapes that nobody chose: drawn from a seed, far out on any axis, as far as the work allows.

Every extent is drawn log-uniformly, so that 3 is as likely as 3,000 where the other axes are short. Half of them are
then made products of 2 and 3, or such a product and one more or less, as tiles and vectors are; now and then two are
made equal.
"""

from __future__ import annotations

import math
import random

from common.catalog.problems import LADDERS, Conv2d, Conv3d, Gemm, Problem, on_ladder

MOST = 1 << 16  # multiply-adds of a shape without a GPU
MOST_TERMS = 1 << 10  # of a sum without a GPU: a term comes after the one before
_FAR = 4096  # the longest extent
_ROUND = sorted({2**a * 3**b for a in range(13) for b in range(8) if 2**a * 3**b <= _FAR})


def drawn(ladder: str, seed: int, count: int, most: int = MOST, terms: int = MOST_TERMS) -> tuple[Problem, ...]:
    """``count`` shapes of at most ``most`` multiply-adds each, and ``terms`` of a sum; the same for the same seed."""
    rng, draw = random.Random(seed), _DRAW[LADDERS[ladder].form]
    found: list[Problem] = []
    while len(found) < count:
        problem = draw(rng, most)
        if problem is None:
            continue
        problem = on_ladder(ladder, problem)
        weights = math.prod(problem.weight_shape)
        if problem.flops <= 2 * most and problem.reduction <= terms and weights <= _MOST_WEIGHTS:
            found.append(problem)
    return tuple(found)


_MOST_WEIGHTS = 1 << 14  # what constant memory holds, beyond which a step may refuse; and gathering them takes long


def _extent(rng: random.Random, most: float) -> int:
    """Log-uniform up to ``most``."""
    most = min(max(most, 1), _FAR)
    value = int(math.exp(rng.uniform(0, math.log(most + 1))))
    if rng.random() < 0.5:
        value = max(one for one in _ROUND if one <= value) + rng.choice((-1, 0, 0, 0, 1))
    return max(1, min(value, int(most)))


def _extents(rng: random.Random, count: int, most: float) -> list[int]:
    """``count`` of them whose product is at most ``most``, none before the others; perhaps two are equal."""
    found: list[int] = []
    for _ in range(count):
        found.append(_extent(rng, most / math.prod(found)))
    if count > 1 and rng.random() < 0.2:
        found[1] = found[0] = min(found[:2])
    rng.shuffle(found)
    return found


def _gemm(rng: random.Random, most: int) -> Problem:
    return Gemm(**dict(zip("MNK", _extents(rng, 3, most), strict=True)))


def _taps(rng: random.Random, count: int) -> list[int]:
    """Of a filter along each axis: mostly few, or as many along one axis as along the others."""
    if rng.random() < 0.4:
        return [rng.choice((1, 2, 3, 3, 5, 7))] * count
    return [_extent(rng, rng.choice((3, 8, 40))) for _ in range(count)]


def _conv2d(rng: random.Random, most: int) -> Problem:
    r, s = _taps(rng, 2)
    n, c, k, p, q = _extents(rng, 5, most / (r * s))
    return Conv2d(N=n, C=c, H=p + r - 1, W=q + s - 1, K=k, R=r, S=s)


def _conv3d(rng: random.Random, most: int) -> Problem | None:
    taps = _taps(rng, 3)
    if rng.random() < 0.5:
        taps[0] = 1
    *outs, n, c, k = _extents(rng, 6, most / math.prod(taps))
    options: dict[str, int] = {}
    plain = rng.random() < 0.25
    for axis, extent, name, count, out in zip("dhw", "DHW", "TRS", taps, outs, strict=True):
        stride, dilation = (1, 1) if plain else (rng.choice((1, 1, 1, 2, 2, 3, 4, 5)), rng.choice((1, 1, 1, 2, 3, 4)))
        pad = rng.choice((0, count // 2, rng.randrange(6)))
        reach = (count - 1) * dilation + 1
        length = (out - 1) * stride + reach - 2 * pad + rng.randrange(stride)
        if length < 1:
            return None
        options |= {
            extent: length, name: count, f"stride_{axis}": stride, f"pad_{axis}": pad, f"dilation_{axis}": dilation
        }  # fmt: skip
    return Conv3d(N=n, C=c, K=k, **options)


_DRAW = {"gemm": _gemm, "conv2d": _conv2d} | dict.fromkeys(("conv3d", "dgrad", "wgrad"), _conv3d)
