"""Reads and writes the workbook's files, each whole or not at all: a file is written beside its place, brought to the
disk and moved there. Who changes what a file already holds does so under :func:`locked`.

What data from outside must be is said by types that msgspec takes, and checked by :func:`convert`. A Struct may be
given fields that it lacks.
"""

import contextlib
import functools
import json
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_ROOT = Path(__file__).resolve().parents[2]
_CLOCK_NS = 2_000_000_000  # the coarsest clock of a file system
Found = TypeVar("Found")

_LARGE, _HUGE = 2**63 - 1, 1e300  # more is no count, and no measurement

Number = Annotated[float, Meta(gt=-_HUGE, lt=_HUGE)]
Positive = Annotated[float, Meta(gt=0, lt=_HUGE)]
Amount = Annotated[float, Meta(ge=0, lt=_HUGE)]
Count = Annotated[int, Meta(ge=0, le=_LARGE)]
Extent = Annotated[int, Meta(gt=0, le=_LARGE)]
Tally = Annotated[int, Meta(ge=0)] | Annotated[float, Meta(ge=0, lt=_HUGE)]
Name = Annotated[str, Meta(min_length=1)]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class StoreError(OSError):
    """A file cannot be read, written or locked: the message names it and says ``why``."""

    def __init__(self, path: Path, what: str, why: str) -> None:
        super().__init__(f"{shown(path)}: {what}: {why}")
        self.why = why


def shown(path: Path) -> str:
    """The path as people know it: below the checkout relative to it, else as it is."""
    return path.relative_to(_ROOT).as_posix() if path.is_relative_to(_ROOT) else str(path)


def reason(error: Exception) -> str:
    """Why the system or a decoder said no, in one line."""
    return (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())


@contextlib.contextmanager
def _named(path: Path, what: str) -> Iterator[None]:
    """Turns what goes wrong into a StoreError."""
    try:
        yield
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(path, what, reason(error)) from None


def write(path: Path, data: bytes | str) -> None:
    """Make ``data`` (text as UTF-8) the file at ``path``, with its folders; raises StoreError, the file untouched."""
    content = data.encode("utf-8") if isinstance(data, str) else data
    beside = path.with_name(f".{path.name[:40]}-{secrets.token_hex(4)}.tmp")
    with _named(path, "cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with beside.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)


def write_json(path: Path, data: Any) -> None:
    """Make ``data`` the JSON file at ``path``, keys in order; raises StoreError, the file untouched."""
    write(path, json.dumps(data, indent=1, sort_keys=True) + "\n")


def read_bytes(path: Path) -> bytes:
    """A file's bytes; raises StoreError."""
    with _named(path, "cannot be read"):
        return path.read_bytes()


def read_text(path: Path) -> str:
    """A file's text; raises StoreError if it cannot be read or is no UTF-8."""
    with _named(path, "cannot be read"):
        return path.read_text(encoding="utf-8")


def read_json(path: Path) -> Any:
    """What a JSON file holds; raises StoreError naming the file and the place that is none."""
    text = read_text(path)
    with _named(path, "not readable as JSON"):
        return json.loads(text)


def read_toml(path: Path) -> dict[str, Any]:
    """What a TOML file holds; raises StoreError naming the file and what is wrong with it."""
    text = read_text(path)
    with _named(path, "not readable as TOML"):
        return tomllib.loads(text)


def kept_by_stamp(read: Callable[[Path], Found]) -> Callable[[Path], Found]:
    """Decorates a function of a file's content: it is called again when the file's times, size or inode changed, or
    it was written so recently that another write might not change them. Callers share what it returned."""

    @functools.lru_cache(4096)
    def kept(path: Path, *_: int) -> Found:
        return read(path)

    @functools.wraps(read)
    def asked(path: Path) -> Found:
        try:
            state = os.stat(path)
        except OSError:
            return read(path)
        if max(state.st_mtime_ns, state.st_ctime_ns) > time.time_ns() - _CLOCK_NS:
            return read(path)
        return kept(path, state.st_mtime_ns, state.st_ctime_ns, state.st_size, state.st_ino)

    return asked


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """While open, no other process or thread has this folder locked, which is waited for; not to be opened twice by
    one thread. A file system without locks is used so."""
    with _named(folder, "cannot be locked"):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY) if fcntl else None
    try:
        if handle is not None:
            with contextlib.suppress(OSError):  # EBADF, ENOLCK, ENOTSUP: a network's file system
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        if handle is not None:
            os.close(handle)


# --- what data from outside must be ---


class SchemaError(ValueError):
    """Data that is not of its type: what must be there, what is, and the place."""


def one_of(names: Iterable[str]) -> Meta:
    """One of these names: ``Annotated[str, one_of(...)]`` where only the program knows them."""
    return Meta(pattern=rf"^(?:{'|'.join(map(re.escape, names))})\Z")


def convert(value: object, kind: type[Found], place: str = "") -> Found:
    """The value as that type; ``place`` says where it stands. Raises SchemaError."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise SchemaError(f"{place}: {error}" if place else str(error)) from None
