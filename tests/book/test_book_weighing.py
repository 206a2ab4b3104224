"""What pages weigh: of a made book, from disk and from a server; what is missing is told in one line."""

import builtins
import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from common.book import weighing
from common.catalog import store
from common.cli import main
from common.commands import web

STYLE = "p { color: red }\n"


@pytest.fixture
def made(tmp_path):
    """A book of two pages and one style."""
    page = '<!doctype html><link rel="icon" href="data:,"><link rel="stylesheet" href="{}a%20style.css"><p>words</p>'
    store.write(tmp_path / "a style.css", STYLE)
    store.write(tmp_path / "index.html", page.format(""))
    store.write(tmp_path / "lessons" / "01_one" / "index.html", page.format("../../"))
    return tmp_path


def aside(function, *arguments):
    """Call it in a thread of its own: one thread drives one browser, and the tests' has one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *arguments).result()


def test_pages_are_home_lessons_pair_and_story(made):
    assert weighing.pages(made) == ["index.html", "lessons/01_one/index.html"]
    store.write(
        made / "explore" / "index.html", '<script src="../none.js?v=1">' + 999 * " "
    )  # the list of the others
    store.write(made / "explore" / "a.js", 99 * " ")
    store.write(made / "explore" / "b.html", 50 * " ")
    store.write(made / "explore" / "a-b.html", '<script src="a.js"></script>')
    store.write(made / "story.html", "")
    assert weighing.pages(made)[2:] == ["explore/a-b.html", "story.html"]


def test_a_page_s_weight_is_that_of_its_files(made, chromium, monkeypatch, capsys):  # chromium: skips without one
    monkeypatch.setattr(weighing, "LOADS", 1)
    monkeypatch.setattr(web, "_build", lambda out, fresh: 0)
    names = weighing.pages(made)
    assert aside(main, ["book", "--weigh", "--out", str(made)]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert re.split(r"\s{2,}", head) == ["page", "requests", "KiB", "ms from disk", "ms from server"]
    for name, row in zip(names, rows, strict=True):
        page, requests, kib, disk, served = row.split()
        assert (page, requests) == (name, "2")
        assert int(kib) == round(((made / name).stat().st_size + len(STYLE)) / 1024)
        assert 0 < int(disk) < 20_000
        assert 0 < int(served) < 20_000


@pytest.fixture
def refused(capsys, monkeypatch):
    monkeypatch.setattr(web, "_build", lambda out, fresh: pytest.fail("built, though it cannot be weighed"))

    def refused():
        assert main(["book", "--weigh"]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert "Traceback" not in said.err
        return " ".join(said.err.split())

    return refused


def test_without_a_browser_one_line_says_so(refused, monkeypatch):
    pytest.importorskip("playwright", reason="no playwright: pip install playwright")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert refused() == "error: --weigh: no Chromium on this machine: apt install chromium"


def test_without_playwright_one_line_says_so(refused, monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("playwright"):
            raise ModuleNotFoundError(name=name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert refused() == "error: --weigh: needs playwright, which is not installed: make setup brings it"


def test_a_browser_that_does_not_start_is_told(made, monkeypatch):
    pytest.importorskip("playwright", reason="no playwright: pip install playwright")
    program = made / "chromium"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(ValueError, match=rf"^--weigh: {re.escape(str(program))}: .+"):
        aside(lambda: list(weighing.weigh(made, weighing.pages(made), str(program))))
