"""Which shapes a step is checked at: so many that every pair of conditions that trip kernels up occurs together.

A condition is what a mistake depends on: an extent is one, a multiple of a tile or one off it, wider than a tile,
equal to another extent; a stride, padding or dilation along an axis. ``covering`` chooses shapes until every pair of
conditions that can occur together does (pairwise testing: Kuhn, Wallace and Gallo 2004, doi:10.1109/TSE.2004.24);
``drawn`` takes others anew from a seed; ``wide`` has more blocks along an axis than a grid holds along y and z;
``twins`` are shapes that a cache by array shapes or sizes takes for one another; ``tiled`` are large enough for whole
tiles of tensor cores and all stages of a pipeline; ``familiar`` are those that a kernel may have a path of its own
for, ``kin`` what is akin to them; ``long_sums`` show on normals how precise sums are that a bound tells little of.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from heapq import heapify, heapreplace
from itertools import combinations

from common.catalog.problems import LADDERS, Conv2d, Conv3d, Convolution, Gemm, Problem, on_ladder

# Extents around the tiles in use, and some beside them.
_EDGES = (7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)
_FEW = (1, 2, 3, 4, 5, 6)
_TILES = (4, 8, 16, 32, 64, 128)
_POOL = 3000  # candidates that are chosen from
_OVERHEAD = 60_000  # multiply-adds that a launch of any shape costs
_SERIAL = 500  # multiply-adds that a term of the sum costs: it comes after the one before

MAX_GRID_YZ = 65535
DRAWN = 4  # shapes drawn anew at each check
KIN = 3  # shapes that are akin to familiar ones, drawn anew at each check
LARGEST_DRAWN = 1 << 17  # multiply-adds of a shape that is run without a GPU
# What a step may refuse: weights beyond constant memory, and extents that no 16-bit number holds.
REFUSABLE_WEIGHT_BYTES = 64 << 10


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


# --- conditions ---


def conditions(problem: Problem) -> frozenset[str]:
    """The conditions of a shape, by name; those that a question mark ends occur once, the others pairwise, too."""
    return frozenset(_CONDITIONS[problem.form](problem))


def _extent(name: str, value: int, tiles: tuple[int, ...], others: tuple[int, ...], many: int) -> Iterator[str]:
    """What an extent is to the usual ``tiles``, to ``others``, and whether it makes ``many`` of anything."""
    if value == 1:
        yield f"{name}=1"
    if value > many:
        yield f"{name}>{many}"
    for size, mark in (*((tile, "") for tile in tiles), *((other, "?") for other in others)):
        if value % size == 0:
            yield f"{name}%{size}=0{mark}"
        elif value > size and value % size == 1:
            yield f"{name}%{size}=1{mark}"
        elif value % size == size - 1 > 3:
            yield f"{name}%{size}=-1{mark}"
        if value > size:
            yield f"{name}>{size}?"


def _equal(**extents: int) -> Iterator[str]:
    for (a, first), (b, second) in combinations(extents.items(), 2):
        if first == second > 1:
            yield f"{a}={b}"


def _gemm(problem: Problem) -> Iterator[str]:
    assert isinstance(problem, Gemm)
    extents = {"M": problem.M, "N": problem.N, "K": problem.K}
    for name, value in extents.items():
        yield from _extent(name, value, (4, 16, 32), (8, 64, 128, 256), many=32)
        if value > 70:
            yield f"{name}>70?"
        if value > 256:  # with another long one, tiles are many on both axes
            yield f"{name}>256"
    yield from _equal(**extents)
    for tile in _TILES:
        if all(value % tile == 0 for value in extents.values()):
            yield f"all%{tile}=0?"


def _filter(**taps: int) -> Iterator[str]:
    for name, value in taps.items():
        yield f"{name}={value}?" if value < 6 else f"{name}>5?"
        yield f"{name}>1" if value > 1 else f"{name}=1"
    if len(set(taps.values())) == 1:
        yield "equal taps"
        yield "x".join(str(value) for value in taps.values()) + "?"


def _conv2d(problem: Problem) -> Iterator[str]:
    assert isinstance(problem, Conv2d)
    N, C, K, R, S, P, Q = (getattr(problem, name) for name in "NCKRSPQ")
    yield from _extent("C", C, (4,), (2, 8, 16, 32, 64), many=2)
    yield from _extent("K", K, (4,), (2, 8, 16, 32, 64), many=3)
    yield from _extent("N", N, (2,), (4, 8), many=3)
    yield from _extent("P", P, (16,), (4, 8, 32, 64), many=16)
    yield from _extent("Q", Q, (16,), (4, 8, 32, 64), many=16)
    # with another of these, blocks are many on several axes
    for name, value, many in (("C", C, 16), ("K", K, 32), ("pixels", P * Q, 256)):
        if value > many:
            yield f"{name}>{many}, many"
    yield from _filter(R=R, S=S)
    yield from _equal(N=N, C=C, K=K)
    yield from _equal(H=problem.H, W=problem.W)
    yield from _equal(P=P, Q=Q)
    if R == S:
        yield f"{R}x{S} and C>8?" if C > 8 else f"{R}x{S} and K>8?" if K > 8 else f"{R}x{S}?"
    yield from (f"{pair}?" for pair in _equal(N=N, C=C, K=K, H=problem.H, W=problem.W, R=R, S=S))


def _conv3d(problem: Problem) -> Iterator[str]:
    """Of a matrix of N * O*P*Q rows and K columns."""
    yield from _matrix(problem, "OPQ", C=2, K=32)
    yield from _extent("rows", math.prod(problem.output_shape[:4]), (), (16, 32, 64, 128), many=64)


def _dgrad(problem: Problem) -> Iterator[str]:
    """Of a matrix of N * D*H*W rows and C columns."""
    assert isinstance(problem, Convolution)
    yield from _matrix(problem, "DHW", C=32, K=2)
    yield from _extent("rows", math.prod(problem.x_shape[:4]), (), (16, 32, 64, 128), many=64)
    yield from _residues(problem)


def _wgrad(problem: Problem) -> Iterator[str]:
    """Of a matrix of K rows and T*R*S*C columns, each a sum of N * O*P*Q."""
    assert isinstance(problem, Convolution)
    yield from _matrix(problem, "OPQ", C=2, K=32)
    yield from _extent("columns", math.prod(problem.filt_shape[1:]), (), (16, 32, 64, 128), many=64)
    yield from _extent("sum", problem.reduction, (), (8, 16, 32, 64, 128, 256), many=64)


def _matrix(problem: Problem, space: str, **many: int) -> Iterator[str]:
    """Channels, filters, of which so many are ``many``, images, extents in ``space``, filter and geometry."""
    assert isinstance(problem, Convolution)
    for name, value in many.items():
        yield from _extent(name, getattr(problem, name), (4,), (8, 16, 32, 64), many=value)
    yield from _extent("N", problem.N, (2,), (), many=3)
    for name in space:
        yield from _extent(name, getattr(problem, name), (), (2, 4, 8, 16), many=3)
    yield from _window(problem)


def _residues(problem: Convolution) -> Iterator[str]:
    """What a stride does to the taps that an element of dx has, and to the elements that have none."""
    for axis, extent, taps, outs in zip("dhw", "DHW", "TRS", "OPQ", strict=True):
        stride, pad, dilation = (getattr(problem, f"{what}_{axis}") for what in ("stride", "pad", "dilation"))
        reach = (getattr(problem, taps) - 1) * dilation + 1
        if stride > 1:
            yield f"{extent}%stride={getattr(problem, extent) % stride}?"
            yield f"pad_{axis}%stride={pad % stride}?"
            if getattr(problem, taps) > 1:  # with stride and dilation of one divisor, some residues have no taps
                yield f"stride_{axis}, dilation_{axis}{'' if math.gcd(stride, dilation) > 1 else ' coprime'}?"
        if getattr(problem, taps) < stride:
            yield f"fewer taps than stride_{axis}"
        if (getattr(problem, outs) - 1) * stride + reach < getattr(problem, extent) + pad:
            yield f"{extent} ends beyond the last window?"


def _window(problem: Convolution) -> Iterator[str]:
    """Filter and geometry, and what is equal."""
    N, C, K, T, R, S, P, Q = (getattr(problem, name) for name in "NCKTRSPQ")
    for name, value in (("T", T), ("R", R), ("S", S)):
        yield f"{name}={value}?"
    if T == R == S:
        yield f"{T}x{R}x{S} and C>8" if C > 8 else f"{T}x{R}x{S}"
    yield from _equal(C=C, K=K)
    yield from _equal(P=P, Q=Q)
    plain = True
    for axis, taps in (("d", T), ("h", R), ("w", S)):
        stride, pad, dilation = (getattr(problem, f"{what}_{axis}") for what in ("stride", "pad", "dilation"))
        plain = plain and (stride, pad, dilation) == (1, 0, 1)
        if stride > 1:
            yield f"stride_{axis}"
            yield f"stride_{axis}={stride}?"
        if pad:
            yield f"pad_{axis}"
        if pad >= taps:
            yield f"pad_{axis}>=taps?"
        if taps == 1 and stride > 1:
            yield f"one tap, stride_{axis}?"
        if taps > 1 and dilation > 1:
            yield f"dilation_{axis}"
            yield f"dilation_{axis}={dilation}?"
            if pad > 1:
                yield f"pad_{axis}>1, dilation_{axis}?"
    if plain:
        yield "plain"
    yield from (f"{pair}?" for pair in _equal(N=N, C=C, K=K, D=problem.D, H=problem.H, W=problem.W, R=R, S=S))


_CONDITIONS: dict[str, Callable[[Problem], Iterator[str]]] = {
    "gemm": _gemm, "conv2d": _conv2d, "conv3d": _conv3d, "dgrad": _dgrad, "wgrad": _wgrad,
}  # fmt: skip


# --- drawing ---


def draw(ladder: str, rng: random.Random, most: int = LARGEST_DRAWN) -> Problem:
    """A shape of at most ``most`` multiply-adds, each condition about as likely as another.

    Sums are short besides: a term comes after the one before.
    """
    while True:
        drawn = _DRAW[LADDERS[ladder].form](rng)
        if drawn is None:
            continue
        problem = on_ladder(ladder, drawn)
        if multiply_adds(problem) <= most and problem.reduction <= most >> 8:
            return problem


def _some(rng: random.Random, *more: int, largest: int = 129) -> int:
    """An extent: few, near a tile, or anything."""
    kind = rng.random()
    if kind < 0.35:
        return rng.choice(_FEW)
    if kind < 0.85:
        return rng.choice([edge for edge in (*_EDGES, *more) if edge <= largest])
    return rng.randint(1, largest)


def _draw_gemm(rng: random.Random) -> Problem:
    if rng.random() < 0.15:  # one long axis
        extents = [rng.choice((255, 256, 257, 300)), rng.choice(_FEW), _some(rng)]
        rng.shuffle(extents)
    elif rng.random() < 0.2:  # whole tiles everywhere
        tile = rng.choice(_TILES)
        extents = [tile * rng.randint(1, max(1, 64 // tile)) for _ in range(3)]
    else:
        extents = [_some(rng) for _ in range(3)]
    _make_equal(rng, extents)
    M, N, K = extents
    return Gemm(M=M, N=N, K=K)


def _make_equal(rng: random.Random, extents: list[int]) -> None:
    """Now and then two of them, or all, become equal."""
    kind = rng.random()
    if kind < 0.08:
        extents[:] = [rng.choice(extents)] * len(extents)
    elif kind < 0.35:
        first, second = rng.sample(range(len(extents)), 2)
        extents[first] = extents[second]


def _draw_conv2d(rng: random.Random) -> Problem:
    R, S = (rng.choice((1, 2, 3, 3, 4, 5, 7)) for _ in range(2))
    if rng.random() < 0.4:
        S = R
    P, Q = (rng.choice((1, 2, 3, 4, 5, *_EDGES[:12])) for _ in range(2))
    if rng.random() < 0.3:
        Q = P
    counts = [rng.choice((1, 2, 3, 4, 5, 6, 9)), _some(rng, largest=65), _some(rng, 70, largest=70)]
    _make_equal(rng, counts)
    N, C, K = counts
    H, W = P + R - 1, Q + S - 1
    if rng.random() < 0.3:
        W = max(H, S)
    return Conv2d(N=N, C=C, H=H, W=W, K=K, R=R, S=S)


def _draw_conv3d(rng: random.Random) -> Problem | None:
    options: dict[str, int] = {}
    plain = rng.random()
    one_filter = rng.choice((0, 0, 0, 1, 3))
    outs = [rng.choice((1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17)) for _ in range(3)]
    _make_equal(rng, outs)
    for (axis, extent, taps), out in zip((("d", "D", "T"), ("h", "H", "R"), ("w", "W", "S")), outs, strict=True):
        options[taps] = one_filter or rng.choice((1, 2, 3, 3, 5))
        stride, pad, dilation = rng.choice((1, 1, 2, 3)), rng.choice((0, 0, 1, 2, 3)), rng.choice((1, 1, 2, 3))
        if plain < 0.15:
            stride, pad, dilation = 1, 0, 1
        elif plain < 0.3:
            stride, dilation = 1, 1
        reach = (options[taps] - 1) * dilation + 1
        # the last few rows may be left over by the stride
        options[extent] = max(1, (out - 1) * stride + reach - 2 * pad + rng.randrange(stride))
        if options[extent] + 2 * pad < reach:
            return None
        options |= {f"stride_{axis}": stride, f"pad_{axis}": pad, f"dilation_{axis}": dilation}
    if rng.random() < 0.2:
        options["H"] = options["W"]
        if options["H"] + 2 * options["pad_h"] < (options["R"] - 1) * options["dilation_h"] + 1:
            return None
    counts = [rng.choice((1, 1, 2, 3, 4, 5)), _some(rng, largest=65), _some(rng, 70, largest=70)]
    _make_equal(rng, counts)
    N, C, K = counts
    return Conv3d(N=N, C=C, K=K, **options)


_DRAW: dict[str, Callable[[random.Random], Problem | None]] = {
    "gemm": _draw_gemm, "conv2d": _draw_conv2d, "conv3d": _draw_conv3d, "dgrad": _draw_conv3d,
    "wgrad": _draw_conv3d,
}  # fmt: skip


# --- choosing ---


@lru_cache
def covering(ladder: str) -> tuple[Problem, ...]:
    """Shapes among which every pair of conditions occurs that occurs in thousands of drawn ones, small ones first.

    Chosen greedily, by new pairs for the time that a shape takes; the same at every call.
    """
    form = LADDERS[ladder].form
    if form != ladder:  # of one form, one set of conditions
        return tuple(on_ladder(ladder, problem) for problem in covering(form))
    rng = random.Random(0)
    pool = list(dict.fromkeys(draw(ladder, rng) for _ in range(_POOL)))
    numbers: dict[object, int] = {}
    covered = []
    for problem in pool:
        found = sorted(conditions(problem))
        paired = [name for name in found if not name.endswith("?")]
        mask = 0
        for target in (*found, *combinations(paired, 2)):
            mask |= 1 << numbers.setdefault(target, len(numbers))
        covered.append(mask)
    costs = [_cost(problem) for problem in pool]
    missing = (1 << len(numbers)) - 1
    chosen = []
    # by what each was worth when it was looked at last: it is never worth more later
    waiting = [(-mask.bit_count() / cost, i) for i, (mask, cost) in enumerate(zip(covered, costs, strict=True))]
    heapify(waiting)
    while missing:
        best = waiting[0][1]
        worth = (covered[best] & missing).bit_count() / costs[best]
        if heapreplace(waiting, (-worth, best)) == (-worth, best):
            chosen.append(pool[best])
            missing &= ~covered[best]
    return tuple(sorted(chosen, key=_cost))


def _cost(problem: Problem) -> int:
    """About what a launch without a GPU costs, in multiply-adds that are done side by side."""
    return multiply_adds(problem) + _SERIAL * problem.reduction + _OVERHEAD


def drawn(ladder: str, seed: int, count: int, most: int = LARGEST_DRAWN) -> tuple[Problem, ...]:
    """``count`` shapes drawn from ``seed``, of at most ``most`` multiply-adds each."""
    rng = random.Random(seed)
    return tuple(draw(ladder, rng, most) for _ in range(count))


_ONE_PIXEL_2D = Conv2d(N=1, C=1, H=1, W=1, K=1, R=1, S=1)
_ONE_PIXEL_3D = Conv3d(N=1, C=1, D=1, H=1, W=1, K=1, T=1, R=1, S=1)
# One axis longer than a grid counts blocks along y and z, the others as short as they can be.
_WIDE: dict[str, tuple[Problem, ...]] = {
    "gemm": (Gemm(M=MAX_GRID_YZ + 2, N=1, K=1), Gemm(M=1, N=MAX_GRID_YZ + 2, K=1)),
    "conv2d": tuple(replace(_ONE_PIXEL_2D, **{axis: MAX_GRID_YZ + 2}) for axis in "NKHW"),
    "conv3d": tuple(replace(_ONE_PIXEL_3D, **{axis: MAX_GRID_YZ + 2}) for axis in "NKHW"),
}
_WIDE |= dict.fromkeys(("dgrad", "wgrad"), (*_WIDE["conv3d"], replace(_ONE_PIXEL_3D, C=MAX_GRID_YZ + 2)))


def wide(ladder: str) -> tuple[Problem, ...]:
    """Shapes with an extent beyond the 65,535 blocks that a grid holds along y and z."""
    return tuple(on_ladder(ladder, problem) for problem in _WIDE[LADDERS[ladder].form])


# More than 2^31 elements of the input, the output, or the weights; the rest as little work as it can be.
_LARGE: dict[str, tuple[Problem, ...]] = {
    "gemm": (Gemm(M=70_001, N=3, K=31_003), Gemm(M=70_001, N=31_003, K=3), Gemm(M=3, N=31_003, K=70_001)),
    "conv2d": (
        Conv2d(N=17_003, C=26, H=70, W=70, K=2, R=3, S=3),
        Conv2d(N=17_003, C=2, H=72, W=72, K=26, R=3, S=3),
    ),
    "conv3d": (
        Conv3d(N=17_003, C=26, D=1, H=70, W=70, K=2, T=1, R=3, S=3, pad_h=1, pad_w=1),
        Conv3d(N=17_003, C=2, D=1, H=70, W=70, K=26, T=1, R=3, S=3, pad_h=1, pad_w=1),
    ),
    # sums over as few images as can be, and a filter's gradient as large
    "wgrad": (
        Conv3d(N=2_003, C=4_100, D=1, H=17, W=17, K=2, T=1, R=3, S=2, stride_h=2, stride_w=3, pad_h=1),
        Conv3d(N=2_003, C=2, D=1, H=17, W=17, K=4_100, T=1, R=2, S=2, pad_w=1),
        Conv3d(N=3, C=11_003, D=1, H=3, W=2, K=32_769, T=1, R=3, S=2),
    ),
}
_LARGE["dgrad"] = _LARGE["conv3d"]


def large(ladder: str) -> tuple[Problem, ...]:
    """Shapes with an array of more than 2^31 elements."""
    return tuple(on_ladder(ladder, problem) for problem in _LARGE[LADDERS[ladder].form])


# Whole tiles of up to 128 x 256 x 64, as many along the sum as stages of a pipeline and more, or fewer; rows of whole
# 128-bit pieces, tiles' edges missed; a long sum; more blocks of rows than walk down together, in several columns.
_TILED: dict[str, tuple[Problem, ...]] = {
    "gemm": (
        Gemm(M=256, N=256, K=320),
        *(Gemm(M=128, N=128, K=64 * tiles) for tiles in (1, 2, 3, 4)),
        Gemm(M=24, N=40, K=8),
        Gemm(M=40, N=72, K=184),
        Gemm(M=136, N=264, K=216),
        Gemm(M=24, N=16, K=1048),
        Gemm(M=2312, N=264, K=8),
        Gemm(M=1152, N=256, K=64),
        Gemm(M=256, N=256, K=64),
        Gemm(M=128, N=256, K=72),  # whole tiles but for the last one of the sum
    ),
    "conv2d": (),
    "conv3d": (
        Conv3d(N=2, C=64, D=1, H=8, W=8, K=128, T=1, R=3, S=3, pad_h=1, pad_w=1),
        Conv3d(N=1, C=24, D=3, H=7, W=9, K=40, T=2, R=3, S=3, stride_h=2, pad_d=1, pad_h=1, dilation_w=2),
        # outputs for which a kernel may take a larger tile, of several warps; few terms to each
        Conv3d(N=2, C=4, D=1, H=48, W=95, K=100, T=1, R=1, S=2, pad_w=1),
        # a stride that the second tile of pixels begins in the midst of
        Conv3d(N=2, C=24, D=2, H=17, W=12, K=40, T=1, R=2, S=3, stride_h=2, pad_w=1),
    ),
    "dgrad": (
        Conv3d(N=2, C=128, D=1, H=8, W=8, K=64, T=1, R=3, S=3, pad_h=1, pad_w=1),
        Conv3d(N=1, C=40, D=3, H=7, W=9, K=24, T=2, R=3, S=3, stride_h=2, pad_d=1, pad_h=1, dilation_w=2),
        # a stride in both directions of the plane, whole tiles in each of the four smaller problems, and ragged ones
        Conv3d(N=2, C=64, D=1, H=16, W=16, K=32, T=1, R=3, S=3, stride_h=2, stride_w=2, pad_h=1, pad_w=1),
        Conv3d(N=3, C=36, D=2, H=9, W=7, K=20, T=2, R=3, S=4, stride_d=2, stride_h=2, stride_w=3, pad_h=1, pad_w=2),
        # outputs for which a kernel may take a larger tile, of several warps; few terms to each
        Conv3d(N=1, C=132, D=1, H=46, W=65, K=4, T=1, R=1, S=3, pad_w=1),
        Conv3d(N=1, C=68, D=1, H=46, W=65, K=3, T=1, R=1, S=3, pad_w=1),
    ),
    "wgrad": (
        Conv3d(N=2, C=64, D=1, H=8, W=8, K=128, T=1, R=3, S=3, pad_h=1, pad_w=1),
        Conv3d(N=1, C=24, D=3, H=7, W=9, K=40, T=2, R=3, S=3, stride_h=2, pad_d=1, pad_h=1, dilation_w=2),
        # sums that are split into many parts, even ones and uneven ones; and one with a stride
        Conv3d(N=16, C=4, D=1, H=16, W=16, K=4, T=1, R=1, S=3, pad_w=1),
        Conv3d(N=5, C=3, D=1, H=29, W=31, K=5, T=1, R=2, S=1, pad_h=1),
        Conv3d(N=7, C=8, D=1, H=33, W=35, K=8, T=1, R=3, S=3, stride_h=2, stride_w=2, pad_h=1, pad_w=1),
        # outputs for which a kernel may take a larger tile, of several warps; few terms to each
        Conv3d(N=2, C=333, D=1, H=4, W=5, K=68, T=1, R=3, S=3),
        # 3 x 3 taps and several tiles of outputs both ways: in which order are they?
        Conv3d(N=1, C=132, D=1, H=8, W=8, K=132, T=1, R=3, S=3, pad_h=1, pad_w=1),
    ),
}


# What a copy engine takes, rows of whole 16-byte pieces, at its edges. The box reaches beyond the array along each
# axis, by all of a tile but a piece, or by a block of a cluster; the last tile of the sum is one piece; the sum ends
# before the pipeline is full, or goes once around it. With MANY rows of outputs, there are more tiles than
# multiprocessors: blocks that stay go on in the middle of the pipeline, and come again to the stage that the tile
# before left last. A convolution with few filters takes tiles of 256 rows for so many, and stays with twice as many;
# a wide one has blocks of 256 filters. Windows of three columns are for the kernel of few filters, of one are not.
MANY = 17_160  # 134 tiles of 128 and 8 rows; an H200 has 132 multiprocessors
_COPIED_CONV3D = (
    Conv3d(N=2, C=8, D=1, H=6, W=5, K=16, T=1, R=3, S=2, stride_w=2, pad_h=1, pad_w=1),
    Conv3d(N=33, C=8, D=1, H=20, W=26, K=8, T=1, R=3, S=1, pad_h=1),
    Conv3d(N=66, C=8, D=1, H=20, W=26, K=8, T=1, R=3, S=3, pad_h=1, pad_w=1),
)
_BEYOND = (
    Conv3d(N=1, C=8, D=11, H=3, W=4, K=8, T=1, R=2, S=2, stride_d=9),
    Conv3d(N=1, C=8, D=1, H=12, W=4, K=8, T=1, R=2, S=2, stride_h=9),
    Conv3d(N=1, C=8, D=1, H=3, W=13, K=8, T=1, R=2, S=2, stride_w=9),
    Conv3d(N=1, C=8, D=1, H=2, W=3, K=8, T=1, R=3, S=1, pad_h=17, dilation_h=2, stride_h=5),
    Conv3d(N=1, C=8, D=2, H=1, W=36, K=8, T=1, R=1, S=2, pad_w=16, dilation_w=32, stride_w=3),
    Conv3d(N=1, C=8, D=1, H=2, W=2, K=8, T=1, R=1, S=1, pad_w=16, stride_w=7),
    Conv3d(N=1, C=8, D=1, H=20, W=3, K=8, T=1, R=2, S=2, dilation_h=17),
)
_COPIED: dict[str, tuple[Problem, ...]] = {
    "gemm": (Gemm(M=132, N=68, K=36), Gemm(M=MANY, N=4, K=132)),
    "hgemm": (
        Gemm(M=1, N=8, K=8),
        Gemm(M=200, N=328, K=72),
        Gemm(M=65, N=248, K=328),
        Gemm(M=264, N=72, K=264),
        Gemm(M=MANY, N=8, K=264),
    ),
    "conv3d": (*_COPIED_CONV3D, *_BEYOND),
    "hconv3d": (
        *_COPIED_CONV3D[:2],
        Conv3d(N=66, C=8, D=1, H=20, W=26, K=8, T=1, R=9, S=1, pad_h=4),
        Conv3d(N=66, C=8, D=1, H=20, W=26, K=8, T=1, R=5, S=3, pad_h=2, pad_w=1),
        Conv3d(N=66, C=8, D=1, H=16, W=16, K=248, T=1, R=1, S=1),
        Conv3d(N=3, C=72, D=2, H=9, W=5, K=136, T=2, R=1, S=3, pad_d=1, pad_w=2, stride_h=2, dilation_w=2),
        Conv3d(N=1, C=8, D=1, H=1, W=1, K=264, T=1, R=1, S=1),
        *_BEYOND,
    ),
}


def copied(ladder: str) -> tuple[Problem, ...]:
    """Those of :func:`tiled` that a copy engine takes, the smallest first."""
    return tuple(on_ladder(ladder, problem) for problem in _COPIED.get(ladder, ()))


def tiled(ladder: str) -> tuple[Problem, ...]:
    """Shapes that fill tiles and pipelines: larger than those of :func:`covering`, and of more whole pieces."""
    found = tuple(on_ladder(ladder, problem) for problem in _TILED[LADDERS[ladder].form])
    return *found, *copied(ladder)


# What of these has normals, not integers: a kernel for whole tiles, or the end of a long sum, may round what no other
# does, and what is missing or wrong shows as well.
_ROUNDED: dict[str, tuple[Problem, ...]] = {form: found[:2] for form, found in _TILED.items()} | {
    "gemm": (Gemm(M=128, N=128, K=256), Gemm(M=24, N=16, K=1048), Gemm(M=256, N=256, K=64))
}


def rounded(ladder: str) -> tuple[Problem, ...]:
    """Those of :func:`tiled` at which sums are rounded, so that the precision shows."""
    return tuple(on_ladder(ladder, problem) for problem in _ROUNDED[LADDERS[ladder].form])


# Sums of 1,000 terms and more, up to 4,000, where a kernel may keep fewer bits: elements enough for a mean, rows of
# whole 128-bit pieces and not, filters that fit constant memory, and 3 x 3 taps, which minimal filtering has.
_LONG: dict[str, tuple[Problem, ...]] = {
    "gemm": (Gemm(M=8, N=12, K=4099), Gemm(M=24, N=16, K=2056)),
    "conv2d": (Conv2d(N=1, C=64, H=11, W=12, K=5, R=7, S=7), Conv2d(N=2, C=116, H=5, W=6, K=8, R=3, S=3)),
    "conv3d": (
        Conv3d(N=1, C=224, D=1, H=5, W=6, K=8, T=1, R=3, S=3, pad_h=1, pad_w=1),
        Conv3d(N=1, C=40, D=3, H=4, W=5, K=8, T=3, R=3, S=3, pad_d=1, pad_h=1, pad_w=1),
    ),
    "dgrad": (
        Conv3d(N=1, C=8, D=1, H=5, W=6, K=456, T=1, R=3, S=3, pad_h=1, pad_w=1),
        Conv3d(N=1, C=6, D=1, H=7, W=6, K=114, T=1, R=3, S=3, stride_h=2, pad_h=1, pad_w=1),
    ),
    "wgrad": (
        Conv3d(N=16, C=8, D=1, H=17, W=15, K=4, T=1, R=3, S=3, pad_h=1, pad_w=1),
        Conv3d(N=16, C=5, D=1, H=17, W=16, K=9, T=1, R=1, S=3, stride_h=2, pad_w=1),
    ),
}


def long_sums(ladder: str) -> tuple[Problem, ...]:
    """Shapes of sums so long that their precision shows on average alone: the bound of one element has room."""
    return tuple(on_ladder(ladder, problem) for problem in _LONG[LADDERS[ladder].form])


# For a card of FEW multiprocessors, on which steps that fill the card take their larger tiles, and cut sums, at small
# shapes; blocks that stay have up to three tiles, the third of which they may draw from a counter. A convolution in
# three dimensions with few filters has each stride, padding and dilation that its kernel knows, then one that it
# leaves to another: a stride along w, a wide padding, more filters.
FEW = 4
_SMALL_CARD: dict[str, tuple[Problem, ...]] = {
    "conv2d": (Conv2d(N=14, C=1, H=20, W=40, K=17, R=7, S=7),),
    "conv3d": (
        Conv3d(N=4, C=72, D=4, H=9, W=11, K=8, T=2, R=2, S=2, stride_d=2, stride_h=2, pad_d=1, pad_h=1, pad_w=1,
               dilation_d=2, dilation_h=2, dilation_w=2),
        Conv3d(N=10, C=8, D=1, H=9, W=20, K=8, T=1, R=2, S=2, stride_w=2),
        Conv3d(N=10, C=8, D=1, H=9, W=7, K=8, T=1, R=2, S=2, pad_w=9),
        Conv3d(N=10, C=8, D=1, H=9, W=11, K=72, T=1, R=2, S=2),
        Conv3d(N=6, C=8, D=1, H=11, W=14, K=136, T=1, R=3, S=1, pad_h=1),
        Conv3d(N=6, C=8, D=1, H=13, W=14, K=136, T=1, R=1, S=3, pad_w=1),
        Conv3d(N=1, C=72, D=1, H=11, W=14, K=136, T=1, R=2, S=2, pad_w=1),
        Conv3d(N=1, C=64, D=1, H=5, W=8, K=136, T=1, R=3, S=3, pad_h=1, pad_w=1),
    ),
    "dgrad": (
        Conv3d(N=3, C=40, D=1, H=9, W=10, K=8, T=1, R=2, S=2),
        Conv3d(N=2, C=68, D=1, H=9, W=10, K=8, T=1, R=2, S=2, stride_h=2),
        Conv3d(N=1, C=68, D=1, H=5, W=8, K=36, T=1, R=3, S=3, pad_h=1, pad_w=1),
        Conv3d(N=1, C=40, D=1, H=8, W=9, K=64, T=1, R=3, S=3, stride_w=2, pad_h=1, pad_w=1),
    ),
    "wgrad": (
        Conv3d(N=8, C=8, D=1, H=9, W=8, K=68, T=1, R=3, S=3, pad_h=1, pad_w=1),
        Conv3d(N=2, C=44, D=1, H=3, W=3, K=68, T=1, R=3, S=3, pad_h=1, pad_w=1),
        Conv3d(N=13, C=24, D=1, H=8, W=10, K=40, T=1, R=3, S=1, pad_h=1),
        Conv3d(N=26, C=40, D=1, H=8, W=10, K=68, T=1, R=1, S=1),
        Conv3d(N=2, C=88, D=1, H=3, W=3, K=68, T=1, R=3, S=3, pad_h=1, pad_w=1),
    ),
}  # fmt: skip


def on_small_card(ladder: str) -> tuple[Problem, ...]:
    """Shapes for a card of FEW multiprocessors: of steps that ask how many there are."""
    found = _SMALL_CARD.get(LADDERS[ladder].form, ())
    return tuple(on_ladder(ladder, problem) for problem in found)


# Filters and strides as networks have them, beyond what is drawn, and three conditions at once.
_LAYERS: tuple[Convolution, ...] = (
    # rows of whole 128-bit pieces; each axis has each pair of stride and dilation in turn: (3, 2), (2, 2), (1, 3)
    Conv3d(N=1, C=8, D=7, H=6, W=7, K=4, T=3, R=3, S=2, stride_d=3, stride_h=2, pad_d=1, pad_h=2, pad_w=1,
           dilation_d=2, dilation_h=2, dilation_w=3),
    Conv3d(N=1, C=4, D=5, H=7, W=6, K=8, T=2, R=3, S=3, stride_h=3, stride_w=2, pad_d=1, pad_h=1, pad_w=2,
           dilation_d=3, dilation_h=2, dilation_w=2),
    Conv3d(N=1, C=4, D=6, H=5, W=9, K=4, T=3, R=2, S=3, stride_d=2, stride_w=3, pad_d=2, pad_h=1, pad_w=1,
           dilation_d=2, dilation_h=3, dilation_w=2),
    # 3 x 3 x 3 at a stride of 2, and more images than 8; 3 x 3, apart, at a stride, with rows that no window reaches
    Conv3d(N=9, C=3, D=4, H=3, W=3, K=2, T=3, R=3, S=3, stride_d=2, stride_h=2, stride_w=2, pad_d=1, pad_h=1,
           pad_w=1),
    Conv3d(N=1, C=4, D=1, H=6, W=7, K=4, T=1, R=3, S=3, pad_h=2, pad_w=3, dilation_h=2, dilation_w=2),
    Conv3d(N=2, C=3, D=1, H=8, W=8, K=5, T=1, R=3, S=3, stride_h=2, stride_w=2, pad_w=2, dilation_w=2),
    Conv3d(N=1, C=2, D=1, H=10, W=8, K=3, T=1, R=3, S=3, stride_h=2, stride_w=2, pad_h=1, dilation_h=2),
    # 11 x 7 at a stride of 4; strides and dilations beyond 3
    Conv3d(N=1, C=3, D=1, H=19, W=18, K=2, T=1, R=11, S=7, stride_h=4, stride_w=4, pad_h=2, pad_w=2),
    Conv3d(N=1, C=2, D=1, H=13, W=14, K=3, T=1, R=3, S=5, stride_h=4, stride_w=5, pad_h=4, pad_w=6, dilation_h=4,
           dilation_w=2),
    # more taps along the axes together than a word has bits
    Conv3d(N=1, C=2, D=1, H=31, W=4, K=1, T=1, R=31, S=2, pad_h=1, pad_w=1),
    # more than 2^16 pixels, none of the extents long, and few outputs
    Conv3d(N=1, C=1, D=3, H=151, W=149, K=1, T=1, R=1, S=1, stride_d=2, stride_h=50, stride_w=50),
)  # fmt: skip


# The commonest filter, 3 x 3 at a stride of 1, which a kernel may compute by minimal filtering, two outputs by two:
# extents that are odd along either axis or both, or one; other paddings than its own; rows of whole 128-bit pieces,
# more patches of outputs than a tile has, more channels, and sums that end within one.
_LAYERS_3X3 = (
    Conv3d(N=2, C=8, D=1, H=5, W=6, K=12, T=1, R=3, S=3, pad_h=1, pad_w=1),
    Conv3d(N=1, C=4, D=1, H=6, W=7, K=8, T=1, R=3, S=3, pad_w=2),
    Conv3d(N=3, C=68, D=1, H=4, W=9, K=4, T=1, R=3, S=3, pad_h=1, pad_w=1),
    Conv3d(N=5, C=12, D=1, H=7, W=9, K=20, T=1, R=3, S=3, pad_h=3, pad_w=1),
    Conv3d(N=1, C=16, D=1, H=1, W=3, K=68, T=1, R=3, S=3, pad_h=1, pad_w=1),
)

# More channels than a block stages at a time, of its filters or of the image; more rows of a filter than a step has
# registers for, so that it cuts it into parts.
_LAYERS_2D = (
    Conv2d(N=1, C=70, H=6, W=20, K=9, R=3, S=3),
    Conv2d(N=2, C=2, H=15, W=7, K=6, R=14, S=2),
)


def layers(ladder: str) -> tuple[Problem, ...]:
    """Shapes of filters and strides beyond what :func:`draw` has or has often, for gradients with three conditions at
    once."""
    form = LADDERS[ladder].form
    gradients = (*_LAYERS, *_LAYERS_3X3)
    taken = {"conv2d": _LAYERS_2D, "conv3d": _LAYERS_3X3, "dgrad": gradients, "wgrad": gradients}.get(form, ())
    return tuple(on_ladder(ladder, problem) for problem in taken)


# Layers and matrices that a kernel may have a path of its own for, as libraries have: each so large that the path has
# a second tile, and a rest, on every axis. Of convolutions with 1 x 1, 3 x 3 and 7 x 7, of whole 128-bit pieces and
# not, more channels and filters than tiles have; extents that a stride of 2 divides along one axis and not the other;
# more images and slices than one, where a path for single ones, or flat filters, may stop.
_FAMILIAR_3D = (
    Conv3d(N=2, C=132, D=1, H=7, W=9, K=36, T=1, R=1, S=1),
    Conv3d(N=3, C=12, D=2, H=5, W=4, K=132, T=1, R=1, S=1),
    Conv3d(N=2, C=37, D=1, H=6, W=11, K=35, T=1, R=1, S=1),
    Conv3d(N=2, C=64, D=1, H=5, W=8, K=32, T=1, R=1, S=1),
    Conv3d(N=2, C=36, D=1, H=9, W=8, K=68, T=1, R=1, S=1, stride_h=2, stride_w=2),
    Conv3d(N=3, C=6, D=1, H=8, W=7, K=7, T=1, R=1, S=1, stride_h=2, stride_w=2),
    Conv3d(N=2, C=36, D=1, H=8, W=7, K=36, T=1, R=3, S=3, stride_h=2, stride_w=2, pad_h=1, pad_w=1),
    Conv3d(N=3, C=5, D=1, H=9, W=12, K=7, T=1, R=3, S=3, stride_h=2, stride_w=2, pad_h=1, pad_w=1),
    Conv3d(N=1, C=11, D=1, H=6, W=7, K=37, T=1, R=3, S=3, pad_h=1, pad_w=1),
    Conv3d(N=1, C=4, D=1, H=17, W=18, K=4, T=1, R=3, S=3, pad_h=1, pad_w=1),
    Conv3d(N=3, C=4, D=1, H=17, W=18, K=32, T=1, R=3, S=3, pad_h=1, pad_w=1),
    Conv3d(N=3, C=4, D=1, H=5, W=6, K=36, T=1, R=3, S=3, pad_h=1, pad_w=3),
    Conv3d(N=8, C=4, D=1, H=3, W=3, K=132, T=1, R=3, S=3, pad_h=1, pad_w=1),
    Conv3d(N=1, C=132, D=1, H=3, W=3, K=32, T=1, R=3, S=3, pad_h=1, pad_w=1),
    Conv3d(N=2, C=68, D=1, H=15, W=15, K=4, T=1, R=3, S=3, pad_h=1, pad_w=1),
    Conv3d(N=1, C=4, D=1, H=3, W=64, K=8, T=1, R=3, S=3, pad_h=1, pad_w=1),
    Conv3d(N=2, C=12, D=1, H=8, W=7, K=20, T=1, R=3, S=3, pad_h=2, pad_w=2, dilation_h=2, dilation_w=2),
    Conv3d(N=2, C=3, D=1, H=9, W=12, K=36, T=1, R=7, S=7, stride_h=2, stride_w=2, pad_h=3, pad_w=3),
    Conv3d(N=2, C=8, D=1, H=7, W=6, K=20, T=1, R=5, S=5, pad_h=2, pad_w=2),
    Conv3d(N=2, C=12, D=1, H=5, W=10, K=20, T=1, R=1, S=7, pad_w=3),
    Conv3d(N=2, C=10, D=1, H=9, W=4, K=14, T=1, R=7, S=1, pad_h=3),
    Conv3d(N=2, C=12, D=1, H=7, W=10, K=36, T=1, R=2, S=2, stride_h=2, stride_w=2),
    Conv3d(N=2, C=8, D=1, H=8, W=6, K=20, T=1, R=4, S=4, stride_h=2, stride_w=2, pad_h=1, pad_w=1),
    Conv3d(N=2, C=20, D=5, H=4, W=3, K=12, T=3, R=1, S=1, pad_d=1),
    Conv3d(N=2, C=12, D=3, H=3, W=6, K=20, T=1, R=3, S=3, pad_h=1, pad_w=1),
    Conv3d(N=2, C=8, D=3, H=4, W=5, K=12, T=3, R=3, S=3, pad_d=1, pad_h=1, pad_w=1),
    Conv3d(N=2, C=6, D=5, H=4, W=6, K=9, T=3, R=3, S=3, stride_d=2, stride_h=2, stride_w=2, pad_d=1, pad_h=1,
           pad_w=1),
)  # fmt: skip
_FAMILIAR: dict[str, tuple[Problem, ...]] = {
    # a row of a long sum, a column, a pair of either, an outer product, a square; whole tiles but along one axis;
    # long columns and rows
    "gemm": (
        Gemm(M=1, N=37, K=523),
        Gemm(M=37, N=1, K=523),
        Gemm(M=2, N=41, K=71),
        Gemm(M=41, N=2, K=71),
        Gemm(M=4, N=44, K=100),
        Gemm(M=131, N=133, K=1),
        Gemm(M=130, N=130, K=130),
        Gemm(M=69, N=128, K=64),
        Gemm(M=128, N=69, K=64),
        Gemm(M=64, N=128, K=71),
        Gemm(M=1, N=1, K=700),
        Gemm(M=1501, N=5, K=21),
        Gemm(M=5, N=1501, K=21),
    ),
    "conv2d": (
        Conv2d(N=2, C=36, H=5, W=20, K=12, R=1, S=1),
        Conv2d(N=2, C=12, H=9, W=14, K=12, R=3, S=3),
        Conv2d(N=2, C=3, H=20, W=21, K=17, R=3, S=3),
        Conv2d(N=1, C=2, H=34, W=18, K=9, R=3, S=3),
        Conv2d(N=3, C=5, H=13, W=20, K=5, R=4, S=4),
        Conv2d(N=2, C=5, H=21, W=22, K=5, R=5, S=5),
        Conv2d(N=2, C=3, H=23, W=24, K=6, R=7, S=7),
        Conv2d(N=2, C=6, H=5, W=19, K=10, R=1, S=3),
        Conv2d(N=2, C=10, H=19, W=6, K=6, R=3, S=1),
        Conv2d(N=2, C=6, H=17, W=12, K=9, R=1, S=7),
        Conv2d(N=2, C=6, H=12, W=17, K=10, R=7, S=1),
        Conv2d(N=1, C=20, H=9, W=10, K=3, R=5, S=5),
        Conv2d(N=1, C=132, H=3, W=7, K=5, R=1, S=1),
        Conv2d(N=2, C=1, H=14, W=20, K=12, R=5, S=5),
    ),
} | dict.fromkeys(("conv3d", "dgrad", "wgrad"), _FAMILIAR_3D)


def familiar(ladder: str) -> tuple[Problem, ...]:
    """Shapes of the kinds that a kernel may have a path of its own for, each with all that such a path may forget."""
    return tuple(on_ladder(ladder, problem) for problem in _FAMILIAR[LADDERS[ladder].form])


def kin(ladder: str, seed: int, count: int = KIN) -> tuple[Problem, ...]:
    """``count`` shapes drawn from ``seed``, each of the kind of a familiar one: filter and geometry, or all but one
    or two extents of a matrix, are the same."""
    rng = random.Random(seed)
    return tuple(_akin(rng, rng.choice(familiar(ladder))) for _ in range(count))


def _akin(rng: random.Random, problem: Problem) -> Problem:
    """Another shape of this kind that is not too large."""
    while True:
        if isinstance(problem, Gemm):
            changed = {name: _some(rng) for name in rng.sample("MNK", rng.choice((1, 2)))}
        else:
            counts = {"N": rng.choice((1, 2, 3, 5, 9)), "C": _some(rng, largest=70), "K": _some(rng, 70, largest=70)}
            changed = {name: count for name, count in counts.items() if rng.random() < 0.6}
            for name in "HW":
                changed[name] = getattr(problem, name) + rng.choice((0, 0, 1, 2, 3, 8, 16))
        found = replace(problem, **changed)
        if multiply_adds(found) <= 2 * LARGEST_DRAWN and found.reduction <= LARGEST_DRAWN >> 8:
            return found


# Axes that blocks seldom lie along y or z of a grid for: filters, and what threads take side by side.
_SELDOM = {"gemm": "N", "conv2d": "KW", "conv3d": "KW", "dgrad": "CW", "wgrad": "NHW"}


def narrow(problem: Problem) -> Problem:
    """A shape of :func:`wide`; 1,025 in place of its long extent if a grid seldom needs y or z for that.

    Without a GPU a thread's loop over 65,537 filters takes half a minute.
    """
    long = {key: 1025 for key in _SELDOM[problem.form] if getattr(problem, key) > MAX_GRID_YZ}
    return replace(problem, **long)


def twins(ladder: str) -> tuple[Problem, ...]:
    """Shapes that a cache with too short a key takes for one another: equal sizes, or equal arrays, side by side."""
    return tuple(on_ladder(ladder, problem) for problem in _twins(LADDERS[ladder].form))


def _twins(form: str) -> tuple[Problem, ...]:
    if form == "gemm":
        orders = ((6, 4, 8), (4, 6, 8), (8, 4, 6), (4, 8, 6), (6, 8, 4))
        return tuple(Gemm(M=M, N=N, K=K) for M, N, K in orders)
    if form == "conv2d":
        plain = Conv2d(N=2, C=3, H=6, W=4, K=5, R=3, S=2)
        swaps = ({"H": 4, "W": 6}, {"R": 2, "S": 3}, {"C": 5, "K": 3}, {"N": 3, "C": 2}, {"H": 3, "W": 8})
        return (plain, *(replace(plain, **swap) for swap in swaps))
    # 5 pixels and 2 taps: stride 2 and dilation 3 leave 2 outputs each, padding 1 with dilation 3 as many as neither
    cube: Convolution = Conv3d(N=2, C=3, D=5, H=5, W=5, K=4, T=2, R=2, S=2)
    found = [cube]
    for axis in "dhw":
        for stride, pad, dilation in ((2, 0, 1), (1, 0, 3), (1, 1, 3), (1, 1, 1), (2, 1, 1)):
            changed = {f"stride_{axis}": stride, f"pad_{axis}": pad, f"dilation_{axis}": dilation}
            found.append(replace(cube, **changed))
    if form in ("dgrad", "wgrad"):  # a stride makes the same outputs of two extents: the smaller one second, or first
        for axis, extent in zip("dhw", "DHW", strict=True):
            for stride, extents in ((2, (4,)), (3, (6, 7))):  # 5 at a stride of 2 is among them
                padded = replace(cube, **{f"stride_{axis}": stride, f"pad_{axis}": 1})
                found += [replace(padded, **{extent: length}) for length in extents]
    return tuple(found)
