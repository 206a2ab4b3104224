"""Tells when a file's bytes change: an edit was saved.

Files are looked at ten times a second: this works on every file system, network's and Windows' included.
"""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

_LOOK_SECONDS = 0.1
_SETTLE_SECONDS = 0.02  # an editor's several writes of one save come within this


class Saves:
    """The saves of ``files`` while the context is open.

    ``on_save`` is called in another thread as soon as a save is seen.
    """

    def __init__(self, files: Iterable[Path], on_save: Callable[[Path], None] = lambda path: None) -> None:
        self._known = {path: (_stamp(path), _hash(path)) for path in files}
        self._on_save = on_save
        self._found: queue.Queue[Path] = queue.Queue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Saves:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def wait(self, seconds: float | None = None) -> list[Path]:
        """The files saved since the last call, each once, in order; waits for one, at most ``seconds``."""
        ends = None if seconds is None else time.monotonic() + seconds
        while self._found.empty():
            if ends is not None and time.monotonic() > ends:
                return []
            time.sleep(_SETTLE_SECONDS)
        found = [self._found.get()]
        while not self._found.empty():
            found.append(self._found.get())
        return list(dict.fromkeys(found))

    def _watch(self) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            for path, (stamp, content) in self._known.items():
                now = _stamp(path)
                if now == stamp:
                    continue
                time.sleep(_SETTLE_SECONDS)
                if _stamp(path) != now:
                    continue  # being written just now
                new = _hash(path)
                if new:
                    self._known[path] = now, new
                if new not in ("", content):
                    self._on_save(path)
                    self._found.put(path)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file is written or replaced; None while there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _hash(path: Path) -> str:
    """The hash of a file's bytes; "" while there is no such file, or one that is empty or cannot be read."""
    try:
        content = path.read_bytes()
    except OSError:
        return ""
    return hashlib.sha256(content).hexdigest() if content else ""
