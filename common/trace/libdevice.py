"""Functions of NVIDIA's libdevice, as ``numba.cuda.libdevice`` has them, on lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from common.trace import values

_FAST = "fast_"
_ROUNDED = "_rn", "_rz", "_ru", "_rd"  # how a result is rounded: the difference is one bit, and is not told
# Names without the f of float32, and what NumPy has for them.
_OF_NUMPY: dict[str, Callable[..., Any]] = {
    "abs": np.abs, "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan,
    "atan2": np.arctan2, "atanh": np.arctanh, "cbrt": np.cbrt, "ceil": np.ceil, "copysign": np.copysign,
    "cos": np.cos, "cosh": np.cosh, "exp": np.exp, "exp10": lambda x: np.power(x.dtype.type(10), x), "exp2": np.exp2,
    "expm1": np.expm1, "fabs": np.fabs, "fdim": lambda x, y: np.maximum(x - y, 0), "floor": np.floor,
    "fma": lambda x, y, z: x * y + z, "fmax": np.fmax, "fmin": np.fmin, "fmod": np.fmod, "hypot": np.hypot,
    "log": np.log, "log10": np.log10, "log1p": np.log1p, "log2": np.log2, "max": np.maximum, "min": np.minimum,
    "mul": np.multiply, "nearbyint": np.rint, "nextafter": np.nextafter, "pow": np.power, "rint": np.rint,
    "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x).astype(x.dtype), "rsqrt": lambda x: 1 / np.sqrt(x),
    "saturate": lambda x: np.clip(x, 0, 1), "sin": np.sin, "sinh": np.sinh, "sqrt": np.sqrt, "tan": np.tan,
    "tanh": np.tanh, "trunc": np.trunc, "fadd": np.add, "fsub": np.subtract, "fmul": np.multiply, "fdiv": np.divide,
    "fdivide": np.divide, "dadd": np.add, "dmul": np.multiply, "ddiv": np.divide, "frcp": lambda x: 1 / x,
    "drcp": lambda x: 1 / x, "fsqrt": np.sqrt, "dsqrt": np.sqrt, "powi": np.power,
}  # fmt: skip


def of(name: str) -> Callable[..., Any] | None:
    """The function of this name; None if it is not known."""
    plain = name.removeprefix(_FAST)
    for ending in _ROUNDED:
        plain = plain.removesuffix(ending)
    known = _OF_NUMPY.get(plain)
    single = known is None and plain.endswith("f")
    if known is None and (known := values.function(plain)) is not None:
        single = False
    known = known or (_OF_NUMPY.get(plain[:-1]) or values.function(plain[:-1]) if single else None)
    if known is None:
        return None
    kind = values.FLOAT32 if single or plain.startswith(("fadd", "fsub", "fmul", "fdiv", "frcp", "fsqrt")) else None
    return lambda *numbers: known(*(_number(number, kind) for number in numbers))


def _number(value: values.Value, kind: Any) -> Any:
    if kind is not None and values.dtype_of(value).kind in "fiu":
        return np.asarray(values.cast(value, kind))[()]
    return np.asarray(value)[()] if type(value) is int else value
