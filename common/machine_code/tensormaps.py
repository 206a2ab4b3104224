"""Tensor maps among the arguments of kernels: descriptions of an array and a box of it, for Hopper's copy engine.

They are made by the lessons' helper (``lessons/hopper.py``), which encodes one when a real launch asks for it. Here
they are known by their fields alone, so that what captures launches needs neither a driver nor a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def is_map(value: Any) -> bool:
    """Is this argument of a kernel a tensor map?"""
    return not isinstance(value, np.ndarray) and all(hasattr(value, name) for name in ("kind", "box", "swizzle"))


def typed() -> Any:
    """The type that a map has in a kernel: its bytes, which lie in the GPU's memory."""
    from numba import types

    return types.Array(types.uint8, 1, "C")
