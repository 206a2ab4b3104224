"""Shapes with more than 2^31 elements in an array, checked on the GPU: offsets that 32 bits with a sign cannot hold.

Such operands take the host too long to draw, so each element is a hash of its offset, which the GPU writes and the
host works out where a sample needs it.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.catalog import reference
from common.catalog.problems import FLOAT16, Problem
from common.check import blank, inputs
from common.check.check import Bench, Finding, Verdict, compare_sampled, sample_positions
from common.explain import terms

SAMPLES = 300
# Knuth's multiplicative hash, for 64 bits (The Art of Computer Programming 3, section 6.4).
MULTIPLIER = 0x9E3779B97F4A7C15
SHIFT = 61  # the three highest bits are kept
_AT_ONCE = 1 << 22  # terms that are worked out together
_INTEGERS = np.array([-4.0, -3.0, -2.0, -1.0, 1.0, 2.0, 3.0, 4.0])  # by those bits


def numbers(problem: Problem) -> NDArray[np.float64]:
    """The eight numbers that elements are of: integers from -4 to 4 without zero, or nearer ones if sums are float16.

    Hashes of evenly spaced offsets are not independent, so even all products of one sign must not overflow.
    """
    if problem.output_dtype != FLOAT16:
        return _INTEGERS
    largest = math.isqrt(inputs.FLOAT16_LIMIT // problem.reduction) or 0.5
    nearer: NDArray[np.float64] = np.clip(_INTEGERS, -largest, largest)
    return nearer


def values(problem: Problem, offsets: NDArray[Any], seed: int) -> NDArray[np.float64]:
    """The elements at these offsets of an operand, of :func:`numbers`."""
    with np.errstate(over="ignore"):
        number = (offsets.astype(np.uint64) + np.uint64(seed)) * np.uint64(MULTIPLIER) >> np.uint64(SHIFT)
    found: NDArray[np.float64] = numbers(problem)[number.astype(np.int64)]
    return found


def check_large(module: ModuleType, problem: Problem, samples: int = SAMPLES) -> Verdict:
    """Every element of the output written and finite, sampled ones and the corners exact."""
    from numba import cuda

    from common.check import arraykernels as kernels

    bench = Bench(module, problem)
    verdict = Verdict(problem)
    for seed, guarded in enumerate((bench.x, bench.weight)):
        table = cuda.to_device(blank.bits(numbers(problem).astype(guarded.dtype)))
        kernels.hash_offsets[kernels.grid(guarded.size)](
            blank.words(guarded.array), table, np.uint64(seed), np.uint64(MULTIPLIER), np.uint64(SHIFT)
        )
    bench.prepare()
    words, dtype = blank.words(bench.y.array), bench.y.dtype
    kernels.fill[kernels.grid(bench.y.size)](words, blank.pattern(dtype))
    bench.run()
    found = cuda.to_device(np.zeros(1, np.int32))
    kernels.mark_infinite[kernels.grid(bench.y.size)](words, blank.exponent(dtype), found)
    positions = sample_positions(problem, samples, 0)
    offsets = np.ravel_multi_index(positions, problem.output_shape)
    taken = cuda.device_array(len(offsets), words.dtype)
    kernels.gather[kernels.grid(len(offsets))](words, cuda.to_device(offsets.astype(np.int64)), taken)
    got = taken.copy_to_host().view(dtype).astype(np.float64)
    wanted = reference.stored(problem, expected(problem, positions))
    verdict.elements_compared = len(wanted)
    verdict.findings += compare_sampled(problem, positions, got, wanted)
    if int(found.copy_to_host()[0]):
        verdict.findings.append(Finding("unwritten", "elements were never written, or are NaN or infinite"))
    return verdict


def expected(problem: Problem, positions: tuple[NDArray[Any], ...]) -> NDArray[np.float64]:
    """The oracle's sums at ``positions``, one index array per axis of the output."""
    result = np.zeros(len(positions[0]))
    step = max(1, _AT_ONCE // problem.reduction)
    for start in range(0, len(result), step):
        env = terms.environment(problem, tuple(axis[start : start + step] for axis in positions))
        factors = []
        for seed, operand in enumerate((terms.X, terms.WEIGHT)):
            offsets, inside = terms.addresses(problem, operand, env)
            found = values(problem, offsets, seed)
            factors.append(found if inside is None else found * inside)
        result[start : start + step] = (factors[0] * factors[1]).sum(axis=1)
    return result
