"""The files that a submission must leave alone: all of the checkout, with Git's settings and hooks."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

from common.book import catalog

# What others write while grades are made: Git's own objects and notes, and the tools' caches.
_LEFT = {
    ".git/objects", ".git/logs", ".git/index", ".git/index.lock", ".mypy_cache", ".pytest_cache", ".ruff_cache",
}  # fmt: skip
_OF_GIT = ("config", "config.worktree", "hooks", "info")
_PACKAGES = "site-packages"  # what is in them is taken for what it was: there are too many files
_HARNESS = re.compile(r"(common/|lessons/[^/]+\.py |lessons/\w+/(solutions|helpers)/|(.*/)?site-packages/|[^/]+$)")
_HASHED_BYTES = 1 << 22

Signature = tuple[int, ...]


class Checkout:
    """Looks at every file's signature; one whose signature is another is read and compared."""

    def __init__(self, root: Path = catalog.ROOT) -> None:
        self.root = root
        self._lock = threading.Lock()
        self._changes: list[str] = []
        self._seen = self._now()
        self._hashes = {name: self._hash(name) for name in self._seen}

    def mark(self) -> int:
        """A point in time to ask :meth:`since`."""
        return len(self._look())

    def since(self, mark: int) -> list[str]:
        """Files that changed, came or went since a mark, whoever did it."""
        return self._look()[mark:]

    def harness_changed(self) -> list[str]:
        """Those changes so far that later grades would run on."""
        return [change for change in self._look() if _HARNESS.match(change)]

    def _look(self) -> list[str]:
        with self._lock:
            before, self._seen = self._seen, self._now()
            for name in sorted(before.keys() | self._seen.keys()):
                if before.get(name) == self._seen.get(name):
                    continue
                digest = self._hash(name) if name in self._seen else ""
                if digest != self._hashes.get(name, ""):
                    fate = "deleted" if not digest else "overwritten" if name in before else "new"
                    self._changes.append(f"{name} ({fate})")
                self._hashes[name] = digest
            return list(self._changes)

    def _now(self) -> dict[str, Signature]:
        found = dict(_walk(self.root, ""))
        git = self.root / ".git"
        if git.is_file():  # that of a worktree names the folder
            text = git.read_text(encoding="utf-8", errors="replace").partition("gitdir:")[2].strip()
            for folder in (self.root / text, (self.root / text).parent.parent):
                if text and (folder / "HEAD").is_file():
                    for name in _OF_GIT:
                        found |= dict(_walk(folder / name, f"{folder / name}/"))
        return found

    def _hash(self, name: str) -> str:
        """What a file holds, in short; of a link where it leads, of a large file its signature."""
        path = self.root / name  # an absolute name stays what it is
        try:
            state = path.lstat()
            if stat.S_ISLNK(state.st_mode):
                return f"link to {os.readlink(path)}"
            if not stat.S_ISREG(state.st_mode) or state.st_size > _HASHED_BYTES:
                return str(_signature(state))
            return f"{state.st_mode} {hashlib.sha256(path.read_bytes()).hexdigest()}"
        except OSError as error:
            return f"not readable: {error.errno}"


def _walk(top: Path, prefix: str) -> Iterator[tuple[str, Signature]]:
    """Signatures of all files below a folder, or of the one file, by their names after ``prefix``; no link is
    followed."""
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
                pending.append(name)


def _signature(state: os.stat_result) -> Signature:
    return state.st_mode, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns
