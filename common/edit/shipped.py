"""What the workbook shipped: each step's file as it came, whatever was done to it since.

A step is known by the hash of its code in the reference card's record (or in the machine-code record), which
a student's runs do not rewrite. Its text comes from git: the newest version, from HEAD back, with that hash; so
edits may be committed. Without git (a zip file), every file that still has that hash is copied to
``.workbook/shipped`` when the history is first used. The hashes of helpers and exercises, and of steps that were
shipped before they were timed anew, stand in ``lessons/shipped.json``, which ``python -m common ship`` writes.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from common.catalog import catalog, problems, schema, sources, store
from common.edit import history
from common.records import records
from common.records.entries import StepRow

_GIT_SECONDS = 20
_OLD_VERSIONS = 100
_NOTED, _COPIES = "shipped.json", "shipped"


def files(lesson: str | None = None) -> list[Path]:
    """The files of steps and experiments, of one lesson or of all: those that are there, and those that git has."""
    folders = [catalog.LESSONS / lesson] if lesson else [catalog.LESSONS / name for name in catalog.lessons()]
    found = set()
    for folder in folders:
        found |= {*folder.glob("*.py"), *folder.glob("experiments/*.py")}
        found |= {path for path in _known() if path.parent in (folder, folder / "experiments")}
    return sorted(path for path in found if path.suffix == ".py" and not path.name.startswith("_"))


def helpers() -> list[Path]:
    """The files that steps import: those that are there, and those that git has."""
    return sorted({*catalog.helpers_by_name(catalog.LESSONS).values(), *filter(catalog.is_helper, _known())})


def exercises() -> list[Path]:
    """The files of exercises: those that are there, and those that git has."""
    folders = [catalog.LESSONS / name / "exercises" for name in catalog.lessons()]
    found = {path for folder in folders for path in folder.glob("*.py")}
    found |= {path for path in _known() if path.parent in folders and path.suffix == ".py"}
    return sorted(found)


def everything() -> list[Path]:
    """All that can be edited and brought back."""
    return [*files(), *helpers(), *exercises()]


def find(name: str) -> Path:
    """The file of a step, experiment, helper or exercise, even if it was deleted or its header is broken.

    Raises CatalogError.
    """
    known = everything()
    for path in known:
        if path.stem == name:
            return path
    raise catalog.CatalogError(f"step {name!r} is unknown: files are {', '.join(path.stem for path in known)}")


def text(path: Path) -> bytes | None:
    """The file at ``path`` as shipped; None if neither git nor ``.workbook`` has it."""
    wanted = _recorded().get(path.stem)
    newest = None
    for version in _versions(path):
        newest = newest or version
        if wanted is None or _code(version) == wanted:
            return version
    for place in (_copy(path), path):
        if place.is_file() and wanted is not None and _code(history.read(place)) == wanted:
            return history.read(place)
    return newest


def edited(path: Path) -> bool:
    """Does the code at ``path`` differ from what was shipped? Comments, docstrings and layout do not count.

    True when what was shipped is not known.
    """
    present = _code(history.read(path))
    wanted = _recorded().get(path.stem)
    if wanted is not None and present == wanted:
        return False
    shipped = text(path)
    return shipped is None or present is None or _code(shipped) != present


def edited_helpers(path: Path | None = None) -> list[Path]:
    """The helpers that are edited, of those that a file imports, or of all."""
    found = helpers() if path is None else sources.imported_helpers(path)
    return [one for one in found if text(one) is not None and (not one.is_file() or edited(one))]


def as_shipped(path: Path) -> bool:
    """Is neither a file nor any helper that it imports edited?"""
    return not (edited(path) or edited_helpers(path))


def keep_copies() -> None:
    """Copy each file that is still as shipped and that git does not have; raises HistoryError if that fails."""
    recorded = _recorded()
    for path in everything():
        if path not in _tracked() and path.stem in recorded and path.is_file() and not _copy(path).exists():
            source = history.read(path)
            if _code(source) == recorded[path.stem]:
                history.write(_copy(path), source)


def note() -> Path:
    """Take helpers, exercises and steps for shipped as they are now; returns the file that says so.

    A step that was timed as it is needs no note.
    """
    timed = _timed()
    steps = [
        path for path in files() if path.is_file() and timed.get(path.stem) not in (None, _code(history.read(path)))
    ]
    there = [*(path for path in (*helpers(), *exercises()) if path.is_file()), *steps]
    hashes = {path.relative_to(catalog.LESSONS).as_posix(): sources.source_hash(path) for path in there}
    path = catalog.LESSONS / _NOTED
    history.write(path, (json.dumps(hashes, indent=1) + "\n").encode())
    return path


def forget() -> None:
    """Ask git and the records anew."""
    _tracked.cache_clear()
    _recorded.cache_clear()


def _copy(path: Path) -> Path:
    inside = path.is_relative_to(catalog.LESSONS)
    return history.FOLDER / _COPIES / (path.relative_to(catalog.LESSONS) if inside else path.name)


def _known() -> set[Path]:
    """The files below lessons/ that git has, or a copy."""
    folder = history.FOLDER / _COPIES
    return {*_tracked(), *(catalog.LESSONS / path.relative_to(folder) for path in folder.rglob("*.py"))}


def _code(source: bytes) -> str | None:
    """The hash of a source's code; None if it is not Python."""
    try:
        return sources.code_hash(source.decode("utf-8"))
    except (SyntaxError, ValueError):
        return None


@cache
def _recorded() -> dict[str, str]:
    """The code hash of each file as recorded, by its name."""
    found = {name: entry.source for name, entry in records.load_code().steps.items()} | _timed()
    noted = catalog.LESSONS / _NOTED  # has the last word
    if noted.exists():
        try:
            hashes = schema.read(store.read_json(noted), dict[str, schema.Name])
        except (store.StoreError, schema.SchemaError) as error:
            shown = "" if isinstance(error, store.StoreError) else f"{store.shown(noted)}: "
            raise records.RecordError(f"{shown}{error}; python -m common ship writes it anew") from None
        found |= {Path(name).stem: value for name, value in hashes.items()}
    return found


def _timed() -> dict[str, str]:
    """The code hash of each step in the reference card's record."""
    found: dict[str, str] = {}
    record = records.other(records.REFERENCE_GPU)
    for preset in problems.PRESETS if record else ():
        rows = record.rows(preset) if record else {}
        found.update({name: row.source for name, row in rows.items() if isinstance(row, StepRow)})
    return found


@cache
def _tracked() -> frozenset[Path]:
    """The files below lessons/ that the last commit has; none without git."""
    listed = _git("ls-tree", "-r", "-z", "--name-only", "HEAD", "lessons") or b""
    return frozenset(catalog.ROOT / name for name in listed.decode().split("\0") if name)


def _versions(path: Path) -> Iterator[bytes]:
    """The committed versions of a file, the newest first."""
    if path not in _tracked():
        return
    name = path.relative_to(catalog.ROOT).as_posix()
    newest = _git("show", f"HEAD:./{name}")
    if newest is None:
        return
    yield newest
    commits = _git("log", f"-{_OLD_VERSIONS}", "--format=%H", "HEAD", "--", name) or b""
    for commit in commits.decode().split():
        version = _git("show", f"{commit}:./{name}")
        if version is not None:
            yield version


def _git(*words: str) -> bytes | None:
    """What git says; None if there is no git, no repository, or no answer."""
    try:
        done = subprocess.run(
            ["git", *words], cwd=catalog.ROOT, capture_output=True, timeout=_GIT_SECONDS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
