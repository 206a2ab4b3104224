"""The files that a submission must leave alone: all of the checkout, with Git's settings and hooks.

What changed is no proof of who did it: other commands write there too. :class:`Change` has what tells them apart.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from common.catalog import catalog

# What others write while grades are made: Git's own objects and notes, and the tools' caches.
_LEFT = {
    ".git/objects", ".git/logs", ".git/index", ".git/index.lock", ".mypy_cache", ".pytest_cache", ".ruff_cache",
}  # fmt: skip
_OF_GIT = ("config", "config.worktree", "hooks", "info")
# Where the workbook's commands, and Git, write while grades are made. No verdict is made by what lies there.
_OTHERS_WRITE = re.compile(r"results/|\.workbook/|\.hypothesis/|\.git/(?!config|hooks/|info/)")
_PACKAGES = "site-packages"  # what is in them is taken for what it was: there are too many files
_HARNESS = re.compile(
    r"common/|lessons/[^/]+\.py$|lessons/\w+/(solutions|helpers)/|(.*/)?site-packages/"
    r"|(?!lessons/|tests/|results/|\.).*\.(py|pyc|pth|so|pyd)$"  # in its folder Python finds a module first
)
_COMPILED = re.compile(r"(^|/)__pycache__/[^/]+\.pyc(\.\d+)?$")
_HASHED_BYTES = 1 << 22
_MODE, _UNREADABLE = "mode changed", "unreadable"

Signature = tuple[int, ...]
Held = tuple[int, str]  # a mode, and what identifies the contents


class Change(NamedTuple):
    """A file whose contents or mode are others than they were. As text: its name, and its fate in parentheses."""

    name: str
    fate: str

    def __str__(self) -> str:
        return f"{self.name} ({self.fate})"

    @property
    def by_anyone(self) -> bool:
        """Is it where other commands write?"""
        return bool(_OTHERS_WRITE.match(self.name))

    @property
    def of_harness(self) -> bool:
        """Would later grades run on it?"""
        return bool(_HARNESS.match(self.name))

    @property
    def compiled(self) -> bool:
        """Is it what Python leaves beside any module that it imports?"""
        return bool(_COMPILED.search(self.name))

    @property
    def despite_walls(self) -> bool:
        """Is it what Landlock does not stop? A file's mode is no part of what it holds."""
        return self.fate == _MODE


class Checkout:
    """Looks at every file's signature; one whose signature is another is read and compared."""

    def __init__(self, root: Path = catalog.ROOT) -> None:
        self.root = root
        self._lock = threading.Lock()
        self._changes: list[Change] = []
        self._seen = self._now()
        self._holds = {name: self._held(name) for name in self._seen}

    def mark(self) -> int:
        """A point in time to ask :meth:`since`."""
        return len(self._look())

    def since(self, mark: int) -> list[Change]:
        """Files that changed, came or went since a mark, whoever did it."""
        return self._look()[mark:]

    def harness_changed(self) -> list[Change]:
        """Those changes so far that later grades would run on."""
        return [change for change in self._look() if change.of_harness]

    def _look(self) -> list[Change]:
        with self._lock:
            before, self._seen = self._seen, self._now()
            for name in sorted(before.keys() | self._seen.keys()):
                if before.get(name) == self._seen.get(name):
                    continue
                held, known = self._held(name) if name in self._seen else None, self._holds.get(name)
                fate = _fate(known, held)
                if fate and not (name.endswith(os.sep) and fate != _MODE):  # of a folder its mode alone
                    self._changes.append(Change(name, fate))
                if held:
                    self._holds[name] = held
                else:
                    self._holds.pop(name, None)
            return list(self._changes)

    def _now(self) -> dict[str, Signature]:
        found = dict(_walk(self.root, ""))
        git = self.root / ".git"
        if git.is_file():  # that of a worktree names the folder
            text = git.read_text(encoding="utf-8", errors="replace").partition("gitdir:")[2].strip()
            folders = (self.root / text, (self.root / text).parent.parent) if text else ()
            for path in (one / name for one in folders if (one / "HEAD").is_file() for name in _OF_GIT):
                found |= dict(_walk(path, f"{path}/"))
        return found

    def _held(self, name: str) -> Held:
        """A file's mode and what it holds, in short; of a link where it leads, of a large file its size and time."""
        path, mode = self.root / name, 0  # an absolute name stays what it is
        try:
            state = path.lstat()
            mode = state.st_mode
            if stat.S_ISLNK(mode):
                return mode, f"link to {os.readlink(path)}"
            if not stat.S_ISREG(mode):
                return mode, str(state.st_ino)
            if state.st_size > _HASHED_BYTES:
                return mode, str((state.st_ino, state.st_size, state.st_mtime_ns))
            return mode, hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError:
            return mode, _UNREADABLE


def _fate(known: Held | None, held: Held | None) -> str:
    """What became of a file; nothing if it is as it was."""
    if known is None or held is None:
        return "" if known is held else "deleted" if held is None else "new"
    if known == held:
        return ""
    same = known[1] == held[1] or _UNREADABLE in (known[1], held[1])
    return _MODE if same and known[0] != held[0] else "overwritten"


def _walk(top: Path, prefix: str) -> Iterator[tuple[str, Signature]]:
    """Signatures of all files and folders below a folder, or of the one file, by their names after ``prefix``; a
    folder's name ends in a slash. No link is followed."""
    pending = [""]
    while pending:
        inside = pending.pop()
        try:
            entries = list(os.scandir(top / inside))
        except NotADirectoryError:
            yield prefix.rstrip("/"), _signature(top.lstat())
            return
        except OSError:
            continue
        for entry in entries:
            name = f"{inside}/{entry.name}" if inside else entry.name
            if name in _LEFT:
                continue
            try:
                state = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if not stat.S_ISDIR(state.st_mode):
                yield prefix + name, _signature(state)
            elif Path(inside).name == _PACKAGES:
                yield prefix + name, (state.st_mode, state.st_ino)
            else:
                yield f"{prefix}{name}{os.sep}", (state.st_mode,)
                pending.append(name)


def _signature(state: os.stat_result) -> Signature:
    return state.st_mode, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns
