"""What the workbook shipped: each file that a reader may edit as it came, whatever was done to it since.

``lessons/shipped.json``, which ``python -m common ship`` writes, has the hash of each one's code. Its text comes from
git: the newest version with that hash, so edits may be committed. Without git (a zip file), every file that still has
that hash is copied to ``.workbook/shipped`` when the history is first used.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from functools import cache
from pathlib import Path

from common.catalog import catalog, sources, store

_NOTED = "shipped.json"
FOLDER = catalog.ROOT / ".workbook" / "shipped"


def everything() -> list[Path]:
    """All that can be edited and brought back: steps, experiments, exercises and helpers, and those that are gone."""
    there = [
        path for lesson in catalog.lessons() for part in (".", "experiments", "exercises")
        for path in (catalog.LESSONS / lesson / part).glob("[!_]*.py")
    ]  # fmt: skip
    return sorted({*there, *catalog.helpers_by_name(catalog.LESSONS).values(), *_noted()})


def helpers() -> list[Path]:
    """The files that steps import."""
    return [path for path in everything() if catalog.is_helper(path)]


def find(name: str) -> Path:
    """A step's, experiment's, helper's or exercise's file, even a deleted or broken one; raises CatalogError."""
    known = {path.stem: path for path in reversed(everything())}
    if name not in known:
        raise catalog.CatalogError(f"step {name!r} is unknown: files are {', '.join(reversed(known))}")
    return known[name]


def text(path: Path) -> bytes | None:
    """The file at ``path`` as shipped; None if neither git nor ``.workbook`` has it."""
    wanted = _wanted(path)
    commits = _git("log", "-100", "--format=%H", "--", str(path)) if path in _tracked() else b""
    for commit in commits.split():
        version = _git("show", f"{commit.decode()}:./{path.relative_to(catalog.ROOT).as_posix()}")
        if version and wanted in (None, _code(version)):
            return version
    there = (store.read_bytes(place) for place in (_copy(path), path) if wanted and place.is_file())
    return next((version for version in there if _code(version) == wanted), None)


def edited(path: Path) -> bool:
    """Does the code at ``path``, comments and layout aside, differ from what was shipped, or is that not known?"""
    present, wanted = _code(store.read_bytes(path)), _wanted(path)
    if wanted is None and (original := text(path)) is not None:
        wanted = _code(original)
    return present is None or present != wanted


def edited_helpers(path: Path | None = None) -> list[Path]:
    """The helpers that are edited, of those that a file imports, or of all."""
    found = helpers() if path is None else sources.imported_helpers(path)
    return [one for one in found if (not one.is_file() or edited(one)) and text(one) is not None]


def as_shipped(path: Path) -> bool:
    """Is neither a file nor any helper that it imports edited?"""
    return not (edited(path) or edited_helpers(path))


def keep_copies() -> None:
    """Copy each file that is still as shipped and that git does not have; raises StoreError if that fails."""
    for path, wanted in _noted().items():
        if path not in _tracked() and path.is_file() and not _copy(path).exists():
            source = store.read_bytes(path)
            if _code(source) == wanted:
                store.write(_copy(path), source)


def note() -> Path:
    """Take all files for shipped as they are now; returns the file that says so."""
    there = [path for path in everything() if path.is_file()]
    hashes = {path.relative_to(catalog.LESSONS).as_posix(): sources.source_hash(path) for path in there}
    path = catalog.LESSONS / _NOTED
    store.write(path, json.dumps(hashes, indent=1) + "\n")
    forget()
    return path


def forget() -> None:
    """Ask git, and read what is noted, anew."""
    _tracked.cache_clear()
    _noted.cache_clear()


def _copy(path: Path) -> Path:
    return FOLDER / (path.relative_to(catalog.LESSONS) if path.is_relative_to(catalog.LESSONS) else path.name)


def _code(source: bytes) -> str | None:
    """The hash of a source's code; None if it is not Python."""
    with contextlib.suppress(SyntaxError, ValueError):
        return sources.code_hash(source.decode("utf-8"))
    return None


@cache
def _noted() -> dict[Path, str]:
    """The code hash of each file as shipped."""
    path = catalog.LESSONS / _NOTED
    return {catalog.LESSONS / name: value for name, value in (store.read_json(path) if path.exists() else {}).items()}


def _wanted(path: Path) -> str | None:
    """The code hash that the file of this name had as shipped; None if it was not shipped."""
    return next((value for known, value in _noted().items() if known.name == path.name), None)


@cache
def _tracked() -> frozenset[Path]:
    """The files below lessons/ that the last commit has; none without git."""
    listed = _git("ls-tree", "-r", "-z", "--name-only", "HEAD", "lessons")
    return frozenset(catalog.ROOT / name for name in listed.decode().split("\0") if name)


def _git(*words: str) -> bytes:
    """What git says; nothing if there is no git, no repository, or no answer."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["git", *words]
        return subprocess.run(command, cwd=catalog.ROOT, capture_output=True, timeout=20, check=True).stdout
    return b""
