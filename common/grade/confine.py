"""Walls that the system puts around a submission's process, where it has them.

Limits on memory, processor time and files are the system's. On Linux since 5.13 (Landlock) the process may write in
its own folder alone, and read that, Python, its packages and the system's folders: neither the checkout, nor the
other submissions. Since 6.7 it may open no TCP connection, since 6.12 it may signal no process but its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import sys
import sysconfig
import threading
from collections.abc import Iterator
from pathlib import Path

THREAD_STACK = 1 << 20  # warps of an asynchronous kernel take turns, each in a thread

# prctl(2)
_SET_DUMPABLE, _NO_NEW_PRIVILEGES = 4, 38

# capabilities(7): the third version, and those to read, search and own files
_CAPABILITIES, _ON_FILES = 0x20080522, 0b1110

# landlock(7); the numbers are the same on every processor
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_ASK_VERSION, _BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # how many rights on files a version knows; a later one: 16
_TRUNCATES_SINCE = 3  # before, a file could be cut short by its name
_TCP_SINCE, _TCP = 4, 3
_SCOPED_SINCE, _SCOPED = 6, 3  # abstract sockets and signals

_SYSTEM = (
    "/usr", "/lib", "/lib32", "/lib64", "/bin", "/etc", "/opt", "/proc", "/sys", "/dev", "/nix",
    "/run/current-system",
)  # fmt: skip
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/urandom", "/dev/random")


def limit(memory_bytes: int, cpu_seconds: int, file_bytes: int) -> None:
    """Limit this process and all it starts, where the system can."""
    threading.stack_size(THREAD_STACK)
    if os.name != "posix":
        return
    import resource

    limits = {"AS": memory_bytes, "CPU": cpu_seconds, "FSIZE": file_bytes, "CORE": 0}
    for name, most in limits.items():
        # macOS does not limit memory
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))


def keep_private() -> None:
    """Other processes of this user may not look into this one's memory (Linux; an administrator still may)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)


def give_up_privileges() -> None:
    """An administrator's process keeps of its rights only those on files (Linux)."""
    if sys.platform != "linux":
        return
    system = ctypes.CDLL(None)
    header, words = struct.pack("=Ii", _CAPABILITIES, 0), ctypes.create_string_buffer(24)
    if system.capget(header, words) == 0:
        effective, permitted, _, *_ = struct.unpack("=6I", words.raw)
        kept = struct.pack("=6I", effective & _ON_FILES, permitted & _ON_FILES, 0, 0, 0, 0)
        system.capset(header, kept)


def version() -> int:
    """Which version of Landlock this system has; 0 if none."""
    if sys.platform != "linux":
        return 0
    return max(0, int(ctypes.CDLL(None).syscall(_CREATE, None, ctypes.c_size_t(0), _ASK_VERSION)))


def keeps_files(found: int) -> bool:
    """Does this version of Landlock leave an enclosed process no way to change what other folders' files hold?"""
    return found >= _TRUNCATES_SINCE


def enclose(own: Path, hidden: Path | None = None) -> int:
    """From now on this thread, and all that it starts, writes below ``own`` alone and reads little else.

    Nothing of ``hidden``, a folder, is read but the Python and the packages in it. Returns the version of Landlock
    that sees to it, 0 if the system has none.
    """
    found = version()
    if not found:
        return 0
    system = ctypes.CDLL(None)
    every = (1 << _RIGHTS.get(found, 16)) - 1
    known = [every, *[_TCP] * (found >= _TCP_SINCE), *[_SCOPED] * (found >= _SCOPED_SINCE)]
    attributes = struct.pack(f"={len(known)}Q", *known)
    rules = system.syscall(_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0)
    if rules < 0:
        return 0
    try:
        reading = _EXECUTE | _READ_FILE | _READ_DIR
        for path in dict.fromkeys(_readable(hidden)):
            _allow(system, rules, path, reading)
        for device in _DEVICES:
            _allow(system, rules, device, _READ_FILE | _WRITE_FILE)
        _allow(system, rules, str(own), every)
        system.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        return found if system.syscall(_RESTRICT, rules, 0) == 0 else 0
    finally:
        os.close(rules)


def _readable(hidden: Path | None) -> Iterator[str]:
    """Folders that Python, its packages and NVIDIA's compiler are read from."""
    yield from _SYSTEM
    yield from (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)
    yield from sysconfig.get_paths().values()
    named = (os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH", "PYTHONPATH"))
    for path in (*sys.path, *(part for text in named for part in text.split(os.pathsep))):
        # a folder that holds the checkout, or is in it, is not opened for a module's sake
        beside = hidden is None or not (hidden.is_relative_to(path) or Path(path).is_relative_to(hidden))
        if os.path.isabs(path) and path != os.sep and (beside or path.startswith(sys.prefix + os.sep)):
            yield path


def _allow(system: ctypes.CDLL, rules: int, path: str, rights: int) -> None:
    """What is not there needs no rule."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not os.path.isdir(path):
                rights &= _EXECUTE | _WRITE_FILE | _READ_FILE
            rule = struct.pack("=Qi", rights, handle)
            system.syscall(_ADD, rules, _BENEATH, rule, 0)
        finally:
            os.close(handle)
