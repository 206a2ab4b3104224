"""What data from outside must be, said by types that msgspec takes. A Struct may be given fields that it lacks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

_LARGE, _HUGE = 2**63 - 1, 1e300  # more is no count, and no measurement

Number = Annotated[float, Meta(gt=-_HUGE, lt=_HUGE)]
Positive = Annotated[float, Meta(gt=0, lt=_HUGE)]
Amount = Annotated[float, Meta(ge=0, lt=_HUGE)]
Count = Annotated[int, Meta(ge=0, le=_LARGE)]
Extent = Annotated[int, Meta(gt=0, le=_LARGE)]
Tally = Annotated[int, Meta(ge=0)] | Annotated[float, Meta(ge=0, lt=_HUGE)]
Name = Annotated[str, Meta(min_length=1)]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]

T = TypeVar("T")


class SchemaError(ValueError):
    """Data that is not of its type: what must be there, what is, and the place."""


def one_of(names: Iterable[str]) -> Meta:
    """One of these names: ``Annotated[str, one_of(...)]`` where only the program knows them."""
    return Meta(pattern=rf"^(?:{'|'.join(map(re.escape, names))})\Z")


def read(value: object, kind: type[T], place: str = "") -> T:
    """The value as that type; ``place`` says where it stands. Raises SchemaError."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise SchemaError(f"{place}: {error}" if place else str(error)) from None
