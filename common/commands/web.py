"""The command ``book``."""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

from rich.markup import escape

from common.book import catalog, store
from common.commands import arguments, console
from common.commands.console import RIGHT, WRONG

OUT = catalog.ROOT / ".workbook" / "book"
_WORK = catalog.ROOT / ".workbook" / "book-work"


def commands(known: arguments.Commands) -> None:
    sub = known.add("book", _book, "build the book: a folder that opens in a browser, without network")
    sub.add_argument("--out", type=Path, metavar="FOLDER", help="default: .workbook/book")
    sub.add_argument("--fresh", action="store_true", help="build all pages, changed or not")
    sub.add_argument("--weigh", action="store_true", help="then tell what pages load, and when they can be read")


def _book(options: argparse.Namespace) -> int:
    out = OUT if options.out is None else options.out.resolve()
    if not options.weigh:
        return _build(out, options.fresh)
    from common.web import weighing

    program = weighing.browser()
    built = _build(out, options.fresh)
    if built == RIGHT:
        _weigh(out, program)
    return built


def _weigh(book: Path, program: str) -> None:
    """Print a line for each page that is weighed, as it comes in."""
    from common.web import weighing

    names = weighing.pages(book)
    width = max(map(len, names), default=0)
    line = f"{{:<{width}}}  {{:>8}}  {{:>6}}  {{:>12}}  {{:>14}}"
    say = console.say()
    say.print(line.format("page", "requests", "KiB", "ms from disk", "ms from server"), soft_wrap=True)
    for one in weighing.weigh(book, names, program):
        cells = one.requests, f"{one.bytes / 1024:,.0f}", f"{one.disk_ms:.0f}", f"{one.server_ms:.0f}"
        say.print(escape(line.format(one.page, *cells)), soft_wrap=True)


def _build(out: Path, fresh: bool) -> int:
    _require_own(out)
    try:
        from common.web import book  # brings Sphinx
    except ModuleNotFoundError as error:
        name = (error.name or "Sphinx").partition(".")[0]
        raise ValueError(f"the book needs {name}, which is not installed: make setup brings it") from None
    if fresh:
        shutil.rmtree(_WORK, ignore_errors=True)
    began = time.monotonic()
    try:
        pages = book.build(out, _WORK)
    except book.BookError as error:
        console.complain(f"[bold red]error:[/] {escape(str(error))}")
        return WRONG
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) / 2**20
    said = f"{pages} pages, {size:.0f} MiB, {time.monotonic() - began:.0f} s: open {out / 'index.html'}"
    console.say().print(escape(said), soft_wrap=True)
    return RIGHT


def _require_own(out: Path) -> None:
    """Raise ValueError unless the folder is new, empty, or an earlier book: nothing else is written over."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out}: is a file, must be a folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out {out}: cannot be made: {store.reason(error)}") from None
    if any(out.iterdir()) and not (out / "searchindex.js").exists():
        raise ValueError(f"--out {out}: holds other files; must be new, empty, or a book")
