"""A training run in a file: all that it needs to go on as if it had never stopped."""

import io
import json
import zipfile
from dataclasses import asdict

import numpy as np

from common.book import store

SCHEMA = "numba-cuda-workbook/training/1"
_ARRAYS = ("values", "velocities", "losses")


def save(path, plan, shape, state, arrays):
    """Write the file, whole or not at all; raises StoreError.

    ``plan`` and ``state`` are mappings for JSON, ``arrays`` has those of _ARRAYS.
    """
    said = json.dumps({"schema": SCHEMA, "shape": asdict(shape), "plan": plan, "state": state})
    content = io.BytesIO()
    np.savez(content, said=np.frombuffer(said.encode(), np.uint8), **arrays)
    store.write(path, content.getvalue())


def load(path, shape):
    """``plan``, ``state`` and the arrays by name, of a network of this shape.

    Raises ValueError, in one line, at a file that is none, or of another shape.
    """
    remedy = "name another with --resume, or start anew without it"
    try:
        with np.load(io.BytesIO(store.read_bytes(path)), allow_pickle=False) as file:
            said = json.loads(bytes(file["said"]))
            arrays = {name: file[name] for name in _ARRAYS}
        schema, extents, plan, state = (said[name] for name in ("schema", "shape", "plan", "state"))
    except store.StoreError:
        raise
    except (KeyError, TypeError, ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{store.shown(path)}: is no checkpoint ({why:.80}): {remedy}") from None
    if schema != SCHEMA:
        raise ValueError(f"{store.shown(path)}: schema is {schema!r:.60}, must be {SCHEMA!r}: {remedy}")
    wanted = json.loads(json.dumps(asdict(shape)))
    for name, value in wanted.items():
        if extents.get(name) != value:
            found = extents.get(name)
            raise ValueError(
                f"{store.shown(path)}: is of a network with {name}={found}, and this one has {value}: {remedy}"
            )
    count = shape.offsets["end"]
    for name in ("values", "velocities"):
        array, wanted = arrays[name], f"({count},) of float32"
        if array.shape != (count,) or array.dtype != np.float32:
            found = f"{array.shape} of {array.dtype}"
            raise ValueError(f"{store.shown(path)}: {name} are {found}, must be {wanted}: {remedy}")
        if not np.isfinite(array).all():
            raise ValueError(f"{store.shown(path)}: {name} are not all finite: {remedy}")
    return plan, state, arrays
