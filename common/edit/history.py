"""The student's own record: every source that was run, and what came of it. Nothing in it is ever overwritten.

``.workbook/sources/<sha256>/<file name>`` holds each source once, so that it can be run from there,
``.workbook/runs/<step>/<time>-<process>-<count>.json`` one event each.
"""

import hashlib
import itertools
import os
import textwrap
import time
from collections import Counter
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from msgspec import Struct, to_builtins
from msgspec.structs import replace
from rich.markup import escape
from rich.table import Table

from common.catalog import catalog, store
from common.catalog.store import Digest, Name

FOLDER = catalog.ROOT / ".workbook"
_REASON_WIDTH = 60
_counter = itertools.count()


class Event(Struct, frozen=True):
    """One thing that happened to a step's file: ``what`` is run, saved, reset or restored. ``source`` is the SHA-256
    of its bytes; ``verdict`` a run's status, ``reason`` its first finding, ``figure`` what was measured of it."""

    step: Name
    source: Digest
    what: Name
    verdict: str = ""
    reason: str = ""
    figure: str = ""
    time: str = ""
    number: int = 0


def sha(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()


def keep(source: bytes, name: str) -> Path:
    """Store a source under ``name``; returns the stored file, whose parent's name is the hash. Raises StoreError."""
    path = FOLDER / "sources" / sha(source) / name
    if not path.is_file():
        store.write(path, source)
    return path


def stored(name: str, digest: str) -> bytes:
    """The source stored under this name and hash; raises StoreError."""
    return store.read_bytes(FOLDER / "sources" / digest / name)


def add(event: Event) -> None:
    """Write an event down; raises StoreError."""
    now = time.time_ns()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now // 10**9))
    # sorted by name is sorted by time; process and count keep those of one moment apart
    name = f"{now:020d}-{os.getpid()}-{next(_counter)}.json"
    store.write_json(FOLDER / "runs" / event.step / name, to_builtins(replace(event, time=stamp)))


def events(step: str | None = None) -> list[Event]:
    """A step's events, or all, the oldest first, numbered from 1 within their step; what is none is left out."""
    found: list[Event] = []
    counts: Counter[str] = Counter()
    for path in sorted((FOLDER / "runs").glob(f"{step or '*'}/*.json"), key=lambda path: path.name):
        with suppress(store.StoreError, store.SchemaError):
            event, name = store.convert(store.read_json(path), Event), path.parent.name
            counts[name] += 1
            found.append(replace(event, step=name, number=counts[name]))
    return found


def save(path: Path) -> Path:
    """Store a file as it is now, as :func:`keep` does. Noted as an event unless its last one has this source."""
    copy = keep(store.read_bytes(path), path.name)
    digest = copy.parent.name
    if not any(event.source == digest for event in events(path.stem)[-1:]):
        add(Event(path.stem, digest, "saved"))
    return copy


def choose(path: Path, wanted: str | None) -> Event:
    """The event that ``wanted`` names: its number, or the start of a source's hash; by default the last source that
    is not the file's present one. Raises ValueError saying what there is."""
    name, known = path.stem, events(path.stem)
    if not known:
        raise ValueError(f"{name}: its history is empty: nothing was run or reset yet")
    if wanted is None:
        now = sha(store.read_bytes(path)) if path.exists() else ""
        others = [event for event in known if event.source != now]
        if not others:
            raise ValueError(f"{name}: its history has no other version than the file's present one")
        return others[-1]
    by_hash = [event for event in known if event.source.startswith(wanted) and len(wanted) >= 4]
    fitting = [event for event in known if wanted == str(event.number)] or by_hash
    if len({event.source for event in fitting}) != 1:
        numbers, digits = f"a number from 1 to {len(known)}", "a hash's first 4 digits or more"
        shows = f"as python -m common history {name} shows them"
        raise ValueError(f"{wanted!r} names no entry of {name}: must be {numbers}, or {digits}, {shows}")
    return fitting[-1]


def put_back(path: Path, source: bytes, what: str) -> str:
    """Make ``source`` the file at ``path``; returns the hash of what stood there, which is saved first, if anything
    did. Raises StoreError, with the file untouched."""
    saved = save(path).parent.name if path.exists() else ""
    keep(source, path.name)
    store.write(path, source)
    add(Event(path.stem, sha(source), what))
    return saved


# --- in words ---


def table(found: list[Event], marks: dict[tuple[str, str], str], named: bool) -> Table:
    """A row for each event, with its step's name if ``named``; ``marks``: by step and hash what a version is, such as
    the one that the file has now."""
    table = Table(*["step"] * named, "N", "when", "source", "", "result")
    for column in table.columns[:-1]:
        column.no_wrap = True
    for event in found:
        colour = {"right": "green", "": "dim"}.get(event.verdict, "red")
        reason = textwrap.shorten(event.reason, _REASON_WIDTH, placeholder=" ...")
        what = [f"[{colour}]{escape(event.verdict or event.what)}[/]", escape(event.figure), escape(reason)]
        mark, result = marks.get((event.step, event.source), ""), ": ".join(filter(None, what))
        table.add_row(*[event.step] * named, str(event.number), when(event), event.source[:8], mark, result)
    return table


def when(event: Event) -> str:
    """The event's time on this machine's clock."""
    return datetime.fromisoformat(event.time.replace("Z", "+00:00")).astimezone().strftime("%m-%d %H:%M")
