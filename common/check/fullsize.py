"""Checks that stay on the GPU: the right answers by a plain kernel, and large problems whose arrays stay there.

A thread sums each right answer in float64, which holds each product exactly, and each sum of the kinds that are
compared exactly. Nothing is shared with the steps. Imported late, as it brings Numba.
"""

import math
from types import ModuleType
from typing import Any

import numpy as np
from numba import cuda

from common.catalog import codes, inputs, reference
from common.catalog.problems import FLOAT16, Convolution, Geometry, Problem
from common.catalog.reference import Array, Float64
from common.check import arrays, check
from common.check.arrays import Guarded
from common.check.check import Bench, Verdict
from common.run.messages import Finding

THREADS = 256
# Multiply-adds of one launch: a tenth of a second where float64 is slowest, as a display's watchdog ends long ones.
AT_ONCE = 1 << 31
OUTPUTS = 1 << 22  # of one launch, at most: bounds the memory on both sides
BLOCKS = 4096  # at most: the kernels walk over the array in strides of the grid
SAMPLES, LARGE_SAMPLES = 20_000, 300

# Every form as a convolution: the letters of image, d, h, w and channel of x; of filter, t, r, s and channel of the
# weight; of image, o, p, q and filter of the output.
_ROLES = {
    "gemm": ("M---K", "N---K", "M---N"),
    "conv2d": ("N-HWC", "K-RSC", "N-PQK"),
    "conv3d": ("NDHWC", "KTRSC", "NOPQK"),
    "dgrad": ("NOPQK", "CTRSK", "NDHWC"),
    "wgrad": ("CDHWN", "KOPQN", "CTRSK"),
}
_ROWS = 64  # of threads that share an element of dfilt, a long sum


@cuda.jit
def convolve(
    x: Any, weight: Any, sums: Any, offsets: Any, x_axes: Any, weight_axes: Any, y_axes: Any, strides: Any,
    dilations: Any, shifts: Any, divisors: Any,
) -> None:  # fmt: skip
    """``sums``: the output's elements at these offsets. All arrays are flat; the axes are five extents, and how far
    apart their elements lie. Along d, h and w a tap meets (output * stride + tap * dilation + shift) / divisor, if
    that leaves no rest. Threads along y of the grid share a sum."""
    i, part = cuda.grid(2)
    if i < sums.size:
        (N, O, P, Q, K), (of_n, of_o, of_p, of_q, of_k) = y_axes
        (_, D, H, W, _), (x_n, x_d, x_h, x_w, x_c) = x_axes
        (_, T, R, S, C), (weight_k, weight_t, weight_r, weight_s, weight_c) = weight_axes
        at = offsets[i]
        x_start, weight_start = at // of_n % N * x_n, at // of_k % K * weight_k
        d_start = at // of_o % O * strides[0] + shifts[0]
        h_start = at // of_p % P * strides[1] + shifts[1]
        w_start = at // of_q % Q * strides[2] + shifts[2]
        total = np.float64(0.0)
        for row in range(part, T * R, cuda.gridsize(2)[1]):
            t, r = row // R, row % R
            d, h = d_start + t * dilations[0], h_start + r * dilations[1]
            whole = d % divisors[0] == 0 and h % divisors[1] == 0
            d, h = d // divisors[0], h // divisors[1]
            if whole and d >= 0 and d < D and h >= 0 and h < H:
                for s in range(S):
                    w = w_start + s * dilations[2]
                    if w >= 0 and w % divisors[2] == 0 and w // divisors[2] < W:
                        x_at = x_start + d * x_d + h * x_h + w // divisors[2] * x_w
                        weight_at = weight_start + t * weight_t + r * weight_r + s * weight_s
                        for c in range(C):
                            total += np.float64(x[x_at + c * x_c]) * np.float64(weight[weight_at + c * weight_c])
        cuda.atomic.add(sums, i, total)


def _axes(problem: Problem) -> tuple[Any, ...]:
    """What :func:`convolve` is told of the three arrays, and of the geometry."""
    axes = []
    for letters, roles in zip(problem.arrays, _ROLES[problem.form], strict=True):
        extents = tuple(getattr(problem, role, 1) for role in roles)
        axes.append((extents, tuple(math.prod(problem.extents(letters.partition(role)[2])) for role in roles)))
    g = problem.geometry if isinstance(problem, Convolution) else Geometry()
    stride, pad, dilation, ones = g[:3], g[3:6], g[6:], (1, 1, 1)
    if problem.form == "dgrad":
        return *axes, ones, tuple(-each for each in dilation), pad, stride
    less = tuple(-each for each in pad)
    return *axes, *((dilation, stride) if problem.form == "wgrad" else (stride, dilation)), less, ones


def at(problem: Problem, x: Any, weight: Any, offsets: Array | None = None) -> Float64:
    """Output elements in float64, at these offsets in row-major order or all of them, in one dimension. ``x`` and
    ``weight`` may be on the device. Raises the driver's error where the GPU has no room for the operands."""
    operands, found = [_on_device(array) for array in (x, weight)], []
    size = math.prod(problem.output_shape) if offsets is None else offsets.size
    each = max(THREADS, min(OUTPUTS, AT_ONCE // problem.reduction))
    rows = _ROWS if problem.form == "wgrad" else 1
    for first in range(0, size, each):
        part = np.arange(first, min(first + each, size)) if offsets is None else offsets[first : first + each]
        sums, blocks = cuda.to_device(np.zeros(part.size)), -(-part.size // THREADS)
        convolve[(blocks, rows), (THREADS, 1)](*operands, sums, cuda.to_device(part), *_axes(problem))
        found.append(sums.copy_to_host())
    return np.concatenate(found)


def _on_device(array: Any) -> Any:
    """An operand of the right answers on the device, flat, as numbers."""
    array = cuda.to_device(np.ascontiguousarray(array)) if isinstance(array, np.ndarray) else array
    kind, flat = np.dtype(array.dtype), array.reshape(array.size)
    if not codes.are(kind):
        return flat
    numbers = codes.values(np.arange(1 << 8 * kind.itemsize).astype(kind)).astype(np.float32)
    return _gathered(cuda.to_device(numbers), flat)


def grid(size: int) -> tuple[int, int]:
    """Blocks, and threads in each, for so many elements."""
    return max(1, min(BLOCKS, -(-size // THREADS))), THREADS


@cuda.jit
def fill(words: Any, given: Any) -> None:
    """The words become those that are given, again and again."""
    for i in range(cuda.grid(1), words.size, cuda.gridsize(1)):
        words[i] = given[i % given.size]


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


def _gathered(values: Any, offsets: Any) -> Any:
    taken = cuda.device_array(offsets.size, values.dtype)
    gather[grid(offsets.size)](values, offsets, taken)
    return taken


@cuda.jit
def prune(weight: Any) -> None:
    """Of every four elements of a column [K, N] two become zero."""
    for i in range(cuda.grid(1), weight.size, cuda.gridsize(1)):
        k, n = i // weight.shape[1], i % weight.shape[1]
        if (k + n) % 4 > 1:
            weight[k, n] = 0


class Operands:
    """A problem's operands, drawn once for one step after the other: integers to check with, normals to time with, on
    the host; ``x``, ``weight`` and ``y`` are on the GPU, between margins."""

    def __init__(self, problem: Problem, seed: int, algorithm: str | None = None, samples: int = SAMPLES) -> None:
        self.problem = problem
        self.integers = inputs.integers(problem, seed, algorithm)
        self.normals = inputs.normals(problem, seed + 2, algorithm)
        self.positions = arrays.sample_positions(problem, samples, seed)
        self.expected = reference.stored(problem, arrays.at(problem, *self.integers, self.positions))
        self.x, self.weight, self.y = (Guarded(shape, dtype=dtype) for shape, dtype in problem.operands)

    def put(self, pair: tuple[Array, Array]) -> None:
        """Copy operands, ``integers`` or ``normals``, to the GPU."""
        for guarded, values in zip((self.x, self.weight), pair, strict=True):
            guarded.array.copy_to_device(values)


def _launched(bench: Bench, positions: reference.Indices, expected: Array) -> tuple[Verdict, bool]:
    """Launch, compare the elements at these positions; and is any element missing: unwritten, infinite or NaN?"""
    bench.prepare()
    words, dtype = arrays.bits(bench.y.array.reshape(bench.y.size)), bench.y.dtype
    fill[grid(words.size)](words, cuda.to_device(arrays.bits(arrays.filled(1, dtype))))
    bench.run()
    missing = cuda.to_device(np.zeros(1, np.int32))
    mark_missing[grid(words.size)](words, *arrays.missing_bits(dtype), missing)
    offsets = np.ravel_multi_index(positions, bench.problem.output_shape)
    got = codes.values(_gathered(words, cuda.to_device(offsets)).copy_to_host().view(dtype))
    verdict = Verdict(bench, elements_compared=len(expected))
    if (wrong := got != expected).any():
        said = check.tally(bench.problem, wrong, got, expected, "sampled elements are wrong", places=positions)
        verdict.findings.append(Finding("wrong", said))
    return verdict, bool(missing.copy_to_host()[0])


def verify(bench: Bench, operands: Operands) -> Verdict:
    """Check a bench on these operands: every element of the output written and finite, sampled elements and the
    corners exact, inputs and margins as they were."""
    operands.put(operands.integers)
    verdict, missing = _launched(bench, operands.positions, operands.expected)
    if missing:  # which says more than samples
        verdict.findings = check.holes(operands.problem, bench.y.get())
    verdict.findings = check.trespass(bench, *operands.integers) + verdict.findings
    return verdict


def numbers(problem: Problem) -> Float64:
    """What elements are drawn from: integers from -4 to 4 without zero, nearer ones if sums have few bits: as what is
    drawn repeats, even all products of one sign must not overflow."""
    largest: float = 4
    if problem.output_dtype == FLOAT16 or problem.input_dtype == codes.E4M3:
        limit = inputs.FLOAT16_LIMIT if problem.output_dtype == FLOAT16 else reference.exact_below(problem, None)
        largest = math.isqrt(limit // problem.reduction) or 0.5
    return np.clip([-4.0, -3.0, -2.0, -1.0, 1.0, 2.0, 3.0, 4.0], -largest, largest)


def check_large(module: ModuleType, problem: Problem, samples: int = LARGE_SAMPLES) -> Verdict:
    """Every element of the output written and finite, sampled ones and the corners exact."""
    bench, rng = Bench(module, problem), np.random.default_rng(0)
    for guarded in (bench.x, bench.weight):
        drawn = codes.held(rng.choice(numbers(problem), inputs.POOL), guarded.dtype)
        fill[grid(guarded.size)](arrays.bits(guarded.array.reshape(guarded.size)), cuda.to_device(arrays.bits(drawn)))
    if getattr(module, "ALGORITHM", None) == reference.PRUNED:
        prune[grid(bench.weight.size)](bench.weight.array)
    positions = arrays.sample_positions(problem, samples, 0)
    # before the launch, which may change its inputs
    wanted = reference.stored(problem, arrays.at(problem, bench.x.array, bench.weight.array, positions))
    verdict, missing = _launched(bench, positions, wanted)
    if missing:
        verdict.findings.append(Finding("unwritten", "elements were never written, or are NaN or infinite"))
    return verdict
