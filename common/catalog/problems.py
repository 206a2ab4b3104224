"""What is computed: problem shapes, their FLOPs and least traffic, and the named presets, ``problems.toml``.

Index letters are those of cuDNN and CUTLASS: N batch, C input channels, D/H/W input, K filters, T/R/S filter, O/P/Q
output. Convolution is cross-correlation: ``h = p * stride_h - pad_h + r * dilation_h``; its gradients have its
letters.
"""

import difflib
import math
import re
from collections import namedtuple
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from common.catalog import store

FLOAT16, FLOAT32 = np.dtype(np.float16), np.dtype(np.float32)
INT8, INT32, UINT8, UINT16 = (np.dtype(kind) for kind in (np.int8, np.int32, np.uint8, np.uint16))
SIXTEEN_BITS = FLOAT16, UINT16  # an output of these is the sum in float32, rounded once
Extents = tuple[int, ...]

# Stride, padding and dilation of a 3D convolution, as ``launch`` of a conv3d step receives them.
Geometry = namedtuple(
    "Geometry", "stride_d stride_h stride_w pad_d pad_h pad_w dilation_d dilation_h dilation_w",
    defaults=(1, 1, 1, 0, 0, 0, 1, 1, 1),
)  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """A shape to compute. Input, weight and output are the arrays in the order of ``launch``: a, b and c, or x, filt
    and y. Input and weight have one dtype; an output of 16 bits is a float32 sum, rounded once, at the end. ``form``
    names what is computed, whatever the arrays hold: it is the ladder whose arrays are float32."""

    ladder: ClassVar[str]
    form: ClassVar[str]
    names: ClassVar[tuple[str, ...]]  # what launch takes: the input, the weight, the output; perhaps the geometry
    arrays: ClassVar[tuple[str, str, str]]  # the letters of the extents of the first three
    summed: ClassVar[str]  # those of the sum of one element of the output
    axes: ClassVar[tuple[tuple[str, str, str], ...]] = ()  # of a convolution: the letters of input, filter, options
    input_dtype: ClassVar[np.dtype[Any]] = FLOAT32
    output_dtype: ClassVar[np.dtype[Any]] = FLOAT32
    operation: ClassVar[str] = "FLOP"  # what a rate counts

    def __post_init__(self) -> None:
        for key, value in vars(self).items():
            least, kind = (0, "an integer of at least 0") if key.startswith("pad") else (1, "a positive integer")
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{key}={value!r}: must be {kind}")
        for extent, taps, axis in self.axes:
            reach, padded, _ = self._along(extent, taps, axis)
            if reach > padded:
                there = f"{extent} + 2*pad_{axis}" if padded > getattr(self, extent) else extent
                said = f"{taps}={getattr(self, taps)}: the filter spans {reach}, which must not exceed the input"
                raise ValueError(f"{said}, {there} = {padded}")

    def _along(self, extent: str, taps: str, axis: str) -> tuple[int, int, int]:
        """How far the filter reaches, the padded input, and the outputs along an axis."""
        usual = {"stride": 1, "pad": 0, "dilation": 1}
        stride, pad, dilation = (getattr(self, f"{key}_{axis}", value) for key, value in usual.items())
        reach, padded = (getattr(self, taps) - 1) * dilation + 1, getattr(self, extent) + 2 * pad
        return reach, padded, (padded - reach) // stride + 1

    def extents(self, letters: Iterable[str]) -> Extents:
        """The fields of these letters, or names."""
        return tuple([getattr(self, letter) for letter in letters])

    batch_key = property(lambda self: "N" if "N" in self.arrays[0] else None)
    input_shape = property(lambda self: self.extents(self.arrays[0]))
    weight_shape = property(lambda self: self.extents(self.arrays[1]))
    output_shape = property(lambda self: self.extents(self.arrays[2]))

    @property
    def operands(self) -> tuple[tuple[Extents, np.dtype[Any]], ...]:
        """Shape and dtype of the input, the weight and the output."""
        held = self.input_dtype, self.input_dtype, self.output_dtype
        return tuple(zip(map(self.extents, self.arrays), held, strict=True))

    @property
    def reduction(self) -> int:
        """Products summed into one output element (GEMM_K); of dgrad also those that vanish."""
        return math.prod(self.extents(self.summed))

    @property
    def flops(self) -> int:
        """Operations of the definition: two per multiply-add, padding not counted out. Gradients share those of the
        forward convolution: taps of dx that meet no dy are no work."""
        return 2 * math.prod(self.extents({"dgrad": "NOPQKTRSC"}.get(self.form, self.arrays[2] + self.summed)))

    @property
    def least_bytes(self) -> int:
        """Bytes moved when each input is read once and each output written once."""
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.operands)

    @property
    def intensity(self) -> float:
        """Arithmetic intensity in FLOP per byte of least traffic."""
        return self.flops / self.least_bytes

    def shape(self) -> dict[str, int]:
        """The fields that tell this problem from others: those without a default, and those off it."""
        defaults = {field.name: field.default for field in fields(self)}
        return {name: value for name, value in vars(self).items() if value != defaults[name]}

    def __str__(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.shape().items())


@dataclass(frozen=True)
class Gemm(Problem):
    """C[M, N] = A[M, K] @ B[K, N], row-major."""

    M: int
    N: int
    K: int
    ladder = form = "gemm"
    names, arrays, summed = ("a", "b", "c"), ("MK", "KN", "MN"), "K"


@dataclass(frozen=True)
class Conv2d(Problem):
    """y[N, K, P, Q] from x[N, C, H, W] and filt[K, C, R, S]: stride 1, no padding, P = H-R+1, Q = W-S+1."""

    N: int
    C: int
    H: int
    W: int
    K: int
    R: int
    S: int
    ladder = form = "conv2d"
    names, arrays, summed = ("x", "filt", "y"), ("NCHW", "KCRS", "NKPQ"), "CRS"
    axes = ("H", "R", "h"), ("W", "S", "w")

    P = property(lambda self: self._along("H", "R", "h")[2])
    Q = property(lambda self: self._along("W", "S", "w")[2])


@dataclass(frozen=True)
class Convolution(Problem):
    """The shape of a 3D convolution (NDHWC, KTRSC), of which its subclasses compute y or a gradient."""

    N: int
    C: int
    D: int
    H: int
    W: int
    K: int
    T: int
    R: int
    S: int
    stride_d: int = 1
    stride_h: int = 1
    stride_w: int = 1
    pad_d: int = 0
    pad_h: int = 0
    pad_w: int = 0
    dilation_d: int = 1
    dilation_h: int = 1
    dilation_w: int = 1
    axes = ("D", "T", "d"), ("H", "R", "h"), ("W", "S", "w")

    O = property(lambda self: self._along("D", "T", "d")[2])
    P = property(lambda self: self._along("H", "R", "h")[2])
    Q = property(lambda self: self._along("W", "S", "w")[2])
    geometry = property(lambda self: Geometry(*self.extents(Geometry._fields)))


class Conv3d(Convolution):
    """y[N, O, P, Q, K] from x[N, D, H, W, C] and filt[K, T, R, S, C]."""

    ladder = form = "conv3d"
    names, arrays, summed = ("x", "filt", "y", "geometry"), ("NDHWC", "KTRSC", "NOPQK"), "TRSC"


class Dgrad(Convolution):
    """The gradient of the input: dx[N, D, H, W, C] from dy[N, O, P, Q, K] and filt[K, T, R, S, C]."""

    ladder = form = "dgrad"
    names, arrays, summed = ("dy", "filt", "dx", "geometry"), ("NOPQK", "KTRSC", "NDHWC"), "TRSK"


class Wgrad(Convolution):
    """The gradient of the filter: dfilt[K, T, R, S, C] from x[N, D, H, W, C] and dy[N, O, P, Q, K], the weight."""

    ladder = form = "wgrad"
    names, arrays, summed = ("x", "dy", "dfilt", "geometry"), ("NDHWC", "NOPQK", "KTRSC"), "NOPQ"


def _on_less(ladder: str, kind: type[Problem], held: np.dtype[Any], result: np.dtype[Any], counts: str) -> Any:
    """The same on arrays that hold less."""
    more = {"ladder": ladder, "input_dtype": held, "output_dtype": result, "operation": counts}
    return type(ladder.capitalize(), (kind,), more)


# Float16, int8 with exact sums in int32, and codes (:mod:`common.catalog.codes`): e4m3, its sums float32, and
# bfloat16.
Hgemm = _on_less("hgemm", Gemm, FLOAT16, FLOAT16, "FLOP")
Hconv3d = _on_less("hconv3d", Conv3d, FLOAT16, FLOAT16, "FLOP")
Igemm = _on_less("igemm", Gemm, INT8, INT32, "OP")
Iconv3d = _on_less("iconv3d", Conv3d, INT8, INT32, "OP")
Fp8gemm = _on_less("fp8gemm", Gemm, UINT8, FLOAT32, "FLOP")
Bfgemm = _on_less("bfgemm", Gemm, UINT16, UINT16, "FLOP")

_KINDS = Gemm, Conv2d, Conv3d, Hgemm, Hconv3d, Dgrad, Wgrad, Igemm, Fp8gemm, Bfgemm, Iconv3d
LADDERS: dict[str, type[Problem]] = {kind.ladder: kind for kind in _KINDS}


def on_ladder(ladder: str, problem: Problem) -> Problem:
    """The same shape on another ladder of the same keys, such as ``hgemm`` for ``gemm``, ``dgrad`` for ``conv3d``."""
    return problem if problem.ladder == ladder else LADDERS[ladder](**vars(problem))


def from_shape(ladder: str, shape: dict[str, Any]) -> Problem:
    """Build the ladder's problem from extents; raises ValueError naming the key that is wrong, missing or unknown."""
    allowed = {field.name: field.default for field in fields(LADDERS[ladder])}
    needed = [name for name, default in allowed.items() if default is MISSING]
    if unknown := [key for key in shape if key not in allowed]:
        raise ValueError(f"shape key {unknown[0]!r} is unknown for {ladder}: allowed are {' '.join(allowed)}")
    if missing := [key for key in needed if key not in shape]:
        raise ValueError(f"shape key {missing[0]!r} is missing: {ladder} needs {' '.join(needed)}")
    return LADDERS[ladder](**shape)


def parse_shape(ladder: str, text: str) -> Problem:
    """Build a problem from ``"N=2 C=3 ..."``; raises ValueError as :func:`from_shape` does."""
    shape: dict[str, Any] = {}
    for word in text.split():
        key, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"{word!r} in the shape: must be KEY=INTEGER")
        if key in shape:
            raise ValueError(f"shape key {key!r} is given twice")
        # if it is no number, the problem's own check names the field
        shape[key] = int(value) if re.fullmatch(r"[+-]?\d+", value) else value
    return from_shape(ladder, shape)


_DATA = store.read_toml(Path(__file__).with_name("problems.toml"))
PRESETS: dict[str, Problem] = {name: parse_shape(*text.split(" ", 1)) for name, text in _DATA["presets"].items()}
DEFAULT_PRESET: dict[str, str] = _DATA["default"]


def _told(table: str, ladder: str) -> Any:
    """What a table of the file has for a ladder; else for its form, or for all convolutions, as for conv3d."""
    found = _DATA[table]
    return found.get(ladder) or found.get(LADDERS[ladder].form) or found["conv3d"]


FIRST: dict[str, Problem] = {ladder: parse_shape(ladder, _told("first", ladder)) for ladder in LADDERS}
RAGGED, TRACED = (
    {ladder: tuple(parse_shape(ladder, shape) for shape in _told(table, ladder)) for ladder in LADDERS}
    for table in ("ragged", "traced")
)
EXERCISED: dict[str, tuple[str, ...]] = {ladder: tuple(_told("exercises", ladder)) for ladder in LADDERS}

# The same layer channels-last, as the implicit-GEMM steps take it: they end the table and the chart of the layer.
CHANNELS_LAST = {"ece408-layer1": "ece408-layer1-nhwc", "ece408-layer2": "ece408-layer2-nhwc"}


def nearest(name: str, known: Iterable[str]) -> str:
    """What a message says of the ``known`` names that are nearest to an unknown one, if any are."""
    near = ", ".join(difflib.get_close_matches(name, known, 3))
    return f"the nearest are {near}; " if near else ""


def preset(name: str, ladder: str | None = None) -> Problem:
    """The preset called ``name``; raises ValueError if it is unknown or belongs to another ladder."""
    problem = PRESETS.get(name)
    if problem and ladder in (None, problem.ladder):
        return problem
    said = f"is a {problem.ladder} problem: " if problem else f"is unknown: {nearest(name, PRESETS)}"
    fitting = [one for one, other in PRESETS.items() if ladder == other.ladder] or DEFAULT_PRESET.values()
    raise ValueError(f"problem {name!r} {said}{ladder or 'usual'} presets are {', '.join(fitting)}")


def timed_presets(ladder: str, layers: bool = False) -> list[str]:
    """The ladder's large presets, in their order; another ladder's layers only with ``layers``."""
    large = [name for name, one in PRESETS.items() if one.ladder == ladder and not name.startswith("tiny-")]
    return [name for name in large if layers or name not in CHANNELS_LAST.values()]
