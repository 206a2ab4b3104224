"""The lessons; and, for kernels written when the toolkit's modules had other names, those names."""

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# Module by module: where its functions are now, and what is written differently.
_FORMER: dict[str, tuple[tuple[str, ...], dict[str, int]]] = {
    "lessons.wide": (("memory", "grid", "ptx"), {}),
    "lessons.unrolled": (("unroll", "memory"), {"aligned2": 8}),
    "lessons.tensorcores": (("mma", "memory", "ptx"), {"aligned2": 4, "aligned8": 16}),
    "lessons.hopper": (("hopper", "maps", "grid", "ptx"), {"mappable": 16}),
    "lessons.tiling": (("tiles",), {}),
    "lessons.windows": (("tiles",), {}),
    "lessons.grid": (("grid",), {}),
    "lessons.split_k": (("grid",), {}),
    "lessons.card": (("card",), {}),
}


class _FormerNames(MetaPathFinder, Loader):
    """Finds a module under its former name: it has what the modules have that took its place."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in _FORMER else None

    def exec_module(self, module: ModuleType) -> None:
        places, alignments = _FORMER[module.__name__]
        for place in reversed(places):
            now = vars(import_module(f"lessons.toolkit.{place}"))
            vars(module).update({name: one for name, one in now.items() if not name.startswith("__")})
        aligned = import_module("lessons.toolkit.memory").aligned
        for name, to in alignments.items():
            setattr(module, name, lambda *arrays, to=to: aligned(*arrays, to=to))
        if "maps" in places:
            maps = vars(module)["Maps"]()
            vars(module).update(tensor_map=maps.tiled, im2col_map=maps.im2col)
        if "mma" in places:
            vars(module)["copy1_guarded"] = vars(module)["load1_guarded"]


sys.meta_path.append(_FormerNames())
