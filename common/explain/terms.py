"""Which products an output element sums, in the book's index letters, and what it would sum if a letter were another.

An environment maps index letters (and a convolution's stride, padding and dilation) to arrays that broadcast to
(elements, terms): letters of the output to (elements, 1), letters summed over to (1, terms).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.catalog.problems import Convolution, Dgrad, Geometry, Problem

Array = NDArray[Any]
Env = dict[str, Any]
Positions = tuple[NDArray[np.intp], ...]

X, WEIGHT, OUTPUT = "x", "weight", "output"


class Layout(NamedTuple):
    """A form's letters: of the output, summed over, and of either operand's elements; and the arrays' names."""

    output: tuple[str, ...]
    summed: tuple[str, ...]
    x: tuple[str, ...]
    weight: tuple[str, ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, names: str, *letters: str) -> Layout:
        output, summed, x, weight = map(tuple, letters)
        return cls(output, summed, x, weight, tuple(names.split()))


LAYOUTS = {
    "gemm": Layout.of("a b c", "mn", "k", "mk", "kn"),
    "conv2d": Layout.of("x filt y", "nkpq", "crs", "nchw", "kcrs"),
    "conv3d": Layout.of("x filt y", "nopqk", "trsc", "ndhwc", "ktrsc"),
    "dgrad": Layout.of("dy filt dx", "ndhwc", "trsk", "nopqk", "ktrsc"),
    "wgrad": Layout.of("x dy dfilt", "ktrsc", "nopq", "ndhwc", "nopqk"),
}
# Indices of a matrix view: what a kernel that works in matrices calls a pixel or a tap
COMPOSITES: dict[str, dict[str, tuple[str, ...]]] = {
    "gemm": {},
    "conv2d": {"pixel": ("p", "q"), "image_pixel": ("n", "p", "q"), "tap": ("c", "r", "s")},
    "conv3d": {"plane_row": ("o", "p"), "gemm_m": ("n", "o", "p", "q"), "gemm_k": ("t", "r", "s", "c")},
    "dgrad": {"gemm_m": ("n", "d", "h", "w"), "gemm_k": ("t", "r", "s", "k")},
    "wgrad": {"gemm_n": ("t", "r", "s", "c"), "gemm_k": ("n", "o", "p", "q")},
}
# h = p * stride_h - pad_h + r * dilation_h
SPATIAL = {"d": ("o", "t"), "h": ("p", "r"), "w": ("q", "s")}
# p = (h + pad_h - r * dilation_h) / stride_h, if that leaves no rest
_BACK = {"o": ("d", "t"), "p": ("h", "r"), "q": ("w", "s")}
_NOWHERE = -(1 << 36)  # an index of dy where the division leaves a rest; its address is lower still
ROUNDS = "rounds"  # in an environment: such a rest is not looked at


@lru_cache(maxsize=64)
def extents(problem: Problem) -> dict[str, int]:
    """The extent of each index letter."""
    layout = LAYOUTS[problem.form]
    shapes = (
        (layout.x, problem.input_shape),
        (layout.weight, problem.weight_shape),
        (layout.output, problem.output_shape),
    )
    extent = {u: n for letters, shape in shapes for u, n in zip(letters, shape, strict=True)}
    return extent | {w: math.prod(extent[u] for u in parts) for w, parts in COMPOSITES[problem.form].items()}


def summed_shape(problem: Problem) -> tuple[int, ...]:
    """The extents of the letters summed over."""
    extent = extents(problem)
    return tuple(extent[u] for u in LAYOUTS[problem.form].summed)


def environment(problem: Problem, positions: Positions) -> Env:
    """The letters at output ``positions`` (one array per output axis)."""
    layout = LAYOUTS[problem.form]
    env: Env = {u: at[:, None] for u, at in zip(layout.output, positions, strict=True)}
    grid = np.indices(summed_shape(problem)).reshape(len(layout.summed), 1, -1)
    env |= dict(zip(layout.summed, grid, strict=True))
    geometry = problem.geometry if isinstance(problem, Convolution) else Geometry()
    extent = extents(problem)
    for name, parts in COMPOSITES[problem.form].items():
        whole: Any = 0
        for u in parts:
            whole = whole * extent[u] + env[u]
        env[name] = whole
    return env | geometry._asdict()


def spatial(problem: Problem) -> dict[str, tuple[str, str]]:
    """The axes of the input whose index follows from a letter of pixels and one of taps: those two."""
    pairs = _BACK if isinstance(problem, Dgrad) else SPATIAL
    return {u: pairs[u] for u in LAYOUTS[problem.form].x if u in pairs}


def digits(parts: tuple[str, ...], extent: dict[str, int], whole: Any) -> Env:
    """The letters that make up a composite index; the first letter takes what is over."""
    env: Env = {}
    for u in reversed(parts[1:]):
        env[u], whole = whole % extent[u], whole // extent[u]
    return {parts[0]: whole} | env


def coordinates(problem: Problem, operand: str, env: Env) -> tuple[Any, ...]:
    """The element of ``x`` or ``weight`` that each term reads; coordinates of x may lie outside."""
    layout = LAYOUTS[problem.form]
    return tuple(_coordinate(problem, operand, u, env) for u in (layout.weight if operand == WEIGHT else layout.x))


def _coordinate(problem: Problem, operand: str, u: str, env: Env) -> Any:
    """The one along the axis ``u``."""
    pairs = spatial(problem)
    if operand == WEIGHT or u not in pairs:
        return env[u]
    out, tap = pairs[u]
    if isinstance(problem, Dgrad):
        index, rest = np.divmod(
            env[out] + env[f"pad_{out}"] - env[tap] * env[f"dilation_{out}"], env[f"stride_{out}"]
        )
        return index if ROUNDS in env else np.where(rest == 0, index, _NOWHERE)
    return env[out] * env[f"stride_{u}"] - env[f"pad_{u}"] + env[tap] * env[f"dilation_{u}"]


def _asked(problem: Problem, operand: str, u: str) -> frozenset[str]:
    """What of an environment the coordinate along the axis ``u`` depends on."""
    pairs = spatial(problem)
    if operand == WEIGHT or u not in pairs:
        return frozenset((u,))
    side = pairs[u][0] if isinstance(problem, Dgrad) else u
    return frozenset((*pairs[u], f"stride_{side}", f"pad_{side}", f"dilation_{side}", ROUNDS))


class _Axis(NamedTuple):
    """What a coordinate adds to the address, and where it lies inside its axis."""

    step: Any
    inside: Any


class _Places(NamedTuple):
    """Addresses of what is read; where they are outside they are 0, and ``nothing`` is what counts there.

    ``inside`` is None if all are.
    """

    address: Any
    inside: Array | None
    nothing: Any


def _axes(index: tuple[Any, ...], shape: tuple[int, ...]) -> list[_Axis]:
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return [
        _Axis(at * stride, (at >= 0) & (at < extent))
        for at, stride, extent in zip(index, strides, shape, strict=True)
    ]


def _places(axes: list[_Axis], size: int, flat: bool) -> _Places:
    address: Any = 0
    inside: Any = True
    for axis in sorted(axes, key=lambda axis: np.size(axis.step)):  # what is alike for all terms costs little
        address = address + axis.step
        inside = inside & axis.inside
    if flat:
        inside = (address >= 0) & (address < size)
    if np.all(inside):
        return _Places(address, None, 0.0)
    nothing = np.where(address > _NOWHERE // 2, np.nan, 0.0) if flat else 0.0
    return _Places(np.where(inside, address, 0), inside, nothing)


def _read(array: Array, places: _Places, flat: bool) -> Array:
    values = array.reshape(-1).take(places.address)
    if values.dtype == np.float16:  # products are float32
        values = values.astype(np.float32)
    if flat or values.dtype.kind != "f":
        values = values.astype(np.float64)
    return np.asarray(values if places.inside is None else np.where(places.inside, values, places.nothing))


def addresses(problem: Problem, operand: str, env: Env) -> tuple[Any, Array | None]:
    """Row-major offsets of what each term reads of ``x`` or ``weight``, 0 outside; and what is inside (None: all)."""
    shape = problem.weight_shape if operand == WEIGHT else problem.input_shape
    found = _places(_axes(coordinates(problem, operand, env), shape), math.prod(shape), flat=False)
    return found.address, found.inside


def gather(array: Array, index: tuple[Any, ...]) -> Array:
    """``array`` at ``index``; outside it zero."""
    return _read(array, _places(_axes(index, array.shape), array.size, False), False)


class Reads:
    """What the terms of ``env`` read: where, and of each of ``arrays`` what. Worked out once for each axis.

    A change of letters costs only the axes that depend on them.
    """

    def __init__(self, problem: Problem, env: Env, arrays: Iterable[Array] = ()) -> None:
        layout = LAYOUTS[problem.form]
        self._problem, self._env = problem, env
        self._letters = {X: layout.x, WEIGHT: layout.weight}
        self._shapes = {X: problem.input_shape, WEIGHT: problem.weight_shape}
        self._asked = {
            operand: tuple(_asked(problem, operand, u) for u in letters) for operand, letters in self._letters.items()
        }
        self._arrays = {id(array): array for array in arrays}
        self._axes: dict[str, list[_Axis]] = {}
        self._places: dict[tuple[str, bool], _Places] = {}
        self._values: dict[tuple[str, bool, int], Array] = {}

    def factor(self, operand: str, array: Array, flat: bool = False) -> Array:
        """What each term reads of ``array``, which stands for ``x`` or ``weight``; broadcasts to (elements, terms).

        Outside of it that is zero, or, with ``flat``, what memory holds at the address (NaN beyond).
        """
        key = operand, flat, id(array)
        if key in self._values:
            return self._values[key]
        if (operand, flat) not in self._places:
            self._places[operand, flat] = _places(self._right(operand), array.size, flat)
        values = _read(array, self._places[operand, flat], flat)
        if id(array) in self._arrays:
            self._values[key] = values
        return values

    def changed(self, operand: str, array: Array, letters: Env, flat: bool) -> Array:
        """As :meth:`factor`, with other values of some ``letters``."""
        touched = [not asked.isdisjoint(letters) for asked in self._asked[operand]]
        if not any(touched):
            return self.factor(operand, array, flat)
        env, axes = self._env | letters, list(self._right(operand))
        shape = self._shapes[operand]
        for i, u in enumerate(self._letters[operand]):
            if touched[i]:
                at = _coordinate(self._problem, operand, u, env)
                axes[i] = _Axis(at * math.prod(shape[i + 1 :]), (at >= 0) & (at < shape[i]))
        return _read(array, _places(axes, array.size, flat), flat)

    def _right(self, operand: str) -> list[_Axis]:
        if operand not in self._axes:
            index = coordinates(self._problem, operand, self._env)
            self._axes[operand] = _axes(index, self._shapes[operand])
        return self._axes[operand]


Value = Callable[[Env], Any]


class Change(NamedTuple):
    """One mistake: in one operand, or wherever an output letter is used, letters have other values.

    ``cost`` ranks mistakes that explain as much: the least is the simplest.
    """

    operand: str
    letters: dict[str, Value]
    text: dict[str, str]
    cost: float
    flat: bool = False


def products(
    problem: Problem, env: Env, x: Array, weight: Array, change: Change | None = None, reads: Reads | None = None
) -> Array:
    """The terms of each output element of ``env``, shape (elements, terms); NaN where an index has no sense.

    ``reads``: those of ``env``, if they are kept.
    """
    reads = reads or Reads(problem, env)
    if change is None:
        terms = reads.factor(X, x) * reads.factor(WEIGHT, weight)
    else:
        outside: Any = False
        extent = extents(problem)
        letters = {u: f(env) for u, f in change.letters.items()}
        for name, parts in COMPOSITES[problem.form].items():
            if name in letters:
                letters |= digits(parts, extent, letters.pop(name))
        for u, value in letters.items():
            if change.operand == OUTPUT and u in extent:
                outside = outside | (value < 0) | (value >= extent[u])
        first, second = (
            reads.changed(operand, array, letters if change.operand in (OUTPUT, operand) else {}, change.flat)
            for operand, array in ((X, x), (WEIGHT, weight))
        )
        terms = first * second
        if np.any(outside):
            terms = np.where(outside, np.nan, terms)
    return np.broadcast_to(terms, (len(next(iter(env.values()))), math.prod(summed_shape(problem))))


# --- what may stand in a letter's place ---

_TILES = (2, 4, 8, 16, 32, 64, 128)


class Form(NamedTuple):
    """An expression in index letters."""

    text: str
    value: Value
    cost: float


def _constant(u: str, value: int) -> Value:
    return lambda e: e[u] * 0 + value


def _shifted(u: str, step: int) -> Value:
    return lambda e: e[u] + step


def _taken_for(u: str, v: str) -> Value:
    return lambda e: e[v] + e[u] * 0


def _mixed(u: str, v: str, size: int) -> Value:
    """The tile that ``u`` is in, and the place of ``v`` in its tile."""
    return lambda e: e[u] // size * size + e[v] % size


def _rotated(u: str, size: int, step: int) -> Value:
    return lambda e: e[u] // size * size + (e[u] + step) % size


def _spread(u: str, size: int, other: int) -> Value:
    """Tiles taken to start ``other`` apart."""
    return lambda e: e[u] // size * other + e[u] % size


def _within(u: str, size: int, inner: int) -> Value:
    """In each tile, the first ``inner`` again and again."""
    return lambda e: e[u] // size * size + e[u] % inner


def _regrouped(u: str, size: int, inner: int) -> Value:
    """In each tile, rows of ``inner`` become columns."""
    outer = size // inner
    return lambda e: e[u] // size * size + e[u] % inner * outer + e[u] % size // inner


def forms(u: str, letters: tuple[str, ...], extent: dict[str, int]) -> Iterator[Form]:
    """What may stand in the place of the letter ``u``, from simple to odd; ``letters``: those it may be taken for."""
    top = extent[u]
    if top > 1:
        yield Form("0", _constant(u, 0), 2)
        yield Form(f"{u.upper()} - 1" if len(u) == 1 else "its last", _constant(u, top - 1), 3)
    for step in (1, -1, 2, -2, 3, -3, 4, -4, 8, -8, 16, -16, 32, -32, 64, -64):
        if abs(step) < max(top, 2):
            text = f"{u} {'+' if step > 0 else '-'} {abs(step)}"
            yield Form(text, _shifted(u, step), 1 if abs(step) == 1 else 3)
    for v in letters:
        if v != u:
            yield Form(v, _taken_for(u, v), 2)
    if top > 1:
        if len(u) == 1:
            yield Form(f"{u.upper()} - 1 - {u}", lambda e: top - 1 - e[u], 3)
        yield Form(f"-{u}", lambda e: -e[u], 3)
        yield Form(f"2 * {u}", lambda e: 2 * e[u], 4)
        yield Form(f"{u} // 2", lambda e: e[u] // 2, 4)
    for size in _TILES:
        if size < top:
            yield from _tiled(u, size)
        for v in letters:
            if v != u and size < max(top, extent[v]) and size > 2:
                yield Form(f"{u} // {size} * {size} + {v} % {size}", _mixed(u, v, size), 4)
                yield Form(f"{v} // {size} * {size} + {u} % {size}", _mixed(v, u, size), 5)


def _tiled(u: str, size: int) -> Iterator[Form]:
    yield Form(f"{u} % {size}", lambda e: e[u] % size, 3)
    yield Form(f"{u} // {size} * {size}", lambda e: e[u] // size * size, 3)
    start = f"{u} // {size} * {size}"
    if size > 2:
        yield Form(f"{u} // {size}", lambda e: e[u] // size, 4)
        yield Form(f"{u} // {size} + {u} % {size}", _spread(u, size, 1), 5)
        yield Form(f"{start} + ({u} + 1) % {size}", _rotated(u, size, 1), 4)
        yield Form(f"{start} + ({u} - 1) % {size}", _rotated(u, size, -1), 4)
        yield Form(f"{start} + {size - 1}", lambda e: e[u] // size * size + size - 1, 3.2)
        yield Form(f"{start} + {size - 1} - {u} % {size}", lambda e: e[u] // size * size + size - 1 - e[u] % size, 4)
    yield Form(f"{start} + ({u} + {size // 2}) % {size}", _rotated(u, size, size // 2), 3.5)
    for other in {size // 2, size * 2, size - 1, size + 1} - {0, 1}:
        yield Form(f"{u} // {size} * {other} + {u} % {size}", _spread(u, size, other), 5)
    for inner in (2, 4, 8, 16):
        if inner * 2 <= size:
            yield Form(f"{start} + {u} % {inner}", _within(u, size, inner), 4)
            text = f"{start} + {u} % {inner} * {size // inner} + {u} % {size} // {inner}"
            yield Form(text, _regrouped(u, size, inner), 6)


def changes(problem: Problem) -> Iterator[Change]:
    """Every mistake of one or two letters, in an operand or wherever the output is located."""
    layout = LAYOUTS[problem.form]
    extent = extents(problem)
    every = layout.output + layout.summed
    for operand, letters, extra in (
        (OUTPUT, layout.output, 0.0),
        (X, _letters_of_x(problem), 0.5),
        (WEIGHT, layout.weight, 0.5),
    ):
        whole = COMPOSITES[problem.form]
        others = (*(every if operand != OUTPUT else layout.output), *whole)
        letters += tuple(w for w, parts in whole.items() if {*parts} <= {*letters} and _split(parts, extent))
        for u in letters:
            for form in forms(u, others, extent):
                cost = form.cost + extra + 2 * (u in whole)
                yield Change(operand, {u: form.value}, {u: form.text}, cost)
                if operand != OUTPUT and form.cost <= 2:
                    yield Change(operand, {u: form.value}, {u: form.text}, cost + 1, flat=True)
        for i, u in enumerate(letters):
            for v in letters[i + 1 :]:
                for size in (0, *(t for t in _TILES if t < max(extent[u], extent[v]))):
                    yield _exchange(operand, u, v, size, extra)
    yield from _geometry(problem)


def _split(parts: tuple[str, ...], extent: dict[str, int]) -> bool:
    """Is a composite more than one of its letters?"""
    return sum(extent[u] > 1 for u in parts) > 1


def _letters_of_x(problem: Problem) -> tuple[str, ...]:
    letters: list[str] = []
    for u in LAYOUTS[problem.form].x:
        letters += spatial(problem).get(u, (u,))
    return tuple(letters)


def _exchange(operand: str, u: str, v: str, size: int, extra: float) -> Change:
    """Two letters exchanged, or, with ``size``, their places in tiles of that size."""
    if not size:
        return Change(operand, {u: _taken_for(u, v), v: _taken_for(v, u)}, {u: v, v: u}, 2 + extra)
    text = {a: f"{a} // {size} * {size} + {b} % {size}" for a, b in ((u, v), (v, u))}
    return Change(operand, {u: _mixed(u, v, size), v: _mixed(v, u, size)}, text, 5 + extra)


def _fixed(value: int) -> Value:
    return lambda e: value


def _geometry(problem: Problem) -> Iterator[Change]:
    """Stride, padding and dilation ignored, of another axis, or mixed up."""
    if not isinstance(problem, Convolution):
        return
    if isinstance(problem, Dgrad) and max(problem.geometry[:3]) > 1:
        yield Change(X, {ROUNDS: _fixed(1)}, {ROUNDS: ""}, 0.5)
    geometry = problem.geometry._asdict()
    for name, value in geometry.items():
        kind, axis = name.split("_")
        neutral = 0 if kind == "pad" else 1
        options = [(str(neutral), neutral, 1.0)]
        options += [(f"{kind}_{b}", geometry[f"{kind}_{b}"], 2.0) for b in "dhw" if b != axis]
        other = {"pad": ("dilation", "stride"), "stride": ("dilation",), "dilation": ("stride",)}[kind]
        for what in other:
            factor = geometry[f"{what}_{axis}"]
            options += [(f"{what}_{axis}", factor, 3.0)] if kind != "pad" else []
            options.append((f"{name} * {what}_{axis}", value * factor, 1.2))
        # an index of dy that is off by one is the padding's mistake, or a letter's: there the same
        near = 1.0 if isinstance(problem, Dgrad) and kind == "pad" else 2.5
        options += [(f"{name} + 1", value + 1, near), (f"2 * {name}", 2 * value, 3.0)]
        options += [(f"{name} - 1", value - 1, near)] if value else []
        for text, other_value, cost in options:
            if other_value != value:
                yield Change(X, {name: _fixed(other_value)}, {name: text}, cost)
                yield Change(X, {name: _fixed(other_value)}, {name: text}, cost + 1, flat=True)
    for kind, neutral in (("stride", 1), ("dilation", 1), ("pad", 0)):
        ignored = [name for name, value in geometry.items() if name.startswith(kind) and value != neutral]
        if len(ignored) > 1:
            letters = {name: _fixed(neutral) for name in ignored}
            yield Change(X, letters, {" and ".join(ignored): str(neutral)}, 1.2)
    yield Change(X, {}, {}, 2.0, flat=True)
