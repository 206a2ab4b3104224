"""Puts something in an attribute's place for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_ABSENT = object()


@contextmanager
def replaced(target: Any, **values: Any) -> Iterator[None]:
    """While open, the attributes of ``target``, a module, a class or another object, have these values.

    Afterwards, whatever was raised, each is what it was: one that the object did not have itself is deleted.
    """
    # from the object's own namespace: a static method or a property as it lies there
    before = {name: vars(target).get(name, _ABSENT) for name in values}
    try:
        for name, value in values.items():
            setattr(target, name, value)
        yield
    finally:
        for name, value in before.items():
            if value is not _ABSENT:
                setattr(target, name, value)
            elif name in vars(target):
                delattr(target, name)
