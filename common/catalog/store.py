"""Reads and writes the workbook's files: each is written whole or not at all.

A file is written beside its place, brought to the disk and moved there, so neither a full disk nor an interrupt
nor two programs at once leave half of one. Who changes what a file already holds does so under :func:`locked`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LOCK_SECONDS = 60.0
_POLL_SECONDS = 0.02
_CLOCK_NS = 2_000_000_000  # the coarsest clock of a file system
_never = itertools.count()
Stamp = tuple[int, ...]
Found = TypeVar("Found")


class StoreError(OSError):
    """A file cannot be read, written or locked: the message names it and says ``why``."""

    def __init__(self, path: Path, what: str, why: str) -> None:
        super().__init__(f"{shown(path)}: {what}: {why}")
        self.why = why


def shown(path: Path) -> str:
    """The path as people know it: below the checkout relative to it, else as it is."""
    root = Path(__file__).resolve().parents[2]
    try:
        return path.relative_to(root).as_posix()
    except ValueError:
        return str(path)


def reason(error: OSError | ValueError) -> str:
    """Why the system or a decoder said no, in a few words."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def write(path: Path, data: bytes | str) -> None:
    """Make ``data`` (text as UTF-8) the file at ``path``, with its folders; raises StoreError, the file untouched.

    A link is replaced, not followed. The mode is the old file's, or that which the user's mask leaves a new one.
    """
    content = data.encode("utf-8") if isinstance(data, str) else data
    beside = path.with_name(f".{path.name[:40]}-{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir() and not path.is_symlink():  # on Linux the system's words would name the other file
            raise IsADirectoryError(0, "a folder is in its place")
        with beside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if path.is_file():
            shutil.copymode(path, beside)
        os.replace(beside, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        if isinstance(error, OSError | ValueError):
            raise StoreError(path, "cannot be written", reason(error)) from None
        raise


def write_json(path: Path, data: Any) -> None:
    """Make ``data`` the JSON file at ``path``, keys in order; raises StoreError, the file untouched."""
    write(path, json.dumps(data, indent=1, sort_keys=True) + "\n")


def read_bytes(path: Path) -> bytes:
    """A file's bytes; raises StoreError."""
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise StoreError(path, "cannot be read", reason(error)) from None


def read_text(path: Path) -> str:
    """A file's text; raises StoreError if it cannot be read or is no UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise StoreError(path, "cannot be read", reason(error)) from None


def read_json(path: Path) -> Any:
    """What a JSON file holds; raises StoreError naming the file and the place that is none."""
    text = read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        why = str(error) if text.strip() else "it is empty"
        raise StoreError(path, "not readable as JSON", why) from None


def read_toml(path: Path) -> dict[str, Any]:
    """What a TOML file holds; raises StoreError naming the file and what is wrong with it."""
    try:
        return tomllib.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise StoreError(path, "not readable as TOML", " ".join(str(error).split())) from None


def stamp(path: str | os.PathLike[str]) -> Stamp:
    """Times, size and inode of a file: while they are the same, so is its content.

    For a file that cannot be read, or was written so recently that another write might not change its times, the
    stamp is one that equals no other.
    """
    try:
        found = os.stat(path)
    except OSError:
        return (next(_never),)
    if max(found.st_mtime_ns, found.st_ctime_ns) > time.time_ns() - _CLOCK_NS:
        return (next(_never),)
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def kept_by_stamp(read: Callable[[Path], Found]) -> Callable[[Path], Found]:
    """Decorates a function of a file's content: it is called again only when the file has changed.

    Callers share what it returned.
    """
    kept = functools.lru_cache(maxsize=512)(lambda path, _: read(path))

    @functools.wraps(read)
    def asked(path: Path) -> Found:
        return kept(path, stamp(path))

    return asked


@contextlib.contextmanager
def locked(folder: Path, seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """While open, no other process or thread has this folder locked; not to be opened twice by one thread.

    The lock ends with the process. Raises StoreError if the folder cannot be made, or another has it for longer than
    ``seconds``. A file system that knows no locks, as on Windows, is used without.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY) if fcntl else None
    except OSError as error:
        raise StoreError(folder, "cannot be locked", reason(error)) from None
    try:
        deadline = time.monotonic() + seconds
        while handle is not None and not _lock(handle):
            if time.monotonic() > deadline:
                raise StoreError(folder, "cannot be locked", f"another program has had it for {seconds:.0f} s")
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _lock(handle: int) -> bool:
    """Take the lock, if nobody has it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # EBADF, ENOLCK, ENOTSUP: a network's file system
        return True
    return True
