"""The book, built once, and a browser to read it in; whoever lacks one of them is told what."""

import importlib.util
import shutil

import pytest
from processes import python
from sampling import NOT_TODAY, not_today

from common.commands import changed

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


@pytest.fixture(scope="session")
def book():
    """The folder of the built book, and what the command said."""
    if not_today(0):
        pytest.skip(NOT_TODAY)
    missing = [name for name in ("sphinx", "myst_parser", "furo") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"the book needs {', '.join(missing)}: make book")
    shutil.rmtree(changed.BOOK, ignore_errors=True)  # pages of before, which nobody leads to any more
    return changed.BOOK, python("-m", "common", "book").stdout


@pytest.fixture(scope="session")
def chromium():
    """Headless Chromium, of the distribution."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("no Chromium on this machine: apt install chromium")
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("no playwright: pip install playwright")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium):
    """Open a file as a page; when the test ends, no page may have said an error or asked for what is not there."""
    pages, said = [], []

    def visit(path, width=1280, height=900, scripts=True):
        page = chromium.new_page(viewport={"width": width, "height": height}, java_script_enabled=scripts)
        pages.append(page)
        page.on(
            "console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("requestfailed", lambda request: said.append(f"not loaded: {request.url}"))
        page.on("request", lambda request: said.append(request.url) if request.url.startswith("http") else None)
        target, _, place = str(path).partition("#")
        page.goto(f"file://{target}{'#' + place if place else ''}")
        if scripts:
            page.evaluate(FRAMES)  # charts are drawn again when their width is known
        return page

    yield visit
    for page in pages:
        page.close()
    assert not said
