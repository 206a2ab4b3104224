"""What a compiled function knows of its module and its closure: their values when it was compiled, and no later ones.

Numba reads a global, a closed-over variable and a constant array once for each kernel and types of its arguments.
Here that moment is the first launch with such arguments.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from numba import cuda, types


class Stub:
    """A name of ``numba.cuda`` that has a meaning in kernels alone."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        self._refuse()

    def __call__(self, *_: Any, **__: Any) -> Any:
        self._refuse()

    def _refuse(self) -> Any:
        raise OutsideKernelError(f"cuda.{self.name} is used outside a kernel")


class OutsideKernelError(AttributeError):
    """Plain Python asks for what only kernels, and the device functions they call, have; ``hasattr`` says no."""


class _Snapshot(ModuleType):
    """What a module held of the names that a function asks for."""


class Frozen:
    """A function's code with the values of its free names as they are now; arrays are copied.

    ``inlined`` keeps what the functions that Numba inlines into it were frozen with.
    """

    def __init__(self, function: FunctionType) -> None:
        self.inlined: dict[Any, Frozen] = {}
        self._code, self._name, self._defaults = function.__code__, function.__name__, function.__defaults__
        self._keywords = function.__kwdefaults__
        names = set(_names(self._code))
        scope = function.__globals__
        self._plain: dict[str, Any] = {"__builtins__": scope.get("__builtins__", builtins)}
        self._living: dict[str, Any] = {}  # what a launch must bind
        for name in names & scope.keys():
            value = _kept(scope[name], names)
            (self._living if _lives(value) else self._plain)[name] = value
        self._cells = [_closed(cell, names) for cell in function.__closure__ or ()]

    def bound(self, module: Any, make: Callable[[Any], Any]) -> FunctionType:
        """The function, with ``module`` for ``numba.cuda`` and ``make(array)`` for each array."""
        scope = {**self._plain, **{name: _bound(value, module, make) for name, value in self._living.items()}}
        cells = tuple(CellType(*(_bound(value, module, make) for value in cell)) for cell in self._cells)
        function = FunctionType(self._code, scope, self._name, self._defaults, cells)
        function.__kwdefaults__ = self._keywords
        return function


def signature(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """What Numba compiles anew for: the types of the arguments."""
    return tuple(_type(argument) for argument in arguments)


def _type(value: Any) -> Any:
    if isinstance(value, tuple):
        return type(value), signature(value)
    dtype = getattr(value, "dtype", None)
    if dtype is None or not hasattr(value, "ndim"):
        return type(value)
    flags = getattr(value, "flags", None)
    return dtype, value.ndim, bool(flags is None or flags["C_CONTIGUOUS"])


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _closed(cell: CellType, names: set[str]) -> list[Any]:
    """What a cell holds: one value, or none yet."""
    try:
        return [_kept(cell.cell_contents, names)]
    except ValueError:
        return []


def _kept(value: Any, names: set[str]) -> Any:
    if isinstance(value, ModuleType) and value is not cuda:
        copy = _Snapshot(value.__name__)
        for name in names:
            if hasattr(value, name):
                inner = getattr(value, name)
                below = isinstance(inner, ModuleType) and inner.__name__.startswith(f"{value.__name__}.")
                setattr(copy, name, _kept(inner, names) if below or not isinstance(inner, ModuleType) else inner)
        return copy
    if type(value) in (types.Integer, types.Float):  # casts, which kernels do more often than anything else
        return getattr(np, value.name)
    if isinstance(value, np.ndarray):
        value = value.copy()
        value.flags.writeable = False
    return value


def _lives(value: Any) -> bool:
    if isinstance(value, _Snapshot):
        return any(map(_lives, vars(value).values()))
    return value is cuda or isinstance(value, np.ndarray | Stub) or hasattr(value, "__cuda_ndarray__")


def _bound(value: Any, module: Any, make: Callable[[Any], Any]) -> Any:
    if value is cuda:
        return module
    if isinstance(value, Stub):
        return module.named(value.name)
    if isinstance(value, _Snapshot) and _lives(value):
        copy = _Snapshot(value.__name__)
        vars(copy).update({name: _bound(inner, module, make) for name, inner in vars(value).items()})
        return copy
    return make(value) if _lives(value) else value
