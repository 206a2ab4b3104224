"""The lessons; and, for kernels written when the toolkit's modules had other names, those names."""

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec

# Module by module: where its functions are now, and what is written differently.
_FORMER = {
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


class _FormerNames:
    """Finds a module under its former name: it has what the modules have that took its place."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        return ModuleSpec(name, _FormerNames) if name in _FORMER else None

    @staticmethod
    def create_module(spec):
        return None

    @staticmethod
    def exec_module(module):
        places, alignments = _FORMER[module.__name__]
        for place in reversed(places):
            now = vars(import_module(f"lessons.toolkit.{place}"))
            vars(module).update({name: one for name, one in now.items() if not name.startswith("__")})
        aligned = import_module("lessons.toolkit.memory").aligned
        for name, to in alignments.items():
            setattr(module, name, lambda *arrays, to=to: aligned(*arrays, to=to))
        if "maps" in places:
            maps = module.Maps()
            module.tensor_map, module.im2col_map = maps.tiled, maps.im2col
        if "mma" in places:
            module.copy1_guarded = module.load1_guarded


sys.meta_path.append(_FormerNames)
