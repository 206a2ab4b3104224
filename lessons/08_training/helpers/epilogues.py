"""Epilogues: what follows a convolution, done to its sums while they are in registers.

An epilogue is a function of one sum and of where it belongs, y[m, n] of GEMM_M x K outputs, see `bias_relu` below.
`finish=bias_relu(array)` hands it, with what it reads, to the launch of two kernels, lesson 05's in FP32 and lesson
06's in FP16. They call it before they round and store; with SPLIT_K, the kernel that adds up the parts calls it.
"""

from functools import lru_cache
from inspect import signature
from math import prod

import numpy as np
from numba import cuda, float32, int64, uint32
from numba.types import float16

from lessons.toolkit.grid import SUM_THREADS
from lessons.toolkit.memory import HALVES, aligned, load2_halves, load4, load8, store2_rounded
from lessons.toolkit.mma import positive, to_half
from lessons.toolkit.narrow import narrow
from lessons.toolkit.unroll import inlined, unroll, unrolled

PER_FILTER = "one float32 per filter"
LIKE_Y = "an array shaped like y"  # at most one, the last
NUMBER = "a float32 number"
MOST = 2  # operands of an epilogue


def epilogue(**operands):
    """Decorator of a function (value, m, n, *operands): of one LIKE_Y it gets the element at [m, n], as float32."""

    def made(function):
        return Epilogue(function, operands)

    return made


class Epilogue:
    """A function of one sum; called with what it reads, it can be handed to a `launch`."""

    def __init__(self, function, kinds):
        named = tuple(signature(function).parameters)[3:]
        if named != tuple(kinds) or len(kinds) > MOST or LIKE_Y in list(kinds.values())[:-1]:
            allowed = f"at most {MOST}, all of them described, and what is shaped like y last"
            raise ValueError(f"{function.__name__} reads {named}, described as {kinds}; allowed: {allowed}")
        self.name, self.device, self.kinds = function.__name__, inlined(function), kinds
        self.like_y = LIKE_Y in kinds.values()
        self.__doc__ = function.__doc__

    def __call__(self, *operands):
        if len(operands) != len(self.kinds):
            raise ValueError(f"{self.name} reads {', '.join(self.kinds)}: {len(operands)} operands were given")
        return Elementwise(self, operands)


# --- the epilogues ---


@epilogue(bias=PER_FILTER)
def add_bias(value, m, n, bias):
    return value + bias[n]


@epilogue(bias=PER_FILTER)
def bias_relu(value, m, n, bias):
    return positive(value + bias[n])


@epilogue(factor=NUMBER)
def scale(value, m, n, factor):
    return value * factor


@epilogue(residual=LIKE_Y)
def add_residual(value, m, n, residual):
    return value + residual


@epilogue(bias=PER_FILTER, residual=LIKE_Y)
def bias_residual_relu(value, m, n, bias, residual):
    return positive(value + bias[n] + residual)


# --- handed to a kernel ---


def require(name, field, value, shape, dtypes):
    """Raise ValueError, which names the field, what it is and what is allowed."""
    dtype = getattr(value, "dtype", None)
    if tuple(getattr(value, "shape", ())) != shape or dtype not in dtypes:
        found = f"{getattr(value, 'shape', value)} of {dtype}" if dtype is not None else repr(value)
        allowed = " or ".join(str(np.dtype(one)) for one in dtypes)
        raise ValueError(f"{name}: {field} is {found}; allowed: {shape} of {allowed}")


class Elementwise:
    """An epilogue and its operands, for one `launch` or many."""

    def __init__(self, made, operands):
        self.made, self.given = made, operands
        self.operands = tuple(map(_as_kernels_see, operands, made.kinds.values()))
        self.checked = set()
        self.apply = with_operands(made.device, len(operands) - made.like_y, made.like_y)

    def reads(self, width):
        """Device function that reads so many neighbours of the operand that is shaped like y, if there is one."""
        if not self.made.like_y:
            return reader(0, width, "none")
        like, at = self.operands[-1], len(self.operands) - 1
        half = like.dtype == np.float16
        fits = aligned(like, to=16 if width > 2 else 2 * like.dtype.itemsize)
        return reader(at, width, ("float16" if half else "float32") if fits and width > 1 else "singly")

    def check(self, y):
        """Raise ValueError where an operand does not fit y [N, O, P, Q, K]."""
        shape = tuple(y.shape)
        self.K = shape[4]
        if (shape, y.dtype) in self.checked:
            return
        require(self.made.name, "y", y, shape, [np.float32, np.float16])
        for (field, kind), value in zip(self.made.kinds.items(), self.given, strict=True):
            if kind is PER_FILTER:
                require(self.made.name, field, value, shape[4:], [np.float32])
            elif kind is LIKE_Y:
                require(self.made.name, field, value, shape, [y.dtype])
            elif not isinstance(value, np.float32):
                raise ValueError(f"{self.made.name}: {field} is {value!r}; allowed: {NUMBER}, np.float32(...)")
        self.checked.add((shape, y.dtype))

    def hooks(self, y, **where):
        """For `specialise`: what is done to a thread's sums."""
        self.check(y)
        return {"finish": over_sums(self.apply, self.reads(where["WIDTH"]), self.K % where["WIDTH"] == 0, **where)}

    def stores(self, y):
        """For `specialise` of a kernel that writes float32: how it writes y, if that is float16."""
        return {"store4": store4_rounded, "rounded": to_half} if y.dtype == np.float16 else {}

    def complete(self, partials, y):
        """Add up the partial outputs if there are any, one after another in `partials`, and apply the function."""
        if partials is not None:
            add_up_and_finish(self.apply, self.reads(1), y.dtype == np.float16)[
                -(-y.size // SUM_THREADS), SUM_THREADS
            ](partials, y.reshape(y.size), y.shape[4], self.operands)


def _as_kernels_see(value, kind):
    # what has no shape is refused later
    return matrix(value) if kind is LIKE_Y and getattr(value, "shape", ()) else value


def matrix(y):
    """y [N, O, P, Q, K] as GEMM_M x K."""
    return y.reshape(prod(tuple(y.shape)[:-1]), tuple(y.shape)[-1])


@inlined
def store4_rounded(array, offset, acc, i):
    """array[offset:offset+4] = acc[i:i+4], each rounded to the nearest float16, to a 4-byte boundary."""
    store2_rounded(array, offset, acc, i)
    store2_rounded(array, offset + 2, acc, i + 2)


@lru_cache
def with_operands(function, count, like_y):
    """The function of (value, m, n, operands, at): operands in one tuple, and the element of one shaped like y."""

    found = {
        (0, False): lambda value, m, n, operands, at: function(value, m, n),
        (1, False): lambda value, m, n, operands, at: function(value, m, n, operands[0]),
        (2, False): lambda value, m, n, operands, at: function(value, m, n, operands[0], operands[1]),
        (0, True): lambda value, m, n, operands, at: function(value, m, n, at),
        (1, True): lambda value, m, n, operands, at: function(value, m, n, operands[0], at),
    }
    return inlined(found[count, like_y])


@lru_cache
def reader(AT, WIDTH, how):
    """Device function that reads [m, n] to [m, n + WIDTH) of operands[AT] as float32, at once or `singly`."""
    HALF = WIDTH if how == "float16" else 1

    @inlined
    def singly(held, operands, m, n, last_n):
        for v in range(WIDTH):
            held[v] = float32(operands[AT][m, min(uint32(n + v), last_n)])

    @inlined
    def float32s(held, operands, m, n, last_n):
        load4(held, 0, operands[AT], m * operands[AT].shape[1] + n)

    @inlined
    def halves(held, operands, m, n, last_n):
        half = cuda.local.array(HALF, float16)
        at = m * operands[AT].shape[1] + n
        if WIDTH == HALVES:
            load8(half, 0, operands[AT], at)
        else:
            for pair in range(0, HALF, 2):
                load2_halves(half, pair, operands[AT], at + pair)
        for v in range(WIDTH):
            held[v] = float32(half[v])

    none = inlined(lambda held, operands, m, n, last_n: None)
    return {"none": none, "singly": singly, "float32": float32s, "float16": halves}[how]


@lru_cache
def over_sums(apply, read, WHOLE, ROWS, ROW_STEP, GROUPS, GROUP_STEP, WIDTH, TOGETHER, **_):
    """Device function that replaces each sum of a thread by what `apply` makes of it.

    The thread has ROWS rows, ROW_STEP apart in y, each of GROUPS of WIDTH neighbours, GROUP_STEP apart. In `acc`
    groups of TOGETHER rows follow each other. WHOLE: the groups divide K.
    """
    GROUP = TOGETHER * WIDTH
    ROW = GROUPS * GROUP
    LAST = WIDTH if WHOLE else 1

    @inlined
    @narrow
    def finish_row(acc, at, m, n, last_n, operands):
        held = cuda.local.array(WIDTH, float32)
        for group in range(GROUPS):
            first = min(n + group * GROUP_STEP, last_n)  # beyond: sums that are not stored
            read(held, operands, m, first, last_n)
            for v in range(WIDTH):
                column = first + v if WHOLE else min(first + v, last_n)
                acc[at + group * GROUP + v] = apply(acc[at + group * GROUP + v], m, column, operands, held[v])

    @inlined
    @unroll
    def finish(acc, m, n, GEMM_M, GEMM_N, operands):
        n, last_m, last_n = uint32(n), uint32(GEMM_M - 1), uint32(GEMM_N - LAST)
        for row in unrolled(ROWS):
            at = int64(row // TOGETHER * ROW + row % TOGETHER * WIDTH)
            finish_row(acc, at, min(uint32(m + row * ROW_STEP), last_m), n, last_n, operands)

    return finish


@lru_cache
def add_up_and_finish(apply, read, to_float16):
    """Kernel: y[i] = what `apply` makes of the sum of partials[split, i] over split."""
    rounded = to_half if to_float16 else float32

    @cuda.jit
    def finish_partials(partials, y, K, operands):
        i = cuda.blockIdx.x * SUM_THREADS + cuda.threadIdx.x
        if i < y.size:
            total = float32(0.0)
            for at in range(i, partials.size, y.size):
                total += partials[at]
            held = cuda.local.array(1, float32)
            m, n = uint32(i // K), uint32(i % K)
            read(held, operands, m, n, n)
            y[i] = rounded(apply(total, m, n, operands, held[0]))

    return finish_partials
