"""Puts something in an attribute's or an item's place for a while."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from typing import Any

_ABSENT = object()


@contextmanager
def replaced(target: Any, **values: Any) -> Iterator[None]:
    """While open, the attributes of ``target``, a module, a class or another object, have these values.

    Afterwards, whatever was raised, each is what it was, the last set first: one that the object did not have itself,
    inherited or not there at all, is deleted. Raises TypeError for an object without a ``__dict__``.
    """
    own = vars(target)
    with ExitStack() as undone:
        for name, value in values.items():
            # from the object's own namespace: a static method or a property as it lies there
            before = own.get(name, _ABSENT)
            setattr(target, name, value)
            undone.callback(_put_back, target, name, before)
        yield


def _put_back(target: Any, name: str, before: Any) -> None:
    if before is _ABSENT:
        delattr(target, name)
    else:
        setattr(target, name, before)


@contextmanager
def replaced_items(items: MutableMapping[str, Any], **values: Any) -> Iterator[None]:
    """While open, the items of a mapping, such as a module's namespace, have these values.

    Afterwards, whatever was raised, the mapping holds all that it held before and no more.
    """
    before = dict(items)
    try:
        items.update(values)
        yield
    finally:
        items.clear()
        items.update(before)
