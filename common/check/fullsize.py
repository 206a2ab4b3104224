"""Checks that stay on the GPU: the right answers by plain kernels, and large problems whose arrays stay there.

The kernels of the right answers have a thread for each, and sum in float64. Operands are integers, powers of two
times such, or float32 numbers: float64 holds each product exactly, and each sum of the kinds that are compared
exactly. Nothing is shared with the steps. Imported late, as it brings Numba.

Operands of large problems are drawn once for all steps, and the output, perhaps gigabytes, is looked at by small
kernels. Only if something is amiss does the host look, to say what.

Arrays of more than 2^31 elements take the host too long to draw, so each element is a hash of its offset, which the
GPU writes (:func:`check_large`).
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
from numba import cuda, uint64
from numpy.typing import NDArray

from common.catalog import codes, inputs, reference
from common.catalog.problems import FLOAT16, Convolution, Problem
from common.check import arrays, check
from common.check.arrays import Guarded
from common.check.check import Bench, Verdict
from common.run.messages import Finding

Array = NDArray[Any]

THREADS = 256
# Multiply-adds of one launch: a tenth of a second where float64 is slowest, as a display's watchdog ends long ones.
AT_ONCE = 1 << 31
OUTPUTS = 1 << 22  # of one launch, at most: bounds the memory on both sides

BLOCKS = 4096  # at most: the kernels walk over the array in strides of the grid
SAMPLES, LARGE_SAMPLES = 20_000, 300
# Knuth's multiplicative hash, for 64 bits (The Art of Computer Programming 3, section 6.4).
MULTIPLIER = 0x9E3779B97F4A7C15
SHIFT = 61  # the three highest bits are kept
_INTEGERS = np.array([-4.0, -3.0, -2.0, -1.0, 1.0, 2.0, 3.0, 4.0])  # by those bits


# --- the right answers ---


@cuda.jit
def gemm(a: Any, b: Any, sums: Any, offsets: Any) -> None:
    """``sums``: the elements of C at these offsets in row-major order, as in all of these."""
    i = cuda.grid(1)
    if i < sums.size:
        m, n = offsets[i] // b.shape[1], offsets[i] % b.shape[1]
        total = np.float64(0.0)
        for k in range(a.shape[1]):
            total += np.float64(a[m, k]) * np.float64(b[k, n])
        sums[i] = total


@cuda.jit
def conv2d(x: Any, filt: Any, sums: Any, offsets: Any) -> None:
    """y of a 2D convolution, channels first."""
    i = cuda.grid(1)
    if i < sums.size:
        K, C, R, S = filt.shape
        P, Q = x.shape[2] - R + 1, x.shape[3] - S + 1
        at = offsets[i]
        q, at = at % Q, at // Q
        p, at = at % P, at // P
        k, n = at % K, at // K
        total = np.float64(0.0)
        for c in range(C):
            for r in range(R):
                for s in range(S):
                    total += np.float64(x[n, c, p + r, q + s]) * np.float64(filt[k, c, r, s])
        sums[i] = total


@cuda.jit
def conv3d(x: Any, filt: Any, sums: Any, offsets: Any, y_shape: Any, stride: Any, pad: Any, dilation: Any) -> None:
    """y of a 3D convolution."""
    i = cuda.grid(1)
    if i < sums.size:
        K, T, R, S, C = filt.shape
        O, P, Q = y_shape
        at = offsets[i]
        k, at = at % K, at // K
        q, at = at % Q, at // Q
        p, at = at % P, at // P
        o, n = at % O, at // O
        total = np.float64(0.0)
        for t in range(T):
            d = o * stride[0] - pad[0] + t * dilation[0]
            for r in range(R):
                h = p * stride[1] - pad[1] + r * dilation[1]
                for s in range(S):
                    w = q * stride[2] - pad[2] + s * dilation[2]
                    inside = d >= 0 and d < x.shape[1] and h >= 0 and h < x.shape[2] and w >= 0 and w < x.shape[3]
                    if inside:
                        for c in range(C):
                            total += np.float64(x[n, d, h, w, c]) * np.float64(filt[k, t, r, s, c])
        sums[i] = total


@cuda.jit
def dgrad(dy: Any, filt: Any, sums: Any, offsets: Any, x_shape: Any, stride: Any, pad: Any, dilation: Any) -> None:
    """dx: what each tap that read the element gives back to it."""
    i = cuda.grid(1)
    if i < sums.size:
        K, T, R, S, C = filt.shape
        D, H, W = x_shape
        at = offsets[i]
        c, at = at % C, at // C
        w, at = at % W, at // W
        h, at = at % H, at // H
        d, n = at % D, at // D
        total = np.float64(0.0)
        for t in range(T):
            o = d + pad[0] - t * dilation[0]
            for r in range(R):
                p = h + pad[1] - r * dilation[1]
                for s in range(S):
                    q = w + pad[2] - s * dilation[2]
                    if o >= 0 and p >= 0 and q >= 0:
                        whole = o % stride[0] == 0 and p % stride[1] == 0 and q % stride[2] == 0
                        oo, pp, qq = o // stride[0], p // stride[1], q // stride[2]
                        if whole and oo < dy.shape[1] and pp < dy.shape[2] and qq < dy.shape[3]:
                            for k in range(K):
                                total += np.float64(dy[n, oo, pp, qq, k]) * np.float64(filt[k, t, r, s, c])
        sums[i] = total


@cuda.jit
def wgrad(x: Any, dy: Any, sums: Any, offsets: Any, taps: Any, stride: Any, pad: Any, dilation: Any) -> None:
    """dfilt: a row of threads, along y of the grid, shares an element's images and planes."""
    i, part = cuda.grid(2)
    if i < sums.size:
        T, R, S = taps
        C = x.shape[4]
        N, O, P, Q, K = dy.shape
        at = offsets[i]
        c, at = at % C, at // C
        s, at = at % S, at // S
        r, at = at % R, at // R
        t, k = at % T, at // T
        total = np.float64(0.0)
        for row in range(part, N * O * P, cuda.gridsize(2)[1]):
            p, o, n = row % P, row // P % O, row // (P * O)
            d = o * stride[0] - pad[0] + t * dilation[0]
            h = p * stride[1] - pad[1] + r * dilation[1]
            if d >= 0 and d < x.shape[1] and h >= 0 and h < x.shape[2]:
                for q in range(Q):
                    w = q * stride[2] - pad[2] + s * dilation[2]
                    if w >= 0 and w < x.shape[3]:
                        total += np.float64(x[n, d, h, w, c]) * np.float64(dy[n, o, p, q, k])
        cuda.atomic.add(sums, i, total)


_KERNELS = {"gemm": gemm, "conv2d": conv2d, "conv3d": conv3d, "dgrad": dgrad, "wgrad": wgrad}
_ROWS = 64  # of threads that share an element of dfilt


def at(problem: Problem, x: Any, weight: Any, offsets: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
    """Output elements in float64, at these offsets in row-major order or all of them, in one dimension; some at a
    time, so that no launch is long. ``x`` and ``weight`` may be on the device.

    Raises the driver's error where the GPU has no room for the operands.
    """
    kernel = _KERNELS[problem.form]
    operands = [_on_device(array) for array in (x, weight)]
    size = math.prod(problem.output_shape) if offsets is None else offsets.size
    result = np.empty(size)
    each = max(THREADS, min(OUTPUTS, AT_ONCE // problem.reduction))
    for first in range(0, size, each):
        last = min(first + each, size)
        part = np.arange(first, last) if offsets is None else offsets[first:last]
        sums, places = cuda.to_device(np.zeros(last - first)), cuda.to_device(part)
        grid, block = -(-(last - first) // THREADS), THREADS
        if problem.form == "wgrad":
            kernel[(grid, _ROWS), (block, 1)](*operands, sums, places, *_geometry(problem))
        else:
            kernel[grid, block](*operands, sums, places, *_geometry(problem))
        result[first:last] = sums.copy_to_host()
    return result


@cuda.jit
def decode(codes: Any, numbers: Any, decoded: Any) -> None:
    """The numbers that codes stand for."""
    for i in range(cuda.grid(1), codes.size, cuda.gridsize(1)):
        decoded[i] = numbers[codes[i]]


def _on_device(array: Any) -> Any:
    """An operand of the right answers on the device, as numbers."""
    if isinstance(array, np.ndarray):
        return cuda.to_device(codes.values(array).astype(np.float32) if codes.are(array.dtype) else array)
    kind = np.dtype(array.dtype)
    if not codes.are(kind):
        return array
    decoded = cuda.device_array(array.size, np.float32)
    every = np.arange(1 << 8 * kind.itemsize).astype(kind)
    numbers = cuda.to_device(codes.values(every).astype(np.float32))
    decode[grid(array.size)](array.reshape(array.size), numbers, decoded)
    return decoded.reshape(array.shape)


def _geometry(problem: Problem) -> tuple[tuple[int, ...], ...]:
    """Of a 3D convolution: the extents that its operands do not show, strides, padding and dilation along d, h, w."""
    if not isinstance(problem, Convolution):
        return ()
    shown = {"conv3d": problem.y_shape, "dgrad": problem.x_shape, "wgrad": problem.filt_shape}[problem.form]
    g = problem.geometry
    return tuple(tuple(map(int, part)) for part in (shown[1:4], g[:3], g[3:6], g[6:]))


# --- large arrays where they are ---


def grid(size: int) -> tuple[int, int]:
    """Blocks, and threads in each, for so many elements."""
    return max(1, min(BLOCKS, -(-size // THREADS))), THREADS


@cuda.jit
def fill(words: Any, pattern: Any) -> None:
    """Every word becomes the pattern."""
    for i in range(cuda.grid(1), words.size, cuda.gridsize(1)):
        words[i] = pattern


@cuda.jit
def mark_missing(words: Any, mask: Any, left: Any, found: Any) -> None:
    """found[0] becomes 1 if the mask leaves of any word what it leaves of one that is missing."""
    for i in range(cuda.grid(1), words.size, cuda.gridsize(1)):
        if (words[i] & mask) == left:
            found[0] = 1


@cuda.jit
def gather(values: Any, offsets: Any, taken: Any) -> None:
    """The values at these offsets."""
    for i in range(cuda.grid(1), offsets.size, cuda.gridsize(1)):
        taken[i] = values[offsets[i]]


@cuda.jit
def hash_offsets(words: Any, table: Any, seed: Any, multiplier: Any, shift: Any) -> None:
    """Each word becomes one of the table, chosen by its offset's hash (:func:`check_large`)."""
    for i in range(cuda.grid(1), words.size, cuda.gridsize(1)):
        words[i] = table[(uint64(i) + seed) * multiplier >> shift]


@cuda.jit
def prune(weight: Any) -> None:
    """Of every four elements of a column [K, N] two become zero."""
    for i in range(cuda.grid(1), weight.size, cuda.gridsize(1)):
        k, n = i // weight.shape[1], i % weight.shape[1]
        if (k + n) % 4 > 1:
            weight[k, n] = 0


def blank(array: Guarded) -> None:
    """Fill with the unwritten pattern."""
    fill[grid(array.size)](arrays.words(array.array), arrays.pattern(array.dtype))


def any_missing(array: Guarded) -> bool:
    """Has nobody written some element, or is one infinite or NaN?"""
    found = cuda.to_device(np.zeros(1, np.int32))
    mark_missing[grid(array.size)](arrays.words(array.array), *arrays.missing_bits(array.dtype), found)
    return bool(found.copy_to_host()[0])


def elements(array: Guarded, offsets: Any) -> NDArray[np.float64]:
    """The elements at these offsets, an array of int64 on the device."""
    taken = cuda.device_array(offsets.size, arrays.pattern(array.dtype).dtype)
    gather[grid(offsets.size)](arrays.words(array.array), offsets, taken)
    return codes.values(taken.copy_to_host().view(array.dtype))


def draw_hashed(array: Guarded, numbers: NDArray[Any], seed: int) -> None:
    """Each element becomes one of ``numbers``, by the hash of its offset (:func:`check_large`)."""
    table = cuda.to_device(arrays.bits(codes.held(numbers, array.dtype)))
    words = arrays.words(array.array)
    hash_offsets[grid(array.size)](words, table, np.uint64(seed), np.uint64(MULTIPLIER), np.uint64(SHIFT))


# --- problems at full size ---


class Operands:
    """A problem's operands, drawn once for one step after the other: integers to check with, normals to time with.

    They wait on the host; ``x``, ``weight`` and ``y`` are on the GPU, between margins.
    """

    def __init__(self, problem: Problem, seed: int, algorithm: str | None = None, samples: int = SAMPLES) -> None:
        self.problem = problem
        self.integers = inputs.integers(problem, seed, algorithm)
        self.normals = inputs.normals(problem, seed + 2, algorithm)
        self.positions = arrays.sample_positions(problem, samples, seed)
        self.expected = reference.stored(problem, arrays.at(problem, *self.integers, self.positions))
        self.x, self.weight, self.y = (Guarded(shape, dtype=dtype) for shape, dtype in problem.operands)
        self.offsets = cuda.to_device(np.ravel_multi_index(self.positions, problem.output_shape))

    def put(self, pair: tuple[Array, Array]) -> None:
        """Copy operands, ``integers`` or ``normals``, to the GPU."""
        for guarded, values in zip((self.x, self.weight), pair, strict=True):
            guarded.array.copy_to_device(values)


def _compared(problem: Problem, positions: reference.Indices, got: Array, expected: Array) -> list[Finding]:
    """Sampled elements that are wrong: nothing, or one finding."""
    wrong = np.flatnonzero(got != expected)
    if not len(wrong):
        return []
    at, text = np.transpose(positions)[wrong], "sampled elements are wrong"
    return [Finding("wrong", check.tally(problem, at, got[wrong], expected[wrong], len(expected), text))]


def verify(bench: Bench, operands: Operands) -> Verdict:
    """Check a bench on these operands: every element of the output written and finite, sampled elements and the
    corners exact, inputs and margins as they were."""
    problem = operands.problem
    operands.put(operands.integers)
    bench.prepare()
    blank(bench.y)
    bench.run()
    verdict = Verdict(problem, check.trespass(bench, *operands.integers), len(operands.expected))
    if any_missing(bench.y):
        verdict.findings += check.holes(problem, bench.y.get())
        return verdict
    got = elements(bench.y, operands.offsets)
    verdict.findings += _compared(problem, operands.positions, got, operands.expected)
    return verdict


# --- arrays of more than 2^31 elements ---


def numbers(problem: Problem) -> NDArray[np.float64]:
    """The eight numbers that elements are of: integers from -4 to 4 without zero, nearer ones if sums have few bits.

    Hashes of evenly spaced offsets are not independent, so even all products of one sign must not overflow.
    """
    if problem.output_dtype != FLOAT16 and problem.input_dtype != codes.E4M3:
        return _INTEGERS
    limit = inputs.FLOAT16_LIMIT if problem.output_dtype == FLOAT16 else reference.exact_below(problem, None)
    largest = math.isqrt(limit // problem.reduction) or 0.5
    nearer: NDArray[np.float64] = np.clip(_INTEGERS, -largest, largest)
    return nearer


def check_large(module: ModuleType, problem: Problem, samples: int = LARGE_SAMPLES) -> Verdict:
    """Every element of the output written and finite, sampled ones and the corners exact."""
    bench = Bench(module, problem)
    for seed, guarded in enumerate((bench.x, bench.weight)):
        draw_hashed(guarded, numbers(problem), seed)
    if getattr(module, "ALGORITHM", None) == reference.PRUNED:
        prune[grid(bench.weight.size)](bench.weight.array)
    positions = arrays.sample_positions(problem, samples, 0)
    # before the launch, which may change its inputs
    wanted = reference.stored(problem, arrays.at(problem, bench.x.array, bench.weight.array, positions))
    bench.prepare()
    blank(bench.y)
    bench.run()
    got = elements(bench.y, cuda.to_device(np.ravel_multi_index(positions, problem.output_shape)))
    verdict = Verdict(problem, _compared(problem, positions, got, wanted), len(wanted))
    if any_missing(bench.y):
        verdict.findings.append(Finding("unwritten", "elements were never written, or are NaN or infinite"))
    return verdict
