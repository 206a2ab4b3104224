"""Results of code that has not changed, kept in the checkout's personal folder ``.workbook/`` (git ignores it).

A result holds as long as its key, which names everything that it depends on. What cannot be read is made anew.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Generic, TypeVar

from msgspec import Struct, to_builtins

from common.book import catalog, packages, schema, store

FOLDER = catalog.ROOT / ".workbook" / "kept"

PACKAGES = ("numba", "numba-cuda", "llvmlite", "numpy", "cuda-bindings", "cuda-core", "nvidia-nvvm", "matplotlib")
# Modules of the harness that only show what others found.
_SHOWING = {"cli.py", "__main__.py", "pages.py", "figures.py", "charts.py", "layers.py", "tables.py", "ledger.py"}


T = TypeVar("T")


class _Entry(Struct):
    """A value, and the key that it was made under."""

    key: str
    value: object


class Kept(Generic[T]):
    """Values of one type by name, each with the key that it was made under; one file for each ``kind`` of value."""

    def __init__(self, kind: str, type: type[T], fresh: bool = False) -> None:
        self._file, self._type = FOLDER / f"{kind}.json", type
        self._entries = {} if fresh else read(self._file, dict[str, _Entry])

    def get(self, name: str, key: str) -> T | None:
        """The value made under this key, or None."""
        entry = self._entries.get(name)
        if entry is None or entry.key != key:
            return None
        try:
            return schema.read(entry.value, self._type)
        except schema.SchemaError:
            return None

    def put(self, name: str, key: str, value: T) -> None:
        """Keep a value; without a writable checkout it is forgotten."""
        self._entries[name] = _Entry(key, to_builtins(value))
        with contextlib.suppress(OSError):
            store.write_json(self._file, to_builtins(self._entries))


def read(file: Path, kind: type[dict[str, T]]) -> dict[str, T]:
    """What a JSON file holds; nothing if it is not there, or something else."""
    try:
        return schema.read(json.loads(file.read_text(encoding="utf-8")), kind)
    except (OSError, ValueError):
        return {}


def key(*parts: object) -> str:
    """A key made of these parts (anything JSON takes), the packages and Python's version."""
    versions = packages.versions(PACKAGES)
    text = json.dumps([parts, versions, platform.python_version()], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def harness() -> str:
    """A digest of the harness's own code, but for what only shows results."""
    folder = catalog.ROOT / "common"
    return digest(
        path
        for path in (*folder.rglob("*.py"), *folder.rglob("*.toml"))
        if path.name not in _SHOWING and path.parent.name != "commands"
    )


def digest(files: Iterable[Path]) -> str:
    """Of the files' names and bytes; one that is not there counts, too."""
    whole = hashlib.sha256()
    for path in sorted(files):
        whole.update(str(path.name).encode())
        whole.update(hashlib.sha256(path.read_bytes() if path.is_file() else b"").digest())
    return whole.hexdigest()
