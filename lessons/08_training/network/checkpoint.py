"""A training run in a file: all that it needs to go on as if it had never stopped."""

import io
import json
import zlib
from dataclasses import asdict
from zipfile import BadZipFile

import numpy as np

from common.catalog import schema, store

from .plan import Plan, State

SCHEMA = "numba-cuda-workbook/training/1"
_ARRAYS = ("values", "velocities", "losses")
# what NumPy and zipfile make of bytes that are no archive, or a damaged one
_UNREADABLE = (
    AttributeError, BadZipFile, EOFError, KeyError, MemoryError, OSError, OverflowError, RuntimeError, TypeError,
    ValueError, zlib.error,
)  # fmt: skip


def save(path, plan, shape, state, arrays):
    """Write the file, whole or not at all; raises StoreError.

    ``arrays``: ``values`` and ``velocities`` of all parameters, ``losses`` of an epoch's steps; flat, float32.
    """
    said = json.dumps({"schema": SCHEMA, "shape": asdict(shape), "plan": asdict(plan), "state": asdict(state)})
    content = io.BytesIO()
    np.savez(content, said=np.frombuffer(said.encode(), np.uint8), **arrays)
    store.write(path, content.getvalue())


def load(path, shape):
    """The plan, the state and the arrays by name, of a network of this shape.

    Raises StoreError where the file cannot be read, ValueError, in one line, where it is none, or of another shape.
    """
    content = store.read_bytes(path)
    try:
        said, arrays = _opened(content)
        _require_shape(schema.read(said["shape"], dict[str, object], "shape"), shape)
        plan, state = schema.read(said["plan"], Plan, "plan"), schema.read(said["state"], State, "state")
        _require_arrays(arrays, shape.offsets["end"])
    except ValueError as error:
        remedy = "name another with --resume, or start anew without it"
        raise ValueError(f"{store.shown(path)}: {error}: {remedy}") from None
    return plan, state, arrays


def _opened(content):
    """What a file says, and its arrays; raises ValueError where it is no checkpoint."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            said = schema.read(json.loads(bytes(file["said"])), dict[str, object])
            arrays = {name: file[name] for name in _ARRAYS}
        found = {name: said[name] for name in ("schema", "shape", "plan", "state")}
    except _UNREADABLE as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"is no checkpoint ({why:.80})") from None
    if found["schema"] != SCHEMA:
        raise ValueError(f"schema is {found['schema']!r:.60}, must be {SCHEMA!r}")
    return found, arrays


def _require_shape(extents, shape):
    for name, value in json.loads(json.dumps(asdict(shape))).items():
        if extents.get(name) != value:
            raise ValueError(f"is of a network with {name}={extents.get(name)!r:.40}, and this one has {value}")


def _require_arrays(arrays, parameters):
    for name in ("values", "velocities"):
        array = arrays[name]
        if array.shape != (parameters,) or array.dtype != np.float32:
            raise ValueError(f"{name} are {array.shape} of {array.dtype}, must be ({parameters},) of float32")
        if not np.isfinite(array).all():
            raise ValueError(f"{name} are not all finite")
    if arrays["losses"].dtype != np.float32 or arrays["losses"].ndim != 1:
        found = arrays["losses"]
        raise ValueError(f"losses are {found.shape} of {found.dtype}, must be flat, of float32")
