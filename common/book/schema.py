"""What a file that was read must look like, and the first place where it does not.

A shape is a :class:`Value` such as NUMBER or TEXT; ``[shape]``, a list of those; ``Each(shape)``, an object of those;
or a dictionary, an object with these keys, of which those in ``Maybe(shape)`` may be missing. More keys may be there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_SHOWN = 40
_LARGE, _HUGE = 1 << 63, 1e300  # more is no count, and no measurement


@dataclass(frozen=True)
class Value:
    """A value of which ``test`` holds; ``what`` it must be, in words."""

    what: str
    test: Callable[[Any], bool]


@dataclass(frozen=True)
class Each:
    """An object whose values all have one shape; ``key``, if given, is what its keys must be."""

    shape: Any
    key: Value | None = None


@dataclass(frozen=True)
class Maybe:
    """In an object: a key that may be missing. Elsewhere the same as its shape."""

    shape: Any


@dataclass(frozen=True)
class Optional:
    """A shape, or null."""

    shape: Any


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _HUGE


def _integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGE


NUMBER = Value("a number", _number)
POSITIVE = Value("a number above 0", lambda value: _number(value) and value > 0)
AMOUNT = Value("a number from 0 on", lambda value: _number(value) and value >= 0)
COUNT = Value("an integer from 0 on", lambda value: _integer(value) and value >= 0)
EXTENT = Value("an integer above 0", lambda value: _integer(value) and value > 0)
SETTING = Value("an integer, true or false", lambda value: isinstance(value, int))
TEXT = Value("text", lambda value: isinstance(value, str))
NAME = Value("text that is not empty", lambda value: isinstance(value, str) and bool(value))


def one_of(*values: Any) -> Value:
    """One of these values."""
    return Value(f"one of {', '.join(map(str, values))}", lambda value: isinstance(value, str) and value in values)


def flaw(value: Any, shape: Any, place: str = "") -> str:
    """The first place where ``value`` has another shape, and what is allowed there; empty if there is none.

    >>> flaw({"a": [1, -2]}, {"a": [COUNT]})
    'a[1] must be an integer from 0 on, is -2'
    """
    if isinstance(shape, Maybe):
        return flaw(value, shape.shape, place)
    if isinstance(shape, Optional):
        return "" if value is None else flaw(value, shape.shape, place)
    if isinstance(shape, Value):
        return "" if shape.test(value) else _wrong(value, place, shape.what)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return _wrong(value, place, "a list")
        return _first(flaw(item, shape[0], f"{place}[{number}]") for number, item in enumerate(value))
    if not isinstance(value, dict):
        return _wrong(value, place, "an object")
    if isinstance(shape, Each):
        bad = next((key for key in value if shape.key is not None and not shape.key.test(key)), None)
        if bad is not None and shape.key is not None:
            return f"{_at(place, bad)}: the name must be {shape.key.what}"
        return _first(flaw(item, shape.shape, _at(place, key)) for key, item in value.items())
    missing = next((key for key, inner in shape.items() if key not in value and not isinstance(inner, Maybe)), None)
    if missing is not None:
        return f"{_at(place, missing)} must be {_what(shape[missing])}, is missing"
    return _first(flaw(value[key], inner, _at(place, key)) for key, inner in shape.items() if key in value)


def _first(flaws: Any) -> str:
    return next((found for found in flaws if found), "")


def _at(place: str, key: str) -> str:
    key = key if len(key) <= _SHOWN else key[:_SHOWN] + "..."
    return f"{place}.{key}" if place else key


def _wrong(value: Any, place: str, what: str) -> str:
    known = {dict: "an object", list: "a list", type(None): "null", bool: str(value).lower()}
    said = known.get(type(value)) or repr(value)
    said = said if len(said) <= _SHOWN else said[:_SHOWN] + "..."
    return f"{place or 'the file'} must be {what}, is {said}"


def _what(shape: Any) -> str:
    if isinstance(shape, Maybe | Optional):
        return _what(shape.shape)
    return shape.what if isinstance(shape, Value) else "a list" if isinstance(shape, list) else "an object"
