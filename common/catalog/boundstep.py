"""A step bound to one problem: which of its functions are called, in which order, and with what."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from common.catalog.problems import Problem


class BoundStep:
    """One step bound to one problem; it works on whatever arrays it is given, and makes none.

    ``allocate`` comes first, then ``prepare``, then ``launch`` as often as wanted; ``run`` is one after the other.
    What the step's own functions raise passes through. ``tile`` overrides tile constants, for steps whose ``launch``
    takes them by keyword; ``workspace`` and ``prepare`` get them if they take any keyword.

    ``workspace`` is what the step's ``workspace`` returned, None if it has none; ``prepared`` is what takes the
    weights' place in ``launch``.
    """

    def __init__(self, module: ModuleType, problem: Problem, tile: dict[str, int] | None = None) -> None:
        self.module, self.problem, self.tile = module, problem, tile or {}
        self.workspace: Any = None
        self.prepared: Any = None

    def allocate(self) -> None:
        """Make the workspace, if the step has one."""
        make: Callable[..., Any] | None = getattr(self.module, "workspace", None)
        self.workspace = make(self.problem, **self._tile_for(make)) if make else None

    def prepare(self, weight: Any) -> None:
        """Prepare the weights, of the problem's ``weight_shape``, if the step does; else they go to ``launch``."""
        make: Callable[..., Any] | None = getattr(self.module, "prepare", None)
        self.prepared = make(weight, self.problem, **self._tile_for(make)) if make else weight

    def arguments(self, x: Any, y: Any) -> tuple[Any, ...]:
        """What ``launch`` takes in order, for an input and an output of the problem's shapes."""
        geometry = getattr(self.problem, "geometry", None)
        extra = tuple(item for item in (geometry, self.workspace) if item is not None)
        return (x, self.prepared, y, *extra)

    def launch(self, x: Any, y: Any) -> None:
        """Call the step's ``launch`` on an input and an output of the problem's shapes."""
        self.module.launch(*self.arguments(x, y), **self.tile)

    def run(self, x: Any, weight: Any, y: Any) -> None:
        """Make the workspace, prepare the weights and launch, once each."""
        self.allocate()
        self.prepare(weight)
        self.launch(x, y)

    def _tile_for(self, function: Callable[..., Any]) -> dict[str, int]:
        """The tile, if there is one and the function takes it."""
        return self.tile if self.tile and takes_keywords(function) else {}


def takes_tile(module: ModuleType, tile: Mapping[str, int]) -> bool:
    """Does ``launch`` take this tile by keyword, as steps do that choose one for each problem?"""
    return takes_keywords(module.launch) or inspect.signature(module.launch).parameters.keys() >= tile.keys()


def takes_keywords(function: Callable[..., Any]) -> bool:
    """Does the function take any keyword?"""
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values())
