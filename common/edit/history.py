"""The student's own record: every source that was run, and what came of it. Nothing in it is ever overwritten.

``.workbook/sources/<sha256>/<file name>`` holds each source once, by the hash of its bytes, under its own name, so
that it can be run from there. ``.workbook/runs/<step>/<time>-<process>-<count>.json`` holds one event each.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, field, to_builtins
from msgspec.structs import replace

from common.catalog import catalog, schema, store
from common.catalog.schema import Amount, Digest, Name, Positive

FOLDER = catalog.ROOT / ".workbook"
_SHORTEST_HASH = 4
_counter = itertools.count()


class HistoryError(OSError):
    """What is to be brought back is not there, or not what was kept."""


class Figures(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was measured of a run; ``ratio`` is the shipped version's time over this one's, ``loop_per_fma`` the
    instructions of its multiply loop for each multiply-add."""

    preset: str | None = None
    device: str | None = None
    median_ms: Positive | None = None
    ratio: Positive | None = None
    loop_per_fma: Amount | None = None


class Event(Struct, frozen=True, forbid_unknown_fields=True):
    """One thing that happened to a step's file: ``what`` is run, graded, saved (kept before something overwrote it),
    reset or restored.

    ``source`` is the SHA-256 of its bytes at the time, ``helpers`` those of the edited helpers that it ran with, by
    name. ``verdict`` is a run's status, or whether an exercise passed, ``reason`` its first finding.
    """

    step: Name
    source: Digest
    what: Name
    time: str = ""
    verdict: str = ""
    reason: str = ""
    figures: Figures = Figures()
    helpers: dict[Annotated[str, Meta(pattern=r"^[^\W\d]\w*\Z")], Digest] = field(default_factory=dict)
    number: int = 0


def sha(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()


def keep(source: bytes, name: str) -> Path:
    """Store a source under ``name``; returns the stored file, whose parent's name is the hash. Raises StoreError."""
    path = FOLDER / "sources" / sha(source) / name
    if not path.is_file() or store.read_bytes(path) != source:
        store.write(path, source)
    return path


def stored(name: str, digest: str) -> bytes:
    """The source stored under this name and hash; raises HistoryError if it is not there, or was changed since."""
    path = FOLDER / "sources" / digest / name
    source = store.read_bytes(path)
    if sha(source) != digest:
        raise HistoryError(f"{path}: is not what was stored there: its SHA-256 is {sha(source)}")
    return source


def add(event: Event) -> None:
    """Write an event down; raises StoreError."""
    now = time.time_ns()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now // 10**9))
    entry = to_builtins(replace(event, time=event.time or stamp))
    del entry["number"]
    # sorted by name is sorted by time; process and count keep those of one moment apart
    name = f"{now:020d}-{os.getpid()}-{next(_counter)}.json"
    store.write(FOLDER / "runs" / event.step / name, json.dumps(entry, indent=1).encode())


def events(step: str | None = None) -> list[Event]:
    """A step's events, or all, the oldest first, numbered from 1 within their step; a file that is none is passed
    over."""
    found: list[Event] = []
    counts: Counter[str] = Counter()
    for path in sorted((FOLDER / "runs").glob(f"{step or '*'}/*.json"), key=lambda path: path.name):
        with suppress(store.StoreError, schema.SchemaError):
            event = schema.read(store.read_json(path), Event)
            counts[path.parent.name] += 1
            found.append(replace(event, step=path.parent.name, number=counts[path.parent.name]))
    return found


def best(step: str, preset: str, shipped: str = "") -> Event | None:
    """The right run that was fastest against the shipped version, whose hash is ``shipped``, on ``preset``."""
    timed = [event for event in events(step) if event.figures.preset == preset and event.figures.ratio]
    own = [event for event in timed if event.source != shipped or event.helpers]
    return max(own, key=lambda one: one.figures.ratio or 0.0, default=None)


def save(path: Path) -> Path:
    """Store a file as it is now, as :func:`keep` does. Noted as an event unless its last one has this source."""
    source = store.read_bytes(path)
    copy = keep(source, path.name)
    if not any(event.source == sha(source) for event in events(path.stem)[-1:]):
        add(Event(path.stem, sha(source), "saved"))
    return copy


def choose(path: Path, wanted: str | None) -> Event:
    """The event that ``wanted`` names: its number, or the start of a source's hash; by default the last source that
    is not the file's present one. Raises HistoryError saying what there is."""
    name, known = path.stem, events(path.stem)
    if not known:
        raise HistoryError(f"{name}: its history is empty: nothing was run or reset yet")
    if wanted is None:
        now = sha(store.read_bytes(path)) if path.exists() else ""
        for event in reversed(known):
            if event.source != now:
                return event
        raise HistoryError(f"{name}: the history holds no other source than the present one")
    if wanted.isdigit() and 0 < int(wanted) <= len(known):
        return known[int(wanted) - 1]
    fitting = {event.source: event for event in known if event.source.startswith(wanted)}
    if len(wanted) >= _SHORTEST_HASH and len(fitting) == 1:
        return next(iter(fitting.values()))
    raise HistoryError(
        f"{wanted!r} names no entry of {name}: must be a number from 1 to {len(known)}, or a hash's first "
        f"{_SHORTEST_HASH} digits or more, as python -m common history {name} shows them"
    )


def put_back(path: Path, source: bytes, what: str) -> str:
    """Make ``source`` the file at ``path``, after what stands there was saved; returns the hash of what was saved, or
    "" if there was nothing. Raises StoreError, with the file untouched, when that cannot be done."""
    saved = save(path).parent.name if path.exists() else ""
    keep(source, path.name)
    store.write(path, source)
    add(Event(path.stem, sha(source), what))
    return saved
