"""Which versions of packages are installed."""

from __future__ import annotations

import functools
import importlib.metadata


def versions(names: tuple[str, ...]) -> dict[str, str]:
    """Versions of those of the packages that are installed."""
    return {name: version for name in names if (version := _version(name)) is not None}


@functools.cache
def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
