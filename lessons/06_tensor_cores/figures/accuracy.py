"""How far products of matrices are from the exact ones, over K: of steps, of cuBLAS in each precision, of FP16 sums.

Every product gets the same float32 operands and rounds them as it must: that is part of its error. The exact product
is NumPy's in float64; errors are told over the root mean square of its results.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from common.catalog import codes
from common.catalog.problems import FLOAT16, LADDERS
from common.check import arrays, check
from common.timing import peers
from common.timing.peers import Accuracy, Errors

EXTENT = 256  # M and N
DEPTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)
UNFIT_DEPTH = 4096
SUMS = "FP16 sums"
INSTRUCTION_DEPTH = 16  # products that one instruction on tensor cores adds before it rounds


@dataclass(frozen=True)
class Kind:
    """Operands: what they are, at which K, ``draw(rng, extent, K)`` of A and B; square: M and N are K."""

    said: str
    depths: tuple[int, ...]
    draw: Any
    square: bool = False


def _normal(rng, extent, depth, left=1, right=1):
    """A, extent x depth, and B, times a factor each."""
    a, b = (rng.standard_normal(shape, dtype=np.float32) for shape in ((extent, depth), (depth, extent)))
    return a * np.float32(left), b * np.float32(right)


def _cancelling(rng, extent, depth):
    a, b = _normal(rng, extent, depth)
    b[1::2] = -b[: depth // 2 * 2 : 2]
    return a + np.float32(1000), b


def _short(rng, extent, depth):
    return (codes.values(codes.held(part, codes.E4M3)).astype(np.float32) for part in _normal(rng, extent, depth))


USUAL, SHORT = "normals", "short"
KINDS = {
    USUAL: Kind("normals", DEPTHS, _normal),
    "square": Kind("normals, M = N = K", (UNFIT_DEPTH,), _normal, square=True),
    "cancelling": Kind("A: 1000 + normals; in B each second row negates the one before", (UNFIT_DEPTH,), _cancelling),
    "large": Kind("normals times 300 each", (UNFIT_DEPTH,), partial(_normal, left=300, right=300)),
    "small": Kind("A: normals times 10⁻⁷; B: normals", (UNFIT_DEPTH,), partial(_normal, left=1e-7)),
    SHORT: Kind("normals rounded to e4m3, which no format rounds again", (1024, 4096, 16384), _short),
}


def of_fewer_bits(product):
    """Is a product one that lesson 09 shows, not lesson 06: of FP8 or BF16?"""
    return product.startswith(("fp8gemm_", "bfgemm_")) or product.endswith(("FP8", "BF16"))


def measure(steps, extent=EXTENT, seed=6):
    """By kind of operands the Accuracy of every product; ``steps`` by name, each with its ladder, and cuBLAS."""
    found = {}
    for operands, kind in KINDS.items():
        for depth in kind.depths:
            rng = np.random.default_rng([seed, depth])
            a, b = kind.draw(rng, depth if kind.square else extent, depth)
            rows = np.sort(rng.choice(len(a), extent, replace=False)) if kind.square else np.arange(extent)
            exact = a[rows].astype(np.float64) @ b.astype(np.float64)
            for product, library, result in _products(steps, a, b, rows):
                mine = found.setdefault(operands, {}).setdefault(product, Accuracy(points=[], library=library))
                mine.points.append(errors(result, exact, depth))
    return found


def errors(result, exact, depth):
    """Those of a result."""
    got = result.astype(np.float64)
    finite = np.isfinite(got)
    if not finite.any():
        return Errors(K=depth, lost=1.0)
    off = np.abs(got - exact)[finite] / float(np.sqrt(np.mean(exact**2)))
    rms, largest = float(np.sqrt(np.mean(off**2))), float(off.max())
    return Errors(K=depth, rms=rms, largest=largest, lost=1 - float(finite.mean()))


def half_sums(a, b):
    """The product with FP16 operands and sums, rounded after every INSTRUCTION_DEPTH products: emulated."""
    with np.errstate(over="ignore", invalid="ignore"):
        first, second = a.astype(FLOAT16).astype(np.float32), b.astype(FLOAT16).astype(np.float32)
        total = np.zeros((a.shape[0], b.shape[1]), FLOAT16)
        for k in range(0, a.shape[1], INSTRUCTION_DEPTH):
            part = first[:, k : k + INSTRUCTION_DEPTH] @ second[k : k + INSTRUCTION_DEPTH]
            total = (total.astype(np.float32) + part).astype(FLOAT16)
    return total


def _products(steps, a, b, rows):
    """Name, library and these rows of the result of each."""
    for name, (module, ladder) in steps.items():
        bench = check.Bench(module, LADDERS[ladder](M=len(a), N=b.shape[1], K=a.shape[1]))
        with np.errstate(over="ignore"):
            bench.load(codes.held(a, bench.x.dtype), codes.held(b, bench.weight.dtype))
        bench.run()
        yield name, "", arrays.numbers(bench.y.get())[rows]
    if peers.available():
        yield from ((name, library, result[rows]) for name, library, result in peers.products(a, b))
    yield SUMS, "", half_sums(a[rows], b)
