"""Tells when a file was saved.

Files are looked at ten times a second: this works on every file system, network's and Windows' included.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

_LOOK_SECONDS = 0.1


class Saves:
    """The saves of ``files`` while the context is open.

    ``on_save`` is called in another thread as soon as a save is seen.
    """

    def __init__(self, files: Iterable[Path], on_save: Callable[[Path], None] = lambda path: None) -> None:
        self._known = {path: _stamp(path) for path in files}
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

    def wait(self) -> list[Path]:
        """The files saved since the last call, each once, in order; waits for one."""
        found: list[Path] = []
        while not found or not self._found.empty():
            try:
                found.append(self._found.get(timeout=_LOOK_SECONDS))
            except queue.Empty:  # so that an interrupt is seen on every system
                continue
        return list(dict.fromkeys(found))

    def _watch(self) -> None:
        changed: set[Path] = set()  # at the last look: an editor may write several times in one save
        while not self._stop.wait(_LOOK_SECONDS):
            for path, known in self._known.items():
                self._known[path] = _stamp(path)
                if self._known[path] != known:
                    changed.add(path)
                elif path in changed and known:
                    changed.remove(path)
                    self._on_save(path)
                    self._found.put(path)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file is written or replaced; None while there is none, or an empty one."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino) if found.st_size else None
