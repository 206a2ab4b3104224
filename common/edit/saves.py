"""Tells when a file's bytes change: an edit was saved."""

from __future__ import annotations

import hashlib
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

_SETTLE_SECONDS = 0.02
_POLL_SECONDS = 0.5  # an interrupt is seen this soon; and the files are looked at this often where no event comes
_DEBOUNCE_MS = 100  # an editor's several writes of one save come within this


class Saves:
    """The saves of ``files`` while the context is open.

    ``on_save`` is called in another thread as soon as a save is seen.
    """

    def __init__(self, files: Iterable[Path], on_save: Callable[[Path], None] = lambda path: None) -> None:
        self._known = {path: _hash(path) for path in files}
        self._on_save = on_save
        self._found: queue.Queue[Path] = queue.Queue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Saves:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(2 * _POLL_SECONDS)

    def wait(self, seconds: float | None = None) -> list[Path]:
        """The files saved since the last call, each once, in order; waits for one, at most ``seconds``."""
        left = math.inf if seconds is None else seconds
        while left > 0:
            pause = min(left, _POLL_SECONDS)
            try:
                found = [self._found.get(timeout=pause)]
            except queue.Empty:
                left -= pause
                continue
            while not self._found.empty():
                found.append(self._found.get())
            return list(dict.fromkeys(found))
        return []

    def _watch(self) -> None:
        for _ in self._changes():
            for path, before in self._known.items():
                now = _settled(path, before)
                if now != before:
                    self._known[path] = now
                    self._on_save(path)
                    self._found.put(path)

    def _changes(self) -> Iterator[object]:
        """Something whenever a file may have changed, until the context is closed."""
        import watchfiles  # only `--watch` needs it

        try:
            yield from watchfiles.watch(
                *{path.parent for path in self._known}, watch_filter=None, debounce=_DEBOUNCE_MS,
                step=_DEBOUNCE_MS // 2, stop_event=self._stop, rust_timeout=int(1000 * _POLL_SECONDS),
                yield_on_timeout=True, recursive=False, raise_interrupt=False,
            )  # fmt: skip
        except (OSError, RuntimeError):  # the system watches no more files: look at them instead
            while not self._stop.wait(_POLL_SECONDS):
                yield None


def _settled(path: Path, before: str) -> str:
    """The hash of a file that is not being written just now; ``before`` if there is none, or it is empty."""
    now = _hash(path)
    while now not in ("", before):
        time.sleep(_SETTLE_SECONDS)
        again = _hash(path)
        if again == now:
            return now
        now = again
    return before


def _hash(path: Path) -> str:
    """The hash of a file's bytes; "" while there is no such file, or one that is empty or cannot be read."""
    try:
        content = path.read_bytes()
    except OSError:
        return ""
    return hashlib.sha256(content).hexdigest() if content else ""
