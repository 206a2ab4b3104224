"""Does every link inside the built book lead somewhere? Files, and places in them."""

from __future__ import annotations

import html
import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Within a tag alone: what stands in text has its quotes escaped, and a script's its backslashes before them.
_ATTRIBUTE = re.compile(r'\s(id|name|href|src|poster)="([^"]*)"')


def broken(folder: Path) -> list[str]:
    """One line for each link that leads nowhere: page, target, why. Addresses in the network are not looked at."""
    places: dict[str, set[str]] = {}
    links: dict[str, list[str]] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        found = _ATTRIBUTE.findall(path.read_text(encoding="utf-8")) if path.suffix == ".html" else []
        places[name] = {html.unescape(value) for attribute, value in found if attribute in ("id", "name")}
        links[name] = list(dict.fromkeys(value for attribute, value in found if attribute not in ("id", "name")))
    return [
        f"{page}: {target}: {why}"
        for page, targets in links.items()
        for target in targets
        if (why := _wrong(places, page, html.unescape(target)))
    ]


def _wrong(places: Mapping[str, set[str]], page: str, target: str) -> str:
    """What is wrong with a page's link, or ""; ``places`` has those of every page, and every other file."""
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return ""
    path = posixpath.join(posixpath.dirname(page), unquote(parts.path)) if parts.path else page
    name = posixpath.normpath(path)
    if name.startswith(("../", "/")):
        return "outside the book"
    name = name if name in places else posixpath.normpath(f"{name}/index.html")
    if name not in places:
        return "no such file"
    if parts.fragment and name.endswith(".html") and unquote(parts.fragment) not in places[name]:
        return "no such place on that page"
    return ""
