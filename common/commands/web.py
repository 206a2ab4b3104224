"""The command ``book``."""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.markup import escape

from common.catalog import catalog, store
from common.commands import arguments, choosing, console
from common.commands.console import RIGHT, WRONG

OUT = catalog.ROOT / ".workbook" / "book"
_WORK = catalog.ROOT / ".workbook" / "book-work"
_MARK = ".workbook-book"  # in a book's folder before any page, so that one that was interrupted is known for one
_WAIT_SECONDS = 600.0  # for another that is being built


def commands(known: arguments.Commands) -> None:
    sub = known.add("book", _book, "build the book: a folder that opens in a browser, without network")
    sub.add_argument("--out", type=Path, metavar="FOLDER", help="default: .workbook/book")
    sub.add_argument("--fresh", action="store_true", help="build all pages, changed or not")


def _book(options: argparse.Namespace) -> int:
    out = OUT if options.out is None else options.out.resolve()
    return _build(out, options.fresh)


def _build(out: Path, fresh: bool) -> int:
    _require_own(out)
    try:
        from common.book import book  # brings Sphinx
    except ModuleNotFoundError as error:
        name = (error.name or "Sphinx").partition(".")[0]
        raise ValueError(f"the book needs {name}, which is not installed: make setup brings it") from None
    began = time.monotonic()
    try:
        with _workplace(fresh) as work:
            pages = book.build(out, work)
    except book.BookError as error:
        console.complain(f"[bold red]error:[/] {escape(str(error))}")
        return WRONG
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) / 2**20
    said = f"{pages} pages, {size:.0f} MiB, {time.monotonic() - began:.0f} s: open {out / 'index.html'}"
    console.say().print(escape(said), soft_wrap=True)
    return RIGHT


@contextmanager
def _workplace(fresh: bool) -> Iterator[Path]:
    """A folder to work in, this process's alone while open: the checkout's, which has what is unchanged, or where
    that cannot be written, one that goes again."""
    with ExitStack() as stack:
        try:
            choosing.make_folder(_WORK)
            work = _WORK
            stack.enter_context(store.locked(work, _WAIT_SECONDS))
            for path in work.iterdir() if fresh else ():  # and not the folder, which is locked
                shutil.rmtree(path, ignore_errors=True)
        except ValueError:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="workbook-")))
        yield work


def _require_own(out: Path) -> None:
    """Raise ValueError unless the folder is new, empty, or an earlier book: nothing else is written over."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out}: is a file, must be a folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out {out}: cannot be made: {store.reason(error)}") from None
    if any(out.iterdir()) and not any((out / name).exists() for name in ("searchindex.js", _MARK)):
        raise ValueError(f"--out {out}: holds other files; must be new, empty, or a book")
    store.write(out / _MARK, "a book that the workbook builds\n")
