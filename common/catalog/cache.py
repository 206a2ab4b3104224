"""Results of earlier runs, kept in ``.workbook/cache`` (git ignores it) under a key of all that they depend on:
parameters, package versions, and the code, found by following imports from the modules that compute them."""

import contextlib
import functools
import hashlib
import json
import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from msgspec import to_builtins

from common.catalog import catalog, sources, store

FOLDER = catalog.ROOT / ".workbook" / "cache"
MOST_BYTES = 256 << 20  # of one kind; what was not used for longest goes first

PACKAGES = (
    "numba", "numba-cuda", "llvmlite", "numpy", "matplotlib", "cuda-bindings", "cuda-core", "nvidia-nvvm",
    "nvidia-nvjitlink", "nvidia-nvjitlink-cu12", "nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12", "nvidia-cuda-nvrtc",
    "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-cccl", "nvidia-cuda-nvdisasm",
)  # fmt: skip
T = TypeVar("T")


def files(roots: Iterable[Path]) -> list[Path]:
    """These files, and all that they import or name, directly or through each other, in order."""
    return sorted(sources.reached(path.resolve() for path in roots))


def digest(paths: Iterable[Path], text: bool = False) -> str:
    """Of files' names and contents, where there are any: of Python the code, blind to comments and layout. With
    ``text`` every byte of a lesson's counts, as where its lines are shown."""
    whole = hashlib.sha256()
    for name, path in sorted((store.shown(path), path) for path in set(paths)):
        found = ""
        if path.suffix == ".py" and (not text or name.startswith("common/")):
            with contextlib.suppress(*sources.NO_PYTHON):
                found = sources.source_hash(path)
        if not found and path.is_file():
            found = hashlib.sha256(path.read_bytes()).hexdigest()
        whole.update(f"{name}\0{found}\0".encode())
    return whole.hexdigest()


def code(path: Path) -> str:
    """The digest of a file's code as it is now, with all that it imports or names."""
    return digest(files([path]))


def key(
    roots: Iterable[Path], *parts: object, data: Iterable[Path] = (), text: bool = False,
    versions: tuple[str, ...] | None = None,
) -> str:  # fmt: skip
    """A key of the code reached from ``roots``, of ``data`` files, and of ``parts`` (anything JSON takes). Versions
    of Python and PACKAGES count, too; with ``versions`` only those do, for results used on many machines."""
    machine = [platform.python_version()] if versions is None else []
    known = sources.versions(PACKAGES if versions is None else versions)
    told = [parts, machine, known, digest([*files(roots), *data], text)]
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()


def get(kind: str, key: str, type: type[T]) -> T | None:
    """The value of this kind that was kept under this key, which counts as a use of it; None if there is none, or one
    of another type."""
    file = FOLDER / kind / f"{key}.json"
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = store.convert(json.loads(file.read_bytes()), type)
        os.utime(file)
        return found
    return None


def put(kind: str, key: str, value: object) -> None:
    """Keep a value, whole or not at all, if the checkout can be written."""
    with contextlib.suppress(OSError):
        store.write(FOLDER / kind / f"{key}.json", json.dumps(to_builtins(value)))
        prune(FOLDER / kind)


@functools.cache  # once in each process
def prune(folder: Path, most_bytes: int = MOST_BYTES) -> None:
    """Delete what was not used for longest until the rest fits; raises OSError."""
    total = 0
    for file in sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime, reverse=True):
        total += file.stat().st_size
        if total > most_bytes:
            file.unlink()


def read(file: Path, type: type[T]) -> T:
    """What a JSON file holds; an empty one of the type if it is not there, or something else."""
    with contextlib.suppress(OSError, ValueError):
        return store.convert(store.read_json(file), type)
    return store.convert({}, type)
