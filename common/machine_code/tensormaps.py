"""Tensor maps among the arguments of kernels: descriptions of an array and a box of it, for Hopper's copy engine.

They are made by the lessons' helper (``lessons/hopper.py``), which encodes one when a real launch asks for it. Here
they are known by their fields alone, so that what captures launches needs neither a driver nor a GPU.
"""

from __future__ import annotations

import importlib
import math
from types import SimpleNamespace
from typing import Any, TypedDict

import numpy as np

from common.catalog import catalog

HELPER = "hopper"
BYTES = 128  # of an encoded one
DTYPES = {"float16": 2, "float32": 4}
# by kind: the axes of the array, and what describes the box, with how many numbers, None: one that is no tuple
KINDS: dict[str, tuple[int, dict[str, int | None]]] = {
    "tiled": (2, {"box": 2}),
    "im2col": (5, {"lower": 3, "upper": 3, "channels": None, "pixels": None, "strides": 3}),
}


class MapFields(TypedDict):
    """A map without its array's place: ``box`` has what describes it, as the helper's functions take it by name.

    ``tf32``: float32 values are rounded as they are copied.
    """

    kind: str
    shape: list[int]
    dtype: str
    box: dict[str, Any]
    tf32: bool


def is_map(value: Any) -> bool:
    """Is this argument of a kernel a tensor map?"""
    return not isinstance(value, np.ndarray) and all(hasattr(value, name) for name in ("kind", "box", "swizzle"))


def typed() -> Any:
    """The type that a map has in a kernel: its bytes, which lie in the GPU's memory."""
    from numba import types

    return types.Array(types.uint8, 1, "C")


def fields(found: Any) -> MapFields:
    """What a map says of its array and box."""
    box = {name: getattr(found, name) for name in KINDS[found.kind][1]}
    return {
        "kind": found.kind,
        "shape": [int(extent) for extent in found.shape],
        "dtype": np.dtype(found.dtype).name,
        "box": {
            name: list(map(int, value)) if isinstance(value, tuple) else int(value) for name, value in box.items()
        },
        "tf32": bool(getattr(found, "tf32", False)),
    }


def wrong(given: Any, room: int) -> str | None:
    """What is amiss with the fields of a map that came from elsewhere, of an array with so many bytes of room."""
    if not isinstance(given, dict) or set(given) != set(MapFields.__annotations__) or given["kind"] not in KINDS:
        return f"a map must have {', '.join(MapFields.__annotations__)}, and be one of {', '.join(KINDS)}"
    axes, described = KINDS[given["kind"]]
    shape, box = given["shape"], given["box"]
    if not _numbers(shape, axes) or min(shape) < 1 or given["dtype"] not in DTYPES:
        return f"the array of a map must have {axes} positive extents, and be of {' or '.join(DTYPES)}"
    if math.prod(shape) * DTYPES[given["dtype"]] > room:
        return f"a map reaches beyond its buffer: {shape} of {given['dtype']} do not fit {room} bytes"
    if not isinstance(box, dict) or set(box) != set(described) or not isinstance(given["tf32"], bool):
        return f"the box of a map must have {', '.join(described)}"
    if not all(_numbers(box[name] if count else [box[name]], count or 1) for name, count in described.items()):
        return "the box of a map must be of whole numbers"
    return None


def encoded(given: MapFields, address: int) -> Any:
    """The map of the array at this address in the GPU's memory, encoded by this driver.

    Raises ValueError naming the field that the helper or the driver refuses.
    """
    helper = importlib.import_module(f"{catalog.LESSONS.name}.{HELPER}")
    make = helper.tensor_map if given["kind"] == "tiled" else helper.im2col_map
    kind = np.dtype(given["dtype"])
    array = SimpleNamespace(
        shape=tuple(given["shape"]), dtype=kind,
        __cuda_array_interface__={"data": (address, False), "typestr": kind.str, "shape": tuple(given["shape"])},
    )  # fmt: skip
    return make(array, **given["box"], **({"tf32": True} if given["tf32"] else {}))


def _numbers(values: Any, count: int) -> bool:
    return isinstance(values, list) and len(values) == count and all(type(value) is int for value in values)
