"""The compiler of your own kernels, named in one place: numba-cuda, or with COMPILER=mlir its successor.

    from lessons.toolkit.compiler import cuda, jit, types

Raises ValueError for another name, and ImportError without the successor (pip install 'numba-cuda-mlir[cu13]').
Steps import numba as it is: the harness puts the successor in its place meanwhile.
"""

import os
from importlib import import_module

PACKAGES = {"numba-cuda": "numba", "mlir": "numba_cuda_mlir"}
NAME = os.environ.get("COMPILER") or "numba-cuda"
if NAME not in PACKAGES:
    raise ValueError(f"COMPILER={NAME}: must be one of {', '.join(PACKAGES)}, or not set")
cuda = import_module(f"{PACKAGES[NAME]}.cuda")
types, jit = cuda.types, cuda.jit
