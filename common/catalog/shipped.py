"""What the workbook shipped: each file that a reader may edit as it came, whatever was done to it since.

``lessons/shipped.json``, which ``python -m common ship`` writes, has the hash of each one's code. Its text comes from
git: the newest version with that hash, so edits may be committed. Without git (a zip file), every file that still has
that hash is copied to ``.workbook/shipped`` when the history is first used.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from common.catalog import catalog, sources, store

FOLDER = catalog.ROOT / ".workbook" / "shipped"
_FOLDERS = ("[0-9]*", "[0-9]*/experiments", "[0-9]*/exercises", "[0-9]*/helpers", catalog.TOOLKIT)  # below lessons/


def everything() -> list[Path]:
    """All that can be edited and brought back: steps, experiments, exercises and helpers, and those that are gone."""
    there = [path for folder in _FOLDERS for path in catalog.LESSONS.glob(f"{folder}/[!_]*.py")]
    return sorted({*there, *(catalog.LESSONS / name for name in _noted())})


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
    if wanted is None:
        return None
    commits = _git("log", "-100", "--format=%H", "--", str(path)).decode().split()
    committed = (_git("show", f"{one}:./{path.relative_to(catalog.ROOT).as_posix()}") for one in commits)
    copies = (store.read_bytes(place) for place in (*FOLDER.rglob(path.name), path) if place.is_file())
    return next((version for version in itertools.chain(committed, copies) if _code(version) == wanted), None)


def edited(path: Path) -> bool:
    """Does the code at ``path``, comments and layout aside, differ from what was shipped, or was nothing?"""
    present = _code(store.read_bytes(path))
    return present is None or present != _wanted(path)


def edited_helpers(path: Path | None = None) -> list[Path]:
    """The helpers that are edited, of those that a file imports, or of all."""
    found = helpers() if path is None else sources.imported_helpers(path)
    return [one for one in found if (not one.is_file() or edited(one)) and text(one) is not None]


def as_shipped(path: Path) -> bool:
    """Is neither a file nor any helper that it imports edited?"""
    return not (edited(path) or edited_helpers(path))


def keep_copies() -> None:
    """Without git, copy each file that is still as shipped; raises StoreError if that fails."""
    if _git("ls-tree", "--name-only", "HEAD", "lessons"):
        return
    for name, wanted in _noted().items():
        path, copy = catalog.LESSONS / name, FOLDER / name
        if path.is_file() and not copy.exists() and _code(source := store.read_bytes(path)) == wanted:
            store.write(copy, source)


def note() -> Path:
    """Take all files for shipped as they are now; returns the file that says so."""
    there = [path for path in everything() if path.is_file()]
    hashes = {path.relative_to(catalog.LESSONS).as_posix(): sources.source_hash(path) for path in there}
    path = catalog.LESSONS / "shipped.json"
    store.write(path, json.dumps(hashes, indent=1) + "\n")
    return path


def _code(source: bytes) -> str | None:
    """The hash of a source's code; None if it is not Python."""
    with contextlib.suppress(*sources.NO_PYTHON):
        return sources.code_hash(source)
    return None


_hashes: Callable[[Path], dict[str, str]] = store.kept_by_stamp(store.read_json)


def _noted() -> dict[str, str]:
    """The code hash of each file as shipped, by its place below lessons/."""
    path = catalog.LESSONS / "shipped.json"
    return _hashes(path) if path.exists() else {}


def _wanted(path: Path) -> str | None:
    """The code hash that the file of this name had as shipped; None if it was not shipped."""
    return next((value for name, value in _noted().items() if name.rpartition("/")[2] == path.name), None)


def _git(*words: str) -> bytes:
    """What git says; nothing if there is no git, no repository, or no answer."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["git", *words]
        return subprocess.run(command, cwd=catalog.ROOT, capture_output=True, timeout=20, check=True).stdout
    return b""
