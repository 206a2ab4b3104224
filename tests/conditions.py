"""How the shapes of ``check --full`` were chosen: until every pair of conditions that can occur together does.

A condition is what a mistake depends on: an extent is one, a multiple of a tile or one off it, longer than a tile,
equal to another extent; a stride, padding or dilation along an axis (pairwise testing: Kuhn, Wallace and Gallo 2004,
doi:10.1109/TSE.2004.24). ``python tests/conditions.py LADDER`` prints a ladder's shapes, for
``common/check/full.toml``.
"""

import math
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.catalog.problems import Convolution, Problem
from common.check.plan import LARGEST_DRAWN, drawn, multiply_adds

_POOL = 3000  # shapes to choose from
_OVERHEAD = 60_000  # multiply-adds that a launch of any shape costs
_SERIAL = 500  # multiply-adds that a term of the sum costs: it comes after the one before

_TILES = (4, 8, 16, 32, 64, 128)
# By form and extent: the tiles whose conditions occur pairwise, and how much of it makes many blocks. An extent of
# several letters is their product.
_EXTENTS: dict[str, dict[str, tuple[tuple[int, ...], int]]] = {
    "gemm": {"M": ((4, 16, 32), 32), "N": ((4, 16, 32), 32), "K": ((4, 16, 32), 32)},
    "conv2d": {"N": ((), 3), "C": ((4,), 2), "K": ((4,), 3), "P": ((16,), 16), "Q": ((16,), 16), "PQ": ((), 256)},
    "conv3d": {
        "N": ((), 3), "C": ((4,), 2), "K": ((4,), 32), "O": ((), 3), "P": ((), 3), "Q": ((), 3), "NOPQ": ((), 64),
    },
    "dgrad": {
        "N": ((), 3), "C": ((4,), 32), "K": ((4,), 2), "D": ((), 3), "H": ((), 3), "W": ((), 3), "NDHW": ((), 64),
    },
    "wgrad": {
        "N": ((), 3), "C": ((4,), 2), "K": ((4,), 32), "O": ((), 3), "P": ((), 3), "Q": ((), 3), "TRSC": ((), 64),
        "NOPQ": ((), 64),
    },
}  # fmt: skip


def conditions(problem: Problem) -> frozenset[str]:
    """The conditions of a shape, by name; those that a question mark ends occur once, the others pairwise, too."""
    return frozenset(_conditions(problem))


def _conditions(problem: Problem) -> Iterator[str]:
    for name, (paired, many) in _EXTENTS[problem.form].items():
        yield from _extent(name, math.prod(getattr(problem, letter) for letter in name), paired, many)
    letters = [letter for letter in "MNCKDHWTRSPQ" if hasattr(problem, letter)]
    for a, b in combinations(letters, 2):
        if getattr(problem, a) == getattr(problem, b) > 1:
            yield f"{a}={b}" if {a, b} <= set("MNK") or a + b in ("CK", "PQ") else f"{a}={b}?"
    taps = [getattr(problem, letter) for letter in "TRS" if letter in letters]
    for letter, count in zip("TRS"[-len(taps) :], taps, strict=False):
        yield f"{letter}={min(count, 6)}?"
    if len({*taps}) == 1 and taps[0] < 8:
        yield f"{taps[0]} taps along each axis" + ("" if taps[0] in (1, 3) else "?")
    if isinstance(problem, Convolution):
        yield from _geometry(problem)


def _extent(name: str, value: int, paired: tuple[int, ...], many: int) -> Iterator[str]:
    """What an extent is to the usual tiles, and whether it makes many blocks."""
    if value == 1:
        yield f"{name}=1"
    if value > many:
        yield f"{name}>{many}"
    for size in _TILES:
        mark = "" if size in paired else "?"
        if value % size == 0:
            yield f"{name}%{size}=0{mark}"
        elif value > size and value % size == 1:
            yield f"{name}%{size}=1{mark}"
        elif value % size == size - 1 > 3:
            yield f"{name}%{size}=-1{mark}"
        if value > size:
            yield f"{name}>{size}?"


def _geometry(problem: Convolution) -> Iterator[str]:
    """Strides, paddings and dilations, and what a stride leaves over."""
    if problem.geometry == type(problem.geometry)():
        yield "plain"
    for axis, letter, tap, out in zip("dhw", "DHW", "TRS", "OPQ", strict=True):
        stride, pad, dilation = (getattr(problem, f"{what}_{axis}") for what in ("stride", "pad", "dilation"))
        extent, taps, outs = (getattr(problem, name) for name in (letter, tap, out))
        if stride > 1:
            yield from (f"stride_{axis}", f"stride_{axis}={stride}?")
            yield from (f"{letter}%stride={extent % stride}?", f"pad_{axis}%stride={pad % stride}?")
            common = "" if math.gcd(stride, dilation) > 1 else " coprime"
            yield f"one tap, stride_{axis}?" if taps == 1 else f"stride_{axis}, dilation_{axis}{common}?"
        if pad:
            yield f"pad_{axis}"
        if pad >= taps:
            yield f"pad_{axis}>=taps?"
        if taps > 1 and dilation > 1:
            yield from (f"dilation_{axis}", f"dilation_{axis}={dilation}?")
            if pad > 1:
                yield f"pad_{axis}>1, dilation_{axis}?"
        if taps < stride:  # of a gradient, residues without taps
            yield f"fewer taps than stride_{axis}"
        if (outs - 1) * stride + (taps - 1) * dilation + 1 < extent + pad:
            yield f"{letter} ends beyond the last window?"


def covering(ladder: str) -> tuple[Problem, ...]:
    """Shapes among which every pair of conditions occurs that occurs in thousands of drawn ones, small ones first.

    Chosen greedily, by new pairs for the time that a shape takes; the same at every call.
    """
    left = {problem: _targets(problem) for problem in drawn(ladder, 0, _POOL, LARGEST_DRAWN, LARGEST_DRAWN >> 8)}
    costs = {problem: _cost(problem) for problem in left}
    chosen = []
    while left:
        best = max(left, key=lambda problem: len(left[problem]) / costs[problem])
        chosen.append(best)
        covered = left[best]
        left = {problem: rest for problem, targets in left.items() if (rest := targets - covered)}
    return tuple(sorted(chosen, key=_cost))


def _targets(problem: Problem) -> frozenset[object]:
    """The conditions of a shape, and their pairs."""
    found = sorted(conditions(problem))
    paired = [name for name in found if not name.endswith("?")]
    return frozenset((*found, *combinations(paired, 2)))


def _cost(problem: Problem) -> int:
    """About what a launch without a GPU costs, in multiply-adds that are done side by side."""
    return multiply_adds(problem) + _SERIAL * problem.reduction + _OVERHEAD


if __name__ == "__main__":
    print(*covering(sys.argv[1]), sep="\n")
