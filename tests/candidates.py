"""Shapes that a check may have, for each ladder: :mod:`kill_matrix` chooses among them.

A candidate is one shape, or two that one module is asked for one after the other, as what a step keeps under too
short a key shows at the second alone.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import classes

from common.catalog import inputs, problems
from common.catalog.problems import LADDERS, Conv2d, Conv3d, Gemm, Problem, on_ladder
from common.check import plan
from common.check.plan import drawn


@dataclass(frozen=True)
class Candidate:
    """Shapes that one module is asked for one after the other, and how each is checked."""

    shapes: tuple[Problem, ...]
    depth: str = "once"
    operands: str = ""
    small: bool = False
    wide: bool = False

    @property
    def key(self) -> str:
        marks = [self.depth] * (self.depth == "once") + self.marks
        return " then ".join(map(str, self.shapes)) + " | " + " ".join(marks)

    @property
    def marks(self) -> list[str]:
        """As ``shapes.toml`` has them."""
        depth = "" if self.depth == "once" else self.depth
        return [mark for mark in (depth, self.operands, "small" * self.small, "wide" * self.wide) if mark]

    @property
    def work(self) -> int:
        """About what it costs, to sort by."""
        run = [plan.narrow(one) if self.wide else one for one in self.shapes]
        terms = sum(_traced(one) + 500 * one.reduction + 50_000 for one in run)
        return terms * (8 if self.depth == "thorough" else 1)


def _traced(problem: Problem) -> int:
    """Multiply-adds that take the tracer as long as this problem's: of a gradient in whole tiles of 128 x 128, which
    an implicit GEMM works out whatever is in them; a warp's side by side."""
    if problem.form == "dgrad":
        rows, columns, depth = math.prod(problem.x_shape[:4]), problem.C, problem.reduction
    elif problem.form == "wgrad":
        rows, columns, depth = problem.K, math.prod(problem.filt_shape[1:]), problem.reduction
    else:
        return plan.multiply_adds(problem)
    return -(-rows // 128) * -(-columns // 128) * 128 * 128 * depth // 32


# Another shape for a thorough check: more filters, images and columns than FIRST has, and fewer of the others.
_SECOND: dict[str, Problem] = {"gemm": Gemm(M=21, N=9, K=70), "conv2d": Conv2d(N=5, C=3, H=5, W=6, K=9, R=2, S=3)}
_SECOND |= dict.fromkeys(
    ("conv3d", "dgrad", "wgrad"), Conv3d(N=5, C=9, D=2, H=4, W=5, K=9, T=1, R=2, S=3, pad_w=1, stride_h=2)
)
_SIDES = (2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 21, 31, 32, 33, 41, 47, 48, 55, 63, 64, 65, 97, 127, 128, 129, 131)
# Strides, paddings and dilations beyond 3, alone and with others.
_GEOMETRIES = (
    *((stride, pad, dilation) for stride in (4, 5, 7, 8, 9) for pad, dilation in ((0, 1), (1, 2))),
    *((stride, pad, dilation) for pad in (3, 4, 5, 9, 17) for stride, dilation in ((1, 1), (2, 2))),
    *((stride, pad, dilation) for dilation in (3, 4, 5, 8, 9) for stride, pad in ((1, 0), (2, 1))),
    (4, 4, 1), (5, 4, 4), (4, 5, 3),
)  # fmt: skip
_FAR = (193, 255, 256, 257, 259, 300, 511, 512, 513, 517, 769, 1023, 1025, 2049, 2053, 4099)


def candidates(ladder: str) -> list[Candidate]:
    """All that may be chosen from for a ladder, the cheapest first."""
    form = LADDERS[ladder].form
    first, second = problems.FIRST[ladder], on_ladder(ladder, _SECOND[form])
    found = [Candidate((first,)), Candidate((first,), "usual"), Candidate((first,), "thorough")]
    singles = [
        *problems.RAGGED[ladder], *plan.listed("covering", ladder), *plan.tiled(ladder),
        *plan.listed("layers", ladder),
        *plan.listed("familiar", ladder), *plan.drawn(ladder, 2, 40, 1 << 15, 1 << 7), *drawn(ladder, 1, 120),
        *(on_ladder(ladder, one) for one in _far_out(form)),
    ]  # fmt: skip
    found += [Candidate((one,)) for one in singles]
    found += [Candidate((one,), operands=inputs.NORMALS) for one in _precise(ladder)]
    found += [Candidate((second,), "thorough")] + [Candidate((second,), operands=kind) for kind in inputs.SPECIAL]
    # a sum of as many terms takes seconds
    found += [
        Candidate((one,), wide=True) for one in plan.listed("wide", ladder) if plan.narrow(one).reduction < 1 << 13
    ]
    found += [Candidate((one,), small=True) for one in plan.listed("small_card", ladder)]
    plain, *twins = plan.listed("twins", ladder)
    found += [Candidate(pair) for one in twins for pair in ((plain, one), (one, plain))]
    found += [Candidate(tuple(on_ladder(ladder, one) for one in pair)) for pair in _pairs(form)]
    # where a kernel itself says that it is wrong
    said = [kernel.shapes for kernel in classes.corpus() if kernel.ladder == ladder]
    found += [Candidate(tuple(ones)) for ones in said if max(ones[0].shape().values()) <= plan.MAX_GRID_YZ]
    return sorted(dict.fromkeys(found), key=lambda one: one.work)


def _far_out(form: str) -> Iterator[Problem]:
    """Far out on one axis, or two, where the others are short."""
    if form == "gemm":
        for extent in (*_SIDES, *_FAR):
            for others in ((2, 3), (5, 4)):
                for axis in range(3):
                    extents = list(others)
                    extents.insert(axis, extent)
                    yield Gemm(**dict(zip("MNK", extents, strict=True)))
            yield from (Gemm(M=extent, N=extent, K=2), Gemm(M=2, N=extent, K=extent), Gemm(M=extent, N=3, K=extent))
        return
    tall = ((8, 8), (9, 9), (1, 65), (65, 1), (17, 1), (1, 17), (33, 2), (2, 33), (3, 31), (11, 11), (10, 6), (6, 10))
    tall = (*tall, (1, 9), (9, 1), (1, 8), (8, 1), (1, 11), (13, 1), (7, 7), (8, 9), (5, 13), (31, 1), (1, 31))
    sides = (*_SIDES, *(far for far in _FAR if far < 1100))
    if form == "conv2d":
        several = Conv2d(N=2, C=3, H=4, W=5, K=2, R=2, S=3)
        yield from (replace(several, **{axis: far}) for axis in "NCK" for far in sides)
        yield from (replace(several, **{axis: far + 2}) for axis in "HW" for far in sides)
        yield from (replace(several, H=r + 1, W=s + 1, R=r, S=s) for r, s in tall)
        base = Conv2d(N=1, C=1, H=4, W=5, K=2, R=2, S=3)
        yield from (replace(base, **{axis: far}) for axis in "NCK" for far in (*sides, *_FAR[-3:]))
        yield from (replace(base, C=2, **{axis: far}) for axis in "NK" for far in sides)
        yield from (replace(base, H=far + 1, W=4) for far in sides)
        yield from (replace(base, W=far + 2, H=3) for far in sides)
        for r, s in tall:
            yield Conv2d(N=1, C=1, H=r + 1, W=s + 2, K=2, R=r, S=s)
            yield Conv2d(N=2, C=3, H=r + 3, W=s + 1, K=3, R=r, S=s)
            yield Conv2d(N=1, C=1, H=r, W=s + 70, K=1, R=r, S=s)
            yield Conv2d(N=1, C=2, H=r + 35, W=s + 1, K=1, R=r, S=s)
        for q in (41, 47, 55, 61, 82, 83, 94, 97, 107, 109):
            yield Conv2d(N=1, C=1, H=q + 2, W=q, K=1, R=2, S=1)
        yield from (Conv2d(N=1, C=c, H=5, W=4, K=k, R=3, S=2) for c, k in ((36, 40), (64, 65), (130, 20), (20, 131)))
        yield from (Conv2d(N=1, C=c, H=3, W=3, K=2, R=3, S=3) for c in (57, 114, 228, 456))
        return
    sides = (2, 4, 5, 9, 16, 17, 33, 64, 65, 129, 256, 257, 513, 1025)
    several = Conv3d(N=2, C=3, D=2, H=4, W=5, K=2, T=2, R=2, S=3, pad_h=1, pad_d=1)
    yield from (replace(several, **{axis: far}) for axis in "NCK" for far in sides)
    yield from (replace(several, **{axis: far + 2}) for axis in "DHW" for far in sides)
    yield from (replace(several, H=r + 1, W=s + 1, R=r, S=s) for r, s in tall)
    base = Conv3d(N=1, C=1, D=2, H=4, W=5, K=2, T=1, R=2, S=3)
    yield from (replace(base, **{axis: far}) for axis in "NCK" for far in (*sides, 2053, 4099))
    yield from (replace(base, **{axis: far + 3}) for axis in "DHW" for far in sides)
    wide = replace(base, C=4, K=4)
    yield from (replace(wide, **{axis: far}) for axis in "NCKDHW" for far in sides if far > 3)
    for r, s in tall:
        yield Conv3d(N=1, C=1, D=1, H=r + 1, W=s + 2, K=2, T=1, R=r, S=s)
        yield Conv3d(N=1, C=2, D=2, H=max(1, r - 2), W=max(1, s - 2), K=3, T=1, R=r, S=s, pad_h=2, pad_w=2)
    for t, r, s in ((9, 1, 1), (5, 5, 5), (4, 4, 4), (17, 1, 2), (33, 1, 1), (65, 1, 1), (3, 4, 3), (2, 5, 7)):
        yield Conv3d(N=1, C=1, D=t + 1, H=r + 1, W=s + 1, K=2, T=t, R=r, S=s)
    for axis, extent, taps in zip("dhw", "DHW", "TRS", strict=True):
        for stride, pad, dilation in _GEOMETRIES:
            options = {f"stride_{axis}": stride, f"pad_{axis}": pad, f"dilation_{axis}": dilation}
            options |= {taps: 3, extent: max(1, 2 * dilation + 2 + 2 * stride - 2 * pad)}
            yield replace(base, **{"C": 2, "D": 3, **options})
    for stride in (2, 3, 4, 5):
        options = {f"stride_{axis}": stride for axis in "dhw"}
        yield Conv3d(N=2, C=2, D=stride + 3, H=stride + 4, W=2 * stride + 3, K=3, T=2, R=3, S=3, **options)
    for q in (41, 47, 55, 61, 83):
        yield Conv3d(N=1, C=1, D=1, H=q + 2, W=q, K=1, T=1, R=2, S=1)
    yield from (
        Conv3d(N=1, C=c, D=1, H=3, W=3, K=k, T=1, R=3, S=3) for c, k in ((57, 2), (228, 2), (456, 1), (5, 260))
    )


def _precise(ladder: str) -> Iterator[Problem]:
    """Where sums are rounded: whole tiles, long sums, large filters."""
    yield from (*plan.listed("rounded", ladder), *plan.listed("familiar", ladder), *plan.listed("long_sums", ladder))
    form = LADDERS[ladder].form
    if form == "gemm":
        longs = [Gemm(M=3, N=4, K=far) for far in _FAR] + [Gemm(M=16 * n, N=16 * n, K=16 * n) for n in (1, 2, 4)]
    elif form == "conv2d":
        longs = [one for one in _far_out(form) if one.reduction > 100 or math.prod(one.weight_shape) > 4000]
    else:
        longs = [one for one in _far_out(form) if on_ladder(ladder, one).reduction > 100]
    yield from (on_ladder(ladder, one) for one in longs)


def long_sums(ladder: str) -> list[Candidate]:
    """What a check always has, whatever finds the kernels that are known: there is no bound that shows so much."""
    return [Candidate((one,), operands=inputs.NORMALS) for one in plan.listed("long_sums", ladder)]


def _pairs(form: str) -> Iterator[tuple[Problem, Problem]]:
    """Two shapes of one plan that differ in one thing, or share what a key may be made of."""
    if form == "gemm":
        base = Gemm(M=6, N=4, K=8)
        changes = [{axis: extent} for axis in "MNK" for extent in (2, 5, 12, 33)]
        changes += [{"M": 4, "N": 6}, {"M": 8, "K": 6}, {"N": 8, "K": 4}, {"M": 12, "N": 2}, {"M": 3, "K": 16}]
    elif form == "conv2d":
        base = Conv2d(N=2, C=3, H=6, W=8, K=5, R=3, S=2)
        changes = [{axis: extent} for axis in "NCK" for extent in (1, 4, 9)]
        changes += [{"H": 8, "W": 6}, {"H": 4, "W": 12}, {"R": 2, "S": 3}, {"R": 6, "S": 1}, {"R": 1, "S": 6}]
        changes += [{"H": 7}, {"W": 9}, {"H": 16}, {"W": 21}, {"C": 5, "K": 3}, {"N": 3, "C": 2}, {"R": 2}, {"S": 3}]
    else:
        base = Conv3d(N=2, C=3, D=3, H=6, W=8, K=4, T=2, R=3, S=2)
        changes = [{axis: extent} for axis in "NCK" for extent in (1, 5)]
        changes += [{"H": 8, "W": 6}, {"D": 6, "H": 3}, {"D": 8, "W": 3}, {"R": 2, "S": 3}, {"T": 3, "R": 2}]
        changes += [{"H": 7}, {"W": 9}, {"D": 4}, {"C": 4, "K": 3}, {"N": 3, "C": 2}, {"T": 1}, {"R": 2}, {"S": 3}]
        changes += [
            {f"{what}_{axis}": value}
            for axis in "dhw"
            for what, value in (("stride", 2), ("pad", 1), ("dilation", 2))
        ]
        changes += [{"stride_h": 2, "pad_h": 1}, {"stride_w": 2, "pad_w": 1}, {"H": 12, "W": 4}, {"W": 16, "H": 3}]
    for change in changes:
        if form in ("conv3d", "dgrad", "wgrad") and change.get("dilation_d"):
            yield base, replace(base, **change)
            continue
        yield base, replace(base, **change)
        yield replace(base, **change), base
