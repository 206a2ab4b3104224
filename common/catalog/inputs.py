"""Seeded operands: integers and powers of two whose sums are exact in float32, and normals; never infinity or NaN.

On arrays of 16 bits operands are held exactly; sums stay below the largest float16, and most are no number of the
output's, so that how they are rounded shows.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.catalog import codes, reference
from common.catalog.problems import FLOAT16, FLOAT32, INT8, SIXTEEN_BITS, UINT8, UINT16, Problem

Array = NDArray[Any]

FLOAT16_LIMIT = 64_000  # of sums: below the largest, 65,504, there is room for an element that is changed
POOL = 1_048_573  # so many elements at most are drawn, then repeated: a prime, which no extent divides
_AGAINST = 8  # one element in so many has the other sign where sums are to be large
_TF32_LIMIT = 2**11  # TF32 holds every integer up to here
_FAR = 2**10  # the few large elements that stand among ones
_FEW_FAR = 8  # of them in one filter: their products with large inputs make half of the limit
# By type, up to where integers are taken, all of which it holds; and powers of two: the input's least, the weight's,
# the least and the largest of a row or an output, and how far those of the terms of one sum go up and down. The least
# products of float32 lie near 1e-27: above what is subnormal, and far below what may be taken for noise.
_TAKEN = {
    FLOAT16: (2**11, -24, 0, -8, 0, 4), UINT8: (16, -9, 0, -4, 2, 4),
    UINT16: (256, -22, -22, -10, 10, 8), FLOAT32: (1 << 14, -45, -45, -10, 10, 8),
}  # fmt: skip

# Other operands whose every partial sum is exact, by name: what is special about them.
SPECIAL = {
    "zeros": "half of the elements zero, and some rows and filters all zero, or all but the last element",
    "negative": "every product negative",
    "large": "large inputs, weights of 1 and -1",
    "heavy": "inputs of 1 and -1, large weights",
    "sums": "sums as large as the type of the sums holds exactly",
    "tiny": "very small magnitudes",
    "mixed": "magnitudes from very small to very large",
    "apart": "products in one sum far larger than others",
}
NORMALS = "normals"  # in the place of such a kind: operands whose sums are rounded
_ANY, _ONES = (*range(-128, 0), *range(1, 128)), (-1, 1)
_BYTES = {  # of int8, what the input and the weight of such a kind are drawn of
    "zeros": (_ANY, _ANY), "negative": (range(1, 128), range(-128, 0)), "large": (_ANY, _ONES),
    "heavy": (_ONES, _ANY), "sums": ((-128, -127),) * 2, "tiny": ((-1, 0, 1),) * 2,
    "mixed": ((-128, -1, 1, 127),) * 2, "apart": ((-127, *_ONES * 3, 127),) * 2,
}  # fmt: skip


def integers(problem: Problem, seed: int, algorithm: str | None = None) -> tuple[Array, Array]:
    """Input and weight of non-zero integers whose every partial sum is exact, and what an algorithm sums, too: a
    dropped term changes the sum, but for what is :func:`pruned`. For an output of 16 bits they are as large as it
    allows, and most terms of a sum have one sign, so that it mostly has more bits than the output."""
    rng = np.random.default_rng(seed)
    one_sign = problem.output_dtype in SIXTEEN_BITS
    limit = FLOAT16_LIMIT if one_sign else reference.exact_below(problem, algorithm)
    most = math.isqrt(limit // problem.reduction)
    largest = max(1, most if one_sign else min(8, most))

    def draw(count: int) -> Array:
        if problem.input_dtype == INT8:  # all of them, -128 and 127 among them, but zero
            values = rng.integers(-128, 127, count, dtype=np.int8)
            return values + (values >= 0)
        drawn = rng.integers(1, largest, count, dtype=np.int16 if one_sign else np.int8, endpoint=True)
        drawn[rng.integers(0, _AGAINST if one_sign else 2, count, dtype=np.int8) == 0] *= -1
        return codes.held(drawn, problem.input_dtype)

    x, weight = _repeated(draw, problem)
    if one_sign:  # that of each filter is drawn: the highest bit of an element
        filters = np.moveaxis(_outputs_first(problem, 1, weight.view(np.uint16)), 0, -1)
        filters ^= (rng.integers(0, 1, filters.shape[-1], np.int16, endpoint=True) == 0).astype(np.uint16) << 15
    return x, pruned(weight, algorithm)


def normals(problem: Problem, seed: int, algorithm: str | None = None) -> tuple[Array, Array]:
    """Input and weight from the standard normal distribution (int8: 32 times that), rounded to their dtype."""
    rng = np.random.default_rng(seed)

    def draw(count: int) -> Array:
        values = rng.standard_normal(count, dtype=np.float32)
        if problem.input_dtype == INT8:
            values = np.clip(np.rint(32 * values), -128, 127)
        return codes.held(values, problem.input_dtype)

    x, weight = _repeated(draw, problem)
    return x, pruned(weight, algorithm)


def _repeated(draw: Callable[[int], Array], problem: Problem) -> list[Array]:
    """Input and weight of what ``draw`` draws so many of: POOL at most, over and over."""
    shapes = problem.input_shape, problem.weight_shape
    return [np.resize(draw(min(math.prod(shape), POOL)), shape) for shape in shapes]


def pruned(weight: Array, algorithm: str | None) -> Array:
    """The weights [K, N], for a step that prunes them with the two smallest of every four along k set to 0."""
    if algorithm != reference.PRUNED:
        return weight
    K, N = weight.shape
    fours = np.zeros((-(-K // 4) * 4, N), weight.dtype)
    fours[:K] = weight
    fours = fours.reshape(-1, 4, N)
    order = np.argsort(-np.abs(fours.astype(np.float32)), axis=1, kind="stable")  # of two as large, the first is kept
    np.put_along_axis(fours, order[:, 2:], 0, axis=1)
    return fours.reshape(-1, N)[:K].copy()


def special(
    kind: str, problem: Problem, seed: int, precision: str = "fp32", algorithm: str | None = None
) -> tuple[Array, Array]:
    """Input and weight of a kind of :data:`SPECIAL`, exact in any order of summation, and in TF32 if asked for."""
    rng = np.random.default_rng(seed)
    if problem.input_dtype == INT8:
        drawn = zip(_BYTES[kind], problem.operands, strict=False)
        x, weight = (rng.choice(np.array(values, np.int8), shape) for values, (shape, _) in drawn)
        if kind == "zeros":
            _set_zeros(rng, problem, x, weight)
        return x, weight
    x, weight = (codes.values(array).astype(np.float32) for array in integers(problem, seed, algorithm))
    limit = FLOAT16_LIMIT if problem.output_dtype == FLOAT16 else reference.exact_below(problem, algorithm)
    taken, least_input, least_weight, low, high, reach = _TAKEN[problem.input_dtype]
    taken = min(taken, _TF32_LIMIT) if precision == "tf32" else taken
    most = max(1, min(taken, limit // problem.reduction))
    if kind == "zeros":
        _set_zeros(rng, problem, x, weight)
    elif kind == "negative":
        x, weight = np.abs(x), -np.abs(weight)
    elif kind == "large":
        x, weight = _signed(rng, problem.input_shape, most), np.sign(weight)
    elif kind == "heavy":
        x, weight = np.sign(x), _signed(rng, problem.weight_shape, most)
    elif kind == "sums":
        most = max(1, min(4096, taken, math.isqrt(limit // problem.reduction)))
        x, weight = (np.abs(_signed(rng, shape, most)) for shape in (problem.input_shape, problem.weight_shape))
    elif kind == "tiny":
        x, weight = np.ldexp(x, least_input), np.ldexp(weight, least_weight)
    elif kind == "mixed":  # what one output sums has one power of two, so the sum stays exact
        row, column, term = (_common(problem, *pair) for pair in ((0, 2), (1, 2), (0, 1)))
        for letter, least, most in ((row, low, high), (column, low, high), (term, -reach, reach)):
            powers = rng.integers(least, most + 1, getattr(problem, letter))
            if letter != column:
                x = np.ldexp(x, _along(problem, 0, letter, powers))
            if letter != row:
                weight = np.ldexp(weight, _along(problem, 1, letter, -powers if letter == term else powers))
    else:
        x, weight = np.sign(x), np.sign(weight)
        most = min(_FAR, taken, math.isqrt(limit // (2 * _FEW_FAR)), limit // (2 * problem.reduction))
        _set_apart(rng, problem, x, weight, max(1, most))
    return codes.held(x, problem.input_dtype), pruned(codes.held(weight, problem.input_dtype), algorithm)


def _set_zeros(rng: np.random.Generator, problem: Problem, x: Array, weight: Array) -> None:
    for number, array in enumerate((x, weight)):
        rows = _outputs_first(problem, number, array)
        last = np.index_exp[2::8] + (-1,) * (rows.ndim - 1)
        kept = rows[last].copy()
        array *= rng.integers(0, 2, array.shape, dtype=np.int8)
        rows[3::4] = rows[2::8] = 0
        rows[last] = kept  # what samples the first elements of a row takes it for zero


def _set_apart(rng: np.random.Generator, problem: Problem, x: Array, weight: Array, far: int) -> None:
    """Of the input a fourth, of each filter a few become ``far`` times as large."""
    x *= np.where(rng.integers(0, 4, x.shape) == 0, far, 1)
    filters = _outputs_first(problem, 1, weight)
    row = np.where(np.arange(problem.reduction) < min(_FEW_FAR, -(-problem.reduction // 4)), far, 1)
    filters *= rng.permuted(np.tile(row, (len(filters), 1)), axis=1).reshape(filters.shape)


def _signed(rng: np.random.Generator, shape: tuple[int, ...], most: int) -> Array:
    magnitudes = rng.integers(1, most, shape, endpoint=True)
    return (magnitudes * (2 * rng.integers(0, 2, shape) - 1)).astype(np.float32)


def _common(problem: Problem, one: int, other: int) -> str:
    """The letter of the first extent that two of the arrays share: a row or image, a column or filter, the sum's."""
    return next(letter for letter in problem.arrays[one] if letter in problem.arrays[other])


def _outputs_first(problem: Problem, number: int, array: Array) -> Array:
    """The input or the weight, with the extent first that it shares with the output."""
    return np.moveaxis(array, problem.arrays[number].index(_common(problem, number, 2)), 0)


def _along(problem: Problem, number: int, letter: str, values: Array) -> Array:
    """One value for each index of this letter, to be broadcast with that array."""
    return values.reshape([-1 if one == letter else 1 for one in problem.arrays[number]])
