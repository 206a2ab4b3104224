"""Another card than an H200, as far as a step asks: how many multiprocessors there are.

A step that fills the card has other tiles, and other kernels, on a smaller one, and its blocks stay for more tiles:
what it takes a layer of a network for elsewhere, it takes a small shape for there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any

_ASKED = "multiprocessors"  # the function of lessons/split_k.py, or one of the step's own


@contextmanager
def of(count: int, module: ModuleType) -> Iterator[bool]:
    """Meanwhile the card has so many multiprocessors, as far as the step and what it imports can tell: do they ask?

    What functions keep, by shape, is of the other card: their caches are emptied before and after.
    """
    namespaces = list(_reached(vars(module), {}).values())
    functions = [names[_ASKED] for names in namespaces if isinstance(names.get(_ASKED), FunctionType)]
    asked = {id(function): function for function in functions if function.__closure__ is None}
    own = {key: function.__code__ for key, function in asked.items()}
    fewer = _constant(count)
    try:
        for function in asked.values():  # by whatever name it was imported
            function.__code__ = fewer
        _forget(namespaces)
        yield bool(asked)
    finally:
        for key, function in asked.items():
            function.__code__ = own[key]
        _forget(namespaces)


def _constant(count: int) -> CodeType:
    """The code of a function that gives this number, and has no closure as a lambda here would have."""
    function = eval(f"lambda *given, **named: {count:d}")
    code: CodeType = function.__code__
    return code


def _reached(names: dict[str, Any], found: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """A module's namespace and, of lessons, those that it refers to, by their addresses."""
    if id(names) not in found:
        found[id(names)] = names
        for value in list(names.values()):
            function = getattr(value, "__wrapped__", value)
            further = vars(value) if isinstance(value, ModuleType) else getattr(function, "__globals__", None)
            if further is not None and str(further.get("__name__")).startswith("lessons."):
                _reached(further, found)
    return found


def _forget(namespaces: list[dict[str, Any]]) -> None:
    for names in namespaces:
        for value in list(names.values()):
            if callable(forget := getattr(value, "cache_clear", None)):
                forget()
