"""What a lesson says of its steps in its ``lesson.toml``, for the harness to repeat or to go by; it may have none.

``[timed_from]``  by step, presets that are timed from that step of its ladder on: layers that only show what a fast
kernel does with them

``[[remark]]``    what the compiler does to the ``kernel`` of a ``step`` that its source does not say, as ``text``.
``merged``: shared arrays whose 32-bit reads it makes so many words wide; the tracer can count them that way.

``[photo]``       the conv2d ``step`` that convolves the photograph, unless another is asked for

``[picture.*]``   what a picture of traces shows, by the function of :mod:`common.report.tracefigures` that draws it:
of ``requests`` the ``steps``; of ``banks`` a ``step``'s shared ``array`` at a ``shape``, for each of a ``constant``'s
``values``; of ``who_loads`` a ``step``'s shared ``array`` at a ``shape``, in one ``block``
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from common.book import schema, store
from common.book.schema import COUNT, TEXT, Each, Maybe, one_of

NAME = "lesson.toml"
_PICTURES = {
    "requests": Maybe({"steps": [TEXT]}),
    "banks": Maybe({"step": TEXT, "array": TEXT, "shape": TEXT, "constant": TEXT, "values": [COUNT]}),
    "who_loads": Maybe({"step": TEXT, "array": TEXT, "shape": TEXT, "block": [COUNT]}),
}
_SHAPE = {
    "timed_from": Maybe(Each([TEXT])),
    "remark": Maybe([{"step": TEXT, "kernel": TEXT, "text": TEXT, "merged": Maybe(Each(COUNT))}]),
    "photo": Maybe({"step": TEXT}),
    "picture": Maybe(Each({}, one_of(*_PICTURES))),
}


@dataclass(frozen=True)
class Remark:
    """What the compiler does to a kernel, and the shared arrays whose reads it makes wider, with their words."""

    text: str
    merged: dict[str, int] = field(default_factory=dict)


def timed_from(lessons: Path) -> dict[str, str]:
    """By preset, the first step of its ladder that is timed on it, if that is not the ladder's first."""
    return {
        preset: step
        for data in _all(lessons)
        for step, presets in data.get("timed_from", {}).items()
        for preset in presets
    }


def remarks(lessons: Path, step: str) -> dict[str, Remark]:
    """By kernel, what is said of those of a step."""
    return {
        one["kernel"]: Remark(one["text"], one.get("merged", {}))
        for data in _all(lessons)
        for one in data.get("remark", [])
        if one["step"] == step
    }


def photo(lessons: Path) -> str:
    """The step that convolves the photograph; raises ValueError if no lesson names one."""
    return str(_said(lessons, "photo")["step"])


def picture(lessons: Path, name: str) -> dict[str, Any]:
    """What the picture of that name shows; raises ValueError if no lesson says so."""
    return _said(lessons, "picture", name)


def _said(lessons: Path, *keys: str) -> dict[str, Any]:
    """The table of that name, of the first lesson that has it."""
    for found in _all(lessons):
        for key in keys:
            found = found.get(key, {})
        if found:
            return found
    raise ValueError(f"no {NAME} has [{'.'.join(keys)}]")


def _all(lessons: Path) -> list[dict[str, Any]]:
    files = sorted(lessons.glob(f"*/{NAME}"))
    return [_read(path, path.stat().st_mtime_ns) for path in files]


@lru_cache(maxsize=64)
def _read(path: Path, _: int) -> dict[str, Any]:
    """Raises StoreError naming the file and what is wrong with it."""
    data = store.read_toml(path)
    if flaw := schema.flaw(data, _SHAPE) or schema.flaw(data.get("picture", {}), _PICTURES, "picture"):
        raise store.StoreError(path, "not as a lesson says it", flaw)
    return data
