"""Arithmetic as Numba types it, on one value for all threads (a Python or NumPy scalar) or one per lane (an array).

A Python int is an int64, as a literal is in Numba. The type of a result is Numba's own answer: integers are computed
in 64 bits (NBEP 1), and one of 32 or more with a float32 in float64. Narrower integers exist between a cast and the
next operation.
"""

import math
import operator
import re
from collections.abc import Callable
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import numpy as np

INT64, UINT64 = np.dtype(np.int64), np.dtype(np.uint64)
FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_LEAST = -(2**63)  # of int64
_COMPUTED = (FLOAT32, INT64, FLOAT64, UINT64)
_OF_PYTHON = {int: INT64, bool: INT64, float: FLOAT64, complex: np.dtype(np.complex128)}

Code = Callable[..., Any]
Value = Any  # int, bool, a NumPy scalar, or an array with one element per lane


def dtype_of(value: Value) -> np.dtype[Any]:
    """The type that Numba computes a value in."""
    found: np.dtype[Any] | None = _OF_PYTHON.get(type(value))
    return value.dtype if found is None else found


def uniform(value: Value) -> bool:
    return not isinstance(value, np.ndarray)


def spread(value: Value, shape: tuple[int, ...]) -> Any:
    """An array of this shape; one that has it already is not copied, nor looked at for long."""
    if type(value) is np.ndarray and value.shape == shape:
        return value
    return np.broadcast_to(np.asarray(value), shape)


def widened(value: Value) -> Value:
    """Integers narrower than 64 bits, and booleans, in 64 bits."""
    dtype = dtype_of(value)
    if dtype.kind in "ib" and (dtype != INT64 or type(value) is bool):
        return int(value) if uniform(value) else value.astype(INT64)
    return value.astype(UINT64) if dtype.kind == "u" and dtype != UINT64 else value


def signed(value: Value) -> Value:
    """An integer's bits as int64; one for all threads as a Python int."""
    if uniform(value):
        return value if type(value) is int else (int(value) + 2**63) % 2**64 - 2**63
    return value.view(INT64) if value.dtype == UINT64 else value.astype(INT64, copy=False)


def _converted(value: Value, dtype: np.dtype[Any]) -> Value:
    return dtype.type(value) if uniform(value) else value.astype(dtype, copy=False)


@lru_cache(maxsize=1)
def _numba() -> Any:
    """Numba's typing rules of operators. (Those of the target would take ten times as long to load.)"""
    from numba.cuda.typing import builtins, context

    rules = context.BaseContext()
    rules.install_registry(builtins.registry)
    return rules


@lru_cache(maxsize=4096)
def _common(operation: Any, left: np.dtype[Any], right: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which Numba computes ``operation``, a function of two numbers, of operands of these types."""
    from numba.core.errors import TypingError
    from numba.cuda.np.numpy_support import as_dtype, from_dtype

    if left == right and left.kind in "fc":
        return left
    try:
        given = from_dtype(left), from_dtype(right)
        found: np.dtype[Any] = as_dtype(_numba().resolve_function_type(operation, given, {}).return_type)
    except TypingError:  # NumPy says why
        found = np.result_type(left, right)
    return found


def unified(a: Value, b: Value, operation: Any = operator.add) -> tuple[Value, Value]:
    """Both operands in the type that Numba computes an operation in; an int for all threads as a Python int."""
    left = a.dtype if type(a) is np.ndarray else dtype_of(a)
    right = b.dtype if type(b) is np.ndarray else dtype_of(b)
    if left is right and left in _COMPUTED and operation is not operator.truediv:
        return a, b
    dtype = _common(operation, left, right)
    if left is not dtype:
        a = a.astype(dtype) if type(a) is np.ndarray else signed(a) if dtype is INT64 else dtype.type(a)
    if right is not dtype:
        b = b.astype(dtype) if type(b) is np.ndarray else signed(b) if dtype is INT64 else dtype.type(b)
    return a, b


# --- operators ---


def _operator(operation: Code, compute: Code | None = None) -> Code:
    """The operation on lanes; ``compute`` in its place, of operands of one type."""
    compute = compute or operation

    def apply(a: Value, b: Value) -> Value:
        result = compute(*unified(a, b, operation))
        if type(result) is int and not _LEAST <= result < -_LEAST:  # it wraps around, as an int64 does
            return (result - _LEAST) % 2**64 + _LEAST
        return result

    return apply


def _power(a: Value, b: Value) -> Value:
    """Of an integer to a negative power, the quotient's whole part."""
    if dtype_of(a).kind != "i" or not np.count_nonzero(below := b < 0):
        return a**b
    whole = a ** abs(b)
    return choose(below, (whole == 1) * 1 - (whole == -1) * 1, whole)


add, sub, mul = _operator(operator.add), _operator(operator.sub), _operator(operator.mul)
truediv, floordiv, mod = _operator(operator.truediv), _operator(operator.floordiv), _operator(operator.mod)
bit_and, bit_or, bit_xor = _operator(operator.and_), _operator(operator.or_), _operator(operator.xor)
shift_left, shift_right = _operator(operator.lshift), _operator(operator.rshift)
power = _operator(operator.pow, _power)
positive = widened


def negative(a: Value) -> Value:
    return widened(-a) if type(a) is int or dtype_of(a).kind in "iu" else -widened(a)  # widened after, as in Numba


def invert(a: Value) -> Value:
    return logical_not(a) if type(a) is bool or dtype_of(a).kind == "b" else widened(~a)


# what gives the same bits on narrower integers of one type as in 64 bits and cast back
_AT_ONCE: dict[Any, Code] = {
    add: operator.add, sub: operator.sub, mul: operator.mul, floordiv: operator.floordiv, mod: operator.mod,
    bit_and: operator.and_, bit_or: operator.or_, bit_xor: operator.xor, negative: operator.neg,
    shift_left: operator.lshift, shift_right: operator.rshift, invert: operator.invert,
}  # fmt: skip


def truth(value: Value) -> Value:
    if uniform(value):
        return bool(value)
    return value if value.dtype == np.bool_ else value != 0


def logical_and(a: Value, b: Value) -> Value:
    a, b = truth(a), truth(b)
    if uniform(b):
        a, b = b, a
    return a & b if not uniform(a) else b if a else False


def logical_not(a: Value) -> Value:
    a = truth(a)
    return not a if uniform(a) else ~a


def choose(condition: Value, a: Value, b: Value) -> Value:
    """``a if condition else b``, lane by lane."""
    condition = truth(condition)
    if uniform(condition):
        return a if condition else b
    if dtype_of(a) != dtype_of(b):
        a, b = unified(a, b)
    return np.where(condition, a, b)


# --- Python's functions and types ---


def _extreme(plain: Code, by_lane: Code) -> Code:
    of_two = _operator(plain, lambda a, b: plain(a, b) if type(a) is int and type(b) is int else by_lane(a, b))
    return lambda *given: reduce(of_two, given if len(given) > 1 else given[0])


minimum, maximum = _extreme(min, np.minimum), _extreme(max, np.maximum)


def absolute(value: Value) -> Value:
    return abs(widened(value))


class Range(NamedTuple):
    """``range`` whose ends differ between lanes."""

    start: Value
    stop: Value
    step: Value


def make_range(*ends: Value) -> Any:
    if all(type(one) is int for one in ends):
        return range(*ends)
    start, stop, step = (0, ends[0], 1) if len(ends) == 1 else (*ends, 1)[:3]
    if not all(map(uniform, ends)):
        return Range(*unified(start, stop), signed(widened(step)))
    turns = range(int(start), int(stop), int(step))
    return turns if "i" in (dtype_of(start).kind, dtype_of(stop).kind) else map(np.uint64, turns)


class Cast:
    """A number type called on a value, such as ``float32(0.0)`` or ``uint32(i)``; also names an array's dtype."""

    def __init__(self, dtype: Any, check: Callable[[Value], None] | None = None) -> None:
        self.dtype = np.dtype(dtype)
        self.check = check  # called with a value before it becomes an integer

    def __call__(self, value: Value = 0) -> Value:
        if self.check is not None and self.dtype.kind in "iu":
            self.check(value)
        found = cast(value, self.dtype)
        return int(found) if type(found) is np.int64 else found


def cast(value: Value, dtype: np.dtype[Any]) -> Value:
    """A value as another type: integers wrap around, as the cast in C does."""
    if isinstance(value, np.ndarray):
        return value if value.dtype is dtype else value.astype(dtype)
    if dtype.kind not in "iu" or value != value or abs(value) == math.inf:
        return dtype.type(value) if dtype.kind not in "iu" else np.float64(value).astype(dtype)
    bits = 8 * dtype.itemsize
    number = int(value) % 2**bits
    return dtype.type(number - 2**bits if dtype.kind == "i" and number >> (bits - 1) else number)


def narrowing(function: Code, number: type[np.integer[Any]]) -> Code:
    """The function as `lessons.toolkit.narrow` has it: of integers of type ``number`` it makes another, wrapped."""
    dtype = np.dtype(number)
    at_once = _AT_ONCE.get(function)  # without a way through 64 bits

    def apply(*operands: Value) -> Value:
        for one in operands:
            found = getattr(one, "dtype", None)
            if found is not dtype and (found is None or found != dtype):
                return function(*operands)
        return at_once(*operands) if at_once else cast(function(*operands), dtype)

    return apply


@lru_cache(maxsize=4096)
def narrow_constant(value: int, number: Any) -> Value:
    """A constant as `lessons.toolkit.narrow` has it: of type ``number``, if it fits."""
    limits = np.iinfo(number)
    return number(value) if limits.min <= value <= limits.max else value


def python_complex(real: Value = 0.0, imag: Value = 0.0) -> Value:
    """Of two float32, a complex64."""
    kind = np.dtype(np.complex64 if dtype_of(real) == FLOAT32 == dtype_of(imag) else np.complex128)
    return (np.asarray(real, kind) + np.asarray(imag, kind) * kind.type(1j)).astype(kind)[()]


def rounded(value: Value, digits: Value = 0) -> Value:
    """To the nearest, halves to even; an integer, as Numba's ``round`` of one argument."""
    if uniform(digits) and digits == 0:
        return Cast(INT64)(np.rint(value))
    found = np.round(value, int(digits))
    return np.where(np.isfinite(found), found, value).astype(dtype_of(value))[()]


# --- math and libdevice ---


def _one_by_one(name: str) -> Callable[[Value], Value]:
    plain = np.frompyfunc(getattr(math, name), 1, 1)
    return lambda value: np.asarray(plain(value)).astype(dtype_of(value))[()]


# functions of math and cmath that NumPy has not, or not under this name
_MATH: dict[str, Code] = {
    "phase": np.angle, "polar": lambda x: (np.abs(x), np.angle(x)), "remainder": lambda x, y: x - np.rint(x / y) * y,
    "ldexp": lambda x, n: np.ldexp(x, np.asarray(n).astype(np.int64)),
    **{name: _one_by_one(name) for name in ("erf", "erfc", "gamma", "lgamma")},
}  # fmt: skip


def function(name: str) -> Code | None:
    """A function of ``math`` on lanes: float32 stays float32, an integer becomes float64."""
    known = _MATH.get(name) or (getattr(np, name, None) if hasattr(math, name) else None)
    if name not in _MATH and not (isinstance(known, np.ufunc) and any("d" in kinds for kinds in known.types)):
        return None  # a constant, or one of integers alone
    return known and (
        lambda *given: known(*(v if dtype_of(v).kind in "fc" else _converted(v, FLOAT64) for v in given))
    )


def of_math(name: str) -> Any:
    """What ``math`` has: a function on lanes, or a constant as float64. Raises AttributeError."""
    found = function(name) or getattr(math, name)
    if callable(found) and found is getattr(math, name, None):
        raise AttributeError(f"math.{name} is not known to the tracer")
    return np.float64(found) if isinstance(found, float) else found


# by names without the letters of types, and without how a result is rounded: one bit at most
_LIBDEVICE: dict[str, Code] = {
    "abs": np.abs, "fmax": np.fmax, "fmin": np.fmin, "max": np.maximum, "min": np.minimum, "mul": np.multiply,
    "mul24": np.multiply, "add": np.add, "sub": np.subtract, "div": np.divide, "fdivide": np.divide,
    "rcp": np.reciprocal, "rint": np.rint, "nearbyint": np.rint, "powi": np.power, "fma": lambda x, y, z: x * y + z,
    "cbrt": np.cbrt, "exp2": np.exp2,  # math has these from Python 3.11 on
    "exp10": lambda x: np.power(x.dtype.type(10), x), "fdim": lambda x, y: np.maximum(x - y, 0),
    "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x), "rsqrt": lambda x: 1 / np.sqrt(x),
    "saturate": lambda x: np.clip(x, 0, 1), "sincos": lambda x: (np.sin(x), np.cos(x)),
    "sinpi": lambda x: np.sin(x * x.dtype.type(np.pi)), "cospi": lambda x: np.cos(x * x.dtype.type(np.pi)),
    "rcbrt": lambda x: 1 / np.cbrt(x), "tgamma": _MATH["gamma"], "sad": lambda x, y, z: np.abs(x - y) + z,
    "float_as_int": lambda x: x.view(np.int32), "int_as_float": lambda x: x.view(np.float32),
}  # fmt: skip


def of_libdevice(name: str) -> Code | None:
    """The function of this name in NVIDIA's libdevice, on lanes, of the types that it is declared with; None if it is
    not known."""
    from numba.cuda.libdevicefuncs import functions
    from numba.cuda.np.numpy_support import as_dtype

    plain = re.sub("^fast_|_r[nzud]$", "", name)
    names = plain, plain[:-1] if plain[-1] in "fd" else "", plain[1:] if plain[0] in "fdu" else ""
    known = next(filter(None, (_LIBDEVICE.get(one) or function(one) for one in names)), None)
    result, takes = functions[f"__nv_{name}"]

    def apply(*numbers: Value) -> Any:
        assert known is not None
        given = zip(numbers, (as_dtype(one.ty) for one in takes if not one.is_ptr), strict=True)
        found = known(*(np.asarray(cast(one, kind))[()] for one, kind in given))
        return found if type(found) is tuple else cast(found, as_dtype(result))

    return apply if known else None
