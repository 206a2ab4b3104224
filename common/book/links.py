"""Does every link inside the built book lead somewhere? Files, and places in them."""

from __future__ import annotations

import html
import posixpath
import re
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Within a tag alone: what stands in text has its quotes escaped, and a script's its backslashes before them.
_ATTRIBUTE = re.compile(r'\s(id|name|href|src|poster)="([^"]*)"')


class _Page:
    """A page's places and links, where they are asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def text(self) -> str:
        return self._path.read_text(encoding="utf-8")

    @cached_property
    def places(self) -> set[str]:
        return {html.unescape(m[2]) for m in _ATTRIBUTE.finditer(self.text) if m[1] in ("id", "name")}

    def links(self) -> dict[str, int]:
        """Where each target stands first in the text."""
        found: dict[str, int] = {}
        for match in _ATTRIBUTE.finditer(self.text):
            if match[1] not in ("id", "name"):
                found.setdefault(match[2], match.start())
        return found

    def line(self, at: int) -> int:
        return self.text.count("\n", 0, at) + 1


def broken(folder: Path) -> list[str]:
    """One line for each link that leads nowhere: page, line, target. Addresses in the network are not looked at."""
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    pages = {name: _Page(folder / name) for name in sorted(files) if name.endswith(".html")}
    found = []
    for name, page in pages.items():
        for target, at in page.links().items():
            why = _wrong(files, pages, name, html.unescape(target))
            if why:
                found.append(f"{name}:{page.line(at)}: {target}: {why}")
    return found


def _wrong(files: set[str], pages: dict[str, _Page], here: str, target: str) -> str:
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return ""
    name = posixpath.normpath(posixpath.join(posixpath.dirname(here), unquote(parts.path))) if parts.path else here
    if name.startswith(("../", "/")):
        return "outside the book"
    name = name if name in files else posixpath.normpath(f"{name}/index.html")
    if name not in files:
        return "no such file"
    if parts.fragment and name in pages and unquote(parts.fragment) not in pages[name].places:
        return "no such place on that page"
    return ""
