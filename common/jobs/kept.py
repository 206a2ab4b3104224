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
from typing import Any

from common.book import catalog, packages, store

FOLDER = catalog.ROOT / ".workbook" / "kept"

PACKAGES = ("numba", "numba-cuda", "llvmlite", "numpy", "cuda-bindings", "cuda-core", "nvidia-nvvm", "matplotlib")
# Modules of the harness that only show what others found.
_SHOWING = {"cli.py", "__main__.py", "pages.py", "figures.py", "charts.py", "layers.py", "tables.py", "ledger.py"}


class Kept:
    """Values by name, each with the key that it was made under; one file for each kind of result."""

    def __init__(self, kind: str, fresh: bool = False) -> None:
        self._file = FOLDER / f"{kind}.json"
        self._entries: dict[str, Any] = {} if fresh else read(self._file)

    def get(self, name: str, key: str) -> Any:
        """The value made under this key, or None."""
        entry = self._entries.get(name)
        return entry["value"] if isinstance(entry, dict) and entry.get("key") == key and "value" in entry else None

    def put(self, name: str, key: str, value: Any) -> None:
        """Keep a value; without a writable checkout it is forgotten."""
        self._entries[name] = {"key": key, "value": value}
        with contextlib.suppress(OSError):
            store.write_json(self._file, self._entries)


def read(file: Path) -> dict[str, Any]:
    """What a file holds; nothing if it is not there, or no JSON object."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def key(*parts: Any) -> str:
    """A key made of these parts (anything JSON takes), the packages and Python's version."""
    versions = packages.versions(PACKAGES)
    text = json.dumps([parts, versions, platform.python_version()], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def harness() -> str:
    """A digest of the harness's own code, but for what only shows results."""
    folder = catalog.ROOT / "common"
    return digest(
        path for path in folder.rglob("*.py") if path.name not in _SHOWING and path.parent.name != "commands"
    )


def digest(files: Iterable[Path]) -> str:
    """Of the files' names and bytes; one that is not there counts, too."""
    whole = hashlib.sha256()
    for path in sorted(files):
        whole.update(str(path.name).encode())
        whole.update(hashlib.sha256(path.read_bytes() if path.is_file() else b"").digest())
    return whole.hexdigest()
