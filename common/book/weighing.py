"""What a page asks of its reader's browser: requests, bytes, and the time until it can be read."""

from __future__ import annotations

import functools
import http.server
import re
import shutil
import statistics
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from common.book import explorations

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
LOADS = 3
# When the words are on the screen, and the scripts that stand in the page have drawn.
_READABLE = """() => {
  const painted = performance.getEntriesByName("first-contentful-paint")[0];
  const loaded = performance.getEntriesByType("navigation")[0].domContentLoadedEventEnd;
  return painted && loaded ? Math.max(painted.startTime, loaded) : 0;
}"""


@dataclass(frozen=True)
class Weight:
    """What a page loads, and the median time until it can be read, in ms: from disk, and from a server here."""

    page: str
    requests: int
    bytes: int
    disk_ms: float
    server_ms: float


def pages(book: Path) -> list[str]:
    """The pages that stand for the others: home, the lessons, the heaviest of the microscope, the story."""
    lessons = sorted(path.relative_to(book).as_posix() for path in book.glob("lessons/[0-9]*/index.html"))
    folder = book / explorations.FOLDER
    traces = [path for path in folder.glob("*.html") if path.name != explorations.address("index")]
    heaviest = max(traces, key=_with_scripts, default=book).relative_to(book).as_posix()
    return [name for name in ("index.html", *lessons, heaviest, "story.html") if (book / name).is_file()]


def _with_scripts(page: Path) -> int:
    """The bytes of a page and of the scripts that it loads."""
    named = re.findall(r'<script src="([^"]+)"', page.read_text(encoding="utf-8"))
    return sum((page.parent / name).stat().st_size for name in (page.name, *named))


def browser() -> str:
    """Chromium's program. Raises ValueError where it, or playwright, which drives it, is not here."""
    try:
        import playwright.sync_api  # noqa: F401
    except ModuleNotFoundError:
        raise ValueError("--weigh: needs playwright, which is not installed: make setup brings it") from None
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        raise ValueError("--weigh: no Chromium on this machine: apt install chromium")
    return found


def weigh(book: Path, names: Sequence[str], program: str) -> Iterator[Weight]:
    """Load each page ``LOADS`` times from disk and from a server, with nothing kept from the load before."""
    from playwright.sync_api import Error, sync_playwright

    with _served(book) as server, sync_playwright() as play:
        try:
            chromium = play.chromium.launch(executable_path=program, args=["--no-sandbox"])
        except Error as error:
            raise ValueError(f"--weigh: {program}: {str(error).splitlines()[0]}") from None
        for name in names:
            disk = [_load(chromium, (book / name).resolve().as_uri()) for _ in range(LOADS)]
            served = [_load(chromium, f"{server}/{name}") for _ in range(LOADS)]
            asked = {unquote(urlsplit(address).path).lstrip("/") for address in served[0][1]}
            size = sum((book / path).stat().st_size for path in asked if (book / path).is_file())
            times = [statistics.median(ms for ms, _ in loads) for loads in (disk, served)]
            yield Weight(name, len(asked), size, times[0], times[1])
        chromium.close()


def _load(chromium: Any, address: str) -> tuple[float, list[str]]:
    """The time until the page can be read, in ms, and what it asked for until nothing more came."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page, asked = context.new_page(), []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address, wait_until="networkidle")
    ready = page.wait_for_function(_READABLE).json_value()
    context.close()
    return ready, asked


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """The folder under an address of this machine, meanwhile."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
