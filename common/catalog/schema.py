"""What data from outside must be, said by types, and the first place where it is not.

A type is anything that msgspec takes: a Struct, a TypedDict, a dataclass, ``list[...]``, ``dict[...]``, a union.
Those below say in words what they allow. A Struct may be given more fields than it has, unless it forbids that.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta
from msgspec.inspect import type_info

_SHOWN = 40
_LARGE, _HUGE = 2**63 - 1, 1e300  # more is no count, and no measurement

Number = Annotated[float, Meta(gt=-_HUGE, lt=_HUGE, description="a number")]
Positive = Annotated[float, Meta(gt=0, lt=_HUGE, description="a number above 0")]
Amount = Annotated[float, Meta(ge=0, lt=_HUGE, description="a number from 0 on")]
Count = Annotated[int, Meta(ge=0, le=_LARGE, description="an integer from 0 on")]
Extent = Annotated[int, Meta(gt=0, le=_LARGE, description="an integer above 0")]
Tally = Annotated[
    Annotated[int, Meta(ge=0)] | Annotated[float, Meta(ge=0, lt=_HUGE)], Meta(description="a number from 0 on")
]
Name = Annotated[str, Meta(min_length=1, description="text that is not empty")]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z", description="64 hexadecimal digits")]

_WORDS = {float: "a number", int: "an integer", bool: "true or false", str: "text", types.NoneType: "null"}

T = TypeVar("T")


class SchemaError(ValueError):
    """Data that is not of its type: the place, what is allowed there, and what is there."""


def one_of(names: Iterable[str]) -> Meta:
    """One of these names: ``Annotated[str, one_of(...)]`` where only the program knows them."""
    known = list(names)
    return Meta(pattern=rf"^(?:{'|'.join(map(re.escape, known))})\Z", description=f"one of {', '.join(known)}")


def read(value: object, kind: type[T], place: str = "") -> T:
    """The value as that type; ``place`` is where it stands. Raises SchemaError.

    >>> read({"a": [1, -2]}, dict[str, list[Count]])
    Traceback (most recent call last):
    common.catalog.schema.SchemaError: a[1] must be an integer from 0 on, is -2
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise SchemaError(next(_flaws(value, kind, place), f"{place or 'the file'}: {error}")) from None


def allowed(kind: Any) -> str:
    """What a type allows, in words."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return next((meta.description for meta in kind.__metadata__ if meta.description), allowed(parts[0]))
    if origin is Literal:
        return ("" if len(parts) == 1 else "one of ") + ", ".join(map(str, parts))
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(allowed(part) for part in parts if part is not types.NoneType))
    if origin is tuple and ... not in parts:
        return f"a list of {len(parts)}"
    return "a list" if origin in (list, tuple) else _WORDS.get(kind, "an object")


def _flaws(value: object, kind: Any, place: str) -> Iterator[str]:
    """Each place where the value is not what its type allows, the innermost first."""
    options = _options(kind)
    if isinstance(value, dict):
        tagged = [option for option in options if _tag(option)[0]]
        if tagged and value.get(_tag(tagged[0])[0]) not in [_tag(option)[1] for option in tagged]:
            key, names = _tag(tagged[0])[0], tuple(_tag(option)[1] for option in tagged)
            yield _wrong(value.get(key), _at(place, str(key)), allowed(Literal[names]))
            return
        options = [option for option in tagged if value[_tag(option)[0]] == _tag(option)[1]] or options
    chosen = next(
        (o for o in options if isinstance(value, dict) and (get_origin(o) is dict or _fields(o) or _tag(o)[0])), None
    )
    chosen = chosen or next((o for o in options if isinstance(value, list) and get_origin(o) in (list, tuple)), None)
    if isinstance(value, list) and chosen is not None:
        inner = get_args(chosen)
        each = repeat(inner[0]) if get_origin(chosen) is list or ... in inner else inner
        for number, (item, part) in enumerate(zip(value, each)):  # noqa: B905 - one that is too long is told below
            yield from _flaws(item, part, f"{place}[{number}]")
    elif isinstance(value, dict) and get_origin(chosen) is dict:
        names, inner = get_args(chosen)
        for key, item in value.items():
            if not _fits(key, names):
                yield f"{_at(place, key)}: the name must be {allowed(names)}"
            yield from _flaws(item, inner, _at(place, key))
    elif isinstance(value, dict) and chosen is not None:
        yield from _of_fields(value, chosen, place)
    if not _fits(value, kind):
        yield _wrong(value, place, allowed(kind))


def _of_fields(value: dict[str, object], kind: Any, place: str) -> Iterator[str]:
    fields = _fields(kind)
    for name, (inner, required) in fields.items():
        if name in value:
            yield from _flaws(value[name], inner, _at(place, name))
        elif required:
            yield f"{_at(place, name)} must be {allowed(inner)}, is missing"
    config = getattr(kind, "__struct_config__", None)
    if config and config.forbid_unknown_fields:
        for name in value.keys() - fields.keys() - {config.tag_field}:
            yield f"{_at(place, name)} is unknown: allowed are {', '.join(fields) or 'none'}"


def _fields(kind: Any) -> dict[str, tuple[Any, bool]]:
    """By the name of each field of a Struct, a TypedDict or a dataclass its type, and is it required."""
    fields = getattr(type_info(kind), "fields", ())
    hints = get_type_hints(kind, include_extras=True) if fields else {}
    return {field.encode_name: (hints[field.name], field.required) for field in fields}


def _options(kind: Any) -> list[Any]:
    """The types of a union, or the one that it is, without their words."""
    if get_origin(kind) is Annotated:
        return _options(get_args(kind)[0])
    if get_origin(kind) in (Union, types.UnionType):
        return [option for part in get_args(kind) for option in _options(part)]
    return [kind]


def _tag(kind: Any) -> tuple[str | None, Any]:
    """The field that tells a Struct from others of a union, and what it says."""
    config = getattr(kind, "__struct_config__", None)
    return (config.tag_field, config.tag) if config else (None, None)


def _fits(value: object, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _at(place: str, key: str) -> str:
    key = key if len(key) <= _SHOWN else key[:_SHOWN] + "..."
    return f"{place}.{key}" if place else key


def _wrong(value: object, place: str, what: str) -> str:
    empty = "an empty list" if not value and what.startswith("a list") else "a list"
    known = {dict: "an object", list: empty, type(None): "null", bool: str(value).lower()}
    said = known.get(type(value)) or repr(value)
    said = said if len(said) <= _SHOWN else said[:_SHOWN] + "..."
    return f"{place or 'the file'} must be {what}, is {said}"
