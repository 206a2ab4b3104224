"""Shapes that nobody chose: drawn from a seed; and those of `check --full`, where all pairs of conditions occur."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from common.catalog import store
from common.catalog.problems import LADDERS, Conv2d, Conv3d, Convolution, Gemm, Problem, on_ladder, parse_shape

MAX_GRID_YZ = 65535  # blocks of a grid along y and z
REFUSABLE_WEIGHT_BYTES = 64 << 10  # of constant memory
LARGEST_DRAWN = 1 << 17  # multiply-adds of a shape of `check --full` that is run without a GPU
FEW = 4  # multiprocessors of the small GPU that :func:`on_small_card` is for
MANY = 17_160  # rows of outputs: more tiles than an H200 has multiprocessors

MOST = 1 << 16  # multiply-adds of a drawn shape without a GPU
MOST_TERMS = 1 << 10  # of a sum without a GPU: a term comes after the one before
_FAR = 4096  # the longest extent
_ROUND = sorted({2**a * 3**b for a in range(13) for b in range(8) if 2**a * 3**b <= _FAR})
_MOST_WEIGHTS = 1 << 14  # what constant memory holds, beyond which a step may refuse; gathering them takes long

_LISTS = Path(__file__).with_name("full.toml")


def ordinary(problem: Problem) -> bool:
    """Must every step take this shape? One that refuses it is not right.

    Beyond it lie filters that fill constant memory (64 KiB), and extents of more than 65,535.
    """
    if max(problem.shape().values()) > MAX_GRID_YZ:
        return False
    weight_bytes = math.prod(problem.weight_shape) * problem.weight_dtype.itemsize
    return problem.form not in ("conv2d", "conv3d") or weight_bytes <= REFUSABLE_WEIGHT_BYTES


def multiply_adds(problem: Problem) -> int:
    """Multiply-adds of the definition."""
    return problem.flops // 2


# --- drawn ---


def drawn(ladder: str, seed: int, count: int, most: int = MOST, terms: int = MOST_TERMS) -> tuple[Problem, ...]:
    """``count`` shapes of at most ``most`` multiply-adds each, and ``terms`` of a sum; the same for the same seed.

    Every extent is drawn log-uniformly, so that 3 is as likely as 3,000 where the other axes are short. Half of them
    are then made products of 2 and 3, or such a product and one more or less, as tiles and vectors are; now and then
    two are made equal.
    """
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


def _draw_extent(rng: random.Random, most: float) -> int:
    """Log-uniform up to ``most``."""
    most = min(max(most, 1), _FAR)
    value = int(math.exp(rng.uniform(0, math.log(most + 1))))
    if rng.random() < 0.5:
        value = max(one for one in _ROUND if one <= value) + rng.choice((-1, 0, 0, 0, 1))
    return max(1, min(value, int(most)))


def _draw_extents(rng: random.Random, count: int, most: float) -> list[int]:
    """``count`` of them whose product is at most ``most``, none before the others; perhaps two are equal."""
    found: list[int] = []
    for _ in range(count):
        found.append(_draw_extent(rng, most / math.prod(found)))
    if count > 1 and rng.random() < 0.2:
        found[1] = found[0] = min(found[:2])
    rng.shuffle(found)
    return found


def _draw_gemm(rng: random.Random, most: int) -> Problem:
    return Gemm(**dict(zip("MNK", _draw_extents(rng, 3, most), strict=True)))


def _draw_taps(rng: random.Random, count: int) -> list[int]:
    """Of a filter along each axis: mostly few, or as many along one axis as along the others."""
    if rng.random() < 0.4:
        return [rng.choice((1, 2, 3, 3, 5, 7))] * count
    return [_draw_extent(rng, rng.choice((3, 8, 40))) for _ in range(count)]


def _draw_conv2d(rng: random.Random, most: int) -> Problem:
    r, s = _draw_taps(rng, 2)
    n, c, k, p, q = _draw_extents(rng, 5, most / (r * s))
    return Conv2d(N=n, C=c, H=p + r - 1, W=q + s - 1, K=k, R=r, S=s)


def _draw_conv3d(rng: random.Random, most: int) -> Problem | None:
    taps = _draw_taps(rng, 3)
    if rng.random() < 0.5:
        taps[0] = 1
    *outs, n, c, k = _draw_extents(rng, 6, most / math.prod(taps))
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


_DRAW = {"gemm": _draw_gemm, "conv2d": _draw_conv2d} | dict.fromkeys(("conv3d", "dgrad", "wgrad"), _draw_conv3d)


# --- the lists of full.toml ---


def listed(name: str, ladder: str) -> tuple[Problem, ...]:
    """The shapes that ``full.toml`` has under this name for a ladder; none if it has no list for it."""
    form, lists = LADDERS[ladder].form, _lists()[name]
    gradients = ("gradients",) if form in ("dgrad", "wgrad") else ()
    convolutions = ("convolutions",) if issubclass(LADDERS[ladder], Convolution) else ()
    texts: list[str] = next((lists[key] for key in (ladder, form, *gradients, *convolutions) if key in lists), [])
    return tuple(parse_shape(ladder, text) for text in texts)


@lru_cache
def _lists() -> dict[str, Any]:
    return store.read_toml(_LISTS)


wide = partial(listed, "wide")
large = partial(listed, "large")
copied = partial(listed, "copied")
rounded = partial(listed, "rounded")
long_sums = partial(listed, "long_sums")
on_small_card = partial(listed, "small_card")
layers = partial(listed, "layers")
familiar = partial(listed, "familiar")
twins = partial(listed, "twins")
covering = partial(listed, "covering")


def tiled(ladder: str) -> tuple[Problem, ...]:
    """Shapes that fill tiles and pipelines, those for a copy engine last."""
    return *listed("tiled", ladder), *copied(ladder)


# Axes that blocks seldom lie along y or z of a grid for: filters, and what threads take side by side.
_SELDOM = {"gemm": "N", "conv2d": "KW", "conv3d": "KW", "dgrad": "CW", "wgrad": "NHW"}


def narrow(problem: Problem) -> Problem:
    """A shape of :func:`wide`; 1,025 in place of its long extent if a grid seldom needs y or z for that.

    Without a GPU a thread's loop over 65,537 filters takes half a minute.
    """
    long = {key: 1025 for key in _SELDOM[problem.form] if getattr(problem, key) > MAX_GRID_YZ}
    return replace(problem, **long)
