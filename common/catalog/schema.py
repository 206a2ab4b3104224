"""What data from outside must be, said by types, and the first place where it is not.

A type is anything that msgspec takes: a Struct, a TypedDict, a dataclass, ``list[...]``, ``dict[...]``, a union.
A Struct may be given more fields than it has, unless it forbids that.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

_SHOWN = 40  # characters of a wrong value
_LARGE, _HUGE = 2**63 - 1, 1e300  # more is no count, and no measurement

Number = Annotated[float, Meta(gt=-_HUGE, lt=_HUGE)]
Positive = Annotated[float, Meta(gt=0, lt=_HUGE)]
Amount = Annotated[float, Meta(ge=0, lt=_HUGE)]
Count = Annotated[int, Meta(ge=0, le=_LARGE)]
Extent = Annotated[int, Meta(gt=0, le=_LARGE)]
Tally = Annotated[int, Meta(ge=0)] | Annotated[float, Meta(ge=0, lt=_HUGE)]
Name = Annotated[str, Meta(min_length=1)]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]

_WORDS = {
    "float": "a number", "int": "an integer", "bool": "true or false", "str": "text", "array": "a list",
    "object": "an object",
}  # fmt: skip

T = TypeVar("T")


class SchemaError(ValueError):
    """Data that is not of its type: the place, what must be there, and what is."""


def one_of(names: Iterable[str]) -> Meta:
    """One of these names: ``Annotated[str, one_of(...)]`` where only the program knows them."""
    return Meta(pattern=rf"^(?:{'|'.join(map(re.escape, names))})\Z")


def read(value: object, kind: type[T], place: str = "") -> T:
    """The value as that type; ``place`` is where it stands. Raises SchemaError.

    >>> read({"a": [1, -2]}, dict[str, list[Count]])
    Traceback (most recent call last):
    common.catalog.schema.SchemaError: a[1] must be an integer >= 0, is -2
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        said, _, _ = str(error).partition(" - at ")
        where, there = _located(value, kind, str(error))
        where = place + (where if place else where.removeprefix("."))
    if named := re.fullmatch(r"Object (missing required|contains unknown) field `(.*)`", said):
        flaw = "missing" if named[1] == "missing required" else "unknown"
        raise SchemaError(f"{where}.{named[2]} is {flaw}" if where else f"{named[2]} is {flaw}")
    if not said.startswith("Expected "):
        raise SchemaError(f"{where or 'the file'}: {said}")
    must, _, got = said.removeprefix("Expected ").partition(", got ")
    is_now = _worded(got) if isinstance(there, dict | list) or there is None else _short(repr(there))
    raise SchemaError(f"{where or 'the file'} must be {_worded(must)}{f', is {is_now}' * bool(is_now)}")


def _located(value: Any, kind: Any, said: str) -> tuple[str, Any]:
    """The place of the flaw that msgspec tells of, and what stands there; in its words all keys are ``[...]``."""
    whole: Any = copy.deepcopy(value)
    here, where = whole, ""
    for step in re.findall(r"\.\w+|\[\d+\]|\[\.\.\.\]", said.rpartition(" - at ")[2]):
        fits: bool = isinstance(here, list if step[1].isdigit() else dict)
        if not fits:
            break
        if step == "[...]":
            key = _wrong_key(whole, kind, here, said)
            where, here = f"{where}.{_short(key)}", here.get(key)
        else:
            where, here = where + step, here[step[1:] if step[0] == "." else int(step[1:-1])]
    if " - at `key` in " in said:
        here = _wrong_key(whole, kind, here, said)
    return where, here


def _wrong_key(whole: Any, kind: Any, part: dict[str, Any], said: str) -> str:
    """Of a part of the whole, the key at which it is wrong: with it alone, msgspec says the same; else ``...``."""
    items = dict(part)
    for key, item in items.items():
        part.clear()
        part[key] = item
        try:
            msgspec.convert(whole, kind)
        except msgspec.ValidationError as error:
            if str(error) == said:
                return key
    part.clear()
    part.update(items)
    return "..."


def _worded(said: str) -> str:
    """Names of types, as msgspec has them, in words."""

    def words(found: re.Match[str]) -> str:
        return " or ".join(_WORDS.get(name, name) for name in found[1].split(" | ") if name != "null") or "null"

    return re.sub(r"`([^`]*)`", words, said)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
